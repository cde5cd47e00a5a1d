"""Policies that choose nodes for spilled tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple, Protocol

from zfabric.machines.common.resources import count_fitting
from zfabric.protocol.ids import Address
from zfabric.protocol.options import RESOURCE_UNIT, Demand


class Batch(NamedTuple):
    """Tasks of one demand."""

    demand: Demand
    tasks: int
    seconds: float
    """Of one task; 0 if none has ended."""
    fetch: Mapping[bytes, float]
    """Seconds to fetch a task's inputs, by node (0 if not named)."""


SECONDS_MIN = 1e-6
"""The search needs times that differ."""


class NodeView:
    """A node at its last heartbeat, with placements since."""

    __slots__ = ("available", "lasting", "mean_seconds", "node", "placed", "placed_seconds", "queued", "reported", "scheduler", "total")

    def __init__(
        self, node: bytes, scheduler: Address, total: Demand, available: Demand, queued: int, mean_seconds: float, lasting: Demand = ()
    ) -> None:
        self.node = node
        self.scheduler = scheduler
        self.total = dict(total)
        self.available = dict(available)
        self.queued = queued
        self.reported = lasting
        self.lasting = dict(lasting)
        """What bundles and actors hold, or wait for, with placements since it was ``reported``."""
        self.mean_seconds = mean_seconds
        self.placed = 0
        self.placed_seconds = 0.0
        """Seconds of tasks placed since, but for those that could start at once."""

    @property
    def cpus(self) -> float:
        """CPUs, at least one."""
        return max(1.0, self.total.get("CPU", 0) / RESOURCE_UNIT)

    @property
    def ahead(self) -> int:
        """Tasks ahead of a new one."""
        return self.queued + self.placed

    def place(self, count: int, seconds: float, free: int) -> None:
        """Count placed tasks, ``free`` of which fit at once."""
        self.placed += count
        self.placed_seconds += max(0, count - free) * seconds

    def forget_placed(self) -> None:
        """Return to the node's report."""
        self.lasting = dict(self.reported)
        self.placed, self.placed_seconds = 0, 0.0

    def free_for(self, demand: Demand) -> int:
        """Tasks that could start now: none if others wait."""
        if self.queued:
            return 0
        return max(0, count_fitting(self.available, demand, 0) - self.placed)

    def room_for(self, demand: Demand) -> int:
        """Actors for which others leave room."""
        return min((self.total.get(name, 0) - self.lasting.get(name, 0)) // amount for name, amount in demand if amount > 0)

    def settle(self, demand: Demand) -> None:
        """Count an actor placed here."""
        for name, amount in demand:
            self.lasting[name] = self.lasting.get(name, 0) + amount
        self.placed += 1

    def has_room(self, demand: Demand) -> bool:
        """Whether actors and bundles leave room."""
        return all(self.total.get(name, 0) - self.lasting.get(name, 0) >= amount for name, amount in demand if amount > 0)

    def slots_for(self, demand: Demand) -> int:
        """Tasks that can run at once beside actors."""
        free = ((self.total.get(name, 0) - self.lasting.get(name, 0)) // amount for name, amount in demand if amount > 0)
        return max(1, min(free, default=int(self.cpus)))

    def backlog(self, seconds: float) -> float:
        """Seconds until all that waits has begun; ``seconds`` stands in for a missing average."""
        return (self.queued * (self.mean_seconds or seconds) + self.placed_seconds) / self.cpus


class Policy(Protocol):
    """How nodes are chosen."""

    def place(self, batch: Batch, nodes: Sequence[NodeView]) -> dict[bytes, int]:
        """How many tasks each of ``nodes``, which could run them all, is to run; counted there."""


class LeastWait:
    """Gives each task to the node where it can start soonest: after the queue, or the transfer of inputs if that takes longer.

    The paper's policy (section 4.2.2). Of equals, the node with less ahead per CPU is chosen, then the first. For a large batch, a search
    finds the time by which almost all can have started, and each node receives what it can start by then.
    """

    def place(self, batch: Batch, nodes: Sequence[NodeView]) -> dict[bytes, int]:
        """Place a batch by the least estimated time to start."""
        seconds = max(batch.seconds or max((view.mean_seconds for view in nodes), default=0.0) or 1.0, SECONDS_MIN)
        rooms = [_Room(index, view, batch, seconds) for index, view in enumerate(nodes)]
        left = batch.tasks
        if left > len(nodes) > 0:
            until = _level(rooms, left)
            for room in rooms:
                room.given = room.started_by(until)
                left -= room.given
        heap = [room.next() for room in rooms]
        heapify(heap)
        while left and heap:
            room = rooms[heap[0][2]]
            room.given += 1
            left -= 1
            heapreplace(heap, room.next())
        for room, view in zip(rooms, nodes, strict=True):
            view.place(room.given, seconds, room.free)
        return {view.node: room.given for room, view in zip(rooms, nodes, strict=True) if room.given}


class MostRoom:
    """Gives actors nodes where others leave room; the rest waits, since what actors hold is not soon free.

    Nodes with room at once come first, then those with room for most.
    """

    def place(self, batch: Batch, nodes: Sequence[NodeView]) -> dict[bytes, int]:
        """A node without room has a share of none: the answer names all that could have such actors."""
        found = {view.node: 0 for view in nodes}
        for _ in range(batch.tasks):
            best = max(nodes, key=lambda view: (view.free_for(batch.demand) > 0, view.room_for(batch.demand)))
            if best.room_for(batch.demand) <= 0:
                break
            found[best.node] += 1
            best.settle(batch.demand)
        return found


class _Room:
    __slots__ = ("ahead", "backlog", "cpus", "each", "fetch", "free", "given", "index")

    def __init__(self, index: int, view: NodeView, batch: Batch, seconds: float) -> None:
        self.index = index
        self.free = view.free_for(batch.demand)
        self.backlog = view.backlog(seconds)
        self.each = seconds / view.slots_for(batch.demand)
        """Seconds between two starts, once nothing is free."""
        self.fetch = batch.fetch.get(view.node, 0.0)
        self.cpus, self.ahead = view.cpus, view.ahead
        self.given = 0

    def next(self) -> tuple[float, float, int]:
        """When the next task would start, and what decides between equals."""
        queued = self.given - self.free + 1
        wait = self.backlog + queued * self.each if queued > 0 else 0.0
        return max(wait, self.fetch), (self.ahead + self.given) / self.cpus, self.index

    def started_by(self, time: float) -> int:
        if time < self.fetch:
            return 0
        return self.free + max(0, int((time - self.backlog) / self.each))


def _level(rooms: list[_Room], tasks: int) -> float:
    """A time by which hardly fewer than these tasks, and no more, can start; below 0 if more can at once."""
    low, high = -1.0, max(room.fetch + room.backlog + tasks * room.each for room in rooms)
    precision = min(room.each for room in rooms) / 4
    for _ in range(60):
        if high - low <= precision:
            break
        middle = (low + high) / 2
        if sum(room.started_by(middle) for room in rooms) <= tasks:
            low = middle
        else:
            high = middle
    return low
