"""Does a task take longer if its large input is on another node? (The paper's figure 8a.)

Tasks of 10 ms, each with an input of its own on the second node. With placement by bytes they run there, and the size of the input does not
matter. Without, here by an assumed bandwidth for which no input is large, they run at home and wait for it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import zfabric as zf
from perf.nodes import Nodes
from perf.question import Aim, Question, Run, Samples

SMALL = 100_000
SECONDS = 0.01
ANY_BANDWIDTH = 1e18


def make(size: int) -> Any:
    return np.ones(size, np.uint8)


def read(value: Any) -> int:
    time.sleep(SECONDS)  # stands for the work
    return int(value[-1])


def measure(run: Run) -> dict[str, Samples]:
    """Large inputs in turns with small ones, on a cluster of each kind."""
    large, count = run.pick(100_000_000, 1_000_000), run.pick(4, 2)
    samples = {}
    for figure, config in (("placed by bytes", {}), ("placed without regard to bytes", {"node_bandwidth": ANY_BANDWIDTH})):
        with Nodes(2, store=max(256 * 2**20, 3 * count * large), **config) as two:
            two.join()
            _once(two, SMALL, count)
            samples[figure] = run.interleave(
                lambda: _once(two, large, count),
                "the same with inputs of 100 kB",
                lambda: _once(two, SMALL, count),
            )
    return samples


def _once(system: Nodes, size: int, count: int) -> float:
    """ms a task."""
    inputs = [zf.remote(make).options(scheduling_strategy=system.on(1)).remote(size) for _ in range(count)]
    zf.wait(inputs, num_returns=count, fetch_local=False)
    begin = time.perf_counter()
    for ref in inputs:
        zf.get(zf.remote(read).remote(ref))
    return (time.perf_counter() - begin) / count * 1e3


QUESTION = Question(
    "nodes_locality",
    "tasks with an input of 100 MB on another node",
    (
        Aim("placed by bytes", "ms", False, 1.5, relative=True, to_be_done=2),
        Aim("placed without regard to bytes", "ms", False),
    ),
    measure,
)
