"""The daemon of a node is killed and restarted while other nodes live on: with real processes, and message by message."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from faults import LEASE, descendants, eventually, name_of, on_node
from ledger_updates import claimed, decided, found, freed, held, holding, leaving, living, released, retains, runs, searching
from scheduler_alone import ACTOR_CLASS, DRIVER, FUNCTION, JOB, OLD, OWN, Node, Restarted, died, ref, row, task_id

import zfabric as zf
from tests.sim.kinds import Kind
from tests.sim.programs import ACTOR, Program, mix
from tests.sim.scenarios import STEADY, get, invoke, task
from tests.sim.world import World
from zfabric.machines.common.lineage_blocks import entrusted_row, pack_block, read_block
from zfabric.machines.common.tables import pack_row
from zfabric.machines.local_scheduler.object_places import Stored
from zfabric.machines.local_scheduler.records import ENDING
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import (
    CLIENT,
    LOCAL_SCHEDULER,
    MEMBER,
    WORKER,
    call_value,
    child_prefix,
    first_attempt,
    job_id,
    object_id,
    remote_caller,
    salt_of,
)
from zfabric.protocol.options import RESOURCE_UNIT
from zfabric.runtime.daemon import lease_clock

TASKS = 150


class Counter:
    """An actor on the driver's node."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> tuple[int, int]:
        self.count += 1
        return self.count, os.getpid()


@zf.remote
def half(number: int) -> int:
    time.sleep(0.005)
    return number


@zf.remote
def twice(number: int, before: Any) -> tuple[int, bytes]:
    """A task with a child, and a value that is small or large."""
    time.sleep(0.01)
    return zf.get(half.remote(number)) * 2, bytes(200_000 if number % 5 == 0 else 10)


def daemon_of(node: Any) -> int:
    """The pid of a node's daemon; 0 while it is restarted."""
    return next((pid for pid in descendants(node.pid) if name_of(pid) == "zf-daemon"), 0)


def test_a_job_goes_on_when_the_daemons_of_executor_home_and_head_are_killed() -> None:
    with zf.LocalCluster(nodes=3, cpus_per_node=1, object_store_memory=64 * 2**20) as cluster:
        head, home, executor = cluster.nodes
        with zf.init(home.address):
            counter: Any = zf.remote(num_cpus=0)(Counter).remote()
            _, process = zf.get(counter.next.remote(), timeout=60)
            calls = 1
            shared = zf.put(bytes(300_000))
            for node in (executor, home, head):
                refs = [twice.remote(number, shared) for number in range(TASKS)]
                zf.get(refs[0], timeout=60)
                before = eventually(lambda node=node: daemon_of(node), "it has a daemon")  # Pid 0 would be this whole run.
                os.kill(before, signal.SIGKILL)
                values = zf.get(refs, timeout=60)
                assert [value for value, _ in values] == [2 * number for number in range(TASKS)]
                assert [len(data) for _, data in values] == [200_000 if number % 5 == 0 else 10 for number in range(TASKS)]
                assert daemon_of(node) != before
                calls += 1
                assert zf.get(counter.next.remote(), timeout=60) == (calls, process), "no actor is replaced"
                eventually(lambda: len(zf.nodes()) == 3, "all nodes")
            assert all(node.alive() for node in cluster.nodes)


def test_when_the_daemons_of_two_nodes_die_at_once_what_tasks_made_is_there_or_made_again() -> None:
    """And a daemon whose lease is over stops the workers as it starts."""
    long = {"node_lease": 600.0}
    with zf.LocalCluster(nodes=3, cpus_per_node=1, object_store_memory=64 * 2**20, config=long) as cluster:
        head, home, executor = cluster.nodes
        with zf.init(home.address):
            there = twice.options(scheduling_strategy=on_node(executor, soft=True))
            made = [there.remote(5 * number, None) for number in range(20)]
            assert len(zf.wait(made, num_returns=20, timeout=60, fetch_local=False)[0]) == 20
            refs = [twice.remote(number, made[0]) for number in range(TASKS)]
            zf.get(refs[0], timeout=60)
            before = [eventually(lambda node=node: daemon_of(node), "it has a daemon") for node in (home, executor)]
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            assert [(value, len(data)) for value, data in zf.get(made, timeout=60)] == [(10 * number, 200_000) for number in range(20)]
            assert [value for value, _ in zf.get(refs, timeout=60)] == [2 * number for number in range(TASKS)]
            assert not {daemon_of(home), daemon_of(executor)} & set(before)
            eventually(lambda: len(zf.nodes()) == 3, "all nodes")
            counter: Any = zf.remote(num_cpus=0)(Counter).remote()
            _, process = zf.get(counter.next.remote(), timeout=60)
            session = home._launched.session
            assert session.lease_until() > lease_clock() + 0.7 * long["node_lease"]
            head.pause()  # It cannot renew the lease, which is over by the time of this file.
            daemon = eventually(lambda: daemon_of(home), "it has a daemon")
            os.kill(daemon, signal.SIGSTOP)  # It may have an answer of the head to read, and would write that down.
            eventually(lambda: state_of(daemon) == "T", "it is stopped")
            session.write_lease(lease_clock())
            os.kill(daemon, signal.SIGKILL)
            eventually(lambda: state_of(process) == "T", "the next daemon stops the workers")
            head.resume()
            assert zf.get(counter.next.remote(), timeout=60) == (2, process)


def test_nobody_ends_when_the_head_is_stopped_for_longer_than_a_lease_and_goes_on() -> None:
    with zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64 * 2**20, config={"node_lease": LEASE}) as cluster:
        head, other = cluster.nodes
        with zf.init(other.address):
            ref = half.remote(7)
            counter: Any = zf.remote(num_cpus=0)(Counter).remote()
            _, process = zf.get(counter.next.remote(), timeout=60)
            head.pause()
            paused = time.monotonic()
            eventually(lambda: state_of(process) == "T", "its workers are stopped before it may be declared dead")
            time.sleep(max(0.0, paused + 1.1 * LEASE - time.monotonic()))  # After two leases it would end.
            head.resume()
            assert zf.get(counter.next.remote(), timeout=60) == (2, process)
            assert zf.get([ref, half.remote(8)], timeout=60) == [7, 8]
            assert other.alive()


