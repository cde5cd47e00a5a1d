"""Failures with objects: too large, too many, pinned, on a full disk or in a full /dev/shm. Never SIGBUS, never wrong data."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocks import MIB, STORE, Unpicklable, block, check, make, raises
from faults import PATIENCE, eventually, failure, in_own_mounts, objects_on_disk, query, worker_pids

import zfabric as zf


@zf.remote
def check_bytes(value: bytes) -> tuple[int, int]:
    return value[0], len(value)


@pytest.fixture
def small(cluster: Callable[..., Any]) -> Callable[..., Any]:
    """A cluster whose store has 64 MiB."""

    def start(**config: Any) -> Any:
        return cluster(object_store_memory=STORE, config={"put_patience": 0.5, "preload": ("pytest", "numpy"), **config})

    return start


def test_an_object_larger_than_the_store_is_refused_by_name_and_size(small: Any) -> None:
    small()
    with pytest.raises(zf.ObjectTooLargeError, match=r"100.*MiB.*object_store_memory"):
        zf.put(block(1, 100))
    before = worker_pids()
    error = failure(make.remote(1, 100))
    assert type(error) is zf.ObjectTooLargeError
    assert str(error).startswith("what make returned has no place: an object of 100.0 MiB")
    assert error.facts["function"] == "make"
    assert error.facts["pid"] in before
    with pytest.raises(zf.ObjectTooLargeError, match=r"^args\[0\] has no place: an object of 100.0 MiB"):
        check.remote(block(1, 100), 1)
    with pytest.raises(zf.ObjectTooLargeError, match=r"^number has no place"):
        check.remote(1, number=block(1, 100))
    assert worker_pids() == before
    assert zf.get(check.remote(zf.put(block(2)), 2), timeout=PATIENCE)


def test_a_program_that_wrote_much_returns_its_reserved_room(cluster: Any) -> None:
    cluster(object_store_memory=2**30)
    array = block(1, 1)
    written = 0
    while query("status")["store"]["granted"] < 40 * MIB:
        refs = [zf.put(array) for _ in range(50)]
        written += len(refs)
        assert written < 10_000
    eventually(lambda: query("status")["store"]["granted"] <= 8 * MIB, "large grants are given back")
    assert zf.get(check.remote(refs[0], 1), timeout=PATIENCE)
    assert zf.get(check.remote(zf.put(array), 1), timeout=PATIENCE)


@zf.remote(num_returns=2, max_retries=0)
def half() -> Any:
    """The first value is in the arena when the second turns out to be none."""
    return block(1, 8), Unpicklable()


@zf.remote(lightweight=True)
class Stubborn:
    """Returns, although it is to be stopped."""

    def ping(self) -> None:
        pass

    def large(self, note: str = "") -> Any:
        if note:
            try:
                Path(note).touch()
                threading.Event().wait(PATIENCE)
            except BaseException:  # its interrupt
                pass
        return block(1, 8)


def test_unreported_values_of_a_dead_writer_take_no_room(small: Any, tmp_path: Path) -> None:
    small(put_patience=PATIENCE)  # A busy daemon frees them late.
    for _ in range(12):
        for ref in half.remote():
            assert isinstance(failure(ref), zf.SerializationError)
    for number in range(12):
        note = tmp_path / str(number)
        actor = Stubborn.remote()
        zf.get(actor.ping.remote(), timeout=PATIENCE)
        called = actor.large.remote(str(note))
        eventually(note.exists, "it runs")
        zf.kill(actor)
        assert isinstance(failure(called), zf.ActorDiedError)
    assert zf.get(check.remote(Stubborn.remote().large.remote(), 1), timeout=PATIENCE)
    eventually(lambda: query("status")["store"]["granted"] == 0, "the store has all of it again")


def test_a_full_disk_is_an_error_for_what_does_not_fit_and_for_nothing_else(small: Any, tmp_path: Path) -> None:
    inside = """
import sys, zfabric as zf, numpy as np
from faults import *
from blocks import block, check
zf.init(num_cpus=2, log_to_driver=False, object_store_memory=2**26, config={"put_patience": 1.0, "spill_directory": sys.argv[1]})
refs = []
try:
    for number in range(40):
        refs.append(zf.put(block(number)))
except zf.ObjectStoreFullError as error:
    text = str(error)
else:
    raise AssertionError("a full disk took everything")
assert "space" in text.lower() or "disk" in text.lower(), text
assert len(refs) >= 12
for number, ref in enumerate(refs):
    try:
        assert zf.get(check.remote(ref, number), timeout=PATIENCE)
    except zf.ObjectStoreFullError:
        assert number < 4  # on disk, and nothing that is in the store can make room for it
