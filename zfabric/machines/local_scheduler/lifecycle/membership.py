"""Processes and jobs of a node: registration, death, the end of a job, and recovery after a restart of the daemon.

There is one registration path. A process says ``Register``, repeats what it holds, and says ``Ready``; a process that
starts has nothing to repeat. A restarted daemon asks everyone it can know of to do so (``RegisterAgain``): workers from the supervisor's
table, drivers from the control store's. Until the last of them is ready, or proved dead, everything said is kept; then ``recovery``
puts it together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zfabric.machines.common.row_format import pack_row, unpack_row
from zfabric.machines.local_scheduler.lifecycle.former_jobs import FormerJobs
from zfabric.machines.local_scheduler.lifecycle.kept_rows import KeptRows
from zfabric.machines.local_scheduler.lifecycle.recovery import HELD, HELD_QUESTIONS, Recovery
from zfabric.machines.local_scheduler.records import (
    DONE,
    ENDING,
    IDLE,
    STARTING,
    JobRecord,
    ObjectRecord,
    ProcessRecord,
    Stored,
    TaskRecord,
    WorkerRecord,
)
from zfabric.protocol import messages as m
from zfabric.protocol.effects import KillProcess, Send, WatchProcess
from zfabric.protocol.ids import CLIENT, CONTROL, JOB_BYTES, Address, control_of, job_id, unpack_counter
from zfabric.protocol.options import NO_ENVIRONMENT

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler.machine import LocalScheduler

START_ATTEMPTS_MAX = 5
"""Workers in a row that die before they register until the reason is shown to the drivers, and becomes their tasks' outcome."""

TOMBSTONES_KEPT = 1000
"""Ended jobs whose rows are kept, for people."""


