"""What waits on a worker's stack, as its scheduler was told, and which of that waits for itself."""

from __future__ import annotations

from collections.abc import Iterator

from zfabric.protocol import messages as m


class BlockedStack:
    """The tasks and calls of one worker that wait, those below first."""

    def __init__(self) -> None:
        self.blocked: list[m.Blocked] = []
        self._awaits: dict[bytes, m.WaitDetails] = {}
        """What was said besides of those that wait."""
        self.changes = 0
        """How often the scheduler was sent that something begins to wait, or waits no longer: it counts them, too."""

    def __len__(self) -> int:
        return len(self.blocked)

    def __contains__(self, task_id: bytes) -> bool:
        return any(blocked.task_id == task_id for blocked in self.blocked)

    def begin(self, blocked: m.Blocked, name: str, callees: m.Rows, certain: bool) -> Iterator[m.Message]:
        """Push what is on top, which waits now, and yield the messages to send. The rest as in ``WaitDetails``, sent if any is given."""
        self.blocked.append(blocked)
        self.changes += 1
        yield blocked
        if name or callees:
            awaits = self._awaits[blocked.task_id] = m.WaitDetails(blocked.task_id, name, callees, certain)
            yield awaits

    def end(self) -> m.Unblocked:
        """What began to wait last does so no longer."""
        blocked = self.blocked.pop()
        self.changes += 1
        self._awaits.pop(blocked.task_id, None)
        return m.Unblocked(blocked.task_id)

    def again(self) -> Iterator[m.Message]:
        """What a scheduler that has heard none of it is to know."""
        self.changes = len(self.blocked)
        for blocked in self.blocked:
            yield blocked._replace(returned=())  # That was returned when it began to wait, and is not among the worker's rows.
        yield from self._awaits.values()
