"""One test per claim of sections 3 and 4 of *Ray* (OSDI 2018) that concerns one machine: tasks, objects, the control store, scheduling.

Where the claim is about what users see, it is shown on a real cluster; where it is about who says what to whom, in a simulated
one (production machines, every message seen).
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import zfabric as zf
from zfabric.machines.parts.blocks import read_block
from zfabric.protocol import messages as m
from zfabric.protocol.ids import child_prefix
from zfabric.protocol.options import RESOURCE_UNIT
from zfabric.sim.network import Faults
from zfabric.sim.programs import Program, mix
from zfabric.sim.world import World

TIMEOUT = 60


@pytest.fixture(scope="module")
def ray(shared_cluster: Any) -> Any:
    return shared_cluster


def wait_for_file(path: Path) -> None:
    """What a task does until the test lets it go on."""
    waiting = threading.Event()
    while not path.exists():
        waiting.wait(0.005)


# --- section 3.1: the programming model ------------------------------------------------------------------------------------------


def test_a_remote_call_returns_a_future_at_once(ray: Any, tmp_path: Path) -> None:
    """3.1, table 1: ``f.remote(args)`` returns futures at once, before the task has run; ``get`` then blocks for the value."""
    gate = tmp_path / "gate"

    @zf.remote
    def held(path: Path) -> str:
        wait_for_file(path)
        return "done"

    future = held.remote(gate)
    assert isinstance(future, zf.ObjectRef)
    assert zf.wait([future], timeout=0) == ([], [future])
    with pytest.raises(zf.GetTimeoutError):
        zf.get(future, timeout=0.05)
    gate.touch()
    assert zf.get(future, timeout=TIMEOUT) == "done"


def test_futures_can_be_arguments_without_waiting_for_them(ray: Any, tmp_path: Path) -> None:
    """3.1: futures returned by one remote function can be passed to another, which runs once they have values."""
    gate = tmp_path / "gate"

    @zf.remote
    def held(path: Path) -> int:
        wait_for_file(path)
        return 3

    @zf.remote
    def add(left: int, right: int) -> int:
        return left + right

    first = held.remote(gate)
    total = add.remote(add.remote(first, 1), first)
    assert zf.wait([total], timeout=0)[0] == []
    gate.touch()
    assert zf.get(total, timeout=TIMEOUT) == 7


def test_wait_returns_as_soon_as_enough_are_done(ray: Any, tmp_path: Path) -> None:
    """3.1, table 1: ``wait(futures, k, timeout)`` returns the futures that are done as soon as k are, or at the timeout."""
    gate = tmp_path / "gate"

    @zf.remote
    def quick(number: int) -> int:
        return number

    @zf.remote
    def held(path: Path) -> str:
        wait_for_file(path)
        return "slow"

    slow = held.remote(gate)
    futures = [slow, quick.remote(1), quick.remote(2)]
    ready, rest = zf.wait(futures, num_returns=2, timeout=TIMEOUT)
    assert (set(ready), rest) == (set(futures[1:]), [slow])
    ready, rest = zf.wait(futures, num_returns=3, timeout=0.05)
    assert (len(ready), rest) == (2, [slow])
    gate.touch()
    assert zf.wait(futures, num_returns=3, timeout=TIMEOUT) == (futures, [])


def test_remote_functions_call_remote_functions(ray: Any) -> None:
    """3.1: nested remote functions: the driver need not be the only one who submits."""

    @zf.remote
    def fibonacci(number: int) -> int:
        if number < 2:
            return number
        return sum(zf.get([fibonacci.remote(number - 1), fibonacci.remote(number - 2)]))

    assert zf.get(fibonacci.remote(9), timeout=TIMEOUT) == 34


def test_resources_are_declared_and_differ_from_task_to_task(cluster: Callable[..., Any]) -> None:
    """3.1: heterogeneous resources: a function says what it needs (``num_gpus``), and is given that and nobody else's."""
    cluster(num_cpus=2, num_gpus=2)

    @zf.remote(num_gpus=1)
    def on_gpu() -> list[int]:
        return zf.get_gpu_ids()

    @zf.remote(num_gpus=2)
    def on_both() -> list[int]:
        return zf.get_gpu_ids()

    @zf.remote
    def on_cpu() -> list[int]:
        return zf.get_gpu_ids()

    one, both, none = zf.get([on_gpu.remote(), on_both.remote(), on_cpu.remote()], timeout=TIMEOUT)
    assert (len(one), sorted(both), none) == (1, [0, 1], [])


# --- section 3.2 and 4.2.3: objects -------------------------------------------------------------------------------------------------


