"""The daemon's shell, one turn at a time in this process: which processes it sends to and receives from."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import PATIENCE

from zfabric.adapters.datagrams import SUFFIX
from zfabric.adapters.sockets import Transport
from zfabric.config import Config
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER, control_of
from zfabric.runtime.daemon import SWEEP_EVERY, Daemon, clock
from zfabric.runtime.session import Session, new_incarnation
from zfabric.runtime.supervision import Channel


class Here:
    """A daemon whose supervisor and driver are the test."""

    def __init__(self) -> None:
        self.session, self.lock = Session.create()
        self.session.write_description(
            {
                "protocol": m.PROTOCOL_VERSION, "config": {}, "resources": {"CPU": 1.0}, "supervisor": os.getpid(),
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
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        here.daemon._check_memory(here.now)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert steps == []
    here.daemon._check_memory(here.now)
    assert [type(each) for each in steps] == [m.MemoryPressure]
