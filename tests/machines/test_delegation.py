"""Tasks that run on another node than their home: what is sent, what returns, and who decides."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ledger_updates import holding, released
from scheduler_alone import ACTOR_CLASS, DRIVER, FUNCTION, JOB, OWN, Node, ref, row, task_id

from tests.sim.kinds import Kind
from tests.sim.network import Faults
from tests.sim.programs import Program, mix
from tests.sim.scenarios import STEADY, call, call_on, get, task
from tests.sim.variants import applied
from tests.sim.world import World
from zfabric.config import MiB
from zfabric.machines.local_scheduler.nodes.placement.back import LOOK_SECONDS, PATIENCE, RECALL_SECONDS
from zfabric.machines.local_scheduler.nodes.placement.when import STAY_SECONDS
from zfabric.machines.local_scheduler.nodes.placement.where import FULL_SECONDS, TRIED_MOST
from zfabric.machines.local_scheduler.records import READY, WAITING
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure, unpack_failure
from zfabric.protocol.ids import (
    CLIENT,
    DAEMONS_MAX,
    GLOBAL_SCHEDULER,
    LOCAL_SCHEDULER,
    MEMBER,
    child_prefix,
    daemons_of,
    first_attempt,
    job_id,
    next_attempt,
    node_of,
    object_id,
    pack_counter,
    tries_of,
)
from zfabric.protocol.options import NODE_ID, ONE_CPU, SPREAD, Demand, Strategy

TOOL = CLIENT + b"\x03tool..."
MEMBERSHIP = {"Join", "Joined", "NodeTable", "RenewLease", "LeaseRenewed"}
TRACE = Path(__file__).parents[1] / "scenarios" / "delegated.txt"


def run(
    *statements: Any, nodes: int = 2, faults: Faults = STEADY, times: list[float] | None = None, pieces: int = 0, **settings: Any
) -> tuple[World, list[tuple[str, str, Any]]]:
    """Run a program on several nodes of one CPU each; return the world and its messages: (from, to, message)."""
    sent: list[tuple[str, str, Any]] = []

    def observe(now: float, source: str, to: str, message: Any) -> None:
        if source:
            sent.append((source, to, message))
            if times is not None:
                times.append(now)

    usual = {"workers_max": 4, "inline_depth": 100, "prefetch_tasks": 64, "worker_idle_seconds": 60.0, "spill_after": 0.02}
    world = World(
        0,
        Kind(nodes=nodes),
        faults=faults,
        program=Program(statements, 0),
        observer=observe,
        cpus=1,
        pieces=pieces,
        settings={**usual, **settings},
    )
    outcome = world.run()
    assert outcome.failure == ""
    return world, sent


def between_nodes(sent: list[tuple[str, str, Any]]) -> Counter[str]:
    """Count the messages from one daemon to another, by kind."""
    daemons = [(source, to, message) for source, to, message in sent if source[-1].isdigit() and not source.startswith("worker")]
    pairs = [(source, to, message) for source, to, message in daemons if to[-1].isdigit() and not to.startswith("worker")]
    return Counter(type(message).__name__ for source, to, message in pairs if source[-1] != to[-1])


def test_a_task_elsewhere_costs_two_messages_between_nodes_and_an_acknowledgement() -> None:
    lines = [line.split(": ", 1)[1].split()[0] for line in TRACE.read_text().splitlines() if "scheduler1 -> scheduler2" in line]
    lines = [each for each in lines if each not in ("RegisterNode", "Ready", "EndJob")]
    assert lines == ["Delegate", "EndsReceived"]
    assert TRACE.read_text().count("scheduler2 -> scheduler1: Ended") == 1


def test_a_program_that_one_node_can_run_sends_no_task_to_another() -> None:
    _, sent = run(call(0, task(5)), get((0, 162)), call(1, task(6)), get((1, 193)))
    assert set(between_nodes(sent)) <= {"RegisterNode", "Ready", "Heartbeat", "EndJob", "JobGone", *MEMBERSHIP}


def ended_at(sent: list[tuple[str, str, Any]], times: list[float]) -> float:
    """When the driver received its last value, in seconds after it submitted the first task."""
    submitted = next(index for index, (source, _, message) in enumerate(sent) if source == "driver" and isinstance(message, m.Submit))
    received = max(index for index, (_, to, message) in enumerate(sent) if to == "driver" and isinstance(message, m.Results))
    return times[received] - times[submitted]


@pytest.mark.parametrize("nodes", [2, 4])
def test_equal_tasks_end_in_their_share_of_the_time(nodes: int) -> None:
    """60 tasks of 50 ms on nodes of one CPU, submitted at once: a home keeps its share, and asks again while it has more."""
    times: list[float] = []
    statements = [call(slot, task(5, ("sleep", 0.05))) for slot in range(60)]
    _, sent = run(*statements, get(*((slot, 162) for slot in range(60))), nodes=nodes, times=times)
    assert ended_at(sent, times) < 1.25 * 60 * 0.05 / nodes + 0.1


def test_tasks_behind_one_that_turns_out_to_be_long_run_on_another_node() -> None:
    times: list[float] = []
    expected_short = [call(slot, task(5)) for slot in range(8)]
    long, *behind = call(8, task(6, ("sleep", 9.0))), *(call(slot, task(5)) for slot in range(9, 15))
    everything = [*expected_short, get(*((slot, 162) for slot in range(8))), long, *behind, get(*((slot, 162) for slot in range(9, 15)))]
    _, sent = run(*everything, ("cancel", 8, True, True), get((8, ("TaskCancelledError",))), times=times)
    assert ended_at(sent, times) < 4.0


def test_spread_tasks_behind_a_long_one_of_another_node_run_elsewhere() -> None:
    times: list[float] = []
    spread = [(*call(slot, task(5, ("sleep", 0.05)))[:4], (("strategy", SPREAD),), (), ()) for slot in range(1, 10)]
    everything = [call_on(2, 0, task(6, ("sleep", 9.0))), ("sleep", 0.1), *spread, get(*((slot, 162) for slot in range(1, 10)))]
    _, sent = run(*everything, ("cancel", 0, True, True), get((0, ("TaskCancelledError",))), nodes=3, times=times)
    assert ended_at(sent, times) < 4.0


def test_functions_are_sent_once_to_a_node() -> None:
    statements = [call(slot, task(5, ("sleep", 0.1))) for slot in range(12)]
    _, sent = run(*statements, get(*((slot, 162) for slot in range(12))))
    functions = [row for _, _, message in sent if isinstance(message, m.Delegate) for row in message.functions]
    assert len(functions) == 1
    assert sum(len(message.rows) for _, _, message in sent if isinstance(message, m.Delegate)) >= 4


def test_what_a_task_elsewhere_submits_is_at_home_there() -> None:
    child = task(6, ("sleep", 0.01))
    parent = task(7, call(0, child), get((0, 193)))
    _, sent = run(call(0, task(5, ("sleep", 0.5))), call(1, parent), ("drop", 1), get((0, 162)))
    submits = [to for source, to, message in sent if isinstance(message, m.Submit) and source.startswith("worker")]
    assert submits == ["scheduler2"]


@pytest.mark.parametrize("force", [False, True])
def test_a_task_elsewhere_is_cancelled(force: bool) -> None:
    _, sent = run(
        call(0, task(5, ("sleep", 0.5))),
        call(1, task(6, ("sleep", 9.0))),
        ("sleep", 0.2),
        ("cancel", 1, force, True),
        get((1, ("TaskCancelledError",)), (0, 162)),
    )
    assert any(isinstance(message, m.StopDelegated) and message.reason == ("force" if force else "cancelled") for _, _, message in sent)


def test_children_of_an_attempt_that_died_elsewhere_are_stopped() -> None:
    """The next attempt submits them anew; nobody waits for these."""
    parent = task(7, call(0, task(6, ("sleep", 9.0))), ("sleep", 0.2), ("die", 1))
    _, sent = run(call(0, task(5, ("sleep", 0.1))), call_on(2, 1, parent), get((0, 162), (1, 224)))
    stopped = [message.reason for source, _, message in sent if isinstance(message, m.StopDelegated) and source == "scheduler2"]
    assert stopped == ["cancelled"]


def test_the_end_of_a_job_is_acknowledged_by_every_node_before_its_driver_leaves() -> None:
    _, sent = run(call(0, task(5)), get((0, 162)), nodes=3)
    kinds = [type(message) for _, _, message in sent]
    assert kinds.count(m.JobGone) == 2
    assert max(index for index, kind in enumerate(kinds) if kind is m.JobGone) < kinds.index(m.Farewell)


def test_a_large_value_stays_where_it_was_made_until_it_is_requested() -> None:
    _, sent = run(call(0, task(5, ("sleep", 0.3))), call(1, task(6, size=3_000_000)), ("sleep", 0.1), get((0, 162), (1, 193)))
    (ended,) = [m.Completed(*message.completed) for _, _, message in sent if isinstance(message, m.Ended)]
    assert (ended.statuses, ended.outputs) == ((m.OK,), ((3_000_000,),))
    kinds = [type(message) for _, _, message in sent]
    assert kinds.index(m.Ended) < kinds.index(m.Pull) < kinds.index(m.Chunk) < kinds.index(m.Pulled)
    assert m.FetchedValues not in kinds
    assert any(
        isinstance(message, m.UpdateLedger) and message.ended and source == "scheduler1" and to == "scheduler2"
        for source, to, message in sent
    )


def test_a_task_runs_where_its_large_argument_is_without_a_copy() -> None:
    producer, consumer = call(1, task(6, size=3_000_000)), call(2, task(7, ("sleep", 0.01)), needs=(1,))
    _, sent = run(call(0, task(5, ("sleep", 0.5))), producer, consumer, ("drop", 1), get((2, 12934), (0, 162)))
    assert not any(isinstance(message, m.FetchValues | m.Pull) for _, _, message in sent)


def test_large_inputs_from_another_node_come_side_by_side() -> None:
    producers = [call_on(2, slot, task(5 + slot, size=3_000_000)) for slot in range(3)]
    consumer = call_on(1, 3, task(9), needs=(0, 1, 2))
    _, sent = run(*producers, ("wait", (0, 1, 2), 3, None), consumer, get((3, 545697)))
    moves = [type(message) for _, _, message in sent if isinstance(message, m.Pull | m.Pulled)]
    assert moves == [m.Pull] * 3 + [m.Pulled] * 3


def test_a_value_for_seven_nodes_leaves_its_home_four_times_at_most() -> None:
    """Every complete copy serves on: of seven readers that ask at the same time, the home serves some, and they serve the others."""
    size = 64 * MiB
    readers = [call_on(number, number, task(6, ("sleep", 0.01)), needs=(0,)) for number in range(2, 9)]
    expected = get(*((number, mix(mix(6, 7), 0)) for number in range(2, 9)))
    world, sent = run(("put", 0, 7, size, ()), ("sleep", 1.0), *readers, expected, nodes=8, pieces=40)
    copied = Counter({node.number: node.sent.total() / size for node in world.nodes})
    assert copied.total() == 7
    assert copied[1] <= 4
    assert not any(isinstance(message, m.ValueRead) for _, _, message in sent), "no daemon has touched its bytes"


HOME, OTHER, THIRD = b"\x01home...", b"\x01other..", b"\x01third.."


def told(node: Node, version: int, *others: bytes) -> None:
    """Give a node a table of itself and these nodes."""
    rows = tuple((each, number, "a node", "", "", b"", (), (), 0) for number, each in enumerate((*others, b"thisnode"), 1))
    node.send(MEMBER + OWN, m.NodeTable(version, rows))


def delegate(job: bytes = JOB, identifier: bytes = JOB + b"t" * 12) -> m.Delegate:
    """A task of a job whose driver is on ``HOME``."""
    function = (FUNCTION, "f", b"payload", ())
    return m.Delegate((job, "", HOME), (function,), ((identifier, FUNCTION, b"", ()),), (), (), (), first_attempt(0, 1))


def test_a_node_may_register_before_the_table_that_names_it_arrives() -> None:
    node = Node()
    node.send(LOCAL_SCHEDULER + OTHER, m.RegisterNode(m.PROTOCOL_VERSION, b"\x01daemon."))
    node.send(LOCAL_SCHEDULER + OTHER, m.Ready())
    told(node, 1, OTHER, THIRD)
    assert [each.token for each in node.scheduler.tables.nodes.values() if each.is_ready] == [OTHER]


def given_to_a_third_node() -> Node:
    """A node of one CPU has a task of another home, whose child waits; the third node takes that, and the job's home does not know it."""
    node = Node()
    told(node, 1, HOME, THIRD)
    node.send(LOCAL_SCHEDULER + THIRD, m.Ready())
    node.send(LOCAL_SCHEDULER + HOME, delegate())
    (worker,) = node.workers()
    children = tuple((child_prefix(JOB, JOB + b"t" * 12) + pack_counter(number), FUNCTION, b"", ()) for number in range(3))
    node.send(CLIENT + worker, m.Export(((FUNCTION, "f", b"payload", ()),)))
    node.send(CLIENT + worker, m.Submit(children))
    node.now += 1.0
    node.turn()
    ((_, asked),) = node.take(m.Place)
    node.send(GLOBAL_SCHEDULER + HOME, m.Placed(((asked.rows[0][0], ((THIRD, 3),)),)))
    assert [to for to, _ in node.take(m.Delegate)] == [LOCAL_SCHEDULER + THIRD]
    return node


