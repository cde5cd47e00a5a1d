"""Creation of detached actors at the head (decision 0048).

The request passes the home of the job. Each node on the way repeats it, until it is answered, to a new daemon or to the job's next home;
the head creates each actor once. Lightweight actors, and actors in placement groups, have their home on the node of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.executions import Executions
from zfabric.machines.local_scheduler.records import FunctionRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.submission import Submission
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.checks import check_fields
from zfabric.protocol.ids import FIRST_RETURN, LOCAL_SCHEDULER, Address
from zfabric.protocol.messages.rows import DEPENDENCIES, FUNCTION_ID, OPTIONS, TASK_ID
from zfabric.protocol.options import group_of, option

ENTER = "enter actor"
"""The query between nodes; processes send "create actor"."""


class _Request(NamedTuple):
    source: Address
    """Who asked: a process, or another node."""
    token: int
    to: bytes
    arguments: m.Row


class DetachedCreation:
    """Has detached actors created at the head."""

    def __init__(
        self,
        tables: Tables,
        requests: PendingRequests,
        references: References,
        submission: Submission,
        actors: ActorDirectory,
        borrowing: Borrowing,
        executions: Executions,
    ) -> None:
        self.tables = tables
        self.requests = requests
        self.references = references
        self.submission = submission
        self.actors = actors
        self.borrowing = borrowing
        self.executions = executions
        self._open: dict[bytes, _Request] = {}
        self.made: list[tuple[bytes, Address, int]] = []
        """On the head: actors whose rows may not be durable, as (actor, node, token)."""

        self.queries: dict[str, Callable[..., None]] = {"create actor": self.create, ENTER: self.enter}

    # -- where they are asked for --

    def create(self, source: Address, token: int, row: m.Row) -> None:
        """Create a detached actor for a process. Answers False if the process is to submit the row here. Raises ValueError."""
        check_fields(m.Submit((row,)))
        tables = self.tables
        process = tables.processes.get(source[1:])
        job = process.job if process is not None else None
        if job is None or job.ended:
            raise ValueError("the job has ended")
        function = job.functions.get(row[FUNCTION_ID])
        if function is None:
            raise ValueError("its class was never exported")
        if tables.cluster.is_head or _stays(function, row):
            tables.send(source, m.Answer(token, False, ""))
            return
        named = _named_in(row)
        elsewhere = tables.homes_of(named)
        here = {each for each in named if tables.find(each) is not None} - {row[0] for row in elsewhere}
        homes = (*elsewhere, *((each, tables.cluster.node) for each in sorted(here)))
        exported = (function.id, function.name, function.payload, function.options)
        about = (job.id, job.namespace, job.home or tables.cluster.node)
        self._ask(row[TASK_ID], source, token, (about, exported, row, homes, tables.cluster.node))

    def _ask(self, actor_id: bytes, source: Address, token: int, arguments: m.Row) -> None:
        """Pass a request on to the home of the job, and from there to the head."""
        job = self.tables.jobs.get(arguments[0][0])
        if job is None or job.ended:
            self._open.pop(actor_id, None)
            self.tables.send(source, m.Answer(token, None, "the job has ended"))
            return
        to = job.home or self.tables.cluster.head
        self._open[actor_id] = _Request(source, token, to, arguments)
        self.requests.ask_at(LOCAL_SCHEDULER + to, m.Query, ENTER, arguments, then=self._answered, about=actor_id)

    def _answered(self, now: float, actor_id: bytes, answer: m.Answer) -> None:
        """Pass the answer on. It may come twice."""
        request = self._open.pop(actor_id, None)
        if request is None:
            return
        process = self.tables.processes.get(request.source[1:])
        if not answer.error and request.arguments[-1] == self.tables.cluster.node:
            self._hold(actor_id + FIRST_RETURN, process.incarnation if process is not None else b"")
        self.tables.send(request.source, m.Answer(request.token, answer.payload, answer.error))

    def _hold(self, handle: bytes, process: bytes) -> None:
        """Enter the handle: the head has registered this node."""
        record = self.tables.find(handle)
        if record is None:
            record = self.tables.refer(handle, self.tables.cluster.head)
        if record.hold is not None:
            record.hold.register()
            if process:
                record.add_holder(process)
            else:
                self.references.collect_later(record)

    # -- at the home of the job, and at the head --

    def enter(self, source: Address, token: int, about: m.Row, function: m.Row, row: m.Row, homes: m.Rows, holder: bytes) -> None:
        """Handle another node's request, on the head or at the home of the job. Raises ValueError."""
        arguments = (about, function, row, homes, holder)
        if source[1:] not in self.tables.nodes or holder not in (*self.tables.nodes, self.tables.cluster.node):
            raise ValueError("only another node asks for this, for a living one")
        check_fields(m.Delegate(about, (function,), (row,), (), (), homes, 0))
        if self.tables.cluster.is_head:
            self._enter(source, token, *arguments)
        else:
            self._ask(row[TASK_ID], source, token, arguments)

    def _enter(self, source: Address, token: int, about: m.Row, function: m.Row, row: m.Row, homes: m.Rows, holder: bytes) -> None:
        actor_id, handle = row[TASK_ID], row[TASK_ID] + FIRST_RETURN
        job = self.executions.job_of(about, self.tables.latencies.now)
        if job is None:
            raise ValueError("the job has ended")
        if actor_id not in self.tables.tasks:
            named = _named_in(row)
            self.submission.export(job, (function,))
            self.borrowing.refer(named, homes, source[1:])
            self.submission.enter(row, job, self.tables.latencies.now)
            self.borrowing.settle(named)
        if holder in self.tables.nodes:
            self.references.hold((handle,), holder)
        self.made.append((actor_id, source, token))

    def end_of_turn(self) -> None:
        """Answer once rows are durable, behind holds and reports to the homes of jobs."""
        made, self.made = self.made, []
        for actor_id, source, token in made:
            if source[1:] not in self.tables.nodes:
                continue
            if self.actors.is_durable(actor_id):
                self.tables.ledger.holds.send(source[1:], m.Answer(token, True, ""))
            else:
                self.made.append((actor_id, source, token))

    # -- deaths --

    def begin_anew(self, node: bytes) -> None:
        """Drop the former daemon's requests: its processes repeat theirs."""
        self._open = {each: request for each, request in self._open.items() if request.source[1:] != node}
        self.made = [each for each in self.made if each[1][1:] != node]

    def node_died(self, node: bytes) -> None:
        """Redirect requests to the job's next home, and drop the dead node's own."""
        self.begin_anew(node)
        for actor_id, request in list(self._open.items()):
            if request.to == node:
                self._ask(actor_id, request.source, request.token, request.arguments)


def _named_in(row: m.Row) -> tuple[bytes, ...]:
    named: tuple[bytes, ...] = row[DEPENDENCIES]
    return named + tuple(option(row[OPTIONS], "contains", ())) if len(row) > OPTIONS else named


def _stays(function: FunctionRecord, row: m.Row) -> bool:
    own = row[OPTIONS] if len(row) > OPTIONS else ()
    strategy = option(own, "strategy", option(function.options, "strategy", option(own, "captured", ())))
    return bool(option(function.options, "lightweight", False)) or group_of(strategy) is not None
