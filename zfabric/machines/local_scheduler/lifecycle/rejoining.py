"""A restarted scheduler asks every process that it can know of to register again, and waits for all of them.

Workers are known from the supervisor's table, drivers from the control store's jobs. Until the last of them is ready, or proved dead, what
they report is held back; then ``recovery`` puts it together.
"""

from __future__ import annotations

from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.common.row_format import unpack_row
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.lifecycle.jobs import Jobs
from zfabric.machines.local_scheduler.lifecycle.kept_rows import KeptRows
from zfabric.machines.local_scheduler.lifecycle.recovery import HELD, HELD_QUESTIONS, Recovery
from zfabric.machines.local_scheduler.records import JobRecord, ProcessRecord, Stored, WorkerRecord
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.protocol import messages as m
from zfabric.protocol.effects import KillProcess, Send, WatchProcess
from zfabric.protocol.ids import CLIENT, CONTROL, Address, control_of, unpack_counter
from zfabric.protocol.options import NO_ENVIRONMENT


class Rejoining:
    """Knows whom a restarted scheduler waits for. ``Tables.recovering`` says whether it still does."""

    def __init__(
        self,
        tables: Tables,
        blocks: BlockWriter,
        requests: PendingRequests,
        workers: WorkerPool,
        logs: ActorLogs,
        jobs: Jobs,
        recovery: Recovery,
    ) -> None:
        self.tables = tables
        self.requests = requests
        self.workers = workers
        self.logs = logs
        self.jobs = jobs
        self.recovery = recovery
        self.kept_rows = KeptRows(tables, blocks, requests, logs, self._maybe_recovered)
        self._table_known = self._jobs_known = not tables.recovering
        self._expected: dict[bytes, int] = {}
        """Processes (by incarnation) that are to register again, and their pids."""
        self._keep_due = False
        self._claimed: list[m.Row] = []
        """Rows of ``Sealed`` that processes sent while they registered."""
        self._abandoned: list[JobRecord] = []
        """Jobs whose drivers died during recovery: they end when all that is left of them is known."""
        self._early: list[tuple[Address, m.Message]] = []
        """Registrations that came before it was known whose they may be."""
        self._deadline: float | None = None

    def on_process_table(self, now: float, source: Address, message: m.ProcessTable) -> None:
        """The supervisor's workers, after a restart of the daemon: each is asked to register again."""
        if not self.tables.recovering:
            return
        self._table_known = True
        self.logs.left(message.ended, True)
        self._deadline = now + self.tables.config.recovery_seconds
        for token, pid in message.workers:
            worker = WorkerRecord(token, None, NO_ENVIRONMENT, now)
            worker.pid = pid
            self.tables.workers[token] = worker
            self.tables.by_pid[pid] = worker
            self._expected[token] = pid
            self.tables.send(CONTROL + control_of(token), m.RegisterAgain(""))
        self.requests.ask(m.Scan, "job", b"", b"", 10_000, then=self._jobs_found)

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
            self.recovery.step(now, source, message)
        self._maybe_recovered(now)

    def holds_back(self, source: Address, message: m.Message) -> bool:
        """Whether a message waits for the end of recovery."""
        if self.tables.recovering and type(message) is m.Ready:
            self.recovery.registered(source[1:])
        if not self._jobs_known and type(message) in (m.Register, m.Ready):
            self._early.append((source, message))
            return True
        if self.tables.recovering and (type(message) in HELD or (type(message) is m.Query and message.what in HELD_QUESTIONS)):
            self.recovery.hold_back(source, message)
            return True
        return False

    def ready(self, incarnation: bytes, now: float) -> None:
        """A process has registered, and reported all it holds."""
        self._expected.pop(incarnation, None)
        self._maybe_recovered(now)

    def dead(self, pid: int, now: float) -> None:
        """A process is proved dead."""
        for incarnation, expected in list(self._expected.items()):
            if expected == pid:
                del self._expected[incarnation]
        self._maybe_recovered(now)

    def abandon(self, job: JobRecord) -> None:
        """The driver of a job died before recovery ended."""
        self._abandoned.append(job)

    def _maybe_recovered(self, now: float) -> None:
        known = self._table_known and self._jobs_known and self.kept_rows.complete
        if not self.tables.recovering or self._expected or not known:
            return
        self.tables.recovering = False
        self.recovery.rebuild(self.kept_rows, now)
        tasks = len(self.tables.tasks)
        self._claimed, self.tables.sealed = self.tables.sealed, []
        self.recovery.go_on(now)
        self._keep_due = True
        for job in self._abandoned:
            self.jobs.driver_gone(job, now)
        self.workers.prestart(now)
        self.tables.say("info", f"recovered: {len(self.tables.processes)} processes, {tasks} tasks")

    def keep(self) -> None:
        """Send the store, at the end of the turn in which recovery ended, the values that are referred to."""
        if self._keep_due:
            self._keep_due = False
            stored = [record.object_id for record in self.tables.values() if type(record.value) is Stored]
            stored += [row[0] for row in self.tables.locates]  # Its writer may look at a value that it has no ref to any more.
            if self.tables.store_address is not None:
                # What was written after its writer had registered comes behind this: it may be in room that the writer said is unused.
                claims = (m.Sealed(tuple(self._claimed)),) if self._claimed else ()
                self.tables.before_batches += [Send(self.tables.store_address, each) for each in (*claims, m.RetainOnly(tuple(stored)))]
            self._claimed = []

    def on_arena_found(self, now: float, source: Address, message: m.ArenaFound) -> None:
        """What lay in the arena and on disk when this incarnation began."""
        self.recovery.found_in_arena(message)

    def on_running_tasks(self, now: float, source: Address, message: m.RunningTasks) -> None:
        """Tasks of a worker that registers, which is news only to a scheduler that recovers (see ``recovery``)."""

    def tick(self, now: float) -> None:
        """Processes that this scheduler waits for in vain: workers are killed, of drivers it is known when they are dead."""
        if self.tables.recovering and self._deadline is not None and now >= self._deadline:
            self._deadline = now + self.tables.config.recovery_seconds
            for incarnation, pid in list(self._expected.items()):
                if incarnation in self.tables.workers:
                    self.tables.effects.append(KillProcess(pid, "it did not register again with its node's new daemon"))
                else:
                    del self._expected[incarnation]
            self._maybe_recovered(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        return self._deadline if self.tables.recovering else None
