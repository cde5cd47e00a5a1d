"""What a restarted local scheduler reads from the control store: functions, task rows and logs of jobs that live (see ``recovery``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from zfabric.machines.common.lineage_blocks import LineageBlock
from zfabric.machines.common.log_format import CHECKPOINT, LOG
from zfabric.machines.common.row_format import unpack_row
from zfabric.machines.local_scheduler.records import FunctionRecord
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FUNCTION_BYTES, JOB_BYTES

PAGE = 500
"""Rows of the control store that are asked for at a time."""

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler.machine import LocalScheduler


class KeptRows:
    """Rows of the tables "function" and "task", between their scan and the end of recovery."""

    def __init__(self, scheduler: LocalScheduler, then: Callable[[float], None]) -> None:
        self.scheduler = scheduler
        self._then = then
        self._open: set[str] = set()
        self._functions: list[m.Row] = []
        self._blocks: list[m.Row] = []

    @property
    def complete(self) -> bool:
        """Whether all that was asked for has come."""
        return not self._open

    def ask(self) -> None:
        """Scan the tables."""
        for table in ("function", "task", LOG, CHECKPOINT):
            self._open.add(table)
            self.scheduler.requests.ask(m.Scan, table, b"", b"", PAGE, then=self._found, about=table)

    def _found(self, now: float, table: str, message: m.Found) -> None:
        """A page of a scan."""
        if table in (LOG, CHECKPOINT):
            self.scheduler.logs.adopt(table, message.rows)
        else:
            (self._functions if table == "function" else self._blocks).extend(message.rows)
        if message.more and message.rows:
            self.scheduler.requests.ask(m.Scan, table, b"", message.rows[-1][0], PAGE, then=self._found, about=table)
        else:
            self._open.discard(table)
            if self.complete:
                self._then(now)

    def adopt_functions(self) -> None:
        """Functions of jobs that live, also those whose exporter is gone."""
        tables = self.scheduler.tables
        for key, value in self._functions:
            job = tables.jobs.get(key[:JOB_BYTES])
            identifier = key[JOB_BYTES : JOB_BYTES + FUNCTION_BYTES]
            if job is None or identifier in job.functions:
                continue
            name, options, payload = unpack_row(value)
            function = FunctionRecord(identifier, name, payload, options)
            function.queue = tables.queue_for(job, function.shape)
            job.functions[identifier] = function

    def adopt_rows(self) -> dict[bytes, tuple[m.Row, LineageBlock]]:
        """Task rows of jobs that live, with their blocks; what is not needed of them is to be dropped from these."""
        tables, blocks = self.scheduler.tables, self.scheduler.blocks
        rows: dict[bytes, tuple[m.Row, LineageBlock]] = {}
        for key, value in self._blocks:
            block = blocks.adopt(key, value)
            for task_id, row in list(block.rows.items()):
                job = tables.jobs.get(task_id[:JOB_BYTES])
                if job is None or job.ended or task_id in rows:
                    blocks.drop(task_id, block)
                else:
                    rows[task_id] = (row, block)
        self._blocks = []
        return rows
