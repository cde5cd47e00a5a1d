"""The timeline: tasks and calls in the Chrome trace format of Perfetto and chrome://tracing.

A node is a process, a worker a thread by its pid; further actors of a process have numbers that are no pids. An attempt or call is a
"complete" event, within that of a task it ran on top of; name, category and colour show failures. An actor's death is an "instant" event.
``arrows`` show why one ran after another.

Each node has its own events and clock; round trips measure the clocks' offsets when a timeline is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple, Protocol

from zfabric.exceptions import FabricError
from zfabric.protocol.names import brief
from zfabric.protocol.trace import actor_of, read_trace, unmarked, unpack_event
from zfabric.runtime.arrows import Span, Spans, arrows

PAGE = 500
"""Rows per request, each with up to some hundred attempts."""

PIDS = 2**22
"""A number above all pids of Linux."""
PAGE_OF_BLOCKS = 20
"""Blocks per request, each with up to a thousand tasks."""


ROUND_TRIPS = 5
"""Round trips per clock; the shortest counts."""


class Asker(Protocol):
    """What this module uses of a client."""

    def query(self, what: str, *arguments: Any, timeout: float = 10.0) -> Any:
        """Query the node's daemon."""


def rows_of(client: Asker, table: str, page: int = PAGE, timeout: float = 60.0) -> Iterator[tuple[bytes, bytes]]:
    """Yield a table's rows ``(key, value)``."""
    after, more = b"", True
    while more:
        rows, more = client.query("rows", table, after, page, timeout=timeout)
        yield from rows
        if rows:
            after = rows[-1][0]


class TimelineNode(NamedTuple):
    """A node of a cluster. ``asker`` asks that node."""

    asker: Asker
    name: str = ""
    number: int = 0
    """0 in a cluster of one."""
    shift: float = 0.0
    """Seconds that the node's clock is ahead."""


class _At:
    """Asks another node, through the connected one."""

    def __init__(self, client: Asker, node: str) -> None:
        self._client = client
        self._node = bytes.fromhex(node)

    def query(self, what: str, *arguments: Any, timeout: float = 10.0) -> Any:
        return self._client.query("at", self._node, what, *arguments, timeout=timeout)


def nodes_of(client: Asker) -> list[TimelineNode]:
    """All nodes, the asked one first, without clocks."""
    rows = client.query("nodes")
    if len(rows) < 2:
        return [TimelineNode(client, rows[0].get("name", ""), rows[0].get("number", 0))]
    return [_node_of(client, row) for row in sorted(rows, key=lambda row: not row["here"])]


def members(client: Asker) -> list[TimelineNode]:
    """The nodes that answer, with clocks, the asked one first."""
    rows = client.query("nodes")
    if len(rows) < 2:
        return nodes_of(client)
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUND_TRIPS):
        for clock in client.query("clock"):
            best[clock["node"]] = min(best.get(clock["node"], (float("inf"), 0.0)), (clock["error"], clock["offset"]))
    found = []
    for row in sorted(rows, key=lambda row: not row["here"]):
        if row["node"] in best:
            error, offset = best[row["node"]]
            shift = offset if abs(offset) > error else 0.0  # Nodes of one machine share its clock.
            found.append(_node_of(client, row)._replace(shift=shift))
    return found


def _node_of(client: Asker, row: dict[str, Any]) -> TimelineNode:
    return TimelineNode(client if row["here"] else _At(client, row["node"]), row["name"], row["number"])


def trace_events(client: Asker, nodes: list[TimelineNode] | None = None, missing: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the trace of a cluster, or of these ``nodes``.

    Times are microseconds of the asked node's monotonic clock. ``missing`` receives names of nodes that stop answering.
    """
    spans = Spans()
    nodes = nodes or [TimelineNode(client)]
    missing = [] if missing is None else missing
    names: dict[bytes, int] = {}
    for node in nodes:
        yield from _bars(_rows_at(node, "event", PAGE, missing), spans, names, node)
    blocks = (row for node in nodes for row in _rows_at(node, "task", PAGE_OF_BLOCKS, missing))
    yield from arrows(spans, blocks, tuple(node.number for node in nodes))


def _rows_at(node: TimelineNode, table: str, page: int, missing: list[str]) -> Iterator[tuple[bytes, bytes]]:
    try:
        if node.name not in missing or not node.name:
            yield from rows_of(node.asker, table, page)
    except FabricError:
        if not isinstance(node.asker, _At):
            raise
        missing.append(node.name)


def _bars(rows: Iterable[tuple[bytes, bytes]], spans: Spans, nodes: dict[bytes, int], where: TimelineNode) -> Iterator[dict[str, Any]]:
    """Yield a node's events in order, and add them to ``spans``. ``nodes`` numbers the nodes that ran them."""
    threads: set[tuple[int, int]] = set()
    actors: dict[tuple[int, int, bytes], int] = {}
    hosts: set[tuple[int, int]] = set()
    for _, value in rows:
        node, pid, names, trace, kind, arguments, _ = unpack_event(value)
        spans.arguments += arguments
        place = nodes.get(node)
        if place is None:
            place = nodes[node] = len(nodes) + 1
            yield _name("process_name", place, 0, f"node {where.name} ({node.hex()})" if where.name else f"node {node.hex()}")
        if (place, pid) not in threads:
            threads.add((place, pid))
            yield _name("thread_name", place, pid, f"worker {pid}")
        functions = dict(names)
        thread = pid
        for task, function, began, seconds in read_trace(trace):
            start = began - where.shift
            if kind == "call":
                actor = (place, pid, actor_of(function, task))
                found = actors.get(actor)
                if found is None:
                    found = actors[actor] = PIDS + len(actors) if (place, pid) in hosts else pid
                    hosts.add((place, pid))
                    yield _name("thread_name", place, found, f"actor {functions[function].rpartition('.')[0]} {pid}")
                thread = found
                spans.actors[actor].append(Span(start * 1e6, seconds * 1e6, place, thread))
            name, mark = unmarked(functions.get(function) or function.hex()[:8])
            if kind == "death":
                about = {"id": brief(task), "task_id": task.hex()}
                yield {"name": f"{name} died", "cat": kind, "ph": "i", "s": "t", "ts": start * 1e6, "pid": place, "tid": pid, "args": about}
                continue
            spans.add(task, Span(start * 1e6, seconds * 1e6, place, thread))
            yield {
                "name": f"{name} ({mark})" if mark else name,
                "cat": f"{kind},{mark}" if mark else kind,
                **({"cname": "grey" if mark == "cancelled" else "terrible"} if mark else {}),
                "ph": "X",
                "ts": start * 1e6,
                "dur": seconds * 1e6,
                "pid": place,
                "tid": thread,
                "args": {"task_id": task.hex(), "id": brief(task)},
            }


def _name(kind: str, place: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": place, "tid": thread, "args": {"name": name}}


def write_trace(events: Iterable[dict[str, Any]], file: IO[str]) -> int:
    """Write events as a JSON array, one a line. Return the number of attempts and calls."""
    attempts = 0
    separator = "["
    for event in events:
        attempts += event["ph"] == "X"
        file.write(f"{separator}\n{json.dumps(event)}")
        separator = ","
    file.write("[]\n" if separator == "[" else "\n]\n")
    return attempts
