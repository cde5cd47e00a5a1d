"""What both shells decide, alone: the machines of a daemon, and the order in which processes send and receive."""

from __future__ import annotations

import inspect
import time
from typing import Any

import pytest

from tests.sim.drivers import Driver
from tests.sim.world import World
from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.config import Config
from zfabric.machines.client import Client
from zfabric.machines.local_scheduler.nodes.receipts import RECEIPTS_WITHIN
from zfabric.machines.worker import Worker
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import (
    CLIENT,
    HEAD,
    JOINER,
    LOCAL_SCHEDULER,
    MEMBER,
    OBJECT_BYTES,
    OBJECT_STORE,
    REGISTRY,
    SHELL,
    WORKER,
    control_of,
    is_control,
)
from zfabric.protocol.options import NODE_ID
from zfabric.runtime import daemon
from zfabric.shell.node import ClusterPart, NodeMachines
from zfabric.shell.process import (
    admits_caller,
    batches,
    client_takes,
    peers_first,
    unacknowledged_reports,
    worker_sends,
    worker_takes,
)

OWN, DRIVER = b"\1daemon\0", b"\1driver\0"
REGISTER = m.Register(m.PROTOCOL_VERSION, "driver", 77, 1, b"", DRIVER, b"", "", "")


class Node:
    """The machines of a daemon; the test is its shell."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.machines = NodeMachines(OWN, b"thisnode", Config(), (("CPU", 10_000),), 0, self.journal, 0)
        self.machines.start(0.0, former_jobs=False)
        self.performed: list[Any] = []

    def perform(self, effect: Any) -> None:
        self.performed.append(effect)
        if isinstance(effect, e.Store):
            self.journal.commit([effect], lambda error: self.machines.committed(effect.sequence, error))

    def turn(self, now: float) -> dict[bytes, list[Any]]:
        self.machines.decide(now, self.perform)
        return self.machines.take_outgoing()

    def register(self) -> dict[bytes, list[Any]]:
        for message in (REGISTER, m.Ready()):
            self.machines.receive(0.0, DRIVER, LOCAL_SCHEDULER, CLIENT, message)
        return self.turn(0.0)


def test_a_turn_ends_when_no_machine_has_messages_left() -> None:
    node = Node()
    sent = node.register()
    # The number of the job was asked for, committed and answered within the turn: control store and scheduler met in memory.
    assert [type(message) for _, _, message in sent[DRIVER]] == [m.Welcome]
    assert any(isinstance(effect, e.Store) for effect in node.performed)
    assert not node.machines.pending
    assert node.turn(0.0) == {}


def test_messages_outside_the_access_list_are_refused_and_counted() -> None:
    node = Node()
    node.machines.receive(0.0, DRIVER, LOCAL_SCHEDULER, CLIENT, m.ProcessDied(1, 0, 0, 0, ""))
    node.machines.receive(0.0, DRIVER, SHELL, CLIENT, m.Ready())
    node.machines.receive(0.0, DRIVER, OBJECT_STORE, CLIENT, m.Unpin(()))  # allowed to those that are registered
    assert node.machines.refused == 3
    node.register()
    node.machines.receive(0.0, DRIVER, OBJECT_STORE, CLIENT, m.Unpin(()))
    assert node.machines.refused == 3


def test_only_machines_with_input_or_a_passed_deadline_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.turn(0.0)
    asked: list[bytes] = []
    for role, machine in node.machines.machines.items():

        def take(now: float, role: bytes = role, right: Any = machine.take_effects) -> Any:
            asked.append(role)
            return right(now)

        monkeypatch.setattr(machine, "take_effects", take)
    node.turn(0.0)
    assert asked == []
    due = node.machines.next_deadline()
    assert due is not None
    node.machines.tick(due - 0.001)
    assert not node.machines.pending
    node.machines.tick(due)
    assert node.machines.pending


def test_machines_that_send_to_each_other_for_ever_end_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    monkeypatch.setattr(node.machines.scheduler, "take_effects", lambda now: [e.Send(LOCAL_SCHEDULER + OWN, m.OutputWritten())])
    with pytest.raises(RuntimeError, match="without end"):
        node.turn(0.0)


def test_a_link_is_closed_when_two_sweeps_found_its_peer_unregistered() -> None:
    node = Node()
    node.register()
    peers = [DRIVER, b"\1stranger"]
    assert node.machines.sweep(peers) == set()
    assert node.machines.sweep(peers) == {b"\1stranger"}
    assert node.machines.incarnations_of(77) == (DRIVER,)


def test_a_world_fails_when_a_process_sends_a_forbidden_message(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Driver.flush

    def flush(self: Driver) -> None:
        if self.machine.welcomed and not self.finished:
            self.machine.send(m.LogLines(()))
        right(self)

    monkeypatch.setattr(Driver, "flush", flush)
    assert "refuses LogLines" in World(0).run().failure


def test_the_incarnation_of_a_control_thread_is_that_of_its_process_marked() -> None:
    assert is_control(control_of(DRIVER))
    assert control_of(control_of(DRIVER)) == DRIVER


def test_a_flush_is_one_frame_for_each_receiver_and_more_where_rows_are_many() -> None:
    def ready(to: bytes) -> tuple[bytes, e.Send]:
        return CLIENT, e.Send(to, m.Ready())

    first, second = LOCAL_SCHEDULER + OWN, CLIENT + DRIVER
    one_round = list(batches([ready(first), ready(second), ready(OBJECT_STORE + OWN)]))
    assert [(incarnation, len(envelopes)) for incarnation, envelopes in one_round] == [(OWN, 2), (DRIVER, 1)]
    rows = tuple((bytes([each]), 1) for each in range(5))
    several = list(batches([(CLIENT, e.Send(first, m.Release(rows))), ready(second), ready(first)], 5))
    assert [(incarnation, len(envelopes)) for incarnation, envelopes in several] == [(OWN, 1), (DRIVER, 1), (OWN, 1)]


class Process:
    """A worker's two machines, joined with a daemon."""

    def __init__(self) -> None:
        self.client, self.worker = Client(CLIENT + b"\1worker\0", Config()), Worker(WORKER + b"\1worker\0", Config())
        self.client.connect(OWN)
        self.worker.connect(OWN)
        self.released: list[bytes] = []

    def sends(self) -> list[str]:
        return [type(send.message).__name__ for _, send in worker_sends(self.client, self.worker, OWN, self.released.append)]


