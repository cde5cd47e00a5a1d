"""Heartbeats: resources and queues, reported to global schedulers."""

from __future__ import annotations

from collections import Counter

from zfabric.machines.local_scheduler.due import HEARTBEATS
from zfabric.machines.local_scheduler.records import ShapeQueue
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.checks import SIZE_MAX
from zfabric.protocol.ids import Address
from zfabric.protocol.options import Demand

ALONE_EVERY = 1.0
"""Least seconds between heartbeats in a cluster of one."""
EVERY = 0.1
"""Least seconds among other nodes: about the length of a queue of short tasks."""
PER_SECOND = 1000
"""Most heartbeats per second for a global scheduler, from all nodes: a few percent of a core."""


class Heartbeats:
    """Sends heartbeats."""

    def __init__(self, tables: Tables, outcomes: Outcomes) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self._sent: dict[Address, tuple[int, m.Heartbeat]] = {}
        """The last heartbeat to each, with the restarts of its daemon: a new one has none."""
        self._placers: tuple[Address, ...] = ()
        """``Tables.placers`` then: another tuple is another table of nodes."""
        self._received = 0
        """Delegated tasks received by the last heartbeat."""
        self._next_at = 0.0
        self._pending = False
        """Whether news waits until ``_next_at``."""

    def end_of_turn(self, now: float) -> None:
        """Send news, if the last heartbeat is old or the receiver new."""
        placers = self.tables.cluster.placers
        if now < self._next_at and (placers is self._placers or self._sent.keys() == set(placers)):
            self._pending = bool(self.tables.nodes)
            if self._pending:
                self.tables.deadlines.note(HEARTBEATS, self._next_at)
            return
        self._placers = placers
        nodes = len(self.tables.nodes)
        self._next_at = now + (max(EVERY, nodes / PER_SECOND) if nodes else ALONE_EVERY)
        self._pending = False
        received = self.tables.counts["received_delegated"]
        news = received != self._received  # Even if all have ended: they count as queued there.
        self._received = received
        self._sent = {placer: beat for placer, beat in self._sent.items() if placer in placers}
        beat = self._beat()
        for placer in placers:
            if news or self._sent.get(placer) != (self._restarts_of(placer), beat):
                self._send(placer, beat)

    def send(self, placer: Address) -> None:
        """Send a heartbeat ahead of a question that depends on it."""
        self._send(placer, self._beat())

    def _send(self, placer: Address, beat: m.Heartbeat) -> None:
        self._sent[placer] = self._restarts_of(placer), beat
        self.tables.send(placer, beat)

    def _restarts_of(self, placer: Address) -> int:
        node = self.tables.nodes.get(placer[1:])
        return node.restarts if node is not None else 0

    def _beat(self) -> m.Heartbeat:
        queued, seconds = 0, 0.0
        usual = self.outcomes.usual_seconds
        for queue in self.tables.queues.values():
            if queue:
                count, mean = len(queue), mean_of(queue)
                queued += count
                seconds += count * (usual if mean is None else mean)
        if self.tables.draining:
            return m.Heartbeat(self.tables.cluster.node, (), (), queued, usual)
        total = tuple(sorted(self.tables.pool.total.items()))
        mean = seconds / queued if queued else usual
        return m.Heartbeat(self.tables.cluster.node, total, self.tables.pool.available(), queued, mean, self._lasting())

    def _lasting(self) -> Demand:
        """What actors and bundles hold or wait for, within a message's limit."""
        found = Counter(self.tables.pool.total)
        found.subtract(self.tables.capacity())
        for queue in self.tables.queues.values():
            if queue.actors and queue and queue.pool is self.tables.pool and not queue.away:
                found.update({name: amount * len(queue) for name, amount in queue.demand})
        return tuple(sorted((name, min(amount, SIZE_MAX)) for name, amount in found.items() if amount > 0))

    def next_deadline(self) -> float | None:
        """When news may be sent."""
        return self._next_at if self._pending else None


def mean_of(queue: ShapeQueue) -> float | None:
    """Mean running time of a queue's first and last task; None if unknown."""
    first, last = queue.first.function.mean, queue.last.function.mean
    return None if first is None or last is None else (first + last) / 2