def test_who_gave_tasks_of_a_job_to_a_node_has_it_end_there() -> None:
    node = given_to_a_third_node()
    node.send(LOCAL_SCHEDULER + HOME, m.EndJob(JOB))
    assert node.take(m.EndJob) == [(LOCAL_SCHEDULER + THIRD, m.EndJob(JOB))]
    assert node.take(m.JobGone) == [], "the third node may still have something"
    node.send(LOCAL_SCHEDULER + THIRD, m.EndJob(JOB))
    assert node.take(m.JobGone) == [(LOCAL_SCHEDULER + THIRD, m.JobGone(JOB))], "which waits for nobody: both may have asked"
    node.send(LOCAL_SCHEDULER + THIRD, m.JobGone(JOB))
    assert node.take(m.JobGone) == [(LOCAL_SCHEDULER + HOME, m.JobGone(JOB))]
    (third,) = (each for each in node.scheduler.tables.nodes.values() if each.token == THIRD)
    assert not third.inflight
    assert not third.functions


def test_a_job_goes_on_elsewhere_when_a_node_that_works_for_it_stops() -> None:
    node = given_to_a_third_node()
    node.scheduler.jobs.end_all(node.now, "it was drained")
    node.turn()
    assert node.take(m.EndJob) == [], "the third node would take in nothing more of the job"
    assert not node.scheduler.tables.jobs
    node.take(m.Ended)
    node.send(LOCAL_SCHEDULER + HOME, delegate()._replace(functions=()))
    assert node.take(m.Ended) == [], "its home runs it again, and has no reason to fail it"
    assert not node.scheduler.tables.jobs


def test_a_task_that_is_in_its_queue_twice_is_delegated_once() -> None:
    # It was taken out of turn, and its worker died: then it is put in front, and its first place in the queue is still there.
    node = Node()
    told(node, 1, OTHER)
    node.send(LOCAL_SCHEDULER + OTHER, m.Ready())
    node.driver()
    node.submit(row(1))
    (queue,) = (each for each in node.scheduler.tables.queues.values() if each.tasks)
    queue.tasks.append(queue.tasks[0])
    node.now += 1.0
    node.turn()
    node.send(GLOBAL_SCHEDULER + OTHER, m.Placed(((queue.token, ((OTHER, 2),)),)))
    ((_, message),) = node.take(m.Delegate)
    assert len(message.rows) == 1


def test_what_a_task_elsewhere_does_is_explained_with_its_node() -> None:
    node = Node()
    told(node, 1, OTHER)
    node.send(LOCAL_SCHEDULER + OTHER, m.Ready())
    node.driver()
    node.submit(row(1), row(2))
    node.now += 1.0
    node.turn()
    (queue,) = (each for each in node.scheduler.tables.queues.values() if each.tasks)
    node.send(GLOBAL_SCHEDULER + OTHER, m.Placed(((queue.token, ((OTHER, 1),)),)))
    (task_id,) = (each.id for each in node.scheduler.tables.nodes[OTHER].inflight.values())
    found = node.scheduler.explain(task_id)
    assert found is not None
    assert (found.state, found.reason) == ("assigned", f"runs on node a node ({OTHER.hex()}), or is queued there")


def test_tasks_of_a_job_that_has_ended_are_not_taken_in() -> None:
    # The third node gave it before it knew of the end, and may have died since: nobody would end the job here once more.
    node = Node()
    told(node, 1, HOME, THIRD)
    node.send(LOCAL_SCHEDULER + HOME, m.EndJob(JOB))
    node.send(LOCAL_SCHEDULER + THIRD, delegate())
    assert not node.scheduler.tables.jobs
    assert not node.scheduler.tables.tasks


def test_a_job_that_goes_on_with_its_homes_next_daemon_is_taken_in_again() -> None:
    """The daemon before had begun to end it. The next one knows of detached actors that were requested meanwhile."""
    node = Node()
    told(node, 1, HOME, THIRD)
    node.send(LOCAL_SCHEDULER + HOME, m.EndJob(JOB))
    node.send(LOCAL_SCHEDULER + HOME, delegate())
    assert list(node.scheduler.tables.jobs) == [JOB]
    assert node.scheduler.tables.tasks