def test_a_worker_sends_operations_then_outcomes_then_releases() -> None:
    process = Process()
    held, given_up = b"h" * OBJECT_BYTES, b"g" * OBJECT_BYTES
    process.client.references.add(held)
    assert process.sends() == ["Hold"]
    process.client.dropped.append(held)
    process.worker.task_queue.returned_places.append((given_up, (4096, 100)))
    process.worker.report_output()
    process.client.send(m.FindActors((b"a",)))
    # The place of a task that was not run is released last, as refs are: the daemon first learns that the task is not here any more.
    assert process.sends() == ["FindActors", "OutputWritten", "Unpin", "Release"]
    assert process.sends() == []


def test_messages_for_a_replaced_daemon_are_not_sent() -> None:
    process = Process()
    process.worker.report_output()
    process.client.send(m.FindActors((b"a",)))
    assert worker_sends(process.client, process.worker, b"\1another", process.released.append) == []


def test_processes_accept_only_listed_messages_from_each_other() -> None:
    process = Process()
    taken = [m.Returned(()), m.OutputWritten()]
    assert all(client_takes(process.client, DRIVER, message) for message in taken)
    refused: list[Any] = [m.Results(()), m.Call(b"a", 1, ()), m.Farewell("")]
    assert not any(client_takes(process.client, DRIVER, message) for message in refused)
    process.client.direct.allowed.add(DRIVER)
    assert client_takes(process.client, DRIVER, m.Results(()))
    direct = m.SubmitDirect(OWN, (), 1)
    assert worker_takes(process.worker, DRIVER, m.Call(b"a", 1, ()))
    assert not worker_takes(process.worker, DRIVER, direct)
    process.worker.drivers.accept(DRIVER)
    assert worker_takes(process.worker, DRIVER, direct)
    assert not worker_takes(process.worker, DRIVER, m.Results(()))