def test_objects_are_read_in_shared_memory_without_a_copy_and_cannot_be_changed(ray: Any) -> None:
    """4.2.3: objects are immutable and in shared memory; tasks of one node read them without a copy."""
    array = np.arange(500_000, dtype=np.int64)
    ref = zf.put(array)
    here, again = zf.get([ref, ref])
    assert np.shares_memory(here, again)
    assert not np.shares_memory(here, array)
    assert not here.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        here[0] = 1

    @zf.remote
    def look(value: Any) -> tuple[bool, bool, int]:
        return value.flags.owndata, value.flags.writeable, int(value.sum())

    assert zf.get(look.remote(ref), timeout=TIMEOUT) == (False, False, int(array.sum()))
    array[0] = 7
    assert zf.get(ref)[0] == 0


def test_objects_that_memory_has_no_room_for_go_to_disk_and_come_back(cluster: Callable[..., Any]) -> None:
    """4.2.3: objects are kept in memory and evicted to disk as needed, those not used for longest first."""
    cluster(num_cpus=1, object_store_memory=48 * 2**20)
    refs = [zf.put(np.full(10**6, number, dtype=np.int64)) for number in range(12)]
    assert [int(zf.get(ref).sum()) for ref in refs] == [number * 10**6 for number in range(12)]


# --- section 4.2.3 and 4.3 in a world where every message is seen ----------------------------------------------------------------------

Seen = list[tuple[str, str, Any]]


def small_world(*statements: Any, cpus: int = 2, **settings: Any) -> tuple[World, Seen]:
    """A cluster without faults that runs this program; every message with who said it to whom."""
    seen: Seen = []

    def see(now: float, source: str, to: str, message: Any) -> None:
        if source:
            seen.append((source, to, message))

    calls = sum(1 for each in statements if each[0] == "call")
    world = World(1, faults=Faults(jitter=False), program=Program(statements, calls), observer=see, cpus=cpus, settings=settings)
    return world, seen


