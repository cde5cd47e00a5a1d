"""The channel between a node's supervisor and its daemon, and the daemon's end of it.

The channel is a SEQPACKET pair of Unix sockets: reliable, ordered, with message boundaries, and usable before any ZeroMQ
context exists. A packet is msgpack of ``(kind, *fields)``. Each daemon gets a new pair, so it never reads packets for an earlier one.
The supervisor never waits for a daemon, which may be stopped: packets that do not fit into the socket wait in memory. The daemon may
wait for the supervisor, which is never busy for long.
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
"""Requested size of the send buffer in bytes. The kernel may grant less; larger packets cannot be sent."""

ENDING = "ending"
"""The supervisor's last packet: the session ends, and SIGTERM follows."""
_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in (WorkerSpawned, ProcessDied, ProcessTable)}


class Channel:
    """One end of a SEQPACKET pair that carries tuples of plain data."""

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
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def send(self, *packet: Any) -> None:
        """Send a packet; wait for room. Raises OSError if the other end is closed or the packet is too large."""
        self._socket.send(msgpack.packb(packet))

    def post(self, *packet: Any) -> None:
        """Send a packet without waiting. Packets that do not fit wait, in order, for ``flush``."""
        self._outbox.append(msgpack.packb(packet))
        self.flush()

    def flush(self) -> None:
        """Send waiting packets, as far as there is room. Drop them if the other end is closed."""
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
        """Whether packets wait for ``flush``."""
        return bool(self._outbox)

    def receive(self, flags: int = 0) -> tuple[Any, ...] | None:
        """Return the next packet; None if the other end is closed. Raises BlockingIOError with MSG_DONTWAIT if there is none yet."""
        try:
            data = self._socket.recv(PACKET_BYTES_MAX, flags)
        except ConnectionResetError:
            return None
        if not data:
            return None
        packet: tuple[Any, ...] = msgpack.unpackb(data, use_list=False)
        return packet

    def drain(self) -> tuple[list[tuple[Any, ...]], bool]:
        """Return all packets that have arrived, and whether the other end is closed."""
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
        """Refuse further packets: the other end's sends fail from now on. Packets sent earlier can still be drained."""
        self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close this end in this process."""
        self._socket.close()


class Supervision:
    """The daemon's requests to the supervisor, and the events that it receives. Poll ``fileno`` for reading.

    Watches end with their daemon: a restarted one requests them again after it has received the ``ProcessTable``.
    """

    def __init__(self, descriptor: int) -> None:
        self._channel = Channel(socket.socket(fileno=descriptor))
        self._events: list[Message] = []
        self.ending = ""
        """Why the supervisor ends the session; empty before that, and if the session's file ``failure`` has the reason."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are events."""
        return self._channel.fileno()

    def receive(self) -> list[Message]:
        """Return the events since the last call, without waiting: ``WorkerSpawned``, ``ProcessDied``, ``ProcessTable``.

        The exit code of a process that was only watched is unknown and reported as 0. Raises ConnectionLostError if the
        supervisor has died; its children do not outlive it.
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
        """Request a worker; fields are as in the effect ``SpawnWorker``. ``WorkerSpawned`` follows."""
        try:
            self._channel.send("spawn", token, job, environment, threads)
        except OSError as error:  # The environment is larger than a packet can be. The next ``receive`` returns that.
            self._events.append(WorkerSpawned(token, 0, f"the request to start a worker cannot be sent: {error}"))

    def kill(self, pid: int, reason: str) -> None:
        """Send SIGKILL to a worker and its process group; ``ProcessDied`` follows. Other pids are ignored."""
        self._channel.send("kill", pid, reason)

    def watch(self, pid: int, started: int) -> None:
        """Request a report of the end of a process that is no child of the supervisor. If it has ended, the report comes at once."""
        self._channel.send("watch", pid, started)

    def start_agent(self, daemon: bytes, keys: str) -> None:
        """Request a transfer agent for this incarnation of the daemon, with which it ends; it is restarted until then.

        ``keys`` is the path of the file with the node's key pair.
        """
        self._channel.send("agent", daemon, keys)

    def freeze(self, frozen: bool) -> None:
        """Have all workers stopped, those too that start meanwhile; or have them go on."""
        self._channel.send("freeze", frozen)

    def end(self, reason: str) -> None:
        """Request the end of the session, with all its processes: the node is no longer part of its cluster. ``reason`` is for people."""
        self._channel.send("end", reason)

    def close(self) -> None:
        """Close the daemon's end."""
        self._channel.close()
