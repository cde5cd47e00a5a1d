"""What a restarted scheduler reads from the control store."""

from __future__ import annotations

from collections.abc import Callable

from zfabric.machines.common.lineage_blocks import BlockWriter, LineageBlock, split_row
from zfabric.machines.common.tables import CHECKPOINT, LOG, unpack_row
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.barrier import PROCESSES
from zfabric.machines.local_scheduler.records import EntrustedRow, FunctionRecord
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FUNCTION_BYTES, JOB_BYTES

READ = ("function", "task", "group", LOG, CHECKPOINT)
"""Tables to read."""
PAGE = 500
"""Rows per request."""


class RetainedRows:
    """Rows between their scan and the end of recovery."""

    def __init__(
        self, tables: Tables, blocks: BlockWriter, requests: PendingRequests, logs: ActorLogs, then: Callable[[float], None]
    ) -> None:
        self.tables = tables
        self.blocks = blocks
        self.requests = requests
        self.logs = logs
        self._then = then
        self._functions: list[m.Row] = []
        self._rows: list[m.Row] = []
        self.groups: list[m.Row] = []

    def ask(self) -> None:
        """Scan the tables."""
        self.tables.barrier.expect(PROCESSES, map(str.encode, READ))
        for table in READ:
            self.requests.ask(m.Scan, table, b"", b"", PAGE, then=self._found, about=table)

    def _found(self, now: float, table: str, message: m.Found) -> None:
        if table in (LOG, CHECKPOINT):
            self.logs.adopt(table, message.rows)
        else:
            {"function": self._functions, "task": self._rows, "group": self.groups}[table].extend(message.rows)
        if message.more and message.rows:
            self.requests.ask(m.Scan, table, b"", message.rows[-1][0], PAGE, then=self._found, about=table)
        else:
            self.tables.barrier.report(PROCESSES, table.encode())
            self._then(now)

    def adopt_functions(self) -> None:
        """Restore functions of living jobs, even of exited exporters."""
        tables = self.tables
        for key, value in self._functions:
            job = tables.jobs.get(key[:JOB_BYTES])
            identifier = key[JOB_BYTES : JOB_BYTES + FUNCTION_BYTES]
            if job is None or identifier in job.functions:
                continue
            name, options, payload = unpack_row(value)
            function = FunctionRecord(identifier, name, payload, options)
            function.queue = tables.queues.of(job, function.shape)
            job.functions[identifier] = function

    def adopt_rows(self) -> dict[bytes, tuple[m.Row, LineageBlock]]:
        """Restore task rows of living jobs; the caller drops the unneeded ones.

        Rows entrusted to this node remain entrusted, unless it is the heir of their dead home.
        """
        tables, blocks = self.tables, self.blocks
        rows: dict[bytes, tuple[m.Row, LineageBlock]] = {}
        for key, value in self._rows:
            block = blocks.adopt(key, value)
            for task_id, row in list(block.rows.items()):
                job = tables.jobs.get(task_id[:JOB_BYTES])
                row, home, homes = split_row(row)
                lives = home in tables.nodes or tables.dead.get(home) is False
                entrusted = tables.entrusted.setdefault(home, {}) if lives else {}
                if job is None or job.ended or task_id in rows or task_id in entrusted:
                    blocks.drop(task_id, block)
                elif lives:
                    entrusted[task_id] = EntrustedRow(row, homes, False, block)
                else:
                    rows[task_id] = (row, block)
        self._rows = []
        return rows
