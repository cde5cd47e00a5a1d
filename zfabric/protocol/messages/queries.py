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
    """client, tool -> local scheduler -> local scheduler of another node, object store. A query.

    ``Answer`` is the answer. ``what`` is one of ``Reports.queries`` in ``machines/local_scheduler/reports/report.py``.
    """

    token: int
    what: str
    arguments: Row


@from_nodes(LOCAL_SCHEDULER)
class Answer(NamedTuple):
    """object store -> local scheduler -> client, local scheduler of another node. The answer to a query, or why there is none (``error``).

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
    """local scheduler -> worker control, driver. Report what ``about`` names. ``Inspected`` answers, if the process runs Python code.

    "stacks" are the stacks of all threads: now, or counted over ``seconds``. "calls" are rows ``(actor id, calls without an outcome
    here)``. "runs" are what a worker runs, rows ``(name, id, seconds)``, and last ``("", b"", calls that wait)``. ``asker`` (an address)
    and ``token`` come back.
    """

    asker: bytes
    token: int
    about: str
    seconds: float


@from_processes(LOCAL_SCHEDULER)
class Inspected(NamedTuple):
    """worker, driver -> local scheduler. The report, passed on to the asker as an ``Answer``.

    Rows of stacks are as in ``runtime/stacks``, counted ones as in ``runtime/sampling``.
    """

    asker: bytes
    token: int
    rows: Rows


class CollectGarbage(NamedTuple):
    """local scheduler -> worker control, driver. Run Python's garbage collector once.

    Repeated while a demand waits for resources of actors, whose last handles may be in cycles.
    """


class MeasureCalls(NamedTuple):
    """local scheduler -> worker control. Report how long calls wait (``CallTimes``), for ``seconds`` from now.

    Repeated while somebody looks at these times.
    """

    seconds: float


class LogLines(NamedTuple):
    """shell -> local scheduler -> driver. Output of workers: rows ``(pid, name, stream, text)``, stream "out" or "err".

    ``name`` is that of the task or actor, or empty.
    """

    rows: Rows


@from_processes(LOCAL_SCHEDULER)
@from_peers(CLIENT)
class OutputWritten(NamedTuple):
    """worker -> local scheduler, client. The task or call that ends has written to its standard output or error.

    It precedes the outcome. The daemon's shell reads the worker's files at once, so that ``LogLines`` does, too. A driver requests the same
    before ``get`` returns; a worker passes it on with its own outcome. If lost, lines are late.
    """
