"""What a local scheduler has asked of the control store and the object store, and who is told the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zfabric.machines.local_scheduler.reports import report
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler.machine import LocalScheduler


class PendingRequests:
    """Open questions, by the token that their answers bring back."""

    def __init__(self, scheduler: LocalScheduler) -> None:
        self.scheduler = scheduler
        self.tables = scheduler.tables
        self._open: dict[int, tuple[str, Any]] = {}
        """What was asked, and what is to be done with the answer."""
        self._next_token = 1

    def _token(self, kind: str, about: Any) -> int:
        token = self._next_token
        self._next_token += 1
        self._open[token] = (kind, about)
        return token

    def ask(self, kind: str, about: Any, message: Any, *fields: Any) -> None:
        """Ask the control store something whose answer comes back with the token."""
        self.tables.send(self.tables.control_address, message(self._token(kind, about), *fields))

    def ask_store(self, kind: str, about: Any, what: str, arguments: m.Row) -> None:
        """Ask the object store something whose answer comes back with the token."""
        token = self._token(kind, about)
        if self.tables.store_address is not None:
            self.tables.send(self.tables.store_address, m.Query(token, what, arguments))

    def on_written(self, now: float, source: Address, message: m.Written) -> None:
        """A commit that somebody waits for."""
        scheduler = self.scheduler
        kind, about = self._open.pop(message.token, ("", None))
        if kind == "kept":
            scheduler.values.kept(about, message.ok, message.text)
        elif kind == "detached":
            scheduler.detached.kept(about)
        elif kind == "job":
            scheduler.membership.job_refused(about, message.text)
        elif kind == "job begun":
            scheduler.membership.job_begun(about, message.ok, message.text)
        elif kind == "job ended":
            scheduler.membership.job_ended(about, message.ok, now)
        elif kind == "log":
            scheduler.logs.written(about, message.ok, message.text, now)
        elif kind == "query":
            report.rows_committed(scheduler, about)

    def on_job_number(self, now: float, source: Address, message: m.JobNumber) -> None:
        """A new job's number."""
        scheduler = self.scheduler
        kind, about = self._open.pop(message.token, ("", None))
        if kind == "job":
            scheduler.membership.job_numbered(about, message.number, now)

    def on_found(self, now: float, source: Address, message: m.Found) -> None:
        """Rows that were asked for."""
        scheduler = self.scheduler
        kind, about = self._open.pop(message.token, ("", None))
        if kind == "jobs":
            scheduler.membership.jobs_found(message.rows, now)
        elif kind == "former jobs":
            scheduler.membership.former_jobs.found(message.rows)
        elif kind == "former rows":
            scheduler.membership.former_jobs.rows_found(about, message)
        elif kind == "kept rows":
            scheduler.membership.rows_found(about, message, now)
        elif kind == "durable value":
            scheduler.rebuilding.durable_found(about, message.rows)
        elif kind == "log read":
            scheduler.logs.found(about, message)
        elif kind == "query":
            report.rows_found(scheduler, about, message)

    def on_answer(self, now: float, source: Address, message: m.Answer) -> None:
        """What the object store knows of something that was asked here."""
        scheduler = self.scheduler
        kind, about = self._open.pop(message.token, ("", None))
        if kind == "store query":
            report.store_answered(scheduler, now, about, message.payload)
        elif kind == "recorded":
            scheduler.call_results.taken_over(*about)
