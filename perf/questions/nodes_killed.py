"""How long after a node was killed do its tasks run elsewhere, and how fast are values made again that were lost with it?

The lease is two seconds: until it has run out, nobody may say that the node is dead.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import zfabric as zf
from perf.nodes import Nodes, until
from perf.question import Aim, Question, Run, Samples
from perf.workloads import nothing
from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy

LEASE = 2.0
LARGE = 9_000
"""Numbers in a value: more than an inline value has."""


def begun(directory: str, name: str) -> None:
    """Make a file, named after this task and the time, and stay."""
    Path(directory, f"{name} {time.monotonic()}").touch()
    time.sleep(3600)  # until it is killed or cancelled


def make(number: int) -> Any:
    return np.full(LARGE, number)


def measure(run: Run) -> dict[str, Samples]:
    """A node of its own is added and killed for each sample."""
    count = run.pick(10_000, 50)
    samples = {"kill to second start": Samples([]), "lost objects": Samples([], "making them first")}
    with Nodes(1, store=max(64 * 2**20, 3 * count * LARGE * 8), node_lease=LEASE) as system:
        system.join()
        for _ in range(run.repeat):
            samples["kill to second start"].values.append(_second_start(system))
            first, again = _rebuilt(system, count)
            samples["lost objects"].values.append(count / again)
            samples["lost objects"].floor_values.append(count / first)
    return samples


def _added(system: Nodes) -> Any:
    """Another node, to which the first one can give tasks."""
    node = system.cluster.add_node()
    zf.get(zf.remote(nothing).options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)).remote())
    return node


def _second_start(system: Nodes) -> float:
    node = _added(system)
    with tempfile.TemporaryDirectory() as directory:
        task = (
            zf.remote(begun).options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=True)).remote(directory, "task")
        )
        until(lambda: list(Path(directory).iterdir()), "the task runs")
        killed = time.monotonic()
        node.kill()
        until(lambda: len(list(Path(directory).iterdir())) == 2, "it runs again")
        zf.cancel(task, force=True)
        return max(float(path.name.split()[1]) for path in Path(directory).iterdir()) - killed


def _rebuilt(system: Nodes, count: int) -> tuple[float, float]:
    """Seconds in which values are made on a node, and again after it was lost, its death not counted."""
    node = _added(system)
    soft = NodeAffinitySchedulingStrategy(node.node_id, soft=True)
    begin = time.perf_counter()
    refs = [zf.remote(make).options(scheduling_strategy=soft).remote(number) for number in range(count)]
    zf.wait(refs, num_returns=count, fetch_local=False)
    first = time.perf_counter() - begin
    node.kill()
    until(
        lambda: len(zf.nodes()) == len(system.cluster.nodes) - len([each for each in system.cluster.nodes if not each.alive()]),
        "it is dead",
    )
    begin = time.perf_counter()
    values = zf.get(refs, timeout=300)
    again = time.perf_counter() - begin
    if [int(value[-1]) for value in values] != list(range(count)):
        raise RuntimeError("lost values came back wrong")
    return first, again


QUESTION = Question(
    "nodes_killed",
    "a node is killed: its tasks run elsewhere, its values are made again",
    (
        Aim("kill to second start", "s", False, LEASE + 1, to_be_done=LEASE + 1),
        Aim("lost objects", "objects/s", True, 0.5, relative=True, to_be_done=0.3),
    ),
    measure,
    seconds_max=600,
)
