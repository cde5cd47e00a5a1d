"""What a restarted local scheduler makes of the task rows that the control store kept.

Most rows are said again by whoever submitted them. What is left over was submitted by a process that is gone. A row that another
kept row names is lineage: its task has finished, and is run again only if somebody needs a value of it. A row that no other
names had not finished when the daemon died (or its block would have lost it), so it is run: execution is at least once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zfabric.machines.parts import report
from zfabric.machines.parts.blocks import Block
from zfabric.machines.parts.records import DONE, FunctionRecord, TaskRecord, make_outputs
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FUNCTION_BYTES, JOB_BYTES, TASK_BYTES
from zfabric.protocol.options import option

PAGE = 500
"""Rows of the control store that are asked for at a time."""

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler import LocalScheduler


class KeptRows:
    """Rows of the tables "function" and "task", between their scan and the end of recovery."""

    def __init__(self, scheduler: LocalScheduler) -> None:
        self.scheduler = scheduler
        self._open: set[str] = set()
        self._functions: list[m.Row] = []
        self._blocks: list[m.Row] = []

    @property
    def complete(self) -> bool:
        """Whether all that was asked for has come."""
        return not self._open

    def ask(self) -> None:
        """Scan both tables."""
        for table in ("function", "task"):
            self._open.add(table)
            self.scheduler.ask("kept rows", table, m.Scan, table, b"", b"", PAGE)

    def found(self, table: str, message: m.Found) -> None:
        """A page of a scan."""
        (self._functions if table == "function" else self._blocks).extend(message.rows)
        if message.more and message.rows:
            self.scheduler.ask("kept rows", table, m.Scan, table, b"", message.rows[-1][0], PAGE)
        else:
            self._open.discard(table)

    def adopt_functions(self) -> None:
        """Functions of jobs that live, also those whose exporter is gone."""
        tables = self.scheduler.tables
        for key, value in self._functions:
            job = tables.jobs.get(key[:JOB_BYTES])
            identifier = key[JOB_BYTES : JOB_BYTES + FUNCTION_BYTES]
            if job is None or identifier in job.functions:
                continue
            name, options, payload = report.unpacked(value)
            function = FunctionRecord(identifier, name, payload, options)
            function.queue = tables.queue_for(job, function.demand, function.environment)
            job.functions[identifier] = function

    def adopt_rows(self, now: float) -> None:
        """Rows nobody said again: lineage, or tasks to be run. Called once all that was said has been taken in."""
        tables, blocks = self.scheduler.tables, self.scheduler.blocks
        left: list[tuple[m.Row, Block]] = []
        for key, value in self._blocks:
            block = blocks.adopt(key, value)
            for row in list(block.rows.values()):
                job = tables.jobs.get(row[0][:JOB_BYTES])
                if row[0] in tables.tasks or job is None or job.ended or row[1] not in job.functions:
                    blocks.drop(row[0], block)
                else:
                    left.append((row, block))
        self._blocks = []
        named = {identifier[:TASK_BYTES] for row, _ in left for identifier in (*row[3], *_contains(row))}
        named |= {identifier[:TASK_BYTES] for task in tables.tasks.values() for identifier in (*task.row[3], *_contains(task.row))}
        for row, block in sorted(left, key=lambda pair: pair[0][0] not in named):
            self._adopt(row, block, row[0] in named, now)

    def _adopt(self, row: m.Row, block: Block, lineage: bool, now: float) -> None:
        tables = self.scheduler.tables
        job = tables.jobs[row[0][:JOB_BYTES]]
        task = TaskRecord(row, job.functions[row[1]], b"")
        task.holders = None
        task.block = block
        tables.tasks[task.id] = task
        if not lineage:
            self.scheduler.admit(task, now)
            return
        count = task.option("num_returns", 1)
        if count != 1:
            make_outputs(task, count)
            for output in task.outputs or ():
                output.holders = None
                tables.objects[output.object_id] = output
        task.state = DONE
        for record in task.values():
            record.status = m.OK
        self.scheduler.references.keep_row(task)


def _contains(row: m.Row) -> tuple[bytes, ...]:
    contained: tuple[bytes, ...] = option(row[4], "contains", ()) if len(row) > 4 else ()
    return contained
