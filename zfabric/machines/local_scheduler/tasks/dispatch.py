"""Which worker runs which tasks next: decided once per turn, over queues of one shape (decisions 0016 and 0031).

A worker leases a queue's demand, receives a few milliseconds of its tasks, and is topped up; the lease ends when nothing is left. While
some queue is starved, no lease is topped up. A longer task is sent one ahead, and taken back as soon as others could run it or need the
worker (``send_ahead``).

A worker whose top task waits in ``get`` receives only tasks that this one waits for, directly or through others (decision 0008). If there
are none, the CPU is lent and, within a limit, another worker may start.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.local_scheduler.due import OVERDUE
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere, Stored
from zfabric.machines.local_scheduler.records import (
    ASSIGNED,
    ENDING,
    HOSTING,
    IDLE,
    LEASED,
    READY,
    STARTING,
    WAITING,
    BlockedTask,
    ShapeQueue,
    TaskRecord,
    WorkerRecord,
)
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.backpressure import Backpressure
from zfabric.machines.local_scheduler.tasks.direct_submission import DirectSubmissions
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool, weight
from zfabric.protocol import messages as m
from zfabric.protocol.effects import KillProcess
from zfabric.protocol.ids import TASK_BYTES, WORKER, Address, is_call
from zfabric.protocol.messages import OK
from zfabric.protocol.options import RESOURCE_UNIT, Demand
from zfabric.protocol.pieces import within_row

INLINE_SEARCH_MAX = 256
"""Objects visited per turn in search of a blocked worker's tasks."""
AHEAD_SECONDS = 0.5
"""Longest task sent ahead, or with one behind it: a thousand round trips."""
AHEAD_BYTES = 2**20
"""Largest expected result of a producer sent ahead; more takes longer than a round trip."""


