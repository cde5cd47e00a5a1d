"""All nodes' time series, added up by the second, for the first screen."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from zfabric.machines.common.time_series import COARSE_OF, COARSE_ROWS, FINE_ROWS, Sample, TimeSeries

REACH_SECONDS = float(COARSE_OF * COARSE_ROWS)
OVERLAP_SECONDS = 20.0
"""Read again: a node may have been silent."""
HELD_SECONDS = 3.0
"""How long a sample stands for later moments: nodes do not sample at once."""
CLOCK_SECONDS = 1.0
"""A larger change of a node's clock is another clock."""
STEPS = {1: FINE_ROWS, COARSE_OF: COARSE_ROWS}
"""Seconds of a point -> most points."""
NODES_MOST = 1_000
"""Most nodes with series, departed ones included."""


class _Node:
    """One node's series. ``shift`` is this process's time less the node's."""

    def __init__(self, shift: float) -> None:
        self.shift = shift
        self.series = TimeSeries()

    def rows(self, step: int) -> deque[Sample]:
        return self.series.fine if step == 1 else self.series.coarse


class AddedUp:
    """All series as points of one or of ten seconds."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._read_at: float | None = None

    def wanted(self, now: float) -> float:
        """How many past seconds to ask the nodes for."""
        return REACH_SECONDS if self._read_at is None else min(REACH_SECONDS, now - self._read_at + OVERLAP_SECONDS)

    def read(self, now: float, answers: list[dict[str, Any]]) -> None:
        """Add the nodes' answers."""
        self._read_at = now
        for answer in answers:
            name, shift = answer.get("node", ""), now - answer["now"]
            node = self._nodes.get(name)
            if node is None or abs(node.shift - shift) > CLOCK_SECONDS:  # Its machine was started again.
                while len(self._nodes) >= NODES_MOST:
                    del self._nodes[next(iter(self._nodes))]
                node = self._nodes[name] = _Node(shift)
            node.series.take_in(map(Sample._make, answer["fine"]), map(Sample._make, answer["coarse"]))

    def points(self, now: float, step: int, after: float) -> dict[str, Any]:
        """Points of ``step`` seconds that end after ``after`` (this process's time) and by ``now``.

        A point is ``[time, tasks per second by function, failed per second, calls per second, running, queued, waiting for arguments, CPU
        share, CPUs used, memory share, store, on disk, bytes per second between nodes]``, or ``[time, None]`` without a sample.
        """
        last = int(now) // step * step
        first = max(int(after) // step * step + step, last - (STEPS[step] - 1) * step)
        places = [(node, list(_spread(node, step, first, last))) for node in self._nodes.values()]
        points = [_point(time, [rows[number] for _, rows in places]) for number, time in enumerate(range(first, last + 1, step))]
        return {"step": step, "now": now, "last": last, "points": points}


def _spread(node: _Node, step: int, first: int, last: int) -> list[Sample | None]:
    """A node's sample for each point: the one that covers it, or the one before."""
    begin = first - node.shift - step - HELD_SECONDS
    recent = [each for each in node.rows(step) if each.at >= begin]
    found: list[Sample | None] = []
    place = 0
    for time in range(first, last + 1, step):
        moment = time - node.shift
        while place < len(recent) and recent[place].at < moment:
            place += 1
        within = recent[place] if place < len(recent) and recent[place].at - recent[place].seconds <= moment else None
        before = recent[place - 1] if place and recent[place - 1].at >= moment - step - HELD_SECONDS else None
        found.append(within or before)
    return found


def _point(time: int, samples: list[Sample | None]) -> list[Any]:
    here = [sample for sample in samples if sample is not None]
    if not here:
        return [time, None]
    functions: Counter[str] = Counter()
    for sample in here:
        for name, many in sample.ended:
            functions[name] += many / sample.seconds  # type: ignore[assignment]
    running, waiting = sum(sample.running for sample in here), sum(sample.waiting for sample in here)
    return [
        time,
        {name: round(rate, 3) for name, rate in functions.items()},
        round(sum(sample.failed / sample.seconds for sample in here), 3),
        round(sum(sample.calls / sample.seconds for sample in here), 3),
        round(running, 2),
        round(max(0.0, sum(sample.unfinished for sample in here) - waiting - running), 2),
        round(waiting, 2),
        round(sum(sample.cpu for sample in here) / len(here), 4),
        round(sum(sample.cpus_used for sample in here), 2),
        round(sum(sample.memory for sample in here) / len(here), 4),
        int(sum(sample.store for sample in here)),
        int(sum(sample.spilled for sample in here)),
        int(sum(sample.copied / sample.seconds for sample in here)),
    ]
