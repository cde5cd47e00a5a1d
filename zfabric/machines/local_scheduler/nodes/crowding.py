"""Tasks that wait here for resources that actors, or bundles of placement groups, hold: they are placed anew.

They were sent here, or assigned to this node by their strategy, before the resources were held. An actor may never end, and other nodes may
have room. Tasks of other nodes return to their homes, tasks of this node to the queue from which they were assigned.
"""

from __future__ import annotations

from zfabric.machines.common.resources import covers
from zfabric.machines.local_scheduler.nodes.executions import Executions
from zfabric.machines.local_scheduler.nodes.strategies import Strategies, was_dealt
from zfabric.machines.local_scheduler.tables import Tables

PATIENCE = 0.2
"""How long there may be no room: many actors end soon, and global schedulers know by then that there is none (``heartbeats.EVERY``)."""


class Crowding:
    """Looks for such tasks, over the shared tables."""

    def __init__(self, tables: Tables, executions: Executions, strategies: Strategies) -> None:
        self.tables = tables
        self.executions = executions
        self.strategies = strategies
        self.since: dict[int, float] = {}
        """Queues with tasks for which there is no room, by token, and since when."""

    def end_of_turn(self, now: float) -> None:
        """Send away what has waited long enough."""
        queues = [
            queue
            for queue in self.tables.queues.values()
            if queue and queue.group is None and not queue.away and (queue.delegated or was_dealt(queue.strategy))
        ]
        if not queues and not self.since:
            return
        capacity = self.tables.capacity()
        crowded = [queue for queue in queues if not covers(capacity, queue.demand)]
        self.since = {queue.token: self.since.get(queue.token, now) for queue in crowded}
        late = [queue for queue in crowded if now >= self.since[queue.token] + PATIENCE]
        if late:
            self.executions.hand_back([queue for queue in late if queue.delegated], "full")
            for queue in late:
                if not queue.delegated:
                    self.strategies.take_back(queue)

    def next_deadline(self) -> float | None:
        """When the next queue will have waited long enough."""
        return min(self.since.values()) + PATIENCE if self.since else None
