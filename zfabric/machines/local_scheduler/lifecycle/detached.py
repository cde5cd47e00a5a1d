"""Detached actors outlive their driver: a job goes on while it has one that lives (decision 0048).

The rest of the job ends with its driver: tasks that no other process waits for, and actors without other handles. The row of the job still
says that it runs, so that a restarted scheduler finds the driver dead and does the same. Rows of detached actors are in the control store
from before anybody is notified that they live, until they are dead for good; those without a process are restarted from them. Nodes report
theirs to the home of the job (``LIVING`` entries of their ledgers).
"""

from __future__ import annotations

from functools import partial

from zfabric.machines.local_scheduler.actors.directory import DETACHED, ActorDirectory
from zfabric.machines.local_scheduler.barrier import NODES
from zfabric.machines.local_scheduler.lifecycle.departures import Departures
from zfabric.machines.local_scheduler.records import DONE, JobRecord, ProcessRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.transitions import DetachedActorsChanged
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES
from zfabric.protocol.messages import DEAD, LIVING


class DetachedActors:
    """Jobs that go on for detached actors."""

    def __init__(self, tables: Tables, stopping: Stopping, departures: Departures, actors: ActorDirectory) -> None:
        self.tables = tables
        self.stopping = stopping
        self.departures = departures
        self.actors = actors
        self.over: dict[JobRecord, None] = {}
        """Jobs without a driver whose detached actors have changed."""
        self.changed: dict[JobRecord, None] = {}
        """The same for other homes."""
        self._reported: set[bytes] = set()
        """Jobs of other homes that go on, as last reported."""
        self._passed: set[bytes] = set()
        """Jobs of dead homes: the head is asked whether they go on."""
        self._elsewhere: dict[bytes, set[bytes]] = {}
        """Jobs here that go on for actors of other nodes, by node."""

    def is_unknown(self) -> bool:
        """Whether a node has yet to repeat what lives there."""
        nodes = self.tables.nodes.values()
        return self.tables.barrier.awaits(NODES) or any(node.daemon and not node.is_ready for node in nodes)

    def driver_gone(self, job: JobRecord, driver: ProcessRecord | None, now: float) -> bool:
        """Release all of a job but detached actors. Return False without any."""
        if not self._lives_on(job):
            return False
        if driver is None:  # It was gone before this daemon began.
            return True
        job.driver = None
        known = self.tables.processes.get(driver.incarnation) is driver
        if known:
            self.tables.send_to_client(driver, m.Farewell(""))
            self.departures.release(driver)
        for worker in self.tables.workers.values():
            if worker.job is job:  # Else workers would repeat outcomes of direct submissions for ever.
                self.tables.send_to_control(worker, m.CallerGone(driver.incarnation))
        self._stop_tasks(job, driver.incarnation, now)
        self.actors.end_unheld(job, "its driver has ended")
        return True

    def on_changed(self, changed: DetachedActorsChanged) -> None:
        """Note the job of a new or dead detached actor."""
        if changed.job.home:
            self.changed[changed.job] = None
        elif changed.job.driver is None:
            self.over[changed.job] = None

    def take_over(self) -> list[JobRecord]:
        """Take jobs with neither driver nor living detached actor."""
        if not self.over or self.is_unknown():
            return []
        over, self.over = self.over, {}
        return [job for job in over if not job.ended and not self._lives_on(job)]

    def _lives_on(self, job: JobRecord) -> bool:
        return self.lives_here(job) or any(job.id in jobs for jobs in self._elsewhere.values())

    def lives_at(self, node: bytes, job: JobRecord) -> bool:
        """Whether a job goes on for another node's actors."""
        return job.id in self._elsewhere.get(node, ())

    def lives_here(self, job: JobRecord) -> bool:
        """Whether a job goes on for actors here, or for some that nodes may yet report."""
        records = self.tables.actors
        if any(each.detached and each.state != DEAD and not each.killed and _in(each.id, job) for each in records.values()):
            return True
        tasks = self.tables.tasks.values() if self.tables.barrier.awaits(NODES) else ()
        return any(DETACHED in task.all_holders and task.id not in records and _in(task.id, job) for task in tasks)

    # -- other nodes --

    def end_of_turn(self) -> None:
        """Report changes to homes, before the outcomes of the tasks that made the actors."""
        for job in self.changed:
            lives = not job.ended and self.lives_here(job)
            if job.home and (lives != (job.id in self._reported) or job.id in self._passed):
                self._report(job, lives)
        self.changed.clear()

    def repeat(self, node: bytes) -> None:
        """Repeat reports after a restart of either daemon."""
        for job in self.tables.jobs.values():
            if job.home == node and not job.ended and (self.lives_here(job) or job.id in self._passed):
                self._report(job, self.lives_here(job))

    def passed_on(self, job: JobRecord) -> None:
        """Ask the head, a job's new home, whether it goes on: any report on an ended job is answered."""
        self._passed.add(job.id)
        self.changed[job] = None

    def _report(self, job: JobRecord, lives: bool) -> None:
        (self._reported.add if lives else self._reported.discard)(job.id)
        (self.tables.ledger.add if lives else self.tables.ledger.end)(job.home, LIVING, job.id)

    def lives(self, node: bytes, job_ids: m.Ids) -> None:
        """Record that jobs go on elsewhere."""
        self._elsewhere.setdefault(node, set()).update(filter(partial(self._is_here, node), job_ids))

    def lives_no_more(self, node: bytes, job_ids: m.Ids) -> None:
        """Record that jobs do not go on elsewhere."""
        for job in job_ids:
            if self._is_here(node, job):
                self._elsewhere.get(node, set()).discard(job)
                self._may_end(job)

    def _is_here(self, node: bytes, job_id: bytes) -> bool:
        """Whether a job is at home here. If it has ended, notify the node."""
        job = self.tables.jobs.get(job_id)
        if job is None or job.ended or job.home:
            self.tables.send_to_node(node, m.EndJob(job_id))
            return False
        return True

    def begin_anew(self, node: bytes) -> None:
        """Drop the reports of a dead node or former daemon; their jobs may end."""
        for job in self._elsewhere.pop(node, ()):
            self._may_end(job)

    def job_ended(self, job_id: bytes) -> None:
        """Drop what is recorded of a job."""
        for jobs in (self._reported, self._passed, *self._elsewhere.values()):
            jobs.discard(job_id)

    def _may_end(self, job_id: bytes) -> None:
        job = self.tables.jobs.get(job_id)
        if job is not None and job.driver is None and not job.home:
            self.over[job] = None

    def _stop_tasks(self, job: JobRecord, driver: bytes, now: float) -> None:
        unheld = [
            task
            for task in self.tables.tasks.values()
            if task.submitter == driver and task.state != DONE and not any(value.holders for value in task.values()) and _in(task.id, job)
        ]
        for task in self.stopping.with_children(unheld):
            if not task.option("detached", False):
                self.stopping.stop(task, "force", now)


def _in(task_id: bytes, job: JobRecord) -> bool:
    return task_id[:JOB_BYTES] == job.id