del refs[4:], ref
eventually(lambda: query("status")["store"]["objects"] <= 4, "room is given back")
refs += [zf.put(block(number)) for number in range(4, 10)]
assert all(zf.get([check.remote(ref, number) for number, ref in enumerate(refs)], timeout=PATIENCE))
zf.shutdown()
"""
    in_own_mounts(f"mount -t tmpfs -o size=8m tmpfs {tmp_path}", inside, str(tmp_path))


def test_a_full_dev_shm_is_an_error_and_no_sigbus(small: Any, tmp_path: Path) -> None:
    inside = """
import sys, zfabric as zf, numpy as np
from faults import *
from blocks import block, check, make
spill = sys.argv[1] + "/spill"
os.mkdir(spill)
zf.init(num_cpus=2, log_to_driver=False, object_store_memory=2**27,
        config={"put_patience": 1.0, "object_store_directory": sys.argv[1], "spill_directory": spill})
refs, full = [], 0
for number in range(20):
    try:
        refs.append((number, zf.put(block(number))))
    except zf.ObjectStoreFullError as error:
        full += 1
        break
assert full, "a store in a directory of 24 MiB took 80"
error = failure(make.options(max_retries=0).remote(1, 16))
assert type(error) is zf.ObjectStoreFullError, repr(error)
assert len(refs) >= 2
assert all(zf.get([check.remote(ref, number) for number, ref in refs[:2]], timeout=PATIENCE))
assert zf.get(zf.remote(lambda: 5).remote(), timeout=PATIENCE) == 5
zf.shutdown()
zf.init(num_cpus=2, log_to_driver=False, object_store_memory=2**27,
        config={"object_store_directory": sys.argv[1], "spill_directory": sys.argv[2]})
refs = [zf.put(block(number)) if number % 2 else make.remote(number) for number in range(20)]
assert all(zf.get([check.remote(ref, number) for number, ref in enumerate(refs)], timeout=PATIENCE)), "the disk does for it"
assert all((array == number).all() for number, array in enumerate(zf.get(refs, timeout=PATIENCE)))
zf.shutdown()
"""
    shared, disk = tmp_path / "shm", tmp_path / "disk"
    shared.mkdir()
    disk.mkdir()
    in_own_mounts(f"mount -t tmpfs -o size=24m tmpfs {shared}", inside, str(shared), str(disk))


def test_many_small_values_are_held_in_bounded_memory(small: Any) -> None:
    small(inline_memory=4 * MIB, put_patience=PATIENCE)
    refs = [zf.put(bytes([number % 256]) * 60_000) for number in range(400)]
    small_value = zf.remote(lambda number: bytes([number % 256]) * 60_000)
    made = [small_value.remote(number) for number in range(400)]
    for number, (put, task) in enumerate(zip(refs, made, strict=True)):
        assert zf.get(put, timeout=PATIENCE) == zf.get(task, timeout=PATIENCE) == bytes([number % 256]) * 60_000
    eventually(lambda: query("status")["statistics"]["inline_bytes"] < 8 * MIB, "small values have moved to the arena")


def test_an_argument_makes_room_for_what_is_returned(small: Any) -> None:
    small(put_patience=PATIENCE)  # A busy machine spills slowly.

    @zf.remote
    def doubled(array: np.ndarray) -> np.ndarray:
        result = array * 2
        del array
        return result

    ref = zf.put(np.ones(STORE * 5 // 8, np.uint8))
    assert zf.get(doubled.remote(ref), timeout=60)[0] == 2, "both do not fit: one is spilled, unless the worker still looks at it"


def test_a_large_argument_is_stored_and_freed(small: Any) -> None:
    small()
    assert zf.get(check.remote(block(4), 4), timeout=PATIENCE)
    eventually(lambda: query("status")["store"]["objects"] == 0, "an argument goes with its task")


def test_a_durable_value_whose_file_is_damaged_is_read_from_the_control_store(small: Any) -> None:
    small(put_patience=PATIENCE, inline_memory=MIB)
    kept = [zf.put(bytes([number]) * (MIB // 2), durable=True) for number in range(8)]
    pushed = [zf.put(block(number)) for number in range(40)]
    names = {ref.hex() for ref in kept}
    spilled = eventually(lambda: [path for each, path in objects_on_disk().items() if each in names], "durable values were spilled, too")
    for path in spilled:
        path.write_bytes(b"")
    del pushed
    assert [zf.get(check_bytes.remote(ref), timeout=PATIENCE) for ref in kept] == [(number, MIB // 2) for number in range(8)]


def test_frames_and_tables_survive_a_storm_of_kills(small: Any) -> None:
    reason = "pandas or pyarrow is not installed: frames and tables under kill storms are NOT tested"
    pandas = pytest.importorskip("pandas", reason=reason)
    arrow = pytest.importorskip("pyarrow", reason=reason)
    # A task may be on one worker after the other as they are killed: it is not its fault. None has to import these libraries.
    small(put_patience=PATIENCE, poison_kills=50, preload=("pandas", "pyarrow.compute"))

    @zf.remote(max_retries=50)
    def frame(number: int) -> Any:
        return pandas.DataFrame({"number": np.full(200_000, number), "text": pandas.Categorical(["a", "b"] * 100_000)})

    @zf.remote(max_retries=50)
    def table(made: Any) -> Any:
        return arrow.Table.from_pandas(made.assign(twice=made["number"] * 2))

    @zf.remote(max_retries=50)
    def summed(made: Any) -> int:
        return int(arrow.compute.sum(made["twice"]).as_py())

    import pyarrow.compute  # noqa: F401  # workers load it with the function that names it

    frames = [frame.remote(number) for number in range(30)]
    sums = [summed.remote(table.remote(each)) for each in frames]
    for done in (2, 9, 16, 23):
        zf.wait(sums, num_returns=done, timeout=PATIENCE)
        for pid in worker_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert zf.get(sums, timeout=PATIENCE) == [2 * 200_000 * number for number in range(30)]
    for number, made in enumerate(zf.get(frames, timeout=PATIENCE)):
        assert (made["number"] == number).all()
        assert made["text"].value_counts().to_dict() == {"a": 100_000, "b": 100_000}


def test_a_large_error_without_room_arrives_cut_down_with_the_reason(small: Any) -> None:
    small()
    error = failure(raises.remote(66))
    assert isinstance(error, ValueError)
    assert len(str(error)) < 40_000
    assert "characters left out" in str(error)
    (note,) = error.__notes__
    assert "cut down" in note
    assert "ObjectTooLargeError: an object of 66.0 MiB" in note
    assert len(failure(raises.remote(2)).args[0]) == 2 * MIB


def test_large_errors_of_many_tasks_have_room_in_a_small_store(cluster: Callable[..., Any]) -> None:
    cluster(object_store_memory=16 * MIB, config={"put_patience": PATIENCE})
    refs = [raises.remote(2) for _ in range(12)]  # 24 MiB
    for ref in refs:
        error = failure(ref)
        assert isinstance(error, ValueError)
        assert len(error.args[0]) == 2 * MIB
    del refs, ref, error
    gc.collect()  # Errors and their tracebacks refer to each other.
    eventually(lambda: query("status")["store"]["objects"] == 0, "nothing is kept of errors that were dropped")


def test_full_stores_a_full_dev_shm_and_a_full_disk_of_two_nodes_are_typed_errors_and_pass(tmp_path: Path) -> None:
    shared, disk = tmp_path / "shm", tmp_path / "disk"
    for each in (shared, disk):
        each.mkdir()
    inside = """