def test_a_job_that_ends_while_a_node_joins_ends_there_too() -> None:
    node = Node()
    told(node, 1, OTHER)
    node.driver()
    node.send(CLIENT + b"\x01driver0", m.Goodbye())
    told(node, 2, OTHER, THIRD)
    assert [to for to, _ in node.take(m.EndJob)] == [LOCAL_SCHEDULER + OTHER, LOCAL_SCHEDULER + THIRD]
    node.send(LOCAL_SCHEDULER + OTHER, m.JobGone(JOB))
    assert node.take(m.Farewell) == []
    told(node, 3, OTHER)
    assert len(node.take(m.Farewell)) == 1


def test_jobs_of_every_node_are_numbered_by_the_head() -> None:
    class Elsewhere(Node):
        def answer(self, message: Any) -> None:
            if not isinstance(message, m.NewJob):
                super().answer(message)

    head, node = b"\x01head...", Elsewhere()
    rows = ((head, 1, "head", "", "", b"", (), (), 1), (b"thisnode", 2, "node", "", "", b"", (), (), 2))
    node.send(b"N" + OWN, m.NodeTable(1, rows, head))
    node.driver()
    ((to, asked),) = node.take(m.NewJob)
    assert to == b"S" + head
    node.send(b"L" + head, m.RegisterNode(m.PROTOCOL_VERSION, b"\x01daemon1"))  # The answer of its daemon before was lost with that.
    assert node.take(m.NewJob) == [(b"S" + head, asked)]
    assert node.take(m.Welcome) == []
    node.send(b"S" + head, m.JobNumber(asked.token, 7))
    ((_, welcome),) = node.take(m.Welcome)
    assert welcome.job == job_id(7)
    node.send(b"L" + head, m.RegisterNode(m.PROTOCOL_VERSION, b"\x01daemon2"))
    assert node.take(m.NewJob) == []


def test_every_node_lists_all_nodes_of_the_cluster() -> None:
    head, node = b"\x01head...", Node()
    rows = (
        (b"thisnode", 2, "beta", "tcp://b:2", "", b"", (("CPU", 10_000),), (("disk", "ssd"),), 22),
        (head, 1, "alpha", "tcp://a:1", "", b"", (("CPU", 20_000), ("tpu", 10_000)), (), 11),
    )
    node.send(b"N" + OWN, m.NodeTable(1, rows, head))
    node.send(TOOL, m.Query(1, "nodes", ()))
    node.send(TOOL, m.Query(2, "cluster_resources", ()))
    listed, resources = (message.payload for _, message in node.take(m.Answer))
    assert [
        (each["number"], each["name"], each["address"], each["labels"], each["pid"], each["head"], each["here"]) for each in listed
    ] == [
        (1, "alpha", "tcp://a:1", {}, 11, True, False),
        (2, "beta", "tcp://b:2", {"disk": "ssd"}, 22, False, True),
    ]
    assert resources == {"CPU": 3.0, "tpu": 1.0}


def test_numbers_of_attempts_of_two_nodes_never_meet() -> None:
    """The node is in the number, and so is the daemon: names of children follow from it."""
    numbers = [first_attempt(daemons, node) for node in (0, 1, 2, 2**20 - 1) for daemons in (0, 1, DAEMONS_MAX)]
    assert len({next_attempt(number, first) for number in numbers for first in numbers}) == len(numbers)
    assert [(node_of(each), daemons_of(each), tries_of(each)) for each in numbers[3:6]] == [(1, 0, 0), (1, 1, 0), (1, DAEMONS_MAX, 0)]
    assert all(number < 2**64 for number in numbers)


def tree(depth: int, seconds: float = 0.01) -> tuple[Any, int]:
    """The spec of a task that waits for two smaller trees, and its value."""
    if not depth:
        return task(5, ("sleep", seconds)), mix(5, 0)
    spec, number = tree(depth - 1, seconds)
    total = mix(mix(depth, number), number)
    return task(depth, call(0, spec), call(1, spec), ("sleep", seconds), get((0, number), (1, number))), mix(total, 0)


@pytest.mark.parametrize("blocked", [1, 32])
@pytest.mark.parametrize("nodes", [3, 4])
def test_recursion_over_nodes_of_one_cpu_ends(nodes: int, blocked: int) -> None:
    """A task that waits for one on another node cannot run it on top: its worker is replaced, or the row comes home."""
    spec, number = tree(5)
    world, sent = run(call(0, spec), get((0, number)), nodes=nodes, workers_blocked_max=blocked, spill_after=0.001)
    assert between_nodes(sent)["Delegate"] > 3
    assert world.states["workers_started"] <= nodes * (1 + 1 + blocked)
    assert (world.states["handed_back"] > 0) == (blocked == 1)


def test_a_home_takes_back_what_has_not_begun() -> None:
    """The last tasks are longer than the first ones, and are given away: the home ends its share before the other node does."""
    times: list[float] = []
    statements = [call(slot, task(5, ("sleep", 0.05 if slot < 4 else 0.5))) for slot in range(8)]
    _, sent = run(*statements, get(*((slot, 162) for slot in range(8))), times=times)
    assert between_nodes(sent)["Reclaim"] == between_nodes(sent)["Reclaimed"] > 0
    assert ended_at(sent, times) < 1.5


# --- a home, message by message ---------------------------------------------------------------------------------------------------

NODES = (b"thisnode", *(bytes([index]) * 8 for index in (2, 3, 4)))
"""Ids of nodes, in the order in which they joined; the first is the home."""


class Home(Node):
    """The local scheduler of a node of one CPU, which runs a task, among others whose parts the test plays."""

    register = True
    """Whether nodes register as soon as they are in the table."""

    def __init__(self, nodes: int = 3, **config: Any) -> None:
        super().__init__(cpus=1, **config)
        self.table(*NODES[:nodes])
        self.driver()
        self.submit(row(0))
        (self.worker,) = self.workers()
        assert self.dispatched() == [(self.worker, 0, first_attempt(0, 1))]
        self.sent.clear()

    def table(self, *nodes: bytes, zones: str = "abcd", resources: Demand = ONE_CPU) -> None:
        """The cluster has these nodes, which have a label."""
        numbers = [NODES.index(node) + 1 for node in nodes]
        labels = [(("zone", zones[number - 1]),) for number in numbers]
        rows = tuple(
            (node, number, f"n{number}", "", "", b"", resources, label, 0)
            for node, number, label in zip(nodes, numbers, labels, strict=True)
        )
        self.version = getattr(self, "version", 0) + 1
        known = set(self.scheduler.tables.nodes)
        self.send(b"N" + OWN, m.NodeTable(self.version, rows))
        for node in nodes[1:] if self.register else ():
            if node in known:
                continue
            self.send(b"L" + node, m.RegisterNode(m.PROTOCOL_VERSION, node))
            self.send(b"L" + node, m.Ready())

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.scheduler.tick(self.now)
        self.turn()

    def questions(self) -> list[tuple[bytes, int]]:
        """Global schedulers that were asked, and about how many tasks."""
        return [(to, row[2]) for to, message in self.take(m.Place) for row in message.rows]

    def placed(self, source: bytes, *places: tuple[bytes, int]) -> None:
        """A global scheduler answers."""
        *_, queue = (each for each in self.scheduler.tables.queues.values() if each.job is not None)
        self.send(source, m.Placed(((queue.token, places),)))

    def delegated(self) -> dict[bytes, list[int]]:
        """Numbers of the tasks that each node was given."""
        found: dict[bytes, list[int]] = {}
        for to, message in self.take(m.Delegate):
            found.setdefault(to[1:], []).extend(int.from_bytes(each[0][-4:], "big") for each in message.rows)
        return found


PLACERS = (b"G" + OWN, b"G" + NODES[1])


def test_a_global_scheduler_that_does_not_answer_is_passed_over() -> None:
    home = Home()
    home.submit(row(1), row(2))
    home.wait(home.config.spill_after)
    ((first, count),) = home.questions()
    assert (first in PLACERS, count) == (True, 2)
    home.wait(home.config.placer_patience / 2)
    assert home.questions() == []
    home.wait(home.config.placer_patience / 2)
    ((second, count),) = home.questions()
    assert {first, second} == set(PLACERS)
    home.placed(second, (NODES[1], 1), (b"thisnode", 1))
    assert home.delegated() == {NODES[1]: [2]}
    home.placed(first, (NODES[2], 2))
    assert home.delegated() == {}


def test_a_queue_that_cannot_run_here_waits_where_others_have_no_room_either() -> None:
    home = Home()
    home.submit(row(1, demand=(("CPU", 20_000),)))
    ((first, _),) = home.questions()
    home.placed(first, (NODES[1], 0), (NODES[2], 0))
    assert home.questions() == [], "the global scheduler of this node would answer in the same turn, and so on"
    home.wait(STAY_SECONDS + home.config.spill_after)
    ((again, _),) = home.questions()
    home.placed(again, (NODES[1], 1))
    assert home.delegated() == {NODES[1]: [1]}


