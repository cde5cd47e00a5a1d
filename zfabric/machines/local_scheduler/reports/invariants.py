"""Whether the tables agree: for tests and the simulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.local_scheduler.groups.planning import total_of
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.records import ASSIGNED, DONE, READY, WAITING, FunctionRecord
from zfabric.machines.local_scheduler.reports.diagnoses import failed
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.ids import TASK_BYTES, short
from zfabric.protocol.machine import InvariantViolation


def check(tables: Tables, pool: ResourcePool, lineage_bytes: int, left: Mapping[str, object]) -> None:
    """Raise InvariantViolation where facts disagree.

    ``lineage_bytes`` is the count of ``References``; ``left`` has what no turn may leave, by what it is.
    """
    for what, each in left.items():
        if each:
            raise InvariantViolation(f"a turn has ended, and there are {what}")
    held: dict[int, dict[str, int]] = {}
    for worker in tables.workers.values():
        for task in worker.inflight.values():
            if task.state == DONE and task.rare is not None and task.rare.running_on is worker:
                continue
            if task.worker is not worker or task.state != ASSIGNED:
                raise InvariantViolation(f"{short(task.id)} is in flight on a worker that it is not assigned to")
        of_pool = held.setdefault(id(worker.pool), {})
        for name, amount in worker.demand:
            of_pool[name] = of_pool.get(name, 0) + (0 if worker.lent and name == "CPU" else amount)
    reserved = [bundle for bundles in tables.bundles.values() for bundle in bundles.values()]
    if any(worker.demand and worker.queue is not None and worker.queue.group and worker.pool is pool for worker in tables.workers.values()):
        raise InvariantViolation("what runs in a placement group has resources of the node, and not of its bundle")
    of_bundles = dict(total_of([bundle.demand for bundle in reserved]))
    if any(amount > pool.total.get(name, 0) for name, amount in of_bundles.items()):
        raise InvariantViolation("bundles of placement groups have more than the node has")
    for each in (pool, *(bundle.pool for bundle in reserved if bundle.pool is not None)):
        leased, bundled = held.get(id(each), {}), of_bundles if each is pool else {}
        for name, amount in each.total.items():
            if dict(each.available()).get(name, 0) + leased.get(name, 0) + bundled.get(name, 0) != amount:
                raise InvariantViolation(f"{name}: what is free and what is leased do not add up")
    values = [task.value for task in tables.tasks.values() if task.outputs is None]
    values += [record.value for record in tables.objects.values()]
    if sum(len(value) for value in values if type(value) is bytes) != tables.inline.total:
        raise InvariantViolation("the values that are here have other bytes than are counted")
    if sum(task.rare.lineage_weight for task in tables.tasks.values() if task.rare is not None) != lineage_bytes:
        raise InvariantViolation("the rows that are kept as lineage have other bytes than are counted")
    for record in tables.values():
        if record.named < 0:
            raise InvariantViolation(f"{short(record.object_id)} is named by {record.named} rows")
    if tables.streams:
        _check_streams(tables)
    for task in tables.tasks.values():
        if (task.state == DONE and failed(task)) != (tables.failures.get(task.id) is task):
            raise InvariantViolation(f"{short(task.id)} has failed, or not, and the table of failures has it otherwise")
    if not tables.failures.keys() <= tables.tasks.keys():
        raise InvariantViolation("the table of failures has tasks without a record")
    unfinished, waiting = Counter[FunctionRecord](), Counter[FunctionRecord]()
    for task in tables.tasks.values():
        unfinished[task.function] += task.state != DONE
        waiting[task.function] += task.state == WAITING
    for job in tables.jobs.values():
        for function in (*job.functions.values(), *job.delegated.values()):
            if (function.unfinished, function.waiting) != (unfinished[function], waiting[function]):
                counted = f"{unfinished[function]} unfinished tasks, {waiting[function]} of which wait, and not"
                raise InvariantViolation(f"{function.name} has {counted} {function.unfinished} and {function.waiting}")
    for task in tables.tasks.values():
        if (task.state == ASSIGNED) != (task.worker is not None):
            raise InvariantViolation(f"{short(task.id)} is {task.state} with worker {task.worker}")
        if task.state == DONE and any(record.status == PENDING for record in task.values()):
            raise InvariantViolation(f"{short(task.id)} is done without an outcome")
        if task.state == WAITING and (task.rare is None or task.rare.unresolved <= 0):
            raise InvariantViolation(f"{short(task.id)} waits for nothing")
        if task.state == READY and task not in tables.queue_of(task):
            raise InvariantViolation(f"{short(task.id)} is ready and in no queue")


def _check_streams(tables: Tables) -> None:
    records = Counter(record.id[:TASK_BYTES] for record in tables.objects.values() if not record.home)
    for task_id, stream in tables.streams.items():
        count = records[task_id] - (stream.owner.object_id in tables.objects and not stream.owner.home)
        if stream.values != count:
            raise InvariantViolation(f"the stream {short(task_id)} has {count} values and not {stream.values}")
