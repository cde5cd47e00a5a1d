"""Requests of processes for keys of the cluster's key-value store, at the head (decision 0048).

This node repeats a query to the head's next daemon; a change names its process and number, so that the head makes it once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zfabric.machines.local_scheduler.lifecycle.jobs import tombstone
from zfabric.machines.local_scheduler.records import JobRecord
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.codec import check_message
from zfabric.protocol.ids import Address, unpack_counter

QUERY = "keys"
PAGE = 500
"""Jobs with keys per request."""
_CHANGES: dict[str, Callable[..., m.Message]] = {"put": m.PutKey, "part": m.PutPart, "drop": m.DropUpload, "delete": m.DeleteKeys}
_QUESTIONS: dict[str, Callable[..., m.Message]] = {"get": m.GetKey, "list": m.ListKeys}


class KeyRequests:
    """Passes requests on; the head also ends keys of dead homes' jobs."""

    def __init__(self, tables: Tables, requests: PendingRequests) -> None:
        self.tables = tables
        self.requests = requests
        self.queries: dict[str, Callable[..., None]] = {QUERY: self.ask}

    def ask(self, source: Address, token: int, what: str, *arguments: Any) -> None:
        """Pass a request on; the answer is ``(payload, name of an error or empty, its text)``. Raises ValueError.

        A change begins with its number in the process, and that of the oldest unanswered one.
        """
        message = _CHANGES.get(what) or _QUESTIONS.get(what)
        if message is None:
            raise ValueError(f"there is no such request; there are {', '.join((*_CHANGES, *_QUESTIONS))}")
        if what in _CHANGES:
            number, oldest, *rest = arguments
            process = self.tables.processes.get(source[1:])
            job = process.job if process is not None else None
            if process is None or job is None or job.ended:
                raise ValueError("only the program, tasks and actors of a job that runs change keys")
            arguments = ((job.id, job.home or self.tables.cluster.node, process.incarnation, number, oldest), *rest)
        check_message(message(0, *arguments))
        self.requests.ask_head(message, *arguments, then=self._answered, about=(source, token))

    def _answered(self, now: float, about: tuple[Address, int], answer: m.KeyAnswer | m.Written) -> None:
        source, token = about
        if source[1:] not in self.tables.processes:
            return
        found = ((), "OutOfDiskError", answer.text) if isinstance(answer, m.Written) else answer[1:]
        self.tables.send(source, m.Answer(token, found, ""))

    # -- jobs whose homes are dead --

    def end_orphaned(self) -> None:
        """On the head, end keys of jobs without a living home."""
        if self.tables.cluster.is_head:
            self._scan(b"h")

    def _scan(self, after: bytes) -> None:
        self.requests.ask(m.Scan, "kv", b"h", after, PAGE, then=self._jobs_found)

    def _jobs_found(self, now: float, about: None, answer: m.Found) -> None:
        tables = self.tables
        for key, home in answer.rows:
            job_id = key[1:]
            job = tables.jobs.get(job_id)
            if (job is not None and not job.ended) or _is_home(job, home, tables):
                continue
            # Late requests of other nodes for the job are then refused.
            tables.send(tables.cluster.control_address, m.Write(0, (tombstone(job_id, unpack_counter(job_id)[0]),), ()))
            self.requests.ask(m.EndKeys, job_id, then=_ended)
        if answer.more:
            self._scan(answer.rows[-1][0])


def _is_home(job: JobRecord | None, home: bytes, tables: Tables) -> bool:
    return job is not None if home == tables.cluster.node else home in tables.cluster.rows


def _ended(now: float, about: None, answer: m.Written) -> None:
    """Nothing waits: a store that cannot write deletes the rows later."""
