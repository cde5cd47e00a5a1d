"""The first stages of a restarted scheduler's barrier: every living process registers again (decision 0005).

The supervisor's table names the workers (``ProcessTable``), the job rows of the control store name the drivers. Each is sent
``RegisterAgain`` and awaited until its ``Ready``, or until it is proved dead. A worker that has not registered after ``recovery_seconds``
is killed; a driver is no longer awaited, and its death is noticed by its watch.
"""

from __future__ import annotations

from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.common.tables import unpack_row
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.barrier import HOMES, JOBS, PROCESSES
from zfabric.machines.local_scheduler.due import REJOINING, STARTING_WORKERS
from zfabric.machines.local_scheduler.lifecycle.jobs import ELSEWHERE, Jobs
from zfabric.machines.local_scheduler.lifecycle.recovery import HELD_BACK, QUERIES_HELD_BACK, Recovery
from zfabric.machines.local_scheduler.lifecycle.retained_rows import RetainedRows
from zfabric.machines.local_scheduler.object_places import Stored
from zfabric.machines.local_scheduler.records import JobRecord, ProcessRecord
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.machines.local_scheduler.transitions import Recovered
from zfabric.protocol import messages as m
from zfabric.protocol.effects import KillProcess, WatchProcess
from zfabric.protocol.ids import CLIENT, CONTROL, LOCAL_SCHEDULER, Address, control_of, unpack_counter


