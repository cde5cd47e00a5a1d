"""The paper's claims (OSDI 2018, sections 3 and 4), one test each.

A test's docstring is the claim. Those about what a program sees run a real cluster; those about crashes, counts of messages and
what is stored where run a simulated one.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import eventually
from files import wait_for_file
from timeline_arrows import named

import zfabric as zf
from tests.sim.kinds import Kind
from tests.sim.network import Faults
from tests.sim.programs import PURE, Program, mix
from tests.sim.scenarios import STEADY, call, call_on, get, invoke, make, task
from tests.sim.world import World
from zfabric.machines.global_scheduler.policies import Batch, LeastWait, NodeView
from zfabric.protocol import messages as m
from zfabric.protocol.options import LOGGED, SPREAD

pytestmark = pytest.mark.usefixtures("shared_cluster")


@zf.remote
def double(value: Any) -> Any:
    return value * 2


def world_of(
    *statements: Any, faults: Faults = STEADY, seed: int = 1, nodes: int = 1, **options: Any
) -> tuple[World, list[tuple[str, str, Any]]]:
    """Run a program in a simulated world; return the world and all messages."""
    messages: list[tuple[str, str, Any]] = []

    def observe(now: float, source: str, to: str, message: Any) -> None:
        messages.append((source, to, message))

    options = {"cpus": 2, "pieces": 16, "observer": observe, **options}
    world = World(
        seed,
        Kind(nodes=nodes),
        faults=faults,
        program=Program(statements, 0),
        **options,
    )
    return world, messages


def worth(label: int, *numbers: int) -> int:
    """The value of a task with this label that takes in these numbers."""
    total = label
    for number in numbers:
        total = mix(total, number)
    return mix(total, 0)


def run(world: World) -> None:
    outcome = world.run()
    assert outcome.failure == ""


# --- section 3.1: the programming model ---------------------------------------------------------------------------------------


def test_a_remote_call_returns_futures_at_once() -> None:
    """Table 1: ``f.remote(args)`` is non-blocking and returns futures."""

    @zf.remote
    def wait_for(path: str) -> str:
        wait_for_file(path)
        return "it came"

    with tempfile.TemporaryDirectory() as directory:
        future = wait_for.remote(f"{directory}/gate")
        assert isinstance(future, zf.ObjectRef)
        open(f"{directory}/gate", "w").close()
        assert zf.get(future) == "it came"


def test_futures_are_arguments_without_waiting_for_their_values() -> None:
    """Table 1: arguments can be values or futures. Data edges capture dependencies between objects and tasks."""
    first = double.remote(1)
    for _ in range(10):
        first = double.remote(first)
    assert zf.get(first) == 2048


def test_get_blocks_and_returns_values() -> None:
    """Table 1: ``get(futures)`` returns the values of one or more futures."""
    assert zf.get([double.remote(number) for number in range(5)]) == [0, 2, 4, 6, 8]


def test_wait_returns_futures_as_soon_as_k_are_done_or_the_timeout_expires() -> None:
    """Table 1 and 3.1: ``wait(futures, k, timeout)``, for tasks of very different durations."""

    @zf.remote
    def sleep(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    quick, slow = sleep.remote(0.0), sleep.remote(60.0)
    ready, left = zf.wait([slow, quick], num_returns=1)
    assert (ready, left) == ([quick], [slow])
    assert zf.wait([slow], timeout=0.01) == ([], [slow])
    zf.cancel(slow)


def test_remote_functions_invoke_remote_functions() -> None:
    """3.1: nested remote functions, so that the invocation of tasks is itself distributed."""

    @zf.remote
    def tree(depth: int) -> int:
        return 1 if depth == 0 else sum(zf.get([tree.remote(depth - 1), tree.remote(depth - 1)]))

    assert zf.get(tree.remote(6)) == 64


def test_resources_are_declared_and_heterogeneous() -> None:
    """3.1: developers specify resource requirements so that the scheduler can manage heterogeneous resources."""

    @zf.remote(num_cpus=2)
    def wide() -> str:
        return "had both"

    assert zf.get(wide.remote()) == "had both"
    never = double.options(num_gpus=4).remote(1)
    explanation = zf.explain(never)
    assert "GPU" in str(explanation)
    zf.cancel(never)


@zf.remote
class Steps:
    """An actor: each method begins in the state that the one before it has left."""

    def __init__(self) -> None:
        self.state: list[Any] = []

    def step(self, value: Any) -> list[Any]:
        before = list(self.state)
        time.sleep(0.001)  # in which another method would run
        assert before == self.state, "another method ran meanwhile"
        self.state.append(value)
        return list(self.state)


def test_an_actor_is_a_stateful_computation_whose_methods_run_one_after_the_other() -> None:
    """Table 1 and 3.1: ``Class.remote(args)`` and ``actor.method.remote(args)``; methods execute serially, and return futures at once."""
    steps = Steps.remote()
    futures = [steps.step.remote(double.remote(number)) for number in range(8)]
    assert all(isinstance(future, zf.ObjectRef) for future in futures)
    assert zf.get(futures) == [[2 * number for number in range(last + 1)] for last in range(8)]


def test_handles_are_passed_to_tasks_and_other_actors() -> None:
    """3.1: a handle to an actor can be passed to other actors or tasks, so that these invoke its methods."""

    @zf.remote
    def use(actor: Any, value: int) -> Any:
        return zf.get(actor.step.remote(value))

    @zf.remote
    class User:
        def use(self, actor: Any, value: int) -> Any:
            return zf.get(use.remote(actor, value))

    steps = Steps.remote()
    assert zf.get(use.remote(steps, 1)) == [1]
    assert zf.get(User.remote().use.remote(steps, 2)) == [1, 2]


# --- section 3.2: the graph -----------------------------------------------------------------------------------------------------


def test_the_graph_is_dynamic() -> None:
    """3.2: tasks are triggered by the availability of their inputs, and made while others run, in ways that depend on values."""

    @zf.remote
    def collatz(number: int, steps: int) -> Any:
        return steps if number == 1 else collatz.remote(number // 2 if number % 2 == 0 else 3 * number + 1, steps + 1)

    found: Any = collatz.remote(6, 0)
    while isinstance(found, zf.ObjectRef):
        found = zf.get(found)
    assert found == 8


def test_lost_objects_are_rebuilt_from_the_graph() -> None:
    """3.2: the graph of data and control edges is the lineage from which lost data are reconstructed."""
    calls = [call(0, task(1, size=3_000_000), PURE), call(1, task(2, size=3_000_000), PURE, needs=(0,))]
    statements: list[Any] = [*calls, get((1, worth(2, worth(1))))]
    statements += [("put", slot, slot, 3_000_000, ()) for slot in range(2, 14)]
    statements += [get((1, worth(2, worth(1))), (0, worth(1)))]
    world, messages = world_of(*statements, pieces=12)
    run(world)
    lost = {row for _, to, message in messages if to == "scheduler" and isinstance(message, m.ObjectsLost) for row in message.rows}
    assert {reason for _, reason in lost} == {"evicted"}
    assert world.states["rebuilds"] >= 1


@zf.remote
class Ledger:
    def __init__(self) -> None:
        self.sum = 0

    def enter(self, amount: int) -> int:
        self.sum += amount
        return self.sum


@zf.remote
def amount(of: int) -> int:
    return of


def test_stateful_edges_put_actors_into_the_same_graph_as_tasks() -> None:
    """3.2: a stateful edge leads from each method of an actor to the next; with data and control edges, they make one graph of it all."""
    ledger = Ledger.remote()
    first = amount.remote(1)
    entered = [ledger.enter.remote(first), ledger.enter.remote(2)]
    last = amount.remote(entered[1])
    assert zf.get(last) == 3
    wanted = {
        ("data", "amount", "Ledger.enter"): 1,
        ("state", "Ledger", "Ledger.enter"): 1,
        ("state", "Ledger.enter", "Ledger.enter"): 1,
        ("data", "Ledger.enter", "amount"): 1,
    }
    eventually(lambda: {edge: count for edge, count in named(zf.timeline() or []).items() if "Ledger" in str(edge)} == wanted, "the graph")


def test_results_of_methods_are_rebuilt_from_the_graph_as_well() -> None:
    """3.2: stateful edges are part of the lineage: a lost result is made again by the methods before it, in their order."""
    large = [invoke(slot, 0, task(slot, size=3_000_000), retries=LOGGED) for slot in (1, 2, 3)]
    statements: list[Any] = [make(0, task(9), restarts=-1, every=0), *large, ("wait", (1, 2, 3), 3, None)]
    statements += [("put", slot, slot, 3_000_000, ()) for slot in range(4, 14)]
    statements += [("lose", 1.0), call(20, task(5), needs=(3,)), get((20, worth(5, worth(3))))]
    world, _ = world_of(*statements, pieces=12)
    run(world)
    assert world.states["file lost"] >= 1
    assert world.states["value of a call made again"] >= 1


# --- section 4.1: workers -----------------------------------------------------------------------------------------------------------


def test_workers_are_stateless_and_get_functions_from_the_system() -> None:
    """4.1: workers execute tasks of any function, which is sent to them by the system: once, not with every task."""
    calls = [call(slot, task(slot)) for slot in range(6)]
    world, messages = world_of(*calls, get(*((slot, worth(slot)) for slot in range(6))), cpus=1)
    run(world)
    assert [len(message.functions) for _, to, message in messages if to == "worker1" and isinstance(message, m.Functions)] == [1]


def test_a_worker_executes_tasks_serially() -> None:
    """4.1: a worker executes tasks serially, with no local state maintained across tasks."""

    @zf.remote
    def overlap() -> tuple[int, float, float]:
        import os

        began = time.monotonic()
        time.sleep(0.002)  # in which another task would begin
        return os.getpid(), began, time.monotonic()

    spans: dict[int, list[tuple[float, float]]] = {}
    for pid, began, ended in zf.get([overlap.remote() for _ in range(30)]):
        spans.setdefault(pid, []).append((began, ended))
    for intervals in spans.values():
        intervals.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(intervals))


# --- section 4.2.1: the global control store ------------------------------------------------------------------------------------


def test_the_control_store_is_off_the_path_of_a_task() -> None:
    """4.2.1: task dispatch is decoupled from the control store: nothing on the way from submission to value waits for it."""
    world, messages = world_of(call(0, task(5)), get((0, worth(5))), cpus=1)
    run(world)
    names = [(type(message).__name__, source, to) for source, to, message in messages]
    began = next(index for index, (name, *_) in enumerate(names) if name == "Submit")
    ended = next(index for index, (name, *_) in enumerate(names) if name == "Results")
    assert [name for name, _, to in names[began:ended] if to == "control" and name != "Write"] == []
    assert not any(isinstance(message, m.Written) for _, _, message in messages[began:ended])


def test_every_component_restarts_and_reads_lineage_from_the_control_store() -> None:
    """4.2.1: the control store keeps the entire control state, so that every other component can be stateless and simply restart."""
    for when in (0.005, 0.02, 0.06, 0.12, 0.3):
        world, _ = world_of(
            call(0, task(5, ("sleep", 0.1), size=700_000)),
            call(1, task(6, call(0, task(7, ("sleep", 0.05))), get((0, worth(7)))), needs=(0,)),
            get((1, worth(6, worth(5), worth(7)))),
        )
        world.at(100.0 + when, lambda world=world: world.daemon_died(world.daemon) if world.daemon is not None else None)  # type: ignore[misc]
        run(world)
        assert world.states["daemon restarted"] == 1


def test_single_row_operations_suffice() -> None:
    """4.2.1: every operation of the control store is on a single key (or one run of a parent's children), so that it can be sharded."""
    world, messages = world_of(*(call(slot, task(slot, ("sleep", 0.1))) for slot in range(4)), ("sleep", 0.3), cpus=2)
    run(world)
    asked = Counter(type(message).__name__ for _, to, message in messages if to == "control")
    # EndKeys looks for one row of a job that has not used the key-value store.
    assert set(asked) <= {"Write", "NewJob", "Committed", "Scan", "Read", "ReadBlocks", "EndKeys"}


# --- section 4.2.2: bottom-up scheduling ----------------------------------------------------------------------------------------


def test_tasks_go_to_the_local_scheduler_first_and_stay_there() -> None:
    """4.2.2: tasks made at a node are submitted to its local scheduler, which keeps them unless it is overloaded or cannot satisfy them."""
    world, messages = world_of(*(call(slot, task(slot)) for slot in range(8)), ("sleep", 0.1), cpus=1)
    run(world)
    assert {type(message).__name__ for _, to, message in messages if to == "placer"} <= {"Heartbeat"}


def test_the_global_scheduler_picks_the_least_estimated_wait_among_nodes_with_the_resources() -> None:
    """4.2.2: the lowest estimated waiting time: (tasks queued there times the average task time) plus the transfer of remote inputs."""
    asks = (("CPU", 20_000),)

    def node(name: bytes, queued: int, seconds: float) -> NodeView:
        return NodeView(name, b"L" + name, (("CPU", 40_000),), (), queued, seconds)

    def place(fetch: dict[bytes, float]) -> dict[bytes, int]:
        views = [node(b"long", 100, 0.1), node(b"slow", 10, 5.0), node(b"free", 10, 0.1)]
        return LeastWait().place(Batch(asks, 1, 0.1, fetch), views)

    assert place({}) == {b"free": 1}
    assert place({b"free": 60.0, b"slow": 60.0}) == {b"long": 1}


# --- section 4.2.3: the object store ----------------------------------------------------------------------------------------------


def test_objects_are_immutable() -> None:
    """4.2.3: the object store is limited to immutable data."""
    array = zf.get(zf.put(np.arange(100_000)))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_tasks_of_one_node_share_data_without_copies() -> None:
    """4.2.3: the object store is shared memory, which allows zero-copy data sharing between tasks on the same node."""

    @zf.remote
    def address(array: Any) -> tuple[bool, int]:
        return array.flags.owndata, int(array[-1])

    reference = zf.put(np.arange(500_000))
    assert zf.get(address.remote(reference)) == (False, 499_999)
    first, second = zf.get(reference), zf.get(reference)
    assert first.__array_interface__["data"][0] == second.__array_interface__["data"][0]


def test_objects_are_in_memory_and_spill_to_disk_when_they_are_too_many() -> None:
    """4.2.3: all objects are kept in memory, and evicted as needed to disk using an LRU policy."""
    puts = [("put", slot, slot, 5_000_000, ()) for slot in range(8)]
    world, _ = world_of(*puts, *(get((slot, slot)) for slot in (0, 3, 7)), pieces=12)
    run(world)
    assert world.states["spills"] >= 3
    assert world.states["restores"] >= 1


# --- section 4.2.3 and 4.3: what a task costs, and what a crash does -----------------------------------------------------------------


def test_a_task_whose_worker_crashed_is_run_again() -> None:
    """4.2.3 and 5.1: tasks are re-executed transparently after the failure of a worker."""
    world, messages = world_of(call(0, task(5, ("die", 2), ("sleep", 0.01))), get((0, worth(5))))
    run(world)
    attempts = [detail[1] for _, _, message in messages if isinstance(message, m.Dispatch) for detail in message.details]
    assert attempts == [1, 2]


@pytest.mark.parametrize(("every", "again"), [(10, 5), (0, 45)])
def test_with_checkpoints_far_fewer_methods_are_run_again(tmp_path: Path, every: int, again: int) -> None:
    """5.1, figure 11b: an actor is made again from its last checkpoint and the methods after it; without checkpoints, from all methods."""

    @zf.remote(max_restarts=-1, checkpoint_every=every)
    class Counted:
        def __init__(self, log: str) -> None:
            self.log = log
            self.total = 0

        def add(self, amount: int) -> int:
            with open(self.log, "a") as file:
                file.write("run\n")
            self.total += amount
            return self.total

        @zf.method(readonly=True)
        def pid(self) -> int:
            return os.getpid()

    log = tmp_path / "log"
    counted = Counted.remote(str(log))
    assert zf.get([counted.add.remote(1) for _ in range(45)])[-1] == 45
    if every:
        eventually(lambda: "last checkpoint after call 40" in str(zf.explain(counted)), "the last checkpoint is committed")
    before = zf.get(counted.pid.remote())
    os.kill(before, signal.SIGKILL)
    assert zf.get(counted.pid.remote(), timeout=60) != before
    assert len(log.read_text().split()) == 45 + again


def test_the_walk_of_figure_7_takes_four_messages_on_one_node() -> None:
    """4.3, figure 7: submission, execution and return of ``add.remote(a, b)``, step by step; the paper counts eight and seven."""
    puts = [("put", slot, slot, 0, ()) for slot in (0, 1)]
    world, messages = world_of(*puts, call(2, task(5), needs=(0, 1)), get((2, worth(5, 0, 1))), cpus=1)
    run(world)
    steps = [type(message).__name__ for source, to, message in messages if {source, to} & {"driver", "worker1"}]
    path = [name for name in steps if name in ("Put", "Submit", "Dispatch", "Completed", "Results", "Fetch", "Objects")]
    assert path == ["Put", "Submit", "Dispatch", "Completed", "Results"]


# --- several nodes ------------------------------------------------------------------------------------------------------------------


LARGE = 200_000
"""Bytes of a value that stays where it was made until it is read."""


def test_the_walk_of_figure_7_over_two_nodes_takes_at_most_eight_messages_between_them() -> None:
    """4.3, figure 7: a is on N1, b on N2, where ``add.remote(a, b)`` runs; N1 gets c. The paper counts nine and seven steps."""
    statements = [
        ("put", 0, 7, LARGE, ()),
        call_on(2, 1, task(6, size=LARGE)),
        ("wait", (1,), 1, None),
        ("sleep", 0.5),
        (*call_on(2, 2, task(5, size=LARGE))[:5], (0, 1), ()),
        get((2, worth(5, 7, worth(6)))),
        ("sleep", 0.5),
    ]
    world, messages = world_of(*statements, cpus=1, nodes=2)
    run(world)
    between = [
        (index, type(message).__name__)
        for index, (source, to, message) in enumerate(messages)
        if {source[-1:], to[-1:]} == {"1", "2"} and not (source + to).count("worker") and type(message).__name__ not in ANYWAY
    ]
    began = [index for index, name in between if name == "Delegate"][1]
    ended = max(index for index, (_, to, message) in enumerate(messages) if to == "driver" and isinstance(message, m.Objects))
    left = min(index for index, (source, _, message) in enumerate(messages) if source == "driver" and isinstance(message, m.Release))
    walk = [name for index, name in between if began <= index < left]
    assert [name for index, name in between if began <= index < ended] == ["Delegate", "Want", "Chunk", "Ended", "Want", "Chunk"]
    assert sorted(walk[6:]) == ["EndsReceived", "UpdateLedger"], "of these, the first acknowledges the end, and the second frees a copy"
    assert len(walk) <= 8


ANYWAY = {"RenewLease", "LeaseRenewed", "Heartbeat", "Join", "Joined", "NodeTable", "RegisterNode", "Ready"}
"""Messages of nodes that do nothing."""


def test_figure_7_over_two_nodes_with_small_values_takes_two_messages_and_an_acknowledgement() -> None:
    """4.3, figure 7, where values are small: they travel with the task and with its end."""
    call_c = (*call_on(2, 2, task(5))[:5], (0, 1), ())
    world, messages = world_of(("put", 0, 7, 0, ()), ("put", 1, 9, 0, ()), call_c, get((2, worth(5, 7, 9))), cpus=1, nodes=2)
    run(world)
    names = [type(message).__name__ for source, to, message in messages if {source, to} == {"scheduler1", "scheduler2"}]
    assert [name for name in names if name not in ANYWAY | {"EndJob", "JobGone"}] == ["Delegate", "Ended", "EndsReceived"]


def test_tasks_of_a_lost_node_are_run_again_elsewhere_and_the_rest_goes_on() -> None:
    """5.1, figure 11a: as nodes are removed, tasks that ran there are reconstructed, and new nodes take their share."""
    spread = (("strategy", SPREAD),)
    calls = [("call", (slot,), 0, task(slot, ("sleep", 0.3), size=LARGE), spread, (), ()) for slot in range(24)]
    statements = [*calls, ("sleep", 2.0), get(*((slot, worth(slot)) for slot in range(24)))]
    world, messages = world_of(*statements, cpus=1, nodes=3, pieces=96)
    world.at(101.0, lambda: world.nodes[2].end("kill -9"))
    run(world)
    begun = Counter(
        row[0] for _, to, message in messages if to.startswith("worker") and isinstance(message, m.Dispatch) for row in message.rows
    )
    there = {row[0] for _, to, message in messages if to.startswith("worker3") and isinstance(message, m.Dispatch) for row in message.rows}
    again = {identifier for identifier, count in begun.items() if count > 1}
    assert again
    assert again <= there, "only what ran on the lost node runs again"


def begun_on(messages: list[tuple[str, str, Any]], node: int) -> list[bytes]:
    """The tasks that workers of a node have received, in order."""
    prefix = "worker" if node == 1 else f"worker{node}."
    found = [message for _, to, message in messages if to.startswith(prefix) and ("." in to) == (node > 1)]
    return [row[0] for message in found if isinstance(message, m.Dispatch) for row in message.rows]


@pytest.mark.parametrize(("size", "by_bytes"), [(100_000, True), (100_000_000, True), (100_000_000, False)])
def test_tasks_are_placed_where_their_large_inputs_are(size: int, by_bytes: bool) -> None:
    """4.2.2, figure 8a: placed by bytes, a task takes as long with 100 MB of remote input as with 100 kB; otherwise it waits."""
    statements = [call_on(2, 0, task(6, size=size)), ("wait", (0,), 1, None), ("sleep", 1.0), call(1, task(5), needs=(0,))]
    statements.append(get((1, worth(5, worth(6)))))
    times: list[tuple[float, str, Any]] = []
    world, _ = world_of(
        *statements,
        cpus=1,
        nodes=2,
        pieces=64,
        settings={} if by_bytes else {"node_bandwidth": 1e18},
        observer=lambda now, source, to, message: times.append((now, to, message)),
    )
    run(world)
    submitted = [now for now, to, message in times if to == "scheduler1" and isinstance(message, m.Submit)][-1]
    ended = max(now for now, to, message in times if to == "driver" and isinstance(message, m.Results))
    went_to_its_input = world.states["sent_to_inputs"] == 1
    assert went_to_its_input == (by_bytes and size > LARGE)
    seconds_to_fetch = 100_000_000 / world.rate
    assert (ended - submitted < 0.1 * seconds_to_fetch) == by_bytes


def test_chains_go_on_while_nodes_die_and_join() -> None:
    """5.1, figure 11a: lost tasks and values of chains are reconstructed as nodes are removed; nodes that are added take their share."""
    spread = (("strategy", SPREAD),)
    length, chains = 5, 6
    statements: list[Any] = []
    values: list[int] = []
    for depth in range(length):
        for chain in range(chains):
            slot = depth * chains + chain
            needs = (slot - chains,) if depth else ()
            statements.append(("call", (slot,), PURE, task(slot, ("sleep", 0.3), size=LARGE), spread, needs, ()))
            values.append(worth(slot, values[slot - chains]) if depth else worth(slot))
    last = range((length - 1) * chains, length * chains)
    world, messages = world_of(
        *statements, get(*((slot, values[slot]) for slot in last)), cpus=1, nodes=3, pieces=96, settings={"node_lease": 2.0}
    )
    for when, number in ((101.0, 2), (102.5, 3)):
        world.at(when, lambda number=number: world.nodes[number - 1].end("kill -9"))  # type: ignore[misc]
        world.at(when + 0.2, lambda number=number: world.start_node(number + 2))  # type: ignore[misc]
    run(world)
    of = {node: begun_on(messages, node) for node in range(1, 6)}
    count = Counter(identifier for tasks in of.values() for identifier in tasks)
    again = {identifier for identifier, times in count.items() if times > 1}
    assert len(count) == length * chains
    assert again
    assert again <= {*of[2], *of[3]}, "only what ran on the lost nodes runs again"
    assert of[4]
    assert of[5]


@pytest.mark.parametrize(("every", "again"), [(10, 5), (0, 45)])
def test_an_actor_of_a_lost_node_is_made_again_from_its_checkpoint(every: int, again: int) -> None:
    """5.1, figure 11b: its node dies; the few methods after its last checkpoint run again, without checkpoints all. Callers live on."""
    made = make(0, task(1), restarts=-1, every=every)
    statements: list[Any] = [(*made[:4], (*made[4], ("strategy", SPREAD)), *made[5:]), ("sleep", 0.1)]
    for slot, (node, calls) in enumerate(((1, 15), (2, 15), (1, 15)), start=1):
        invoked = [invoke(each, 0, task(each), retries=LOGGED) for each in range(1, calls + 1)]
        expected = get(*((each, worth(each)) for each in range(1, calls + 1)))
        statements += [call_on(node, slot, task(5, *invoked, expected), inside=(0,))]
    results = [(slot, worth(5, *(worth(each) for each in range(1, 16)))) for slot in (1, 2, 3)]
    statements += [get(*results), ("sleep", 5.0), invoke(4, 0, task(9), retries=LOGGED), get((4, worth(9)))]
    world, messages = world_of(*statements, cpus=1, nodes=3, settings={"node_lease": 2.0})
    hosts: list[int] = []

    def kill_its_node() -> None:
        (node,) = [node for node in world.living if any(worker.worker.mailbox.logs for worker in node.workers.values())]
        hosts.append(node.number)
        node.end("kill -9")

    world.at(102.0, kill_its_node)
    run(world)
    assert hosts not in ([1], []), "it lived elsewhere"
    replayed = [message for _, _, message in messages if isinstance(message, m.ReplayProgress)]
    assert max((message.done for message in replayed), default=0) == again
