"""How many workers a node has: which are idle, when another one starts, which are spare and end."""

from __future__ import annotations

from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.local_scheduler.records import ENDING, HOSTING, IDLE, STARTING, JobRecord, ShapeQueue, WorkerRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.effects import KillProcess, SpawnWorker
from zfabric.protocol.options import NO_ENVIRONMENT, RESOURCE_UNIT, Demand, Environment


class WorkerPool:
    """Starts and ends workers. Which of them runs what is the dispatcher's to decide."""

    def __init__(self, tables: Tables, pool: ResourcePool, first_token: int) -> None:
        self.tables = tables
        self.pool = pool
        self._next_token = first_token
        self.held_up = False
        """Whether no worker was started in this turn because so many are blocked."""
        self.cpus = max(1, -(-pool.total.get("CPU", RESOURCE_UNIT) // RESOURCE_UNIT))

    def idle_for(self, queue: ShapeQueue) -> WorkerRecord | None:
        """A worker without a task that may have those of ``queue``: one of the same job and environment, or one that had none yet.

        What uses GPUs begins in one that has run nothing yet. What stays for life, and ends with its process, is for one that owes nothing.
        """
        fresh = None
        for worker in self.tables.workers.values():
            if worker.state != IDLE or worker.inflight or (worker.direct is not None and queue.for_life):
                continue
            if worker.gpus or (queue.gpus and worker.used) or (queue.for_life and self.is_awaited(worker)):
                continue
            if worker.job is queue.job and worker.environment == queue.environment:
                return worker
            if worker.job is None and fresh is None and queue.environment == NO_ENVIRONMENT:
                fresh = worker
        return fresh

    def maybe_spawn(self, queue: ShapeQueue, now: float) -> None:
        """Start a worker for what waits in ``queue``, unless enough are starting or there are too many."""
        workers = self.tables.workers.values()
        starting = sum(
            1
            for worker in workers
            if worker.state == STARTING and (worker.job is queue.job or worker.job is None) and worker.environment == queue.environment
        )
        if starting >= min(len(queue.tasks), self._fitting(queue.demand)):
            return
        active = sum(1 for worker in workers if worker.state not in (ENDING, HOSTING))
        for worker in workers:
            if worker.state == IDLE and self.is_awaited(worker):
                # It may stay for long, and is of no use for what is for life, or for others.
                active -= queue.for_life or worker.job is not queue.job or worker.environment != queue.environment
        plain, others = self._count_blocked(queue)
        if not (queue.actors or queue.shared) and (plain > self.cpus or others > self.tables.config.workers_blocked_max):
            self.held_up = True
            return
        if active >= self.tables.config.workers_max + plain + others and not self._end_one_idle(queue):
            return
        self.spawn(queue.job, queue.environment, now)

    def _count_blocked(self, queue: ShapeQueue) -> tuple[int, int]:
        """Blocked workers on top of which tasks of ``queue`` may run where those wait for them, and those on which they may not.

        The former need no others in their place: where all tasks wait, one that could run is waited for by some of them, and is
        put on top of it. A few more workers than CPUs only keep CPUs busy meanwhile. The latter are replaced, up to a cap.
        """
        depth = self.tables.config.inline_depth
        may_run_inline = queue.light and queue.tasks[0].function.inline
        plain = others = 0
        for worker in self.tables.workers.values():
            if worker.frames:
                frame = worker.frames[-1]
                same = may_run_inline and worker.job is queue.job and worker.environment == queue.environment
                if same and frame.inline and not frame.barred and len(worker.frames) < depth:
                    plain += 1
                else:
                    others += 1
        return plain, others

    def _fitting(self, demand: Demand) -> int:
        """How many more leases of ``demand`` there is room for."""
        available = dict(self.pool.available())
        counts = [available.get(name, 0) // amount for name, amount in demand if amount > 0]
        return max(1, min(counts)) if counts else self.cpus

    def _end_one_idle(self, queue: ShapeQueue) -> bool:
        others = [
            worker
            for worker in self._idle()
            if worker.job is not queue.job or worker.environment != queue.environment or (queue.gpus and worker.used)
        ]
        for worker in self._unneeded(others):
            self.end(worker, "another job or environment needs its place")
            return True
        return False

    def is_awaited(self, worker: WorkerRecord) -> bool:
        """Whether others wait for something that only this worker will have."""
        return worker.process is not None and self.tables.promises.bound(worker.process.incarnation)

    def _idle(self) -> list[WorkerRecord]:
        """Those that have nothing to run, and that no driver may still hand anything to."""
        workers = self.tables.workers.values()
        return [worker for worker in workers if worker.state == IDLE and not worker.inflight and worker.direct is None]

    def _unneeded(self, workers: list[WorkerRecord]) -> list[WorkerRecord]:
        """Those that may be ended: others wait for nothing that only one of them will have, such as results of calls that it made."""
        return [worker for worker in workers if not self.is_awaited(worker)]

    def prestart(self, now: float) -> None:
        """As many workers as the node has CPUs, before tasks ask for them, and in place of those that actors have taken for life."""
        alive = sum(1 for worker in self.tables.workers.values() if worker.state not in (ENDING, HOSTING))
        for _ in range(self.cpus - alive):
            self.spawn(None, NO_ENVIRONMENT, now)

    def spawn(self, job: JobRecord | None, environment: Environment, now: float) -> WorkerRecord:
        """Start one more worker."""
        token = self._next_token.to_bytes(8, "big")
        self._next_token += 1
        worker = WorkerRecord(token, job, environment, now)
        self.tables.workers[token] = worker
        variables, directory, paths = environment
        self.tables.effects.append(SpawnWorker(token, job.id if job else b"", variables, directory, paths, 1))
        self.tables.counts["workers_started"] += 1
        return worker

    def end(self, worker: WorkerRecord, reason: str) -> None:
        """Stop a worker for good."""
        worker.state = ENDING
        worker.kill_reason = worker.kill_reason or reason
        if worker.pid:
            self.tables.effects.append(KillProcess(worker.pid, reason))

    def end_once_unneeded(self, worker: WorkerRecord, reason: str) -> None:
        """Stop a worker as soon as others wait for nothing that only it will have."""
        if not self.is_awaited(worker):
            self.end(worker, reason)
            return
        worker.state = ENDING
        worker.end_reason = reason

    def trim(self, now: float) -> float | None:
        """End idle workers beyond the node's CPUs, those that actors shared which have all ended, and those not awaited any more.

        Returns when to look again.
        """
        workers = self.tables.workers.values()
        vacant = [worker for worker in workers if worker.shared and worker.state == HOSTING and not weight(worker)]
        idle = sorted(self._idle(), key=lambda each: each.idle_since)
        patience = self.tables.config.worker_idle_seconds
        dues = [(worker.last_progress + patience, worker) for worker in vacant]
        dues += [(worker.idle_since + patience, worker) for worker in idle[: max(0, len(idle) - self.cpus)]]
        late = [worker for due, worker in dues if now >= due] + [worker for worker in workers if worker.end_reason]
        unneeded = self._unneeded(late)
        for worker in unneeded:
            self.end(worker, worker.end_reason or "idle")
            worker.end_reason = ""
        again = [due for due, _ in dues if due > now]
        if len(unneeded) < len(late):
            again.append(now + patience)
        return min(again, default=None)


def weight(worker: WorkerRecord) -> int:
    """How many actors share a worker, or soon will."""
    return len(worker.actors) + len(worker.inflight)
