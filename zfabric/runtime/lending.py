"""Lending a task's CPU while it waits in threads of its own, or in an event loop that it runs, and not in the main thread.

The scheduler receives the same messages as for a task that waits in ``wait``: that it waits, for what, and that nothing can run on top of
it. They are sent once, however many threads and coroutines wait, until the last of them goes on, or the task ends. The main thread may
compute meanwhile, and then uses a CPU that is lent: nothing shows whether it joins the threads.

Nor does anything show to which task a thread belongs: it counts as one of the task on top. If that task ends first, its threads count as
those of the task below, which waits in its main thread now, and may join them next. Were they forgotten, its CPU would not be lent then,
and what they wait for might need it.
"""

from __future__ import annotations

from zfabric.machines.worker import Worker

Wanted = tuple[bytes, ...]


class Lending:
    """Waits outside the main thread. The caller holds the client's lock; only what is on top of the worker's stack lends its CPU."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.waits: dict[bytes, list[Wanted]] = {}
        """Object ids that each thread or coroutine waits for, by task."""
        self._heirs: dict[bytes, bytes] = {}
        """The task below each task that has ended while its threads waited."""
        self._reported: set[bytes] = set()
        """Tasks whose wait was sent to the scheduler."""

    def begin(self, wanted: Wanted) -> bytes:
        """A thread or coroutine begins to wait. Returns the task that it counts as part of; empty if nothing runs and nothing is lent."""
        if not self.worker.stack or self.worker.turns is not None:
            return b""
        task_id: bytes = self.worker.stack[-1].row[0]
        self.waits.setdefault(task_id, []).append(wanted)
        self.resume(task_id)
        return task_id

    def end(self, task_id: bytes, wanted: Wanted) -> None:
        """A thread or coroutine waits no longer."""
        while task_id in self._heirs:
            task_id = self._heirs[task_id]
        waits = self.waits.get(task_id)
        if waits is None or wanted not in waits:
            return  # The task has ended meanwhile.
        waits.remove(wanted)
        if not waits:
            self._forget(task_id)

    def resume(self, task_id: bytes) -> None:
        """The main thread waits no longer: report the waits of others, if there are any."""
        waits = self.waits.get(task_id)
        if waits and task_id not in self._reported and task_id not in self.worker.waits:
            self._reported.add(task_id)
            self.worker.block(waits[0], False)

    def suspend(self, task_id: bytes) -> None:
        """The main thread waits itself, and reports that instead."""
        if task_id in self._reported:
            self._reported.discard(task_id)
            self.worker.unblock()

    def close(self, task_id: bytes) -> None:
        """The task, which is on top, ends."""
        stack: list[bytes] = [each.row[0] for each in self.worker.stack]
        if (waits := self.waits.get(task_id)) and task_id in stack[1:]:
            below = stack[stack.index(task_id) - 1]  # Their wait is reported when its main thread goes on.
            self.waits.setdefault(below, []).extend(waits)
            self._heirs = {before: below if heir == task_id else heir for before, heir in self._heirs.items()} | {task_id: below}
        self._forget(task_id)

    def _forget(self, task_id: bytes) -> None:
        """Nothing waits any more, or the task ends."""
        self.suspend(task_id)
        self.waits.pop(task_id, None)
        self._heirs = {before: heir for before, heir in self._heirs.items() if heir != task_id}
