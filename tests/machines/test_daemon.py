"""The daemon's shell, one turn at a time in this process: which processes it sends to and receives from."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults import PATIENCE

from zfabric.adapters import processes
from zfabric.adapters.datagrams import SUFFIX
from zfabric.adapters.sockets import Transport
from zfabric.config import Config
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER, control_of
from zfabric.runtime import daemon as daemon_module
from zfabric.runtime.daemon import ALERT_AFTER, LOOK_SECONDS, SWEEP_EVERY, Daemon, clock
from zfabric.runtime.session import Session, new_incarnation
from zfabric.runtime.supervision import Channel


class Here:
    """A daemon whose supervisor and driver are the test."""

    def __init__(self) -> None:
        self.session, self.lock = Session.create()
        self.session.write_description(
            {
                "protocol": m.PROTOCOL_VERSION, "config": {}, "resources": {"CPU": 1.0}, "labels": {}, "supervisor": os.getpid(),
                "started": 1, "arena": "", "arena_size": 0, "store": f"{self.session.directory}/store", "spill": "",
                "node": new_incarnation().hex(), "cluster": None,
            }
        )  # fmt: skip
        self.supervisor, theirs = Channel.pair()
        self.daemon = Daemon(self.session, os.dup(theirs.fileno()), False)
        theirs.close()
        self.now = clock()
        self.turn()
        self.driver = new_incarnation()
        self.transport = Transport(self.daemon.context, self.session.sockets, self.driver, Config())

    def turn(self) -> None:
        """Receive what the supervisor has sent; perform effects until none is left."""
        self.daemon._supervised(self.now)
        self.daemon.turn(self.now)

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.daemon.core.receive(self.now, self.driver, LOCAL_SCHEDULER, CLIENT, message)
        self.turn()

    def sweep(self) -> None:
        self.now += SWEEP_EVERY
        self.daemon._watch_over(self.now, True)

    def received(self, kind: type[Any]) -> bool:
        """Whether a message of this kind comes to the driver."""
        while self.transport.poll(PATIENCE):
            for sender, frame in self.transport.receive():
                if any(type(message) is kind for _, _, message in self.transport.accept(sender, frame, self.now)):
                    return True
        return False

    def close(self) -> None:
        self.transport.close()
        self.daemon.close()
        self.supervisor.close()
        os.close(self.lock)
        self.session.remove()


@pytest.fixture
def here() -> Iterator[Here]:
    made = Here()
    try:
        yield made
    finally:
        made.close()


def workers(here: Here) -> list[int]:
    """The daemon's workers have been started; their pids."""
    pids = []
    while (packet := here.supervisor.receive()) is not None and packet[0] == "spawn":
        pids.append(2**22 + 1 + len(pids))
        here.supervisor.send("WorkerSpawned", packet[1], pids[-1], "")
        here.turn()
        if len(pids) == here.daemon.scheduler.workers.cpus:
            break
    return pids


def test_a_driver_that_exits_receives_its_goodbye_whoever_dies_meanwhile(here: Here) -> None:
    pid, *_ = workers(here)
    here.send(m.Register(m.PROTOCOL_VERSION, "driver", os.getpid(), 1, b"", b"program", b"", "", ""), m.Ready())
    assert here.received(m.Welcome)
    here.send(m.Goodbye())
    peer = here.daemon.transport.peers[here.driver]
    assert any(type(message) is m.Farewell for _, _, message in peer.link.unacknowledged())
    # The job's workers are killed in the same moment, and the daemon may look for strangers just now.
    here.supervisor.send("ProcessDied", pid, 0, 9, 0, "")
    here.turn()
    here.sweep()
    assert here.daemon.transport.peers.get(here.driver) is peer
    assert here.received(m.Farewell)
    here.sweep()
    assert here.driver not in here.daemon.transport.peers


def test_links_of_dead_processes_are_closed_at_once(here: Here) -> None:
    pid, *_ = workers(here)
    (token,) = (worker.token for worker in here.daemon.scheduler.tables.workers.values() if worker.pid == pid)
    here.send(m.Register(m.PROTOCOL_VERSION, "driver", os.getpid(), 1, b"", b"program", b"", "", ""), m.Ready())
    for incarnation in (token, control_of(token), here.driver):
        here.daemon.transport.peer(incarnation)
    sockets = Path(here.session.sockets)
    for path in (here.session.socket_path(token), here.session.socket_path(token) + SUFFIX):
        Path(path).touch()
    here.supervisor.send("ProcessDied", pid, 0, 9, 0, "")
    here.turn()
    assert here.daemon.transport.peers.keys() == {here.driver}
    assert {path.stem for path in sockets.iterdir()} == {here.daemon.incarnation.hex(), here.driver.hex()}
    here.supervisor.send("ProcessDied", os.getpid(), 0, 0, 0, "")
    here.daemon._supervised(here.now)
    assert here.daemon.transport.peers.keys() == set()
    assert {path.stem for path in sockets.iterdir()} == {here.daemon.incarnation.hex()}, "nobody else deletes what a killed driver bound"


