"""A TCP relay between the nodes of a cluster on one machine, which cuts, delays and slows what passes: faults of a network, without rights.

Nodes listen at one port and are told another one to tell others (``ClusterSettings.advertised``): that of the relay, which passes on what
comes there. Whose connection it is, the kernel says: a node's processes are one session of processes, named after its supervisor. So each
direction between two nodes has faults of its own. What a network would lose, this holds back, as TCP does to those above it: a cut is bytes
that come once it has healed, a lost packet is a pause. ``RESET`` ends connections.

``python tests/relay.py`` is the relay, a process of its own, so that a busy driver does not slow it. ``Relay`` is its remote control.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from zfabric.adapters import processes
from zfabric.runtime.session import ClusterSettings
from zfabric.util.local_cluster import LocalCluster

HOST = "127.0.0.1"
HELD_MAX = 4 * 2**20
"""Bytes that the relay holds for one direction of a connection before it reads no more: what the buffers of a long way hold."""
PIECE = 256 * 2**10
PORTS = range(20_000, 30_000)
"""Where nodes listen: no port that the kernel gives to others."""
_HELD_PORTS: list[socket.socket] = []
"""Keeps what ``free_port`` has bound."""
OUTSIDE = "outside"
"""Whoever is no node."""


class Fault(NamedTuple):
    """What happens to the bytes of one direction."""

    cut: bool = False
    """Whether nothing passes."""
    delay: float = 0.0
    """Seconds that each byte takes longer."""
    rate: float = 0.0
    """Bytes a second (0: as fast as it goes)."""
    loss: float = 0.0
    """The share of pieces that are lost and come again after ``stall`` seconds."""
    stall: float = 0.2


CUT = Fault(cut=True)


class Pipe:
    """One direction of one connection: what was read from ``source`` and is not written to ``target`` yet."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.held: deque[tuple[float, memoryview]] = deque()
        """(when it may go on, bytes)."""
        self.size = 0
        self.ended = False
        """Whether the source has sent all."""
        self.free_at = 0.0
        """When the line is free again, with a rate."""


class Connection:
    """One connection through the relay: from ``dialler`` to ``listener``, on one channel ("control" or "transfer")."""

    def __init__(self, dialler: str, listener: str, channel: str, near: socket.socket, far: socket.socket) -> None:
        self.names = (dialler, listener)
        self.channel = channel
        self.sockets = (near, far)
        self.there = Pipe(near, far)
        self.back = Pipe(far, near)


