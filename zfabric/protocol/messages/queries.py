"""Queries of users and tools, notices, and output."""

from typing import Any, NamedTuple

from zfabric.protocol.access import from_nodes, from_peers, from_processes
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import Row, Rows

LIST_LIMIT = 10_000
"""Most rows of one listing."""
TASK_STATES = ("running", "blocked", "assigned", "queued", "infeasible", "waiting", "finished", "failed")
"""States of a task as listings show them, in the order of listings: running tasks first, finished ones last."""
PENDING_STATES = ("assigned", "queued", "infeasible", "waiting")
"""States of tasks that do not run yet: listings and counts call them pending."""
ENDED_STATES = ("finished", "failed")
"""States of tasks that have ended: somebody refers to their values."""


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class Query(NamedTuple):
    """client, tool -> local scheduler. A query about tasks, objects, actors, workers or jobs. ``Answer`` is the answer.

    ``what`` is one of ``Reports.queries`` in ``machines/local_scheduler/reports/report.py``.
    """

    token: int
    what: str
    arguments: Row


@from_nodes(LOCAL_SCHEDULER)
class Answer(NamedTuple):
    """local scheduler -> asker. The answer to a query, or why there is none (``error``).

    ``payload`` is plain data: tuples, dicts, strings and numbers.
    """

    token: int
    payload: Any
    error: str


class Notice(NamedTuple):
    """local scheduler -> driver. A line to show to the user. ``level`` is "info", "warning" or "error"."""

    level: str
    text: str


class Inspect(NamedTuple):
    """local scheduler -> the control thread of a worker, or a driver. Report what ``about`` says; ``Inspected`` answers.

    ``about`` is "stacks", "calls" or "runs". "stacks" are the stacks of all threads: now, or, with ``seconds`` over 0, counted over that
    time. "calls" are rows ``(actor id, calls that have no outcome here)``. "runs" are what a worker runs, rows ``(name, id, seconds)``, and
    last a row ``("", b"", calls that wait)``. ``asker`` (an address) and ``token`` identify the query, and come back. A process that does
    not run Python code does not answer.
    """

    asker: bytes
    token: int
    about: str
    seconds: float


@from_processes(LOCAL_SCHEDULER)
class Inspected(NamedTuple):
    """worker, driver -> local scheduler. The report, which the scheduler passes on to the asker as an ``Answer``.

    Rows of stacks are as in ``runtime/stacks``, those of counted stacks as in ``runtime/sampling``.
    """

    asker: bytes
    token: int
    rows: Rows


class CollectGarbage(NamedTuple):
    """local scheduler -> the control thread of a worker, or a driver. Run Python's garbage collector once.

    It is sent while a demand waits for resources that actors hold: the last handles of those actors may be in reference cycles. If it is
    lost, another one follows.
    """


class MeasureCalls(NamedTuple):
    """local scheduler -> the control thread of a worker with actors. Report how long calls wait (``CallTimes``), for ``seconds`` from now.

    It is repeated while somebody looks at these times. If one is lost, the times are missing until the next one.
    """

    seconds: float


class LogLines(NamedTuple):
    """shell -> local scheduler -> driver. Output of workers: rows ``(pid, name, stream, text)``, stream "out" or "err".

    ``name`` is the name of the task or actor that wrote the line, empty if unknown.
    """

    rows: Rows


@from_processes(LOCAL_SCHEDULER)
@from_peers(CLIENT)
class OutputWritten(NamedTuple):
    """worker -> local scheduler, client. The task or call that ends has written to its standard output or error.

    It precedes the outcome, to whomever that is sent. The daemon's shell then reads the worker's files at once, so that ``LogLines``
    precedes the outcome, too. A driver that receives it requests the same before ``get`` returns; a worker passes it on with its own
    outcome. If it is lost, lines are shown a little later.
    """
