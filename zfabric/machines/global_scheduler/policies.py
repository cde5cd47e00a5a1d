"""Where a spilled task goes: policies over what nodes said of themselves. One small class each; plug in another by name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from zfabric.machines.common.resources import covers
from zfabric.protocol.ids import Address
from zfabric.protocol.options import RESOURCE_UNIT, Demand


class NodeView:
    """A node as its last heartbeat told it, and what was placed there since."""

    __slots__ = ("available", "heard", "mean_seconds", "node", "placed", "queued", "scheduler", "total")

    def __init__(
        self, node: bytes, scheduler: Address, total: Demand, available: Demand, queued: int, mean_seconds: float, heard: float
    ) -> None:
        self.node = node
        self.scheduler = scheduler
        self.total = dict(total)
        self.available = dict(available)
        self.queued = queued
        self.mean_seconds = mean_seconds
        self.heard = heard
        self.placed = 0

    def wait(self, demand: Demand) -> float:
        """Estimated seconds until a task of this demand starts: none if it fits now, else the queue before it, shared by the CPUs."""
        ahead = self.queued + self.placed
        if not ahead and covers(self.available, demand):
            return 0.0
        return (ahead + 1) * self.mean_seconds / max(1.0, self.total.get("CPU", 0) / RESOURCE_UNIT)


class Policy(Protocol):
    """How a node is chosen."""

    def choose(self, demand: Demand, nodes: Sequence[NodeView], inputs: Mapping[bytes, float]) -> bytes | None:
        """The node for a task, None for no node at all.

        ``nodes`` are those that could ever run it, in the order of their ids; ``inputs`` the estimated seconds that each
        would take to fetch what the task reads (a node not named has it all).
        """


class LeastWait:
    """The node where the task can start soonest: its queue and the transfer of its inputs go on at once, so the longer counts.

    The paper's policy (section 4.2.2). Of equals, the one with less ahead, then the one whose id comes first.
    """

    def choose(self, demand: Demand, nodes: Sequence[NodeView], inputs: Mapping[bytes, float]) -> bytes | None:
        """The node with the least estimated time to start."""
        best = min(
            nodes,
            key=lambda node: (max(node.wait(demand), inputs.get(node.node, 0.0)), node.queued + node.placed, node.node),
            default=None,
        )
        return best.node if best else None


class Spread:
    """The node with the least ahead per CPU, whatever its tasks take: even loads, for tasks that are all alike or all unknown."""

    def choose(self, demand: Demand, nodes: Sequence[NodeView], inputs: Mapping[bytes, float]) -> bytes | None:
        """The least loaded node."""
        best = min(nodes, key=lambda node: ((node.queued + node.placed) / max(1, node.total.get("CPU", 0)), node.node), default=None)
        return best.node if best else None


class RandomFeasible:
    """Any node that could run it, by the seed: the baseline that a better policy has to beat."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draws = 0

    def choose(self, demand: Demand, nodes: Sequence[NodeView], inputs: Mapping[bytes, float]) -> bytes | None:
        """A node by lot. (The lot is a hash of the seed and the number of the draw: machines have no randomness of their own.)"""
        self._draws += 1
        digest = hashlib.blake2b(f"{self._seed} {self._draws}".encode(), digest_size=8).digest()
        return nodes[int.from_bytes(digest, "big") % len(nodes)].node if nodes else None
