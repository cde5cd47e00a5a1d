"""Drivers that hand their tasks to a worker themselves: who they are, and what each has been told (decision 0016).

What such a task returns goes to its driver at once, past the scheduler, which hears how many values that were.
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
        self.told: Counter[bytes] = Counter()
        """Who may hand over tasks, and how many values each has been told."""
        self._rows: dict[bytes, list[Row]] = {}
        """Values that leave with the next frames; of those that have left already, no more than whom the scheduler is to hear of."""

    def __contains__(self, driver: bytes) -> bool:
        return driver in self.told

    def introduce(self, driver: bytes) -> m.DirectCounts:
        """A driver may hand over tasks. What the scheduler is to know of it."""
        self.told[driver] += 0
        return m.DirectCounts(driver, self.told[driver])

    def tell(self, driver: bytes, task_id: bytes, outputs: Row) -> None:
        """A value for a driver, with the next frame."""
        self._rows.setdefault(driver, []).append((task_id, OK, outputs))

    def tell_now(self, driver: bytes, task_id: bytes, outputs: Row) -> Send:
        """A value for a driver, to be sent at once."""
        self._rows.setdefault(driver, [])
        self.told[driver] += 1
        return Send(CLIENT + driver, m.Results(((task_id, OK, outputs),)))

    def forget(self, driver: bytes) -> bool:
        """A driver has ended: what it would be told would be repeated for ever. Whether it was known."""
        self._rows.pop(driver, None)
        return self.told.pop(driver, None) is not None

    @property
    def unsent(self) -> bool:
        """Whether anything is to be said."""
        return bool(self._rows)

    def take_results(self) -> Iterator[Send]:
        """The values that wait, for those who handed over the tasks: ahead of what the scheduler hears."""
        for driver, rows in self._rows.items():
            if rows:
                self.told[driver] += len(rows)
                yield Send(CLIENT + driver, m.Results(tuple(rows)))

    def take_counts(self, scheduler: Address) -> Iterator[Send]:
        """How many each was told, for the scheduler: behind the ends of those tasks."""
        rows, self._rows = self._rows, {}
        for driver in rows:
            yield Send(scheduler, m.DirectCounts(driver, self.told[driver]))