class Switchboard:
    """All connections, in one loop. Commands come as lines of JSON on the standard input, answers leave on the standard output."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.names: dict[int, str] = {}
        """Nodes by the id of their session of processes."""
        self.faults: dict[tuple[str, str, str], Fault] = {}
        """By who sends, who receives and the channel; "*" stands for all."""
        self.connections: set[Connection] = set()
        self.due: list[tuple[float, int, Connection]] = []
        self.numbers = itertools.count()
        self.passed: dict[str, int] = {}
        """Bytes by "sender>receiver channel"."""
        self.random = random.Random(0)
        self.buffer = b""

    # -- commands --

    def obey(self, what: str, *arguments: Any) -> Any:
        """Carry out a command; its answer."""
        return getattr(self, f"do_{what}")(*arguments)

    def do_listen(self, name: str, channel: str, port: int) -> int:
        """Listen for a node that listens at ``port``; return the port to tell others."""
        listener = socket.create_server((HOST, 0), backlog=1024)
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, (name, channel, port))
        return int(listener.getsockname()[1])

    def do_name(self, session: int, name: str) -> None:
        """Name a node's session of processes."""
        self.names[session] = name

    def do_fault(self, sender: str, receiver: str, channel: str, fault: list[Any]) -> None:
        """Set what happens in one direction; a fault without anything ends it."""
        if Fault(*fault) == Fault():
            self.faults.pop((sender, receiver, channel), None)
        else:
            self.faults[sender, receiver, channel] = Fault(*fault)
        for connection in list(self.connections):
            self.pump(connection, time.monotonic())

    def do_heal(self) -> None:
        """End all faults."""
        self.faults.clear()
        for connection in list(self.connections):
            self.pump(connection, time.monotonic())

    def do_reset(self, one: str, other: str) -> int:
        """End the connections between two nodes at once; return how many there were."""
        found = [each for each in self.connections if self.between(each, one, other)]
        for connection in found:
            for each in connection.sockets:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.end(connection)
        return len(found)

    def do_passed(self) -> dict[str, int]:
        """Bytes that have passed, by direction and channel."""
        return self.passed

    def do_seed(self, seed: int) -> None:
        """Begin chance anew."""
        self.random = random.Random(seed)

    # -- connections --

    def between(self, connection: Connection, one: str, other: str) -> bool:
        names = tuple(map(self.name, connection.names))
        return all(wanted in ("*", found) for wanted, found in zip((one, other), names, strict=True)) or all(
            wanted in ("*", found) for wanted, found in zip((other, one), names, strict=True)
        )

    def name(self, session: str) -> str:
        return self.names.get(int(session), OUTSIDE) if session.isdigit() else session

    def accept(self, listener: socket.socket, name: str, channel: str, port: int) -> None:
        near, (_, dialled_from) = listener.accept()
        near.setblocking(False)
        far = socket.socket()
        far.setblocking(False)
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(BlockingIOError):
            far.connect((HOST, port))
        connection = Connection(session_of(dialled_from), name, channel, near, far)
        self.connections.add(connection)
        self.selector.register(near, selectors.EVENT_READ, connection)
        self.selector.register(far, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def directions(self, connection: Connection) -> list[tuple[Pipe, str, str]]:
        dialler, listener = map(self.name, connection.names)
        return [(connection.there, dialler, listener), (connection.back, listener, dialler)]

    def fault_of(self, sender: str, receiver: str, channel: str) -> Fault:
        for key in itertools.product((sender, "*"), (receiver, "*"), (channel, "*")):
            if key in self.faults:
                return self.faults[key]
        return Fault()

    def pump(self, connection: Connection, now: float) -> None:
        """Read and write what can be, in both directions, and have the loop wait for the rest."""
        if connection not in self.connections:
            return
        wanted = dict.fromkeys(connection.sockets, 0)
        try:
            for pipe, sender, receiver in self.directions(connection):
                fault = self.fault_of(sender, receiver, connection.channel)
                self.read(pipe, fault, now)
                if not fault.cut:
                    self.passed_on(pipe, f"{sender}>{receiver} {connection.channel}", now)
                    if pipe.held and pipe.held[0][0] <= now:
                        wanted[pipe.target] |= selectors.EVENT_WRITE
                    elif pipe.held:
                        heapq.heappush(self.due, (pipe.held[0][0], next(self.numbers), connection))
                    elif pipe.ended:
                        raise EOFError
                if pipe.size < HELD_MAX and not pipe.ended:
                    wanted[pipe.source] |= selectors.EVENT_READ
        except (OSError, EOFError):
            self.end(connection)
            return
        for each, events in wanted.items():
            self.wait_for(each, events, connection)

    def wait_for(self, each: socket.socket, events: int, connection: Connection) -> None:
        known = self.selector.get_map().get(each)
        if known is None and events:
            self.selector.register(each, events, connection)
        elif known is not None and not events:
            self.selector.unregister(each)
        elif known is not None and known.events != events:
            self.selector.modify(each, events, connection)

    def read(self, pipe: Pipe, fault: Fault, now: float) -> None:
        while pipe.size < HELD_MAX and not pipe.ended:
            try:
                data = pipe.source.recv(PIECE)
            except (BlockingIOError, InterruptedError):
                return
            if not data:
                pipe.ended = True
                return
            due = now + fault.delay
            if fault.loss and self.random.random() < fault.loss:
                due += fault.stall
            if fault.rate:
                pipe.free_at = max(pipe.free_at, now) + len(data) / fault.rate
                due = max(due, pipe.free_at + fault.delay)
            if pipe.held:
                due = max(due, pipe.held[-1][0])
            pipe.held.append((due, memoryview(data)))
            pipe.size += len(data)

    def passed_on(self, pipe: Pipe, name: str, now: float) -> None:
        while pipe.held and pipe.held[0][0] <= now:
            due, data = pipe.held[0]
            try:
                count = pipe.target.send(data)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno == 107:  # Not connected yet.
                    return
                raise
            self.passed[name] = self.passed.get(name, 0) + count
            pipe.size -= count
            if count == len(data):
                pipe.held.popleft()
            else:
                pipe.held[0] = (due, data[count:])

    def end(self, connection: Connection) -> None:
        self.connections.discard(connection)
        for each in connection.sockets:
            with suppress(KeyError):
                self.selector.unregister(each)
            each.close()

    # -- the loop --

    def run(self) -> None:
        """Run until the standard input ends."""
        self.selector.register(0, selectors.EVENT_READ, None)
        while True:
            wait = max(0.0, self.due[0][0] - time.monotonic()) if self.due else None
            for key, _ in self.selector.select(wait):
                if key.data is None:
                    if not self.commanded():
                        return
                elif isinstance(key.data, Connection):
                    self.pump(key.data, time.monotonic())
                else:
                    self.accept(key.fileobj, *key.data)  # type: ignore[arg-type]
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                self.pump(heapq.heappop(self.due)[2], now)

    def commanded(self) -> bool:
        data = os.read(0, 65536)
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            print(json.dumps(self.obey(*json.loads(line))), flush=True)
        return bool(data)


def session_of(port: int) -> str:
    """The session of processes that has the local end of a connection from this port, as text; empty if it is gone."""
    inode = ""
    with open("/proc/net/tcp") as table:
        for line in table:
            fields = line.split()
            if fields[1].endswith(f":{port:04X}") and fields[3] in ("01", "02", "08"):
                inode = f"socket:[{fields[9]}]"
                break
    for pid in filter(str.isdigit, os.listdir("/proc")) if inode else ():
        try:
            with open(f"/proc/{pid}/comm") as file:
                if not file.read().startswith(("zf-", "python", "pytest", "zfabric")):
                    continue
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(FileNotFoundError):  # It has just been closed; the connection may be another one.
                    if os.readlink(entry.path) == inode:
                        return str(os.getsid(int(pid)))
        except OSError:
            continue  # It has just ended, or belongs to another user.
    return ""


class Relay:
    """The remote control of a relay in a process of its own. Use as a context manager."""

    def __enter__(self) -> Relay:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __call__(self, *command: Any) -> Any:
        """Send a command; its answer. The relay has carried it out when this returns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the relay has ended at {command}")
        return json.loads(answer)

    def fault(self, sender: str, receiver: str, fault: Fault, channel: str = "*") -> None:
        """Set what happens to bytes from one node to another ("*": any); ``Fault()`` ends it."""
        self("fault", sender, receiver, channel, list(fault))

    def between(self, one: str, other: str, fault: Fault, channel: str = "*") -> None:
        """Set what happens in both directions."""
        self.fault(one, other, fault, channel)
        self.fault(other, one, fault, channel)

    def cut(self, one: str, other: str, channel: str = "*") -> None:
        """Let nothing pass between two nodes."""
        self.between(one, other, CUT, channel)

    def heal(self) -> None:
        """End all faults."""
        self("heal")

    def reset(self, one: str = "*", other: str = "*") -> int:
        """End the connections between two nodes; return how many there were."""
        return int(self("reset", one, other))


class RelayedCluster(LocalCluster):
    """A ``LocalCluster`` whose nodes reach each other through ``relay``, under their names: "node1" is the head."""

    def __init__(self, relay: Relay, *arguments: Any, **options: Any) -> None:
        self.relay = relay
        super().__init__(*arguments, **options)

    def _reached(self, settings: ClusterSettings) -> ClusterSettings:
        control, transfer = free_port(), free_port()
        return settings._replace(
            host=HOST,
            port=control,
            transfer_port=transfer,
            advertised=f"{HOST}:{self.relay('listen', settings.name, 'control', control)}",
            advertised_transfer=f"{HOST}:{self.relay('listen', settings.name, 'transfer', transfer)}",
        )

    def _launch(self, *arguments: Any, **options: Any) -> Any:
        node = super()._launch(*arguments, **options)
        self.relay("name", os.getsid(node.pid), node.name)
        return node


def free_port(host: str = HOST) -> int:
    """A port at which nobody listens. No other process gets it from here: it stays bound, and nodes may listen there nevertheless."""
    while True:
        port, probe = random.choice(PORTS), socket.socket()
        try:
            probe.bind((host, port))
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # After it is bound: two that ask at once do not get the same.
        _HELD_PORTS.append(probe)
        return port


if __name__ == "__main__":
    processes.die_with_parent(os.getppid())
    processes.set_name("zf-relay")
    Switchboard().run()
