"""What a task that has ended, or a call, has left: its attempts with their times and places, and the lines that it wrote.

The scheduler has no times per task. They are read from the event table of each node, where and when somebody asks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zfabric.exceptions import FabricError
from zfabric.protocol.names import matcher
from zfabric.protocol.trace import read_trace, unmarked, unpack_event
from zfabric.protocol.wording import span
from zfabric.runtime.lines import Lines
from zfabric.runtime.log_files import LocalLogFiles, LogFiles, RemoteLogFiles
from zfabric.runtime.timeline import TimelineNode, members, rows_of

clock = time.monotonic

SEARCH_SECONDS = 2.0
"""How long the events of all nodes are searched: a million attempts or more."""
LINES_MOST = 20
"""Most lines of a task's output that are shown: the last ones."""
OUTPUT_BYTES = 256 * 1024
"""How far back a file of output is read for them."""


class Ran(NamedTuple):
    """An attempt of a task, or a call."""

    node: str
    """The name of its node; empty in a cluster of one."""
    pid: int
    name: str
    mark: str
    """How it ended if it did not succeed; else empty."""
    kind: str
    start: float
    """By the clock of the asked node's machine."""
    seconds: float
    task: bytes

    def __str__(self) -> str:
        where = f" on {self.node}" if self.node else ""
        ended = f", {self.mark}" if self.mark else ""
        return f"{span(self.seconds)} in process {self.pid}{where}, {span(max(0.0, clock() - self.start - self.seconds))} ago{ended}"


def history_of(client: Any, task_id: bytes) -> dict[str, str]:
    """Return what is left of a task that has ended, as facts of an explanation: "ran" and "output", where there is any.

    ``client`` is a connection of a program or a tool.
    """
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
    """Return the id and the last attempt of the one task or call of which only its events are left and that ``text`` names."""
    matches = matcher(text)
    found = {} if matches is None else {ran.task: ran for ran in attempts_of(members(client), matches)}
    return next(iter(found.items())) if len(found) == 1 else None


def attempts_of(nodes: Sequence[TimelineNode], matches: Callable[[bytes], bool]) -> list[Ran]:
    """Return the attempts of tasks or calls with these ids, in order, as far as nodes answer and ``SEARCH_SECONDS`` allow."""
    found, until = [], time.monotonic() + SEARCH_SECONDS
    for node in nodes:
        with contextlib.suppress(FabricError):  # What is there is missing.
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
    """Return the last lines of output that bear the name of these attempts, in their processes. ``files`` are those of each node.

    Other attempts of the same function in the same process have written some of them, since lines have names, and no ids.
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
