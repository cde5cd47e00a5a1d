"""Policies that choose a node for a spilled task from the nodes' heartbeats. One small class each; another can be plugged in by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from zfabric.machines.common.resources import covers
from zfabric.protocol.ids import Address
from zfabric.protocol.options import RESOURCE_UNIT, Demand


class NodeView:
    """A node as of its last heartbeat, and what was placed there since."""

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

    @property
    def load(self) -> float:
        """Tasks ahead of a new one, per CPU."""
        return (self.queued + self.placed) / max(1.0, self.total.get("CPU", 0) / RESOURCE_UNIT)


class Policy(Protocol):
    """How a node is chosen."""

    def choose(self, demand: Demand, nodes: Sequence[NodeView], inputs: Mapping[bytes, float]) -> bytes | None:
        """The node for a task, None for no node at all.

        ``nodes`` are those that could ever run it, in the order of their ids; ``inputs`` the estimated seconds that each
        would take to fetch what the task reads (a node not named has it all).
        """


class LeastWait:
    """Choose the node where the task can start soonest. Its queue and the transfer of its inputs overlap, so the longer counts.

    The paper's policy (section 4.2.2). Of equals, the one with less ahead, then the one whose id comes first.
    """

    def choose(self, demand: Demand, nodes: Sequence[NodeView], inputs: Mapping[bytes, float]) -> bytes | None:
        """The node with the least estimated time to start."""
        best = min(
            nodes,
            key=lambda node: (max(node.wait(demand), inputs.get(node.node, 0.0)), node.load, node.node),
            default=None,
        )
        return best.node if best else None
