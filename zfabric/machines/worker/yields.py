"""The worker's side of streams: what tasks have yielded, on its way to the scheduler, and how far they may go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from zfabric.protocol import messages as m
from zfabric.protocol.messages import CLOSE, Row


class Yields:
    """All streams that this worker has begun."""

    def __init__(self) -> None:
        self.open: dict[bytes, deque[Row]] = {}
        """The last rows of each stream that is being made: those that no consumer may have, should the daemon die."""
        self.unsaid: list[Row] = []
        self.waiting: dict[bytes, Callable[[], object]] = {}
        """Streams that wait to be allowed more without a thread of their own, and how to tell them."""
        self._allowed: dict[bytes, int] = {}

    def begin(self, task_id: bytes, ahead: int) -> None:
        """A stream begins; it may be this far ahead of its consumer."""
        self.open[task_id] = deque(maxlen=ahead)
        self._allowed[task_id] = ahead

    def allow(self, task_id: bytes, upto: int) -> None:
        """A stream may go so far."""
        before = self._allowed.get(task_id, 0)
        if before != CLOSE:
            self._allowed[task_id] = upto if upto == CLOSE else max(before, upto)
        tell = self.waiting.pop(task_id, None)  # Who waits may leave meanwhile, without a lock.
        if tell is not None:
            tell()

    def may_go_on(self, task_id: bytes, index: int) -> bool:
        """Whether a stream need not wait with this value: it may have it, or is to end."""
        return self.closed(task_id) or index < self._allowed[task_id]

    def closed(self, task_id: bytes) -> bool:
        """Whether a stream is to end."""
        return self._allowed[task_id] == CLOSE

    def say(self, row: Row) -> None:
        """A value, or the end; rows as in ``Yielded``."""
        self.unsaid.append(row)
        self.open[row[0]].append(row)

    def take(self) -> m.Yielded:
        """What is to be said."""
        rows, self.unsaid = self.unsaid, []
        return m.Yielded(tuple(rows))

    def end(self, task_id: bytes) -> None:
        """The task has ended."""
        self.open.pop(task_id, None)
        self._allowed.pop(task_id, None)

    def again(self, unheard: Iterable[m.Message]) -> list[m.Message]:
        """What a new daemon is told: reports that the one before may not have heard, and what streams go on from, in order.

        A place that it did hear of is the arena's by now, which tells the new one of it.
        """
        rows = {row[:3]: row if type(row[3]) is not tuple else (*row[:3], True, ()) for kept in self.open.values() for row in kept}
        ends: list[m.Message] = []
        for message in unheard:
            if type(message) is m.Yielded:
                rows.update((row[:3], row) for row in message.rows)
            else:
                ends.append(message)
        return [m.Yielded(tuple(rows[key] for key in sorted(rows))), *ends] if rows else ends
