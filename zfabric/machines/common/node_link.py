"""A link to the daemon of another node, over connections that come and go.

Within a connection, TCP loses nothing, so frames are never repeated by the clock. Each connection begins with a *hello* in both directions:
how many frames its sender has received from this incarnation of the other's daemon, which continues from there.

A later daemon's hello begins a link anew and drops unacknowledged messages: registration repeats all state. Numbers that do not fit are
refused: a link begun anew on one side only would lose messages unnoticed. The dialling node numbers its connections; an old number is a
leftover in a socket or a replay, and refused.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from zfabric.machines.common.link import Link
from zfabric.protocol.codec import Body, MalformedFrame, decode, encode_body, salvage
from zfabric.protocol.ids import INCARNATION_BYTES
from zfabric.protocol.messages import PROTOCOL_VERSION, Envelope
from zfabric.protocol.refusals import settle

IN_FLIGHT_MAX = 256
"""Most unacknowledged frames: four times what a receiver takes before it acknowledges. Further frames wait here."""
EARLY_MAX = 0

MAGIC = b"zfab"
_HELLO = struct.Struct(f">4sI{INCARNATION_BYTES}s{INCARNATION_BYTES}sIQ{INCARNATION_BYTES}sQ")
HELLO_BYTES = _HELLO.size
NOBODY = bytes(INCARNATION_BYTES)


class HelloRefused(Exception):
    """A hello that makes the connection useless. ``reason`` is a word or two, to count by."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class LinkBroken(Exception):
    """A frame that cannot follow. Another connection can continue the link."""


class Hello(NamedTuple):
    """The first frame on a connection, in each direction."""

    protocol: int
    node: bytes
    daemon: bytes
    daemons: int
    """Earlier daemons of the sender's node."""
    connection: int
    """Numbered by the dialling node."""
    meant: bytes
    """The receiver's daemon, if known, or ``NOBODY``."""
    received: int
    """Frames received from that incarnation."""

    def encode(self) -> bytes:
        """The hello as a frame."""
        return _HELLO.pack(MAGIC, *self)


def read_hello(frame: bytes) -> Hello:
    """Decode a hello. Raises HelloRefused for anything else, and for another protocol version."""
    if len(frame) != HELLO_BYTES or frame[: len(MAGIC)] != MAGIC:
        raise HelloRefused("no hello", "the first frame of a connection is no hello")
    hello = Hello(*_HELLO.unpack(frame)[1:])
    if hello.protocol != PROTOCOL_VERSION:
        raise HelloRefused("protocol", f"the other node speaks protocol {hello.protocol}, this one {PROTOCOL_VERSION}")
    return hello


