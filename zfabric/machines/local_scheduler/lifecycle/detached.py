"""Detached actors outlive their driver: a job goes on without one for as long as one of its detached actors lives.

Everything else of the job ends with its driver: tasks that no other process waits for, and actors to which no other process has a handle.
The job's row still says that the job runs. So a restarted scheduler finds the driver dead and reaches the same state. It restarts detached
actors that have no process: their rows are in the control store before anybody is notified that they are alive, and until they are dead for
good.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.lifecycle.departures import Departures
from zfabric.machines.local_scheduler.records import DONE, JobRecord, ProcessRecord
from zfabric.machines.local_scheduler.references import holders_of
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.transitions import DetachedActorDied
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES
from zfabric.protocol.messages import DEAD


class DetachedActors:
    """Jobs that go on for their detached actors."""

    def __init__(self, tables: Tables, stopping: Stopping, departures: Departures, actors: ActorDirectory) -> None:
        self.tables = tables
        self.stopping = stopping
        self.departures = departures
        self.actors = actors
        self._over: dict[JobRecord, None] = {}
        """Jobs without a driver of which a detached actor has died in this turn."""

    def driver_gone(self, job: JobRecord, driver: ProcessRecord, now: float) -> bool:
        """Release everything of a job but its detached actors. Return False if it has none: then it ends."""
        if not self._lives_on(job):
            return False
        job.driver = None
        known = self.tables.processes.get(driver.incarnation) is driver
        if known:
            self.tables.send_to_client(driver, m.Farewell(""))
            self.departures.release(driver)
        for worker in self.tables.workers.values():
            if worker.job is job:  # The driver may have submitted to them directly: they would repeat its outcomes for ever.
                self.tables.send_to_control(worker, m.CallerGone(driver.incarnation))
        self._stop_tasks(job, driver.incarnation, now)
        self.actors.end_unheld(job, "its driver has ended")
        return True

    def on_died(self, died: DetachedActorDied) -> None:
        """Note the job of a detached actor that has died, if the driver is gone."""
        if died.job.driver is None:
            self._over[died.job] = None

    def take_over(self) -> list[JobRecord]:
        """Take the jobs that are to end: without a driver, and without a living detached actor."""
        over, self._over = self._over, {}
        return [job for job in over if not job.ended and not self._lives_on(job)]

    def _lives_on(self, job: JobRecord) -> bool:
        records = self.tables.actors.values()
        return any(record.detached and record.state != DEAD and not record.killed and _in(record.id, job) for record in records)

    def _stop_tasks(self, job: JobRecord, driver: bytes, now: float) -> None:
        unheld = [
            task
            for task in self.tables.tasks.values()
            if task.submitter == driver and task.state != DONE and not any(map(holders_of, task.values())) and _in(task.id, job)
        ]
        for task in self.stopping.with_children(unheld):
            if not task.option("detached", False):
                self.stopping.stop(task, "force", now)


def _in(task_id: bytes, job: JobRecord) -> bool:
    return task_id[:JOB_BYTES] == job.id
