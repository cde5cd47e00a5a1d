"""CPUs that are lent while a task waits otherwise than in its main thread: in threads of its own, or in an event loop that it runs.

The scheduler is told what it is told of a task that waits in ``wait``: that it waits, for what, and that nothing can run on top of it. It
is told so once, however many threads and coroutines wait, until the last of them goes on, or the task ends. Their main thread may compute
meanwhile, and uses a CPU that is lent: nobody can tell from outside whether it joins them.

Nor can anybody tell whose threads they are: they count as those of the task on top. If that ends first, they count as those of the task
below: it waits in its main thread now, and may join them next. Were they forgotten, its CPU would not be lent then, and what they wait for
might need it.
"""

from __future__ import annotations

from zfabric.machines.worker import Worker

Wanted = tuple[bytes, ...]


class Lending:
    """Who waits besides the main thread. Called with the client's lock held; only ever about what is on top of the worker's stack."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.waits: dict[bytes, list[Wanted]] = {}
        """What is waited for, by whose threads and coroutines wait: by task."""
        self._heirs: dict[bytes, bytes] = {}
        """The task below each that has ended while some waited."""
        self._said: set[bytes] = set()
        """Tasks of which the scheduler was told so."""

    def begin(self, wanted: Wanted) -> bytes:
        """A thread or coroutine waits. Whose it counts as: empty if nothing runs, so that nothing is lent."""
        if not self.worker.stack or self.worker.turns is not None:
            return b""
        task_id: bytes = self.worker.stack[-1].row[0]
        self.waits.setdefault(task_id, []).append(wanted)
        self.resume(task_id)
        return task_id

    def end(self, task_id: bytes, wanted: Wanted) -> None:
        """It goes on."""
        while task_id in self._heirs:
            task_id = self._heirs[task_id]
        waits = self.waits.get(task_id)
        if waits is None or wanted not in waits:
            return  # The task has ended meanwhile.
        waits.remove(wanted)
        if not waits:
            self._forget(task_id)

    def resume(self, task_id: bytes) -> None:
        """The main thread does not wait (any more): others may."""
        waits = self.waits.get(task_id)
        if waits and task_id not in self._said and task_id not in self.worker.waits:
            self._said.add(task_id)
            self.worker.block(waits[0], False)

    def suspend(self, task_id: bytes) -> None:
        """The main thread waits itself, and says so."""
        if task_id in self._said:
            self._said.discard(task_id)
            self.worker.unblock()

    def close(self, task_id: bytes) -> None:
        """The task, which is on top, ends."""
        stack: list[bytes] = [each.row[0] for each in self.worker.stack]
        if (waits := self.waits.get(task_id)) and task_id in stack[1:]:
            below = stack[stack.index(task_id) - 1]  # It says that they wait when its main thread goes on.
            self.waits.setdefault(below, []).extend(waits)
            self._heirs = {before: below if heir == task_id else heir for before, heir in self._heirs.items()} | {task_id: below}
        self._forget(task_id)

    def _forget(self, task_id: bytes) -> None:
        """Nobody waits any more, or the task ends."""
        self.suspend(task_id)
        self.waits.pop(task_id, None)
        self._heirs = {before: heir for before, heir in self._heirs.items() if heir != task_id}
