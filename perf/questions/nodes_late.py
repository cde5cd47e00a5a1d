"""How much longer than they must do tasks take that wait at one node while two others join?

Their home has no CPUs, as a machine that only submits. When they must end follows from when each node had joined.
"""

from __future__ import annotations

import heapq
import threading
import time
from typing import Any

import zfabric as zf
from perf.question import Aim, Question, Run, Samples
from zfabric.runtime import interface

CPUS = 2
"""CPUs of each node."""


def measure(run: Run) -> dict[str, Samples]:
    """Rounds of 18 tasks of 1 s; the other nodes are started 1 and 2 s later."""
    rounds = [_once(run.pick(18, 6), 1.0 if not run.quick else 0.2) for _ in range(run.repeat)]
    return {"": Samples([late for late, _ in rounds]), "times that a task is given to a node": Samples([given for _, given in rounds])}


def _once(count: int, seconds: float) -> tuple[float, float]:
    with zf.LocalCluster(nodes=1, cpus_per_node=0, object_store_memory=64 * 2**20) as cluster, zf.init(cluster.address):
        cluster.add_node(CPUS)
        task = zf.remote(time.sleep)
        zf.get([task.remote(0.0) for _ in range(CPUS)])  # Its workers have started.
        client: Any = interface.current()
        before = client.query("status")["statistics"]["delegated"]
        began = time.perf_counter()
        joined = [0.0]

        def join() -> None:
            for number in (1, 2):
                time.sleep(max(0.0, number * seconds - (time.perf_counter() - began)))
                cluster.add_node(CPUS)
                joined.append(time.perf_counter() - began)

        joiner = threading.Thread(target=join)
        joiner.start()
        zf.get([task.remote(seconds) for _ in range(count)])
        took = time.perf_counter() - began
        joiner.join()
        given = client.query("status")["statistics"]["delegated"] - before
    return took - least_seconds(joined, count, seconds), given / count


def least_seconds(joined: list[float], count: int, seconds: float) -> float:
    """When the last task can end at the earliest, if each node begins to run tasks when it has joined."""
    free = [at for at in joined for _ in range(CPUS)]
    heapq.heapify(free)
    ends = [heapq.heapreplace(free, free[0] + seconds) + seconds for _ in range(count)]
    return max(ends)


QUESTION = Question(
    "nodes_late",
    "18 tasks of 1 s at a node that cannot run them while nodes join: later than they must end",
    (Aim("", "s", False, 1.0, to_be_done=1.0), Aim("times that a task is given to a node", "", False, 2.0, to_be_done=2.0)),
    measure,
)
