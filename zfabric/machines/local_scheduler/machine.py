"""The local scheduler: keeps the tasks submitted on its node, decides when and where they run, and fixes their outcomes.

This file is the list of what it accepts, how tasks come and what the stores answer; the parts it is made of are beside it in
``parts``: ``state`` (what it knows), ``references`` (what stays, what goes), ``outcomes`` (accept, retry, fail), ``values`` (put, held,
fetched, lost), ``dispatch`` (who runs what), ``membership`` (processes, jobs, recovery), ``report`` (what people ask).

A task is WAITING for dependencies, READY in the queue of its shape, ASSIGNED to a worker, and DONE. Placement happens once per
loop turn, in ``take_effects``. After a restart nothing is dispatched and nothing freed until every process that the supervisor
still has, and every living driver, has registered again: until then all they say is kept, and is then taken in by kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zfabric.config import ROWS_MAX, Config
from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.common.row_format import pack_row
from zfabric.machines.local_scheduler.actors.deadlocks import Deadlocks
from zfabric.machines.local_scheduler.actors.detached import DetachedActors
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.actors.job_shutdown import JobShutdown
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.actors.remakes import Remakes
from zfabric.machines.local_scheduler.lifecycle.membership import Membership
from zfabric.machines.local_scheduler.objects.call_results import CallResults
from zfabric.machines.local_scheduler.objects.references import References, add_holder, row_names
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.objects.values import Values
from zfabric.machines.local_scheduler.records import (
    DONE,
    ENDING,
    HOSTING,
    IDLE,
    LEASED,
    PENDING,
    WAITING,
    FunctionRecord,
    ProcessRecord,
    TaskRecord,
    WorkerRecord,
    make_outputs,
)
from zfabric.machines.local_scheduler.reports import invariants
from zfabric.machines.local_scheduler.reports.events import Events
from zfabric.machines.local_scheduler.reports.report import Reports
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.direct_submission import DirectSubmissions
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.placement_requests import PlacementRequests
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.tasks.starvation import Starvation
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, KillProcess
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import CLIENT, Address, first_attempt, short
from zfabric.protocol.machine import Diagnosis, Handler, Handlers, Refusal
from zfabric.protocol.messages import FAILED, OK
from zfabric.protocol.options import Demand, option

HEARTBEAT_EVERY = 1.0
"""How often a global scheduler hears of this node while something changes."""


class LocalScheduler:
    """One per node. ``first_token`` starts the names of its workers, which no other incarnation may use again.

    ``daemons`` is how many daemons the node had before: if any, it recovers.
    """

    def __init__(
        self,
        address: Address,
        node: bytes,
        config: Config,
        total: Demand,
        store: Address | None,
        control: Address,
        placer: Address,
        first_token: int,
        daemons: int,
    ) -> None:
        self.address = address
        self.node = node
        self.config = config
        self.pool = ResourcePool(total)
        self.blocks = BlockWriter()
        self.tables = Tables(address, store, control, placer, config, first_attempt(daemons))
        self.references = References(self.tables, self.blocks)
        self.outcomes = Outcomes(self.tables, self.references, node)
        self.rebuilding = Rebuilding(self.tables, self.references, self.outcomes)
        self.workers = WorkerPool(self.tables, self.pool, first_token)
        self.dispatcher = Dispatcher(self.tables, self.outcomes, self.rebuilding, self.pool, self.workers)
        self.stopping = Stopping(self.tables, self.outcomes)
        self.infeasible = PlacementRequests(self.tables, self.outcomes, self.pool)
        self.starvation = Starvation(self.tables, self.pool, self.dispatcher)
        self.requests = PendingRequests(self.tables)
        self.values = Values(self)
        self.actors = ActorDirectory(self)
        self.call_results = CallResults(self)
        self.logs = ActorLogs(self)
        self.detached = DetachedActors(self)
        self.remakes = Remakes(self)
        self.rebuilding.remake = self.remakes.start
        self.outcomes.actor_made = self.actors.ended
        self.outcomes.actor_unwanted = self.actors.unwanted
        self.references.actor_unreferenced = self.actors.unreferenced
        self.streams = Streams(self)
        self.introductions = DirectSubmissions(self)
        self.dispatcher.introductions = self.outcomes.introductions = self.introductions
        self.deadlocks = Deadlocks(self)
        self.partings = JobShutdown(self)
        self.events = Events(node, self.outcomes, self.actors)
        self.membership = Membership(self, daemons > 0)
        self.reports = Reports(
            node,
            self.tables,
            self.pool,
            self.requests,
            self.actors,
            self.logs,
            self.deadlocks,
            self.statistics,
            lambda: self.membership.recovering,
        )
        self._flush_at: float | None = None
        self._overdue_at: float | None = None
        self._trim_at: float | None = None
        self._heartbeat_at = 0.0
        self._heartbeat: m.Heartbeat | None = None
        self._more_to_collect = False
        self._introduced = False
        self.handlers = Handlers(self.tables.counts, self._accepted())

    # -- the contract --

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Take in one message."""
        if not self.membership.holds_back(source, message):
            self.handlers[type(message)](now, source, message)

    def tick(self, now: float) -> None:
        """Deadlines of tasks, repeated interrupts, overdue prefetches, idle workers, registrations that did not come."""
        self.stopping.tick(now)
        if self._overdue_at is not None and now >= self._overdue_at:
            self._overdue_at = self.dispatcher.overdue(now)
        if self._trim_at is not None and now >= self._trim_at:
            self._trim_at = self.workers.trim(now)
        self.infeasible.tick(now)
        self.starvation.tick(now)
        self.actors.tick(now)
        self.deadlocks.tick(now)
        self.logs.tick(now)
        self.membership.tick(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` or ``take_effects`` is wanted next."""
        if self._more_to_collect or self.dispatcher.searching:
            return 0.0
        candidates = [
            self._flush_at,
            self._overdue_at,
            self._trim_at,
            self.membership.next_deadline(),
            self.stopping.next_deadline(),
            self.infeasible.next_deadline(),
            self.starvation.next_deadline(),
            self.actors.next_deadline(),
            self.deadlocks.next_deadline(),
            self.logs.next_deadline(),
            self.introductions.next_deadline(),
            self.partings.next_deadline(),
        ]
        return min((each for each in candidates if each is not None), default=None)

    def take_effects(self, now: float) -> list[Effect]:
        """Dispatch, push results, let go of what is spare, write rows that are due."""
        tables = self.tables
        self.stopping.end_of_turn(now)
        if not self.membership.recovering:
            self._more_to_collect = self.references.collect()
            if tables.inline.total > self.config.inline_memory:
                self._more_to_collect |= self.references.absorb()
            self.dispatcher.turn(now)
            self.introductions.end_of_turn(now)
            self._overdue_at = self._look_again(self._overdue_at, now)
            self.infeasible.ask(now)
            self.starvation.end_of_turn(now)
            if self._trim_at is None:
                self._trim_at = self.workers.trim(now)
        for process in tables.touched:
            rows, process.results = process.results, []
            for start in range(0, len(rows), ROWS_MAX):
                tables.tell(process, m.Results(tuple(rows[start : start + ROWS_MAX])))
        tables.touched.clear()
        self.partings.end_of_turn(now)
        self.detached.end_of_turn(now)
        self.values.read_durable()
        self.logs.acknowledge()
        self._introduce()
        self._flush_rows(now)
        self._beat(now)
        self.membership.keep()
        return tables.take_effects()

    def _look_again(self, at: float | None, now: float) -> float | None:
        if at is not None:
            return at
        for worker in self.tables.workers.values():
            if worker.state == LEASED and worker.behind:
                return now + self.config.take_back_after
        return None

    def _flush_rows(self, now: float) -> None:
        """Write rows and events that have waited long enough, as one batch."""
        if self._flush_at is None:
            if self.blocks.pending or self.logs.spare or self.events:
                self._flush_at = now + self.config.lineage_delay
        elif now >= self._flush_at:
            puts, deletes = self.blocks.flush()
            if not self.blocks.pending:  # Without its log, an actor would be made again as if it had never been called.
                deletes += self.logs.spare
                self.logs.spare = []
            self._flush_at = now + self.config.lineage_delay if self.blocks.pending else None
            self._write((*puts, *self.events.take()), tuple(deletes))

    def _write(self, puts: m.Rows, deletes: m.Rows) -> None:
        if puts or deletes:
            self.tables.send(self.tables.control_address, m.Write(0, puts, deletes))

    def _introduce(self) -> None:
        """The node's own row, once."""
        if not self._introduced:
            self._introduced = True
            row = pack_row({"resources": dict(self.pool.total), "daemon": self.address[1:], "protocol": m.PROTOCOL_VERSION})
            self.tables.send(self.tables.control_address, m.Write(0, (("node", self.node, row),), ()))

    def _beat(self, now: float) -> None:
        if now < self._heartbeat_at:
            return
        queued = sum(len(queue.tasks) for queue in self.tables.queues.values())
        beat = m.Heartbeat(self.node, tuple(sorted(self.pool.total.items())), self.pool.available(), queued, 0.0)
        self._heartbeat_at = now + HEARTBEAT_EVERY
        if beat != self._heartbeat:
            self._heartbeat = beat
            self.tables.send(self.tables.placer_address, beat)

    # -- functions and tasks --

    def on_export(self, now: float, source: Address, message: m.Export) -> None:
        """Functions a job may run; the control store keeps them."""
        job = self.tables.job_of(source)
        if job is None or job.ended:
            return
        puts = []
        for identifier, name, payload, options in message.functions:
            if identifier in job.functions:
                continue
            function = FunctionRecord(identifier, name, payload, options)
            function.queue = self.tables.queue_for(job, function.shape)
            job.functions[identifier] = function
            puts.append(("function", job.id + identifier, pack_row((name, options, payload))))
        if puts:
            self.tables.send(self.tables.control_address, m.Write(0, tuple(puts), ()))

    def on_submit(self, now: float, source: Address, message: m.Submit) -> None:
        """Task rows, in order."""
        process = self.tables.processes.get(source[1:])
        job = process.job if process is not None else None
        if process is None or job is None or job.ended:
            self._refuse(source, "JobEndedError", "the job has ended; call zf.init() for a new one")
            return
        tasks, functions, add_row = self.tables.tasks, job.functions, self.blocks.add
        self.blocks.now = now
        submitter, keep_rows, first = process.incarnation, self.config.lineage, self.tables.first_attempt
        orphans = self.values.take_orphans(message.rows) if self.tables.orphans else ()
        for row in message.rows:
            task_id = row[0]
            known = tasks.get(task_id)
            if known is not None:
                self._repeated(process, known, row)
                continue
            function = functions.get(row[1])
            if function is None:
                self.refuse_unknown(process, row)
                continue
            task = TaskRecord(row, function, submitter, first)
            tasks[task_id] = task
            if not process.ready:
                task.holders = None  # While a process registers, only Hold says what it holds.
            if keep_rows:
                task.block = add_row(row)
            if function.plain and not row[3] and len(row) == 4:
                function.queue.tasks.append(task)
            else:
                self.admit(task, now)
        for orphan, lost in orphans:
            self.values.reunite(orphan, lost, process)
        if self.tables.condemned:
            self.stopping.stop_late(message.rows, now)
        job.submitted += len(message.rows)
        self.tables.became_ready += 1
        self.tables.counts["tasks_submitted"] += len(message.rows)
        if process.kind == "driver":
            self.introductions.submitted(process, message.rows)

    def accept(self, process: ProcessRecord, rows: m.Rows) -> list[TaskRecord]:
        """Records of tasks that a worker has already. Raises Refusal for those that may not come so: all but plain ones."""
        job = process.job
        if job is None or job.ended:
            self._refuse(CLIENT + process.incarnation, "JobEndedError", "the job has ended; call zf.init() for a new one")
            return []
        accepted = []
        for row in rows:
            known, function = self.tables.tasks.get(row[0]), job.functions.get(row[1])
            if known is not None:
                self._repeated(process, known, row)
            elif function is None or not function.plain or row[3] or len(row) > 4:
                raise Refusal("only plain tasks are handed over")
            else:
                task = self.tables.tasks[row[0]] = TaskRecord(row, function, process.incarnation, self.tables.first_attempt)
                if self.config.lineage:
                    task.block = self.blocks.add(row)
                accepted.append(task)
        job.submitted += len(rows)
        self.tables.counts["tasks_submitted"] += len(rows)
        self.tables.counts["tasks_handed"] += len(rows)
        return accepted

    def admit(self, task: TaskRecord, now: float) -> None:
        """A task that is not plain: several values, options of its own, a deadline, dependencies."""
        if task.function.stream is not None:
            self.streams.begin(task)
        count = task.option("num_returns", 1)
        if count != 1:
            make_outputs(task, count)
            for record in task.outputs or ():
                record.holders = task.holders
                self.tables.objects[record.object_id] = record
            if count == 0:
                task.holders = None
        self.set_terms(task, now)
        if task.function.actor is not None and not self.actors.submitted(task, task.function.queue.job):
            return
        self.resolve(task)

    def set_terms(self, task: TaskRecord, now: float) -> None:
        """What a call asks for on its own: resources, an environment, a deadline."""
        options = task.options
        if option(options, "demand") is not None or option(options, "env") is not None:
            function = task.function
            demand = option(options, "demand", function.demand)
            environment = option(options, "env", function.environment)
            shape = (demand, environment, *function.shape[2:])
            task.facts().demand_queue = self.tables.queue_for(function.queue.job, shape)
        timeout = task.option("timeout")
        if timeout is not None:
            task.facts().deadline = now + timeout
            self.stopping.expect(task, now + timeout)

    def resolve(self, task: TaskRecord) -> None:
        """Pin what the row names, and find out which dependencies have no value yet."""
        if row_names(task.row):
            self.references.keep_row(task)
            self.references.pin(task.contains())
        unresolved = 0
        broken: tuple[int, bytes] | None = None
        for object_id in task.row[3]:
            record = self.tables.find(object_id)
            if record is None:
                broken = broken or (FAILED, pack_failure("ObjectFreedError", f"its argument {short(object_id)} is not known (any more)"))
                continue
            record.pins += 1
            if record.status == OK and record.value is None:
                self.rebuilding.make_available(record, "evicted")
            if record.status == PENDING:
                unresolved += 1
                if record.dependents is None:
                    record.dependents = []
                record.dependents.append(task)
            elif record.status != OK and broken is None:
                broken = (record.status, record.value if type(record.value) is bytes else b"")
        if broken is not None:
            self.outcomes.end_with(task, *broken)
        elif unresolved:
            task.state = WAITING
            task.facts().unresolved = unresolved
        else:
            self.outcomes.make_ready(task)

    def _repeated(self, process: ProcessRecord, task: TaskRecord, row: m.Row) -> None:
        """The same row again is a repeat (a retried parent names its children as before); another is refused."""
        if task.row != row:
            self.refuse_row(process, row)
            return
        for record in task.values() if process.ready else ():
            add_holder(record, process.incarnation)
        if task.submitter != process.incarnation:
            if task.state != DONE and task.submitter in self.tables.processes:
                task.facts().submitters += (task.submitter,)
            task.submitter = process.incarnation
        if task.state == DONE and any(record.value is None for record in task.values()):  # Errors are let go of, too.
            for record in task.values():
                self.rebuilding.make_available(record, "gone when its task was submitted again")
        if task.state == DONE:
            self.outcomes.report_to(process, task)

    def refuse_unknown(self, process: ProcessRecord, row: m.Row) -> None:
        """The function of a row is not known."""
        process.results.append((row[0], FAILED, (pack_failure("FabricError", "the function was never exported"),)))
        self.tables.touched[process] = None

    def refuse_row(self, process: ProcessRecord, row: m.Row) -> None:
        """Another row of that name is known."""
        self.tables.counts["refused"] += 1
        text = f"task {short(row[0])} was submitted before with different content: its parent is not deterministic"
        process.results.append((row[0], FAILED, (pack_failure("FabricError", text),)))
        self.tables.touched[process] = None

    def on_completed(self, now: float, source: Address, message: m.Completed) -> None:
        """Attempts that ended."""
        worker = self.tables.worker_of(source)
        if worker is None:
            self.tables.counts["refused"] += 1
            return
        self.outcomes.completed(worker, message, now)
        if message.times:
            self.events.attempts_ended(now, worker, message)

    def on_call_times(self, now: float, source: Address, message: m.CallTimes) -> None:
        """Calls of actors that ended."""
        worker = self.tables.worker_of(source)
        if worker is not None:
            self.events.calls_ended(now, worker, message)

    def on_blocked(self, now: float, source: Address, message: m.Blocked) -> None:
        """A worker's task waits."""
        worker = self.tables.worker_of(source)
        if worker is not None:
            frame = self.dispatcher.blocked(worker, message)
            frame.at = now
            self.deadlocks.begins(now, worker, frame)

    def on_unblocked(self, now: float, source: Address, message: m.Unblocked) -> None:
        """It waits no longer."""
        worker = self.tables.worker_of(source)
        if worker is not None:
            self.dispatcher.unblocked(worker, message)

    def on_taken_back(self, now: float, source: Address, message: m.TakenBack) -> None:
        """Tasks a worker had not begun."""
        worker = self.tables.worker_of(source)
        if worker is not None:
            self.dispatcher.taken_back(worker, message, now)

    # -- people --

    def on_query(self, now: float, source: Address, message: m.Query) -> None:
        """A question of a client or a tool; what has happened before it is part of the answer."""
        if self.introductions.wait(source, message):
            return
        self._write(self.events.take(), ())
        self.introductions.end_idle(now)
        self.reports.answer(now, source, message)

    def on_log_lines(self, now: float, source: Address, message: m.LogLines) -> None:
        """Output of workers goes to the driver of the job they work for."""
        by_driver: dict[bytes, list[m.Row]] = {}
        for row in message.rows:
            worker = self.tables.by_pid.get(row[0])
            driver = worker.job.driver if isinstance(worker, WorkerRecord) and worker.job is not None else None
            if driver is not None:
                by_driver.setdefault(driver.incarnation, []).append(row)
        for incarnation, rows in by_driver.items():
            self.tables.tell(self.tables.processes[incarnation], m.LogLines(tuple(rows)))

    def on_inspected(self, now: float, source: Address, message: m.Inspected) -> None:
        """A process has said what its threads run: whoever has asked for it is told."""
        if message.asker[1:] in self.tables.processes:
            self.tables.send(message.asker, m.Answer(message.token, message.threads, ""))

    def on_output_written(self, now: float, source: Address, message: m.OutputWritten) -> None:
        """What a worker runs wrote something: the shell has looked for it already (``LogLines``)."""

    def on_memory_pressure(self, now: float, source: Address, message: m.MemoryPressure) -> None:
        """Memory is short: the worker with the most of it goes."""
        if any(worker.kill_reason == "memory" for worker in self.tables.workers.values()):
            return
        for pid, resident in sorted(message.usage, key=lambda row: -row[1]):
            worker = self.tables.by_pid.get(pid)
            if isinstance(worker, WorkerRecord) and worker.state in (LEASED, HOSTING, IDLE):
                worker.kill_reason = "memory"
                if worker.state == IDLE:
                    worker.state = ENDING
                reason = f"it had the most memory, {resident / 2**20:.0f} MiB, when the node ran short"
                self.tables.effects.append(KillProcess(pid, reason))
                self.tables.counts["memory_kills"] += 1
                return

    # -- small things --

    def _refuse(self, source: Address, kind: str, text: str) -> None:
        self.tables.counts["refused"] += 1
        self.tables.send(source, m.Refused(kind, text))

    @property
    def busy(self) -> bool:
        """Whether some worker has something to run, or may have: whom its actors serve is not known here."""
        return any(worker.state in (LEASED, HOSTING) for worker in self.tables.workers.values())

    def statistics(self) -> Mapping[str, float]:
        """Counters and sizes."""
        queued = sum(len(queue.tasks) for queue in self.tables.queues.values())
        return {
            **self.tables.counts,
            **self.blocks.statistics(),
            "tasks": len(self.tables.tasks),
            "objects": len(self.tables.objects),
            "queued": queued,
            "workers": len(self.tables.workers),
            "processes": len(self.tables.processes),
            "lineage_bytes": self.references.lineage_bytes,
            "lineage_evicted": self.references.evicted,
        }

    def explain(self, subject: bytes) -> Diagnosis | None:
        """Why a task, object, worker or job is as it is."""
        return self.reports.diagnoses.explain(subject)

    def check_invariants(self) -> None:
        """Agreement of the tables with each other."""
        invariants.check(self.tables, self.pool, self.references.lineage_bytes)

    def _accepted(self) -> dict[type[Any], Handler]:
        """The handler of each message that a local scheduler accepts."""
        return {
            m.Register: self.membership.on_register,
            m.Ready: self.membership.on_ready,
            m.Goodbye: self.membership.on_goodbye,
            m.RunningTasks: self.membership.on_running_tasks,
            m.WorkerSpawned: self.membership.on_worker_spawned,
            m.ProcessDied: self.membership.on_process_died,
            m.ProcessTable: self.membership.on_process_table,
            m.ArenaFound: self.membership.on_arena_found,
            m.Export: self.on_export,
            m.Submit: self.on_submit,
            m.SubmittedDirect: self.introductions.on_submitted_direct,
            m.DirectCounts: self.introductions.on_direct_counts,
            m.Completed: self.on_completed,
            m.CallTimes: self.on_call_times,
            m.Yielded: self.streams.on_yielded,
            m.Blocked: self.on_blocked,
            m.Unblocked: self.on_unblocked,
            m.WaitDetails: self.deadlocks.on_wait_details,
            m.TakenBack: self.on_taken_back,
            m.Cancel: self.stopping.on_cancel,
            m.FindActors: self.actors.on_find_actors,
            m.ExpectResults: self.call_results.on_expect_results,
            m.CallOutcomes: self.call_results.on_call_outcomes,
            m.KillActor: self.actors.on_kill_actor,
            m.ActorExiting: self.actors.on_actor_exiting,
            m.ActorEnded: self.actors.on_actor_ended,
            m.HostDelays: self.actors.on_host_delays,
            m.HostedActors: self.actors.on_hosted_actors,
            m.LogAppended: self.logs.on_log_appended,
            m.Checkpoint: self.logs.on_checkpoint,
            m.ReplayProgress: self.logs.on_replay_progress,
            m.CallCounts: self.logs.on_call_counts,
            m.Put: self.values.on_put,
            m.OfferResults: self.values.on_offer_results,
            m.Hold: self.values.on_hold,
            m.Release: self.values.on_release,
            m.Fetch: self.values.on_fetch,
            m.Located: self.values.on_located,
            m.ObjectsLost: self.values.on_objects_lost,
            m.Written: self.requests.on_answer,
            m.JobNumber: self.requests.on_answer,
            m.Found: self.requests.on_answer,
            m.Placed: self.infeasible.on_placed,
            m.Query: self.on_query,
            m.Answer: self.requests.on_answer,
            m.LogLines: self.on_log_lines,
            m.OutputWritten: self.on_output_written,
            m.Inspected: self.on_inspected,
            m.MemoryPressure: self.on_memory_pressure,
        }
