"""How a node has done, as a time series: one sample per second for ten minutes, then one per ten seconds for two hours.

A daemon retains it, so that a page opened late shows what was before. A sample takes a tenth of a millisecond and about a kilobyte. The
page has a copy for each node, and adds them up.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

FINE_ROWS = 600
COARSE_OF = 10
"""Samples that become one."""
COARSE_ROWS = 720
FUNCTIONS_MOST = 8
"""Most functions that a sample names, those with the most tasks; others are under the empty name."""
FUNCTIONS_COUNTED = 2_000
"""With more functions, a sample has only the sum: its cost is bounded."""
NAME_MOST = 100
"""Most characters of a function's name."""


class Sample(NamedTuple):
    """What a node did in the ``seconds`` until ``at``, by its clock, and how it was then. Sizes are in bytes."""

    at: float
    seconds: float
    ended: tuple[tuple[str, int], ...]
    """Ended tasks by function; those of other functions under the empty name."""
    failed: int
    calls: int
    running: float
    """Workers that ran a task."""
    unfinished: float
    """Tasks at home here that had not ended, running ones here or elsewhere included."""
    waiting: float
    """Those that waited for arguments."""
    cpu: float
    """Busy share of the processors."""
    cpus_used: float
    """CPUs that tasks and actors held."""
    memory: float
    store: float
    spilled: float
    """Bytes of values on disk."""
    copied: int


MEANS = ("running", "unfinished", "waiting", "cpu", "cpus_used", "memory", "store", "spilled")
"""Fields whose mean is taken when samples become one."""


def merged(samples: list[Sample]) -> Sample:
    """One sample for several that follow each other."""
    ended: Counter[str] = Counter()
    for sample in samples:
        ended.update(dict(sample.ended))
    seconds = sum(sample.seconds for sample in samples)
    means = {name: sum(getattr(sample, name) * sample.seconds for sample in samples) / seconds for name in MEANS}
    sums = {name: sum(getattr(sample, name) for sample in samples) for name in ("failed", "calls", "copied")}
    return Sample(at=samples[-1].at, seconds=seconds, ended=largest(ended), **means, **sums)


def largest(ended: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The functions with the most tasks, and the others under the empty name."""
    counts = {name[:NAME_MOST]: many for name, many in ended.items() if name and many > 0}
    named = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    others = max(0, ended.get("", 0)) + sum(many for _, many in islice(named, FUNCTIONS_MOST, None))
    return (*named[:FUNCTIONS_MOST], *((("", others),) if others else ()))


class TimeSeries:
    """The samples of one node."""

    def __init__(self) -> None:
        self.fine: deque[Sample] = deque(maxlen=FINE_ROWS)
        self.coarse: deque[Sample] = deque(maxlen=COARSE_ROWS)
        self._since: list[Sample] = []
        """Samples for the next thinned one."""

    def add(self, sample: Sample) -> None:
        """Add the newest sample."""
        self.fine.append(sample)
        self._since.append(sample)
        if len(self._since) == COARSE_OF:
            self.coarse.append(merged(self._since))
            self._since = []

    def after(self, at: float) -> tuple[list[Sample], list[Sample]]:
        """Samples of full resolution, and thinned ones, that ended after a time."""
        return [each for each in self.fine if each.at > at], [each for each in self.coarse if each.at > at]

    def take_in(self, fine: Iterable[Sample], coarse: Iterable[Sample]) -> None:
        """Add what another series of this node has more."""
        for rows, new in ((self.fine, fine), (self.coarse, coarse)):
            last = rows[-1].at if rows else float("-inf")
            rows.extend(each for each in new if each.at > last)
