"""Tasks that a worker has received and not begun. The scheduler may take them back; their places are released then."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from typing import Any

from zfabric.machines.worker.items import Item
from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row

Entry = Item | Row
"""A queued task: an item, or the bare row if nothing else came with it. Queueing bare rows takes a tenth of the time."""


def _row_of(entry: Entry) -> Row:
    return entry if type(entry) is tuple else entry.row  # type: ignore[union-attr]


class TaskQueue:
    """Tasks of one worker that have not begun."""

    def __init__(self) -> None:
        self.queue: deque[Entry] = deque()
        self.inline: deque[Entry] = deque()
        """Tasks to run on top of a task that is blocked in ``get``."""
        self.attempt = 0
        """The attempt number of all bare rows."""
        self.gpus: tuple[int, ...] = ()
        """The GPUs of this process until it exits (see ``Dispatcher``)."""
        self.returned_places: list[tuple[bytes, tuple[int, int]]] = []
        """(object id, place) of dependencies of tasks that this worker returned unrun: the shell unpins them."""

    def add_dispatched(self, message: m.Dispatch) -> None:
        """Queue the tasks that the scheduler dispatched."""
        queue = self.inline if message.waits else self.queue
        if message.attempt != self.attempt and len(message.details) < len(message.rows):
            self._expand_rows()
            self.attempt = message.attempt
        if not message.details:
            queue.extend(message.rows)
            return
        details = {index: (attempt, values, gpus) for index, attempt, values, gpus in message.details}
        self.gpus = next((gpus for _, _, gpus in details.values() if gpus), self.gpus)
        queue.extend(Item(row, *details[index]) if index in details else row for index, row in enumerate(message.rows))

    def add_direct(self, rows: Iterable[Row], attempt: int, driver: bytes) -> None:
        """Queue tasks that a driver submitted directly."""
        self.queue.extend(Item(row, attempt, (), (), driver) for row in rows)

    def claim(self, queue: deque[Entry], spare: Item | None = None) -> Item:
        """Remove the first task of ``queue`` and return it as an item. ``spare``, an item no longer in use, may be used for it."""
        entry = queue.popleft()
        if type(entry) is not tuple:
            return entry  # type: ignore[return-value]
        if spare is None:
            return Item(entry, self.attempt)
        spare.row, spare.attempt = entry, self.attempt
        spare.values = spare.gpus = ()
        spare.driver = b""
        return spare

    def _expand_rows(self) -> None:
        """Replace queued bare rows by items: rows that arrive from now on have another attempt number."""
        for queue in (self.queue, self.inline):
            items = [Item(entry, self.attempt) if type(entry) is tuple else entry for entry in queue]
            queue.clear()
            queue.extend(items)

    def waiting(self) -> Iterator[tuple[Row, int]]:
        """(row, attempt) of each queued task, in the order in which they would run."""
        for entry in (*self.inline, *self.queue):
            yield _row_of(entry), self.attempt if type(entry) is tuple else entry.attempt  # type: ignore[union-attr]

    def submitted_by(self, driver: bytes) -> tuple[bytes, ...]:
        """Ids of queued tasks that this driver submitted directly."""
        return tuple(entry.row[0] for entry in self.queue if type(entry) is Item and entry.driver == driver)

    def give_back(self, task_ids: Container[bytes]) -> list[bytes]:
        """Remove these tasks if present; return the ids removed."""
        taken = []
        for queue in (self.queue, self.inline):
            found = [entry for entry in queue if _row_of(entry)[0] in task_ids]
            if found:
                self._drop_places(found)
                taken += [_row_of(entry)[0] for entry in found]
                left = [entry for entry in queue if _row_of(entry)[0] not in task_ids]
                queue.clear()
                queue.extend(left)
        return taken

    def clear_queue(self) -> tuple[bytes, ...]:
        """Remove all of ``queue``; return the ids."""
        return self._clear(self.queue)

    def clear_inline(self) -> tuple[bytes, ...]:
        """Remove all of ``inline``, since the wait has ended or is no longer on top; return the ids."""
        return self._clear(self.inline)

    def _clear(self, queue: deque[Entry]) -> tuple[bytes, ...]:
        returned = tuple(_row_of(entry)[0] for entry in queue)
        self._drop_places(queue)
        queue.clear()
        return returned

    def drop(self, task_id: bytes, attempt: int) -> None:
        """Remove this attempt of a task from ``queue``, if present."""
        for entry in self.queue:
            its = self.attempt if type(entry) is tuple else entry.attempt  # type: ignore[union-attr]
            if _row_of(entry)[0] == task_id and its == attempt:
                self._drop_places((entry,))
                self.queue.remove(entry)
                return

    def _drop_places(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.returned_places += [(identifier, value) for identifier, value in _places_of(entry) if type(value) is tuple]

    def unread(self) -> tuple[Row, ...]:
        """Places that came with queued tasks: pins that the client has not counted. Rows as in ``Pinned``."""
        pairs = [pair for entry in (*self.inline, *self.queue) for pair in _places_of(entry)]
        return tuple((identifier, *place) for identifier, place in pairs if type(place) is tuple)


def _places_of(entry: Entry) -> list[tuple[bytes, Any]]:
    """(id, value) of each dependency that came with a task. Each is pinned once, however often the row names it."""
    return list(dict(zip(entry.row[3], entry.values, strict=False)).items()) if type(entry) is Item else []
