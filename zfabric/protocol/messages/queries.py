"""People: tools and notices."""

from __future__ import annotations

from typing import Any, NamedTuple

from zfabric.protocol.messages.rows import Row, Rows

LIST_LIMIT = 10_000
"""Most rows one listing answers with."""
TASK_STATES = ("running", "blocked", "assigned", "ready", "infeasible", "waiting", "finished", "failed")
"""States of a task as listings show them, in the order in which they list tasks: what runs first, what is done last."""


class Query(NamedTuple):
    """client, tool -> local scheduler. A question about tasks, objects, actors, workers or jobs; answered with ``Answer``.

    ``what`` is one of ``QUESTIONS`` in ``machines/local_scheduler/reports/report.py``.
    """

    token: int
    what: str
    arguments: Row


class Answer(NamedTuple):
    """local scheduler -> asker. ``payload`` is plain data (tuples, dicts, strings, numbers); ``error`` is empty when it could be had."""

    token: int
    payload: Any
    error: str


class Notice(NamedTuple):
    """local scheduler -> driver. Something a person should know. ``level`` is "info", "warning" or "error"."""

    level: str
    text: str


class Inspect(NamedTuple):
    """local scheduler -> the control thread of a worker, or a driver. Say what all threads run; answered with ``Inspected``.

    ``asker`` (an address) and ``token`` are those of the question, and come back. A process that does not run Python code does not answer.
    """

    asker: bytes
    token: int


class Inspected(NamedTuple):
    """worker, driver -> local scheduler, which passes ``threads`` on to the asker as ``Answer``. Rows as in ``runtime/stacks``."""

    asker: bytes
    token: int
    threads: Rows


class CollectGarbage(NamedTuple):
    """local scheduler -> the control thread of a worker, or a driver. Run Python's garbage collector once.

    Sent while a demand waits for what actors hold: their last handles may be in reference cycles. If lost, the next one comes later.
    """


class LogLines(NamedTuple):
    """shell -> local scheduler -> driver. Output of workers: rows ``(pid, name, stream, text)``, stream "out" or "err".

    ``name`` is that of the task or actor that wrote it; empty where that is not known.
    """

    rows: Rows


class OutputWritten(NamedTuple):
    """worker -> local scheduler, and worker -> client that gets an outcome past it. What ended wrote to its standard output or error.

    It comes ahead of the outcome. The daemon's shell looks into the worker's files first, so that ``LogLines`` precedes the outcome; a
    driver has it do so before ``get`` returns; another worker passes it on with its own outcome. If lost, lines are shown a little later.
    """