class Membership:
    """Who is here. Works on its scheduler's tables and parts."""

    def __init__(self, scheduler: LocalScheduler, recovering: bool) -> None:
        self.scheduler = scheduler
        self.tables = scheduler.tables
        self.recovering = recovering
        self.recovery = Recovery(scheduler)
        self.kept_rows = KeptRows(scheduler, self._maybe_recovered)
        self.former_jobs = FormerJobs(scheduler)
        self._table_known = not recovering
        self._jobs_known = not recovering
        self._expected: dict[bytes, int] = {}
        """Processes (by incarnation) a recovering scheduler waits for, and their pids."""
        self._keep_due = False
        self._claimed: list[m.Row] = []
        """Rows of ``Sealed`` that processes sent while they registered."""
        self._abandoned: list[JobRecord] = []
        """Jobs whose drivers died during recovery: they end when all that is left of them is known."""
        self._early: list[tuple[Address, m.Message]] = []
        """Registrations that came before it was known whose they may be."""
        self._deadline: float | None = None
        self._tombstones: list[tuple[float, tuple[JobRecord, tuple[m.Rows, m.Rows]]]] = []
        """Ends of jobs that the control store could not write: when to try again, and what."""
        self._failed_starts = 0

    # -- registration --

    def on_register(self, now: float, source: Address, message: m.Register) -> None:
        """A process says who it is."""
        if message.protocol != m.PROTOCOL_VERSION:
            text = f"this cluster speaks protocol {m.PROTOCOL_VERSION}, you speak {message.protocol}; use the same release on both sides"
            self.tables.send(source, m.Refused("VersionMismatchError", text))
            return
        incarnation = source[1:]
        process = self.tables.processes.get(incarnation)
        if process is None:
            process = ProcessRecord(incarnation, message.kind, message.pid, message.started, None, message.name, message.control)
            self.tables.processes[incarnation] = process
        process.path = message.path
        process.ready = False
        if message.kind == "worker":
            self._worker_registered(process, message, now)
        elif message.kind == "driver":
            self._driver_registered(process, message, now)
        else:
            self.tables.effects.append(WatchProcess(message.pid, message.started))
            self._welcome(process)

    def _worker_registered(self, process: ProcessRecord, message: m.Register, now: float) -> None:
        worker = self.tables.workers.get(message.name)
        if worker is None or worker.state == ENDING:
            self.tables.processes.pop(process.incarnation, None)
            self.tables.send(CONTROL + message.control, m.StopWorker())
            return
        worker.process = process
        worker.pid = message.pid
        self.tables.by_pid[message.pid] = worker
        if message.job and worker.job is None:
            worker.job = self.tables.jobs.get(message.job)
            if worker.job is None or worker.job.ended:
                self.scheduler.workers.end(worker, "its job has ended")
        process.job = worker.job
        self._failed_starts = 0
        self._welcome(process)

    def _driver_registered(self, process: ProcessRecord, message: m.Register, now: float) -> None:
        self.tables.by_pid[message.pid] = process
        self.tables.effects.append(WatchProcess(message.pid, message.started))
        if message.job:
            job = self.tables.jobs.get(message.job)
            if job is None or job.ended:
                self.tables.tell(process, m.Refused("JobEndedError", "the job of this driver has ended"))
                return
            process.job = job
            job.driver = process
            self._welcome(process)
        elif process.job is not None:
            self._welcome(process)  # The daemon before this one made its job, and died before it could say so.
        else:
            self.scheduler.requests.ask(m.NewJob, then=self._job_numbered, about=(process.incarnation, message.namespace))

    def _job_numbered(self, now: float, about: tuple[bytes, str], answer: m.JobNumber | m.Written) -> None:
        """The control store has given a new job its number, or cannot write."""
        incarnation, namespace = about
        if isinstance(answer, m.Written):
            self._refuse_job(incarnation, answer.text)
            return
        process = self.tables.processes.get(incarnation)
        if process is None:
            return
        job = JobRecord(job_id(answer.number), answer.number, namespace, now)
        job.driver = process
        process.job = job
        self.tables.jobs[job.id] = job
        self.scheduler.requests.ask(m.Write, (("job", job.id, self._job_row(job, "running")),), (), then=self._job_begun, about=process)
        self.scheduler.workers.prestart(now)

    def _job_begun(self, now: float, process: ProcessRecord, answer: m.Written) -> None:
        """A new job's row is durable: only now may its driver count on it, since a new daemon finds drivers by their jobs' rows."""
        if answer.ok:
            self._welcome(process)
        else:
            self._refuse_job(process.incarnation, answer.text)

    def _refuse_job(self, incarnation: bytes, text: str) -> None:
        """The control store cannot write, so there can be no new job."""
        process = self.tables.processes.get(incarnation)
        if process is not None:
            self.tables.tell(process, m.Refused("OutOfDiskError", f"no new job can be begun: {text}"))

    def _job_row(self, job: JobRecord, status: str) -> bytes:
        driver = job.driver
        return pack_row(
            {
                "number": job.number,
                "namespace": job.namespace,
                "status": status,
                "driver": driver.incarnation if driver else b"",
                "control": driver.control if driver else b"",
                "pid": driver.pid if driver else 0,
                "started": driver.started if driver else 0,
                "name": driver.name if driver else b"",
                "submitted": job.submitted,
            }
        )

    def _welcome(self, process: ProcessRecord) -> None:
        job = process.job.id if process.job is not None else b""
        self.tables.tell(process, m.Welcome(m.PROTOCOL_VERSION, job, self.scheduler.node, "", 0, self.scheduler.config.pairs()))

    def on_ready(self, now: float, source: Address, message: m.Ready) -> None:
        """A process has said all it holds."""
        process = self.tables.processes.get(source[1:])
        if process is None:
            return
        process.ready = True
        worker = self.tables.workers.get(process.name) if process.kind == "worker" else None
        if worker is not None and worker.state == STARTING:
            worker.state = IDLE
            worker.idle_since = now
        self._expected.pop(process.incarnation, None)
        self._maybe_recovered(now)

    def prestart(self, now: float) -> None:
        """Called by the shell when a fresh node starts: workers are forked while the driver still connects."""
        self.scheduler.workers.prestart(now)

    # -- workers come and go --

    def on_worker_spawned(self, now: float, source: Address, message: m.WorkerSpawned) -> None:
        """The supervisor has started a worker, or could not."""
        worker = self.tables.workers.get(message.token)
        if worker is None:
            return
        if message.pid == 0:
            self._start_failed(worker, message.error, now)
            return
        worker.pid = message.pid
        self.tables.by_pid[message.pid] = worker
        if worker.state == ENDING:
            self.tables.effects.append(KillProcess(message.pid, worker.kill_reason))

    def _start_failed(self, worker: WorkerRecord, error: str, now: float) -> None:
        self._remove(worker, now)
        self._failed_starts += 1
        text = f"a worker could not be started: {error}"
        self.tables.say("error", text)
        if worker.environment != NO_ENVIRONMENT and worker.job is not None:
            # The environment is to blame as far as anyone can know: its tasks get the reason, not an endless wait.
            for queue in worker.job.queues.values():
                if queue.environment == worker.environment:
                    for task in list(queue.tasks):
                        self.scheduler.outcomes.fail(task, "RuntimeEnvSetupError", text, ())
        elif self._failed_starts >= START_ATTEMPTS_MAX:
            # Nobody waits for ever: what would have run on such workers gets the reason.
            self._failed_starts = 0
            for job in self.tables.jobs.values():
                if job.driver is not None and not job.ended:
                    self.tables.tell(job.driver, m.Notice("error", text))
                for queue in job.queues.values():
                    for task in list(queue.tasks) if queue.environment == NO_ENVIRONMENT else ():
                        self.scheduler.outcomes.fail(task, "WorkerCrashedError", text, ())

    def on_process_died(self, now: float, source: Address, message: m.ProcessDied) -> None:
        """A process is proved dead."""
        self.scheduler.logs.left(message.ended, self.recovering)
        known = self.tables.by_pid.pop(message.pid, None)
        if isinstance(known, WorkerRecord):
            starting = known.state == STARTING
            self.scheduler.events.worker_died(now, known, message)
            self.scheduler.dispatcher.release(known)
            self.scheduler.direct.worker_lost(known, message)
            void = self.scheduler.outcomes.worker_lost(known, message)
            self.scheduler.deliver()  # Actors whose making failed are dead before the others are made again.
            if known.actors or known.shared:
                self.scheduler.actors.worker_lost(known, message)
            if known.process is not None and void:
                self.scheduler.stopping.stop_void(void, known.process.incarnation, now)
            if starting:
                how = f"signal {message.signal}" if message.signal else f"exit code {message.exit_code}"
                self._start_failed(known, f"it died with {how} before it was ready; its stderr:\n{message.stderr}", now)
            else:
                self._remove(known, now)
            self.tables.counts["workers_died"] += 1
        elif isinstance(known, ProcessRecord):
            self.let_go_of(known)
            if known.job is not None and known.job.driver is known:
                if self.recovering:
                    self._abandoned.append(known.job)
                else:
                    self.driver_gone(known.job, now)
        for tool in [each for each in self.tables.processes.values() if each.kind == "tool" and each.pid == message.pid]:
            self.let_go_of(tool)
        for incarnation, pid in list(self._expected.items()):
            if pid == message.pid:
                del self._expected[incarnation]
        self._maybe_recovered(now)

    def _remove(self, worker: WorkerRecord, now: float) -> None:
        self.tables.workers.pop(worker.token, None)
        self.tables.by_pid.pop(worker.pid, None)
        job = worker.job
        if worker.process is None and self.tables.store_address is not None:
            self.tables.send(self.tables.store_address, m.ProcessGone(worker.token))  # What it may have said is to be late.
        if worker.process is not None:
            self.let_go_of(worker.process)
            if job is not None and job.driver is not None and not job.ended:
                self._pass_on(worker.process.incarnation, job.driver)
        if not self.recovering and (job is None or not job.ended) and worker.environment == NO_ENVIRONMENT:
            live = [job for job in self.tables.jobs.values() if not job.ended]
            if live and self._failed_starts < START_ATTEMPTS_MAX:
                self.scheduler.workers.prestart(now)

    def let_go_of(self, process: ProcessRecord) -> None:
        """A process is no more, or wants no more: it holds nothing, and nobody waits for it."""
        self.tables.processes.pop(process.incarnation, None)
        self.tables.touched.pop(process, None)
        self.scheduler.direct.driver_gone(process)
        self.scheduler.references.process_gone(process.incarnation)
        self.scheduler.actors.process_gone(process.incarnation)
        if self.tables.store_address is not None:
            self.tables.send(self.tables.store_address, m.ProcessGone(process.incarnation))

    def _pass_on(self, gone: bytes, driver: ProcessRecord) -> None:
        """What a dead worker submitted has nobody who would say it again after a restart: its driver does from now on.

        Not what is being stopped: whoever asked for that may be dead, too, and the driver would have it run again.
        """
        orphans = [task for task in self.tables.tasks.values() if task.submitter == gone and task.state != DONE]
        orphans = [task for task in orphans if task.rare is None or not task.rare.stopped]
        for task in orphans:
            task.submitter = driver.incarnation
        for start in range(0, len(orphans), 256):
            batch = orphans[start : start + 256]
            functions = {task.function.id: task.function for task in batch}.values()
            exported = tuple((each.id, each.name, each.payload, each.options) for each in functions)
            self.tables.tell(driver, m.InheritTasks(tuple(task.row for task in batch), exported))

    # -- the end of a job --

    def on_goodbye(self, now: float, source: Address, message: m.Goodbye) -> None:
        """A driver or tool is done."""
        process = self.tables.processes.get(source[1:])
        if process is None or self.scheduler.direct.wait(source, message):
            return
        if process.kind == "driver" and process.job is not None:
            if not self.scheduler.partings.begin(process.job, now):
                self.driver_gone(process.job, now)
        else:
            self.let_go_of(process)

    def driver_gone(self, job: JobRecord, now: float) -> None:
        """A job ends with its driver, unless it has detached actors."""
        if job.driver is None or not self.scheduler.detached.driver_gone(job, job.driver, now):
            self.end_job(job, now)

    def end_job(self, job: JobRecord, now: float) -> None:
        """Refuse everything more of a job, end its workers, let go of its values, delete its rows; then say farewell."""
        if job.ended:
            return
        job.ended = True
        tables = self.tables
        for worker in list(tables.workers.values()):
            if worker.job is job:
                for task in list(worker.inflight.values()):
                    task.finish()
                worker.inflight.clear()
                self.scheduler.dispatcher.abandon(worker)
                self.scheduler.workers.end(worker, "its job has ended")
        tables.condemned = {prefix: None for prefix in tables.condemned if prefix[:JOB_BYTES] != job.id}
        for queue in job.queues.values():
            tables.queues.pop(queue.token, None)
            queue.tasks.clear()
        self.scheduler.actors.job_ended(job)
        blocks = self.scheduler.blocks
        for task in [task for identifier, task in tables.tasks.items() if identifier[:JOB_BYTES] == job.id]:
            self._drop_task(task)
            if task.block is not None:
                blocks.drop(task.id, task.block)
        deletes = [("function", job.id + identifier) for identifier in job.functions]
        deletes += self.scheduler.logs.job_ended(job.id)
        for identifier, record in [(each, record) for each, record in tables.objects.items() if each[:JOB_BYTES] == job.id]:
            self.scheduler.references.clear(record)
            del tables.objects[identifier]
            if record.task is None:
                deletes.append(("object", identifier))
        for table in (tables.streams, tables.orphans):
            for identifier in [each for each in table if each[:JOB_BYTES] == job.id]:
                del table[identifier]
        puts, more = blocks.flush(rows_max=1 << 30)
        # What happened is durable with the end of it, so that a timeline can be read as soon as the driver has gone.
        status = ("job", job.id, self._job_row(job, "ended"))
        if job.number > TOMBSTONES_KEPT and job_id(job.number - TOMBSTONES_KEPT) not in tables.jobs:
            deletes.append(("job", job_id(job.number - TOMBSTONES_KEPT)))
        last_rows = (status,), (*deletes, *more)
        rows = (*puts, *self.scheduler.events.take(), status)
        self.scheduler.requests.ask(m.Write, rows, last_rows[1], then=self._job_ended, about=(job, last_rows))

    def _drop_task(self, task: TaskRecord) -> None:
        self.scheduler.references.revive(task)
        self.scheduler.references.clear(task)
        task.finish()
        self.tables.tasks.pop(task.id, None)

    def end_all(self, now: float, reason: str = "") -> None:
        """The node is being stopped: every job ends with it. (A scheduler that recovers does not know them; the next node will.)

        Drivers are told ``reason``, if there is one.
        """
        for job in list(self.tables.jobs.values()) if not self.recovering else ():
            job.reason = reason
            self.end_job(job, now)

    def _job_ended(self, now: float, about: tuple[JobRecord, tuple[m.Rows, m.Rows]], answer: m.Written) -> None:
        """The job's tombstone is durable. Where the control store cannot write, it is written later, and nobody waits for it."""
        job, _ = about
        if not answer.ok:
            self._tombstones.append((now + self.scheduler.config.store_retry_every, about))
        driver = job.driver
        self.tables.jobs.pop(job.id, None)
        if driver is not None and driver.incarnation in self.tables.processes:
            self.tables.tell(driver, m.Farewell(job.reason))
            self.let_go_of(driver)

    # -- recovery --

    def on_process_table(self, now: float, source: Address, message: m.ProcessTable) -> None:
        """The supervisor's workers, after a restart of the daemon: each is asked to register again."""
        if not self.recovering:
            return
        self._table_known = True
        self.scheduler.logs.left(message.ended, True)
        self._deadline = now + self.scheduler.config.recovery_seconds
        for token, pid in message.workers:
            worker = WorkerRecord(token, None, NO_ENVIRONMENT, now)
            worker.pid = pid
            self.tables.workers[token] = worker
            self.tables.by_pid[pid] = worker
            self._expected[token] = pid
            self.tables.send(CONTROL + control_of(token), m.RegisterAgain(""))
        self.scheduler.requests.ask(m.Scan, "job", b"", b"", 10_000, then=self._jobs_found)

    def _jobs_found(self, now: float, about: None, answer: m.Found) -> None:
        """The control store's jobs: the drivers of those that run are asked to register again."""
        for key, value in answer.rows:
            facts = unpack_row(value)
            if facts.get("status") != "running":
                continue
            job = JobRecord(key, unpack_counter(key)[0], facts["namespace"], now)
            job.submitted = facts.get("submitted", 0)
            process = ProcessRecord(facts["driver"], "driver", facts["pid"], facts["started"], job, facts["name"], facts["control"])
            job.driver = process
            self.tables.jobs[key] = job
            self.tables.processes[process.incarnation] = process
            self.tables.by_pid[process.pid] = process
            self._expected[process.incarnation] = process.pid
            self.tables.effects.append(WatchProcess(process.pid, process.started))
            self.tables.send(CLIENT + process.incarnation, m.RegisterAgain(""))
        self._jobs_known = True
        self.kept_rows.ask()
        early, self._early = self._early, []
        for source, message in early:
            self.scheduler.step(now, source, message)
        self._maybe_recovered(now)

    def holds_back(self, source: Address, message: m.Message) -> bool:
        """Whether a message waits for the end of recovery."""
        if self.recovering and type(message) is m.Ready:
            self.recovery.registered(source[1:])
        if not self._jobs_known and type(message) in (m.Register, m.Ready):
            self._early.append((source, message))
            return True
        if self.recovering and (type(message) in HELD or (type(message) is m.Query and message.what in HELD_QUESTIONS)):
            self.recovery.hold_back(source, message)
            return True
        return False

    def _maybe_recovered(self, now: float) -> None:
        known = self._table_known and self._jobs_known and self.kept_rows.complete
        if not self.recovering or self._expected or not known:
            return
        self.recovering = False
        self.recovery.rebuild(self.kept_rows, now)
        tasks = len(self.tables.tasks)
        self._claimed, self.tables.sealed = self.tables.sealed, []
        self.recovery.go_on(now)
        self._keep_due = True
        for job in self._abandoned:
            self.driver_gone(job, now)
        self.scheduler.workers.prestart(now)
        self.tables.say("info", f"recovered: {len(self.tables.processes)} processes, {tasks} tasks")

    def keep(self) -> None:
        """Say once, at the end of the turn in which recovery ended, which values are referred to: all that were heard of in it."""
        if self._keep_due:
            self._keep_due = False
            stored = [record.object_id for record in self._all_values() if type(record.value) is Stored]
            stored += [row[0] for row in self.tables.locates]  # Its writer may look at a value that it has no ref to any more.
            if self.tables.store_address is not None:
                # What was written after its writer had registered comes behind this: it may be in room that the writer said is unused.
                claims = (m.Sealed(tuple(self._claimed)),) if self._claimed else ()
                self.tables.before_batches += [Send(self.tables.store_address, each) for each in (*claims, m.RetainOnly(tuple(stored)))]
            self._claimed = []

    def _all_values(self) -> list[TaskRecord | ObjectRecord]:
        return [*self.tables.tasks.values(), *self.tables.objects.values()]

    def on_arena_found(self, now: float, source: Address, message: m.ArenaFound) -> None:
        """What lay in the arena and on disk when this incarnation began."""
        self.recovery.found_in_arena(message)

    def on_running_tasks(self, now: float, source: Address, message: m.RunningTasks) -> None:
        """Tasks of a worker that registers, which is news only to a scheduler that recovers (see ``recovery``)."""

    # -- time --

    def tick(self, now: float) -> None:
        """Workers that never registered; ends of jobs to be written; processes a recovering scheduler waits for in vain."""
        while self._tombstones and self._tombstones[0][0] <= now:
            _, about = self._tombstones.pop(0)
            self.scheduler.requests.ask(m.Write, *about[1], then=self._job_ended, about=about)
        for worker in list(self.tables.workers.values()):
            late = now >= worker.started_at + self.scheduler.config.worker_start_seconds
            if late and worker.state == STARTING and worker.pid and not self.recovering:
                self.tables.effects.append(KillProcess(worker.pid, "it did not register in time"))
                worker.started_at = now
        if self.recovering and self._deadline is not None and now >= self._deadline:
            self._deadline = now + self.scheduler.config.recovery_seconds
            for incarnation, pid in list(self._expected.items()):
                if incarnation in self.tables.workers:
                    self.tables.effects.append(KillProcess(pid, "it did not register again with its node's new daemon"))
                else:
                    del self._expected[incarnation]
            self._maybe_recovered(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        starting = [
            worker.started_at + self.scheduler.config.worker_start_seconds
            for worker in self.tables.workers.values()
            if worker.state == STARTING
        ]
        if self.recovering and self._deadline is not None:
            starting.append(self._deadline)
        if self._tombstones:
            starting.append(self._tombstones[0][0])
        return min(starting, default=None)
