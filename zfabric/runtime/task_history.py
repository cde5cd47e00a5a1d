"""What an ended task or call has left: attempts with times and places, and lines that it wrote.

The scheduler has no times per task; each node's event table is read on request.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zfabric.exceptions import FabricError
from zfabric.protocol.names import matcher, span
from zfabric.protocol.trace import read_trace, unmarked, unpack_event
from zfabric.runtime.lines import Lines
from zfabric.runtime.log_files import LocalLogFiles, LogFiles, RemoteLogFiles
from zfabric.runtime.timeline import TimelineNode, members, rows_of

clock = time.monotonic

SEARCH_SECONDS = 2.0
"""Seconds to search the events of all nodes: a million attempts or more."""
LINES_MOST = 20
"""The last lines shown."""
OUTPUT_BYTES = 256 * 1024
"""How far back output is read."""


class Ran(NamedTuple):
    """An attempt or call."""

    node: str
    """Empty in a cluster of one."""
    pid: int
    name: str
    mark: str
    """How the attempt failed, or ""."""
    kind: str
    start: float
    """When the attempt began, by the asked node's clock."""
    seconds: float
    task: bytes

    def __str__(self) -> str:
        where = f" on {self.node}" if self.node else ""
        ended = f", {self.mark}" if self.mark else ""
        return f"{span(self.seconds)} in process {self.pid}{where}, {span(max(0.0, clock() - self.start - self.seconds))} ago{ended}"


def history_of(client: Any, task_id: bytes) -> dict[str, str]:
    """The facts "ran" and "output" of an ended task, if any. ``client`` is a connection."""
    nodes = members(client)
    attempts = attempts_of(nodes, task_id.__eq__)
    facts = {"ran": "; ".join(map(str, attempts))}
    session = getattr(client, "session", None)
    if attempts and session is not None:
        rows = client.query("nodes")
        here = LocalLogFiles(session.logs)
        files: dict[str, LogFiles] = {
            row.get("name", ""): here if row.get("here", True) else RemoteLogFiles(client, row["node"]) for row in rows
        }
        facts["output"] = "\n".join(lines_of(files, attempts))
    return {name: text for name, text in facts.items() if text}


def forgotten(client: Any, text: str) -> tuple[bytes, Ran] | None:
    """Id and last attempt of the one task or call, known only from events, that ``text`` names."""
    matches = matcher(text)
    found = {} if matches is None else {ran.task: ran for ran in attempts_of(members(client), matches)}
    return next(iter(found.items())) if len(found) == 1 else None


def attempts_of(nodes: Sequence[TimelineNode], matches: Callable[[bytes], bool]) -> list[Ran]:
    """The attempts with these ids in order, as far as nodes answer within ``SEARCH_SECONDS``."""
    found, until = [], time.monotonic() + SEARCH_SECONDS
    for node in nodes:
        with contextlib.suppress(FabricError):  # What that node has is missing.
            for _, value in rows_of(node.asker, "event", timeout=SEARCH_SECONDS):
                if time.monotonic() > until:
                    break
                found += _attempts_in(value, matches, node)
    return sorted(found, key=lambda ran: ran.start)


def _attempts_in(value: bytes, matches: Callable[[bytes], bool], of: TimelineNode) -> list[Ran]:
    _, pid, names, trace, kind, _, _ = unpack_event(value)
    functions, found = dict(names), []
    for task, function, start, seconds in read_trace(trace) if kind in ("task", "call") else ():
        if matches(task) is True:
            name, mark = unmarked(functions.get(function) or function.hex()[:8])
            found.append(Ran(of.name, pid, name, mark, kind, start - of.shift, seconds, task))
    return found


def lines_of(files: dict[str, LogFiles], attempts: Sequence[Ran]) -> list[str]:
    """The last lines under these attempts' names, in their processes. ``files`` are each node's.

    Lines have no ids: other attempts of the function in a process may have written some.
    """
    found: list[str] = []
    for node, pid, name in dict.fromkeys((ran.node, ran.pid, ran.name.rpartition("<locals>.")[2]) for ran in attempts):
        with contextlib.suppress(FabricError):
            of = files.get(node) or next(iter(files.values()))
            for file, number, _ in of.names(False):
                if number == pid:
                    found += _lines_in(of, file, name)
    return found[-LINES_MOST:]


def _lines_in(files: LogFiles, file: str, name: str) -> list[str]:
    size = files.size(file)
    offset = max(0, size - OUTPUT_BYTES)
    data = b""
    while offset < size and (read := files.read(file, offset)):
        data, offset = data + read, offset + len(read)
    if size > OUTPUT_BYTES:
        data = data.partition(b"\n")[2]
    return [line for writer, line in Lines().read(data) if writer == name] if data else []
