"""Simulated time: what is to be done, and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Agenda:
    """Actions in the order of their times, then in that of their scheduling."""

    def __init__(self) -> None:
        self.now = 100.0
        """Simulated seconds."""
        self.events = 0
        """Actions done."""
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Schedule an action at a time."""
        self._order += 1
        heapq.heappush(self._queue, (time, self._order, action))

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """Schedule an action in ``delay`` seconds."""
        self.at(self.now + delay, action)

    def step(self) -> bool:
        """Do the next action. Return False if there is none."""
        if not self._queue:
            return False
        time, _, action = heapq.heappop(self._queue)
        self.now = max(self.now, time)
        self.events += 1
        action()
        return True