def state_of(pid: int) -> str:
    """The state of a process: "T" if it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


# --- message by message: another node's daemon is new ---------------------------------------------------------------------------

SELF, A, C = b"thisnode", b"\x02node A.", b"\x02node C."
NEW, NEWER = b"\x01daemon2", b"\x01daemon3"
"""Later daemons of another node."""
OTHER = JOB + b"parent C" + bytes(8)
"""An object of another node."""
OF_A, OF_SELF = first_attempt(0, 1), first_attempt(0, 2)
ABOUT = (JOB, "", A)
EXPORTED = ((FUNCTION, "f", b"payload", ()),)


def told(node: Node, other: bytes) -> list[Any]:
    """What another node was sent since the last look, without heartbeats and bundles."""
    found = [message for to, message in node.sent if to[1:] == other and not isinstance(message, m.Heartbeat | m.HoldBundles)]
    node.sent = [(to, message) for to, message in node.sent if to[1:] != other]
    return found


def hear(node: Node, other: bytes, *messages: Any) -> None:
    """Receive messages of another node."""
    for message in messages:
        node.send(LOCAL_SCHEDULER + other, message)


def table(node: Node, version: int = 1, *others: bytes) -> None:
    """The cluster has node A, this one and C; or this one and others."""
    numbers = {A: 1, SELF: 2, C: 3}
    nodes = (SELF, *others) if others else (A, SELF, C)
    rows = tuple((each, numbers[each], "a node", "", "", b"", (("CPU", RESOURCE_UNIT),), (), 0) for each in nodes)
    node.send(MEMBER + OWN, m.NodeTable(version, rows))


def anew(daemon: bytes) -> m.RegisterNode:
    """The first message of a restarted daemon."""
    return m.RegisterNode(m.PROTOCOL_VERSION, daemon, m.ANY_DAEMON)


def again(daemon: bytes) -> m.RegisterNode:
    """A daemon registers with that of this node, which or whose peer was restarted."""
    return m.RegisterNode(m.PROTOCOL_VERSION, daemon, OWN)


def test_the_head_deletes_the_durable_values_of_an_ended_job_also_if_it_is_alone_and_its_daemon_new() -> None:
    """Nodes that have died may have put some, of which a restarted scheduler does not know."""
    node = Node()
    node.send(MEMBER + OWN, m.NodeTable(1, ((SELF, 1, "a node", "", "", b"", (("CPU", RESOURCE_UNIT),), (), 0),), SELF))
    node.driver()
    node.send(CLIENT + DRIVER, m.Goodbye())
    assert [message.table for _, message in node.take(m.DeleteRows)] == ["object"]


def test_a_turn_that_ends_a_job_later_than_its_driver_leaves_nothing_to_the_next() -> None:
    node = Node()
    table(node)
    node.driver()
    job = node.scheduler.tables.jobs[JOB]
    node.scheduler.tables.refer(ref(900), A)
    node.scheduler.jobs.without_driver[job] = None
    node.scheduler.tables.end_due = True
    node.scheduler.take_effects(node.now)
    assert job.ended
    assert not node.scheduler.tables.transfers


class Peer(Node):
    """A scheduler whose daemon lives on, between two nodes that have registered with it."""

    def __init__(self) -> None:
        super().__init__()
        table(self)
        for other in (A, C):
            hear(self, other, m.RegisterNode(m.PROTOCOL_VERSION, b"\x01daemon" + other[-2:-1]), m.Ready())
        self.sent.clear()

    def delegated(self, number: int, *contains: bytes, homes: tuple[Any, ...] = ()) -> bytes:
        """A task of node A arrives and is dispatched. Return its worker."""
        options = {"contains": contains} if contains else {}
        hear(self, A, m.Delegate(ABOUT, EXPORTED, (row(number, **options),), (), (), homes, OF_A))
        self.workers()
        ((worker, *_),) = self.dispatched()
        return worker

    def delegate(self, *numbers: int) -> None:
        """Tasks of this node are given to C."""
        self.driver()
        self.submit(*map(row, numbers))
        for queue in list(self.scheduler.tables.queues.values()):
            self.scheduler.delegations.give(queue, self.scheduler.tables.nodes[C], len(numbers), self.now)
        self.turn()
        told(self, C)


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_the_link_to_a_new_daemon_begins_anew_on_both_sides(peer: Peer) -> None:
    hear(peer, C, anew(NEW))
    assert told(peer, C) == [m.RegisterNode(m.PROTOCOL_VERSION, OWN, NEW), m.Ready()]
    hear(peer, C, m.Delegate((JOB, "", C), EXPORTED, (row(1),), (), (), (), first_attempt(0, 3)), m.Ready())
    assert peer.scheduler.tables.tasks == {}, "it was sent before that daemon registered with this one"
    assert not peer.scheduler.tables.nodes[C].is_ready
    hear(peer, C, again(NEW), m.Ready())
    assert told(peer, C) == [], "it has registered with that daemon already"
    assert peer.scheduler.tables.nodes[C].is_ready
    hear(peer, C, anew(NEWER))
    assert [type(each) for each in told(peer, C)] == [m.RegisterNode, m.Ready]


def test_a_node_that_is_drained_says_so_to_a_new_daemon_before_anything_else(peer: Peer) -> None:
    """Else an actor that has left would be made there again, and what it does not repeat would count as a restart."""
    peer.scheduler.draining.drain(0.0, force=True)
    told(peer, C)
    hear(peer, C, anew(NEW))
    assert told(peer, C)[:2] == [m.RegisterNode(m.PROTOCOL_VERSION, OWN, NEW), leaving(SELF)]


def test_a_restarted_home_is_asked_again_to_copy_the_values_of_a_drained_node(peer: Peer) -> None:
    """Else the node would wait for ever: its home's next daemon does not know that it is to copy them."""
    worker = peer.delegated(1)
    peer.complete(worker, 1, OF_A, m.OK, (4096, 200_000))
    hear(peer, A, m.EndsReceived(1))
    peer.scheduler.draining.drain(0.0, force=True)
    told(peer, A)
    peer.turn()
    asked = m.UpdateLedger(0, ((m.LEAVING, (SELF,)), (m.COPY, (ref(1),))))
    assert asked in told(peer, A)
    hear(peer, A, anew(NEW))
    repeated = told(peer, A)
    assert repeated.index(asked) < repeated.index(m.Ready())
    hear(peer, A, again(NEW), m.Ready(), m.LedgerUpdated(0, ((m.COPIED, (ref(1),)),)), anew(NEWER))
    assert leaving(SELF) in told(peer, A), "nothing is left to copy"


def test_attempts_that_a_restarted_executor_does_not_report_run_again_and_others_go_on(peer: Peer) -> None:
    peer.delegate(0, 1, 2)
    hear(peer, C, anew(NEW), again(NEW), runs(((task_id(1), OF_SELF), (task_id(9), OF_SELF))), m.Ready())
    node = peer.scheduler.tables.nodes[C]
    assert list(node.inflight) == [task_id(1)]
    assert [peer.scheduler.tables.tasks[task_id(number)].attempt for number in (0, 1, 2)] == [OF_SELF + 1, OF_SELF, OF_SELF + 1]
    assert [each for each in told(peer, C) if isinstance(each, m.StopDelegated)] == [
        m.StopDelegated(task_id(9), OF_SELF, "cancelled", False)
    ], "nobody wants it any more"
    ended = m.Completed.of(((task_id(1), OF_SELF, m.OK, (b"value",)),), (), ())
    hear(peer, C, m.Ended(1, tuple(ended), ()))
    assert peer.results()[1] == (m.OK, (b"value",))


def test_an_executor_repeats_what_runs_and_the_ends_that_are_not_acknowledged_to_a_restarted_home(peer: Peer) -> None:
    worker = peer.delegated(1)
    peer.complete(worker, 1, OF_A)
    (ended,) = told(peer, A)
    peer.delegated(2)
    hear(peer, A, anew(NEW))
    assert told(peer, A)[1:] == [runs(((task_id(1), OF_A), (task_id(2), OF_A))), m.Ready(), ended]
    hear(peer, A, again(NEW), m.Ready(), m.EndsReceived(1), anew(NEWER))
    assert told(peer, A)[1:] == [runs(((task_id(2), OF_A),)), m.Ready()]


def test_a_borrower_repeats_its_holds_and_its_open_requests(peer: Peer) -> None:
    worker = peer.delegated(1, OTHER, homes=((OTHER, C),))
    peer.send(CLIENT + worker, m.Hold((OTHER,)))
    peer.send(CLIENT + worker, m.Fetch((OTHER,)))
    before, fetch = told(peer, C)
    hear(peer, C, anew(NEW))
    _, job, borrow, ready, repeated = told(peer, C)
    assert job == m.Delegate(ABOUT, (), (), (), (), (), first_attempt(0, 2)), "its daemon may have died before it had written the job"
    assert (borrow, ready, repeated) == (holding(borrow.number, (OTHER,)), m.Ready(), fetch)
    assert borrow.number != before.number
    peer.complete(worker, 1, OF_A)
    assert told(peer, A) == [], "the hold is not registered with the new daemon"
    hear(peer, C, again(NEW), m.Ready(), m.LedgerUpdated(borrow.number))
    assert [type(each) for each in told(peer, A)] == [m.Ended]


def test_a_request_to_cancel_is_passed_on_to_the_home_and_repeated_to_its_next_daemon(peer: Peer) -> None:
    worker = peer.delegated(1, OTHER, homes=((OTHER, C),))
    peer.send(CLIENT + worker, m.Hold((OTHER,)))
    cancel = m.Cancel((OTHER,), True, False)
    peer.send(CLIENT + worker, cancel)
    assert cancel in told(peer, C)
    hear(peer, C, anew(NEW))
    *_, ready, repeated = told(peer, C)
    assert (ready, repeated) == (m.Ready(), cancel)
    hear(peer, C, again(NEW), m.Ready(), m.FetchedValues(((OTHER, m.FAILED, b"cancelled", ()),), ()), anew(NEWER))
    assert cancel not in told(peer, C), "it has its outcome"


def test_a_home_drops_the_holds_that_a_restarted_borrower_does_not_repeat(peer: Peer) -> None:
    peer.driver()
    first, second = ref(900, 2**31), ref(901, 2**31)
    peer.send(CLIENT + DRIVER, m.Put(((first, b"a", (), False), (second, b"b", (), False))))
    hear(peer, C, holding(1, (first, second)))
    peer.send(CLIENT + DRIVER, m.Release((first, second)))
    hear(peer, C, anew(NEW), again(NEW))
    assert set(peer.scheduler.tables.objects) == {first, second}, "until it has repeated everything"
    hear(peer, C, searching(1, (second, OTHER)))
    assert told(peer, C)[-1] == found(1, (second,)), "that is at home elsewhere"
    hear(peer, C, m.Ready())
    assert set(peer.scheduler.tables.objects) == {second}


def test_a_home_claims_its_values_from_a_restarted_node_and_makes_again_what_is_lost(peer: Peer) -> None:
    peer.delegate(1)
    hear(peer, C, m.Ended(1, tuple(m.Completed.of(((task_id(1), OF_SELF, m.OK, (200_000,)),), (), ())), ()))
    told(peer, C)
    hear(peer, C, anew(NEW))
    assert told(peer, C)[1] == m.ClaimValues(((ref(1), ()),), ())
    hear(peer, C, again(NEW), m.Ready(), m.CopyLost(ref(1), "it was not found"))
    peer.send(CLIENT + DRIVER, m.Fetch((ref(1),)))
    assert peer.scheduler.tables.tasks[task_id(1)].attempt > OF_SELF


