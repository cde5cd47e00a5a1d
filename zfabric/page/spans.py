"""The task stream: the attempts and calls of the last minute, by worker, read from the event table as it grows."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any, NamedTuple

from zfabric.exceptions import FabricError
from zfabric.protocol.trace import actor_of, read_trace, unmarked, unpack_event
from zfabric.runtime.timeline import PAGE, TimelineNode

WINDOW_SECONDS = 60.0
"""How far back the stream reaches."""
LANE_MOST = 600
"""Most bars of one worker in an answer. Neighbours of more are merged."""
SPANS_MOST = 200_000
"""Most attempts that are retained; of more, the oldest are dropped."""
PAGES_MOST = 40
"""Most pages of events that one reading takes. The rest follows with the next."""


class Attempt(NamedTuple):
    """One attempt or call: seconds of the machine's monotonic clock."""

    lane: tuple[str, int]
    name: str
    mark: str
    """How it ended if it did not succeed; else empty."""
    kind: str
    start: float
    seconds: float
    task: bytes
    actor: bytes = b""
    """The actor that a call is of."""


class TaskStream:
    """Reads events from where it stopped. ``began`` is the time from which on they are of interest."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._after: dict[str, bytes] = {}
        """The key of the last event read, by node."""
        self.attempts: deque[Attempt] = deque(maxlen=SPANS_MOST)
        self.seen = 0
        """Attempts that have been read in all."""

    def read(self, nodes: list[TimelineNode]) -> None:
        """Read what is new on these nodes. One that does not answer is left out this time."""
        for node in nodes:
            with contextlib.suppress(FabricError):
                self._read_of(node)

    def _read_of(self, node: TimelineNode) -> None:
        after = self._after.get(node.name) or int(max(0.0, self._began + node.shift) * 1e6).to_bytes(8, "big")
        more = True
        for _ in range(PAGES_MOST):
            if not more:
                break
            rows, more = node.asker.query("rows", "event", after, PAGE)
            for _, value in rows:
                self._add(value, node)
            if rows:
                after = rows[-1][0]
        self._after[node.name] = after

    def _add(self, value: bytes, of: TimelineNode) -> None:
        node, pid, names, trace, kind, _ = unpack_event(value)
        if kind not in ("task", "call"):
            return
        functions, lane = dict(names), (of.name or node.hex()[:8], pid)
        for task, function, start, seconds in read_trace(trace):
            name, mark = unmarked(functions.get(function) or function.hex()[:8])
            actor = actor_of(function, task) if kind == "call" else b""
            self.attempts.append(Attempt(lane, name, mark, kind, start - of.shift, seconds, task, actor))
            self.seen += 1

    def window(self, now: float, seconds: float = WINDOW_SECONDS, ago: float = 0.0) -> dict[str, Any]:
        """What ran in the ``seconds`` that ended ``ago`` before ``now``: lanes with bars ``[start, seconds, name, mark, count, task id]``.

        Times are relative to ``now``. A bar with a count over 1 stands for several attempts of one function that followed each other.
        ``merged`` says how many attempts are not shown on their own. ``busy`` is how long something ran in a lane.
        """
        lanes: dict[tuple[str, int], list[Attempt]] = {}
        first, last = now - ago - seconds, now - ago
        for attempt in self.attempts:
            if attempt.start <= last and attempt.start + attempt.seconds >= first:
                lanes.setdefault(attempt.lane, []).append(attempt)
        merged = 0
        shown = []
        for (node, pid), attempts in sorted(lanes.items()):
            attempts.sort(key=lambda each: each.start)
            bars = _bars(attempts, now)
            merged += len(attempts) - len(bars)
            shown.append({"node": node, "pid": pid, "bars": bars, "attempts": len(attempts), "busy": _busy(attempts, first, last)})
        return {"seconds": seconds, "now": now, "lanes": shown, "merged": merged, "attempts": sum(lane["attempts"] for lane in shown)}


def _busy(attempts: list[Attempt], first: float, last: float) -> float:
    """How long something ran between two times; what ran on top of something that waited is not counted twice."""
    total, until = 0.0, first
    for each in attempts:
        end = min(last, each.start + each.seconds)
        if end > until:
            total += end - max(until, each.start)
            until = end
    return total


def _bars(attempts: list[Attempt], now: float) -> list[list[Any]]:
    """The bars of a lane. Where there are too many, neighbours closer than a growing gap become one, if they are alike."""
    bars = [[each.start - now, each.seconds, each.name, each.mark, 1, each.task.hex()] for each in attempts]
    gap = 0.001
    while len(bars) > LANE_MOST:
        bars = _merged(bars, gap, alike=gap < 1.0)
        gap *= 2
    return bars


def _merged(bars: list[list[Any]], gap: float, alike: bool) -> list[list[Any]]:
    found: list[list[Any]] = []
    for bar in bars:
        last = found[-1] if found else None
        if last is not None and bar[0] - (last[0] + last[1]) < gap and (not alike or (last[2], last[3]) == (bar[2], bar[3])):
            last[1] = max(last[1], bar[0] + bar[1] - last[0])
            last[4] += bar[4]
            if last[2] != bar[2]:
                last[2] = "several functions"
        else:
            found.append(bar)
    return found