def test_a_restarted_global_scheduler_receives_a_heartbeat_although_nothing_has_changed() -> None:
    home = Home()
    home.wait(10.0)
    assert PLACERS[1] in {to for to, _ in home.take(m.Heartbeat)}
    home.wait(10.0)
    assert home.take(m.Heartbeat) == []
    home.send(b"L" + NODES[1], m.RegisterNode(m.PROTOCOL_VERSION, b"daemon 2", home.scheduler.address[1:]))
    home.wait(10.0)
    assert [to for to, _ in home.take(m.Heartbeat)] == [PLACERS[1]]


@pytest.mark.parametrize("demand", [10_000, 20_000], ids=["busy", "infeasible"])
def test_a_queue_for_which_no_other_node_is_named_asks_ever_more_seldom(demand: int) -> None:
    home = Home()
    home.submit(row(1, demand=(("CPU", demand),)))
    asked: list[float] = []
    began = home.now
    while home.now < began + 3.0:
        for placer, _ in home.questions():
            asked.append(home.now)
            home.placed(placer, *([(b"thisnode", 1)] if demand == 10_000 else []))
        home.wait(0.01)
    waits = [later - before for before, later in itertools.pairwise(asked)]
    assert waits[:5] == pytest.approx([0.04, 0.08, 0.16, 0.32, 0.64], abs=0.011)
    assert waits[5:] == pytest.approx([0.64] * len(waits[5:]), abs=0.011), "there is a longest wait"
    assert len(waits) >= 7
    home.submit(row(2, demand=(("CPU", demand),)), row(3, demand=(("CPU", demand),)))
    while not (questions := home.questions()):
        home.wait(0.01)
    home.placed(questions[0][0], (NODES[1], 1))
    assert len(home.delegated()[NODES[1]]) == 1
    home.wait(home.config.spill_after)
    assert home.questions(), "once another node was named, it asks as at first"


def test_a_question_follows_a_heartbeat_that_has_the_queue() -> None:
    home = Home()
    home.submit(row(1), row(2))
    home.wait(home.config.spill_after)
    ((placer, _),) = [pair for pair in home.sent if isinstance(pair[1], m.Place)]
    kinds = [message for to, message in home.sent if to == placer and isinstance(message, m.Heartbeat | m.Place)]
    assert [type(each) for each in kinds[-2:]] == [m.Heartbeat, m.Place]
    assert kinds[-2].queued == 2


def test_a_queue_that_will_be_empty_soon_stays() -> None:
    """Tasks of 0.1 ms, and of 10 µs: the former go once they would take longer than spill_after, the latter never."""
    for seconds, count, goes in ((0.0001, 100, False), (0.0001, 300, True), (0.00001, 3000, False)):
        home = Home()
        home.submit(*(row(number + 1) for number in range(count + 1)))
        home.send(b"W" + home.worker, m.Completed.of(((task_id(0), first_attempt(0, 1), m.OK, (b"",)),), (), ((FUNCTION, 1, seconds),)))
        home.wait(home.config.spill_after)  # The head of the queue has moved: some were dispatched.
        assert bool(home.questions()) == goes, (seconds, count)


def test_a_heartbeat_has_the_queue_and_how_long_its_tasks_take() -> None:
    home = Home()
    home.send(b"W" + home.worker, m.Completed.of(((task_id(0), first_attempt(0, 1), m.OK, (b"",)),), (), ((FUNCTION, 1, 2.0),)))
    home.submit(*(row(number) for number in range(1, 5)))
    home.take(m.Heartbeat)
    home.wait(0.1)
    beats = home.take(m.Heartbeat)
    assert {to for to, _ in beats} == set(PLACERS)
    assert {(beat.queued, beat.mean_seconds) for _, beat in beats} == {(3, 2.0)}


def test_tasks_are_reclaimed_one_request_at_a_time_and_keep_order_and_attempt() -> None:
    home = Home(nodes=2)
    home.submit(*(row(number) for number in range(1, 9)))
    home.wait(home.config.spill_after)
    ((placer, _),) = home.questions()
    home.placed(placer, (NODES[1], 8))
    assert home.delegated() == {NODES[1]: list(range(1, 9))}
    assert home.take(m.Reclaim) == []
    home.complete(home.worker, 0, first_attempt(0, 1))
    assert home.take(m.Reclaim) == [(b"L" + NODES[1], m.Reclaim(tuple(task_id(number) for number in range(5, 9))))]
    home.wait(1.0)
    assert home.take(m.Reclaim) == []
    home.send(b"L" + NODES[1], m.Reclaimed((task_id(7), task_id(8)), ""))
    assert home.dispatched() == [(home.worker, 7, first_attempt(0, 1)), (home.worker, 8, first_attempt(0, 1))]
    for number in (7, 8):
        home.complete(home.worker, number, first_attempt(0, 1))
    assert len(home.take(m.Reclaim)) == 1
    home.send(b"L" + NODES[1], m.Reclaimed((), ""))
    home.wait(1.0)
    assert home.take(m.Reclaim) == []  # All that is left there has begun.


TWO_CPUS = (("CPU", 20_000),)
"""More than the home has."""


def home_before_another_node_joins(tasks: int, **options: Any) -> Home:
    """A home whose tasks were all given to its only other node. A third node joins."""
    home = Home(nodes=1)
    home.table(*NODES[:2], resources=TWO_CPUS)
    home.submit(*(row(number, demand=TWO_CPUS, **options) for number in range(1, tasks + 1)))
    for placer, count in home.questions():
        home.placed(placer, (NODES[1], count))
    assert home.delegated() == {NODES[1]: list(range(1, tasks + 1))}
    home.table(*NODES[:3], resources=TWO_CPUS)
    return home


def reclaimed(home: Home, seconds: float = LOOK_SECONDS) -> list[tuple[bytes, list[int]]]:
    """Numbers of the tasks that a home reclaims once some time has passed, by node."""
    home.wait(seconds)
    return [(to[1:], [int.from_bytes(each[-4:], "big") for each in message.task_ids]) for to, message in home.take(m.Reclaim)]


def returned(home: Home, node: bytes, *tasks: int) -> None:
    """A node returns tasks, and the global scheduler places them on the last node that has joined."""
    home.send(b"L" + node, m.Reclaimed(tuple(map(task_id, tasks)), ""))
    for placer, count in home.questions():
        home.placed(placer, (NODES[2], count))


def ended(home: Home, node: bytes, number: int, *tasks: int, seconds: float) -> None:
    """Tasks have ended on another node, and took so long each."""
    rows = tuple((task_id(each), first_attempt(0, 1), m.OK, (b"",)) for each in tasks)
    home.send(b"L" + node, m.Ended(number, tuple(m.Completed.of(rows, (), ((JOB + FUNCTION, len(tasks), seconds * len(tasks)),))), ()))


def test_a_node_that_joins_late_is_given_what_another_one_has_not_begun_as_it_can_begin_it() -> None:
    home = home_before_another_node_joins(9)
    assert reclaimed(home) == [(NODES[1], [9])], "nobody knows how long it takes"
    returned(home, NODES[1], 9)
    assert home.delegated() == {NODES[2]: [9]}
    assert reclaimed(home) == []
    ended(home, NODES[2], 1, 9, seconds=LOOK_SECONDS / 2.5)
    assert reclaimed(home) == [(NODES[1], [6, 7, 8])], "one to run, and two that it begins until the next look"
    returned(home, NODES[1], 7, 8)
    assert home.delegated() == {NODES[2]: [7, 8]}
    for node, number, tasks in ((NODES[1], 1, range(1, 7)), (NODES[2], 2, (7, 8))):
        ended(home, node, number, *tasks, seconds=0.1)
    home.wait(LOOK_SECONDS)
    home.wait(LOOK_SECONDS)
    assert home.scheduler.reclaiming.next_deadline() is None, "nothing is left to be looked at"


def test_an_attempt_is_taken_from_a_node_for_another_one_once() -> None:
    home = home_before_another_node_joins(6)
    assert reclaimed(home) == [(NODES[1], [6])]
    home.send(b"L" + NODES[1], m.Reclaimed((task_id(6),), ""))
    ((placer, count),) = home.questions()
    home.placed(placer, (NODES[1], count))
    assert home.delegated() == {NODES[1]: [6]}, "the other one had tasks of other homes"
    assert reclaimed(home) == [(NODES[1], [5])]
    returned(home, NODES[1], 5)
    home.table(*NODES, resources=TWO_CPUS)
    assert reclaimed(home) == [(NODES[1], [4])]


def test_tasks_for_labels_move_to_a_late_node_that_has_them_and_to_no_other() -> None:
    home = home_before_another_node_joins(6, strategy=in_zones("b", "d"))
    assert reclaimed(home) == [], "the node that has joined is in zone c"
    home.table(*NODES, resources=TWO_CPUS)
    assert reclaimed(home) == [(NODES[1], [6])]
    home.send(b"L" + NODES[1], m.Reclaimed((task_id(6),), ""))
    assert home.delegated() == {NODES[3]: [6]}


