"""Which parts of a local scheduler have something to do, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import NamedTuple

(
    STOPPING,
    OVERDUE,
    TRIMMING,
    UNMET,
    STARVING,
    RETIRING,
    WAITS,
    LOGS,
    TOMBSTONES,
    STARTING_WORKERS,
    REJOINING,
    QUERIES,
    GROUPS,
    CONFIRMING,
    IDLENESS,
    FLUSHING,
    HEARTBEATS,
    HOLDING_ROOM,
    CROWDED,
    RECLAIMING,
    OWED,
    SHUTDOWN,
    DIRECT,
    BACKPRESSURE,
) = range(24)
"""What has deadlines, in the order in which they are applied."""


class Timed(NamedTuple):
    """A part that has deadlines."""

    next_deadline: Callable[[], float | None]
    """Returns the soonest deadline, or None."""
    tick: Callable[[float], None] | None = None
    """Applies passed deadlines. Without it the end of the turn does so."""


class PartDeadlines:
    """The soonest deadline of each part.

    A part only notes deadlines. When one goes, or moves further off, the time here is too soon, and the part is asked once that would be
    the next one.
    """

    def __init__(self) -> None:
        self._times = [inf] * (BACKPRESSURE + 1)
        self.any_sooner = False
        """Whether one was noted since ``next`` was called."""

    def note(self, part: int, deadline: float = 0.0) -> None:
        """Note a deadline. By default the part is asked when the next one is wanted."""
        if deadline < self._times[part]:
            self._times[part] = deadline
            self.any_sooner = True

    def next(self, parts: Mapping[int, Timed]) -> float | None:
        """The soonest deadline of all parts."""
        times, self.any_sooner = self._times, False
        while (soonest := min(times)) != inf:
            part = times.index(soonest)
            deadline = parts[part].next_deadline()
            times[part] = inf if deadline is None else deadline
            if deadline == soonest:
                return soonest
        return None

    def passed(self, now: float) -> Iterator[int]:
        """Parts to ask, in order. Each is found before the next one is looked for."""
        for part, deadline in enumerate(self._times):
            if deadline <= now:
                yield part

    def missing(self, parts: Mapping[int, Timed]) -> list[int]:
        """Parts with a sooner deadline than noted: a mistake."""
        deadlines = ((part, timed.next_deadline()) for part, timed in parts.items())
        return [part for part, deadline in deadlines if deadline is not None and deadline < self._times[part]]
