"""Lends a task's CPU while its own threads or event loop wait.

To the scheduler the task is blocked on the objects that they wait for, and nothing can run on top. One report covers all waiting threads. A
main thread that computes meanwhile uses a lent CPU: the worker cannot detect whether it joins the threads.

Nor can it detect a thread's task: each counts for the task on top, and at its end for the one below, which may join the thread. That CPU
must be lent, or the thread might wait for something that needs it.
"""

from __future__ import annotations

from zfabric.machines.worker import Worker

Wanted = tuple[bytes, ...]


class Lending:
    """Waits outside the main thread. The task on top lends its CPU. The caller holds the lock."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.waits: dict[bytes, list[Wanted]] = {}
        """Object ids per waiting thread, by task."""
        self._heirs: dict[bytes, bytes] = {}
        """Ended task -> the task below, with its waiting threads."""
        self._reported: set[bytes] = set()
        """Tasks whose wait the scheduler has."""

    def begin(self, wanted: Wanted) -> bytes:
        """Begin a thread's wait. Return the task that it counts for, or empty."""
        if not self.worker.stack or self.worker.baton is not None:
            return b""
        task_id: bytes = self.worker.stack[-1].row[0]
        self.waits.setdefault(task_id, []).append(wanted)
        self.resume(task_id)
        return task_id

    def end(self, task_id: bytes, wanted: Wanted) -> None:
        """End a thread's wait."""
        while task_id in self._heirs:
            task_id = self._heirs[task_id]
        waits = self.waits.get(task_id)
        if waits is None or wanted not in waits:
            return  # The task has ended meanwhile.
        waits.remove(wanted)
        if not waits:
            self._forget(task_id)

    def resume(self, task_id: bytes) -> None:
        """The main thread goes on: report other threads' waits."""
        waits = self.waits.get(task_id)
        if waits and task_id not in self._reported and task_id not in self.worker.waits:
            self._reported.add(task_id)
            self.worker.block(waits[0], False)

    def suspend(self, task_id: bytes) -> None:
        """The main thread reports its own wait: withdraw this one."""
        if task_id in self._reported:
            self._reported.discard(task_id)
            self.worker.unblock()

    def close(self, task_id: bytes) -> None:
        """The task on top has ended."""
        stack: list[bytes] = [each.row[0] for each in self.worker.stack]
        if (waits := self.waits.get(task_id)) and task_id in stack[1:]:
            below = stack[stack.index(task_id) - 1]  # Their wait is reported when its main thread goes on.
            self.waits.setdefault(below, []).extend(waits)
            self._heirs = {before: below if heir == task_id else heir for before, heir in self._heirs.items()} | {task_id: below}
        self._forget(task_id)

    def _forget(self, task_id: bytes) -> None:
        self.suspend(task_id)
        self.waits.pop(task_id, None)
        self._heirs = {before: heir for before, heir in self._heirs.items() if heir != task_id}