@pytest.mark.parametrize("full", [True, False])
def test_no_task_moves_to_a_node_that_has_as_many_or_no_room(full: bool) -> None:
    home = home_before_another_node_joins(4)
    if full:
        home.scheduler.tables.nodes[NODES[2]].full[TWO_CPUS] = home.now + 60.0
        assert reclaimed(home) == []
        return
    assert reclaimed(home) == [(NODES[1], [4])]
    returned(home, NODES[1], 4)
    assert reclaimed(home) == []


def test_an_executor_reports_how_long_its_tasks_take() -> None:
    executor = Home()
    executor.complete(executor.worker, 0, first_attempt(0, 1))
    executor.send(b"L" + NODES[1], given_to(100, 101))
    attempt = (task_id(100), first_attempt(0, 2), m.OK, (b"",))
    executor.send(b"W" + executor.worker, m.Completed.of((attempt,), (), ((FUNCTION, 1, 0.5),)))
    ((_, message),) = executor.take(m.Ended)
    assert m.Completed(*message.completed).durations == ((JOB + FUNCTION, 1, 0.5),)


def test_an_executor_returns_what_has_not_begun() -> None:
    executor = Home()
    about, functions = (JOB, "", NODES[1]), ((FUNCTION, "f", b"payload", ()),)
    rows = tuple(row(100 + number) for number in range(3))
    executor.complete(executor.worker, 0, first_attempt(0, 1))
    executor.send(b"L" + NODES[1], m.Delegate(about, functions, rows, (), (), (), first_attempt(0, 2)))
    assert [number for _, number, _ in executor.dispatched()] == [100]
    reclaim = m.Reclaim(tuple(each[0] for each in rows))
    executor.send(b"L" + NODES[2], reclaim)
    assert executor.take(m.Reclaimed) == [(b"L" + NODES[2], m.Reclaimed((), ""))]  # They are none of its.
    executor.send(b"L" + NODES[1], reclaim)
    assert executor.take(m.Reclaimed) == [(b"L" + NODES[1], m.Reclaimed((rows[1][0], rows[2][0]), ""))]
    executor.send(b"W" + executor.worker, m.Completed.of(((rows[0][0], first_attempt(0, 2), m.OK, (b"",)),)))
    assert executor.dispatched() == []
    assert len(executor.take(m.Ended)) == 1


def test_the_queue_of_a_delegated_function_stays_however_many_others_there_are() -> None:
    executor, attempt = Home(), first_attempt(0, 2)
    executor.complete(executor.worker, 0, first_attempt(0, 1))
    about, functions = (JOB, "", NODES[1]), ((FUNCTION, "f", b"payload", ()),)
    executor.send(b"L" + NODES[1], m.Delegate(about, functions, (row(100),), (), (), (), attempt))
    executor.send(b"W" + executor.worker, m.Completed.of(((task_id(100), attempt, m.OK, (b"",)),)))
    executor.dispatched()
    executor.scheduler.tables.jobs[JOB].queues_most = 0
    executor.send(b"L" + NODES[1], m.Delegate(about, (), (row(101, demand=(("GPU", 1),)), row(102)), (), (), (), attempt))
    assert [number for _, number, _ in executor.dispatched()] == [102]


def test_what_an_executor_cannot_begin_stays_at_home() -> None:
    home = Home()
    home.submit(row(1), row(2))
    home.wait(home.config.spill_after)
    ((placer, _),) = home.questions()
    home.placed(placer, (NODES[1], 2))
    home.delegated()
    home.send(b"L" + NODES[1], m.Reclaimed((task_id(1), task_id(2)), "blocked"))
    home.wait(home.config.spill_after)
    ((placer, _),) = home.questions()
    home.placed(placer, (NODES[1], 2))
    assert home.delegated() == {}
    home.wait(10 * home.config.spill_after)
    assert home.questions() == []


def test_a_task_that_waits_for_a_value_of_another_node_is_replaced() -> None:
    """Two tasks of another node wait for a value of a third one, which may need the next task here. They count as more than CPUs."""
    executor = Home()
    executor.complete(executor.worker, 0, first_attempt(0, 1))
    about, functions = (JOB, "", NODES[1]), ((FUNCTION, "f", b"payload", ()),)
    value = object_id(task_id(50), 0)
    for number in range(100, 104):
        given = m.Delegate(about, functions, (row(number, contains=(value,)),), (), (), ((value, NODES[2]),), first_attempt(0, 2))
        executor.send(b"L" + NODES[1], given)
        executor.workers()
        ((worker, _, _),) = executor.dispatched()
        executor.send(b"W" + worker, m.Blocked(task_id(number), (value,), (), True))


def test_a_task_that_is_returned_before_its_arguments_came_leaves_nothing() -> None:
    """Its argument, which is being copied, has a ref inside: both have records until the task is gone."""
    executor = Home()
    about, functions = (JOB, "", NODES[1]), ((FUNCTION, "f", b"payload", ()),)
    argument, inside = object_id(task_id(50), 0), object_id(task_id(51), 0)
    given = m.Delegate(
        about, functions, (row(100, argument),), (), ((argument, (5_000_000, NODES[1]), (inside,)),), (), first_attempt(0, 2)
    )
    executor.send(b"L" + NODES[1], given)
    assert len(executor.scheduler.copies) == 1
    executor.send(b"L" + NODES[1], m.Reclaim((task_id(100),)))
    assert executor.take(m.Reclaimed) == [(b"L" + NODES[1], m.Reclaimed((task_id(100),), ""))]
    assert len(executor.scheduler.copies) == 0
    assert executor.scheduler.tables.objects == {}
    assert executor.scheduler.tables.objects == {}


# --- strategies -------------------------------------------------------------------------------------------------------------------


def on(node: bytes, rank: str = "hard") -> Strategy:
    return ((rank, NODE_ID, "in", (node.hex(),)),)


def in_zones(*zones: str, rank: str = "hard", operator: str = "in") -> Strategy:
    return ((rank, "zone", operator, zones),)


@pytest.mark.parametrize(
    ("strategy", "expected", "own"),
    [
        (SPREAD, {NODES[1]: 2, NODES[2]: 2}, 2),
        (on(NODES[2]), {NODES[2]: 6}, 0),
        (on(NODES[2], "soft"), {NODES[2]: 6}, 0),
        (on(b"thisnode"), {}, 6),
        (on(bytes(8), "soft"), {}, 6),
        (in_zones("b", "c"), {NODES[1]: 3, NODES[2]: 3}, 0),
        (in_zones("a", operator="not in"), {NODES[1]: 3, NODES[2]: 3}, 0),
        (in_zones() + in_zones("c", "x", rank="soft"), {NODES[2]: 6}, 0),
        (in_zones("x", rank="soft"), {}, 6),
    ],
)
def test_tasks_with_a_strategy_are_dealt_out_at_once(strategy: Strategy, expected: dict[bytes, int], own: int) -> None:
    home = Home()
    home.submit(*(row(number, strategy=strategy) for number in range(1, 7)))
    assert {node: len(tasks) for node, tasks in home.delegated().items()} == expected
    home.complete(home.worker, 0, first_attempt(0, 1))
    done = 0
    while given := home.dispatched():
        for _, number, attempt in given:
            home.complete(home.worker, number, attempt)
            done += 1
    assert done == own
    assert home.take(m.Reclaim) == []


def test_spread_tasks_that_wait_here_for_a_second_go_where_there_is_room() -> None:
    home = Home()
    home.submit(*(row(number, strategy=SPREAD) for number in range(1, 7)))
    assert sorted(home.delegated()) == [NODES[1], NODES[2]]
    home.wait(home.config.spill_after)
    assert home.questions() == [], "they were dealt out evenly, and stay so where they run soon"
    home.wait(STAY_SECONDS)
    ((placer, waiting),) = home.questions()
    assert waiting == 2
    home.placed(placer, (NODES[2], 2))
    assert [len(tasks) for tasks in home.delegated().values()] == [2]


@pytest.mark.parametrize("strategy", [SPREAD, in_zones("b", "c", rank="soft")])
def test_tasks_that_only_prefer_nodes_return_once_from_one_that_ends_none_for_a_while(strategy: Strategy) -> None:
    home, attempt = Home(), first_attempt(0, 1)
    home.submit(*(row(number, strategy=strategy) for number in range(1, 7)))
    given = home.delegated()
    home.wait(0.9 * RECALL_SECONDS)
    slow, quick = sorted(given)
    ended = m.Completed.of(((task_id(given[quick].pop(0)), attempt, m.OK, (b"",)),))
    home.send(b"L" + quick, m.Ended(1, tuple(ended), ()))
    home.wait(0.1 * RECALL_SECONDS)
    assert home.take(m.Reclaim) == [(b"L" + slow, m.Reclaim(tuple(map(task_id, given[slow]))))], "the other one has ended a task"
    home.send(b"L" + slow, m.Reclaimed((task_id(given[slow][-1]),), ""))
    while not (asked := [(to, row[0]) for to, message in home.take(m.Place) for row in message.rows if row[2] == 1]):
        home.wait(home.config.spill_after)
    ((placer, token),) = asked
    home.send(placer, m.Placed(((token, ((quick, 1),)),)))
    assert home.delegated() == {quick: given[slow][-1:]}
    home.wait(RECALL_SECONDS)
    assert [to for to, _ in home.take(m.Reclaim)] == [b"L" + quick], "of the tasks that were dealt to it"
    home.wait(RECALL_SECONDS)
    assert home.take(m.Reclaim) == []


