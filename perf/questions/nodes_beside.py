"""Does a program that needs one node run slower where there are others?

On a node of three in turns with the same node alone. Nothing but leases, heartbeats and the job's beginning and end may be sent to others:
that is checked.
"""

from __future__ import annotations

from collections.abc import Callable

from perf.nodes import ALLOWED, Nodes
from perf.question import Aim, Question, Run, Samples
from perf.workloads import WORKLOADS

FLOOR = "the same node alone"
FIGURES = {"tasks_async": ("tasks/s", True), "tasks_sync": ("µs", False), "actor_async": ("calls/s", True), "put_small": ("puts/s", True)}


def measure(run: Run) -> dict[str, Samples]:
    """Each workload in turns on the two clusters; a sample is the second of two passes, the first being for the warmth of its cluster."""

    def once(system: Nodes, name: str) -> Callable[[], float]:
        work = WORKLOADS[name]

        def sample() -> float:
            system.join()
            work.run(system, work.quick)
            before = system.sent()
            value = work.run(system, run.pick(work.size, work.quick))
            sent = system.sent() - before
            if set(sent) - ALLOWED:
                raise RuntimeError(f"{name} needs no other node, and sent to others: {dict(sent)}")
            return value

        return sample

    config = {"spill_after": 60.0} if run.quick else {}  # On a busy machine a no-op task may take long enough to be worth sending.
    with Nodes(3, **config) as three, Nodes(1, **config) as alone:
        return {name: run.interleave(once(three, name), FLOOR, once(alone, name)) for name in FIGURES}


QUESTION = Question(
    "nodes_beside",
    "a program that needs one node, on a node of three",
    tuple(
        Aim(name, unit, more, 0.97 if more else 1.03, relative=True, to_be_done=0.95 if more else 1.05)
        for name, (unit, more) in FIGURES.items()
    ),
    measure,
)
