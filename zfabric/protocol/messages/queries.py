"""Queries: questions of people and tools, notices and output."""

from __future__ import annotations

from typing import Any, NamedTuple

from zfabric.protocol.messages.rows import Row, Rows

LIST_LIMIT = 10_000
"""Most rows of one listing."""
TASK_STATES = ("running", "blocked", "assigned", "ready", "infeasible", "waiting", "finished", "failed")
"""States of a task as listings show them, in the order of listings: running tasks first, finished ones last."""


class Query(NamedTuple):
    """client, tool -> local scheduler. A question about tasks, objects, actors, workers or jobs; ``Answer`` answers it.

    ``what`` is one of ``Reports.queries`` in ``machines/local_scheduler/reports/report.py``.
    """

    token: int
    what: str
    arguments: Row


class Answer(NamedTuple):
    """local scheduler -> asker. ``payload`` is plain data (tuples, dicts, strings, numbers); ``error`` is empty if there is an answer."""

    token: int
    payload: Any
    error: str


class Notice(NamedTuple):
    """local scheduler -> driver. A line for the person at the program. ``level`` is "info", "warning" or "error"."""

    level: str
    text: str


class Inspect(NamedTuple):
    """local scheduler -> the control thread of a worker, or a driver. Report what ``about`` says; ``Inspected`` answers.

    "stacks" are those of all threads; with ``seconds`` over 0, those seen in that time, counted. "calls" are rows ``(actor id, calls that
    have no outcome here)``. ``asker`` (an address) and ``token`` are those of the question, and come back. A process that does not run
    Python code does not answer.
    """

    asker: bytes
    token: int
    about: str
    seconds: float


class Inspected(NamedTuple):
    """worker, driver -> local scheduler, which passes ``rows`` on to the asker as ``Answer``. Rows of stacks are as in
    ``runtime/stacks``, or in ``runtime/sampling``."""

    asker: bytes
    token: int
    rows: Rows


class CollectGarbage(NamedTuple):
    """local scheduler -> the control thread of a worker, or a driver. Run Python's garbage collector once.

    Sent while a demand waits for resources that actors hold: the last handles of these may be in reference cycles. If it is lost, another
    one follows.
    """


class MeasureCalls(NamedTuple):
    """local scheduler -> the control thread of a worker with actors. Report how long calls wait (``CallTimes``), for ``seconds`` from now.

    Sent while somebody looks at these times, again and again. If it is lost, they are missing until the next one.
    """

    seconds: float


class LogLines(NamedTuple):
    """shell -> local scheduler -> driver. Output of workers: rows ``(pid, name, stream, text)``, stream "out" or "err".

    ``name`` is that of the task or actor that wrote the line; empty where it is not known.
    """

    rows: Rows


class OutputWritten(NamedTuple):
    """worker -> local scheduler, and worker -> client that gets an outcome directly. The task that ends has written to its standard
    output or error.

    It precedes the outcome. The daemon's shell then reads the worker's files at once, so that ``LogLines`` precedes the outcome, too. A
    driver requests the same before ``get`` returns. Another worker passes it on with its own outcome. If it is lost, lines are shown a
    little later.
    """
