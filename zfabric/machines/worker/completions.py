"""Outcomes of ended attempts, for the scheduler, and for drivers that submitted the task directly.

Such a driver receives the value at once; the scheduler receives the number of these values (decision 0016).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import itemgetter

from zfabric.machines.worker.items import Item
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import CLIENT, Address
from zfabric.protocol.messages import OK, Row
from zfabric.protocol.trace import pack_times

_task_id = itemgetter(0)
_function = itemgetter(1)


class CompletionBatch:
    """Outcomes in plain lists, since every task adds to them."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.statuses: list[int] = []
        self.outputs: list[Row] = []
        self.extras: list[Row] = []
        """``(index, contained, written)`` where there are such."""
        self.rows: list[Row] = []
        """The attempts' task rows."""
        self.times: list[float] = []
        """Two per attempt: start and seconds."""

    def take(self) -> m.Completed | None:
        """Take the message, if anything has ended."""
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
    """The message about one attempt without error, as of ``take``."""
    row = item.row
    function = row[1]
    times = pack_times((function,), (started, seconds))
    return m.Completed((item.attempt,), (OK,), (outputs,), row[0], (), ((function, 1, seconds),), times)


def _durations(functions: list[bytes], seconds: list[float]) -> tuple[Row, ...]:
    """(function id, runs, seconds in all)."""
    if functions.count(functions[0]) == len(functions):
        return ((functions[0], len(functions), sum(seconds)),)
    each: dict[bytes, list[float]] = {}
    for function_id, took in zip(functions, seconds, strict=True):
        each.setdefault(function_id, []).append(took)
    return tuple((function_id, len(took), sum(took)) for function_id, took in each.items())


class Drivers:
    """The drivers of one worker."""

    def __init__(self) -> None:
        self.sent: Counter[bytes] = Counter()
        """Values sent to each driver that may submit tasks."""
        self._rows: dict[bytes, list[Row]] = {}
        """Values to send with the next frames, by driver. A driver with an empty list only needs its count sent to the scheduler."""

    def __contains__(self, driver: bytes) -> bool:
        return driver in self.sent

    def accept(self, driver: bytes) -> m.DirectCounts:
        """Accept a driver; return the confirmation for the scheduler."""
        self.sent[driver] += 0
        return m.DirectCounts(driver, self.sent[driver])

    def queue_value(self, driver: bytes, task_id: bytes, outputs: Row) -> None:
        """Queue a value for the next frame."""
        self._rows.setdefault(driver, []).append((task_id, OK, outputs))

    def count_value(self, driver: bytes, task_id: bytes, outputs: Row) -> Send:
        """Count a value; return the message to send at once."""
        self._rows.setdefault(driver, [])
        self.sent[driver] += 1
        return Send(CLIENT + driver, m.Results(((task_id, OK, outputs),)))

    def forget(self, driver: bytes) -> bool:
        """Stop sending to an exited driver: messages would be repeated for ever. Return whether it was accepted."""
        self._rows.pop(driver, None)
        return self.sent.pop(driver, None) is not None

    @property
    def unsent(self) -> bool:
        """Whether values or counts are to be sent."""
        return bool(self._rows)

    def take_results(self) -> Iterator[Send]:
        """Messages with values; they go ahead of all to the scheduler."""
        for driver, rows in self._rows.items():
            if rows:
                self.sent[driver] += len(rows)
                yield Send(CLIENT + driver, m.Results(tuple(rows)))

    def take_counts(self, scheduler: Address) -> Iterator[Send]:
        """Messages with counts; they go behind the completions of those tasks."""
        rows, self._rows = self._rows, {}
        for driver in rows:
            yield Send(scheduler, m.DirectCounts(driver, self.sent[driver]))
