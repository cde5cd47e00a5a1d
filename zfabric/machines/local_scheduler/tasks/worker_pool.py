"""The workers of a node: which are idle, start, end."""

from __future__ import annotations

from zfabric.machines.common.resources import ResourcePool, count_fitting
from zfabric.machines.local_scheduler.due import TRIMMING
from zfabric.machines.local_scheduler.records import ENDING, HOSTING, IDLE, STARTING, JobRecord, ShapeQueue, WorkerRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.effects import KillProcess, SpawnWorker
from zfabric.protocol.options import NO_ENVIRONMENT, RESOURCE_UNIT, Environment


class WorkerPool:
    """Starts and ends workers."""

    def __init__(self, tables: Tables, pool: ResourcePool, first_token: int) -> None:
        self.tables = tables
        self._next_token = first_token
        self.held_up = False
        """Whether no worker was started because too many are blocked."""
        self.stuck: dict[int, ShapeQueue] = {}
        """Delegated tasks' queues for which no worker may start, by token."""
        self.trim_at: float | None = None
        """When to end unneeded workers; None without any."""
        self.last_removed = 0.0
        self.cpus = max(1, -(-pool.total.get("CPU", RESOURCE_UNIT) // RESOURCE_UNIT))

    def adopt(self, token: bytes, pid: int, now: float) -> None:
        """Enter a worker of an earlier daemon."""
        worker = self.tables.workers[token] = WorkerRecord(token, None, NO_ENVIRONMENT, now)
        self.set_pid(worker, pid)

    def set_pid(self, worker: WorkerRecord, pid: int) -> None:
        """Note the pid of a worker that has begun."""
        worker.pid = pid
        self.tables.enter_pid(pid, worker)

    def remove(self, worker: WorkerRecord, now: float) -> None:
        """Remove a worker that has exited."""
        self.tables.workers.pop(worker.token, None)
        self.tables.drop_pid(worker.pid)
        self.last_removed = now

    def idle_for(self, queue: ShapeQueue) -> WorkerRecord | None:
        """An idle worker of its job and environment, or fresh.

        Tasks with GPUs need a worker that has run nothing; actors one for whose results nobody waits.
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
        """Start a worker, unless enough are starting or there are too many."""
        workers = self.tables.workers.values()
        starting = sum(
            1
            for worker in workers
            if worker.state == STARTING and (worker.job is queue.job or worker.job is None) and worker.environment == queue.environment
        )
        if starting >= min(len(queue), self._fitting(queue)):
            return
        active = sum(1 for worker in workers if worker.state not in (ENDING, HOSTING))
        for worker in workers:
            if worker.state == IDLE and self.is_awaited(worker):
                # It may remain for long, of no use to actors and other jobs.
                active -= queue.for_life or worker.job is not queue.job or worker.environment != queue.environment
        plain, others = self._count_blocked(queue)
        if not (queue.actors or queue.shared) and (plain > self.cpus or others > self.tables.config.workers_blocked_max):
            self.held_up = True
            if queue.delegated and others > self.tables.config.workers_blocked_max:
                self.stuck[queue.token] = queue
            return
        if active >= self.tables.config.workers_max + plain + others and not self._end_one_idle(queue):
            return
        self.spawn(queue.job, queue.environment, now)

    def take_stuck(self) -> list[ShapeQueue]:
        """Take delegated queues to return."""
        stuck, self.stuck = self.stuck, {}
        return list(stuck.values())

    def _count_blocked(self, queue: ShapeQueue) -> tuple[int, int]:
        """Numbers of blocked workers on which ``queue``'s tasks may run on top, and may not.

        The former need no replacement: if all tasks wait, one that can run is put on top. The latter are replaced, up to a limit.
        """
        depth = self.tables.config.inline_depth
        may_run_inline = queue.light and queue.first.function.inline
        plain = others = 0
        for worker in self.tables.workers.values():
            if worker.blocked_tasks:
                blocked = worker.blocked_tasks[-1]
                same = (
                    may_run_inline and worker.job is queue.job and worker.environment == queue.environment and queue.pool.has(worker.pool)
                )
                if same and blocked.inline and not blocked.barred and len(worker.blocked_tasks) < depth:
                    plain += 1
                else:
                    others += 1
        return plain, others

    def _fitting(self, queue: ShapeQueue) -> int:
        return max(1, count_fitting(dict(queue.pool.available()), queue.demand, self.cpus))

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
        """Whether others wait for results of this worker alone."""
        return worker.process is not None and self.tables.promises.bound(worker.process.incarnation)

    def _idle(self) -> list[WorkerRecord]:
        workers = self.tables.workers.values()
        return [worker for worker in workers if worker.state == IDLE and not worker.inflight and worker.direct is None]

    def _unneeded(self, workers: list[WorkerRecord]) -> list[WorkerRecord]:
        return [worker for worker in workers if not self.is_awaited(worker)]

    def prestart(self, now: float) -> None:
        """Start workers until there is one per CPU besides actors'."""
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
        self.tables.emit(SpawnWorker(token, job.id if job else b"", variables, directory, paths, 1))
        self.tables.count("workers_started")
        return worker

    def end(self, worker: WorkerRecord, reason: str) -> None:
        """Kill a worker."""
        worker.state = ENDING
        worker.kill_reason = worker.kill_reason or reason
        if worker.pid:
            self.tables.emit(KillProcess(worker.pid, reason))

    def end_once_unneeded(self, worker: WorkerRecord, reason: str) -> None:
        """Kill a worker once nobody waits for results of it alone."""
        if not self.is_awaited(worker):
            self.end(worker, reason)
            return
        worker.state = ENDING
        worker.end_reason = reason

    def tick(self, now: float) -> None:
        """End workers unneeded for long enough."""
        if self.trim_at is not None and now >= self.trim_at:
            self.trim(now)

    def trim(self, now: float) -> None:
        """End idle workers beyond the CPUs, vacant hosts of shared actors, and those no longer awaited."""
        self.trim_at = self._end_unneeded(now)
        if self.trim_at is not None:
            self.tables.deadlines.note(TRIMMING, self.trim_at)

    def _end_unneeded(self, now: float) -> float | None:
        workers = self.tables.workers.values()
        idle = self._idle() if len(workers) > self.cpus else []
        if len(idle) <= self.cpus:
            for worker in workers:
                if worker.shared or worker.end_reason:
                    break
            else:
                return None
        vacant = [worker for worker in workers if worker.shared and worker.state == HOSTING and not weight(worker)]
        idle.sort(key=lambda each: each.idle_since)
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
    """Actors that share it, or soon will."""
    return len(worker.actors) + len(worker.inflight)
