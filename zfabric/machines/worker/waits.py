"""Waits on a worker's stack, as its scheduler has them."""

from __future__ import annotations

from collections.abc import Iterator

from zfabric.protocol import messages as m


class BlockedStack:
    """From the bottom of the stack."""

    def __init__(self) -> None:
        self.blocked: list[m.Blocked] = []
        self._awaits: dict[bytes, m.WaitDetails] = {}
        """Further reports by id."""
        self.changes = 0
        """``Blocked`` and ``Unblocked`` sent; the scheduler counts them, too."""

    def __len__(self) -> int:
        return len(self.blocked)

    def __contains__(self, task_id: bytes) -> bool:
        return any(blocked.task_id == task_id for blocked in self.blocked)

    def begin(self, blocked: m.Blocked, name: str, callees: m.Rows, certain: bool) -> Iterator[m.Message]:
        """Push a wait; yield the messages. Other arguments are as in ``WaitDetails``."""
        self.blocked.append(blocked)
        self.changes += 1
        yield blocked
        if name or callees:
            awaits = self._awaits[blocked.task_id] = m.WaitDetails(blocked.task_id, name, callees, certain)
            yield awaits

    def end(self) -> m.Unblocked:
        """Pop the top wait; return the message."""
        blocked = self.blocked.pop()
        self.changes += 1
        self._awaits.pop(blocked.task_id, None)
        return m.Unblocked(blocked.task_id)

    def repeated(self) -> Iterator[m.Message]:
        """The whole stack, for a restarted scheduler."""
        self.changes = len(self.blocked)
        for blocked in self.blocked:
            yield blocked._replace(returned=())  # These were returned at first, and are not among the worker's rows.
        yield from self._awaits.values()