def test_a_node_reports_the_values_that_it_retains_to_a_restarted_home(peer: Peer) -> None:
    worker = peer.delegated(1)
    peer.complete(worker, 1, OF_A, m.OK, (4096, 200_000))
    hear(peer, A, m.EndsReceived(1))
    told(peer, A)
    hear(peer, A, anew(NEW))
    assert told(peer, A)[1:] == [retains(((ref(1), 200_000, ()),), ()), m.Ready()]


def test_the_end_of_a_job_is_repeated_to_a_new_daemon(peer: Peer) -> None:
    peer.driver()
    peer.send(CLIENT + DRIVER, m.Goodbye())
    assert told(peer, A) == told(peer, C) == [m.EndJob(JOB)]
    hear(peer, C, anew(NEW))
    assert told(peer, C)[1:] == [m.Ready(), m.EndJob(JOB)]
    hear(peer, A, m.JobGone(JOB))
    assert peer.take(m.Farewell) == []
    hear(peer, C, again(NEW), m.Ready(), m.JobGone(JOB))
    assert len(peer.take(m.Farewell)) == 1


def test_a_job_goes_on_without_its_driver_for_detached_actors_of_another_node_until_it_has_none(peer: Peer) -> None:
    peer.driver()
    hear(peer, C, living(JOB))
    peer.send(CLIENT + DRIVER, m.Goodbye())
    assert len(peer.take(m.Farewell)) == 1
    assert told(peer, A) == told(peer, C) == []
    hear(peer, C, anew(NEW), again(NEW), living(JOB), m.Ready())
    assert m.EndJob(JOB) not in told(peer, A)
    hear(peer, C, living(JOB, False))
    assert told(peer, A) == [m.EndJob(JOB)]


@pytest.mark.parametrize("dies", [True, False])
def test_a_job_ends_with_the_node_of_its_detached_actors_or_if_its_next_daemon_has_none(peer: Peer, dies: bool) -> None:
    peer.driver()
    hear(peer, C, living(JOB))
    peer.send(CLIENT + DRIVER, m.Goodbye())
    if dies:
        table(peer, 2, A)
    else:
        hear(peer, C, anew(NEW), again(NEW))
        assert m.EndJob(JOB) not in told(peer, A), "it has not repeated everything"
        hear(peer, C, m.Ready())
    assert m.EndJob(JOB) in told(peer, A)


def test_a_driver_that_ends_while_a_node_registers_may_have_detached_actors_there(peer: Peer) -> None:
    peer.driver()
    hear(peer, C, anew(NEW), again(NEW))
    peer.send(CLIENT + DRIVER, m.Goodbye())
    hear(peer, C, living(JOB), m.Ready())
    assert told(peer, A) == [], "the job goes on"
    assert len(peer.take(m.Farewell)) == 1


def test_the_home_of_a_job_is_told_of_detached_actors_before_the_end_of_the_task_that_made_them(peer: Peer) -> None:
    worker = peer.delegated(1)
    child = child_prefix(JOB, task_id(1), 0, salt_of(OF_A)) + bytes(4)
    peer.send(CLIENT + worker, m.Export(((b"A" * 16, "Actor", b"payload", (("actor", b"Actor"), ("detached", True))),)))
    peer.send(CLIENT + worker, m.Submit(((child, b"A" * 16, b"", ()),)))
    assert told(peer, A) == [living(JOB)]
    hear(peer, A, anew(NEW))
    repeated = told(peer, A)
    assert repeated.index(living(JOB)) < repeated.index(m.Ready())
    hear(peer, A, again(NEW), m.Ready())
    peer.send(CLIENT + worker, m.KillActor(child, True))
    assert living(JOB, False) in told(peer, A)
    assert not peer.scheduler.tables.jobs[JOB].ended, "its home decides that"


def test_the_end_of_a_job_is_acknowledged_before_the_table_with_its_home_arrives() -> None:
    node = Node()
    hear(node, A, m.EndJob(JOB))
    assert told(node, A) == [m.JobGone(JOB)]


def test_the_home_of_a_job_is_told_of_detached_actors_whose_nodes_have_yet_to_report_them_to_a_restarted_head() -> None:
    """Else the job would end with its driver, and they with it, though they live."""

    class Head(Anew):
        def answer(self, message: Any) -> None:
            if isinstance(message, m.Scan) and message.table == "task":
                row = (task_id(7), ACTOR_CLASS, b"", (), (("detached", True),))
                self.send(b"S" + OWN, m.Found(message.token, ((task_id(7), pack_block([row])),), False))
            elif isinstance(message, m.Scan) and message.table == "function":
                found = pack_row(("C", (("actor", b""), ("max_restarts", 3)), b"payload"))
                self.send(b"S" + OWN, m.Found(message.token, ((JOB + ACTOR_CLASS, found),), False))
            else:
                super().answer(message)

    node = Head(elsewhere=True)
    node.rejoin_worker((CLIENT, m.RunningTasks((), ())))
    repeated = node.register(A)
    assert repeated.index(living(JOB)) < repeated.index(m.Ready())
    node.register(C, runs(((task_id(7), OF_SELF),)))
    assert task_id(7) in node.scheduler.tables.actors
    assert living(JOB, False) not in told(node, A)


# --- message by message: detached actors are at home on the head ------------------------------------------------------------------

CLASS = (b"A" * 16, "Actor", b"payload", (("actor", b"Actor"),))
DETACHED = (task_id(7), b"A" * 16, b"", (), (("detached", True),))
HANDLE = task_id(7) + bytes(4)


def lead(node: Node, head: bytes, version: int, *others: bytes) -> None:
    """A table of this node and others, with their head."""
    numbers = {A: 1, SELF: 2, C: 3}
    rows = tuple((each, numbers[each], "a node", "", "", b"", (("CPU", RESOURCE_UNIT),), (), 0) for each in (SELF, *others))
    node.send(MEMBER + OWN, m.NodeTable(version, rows, head))


def asked(node: Node, other: bytes) -> list[m.Query]:
    """Detached actors for which another node was asked."""
    return [each for each in told(node, other) if isinstance(each, m.Query)]


def test_a_process_has_a_detached_actor_made_at_the_head_and_the_request_outlives_daemons_and_homes(peer: Peer) -> None:
    lead(peer, A, 2, A, C)
    worker = peer.delegated(1)
    hear(peer, C, m.Delegate((JOB, "", C), EXPORTED, (), (), (), (), first_attempt(0, 3)))
    peer.scheduler.tables.jobs[JOB].home = C
    peer.send(CLIENT + worker, m.Export((CLASS,)))
    peer.send(CLIENT + worker, m.Query(5, "create actor", (DETACHED,)))
    (query,) = asked(peer, C)
    assert (query.what, query.arguments) == ("enter actor", ((JOB, "", C), CLASS, DETACHED, (), SELF)), "by way of the job's home"
    told(peer, A)
    hear(peer, C, anew(NEW), again(NEW), m.Ready())
    assert [each.arguments for each in asked(peer, C)] == [query.arguments], "its daemon is new"
    lead(peer, A, 3, A)
    assert peer.scheduler.tables.jobs[JOB].home == A, "the home of the job is dead: the head knows whether the job goes on"
    found = told(peer, A)
    assert living(JOB, False) in found
    (query,) = [each for each in found if isinstance(each, m.Query)]
    hear(peer, A, m.Answer(query.token, True, ""))
    assert [(to, each) for to, each in peer.take(m.Answer) if each.token == 5] == [(CLIENT + worker, m.Answer(5, True, ""))]
    record = peer.scheduler.tables.find(HANDLE)
    assert record is not None
    assert record.hold is not None
    assert (record.home, record.hold.registered, record.holders) == (A, True, worker)
    peer.send(CLIENT + worker, m.Query(6, "create actor", (DETACHED,)))
    hear(peer, A, anew(NEW), again(NEW))
    found = told(peer, A)
    assert living(JOB, False) in found, "the next daemon of the head is asked as well"
    hear(peer, A, m.EndJob(JOB))
    assert peer.scheduler.tables.jobs.get(JOB) is None or peer.scheduler.tables.jobs[JOB].ended


