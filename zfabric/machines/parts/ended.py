"""Attempts of a worker that have ended since it last said so."""

from __future__ import annotations

from array import array
from itertools import chain
from operator import itemgetter

from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row

_NAMES, _FUNCTION = itemgetter(0, 1), itemgetter(1)


class Ended:
    """Outcomes by attempt, and when each ran. What is added to, row by row, is plain lists: this happens with each task."""

    def __init__(self) -> None:
        self.outcomes: list[Row] = []
        self.extras: list[Row] = []
        """What few outcomes have: ``(index, contained, written)``."""
        self.rows: list[Row] = []
        """The attempts' task rows, in the same order."""
        self.times: list[float] = []
        """When each began, and how many seconds it took: two for each."""

    def take(self) -> m.Completed | None:
        """What is to be said, if anything; it is said but once."""
        if not self.outcomes:
            return None
        rows, times = self.rows, self.times
        seconds: dict[bytes, list[float]] = {}
        for function_id, took in zip(map(_FUNCTION, rows), times[1::2], strict=True):
            seconds.setdefault(function_id, []).append(took)
        durations = tuple((function_id, len(each), sum(each)) for function_id, each in seconds.items())
        trace = b"".join(chain.from_iterable(map(_NAMES, rows))) + array("d", times).tobytes()
        completed = m.Completed(tuple(self.outcomes), tuple(self.extras), durations, trace)
        self.outcomes, self.extras, self.rows, self.times = [], [], [], []
        return completed
