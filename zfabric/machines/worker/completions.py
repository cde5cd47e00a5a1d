"""Attempts of a worker that have ended since its last report."""

from __future__ import annotations

from operator import itemgetter

from zfabric.machines.worker.items import Item
from zfabric.protocol import messages as m
from zfabric.protocol.messages import OK, Row
from zfabric.protocol.trace import pack_times

_task_id = itemgetter(0)
_function = itemgetter(1)


class CompletionBatch:
    """Outcomes of attempts, and when each ran. Plain lists, taken as one message, since every task adds to them."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.statuses: list[int] = []
        self.outputs: list[Row] = []
        self.extras: list[Row] = []
        """Fields that few outcomes have: ``(index, contained, written)``."""
        self.rows: list[Row] = []
        """Task rows of the attempts, in the same order."""
        self.times: list[float] = []
        """Two numbers for each attempt: when it began, and how many seconds it took."""

    def take(self) -> m.Completed | None:
        """Take the message to send, if anything has ended."""
        if not self.rows:
            return None
        functions = list(map(_function, self.rows))
        completed = m.Completed(
            tuple(self.attempts),
            tuple(self.statuses),
            tuple(self.outputs),
            b"".join(map(_task_id, self.rows)),
            tuple(self.extras),
            _durations(functions, self.times[1::2]),
            pack_times(functions, self.times),
        )
        self.attempts, self.statuses, self.outputs, self.extras, self.rows, self.times = [], [], [], [], [], []
        return completed


def lone_report(item: Item, outputs: Row, started: float, seconds: float) -> m.Completed:
    """The message about a single attempt without error, as ``take`` makes it."""
    row = item.row
    function = row[1]
    times = pack_times((function,), (started, seconds))
    return m.Completed((item.attempt,), (OK,), (outputs,), row[0], (), ((function, 1, seconds),), times)


def _durations(functions: list[bytes], seconds: list[float]) -> tuple[Row, ...]:
    """(function id, runs, seconds in all) of each function."""
    if functions.count(functions[0]) == len(functions):
        return ((functions[0], len(functions), sum(seconds)),)
    each: dict[bytes, list[float]] = {}
    for function_id, took in zip(functions, seconds, strict=True):
        each.setdefault(function_id, []).append(took)
    return tuple((function_id, len(took), sum(took)) for function_id, took in each.items())
