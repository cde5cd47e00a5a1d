"""Arrays of Arrow: a slice takes the room of what it has, and not of the whole from which it was cut."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from faults import PATIENCE

import zfabric as zf
from zfabric.adapters import serialization as s

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed: that slices of tables are stored without the rest is NOT tested")
pd: Any = pytest.importorskip("pandas", reason="pandas is not installed: frames with types of Arrow are NOT tested")

ROWS = 20_000
NUMBERS = range(ROWS)
TEXTS = [f"text {i}" for i in NUMBERS]
FEW = pa.array([f"one of {i % 50}" for i in NUMBERS]).dictionary_encode()


class Pair(pa.ExtensionType):  # type: ignore[misc]
    """A type of a program's own."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.int64()), "test.pair")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Pair:
        return cls()

    def __reduce__(self) -> Any:
        return Pair, ()


ARRAYS = {
    "numbers": lambda: pa.array(np.arange(ROWS)),
    "with nulls": lambda: pa.array([None if i % 3 else i for i in NUMBERS]),
    "booleans": lambda: pa.array([i % 2 == 0 for i in range(8 * ROWS)]),
    "texts": lambda: pa.array(TEXTS),
    "large texts": lambda: pa.array(TEXTS, pa.large_string()),
    "views": lambda: pa.array([each + " of more than twelve bytes" for each in TEXTS], pa.string_view()),
    "binary views": lambda: pa.array([each.encode() * 3 for each in TEXTS], pa.binary_view()),
    "lists": lambda: pa.array([[i, i + 1] for i in NUMBERS]),
    "list views": lambda: pa.array([[i, i + 1] for i in NUMBERS], pa.list_view(pa.int64())),
    "lists of structs of texts": lambda: pa.array([[{"a": each}] for each in TEXTS]),
    "lists of a size": lambda: pa.array([[i, i] for i in NUMBERS], pa.list_(pa.int64(), 2)),
    "structs": lambda: pa.array([{"a": i, "b": str(i)} for i in NUMBERS]),
    "structs of a dictionary": lambda: pa.StructArray.from_arrays([FEW], ["d"]),
    "maps": lambda: pa.array([[(str(i), i)] for i in NUMBERS], pa.map_(pa.string(), pa.int64())),
    "dictionary": lambda: FEW,
    "slice of a dictionary": lambda: pa.DictionaryArray.from_arrays(np.arange(ROWS) % 10, pa.array(TEXTS).slice(100, 10)),
    "runs": lambda: pa.RunEndEncodedArray.from_arrays(np.arange(1, ROWS + 1, dtype=np.int32), pa.array(TEXTS)),
    "nothing": lambda: pa.nulls(ROWS),
    "sparse union": lambda: pa.UnionArray.from_sparse(pa.array(np.zeros(ROWS, np.int8)), [pa.array(TEXTS)]),
    "a type of its own": lambda: pa.ExtensionArray.from_storage(Pair(), pa.array([[i, i + 1] for i in NUMBERS])),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_slices_of_every_type_are_small_and_equal(kind: str) -> None:
    whole = ARRAYS[kind]()
    size = s.serialize(whole).size
    for offset, length in ((0, ROWS), (503, 100), (0, ROWS // 3), (ROWS - 1, 1)):
        part = whole.slice(offset, length)
        packed = s.serialize(part)
        found = s.deserialize(packed.to_bytes())
        found.validate(full=True)
        assert found.equals(part)
        assert (type(found), found.type) == (type(part), part.type)
        assert packed.size < 1.2 * size * length / ROWS + 4096, (offset, length)


def test_a_dense_union_is_equal() -> None:
    part = pa.UnionArray.from_dense(pa.array([0, 0, 0], pa.int8()), pa.array([0, 1, 2], pa.int32()), [pa.array(TEXTS)]).slice(1, 1)
    assert s.deserialize(s.serialize(part).to_bytes()).equals(part)


def test_slices_of_tables_batches_and_chunks_together_take_the_room_of_the_whole() -> None:
    table = pa.concat_tables([pa.table({"a": np.arange(ROWS), "t": TEXTS, "d": FEW}) for _ in range(3)])
    whole, step = s.serialize(table).size, 4999
    kinds = {
        "tables": [table.slice(at, step) for at in range(0, 3 * ROWS, step)],
        "batches": [batch.slice(at, step) for batch in table.to_batches() for at in range(0, ROWS, step)],
        "chunked": [column.slice(at, step) for column in table.columns for at in range(0, 3 * ROWS, step)],
        "many in one value": [[table.slice(at, step) for at in range(0, 3 * ROWS, step)]],
    }
    for kind, parts in kinds.items():
        assert sum(s.serialize(part).size for part in parts) < 1.2 * whole, kind
    part = table.slice(ROWS - 5, 10)  # Of two chunks.
    found = s.deserialize(s.serialize({"part": part, "twice": [part, part]}).to_bytes())
    assert found["part"].equals(part)
    assert found["part"].schema.equals(part.schema)
    assert found["twice"][0] is found["part"]


def test_what_is_not_cut_is_written_from_its_own_memory() -> None:
    array = pa.array(np.arange(ROWS))
    _, data = array.buffers()
    for part in (array, array.slice(0, ROWS - ROWS // 20)):  # A twentieth more room costs less than a copy.
        (buffer,) = s.serialize(part).buffers
        assert np.frombuffer(buffer, np.int64).ctypes.data == data.address


def test_frames_with_types_of_arrow() -> None:
    frame = pd.DataFrame({"n": np.arange(ROWS), "t": pd.Series(TEXTS, dtype="string[pyarrow]")})
    frame["l"] = pd.Series(pa.array([[i] for i in NUMBERS]), dtype=pd.ArrowDtype(pa.list_(pa.int64())))
    part = frame.iloc[10:20]
    packed = s.serialize(part)
    assert packed.size < 10_000
    pd.testing.assert_frame_equal(s.deserialize(packed.to_bytes()), part)


def test_memory_of_others_is_cut_by_themselves() -> None:
    array = np.arange(ROWS)
    for part in (memoryview(array)[5:10], array[5:10], pa.array(array).buffers()[1].slice(8, 16), pd.Series(array)[5:10]):
        assert s.serialize(part).size < 2000


def test_a_serializer_of_the_program_comes_first() -> None:
    code = """if True:
        import copyreg
        import pyarrow as pa
        from zfabric.adapters import serialization as s
        copyreg.pickle(pa.Int64Array, lambda array: (len, ("four",)))
        assert s.deserialize(s.serialize([pa.array([1])]).to_bytes()) == [4]
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def test_slices_in_the_state_of_an_actor_and_in_calls(shared_cluster: Any) -> None:
    table = pa.table({"t": TEXTS})

    class Holder:
        def __init__(self) -> None:
            self.part = table.slice(7, 5)

    assert s.dump_instance(Holder(), Holder, "state").size < 20_000

    @zf.remote
    def middle(part: Any) -> Any:
        return part.slice(1, 1)

    assert zf.get(middle.remote(table.slice(7, 3)), timeout=PATIENCE).to_pydict() == {"t": ["text 8"]}


def test_nothing_is_imported_where_no_arrow_is() -> None:
    code = """if True:
        import sys
        from zfabric.adapters import serialization as s
        s.serialize([object(), lambda: 1])
        assert "pyarrow" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