class Rejoining:
    """Awaits the processes, then has the tables rebuilt."""

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
        self.barrier = tables.barrier
        self.requests = requests
        self.workers = workers
        self.logs = logs
        self.jobs = jobs
        self.recovery = recovery
        self.retained_rows = RetainedRows(tables, blocks, requests, logs, self._maybe_recovered)
        self._pids: dict[bytes, int] = {}
        """Pids of the processes asked to register again, by incarnation."""
        self.retained_due = False
        self._claimed: list[m.Row] = []
        """Rows of ``Sealed`` sent on registering."""
        self._driverless: list[JobRecord] = []
        self._abandoned: list[JobRecord] = []
        """Jobs whose drivers died; they end after the rebuild."""
        self._deadline: float | None = None

    def on_process_table(self, now: float, source: Address, message: m.ProcessTable) -> None:
        """Ask each worker to register again."""
        if not self.barrier.awaits(PROCESSES):
            return
        self.logs.record_ended(message.ended, True)
        self._deadline = now + self.tables.config.recovery_seconds
        self.tables.deadlines.note(REJOINING, self._deadline)
        for token, pid in message.workers:
            self.workers.adopt(token, pid, now)
            self._expect(token, pid)
            self.tables.send(CONTROL + control_of(token), m.RegisterAgain(""))
        self.requests.ask(m.Scan, "job", b"", b"", 10_000, then=self._jobs_found)

    def _jobs_found(self, now: float, about: None, answer: m.Found) -> None:
        for key, value in answer.rows:
            facts = unpack_row(value)
            if facts.get("status") == ELSEWHERE:
                elsewhere = self.jobs.enter(JobRecord(key, unpack_counter(key)[0], facts["namespace"], now))
                elsewhere.home = facts["home"]
            if facts.get("status") != "running":
                continue
            job = JobRecord(key, unpack_counter(key)[0], facts["namespace"], now)
            job.submitted = facts.get("submitted", 0)
            if not facts["driver"]:  # Taken over from a dead node; it goes on for its detached actors.
                self.jobs.enter(job)
                self._driverless.append(job)
                continue
            process = ProcessRecord(facts["driver"], "driver", facts["pid"], facts["started"], job, facts["name"], facts["control"])
            job.driver = process
            self.jobs.enter(job)
            self.tables.enter_process(process)
            self.tables.enter_pid(process.pid, process)
            self._expect(process.incarnation, process.pid)
            self.tables.emit(WatchProcess(process.pid, process.started))
            self.tables.send(CLIENT + process.incarnation, m.RegisterAgain(""))
        self.barrier.close(JOBS)
        self.retained_rows.ask()
        for source, message in self.barrier.take_held():
            self.recovery.step(now, source, message)
        self._maybe_recovered(now)

    def _expect(self, incarnation: bytes, pid: int) -> None:
        self._pids[incarnation] = pid
        self.barrier.expect(PROCESSES, (incarnation,))

    def holds_back(self, source: Address, message: m.Message) -> bool:
        """Retain a message that must wait. Return whether it must."""
        kind, is_early = type(message), self.barrier.awaits(PROCESSES)
        if source[:1] == LOCAL_SCHEDULER:
            if is_early:  # Later messages of registered nodes wait as ``PeerRecovery`` decides.
                self.barrier.hold(source, message)
            return is_early
        if kind is m.Ready and is_early:
            self.recovery.registered(source[1:])
        if self.barrier.holds_back(source, message):
            return True
        if is_early and (kind in HELD_BACK or (kind is m.Query and message.what in QUERIES_HELD_BACK)):  # type: ignore[attr-defined]
            self.recovery.hold_back(source, message)
            return True
        return False

    def ready(self, incarnation: bytes, now: float) -> None:
        """Record that a process has reported everything."""
        if self.barrier.awaits(PROCESSES):  # Later processes would be remembered for ever.
            self.barrier.report(PROCESSES, incarnation)
        self._maybe_recovered(now)

    def dead(self, pid: int, now: float) -> None:
        """Record a proved death."""
        for incarnation, asked in self._pids.items():
            if asked == pid:
                self.barrier.remove(incarnation)
        self._maybe_recovered(now)

    def abandon(self, job: JobRecord) -> None:
        """Note that a driver died before the barrier closed."""
        self._abandoned.append(job)

    def _maybe_recovered(self, now: float) -> None:
        if not self.barrier.may_close(PROCESSES):
            return
        self.barrier.close(PROCESSES if self.tables.nodes else HOMES)
        self._pids.clear()
        self.tables.deadlines.note(STARTING_WORKERS)
        self.recovery.rebuild(self.retained_rows, now)
        tasks = len(self.tables.tasks)
        self._claimed = self.tables.store.take_sealed()
        self.recovery.go_on(now)
        self.retained_due = True
        for job in self._abandoned:
            self.jobs.driver_gone(job, now)
        self.jobs.without_driver.update(dict.fromkeys(self._driverless))
        self.workers.prestart(now)
        self.tables.report(Recovered(now))
        self.tables.write_log("info", f"recovered: {len(self.tables.processes)} processes, {tasks} tasks")

    def send_retained(self) -> None:
        """Send the store the needed values, at the end of the rebuild's turn."""
        if self.retained_due:
            self.retained_due = False
            stored = [record.object_id for record in self.tables.values() if type(record.value) is Stored]
            stored += self.recovery.found_for_others()
            stored += self.tables.store.being_located  # The writer may use a value without a ref to it.
            # Claims of values written after registration go first: they may lie in room that was reported as unused.
            claims = (m.Sealed(tuple(self._claimed)),) if self._claimed else ()
            self.tables.store.send_ahead(*claims, m.RetainOnly(tuple(stored)))
            self._claimed = []

    def on_arena_found(self, now: float, source: Address, message: m.ArenaFound) -> None:
        """Record what the arena and the disk had at the beginning."""
        self.recovery.found_in_arena(message)

    def on_running_tasks(self, now: float, source: Address, message: m.RunningTasks) -> None:
        """Do nothing: only recovery needs this."""

    def tick(self, now: float) -> None:
        """Kill workers that do not register, and no longer wait for drivers: their death is noticed."""
        if self.barrier.awaits(PROCESSES) and self._deadline is not None and now >= self._deadline:
            self._deadline = now + self.tables.config.recovery_seconds
            for incarnation, pid in self._pids.items():
                if self.barrier.has_reported(PROCESSES, incarnation):
                    continue
                if incarnation in self.tables.workers:
                    self.tables.emit(KillProcess(pid, "it did not register again with its node's new daemon"))
                else:
                    self.barrier.report(PROCESSES, incarnation)
            self._maybe_recovered(now)

    def next_deadline(self) -> float | None:
        """When the wait for processes ends."""
        return self._deadline if self.barrier.awaits(PROCESSES) else None
