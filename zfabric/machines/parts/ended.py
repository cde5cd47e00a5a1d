"""Attempts of a worker that have ended since it last said so."""

from __future__ import annotations

import struct
from operator import itemgetter

from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row

_function = itemgetter(1)


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
        trace = b"".join([row[0] + row[1] for row in rows]) + struct.pack(f"{len(times)}d", *times)
        completed = m.Completed(tuple(self.outcomes), tuple(self.extras), _durations(list(map(_function, rows)), times[1::2]), trace)
        self.outcomes, self.extras, self.rows, self.times = [], [], [], []
        return completed


def _durations(functions: list[bytes], seconds: list[float]) -> tuple[Row, ...]:
    """How often each function ran, and for how long in all."""
    if functions.count(functions[0]) == len(functions):
        return ((functions[0], len(functions), sum(seconds)),)
    each: dict[bytes, list[float]] = {}
    for function_id, took in zip(functions, seconds, strict=True):
        each.setdefault(function_id, []).append(took)
    return tuple((function_id, len(took), sum(took)) for function_id, took in each.items())
