"""What a worker was given to run and has not begun: it may be taken back, and what came with it has to be given up then."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from typing import Any

from zfabric.machines.worker.items import Item
from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row

Entry = Item | Row
"""What waits: an item, or, of the many tasks with which nothing came, the row alone: that takes a tenth of the time."""


def _row_of(entry: Entry) -> Row:
    return entry if type(entry) is tuple else entry.row  # type: ignore[union-attr]


class TaskQueue:
    """The tasks of one worker that have not begun."""

    def __init__(self) -> None:
        self.queue: deque[Entry] = deque()
        self.inline: deque[Entry] = deque()
        """Those that are run on top of what waits."""
        self.attempt = 0
        """That of the rows that wait alone."""
        self.gpus: tuple[int, ...] = ()
        """The node's GPUs that this process was given. It has them until it ends (see ``Dispatcher``)."""
        self.given_up: list[tuple[bytes, tuple[int, int]]] = []
        """Objects whose location came with a task that is not run here after all: the shell unpins them."""

    def take_in(self, message: m.Dispatch) -> None:
        """Tasks of the scheduler's have come."""
        queue = self.inline if message.waits else self.queue
        if message.attempt != self.attempt and len(message.details) < len(message.rows):
            self._spell_out()
            self.attempt = message.attempt
        if not message.details:
            queue.extend(message.rows)
            return
        details = {index: (attempt, values, gpus) for index, attempt, values, gpus in message.details}
        self.gpus = next((gpus for _, _, gpus in details.values() if gpus), self.gpus)
        queue.extend(Item(row, *details[index]) if index in details else row for index, row in enumerate(message.rows))

    def hand(self, rows: Iterable[Row], attempt: int, driver: bytes) -> None:
        """Tasks of a driver's have come."""
        self.queue.extend(Item(row, attempt, (), (), driver) for row in rows)

    def claim(self, queue: deque[Entry], spare: Item | None = None) -> Item:
        """The next of ``queue``. ``spare`` is an item that nobody needs any more: it may be made that of the next."""
        entry = queue.popleft()
        if type(entry) is not tuple:
            return entry  # type: ignore[return-value]
        if spare is None:
            return Item(entry, self.attempt)
        spare.row, spare.attempt = entry, self.attempt
        spare.values = spare.gpus = ()
        spare.driver = b""
        return spare

    def _spell_out(self) -> None:
        """Rows that come from now on have another attempt: those that wait become items."""
        for queue in (self.queue, self.inline):
            items = [Item(entry, self.attempt) if type(entry) is tuple else entry for entry in queue]
            queue.clear()
            queue.extend(items)

    def waiting(self) -> Iterator[tuple[Row, int]]:
        """Rows and attempts of all, in the order in which they would be run."""
        for entry in (*self.inline, *self.queue):
            yield _row_of(entry), self.attempt if type(entry) is tuple else entry.attempt  # type: ignore[union-attr]

    def handed_by(self, driver: bytes) -> tuple[bytes, ...]:
        """Those that this driver has handed over."""
        return tuple(entry.row[0] for entry in self.queue if type(entry) is Item and entry.driver == driver)

    def give_back(self, task_ids: Container[bytes]) -> list[bytes]:
        """Those of these that are here, which are not to be run."""
        taken = []
        for queue in (self.queue, self.inline):
            found = [entry for entry in queue if _row_of(entry)[0] in task_ids]
            if found:
                self._give_up(found)
                taken += [_row_of(entry)[0] for entry in found]
                left = [entry for entry in queue if _row_of(entry)[0] not in task_ids]
                queue.clear()
                queue.extend(left)
        return taken

    def give_back_queue(self) -> tuple[bytes, ...]:
        """All that were not for on top of what waits."""
        return self._give_back_all(self.queue)

    def give_back_inline(self) -> tuple[bytes, ...]:
        """All that were for on top of a wait that has ended, or that is not on top any more."""
        return self._give_back_all(self.inline)

    def _give_back_all(self, queue: deque[Entry]) -> tuple[bytes, ...]:
        returned = tuple(_row_of(entry)[0] for entry in queue)
        self._give_up(queue)
        queue.clear()
        return returned

    def drop(self, task_id: bytes, attempt: int) -> None:
        """One of the queue is not to be run, if it is there."""
        for entry in self.queue:
            its = self.attempt if type(entry) is tuple else entry.attempt  # type: ignore[union-attr]
            if _row_of(entry)[0] == task_id and its == attempt:
                self._give_up((entry,))
                self.queue.remove(entry)
                return

    def _give_up(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.given_up += [(identifier, value) for identifier, value in _places_of(entry) if type(value) is tuple]

    def unread(self) -> tuple[Row, ...]:
        """Places that came with them: pins that the client has not counted. Rows as in ``Pinned``."""
        pairs = [pair for entry in (*self.inline, *self.queue) for pair in _places_of(entry)]
        return tuple((identifier, *place) for identifier, place in pairs if type(place) is tuple)


def _places_of(entry: Entry) -> list[tuple[bytes, Any]]:
    """The values that came with a task. Each is told, and pinned, once, however often the row names it."""
    return list(dict(zip(entry.row[3], entry.values, strict=False)).items()) if type(entry) is Item else []