def test_a_detached_actor_goes_on_that_is_made_where_its_creator_is_stopped(peer: Peer) -> None:
    """Somebody else may have it by now. Its home on the head would take the end for that of the actor."""
    lead(peer, C, 2, A, C)
    peer.delegated(1)
    children = [child_prefix(JOB, task_id(1), 0, salt_of(OF_A)) + bytes(3) + bytes([number]) for number in (1, 2)]
    actor, other = ((child, CLASS[0], b"", (), (("detached", detached),)) for child, detached in zip(children, (True, False), strict=True))
    hear(peer, C, m.Delegate((JOB, "", A), (CLASS,), (actor, other), (), (), (), first_attempt(0, 3)))
    hear(peer, A, m.StopDelegated(task_id(1), OF_A, "force", True))
    assert [each[0] in peer.scheduler.tables.tasks for each in (actor, other)] == [True, False]


def test_the_next_daemon_of_an_actors_home_does_not_learn_that_it_is_made_once_its_process_has_died(peer: Peer) -> None:
    """The news of its death went to the daemon before: calls would be sent here, and wait for ever."""
    hear(peer, A, m.Delegate((JOB, "", A), (CLASS,), ((task_id(7), CLASS[0], b"", ()),), (), (), (), OF_A))
    peer.workers()
    ((worker, _, _),) = peer.dispatched()
    peer.complete(worker, 7, OF_A)
    assert [type(each) for each in told(peer, A)] == [m.Ended]
    died(peer, worker, None)
    assert m.LifeEnded in [type(each) for each in told(peer, A)]
    hear(peer, A, anew(NEW))
    repeated = told(peer, A)
    hear(peer, A, again(NEW), m.Ready())
    repeated += told(peer, A)
    reported = [each for message in repeated if isinstance(message, m.Holdings) for each, _ in message.attempts]
    ended = [each[0] for message in repeated if isinstance(message, m.Ended) for each in m.Completed(*message.completed).rows]
    assert task_id(7) not in (*reported, *ended)


@pytest.mark.parametrize("lightweight", [True, False])
def test_an_actor_stays_with_the_process_that_makes_it_if_that_is_at_the_head_or_it_is_lightweight(peer: Peer, lightweight: bool) -> None:
    peer.driver()
    lead(peer, A if lightweight else SELF, 2, A, C)
    peer.send(CLIENT + DRIVER, m.Export(((*CLASS[:3], (*CLASS[3], ("lightweight", lightweight))),)))
    peer.send(CLIENT + DRIVER, m.Query(5, "create actor", (DETACHED,)))
    assert peer.take(m.Answer) == [(CLIENT + DRIVER, m.Answer(5, False, ""))]
    assert asked(peer, A) == asked(peer, C) == []


def test_the_head_makes_an_actor_once_and_goes_on_with_its_job_if_the_home_of_that_dies(peer: Peer) -> None:
    lead(peer, SELF, 2, A, C)
    query = m.Query(5, "enter actor", ((JOB, "", A), CLASS, DETACHED, (), C))
    peer.full = "the disk is full"  # Until then the row is not answered for.
    written = peer.answer
    peer.answer = lambda message: None  # type: ignore[method-assign]
    hear(peer, A, query)
    assert told(peer, A) == [living(JOB)], "the home of the job knows it before the process that asked"
    assert peer.workers() == [], "it is not made before the next daemon would find it"
    assert "waits for the control store" in peer.scheduler.explain(task_id(7)).reason  # type: ignore[union-attr]
    (write,) = [each for _, each in peer.take(m.Write) if each.token and any(table == "task" for table, *_ in each.puts)]
    peer.answer = written  # type: ignore[method-assign]
    peer.full = ""
    peer.answer(write)
    assert peer.workers() != []
    assert [number for _, number, _ in peer.dispatched()] == [7]
    assert told(peer, A) == [m.Answer(5, True, "")]
    hear(peer, A, query._replace(token=6))
    assert told(peer, A) == [m.Answer(6, True, "")]
    assert peer.scheduler.statistics()["tasks_submitted"] == 1
    assert C in peer.scheduler.tables.tasks[task_id(7)].holders  # type: ignore[operator]
    lead(peer, SELF, 3, C)
    job = peer.scheduler.tables.jobs[JOB]
    assert not job.ended
    assert (job.home, job.driver) == (b"", None)
    hear(peer, C, living(JOB, False))
    assert m.EndJob(JOB) not in told(peer, C), "it goes on for the actor"
    hear(peer, C, living(job_id(2), False))
    assert told(peer, C) == [m.EndJob(job_id(2))], "that one had none here"
    peer.send(CLIENT + DRIVER, m.KillActor(task_id(7), True))
    assert m.EndJob(JOB) in told(peer, C), "it ends with its last actor"


def test_the_head_ends_a_job_without_detached_actors_with_its_home(peer: Peer) -> None:
    lead(peer, SELF, 2, A, C)
    peer.delegated(1)
    lead(peer, SELF, 3, C)
    assert peer.scheduler.tables.jobs.get(JOB) is None or peer.scheduler.tables.jobs[JOB].ended


# --- message by message: this node's daemon is new ------------------------------------------------------------------------------


class Anew(Restarted):
    """The third daemon of its node: processes and other nodes register again. It has a job of its own, or works for one of node A."""

    def __init__(self, elsewhere: bool = False, *others: bytes) -> None:
        super().__init__()
        self.elsewhere = elsewhere
        table(self, 1, *others)
        assert [each.peer for each in told(self, A) + told(self, C)] == [m.ANY_DAEMON] * (len(others) or 2)

    def answer(self, message: Any) -> None:
        """The control store has the job, and what it exported."""
        if isinstance(message, m.Scan) and self.elsewhere:
            rows: tuple[Any, ...] = ()
            if message.table == "job":
                rows = ((JOB, pack_row({"status": "elsewhere", "namespace": "", "home": A})),)
            elif message.table == "function":
                rows = ((JOB + FUNCTION, pack_row(("f", (), b"payload"))),)
            self.send(b"S" + OWN, m.Found(message.token, rows, False))
        else:
            super().answer(message)

    def rejoin_worker(self, *reports: Any) -> None:
        """The worker registers again, of a job whose driver is elsewhere."""
        self.send(b"X" + OWN, m.ArenaFound(self.arena, ()))
        self.send(b"X" + OWN, m.ProcessTable(((OLD, 99),)))
        self.send(CLIENT + OLD, m.Register(m.PROTOCOL_VERSION, "worker", 99, 1, JOB, OLD, b"\x80" + OLD[1:], "", ""))
        for role, message in reports:
            self.send(role + OLD, message)
        self.send(CLIENT + OLD, m.Ready())
        assert not self.scheduler.is_recovering

    arena: tuple[Any, ...] = ()

    def register(self, other: bytes, *repeated: Any) -> list[Any]:
        """Another node registers. Return what this one repeated to it."""
        hear(self, other, again(b"\x01daemon" + other[-2:-1]))
        found = told(self, other)
        hear(self, other, *repeated, m.Ready())
        return found


RUNNING = m.RunningTasks(((row(5), OF_A, True, ""),), ())


def test_tasks_that_may_run_elsewhere_wait_until_every_node_has_registered() -> None:
    node = Anew()
    node.rejoin((row(1), row(2), row(3)))
    assert node.dispatched() == []
    assert [type(each) for each in node.register(A, runs(((task_id(1), OF_SELF + 1), (task_id(2), OF_SELF))))] == [
        m.RegisterNode,
        m.Ready,
    ]
    assert node.dispatched() == []
    stale = m.Completed.of(((task_id(1), OF_SELF, m.LOST, ()),), (), ())
    node.register(C, runs(((task_id(1), OF_SELF),)), m.Ended(1, tuple(stale), ()))
    ((_, number, attempt),) = node.dispatched()
    assert (number, attempt) == (3, first_attempt(2, 2)), "nobody has it"
    nodes = node.scheduler.tables.nodes
    assert list(nodes[A].inflight) == [task_id(1), task_id(2)], "of two attempts the later one counts"
    assert nodes[C].inflight == {}
    hear(node, A, m.Ended(1, tuple(m.Completed.of(((task_id(1), OF_SELF + 1, m.OK, (b"value",)),), (), ())), ()))
    assert node.results()[1] == (m.OK, (b"value",))


def test_a_value_of_a_former_attempt_is_freed_before_a_new_one_is_made() -> None:
    """Else the store takes the new value for another copy, and drops it: what its home knows to be inside is not."""
    value, other = task_id(5) + bytes(4), task_id(6) + bytes(4)
    node = Anew(elsewhere=True)
    node.arena = ((value, 4096, 100_000), (other, 204_800, 100_000))
    node.rejoin_worker()
    node.register(A)
    assert [each for _, message in node.take(m.Free) for each in message.object_ids] == [], "another node may need them"
    hear(node, A, m.Delegate(ABOUT, EXPORTED, (row(5),), (), (), (), OF_A + 1))
    assert [each for _, message in node.take(m.Free) for each in message.object_ids] == [value]
    node.register(C)
    assert [each for _, message in node.take(m.Free) for each in message.object_ids] == [other]


