"""The worker's side of streams: yielded values on their way to the scheduler, and how many each stream may yield."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES, split_ids
from zfabric.protocol.messages import CLOSE, Row


class Yields:
    """All streams that this worker has begun."""

    def __init__(self) -> None:
        self.open: dict[bytes, deque[Row]] = {}
        """The last rows of each stream that is being made. No consumer may have received them if the daemon dies."""
        self.ended: dict[bytes, deque[Row]] = {}
        """The last rows of each stream that has ended, until the scheduler has recorded its outcome (``OutcomesRecorded``)."""
        self.unsent: list[Row] = []
        self.waiting: dict[bytes, Callable[[], object]] = {}
        """For streams that wait for permission without a thread of their own: the function that wakes each."""
        self._allowed: dict[bytes, int] = {}

    def begin(self, task_id: bytes, ahead: int) -> None:
        """Open a stream that may be ``ahead`` values ahead of its consumer."""
        self.open[task_id] = deque(maxlen=ahead)
        self.ended.pop(task_id, None)  # A later attempt makes all values again.
        self._allowed[task_id] = ahead

    def allow(self, task_id: bytes, upto: int) -> None:
        """Allow a stream to yield up to this index, or close it (``CLOSE``); wake it if it waits."""
        before = self._allowed.get(task_id, 0)
        if before != CLOSE:
            self._allowed[task_id] = upto if upto == CLOSE else max(before, upto)
        wake = self.waiting.pop(task_id, None)  # The waiting stream may go away meanwhile: there is no lock.
        if wake is not None:
            wake()

    def may_go_on(self, task_id: bytes, index: int) -> bool:
        """Whether a stream need not wait with value ``index``: it is allowed, or the stream is to end."""
        return self.closed(task_id) or index < self._allowed[task_id]

    def closed(self, task_id: bytes) -> bool:
        """Whether a stream is to end."""
        return self._allowed[task_id] == CLOSE

    def add(self, row: Row) -> None:
        """Queue a value or the end of a stream; rows as in ``Yielded``."""
        self.unsent.append(row)
        self.open[row[0]].append(row)

    def take(self) -> m.Yielded:
        """Take the message to send."""
        rows, self.unsent = self.unsent, []
        return m.Yielded(tuple(rows))

    def end(self, task_id: bytes) -> None:
        """Close the stream of a task or call that has ended; its last rows are retained until ``release``."""
        rows = self.open.pop(task_id, None)
        self._allowed.pop(task_id, None)
        if rows is not None:
            self.ended[task_id] = rows

    def release(self, task_ids: Iterable[bytes]) -> None:
        """Release the last rows of streams that no restarted daemon needs: their outcomes are recorded, or they have none."""
        for task_id in task_ids:
            self.ended.pop(task_id, None)

    def repeated(self, unconfirmed: Iterable[m.Message], is_repeated: Callable[[bytes], bool]) -> list[m.Message]:
        """Messages for a restarted daemon, in order: reports that the one before may not have received, and the last rows of each stream.

        For a place that the daemon before received, the row says only that it exists: the new daemon learns the place from the arena. Of
        streams that have ended, only those count whose outcomes are repeated: in ``unconfirmed``, or those of calls with ``is_repeated``.
        """
        unconfirmed = list(unconfirmed)
        ended = {each for message in unconfirmed if type(message) is m.Completed for each in split_ids(message.task_ids, TASK_BYTES)}
        self.ended = {task_id: rows for task_id, rows in self.ended.items() if task_id in ended or is_repeated(task_id)}
        retained = (*self.open.values(), *self.ended.values())
        rows = {row[:3]: row if type(row[3]) is not tuple else (*row[:3], True, ()) for kept in retained for row in kept}
        ends: list[m.Message] = []
        for message in unconfirmed:
            if type(message) is m.Yielded:
                rows.update((row[:3], row) for row in message.rows)
            else:
                ends.append(message)
        return [m.Yielded(tuple(rows[key] for key in sorted(rows))), *ends] if rows else ends
