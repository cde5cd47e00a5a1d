"""How fast are 100,000 tasks placed on 100 nodes?

The policy is asked once for all of them, in turns with the paper's way, which asks it for each.
"""

from __future__ import annotations

import time

from perf.question import Aim, Question, Run, Samples
from zfabric.machines.global_scheduler.policies import Batch, LeastWait, NodeView

NODES = 100
DEMAND = (("CPU", 10_000),)


def measure(run: Run) -> Samples:
    """Tasks a second; one by one for a part of them, since that takes half a minute."""
    many, some = run.pick(100_000, 1_000), run.pick(1_000, 10)
    return run.interleave(lambda: _place(many, many), "the policy called for each task", lambda: _place(some, 1))


def _place(count: int, at_once: int) -> float:
    nodes = [
        NodeView(bytes((number,)) * 8, b"", (("CPU", 80_000),), (("CPU", 10_000 * (number % 9)),), number % 7, 0.01)
        for number in range(NODES)
    ]
    policy = LeastWait()
    begin = time.perf_counter()
    for _ in range(0, count, at_once):
        placed = policy.place(Batch(DEMAND, at_once, 0.01, {}), nodes)
        if sum(placed.values()) != at_once:
            raise RuntimeError(f"{sum(placed.values())} of {at_once} tasks were placed")
    return count / (time.perf_counter() - begin)


QUESTION = Question(
    "nodes_placing", "100,000 tasks placed on 100 nodes", (Aim("", "tasks/s", True, 20, relative=True, to_be_done=10),), measure
)