def test_a_task_that_is_to_be_retried_waits_for_the_attempt_that_another_node_may_have_since() -> None:
    """Its worker repeats that the first attempt is to be retried, which the daemon before had been told."""
    node = Anew()
    repeated = m.Completed.of(tuple((task_id(each), OF_SELF, m.RETRY, (b"error",)) for each in (1, 2)), (), ())
    node.rejoin((row(1, retry_errors=True), row(2, retry_errors=True)), (WORKER, repeated))
    assert node.dispatched() == []
    node.register(A, runs(((task_id(1), OF_SELF + 1),)))
    node.register(C)
    assert [number for _, number, _ in node.dispatched()] == [2], "nobody has it"
    assert list(node.scheduler.tables.nodes[A].inflight) == [task_id(1)]
    hear(node, A, m.Ended(1, tuple(m.Completed.of(((task_id(1), OF_SELF + 1, m.OK, (b"value",)),), (), ())), ()))
    assert (m.OK, (b"value",)) in node.results().values()


def test_a_restarted_home_goes_on_with_the_attempt_that_runs_although_the_end_of_an_earlier_one_is_repeated(peer: Peer) -> None:
    """The worker of that one had died, and the daemon before had given out the next, but not acknowledged the end."""
    hear(peer, A, m.Delegate(ABOUT, EXPORTED, (row(1),), (), (), (), OF_SELF))
    peer.workers()
    ((worker, *_),) = peer.dispatched()
    died(peer, worker, 1)
    hear(peer, A, m.Delegate(ABOUT, EXPORTED, (row(1),), (), (), (), OF_SELF + 1))
    peer.workers()
    assert [attempt for *_, attempt in peer.dispatched()] == [OF_SELF + 1]
    told(peer, A)
    hear(peer, A, anew(NEW))
    _, running, ready, ended = told(peer, A)
    assert (type(ready), type(ended)) == (m.Ready, m.Ended)
    home = Anew()
    home.rejoin((row(1),))
    home.register(A, running)
    home.register(C)
    hear(home, A, ended)
    (task,) = home.scheduler.tables.nodes[A].inflight.values()
    assert task.attempt == OF_SELF + 1
    assert home.dispatched() == [], "it runs there"
    hear(home, A, m.Ended(2, tuple(m.Completed.of(((task_id(1), OF_SELF + 1, m.OK, (b"value",)),), (), ())), ()))
    assert home.results()[1] == (m.OK, (b"value",))


def test_the_death_of_a_node_ends_the_wait_for_it_and_time_does_not() -> None:
    node = Anew()
    node.rejoin((row(1),))
    node.register(A)
    node.now += 1000.0
    node.scheduler.tick(node.now)
    node.turn()
    assert node.dispatched() == []
    table(node, 2, A)
    assert [number for _, number, _ in node.dispatched()] == [1]


def test_nothing_that_another_node_may_hold_is_freed_before_it_has_registered() -> None:
    node = Anew()
    value = ref(900, 2**31)
    node.rejoin((), held=(m.Put(((value, b"value", (), False),)), m.Hold((value,))))
    node.register(A)
    node.send(CLIENT + DRIVER, m.Release((value,)))
    assert value in node.scheduler.tables.objects
    node.register(C, holding(7, (value,)))
    assert told(node, C) == [m.LedgerUpdated(7)]
    assert value in node.scheduler.tables.objects
    hear(node, C, released((value,)))
    assert value not in node.scheduler.tables.objects


def test_what_others_hold_is_restored_also_of_a_job_that_the_daemon_before_had_not_written() -> None:
    node = Anew()
    job = job_id(2)
    value = child_prefix(job, job + bytes(12)) + bytes(4) + b"\x80" + bytes(3)
    node.found = ((value, 4096, 100),)
    node.rejoin()
    node.register(C, m.Delegate((job, "", A), (), (), (), (), (), OF_A), holding(7, (value,)))
    assert told(node, C) == [m.LedgerUpdated(7)]
    node.register(A)
    assert node.take(m.Free) == []
    assert type(node.scheduler.tables.objects[value].value) is Stored


def test_what_another_node_holds_is_at_home_here_although_only_an_outcome_names_it() -> None:
    node = Anew()
    put = ref(900, 2**31)
    ended = m.Completed.of(((task_id(0), OF_SELF, m.OK, (b"value",)),), ((0, ((put,),), ()),), ())
    node.rejoin((row(0),), (WORKER, m.RunningTasks((), ())), (WORKER, ended))
    node.register(C, holding(7, (put,)))
    assert m.LedgerUpdated(7) in told(node, C)
    assert node.scheduler.tables.objects[put].durable


def test_a_job_of_another_node_is_written_at_once() -> None:
    node = Anew()
    node.rejoin()
    node.take(m.Write)
    node.register(C, m.Delegate((job_id(2), "", A), (), (), (), (), (), OF_A))
    (written,) = [write for _, write in node.take(m.Write) if write.puts[0][:2] == ("job", job_id(2))]
    assert written.token, "the control store commits at once what somebody waits for"


def test_a_value_that_another_node_retains_is_not_made_again() -> None:
    node = Anew()
    node.rejoin((row(1),))
    node.register(A)
    node.register(C, retains(((ref(1), 200_000, ()), (ref(2), 200_000, ())), ()))
    assert node.dispatched() == []
    assert node.results()[1] == (m.OK, (None,))
    assert told(node, C) == [released((ref(2),))], "nobody needs that one"


@pytest.mark.parametrize("goes_on", [True, False])
def test_values_of_a_stream_that_nobody_has_read_are_released_unless_their_node_goes_on_with_it(goes_on: bool) -> None:
    node = Anew()
    stream = b"\x09" * len(FUNCTION)
    node.rejoin(((task_id(1), stream, b"", ()),), functions=((stream, "s", b"payload", (("stream", 2),)),))
    value = object_id(task_id(1), 1)
    running = (runs(((task_id(1), OF_SELF),)),) if goes_on else ()
    node.register(C, *running, retains(((value, 200_000, ()),), ()))
    node.register(A)
    order = [message for _, message in node.sent if message == released((value,)) or isinstance(message, m.Dispatch)]
    assert goes_on or [type(each) for each in order] == [m.UpdateLedger, m.Dispatch], "the next attempt may yield it anew there"
    assert released((value,)) in told(node, C) or goes_on
    hear(node, C, m.RelayedYields(1, ((task_id(1), OF_SELF, 0, 200_000, ()),), ()))
    assert (node.scheduler.tables.find(value) is not None) is goes_on


def test_a_stream_whose_values_went_with_a_daemon_is_made_again_for_a_reader_on_another_node() -> None:
    """It has its end, and its reader asks for no more values than were permitted before."""
    node = Anew()
    stream = b"\x09" * len(FUNCTION)
    node.found = ((ref(1), 64, 100),)
    node.rejoin(((task_id(1), stream, b"", ()),), functions=((stream, "s", b"payload", (("stream", 4),)),))
    for other in (A, C):
        node.register(other)
    assert node.dispatched() == []
    hear(node, C, holding(1, (object_id(task_id(1), 1),)), m.FetchValues((object_id(task_id(1), 1),)))
    assert [number for _, number, _ in node.dispatched()] == [1]


def test_a_stream_of_an_actor_whose_home_had_to_be_found_is_closed_when_nobody_reads_it_any_more() -> None:
    """It is at home here: the process that called promises its end, and no other node knows it."""
    node = Anew(elsewhere=True)
    call = JOB + b"parent X" + bytes(4)
    end = call_value(call, 0)
    node.rejoin_worker((CLIENT, m.ExpectResults(((end, task_id(7), 2),))), (CLIENT, m.Hold((end,))))
    for other in (A, C):
        _, search, _ = node.register(other)
        hear(node, other, m.LedgerUpdated(search.number))
    stream = node.scheduler.tables.streams[call]
    assert stream.owner is node.scheduler.tables.find(end)
    node.send(CLIENT + OLD, m.Release((end,)))
    assert stream.closed


def test_a_worker_that_is_to_end_gets_no_more_tasks_though_it_reports_the_outcome_of_one() -> None:
    node = Anew(elsewhere=True)
    unknown = (task_id(5), b"\x07" * len(FUNCTION), b"", ())
    child = child_prefix(JOB, task_id(5), 0, salt_of(OF_A)) + bytes(4)
    node.rejoin_worker(
        (CLIENT, m.Submit(((child, FUNCTION, b"", ()),))),
        (CLIENT, m.Hold((child + bytes(4),))),
        (CLIENT, m.RunningTasks(((unknown, OF_A, True, ""),), ())),
        (WORKER, m.Completed.of(((child, OF_SELF, m.OK, (b"value",)),), (), ())),
    )
    assert node.scheduler.tables.workers[OLD].state == ENDING