class Dispatcher:
    """Leases, batches, prefetches, and tasks on top of blocked ones."""

    def __init__(
        self,
        tables: Tables,
        outcomes: Outcomes,
        rebuilding: Rebuilding,
        stopping: Stopping,
        direct: DirectSubmissions,
        pool: ResourcePool,
        workers: WorkerPool,
    ) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.stopping = stopping
        self.direct = direct
        self.pool = pool
        self.workers = workers
        self.backpressure = Backpressure(tables)
        self._blocked: dict[bytes, BlockedTask] = {}
        """Blocked tasks by id, of all workers' stacks."""
        self.starved = False
        """Whether a feasible shape has ready tasks and none running."""
        self._turn = 0
        self.ahead: dict[bytes, WorkerRecord] = {}
        """Workers sent a task behind the one that they run, by token, the last one last; some have begun it."""
        self.overdue_at: float | None = None
        """When to look for long tasks with others behind them."""
        self._unfinished = False
        """Whether a search continues in the next turn."""
        self.reserving = False
        """Whether a bundle waits for resources; no lease is prolonged."""
        self.dispatched = 0
        """Counts attempts given to workers."""
        self._looked_at = 0
        """``Outcomes.ready_changes`` when this turn began."""

    # -- one turn --

    def turn(self, now: float) -> None:
        """Serve blocked workers and all queues; end leases without work."""
        blocked = []
        self._looked_at = self.outcomes.ready_changes
        self._unfinished = self.workers.held_up = False
        queues = [queue for queue in self.tables.queues.values() if _may_run_here(queue)]
        if self.tables.store.room is not None or self.backpressure.until is not None:
            self.backpressure.begin_turn(now)
        for worker in self.tables.workers.values():
            if worker.blocked_tasks:
                blocked.append(worker)
            elif worker.state == LEASED and not worker.inflight:
                if worker.gpus and worker.queue is not None and worker.queue and not self.starved and not self.reserving:
                    continue  # It goes on with its queue, unless others wait.
                if worker.direct is None or self.reserving or self.ahead or not worker.direct.reserves(queues, now):
                    self.end_lease(worker, now)
            elif worker.gpus and worker.state in (IDLE, ENDING):  # Its task ended, unreported, under an earlier daemon.
                self._hold_gpus(worker)
                if worker.state == IDLE:
                    self.end_lease(worker, now)
        for worker in blocked:
            self._serve_blocked(worker, now)
        if not queues:
            self.starved = False
            return
        self._turn += 1
        start = self._turn % len(queues)
        starved = False
        top_up = (not self.starved or len(queues) == 1) and not self.reserving
        for queue in queues[start:] + queues[:start]:
            self._serve(queue, now, top_up)
            starved = starved or (bool(queue) and not queue.leased and self._ready(queue) > 0)
        self.starved = starved
        if len(queues) == 1 and queues[0]:
            self.send_ahead(queues[0], now)

    @property
    def in_a_hurry(self) -> bool:
        """Whether the next turn must come at once.

        Tasks became ready during this one, or a search is unfinished and no worker may start.
        """
        return self.outcomes.ready_changes != self._looked_at or (self._unfinished and self.workers.held_up)

    def _serve(self, queue: ShapeQueue, now: float, top_up: bool) -> None:
        if not self._ready(queue):
            return
        if queue.actors:
            self._serve_actors(queue, now)
            return
        if queue.shared:
            self._serve_hosts(queue, now)
            return
        if queue.concurrency:
            self._serve_async(queue, now)
            return
        if top_up:
            serving = [worker for worker in queue.leased.values() if worker.state == LEASED and not worker.blocked_tasks]
            for worker in serving:
                if not queue:
                    return
                self._fill(worker, queue, now, len(serving))
        while self._ready(queue) and queue.pool.fits(queue.demand):
            idle_worker = self.workers.idle_for(queue)
            if idle_worker is None:
                self.workers.maybe_spawn(queue, now)
                return
            worker = idle_worker
            self._lease(worker, queue)
            sharers = 1
            if len(queue) > 1:
                idle = sum(1 for other in self.tables.workers.values() if other.state == IDLE)
                sharers = min(len(queue.leased) + idle, self.workers.cpus)
            before = len(queue)
            self._fill(worker, queue, now, sharers)
            if not worker.inflight:
                self.end_lease(worker, now)
                if len(queue) >= before:
                    return
                # Inputs are being rebuilt or copied: others may begin.

    def _serve_actors(self, queue: ShapeQueue, now: float) -> None:
        while queue.drop_stale() and queue.pool.fits(queue.demand):
            worker = self.workers.idle_for(queue)
            if worker is None:
                self.workers.maybe_spawn(queue, now)
                return
            task = queue.line(now).popleft()
            self.host(worker, task)
            self._assign(worker, [task], now, inline=False)
            self.workers.prestart(now)

    def _serve_hosts(self, queue: ShapeQueue, now: float) -> None:
        """Place actors that share processes, in batches, where there are fewest."""
        hosts = [worker for worker in queue.leased.values() if worker.state == HOSTING]
        actors = sum(map(weight, hosts)) + queue.drop_stale()
        wanted = min(self.workers.cpus, actors)
        most = actors
        while len(hosts) < wanted:
            worker = self.workers.idle_for(queue)
            if worker is None:
                self.workers.maybe_spawn(queue, now)
                if any(each.state == STARTING for each in self.tables.workers.values()):
                    most = -(-actors // wanted)  # The rest is for the starting worker.
                break
            self.share(worker, queue)
            self.workers.prestart(now)
            hosts.append(worker)
        batches: dict[bytes, list[TaskRecord]] = {}
        while hosts and queue.drop_stale():
            host = min(hosts, key=lambda each: weight(each) + len(batches.get(each.token, ())))
            batch = batches.setdefault(host.token, [])
            line = queue.line(now)
            rare = line[0].rare
            suspect = rare is not None and rare.crashes > 0
            full = len(host.inflight) + len(batch) >= self.tables.config.prefetch_tasks
            if full or weight(host) + len(batch) >= most or (suspect and (host.inflight or batch)):
                break
            batch.append(line.popleft())
            if suspect:
                break
        for host in hosts:
            if batches.get(host.token):
                self._assign(host, batches[host.token], now, inline=False)

    def share(self, worker: WorkerRecord, queue: ShapeQueue) -> None:
        """Dedicate a worker to actors that share it."""
        if worker.queue is not queue:
            self._lease(worker, queue)
        worker.state = HOSTING
        worker.shared = True

    def _serve_async(self, queue: ShapeQueue, now: float) -> None:
        """Fill each worker up to its concurrency before the next."""
        for worker in list(queue.leased.values()):
            self._fill_async(worker, queue, now)
        while self._ready(queue) and queue.pool.fits(queue.demand):
            idle = self.workers.idle_for(queue)
            if idle is None:
                self.workers.maybe_spawn(queue, now)
                return
            self._lease(idle, queue)
            self._fill_async(idle, queue, now)

    def _fill_async(self, worker: WorkerRecord, queue: ShapeQueue, now: float) -> None:
        batch: list[TaskRecord] = []
        while self._ready(queue) and len(worker.inflight) + len(batch) < queue.concurrency:
            line = self._line(queue, now)
            task = line[0]
            suspect = task.rare is not None and task.rare.crashes > 0
            if suspect and (worker.inflight or batch):
                break
            batch.append(line.popleft())
            self.backpressure.begun([task])
            if line is queue.tasks:
                queue.passed_since = None
            if suspect:
                break
        if batch:
            self._assign(worker, batch, now, inline=False)

    def host(self, worker: WorkerRecord, task: TaskRecord) -> None:
        """Dedicate a worker to an actor, or to sharing actors."""
        queue = self.tables.queue_of(task)
        if queue.shared:
            self.share(worker, queue)
            return
        worker.actors[task.id] = None
        self._lease(worker, queue)
        queue.leased.pop(worker.token, None)
        worker.state = HOSTING

    def _ready(self, queue: ShapeQueue) -> int:
        """How many tasks may begin; the first is ready."""
        ready = queue.drop_stale()
        return len(queue.consumers) if ready and self.backpressure.holds(queue) else ready

    def _line(self, queue: ShapeQueue, now: float) -> deque[TaskRecord]:
        return queue.consumers if self.backpressure.holds(queue) else queue.line(now)

    # -- leases --

    def _lease(self, worker: WorkerRecord, queue: ShapeQueue) -> None:
        worker.pool = queue.pool.acquire(queue.demand)
        worker.gpus = worker.pool.acquire_gpus(queue.gpus, worker.gpus) if queue.gpus else ()
        worker.demand = queue.demand
        worker.queue = queue
        worker.job = queue.job
        if worker.process is not None:
            worker.process.job = queue.job
        worker.state = LEASED
        queue.leased[worker.token] = worker

    def idle_at_once(self, queue: ShapeQueue) -> WorkerRecord | None:
        """The idle worker for a queue's only task; None if the turn has more to decide."""
        if self.starved or self.reserving or not queue.pool.fits(queue.demand):
            return None
        return self.workers.idle_for(queue)

    def begun(self, worker: WorkerRecord, queue: ShapeQueue, task: TaskRecord, now: float) -> None:
        """Lease an idle worker that was sent a task."""
        self._lease(worker, queue)
        task.assign(worker)
        worker.inflight[task.id] = task
        worker.last_progress = now
        worker.work += task.function.mean or 0.0
        self.dispatched += 1

    def resume(self, worker: WorkerRecord, queue: ShapeQueue) -> None:
        """Lease a worker again after a restart."""
        self._lease(worker, queue)

    def end_lease(self, worker: WorkerRecord, now: float) -> None:
        """End a lease. A worker with GPUs exits; its GPUs are free once it is proved dead.

        CUDA shows a process the same GPUs for life, and libraries keep GPU memory: each assignment of GPUs needs a fresh process.
        """
        if worker.gpus:
            if not self.workers.is_awaited(worker):
                self.workers.end(worker, "the GPUs that it had are for others now")
            return
        self.release(worker)
        worker.state = IDLE
        worker.idle_since = now

    def end_idle(self, now: float) -> None:
        """End idle direct leases: a query finds their resources free."""
        for worker in self.direct.idle():
            self.end_lease(worker, now)

    def _hold_gpus(self, worker: WorkerRecord) -> None:
        if not worker.demand:
            worker.demand = (("GPU", RESOURCE_UNIT * len(worker.gpus)),)
            worker.pool = self.pool.acquire(worker.demand)
            self.pool.acquire_gpus(RESOURCE_UNIT * len(worker.gpus), worker.gpus)

    def abandon(self, worker: WorkerRecord) -> None:
        """Empty the stack of a worker that ends with its job; its resources are free once it is proved dead."""
        self.direct.end(worker)
        for blocked in worker.blocked_tasks:
            self._blocked.pop(blocked.task_id, None)
        worker.blocked_tasks.clear()

    def release(self, worker: WorkerRecord) -> None:
        """Return a worker's resources to the pool."""
        self.direct.end(worker)
        for blocked in worker.blocked_tasks:
            self._blocked.pop(blocked.task_id, None)
        gpus = dict(worker.demand).get("GPU", 0)
        if worker.queue is not None:
            worker.queue.leased.pop(worker.token, None)
            worker.queue = None
        if worker.demand:
            if worker.lent:
                worker.pool.release(tuple(pair for pair in worker.demand if pair[0] != "CPU"))
                worker.lent = False
            else:
                worker.pool.release(worker.demand)
            if gpus:
                worker.pool.release_gpus(worker.gpus, gpus)
            worker.demand = ()
            worker.gpus = ()

    # -- batches --

    def _fill(self, worker: WorkerRecord, queue: ShapeQueue, now: float, sharers: int) -> None:
        """Top up to a few milliseconds of work, unless it has more than half of that."""
        config = self.tables.config
        inflight = worker.inflight
        room = config.prefetch_tasks - len(inflight)
        budget = config.prefetch_seconds - worker.work
        if inflight and (room < config.prefetch_tasks // 2 or budget < config.prefetch_seconds / 2 or self._may_run_long(worker, now)):
            return
        room = min(room, max(1, -(-len(queue) // max(1, sharers))))
        batch: list[TaskRecord] = []
        while room > 0 and (tasks := self._line(queue, now)):
            before = len(batch)
            while tasks and room > 0:
                task = tasks[0]
                if task.state != READY:
                    tasks.popleft()
                    continue
                cost = task.function.cost
                alone = cost is None or (task.rare is not None and task.runs_alone)
                if alone and (inflight or batch):
                    room = 0
                    break
                if cost is not None and (budget <= 0.0 or cost > config.prefetch_seconds) and (inflight or batch):
                    room = 0
                    break
                tasks.popleft()
                task.assign(worker)  # At once: it may be in the queue twice.
                batch.append(task)
                room -= 1
                if alone or cost is None:
                    room = 0
                    break
                budget -= cost
            if tasks is queue.tasks and len(batch) > before:
                queue.passed_since = None
        if batch:
            self.backpressure.begun(batch)
            self._assign(worker, batch, now, inline=False)

    def _may_run_long(self, worker: WorkerRecord, now: float) -> bool:
        """Whether a worker's task may take long: nothing should wait behind it."""
        waiting = {blocked.task_id for blocked in worker.blocked_tasks}
        running = next((task for task in worker.inflight.values() if task.id not in waiting), None)
        mean = running.function.mean if running is not None else 0.0
        if running is not None and running.rare is not None and (running.rare.buried or running.rare.crashes or running.rare.running_on):
            return True
        return mean is None or now - worker.last_progress > max(self.tables.config.take_back_after, 2 * worker.work)

    def _assign(self, worker: WorkerRecord, batch: list[TaskRecord], now: float, inline: bool) -> None:
        inflight = worker.inflight
        if not inflight:
            worker.last_progress = now
        details: list[m.Row] = []
        rows: list[m.Row] = []
        unknown: dict[bytes, m.Row] = {}
        known = worker.functions
        work, first = 0.0, self.tables.first_attempt
        for task in batch:
            row = task.row
            if task.worker is None:
                task.assign(worker)
            inflight[row[0]] = task
            function = task.function
            if function.id not in known:
                worker.used = True
                known.add(function.id)
                unknown[function.id] = (function.id, function.name, function.payload, function.options)
            if function.mean is not None:
                work += function.mean
            if task.rare is not None and task.rare.run_timeout is not None:
                self.stopping.expect_run(task, now)
            if row[3]:
                values = self._values(task, worker)
                if values is None:
                    continue  # It is sent once the store has located its values.
                details.append((len(rows), task.attempt, values, worker.gpus))
            elif task.attempt != first or worker.gpus:
                details.append((len(rows), task.attempt, (), worker.gpus))
            rows.append(row)
        worker.work += work
        if unknown:
            self._to(worker, m.Functions(tuple(unknown.values())))
        if rows:
            self._to(worker, m.Dispatch(tuple(rows), tuple(details), worker.waits if inline else 0, first))
        self.dispatched += len(batch)

    def _to(self, worker: WorkerRecord, message: m.Message) -> None:
        if worker.process is not None:
            self.tables.send(WORKER + worker.process.incarnation, message)

    def _values(self, task: TaskRecord, worker: WorkerRecord) -> tuple[object, ...] | None:
        """Values of dependencies; None if some are missing or yet to be located."""
        values: list[Any] = []
        missing: dict[bytes, object] = {}
        incarnation = worker.process.incarnation if worker.process is not None else b""
        for object_id in task.row[3]:
            record = self.tables.find(object_id)
            value = record.value if record is not None and record.status in (OK, PENDING) else None
            if value is None or isinstance(value, Elsewhere):
                self.rebuilding.hold_back(task, here=True)
                return None
            if type(value) is Stored and object_id not in missing:
                missing[object_id] = None
                self.tables.store.locate(object_id, incarnation)
            values.append(value)
        if not missing:
            limit = self.tables.config.row_bytes
            return tuple(values) if sum(map(len, values)) <= limit else within_row(values, limit)
        # Inline values are copied now: they may move to the arena meanwhile.
        missing.update((object_id, value) for object_id, value in zip(task.row[3], values, strict=True) if type(value) is not Stored)
        task.facts().wait_locations = missing
        return None

    def located(self, object_id: bytes, incarnation: bytes, offset: int, size: int) -> bool:
        """Add a located place; after the last, send the task. Return False if none waits."""
        process = self.tables.processes.get(incarnation)
        worker = self.tables.workers.get(process.name) if process is not None else None
        if worker is None:
            return False
        for task in worker.inflight.values():
            missing = task.rare.wait_locations if task.rare is not None else None
            if missing is None or object_id not in missing or missing[object_id] is not None:
                continue
            missing[object_id] = (offset, size)
            if all(place is not None for place in missing.values()):
                self._send_located(worker, task, missing)
            return True
        return False

    def _send_located(self, worker: WorkerRecord, task: TaskRecord, places: dict[bytes, object]) -> None:
        task.facts().wait_locations = None
        values = []
        for object_id in task.row[3]:
            record = self.tables.find(object_id)
            values.append(places.get(object_id, record.value if record is not None else None))
        details = (0, task.attempt, within_row(values, self.tables.config.row_bytes), worker.gpus)
        self._to(worker, m.Dispatch((task.row,), (details,), worker.waits if worker.blocked_tasks else 0))

    # -- blocked workers --

    def blocked(self, worker: WorkerRecord, message: m.Blocked) -> BlockedTask:
        """Push a blocked task, and take back what the worker returned."""
        returned = [worker.inflight[task_id] for task_id in message.returned if task_id in worker.inflight]
        for task_id in message.returned if len(returned) < len(message.returned) else ():
            if task_id not in worker.inflight:
                self._returned_early(worker, task_id)
        self.outcomes.give_back(returned)
        self._withdraw_unsent(worker)
        worker.waits += 1
        task = worker.inflight.get(message.task_id)
        buried = task is not None and task.rare is not None and task.rare.buried
        blocked = BlockedTask(message.task_id, message.wanted, message.inline and not buried)
        worker.blocked_tasks.append(blocked)
        self._blocked[blocked.task_id] = blocked
        return blocked

    def _returned_early(self, worker: WorkerRecord, task_id: bytes) -> None:
        """Note a returned task that its driver may not have reported."""
        if worker.direct is not None and task_id not in self.tables.tasks:
            worker.direct.early[task_id] = None

    def on_unblocked(self, now: float, source: Address, message: m.Unblocked) -> None:
        """Handle the end of a wait."""
        worker = self.tables.worker_of(source)
        if worker is not None:
            self.unblocked(worker, message)

    def unblocked(self, worker: WorkerRecord, message: m.Unblocked) -> None:
        """Pop a task, which goes on at once, even if its CPU is lent."""
        self._withdraw_unsent(worker)
        worker.waits += 1
        if worker.blocked_tasks and worker.blocked_tasks[-1].task_id == message.task_id:
            worker.blocked_tasks.pop()
            self._blocked.pop(message.task_id, None)
        if not worker.blocked_tasks and worker.lent:
            worker.pool.acquire(_cpu_of(worker.demand))
            worker.lent = False

    def _withdraw_unsent(self, worker: WorkerRecord) -> None:
        """Take back tasks for the top without located arguments."""
        unsent = [task for task in worker.inflight.values() if task.rare is not None and task.rare.wait_locations is not None]
        self.outcomes.give_back(unsent)

    def frame_of(self, task_id: bytes) -> BlockedTask | None:
        """A task's wait, if it waits."""
        return self._blocked.get(task_id)

    def _serve_blocked(self, worker: WorkerRecord, now: float) -> None:
        blocked = worker.blocked_tasks[-1]
        if len(worker.inflight) > len(worker.blocked_tasks):
            return  # Something runs on top of it.
        cpu = _cpu_of(worker.demand)
        fits = not worker.lent or worker.pool.fits(cpu)
        news = fits if blocked.found else blocked.searched != self.outcomes.ready_changes
        if blocked.inline and news and len(worker.blocked_tasks) < self.tables.config.inline_depth:
            batch = self._wanted_ready(blocked, worker)
            blocked.found = bool(batch) and not fits
            if batch and fits:
                if worker.lent:
                    worker.pool.acquire(cpu)
                    worker.lent = False
                self._assign(worker, batch, now, inline=True)
                return
        if not worker.lent and cpu:
            worker.pool.release(cpu)
            worker.lent = True

    def _wanted_ready(self, blocked: BlockedTask, worker: WorkerRecord) -> list[TaskRecord]:
        """Ready tasks that the blocked one needs, directly or through others, as many as may run now.

        The search takes several turns if need be; meanwhile the task may need another worker.
        """
        find = self.tables.find
        if blocked.since < 0:
            blocked.since, blocked.position, blocked.seen = self.outcomes.ready_changes, 0, set()
            blocked.barring = len(blocked.wanted) > INLINE_SEARCH_MAX
        agenda, seen = blocked.agenda, blocked.seen
        batch: list[TaskRecord] = []
        producer: TaskRecord | None = None
        work = 0.0
        config = self.tables.config
        looked = 0
        while looked < INLINE_SEARCH_MAX and len(batch) < config.prefetch_tasks:
            if not agenda:
                agenda += reversed(blocked.wanted[blocked.position : blocked.position + INLINE_SEARCH_MAX])
                blocked.position += len(agenda)
                if not agenda:
                    break
            looked += 1
            object_id = agenda.pop()
            record = find(object_id)
            task = record.task if record is not None else None
            if record is not None and record.home:
                blocked.barring = True  # There, what it needs may wait for workers of this node.
            if is_call(object_id):
                blocked.barring = True  # Its actor may yet have to be created: not on this worker.
            if task is None and object_id[:TASK_BYTES] in self.tables.streams:
                blocked.barring = True  # A stream's maker never runs on top of its reader.
            if task is None or object_id in seen:
                continue
            seen.add(object_id)
            if task.state == WAITING:
                agenda.extend(task.row[3])
            elif task.state == ASSIGNED:
                waiting = self._blocked.get(task.id)
                if waiting is not None:
                    agenda.extend(waiting.wanted)
                if task.worker is not None and task.worker.remote:
                    blocked.barring = True
                if task.function.concurrency or (waiting is not None and not waiting.inline):
                    blocked.barring = True  # In an event loop or threads, it may have unreported waits.
            elif task.state == READY and not self._may_run_inline(task, worker):
                blocked.barring = True
            elif task.state == READY and task.function.result_bytes and not task.row[3]:
                producer = producer or task  # Only if nothing reads what others made.
            elif task.state == READY:
                mean = task.function.mean
                if batch and (mean is None or task.runs_alone or work + mean > config.prefetch_seconds):
                    break
                if task not in batch:
                    batch.append(task)
                    work += config.prefetch_seconds if mean is None or task.runs_alone else mean or config.prefetch_seconds
        if producer is not None and not batch:
            batch = [producer]
        whole = not agenda and blocked.position >= len(blocked.wanted)
        blocked.barred = blocked.barring or not (batch or whole)
        if batch or whole:
            blocked.searched = -1 if batch else blocked.since
            blocked.since = -1
            agenda.clear()
        else:
            self._unfinished = True
        return batch

    def _may_run_inline(self, task: TaskRecord, worker: WorkerRecord) -> bool:
        queue = self.tables.queue_of(task)
        return (
            (queue is worker.queue or (queue.job is worker.job and queue.environment == worker.environment and queue.pool.has(worker.pool)))
            and queue.light
            and not queue.away
            and task.function.inline
            and (task.rare is None or not task.rare.crashes)
        )

    # -- one task ahead --

    def send_ahead(self, queue: ShapeQueue, now: float) -> None:
        """Send each worker of a queue one task ahead, if there are enough."""
        if queue.for_life or queue.concurrency or self.tables.config.prefetch_tasks < 2:
            return
        if self._contested(queue) or queue.pool.fits(queue.demand):
            return
        workers = [worker for worker in queue.leased.values() if len(worker.inflight) == 1 and not worker.taking_back]
        workers = [worker for worker in workers if worker.work <= AHEAD_SECONDS and not self._may_run_long(worker, now)]
        if self._ready(queue) < len(workers):
            return
        for worker in workers:
            if not self._ready(queue):
                return
            line = self._line(queue, now)
            task = line[0]
            mean = task.function.mean
            if mean is None or mean > AHEAD_SECONDS or task.runs_alone:
                return
            if task.function.result_bytes > AHEAD_BYTES and not task.row[3]:
                return  # Readers of the running task's result go first.
            line.popleft()
            if line is queue.tasks:
                queue.passed_since = None
            task.assign(worker)
            self._assign(worker, [task], now, inline=False)
            self.ahead.pop(worker.token, None)
            self.ahead[worker.token] = worker

    def _contested(self, queue: ShapeQueue) -> bool:
        """Whether other tasks may need its workers, or others could run its tasks."""
        tables = self.tables
        if self._blocked or self.reserving or tables.nodes:
            return True
        return any(each is not queue and _may_run_here(each) for each in tables.queues.values())

    def take_back_ahead(self) -> None:
        """Take back tasks that others could run, or whose worker they need: at most one per idle worker."""
        idle = max(1, sum(1 for worker in self.tables.workers.values() if worker.state == IDLE))
        for token, worker in reversed(list(self.ahead.items())):
            queue = worker.queue
            if queue is None or worker.state != LEASED or worker.taking_back or not worker.behind:
                del self.ahead[token]
            elif self._contested(queue):
                self._take_back(worker)
            elif idle and not queue and queue.pool.fits(queue.demand):
                self._take_back(worker)
                idle -= 1

    # -- taking back --

    def _take_back(self, worker: WorkerRecord) -> None:
        self.ahead.pop(worker.token, None)
        worker.taking_back = True
        self.tables.count("take_backs")
        self.tables.send_to_control(worker, m.TakeBack(tuple(worker.inflight)))

    def watch(self, now: float) -> None:
        """Schedule a look if a worker has a task behind another."""
        for worker in self.tables.workers.values():
            if worker.state == LEASED and len(worker.inflight) > 1 and worker.behind:
                self.overdue_at = now + self.tables.config.take_back_after
                self.tables.deadlines.note(OVERDUE, self.overdue_at)
                return

    def tick(self, now: float) -> None:
        """Look for long tasks if that is due."""
        if self.overdue_at is not None and now >= self.overdue_at:
            self.overdue_at = self.overdue(now)

    def overdue(self, now: float) -> float | None:
        """Take back tasks behind long ones; return when to check again."""
        after = self.tables.config.take_back_after
        soonest = None
        for worker in self.tables.workers.values():
            if worker.state != LEASED or worker.taking_back or not worker.behind:
                continue
            due = worker.last_progress + max(after, 2 * worker.work)
            if now >= due and not self._others_could(worker):
                due = now + after
            if now >= due:
                self._take_back(worker)
            elif soonest is None or due < soonest:
                soonest = due
        return soonest

    def _others_could(self, worker: WorkerRecord) -> bool:
        return worker.queue is None or bool(self.tables.nodes) or worker.queue.pool.fits(worker.queue.demand)

    def on_taken_back(self, now: float, source: Address, message: m.TakenBack) -> None:
        """Requeue returned tasks; kill a running one that was cancelled by force."""
        worker = self.tables.worker_of(source)
        if worker is None:
            return
        worker.taking_back = False
        returned = []
        for task_id in message.task_ids:
            task = worker.inflight.get(task_id)
            if task is None:
                self._returned_early(worker, task_id)
                continue
            returned.append(task)
        self.outcomes.give_back(returned)
        running = worker.inflight.get(message.running)
        if running is not None and running.rare is not None and running.rare.stopped == "force" and worker.pid:
            worker.kill_reason = "cancelled"
            self.tables.emit(KillProcess(worker.pid, f"task {running.name} was cancelled by force"))


def _may_run_here(queue: ShapeQueue) -> bool:
    return bool(queue.tasks or queue.consumers) and not queue.away and queue.feasible is not False


def _cpu_of(demand: Demand) -> Demand:
    return tuple(pair for pair in demand if pair[0] == "CPU" and pair[1] > 0)
