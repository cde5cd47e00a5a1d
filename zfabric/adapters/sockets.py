"""Local sockets: each process receives on one ROUTER, sends to each peer by a DEALER or datagrams, and has a link to each peer.

Connections are one-way, so one thread may send while another waits in ``poll``. Paths are made from incarnations only. A small frame is a
datagram unless a frame to its peer is in flight through ZeroMQ, so no frame overtakes another. A frame that a full socket refuses stays in
its peer's backlog, in order. An empty datagram is an *alert*: it wakes its receiver for a frame still being made.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq
import zmq.backend
from zmq import zmq_poll

from zfabric.adapters.datagrams import FRAME_BYTES, Datagrams, path_of
from zfabric.config import Config
from zfabric.machines.common.link import ACKNOWLEDGE_AFTER, Link
from zfabric.protocol.codec import MalformedFrame, decode, encode_body, salvage
from zfabric.protocol.ids import INCARNATION_BYTES
from zfabric.protocol.messages import Envelope
from zfabric.protocol.pieces import divided
from zfabric.protocol.refusals import Unread, in_place_of, settle
from zfabric.shell.process import Outgoing, batches

clock = time.monotonic

DATAGRAMS_IN_A_ROW = 16
"""Most datagrams received before one frame of ZeroMQ."""

ALERT = b""
ALERT_SECONDS = 0.0001
"""Longest time to look for the frame after an alert. A daemon makes it in a third of that."""

POLLIN, DONTWAIT = int(zmq.POLLIN), int(zmq.DONTWAIT)
_recv: Any = zmq.backend.Socket.recv
_send: Any = zmq.backend.Socket.send
"""Methods of the base class: enumerations in those of ``zmq.Socket`` cost more than the calls."""


class Peer:
    """Another process: its sockets, its link, and frames that wait for room."""

    __slots__ = ("admitted", "backlog", "link", "long_way", "path", "socket")

    def __init__(self, path: bytes, link: Link) -> None:
        self.path = path
        self.socket: zmq.Socket[bytes] | None = None
        """Opened for the first frame through ZeroMQ."""
        self.admitted = False
        """Whether the peer may have a socket although it is not registered (``Transport.admits``)."""
        self.link = link
        self.long_way = 0
        """Number of the newest frame that went through ZeroMQ."""
        self.backlog: deque[bytes] = deque()


class Transport:
    """All sockets of one incarnation. Any thread may send; sending and links need the owner's lock. One thread at a time may ``poll`` and
    ``receive``.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: str, incarnation: bytes, config: Config) -> None:
        self.context = context
        self.directory = directory
        self.incarnation = incarnation
        self.config = config
        self.peers: dict[bytes, Peer] = {}
        self.refused = 0
        self._congested: set[bytes] = set()
        self._due_at = math.inf
        """No link has anything due before this time."""
        self.admits: Callable[[bytes], bool] | None = None
        """Whether a peer may have a socket; None admits all. Sockets are few, and any process may claim to be a new peer."""
        self.router = context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router.setsockopt(zmq.RCVHWM, config.high_water_mark)
        self.router.setsockopt(zmq.MAXMSGSIZE, config.frame_bytes_max)
        self.router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.path = os.path.join(directory, incarnation.hex())
        self.router.bind("ipc://" + self.path)
        self._datagrams = Datagrams(directory, incarnation)
        self._has_datagram = False
        self._in_a_row = 0
        self._long: list[tuple[Any, int]] = [(self.router, POLLIN)]
        """Polls ZeroMQ alone, in half the time of asking the socket for its events."""
        self.sources: list[tuple[Any, int]] = [(self._datagrams.fd, POLLIN), (self.router, POLLIN)]
        self._wake_fd = -1
        self._wait: Callable[[list[tuple[Any, int]], int], Any] = zmq_poll
        """How ``poll`` waits: by ``_look_first`` once after an alert."""

    def peer(self, incarnation: bytes) -> Peer:
        """Return the peer with this incarnation, made on first use."""
        peer = self.peers.get(incarnation)
        if peer is None:
            link = Link(self.config.link_window, self.config.link_repeat)
            peer = self.peers[incarnation] = Peer(path_of(self.directory, incarnation), link)
        return peer

    def _connect(self, incarnation: bytes) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, self.config.high_water_mark)
        socket.setsockopt(zmq.ROUTING_ID, self.incarnation)
        socket.connect("ipc://" + os.path.join(self.directory, incarnation.hex()))
        return socket

    def send(self, sends: Sequence[Outgoing], now: float) -> None:
        """Send messages, each with its sender's role: one frame per peer, or a few."""
        for incarnation, envelopes in batches(sends):
            self.send_envelopes(incarnation, envelopes, now)

    def send_envelopes(self, incarnation: bytes, envelopes: list[Envelope], now: float) -> None:
        """Send messages to one peer, in order, in few frames.

        A message that no frame can carry raises TypeError, ValueError or OverflowError and does not reach the link; all others are sent.
        """
        peer = self.peers.get(incarnation) or self.peer(incarnation)
        try:
            frames = peer.link.pack(envelopes, now, self.config.frame_bytes_max)
        except (TypeError, ValueError, OverflowError) as error:
            to, role, message = envelopes[0]
            halves = divided(message) if len(envelopes) == 1 else None
            if halves is not None:
                envelopes = [(to, role, half) for half in halves]  # The message's other rows must not fail.
            if len(envelopes) > 1:
                self._send_each(incarnation, envelopes, now)
                return
            instead = in_place_of(Unread(type(message).__name__, message, str(error)))
            if instead is None:
                raise
            frames = peer.link.pack([(to, role, instead)], now, self.config.frame_bytes_max)
        for frame in frames:
            self._push(incarnation, peer, frame)

    def _send_each(self, incarnation: bytes, envelopes: list[Envelope], now: float) -> None:
        """Send messages one by one, since some cannot be encoded; then raise the first error."""
        refused: Exception | None = None
        for envelope in envelopes:
            try:
                self.send_envelopes(incarnation, [envelope], now)
            except (TypeError, ValueError, OverflowError) as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def alert(self, incarnation: bytes) -> None:
        """Wake a peer ahead of a probable frame."""
        peer = self.peers.get(incarnation)
        if peer is not None:
            self._datagrams.send(peer.path, ALERT)

    def _push(self, incarnation: bytes, peer: Peer, frame: bytes) -> None:
        due = peer.link.next_deadline()
        if due is not None and due < self._due_at:
            self._due_at = due
        if peer.link.acknowledged >= peer.long_way and len(frame) <= FRAME_BYTES and self._datagrams.send(peer.path, frame):
            return
        if peer.socket is None and not self._open(incarnation, peer):
            return  # The link will repeat the frame.
        peer.long_way = peer.link.next_out - 1
        peer.backlog.append(frame)
        self._drain(incarnation, peer)

    def _open(self, incarnation: bytes, peer: Peer) -> bool:
        """Open the socket to a peer. Return False if it is not admitted, or no descriptor is left."""
        if self.admits is not None and not peer.admitted and not self.admits(incarnation):
            return False
        try:
            peer.socket = self._connect(incarnation)
        except zmq.ZMQError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            return False
        return True

    def _drain(self, incarnation: bytes, peer: Peer) -> None:
        backlog = peer.backlog
        socket = peer.socket
        while backlog:
            try:
                _send(socket, backlog[0], DONTWAIT)
            except zmq.Again:
                self._congested.add(incarnation)
                return
            backlog.popleft()
        self._congested.discard(incarnation)

    @property
    def congested(self) -> bool:
        """Whether a frame waits for room in a socket."""
        return bool(self._congested)

    def tick(self, now: float) -> None:
        """Retry congested sockets; repeat and acknowledge frames that are due."""
        if now < self._due_at and not self._congested:
            return
        for incarnation in list(self._congested):
            peer = self.peers.get(incarnation)
            if peer is None:
                self._congested.discard(incarnation)
            else:
                self._drain(incarnation, peer)
        for incarnation, peer in self.peers.items():
            deadline = peer.link.next_deadline()
            if deadline is None or deadline > now:
                continue
            for sequence, body in peer.link.due(now):
                if not (peer.backlog and body):  # Frames in the backlog cannot be lost.
                    self._push(incarnation, peer, encode_body(sequence, peer.link.received, body))
        deadlines = (peer.link.next_deadline() for peer in self.peers.values())
        self._due_at = min((deadline for deadline in deadlines if deadline is not None), default=math.inf)

    def next_deadline(self) -> float | None:
        """Return when ``tick`` is due next, if at all."""
        return None if self._due_at == math.inf else self._due_at

    def poll(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for a frame or ``wake``. Return whether one came."""
        ready = self._wait(self.sources, max(0, int(timeout * 1000 + 0.999)))
        if not ready:
            return False
        if ready[0][0] == self._datagrams.fd:
            self._has_datagram = True
        if ready[-1][0] == self._wake_fd:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        return True

    def _look_first(self, sources: list[tuple[Any, int]], timeout: int) -> Any:
        """Wait as ``zmq_poll``, but look for a while before sleeping. Threads with work go first."""
        self._wait = zmq_poll
        until = clock() + ALERT_SECONDS
        while timeout and clock() < until:
            if ready := zmq_poll(sources, 0):
                return ready
            os.sched_yield()
        return zmq_poll(sources, timeout)

    def polled(self, ready: dict[Any, int]) -> bool:
        """Whether a frame has arrived, after the caller has polled ``sources``."""
        self._has_datagram = self._datagrams.fd in ready
        return self._has_datagram or self.router in ready

    def enable_wake(self) -> None:
        """Let ``wake`` end ``poll``, from the next ``poll`` on."""
        if self._wake_fd < 0:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.sources.append((self._wake_fd, POLLIN))

    def wake(self) -> None:
        """End another thread's ``poll``."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def take(self) -> tuple[bytes, bytes] | None:
        """Return (sender's incarnation, undecoded frame); None if none has arrived.

        Datagrams are read only after ``poll`` or ``readable`` has returned True.
        """
        if self._has_datagram and self._in_a_row < DATAGRAMS_IN_A_ROW:
            self._has_datagram = False
            self._in_a_row += 1
            return self._datagrams.take() or self._take_long()
        self._in_a_row = 0
        return self._take_long() or (self._datagrams.take() if self._has_datagram else None)

    def _take_long(self) -> tuple[bytes, bytes] | None:
        router = self.router
        while True:
            try:
                sender = _recv(router, DONTWAIT)
                # A part records whether another follows; querying the socket costs twice as much.
                part = _recv(router, DONTWAIT, False)
            except zmq.Again:
                return None  # No message has arrived.
            if len(sender) == INCARNATION_BYTES and not part.more:
                return sender, part.bytes
            while part.more:
                part = _recv(router, DONTWAIT, False)
            self.refused += 1

    @property
    def readable(self) -> bool:
        """Whether a frame has arrived: cheaper than the exception for "none"."""
        if not self._has_datagram:
            self._has_datagram = self._datagrams.readable
        return self._has_datagram or bool(zmq_poll(self._long, 0))

    def receive(self, limit: int = 64) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` frames, as ``take`` does."""
        frames: list[tuple[bytes, bytes]] = []
        while (frame := self.take()) is not None:
            frames.append(frame)
            if len(frames) >= limit or not self.readable:
                break
        return frames

    def accept(self, sender: bytes, frame: bytes, now: float) -> list[Envelope]:
        """Decode a frame and pass it to its link; return the messages to deliver now."""
        try:
            sequence, acknowledged, body = decode(frame)
        except MalformedFrame:
            if frame == ALERT and sender in self.peers:
                self._wait = self._look_first
                return []
            self.refused += 1
            return self._salvage(sender, frame, now)
        if now + ACKNOWLEDGE_AFTER < self._due_at:
            self._due_at = now + ACKNOWLEDGE_AFTER
        link = (self.peers.get(sender) or self.peer(sender)).link
        ready = link.receive(sequence, acknowledged, body, now)
        if link.answers:
            answers, link.answers = link.answers, []
            self.send_envelopes(sender, answers, now)
        if len(ready) == 1:
            return ready[0]
        return [envelope for batch in ready for envelope in batch]

    def _salvage(self, sender: bytes, frame: bytes, now: float) -> list[Envelope]:
        """Return the readable messages of an undecodable frame, which the link counts as received."""
        try:
            sequence, acknowledged, salvaged = salvage(frame)
        except MalformedFrame:
            return []
        if sender not in self.peers and not any(isinstance(message, Unread) and message.name == "Register" for _, _, message in salvaged):
            return []  # Of an unknown peer, only a registration is answered.
        peer = self.peer(sender)
        known = sequence <= peer.link.received
        delivered, answers = settle(salvaged)
        ready = peer.link.receive(sequence, acknowledged, delivered, now)
        self._due_at = min(self._due_at, now)
        if answers and not known:
            self.send_envelopes(sender, answers, now)
        return [envelope for batch in ready for envelope in batch]

    def received_by_all(self, but: bytes) -> bool:
        """Whether all peers except ``but`` and this incarnation have acknowledged every frame."""
        return all(peer.link.is_idle for incarnation, peer in self.peers.items() if incarnation not in (but, self.incarnation))

    def forget(self, incarnation: bytes) -> list[Envelope]:
        """Close the socket to a dead peer. Return its unacknowledged messages."""
        peer = self.peers.pop(incarnation, None)
        self._congested.discard(incarnation)
        if peer is None:
            return []
        if peer.socket is not None:
            peer.socket.close(0)
        return peer.link.unacknowledged()

    def close(self, flush: float = 0.0) -> None:
        """Close every socket. Frames in flight have ``flush`` seconds."""
        for peer in self.peers.values():
            if peer.socket is not None:
                peer.socket.close(int(flush * 1000))
        self.peers.clear()
        self.router.close(0)
        self._datagrams.close()
        if self._wake_fd >= 0:
            descriptor, self._wake_fd = self._wake_fd, -1
            os.close(descriptor)
        try:
            os.unlink(self.path)
        except OSError:
            pass
