"""How long does it take until ``LocalCluster(3)`` is ready?"""

from __future__ import annotations

import time

import zfabric as zf
from perf import floors
from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """From the call to its return, all nodes having joined; in turns with a bare interpreter."""
    return run.interleave(_once, "one interpreter that does nothing, start to end", lambda: floors.interpreter_ms() / 1e3)


def _once() -> float:
    begin = time.perf_counter()
    with zf.LocalCluster(nodes=3, cpus_per_node=1, object_store_memory=64 * 2**20):
        return time.perf_counter() - begin


QUESTION = Question(
    "nodes_ready", "three nodes on this machine, until all have joined", (Aim("", "s", False, 1.2, to_be_done=1.8),), measure
)