def test_callers_are_admitted_where_an_actor_lives_until_their_process_has_ended() -> None:
    worker = Process().worker
    assert not admits_caller(worker, DRIVER, hosts_actors=False)
    assert admits_caller(worker, DRIVER, hosts_actors=True)
    worker.mailbox.gone[DRIVER] = None
    assert not admits_caller(worker, DRIVER, hosts_actors=True)
    worker.drivers.accept(DRIVER)
    assert admits_caller(worker, DRIVER, hosts_actors=True)


def test_the_last_outcomes_of_an_actor_are_processed_before_its_end() -> None:
    frames = [(OWN, b"its end"), (DRIVER, b"1"), (OWN, b"2"), (DRIVER, b"3")]
    assert peers_first(frames, {DRIVER}.__contains__) == [(DRIVER, b"1"), (DRIVER, b"3"), (OWN, b"its end"), (OWN, b"2")]


def test_reports_that_a_daemon_has_not_acknowledged_are_for_the_next() -> None:
    kept = [m.Completed((1,), (0,), ((),), b"task", (), (), b""), m.Yielded(())]
    envelopes: list[Any] = [(LOCAL_SCHEDULER, WORKER, kept[0]), (LOCAL_SCHEDULER, CLIENT, m.Ready()), (LOCAL_SCHEDULER, WORKER, kept[1])]
    assert unacknowledged_reports(envelopes) == kept


HEAD_NODE, JOIN = b"headnode", m.Join(m.PROTOCOL_VERSION, b"thisnode", 0, "this", 1, b"k" * 40, "tcp://1.2.3.4:5", "", (), (), ())


def test_a_node_that_was_suspended_is_silent_and_ends_before_it_does_anything_else() -> None:
    """The clock of leases runs on meanwhile; the shell's, by which tasks have their timeouts, does not."""
    done: list[Any] = []
    core = NodeMachines(OWN, b"thisnode", Config(), (), 2**20, MemoryJournal(), 0, ClusterPart(JOIN, False))
    core.read_lease_clock(100.0, 5000.0)
    core.decide(100.0, done.append)
    core.receive_from_node(100.5, HEAD, MEMBER, REGISTRY, m.Joined(HEAD_NODE, 2, 10.0))
    core.decide(100.5, done.append)
    core.take_outgoing_to_nodes()
    core.read_lease_clock(101.0, 5001.01)
    core.tick(101.0)
    assert core.lease_age(101.0) == pytest.approx(1.0, abs=0.05)
    assert not core.member.silent, "reading one clock after the other is no jump"
    for suspended, expected in ((8.5, e.Silence), (9.5, e.Freeze), (25.0, e.EndNode)):
        done.clear()
        core.read_lease_clock(101.0, 5000.0 + suspended)
        core.tick(101.0)
        core.decide(101.0, done.append)
        assert expected in map(type, done)
        assert all(type(each[2]) is m.RenewLease for envelopes in core.take_outgoing_to_nodes().values() for each in envelopes)


def test_a_registry_that_was_suspended_declares_nobody_dead() -> None:
    core = NodeMachines(OWN, b"thisnode", Config(), (), 2**20, journal := MemoryJournal(), 0, ClusterPart(JOIN, True))

    def perform(effect: Any) -> None:
        if isinstance(effect, e.Store):
            journal.commit([effect], lambda error: core.committed(effect.sequence, error))

    def turn(now: float, lease_now: float) -> None:
        core.read_lease_clock(now, lease_now)
        core.tick(now)
        core.decide(now, perform)

    turn(100.0, 5000.0)
    core.receive_from_node(100.5, JOINER + b"other", REGISTRY, MEMBER, JOIN._replace(node=b"othernod"))
    turn(100.5, 5000.5)
    assert core.registry.statistics()["nodes"] == 2
    turn(101.0, 6000.0)
    turn(101.6, 6000.6)
    assert core.registry.statistics()["stalls"] == 1
    assert core.registry.statistics()["nodes"] == 2
    for seconds in range(22):
        turn(102.0 + seconds / 2, 6001.0 + seconds / 2)
    assert core.registry.statistics()["nodes"] == 1, "it did not renew its lease after that"


def test_a_daemon_measures_leases_by_the_clock_that_runs_while_the_machine_is_suspended() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= daemon.lease_clock() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert "self.core.read_lease_clock(now, lease_clock())" in inspect.getsource(daemon.Daemon.run)


