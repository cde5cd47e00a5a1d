"""How processes register, and what follows from their death.

A process sends ``Register``, repeats what it holds (nothing, if new), and sends ``Ready``; again after a restart of the daemon
(``rejoining``).
"""

from __future__ import annotations

from collections.abc import Callable

from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.barrier import PROCESSES
from zfabric.machines.local_scheduler.due import STARTING_WORKERS
from zfabric.machines.local_scheduler.lifecycle.departures import Departures
from zfabric.machines.local_scheduler.lifecycle.jobs import Jobs
from zfabric.machines.local_scheduler.lifecycle.rejoining import Rejoining
from zfabric.machines.local_scheduler.records import ENDING, IDLE, STARTING, JobRecord, ProcessRecord, WorkerRecord
from zfabric.machines.local_scheduler.reports.events import Events
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.direct_submission import DirectSubmissions
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.machines.local_scheduler.transitions import AgentReady, NodeReady
from zfabric.protocol import messages as m
from zfabric.protocol.effects import KillProcess, WatchProcess
from zfabric.protocol.ids import CONTROL, Address, job_id
from zfabric.protocol.options import NO_ENVIRONMENT

START_ATTEMPTS_MAX = 5
"""Failed starts in a row after which drivers are notified and tasks fail."""


class Membership:
    """Registers processes. ``deliver`` is the machine's."""

    def __init__(
        self,
        node: bytes,
        tables: Tables,
        requests: PendingRequests,
        outcomes: Outcomes,
        stopping: Stopping,
        direct: DirectSubmissions,
        workers: WorkerPool,
        dispatcher: Dispatcher,
        logs: ActorLogs,
        actors: ActorDirectory,
        events: Events,
        departures: Departures,
        jobs: Jobs,
        rejoining: Rejoining,
        deliver: Callable[[], object],
    ) -> None:
        self.node = node
        self.tables = tables
        self.requests = requests
        self.outcomes = outcomes
        self.stopping = stopping
        self.direct = direct
        self.workers = workers
        self.dispatcher = dispatcher
        self.logs = logs
        self.actors = actors
        self.events = events
        self.departures = departures
        self.jobs = jobs
        self.rejoining = rejoining
        self._deliver = deliver
        self._failed_starts = 0

    # -- registration --

    def on_register(self, now: float, source: Address, message: m.Register) -> None:
        """Register a process, or refuse it."""
        if message.protocol != m.PROTOCOL_VERSION:
            text = f"this cluster speaks protocol {m.PROTOCOL_VERSION}, you speak {message.protocol}; use the same release on both sides"
            self.tables.send(source, m.Refused("VersionMismatchError", text))
            return
        incarnation = source[1:]
        process = self.tables.processes.get(incarnation)
        if process is None:
            process = ProcessRecord(incarnation, message.kind, message.pid, message.started, None, message.name, message.control)
            self.tables.enter_process(process)
        process.path = message.path
        process.ready = False
        if message.kind == "worker":
            self._worker_registered(process, message, now)
        elif message.kind == "driver":
            self._driver_registered(process, message, now)
        else:
            self.tables.emit(WatchProcess(message.pid, message.started))
            self._welcome(process)

    def _worker_registered(self, process: ProcessRecord, message: m.Register, now: float) -> None:
        worker = self.tables.workers.get(message.name)
        if worker is None or worker.state == ENDING:
            self.tables.drop_process(process)
            self.tables.send(CONTROL + message.control, m.StopWorker())
            return
        worker.process = process
        self.workers.set_pid(worker, message.pid)
        self.tables.deadlines.note(STARTING_WORKERS)
        if message.job and worker.job is None:
            worker.job = self.tables.jobs.get(message.job)
            if worker.job is None or worker.job.ended:
                self.workers.end(worker, "its job has ended")
        process.job = worker.job
        self._failed_starts = 0
        self._welcome(process)

    def _driver_registered(self, process: ProcessRecord, message: m.Register, now: float) -> None:
        self.tables.enter_pid(message.pid, process)
        self.tables.emit(WatchProcess(message.pid, message.started))
        if message.job:
            job = self.tables.jobs.get(message.job)
            if job is None or job.ended:
                self.tables.send_to_client(process, m.Refused("JobEndedError", "the job of this driver has ended"))
                return
            process.job = job
            job.driver = process
            self._welcome(process)
        elif process.job is not None:
            self._welcome(process)  # An earlier daemon made its job and died before it sent ``Welcome``.
        else:
            self.requests.ask_head(m.NewJob, then=self._job_numbered, about=(process.incarnation, message.namespace))

    def _job_numbered(self, now: float, about: tuple[bytes, str], answer: m.JobNumber | m.Written) -> None:
        incarnation, namespace = about
        if isinstance(answer, m.Written):
            self._refuse_job(incarnation, answer.text)
            return
        process = self.tables.processes.get(incarnation)
        if process is None:
            return
        job = self.jobs.enter(JobRecord(job_id(answer.number), answer.number, namespace, now))
        job.driver = process
        process.job = job
        self.requests.ask(m.Write, (("job", job.id, self.jobs.row(job, "running")),), (), then=self._job_begun, about=process)
        self.workers.prestart(now)

    def _job_begun(self, now: float, process: ProcessRecord, answer: m.Written) -> None:
        """Welcome a driver once the job's row is durable: a restarted daemon finds drivers by these rows."""
        if answer.ok:
            self._welcome(process)
        else:
            self._refuse_job(process.incarnation, answer.text)

    def _refuse_job(self, incarnation: bytes, text: str) -> None:
        process = self.tables.processes.get(incarnation)
        if process is not None:
            self.tables.send_to_client(process, m.Refused("OutOfDiskError", f"no new job can be begun: {text}"))

    def _welcome(self, process: ProcessRecord) -> None:
        job = process.job.id if process.job is not None else b""
        self.tables.send_to_client(process, m.Welcome(m.PROTOCOL_VERSION, job, self.node, "", 0, self.tables.config.pairs()))

    def on_ready(self, now: float, source: Address, message: m.Ready) -> None:
        """Record that a process has reported everything."""
        process = self.tables.processes.get(source[1:])
        if process is None:
            return
        if process.kind == "node":
            self.tables.report(NodeReady(now, process))
            return
        process.ready = True
        worker = self.tables.workers.get(process.name) if process.kind == "worker" else None
        if worker is not None and worker.state == STARTING:
            worker.state = IDLE
            worker.idle_since = now
        if process.kind == "agent":
            self.tables.report(AgentReady(process))
        self.rejoining.ready(process.incarnation, now)

    # -- workers come and go --

    def on_worker_spawned(self, now: float, source: Address, message: m.WorkerSpawned) -> None:
        """Record a worker's pid, or why its start failed."""
        worker = self.tables.workers.get(message.token)
        if worker is None:
            return
        if message.pid == 0:
            self._start_failed(worker, message.error, now)
            return
        self.workers.set_pid(worker, message.pid)
        worker.started_at = now  # Its environment may have had to be made first.
        self.tables.deadlines.note(STARTING_WORKERS)
        if worker.state == ENDING:
            self.tables.emit(KillProcess(message.pid, worker.kill_reason))

    def _start_failed(self, worker: WorkerRecord, error: str, now: float) -> None:
        self._remove(worker, now)
        self._failed_starts += 1
        row = self.tables.cluster.rows.get(self.node)
        where = f" on node {row[2]} ({self.node.hex()})" if row is not None else ""
        text = f"a worker could not be started{where}: {error}"
        self.tables.write_log("error", text)
        if worker.environment != NO_ENVIRONMENT and worker.job is not None:
            # Probably the environment's fault: its tasks fail instead of waiting for ever.
            for queue in worker.job.queues.values():
                if queue.environment == worker.environment:
                    for task in list(queue):
                        self.outcomes.fail(task, "RuntimeEnvSetupError", text, ())
        elif self._failed_starts >= START_ATTEMPTS_MAX:
            # Likewise for workers without one.
            self._failed_starts = 0
            for job in self.tables.jobs.values():
                if job.driver is not None and not job.ended:
                    self.tables.send_to_client(job.driver, m.Notice("error", text))
                for queue in job.queues.values():
                    for task in list(queue) if queue.environment == NO_ENVIRONMENT else ():
                        self.outcomes.fail(task, "WorkerCrashedError", text, ())

    def on_process_died(self, now: float, source: Address, message: m.ProcessDied) -> None:
        """Handle a proved death."""
        self.logs.record_ended(message.ended, self.tables.barrier.awaits(PROCESSES))
        known = self.tables.drop_pid(message.pid)
        if isinstance(known, WorkerRecord):
            starting = known.state == STARTING
            self.events.worker_died(now, known, message)
            self.dispatcher.release(known)
            self.direct.worker_lost(known, message)
            void = self.outcomes.worker_lost(known, message)
            self._deliver()  # Actors whose creation failed must be dead before others restart.
            if known.actors or known.shared:
                self.actors.worker_lost(known, message)
            if known.process is not None and void:
                self.stopping.stop_void(void, known.process.incarnation, now)
            if starting:
                how = f"signal {message.signal}" if message.signal else f"exit code {message.exit_code}"
                self._start_failed(known, f"it died with {how} before it was ready; its stderr:\n{message.stderr}", now)
            else:
                self._remove(known, now)
            self.tables.count("workers_died", _unexpected(known, message))
        elif isinstance(known, ProcessRecord):
            self.departures.release(known)
            if known.job is not None and known.job.driver is known:
                if self.tables.barrier.awaits(PROCESSES):
                    self.rejoining.abandon(known.job)
                else:
                    self.jobs.driver_gone(known.job, now)
        for other in [each for each in self.tables.processes.values() if each.kind in ("tool", "agent") and each.pid == message.pid]:
            self.departures.release(other)
        self.rejoining.dead(message.pid, now)

    def _remove(self, worker: WorkerRecord, now: float) -> None:
        self.workers.remove(worker, now)
        job = worker.job
        if worker.process is None:
            self.tables.send_to_store(m.ProcessGone(worker.token))  # The store refuses its late messages.
        if worker.process is not None:
            self.departures.release(worker.process)
            if job is not None and job.driver is not None and not job.ended:
                self.departures.pass_on(worker.process.incarnation, job.driver)
        if not self.tables.barrier.awaits(PROCESSES) and (job is None or not job.ended) and worker.environment == NO_ENVIRONMENT:
            live = [job for job in self.tables.jobs.values() if not job.ended]
            if live and self._failed_starts < START_ATTEMPTS_MAX:
                self.workers.prestart(now)

    # -- time --

    def tick(self, now: float) -> None:
        """Kill workers that never registered."""
        for worker in list(self.tables.workers.values()):
            late = now >= worker.started_at + self.tables.config.worker_start_seconds
            if late and worker.state == STARTING and worker.pid and not self.tables.barrier.awaits(PROCESSES):
                self.tables.emit(KillProcess(worker.pid, "it did not register in time"))
                worker.started_at = now

    def next_deadline(self) -> float | None:
        """When the next starting worker is late; None during recovery (``Rejoining.tick``)."""
        if self.tables.barrier.awaits(PROCESSES):
            return None
        first = None
        for worker in self.tables.workers.values():
            if worker.state == STARTING and worker.pid and (first is None or worker.started_at < first):
                first = worker.started_at
        return None if first is None else first + self.tables.config.worker_start_seconds


def _unexpected(worker: WorkerRecord, died: m.ProcessDied) -> bool:
    return worker.kill_reason in ("", "memory") and bool(died.signal or died.exit_code)
