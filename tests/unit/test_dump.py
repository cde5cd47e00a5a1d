"""What ``state dump`` shows: every row as plain data, and nothing a pickle could do."""

from __future__ import annotations

import json
import pickle

import msgpack
import pytest

from zfabric.adapters.dump import describe_rows, dump, plain
from zfabric.adapters.journal import Journal
from zfabric.exceptions import ConfigError, FabricError
from zfabric.machines.common.lineage_blocks import pack_block
from zfabric.protocol.effects import Store


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


TASK = b"job1" + bytes(12)
BOMB = pickle.dumps(Bomb())


def begin(path):
    journal = Journal.open(str(path), 2**20, "process")
    task_rows = [
        (TASK, b"f" * 16, BOMB, (TASK + bytes(4),)),
        (TASK[:-1] + b"\1", b"f" * 16, b"", (), (("name", "second"), ("contains", (TASK + bytes(4),)))),
    ]
    puts = (
        ("task", TASK, pack_block(task_rows)),
        ("function", b"f" * 16, msgpack.packb(("evolve", BOMB, (("num_returns", 2),)))),
        ("job", b"job1", msgpack.packb({"number": 1, "driver": {"pid": 7}, b"odd": [1.5, None, True, bytes(100)]})),
        ("name", "Grüße".encode(), msgpack.packb("x")),
        ("object", b"o" * 20, b"\xc1 not msgpack " + BOMB),
        ("meta", b"jobs", msgpack.packb(1)),
    )
    journal.commit([Store(puts, (), 1, True)], lambda error: None)
    return journal


def test_every_row_is_plain(tmp_path):
    begin(tmp_path).close()
    rows = list(dump(str(tmp_path)))
    json.dumps(rows)
    assert rows == [
        {"table": "meta", "key": "jobs", "value": 1},
        {
            "table": "task",
            "key": TASK.hex(),
            "function": (b"f" * 16).hex(),
            "arguments": f"<{len(BOMB)} bytes>",
            "dependencies": [(TASK + bytes(4)).hex()],
            "options": {},
        },
        {
            "table": "task",
            "key": (TASK[:-1] + b"\1").hex(),
            "function": (b"f" * 16).hex(),
            "arguments": "<0 bytes>",
            "dependencies": [],
            "options": {"name": "second", "contains": [(TASK + bytes(4)).hex()]},
        },
        {"table": "function", "key": (b"f" * 16).hex(), "value": ["evolve", f"<{len(BOMB)} bytes>", [["num_returns", 2]]]},
        {"table": "object", "key": (b"o" * 20).hex(), "value": f"<{len(BOMB) + 14} bytes>"},
        {"table": "name", "key": "Grüße", "value": "x"},
        {"table": "job", "key": b"job1".hex(), "value": {"number": 1, "driver": {"pid": 7}, "6f6464": [1.5, None, True, "<100 bytes>"]}},
    ]


def test_logs_of_actors_are_shown_call_by_call_and_checkpoints_by_their_parts(tmp_path):
    call = (7, TASK, b"caller00", "add", BOMB, (), (), None, 0, (BOMB,), True)
    stored = (*call[:9], (None,), True)
    key = TASK + (8).to_bytes(8, "big")
    rows = msgpack.packb(((), (call, stored)))
    shown = list(describe_rows("log", [(key, msgpack.packb(((), (), rows))), (key, b"\xc1 odd")]))
    json.dumps(shown)
    first = {"table": "log", "key": TASK.hex(), "number": 7, "call": TASK.hex(), "method": "add", "arguments": f"<{len(BOMB)} bytes>"}
    assert shown == [
        {**first, "status": 0, "outputs": f"<{len(BOMB)} bytes>"},
        {**first, "status": 0, "outputs": "in the object store"},
        {"table": "log", "key": key.hex(), "value": plain(b"\xc1 odd")},
    ]
    key += (1).to_bytes(4, "big")
    shown = list(describe_rows("checkpoint", [(key, msgpack.packb((3, (), BOMB))), (key, b"\xc1 odd")]))
    assert shown == [
        {"table": "checkpoint", "key": TASK.hex(), "number": 8, "part": "2 of 3", "value": f"<{len(BOMB)} bytes>"},
        {"table": "checkpoint", "key": TASK.hex(), "value": plain(b"\xc1 odd")},
    ]


def test_keys_of_the_key_value_store_are_shown_without_their_values():
    row_key, job = b"k" + bytes((1,)) + b"n" + b"key", b"job1"
    rows = [(row_key, msgpack.packb((b"key", b"v" * 16, 10**6, job))), (b"v" + bytes(24), BOMB), (b"k", b"\xc1 odd"), (b"h" + job, b"home")]
    shown = list(describe_rows("kv", rows))
    json.dumps(shown)
    assert shown == [
        {"table": "kv", "key": "key", "namespace": "n", "job": job.hex(), "value": "<1000000 bytes>"},
        {"table": "kv", "key": (b"v" + bytes(24)).hex(), "value": f"<{len(BOMB)} bytes>"},
        {"table": "kv", "key": b"k".hex(), "value": plain(b"\xc1 odd")},
        {"table": "kv", "key": (b"h" + job).hex(), "value": plain(b"home")},
    ]


def test_one_table_and_a_limit(tmp_path):
    begin(tmp_path).close()
    assert [row["key"] for row in dump(str(tmp_path), "task", 1)] == [TASK.hex()]
    assert {row["table"] for row in dump(str(tmp_path), "job")} == {"job"}
    assert len(list(dump(str(tmp_path), limit=1))) == 6
    with pytest.raises(ConfigError, match="there is no table 'tasks'; there are meta"):
        next(dump(str(tmp_path), "tasks"))


def test_a_store_in_use_is_left_to_its_daemon(tmp_path):
    journal = begin(tmp_path)
    with pytest.raises(FabricError, match="in use"):
        next(dump(str(tmp_path)))
    journal.close()
    looking = dump(str(tmp_path))
    next(looking)
    looking.close()
    begin(tmp_path).close()


def test_rows_of_a_scan(tmp_path):
    assert list(describe_rows("node", [(b"n", msgpack.packb({"CPU": 2}))])) == [{"table": "node", "key": "6e", "value": {"CPU": 2}}]
    assert list(describe_rows("task", [(TASK, b"\xc1")])) == [{"table": "task", "key": TASK.hex(), "value": "c1"}]
    assert [row["value"] for row in describe_rows("task", [(TASK, msgpack.packb(3))])] == ["03"]
    assert plain(msgpack.Timestamp(1, 0)) == "Timestamp(seconds=1, nanoseconds=0)"
