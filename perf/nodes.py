"""Clusters of several nodes on this machine, for questions: real daemons, and what is sent between them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import zfabric as zf
from perf import machine
from perf.peers.zfabric import Zfabric
from perf.workloads import nothing
from zfabric.runtime import interface
from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ALLOWED = {
    "RenewLease",
    "LeaseRenewed",
    "Heartbeat",
    "RegisterNode",
    "Ready",
    "NodeTable",
    "Join",
    "Joined",
    "JobGone",
    "EndJob",
    "NewJob",
    "JobNumber",
    "EndsReceived",
}
"""Messages that nodes send each other whatever a program does: leases, heartbeats, and that nodes and jobs begin and end.

A home may acknowledge the ends of tasks long after them, those of ``Nodes.join`` too. That it gives tasks to others shows in ``Delegate``.
"""
PATIENCE = 120.0
"""Seconds until something that should happen is taken to have failed."""


class Nodes(Zfabric):
    """A cluster of some nodes of one CPU each. A program is connected with one cluster at a time: ``join`` says with which."""

    def __init__(self, count: int, cpus: int = 1, store: int = 256 * 2**20, **config: Any) -> None:
        self.cluster = zf.LocalCluster(nodes=count, cpus_per_node=cpus, object_store_memory=store, config=config)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.cluster.shutdown()

    def join(self) -> None:
        """Connect this program with the cluster, and wait until all nodes have run something."""
        zf.shutdown()
        zf.init(self.cluster.address, log_to_driver=False)
        zf.get([zf.remote(nothing).options(scheduling_strategy=self.on(node)).remote() for node in range(len(self.cluster.nodes))])

    def on(self, node: int) -> NodeAffinitySchedulingStrategy:
        """The strategy of tasks that run on this node, counted from 0."""
        return NodeAffinitySchedulingStrategy(self.cluster.nodes[node].node_id, soft=False)

    def roles_of(self, node: int) -> dict[int, str]:
        """The processes of one node, by role."""
        supervisor = self.cluster.nodes[node].pid
        return {pid: machine.process_name(pid).removeprefix("zf-") for pid in (supervisor, *machine.descendants(supervisor))}

    def roles(self) -> dict[int, str]:
        """The processes of all nodes, by role."""
        return {pid: role for node in range(len(self.cluster.nodes)) for pid, role in self.roles_of(node).items()}

    def process(self, node: int, role: str) -> int:
        """The process of a node with this role."""
        return next(pid for pid, found in self.roles_of(node).items() if found == role)

    def sent(self) -> Counter[str]:
        """Messages that the daemon of the first node has sent to those of other nodes, by type."""
        client: Any = interface.current()
        found = client.query("status")["statistics"]
        return Counter({name.removeprefix("to_nodes_"): int(count) for name, count in found.items() if name.startswith("to_nodes_")})


class Elsewhere(Zfabric):
    """The same cluster as one on whose second node all tasks run."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def remote(self, function: Any) -> Any:  # type: ignore[override]
        """A remote function whose calls run on the second node."""
        return zf.remote(function).options(scheduling_strategy=self._nodes.on(1))

    def here(self, function: Any) -> Any:
        """A remote function whose calls run on the first node."""
        return zf.remote(function).options(scheduling_strategy=self._nodes.on(0))


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for the first true value of ``condition``, and return it. Raises TimeoutError."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.002)  # conditions concern other processes
    return found


def cpu_us(system: Nodes, count: int, work: Callable[[], Any]) -> float:
    """CPU time of all processes of a cluster, and of this one, in µs for each of ``count`` units of work, all consequences included."""
    pids = [os.getpid(), *system.roles()]
    machine.wait_until_quiet(pids)
    before = {pid: machine.cpu_seconds(pid) for pid in pids}
    work()
    machine.wait_until_quiet(pids)
    return sum(machine.cpu_seconds(pid) - before[pid] for pid in pids) / count * 1e6
