"""Detached actors outlive their driver: a job goes on without one for as long as such an actor of it lives.

What else the job had ends with its driver: tasks that nobody else waits for, and actors that nobody else has a handle of. The job's row
goes on saying that it runs, so a restarted scheduler finds the driver dead and comes to the same end. It makes detached actors
again that had no process then: their rows are in the control store before anybody hears that they are alive, and until they are
dead for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zfabric.machines.local_scheduler.records import DONE, JobRecord, ProcessRecord, TaskRecord
from zfabric.machines.local_scheduler.references import add_holder, holders_of
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FIRST_RETURN, JOB_BYTES
from zfabric.protocol.messages import DEAD, Row
from zfabric.protocol.options import option

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler.machine import LocalScheduler

DETACHED = b"detached"
"""Holds the handles of detached actors: no process has this incarnation."""


class DetachedActors:
    """Over the shared tables."""

    def __init__(self, scheduler: LocalScheduler) -> None:
        self.scheduler = scheduler
        self.tables = scheduler.tables
        self.unkept: set[bytes] = set()
        """Detached actors whose rows are not durable yet."""
        self._to_keep: list[bytes] = []
        self._over: dict[JobRecord, None] = {}
        """Jobs without a driver of which a detached actor has died in this turn."""

    def made(self, actor_id: bytes) -> None:
        """One is to be made."""
        self.unkept.add(actor_id)
        self._to_keep.append(actor_id)

    def _kept(self, now: float, actor_ids: tuple[bytes, ...], answer: m.Written) -> None:
        """Their rows are durable (or the disk is full, and they are only as durable as other actors)."""
        self.unkept.difference_update(actor_ids)
        self.scheduler.actors.kept(actor_ids)

    def end_of_turn(self, now: float) -> None:
        """What cannot be done while others walk through the tables, or is done once for all that came together."""
        if self._to_keep:
            actors, self._to_keep = tuple(self._to_keep), []
            puts, deletes = self.scheduler.blocks.flush(rows_max=1 << 30)
            self.scheduler.requests.ask(m.Write, tuple(puts), tuple(deletes), then=self._kept, about=actors)
        over, self._over = self._over, {}
        for job in over:
            if not job.ended and not self._lives_on(job):
                self.scheduler.membership.end_job(job, now)

    def driver_gone(self, job: JobRecord, driver: ProcessRecord, now: float) -> bool:
        """Let go of what the job had beside its detached actors. False if it has none: then it ends."""
        if not self._lives_on(job):
            return False
        job.driver = None
        known = self.tables.processes.get(driver.incarnation) is driver
        if known:
            self.tables.tell(driver, m.Farewell(""))
            self.scheduler.membership.let_go_of(driver)
        for worker in self.tables.workers.values():
            if worker.job is job:  # It may have handed tasks to them, and they would say for ever what came of the last.
                self.tables.order(worker, m.CallerGone(driver.incarnation))
        self._stop_tasks(job, driver.incarnation, now)
        self.scheduler.actors.end_unheld(job, "its driver has ended")
        return True

    def _lives_on(self, job: JobRecord) -> bool:
        records = self.tables.actors.values()
        return any(record.detached and record.state != DEAD and not record.killed and _in(record.id, job) for record in records)

    def _stop_tasks(self, job: JobRecord, driver: bytes, now: float) -> None:
        unheld = [
            task
            for task in self.tables.tasks.values()
            if task.submitter == driver and task.state != DONE and not any(map(holders_of, task.values())) and _in(task.id, job)
        ]
        for task in self.scheduler.stopping.with_children(unheld):
            if not task.option("detached", False):
                self.scheduler.stopping.stop(task, "force", now)

    def died(self, job: JobRecord) -> None:
        """A detached actor has died: its job may be over."""
        if job.driver is None:
            self._over[job] = None

    def restore(self, rows: Mapping[bytes, tuple[Row, object]]) -> None:
        """Detached actors that only the control store still knows, after a restart."""
        for task_id, (row, _) in rows.items():
            job = self.tables.jobs.get(task_id[:JOB_BYTES])
            function = job.functions.get(row[1]) if job is not None else None
            if function is None or function.actor is None or task_id in self.tables.tasks:
                continue
            if option(row[4] if len(row) > 4 else None, "detached") or option(function.options, "detached"):
                self.scheduler.membership.recovery.known(task_id + FIRST_RETURN)
                task = self.tables.tasks.get(task_id)
                if isinstance(task, TaskRecord):
                    add_holder(task, DETACHED)


def _in(task_id: bytes, job: JobRecord) -> bool:
    return task_id[:JOB_BYTES] == job.id
