"""How fast are calls of an actor on another node?

One after the other in turns with a raw round trip over TCP with CURVE, and many under way.
"""

from __future__ import annotations

import time
from typing import Any

import zfabric as zf
from perf.nodes import Nodes
from perf.question import Aim, Question, Run, Samples
from perf.workloads import calls_at_once


class Counter:
    """An actor, as the workloads for actors have it."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count


def make() -> Any:
    """Make an actor on the node where this runs."""
    return zf.remote(Counter).remote()


def measure(run: Run) -> dict[str, Samples]:
    """The actor is on the second of two nodes, the caller on the first."""
    many, few = run.pick(50_000, 200), run.pick(2_000, 20)
    samples = {"one after the other": Samples([], "raw round trip, TCP with CURVE"), "many under way": Samples([])}
    with Nodes(2) as two, run.echo(encrypted=True) as echo:
        two.join()
        counter = zf.get(zf.remote(make).options(scheduling_strategy=two.on(1)).remote())
        calls_at_once(two, counter, many // 10)
        for _ in range(run.repeat):
            samples["one after the other"].values.append(_one_by_one(two, counter, few))
            samples["one after the other"].floor_values.append(echo.round_trip_us(few))
            samples["many under way"].values.append(calls_at_once(two, counter, many))
    return samples


def _one_by_one(system: Nodes, counter: Any, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        system.get(counter.add.remote(1))
    return (time.perf_counter() - begin) / count * 1e6


QUESTION = Question(
    "nodes_actor",
    "calls of an actor on another node",
    (
        Aim("one after the other", "µs", False, 5, relative=True, to_be_done=6),
        Aim("many under way", "calls/s", True, 25_000, to_be_done=12_500),
    ),
    measure,
)
