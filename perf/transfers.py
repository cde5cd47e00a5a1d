"""Nodes with real transfer agents and little else: each has an arena, the machines of a daemon, and ``zf-transfer`` as a process.

Measurements and tests share them. ``python -m perf.transfers`` is the agent, which reads what it needs from its standard input.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

import zmq
from zmq import zmq_poll

from perf import machine
from zfabric.adapters import processes
from zfabric.adapters.arena import Arena, create_arena
from zfabric.adapters.curve import KeyPair, make_pair
from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.adapters.sockets import Transport
from zfabric.config import Config, MiB
from zfabric.machines.common.extents import HEADER_BYTES
from zfabric.machines.local_scheduler.object_places import Stored
from zfabric.machines.local_scheduler.records import ObjectRecord
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import LOCAL_SCHEDULER, OBJECT_STORE, object_id
from zfabric.protocol.messages import OK
from zfabric.runtime.connect import new_incarnation
from zfabric.runtime.session import Session
from zfabric.runtime.storage import Storage
from zfabric.runtime.transfer import TransferProcess
from zfabric.shell.node import NodeMachines

CREDIT = Config().transfer_credit
WRITER = b"\x01writer\x00"
"""The process that puts values."""


class AgentNode:
    """One node. Its daemon's loop runs in the caller's process (``AgentNodes.until``)."""

    def __init__(self, base: str, number: int, arena_bytes: int, encrypted: bool, config: dict[str, Any]) -> None:
        self.number = number
        self.identifier = new_incarnation()
        self.daemon = new_incarnation()
        self.keys = make_pair() if encrypted else KeyPair(self.identifier, b"")
        self.config = Config.of(config)
        self.session, self._lock = Session.create(base)
        self._descriptor = create_arena("", arena_bytes)
        self.session.write_description(
            {
                "protocol": m.PROTOCOL_VERSION,
                "config": dict(config),
                "arena": f"/proc/{os.getpid()}/fd/{self._descriptor}",
                "arena_size": arena_bytes,
            }
        )
        self.arena = Arena(f"/proc/self/fd/{self._descriptor}", arena_bytes, writable=True)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self.transport = Transport(self._context, self.session.sockets, self.daemon, self.config)
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events: deque[m.Message] = deque()
        self.storage = Storage(f"/proc/self/fd/{self._descriptor}", arena_bytes, f"{self.session.directory}/spill", self._answered)
        resources = (("CPU", 10_000),)
        self.core = NodeMachines(self.daemon, self.identifier, self.config, resources, arena_bytes, MemoryJournal(), 0)
        self.values: dict[bytes, tuple[int, int]] = {}
        """Values that were put here: (offset, size)."""
        self.ended: dict[bytes, tuple[str, str]] = {}
        """Copies that have ended: (kind, text), both empty for those that are here."""
        self._putting: dict[int, tuple[bytes, int, Callable[[memoryview], None]]] = {}
        self._pins: set[bytes] = set()
        self._tokens = 0
        self.address = ""
        self.advertised = ""
        """Where others reach the agent, if not at its address: through a relay."""
        self.process: subprocess.Popen[str] | None = None
        self.core.receive(0.0, WRITER, LOCAL_SCHEDULER, b"C", m.Register(m.PROTOCOL_VERSION, "tool", 1, 1, b"", b"", b"", "", ""))

    # -- the agent --

    def start_agent(self) -> None:
        """Start the agent, and wait until it listens."""
        arguments = [sys.executable, "-m", "perf.transfers"]
        self.process = subprocess.Popen(arguments, cwd=machine.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        keys = [key.decode("latin-1") for key in self.keys]
        self.process.stdin.write(json.dumps([self.session.directory, self.daemon.hex(), keys, self.address or "tcp://127.0.0.1:*"]) + "\n")
        self.process.stdin.flush()
        self.address = self.process.stdout.readline().strip()

    def kill_agent(self) -> None:
        """Kill the agent, and report its death as the supervisor does."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate()
        pid = self.process.pid
        for incarnation in self.core.incarnations_of(pid):
            self.transport.forget(incarnation)
        self.core.step(time.monotonic(), LOCAL_SCHEDULER, m.ProcessDied(pid, 0, 9, 0, ""))

    def cpu_seconds(self) -> float:
        """Processor time of the agent."""
        assert self.process is not None
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # -- values --

    def put(self, number: int, size: int, fill: Callable[[memoryview], None]) -> bytes:
        """Put a value as soon as there is room for it; return its id."""
        identifier = object_id(bytes((0, 0, 0, 1)) + bytes(8) + number.to_bytes(4, "big"))
        self._tokens += 1
        self._putting[self._tokens] = (identifier, size, fill)
        self.core.receive(time.monotonic(), WRITER, OBJECT_STORE, b"C", m.Reserve(self._tokens, size, 0, 30.0))
        return identifier

    def _granted(self, message: m.Granted) -> None:
        identifier, size, fill = self._putting.pop(message.token)
        offset = message.offset + HEADER_BYTES
        fill(self.arena.writable(offset, size))
        self.arena.seal(offset, identifier, size)
        self.values[identifier] = (offset, size)
        row = (identifier, (offset, size), (), False)
        self.core.receive(time.monotonic(), WRITER, LOCAL_SCHEDULER, b"C", m.Put((row,)))

    def pull(self, identifier: bytes, size: int, *sources: AgentNode) -> None:
        """Have a value copied from these nodes."""
        self.ended.pop(identifier, None)
        self.core.scheduler.copies.pull(identifier, size, tuple(node.identifier for node in sources), self._ended)
        self.core.stir(LOCAL_SCHEDULER)

    def _ended(self, now: float, message: m.Pulled | m.PullFailed, agent: bytes) -> None:
        if isinstance(message, m.Pulled):
            self.core.scheduler.tables.store.seal(*message, agent, True)
            self.ended[message.object_id] = ("", "")
        else:
            self.ended[message.object_id] = (message.kind, message.text)

    def content(self, identifier: bytes) -> memoryview:
        """The bytes of a value in this node's arena."""
        entry = self.core.store._tables.entries[identifier]
        assert entry.offset is not None
        return self.arena.view(entry.offset, entry.size)

    def pin(self, identifier: bytes) -> None:
        """Pin a value, as a process that reads it does."""
        self._pins.add(identifier)
        self.core.store.step(time.monotonic(), LOCAL_SCHEDULER + self.daemon, m.Locate(((identifier, WRITER),)))

    def keep(self, identifier: bytes) -> None:
        """Have the scheduler know a copy, so that others can read it."""
        record = ObjectRecord(identifier, None, WRITER)
        record.status, record.value = OK, Stored(self.core.store._tables.entries[identifier].size)
        self.core.scheduler.tables.objects[identifier] = record

    def free(self, identifier: bytes) -> None:
        """Forget a copy."""
        self.core.store.step(time.monotonic(), LOCAL_SCHEDULER + self.daemon, m.Free((identifier,)))
        self.core.stir(OBJECT_STORE)

    def pinned(self) -> int:
        """Values that the agent has pinned."""
        entries = self.core.store._tables.entries.values()
        return sum(any(process != WRITER for process in entry.pins) for entry in entries)

    # -- the loop --

    def row(self) -> m.Row:
        """Its row of ``NodeTable``."""
        return self.identifier, self.number, f"node{self.number}", "", self.advertised or self.address, self.keys.public, (), (), 0

    def _answered(self, message: m.Message) -> None:
        self._events.append(message)
        os.eventfd_write(self.wakeup, 1)

    def turn(self) -> None:
        """One turn of the daemon."""
        now = time.monotonic()
        while self._events:
            self.core.step(now, OBJECT_STORE, self._events.popleft())
        while self.transport.polled({}) or self.transport.readable:
            taken = self.transport.take()
            if taken is None:
                break
            sender, frame = taken
            for to, role, message in self.transport.accept(sender, frame, now):
                self.core.receive(now, sender, to, role, message)
        self.core.tick(now)
        self.core.decide(now, self._perform)
        for incarnation, envelopes in self.core.take_outgoing().items():
            if incarnation == WRITER:
                for _, _, message in envelopes:
                    if isinstance(message, m.Granted):
                        self._granted(message)
                    elif isinstance(message, m.Objects):
                        ids = tuple(row[0] for row in message.rows if row[0] not in self._pins)
                        self.core.receive(now, WRITER, OBJECT_STORE, b"C", m.Unpin(ids))
            else:
                self.transport.send_envelopes(incarnation, envelopes, now)
        self.core.take_outgoing_to_nodes()
        self.transport.tick(now)

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, e.Store):
            self.core.committed(effect.sequence, "")
        elif not isinstance(effect, e.Log | e.StartAgent | e.WatchProcess | e.SpawnWorker | e.KillProcess):
            self.storage.perform(effect)

    def close(self) -> None:
        """End the agent, and remove everything."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.storage.close()
        self.transport.close()
        self._context.term()
        os.close(self.wakeup)
        os.close(self._descriptor)
        os.close(self._lock)


class AgentNodes:
    """Some of them, which know each other. Use as a context manager."""

    def __init__(self, count: int, arena_bytes: int, encrypted: bool = True, **config: Any) -> None:
        self._base = tempfile.mkdtemp(prefix="zf-")
        self.nodes = [AgentNode(self._base, number, arena_bytes, encrypted, config) for number in range(1, count + 1)]
        self._version = 0

    def __enter__(self) -> AgentNodes:
        for node in self.nodes:
            node.start_agent()
        self.introduce()
        return self

    def introduce(self, *nodes: AgentNode) -> None:
        """Have all nodes know these (none: all)."""
        self._version += 1
        table = m.NodeTable(self._version, tuple(node.row() for node in nodes or self.nodes))
        for node in self.nodes:
            node.core.step(time.monotonic(), LOCAL_SCHEDULER, table)

    def until(self, done: Callable[[], bool], seconds: float = 60.0) -> None:
        """Run all daemons until something is so. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        sources = [each for node in self.nodes for each in (*node.transport.sources, (node.wakeup, int(zmq.POLLIN)))]
        for node in self.nodes:
            node.turn()
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError
            due = [each for node in self.nodes for each in (node.core.next_deadline(), node.transport.next_deadline()) if each is not None]
            wait = max(0.0, min([0.1, *(each - time.monotonic() for each in due)]))
            ready = dict(zmq_poll(sources, int(wait * 1000 + 0.999)))
            for node in self.nodes:
                if node.wakeup in ready:
                    os.eventfd_read(node.wakeup)
                node.transport.polled(ready)
                node.turn()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        for node in self.nodes:
            node.close()
        shutil.rmtree(self._base, ignore_errors=True)