import sys
from contextlib import suppress
import numpy as np
import zfabric as zf
from faults import eventually, query
from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy

shared, disk = sys.argv[1:]
MIB = 2**20
config = {"object_store_directory": shared, "spill_directory": disk, "put_patience": 2.0}
with zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=24 * MIB, config=config) as made, zf.init(made.address):
    there = NodeAffinitySchedulingStrategy(made.nodes[1].node_id, soft=False)

    @zf.remote(scheduling_strategy=there, num_cpus=0.1)
    def make(number):
        return np.full(4 * MIB, number, np.uint8)

    @zf.remote(scheduling_strategy=there, num_cpus=0.1)
    def check(value):
        return int(value[0]), int(value[-1])

    refs = [make.remote(number) for number in range(8)]
    for number, ref in enumerate(refs):  # The reader's store is full after the sixth.
        assert set(zf.get(ref, timeout=60)[[0, -1]]) == {number}
    put = [zf.put(np.full(4 * MIB, number, np.uint8)) for number in range(4)]
    assert zf.get([check.remote(each) for each in put], timeout=60) == [(number, number) for number in range(4)]
    refs += [make.remote(number) for number in range(8, 20)]  # More than both file systems hold; they wait for room at once.
    zf.wait(refs, num_returns=len(refs), fetch_local=False, timeout=60)
    right = full = 0
    for number, ref in enumerate(refs):
        try:
            assert set(zf.get(ref, timeout=60)[[0, -1]]) == {number}
            right += 1
        except (zf.ObjectStoreFullError, zf.OutOfDiskError) as error:
            full += 1
            assert "no room for an object of 4.0 MiB" in str(error)
    assert right >= 8, "what has been read stays readable"
    assert full >= 4
    del refs, ref, put
    eventually(lambda: not query("objects"), "all is freed")

    def finishes():
        with suppress(zf.ObjectStoreFullError):  # A store tries its disk again after a while.
            return zf.get([check.remote(make.remote(number)) for number in range(8)], timeout=60) == [(each, each) for each in range(8)]

    eventually(finishes, "there is room again")
"""
    in_own_mounts(f"mount -t tmpfs -o size=40m tmpfs {shared} && mount -t tmpfs -o size=32m tmpfs {disk}", inside, str(shared), str(disk))
