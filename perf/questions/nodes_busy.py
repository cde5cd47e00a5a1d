"""How long do small tasks on a third node take while 1 GiB moves between the others?

Both cores of a small machine are busy with the encryption then, which two machines would not share.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

import zfabric as zf
from perf.nodes import Nodes
from perf.question import Aim, Question, Run, Samples
from perf.workloads import nothing, tasks_sync

MB = 2**20


def make(size: int) -> Any:
    return np.ones(size, np.uint8)


class Third:
    """The cluster as one on whose third node all tasks run."""

    def __init__(self, nodes: Nodes) -> None:
        self.get = nodes.get
        self._remote = zf.remote(nothing).options(scheduling_strategy=nodes.on(2))

    def remote(self, function: Any) -> Any:
        """The no-op task, there."""
        return self._remote


def measure(run: Run) -> Samples:
    """In turns with and without values on their way from the second node to the first."""
    size, count, few = run.pick(64 * MB, MB), 16, run.pick(500, 10)
    with Nodes(3, store=3 * count * size + 256 * MB) as three:
        three.join()
        third: Any = Third(three)

        def while_values_move() -> float:
            values = [zf.remote(make).options(scheduling_strategy=three.on(1)).remote(size) for _ in range(count)]
            zf.wait(values, num_returns=count, fetch_local=False)
            mover = threading.Thread(target=lambda: [zf.get(value)[-1] for value in values])
            mover.start()
            value = tasks_sync(third, few)
            mover.join()
            return value

        tasks_sync(third, few)
        return run.interleave(while_values_move, "the same while nothing moves", lambda: tasks_sync(third, few))


QUESTION = Question(
    "nodes_busy", "small tasks on a third node while 1 GiB moves", (Aim("", "µs", False, 3, relative=True, to_be_done=4),), measure
)
