"""Deadlines by which things are to have ended, soonest first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

LEAST = 1000
"""Deadlines past which a sweep removes those of ended things: at least so many, or twice what the last sweep left."""


class Deadlines:
    """Deadlines of things. Those of ended things are skipped, and swept out before long.

    ``counts`` says whether the thing of a (deadline, identifier) has not ended.
    """

    def __init__(self, counts: Callable[[float, bytes], bool]) -> None:
        self._counts = counts
        self._heap: list[tuple[float, bytes]] = []
        self._most = LEAST

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, identifier: bytes) -> None:
        """Add a deadline."""
        heappush(self._heap, (deadline, identifier))
        if len(self._heap) > self._most:
            self._heap = [each for each in self._heap if self._counts(*each)]
            heapify(self._heap)
            self._most = max(LEAST, 2 * len(self._heap))

    def next(self) -> float | None:
        """The soonest that counts."""
        heap = self._heap
        while heap and not self._counts(*heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[bytes]:
        """Things whose deadline has passed."""
        found = []
        while (soonest := self.next()) is not None and soonest <= now:
            found.append(heappop(self._heap)[1])
        return found
