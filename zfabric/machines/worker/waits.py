"""Tasks and calls that wait on a worker's stack, as reported to its scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from zfabric.protocol import messages as m


class BlockedStack:
    """Blocked tasks and calls of one worker, from the bottom of the stack."""

    def __init__(self) -> None:
        self.blocked: list[m.Blocked] = []
        self._awaits: dict[bytes, m.WaitDetails] = {}
        """Further reports on blocked tasks and calls, by id."""
        self.changes = 0
        """How many ``Blocked`` and ``Unblocked`` were sent: the scheduler counts them, too."""

    def __len__(self) -> int:
        return len(self.blocked)

    def __contains__(self, task_id: bytes) -> bool:
        return any(blocked.task_id == task_id for blocked in self.blocked)

    def begin(self, blocked: m.Blocked, name: str, callees: m.Rows, certain: bool) -> Iterator[m.Message]:
        """Push a task that waits now, and yield the messages to send. The other arguments are those of ``WaitDetails``."""
        self.blocked.append(blocked)
        self.changes += 1
        yield blocked
        if name or callees:
            awaits = self._awaits[blocked.task_id] = m.WaitDetails(blocked.task_id, name, callees, certain)
            yield awaits

    def end(self) -> m.Unblocked:
        """Pop the task that began to wait last; return the message to send."""
        blocked = self.blocked.pop()
        self.changes += 1
        self._awaits.pop(blocked.task_id, None)
        return m.Unblocked(blocked.task_id)

    def repeated(self) -> Iterator[m.Message]:
        """Messages that repeat the whole stack to a restarted scheduler."""
        self.changes = len(self.blocked)
        for blocked in self.blocked:
            yield blocked._replace(returned=())  # These ids were returned when it began to wait, and are not among the worker's rows.
        yield from self._awaits.values()
