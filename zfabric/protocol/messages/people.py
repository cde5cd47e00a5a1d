"""People: tools and notices."""

from __future__ import annotations

from typing import Any, NamedTuple

from zfabric.protocol.messages.rows import Row, Rows


class Query(NamedTuple):
    """client, tool -> local scheduler. ``what`` is one of ``QUESTIONS`` in ``machines/parts/report``; answered with ``Answer``."""

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


class LogLines(NamedTuple):
    """shell -> local scheduler -> driver. Output of workers: rows ``(pid, stream, text)``, stream "out" or "err"."""

    rows: Rows