def test_a_restarted_executor_goes_on_with_what_its_workers_run_and_reports_it() -> None:
    node = Anew(elsewhere=True)
    node.rejoin_worker((CLIENT, RUNNING))
    _, running, ready = node.register(A)
    assert (running, ready) == (runs(((task_id(5), OF_A),)), m.Ready())
    node.register(C)
    node.send(WORKER + OLD, m.Completed.of(((task_id(5), OF_A, m.OK, (b"value",)),), (), ((FUNCTION, 1, 0.0001),)))
    (ended,) = told(node, A)
    assert m.Completed(*ended.completed).rows == ((task_id(5), OF_A, m.OK, (b"value",)),)


def test_a_worker_with_a_task_of_a_node_that_has_died_ends() -> None:
    node = Anew(elsewhere=True)
    table(node, 2, C)
    node.rejoin_worker((CLIENT, RUNNING))
    assert not node.scheduler.tables.tasks
    assert not node.scheduler.tables.jobs


def test_every_node_is_asked_for_the_home_of_what_only_processes_know() -> None:
    node = Anew(elsewhere=True)
    lost = JOB + b"parent D" + bytes(8)
    node.rejoin_worker((CLIENT, m.Hold((OTHER, lost))), (CLIENT, m.Fetch((OTHER, lost))))
    _, borrow, _ = node.register(A)
    assert borrow == searching(borrow.number, (OTHER, lost))
    _, second, _ = node.register(C)
    hear(node, C, found(second.number, (OTHER,)))
    assert told(node, C) == [m.FetchValues((OTHER,))]
    assert node.take(m.Objects) == []
    hear(node, A, m.LedgerUpdated(borrow.number))
    ((_, objects),) = node.take(m.Objects)
    ((identifier, status, payload, _),) = objects.rows
    assert (identifier, status, unpack_failure(payload)[0]) == (lost, m.FAILED, "ObjectLostError")
    hear(node, C, m.FetchedValues(((OTHER, m.OK, b"value", ()),), ()))
    assert [message.rows for _, message in node.take(m.Objects)] == [((OTHER, m.OK, b"value", ()),)]


class Home(Anew):
    """The control store has the row of task 7, which this node has submitted for a job of node A."""

    def answer(self, message: Any) -> None:
        """Return the row, too."""
        if isinstance(message, m.Scan) and message.table == "task":
            self.send(b"S" + OWN, m.Found(message.token, ((task_id(7), pack_block([row(7)])),), False))
        else:
            super().answer(message)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_restarted_home_is_found_by_the_next_daemon_of_a_borrower_though_only_the_control_store_has_the_row(is_there: bool) -> None:
    """The value is made again, unless a third node has retained it."""
    node = Home(elsewhere=True)
    node.rejoin_worker()
    node.register(A, searching(3, (ref(7), OTHER)))
    node.register(C, *([retains(((ref(7), 200_000, ()),), ())] if is_there else []))
    assert found(3, (ref(7),)) in told(node, A)
    hear(node, A, m.FetchValues((ref(7),)))
    assert [number for _, number, _ in node.dispatched()] == ([] if is_there else [7])
    record = node.scheduler.tables.find(ref(7))
    assert record is not None
    assert getattr(record.value, "place", b"") == (C if is_there else b"")


@pytest.mark.parametrize("is_named", [False, True])
def test_a_restarted_home_retains_a_row_that_a_row_of_another_node_names(is_named: bool) -> None:
    """Nothing else needs the row, which only the control store has."""
    node = Home(elsewhere=True)
    node.rejoin_worker()
    node.register(A, *([m.UpdateLedger(0, ((m.ROW, (ref(7),)),))] if is_named else []))
    node.register(C)
    node.turn()
    assert (task_id(7) in node.scheduler.tables.tasks) is is_named
    assert node.dispatched() == []
    hear(node, A, m.UpdateLedger(0, (), ((m.ROW, (ref(7),)),)))
    assert task_id(7) not in node.scheduler.tables.tasks


def test_values_in_the_arena_that_a_home_claims_are_retained_for_it_and_others_go() -> None:
    node = Anew(elsewhere=True)
    node.arena = ((ref(1), 4096, 200_000), (ref(2), 300_000, 200_000))
    node.rejoin_worker()
    (retain,) = (message for _, message in node.take(m.RetainOnly))
    assert set(retain.object_ids) == {ref(1), ref(2)}
    node.register(A, m.ClaimValues(((ref(1), (OTHER,)), (ref(3), ())), ((OTHER, C),)))
    assert [each for each in told(node, A) if isinstance(each, m.CopyLost)] == [
        m.CopyLost(ref(3), "the node that was to have it has lost it, and no other one has it")
    ]
    assert node.take(m.Free) == []
    node.register(C)
    assert [message.object_ids for _, message in node.take(m.Free)] == [(ref(2),)]
    assert node.scheduler.tables.objects[ref(1)].contained == (OTHER,)


def test_a_restarted_home_withdraws_the_rows_that_nobody_needs_any_more() -> None:
    node = Anew(elsewhere=True)
    node.rejoin_worker()
    node.register(A, m.LedgerUpdated(0, ((m.ENTRUSTED, (task_id(8),)),)))
    assert told(node, A) == []
    node.register(C)
    assert told(node, A) == [m.UpdateLedger(0, (), ((m.ENTRUSTED, (task_id(8),)),))]


def test_a_restarted_daemon_frees_what_the_rows_of_living_actors_name_when_they_end() -> None:
    """Rows that name a value are counted once all values are known: with other nodes, values that were put stay for rows that need them."""
    put = ("put", 0, 9, 200_000, ())
    actor = ("make", 1, ACTOR, task(1), (("max_restarts", 1), ("contains", (0,))), (0,))
    world = World(
        0,
        Kind(nodes=2),
        faults=STEADY,
        program=Program((put, actor, invoke(2, 1, task(2)), get((2, mix(2, 0))), ("sleep", 3.0)), 0),
        settings={"worker_idle_seconds": 60.0},
    )
    world.after(1.0, world.nodes[0].kill_daemon)
    assert world.run().failure == ""
    assert world.states["daemon restarted"] == 1


def test_a_large_value_of_a_task_that_nobody_knows_any_more_is_released_where_it_is() -> None:
    """Its submitter reported the ref to the restarted daemon and died; the row is in no store yet."""
    node = Anew(elsewhere=True)
    value = JOB + b"parent D" + bytes(8)
    node.rejoin_worker((CLIENT, m.Hold((value,))))
    node.send(b"X" + OWN, m.ProcessDied(99, 0, 9, 0, ""))
    ended = m.Completed.of(((value[:16], OF_SELF, m.OK, (200_000,)),), (), ())
    for other, said in ((A, (m.Ended(1, tuple(ended), ()),)), (C, ())):
        _, search, _ = node.register(other, *said)
        hear(node, other, m.LedgerUpdated(search.number))
    assert released((value,)) in told(node, A)


def test_a_result_whose_home_had_to_be_found_is_retained_until_its_caller_releases_it() -> None:
    """Its caller awaits another value of the call, too, and has no ref to this one."""
    node = Anew(elsewhere=True)
    call = JOB + b"parent X" + bytes(4)
    value, other = call_value(call, 0), call_value(call, 1)
    node.rejoin_worker((CLIENT, m.ExpectResults(((value, task_id(7)), (other, task_id(7))))), (CLIENT, m.Hold((other,))))
    returned = m.CallsEnded(1, ((call, OLD, m.OK, (200_000, b"small"), ()),), ())
    for home, said in ((C, ()), (A, (retains(((value, 200_000, ()),), ()), returned))):
        _, search, _ = node.register(home, *said)
        hear(node, home, m.LedgerUpdated(search.number))
    node.turn()
    assert node.scheduler.tables.find(value) is not None
    assert released((value,)) not in told(node, A)
    node.send(CLIENT + OLD, m.Release((value,)))
    assert released((value,)) in told(node, A)


