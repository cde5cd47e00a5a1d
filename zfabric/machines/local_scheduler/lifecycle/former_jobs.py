"""Jobs of a node that is no more, in a control store that was kept: nobody is left who could end them, so the next node does."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.machines.common.row_format import pack_row, unpack_row
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m

PAGE = 500
"""Rows of the control store that are asked for at a time."""


class _Clearing(NamedTuple):
    """A job whose rows are being deleted, table by table; its own row says that it has ended once they are gone."""

    job: bytes
    ended: bytes
    tables: tuple[str, ...]


class FormerJobs:
    """Ends them as ``Jobs.end_job`` would have: what is left of a job is its row."""

    def __init__(self, tables: Tables, requests: PendingRequests) -> None:
        self.tables = tables
        self.requests = requests

    def ask(self) -> None:
        """Look for them, before this node has jobs of its own."""
        self.requests.ask(m.Scan, "job", b"", b"", 10_000, then=self._found)

    def _found(self, now: float, about: None, answer: m.Found) -> None:
        """The store's jobs."""
        for key, value in answer.rows:
            facts = unpack_row(value)
            if facts["status"] == "running" and key not in self.tables.jobs:
                self._go_on(_Clearing(key, pack_row({**facts, "status": "ended"}), ("task", "function", "object", "log", "checkpoint")))

    def _rows_found(self, now: float, clearing: _Clearing, message: m.Found) -> None:
        """A page of what is left of one."""
        table, *rest = clearing.tables
        self._write((), tuple((table, key) for key, _ in message.rows))
        if message.more:
            self._go_on(clearing, message.rows[-1][0])
        else:
            self._go_on(clearing._replace(tables=tuple(rest)))

    def _go_on(self, clearing: _Clearing, after: bytes = b"") -> None:
        if clearing.tables:
            self.requests.ask(m.Scan, clearing.tables[0], clearing.job, after, PAGE, then=self._rows_found, about=clearing)
        else:
            self._write((("job", clearing.job, clearing.ended),), ())

    def _write(self, puts: m.Rows, deletes: m.Rows) -> None:
        if puts or deletes:
            self.tables.send(self.tables.control_address, m.Write(0, puts, deletes))
