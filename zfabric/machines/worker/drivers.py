"""Drivers that submit tasks to a worker directly, and the values that it sends them (decision 0016).

The value of such a task is sent to its driver at once; the scheduler receives the number of these values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import CLIENT, Address
from zfabric.protocol.messages import OK, Row


class Drivers:
    """The drivers of one worker."""

    def __init__(self) -> None:
        self.sent: Counter[bytes] = Counter()
        """Drivers that may submit tasks, each with the number of values sent to it."""
        self._rows: dict[bytes, list[Row]] = {}
        """Values to send with the next frames, by driver. A driver with an empty list only needs its count sent to the scheduler."""

    def __contains__(self, driver: bytes) -> bool:
        return driver in self.sent

    def accept(self, driver: bytes) -> m.DirectCounts:
        """Accept tasks of a driver; return the message that confirms it to the scheduler."""
        self.sent[driver] += 0
        return m.DirectCounts(driver, self.sent[driver])

    def queue_value(self, driver: bytes, task_id: bytes, outputs: Row) -> None:
        """Queue a value for a driver; it leaves with the next frame."""
        self._rows.setdefault(driver, []).append((task_id, OK, outputs))

    def count_value(self, driver: bytes, task_id: bytes, outputs: Row) -> Send:
        """Count a value for a driver; return the message to send at once."""
        self._rows.setdefault(driver, [])
        self.sent[driver] += 1
        return Send(CLIENT + driver, m.Results(((task_id, OK, outputs),)))

    def forget(self, driver: bytes) -> bool:
        """Stop sending to a driver that has exited: messages to it would be repeated for ever. Return whether it was accepted."""
        self._rows.pop(driver, None)
        return self.sent.pop(driver, None) is not None

    @property
    def unsent(self) -> bool:
        """Whether values or counts are to be sent."""
        return bool(self._rows)

    def take_results(self) -> Iterator[Send]:
        """Yield messages with values for drivers; they go ahead of all messages to the scheduler."""
        for driver, rows in self._rows.items():
            if rows:
                self.sent[driver] += len(rows)
                yield Send(CLIENT + driver, m.Results(tuple(rows)))

    def take_counts(self, scheduler: Address) -> Iterator[Send]:
        """Yield messages with counts for the scheduler; they go behind the completions of those tasks."""
        rows, self._rows = self._rows, {}
        for driver in rows:
            yield Send(scheduler, m.DirectCounts(driver, self.sent[driver]))