def test_a_call_of_an_actor_elsewhere_waits_until_the_home_of_its_argument_is_found() -> None:
    """The caller learns earlier where the actor lives: as soon as all nodes have registered."""
    node = Anew()
    node.rejoin(((task_id(1), ACTOR_CLASS, b"", ()),), held=(m.Hold((OTHER,)), m.FindActors((task_id(1),))))
    _, in_a, _ = node.register(A, runs(((task_id(1), OF_SELF),)))
    _, in_c, _ = node.register(C)
    hear(node, A, m.Ended(1, tuple(m.Completed.of(((task_id(1), OF_SELF, m.OK, (b"actor",)),), (), ())), ()))
    assert [message.rows[0][1] for to, message in node.take(m.ActorLocations) if to == CLIENT + DRIVER][-1] == m.ALIVE
    call = (JOB + b"parent X" + bytes(4), "add", b"arguments", (OTHER,), (None,), None)
    for message in (m.OutcomesReceived(task_id(1), (), True), m.Call(task_id(1), OF_SELF, (call,)), m.CallsRepeated(task_id(1))):
        node.send(CLIENT + DRIVER, message)
    hear(node, A, m.LedgerUpdated(in_a.number))
    assert node.take(m.Returned) == []
    told(node, A)
    hear(node, C, found(in_c.number, (OTHER,)))
    assert node.take(m.Returned) == []
    receipt, relayed = told(node, A)
    assert type(receipt) is m.RelayedReceipt
    assert relayed == m.RelayedCalls(task_id(1), OF_SELF, (call,), DRIVER, ((OTHER, C),))


@pytest.mark.parametrize("is_held_here", [True, False])
def test_a_result_that_another_node_holds_here_is_not_lost_before_that_has_said_what_it_retains(is_held_here: bool) -> None:
    node = Anew(elsewhere=True)
    value = call_value(JOB + b"parent X" + bytes(4), 0)
    node.rejoin_worker(*([(CLIENT, m.Hold((value,))), (CLIENT, m.Fetch((value,)))] if is_held_here else []))
    retained = retains(((value, 200_000, ()),), ())
    for home, said in ((C, ()), (A, (holding(1, (value,)), retained))):
        searches = [each for each in node.register(home, *said) if held(each)]
        for search in searches:
            hear(node, home, m.LedgerUpdated(search.number))
    assert node.take(m.Objects) == []
    assert released((value,)) not in told(node, A)
    record = node.scheduler.tables.find(value)
    assert record is not None
    assert (record.home, record.value.place) == (b"", A)  # type: ignore[attr-defined, union-attr]


def test_what_only_a_dead_daemon_of_another_node_has_held_here_is_forgotten() -> None:
    node = Anew(elsewhere=True)
    value = call_value(JOB + b"parent X" + bytes(4), 0)
    node.rejoin_worker()
    node.register(A, holding(1, (value,)))
    hear(node, A, anew(NEW))
    hear(node, A, again(NEW), m.Ready())
    node.register(C)
    node.turn()
    assert node.scheduler.tables.find(value) is None


def test_a_large_value_of_a_stream_that_is_made_before_its_home_has_registered_is_retained_for_it() -> None:
    """The home has had no ref to repeat: it is told of the value once it has registered. A process here had a ref, too."""
    node, value = Anew(elsewhere=True), object_id(task_id(5), 1)
    node.rejoin_worker((CLIENT, m.Hold((value,))), (CLIENT, RUNNING))
    node.send(WORKER + OLD, m.Yielded(((task_id(5), OF_A, 0, (4096, 200_000), ()),)))
    node.send(CLIENT + OLD, m.Release((value,)))
    for other in (C, A):
        _, search, *_ = node.register(other)
        hear(node, other, m.LedgerUpdated(search.number) if other == C else found(search.number, (value,)))
    record = node.scheduler.tables.find(value)
    assert record is not None
    assert type(record.value) is Stored


def test_a_result_that_its_node_names_behind_the_outcome_keeps_what_is_inside_no_longer_than_the_result() -> None:
    """The node answers the search for its home, while the outcome is here already."""
    node = Anew(elsewhere=True)
    call = JOB + b"parent X" + bytes(4)
    value = call_value(call, 0)
    node.rejoin_worker((CLIENT, m.Hold((value,))))
    _, in_c, _ = node.register(C)
    returned = m.CallsEnded(1, ((call, OLD, m.OK, (200_000,), ((OTHER,),)),), ((OTHER, C),))
    _, in_a, _ = node.register(A, returned)
    hear(node, A, retains(((value, 200_000, (OTHER,)),), ((OTHER, C),)), m.LedgerUpdated(in_a.number))
    hear(node, C, m.LedgerUpdated(in_c.number))
    assert node.scheduler.tables.find(OTHER) is not None
    node.send(CLIENT + OLD, m.Release((value,)))
    node.turn()
    assert node.scheduler.tables.find(value) is None
    assert node.scheduler.tables.find(OTHER) is None


@pytest.mark.parametrize("has_restarted", [False, True])
def test_a_restarted_daemon_waits_for_what_a_node_reports_that_has_yet_to_learn_of_a_death(has_restarted: bool) -> None:
    """So may a daemon of that node that is new, too: it begins with the last table of the one before."""
    node = Anew()
    node.rejoin(())
    table(node, 2, A)
    hear(node, A, anew(b"daemon2.") if has_restarted else again(b"daemon1."))
    hear(node, A, again(b"daemon2." if has_restarted else b"daemon1."), m.Ready())
    assert m.Holdings(C, (), (), (), True) in told(node, A), "who knows nothing of the dead one answers"
    assert not node.scheduler.tables.dead[C]
    hear(node, A, m.Holdings(C, (), (), (), True))
    assert node.scheduler.tables.dead[C]


def test_a_large_result_that_its_actor_reports_to_the_next_daemon_is_retained_before_the_callers_node_has_registered() -> None:
    """The store drops what it has found in the arena and nobody retains, as soon as the processes of this node have registered."""
    node = Anew(elsewhere=True)
    call = JOB + b"parent X" + bytes(4)
    outcome = (call, remote_caller(b"\x05caller.", A), m.OK, ((4096, 200_000),), ())
    node.rejoin_worker((WORKER, m.CallOutcomes((outcome,))))
    sealed = [row for to, message in node.sent if isinstance(message, m.Sealed) for row in message.rows]
    assert sealed == [(call_value(call, 0), 4096, 200_000, OLD, False)]
    assert not any(isinstance(message, m.CallsEnded) for message in told(node, A))


def test_an_actor_of_which_its_creator_tells_the_next_daemon_still_has_its_name() -> None:
    """It is made when all have reported; its own name was taken before."""
    node = Anew()
    node.rejoin(((task_id(1), ACTOR_CLASS, b"", (), (("name", "Ada"),)),))
    node.register(A)
    node.register(C, runs(((task_id(1), OF_SELF),)))
    assert node.results() == {}
    assert list(node.scheduler.tables.nodes[C].inflight) == [task_id(1)]
    assert [each.id for each in node.scheduler.actors.named.values()] == [task_id(1)]


def test_the_death_of_an_actor_elsewhere_is_not_processed_before_the_end_of_the_task_that_made_it() -> None:
    """Both are sent while this daemon awaits a third node. Otherwise the actor would live here for ever, without a process."""
    node = Anew()
    node.rejoin(((task_id(1), ACTOR_CLASS, b"", (), (("max_restarts", -1),)),))
    node.register(A, runs(((task_id(1), OF_SELF),)))
    made = m.Completed.of(((task_id(1), OF_SELF, m.OK, (b"actor",)),), (), ())
    death = m.LifeEnded(task_id(1), OF_SELF, b"", "its process ended with signal 9", "", (7, 9, 0, 0), "", -1)
    hear(node, A, m.Ended(1, tuple(made), ()), death)
    node.register(C)
    record = node.scheduler.tables.actors[task_id(1)]
    assert (record.state, record.restarts) == (m.CREATING, 1)


@pytest.mark.parametrize("lives", [True, False])
def test_a_kill_waits_until_it_is_known_where_the_actor_lives(lives: bool) -> None:
    """Who has killed it waits for the end of that life. If it has ended, the kill does not concern the next one."""
    node = Anew()
    node.rejoin(((task_id(1), ACTOR_CLASS, b"", (), (("max_restarts", -1),)),))
    node.register(A, m.KillActor(task_id(1), False))
    made = m.Ended(1, tuple(m.Completed.of(((task_id(1), OF_SELF, m.OK, (b"actor",)),), (), ())), ())
    node.register(C, *([runs(((task_id(1), OF_SELF),)), made] if lives else []))
    stops = [m.StopDelegated(task_id(1), OF_SELF, "force", False)]
    assert [each for each in told(node, C) if isinstance(each, m.StopDelegated)] == (stops if lives else [])
    assert node.scheduler.remote_actors.kills == []
    assert (node.dispatched() == []) == lives


def test_children_of_a_task_whose_function_is_lost_are_stopped() -> None:
    """Its worker ends, and its home runs it again: the next attempt submits its children anew."""
    node = Anew(elsewhere=True)
    unknown = (task_id(5), b"\x07" * len(FUNCTION), b"", ())
    child = child_prefix(JOB, task_id(5), 0, salt_of(OF_A)) + bytes(4)
    node.rejoin_worker(
        (CLIENT, m.Submit(((child, FUNCTION, b"", ()),))),
        (CLIENT, m.Hold((child + bytes(4),))),
        (CLIENT, m.RunningTasks(((unknown, OF_A, True, ""),), ())),
    )
    assert node.scheduler.tables.tasks[child].status == m.FAILED


