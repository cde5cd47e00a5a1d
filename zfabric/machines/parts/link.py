"""A link: everything one incarnation says to another, delivered once and in order, whatever the network does.

Frames are numbered from 1. Each carries the number of the newest frame received in order from the other side, which lets the
other side forget what it kept for repetition. A frame that is not acknowledged is repeated, ever more slowly; one that comes twice
is dropped; one that comes early waits for those before it. When either incarnation ends, the link ends with it, and the
registration path rebuilds what was on it. All machines rely on this and never look at loss, repetition or order themselves.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from zfabric.protocol.codec import Envelope

REPEAT_FACTOR_MAX = 8
"""The pause between repeats doubles up to this multiple of its first value."""
REPEATED_FRAMES = 16
"""Frames that are repeated at a time. Where the pause has become as long as it gets, it is only the oldest, until something is heard: a
process that is stopped, in a debugger say, reads none of them, and the system keeps them all."""
ACKNOWLEDGE_AFTER_FRAMES = 64
"""A receiver that has nothing to say acknowledges after this many frames, so that the sender's memory stays small."""
ACKNOWLEDGE_AFTER = 0.5
"""Seconds after which it acknowledges in any case."""

GAP = -1
"""The sequence of an acknowledgement that says: frames after it have come, the next one has not; do not wait to repeat it."""


class Link:
    """Both directions between this process and one other incarnation."""

    __slots__ = (
        "_acknowledge_at",
        "_early",
        "_pause",
        "_repeat_at",
        "_sent",
        "_unacknowledged",
        "heard",
        "received",
        "repeat",
        "window",
    )

    def __init__(self, window: int, repeat: float) -> None:
        self.window = window
        self.repeat = repeat
        self.received = 0
        self.heard = 0
        """The newest frame that the other side has acknowledged."""
        self._sent: deque[tuple[int, list[Envelope]]] = deque()
        self._early: dict[int, list[Envelope]] = {}
        self._unacknowledged = 0
        self._acknowledge_at: float | None = None
        self._repeat_at: float | None = None
        self._pause = repeat

    @property
    def next_out(self) -> int:
        """The number of the next frame. It follows from those that were sent: Ctrl-C may come between any two statements."""
        return (self._sent[-1][0] if self._sent else self.heard) + 1

    def send(self, envelopes: list[Envelope], now: float) -> int:
        """Number a frame of ``envelopes`` and keep it until it is acknowledged."""
        sequence = self.next_out
        self._sent.append((sequence, envelopes))
        if self._repeat_at is None:
            self._pause = self.repeat
            self._repeat_at = now + self._pause
        self._unacknowledged = 0
        self._acknowledge_at = None
        return sequence

    def receive(self, sequence: int, acknowledged: int, envelopes: list[Envelope], now: float) -> list[list[Envelope]]:
        """Take in a frame; what may be delivered now, in order. Sequence 0 or ``GAP`` is an acknowledgement and nothing else."""
        self._forget(acknowledged, now)
        if sequence <= 0:
            if sequence == GAP and self._sent:
                self._repeat_at = now
            return []
        if sequence != self.received + 1:
            if self.received < sequence <= self.received + self.window:
                self._early[sequence] = envelopes
            self._unacknowledged = ACKNOWLEDGE_AFTER_FRAMES
            self._acknowledge_at = now
            return []
        ready = [envelopes]
        self.received = sequence
        while self._early and (following := self._early.pop(self.received + 1, None)) is not None:
            self.received += 1
            ready.append(following)
        self._unacknowledged += len(ready)
        if self._unacknowledged >= ACKNOWLEDGE_AFTER_FRAMES:
            self._acknowledge_at = now
        elif self._acknowledge_at is None:
            self._acknowledge_at = now + ACKNOWLEDGE_AFTER
        return ready

    def _forget(self, acknowledged: int, now: float) -> None:
        sent = self._sent
        if not sent or sent[0][0] > acknowledged:
            return
        while sent and sent[0][0] <= acknowledged:
            self.heard = sent[0][0]
            sent.popleft()
        self._pause = self.repeat
        self._repeat_at = now + self._pause if sent else None

    def next_deadline(self) -> float | None:
        """When ``due`` is wanted next."""
        if self._repeat_at is None:
            return self._acknowledge_at
        if self._acknowledge_at is None:
            return self._repeat_at
        return min(self._repeat_at, self._acknowledge_at)

    def due(self, now: float) -> list[tuple[int, list[Envelope]]]:
        """Frames to send again now: the oldest unacknowledged ones, or (0 or ``GAP``, []) where only an acknowledgement is owed."""
        frames: list[tuple[int, list[Envelope]]] = []
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

    def hasten(self, now: float) -> None:
        """Repeat at once what is not acknowledged: some of it may not have left."""
        if self._sent:
            self._pause = self.repeat
            self._repeat_at = now

    def unacknowledged(self) -> list[Envelope]:
        """What was said and not acknowledged, in order: for whoever must say it to the next incarnation."""
        return [envelope for _, envelopes in self._sent for envelope in envelopes]
