"""What a worker runs, attempts of tasks and calls of its actors, and the queue of its unbegun tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple

from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row


class Item:
    """An attempt. ``values`` are of dependencies; ``driver`` is set by direct submission."""

    __slots__ = ("attempt", "driver", "gpus", "row", "values")

    def __init__(self, row: Row, attempt: int, values: tuple[Any, ...] = (), gpus: tuple[int, ...] = (), driver: bytes = b"") -> None:
        self.row = row
        self.attempt = attempt
        self.values = values
        self.gpus = gpus
        self.driver = driver


class Invocation(NamedTuple):
    """A call of an actor. ``row`` begins like a task's: the id first, dependencies fourth.

    ``values`` are as in ``Call``: places without pins. ``attempt`` is the actor's: a later life gives new ids to what a call submits.
    ``options`` is None only for calls from this node without any, whose outcomes have short ways.
    """

    row: Row
    attempt: int
    values: tuple[Any, ...]
    gpus: tuple[int, ...]
    actor_id: bytes
    method: str
    caller: bytes
    options: tuple[Row, ...] | None


def actor_of(item: Item | Invocation) -> bytes:
    """The actor that is called or made."""
    return item.actor_id if type(item) is Invocation else item.row[0]


Entry = Item | Row
"""A bare row has nothing with it, and is queued in a tenth of the time."""


def _row_of(entry: Entry) -> Row:
    return entry if type(entry) is tuple else entry.row  # type: ignore[union-attr]


class TaskQueue:
    """One worker's unbegun tasks. The scheduler may take them back; then their places are released."""

    def __init__(self) -> None:
        self.queue: deque[Entry] = deque()
        self.inline: deque[Entry] = deque()
        """Tasks for on top of one blocked in ``get``."""
        self.attempt = 0
        """The attempt of all bare rows."""
        self.gpus: tuple[int, ...] = ()
        """GPUs until the process exits (see ``Dispatcher``)."""
        self.returned_places: list[tuple[bytes, tuple[int, int]]] = []
        """(object id, place) of tasks returned unrun, for the shell to unpin."""

    def add_dispatched(self, message: m.Dispatch) -> None:
        """Queue dispatched tasks."""
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
        """Queue tasks of direct submission."""
        self.queue.extend(Item(row, attempt, (), (), driver) for row in rows)

    def claim(self, queue: deque[Entry], spare: Item | None = None) -> Item:
        """Remove the first task; ``spare``, no longer in use, may become its item."""
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
        """Replace bare rows by items: later rows have another attempt number."""
        for queue in (self.queue, self.inline):
            items = [Item(entry, self.attempt) if type(entry) is tuple else entry for entry in queue]
            queue.clear()
            queue.extend(items)

    def waiting(self) -> Iterator[tuple[Row, int]]:
        """(row, attempt) in order."""
        for entry in (*self.inline, *self.queue):
            yield _row_of(entry), self.attempt if type(entry) is tuple else entry.attempt  # type: ignore[union-attr]

    def submitted_by(self, driver: bytes) -> tuple[bytes, ...]:
        """Queued tasks of this driver."""
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
        """Clear ``queue``; return the ids."""
        return self._clear(self.queue)

    def clear_inline(self) -> tuple[bytes, ...]:
        """Clear ``inline``: the wait has ended or is not on top; return the ids."""
        return self._clear(self.inline)

    def _clear(self, queue: deque[Entry]) -> tuple[bytes, ...]:
        returned = tuple(_row_of(entry)[0] for entry in queue)
        self._drop_places(queue)
        queue.clear()
        return returned

    def drop(self, task_id: bytes, attempt: int) -> None:
        """Remove this attempt from ``queue``, if present."""
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
        """Places of queued tasks, not yet counted by the client: as in ``Pinned``."""
        pairs = [pair for entry in (*self.inline, *self.queue) for pair in _places_of(entry)]
        return tuple((identifier, *place) for identifier, place in pairs if type(place) is tuple)


def _places_of(entry: Entry) -> list[tuple[bytes, Any]]:
    return list(dict(zip(entry.row[3], entry.values, strict=False)).items()) if type(entry) is Item else []
