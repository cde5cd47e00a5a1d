"""Demands that wait for resources of actors: processes are asked to collect handles that nobody can use any more.

A handle in a reference cycle retains its actor, with its resources, until Python's collector runs. The collector counts objects, not CPUs.
So a collection is requested while something waits for resources. It costs a process time in proportion to its objects, and most often the
actors are wanted. So each pause between two requests is half as long again as the wait so far.
"""

from __future__ import annotations

from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.local_scheduler.records import HOSTING, STARTING
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.protocol import messages as m


class Starvation:
    """Requests collections while demands wait for actors, over the shared tables."""

    def __init__(self, tables: Tables, pool: ResourcePool, dispatcher: Dispatcher) -> None:
        self.tables = tables
        self.pool = pool
        self.dispatcher = dispatcher
        self.since: float | None = None
        """Since when demands have waited in every turn. Whether actors hold those resources is checked only when a request is due."""
        self._due = 0.0

    def end_of_turn(self, now: float) -> None:
        """Note whether a demand waits."""
        if not self.dispatcher.starved:
            self.since = None
        elif self.since is None:
            self._begin(now)

    def _begin(self, now: float) -> None:
        self.since, self._due = now, now + self.tables.config.collect_seconds

    def next_deadline(self) -> float | None:
        """When the next request is due, if actors hold what the demands need."""
        return self._due if self.since is not None else None

    def tick(self, now: float) -> None:
        """Request a collection from all processes, if demands wait for resources of actors."""
        if self.since is None or now < self._due:
            return
        if not self._actors_hold_it():
            self._begin(now)
            return
        self._due = now + max(self.tables.config.collect_seconds, (now - self.since) * 1.5)
        self.tables.counts["collections"] += 1
        for worker in self.tables.workers.values():
            if worker.state != STARTING:
                self.tables.send_to_control(worker, m.CollectGarbage())
        for job in self.tables.jobs.values():
            if job.driver is not None:
                self.tables.send_to_client(job.driver, m.CollectGarbage())

    def _actors_hold_it(self) -> bool:
        held = {name for worker in self.tables.workers.values() if worker.state == HOSTING for name, _ in worker.demand}
        if not held:
            return False
        waiting = [queue for queue in self.tables.queues.values() if queue and not queue.leased and queue.feasible]
        return any(name in held for queue in waiting if not queue.pool.fits(queue.demand) for name, _ in queue.demand)