def test_a_task_of_another_home_goes_on_whose_parent_seems_to_run_again() -> None:
    """Its parent is at home here and runs on node A, which has yet to register: nobody here knows that it still does."""
    node = Anew()
    child = child_prefix(JOB, task_id(1), 0, salt_of(OF_SELF)) + bytes(4)
    node.rejoin((), (CLIENT, m.RunningTasks((((child, FUNCTION, b"", ()), OF_A, True, ""),), ())), held=(m.Submit((row(1),)),))
    assert list(node.scheduler.tables.workers[OLD].inflight) == [child]
    assert node.take(m.Interrupt) == [], "its home says when it is to stop"


def test_the_death_of_an_idle_host_of_actors_is_told_to_nobody() -> None:
    """It has no job yet, and neither has the transfer agent, which takes no such message."""
    node = Anew(elsewhere=True)
    node.send(b"X" + OWN, m.ArenaFound((), ()))
    node.send(b"X" + OWN, m.ProcessTable(((OLD, 99),)))
    for identifier, kind, pid in ((OLD, "worker", 99), (b"\x01agent..", "agent", 98)):
        node.send(CLIENT + identifier, m.Register(m.PROTOCOL_VERSION, kind, pid, 1, b"", identifier, b"\x80" + identifier[1:], "", ""))
        if kind == "worker":
            node.send(CLIENT + identifier, m.HostedActors(()))
        node.send(CLIENT + identifier, m.Ready())
    assert node.scheduler.tables.workers[OLD].shared
    node.send(b"X" + OWN, m.ProcessDied(99, 0, 9, 0, ""))
    assert node.take(m.CallerGone) == []


class Entrusted(Anew):
    """The home of a job, to which node A has entrusted the row of task 7."""

    def answer(self, message: Any) -> None:
        """The control store has the row, too."""
        if isinstance(message, m.Scan) and message.table == "task":
            block = pack_block([entrusted_row(row(7), A, ())])
            self.send(b"S" + OWN, m.Found(message.token, ((task_id(7), block),), False))
        else:
            super().answer(message)


def test_the_home_of_a_job_stores_the_rows_that_are_entrusted_to_it(peer: Peer) -> None:
    """Once, however often they come; and no longer than it has them."""
    peer.driver()
    for number in (1, 2):
        hear(peer, A, m.Entrust(number, JOB, EXPORTED, (row(7),), (), ()))
    peer.now += 1.0
    peer.turn()
    puts = [value for _, message in peer.take(m.Write) for table, _, value in message.puts if table == "task"]
    assert [read_block(value) for value in puts] == [(entrusted_row(row(7), A, ()),)]
    peer.send(CLIENT + DRIVER, m.Goodbye())
    assert not any(peer.scheduler.tables.entrusted.values())
    assert peer.scheduler.blocks.statistics()["lineage_rows"] == 0


@pytest.mark.parametrize("dies", ["before", "recovering", "searching"])
def test_the_next_daemon_of_a_jobs_home_has_the_rows_that_a_dead_node_had_entrusted_to_it(dies: str) -> None:
    """A value is made again although neither the node has survived on which its task was at home, nor the daemon that had the row."""
    node = Entrusted(False, C) if dies == "before" else Entrusted()
    if dies == "recovering":
        table(node, 2, C)
    node.rejoin((), held=(m.Hold((ref(7),)), m.Fetch((ref(7),))))
    if dies == "searching":
        table(node, 2, C)
    hear(node, C, again(b"\x01daemonC"))
    searches = [each for each in told(node, C) if held(each)]
    hear(node, C, m.Ready(), *(m.LedgerUpdated(each.number) for each in searches))
    hear(node, C, m.Holdings(A, (), (), (), True))
    assert [number for _, number, _ in node.dispatched()] == [7]


def test_a_node_that_holds_a_value_of_a_dead_one_finds_the_next_daemon_of_the_jobs_home_that_has_yet_to_be_told_of_the_death() -> None:
    node = Entrusted()
    node.rejoin()
    node.register(C, holding(1, (ref(7),)))
    table(node, 2, C)
    hear(node, C, m.Holdings(A, (), (), (), True), m.FetchValues((ref(7),)))
    assert [number for _, number, _ in node.dispatched()] == [7]


def test_a_row_stays_entrusted_whose_home_lives_until_that_withdraws_it() -> None:
    """Its home repeats what counts, and withdraws what it does not need any more."""
    node = Entrusted()
    node.rejoin((), held=(m.Hold((ref(7),)), m.Fetch((ref(7),))))
    assert m.LedgerUpdated(0, ((m.ENTRUSTED, (task_id(7),)),)) in node.register(C) + node.register(A)
    assert node.dispatched() == []
    assert list(node.scheduler.tables.entrusted[A]) == [task_id(7)]
    hear(node, A, m.UpdateLedger(0, (), ((m.ENTRUSTED, (task_id(7),)),)))
    node.now += 1.0
    node.turn()
    assert [deletes for _, message in node.take(m.Write) if (deletes := [each for each in message.deletes if each[0] == "task"])] == [
        [("task", task_id(7))]
    ]


def test_a_home_withdraws_rows_that_the_next_daemon_of_the_jobs_home_still_has(peer: Peer) -> None:
    hear(peer, A, m.LedgerUpdated(0, ((m.ENTRUSTED, (task_id(8),)),)))
    assert told(peer, A) == [m.UpdateLedger(0, (), ((m.ENTRUSTED, (task_id(8),)),))]


def test_a_restarted_daemon_leases_a_worker_once_that_makes_an_actor_of_another_node_and_runs_a_child_of_it() -> None:
    node = Anew(elsewhere=True)
    maker = (task_id(5), CLASS[0], b"", ())
    child = (child_prefix(JOB, task_id(5), 0, salt_of(OF_A)) + bytes(4), FUNCTION, b"", ())
    node.rejoin_worker(
        (CLIENT, m.Export((CLASS,))),
        (CLIENT, m.Submit((child,))),
        (CLIENT, m.Hold((child[0] + bytes(4),))),
        (CLIENT, m.RunningTasks(((maker, OF_A, True, ""), (child, OF_SELF, True, "")), ())),
        (CLIENT, m.Blocked(task_id(5), (child[0] + bytes(4),), (), True)),
    )
    node.scheduler.check_invariants()
    assert list(node.scheduler.tables.workers[OLD].inflight) == [task_id(5), child[0]]


def test_a_restarted_head_gives_a_name_to_a_new_actor_once_all_nodes_have_claimed_theirs() -> None:
    node = Anew()
    lead(node, SELF, 2, A, C)
    told(node, A), told(node, C)
    node.rejoin()
    for number, name in ((1, "Ada"), (2, "Bea")):
        node.send(CLIENT + DRIVER, m.Submit(((task_id(number), ACTOR_CLASS, b"", (), (("name", name),)),)))
    node.register(A)
    hear(node, A, claimed(task_id(8), "Ada"))
    assert (node.results(), node.take(m.LedgerUpdated)) == ({}, [])
    node.register(C, claimed(task_id(9), "Ada"))
    assert decided(task_id(9), True) in told(node, C), "it has the name"
    assert told(node, A) == [decided(task_id(8), False)]
    assert unpack_failure(node.results()[1][1][0])[0] == "ActorNameTakenError"
    assert [number for _, number, _ in node.dispatched()] == [2]


def test_a_restarted_head_does_not_give_a_name_that_is_freed_before_all_nodes_have_registered() -> None:
    node = Anew()
    lead(node, SELF, 2, A, C)
    node.rejoin()
    node.register(A)
    hear(node, A, claimed(task_id(8), "Ada"), freed(task_id(8), "Ada"))
    told(node, A)
    node.register(C)
    assert told(node, A) == [], "the actor that claimed it is dead"
    hear(node, C, claimed(task_id(9), "Ada"))
    assert told(node, C) == [decided(task_id(9), True)]


def test_a_node_repeats_the_claims_of_actors_that_have_their_names_before_ready_and_all_others_behind_it(peer: Peer) -> None:
    peer.driver()
    peer.send(CLIENT + DRIVER, m.Export((CLASS,)))
    lead(peer, A, 2, A, C)
    for number, name in ((1, "Ada"), (2, "Bea")):
        peer.submit((task_id(number), CLASS[0], b"", (), (("name", name),)))
    hear(peer, A, decided(task_id(1), True))
    told(peer, A)
    hear(peer, A, anew(b"\x01daemonB"))
    repeated = [each for each in told(peer, A) if isinstance(each, m.UpdateLedger | m.Ready)]
    assert repeated == [claimed(task_id(1), "Ada"), m.Ready(), claimed(task_id(2), "Bea")]
