"""The end of a program whose actors have something to say at theirs: ``__exit__``, ``__del__``.

When a driver leaves, such actors end as they would if the last handle of each had gone, after the calls that were made; then the job
does, and with it whatever has not ended within three seconds. A driver that dies takes no leave, and neither do its actors.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.actor_records import ActorRecord
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.records import JobRecord
from zfabric.protocol.messages import ALIVE

PARTING_SECONDS = 3.0
"""How long the end of a program waits for that of its actors."""


class JobShutdown:
    """Waits for the clean end of such actors."""

    def __init__(self, actors: ActorDirectory) -> None:
        self.actors = actors
        self._until: dict[JobRecord, float] = {}
        """Jobs whose driver has left, and when they end at the latest."""

    def begin(self, job: JobRecord, now: float) -> bool:
        """A driver leaves. False if none of its actors has anything to do about it."""
        actors = self._polite(job)
        for record in actors:
            self.actors.retire(record, "its program has ended")
        if actors:
            self._until[job] = now + PARTING_SECONDS
        return bool(actors)

    def _polite(self, job: JobRecord) -> list[ActorRecord]:
        return [
            record
            for record in self.actors.of(job)
            if record.state == ALIVE and record.worker is not None and not record.detached and record.task.option("farewell", False)
        ]

    def take_over(self, now: float) -> list[JobRecord]:
        """Jobs whose actors have ended, or whose time is up: they end."""
        over = []
        for job, until in list(self._until.items()):
            if job.ended or job.driver is None:
                del self._until[job]
            elif now >= until or not self._polite(job):
                del self._until[job]
                over.append(job)
        return over

    def next_deadline(self) -> float | None:
        """When the time of one is up."""
        return min(self._until.values(), default=None)
