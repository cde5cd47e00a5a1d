"""When tasks leave this node: a global scheduler is asked for nodes where they would start sooner, or could run at all.

A queue asks once its tasks have waited for a while (``spill_after``), or at once if this node will never have what they ask for. The
answer is for a number of tasks, not for certain ones: whatever waits when it comes is given away, from the end of the queue.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.nodes.delegations import Delegations, is_own_work
from zfabric.machines.local_scheduler.records import ShapeQueue
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.placement_requests import PlacementRequests
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address


class Spilling:
    """Queues that have waited long enough, over the shared tables."""

    def __init__(self, tables: Tables, delegations: Delegations, placement_requests: PlacementRequests) -> None:
        self.tables = tables
        self.delegations = delegations
        self.placement_requests = placement_requests
        self._since: dict[int, float] = {}
        """When each queue that has tasks began to wait, or was answered last, by token."""
        self._asked: set[int] = set()
        """Queues that a global scheduler was asked about."""

    def end_of_turn(self, now: float) -> None:
        """Ask about the queues that have waited long enough. Without other nodes there is nothing to ask."""
        if not self.tables.nodes:
            return
        waiting = {queue.token: queue for queue in self.tables.queues.values() if queue.tasks and is_own_work(queue)}
        self._since = {token: self._since.get(token, now) for token in waiting}
        rows = [
            (token, queue.demand, len(queue.tasks))
            for token, queue in waiting.items()
            if token not in self._asked and (queue.feasible is False or now >= self._since[token] + self.tables.config.spill_after)
        ]
        if rows:
            self._asked.update(row[0] for row in rows)
            self.tables.send(self.tables.placer_address, m.Place(tuple(rows)))

    def on_placed(self, now: float, source: Address, message: m.Placed) -> None:
        """Nodes where tasks of some queues are to run."""
        for token, places in message.rows:
            self._asked.discard(token)
            queue = self.tables.queues.get(token)
            if queue is None:
                continue
            if token in self._since:
                self._since[token] = now
            self.placement_requests.answered(queue, bool(places))
            self._give(queue, places, now)

    def _give(self, queue: ShapeQueue, places: m.Rows, now: float) -> None:
        for node_id, count in places:
            node = self.tables.nodes.get(node_id)
            if node is not None and node.process is not None and node.process.ready:
                self.delegations.give(queue, node, count, now)

    def placer_changed(self) -> None:
        """Another global scheduler is asked from now on: what the one before did not answer is asked again."""
        self._asked.clear()

    def next_deadline(self) -> float | None:
        """When the next queue will have waited long enough."""
        if not self.tables.nodes:
            return None
        waiting = [since for token, since in self._since.items() if token not in self._asked]
        return min(waiting) + self.tables.config.spill_after if waiting else None