@pytest.mark.parametrize(("node", "demand"), [(NODES[1], (("gpu", 1),)), (b"thisnode", (("gpu", 1),))])
def test_tasks_for_a_certain_node_that_has_too_little_fail(node: bytes, demand: Demand) -> None:
    """For what a node has stays as it is. Those for labels wait for another node."""
    home = Home()
    home.submit(row(1, strategy=on(node), demand=demand), row(2, strategy=in_zones("b"), demand=demand))
    ((number, (status, (payload,))),) = home.results().items()
    assert (number, status, unpack_failure(payload)[0]) == (1, m.FAILED, "TaskUnschedulableError")
    assert "which does not have 0.0001 gpu" in unpack_failure(payload)[1]


@pytest.mark.parametrize("strategy", [on(NODES[1]), on(NODES[1], "soft"), in_zones("b")])
def test_tasks_that_are_to_run_on_certain_nodes_stay_there(strategy: Strategy) -> None:
    home = Home()
    home.submit(*(row(number, strategy=strategy) for number in range(1, 4)))
    assert home.delegated() == {NODES[1]: [1, 2, 3]}
    home.wait(3 * RECALL_SECONDS)
    assert home.take(m.Reclaim) == []


def test_a_strategy_of_a_function_holds_for_its_calls_unless_they_set_one() -> None:
    home = Home()
    spread = b"s" * 16
    home.send(CLIENT + DRIVER, m.Export(((spread, "s", b"payload", (("strategy", on(NODES[1])),)),)))
    home.submit((task_id(1), spread, b"", ()), (task_id(2), spread, b"", (), (("strategy", on(NODES[2])),)))
    assert home.delegated() == {NODES[1]: [1], NODES[2]: [2]}


def test_a_row_travels_without_the_strategy_that_sent_it_unless_its_function_has_one_or_it_has_other_options() -> None:
    home = Home()
    spread, there = b"s" * 16, (("strategy", on(NODES[1])),)
    home.send(CLIENT + DRIVER, m.Export(((spread, "s", b"payload", (("strategy", SPREAD),)),)))
    alone, of_function, named = row(1, strategy=there[0][1]), (task_id(2), spread, b"", (), there), row(3, name="x", strategy=there[0][1])
    home.submit(alone, of_function, named)
    sent = {each[0]: each for _, message in home.take(m.Delegate) for each in message.rows}
    assert sent == {task_id(1): alone[:4], task_id(2): of_function, task_id(3): named}


def test_tasks_that_differ_in_their_strategy_alone_share_their_extra_fields_until_one_of_them_needs_its_own() -> None:
    home = Home()
    home.submit(*(row(number, strategy=on(NODES[1])) for number in (1, 2)))
    tables = home.scheduler.tables
    first, second = tables.tasks[task_id(1)], tables.tasks[task_id(2)]
    assert first.rare is second.rare is not None
    home.send(CLIENT + DRIVER, m.Cancel((ref(1),), False, False))
    assert first.rare is not second.rare
    assert tables.queue_of(first) is tables.queue_of(second)
    home.send(LOCAL_SCHEDULER + NODES[1], m.Ended(1, tuple(m.Completed.of(((task_id(2), second.attempt, m.OK, (b"value",)),))), ()))
    assert home.results()[2] == (m.OK, (b"value",))
    home.send(CLIENT + DRIVER, m.Release((ref(2),)))
    assert task_id(2) not in tables.tasks


def test_a_node_that_does_not_report_the_end_of_a_cancelled_task_is_named() -> None:
    """It may be dead, and not yet known to be: nobody can say that the task goes on."""
    home = Home()
    home.submit(row(1, strategy=on(NODES[1])))
    home.send(CLIENT + DRIVER, m.Cancel((ref(1),), False, True))
    for seconds in (home.config.interrupt_every, home.config.stop_patience):
        home.now += seconds
        home.scheduler.tick(home.now)
        home.turn()
    kind, text, _ = unpack_failure(home.results()[1][1][0])
    name = home.scheduler.tables.nodes[NODES[1]].name
    assert (kind, f"and {name} does not report that it has stopped" in text) == ("TaskCancelledError", True), text


def test_tasks_that_must_run_there_are_not_looked_at_again_and_again_for_some_to_reclaim() -> None:
    home = Home()
    home.submit(*(row(number, strategy=on(NODES[1])) for number in range(1, 5)))
    assert not home.scheduler.tables.nodes[NODES[1]].reclaimable
    home.complete(home.worker, 0, first_attempt(0, 1))
    assert home.take(m.Reclaim) == []


def given_to(*numbers: int) -> m.Delegate:
    """Tasks that another node gives this one."""
    functions = ((FUNCTION, "f", b"payload", ()),)
    return m.Delegate((JOB, "", NODES[1]), functions, tuple(map(row, numbers)), (), (), (), first_attempt(0, 2))


def crowded(**config: Any) -> Home:
    """A node whose only CPU is an actor's."""
    home = Home(**config)
    home.complete(home.worker, 0, first_attempt(0, 1))
    home.send(CLIENT + DRIVER, m.Export(((ACTOR_CLASS, "C", b"payload", (("actor", b""), ("demand", ONE_CPU))),)))
    home.submit((task_id(90), ACTOR_CLASS, b"", ()))
    home.workers()
    ((worker, number, attempt),) = home.dispatched()
    home.complete(worker, number, attempt, m.OK, b"actor")
    home.sent.clear()
    return home


def test_tasks_for_which_actors_leave_no_room_go_home() -> None:
    executor = crowded()
    executor.send(b"L" + NODES[1], given_to(100, 101))
    executor.wait(PATIENCE / 2)
    assert executor.take(m.Reclaimed) == []
    executor.wait(PATIENCE)
    assert executor.take(m.Reclaimed) == [(b"L" + NODES[1], m.Reclaimed((task_id(100), task_id(101)), "full"))]
    assert task_id(100) not in executor.scheduler.tables.tasks


def test_tasks_wait_for_tasks_that_run_longer_than_that() -> None:
    executor = Home()
    executor.send(b"L" + NODES[1], given_to(100))
    executor.wait(PATIENCE)
    executor.wait(10 * PATIENCE)
    assert executor.take(m.Reclaimed) == []


def test_tasks_are_dealt_to_nodes_where_actors_leave_room() -> None:
    home = crowded()
    home.submit(*(row(number, strategy=SPREAD) for number in range(1, 5)))
    assert home.delegated() == {NODES[1]: [3, 4], NODES[2]: [1, 2]}
    home.send(b"L" + NODES[1], m.Reclaimed((task_id(3), task_id(4)), "full"))
    assert home.delegated() == {NODES[2]: [3, 4]}
    home.submit(row(5, strategy=on(NODES[1], "soft")), row(6, strategy=on(NODES[1])))
    assert home.delegated() == {}
    home.wait(home.config.spill_after)
    assert [count for _, count in home.questions()] == [1]  # The one that may run elsewhere.
    home.wait(FULL_SECONDS)
    assert home.delegated() == {NODES[1]: [6]}


def test_a_full_node_is_tried_with_a_few_tasks_until_one_has_ended_there() -> None:
    home = Home()
    tasks = range(1, 5 + TRIED_MOST)
    home.submit(*(row(number, strategy=on(NODES[1])) for number in tasks))
    assert home.delegated() == {NODES[1]: list(tasks)}
    home.send(b"L" + NODES[1], m.Reclaimed(tuple(map(task_id, tasks)), "full"))
    home.wait(FULL_SECONDS / 2)
    assert home.delegated() == {}
    home.wait(FULL_SECONDS)
    assert home.delegated() == {NODES[1]: list(tasks)[-TRIED_MOST:]}
    ended = m.Completed.of(((task_id(tasks[-1]), first_attempt(0, 1), m.OK, (b"value",)),))
    home.send(b"L" + NODES[1], m.Ended(1, tuple(ended), ()))
    assert home.delegated() == {NODES[1]: list(tasks)[:-TRIED_MOST]}


def test_tasks_that_were_dealt_to_this_node_are_dealt_anew_when_an_actor_takes_its_room() -> None:
    home = Home(nodes=1)
    home.table(*NODES[:2])
    home.send(CLIENT + DRIVER, m.Export(((ACTOR_CLASS, "C", b"payload", (("actor", b""), ("demand", ONE_CPU))),)))
    home.submit((task_id(90), ACTOR_CLASS, b"", ()), *(row(number, strategy=SPREAD) for number in (1, 2)))
    assert home.delegated() == {NODES[1]: [2]}
    home.complete(home.worker, 0, first_attempt(0, 1))
    home.workers()
    ((worker, _, attempt),) = [each for each in home.dispatched() if each[1] == 90]
    home.complete(worker, 90, attempt, m.OK, b"actor")
    home.wait(PATIENCE)
    home.wait(PATIENCE)
    assert home.delegated() == {NODES[1]: [1]}


