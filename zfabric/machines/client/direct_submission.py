"""Tasks that a driver hands to a worker itself, because it waits for each of them: the driver's side (decision 0016).

The scheduler introduces the two to each other, and hears of each task from both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import WORKER, Address
from zfabric.protocol.messages import Row

if TYPE_CHECKING:
    from zfabric.machines.client.machine import Client


class DirectSubmitter:
    """Whom a client hands which tasks to. Works under its client's lock."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.hands: dict[bytes, bytes] = {}
        """Functions whose tasks may be handed to a worker, and that worker."""
        self.introduced: set[bytes] = set()
        """Workers that tasks were handed to: they tell what values those have."""
        self.told: dict[bytes, int] = {}
        """How many values each of those has told."""
        self._first_attempt = 0
        self._handed: Send | None = None
        """The task that is to be sent now."""
        self._unsaid: dict[bytes, list[Row]] = {}
        """Tasks that the scheduler has not been told of, by worker. It hears of them from those, too, and may hear of several at once."""

    def hand(self, row: Row) -> None:
        """Nothing else is under way: the worker that ran the last such task gets this one at once, and the scheduler hears of it."""
        worker = self.hands[row[1]]
        self._handed = Send(WORKER + worker, m.SubmitDirect(self.client.scheduler[1:], (row,), self._first_attempt))
        self._unsaid.setdefault(worker, []).append(row)

    @property
    def urgent(self) -> bool:
        """Whether a task is to be sent."""
        return self._handed is not None

    @property
    def unsent(self) -> bool:
        """Whether anything is."""
        return bool(self._handed or self._unsaid)

    def take(self) -> Send | None:
        """The task that is to be sent, if there is one: ahead of what the scheduler hears."""
        handed = self._handed
        if handed is not None:
            self._handed = None
        return handed

    def unsaid(self) -> Iterator[m.SubmittedDirect]:
        """What the scheduler is to hear, ahead of all that names those tasks."""
        for worker, rows in self._unsaid.items():
            yield m.SubmittedDirect(worker, tuple(rows))

    def take_unsaid(self) -> list[m.SubmittedDirect]:
        """The same, which is said now."""
        said = list(self.unsaid())
        self._unsaid = {}
        return said

    def on_direct_allowed(self, now: float, source: Address, message: m.DirectAllowed) -> None:
        """A worker accepts tasks of these functions from this process directly; without functions, none any more."""
        self.hands = {function: worker for function, worker in self.hands.items() if worker != message.worker}
        self.hands.update(dict.fromkeys(message.functions, message.worker))
        self._first_attempt = message.attempt
        if message.functions:
            self.introduced.add(message.worker)
        else:
            self.client.say(m.SubmittedDirect(message.worker, ()))

    def heard(self, worker: bytes, rows: tuple[Row, ...]) -> None:
        """A worker has told these values."""
        self.told[worker] = self.told.get(worker, 0) + len(rows)

    def say_what_was_told(self) -> None:
        """The scheduler is to answer, or to end, in the knowledge of what this process knows."""
        for worker, number in self.told.items():
            self.client.say(m.DirectCounts(worker, number))

    def forget(self, worker: bytes) -> None:
        """A worker has ended."""
        self.introduced.discard(worker)
        self.told.pop(worker, None)

    def start_over(self) -> None:
        """A scheduler that begins anew has introduced nobody. What was not sent is among what it is told."""
        self.hands = {}
        self._handed = None
        self._unsaid = {}