class RawFrames:
    """The floor: frames of 1 MiB by nothing but pyzmq, sent without a copy, with one copy into memory at the receiver.

    The receiver is a process of its own, and has as many frames under way as an agent. ``raw_tcp`` is the same by ``sendall`` and
    ``recv_into``, without frames.
    """

    def __init__(self, encrypted: bool = True, frames: int = 64) -> None:
        self._keys, self._theirs = make_pair(), make_pair()
        self._memory = memoryview(os.urandom(MiB) * frames)
        self._frames = frames
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if encrypted:
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._listener = socket.create_server(("127.0.0.1", 0))
        public, own = (self._keys.public, self._theirs) if encrypted else (b"", KeyPair(b"", b""))
        what = [port, self._listener.getsockname()[1], frames, *(each.decode() for each in (public, own.public, own.secret))]
        arguments = [sys.executable, "-m", "perf.transfers"]
        self._process = subprocess.Popen(arguments, cwd=machine.ROOT, stdin=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        self._reader = self._socket.recv_multipart()[0]
        self._stream, _ = self._listener.accept()
        self.mebibytes_per_second(2 * CREDIT)

    def mebibytes_per_second(self, count: int) -> float:
        """Send so many frames."""
        begin = time.perf_counter()
        sent = received = 0
        while received < count:
            while sent < count and sent - received < CREDIT:
                start = sent % self._frames * MiB
                self._socket.send(self._reader, zmq.SNDMORE)
                self._socket.send(self._memory[start : start + MiB], copy=False)
                sent += 1
            self._socket.recv_multipart()
            received += 1
        return count / (time.perf_counter() - begin)

    def raw_tcp(self, count: int) -> float:
        """Send as much over a plain connection, in MiB a second."""
        begin = time.perf_counter()
        for number in range(count):
            start = number % self._frames * MiB
            self._stream.sendall(self._memory[start : start + MiB])
        self._stream.shutdown(socket.SHUT_WR)
        self._stream.recv(1)
        rate = count / (time.perf_counter() - begin)
        self._stream.close()
        self._stream, _ = self._listener.accept()
        return rate

    def close(self) -> None:
        """End the receiver."""
        self._process.kill()
        self._process.communicate()
        self._stream.close()
        self._listener.close()
        self._context.destroy(linger=0)


def receive_raw(port: int, plain: int, frames: int, server: str, public: str, secret: str) -> None:
    """The receiver of ``RawFrames``."""
    memory = memoryview(bytearray(b"x" * (frames * MiB)))
    threading.Thread(target=_receive_plain, args=(plain, memory), daemon=True).start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    dealer = context.socket(zmq.DEALER)
    if server:
        dealer.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, public.encode())
        dealer.setsockopt(zmq.CURVE_SECRETKEY, secret.encode())
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send(b"")
    number = 0
    while True:
        frame = dealer.recv(copy=False)
        start = number % frames * MiB
        memory[start : start + MiB] = frame.buffer
        dealer.send(b"")
        number += 1


def _receive_plain(port: int, memory: memoryview) -> None:
    while True:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            start = 0
            while count := connection.recv_into(memory[start : start + MiB]):
                start = (start + count) % (len(memory) - MiB)
            connection.send(b"x")


def main() -> None:
    """Run an agent as the supervisor would, or the receiver of ``RawFrames``."""
    processes.die_with_parent(os.getppid())
    processes.set_name("zf-transfer")
    what = json.loads(sys.stdin.readline())
    if len(what) != 4:
        receive_raw(*what)
    directory, daemon, keys, endpoint = what
    pair = KeyPair(*(key.encode("latin-1") for key in keys))
    agent = TransferProcess(Session(directory), bytes.fromhex(daemon), pair, endpoint)
    print(agent.sockets.address, flush=True)
    agent.run()


if __name__ == "__main__":
    main()
