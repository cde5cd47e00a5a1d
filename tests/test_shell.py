"""What both shells decide, alone: the machines of a daemon, delivery between them, and who may send them what."""

from __future__ import annotations

from typing import Any

import pytest

from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.config import Config
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER, OBJECT_STORE, SHELL, control_of, is_control
from zfabric.shell.node import NodeMachines
from zfabric.sim.processes import Driver
from zfabric.sim.world import World

OWN, DRIVER = b"\1daemon\0", b"\1driver\0"
REGISTER = m.Register(m.PROTOCOL_VERSION, "driver", 77, 1, b"", DRIVER, b"", "", "")


class Node:
    """The machines of a daemon; the test is its shell."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.machines = NodeMachines(OWN, b"node", Config(), (("CPU", 10_000),), 0, self.journal, 0)
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


def test_a_turn_ends_when_no_machine_has_anything_left() -> None:
    node = Node()
    sent = node.register()
    # The number of the job was asked for, committed and answered within the turn: control store and scheduler met in memory.
    assert [type(message) for _, _, message in sent[DRIVER]] == [m.Welcome]
    assert any(isinstance(effect, e.Store) for effect in node.performed)
    assert not node.machines.pending
    assert node.turn(0.0) == {}


def test_what_a_process_may_not_send_is_refused_and_counted() -> None:
    node = Node()
    node.machines.receive(0.0, DRIVER, LOCAL_SCHEDULER, CLIENT, m.ProcessDied(1, 0, 0, 0, ""))
    node.machines.receive(0.0, DRIVER, SHELL, CLIENT, m.Ready())
    node.machines.receive(0.0, DRIVER, OBJECT_STORE, CLIENT, m.Unpin(()))  # allowed to those that are registered
    assert node.machines.refused == 3
    node.register()
    node.machines.receive(0.0, DRIVER, OBJECT_STORE, CLIENT, m.Unpin(()))
    assert node.machines.refused == 3


def test_only_machines_that_took_something_in_are_asked_and_deadlines_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_machines_that_answer_each_other_for_ever_end_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_world_fails_when_a_process_sends_what_it_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Driver.flush

    def flush(self: Driver) -> None:
        if self.machine.welcomed and not self.finished:
            self.machine.say(m.LogLines(()))
        right(self)

    monkeypatch.setattr(Driver, "flush", flush)
    assert "refuses LogLines" in World(0).run().failure


def test_the_incarnation_of_a_control_thread_is_that_of_its_process_marked() -> None:
    assert is_control(control_of(DRIVER))
    assert control_of(control_of(DRIVER)) == DRIVER
