"""A link: delivers all messages of one incarnation to another once and in order, whatever the network does (decision 0003). A large message
travels in several frames (``codec.cut``).
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from zfabric.config import MESSAGE_BYTES_MAX
from zfabric.protocol.codec import MESSAGES_MAX, Body, MalformedFrame, cut, decode_messages, encode, encode_body, salvage_messages
from zfabric.protocol.messages import Envelope
from zfabric.protocol.pieces import Piece
from zfabric.protocol.refusals import settle

REPEAT_FACTOR_MAX = 8
"""The pause between repeats doubles up to this."""
REPEATED_FRAMES = 16
"""Frames repeated at a time; at the maximal pause only the oldest: a stopped process reads none, and the system buffers them all."""
ACKNOWLEDGE_AFTER_FRAMES = 64
"""Frames after which an idle receiver acknowledges: bounds the sender's memory."""
ACKNOWLEDGE_AFTER = 0.5
"""Seconds after which a receiver acknowledges in any case."""

GAP = -1
"""Sequence of an acknowledgement that reports a gap: repeat the next frame at once."""


class Link:
    """Both directions between two incarnations."""

    __slots__ = (
        "_acknowledge_at",
        "_early",
        "_parts",
        "_pause",
        "_repeat_at",
        "_sent",
        "_unacknowledged",
        "acknowledged",
        "answers",
        "received",
        "refused",
        "repeat",
        "window",
    )

    def __init__(self, window: int, repeat: float) -> None:
        self.window = window
        self.repeat = repeat
        self.received = 0
        self.acknowledged = 0
        self._sent: deque[tuple[int, Body]] = deque()
        self._early: dict[int, Body] = {}
        self._parts: dict[int, bytes] = {}
        """Pieces of an incomplete message."""
        self.answers: list[Envelope] = []
        """Answers to unreadable messages in pieces."""
        self.refused = 0
        """Count of unreadable messages in pieces."""
        self._unacknowledged = 0
        self._acknowledge_at: float | None = None
        self._repeat_at: float | None = None
        self._pause = repeat

    @property
    def next_out(self) -> int:
        """Derived from the sent frames."""
        return (self._sent[-1][0] if self._sent else self.acknowledged) + 1

    @property
    def is_idle(self) -> bool:
        """Whether every frame is acknowledged."""
        return not self._sent

    def pack(self, envelopes: list[Envelope], now: float, limit: int) -> list[bytes]:
        """Make frames of at most ``limit`` bytes, numbered and retained until acknowledged.

        Raises TypeError, ValueError or OverflowError for what no frame can carry; then nothing is sent.
        """
        sent = self._sent
        sequence = (sent[-1][0] if sent else self.acknowledged) + 1  # ``next_out``, in place: a part of every synchronous call.
        frame = encode(sequence, self.received, envelopes)
        if len(frame) <= limit and len(envelopes) <= MESSAGES_MAX:
            sent.append((sequence, envelopes))
            self._has_sent(now)
            return [frame]
        size = len(frame)
        del frame
        numbered = list(enumerate(cut(envelopes, limit, size), sequence))
        self._sent.extend(numbered)  # At once: Ctrl-C may come between statements.
        self._has_sent(now)
        return [encode_body(number, self.received, body) for number, body in numbered]

    def send(self, envelopes: list[Envelope], now: float) -> int:
        """Number a frame, and retain it until acknowledged."""
        sequence = self.next_out
        self._sent.append((sequence, envelopes))
        self._has_sent(now)
        return sequence

    def _has_sent(self, now: float) -> None:
        if self._repeat_at is None:
            self._pause = self.repeat
            self._repeat_at = now + self._pause
        self._unacknowledged = 0
        self._acknowledge_at = None

    def receive(self, sequence: int, acknowledged: int, body: Body, now: float) -> list[list[Envelope]]:
        """Accept a frame; return what can be delivered, in order. Sequence 0 or ``GAP`` only acknowledges."""
        self._forget(acknowledged, now)
        if sequence <= 0:
            if sequence == GAP and self._sent:
                self._repeat_at = now
            return []
        if sequence != self.received + 1:
            if self.received < sequence <= self.received + self.window:
                self._early[sequence] = body
            self._unacknowledged = ACKNOWLEDGE_AFTER_FRAMES
            self._acknowledge_at = now
            return []
        ready = [self._join(sequence, body) if isinstance(body, Piece) else body]
        self.received = sequence
        while self._early and (following := self._early.get(self.received + 1)) is not None:
            ready.append(self._join(self.received + 1, following) if isinstance(following, Piece) else following)
            self.received += 1
            del self._early[self.received]
        self._unacknowledged += len(ready)
        if self._unacknowledged >= ACKNOWLEDGE_AFTER_FRAMES:
            self._acknowledge_at = now
        elif self._acknowledge_at is None:
            self._acknowledge_at = now + ACKNOWLEDGE_AFTER
        return ready

    def _join(self, sequence: int, piece: Piece) -> list[Envelope]:
        parts = self._parts
        parts[sequence] = piece.data
        if piece.left:
            if len(parts) * len(piece.data) <= MESSAGE_BYTES_MAX:
                return []
            parts.clear()  # The rest of it will be no message.
            self.refused += 1
            return []
        data = b"".join(parts.values())
        parts.clear()
        try:
            return decode_messages(data)
        except MalformedFrame:
            self.refused += 1
        try:
            delivered, answers = settle(salvage_messages(data))
        except MalformedFrame:
            return []
        self.answers += answers
        return delivered

    def _forget(self, acknowledged: int, now: float) -> None:
        sent = self._sent
        if not sent or sent[0][0] > acknowledged:
            return
        while True:
            self.acknowledged = sent.popleft()[0]
            if not sent or sent[0][0] > acknowledged:
                break
        self._pause = self.repeat
        self._repeat_at = now + self._pause if sent else None

    def next_deadline(self) -> float | None:
        """When ``due`` is wanted next."""
        if self._repeat_at is None:
            return self._acknowledge_at
        if self._acknowledge_at is None:
            return self._repeat_at
        return min(self._repeat_at, self._acknowledge_at)

    def due(self, now: float) -> list[tuple[int, Body]]:
        """Frames to repeat now: the oldest unacknowledged, or an owed acknowledgement (0 or ``GAP``, [])."""
        frames: list[tuple[int, Body]] = []
        if self._repeat_at is not None and now >= self._repeat_at and self._sent:
            most = self.repeat * REPEAT_FACTOR_MAX
            frames.extend(islice(self._sent, REPEATED_FRAMES if self._pause < most else 1))
            self._pause = min(self._pause * 2, most)
            self._repeat_at = now + self._pause
        if self._acknowledge_at is not None and now >= self._acknowledge_at:
            if not frames or self._early:
                frames.append((GAP if self._early else 0, []))
            self._acknowledge_at = None
            self._unacknowledged = 0
        return frames

    def since(self, sequence: int, last: int) -> list[tuple[int, Body]]:
        """Unacknowledged frames above ``sequence``, up to ``last``."""
        return list(islice(self._sent, sequence - self.acknowledged, last - self.acknowledged))

    def unacknowledged(self) -> list[Envelope]:
        """Unacknowledged messages, in order, for the next incarnation."""
        return [envelope for _, body in self._sent for envelope in (body.envelopes if isinstance(body, Piece) else body)]
