"""What a worker was given to run and has not begun: it may be taken back, and what came with it has to be given up then."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

from zfabric.machines.parts.mailbox import Invocation
from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row


class Item(NamedTuple):
    """One attempt this worker was given: the task row, attempt number, values of its dependencies, ids of its GPUs, who handed it over."""

    row: Row
    attempt: int
    values: tuple[Any, ...]
    gpus: tuple[int, ...]
    driver: bytes = b""


_made = tuple.__new__
"""``Item`` without a call of Python's, for the many that have nothing but a row."""


def actor_of(item: Item | Invocation) -> bytes:
    """The actor that is called, or made."""
    return item.actor_id if type(item) is Invocation else item.row[0]


class Given:
    """The tasks of one worker that have not begun."""

    def __init__(self) -> None:
        self.queue: deque[Item] = deque()
        self.inline: deque[Item] = deque()
        """Those that are run on top of what waits."""
        self.gpus: tuple[int, ...] = ()
        """The node's GPUs that this process was given. It has them until it ends (see ``Dispatcher``)."""
        self.given_up: list[tuple[bytes, tuple[int, int]]] = []
        """Objects whose location came with a task that is not run here after all: the shell unpins them."""

    def take_in(self, message: m.Dispatch) -> None:
        """Tasks of the scheduler's have come."""
        queue = self.inline if message.inline else self.queue
        if not message.details:
            attempt = message.attempt
            queue.extend([_made(Item, (row, attempt, (), (), b"")) for row in message.rows])
            return
        details = {index: (attempt, values, gpus) for index, attempt, values, gpus in message.details}
        self.gpus = next((gpus for _, _, gpus in details.values() if gpus), self.gpus)
        plain: tuple[int, Row, Row] = (message.attempt, (), ())
        for index, row in enumerate(message.rows):
            queue.append(Item(row, *details.get(index, plain)))

    def give_back(self, task_ids: Container[bytes]) -> list[bytes]:
        """Those of these that are here, which are not to be run."""
        taken = []
        for queue in (self.queue, self.inline):
            found = [item for item in queue if item.row[0] in task_ids]
            if found:
                self._give_up(found)
                taken += [item.row[0] for item in found]
                left = [item for item in queue if item.row[0] not in task_ids]
                queue.clear()
                queue.extend(left)
        return taken

    def give_back_queue(self) -> tuple[bytes, ...]:
        """All that were not for on top of what waits."""
        returned = tuple(item.row[0] for item in self.queue)
        self._give_up(self.queue)
        self.queue.clear()
        return returned

    def drop(self, task_id: bytes, attempt: int) -> None:
        """One of the queue is not to be run, if it is there."""
        found = next((item for item in self.queue if item.row[0] == task_id and item.attempt == attempt), None)
        if found is not None:
            self._give_up((found,))
            self.queue.remove(found)

    def _give_up(self, items: Iterable[Item]) -> None:
        for item in items:
            self.given_up += [(identifier, value) for identifier, value in _places_of(item) if type(value) is tuple]

    def unread(self) -> tuple[Row, ...]:
        """Places that came with them: pins that the client has not counted. Rows as in ``Pinned``."""
        pairs = [pair for item in (*self.inline, *self.queue) for pair in _places_of(item)]
        return tuple((identifier, *place) for identifier, place in pairs if type(place) is tuple)


def _places_of(item: Item) -> list[tuple[bytes, Any]]:
    """The values that came with a task. Each is told, and pinned, once, however often the row names it."""
    return list(dict(zip(item.row[3], item.values, strict=False)).items())