@pytest.mark.parametrize("alone", [False, True])
def test_a_node_that_does_not_exist_is_an_error(alone: bool) -> None:
    home = Home(nodes=1 if alone else 3)
    home.submit(row(1, strategy=on(bytes(8))), row(2, strategy=on(bytes(8), "soft")))
    ((number, (status, (payload,))),) = home.results().items()
    assert (number, status, unpack_failure(payload)[0]) == (1, m.FAILED, "TaskUnschedulableError")
    home.complete(home.worker, 0, first_attempt(0, 1))
    assert [number for _, number, _ in home.dispatched()] == [2]


def test_the_death_of_a_tasks_only_node_is_its_outcome() -> None:
    home = Home()
    home.submit(row(1, strategy=on(NODES[1])), row(2, strategy=on(NODES[1], "soft")))
    assert home.delegated() == {NODES[1]: [1, 2]}
    home.table(b"thisnode", NODES[2])
    ((number, (_, (payload,))),) = home.results().items()
    assert (number, unpack_failure(payload)[0]) == (1, "TaskUnschedulableError")
    home.wait(home.config.spill_after)
    assert [count for _, count in home.questions()] == [1]  # The other one is placed as if it had no strategy.


def test_tasks_for_labels_wait_for_a_node_that_has_them() -> None:
    home = Home(infeasible_warning=5.0)
    home.submit(row(1, strategy=in_zones("d")))
    home.complete(home.worker, 0, first_attempt(0, 1))
    home.wait(6.0)
    ((_, notice),) = home.take(m.Notice)
    assert "on a node with label 'zone' d" in notice.text
    assert home.dispatched() == [] == home.questions()
    home.table(*NODES)
    assert home.delegated() == {NODES[3]: [1]}


def test_tasks_that_prefer_a_node_that_has_just_joined_wait_until_it_has_registered() -> None:
    home = Home(nodes=1)
    home.register = False
    home.table(*NODES[:2])
    home.submit(row(1, strategy=on(NODES[1], "soft")), row(2, strategy=on(NODES[2], "soft")))
    home.complete(home.worker, 0, first_attempt(0, 1))
    assert home.delegated() == {}
    assert [number for _, number, _ in home.dispatched()] == [2]  # There is no such node.
    home.send(b"L" + NODES[1], m.RegisterNode(m.PROTOCOL_VERSION, NODES[1]))
    home.send(b"L" + NODES[1], m.Ready())
    assert home.delegated() == {NODES[1]: [1]}


def test_what_other_nodes_have_is_not_called_infeasible() -> None:
    home = Home(nodes=1)
    home.table(*NODES[:3], resources=(*ONE_CPU, ("disk", 10_000)))
    home.submit(row(1, demand=(("disk", 10_000),)))
    found = home.scheduler.explain(task_id(1))
    assert found is not None
    assert (found.state, found.reason) == ("queued", "waits for 1 disk, which this node does not have; no room now on n2, n3")


def test_a_strategy_costs_nothing_on_one_node() -> None:
    home = Home(nodes=1)
    home.submit(row(1, strategy=SPREAD))
    (queue,) = (each for each in home.scheduler.tables.queues.values() if each.strategy)
    assert not queue.away
    home.complete(home.worker, 0, first_attempt(0, 1))
    assert [number for _, number, _ in home.dispatched()] == [1]


# --- inputs on other nodes --------------------------------------------------------------------------------------------------------


def home_with_value_elsewhere(size: int) -> Home:
    """A home whose task 1 has made a value of this size on the second node."""
    home = Home()
    home.submit(row(1, strategy=on(NODES[1])))
    assert home.delegated() == {NODES[1]: [1]}
    ended = m.Completed.of(((task_id(1), first_attempt(0, 1), m.OK, (size,)),))
    home.send(b"L" + NODES[1], m.Ended(1, tuple(ended), ()))
    return home


@pytest.mark.parametrize(("size", "there"), [(100_000_000, True), (1_000_000, False)])
def test_a_task_is_sent_to_its_large_input(size: int, there: bool) -> None:
    """100 MB take 250 ms to fetch, 1 MB takes 2.5 ms."""
    home = home_with_value_elsewhere(size)
    home.submit(row(2, ref(1)), row(3))
    assert home.delegated() == ({NODES[1]: [2]} if there else {})
    home.complete(home.worker, 0, first_attempt(0, 1))
    given = [number for _, number, _ in home.dispatched()]
    assert 2 not in given
    assert home.take(m.Reclaim) == []  # It is where it should be, even if this node has nothing to run.
    assert len(home.scheduler.copies) == (0 if there else 1)


def test_a_task_is_not_sent_to_its_input_where_it_would_wait_longer() -> None:
    """The value would be here in 250 ms, and five tasks of 100 ms wait there."""
    home = home_with_value_elsewhere(100_000_000)
    home.send(b"W" + home.worker, m.Completed.of(((task_id(0), first_attempt(0, 1), m.OK, (b"",)),), (), ((FUNCTION, 1, 0.1),)))
    home.submit(*(row(number, strategy=on(NODES[1])) for number in range(10, 15)))
    assert len(home.delegated()[NODES[1]]) == 5
    home.submit(row(2, ref(1)))
    assert home.delegated() == {}


def test_a_queued_task_whose_input_is_lost_waits_while_that_is_made_again() -> None:
    """A home without CPUs would never have looked at it: its task stayed in the queue, whoever had room."""
    home = Home()
    home.submit(row(1))
    home.wait(home.config.spill_after)
    ((placer, _),) = home.questions()
    home.placed(placer, (NODES[1], 1))
    end_there(home)
    home.submit(row(2, ref(1)))
    home.wait(home.config.spill_after)
    ((placer, _),) = home.questions()
    home.table(NODES[0], NODES[2])
    home.placed(placer, (NODES[2], 1))
    tasks = home.scheduler.tables.tasks
    assert tasks[task_id(2)].state == WAITING
    assert tasks[task_id(1)].attempt != first_attempt(0, 1), "it is made again"


@pytest.mark.parametrize("retries", [0, 1])
def test_a_lost_value_of_a_task_that_must_not_run_twice_stays_lost(retries: int) -> None:
    home = Home()
    home.submit(row(1, strategy=on(NODES[1], "soft"), max_retries=retries))
    end_there(home)
    home.table(NODES[0], NODES[2])
    home.take(m.Results)
    home.submit(row(2, ref(1)))
    failures = home.results()
    if retries:
        assert failures == {}
        assert home.scheduler.tables.tasks[task_id(1)].attempt != first_attempt(0, 1)
    else:
        status, (payload,) = failures[2]
        assert status == m.FAILED
        kind, text, *_ = unpack_failure(payload)
        assert kind == "ObjectLostError"
        assert "max_retries=0 forbids that its task, f, runs again" in text


# --- what rebuilds need -----------------------------------------------------------------------------------------------------------


PUT = object_id(task_id(0)[:12] + pack_counter(0), 0x80000000)


def home_with_put_argument(size: int = 200_000, nodes: int = 3, **config: Any) -> Home:
    """A home whose task 1 has made a value on the second node of one that the driver has put, and has no ref to any more."""
    home = Home(nodes, **config)
    home.send(CLIENT + DRIVER, m.Put(((PUT, (4096, size), (), False),)))
    home.submit(row(1, PUT, **({"strategy": on(NODES[1], "soft")} if nodes > 1 else {})))
    home.send(CLIENT + DRIVER, m.Release((PUT,)))
    return home


def end_there(home: Home) -> None:
    ended = m.Completed.of(((task_id(1), first_attempt(0, 1), m.OK, (300_000,)),))
    home.send(b"L" + NODES[1], m.Ended(1, tuple(ended), ()))


def freed(home: Home) -> list[bytes]:
    return [identifier for _, message in home.take(m.Free) for identifier in message.object_ids]


def test_what_was_put_is_retained_as_long_as_a_value_of_another_node_may_be_made_of_it_again() -> None:
    home = home_with_put_argument()
    assert home.delegated() == {NODES[1]: [1]}
    end_there(home)
    assert freed(home) == []
    home.table(NODES[0], NODES[2])
    home.send(CLIENT + DRIVER, m.Fetch((ref(1),)))
    assert home.scheduler.tables.tasks[task_id(1)].attempt != first_attempt(0, 1), "it is made again"
    home.take(m.Locate)
    home.complete(home.worker, 0, first_attempt(0, 1))
    assert PUT in [row[0] for _, message in home.take(m.Locate) for row in message.rows], "for the worker that makes it again"


def test_what_was_put_is_freed_with_the_last_row_that_names_it() -> None:
    home = home_with_put_argument()
    end_there(home)
    home.send(CLIENT + DRIVER, m.Release((ref(1),)))
    assert freed(home) == [PUT]
    assert home.scheduler.references.inputs_bytes == 0


