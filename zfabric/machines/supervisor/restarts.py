"""When a dead process is started again, and when not, without a clock.

The first restart is immediate: most deaths are single events. Each further death within ``settled`` seconds of its start doubles the pause,
up to ``backoff_max`` seconds. After ``failures_max`` deaths in a row before it works, a process is not started again, and those who wait
are notified. One that has worked is restarted for ever: what killed it may end.
"""

from __future__ import annotations

PAUSE_FIRST = 0.02
"""Seconds before the second restart in a row, then doubled: ten starts in five seconds."""


class RestartPolicy:
    """One process's restarts, in seconds of any monotonic clock."""

    def __init__(self, backoff_max: float, failures_max: int = 10, settled: float = 10.0) -> None:
        self.backoff_max = backoff_max
        self.failures_max = failures_max
        self.settled = settled
        self._started = 0.0
        self._quick_deaths = 0
        self._failed_starts = 0

    def on_start(self, now: float) -> None:
        """Note that the process was started."""
        self._started = now

    def on_death(self, now: float, came_up: bool) -> float | None:
        """Seconds until the next start; None: no more. ``came_up``: the process had begun to work."""
        if now - self._started >= self.settled:
            self._quick_deaths = 0
        if came_up or now - self._started >= self.settled:
            self._failed_starts = 0
        else:
            self._failed_starts += 1
            if self._failed_starts >= self.failures_max:
                return None
        self._quick_deaths += 1
        if self._quick_deaths == 1:
            return 0.0
        exponent = min(self._quick_deaths - 2, 32)
        return min(self.backoff_max, PAUSE_FIRST * 2.0**exponent)