ACTOR, CALL, OTHER_NODE = b"\0\0\0\1" + b"actor..." + bytes(4), b"\0\0\0\1" + b"calls..." + bytes(4), b"othernod"

SETTLED = 0.6
"""When nothing is due for some tenths of a second."""


class Caller:
    """The machines of a daemon whose driver calls an actor on another node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.journal, self.ahead = MemoryJournal(), []
        self.core = NodeMachines(OWN, b"thisnode", Config(), (("CPU", 10_000),), 0, self.journal, 0, ClusterPart(JOIN, True))
        self.turn(0.0)
        self.core.receive_from_node(0.0, JOINER + b"other", REGISTRY, MEMBER, JOIN._replace(node=OTHER_NODE))
        self.turn(0.0)
        self.hear(m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.."))
        self.hear(m.Ready())
        for message in (REGISTER, m.Ready()):
            self.send(message)
        self.turn(0.0)
        self.send(m.FindActors((ACTOR,)))
        self.turn(0.0)
        self.hear(m.ActorLocations(((ACTOR, m.ALIVE, OTHER_NODE, 7, False, b"", b""),)))
        while (due := self.core.next_deadline()) is not None and due < SETTLED:
            self.core.tick(due)
            self.turn(due)
        self.ends_of_turns = 0
        right = self.core.scheduler.dispatcher.turn

        def counted(now: float) -> None:
            self.ends_of_turns += 1
            right(now)

        monkeypatch.setattr(self.core.scheduler.dispatcher, "turn", counted)

    def perform(self, effect: Any) -> None:
        if isinstance(effect, e.Store):
            self.journal.commit([effect], lambda error: self.core.committed(effect.sequence, error))

    def hear(self, message: Any, now: float = 0.0) -> None:
        self.core.receive_from_node(now, OTHER_NODE, LOCAL_SCHEDULER, LOCAL_SCHEDULER, message, self.send_ahead)

    def call(self, *options: Any) -> None:
        self.send(m.Call(ACTOR, 7, ((CALL, "add", b"arguments", *options),)))

    def send(self, message: Any) -> None:
        self.core.receive_in_cluster(0.0, DRIVER, LOCAL_SCHEDULER, CLIENT, message, self.send_ahead)

    def send_ahead(self, receiver: bytes, envelopes: list[Any]) -> None:
        self.ahead += [(receiver, message) for _, _, message in envelopes]

    def sent_ahead(self) -> list[Any]:
        """What has left before the end of the turn, and to whom."""
        found, self.ahead = self.ahead, []
        return found

    def outcome(self, number: int = 0) -> tuple[Any, ...]:
        """The outcome of a call."""
        job = bytes(self.core.scheduler.tables.processes[DRIVER].job.id)
        return job + CALL[len(job) : -1] + bytes((number,)), DRIVER, m.OK, (b"value",), ()

    def turn(self, now: float) -> tuple[list[Any], list[Any]]:
        """What the driver and the other node are sent."""
        self.core.decide(now, self.perform)
        to_driver, to_nodes = self.core.take_outgoing().get(DRIVER, ()), self.core.take_outgoing_to_nodes().get(OTHER_NODE, ())
        return [message for _, _, message in to_driver], [message for _, _, message in to_nodes]


def test_a_lone_call_leaves_at_once_without_the_rest_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Caller(monkeypatch)
    relayed = m.RelayedCalls(ACTOR, 7, ((CALL, "add", b"arguments"),), DRIVER, ())
    node.call()
    assert node.sent_ahead() == [(OTHER_NODE, relayed)]
    assert node.core.rests(SETTLED)
    assert node.turn(SETTLED) == ([], [])
    assert node.ends_of_turns == 0


def test_calls_of_one_turn_share_a_frame_but_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Caller(monkeypatch)
    node.call((), (), ())
    assert node.core.pending
    node.call()
    assert node.sent_ahead() == [], "nothing overtakes a call that waits for the end of the turn"
    assert [len(each.rows[0]) for each in node.turn(SETTLED)[1]] == [6, 3]
    assert node.ends_of_turns == 1, "refs may be named"
    node.send(m.Release(()))
    node.call()
    assert node.sent_ahead() == []
    assert [type(each) for each in node.turn(SETTLED)[1]] == [m.RelayedCalls]
    assert node.ends_of_turns == 2, "another message came before it"
    node.core.next_deadline()
    node.core.receive_from_node(SETTLED, OTHER_NODE, LOCAL_SCHEDULER, LOCAL_SCHEDULER, m.CallsEnded(1, (node.outcome(),), ()))
    node.call()
    assert node.sent_ahead() == []
    assert [len(each) for each in node.turn(SETTLED)] == [1, 1]
    assert node.ends_of_turns == 2, "all of them were passed on, and nothing else"


def test_an_outcome_that_is_passed_on_is_acknowledged_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Caller(monkeypatch)
    row = node.outcome()
    for number in (1, 2):
        node.hear(m.CallsEnded(number, (row,), ()), SETTLED)
        assert node.sent_ahead() == [(DRIVER, m.Returned(((row[0], m.OK, (b"value",)),)))]
        assert node.core.rests(SETTLED) == (number > 1), "there is a deadline since the first"
        due = node.core.next_deadline()
        assert due == pytest.approx(SETTLED + RECEIPTS_WITHIN)
    assert node.ends_of_turns == 0
    node.core.tick(due)
    assert [type(each) for each in node.turn(due)[0]] == [m.RequestReceipt]
    node.hear(m.CallsEnded(3, ((*row[:3], (16,), ()),), ()), due)
    assert node.turn(due)[0] == [m.Returned(((row[0], m.OK, (None,)),))]
    assert node.ends_of_turns == 2, "a large value becomes an object of this node"


def test_the_outcomes_of_a_caller_reach_it_together(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Caller(monkeypatch)
    rows = [node.outcome(number) for number in range(3)]
    node.hear(m.CallsEnded(1, tuple(rows), ()), SETTLED)
    assert node.sent_ahead() == [(DRIVER, m.Returned(tuple((row[0], m.OK, (b"value",)) for row in rows)))]


class Submitter(Caller):
    """The machines of a daemon whose driver has run a task on another node, which is named as the only one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.job = bytes(self.core.scheduler.tables.processes[DRIVER].job.id)
        self.send(m.Export(((b"function........", "f", b"", (("demand", ()),)),)))
        self.send(self.submit(1))
        assert [type(each) for each in self.turn(0.0)[1]] == [m.Delegate], "the function goes with the first"
        self.hear(self.ended(1, 1))
        self.turn(0.0)

    def row(self, number: int) -> m.Row:
        return self.job + bytes([number]) * 12, b"function........", b"", ()

    def submit(self, number: int) -> m.Submit:
        return m.Submit(((*self.row(number), (("strategy", (("hard", NODE_ID, "in", (OTHER_NODE.hex(),)),)),)),))

    def ended(self, number: int, task: int) -> m.Ended:
        attempt = self.core.scheduler.tables.first_attempt
        return m.Ended(number, tuple(m.Completed.of(((self.row(task)[0], attempt, m.OK, (b"value",)),))), ())


def test_a_lone_task_and_its_outcome_are_sent_before_the_books_are_kept_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Submitter(monkeypatch)
    first = node.core.scheduler.tables.first_attempt
    node.sent_ahead()
    node.send(node.submit(2))
    assert node.sent_ahead() == [(OTHER_NODE, m.Delegate((node.job, "", b"thisnode"), (), (node.row(2),), (), (), (), first))]
    assert node.turn(0.0) == ([], [])
    node.sent_ahead()
    node.hear(node.ended(2, 2))
    assert node.sent_ahead() == [(DRIVER, m.Results(((node.row(2)[0], m.OK, (b"value",)),)))]
    assert node.turn(0.0) == ([], [])


def test_nothing_is_sent_ahead_of_what_came_before_nor_by_a_silent_node(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Submitter(monkeypatch)
    node.sent_ahead()
    node.send(m.Release(()))
    node.send(node.submit(2))
    assert [type(each) for each in node.turn(0.0)[1]] == [m.Delegate]
    node.hear(m.EndsReceived(0))
    node.hear(node.ended(2, 2))
    assert [type(each) for each in node.turn(0.0)[0]] == [m.Results]
    node.core.member.silent = True
    node.send(node.submit(3))
    assert node.sent_ahead() == []
