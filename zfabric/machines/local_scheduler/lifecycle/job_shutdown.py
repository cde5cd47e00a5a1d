"""The end of a program with actors that define ``__exit__`` or ``__del__``.

When its driver exits cleanly, these are retired, after the calls already made; the job ends when they have, at the latest after three
seconds. If the driver dies, they are killed at once.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.actor_records import ActorRecord
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.due import SHUTDOWN
from zfabric.machines.local_scheduler.records import JobRecord
from zfabric.protocol.messages import ALIVE

SHUTDOWN_SECONDS = 3.0
"""Seconds that a job's end waits for actors."""


class JobShutdown:
    """Delays the ends of jobs for such actors."""

    def __init__(self, actors: ActorDirectory) -> None:
        self.actors = actors
        self.until: dict[JobRecord, float] = {}
        """Jobs of exited drivers, with their latest end."""

    def begin(self, job: JobRecord, now: float) -> bool:
        """Retire a job's such actors. Return False without any."""
        actors = self._with_farewell(job)
        for record in actors:
            self.actors.retire(record, "its program has ended")
        if actors:
            self.until[job] = now + SHUTDOWN_SECONDS
            self.actors.tables.deadlines.note(SHUTDOWN, self.until[job])
        return bool(actors)

    def _with_farewell(self, job: JobRecord) -> list[ActorRecord]:
        return [
            record
            for record in self.actors.of(job)
            if record.state == ALIVE and record.worker is not None and not record.detached and record.task.option("farewell", False)
        ]

    def take_over(self, now: float) -> list[JobRecord]:
        """Take jobs whose actors have ended, or whose time is up."""
        over = []
        for job, until in list(self.until.items()):
            if job.ended or job.driver is None:
                del self.until[job]
            elif now >= until or not self._with_farewell(job):
                del self.until[job]
                over.append(job)
        return over

    def next_deadline(self) -> float | None:
        """When a job's time is up."""
        return min(self.until.values(), default=None)
