"""Tasks that only produce large values wait while the object store is nearly full and other tasks make room by reading what is in it.

The store reports its free room while less than half of it is free (``StoreRoom``). A function's results are as large as they were lately.
A task without inputs waits if its results, with those of what runs already, are larger than the free room. It waits only while a task
runs, or can run, that reads a value which only tasks still need: when that has ended, there is room. It waits no longer once those tasks
take longer than usual: room may never come, and the store then copies values to disk.
"""

from __future__ import annotations

from itertools import islice

from zfabric.machines.local_scheduler.due import BACKPRESSURE
from zfabric.machines.local_scheduler.records import ASSIGNED, READY, ShapeQueue, Stored, TaskRecord, WorkerRecord
from zfabric.machines.local_scheduler.tables import Tables

HOLD_SECONDS = 5.0
"""How long tasks that only produce wait at most, if the tasks that make room usually take less than half of that; else twice as long as
those take."""
LOOKED_AT = 16
"""Consumers of a queue, and tasks of a worker, that are looked at to find one that makes room."""


class Backpressure:
    """Decides in each turn which tasks wait for room in the object store, over the shared tables."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.until: float | None = None
        """When tasks that wait for room are to wait no longer."""
        self._until = 0.0
        """When they are, if the first of them begins to wait in this turn."""
        self._room: float | None = None
        """Bytes of the store that nothing which has begun will need; None if nothing waits for room in this turn."""
        self._holds = False
        """Whether a task has had to wait in this turn."""

    def begin_turn(self, now: float) -> None:
        """Find out whether anything is to wait for room in this turn."""
        if self._room is not None and not self._holds:
            self.until = None  # There was room for everything.
        self._room, self._holds = None, False
        room = self.tables.store_room
        longest = self._longest_consumer() if room is not None else None
        if room is None or longest is None:
            self.until = None
        elif self.until is not None and now >= self.until:
            self.until = None  # It has waited long enough: in this turn nothing waits.
        else:
            self._until = now + max(HOLD_SECONDS, 2.0 * longest)
            running = (task for worker in self.tables.workers.values() for task in worker.inflight.values())
            self._room = room - sum(task.function.result_bytes for task in running if not task.row[3])

    def holds(self, queue: ShapeQueue) -> bool:
        """Whether the next of a queue's tasks without inputs waits for room."""
        if self._room is None or not queue.tasks or queue.tasks[0].row[3]:
            return False
        size = queue.tasks[0].function.result_bytes
        if not size or size <= self._room:
            return False
        self._holds = True
        if self.until is None:
            self.until = self._until
            self.tables.deadlines.note(BACKPRESSURE, self.until)
        return True

    def begun(self, batch: list[TaskRecord]) -> None:
        """Note that tasks were given to a worker in this turn."""
        if self._room is not None:
            self._room -= sum(task.function.result_bytes for task in batch if not task.row[3])

    def _longest_consumer(self) -> float | None:
        """How long those tasks take on average that make room, at most; None if none of them runs or can run here."""
        found: list[TaskRecord] = []
        for worker in self.tables.workers.values():
            found += [task for task in islice(running(worker), LOOKED_AT) if self._makes_room(task)]
        for queue in self.tables.queues.values():
            if queue.consumers and not queue.away and _goes_on(queue):
                ready = (task for task in islice(queue.consumers, LOOKED_AT) if task.state == READY)
                found += [task for task in ready if self._makes_room(task)]
        return max((task.function.mean or 0.0 for task in found), default=None)

    def _makes_room(self, task: TaskRecord) -> bool:
        """Whether a task reads a value of this node's store that no process holds."""
        records = map(self.tables.find, task.row[3])
        return any(record is not None and type(record.value) is Stored and record.holders is None for record in records)


def running(worker: WorkerRecord) -> list[TaskRecord]:
    """Tasks of a worker that run or will, without those that wait for others."""
    waiting = {blocked.task_id for blocked in worker.blocked_tasks}
    return [task for task in worker.inflight.values() if task.state == ASSIGNED and task.id not in waiting]


def _goes_on(queue: ShapeQueue) -> bool:
    """Whether a task of a queue may begin now, or as soon as one of its own has ended."""
    return queue.pool.fits(queue.demand) or any(not worker.blocked_tasks for worker in queue.leased.values())
