"""Backpressure: producers of large values wait while the object store is nearly full and consumers make room (decision 0031).

A task without inputs waits if its expected result, with those of running tasks, exceeds the reported room (``StoreRoom``), and a task runs
or can run that reads a value which only tasks need. Once such tasks take longer than usual, it waits no longer: the store spills.
"""

from __future__ import annotations

from itertools import islice

from zfabric.machines.local_scheduler.due import BACKPRESSURE
from zfabric.machines.local_scheduler.object_places import Stored
from zfabric.machines.local_scheduler.records import ASSIGNED, READY, ShapeQueue, TaskRecord, WorkerRecord
from zfabric.machines.local_scheduler.tables import Tables

HOLD_SECONDS = 5.0
"""Longest wait, or twice the consumers' usual time."""
LOOKED_AT = 16
"""Consumers of a queue, and tasks of a worker, that are examined."""


class Backpressure:
    """Decides which tasks wait for room."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.until: float | None = None
        self._until = 0.0
        """When the wait for room ends, if it begins in this turn."""
        self._room: float | None = None
        """Bytes of the store that no begun task will need; None if nothing waits."""
        self._holds = False

    def begin_turn(self, now: float) -> None:
        """Decide whether anything waits in this turn."""
        if self._room is not None and not self._holds:
            self.until = None  # There was room for everything.
        self._room, self._holds = None, False
        room = self.tables.store.room
        longest = self._longest_consumer() if room is not None else None
        if room is None or longest is None:
            self.until = None
        elif self.until is not None and now >= self.until:
            self.until = None  # The wait was long enough: nothing waits in this turn.
        else:
            self._until = now + max(HOLD_SECONDS, 2.0 * longest)
            running = (task for worker in self.tables.workers.values() for task in worker.inflight.values())
            self._room = room - sum(task.function.result_bytes for task in running if not task.row[3])

    def holds(self, queue: ShapeQueue) -> bool:
        """Whether a queue's next task without inputs waits."""
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
        """Note tasks given to a worker."""
        if self._room is not None:
            self._room -= sum(task.function.result_bytes for task in batch if not task.row[3])

    def _longest_consumer(self) -> float | None:
        """Longest average time of tasks that make room here; None without any."""
        found: list[TaskRecord] = []
        for worker in self.tables.workers.values():
            found += [task for task in islice(running(worker), LOOKED_AT) if self._makes_room(task)]
        for queue in self.tables.queues.values():
            if queue.consumers and not queue.away and _goes_on(queue):
                ready = (task for task in islice(queue.consumers, LOOKED_AT) if task.state == READY)
                found += [task for task in ready if self._makes_room(task)]
        return max((task.function.mean or 0.0 for task in found), default=None)

    def _makes_room(self, task: TaskRecord) -> bool:
        records = map(self.tables.find, task.row[3])
        return any(record is not None and type(record.value) is Stored and record.holders is None for record in records)


def running(worker: WorkerRecord) -> list[TaskRecord]:
    """A worker's tasks, without blocked ones."""
    waiting = {blocked.task_id for blocked in worker.blocked_tasks}
    return [task for task in worker.inflight.values() if task.state == ASSIGNED and task.id not in waiting]


def _goes_on(queue: ShapeQueue) -> bool:
    """Whether a queue's task may begin, now or after one of its own."""
    return queue.pool.fits(queue.demand) or any(not worker.blocked_tasks for worker in queue.leased.values())
