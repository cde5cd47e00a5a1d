"""All nodes' time series, added up by the second, for the first screen."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from zfabric.machines.common.time_series import COARSE_OF, COARSE_ROWS, FINE_ROWS, Sample, TimeSeries

REACH_SECONDS = float(COARSE_OF * COARSE_ROWS)
OVERLAP_SECONDS = 20.0
"""Seconds that are read again, since a node may have been silent."""
HELD_SECONDS = 3.0
"""Seconds for which a sample also stands for later moments: nodes do not sample at once."""
CLOCK_SECONDS = 1.0
"""A node's clock that changes by more, beyond what the time for the answer explains, is another clock."""
OVERLAPS_MOST = 3
"""Most samples that overlap a point's time: none is shorter than 0.95 of it."""
STEPS = {1: FINE_ROWS, COARSE_OF: COARSE_ROWS}
"""Seconds of a point -> most points."""
NODES_MOST = 1_000
"""Most nodes with series, departed ones included."""


Share = tuple[float, Sample]
"""A sample, and the share of a point's time for which it stands."""


class _Node:
    """One node's series. ``shift`` is this process's time less the node's, at least, and ``slack`` by how much more it may be."""

    def __init__(self, shift: float, slack: float) -> None:
        self.shift = shift
        self.slack = slack
        self.series = TimeSeries()

    def has_clock(self, shift: float, slack: float) -> bool:
        """Whether an answer may come from the same clock. The shift of the quickest answer is retained."""
        if shift > self.shift + self.slack + CLOCK_SECONDS or shift + slack < self.shift - CLOCK_SECONDS:
            return False
        if slack < self.slack:
            self.shift, self.slack = shift, slack
        return True

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

    def read(self, asked: float, now: float, answers: list[dict[str, Any]]) -> None:
        """Add the nodes' answers to the query of the moment ``asked``."""
        self._read_at = asked
        for answer in answers:
            name, shift, slack = answer.get("node", ""), asked - answer["now"], now - asked
            node = self._nodes.get(name)
            if node is None or not node.has_clock(shift, slack):  # Its machine was started again.
                while len(self._nodes) >= NODES_MOST:
                    del self._nodes[next(iter(self._nodes))]
                node = self._nodes[name] = _Node(shift, slack)
            node.series.take_in(map(Sample._make, answer["fine"]), map(Sample._make, answer["coarse"]))

    def points(self, now: float, step: int, after: float) -> dict[str, Any]:
        """Points of ``step`` seconds that end after ``after`` (this process's time) and by ``now``.

        A point is ``[time, tasks per second by function, failed per second, calls per second, running, queued, waiting for arguments, CPU
        share, CPUs used, memory share, store, on disk, bytes per second between nodes]``, or ``[time, None]`` without a sample.
        """
        last = int(now) // step * step
        first = max(int(after) // step * step + step, last - (STEPS[step] - 1) * step)
        spread = [_spread(node, step, first, last) for node in self._nodes.values()]
        points = [_point(time, [shares[number] for shares in spread]) for number, time in enumerate(range(first, last + 1, step))]
        return {"step": step, "now": now, "last": last, "points": points}


def _spread(node: _Node, step: int, first: int, last: int) -> list[list[Share]]:
    """For each point the node's samples that overlap its time, else the sample before: each sample's tasks are in the points once."""
    begin = first - node.shift - step - HELD_SECONDS
    recent = [each for each in node.rows(step) if each.at >= begin]
    found: list[list[Share]] = []
    place = 0
    for time in range(first, last + 1, step):
        end = time - node.shift
        while place < len(recent) and recent[place].at <= end - step:
            place += 1
        within = [(min(each.at, end) - max(each.at - each.seconds, end - step), each) for each in recent[place : place + OVERLAPS_MOST]]
        within = [share for share in within if share[0] > 0.0]
        if not within and place and recent[place - 1].at >= end - step - HELD_SECONDS:
            within = [(1.0, recent[place - 1])]
        covered = sum(seconds for seconds, _ in within)
        found.append([(seconds / covered, each) for seconds, each in within])
    return found


def _point(time: int, nodes: list[list[Share]]) -> list[Any]:
    here = [share for shares in nodes for share in shares]
    if not here:
        return [time, None]
    functions: Counter[str] = Counter()
    for share, sample in here:
        for name, many in sample.ended:
            functions[name] += share * many / sample.seconds  # type: ignore[assignment]

    def total(of: Callable[[Sample], float]) -> float:
        return sum(share * of(sample) for share, sample in here)

    answering = sum(map(bool, nodes))
    running, waiting = total(lambda sample: sample.running), total(lambda sample: sample.waiting)
    return [
        time,
        {name: round(rate, 3) for name, rate in functions.items()},
        round(total(lambda sample: sample.failed / sample.seconds), 3),
        round(total(lambda sample: sample.calls / sample.seconds), 3),
        round(running, 2),
        round(max(0.0, total(lambda sample: sample.unfinished) - waiting - running), 2),
        round(waiting, 2),
        round(total(lambda sample: sample.cpu) / answering, 4),
        round(total(lambda sample: sample.cpus_used), 2),
        round(total(lambda sample: sample.memory) / answering, 4),
        round(total(lambda sample: sample.store)),
        round(total(lambda sample: sample.spilled)),
        round(total(lambda sample: sample.copied / sample.seconds)),
    ]
