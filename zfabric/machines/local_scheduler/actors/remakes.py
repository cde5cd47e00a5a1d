"""Lost results of logged calls: a replay makes them again.

An actor's result was made by a checkpoint and the calls after it. These run again, up to the one that made the result, in a process beside
the actor (paper, sections 3.2 and 4.2.3). The replay is a task of the actor's class that makes no actor.
"""

from __future__ import annotations

from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.records import TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.admission import Admission
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.machines.local_scheduler.transitions import RemakeEnded, RemakeWanted
from zfabric.protocol.failures import Facts, pack_failure, unpack_failure
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES, child_prefix, pack_counter, short
from zfabric.protocol.messages import ERROR, FAILED, Row
from zfabric.protocol.options import HERE

RETRIES = 3
"""Replays after the first, if processes die."""


class Remakes:
    """Replays under way."""

    def __init__(
        self, tables: Tables, pool: ResourcePool, outcomes: Outcomes, rebuilding: Rebuilding, admission: Admission, workers: WorkerPool
    ) -> None:
        self.tables = tables
        self.pool = pool
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.admission = admission
        self.workers = workers
        self._wanted = self.tables.remakes
        self._begun = 0

    def on_wanted(self, wanted: RemakeWanted) -> None:
        """Start a replay, unless one is under way."""
        identifier = wanted.record.object_id
        found = self.tables.maker_of(identifier)
        if found is None:  # The log was dropped in the same step.
            self.rebuilding.make_available(wanted.record, wanted.reason)
        elif identifier not in self._wanted.values():
            self._run(identifier, *found)

    def _run(self, identifier: bytes, maker: TaskRecord, from_checkpoint: bool) -> None:
        self._begun += 1
        prefix = child_prefix(maker.id[:JOB_BYTES], identifier[:TASK_BYTES], 0, b"remake")
        options: tuple[Row, ...] = (("num_returns", 0), ("max_retries", RETRIES), ("remake", (maker.id, identifier)))
        options += tuple(each for each in maker.options or () if each[0] in ("demand", "env"))
        arguments: Row = (b"", ())
        if not from_checkpoint:  # The replay begins with ``__init__``.
            arguments = maker.row[2:4]
            options += (("contains", maker.contains()),) if maker.contains() else ()
        if self.tables.nodes:  # The log is here, wherever the actor lives.
            options += (("strategy", HERE),)
        first = self.tables.first_attempt
        task = TaskRecord((prefix + pack_counter(self._begun), maker.row[1], *arguments, options), maker.function, b"", first)
        maker.function.received += 1
        task.drop_holder(b"")
        task.outputs = ()
        self.tables.enter_task(task)
        self._wanted[task.id] = identifier
        self.admission.set_terms(task, 0.0)
        if self.tables.nodes and not self.pool.fits_total(self.tables.queue_of(task).demand):
            text = f"the node with the log of {task.name} lacks the resources that it takes to run calls again"
            self.outcomes.fail(task, "TaskUnschedulableError", text, ())
        else:
            self.admission.resolve(task)

    def on_ended(self, ended: RemakeEnded) -> None:
        """Accept the end of a replay; its value came before."""
        task, worker, status, payload = ended
        identifier = self._wanted.pop(task.id, None)
        if identifier is None:
            return
        if worker is not None:
            self.workers.end(worker, "its replay has ended")
        record = self.tables.find(identifier)
        if record is not None and record.status == PENDING:
            why = "the calls did not return again what they had"
            facts: Facts = ()
            if status == ERROR:
                why, facts = "it raised", (("cause", payload),)
            elif status == FAILED:
                why = unpack_failure(payload)[1]
            text = f"object {short(identifier)} is lost, and a replay of its actor's calls did not make it again: {why}"
            self.outcomes.settle_value(record, FAILED, pack_failure("ObjectLostError", text, facts))

    def job_ended(self, job_id: bytes) -> None:
        """Drop a job's replays."""
        for task_id in [task_id for task_id in self._wanted if task_id[:JOB_BYTES] == job_id]:
            del self._wanted[task_id]
