"""The process of a transfer agent, ``zf-transfer``: one thread, one loop, around ``machines.transfer``.

The supervisor forks it for a daemon, restarts it, and ends it with that daemon. It has a local connection with the daemon, and encrypted
ones with other agents. Bytes go between sockets and the arena, or a spill file.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Container
from typing import Any

import zmq
from zmq import zmq_poll

from zfabric.adapters.arena import Arena
from zfabric.adapters.chunk_sockets import ChunkSockets
from zfabric.adapters.curve import Context, KeyPair
from zfabric.adapters.processes import open_more_files, retain_free_memory, start_ticks
from zfabric.adapters.sockets import Transport
from zfabric.adapters.spill import SpillFiles, SpillWriter
from zfabric.config import CHUNK_BYTES
from zfabric.exceptions import ConnectionLostError
from zfabric.machines.common.extents import file_number
from zfabric.machines.transfer import TransferAgent
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import SHELL, TRANSFER_AGENT, Address
from zfabric.protocol.messages import Envelope
from zfabric.runtime.keys import read_server_pair
from zfabric.runtime.session import Session, new_incarnation

clock = time.monotonic

FRAMES_PER_TURN = 32
SENT_EVERY = 0.005
"""Seconds between checks whether chunks have left; their values stay pinned so much longer."""
MANY = 4
"""Above so many values the agent pauses before each turn."""
PAUSE = 0.002
"""Seconds. What arrives meanwhile is one turn's work, here, at the source and in both daemons. A single large value would only wait."""
_TO_SOURCE = (m.Want, m.Credit, m.StopWant, m.Ping)
"""Messages over the connection dialled here; all others answer over the other's."""


class ValueFiles:
    """Chunks in the arena or in spill files."""

    def __init__(self, arena: Arena, spill: str) -> None:
        self._arena = arena
        self._files = SpillFiles(spill)
        self._writers: dict[int, SpillWriter] = {}
        """Files being written, by the offset that stands for the file."""

    def read(self, offset: int, value_size: int, position: int, size: int) -> memoryview:
        """A chunk's bytes. Raises OSError."""
        if offset >= 0:
            return self._arena.view(offset + position, size)
        return self._files.map(file_number(offset), value_size)[position : position + size]

    def write(self, offset: int, position: int, data: memoryview) -> None:
        """Write the next chunk of a value. Raises OSError."""
        if offset >= 0:
            self._arena.writable(offset + position, len(data))[:] = data
            return
        if not position:
            self.give_up(offset)
            self._writers[offset] = self._files.begin(file_number(offset))
        self._writers[offset].write(data)

    def seal(self, offset: int, object_id: bytes, size: int) -> None:
        """Seal a written value. Raises OSError."""
        if offset >= 0:
            self._arena.seal(offset, object_id, size)
            return
        writer = self._writers.pop(offset, None) or self._files.begin(file_number(offset))
        try:
            writer.finish(object_id)
        finally:
            writer.close()

    def give_up(self, offset: int) -> None:
        """Abandon a write."""
        writer = self._writers.pop(offset, None)
        if writer is not None:
            writer.close()


