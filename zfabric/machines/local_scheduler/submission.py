"""How tasks arrive: functions once per job, then rows in order."""

from __future__ import annotations

from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.common.tables import pack_row
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.actors.names import ActorNames
from zfabric.machines.local_scheduler.channel import TurnOutbox
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.objects.values import Values
from zfabric.machines.local_scheduler.records import FunctionRecord, JobRecord, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.admission import Admission
from zfabric.machines.local_scheduler.tasks.direct_submission import DirectSubmissions
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages.rows import FUNCTION_ID


class Submission:
    """Accepts functions and rows."""

    def __init__(
        self,
        tables: Tables,
        blocks: BlockWriter,
        outcomes: Outcomes,
        admission: Admission,
        stopping: Stopping,
        direct: DirectSubmissions,
        values: Values,
        streams: Streams,
        actors: ActorDirectory,
        names: ActorNames,
    ) -> None:
        self.tables = tables
        self.blocks = blocks
        self.outcomes = outcomes
        self.admission = admission
        self.stopping = stopping
        self.direct = direct
        self.values = values
        self.streams = streams
        self.actors = actors
        self.names = names
        self.of_other_homes: TurnOutbox[m.Rows] = TurnOutbox()
        """Rows of other homes' jobs, for ``nodes.children``."""
        self.submitted = 0
        """Counts rows."""

    def on_export(self, now: float, source: Address, message: m.Export) -> None:
        """Store a job's functions, here and in the control store."""
        job = self.tables.job_of(source)
        if job is not None and not job.ended:
            self.export(job, message.functions)

    def export(self, job: JobRecord, functions: m.Rows) -> None:
        """The same for rows as in ``Export``."""
        puts = []
        for identifier, name, payload, options in functions:
            if identifier in job.functions:
                continue
            function = FunctionRecord(identifier, name, payload, options)
            function.queue = self.tables.queues.of(job, function.shape)
            job.functions[identifier] = function
            puts.append(("function", job.id + identifier, pack_row((name, options, payload))))
        if puts:
            self.tables.send(self.tables.cluster.control_address, m.Write(0, tuple(puts), ()))

    def on_submit(self, now: float, source: Address, message: m.Submit) -> None:
        """Accept rows, in order. Plain ones go straight to their function's queue."""
        process = self.tables.processes.get(source[1:])
        job = process.job if process is not None else None
        if process is None or job is None or job.ended:
            self.admission.refuse_all(source[1:])
            return
        tasks, functions, add_row = self.tables.tasks, job.functions, self.blocks.add
        self.blocks.now = now
        submitter, retains_rows, first = process.incarnation, self.tables.config.lineage, self.tables.first_attempt
        orphans = self.values.take_orphans(message.rows) if self.tables.orphans else ()
        for row in message.rows:
            task_id = row[0]
            known = tasks.get(task_id)
            if known is not None:
                self.admission.repeat(process, known, row)
                continue
            function = functions.get(row[1])
            if function is None:
                self.admission.refuse_unknown(process, row)
                continue
            task = tasks[task_id] = TaskRecord(row, function, submitter, first)
            function.received += 1
            if not process.ready:
                task.drop_holder(submitter)  # While a process registers, only ``Hold`` makes it a holder.
            if retains_rows:
                task.block = add_row(row)
            if function.plain and not row[3] and len(row) == 4:
                function.queue.tasks.append(task)
            else:
                self._admit(task, now)
        for orphan, lost in orphans:
            self.values.reunite(orphan, lost, process)
        if self.stopping.condemned:
            self.stopping.stop_late(message.rows, now)
        job.submitted += len(message.rows)
        if now < self.tables.latencies.until and message.rows:
            self.tables.latencies.submitted(message.rows[0][0])
        self.outcomes.note_ready()
        self.submitted += len(message.rows)
        if process.kind == "driver":
            self.direct.submitted(process, message.rows)
        elif job.home:
            self.of_other_homes.append(message.rows)

    def enter(self, row: m.Row, job: JobRecord, now: float) -> None:
        """Accept a detached actor's row that no process here has submitted.

        It is written before the actor is made: no process would repeat it to the next daemon.
        """
        self.blocks.now = now
        function = job.functions[row[FUNCTION_ID]]
        task = TaskRecord(row, function, b"", self.tables.first_attempt)
        self.tables.enter_task(task)
        function.received += 1
        task.drop_holder(b"")
        if self.tables.config.lineage:
            task.block = self.blocks.add(row)
        self._admit(task, now, durable_first=True)
        job.submitted += 1
        self.outcomes.note_ready()
        self.submitted += 1

    def _admit(self, task: TaskRecord, now: float, durable_first: bool = False) -> None:
        """Admit a task that is not plain. A ``durable_first`` one is made only once its row is written."""
        row = task.row
        if task.function.plain and not row[3] and len(row[4]) == 1 and row[4][0][0] == "strategy" and row[4][0][1]:
            self.admission.admit_with_strategy(task, row[4][0][1])
            return
        if task.function.stream is not None:
            self.streams.begin(task)
        count = task.option("num_returns", 1)
        if count != 1:
            task.make_outputs(count)
            self.tables.enter_outputs(task)
        self.admission.set_terms(task, now)
        if task.function.actor is None:
            self.admission.resolve(task)
        elif self.actors.submitted(task, task.function.queue.job):
            self.admission.resolve(task, self.names.claim(task) + (durable_first and self.actors.await_durable(task.id)))
