"""The channel between a node's supervisor and its daemon, and the daemon's end of it.

The channel is a SEQPACKET pair of Unix sockets: reliable, ordered, with message boundaries, there before any ZeroMQ
context is. A packet is msgpack of ``(what, *fields)``; a daemon that starts anew gets a new pair, so it never reads what
was meant for the one before. The supervisor never waits for a daemon (which may be stopped): what does not fit into the
socket waits in its memory. The daemon may wait for the supervisor, which is never busy for long.
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
"""Asked of the kernel, which may grant less; a packet larger than what it grants cannot be sent."""

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
        """Two connected ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    def send(self, *packet: Any) -> None:
        """Send, waiting for room. OSError if the other end is closed or the packet too large."""
        self._socket.send(msgpack.packb(packet))

    def post(self, *packet: Any) -> None:
        """Send without ever waiting: what does not fit is kept, in order, until ``flush``."""
        self._outbox.append(msgpack.packb(packet))
        self.flush()

    def flush(self) -> None:
        """Send what was kept, as far as there is room. What is for an end that was closed is dropped."""
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
        """Whether something is kept for ``flush``."""
        return bool(self._outbox)

    def receive(self, flags: int = 0) -> tuple[Any, ...] | None:
        """The next packet; None at the end of the stream. BlockingIOError with MSG_DONTWAIT if there is none yet."""
        try:
            data = self._socket.recv(PACKET_BYTES_MAX, flags)
        except ConnectionResetError:
            return None
        if not data:
            return None
        packet: tuple[Any, ...] = msgpack.unpackb(data, use_list=False)
        return packet

    def drain(self) -> tuple[list[tuple[Any, ...]], bool]:
        """All packets that are there, and whether the other end is closed."""
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
        """Take nothing more in: the other side's sends fail from now on, and what it sent before can still be drained."""
        self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close this end in this process."""
        self._socket.close()


class Supervision:
    """What the daemon asks of the supervisor, and hears from it. Poll ``fileno`` for reading.

    Watches belong to one daemon: a restarted one asks for them again, after it got the ``ProcessTable``.
    """

    def __init__(self, descriptor: int) -> None:
        self._channel = Channel(socket.socket(fileno=descriptor))
        self._events: list[Message] = []
        self.ending = ""
        """Why the supervisor ends the session; empty before it does, and where ``failure`` in the session's directory says it."""

    def fileno(self) -> int:
        """The descriptor that is readable when there are events."""
        return self._channel.fileno()

    def receive(self) -> list[Message]:
        """The events since the last call, without waiting: ``WorkerSpawned``, ``ProcessDied``, ``ProcessTable``.

        The exit code of a process that was only watched is unknown and reported as 0. ConnectionLostError if the
        supervisor is gone (which its children do not outlive).
        """
        events, self._events = self._events, []
        packets, ended = self._channel.drain()
        for what, *fields in packets:
            if what == ENDING:
                (self.ending,) = fields
            else:
                events.append(_EVENTS[what](*fields))
        if ended and not events:
            raise ConnectionLostError("the supervisor is gone")
        return events

    def spawn(
        self,
        token: bytes,
        job: bytes,
        environment: tuple[tuple[str, str], ...] = (),
        directory: str = "",
        paths: tuple[str, ...] = (),
        threads: int = 1,
    ) -> None:
        """Start a worker (fields as in the effect ``SpawnWorker``); ``WorkerSpawned`` follows."""
        try:
            self._channel.send("spawn", token, job, environment, directory, paths, threads)
        except OSError as error:  # the environment is larger than a packet can be; hear of it with the next receive
            self._events.append(WorkerSpawned(token, 0, f"the request to start a worker cannot be sent: {error}"))

    def kill(self, pid: int, reason: str) -> None:
        """SIGKILL to a worker and its process group; ``ProcessDied`` follows. A pid that is no worker's is left alone."""
        self._channel.send("kill", pid, reason)

    def watch(self, pid: int, started: int) -> None:
        """Report when the process that is no child of the supervisor's ends, or at once if it has."""
        self._channel.send("watch", pid, started)

    def close(self) -> None:
        """Close the daemon's end."""
        self._channel.close()