class TransferProcess:
    """One agent, under one daemon."""

    def __init__(self, session: Session, daemon: bytes, keys: KeyPair, endpoint: str, bound: int = -1) -> None:
        description = session.describe()
        config = session.config()
        self._credit = config.transfer_credit
        self.incarnation = new_incarnation()
        self._daemon = daemon
        self._context: Context = zmq.Context(1)
        self._transport = Transport(self._context, session.sockets, self.incarnation, config)
        self.sockets = ChunkSockets(self._context, keys, endpoint, bound)
        self.machine = TransferAgent(TRANSFER_AGENT + self.incarnation, config, daemon)
        arena = Arena(str(description["arena"]), int(description["arena_size"]), writable=True)
        self._files = ValueFiles(arena, description.get("spill") or f"{session.directory}/spill")
        self._chunks: dict[tuple[Address, int, int], memoryview] = {}
        """This turn's chunks, by source, token and position."""
        self._failed: dict[int, str] = {}
        """Failed writes, by offset."""
        self._events: list[m.Message] = []
        """Messages from this shell."""
        self._version = -1
        self._shell = SHELL + self.incarnation
        self.machine.register(m.Register(m.PROTOCOL_VERSION, "agent", os.getpid(), start_ticks(os.getpid()), b"", b"", b"", "", ""))

    def run(self) -> None:
        """Run until the daemon refuses this process."""
        retain_free_memory(2 * CHUNK_BYTES, 2 * self._credit * CHUNK_BYTES)
        self.turn(clock())
        while not self.machine.refused:
            self.step(60.0)
        raise ConnectionLostError(f"the daemon has refused the transfer agent: {self.machine.refused}")

    def step(self, patience: float) -> None:
        """Handle events, after waiting up to ``patience`` seconds for one."""
        now = clock()
        parts = (self.machine, self._transport, self.sockets)
        due = [each for part in parts if (each := part.next_deadline()) is not None]
        wait = min([patience, *(max(0.0, each - now) for each in due)])
        if self.sockets.sending:
            wait = min(wait, SENT_EVERY)
        if self._transport.congested:
            wait = min(wait, 0.002)
        if self.machine.pulls.under_way > MANY:
            time.sleep(PAUSE)  # More chunks arrive meanwhile, and are taken together.
        ready: dict[Any, int] = dict(zmq_poll(self._transport.sources + self.sockets.sources, int(wait * 1000 + 0.999)))
        now = clock()
        if self._transport.polled(ready):
            self._receive(now)
        self._receive_chunks(now, ready)
        for object_id in self.sockets.sent():
            self.machine.step(now, self._shell, m.ChunkSent(object_id))
        self.machine.tick(now)
        self.turn(now)
        self._transport.tick(now)

    def _receive(self, now: float) -> None:
        for _ in range(FRAMES_PER_TURN):
            taken = self._transport.take()
            if taken is None:
                return
            sender, frame = taken
            if sender != self._daemon:
                self._transport.refused += 1
                continue
            for _, role, message in self._transport.accept(sender, frame, now):
                self.machine.step(now, role + sender, message)
                if type(message) is m.NodeTable:
                    self.sockets.connect(self.machine.peers)
            if not self._transport.readable:
                return

    def _receive_chunks(self, now: float, ready: Container[Any]) -> None:
        for node, message, data in self.sockets.receive(now, ready):
            source = TRANSFER_AGENT + node
            if isinstance(message, m.Chunk):
                self._chunks[source, message.token, message.position] = data
            self.machine.step(now, source, message)

    def turn(self, now: float) -> None:
        """Perform what the machine decides."""
        outgoing: list[Envelope] = []
        requests: dict[bytes, list[m.Message]] = {}
        while True:
            for effect in self.machine.take_effects(now):
                if isinstance(effect, e.WriteChunk):
                    self._write(effect)
                elif isinstance(effect, e.SendChunk):
                    self._send(effect)
                elif isinstance(effect, e.SealValue):
                    self._seal(effect)
                elif isinstance(effect, e.Send) and effect.to[:1] != TRANSFER_AGENT:
                    outgoing.append((effect.to[:1], TRANSFER_AGENT, effect.message))
                elif isinstance(effect, e.Send) and isinstance(effect.message, _TO_SOURCE):
                    requests.setdefault(effect.to[1:], []).append(effect.message)
                elif isinstance(effect, e.Send):
                    self.sockets.answer(effect.to[1:], effect.message)
            if not self._events:
                break
            events, self._events = self._events, []
            for message in events:
                self.machine.step(now, self._shell, message)
        self._chunks.clear()
        for node, messages in requests.items():
            self.sockets.ask(node, messages, now)
        if outgoing:
            self._transport.send_envelopes(self._daemon, outgoing, now)

    def _write(self, effect: e.WriteChunk) -> None:
        try:
            self._files.write(effect.offset, effect.position, self._chunks[effect.source, effect.token, effect.position])
        except OSError as error:
            self._failed[effect.offset] = str(error)  # The value cannot be sealed then.

    def _seal(self, effect: e.SealValue) -> None:
        error = self._failed.pop(effect.offset, "")
        if effect.size < 0 or error:
            self._files.give_up(effect.offset)
        else:
            try:
                self._files.seal(effect.offset, effect.object_id, effect.size)
            except OSError as raised:
                error = str(raised)
        if effect.size >= 0:
            self._events.append(m.ValueSealed(effect.object_id, error and f"the value cannot be written: {error}"))

    def _send(self, effect: e.SendChunk) -> None:
        try:
            data = self._files.read(effect.offset, effect.position + effect.size, effect.position, effect.size)
        except OSError as error:
            self._events.append(m.ChunkFailed(effect.object_id, f"the value cannot be read: {error}"))
            return
        self.sockets.send_chunk(effect.reader[1:], m.Chunk(effect.token, effect.position, effect.size), effect.object_id, data)

    def close(self) -> None:
        """Close every socket."""
        self.sockets.close()
        self._transport.close()
        self._context.term()


def run(directory: str, bound: int, daemon: bytes, keys: str) -> None:
    """Run an agent: ``bound`` is the listening socket's descriptor, ``keys`` a file."""
    open_more_files()
    session = Session(directory)
    endpoint = str(session.describe()["transfer"])
    gc.collect()
    gc.freeze()
    TransferProcess(session, daemon, read_server_pair(keys), endpoint, bound).run()
