"""Jobs of a lost cluster in a retained control store: no process is left, so this node ends them."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.machines.common.tables import pack_row, unpack_row
from zfabric.machines.local_scheduler.lifecycle.jobs import ELSEWHERE, TOMBSTONES_KEPT
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, job_id, unpack_counter

PAGE = 500
"""Rows of the control store per request."""


class _Clearing(NamedTuple):
    """A job whose rows are deleted table by table; then its own is marked as ended, or deleted if of another home."""

    job: bytes
    ended: bytes
    tables: tuple[str, ...]


class FormerJobs:
    """Ends former jobs as ``Jobs.end_job`` would. Durable values remain for other programs as long as the rows of the jobs."""

    def __init__(self, tables: Tables, requests: PendingRequests) -> None:
        self.tables = tables
        self.requests = requests

    def ask(self) -> None:
        """Search for them, before this node has its own."""
        self.requests.ask(m.Scan, "job", b"", b"", 10_000, then=self._found)
        self.requests.ask(m.Scan, "group", b"", b"", PAGE, then=self._groups_found)

    def _found(self, now: float, about: None, answer: m.Found) -> None:
        for key, value in answer.rows:
            facts = unpack_row(value)
            if facts["status"] in ("running", ELSEWHERE) and key not in self.tables.jobs:
                is_own = facts["status"] == "running" or self.tables.cluster.is_head
                ended = pack_row({**facts, "status": "ended"}) if is_own else b""
                self._go_on(_Clearing(key, ended, ("task", "function", "log", "checkpoint")))
        newest = max((unpack_counter(key)[0] for key, _ in answer.rows), default=0)
        if newest > TOMBSTONES_KEPT:
            oldest = job_id(newest - TOMBSTONES_KEPT)
            self.tables.send(self.tables.cluster.control_address, m.DeleteRows(0, "object", bytes(JOB_BYTES), oldest))

    def _groups_found(self, now: float, about: None, message: m.Found) -> None:
        """Delete placement groups: their reservations are void."""
        self._write((), tuple(("group", key) for key, _ in message.rows))
        if message.more:
            self.requests.ask(m.Scan, "group", b"", message.rows[-1][0], PAGE, then=self._groups_found)

    def _rows_found(self, now: float, clearing: _Clearing, message: m.Found) -> None:
        table, *rest = clearing.tables
        self._write((), tuple((table, key) for key, _ in message.rows))
        if message.more:
            self._go_on(clearing, message.rows[-1][0])
        else:
            self._go_on(clearing._replace(tables=tuple(rest)))

    def _go_on(self, clearing: _Clearing, after: bytes = b"") -> None:
        if clearing.tables:
            self.requests.ask(m.Scan, clearing.tables[0], clearing.job, after, PAGE, then=self._rows_found, about=clearing)
        elif clearing.ended:
            self._write((("job", clearing.job, clearing.ended),), ())
        else:
            self._write((), (("job", clearing.job),))

    def _write(self, puts: m.Rows, deletes: m.Rows) -> None:
        if puts or deletes:
            self.tables.send(self.tables.cluster.control_address, m.Write(0, puts, deletes))
