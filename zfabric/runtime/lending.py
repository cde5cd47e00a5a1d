"""Lends a task's CPU while the task waits in its own threads or event loop, and not in the main thread.

The scheduler receives the same messages as for a task in ``wait``: it is blocked, it waits for these objects, and nothing can run on top of
it. One report covers all waiting threads and coroutines, until the last one goes on or the task ends. If the main thread computes
meanwhile, it uses a CPU that is lent: the worker cannot find out whether it joins the threads.

Nor can the worker find out to which task a thread belongs: it counts as one of the task on top. If that task ends first, its threads
count as threads of the task below, which may join them next. Otherwise that task's CPU would not be lent, and the threads might wait
for something that needs it.
"""

from __future__ import annotations

from zfabric.machines.worker import Worker

Wanted = tuple[bytes, ...]


class Lending:
    """Records waits outside the main thread. Only the task on top of the worker's stack lends its CPU. The caller holds the lock."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.waits: dict[bytes, list[Wanted]] = {}
        """Object ids that each thread or coroutine waits for, by task."""
        self._heirs: dict[bytes, bytes] = {}
        """The task below each task that has ended while its threads waited."""
        self._reported: set[bytes] = set()
        """Tasks whose wait was reported to the scheduler."""

    def begin(self, wanted: Wanted) -> bytes:
        """Begin the wait of a thread or coroutine. Return the task that it counts for; empty if no task runs."""
        if not self.worker.stack or self.worker.baton is not None:
            return b""
        task_id: bytes = self.worker.stack[-1].row[0]
        self.waits.setdefault(task_id, []).append(wanted)
        self.resume(task_id)
        return task_id

    def end(self, task_id: bytes, wanted: Wanted) -> None:
        """End the wait of a thread or coroutine."""
        while task_id in self._heirs:
            task_id = self._heirs[task_id]
        waits = self.waits.get(task_id)
        if waits is None or wanted not in waits:
            return  # The task has ended meanwhile.
        waits.remove(wanted)
        if not waits:
            self._forget(task_id)

    def resume(self, task_id: bytes) -> None:
        """Report the waits of other threads, if any: the main thread no longer waits."""
        waits = self.waits.get(task_id)
        if waits and task_id not in self._reported and task_id not in self.worker.waits:
            self._reported.add(task_id)
            self.worker.block(waits[0], False)

    def suspend(self, task_id: bytes) -> None:
        """Withdraw the report: the main thread waits itself, and reports that."""
        if task_id in self._reported:
            self._reported.discard(task_id)
            self.worker.unblock()

    def close(self, task_id: bytes) -> None:
        """Handle the end of the task on top."""
        stack: list[bytes] = [each.row[0] for each in self.worker.stack]
        if (waits := self.waits.get(task_id)) and task_id in stack[1:]:
            below = stack[stack.index(task_id) - 1]  # Their wait is reported when its main thread goes on.
            self.waits.setdefault(below, []).extend(waits)
            self._heirs = {before: below if heir == task_id else heir for before, heir in self._heirs.items()} | {task_id: below}
        self._forget(task_id)

    def _forget(self, task_id: bytes) -> None:
        """Drop a task's waits."""
        self.suspend(task_id)
        self.waits.pop(task_id, None)
        self._heirs = {before: heir for before, heir in self._heirs.items() if heir != task_id}
