"""How a row becomes a waiting or ready task, or is repeated or refused."""

from __future__ import annotations

from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.local_scheduler.barrier import NODES
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.records import DONE, ProcessRecord, TaskExtras, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import CLIENT, short
from zfabric.protocol.machine import Refusal
from zfabric.protocol.messages import FAILED, OK
from zfabric.protocol.options import Strategy, option

STRATEGIES_MOST = 1000
"""Strategies of a function with cached extra fields."""
OF_QUEUES = frozenset({"demand", "env", "strategy", "captured"})


class Admission:
    """Enters single rows into the tables."""

    def __init__(self, tables: Tables, blocks: BlockWriter, outcomes: Outcomes, rebuilding: Rebuilding, stopping: Stopping) -> None:
        self.tables = tables
        self.blocks = blocks
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.stopping = stopping
        self.handed = 0
        """Counts rows that drivers gave to workers themselves."""

    def accept(self, process: ProcessRecord, rows: m.Rows, now: float) -> list[TaskRecord]:
        """Record tasks that a worker already has. Raises Refusal if they are not plain."""
        job = process.job
        if job is None or job.ended:
            self.refuse_all(process.incarnation)
            return []
        self.blocks.now = now
        accepted = []
        tasks, submitter, first = self.tables.tasks, process.incarnation, self.tables.first_attempt
        for row in rows:
            known, function = tasks.get(row[0]), job.functions.get(row[1])
            if known is not None:
                self.repeat(process, known, row)
            elif function is None or not function.plain or row[3] or len(row) > 4:
                raise Refusal("only plain tasks are handed over")
            else:
                task = tasks[row[0]] = TaskRecord(row, function, submitter, first)
                function.received += 1
                if self.tables.config.lineage:
                    task.block = self.blocks.add(row)
                accepted.append(task)
        job.submitted += len(rows)
        self.handed += len(rows)
        return accepted

    def admit_with_strategy(self, task: TaskRecord, strategy: Strategy) -> None:
        """Admit a task with no option but a strategy: these are as many as plain ones."""
        function = task.function
        extras = function.by_strategy.get(strategy)
        if extras is None or extras.demand_queue.token not in self.tables.queues:  # type: ignore[union-attr]
            shape = (function.demand, function.environment, *function.shape[2:5], strategy)
            if len(function.by_strategy) >= STRATEGIES_MOST:
                function.by_strategy.clear()
            extras = function.by_strategy[strategy] = TaskExtras(self.tables.queues.of(function.queue.job, shape))
        task.rare = extras
        extras.demand_queue.tasks.append(task)  # type: ignore[union-attr]

    def set_terms(self, task: TaskRecord, now: float) -> None:
        """Apply a call's resources, environment and deadline."""
        own = {name: value for name, value in task.options or () if value is not None}
        if not own.keys().isdisjoint(OF_QUEUES):
            function = task.function
            demand, environment = own.get("demand", function.demand), own.get("env", function.environment)
            strategy = own.get("strategy")
            if strategy is None:
                strategy = option(function.options, "strategy")
            if strategy is None:
                strategy = own.get("captured", ())
            shape = (demand, environment, *function.shape[2:5], strategy)
            task.facts().demand_queue = self.tables.queues.of(function.queue.job, shape)
        task.limit_run()
        timeout = task.option("timeout")
        if timeout is not None:
            task.facts().deadline = now + timeout
            self.stopping.expect(task, now + timeout)

    def resolve(self, task: TaskRecord, others: int = 0) -> None:
        """Pin what a row names, and count dependencies without a value.

        ``others`` counts what else the task waits for; each calls ``Outcomes.resolved``.
        """
        self._resolve(task, others)

    def resolve_later(self, task: TaskRecord) -> None:
        """Resolve a task that other nodes may run: it also waits for all to register."""
        assert self.tables.barrier.awaits(NODES)
        self.tables.unsettled[task] = None
        self._resolve(task, 1)

    def _resolve(self, task: TaskRecord, unresolved: int) -> None:
        for record in map(self.tables.find, task.contains()):
            if record is not None:
                record.add_row()
        broken: tuple[int, bytes] | None = None
        for object_id in task.row[3]:
            record = self.tables.find(object_id)
            if record is None:
                broken = broken or (FAILED, pack_failure("ObjectFreedError", f"its argument {short(object_id)} is not known (any more)"))
                continue
            record.add_row()
            if record.is_lost:
                self.rebuilding.make_available(record)
            if record.status == PENDING:
                unresolved += 1
                self.tables.transfers.want(record)
                record.add_dependent(task)
            elif record.status != OK and broken is None:
                broken = (record.status, record.value if type(record.value) is bytes else b"")
        if broken is not None:
            self.outcomes.end_with(task, *broken)
        elif unresolved:
            task.wait(unresolved)
            task.facts().waits_since = self.tables.latencies.now
        else:
            self.outcomes.make_ready(task)

    def repeat(self, process: ProcessRecord, task: TaskRecord, row: m.Row) -> None:
        """Accept a row again: a retried parent submits the same children."""
        if task.row != row:
            self.refuse_row(process, row)
            return
        for record in task.values() if process.ready else ():
            record.add_holder(process.incarnation)
        if task.submitter != process.incarnation:
            if task.state != DONE and task.submitter in self.tables.processes:
                task.facts().submitters += (task.submitter,)
            task.submitter = process.incarnation
        if task.state == DONE and any(record.value is None for record in task.values()):  # Values of errors are released, too.
            for record in task.values():
                self.rebuilding.make_available(record, "gone when its task was submitted again")
        if task.state == DONE:
            self.outcomes.report_to(process, task)

    def refuse_all(self, incarnation: bytes) -> None:
        """Refuse the rows of an ended job's process."""
        self.tables.count("refused")
        self.tables.send(CLIENT + incarnation, m.Refused("JobEndedError", "the job has ended; call zf.init() for a new one"))

    def refuse_unknown(self, process: ProcessRecord, row: m.Row) -> None:
        """Refuse a row of an unknown function."""
        self.outcomes.add_result(process, row[0], FAILED, (pack_failure("FabricError", "the function was never exported"),))

    def refuse_row(self, process: ProcessRecord, row: m.Row) -> None:
        """Refuse a row that differs from an earlier one with its id."""
        self.tables.count("refused")
        text = f"task {short(row[0])} was submitted before with different content: its parent is not deterministic"
        self.outcomes.add_result(process, row[0], FAILED, (pack_failure("FabricError", text),))
