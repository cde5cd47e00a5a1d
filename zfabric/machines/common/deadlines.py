"""When things are to be stopped that have not ended by then, soonest first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

LEAST = 1000
"""Deadlines that may be kept of what has ended, before they are looked through; twice as many as counted when that was done last."""


class Deadlines:
    """Deadlines, each with what it is of. Those of what has ended are passed over, and take no room for long, however far off they are.

    ``counts`` is asked whether one still does: (deadline, of what).
    """

    def __init__(self, counts: Callable[[float, bytes], bool]) -> None:
        self._counts = counts
        self._heap: list[tuple[float, bytes]] = []
        self._most = LEAST

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, identifier: bytes) -> None:
        """One more."""
        heappush(self._heap, (deadline, identifier))
        if len(self._heap) > self._most:
            self._heap = [each for each in self._heap if self._counts(*each)]
            heapify(self._heap)
            self._most = max(LEAST, 2 * len(self._heap))

    def next(self) -> float | None:
        """The soonest one that counts."""
        heap = self._heap
        while heap and not self._counts(*heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[bytes]:
        """What is to be stopped by now."""
        found = []
        while (soonest := self.next()) is not None and soonest <= now:
            found.append(heappop(self._heap)[1])
        return found
