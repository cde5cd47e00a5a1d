"""Tasks whose options say where they are to run: on a certain node, on nodes with certain labels, or spread over all of them.

Their queues are *away* while there is a choice: no worker of this node is given their tasks. At the end of each turn the tasks are divided
among the nodes. Those of other nodes are delegated; this node's share moves to a queue of the same shape whose tasks stay here. Without
other nodes, a queue is away only if its tasks do not accept this node.

A node on which actors leave no room for such tasks is passed over. For another node this is known once it has returned some.
"""

from __future__ import annotations

from zfabric.machines.common.resources import ResourcePool, covers, describe
from zfabric.machines.local_scheduler.nodes.delegations import Delegations
from zfabric.machines.local_scheduler.nodes.reclaiming import FULL_SECONDS
from zfabric.machines.local_scheduler.records import READY, NodeRecord, ShapeQueue, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol.options import HERE, NODE_ID, Strategy, accepts, describe_strategy

SOFT_ADVICE = "soft=True runs it elsewhere"
TRIED_MOST = 16
"""Tasks by which a node is tried that had no room."""


class Strategies:
    """Deals out tasks with strategies, over the shared tables."""

    def __init__(self, tables: Tables, pool: ResourcePool, outcomes: Outcomes, delegations: Delegations) -> None:
        self.tables = tables
        self.pool = pool
        self.outcomes = outcomes
        self.delegations = delegations
        self._dealt = 0
        """Number of tasks that were dealt out: the next goes to the node after the last one's."""
        self.holding = False
        """Whether tasks wait since no node has room for them."""

    def end_of_turn(self, now: float) -> None:
        """Deal out the tasks of all queues that are away."""
        self.holding = False
        for queue in [queue for queue in self.tables.queues.values() if queue.away and queue.group is None]:
            if queue.drop_stale():
                self._deal(queue, now)
            else:
                queue.infeasible_since = None

    def _deal(self, queue: ShapeQueue, now: float) -> None:
        only = self.tables.nodes.get(queue.only) if queue.only else None
        if only is not None and not only.draining and _is_able(only, queue) and queue.demand not in only.full:
            queue.infeasible_since = None  # The usual case, and one look-up however many nodes there are.
            self._give(queue, [only], False, now)
            return
        hard = [term for term in queue.strategy if term[0] == "hard"]
        nodes = [node for node in self.tables.nodes.values() if accepts(node.labels, hard) and not node.draining]
        here = accepts(self.tables.labels, hard)
        if not nodes and not here:
            self._nowhere(queue, hard, now)
            return
        others = [node for node in nodes if _is_able(node, queue)]
        if _on_node(hard) and not others and all(map(_is_ready, nodes)) and not (here and self.pool.fits_total(queue.demand)):
            text = f"{describe_strategy(queue.strategy)}, which does not have {describe(queue.demand)}: {SOFT_ADVICE}"
            self._fail(queue, text)
            return
        here = here and (self.pool.fits_total(queue.demand) or not others)
        if not others and not here:
            queue.infeasible_since = now if queue.infeasible_since is None else queue.infeasible_since
            return  # None of them has enough, or has registered yet.
        queue.infeasible_since = None
        soft = [term for term in queue.strategy if term[0] == "soft"]
        able = [*others, *((None,) if here else ())]
        preferred = [node for node in able if accepts(self.tables.labels if node is None else node.labels, soft)]
        if soft and not preferred and any(accepts(node.labels, soft) for node in nodes if not _is_ready(node)):
            return  # A node that they prefer is about to register: it has just joined, or its daemon is restarted.
        roomy = [node for node in preferred if self._has_room(node, queue)]
        second = not roomy and bool(soft)
        if second:
            roomy = [node for node in able if self._has_room(node, queue)]
        self._try(queue, [node for node in able if node is not None and queue.demand in node.full], now)
        if second and here and (None in roomy if hard else roomy):
            self._move(queue, (*HERE, *queue.strategy) if hard else ())
        elif roomy:
            self._give(queue, roomy, here, now)
        self.holding |= not roomy

    def _has_room(self, node: NodeRecord | None, queue: ShapeQueue) -> bool:
        """Whether actors leave room for a task, as far as is known. None stands for this node."""
        return covers(self.tables.capacity(), queue.demand) if node is None else queue.demand not in node.full

    def _try(self, queue: ShapeQueue, full: list[NodeRecord], now: float) -> None:
        """Give nodes a few tasks that had no room for such a while ago: the first that ends there shows that there is room again."""
        for node in full:
            if now >= node.full[queue.demand]:
                node.full[queue.demand] = now + FULL_SECONDS
                self.delegations.give(queue, node, TRIED_MOST, now)

    def next_deadline(self) -> float | None:
        """When a node is to be tried for tasks that wait."""
        waiting = {queue.demand for queue in self.tables.queues.values() if queue.away and queue and queue.group is None}
        return min((node.full[demand] for node in self.tables.nodes.values() for demand in waiting & node.full.keys()), default=None)

    def _give(self, queue: ShapeQueue, nodes: list[NodeRecord | None], here: bool, now: float) -> None:
        """Give each of these nodes its share; None stands for this one. What cannot travel runs here, or not at all."""
        tasks = len(queue)
        share, more = divmod(tasks, len(nodes))
        for index in range(len(nodes)):
            node = nodes[(self._dealt + index) % len(nodes)]
            count = share + (index < more)
            if node is not None and count:
                self.delegations.give(queue, node, count, now)
        self._dealt += tasks
        if here:
            self._move(queue, (*HERE, *queue.strategy))
            return
        if self.delegations.waits_for_room(queue, nodes):
            return
        for task in [task for task in queue if task.state == READY]:
            self.outcomes.fail(task, "TaskUnschedulableError", f"{task.name} may run on another node only, and {why_it_stays(task)}", ())

    def take_back(self, queue: ShapeQueue) -> None:
        """Have tasks that were dealt to this node dealt out anew."""
        self._move(queue, queue.strategy[1:])

    def _move(self, queue: ShapeQueue, strategy: Strategy) -> None:
        """Move what is left to another queue: one whose tasks stay on this node, or one that is placed as if it had no strategy."""
        moved = self.tables.queue_for(queue.job, (*queue.shape[:5], strategy))
        queue.move_to(moved)

    def _nowhere(self, queue: ShapeQueue, hard: list[tuple[str, str, str, tuple[str, ...]]], now: float) -> None:
        """Fail tasks for a node that does not exist; those for labels wait for a node that has them."""
        queue.infeasible_since = now if queue.infeasible_since is None else queue.infeasible_since
        on_node = _on_node(hard)
        if self.tables.config.infeasible != "raise" and not on_node:
            return
        if any(accepts(node.labels, hard) for node in self.tables.nodes.values()):
            why = "which is being drained"
        else:
            why = "which has died or left, or is not known" if on_node else "and this cluster has none"
        advice = SOFT_ADVICE if on_node else "labels of nodes are in zf.nodes()"
        self._fail(queue, f"{describe_strategy(queue.strategy)}, {why}: {advice}")

    def _fail(self, queue: ShapeQueue, where: str) -> None:
        for task in [task for task in queue if task.state == READY]:
            self.outcomes.fail(task, "TaskUnschedulableError", f"{task.name} is to run {where}", ())


def _on_node(hard: list[tuple[str, str, str, tuple[str, ...]]]) -> bool:
    """Whether tasks may run on a certain node only. What it has does not change, and no other node gets its id."""
    return any(key == NODE_ID and operator == "in" for _, key, operator, _ in hard)


def _is_able(node: NodeRecord, queue: ShapeQueue) -> bool:
    """Whether a node has registered, and has what the tasks of a queue ask for."""
    return _is_ready(node) and covers(node.resources, queue.demand)


def _is_ready(node: NodeRecord) -> bool:
    return node.process is not None and node.process.ready


def was_dealt(strategy: Strategy) -> bool:
    """Whether tasks with a strategy were dealt to this node by it."""
    return strategy[:1] == HERE and len(strategy) > 1


def why_it_stays(task: TaskRecord) -> str:
    """Why a task cannot run on another node."""
    if task.function.shared:
        return "lightweight actors live on the node where they are created"
    if task.option("remake") is not None:
        return "a value of an actor is made again where the actor's log is"
    if task.rare is not None and task.rare.stays:
        return "that node returned it: as many of its workers are blocked as may be, or its value cannot travel"
    return "its arguments cannot travel"