class NodeLink:
    """A daemon incarnation's link to the current daemon of another node.

    The dialling side calls ``dial`` and ``confirm``, the other ``accept``. ``limit``: bytes of the largest frame.
    """

    def __init__(self, node: bytes, daemon: bytes, daemons: int, peer: bytes, limit: int) -> None:
        self.node = node
        self.daemon = daemon
        self.daemons = daemons
        self.peer = peer
        self.limit = limit
        self.open = False
        """Whether hellos were exchanged on this connection."""
        self.peer_daemon = NOBODY
        """Newest incarnation that has sent a hello."""
        self.peer_daemons = -1
        """Daemons of the peer's node before that one."""
        self.connection = 0
        self.refused = 0
        """Frames with an unreadable message."""
        self._link = Link(EARLY_MAX, math.inf)
        self._written = 0
        """Newest frame written to this connection."""
        self._newest = 0
        """Newest frame written to any connection."""

    # -- connections --

    def dial(self) -> bytes:
        """The hello for a new connection, which replaces the current one."""
        self.open = False
        self.connection += 1
        return self._hello()

    def confirm(self, frame: bytes, now: float) -> None:
        """Open the link with the answer to ``dial``. Raises HelloRefused."""
        hello = self._read(frame)
        if self.open or hello.connection != self.connection:
            raise HelloRefused("replayed", "the hello answers another connection")
        if hello.meant != self.daemon:
            raise HelloRefused("numbers", "the hello answers another daemon")
        self._agree(hello, now, answered=True)

    def accept(self, frame: bytes, now: float) -> bytes:
        """Open the link with a hello; return the answer. Raises HelloRefused."""
        hello = self._read(frame)
        if hello.daemon == self.peer_daemon and hello.connection <= self.connection:
            raise HelloRefused("replayed", f"the hello is of connection {hello.connection}, the current one is {self.connection}")
        self._agree(hello, now, answered=False)
        self.connection = hello.connection
        return self._hello()

    def disconnected(self) -> None:
        """Note the end of the connection. Frames wait for the next."""
        self.open = False

    def _hello(self) -> bytes:
        peer = self.peer_daemon
        hello = Hello(PROTOCOL_VERSION, self.node, self.daemon, self.daemons, self.connection, peer, self._link.received)
        return hello.encode()

    def _read(self, frame: bytes) -> Hello:
        hello = read_hello(frame)
        if hello.node != self.peer:
            raise HelloRefused("name", f"the hello names node {hello.node.hex()}; its sender is {self.peer.hex()}")
        return hello

    def _agree(self, hello: Hello, now: float, answered: bool) -> None:
        """Continue the link with a hello's sender, or begin one with a new daemon. ``answered``: it answers ``dial``."""
        if hello.daemon == self.peer_daemon:
            if hello.daemons != self.peer_daemons:
                raise HelloRefused("numbers", "the number of the peer's daemon has changed")
            begins = False
        elif hello.daemons <= self.peer_daemons:
            raise HelloRefused("former daemon", f"the peer has had {self.peer_daemons} daemons, the hello is of number {hello.daemons}")
        elif hello.meant == self.daemon and not answered:
            raise HelloRefused("numbers", "this daemon has never answered the peer's, which claims to know it")
        else:
            begins = self.peer_daemon != NOBODY
        self._check(hello, begins)
        if begins:
            self._link = Link(EARLY_MAX, math.inf)
            self._newest = 0
        self.peer_daemon, self.peer_daemons = hello.daemon, hello.daemons
        # If the peer's daemon does not know this one, ``received`` counts another's frames.
        received = hello.received if hello.meant == self.daemon else 0
        self._link.receive(0, received, [], now)
        self._written = received
        self.open = True

    def _check(self, hello: Hello, begins: bool) -> None:
        acknowledged, newest, received = (0, 0, 0) if begins else (self._link.acknowledged, self._newest, self._link.received)
        if hello.meant == self.daemon:
            if not acknowledged <= hello.received <= newest:
                raise HelloRefused("numbers", f"the peer has received {hello.received} frames; {acknowledged} to {newest} are possible")
        elif acknowledged or received:
            raise HelloRefused("numbers", "the peer has forgotten this daemon")

    # -- messages --

    def send(self, envelopes: list[Envelope], now: float) -> list[bytes]:
        """Number and retain messages; return frames to write.

        Raises TypeError, ValueError or OverflowError for what no frame can carry; then nothing is sent.
        """
        link = self._link
        before = link.next_out - 1
        frames = link.pack(envelopes, now, self.limit)
        written = before + len(frames)
        if self.open and self._written == before and written - link.acknowledged <= IN_FLIGHT_MAX:
            self._written = self._newest = written
            return frames
        return self.outgoing(now)

    def has_outgoing(self, now: float) -> bool:
        """Whether ``outgoing`` has frames to write now."""
        link = self._link
        if link.next_out - 1 > self._written:
            return True
        due = link.next_deadline()
        return due is not None and due <= now

    def outgoing(self, now: float) -> list[bytes]:
        """Frames that had no room before, and a due acknowledgement."""
        link = self._link
        if not self.open:
            return []
        waiting: list[tuple[int, Body]] = []
        if link.next_out - 1 > self._written:
            waiting = link.since(self._written, link.acknowledged + IN_FLIGHT_MAX)
            self._written += len(waiting)
            self._newest = max(self._newest, self._written)
        due = link.next_deadline()
        if due is not None and now >= due:
            waiting += link.due(now)
        return [encode_body(sequence, link.received, body) for sequence, body in waiting] if waiting else []

    def receive(self, frame: bytes, now: float) -> list[Envelope]:
        """The messages of a frame, without unreadable ones; ``outgoing`` may have frames afterwards.

        Raises LinkBroken for what is no frame or cannot follow.
        """
        if not self.open:
            raise LinkBroken("a frame on a connection without hello")
        answers: list[Envelope] = []
        try:
            sequence, acknowledged, body = decode(frame)
        except MalformedFrame:
            try:
                sequence, acknowledged, salvaged = salvage(frame)
            except MalformedFrame as error:
                raise LinkBroken(str(error)) from None
            self.refused += 1
            body, answers = settle(salvaged)
        link = self._link
        if sequence < 0 or sequence > link.received + 1 or not 0 <= acknowledged <= self._written:
            raise LinkBroken(f"frame {sequence} follows {link.received}; {acknowledged} of {self._written} are acknowledged")
        ready = link.receive(sequence, acknowledged, body, now)
        if link.answers:
            answers += link.answers
            link.answers.clear()
        if answers and ready:
            link.send(answers, now)
        return ready[0] if len(ready) == 1 else [envelope for batch in ready for envelope in batch]

    def next_deadline(self) -> float | None:
        """When ``outgoing`` is wanted next."""
        due = self._link.next_deadline() if self.open else None
        return None if due == math.inf else due

    def unacknowledged(self) -> list[Envelope]:
        """All unacknowledged messages, in order."""
        return self._link.unacknowledged()
