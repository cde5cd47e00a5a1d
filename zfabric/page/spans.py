"""The task stream: the last minute's attempts and calls by worker, from the growing event table."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from zfabric.exceptions import FabricError
from zfabric.protocol.trace import EACH_BYTES, UNKNOWN, actor_of, read_trace, read_waited, unmarked, unpack_event
from zfabric.runtime.timeline import TimelineNode

WINDOW_SECONDS = 60.0
"""How far back the timeline reaches."""
LANE_MOST = 600
"""With more bars of a worker, some are merged."""
SPANS_MOST = 100_000
"""Most retained attempts, the newest."""
PAGE = 20
"""Rows per request, each with up to a thousand attempts."""
PAGES_MOST = 1_000
READING_SECONDS = 0.15
"""Most pages and seconds of one reading; the rest follows."""


class Attempt(NamedTuple):
    """An attempt or call. Times are seconds of the machine's monotonic clock."""

    lane: tuple[str, int]
    name: str
    mark: str
    """How it failed, or ""."""
    kind: str
    start: float
    seconds: float
    task: bytes
    actor: bytes = b""
    waited: float = UNKNOWN
    """Seconds in its actor's process before it began, if measured."""


class TaskStream:
    """Reads events from where it stopped, from ``began`` on."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._after: dict[str, bytes] = {}
        """The last event, by node."""
        self.attempts: deque[Attempt] = deque(maxlen=SPANS_MOST)
        self.seen = 0
        """Attempts read so far."""

    def read(self, nodes: list[TimelineNode]) -> None:
        """Read what is new, except of silent nodes."""
        for node in nodes:
            with contextlib.suppress(FabricError):
                self._read_of(node)

    def _read_of(self, node: TimelineNode) -> None:
        end = time.monotonic() + READING_SECONDS
        after = self._after.get(node.name) or int(max(0.0, self._began + node.shift) * 1e6).to_bytes(8, "big")
        more = True
        for _ in range(PAGES_MOST):
            if not more or time.monotonic() > end:
                break
            rows, more = node.asker.query("rows", "event", after, PAGE)
            for _, value in rows:
                self._add(value, node)
            if rows:
                after = rows[-1][0]
        self._after[node.name] = after

    def _add(self, value: bytes, of: TimelineNode) -> None:
        node, pid, names, trace, kind, _, measured = unpack_event(value)
        if kind not in ("task", "call"):
            return
        functions, lane = dict(names), (of.name or node.hex()[:8], pid)
        waits = read_waited(measured, len(trace) // EACH_BYTES)
        for (task, function, start, seconds), waited in zip(read_trace(trace), waits, strict=True):
            name, mark = unmarked(functions.get(function) or function.hex()[:8])
            actor = actor_of(function, task) if kind == "call" else b""
            self.attempts.append(Attempt(lane, name, mark, kind, start - of.shift, seconds, task, actor, waited))
            self.seen += 1

    def window(self, now: float, seconds: float = WINDOW_SECONDS, ago: float = 0.0) -> dict[str, Any]:
        """What ran in the ``seconds`` until ``ago`` before ``now``: lanes with bars ``[start, seconds, name, mark, count, task id]``.

        Times are relative to ``now``. A count over 1 stands for successive attempts of a function, ``merged`` for attempts without a bar,
        ``busy`` for seconds in which something ran. ``full``: older attempts were dropped, perhaps some of this time.
        """
        lanes: dict[tuple[str, int], list[Attempt]] = {}
        first, last = now - ago - seconds, now - ago
        for attempt in self.attempts:
            lane, _, _, _, start, length, _, _, _ = attempt  # Unpacked, as there may be a hundred thousand.
            if start <= last and start + length >= first:
                if lane in lanes:
                    lanes[lane].append(attempt)
                else:
                    lanes[lane] = [attempt]
        merged = 0
        shown: list[dict[str, Any]] = []
        for (node, pid), attempts in sorted(lanes.items()):
            attempts.sort(key=_start)
            bars = _bars(attempts, now)
            merged += len(attempts) - len(bars)
            shown.append({"node": node, "pid": pid, "bars": bars, "attempts": len(attempts), "busy": _busy(attempts, first, last)})
        count, full = sum(lane["attempts"] for lane in shown), len(self.attempts) == SPANS_MOST
        return {"seconds": seconds, "now": now, "lanes": shown, "merged": merged, "attempts": count, "full": full}


def _busy(attempts: list[Attempt], first: float, last: float) -> float:
    """How long something ran between two times. An attempt on top of another does not count twice."""
    total, until = 0.0, first
    for _, _, _, _, start, length, _, _, _ in attempts:
        end = start + length
        if end > until:
            total += end - (start if start > until else until)
            until = end
    return total - max(0.0, until - last)


_start = itemgetter(Attempt._fields.index("start"))


def _bars(attempts: list[Attempt], now: float) -> list[list[Any]]:
    """A lane's bars. If there are too many, alike neighbours closer than a growing gap become one."""
    gap = 0.001
    if len(attempts) <= LANE_MOST:
        return [[each.start - now, each.seconds, each.name, each.mark, 1, each.task.hex()] for each in attempts]
    bars: list[list[Any]] = []
    until = alike = None  # The last bar's end, and what an attempt must be to join the bar.
    for attempt in attempts:  # No bar is made for each of a hundred thousand.
        _, name, mark, _, start, seconds, task, _, _ = attempt
        if until is not None and start - until < gap and alike == (name, mark):
            bar = bars[-1]
            bar[4] += 1
            if start + seconds > until:
                until = start + seconds
                bar[1] = until - now - bar[0]
        else:
            bars.append([start - now, seconds, name, mark, 1, task.hex()])
            until, alike = start + seconds, (name, mark)
    while len(bars) > LANE_MOST:
        gap *= 2
        bars = _merged(bars, gap, alike=gap < 1.0)
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


def shares(attempts: Sequence[Attempt], now: float, seconds: float) -> dict[tuple[str, int], dict[str, float]]:
    """How long each function ran in the last ``seconds``, by lane. An attempt on top of a waiting one counts as part of it."""
    first, until = now - seconds, dict[tuple[str, int], float]()
    found: dict[tuple[str, int], dict[str, float]] = {}
    recent = [each for each in attempts if each.start + each.seconds >= first]
    for lane, name, _, _, start, length, _, _, _ in sorted(recent, key=_start):
        begin, end = max(start, until.get(lane, first)), min(start + length, now)
        if end > begin:
            of = found.setdefault(lane, {})
            of[name] = of.get(name, 0.0) + end - begin
            until[lane] = end
    return found
