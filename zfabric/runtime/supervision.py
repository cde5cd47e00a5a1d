"""The channel between a node's supervisor and its daemon, and the daemon's end.

The channel is a SEQPACKET pair of Unix sockets: reliable, ordered, usable before any ZeroMQ context. A packet is msgpack of ``(kind,
*fields)``. Each daemon gets a new pair, and so no packets for an earlier one. The supervisor never waits for a daemon, which may be
stopped: packets wait in memory. The daemon may wait for the supervisor, which is never busy for long.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

import msgpack

from zfabric.exceptions import ConnectionLostError
from zfabric.protocol.messages import Message, ProcessDied, ProcessTable, WorkerSpawned

PACKET_BYTES_MAX = 4 * 2**20
_SEND_BUFFER = 2**20
"""Requested bytes; the kernel may grant less. Larger packets cannot be sent."""

ENDING = "ending"
"""The supervisor's last packet. ``STOP`` follows."""
_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in (WorkerSpawned, ProcessDied, ProcessTable)}


class Channel:
    """One end of the pair, for tuples of plain data."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._outbox: deque[bytes] = deque()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Make two connected ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    def send(self, *packet: Any) -> None:
        """Send, waiting for room. Raises OSError if the other end is closed or the packet too large."""
        self._socket.send(msgpack.packb(packet))

    def post(self, *packet: Any) -> None:
        """Send without waiting; what has no room waits for ``flush``."""
        self._outbox.append(msgpack.packb(packet))
        self.flush()

    def flush(self) -> None:
        """Send waiting packets while there is room; drop them if the other end is closed."""
        while self._outbox:
            try:
                self._socket.send(self._outbox[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._outbox.clear()
                return
            self._outbox.popleft()

    @property
    def waiting(self) -> bool:
        """Whether packets wait."""
        return bool(self._outbox)

    def receive(self, flags: int = 0) -> tuple[Any, ...] | None:
        """The next packet; None if the other end is closed. With MSG_DONTWAIT raises BlockingIOError."""
        try:
            data = self._socket.recv(PACKET_BYTES_MAX, flags)
        except ConnectionResetError:
            return None
        if not data:
            return None
        packet: tuple[Any, ...] = msgpack.unpackb(data, use_list=False)
        return packet

    def drain(self) -> tuple[list[tuple[Any, ...]], bool]:
        """All packets that have arrived, and whether the other end is closed."""
        packets: list[tuple[Any, ...]] = []
        while True:
            try:
                packet = self.receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return packets, False
            if packet is None:
                return packets, True
            packets.append(packet)

    def refuse(self) -> None:
        """Fail the other end's further sends. Earlier packets can be drained."""
        self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


class Supervision:
    """The daemon's requests and the supervisor's events.

    Watches end with their daemon: the next renews them after its ``ProcessTable``.
    """

    def __init__(self, descriptor: int) -> None:
        self._channel = Channel(socket.socket(fileno=descriptor))
        self._events: list[Message] = []
        self.ending = ""
        """Why the session ends; "" before, and if the file ``failure`` says it."""

    def fileno(self) -> int:
        """Readable when there are events."""
        return self._channel.fileno()

    def receive(self) -> list[Message]:
        """New ``WorkerSpawned``, ``ProcessDied``, ``ProcessTable``, without waiting.

        A watched process's exit code is reported as 0. Raises ConnectionLostError if the supervisor has died.
        """
        events, self._events = self._events, []
        packets, ended = self._channel.drain()
        for kind, *fields in packets:
            if kind == ENDING:
                (self.ending,) = fields
            else:
                events.append(_EVENTS[kind](*fields))
        if ended and not events:
            raise ConnectionLostError("the supervisor is gone")
        return events

    def spawn(self, token: bytes, job: bytes, environment: tuple[tuple[str, str], ...] = (), threads: int = 1) -> None:
        """Request a worker (see ``SpawnWorker``); ``WorkerSpawned`` follows."""
        try:
            self._channel.send("spawn", token, job, environment, threads)
        except OSError as error:  # The environment exceeds a packet. The next ``receive`` returns this.
            self._events.append(WorkerSpawned(token, 0, f"the request to start a worker cannot be sent: {error}"))

    def kill(self, pid: int, reason: str) -> None:
        """Kill a worker and its group; ``ProcessDied`` follows. Other pids are ignored."""
        self._channel.send("kill", pid, reason)

    def watch(self, pid: int, started: int) -> None:
        """Have the end of a process that is no child reported, at once if it has ended."""
        self._channel.send("watch", pid, started)

    def start_agent(self, daemon: bytes, keys: str) -> None:
        """Request a transfer agent while this daemon lives. ``keys`` is the file of the node's key pair."""
        self._channel.send("agent", daemon, keys)

    def freeze(self, frozen: bool) -> None:
        """Stop all workers, later ones too; or have them go on."""
        self._channel.send("freeze", frozen)

    def end(self, reason: str) -> None:
        """End the session: the node has left its cluster. ``reason`` is for people."""
        self._channel.send("end", reason)

    def close(self) -> None:
        """Close the daemon's end."""
        self._channel.close()