@pytest.mark.parametrize("retries", [0, 1])
def test_so_is_the_value_of_a_task_that_must_not_run_twice(retries: int) -> None:
    home = Home()
    home.complete(home.worker, 0, first_attempt(0, 1))
    home.submit(row(5, max_retries=retries))
    home.complete(home.worker, 5, first_attempt(0, 1), m.OK, (4096, 200_000))
    home.submit(row(1, ref(5), strategy=on(NODES[1], "soft")))
    end_there(home)
    home.send(CLIENT + DRIVER, m.Release((ref(5),)))
    assert freed(home) == ([] if retries == 0 else [ref(5)])
    home.send(CLIENT + DRIVER, m.Release((ref(1),)))
    assert freed(home) == ([ref(5)] if retries == 0 else [])
    assert home.scheduler.references.inputs_bytes == 0
    assert home.scheduler.tables.tasks.keys() == {task_id(0)}


def test_what_was_put_is_freed_with_its_last_ref_on_one_node() -> None:
    home = home_with_put_argument(nodes=1)
    home.complete(home.worker, 0, first_attempt(0, 1))
    home.complete(home.worker, 1, first_attempt(0, 1), m.OK, 300_000)
    assert freed(home) == [PUT]


def test_what_rebuilds_may_need_has_a_bound_and_says_so() -> None:
    home = home_with_put_argument(lineage_bytes=100_000)
    end_there(home)
    assert freed(home) == [PUT]
    home.table(NODES[0], NODES[2])
    home.send(CLIENT + DRIVER, m.Fetch((ref(1),)))
    ((_, answer),) = home.take(m.Objects)
    ((_, status, payload, _),) = answer.rows
    assert status == m.FAILED
    assert "which was put, was freed" in unpack_failure(payload)[1]


def test_what_rebuilds_may_need_goes_with_its_job() -> None:
    home = home_with_put_argument()
    end_there(home)
    home.scheduler.jobs.end_all(home.now)
    assert home.scheduler.references.inputs_bytes == 0


@pytest.mark.parametrize("retries", [0, 1, -1])
def test_a_task_that_must_not_run_twice_fails_with_its_node(retries: int) -> None:
    home = Home()
    home.submit(row(1, strategy=on(NODES[1], "soft"), max_retries=retries))
    assert home.delegated() == {NODES[1]: [1]}
    home.table(NODES[0], NODES[2])
    results = home.results()
    if retries:
        assert results == {}
        assert home.scheduler.tables.tasks[task_id(1)].attempt != first_attempt(0, 1)
    else:
        status, (payload,) = results[1]
        assert status == m.FAILED
        kind, text, *_ = unpack_failure(payload)
        assert kind == "WorkerCrashedError"
        assert "max_retries=0 forbids another attempt" in text


@pytest.mark.parametrize("how", ["placed", "spread"])
def test_tasks_that_must_not_run_twice_are_not_queued_on_another_node(how: str) -> None:
    """If that node dies, all that it has may have begun, and fails; what waits at home does not."""
    home = Home()
    options: dict[str, Any] = {"strategy": SPREAD} if how == "spread" else {}
    home.submit(*(row(number, max_retries=0, **options) for number in range(1, 30)))
    if how == "placed":
        home.wait(1.0)
        home.placed(b"G" + OWN, (NODES[1], 15), (NODES[2], 10))
    given = home.delegated()
    assert {node: len(numbers) for node, numbers in given.items()} == {NODES[1]: 1, NODES[2]: 1}
    home.register = False
    home.table(NODES[0], NODES[2])
    assert list(home.results()) == given[NODES[1]]
    states = [task.state for task in home.scheduler.tables.tasks.values()]
    assert states.count(READY) == 27


def test_tasks_that_may_run_twice_or_on_one_node_alone_are_queued_there() -> None:
    home = Home()
    home.submit(*(row(number) for number in range(1, 20)), row(20, max_retries=0))
    home.wait(1.0)
    home.placed(b"G" + OWN, (NODES[1], 1))
    assert home.delegated() == {NODES[1]: [20]}
    home.wait(1.0)
    home.placed(b"G" + OWN, (NODES[1], 10))
    assert len(home.delegated()[NODES[1]]) == 10
    home.submit(*(row(number, max_retries=0, strategy=on(NODES[1])) for number in range(30, 40)))
    assert len(home.delegated()[NODES[1]]) == 10


def test_a_task_that_must_not_run_twice_follows_once_the_node_has_ended_one() -> None:
    home = Home()
    away = (("hard", "zone", "in", ("b", "c")),)
    home.submit(*(row(number, max_retries=0, strategy=away) for number in range(1, 9)))
    given = home.delegated()
    assert {node: len(numbers) for node, numbers in given.items()} == {NODES[1]: 1, NODES[2]: 1}
    (first,) = given[NODES[1]]
    assert home.results() == {}
    attempt = home.scheduler.tables.tasks[task_id(first)].attempt
    ended = m.Completed.of(((task_id(first), attempt, m.OK, (b"value",)),))
    home.send(LOCAL_SCHEDULER + NODES[1], m.Ended(1, tuple(ended), ()))
    assert len(home.delegated()[NODES[1]]) == 1
    assert list(home.results()) == [first]


def test_the_end_of_an_attempt_counts_for_nothing_once_its_node_is_dead() -> None:
    home = Home()
    home.submit(row(1, strategy=on(NODES[1], "soft")))
    assert home.delegated() == {NODES[1]: [1]}
    home.table(NODES[0], NODES[2])
    late = m.Completed.of(((task_id(1), first_attempt(0, 1), m.OK, (b"late",)),))
    home.send(b"L" + NODES[1], m.Ended(1, tuple(late), ()))
    assert home.results() == {}
    assert home.scheduler.tables.counts["refused"] == 1


def test_a_value_is_not_made_again_for_a_node_that_has_released_it() -> None:
    """Nobody holds it: each time it was made, it was dropped before it was sent, and made again."""
    home = Home()
    home.complete(home.worker, 0, first_attempt(0, 1), m.OK, b"value")
    home.submit(row(1, contains=(ref(0),)))
    home.complete(home.worker, 1, first_attempt(0, 1), m.OK, b"value")
    home.send(b"L" + NODES[1], holding(1, (ref(0),)))
    home.sent.clear()
    record = home.scheduler.tables.find(ref(0))
    for source, message in (
        (b"L" + NODES[1], m.FetchValues((ref(0),))),
        (b"L" + NODES[1], released((ref(0),))),
        (CLIENT + DRIVER, m.Release((ref(0),))),
    ):
        home.scheduler.step(home.now, source, message)
    record.lose(home.scheduler.tables.inline)
    home.turn()
    assert home.scheduler.tables.find(ref(0)) is record, "the row of another task names it"
    assert [message.rows for to, message in home.take(m.FetchedValues)] == [((ref(0), m.OK, (), ()),)]
    assert home.dispatched() == []


def test_tasks_are_counted_once_at_their_home_whatever_their_attempts_came_to() -> None:
    def counts(node: Home, source: bytes = b"L" + NODES[1]) -> dict[str, int]:
        node.send(source, m.Query(7, "functions", ()))
        ((_, answer),) = node.take(m.Answer)
        (found,) = answer.payload
        return {name: found[name] for name in ("waiting", "running", "finished", "failed")}

    home = Home()
    home.complete(home.worker, 0, first_attempt(0, 1))
    home.submit(*(row(number, strategy=on(NODES[1])) for number in (1, 2, 3)))
    assert home.delegated() == {NODES[1]: [1, 2, 3]}
    assert counts(home) == {"waiting": 3, "running": 0, "finished": 1, "failed": 0}
    first = first_attempt(0, 1)
    refused = pack_failure("RuntimeEnvSetupError", "it never ran")
    ends = ((task_id(1), first, m.LOST, ()), (task_id(2), first, m.FAILED, (refused,)), (task_id(3), first, m.OK, (b"value",)))
    home.send(b"L" + NODES[1], m.Ended(1, tuple(m.Completed.of(ends)), ()))
    assert counts(home) == {"waiting": 1, "running": 0, "finished": 2, "failed": 1}
    again = home.scheduler.tables.tasks[task_id(1)].attempt
    home.send(b"L" + NODES[1], m.Ended(2, tuple(m.Completed.of(((task_id(1), again, m.OK, (b"value",)),))), ()))
    assert counts(home) == {"waiting": 0, "running": 0, "finished": 3, "failed": 1}
    assert home.scheduler.statistics()["tasks_finished"] == 1, "the other node has counted its attempts"


def test_a_missing_fence_is_found() -> None:
    with applied("no-fence"), pytest.raises(AssertionError):
        test_the_end_of_an_attempt_counts_for_nothing_once_its_node_is_dead()


def test_children_that_run_on_after_their_parents_attempt_are_found() -> None:
    with applied("void-children-run-on"), pytest.raises(AssertionError):
        test_children_of_an_attempt_that_died_elsewhere_are_stopped()
