"""When a process that died is started again, and when to give up: the supervisor's one policy, without a clock.

The first restart is immediate, since most deaths are single events (a kill, a bug that one message triggers) and everybody
waits for the process. Each further death within ``settled`` seconds of its start doubles the pause, so that a process
that cannot live costs no more than a start every ``backoff_max`` seconds. If a process ends ``failures_max`` times in a row before it
works, it is not started again, and those who wait for it are notified. A process that has worked is restarted for ever, since what killed
it may end.
"""

from __future__ import annotations

PAUSE_FIRST = 0.02
"""Seconds before the second restart in a row; doubled for each further one. Ten starts take five seconds in all."""


class RestartPolicy:
    """The restarts of one process. Times are seconds of any one monotonic clock."""

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
        """Seconds until the next start, or None to give up. ``came_up``: the process had begun to work."""
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
