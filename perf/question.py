"""What a question is, and what becomes of its samples.

A question names the figures it answers with, and what is wanted of each (``Aim``); its ``measure`` takes samples (``Samples``) of
each, its floor and its peers in turns, so that what disturbs the machine disturbs all of them. Figures are medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perf import peers
from perf.floors import Echo
from perf.workloads import WORKLOADS

if TYPE_CHECKING:
    from perf.peers.zfabric import Zfabric

WORKERS = 2
"""Workers of every cluster: the budgets were set for two cores."""
PEER_ROUNDS = 3
"""Rounds in which peers take part: each starts and stops them, which takes some of them seconds."""


Measure = Callable[[], float]
"""Takes one sample."""


@dataclass(frozen=True)
class Aim:
    """One figure of a question: its unit, which way is better, and what is wanted of it."""

    figure: str
    """What it is among the question's figures; empty for the only one."""
    unit: str
    more_is_better: bool
    budget: float | None = None
    """What it should come to; None where nothing was promised."""
    relative: bool = False
    """Whether the budget is one of the ratio to the floor."""
    to_be_done: float | None = None
    """What it must come to at least, where that is not what follows from the budget."""

    @property
    def bound(self) -> float | None:
        """The bound of its figure: half of a rate, 1.4 times a time or a size, by default."""
        if self.budget is None or self.to_be_done is not None:
            return self.to_be_done
        return self.budget * (0.5 if self.more_is_better else 1.4)

    def verdict(self, value: float, ratio: float | None) -> str:
        """One of "within budget", "within bound" and "missed"; empty where nothing was promised or there is no floor to compare with."""
        judged = ratio if self.relative else value
        if self.budget is None or self.bound is None or judged is None:
            return ""
        for limit, text in ((self.budget, "within budget"), (self.bound, "within bound")):
            if judged >= limit if self.more_is_better else judged <= limit:
                return text
        return "missed"


@dataclass
class Samples:
    """What was measured of one figure: values of ours, of the floor (in the same unit) and of each peer."""

    values: list[float]
    floor: str = ""
    floor_values: list[float] = field(default_factory=list)
    peers: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def joined(cls, figures: Iterable[dict[str, Any]]) -> Samples:
        """Those of one figure in several reports."""
        whole = cls([])
        for figure in figures:
            whole.values += figure["samples"]
            if figure["floor"] is not None:
                whole.floor = figure["floor"]["what"]
                whole.floor_values += figure["floor"]["samples"]
            for name, peer in figure["peers"].items():
                whole.peers.setdefault(name, []).extend(peer["samples"])
        return whole

    def figure(self, aim: Aim) -> dict[str, Any]:
        """The figure as a report has it."""
        value = statistics.median(self.values)
        floor = statistics.median(self.floor_values) if self.floor_values else None
        ratio = value / floor if floor else None
        others = {}
        for name, values in self.peers.items():
            other = statistics.median(values)
            better = value / other if aim.more_is_better else other / value
            others[name] = {"value": other, "times_better": better, "samples": values}
        return {
            "figure": aim.figure,
            "unit": aim.unit,
            "value": value,
            "low": min(self.values),
            "high": max(self.values),
            "samples": self.values,
            "floor": {"what": self.floor, "value": floor, "samples": self.floor_values} if floor is not None else None,
            "ratio": ratio,
            "more_is_better": aim.more_is_better,
            "budget": aim.budget,
            "bound": aim.bound,
            "budget_is_ratio": aim.relative,
            "verdict": aim.verdict(value, ratio),
            "peers": others,
        }


@dataclass(frozen=True)
class Run:
    """How a question is to be measured; handed to its ``measure``."""

    repeat: int = 5
    quick: bool = False
    peers: Mapping[str, str] = field(default_factory=dict)
    """The interpreters of the peers that take part, by peer."""

    def pick(self, usual: int, quick: int) -> int:
        """A size: the usual one, or one for a run that only shows that it works."""
        return quick if self.quick else usual

    @contextmanager
    def cluster(self, **options: Any) -> Iterator[Zfabric]:
        """A cluster of two workers with everything on; ``options`` go to ``init``."""
        from perf.peers.zfabric import Zfabric

        system = Zfabric()
        system.start(WORKERS, **options)
        try:
            yield system
        finally:
            system.stop()

    def echo(self, encrypted: bool = False) -> Echo:
        """The floor of what is sent from process to process, as a context manager."""
        return Echo(encrypted, self.quick)

    def compare(self, workload: str, system: Zfabric, floor: str, floor_once: Measure) -> Samples:
        """A workload on ``system``, the floor and the peers that offer the workload, in turns."""
        work = WORKLOADS[workload]
        size = self.pick(work.size, work.quick)
        if not work.cold:
            work.run(system, work.quick)  # code is loaded, functions are exported, workers know how long a task takes
        return self.interleave(lambda: work.run(system, size), floor, floor_once, lambda: self.ask_peers(workload))

    def interleave(self, once: Measure, floor: str, floor_once: Measure | None, ask: Callable[[], Mapping[str, float]] = dict) -> Samples:
        """Samples of ours by ``once``, of the floor (if there is one) and of peers by ``ask``, in turns."""
        samples = Samples([], floor)
        for turn in range(self.repeat):
            samples.values.append(once())
            if floor_once is not None:
                samples.floor_values.append(floor_once())
            if turn < PEER_ROUNDS:
                for name, value in ask().items():
                    samples.peers.setdefault(name, []).append(value)
        return samples

    def ask_peers(self, workload: str) -> dict[str, float]:
        """One sample of the workload from each peer that offers it, each in a process of its own."""
        work = WORKLOADS[workload]
        found = {}
        for name in self.peers.keys() & work.peers.keys():
            size = self.pick(work.peers[name], work.quick)
            found[name] = peers.sample(name, self.peers[name], workload, size, 0 if work.cold else work.quick, WORKERS)
        return found


@dataclass(frozen=True)
class Question:
    """A question: its name, the question in words, the figures it is answered with, and how they are measured."""

    name: str
    asks: str
    aims: tuple[Aim, ...]
    measure: Callable[[Run], Mapping[str, Samples] | Samples]
    """Samples by figure, one for each aim; just the samples where there is one figure."""
    seconds_max: float = 300.0
    """When an answer is no longer waited for."""
    apart: bool = False
    """Whether "all" leaves it out: it needs an environment of its own. Some of its figures may be missing."""

    def answer(self, run: Run) -> dict[str, Any]:
        """Measure; the result as a report has it."""
        begin = time.perf_counter()
        measured = self.measure(run)
        samples = {"": measured} if isinstance(measured, Samples) else measured
        figures = [samples[aim.figure].figure(aim) for aim in self.aims if aim.figure in samples or not self.apart]
        return {"question": self.name, "asks": self.asks, "seconds": time.perf_counter() - begin, "figures": figures, "error": ""}

    def together(self, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One result of several that were measured apart: figures of all their samples. One that failed stays a failure."""
        seconds = sum(result["seconds"] for result in results)
        error = "\n".join(result["error"] for result in results if result["error"])
        sound = [result["figures"] for result in results if not result["error"]]
        figures = []
        for aim in self.aims:
            if parts := [figure for result in sound for figure in result if figure["figure"] == aim.figure]:
                figures.append(Samples.joined(parts).figure(aim))
        return {"question": self.name, "asks": self.asks, "seconds": seconds, "figures": figures, "error": error}

    def failed(self, error: str) -> dict[str, Any]:
        """The result where there is none."""
        return {"question": self.name, "asks": self.asks, "seconds": 0.0, "figures": [], "error": error}
