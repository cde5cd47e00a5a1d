"""A link to the daemon of another node, over connections that come and go.

``Link`` numbers, retains and acknowledges frames; between nodes it never repeats one by the clock. TCP delivers what was sent on a
connection in order until the connection ends, so only the end of a connection loses frames. Each connection therefore begins with a
*hello* in both directions. It states how many frames its sender has received from this incarnation of the other's daemon; the other
continues from there.

A link belongs to a pair of daemon incarnations. A hello of a later daemon of the peer begins a link anew: the messages that the former
daemon did not acknowledge are dropped, because registration repeats all state. Numbers that do not fit are refused and never corrected,
since a link that begins anew on one side only would lose messages unnoticed.

The node that dials numbers its connections. A hello that is not newer than the last one is refused: it was left over in a socket by a
connection that has ended, or it is replayed.
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
"""Most unacknowledged frames on a connection: four times as many as a receiver takes before it acknowledges. All others wait here."""
EARLY_MAX = 0
"""Frames that may overtake others on a connection."""

MAGIC = b"zfab"
_HELLO = struct.Struct(f">4sI{INCARNATION_BYTES}s{INCARNATION_BYTES}sIQ{INCARNATION_BYTES}sQ")
HELLO_BYTES = _HELLO.size
"""The size of every hello."""
NOBODY = bytes(INCARNATION_BYTES)


class HelloRefused(Exception):
    """A hello that does not fit; the connection is of no use. ``reason`` is one word or two, to count by."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class LinkBroken(Exception):
    """A frame that cannot follow those before it on this connection. Another connection can continue the link."""


class Hello(NamedTuple):
    """The first frame on a connection, in each direction."""

    protocol: int
    node: bytes
    """The sender's node id."""
    daemon: bytes
    """The incarnation of the sender's daemon."""
    daemons: int
    """How many daemons the sender's node had before."""
    connection: int
    """The number of the connection, which the node that dials gives it."""
    meant: bytes
    """The incarnation of the receiver's daemon that the sender knows, or ``NOBODY``."""
    received: int
    """Frames received from that incarnation."""

    def encode(self) -> bytes:
        """The hello as a frame."""
        return _HELLO.pack(MAGIC, *self)


def read_hello(frame: bytes) -> Hello:
    """Decode a hello. Raises HelloRefused for anything else, and for one of another version of the protocol."""
    if len(frame) != HELLO_BYTES or frame[: len(MAGIC)] != MAGIC:
        raise HelloRefused("no hello", "the first frame of a connection is no hello")
    hello = Hello(*_HELLO.unpack(frame)[1:])
    if hello.protocol != PROTOCOL_VERSION:
        raise HelloRefused("protocol", f"the other node speaks protocol {hello.protocol}, this one {PROTOCOL_VERSION}")
    return hello


class NodeLink:
    """The link from one daemon incarnation of a node to the current daemon of another node.

    ``dial`` and ``confirm`` are called on the side that dials, ``accept`` on the other. ``limit`` is the size of the largest frame.
    """

    def __init__(self, node: bytes, daemon: bytes, daemons: int, peer: bytes, limit: int) -> None:
        self.node = node
        self.daemon = daemon
        self.daemons = daemons
        self.peer = peer
        self.limit = limit
        self.open = False
        """Whether the hellos of the current connection have been exchanged."""
        self.peer_daemon = NOBODY
        """The newest incarnation of the peer's daemon that has sent a hello."""
        self.peer_daemons = -1
        """How many daemons the peer's node had before that one."""
        self.connection = 0
        """The number of the newest connection."""
        self.refused = 0
        """Frames of which at least one message could not be read."""
        self._link = Link(EARLY_MAX, math.inf)
        self._written = 0
        """The newest frame that was written to the current connection."""
        self._newest = 0
        """The newest frame that was written to any connection."""

    # -- connections --

    def dial(self) -> bytes:
        """Return the hello for a new connection to the peer; it replaces the current one."""
        self.open = False
        self.connection += 1
        return self._hello()

    def confirm(self, frame: bytes, now: float) -> None:
        """Process the hello that answers ``dial``. Then the link is open. Raises HelloRefused."""
        hello = self._read(frame)
        if self.open or hello.connection != self.connection:
            raise HelloRefused("replayed", "the hello answers another connection")
        if hello.meant != self.daemon:
            raise HelloRefused("numbers", "the hello answers another daemon")
        self._agree(hello, now, answered=True)

    def accept(self, frame: bytes, now: float) -> bytes:
        """Process the hello of a connection that the peer has dialled, and return the answer. Then the link is open. Raises HelloRefused.

        The connection replaces the current one.
        """
        hello = self._read(frame)
        if hello.daemon == self.peer_daemon and hello.connection <= self.connection:
            raise HelloRefused("replayed", f"the hello is of connection {hello.connection}, the current one is {self.connection}")
        self._agree(hello, now, answered=False)
        self.connection = hello.connection
        return self._hello()

    def disconnected(self) -> None:
        """Note that the current connection has ended. Frames wait for the next one."""
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
        """Continue the link with the sender of this hello, or begin another one with a new daemon. ``answered``: it answers ``dial``."""
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
        # Of a daemon that does not know this one, ``received`` counts another's frames.
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
        """Number and retain messages; return the frames to write to the current connection.

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
        """Return the frames to write to the current connection now: those that had no room before, and a due acknowledgement."""
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
        """Process a frame of the current connection; return the messages in it. ``outgoing`` may have frames to write afterwards.

        Raises LinkBroken for what is no frame or cannot follow the one before. Of a frame that is partly unreadable, the rest is delivered.
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
        """All messages that the peer's daemon has not acknowledged, in order."""
        return self._link.unacknowledged()