def test_without_a_descriptor_left_nobody_is_ended_for_want_of_memory(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers' connections may take all of them for a while; how much memory is free is then not known."""
    steps: list[Any] = []
    monkeypatch.setattr(here.daemon.core, "step", lambda now, role, message: steps.append(message))
    here.daemon._memory_limit = 0  # Whatever is free is too little.

    def no_descriptor(path: str) -> Any:
        raise OSError(errno.EMFILE, "Too many open files", path)

    # Not by a limit of this process: threads of ZeroMQ, which other tests have here, end it if they can open no file.
    with monkeypatch.context() as patch:
        patch.setattr(processes, "open", no_descriptor, raising=False)
        here.daemon._check_memory(here.now)
    assert steps == []
    here.daemon._check_memory(here.now)
    assert [type(each) for each in steps] == [m.MemoryPressure]


class Waits:
    """What a daemon's ``_wait`` polls, where each poll without waiting takes a twentieth of ``LOOK_SECONDS``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.daemon: Any = Daemon.__new__(Daemon)
        self.daemon._expectant = self.daemon._answered_soon = False
        self.now = self.comes_at = 0.0
        self.timeouts: list[int] = []
        monkeypatch.setattr(daemon_module, "clock", lambda: self.now)
        monkeypatch.setattr(daemon_module, "zmq_poll", self._poll)

    def _poll(self, polled: Any, timeout: int) -> list[tuple[Any, int]]:
        self.timeouts.append(timeout)
        self.now = max(self.now, self.comes_at) if timeout else self.now + LOOK_SECONDS / 20
        return polled if self.now >= self.comes_at else []

    def __call__(self, expectant: bool, seconds: float, timeout: int = 50) -> list[int]:
        """Wait for something that comes after some seconds; return the timeouts of the polls."""
        self.timeouts, self.comes_at, self.daemon._expectant = [], self.now + seconds, expectant
        assert self.daemon._wait([(7, 1)], timeout) == ([(7, 1)] if timeout else [])
        assert not self.daemon._expectant
        return self.timeouts


def test_a_daemon_looks_for_an_answer_before_it_sleeps_only_while_answers_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Waits(monkeypatch)
    soon, late = LOOK_SECONDS / 2, LOOK_SECONDS * 10
    assert wait(True, soon) == [50], "nothing is known of answers yet"
    assert set(wait(True, soon)) == {0}
    assert wait(False, soon) == [50], "nobody was sent what it waited for"
    assert wait(True, late, timeout=0) == [0], "something else is due now"
    looked = wait(True, late)
    assert set(looked[:-1]) == {0}
    assert len(looked) <= 22
    assert looked[-1] == 50, "it looks for a limited time"
    assert wait(True, late) == wait(True, late) == wait(True, soon) == [50], "and no more, until one has come at once again"
    assert set(wait(True, soon)) == {0}


def test_a_daemon_expects_an_answer_of_processes_that_were_sent_a_message_ahead_and_not_of_nodes() -> None:
    made, sent, _ = sending()
    made._send_ahead(b"othernod", [(LOCAL_SCHEDULER, LOCAL_SCHEDULER, m.Ready())])
    assert not made._expectant
    made._send_ahead(b"driver", [(CLIENT, LOCAL_SCHEDULER, m.Results(()))])
    assert made._expectant
    assert sent == [b"othernod", b"driver"]


def sending() -> tuple[Any, list[bytes], list[bytes]]:
    """A daemon that only sends messages ahead: with whom it has sent one, and whom it has alerted."""
    made: Any = Daemon.__new__(Daemon)
    sent: list[bytes] = []
    alerted: list[bytes] = []
    made._expectant, made._likely, made._sent_ahead = False, b"", b""
    made.transport, made.cluster = SimpleNamespace(alert=alerted.append), SimpleNamespace(transport=SimpleNamespace())
    made.transport.send_envelopes = made.cluster.transport.send_envelopes = lambda receiver, *_: sent.append(receiver)
    return made, sent, alerted


def test_a_daemon_alerts_the_process_that_the_last_two_messages_of_nodes_were_for() -> None:
    made, _, alerted = sending()

    def message(receiver: bytes, waited: float = 2 * ALERT_AFTER) -> list[bytes]:
        """Another node sends something for this process, or for none; return who was alerted before that was known."""
        alerted.clear()
        made._alert(waited)
        if receiver:
            made._send_ahead(receiver, [(CLIENT, LOCAL_SCHEDULER, m.Results(()))])
        return list(alerted)

    assert message(b"driver") == message(b"driver") == []
    assert message(b"driver") == [b"driver"]
    assert message(b"") == [b"driver"], "a heartbeat, say"
    assert message(b"driver") == [], "nothing is likely after a message for nobody"
    assert message(b"worker") == [b"driver"]
    assert message(b"worker") == message(b"driver", waited=0.0) == [], "others may be right behind a message that comes at once"
    assert message(b"driver") == message(b"worker", waited=0.0) == []
