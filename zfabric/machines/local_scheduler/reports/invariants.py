"""Whether the tables of a local scheduler agree with each other: for tests and the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zfabric.machines.local_scheduler.records import ASSIGNED, DONE, PENDING, READY, WAITING
from zfabric.protocol.ids import short
from zfabric.protocol.machine import InvariantViolation

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler.machine import LocalScheduler


def check(scheduler: LocalScheduler) -> None:
    """Raise InvariantViolation where two facts disagree."""
    held: dict[str, int] = {}
    for worker in scheduler.tables.workers.values():
        for task in worker.inflight.values():
            if task.state == DONE and task.rare is not None and task.rare.goes_on is worker:
                continue
            if task.worker is not worker or task.state != ASSIGNED:
                raise InvariantViolation(f"{short(task.id)} is in flight on a worker that it is not assigned to")
        for name, amount in worker.demand:
            held[name] = held.get(name, 0) + (0 if worker.lent and name == "CPU" else amount)
    for name, amount in scheduler.pool.total.items():
        if dict(scheduler.pool.available()).get(name, 0) + held.get(name, 0) != amount:
            raise InvariantViolation(f"{name}: what is free and what is leased do not add up")
    tables = scheduler.tables
    values = [task.value for task in tables.tasks.values() if task.outputs is None]
    values += [record.value for record in tables.objects.values()]
    if sum(len(value) for value in values if type(value) is bytes) != tables.inline.total:
        raise InvariantViolation("the values that are here have other bytes than are counted")
    if sum(task.rare.kept for task in tables.tasks.values() if task.rare is not None) != scheduler.references.lineage_bytes:
        raise InvariantViolation("the rows that are kept as lineage have other bytes than are counted")
    for task in scheduler.tables.tasks.values():
        if (task.state == ASSIGNED) != (task.worker is not None):
            raise InvariantViolation(f"{short(task.id)} is {task.state} with worker {task.worker}")
        if task.state == DONE and any(record.status == PENDING for record in task.values()):
            raise InvariantViolation(f"{short(task.id)} is done without an outcome")
        if task.state == WAITING and (task.rare is None or task.rare.unresolved <= 0):
            raise InvariantViolation(f"{short(task.id)} waits for nothing")
        if task.state == READY and task not in scheduler.tables.queue_of(task).tasks:
            raise InvariantViolation(f"{short(task.id)} is ready and in no queue")
