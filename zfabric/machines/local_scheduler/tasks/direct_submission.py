"""A driver that waits for each task before it submits the next is introduced to the worker that runs them, and hands it the next ones.

Four hops become two: the row goes from the driver straight to the worker, and a plain value straight back. The scheduler is told of both,
and for everything else the task is one that it dispatched: it is found, cancelled, taken back, retried and rebuilt as any other. What two
processes say of one task may come in either order: what the worker says first is kept until the driver says that it has handed it over.

An introduction is over when the worker is wanted elsewhere, has been without work for a while, or dies. The driver may not have heard of
that yet, so its tasks are accepted until it has said that no more will follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zfabric.machines.local_scheduler.records import ASSIGNED, LEASED, DirectLease, ProcessRecord, ShapeQueue, TaskRecord, WorkerRecord
from zfabric.protocol import messages as m
from zfabric.protocol.ids import WORKER, Address, object_id
from zfabric.protocol.messages import OK

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler.machine import LocalScheduler

TOLD_MAX = 256
"""Outcomes that the worker has told the driver, and that are kept in case it has not; more are said again."""


class DirectSubmissions:
    """Who hands tasks to whom, over the shared tables."""

    def __init__(self, scheduler: LocalScheduler) -> None:
        self.scheduler = scheduler
        self.tables = scheduler.tables
        self._candidates: dict[bytes, ProcessRecord] = {}
        """Tasks of this turn that were submitted alone, once again."""
        self._patient: dict[bytes, DirectLease] = {}
        """Those whose drivers know more than is known here."""
        self._active: dict[bytes, DirectLease] = {}
        """Those that are not over, by worker."""

    # -- they begin --

    def submitted(self, process: ProcessRecord, rows: m.Rows) -> None:
        """A driver has submitted rows: one at a time, again and again?"""
        if len(rows) != 1:
            process.singles = 0
            return
        process.singles += 1
        if process.singles >= self.tables.config.introduce_after:
            self._candidates[rows[0][0]] = process

    def end_of_turn(self, now: float) -> None:
        """Introduce drivers to the workers that got their tasks in this turn."""
        for made in self._active.values():
            if len(made.told) > TOLD_MAX:
                self._say_again(made)
        if self._patient:
            self._go_on(now)
        if self._candidates:
            candidates, self._candidates = self._candidates, {}
            for task_id, driver in candidates.items():
                task = self.tables.tasks.get(task_id)
                if task is not None and task.state == ASSIGNED and task.worker is not None:
                    self._consider(driver, task, task.worker, now)

    def _consider(self, driver: ProcessRecord, task: TaskRecord, worker: WorkerRecord, now: float) -> None:
        function, queue = task.function, worker.queue
        short = function.mean is not None and function.mean <= self.tables.config.prefetch_seconds
        if not short or not function.plain or queue is None or queue.concurrency or task.rare is not None:
            return
        if not queue.light:
            return  # What is handed over late runs without a lease: a CPU too many may be in use, and nothing else.
        if worker.state != LEASED or worker.frames or worker.process is None or len(worker.inflight) != 1:
            return
        made = worker.introduced
        if made is None:
            if any(not each.over for each in driver.introductions.values()):
                return
            made = worker.introduced = driver.introductions[worker.token] = DirectLease(driver, worker)
            self._active[worker.token] = made
            self.tables.send(WORKER + worker.process.incarnation, m.AllowDirect(driver.incarnation))
        elif made.over or made.driver is not driver or function.id in made.functions:
            return
        made.functions.add(function.id)
        made.until = now + self.tables.config.introduced_for
        self.tables.tell(driver, m.DirectAllowed(worker.token, tuple(sorted(made.functions)), self.tables.first_attempt))
        self.tables.counts["introductions"] += 1

    # -- what is handed over --

    def on_submitted_direct(self, now: float, source: Address, message: m.SubmittedDirect) -> None:
        """A driver has handed tasks to a worker; or it has heard that it is to do so no more."""
        driver = self.tables.processes.get(source[1:])
        made = driver.introductions.get(message.worker) if driver is not None else None
        if driver is None or made is None:
            self.tables.counts["refused"] += 1
            return
        if not message.rows:
            if made.over:
                self._forget(made)
            return
        self.scheduler.blocks.now = now
        for task in self.scheduler.accept(driver, message.rows):
            self._begun(made, task, now)
        made.until = now + self.tables.config.introduced_for

    def ended_early(self, made: DirectLease, row: m.Row, extra: m.Row | None) -> None:
        """A task has ended of which its driver has said nothing yet. What its value refers to is kept: the worker lets go of it."""
        made.early[row[0]] = (row, extra)
        self.scheduler.references.pin(_contained(extra))

    def returned_early(self, worker: WorkerRecord, task_id: bytes) -> None:
        """A worker gives back a task, perhaps one of which its driver has said nothing yet."""
        if worker.introduced is not None and task_id not in self.tables.tasks:
            worker.introduced.early[task_id] = None

    def _begun(self, made: DirectLease, task: TaskRecord, now: float) -> None:
        """The worker has the task already, or even had it."""
        worker = made.worker
        returned = made.early.get(task.id, ()) is None
        ended = made.early.pop(task.id, None)
        if returned:
            self.scheduler.outcomes.make_ready(task, front=True)
            return
        if not worker.inflight:
            worker.last_progress = now
        task.state = ASSIGNED
        task.worker = worker
        worker.inflight[task.id] = task
        if task.function.mean is not None:
            worker.work += task.function.mean
        made.handed.add(task.id)
        if ended is not None:
            row, extra = ended
            extras = () if extra is None else ((0, *extra),)
            self.scheduler.outcomes.completed(worker, m.Completed.of((row,), extras), now)
            self.scheduler.references.unpin(_contained(extra))
        elif made.died is not None:
            void = self.scheduler.outcomes.worker_lost(worker, made.died)
            self.scheduler.stopping.stop_void(void, worker.token, now)

    # -- what is said in the knowledge of more --

    def on_direct_counts(self, now: float, source: Address, message: m.DirectCounts) -> None:
        """Of how many values a worker has told a driver, or a driver was told."""
        process = self.tables.processes.get(source[1:])
        if process is None:
            return
        if process.kind == "worker":
            worker = self.tables.workers.get(process.name)
            made = worker.introduced if worker is not None else None
            if made is not None and made.driver.incarnation == message.peer:
                made.ended = message.number
        else:
            made = process.introductions.get(message.peer)
            if made is not None and made.died is None:
                made.known = message.number

    def wait(self, source: Address, message: m.Message) -> bool:
        """Whether something a process says is to wait: it knows of values that have not been heard of here."""
        process = self.tables.processes.get(source[1:])
        for made in process.introductions.values() if process is not None else ():
            if made.known > made.ended:
                made.waiting.append((source, message))
                self._patient[made.worker.token] = made
                return True
        return False

    def _go_on(self, now: float) -> None:
        for token, made in list(self._patient.items()):
            if made.known <= made.ended:
                del self._patient[token]
                waiting, made.waiting = made.waiting, []
                for source, message in waiting:
                    self.scheduler.step(now, source, message)

    # -- they end --

    def keep(self, worker: WorkerRecord, queues: list[ShapeQueue], now: float) -> bool:
        """Whether a worker that has nothing to run is left to its driver: not where tasks of other shapes wait."""
        made = worker.introduced
        if made is None or made.over or now >= made.until:
            return False
        return all(queue is worker.queue for queue in queues)

    def end(self, worker: WorkerRecord) -> None:
        """A worker is its driver's no longer."""
        made = worker.introduced
        if made is None or made.over:
            return
        made.over = True
        self._active.pop(worker.token, None)
        self._say_again(made)
        made.driver.singles = 0
        if made.driver.incarnation in self.tables.processes:
            self.tables.tell(made.driver, m.DirectAllowed(worker.token, (), self.tables.first_attempt))

    def worker_lost(self, worker: WorkerRecord, died: m.ProcessDied) -> None:
        """A worker is dead; tasks may yet come that its driver had handed to it."""
        made = worker.introduced
        if made is not None:
            self.end(worker)
            made.died = died
            made.known = 0
            # A value in the arena went with whoever wrote it: its task is run again.
            self._drop_early(made, [each for each, said in made.early.items() if said is not None and not _is_plain(*said)])

    def driver_gone(self, driver: ProcessRecord) -> None:
        """A driver hands over no more."""
        for made in list(driver.introductions.values()):
            self._active.pop(made.worker.token, None)
            made.waiting.clear()
            self._forget(made)

    def _say_again(self, made: DirectLease) -> None:
        """Tell a driver outcomes that it should have heard from the worker; of what it has dropped since, that it has ended."""
        told, made.told = made.told, []
        for task in told if made.driver.incarnation in self.tables.processes else ():
            if task.holders is not None and self.tables.tasks.get(task.id) is task:
                self.scheduler.outcomes.report_to(made.driver, task)
            else:
                made.driver.results.append((task.id, OK, ()))
                self.tables.touched[made.driver] = None

    def _drop_early(self, made: DirectLease, task_ids: list[bytes]) -> None:
        for task_id in task_ids:
            ended = made.early.pop(task_id)
            if ended is None:
                continue
            row, extra = ended
            self.scheduler.references.unpin(_contained(extra))
            for index, value in enumerate(row[3] if made.died is None else ()):
                self.scheduler.outcomes.drop_copy(made.worker, object_id(task_id, index), value)

    def _forget(self, made: DirectLease) -> None:
        made.known = 0  # What waits goes on.
        self._drop_early(made, list(made.early))
        made.driver.introductions.pop(made.worker.token, None)
        if made.worker.introduced is made:
            made.worker.introduced = None

    def next_deadline(self) -> float | None:
        """When a worker that has nothing to run is taken from its driver."""
        return min((made.until for made in self._active.values() if not made.worker.inflight), default=None)

    def end_idle(self, now: float) -> None:
        """Somebody asks what the node has to offer: workers that only wait for their drivers are free."""
        for made in list(self._active.values()):
            if not made.worker.inflight:
                self.scheduler.dispatcher.end_lease(made.worker, now)


def _contained(extra: m.Row | None) -> tuple[bytes, ...]:
    return tuple(identifier for refs in extra[0] for identifier in refs) if extra is not None else ()


def _is_plain(row: m.Row, extra: m.Row | None) -> bool:
    return row[2] == OK and extra is None and all(type(value) is bytes for value in row[3])
