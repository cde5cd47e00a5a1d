"""Direct submission: a driver that waits for each task sends the next straight to the worker (decision 0016).

Driver and worker both report to the scheduler, in either order; a worker's report is retained until the driver's arrives. A direct lease
ends when the worker is wanted elsewhere, is idle for a while, or dies. The driver's tasks are accepted until it has acknowledged the end.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.due import DIRECT
from zfabric.machines.local_scheduler.records import ASSIGNED, LEASED, DirectLease, ProcessRecord, TaskRecord, WorkerRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.admission import Admission
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes, contained_in
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.protocol import messages as m
from zfabric.protocol.ids import WORKER, Address, object_id
from zfabric.protocol.messages import OK

SENT_MAX = 256
"""Outcomes per lease retained in case the worker's message is lost; beyond that, all are repeated."""


class DirectSubmissions:
    """Direct leases and their tasks."""

    def __init__(self, tables: Tables, references: References, outcomes: Outcomes, stopping: Stopping, admission: Admission) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.stopping = stopping
        self.admission = admission
        self.candidates: dict[bytes, ProcessRecord] = {}
        """Single tasks of this turn, with qualified drivers."""
        self.waiting: dict[bytes, DirectLease] = {}
        """Leases with messages that wait for the worker."""
        self.active: dict[bytes, DirectLease] = {}
        """Leases that have not ended, by worker token."""

    # -- leases begin --

    def submitted(self, process: ProcessRecord, rows: m.Rows) -> None:
        """Count a driver's successive single tasks."""
        if len(rows) != 1:
            process.singles = 0
            return
        process.singles += 1
        if process.singles >= self.tables.config.direct_lease_after and len(rows[0]) == 4:  # Other tasks never go that way.
            self.candidates[rows[0][0]] = process

    def end_of_turn(self, now: float) -> None:
        """Begin leases with the workers of such tasks."""
        if self.active:
            self.tables.deadlines.note(DIRECT)
        for lease in self.active.values():
            if len(lease.sent) > SENT_MAX:
                self._report_again(lease)
        if self.candidates:
            candidates, self.candidates = self.candidates, {}
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
            return  # Without a scheduled lease it may use one CPU too many, but nothing else.
        if worker.state != LEASED or worker.blocked_tasks or worker.process is None or len(worker.inflight) != 1:
            return
        lease = worker.direct
        if lease is None:
            if any(not each.over for each in driver.direct.values()):
                return
            lease = worker.direct = driver.direct[worker.token] = DirectLease(driver, worker)
            self.active[worker.token] = lease
            self.tables.send(WORKER + worker.process.incarnation, m.AllowDirect(driver.incarnation))
        elif lease.over or lease.driver is not driver or function.id in lease.functions:
            return
        lease.functions.add(function.id)
        lease.until = now + self.tables.config.direct_lease_seconds
        self.tables.send_to_client(driver, m.DirectAllowed(worker.token, tuple(sorted(lease.functions)), self.tables.first_attempt))
        self.tables.count("direct_leases")

    # -- what is submitted --

    def on_submitted_direct(self, now: float, source: Address, message: m.SubmittedDirect) -> None:
        """Record a driver's tasks. Without rows, it acknowledges the lease's end."""
        driver = self.tables.processes.get(source[1:])
        lease = driver.direct.get(message.worker) if driver is not None else None
        if driver is None or lease is None:
            self.tables.count("refused")
            return
        if not message.rows:
            if lease.over:
                self._forget(lease)
            return
        for task in self.admission.accept(driver, message.rows, now):
            self._begun(lease, task, now)
        lease.until = now + self.tables.config.direct_lease_seconds

    def _begun(self, lease: DirectLease, task: TaskRecord, now: float) -> None:
        """Record that the worker has a task, and perhaps ended or returned it."""
        worker = lease.worker
        returned = lease.early.get(task.id, ()) is None
        ended = lease.early.pop(task.id, None)
        if returned:
            self.outcomes.make_ready(task, front=True)
            return
        if not worker.inflight:
            worker.last_progress = now
        task.assign(worker)
        worker.inflight[task.id] = task
        if task.function.mean is not None:
            worker.work += task.function.mean
        lease.submitted.add(task.id)
        if ended is not None:
            row, extra = ended
            extras = () if extra is None else ((0, *extra),)
            self.outcomes.completed(worker, m.Completed.of((row,), extras), now)
            self.references.unpin(contained_in(row, extra))
        elif lease.died is not None:
            void = self.outcomes.worker_lost(worker, lease.died)
            self.stopping.stop_void(void, worker.token, now)

    # -- messages that refer to unreported values --

    def on_direct_counts(self, now: float, source: Address, message: m.DirectCounts) -> None:
        """Record how many values were sent, or received."""
        process = self.tables.processes.get(source[1:])
        if process is None:
            return
        if process.kind == "worker":
            worker = self.tables.workers.get(process.name)
            lease = worker.direct if worker is not None else None
            if lease is not None and lease.driver.incarnation == message.peer:
                lease.ended = message.number
        else:
            lease = process.direct.get(message.peer)
            if lease is not None and lease.died is None:
                lease.received = message.number

    def wait(self, source: Address, message: m.Message) -> bool:
        """Retain a message whose sender has unreported values. Return whether it waits."""
        process = self.tables.processes.get(source[1:])
        for lease in process.direct.values() if process is not None else ():
            if lease.received > lease.ended:
                lease.waiting.append((source, message))
                self.waiting[lease.worker.token] = lease
                return True
        return False

    def take_waiting(self) -> list[tuple[Address, m.Message]]:
        """Take messages that wait no longer."""
        found: list[tuple[Address, m.Message]] = []
        for token, lease in list(self.waiting.items()):
            if lease.received <= lease.ended:
                del self.waiting[token]
                found += lease.waiting
                lease.waiting = []
        return found

    # -- leases end --

    def end(self, worker: WorkerRecord) -> None:
        """End a worker's lease, and notify its driver."""
        lease = worker.direct
        if lease is None or lease.over:
            return
        lease.over = True
        self.active.pop(worker.token, None)
        self._report_again(lease)
        lease.driver.singles = 0
        if lease.driver.incarnation in self.tables.processes:
            self.tables.send_to_client(lease.driver, m.DirectAllowed(worker.token, (), self.tables.first_attempt))

    def worker_lost(self, worker: WorkerRecord, died: m.ProcessDied) -> None:
        """End a dead worker's lease. Its driver may still report tasks."""
        lease = worker.direct
        if lease is not None:
            self.end(worker)
            lease.died = died
            lease.received = 0
            # A value in the arena was freed with its writer: its task runs again.
            self._drop_early(lease, [each for each, said in lease.early.items() if said is not None and not _is_plain(*said)])

    def driver_gone(self, driver: ProcessRecord) -> None:
        """Drop an exited driver's leases."""
        for lease in list(driver.direct.values()):
            self.active.pop(lease.worker.token, None)
            lease.waiting.clear()
            self._forget(lease)

    def _report_again(self, lease: DirectLease) -> None:
        sent, lease.sent = lease.sent, []
        for task in sent if lease.driver.incarnation in self.tables.processes else ():
            if task.holders is not None and self.tables.tasks.get(task.id) is task:
                self.outcomes.report_to(lease.driver, task)
            else:
                self.outcomes.add_result(lease.driver, task.id, OK, ())

    def _drop_early(self, lease: DirectLease, task_ids: list[bytes]) -> None:
        for task_id in task_ids:
            ended = lease.early.pop(task_id)
            if ended is None:
                continue
            row, extra = ended
            self.references.unpin(contained_in(row, extra))
            for index, value in enumerate(row[3] if lease.died is None else ()):
                self.outcomes.drop_copy(lease.worker, object_id(task_id, index), value)

    def _forget(self, lease: DirectLease) -> None:
        lease.received = 0  # Waiting messages are handled in the next turn.
        self._drop_early(lease, list(lease.early))
        lease.driver.direct.pop(lease.worker.token, None)
        if lease.worker.direct is lease:
            lease.worker.direct = None

    def next_deadline(self) -> float | None:
        """When an idle worker's lease expires."""
        return min((lease.until for lease in self.active.values() if not lease.worker.inflight), default=None)

    def idle(self) -> list[WorkerRecord]:
        """Idle workers under a direct lease."""
        return [lease.worker for lease in self.active.values() if not lease.worker.inflight]


def _is_plain(row: m.Row, extra: m.Row | None) -> bool:
    return row[2] == OK and extra is None and all(type(value) is bytes for value in row[3])
