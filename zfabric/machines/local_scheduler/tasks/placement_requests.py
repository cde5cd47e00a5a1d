"""Demands that this node can never meet: a global scheduler is asked for another node, and the driver is warned."""

from __future__ import annotations

from zfabric.machines.common.resources import ResourcePool, describe, describe_node
from zfabric.machines.local_scheduler.records import READY, ShapeQueue
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.options import describe_strategy


class PlacementRequests:
    """Queues whose tasks cannot run on this node, over the shared tables."""

    def __init__(self, tables: Tables, outcomes: Outcomes, pool: ResourcePool) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.pool = pool
        self.unmet = False
        """Whether there is a queue with a demand that this node cannot meet, or may not."""

    def answered(self, queue: ShapeQueue, somewhere: bool) -> None:
        """Tasks of a shape could run on some node, or on none."""
        if self.pool.fits_total(queue.demand):
            return
        if somewhere:
            queue.infeasible_since = None
        elif self.tables.config.infeasible == "raise":
            for task in list(queue):
                if task.state == READY:
                    text = f"no node will ever have what {task.name} asks for: {describe(queue.demand)}"
                    self.outcomes.fail(task, "TaskUnschedulableError", text, ())

    def ask(self, now: float) -> None:
        """Ask for nodes for tasks whose demand exceeds this node's resources."""
        rows = []
        self.unmet = False
        for queue in self.tables.queues.values():
            if queue.away:
                self.unmet |= queue.infeasible_since is not None
                continue  # Its tasks are dealt out by their strategy.
            if queue.feasible is None:
                queue.feasible = queue.pool.fits_total(queue.demand)
            if queue.feasible:
                continue
            self.unmet = True
            if not queue.drop_stale():  # Nothing else takes out those that were stopped.
                queue.infeasible_since = None
                continue
            if queue.infeasible_since is None:
                queue.infeasible_since = now
            if (not queue.placed or self.tables.config.infeasible == "raise") and not self.tables.nodes:  # Else all that wait ask.
                queue.placed = True
                rows.append((queue.token, queue.demand, len(queue), 0.0, ()))
        if rows:
            self.tables.send(self.tables.placers[0], m.Place(tuple(rows)))

    def next_deadline(self) -> float | None:
        """When the next driver is to be warned."""
        waiting = [
            queue.infeasible_since
            for queue in self.tables.queues.values()
            if not queue.feasible and queue.infeasible_since is not None and not queue.warned
        ]
        return min(waiting) + self.tables.config.infeasible_warning if waiting else None

    def tick(self, now: float) -> None:
        """Warn drivers, once per demand."""
        for queue in self.tables.queues.values():
            since = queue.infeasible_since
            if since is None or queue.warned or now < since + self.tables.config.infeasible_warning:
                continue
            task = next((task for task in queue if task.state == READY), None)
            if task is None:
                continue  # All of them were stopped in this turn: warn of the next one.
            queue.warned = True
            driver = queue.job.driver
            if driver is not None:
                where = describe_strategy(queue.strategy)
                text = (
                    f"{task.name} asks for {describe(queue.demand)}{where and ' '}{where}, which no node has "
                    f"(this one has {describe_node(tuple(sorted(self.pool.total.items())))}); it stays pending until one joins that does. "
                    "Ask for less, add a node that has it, or set config infeasible='raise' to get an error instead."
                )
                self.tables.send_to_client(driver, m.Notice("warning", text))
