"""The worker's side of streams: values on their way, and how many may come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES, split_ids
from zfabric.protocol.messages import CLOSE, Row


class Yields:
    """The streams that this worker has begun."""

    def __init__(self) -> None:
        self.open: dict[bytes, deque[Row]] = {}
        """Last rows of unfinished streams: consumers may lack them if the daemon dies."""
        self.ended: dict[bytes, deque[Row]] = {}
        """Last rows of ended streams, until the outcome is recorded (``OutcomesRecorded``)."""
        self.unsent: list[Row] = []
        self.waiting: dict[bytes, Callable[[], object]] = {}
        """Wakes a stream that waits without a thread."""
        self._allowed: dict[bytes, int] = {}

    def begin(self, task_id: bytes, ahead: int) -> None:
        """Open a stream, at most ``ahead`` of its consumer."""
        self.open[task_id] = deque(maxlen=ahead)
        self.ended.pop(task_id, None)  # A later attempt makes all values again.
        self._allowed[task_id] = ahead

    def allow(self, task_id: bytes, upto: int) -> None:
        """Allow a stream up to this index, or close it (``CLOSE``); wake it."""
        before = self._allowed.get(task_id, 0)
        if before != CLOSE:
            self._allowed[task_id] = upto if upto == CLOSE else max(before, upto)
        wake = self.waiting.pop(task_id, None)  # Without a lock: the waiting stream may go away meanwhile.
        if wake is not None:
            wake()

    def may_go_on(self, task_id: bytes, index: int) -> bool:
        """Whether value ``index`` is allowed, or the stream is to end."""
        return self.closed(task_id) or index < self._allowed[task_id]

    def closed(self, task_id: bytes) -> bool:
        """Whether a stream is to end."""
        return self._allowed[task_id] == CLOSE

    def add(self, row: Row) -> None:
        """Queue a row of ``Yielded``."""
        self.unsent.append(row)
        self.open[row[0]].append(row)

    def take(self) -> m.Yielded:
        """Take the message to send."""
        rows, self.unsent = self.unsent, []
        return m.Yielded(tuple(rows))

    def end(self, task_id: bytes) -> None:
        """Close an ended stream; its last rows stay until ``release``."""
        rows = self.open.pop(task_id, None)
        self._allowed.pop(task_id, None)
        if rows is not None:
            self.ended[task_id] = rows

    def release(self, task_ids: Iterable[bytes]) -> None:
        """Release last rows of streams with recorded outcomes, or none."""
        for task_id in task_ids:
            self.ended.pop(task_id, None)

    def repeated(self, unconfirmed: Iterable[m.Message], is_repeated: Callable[[bytes], bool]) -> list[m.Message]:
        """What a restarted daemon needs, in order: unconfirmed reports, and streams' last rows.

        Of a place that the previous daemon received, the row says only that it exists: the arena has it. Ended streams count only if their
        outcome is repeated: in ``unconfirmed``, or of a call with ``is_repeated``.
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
