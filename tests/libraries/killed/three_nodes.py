"""Three nodes on this machine, whose processes note themselves, and of which a worker and then a node are killed."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.cluster_utils import Cluster

NOTES = 3
"""How often a worker has noted itself before it is killed: by then it has reported something."""


class ThreeNodes:
    """What a program knows of its cluster. It is pickled with functions that note their process."""

    def __init__(self) -> None:
        self.notes = tempfile.mkdtemp(prefix="notes-")
        self.times = 0

    def note(self) -> None:
        """Say that this process is at work, and where."""
        self.times += 1
        path = os.path.join(self.notes, str(os.getpid()))
        with open(f"{path}.new", "w") as file:
            file.write(f"{ray.get_runtime_context().get_node_id()} {self.times}")
        os.replace(f"{path}.new", path)

    def at_work(self) -> dict[int, str]:
        """The processes that live and have noted themselves ``NOTES`` times, with their nodes."""
        found = {}
        for name in os.listdir(self.notes):
            if name.isdecimal() and os.path.exists(f"/proc/{name}"):
                with open(os.path.join(self.notes, name)) as file:
                    node, times = file.read().split()
                if int(times) >= NOTES:
                    found[int(name)] = node
        return found


def kill_one_and_then_a_node(nodes: ThreeNodes, cluster: Cluster, workers: int) -> None:
    """Wait for so many workers, kill one, wait until there are as many again, and kill a node on which one is at work."""
    _await(lambda: len(nodes.at_work()) >= workers)
    victim = min(nodes.at_work())
    os.kill(victim, signal.SIGKILL)
    print("killed a worker", flush=True)
    head = ray.get_runtime_context().get_node_id()
    _await(lambda: victim not in nodes.at_work() and len(nodes.at_work()) >= workers and _elsewhere(nodes, head))
    node = next(each for each in cluster.list_all_nodes() if each.node_id in _elsewhere(nodes, head))
    cluster.remove_node(node, allow_graceful=False)
    print("killed a node", flush=True)


def _elsewhere(nodes: ThreeNodes, head: str) -> set[str]:
    return {node for node in nodes.at_work().values() if node != head}


def _await(condition) -> None:  # type: ignore[no-untyped-def]
    while not condition():
        time.sleep(0.05)


@contextmanager
def three_nodes(workers: int) -> Iterator[ThreeNodes]:
    """Run the body in a cluster of three nodes of one CPU, while a worker and a node are killed. Both must have happened at its end."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address)
    cluster.wait_for_nodes()
    nodes = ThreeNodes()
    killer = threading.Thread(target=kill_one_and_then_a_node, args=(nodes, cluster, workers), daemon=True)
    killer.start()
    yield nodes
    assert not killer.is_alive(), "the program ended before a node was killed"
    ray.shutdown()
    cluster.shutdown()