def spec(label: int, *statements: Any, refs: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """What a simulated task does, and its one small value."""
    return (label, False, statements, ((0, refs),))


def call(slot: int, what: tuple[Any, ...], *needs: int, **options: Any) -> tuple[Any, ...]:
    """A call with the values of ``needs`` as its arguments; its own value goes to ``slot``."""
    return ("call", (slot,), 0, what, tuple(options.items()), needs, ())


def get(*slots: int) -> tuple[Any, ...]:
    """Wait for tasks whose label is their slot, and expect what they make of it."""
    return ("get", tuple((slot, mix(slot, 0)) for slot in slots))


def task_rows(seen: Seen) -> dict[bytes, m.Row]:
    """The task rows that the control store was told of."""
    blocks = [put[2] for _, to, message in seen if to == "control" and type(message) is m.Write for put in message.puts if put[0] == "task"]
    return {row[0]: row for block in blocks for row in read_block(block)}


def run(world: World) -> None:
    outcome = world.run()
    assert not outcome.failure, outcome.failure


def test_the_task_table_of_the_control_store_holds_data_edges_and_control_edges() -> None:
    """3.2 and 4.2.1: the graph has data edges (task to object) and control edges (task to task); the task table keeps it as lineage."""
    child = spec(3, ("sleep", 1.0))
    parent = spec(2, call(0, child), ("sleep", 1.0))
    world, seen = small_world(call(0, spec(1, ("sleep", 1.0))), call(1, parent, 0), ("sleep", 5.0))
    run(world)
    submitted = {row[0]: row for _, _, message in seen if type(message) is m.Submit for row in message.rows}
    rows = task_rows(seen)
    assert rows == submitted, "the row that runs a task is the row that is kept"
    first, second, third = (next(row for row in rows.values() if _label(row) == label) for label in (1, 2, 3))
    assert second[3] == (first[0] + bytes(4),), "a data edge: the object that a task reads names the task that makes it"
    assert third[0][:12] == child_prefix(third[0][:4], second[0]), "a control edge: a task's id names the task that invoked it"


def _label(row: m.Row) -> int:
    label: int = msgpack.unpackb(row[2], use_list=False)[0][0]
    return label


def test_functions_are_in_the_function_table() -> None:
    """4.2.1: remote functions are registered in the control store's function table before they are run."""
    world, seen = small_world(call(0, spec(1)))
    run(world)
    names = [type(message).__name__ for _, _, message in seen]
    writes = [(index, each[2].puts) for index, each in enumerate(seen) if type(each[2]) is m.Write]
    stored = next(index for index, puts in writes if any(put[0] == "function" for put in puts))
    assert stored < names.index("Dispatch")


def test_one_task_takes_four_messages() -> None:
    """4.3, figure 7: one small task is Submit, Dispatch, Completed, Results: nothing else is said for it before its value is there."""
    world, seen = small_world(call(0, spec(1)), ("sleep", 1.0), call(1, spec(1)), get(1), cpus=1)
    run(world)
    last = max(index for index, each in enumerate(seen) if type(each[2]) is m.Submit)
    results = next(index for index in range(last, len(seen)) if type(seen[index][2]) is m.Results)
    of_one_task = Counter(type(message).__name__ for _, _, message in seen[last : results + 1])
    of_one_task.pop("Heartbeat", None)  # It comes once a second, however many tasks there were.
    assert of_one_task == {"Submit": 1, "Dispatch": 1, "Completed": 1, "Results": 1}


def test_a_hundred_tasks_take_messages_by_the_batch() -> None:
    """4.2.2: what a task costs in messages falls with the load: a hundred at once are submitted in one."""
    calls = [call(slot, spec(slot)) for slot in range(100)]
    world, seen = small_world(*calls, get(*range(100)), prefetch_tasks=64)
    run(world)
    counts = Counter(type(message).__name__ for _, _, message in seen)
    rows = {kind: sum(len(each[2].rows) for each in seen if type(each[2]) is kind) for kind in (m.Submit, m.Completed, m.Results)}
    assert set(rows.values()) == {100}
    assert counts["Submit"] == 1
    assert counts["Dispatch"] + counts["Completed"] + counts["Results"] < 100


def test_the_local_scheduler_keeps_what_it_can_and_asks_a_global_one_for_the_rest() -> None:
    """4.2.2: bottom-up: a task goes to its node's scheduler first, and to a global one only if the node cannot ever run it."""
    world, seen = small_world(*(call(slot, spec(slot)) for slot in range(20)))
    run(world)
    assert not [each for each in seen if type(each[2]) is m.Place]
    huge = call(0, spec(1), demand=(("CPU", 64 * RESOURCE_UNIT),))
    world, seen = small_world(huge, ("sleep", 1.0), ("cancel", 0, False, False), call(1, spec(1)), get(1))
    run(world)
    asked = [each for each in seen if type(each[2]) is m.Place]
    assert len(asked) == 1
    assert asked[0][0] == "scheduler"
    assert asked[0][2].rows[0][1] == (("CPU", 64 * RESOURCE_UNIT),)


def test_the_path_of_a_task_does_not_wait_for_the_control_store() -> None:
    """4.2.1: the control store is off the critical path of dispatch: no answer of it is between a task and its value."""
    world, seen = small_world(call(0, spec(1)), ("sleep", 1.0), call(1, spec(1)), get(1))
    run(world)
    last = max(index for index, each in enumerate(seen) if type(each[2]) is m.Submit)
    results = next(index for index in range(last, len(seen)) if type(seen[index][2]) is m.Results)
    assert not [each for each in seen[last:results] if "control" in each[:2]]


# --- section 4.2.1 and 4.2.3: what survives ---------------------------------------------------------------------------------------


def test_a_task_whose_worker_dies_runs_again(cluster: Callable[..., Any], tmp_path: Path) -> None:
    """4.2.3: fault tolerance by lineage: what a lost worker was to make is made again by running its row again, as are its children."""
    cluster(num_cpus=2)

    @zf.remote
    def first(path: Path) -> int:
        try:
            (path / "died").touch(exist_ok=False)
        except FileExistsError:
            return 20
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    @zf.remote
    def second(number: int) -> int:
        return number + 1

    assert zf.get(second.remote(second.remote(first.remote(tmp_path))), timeout=TIMEOUT) == 22
    assert (tmp_path / "died").exists()


def test_stateless_components_start_again_from_the_control_store() -> None:
    """4.2.1: schedulers hold nothing that the control store and the living do not: killed, they start again and go on."""
    world, seen = small_world(call(0, spec(0, ("sleep", 1.0))), call(1, spec(1, ("sleep", 1.0))), get(0, 1))
    world.after(0.5, lambda: world.daemon_died(world.daemon) if world.daemon is not None else None)
    outcome = world.run()
    assert not outcome.failure, outcome.failure
    assert outcome.states["daemon restarted"] == 1
    assert any(type(each[2]) is m.Scan and each[2].table == "job" for each in seen), "it reads in the control store whose jobs there are"
    assert any(type(each[2]) is m.Rejoin and each[1].startswith("driver") for each in seen)


def test_a_lost_object_is_made_again_from_its_lineage_recursively() -> None:
    """4.2.3: a lost object is reconstructed by running its task again, and those that made its inputs, each once."""
    large = (1, False, (), ((2**21, ()),))
    expected = ("get", ((1, mix(mix(1, mix(0, 0)), 0)),))
    world, seen = small_world(call(0, spec(0)), call(1, large, 0), ("sleep", 0.5), ("drop", 0), ("sleep", 1.0), expected)
    lost: list[bytes] = []

    def lose() -> None:
        daemon = world.daemon
        assert daemon is not None
        tasks = daemon.scheduler.tables.tasks.values()
        (record,) = [each for each in tasks if each.row[3]]
        assert [each.value for each in tasks if not each.row[3]] == [None], "the input is gone, its row is kept"
        lost.append(record.object_id)
        daemon.store.step(world.now, b"L" + daemon.incarnation, m.Free((record.object_id,)))
        daemon.event(b"L", m.Lost(((record.object_id, "missing"),)))

    world.after(1.0, lose)
    run(world)
    attempts = Counter(row[0] for each in seen if type(each[2]) is m.Dispatch for row in each[2].rows)
    assert lost
    assert sorted(attempts.values()) == [2, 2]
