"""Where tasks go whose node the home chooses itself, by their options or inputs, without a global scheduler (decision 0031).

*Options* demand a node, labels, or a spread over all. Queues of such tasks are *away* while there is a choice: no worker here receives
them, and each turn deals them out. This node's share moves to a queue of the same shape that stays here. Without other nodes, a queue is
away only if its tasks do not accept this one. A node whose actors leave no room is passed over; of another node that is known once it has
returned tasks.

*Inputs* on another node attract a task if it can start there sooner: fetching takes bytes over bandwidth, there it waits for what this node
gave that one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from zfabric.machines.common.resources import covers, describe
from zfabric.machines.local_scheduler.due import HOLDING_ROOM
from zfabric.machines.local_scheduler.nodes.delegations import Delegations, is_own_work
from zfabric.machines.local_scheduler.object_places import Elsewhere, Stored
from zfabric.machines.local_scheduler.records import READY, NodeRecord, ShapeQueue, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol.options import HERE, NODE_ID, RESOURCE_UNIT, Strategy, accepts, describe_strategy

SOFT_ADVICE = "soft=True runs it elsewhere"
TRIED_MOST = 16
"""Tasks with which a full node is tried."""
FULL_SECONDS = 1.0
"""Seconds before a full node is tried."""


class Placement:
    """Chooses nodes for tasks of this home."""

    def __init__(self, tables: Tables, outcomes: Outcomes, delegations: Delegations) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.delegations = delegations
        self._dealt = 0
        """Tasks dealt out so far: rotation goes on from there."""
        self.holding = False

    # -- by their inputs --

    def send_to_inputs(self, now: float) -> None:
        """Send tasks that became ready to their inputs, where that is sooner."""
        for task in self.outcomes.with_inputs.take():
            queue = self.tables.queue_of(task)
            if task.state != READY or queue.for_life or not is_own_work(queue):
                continue
            node = self._node_of_inputs(task)
            if node is None or (self.tables.runs_once(task) and self.delegations.room_for_once(queue, node) <= 0):
                continue
            if queue.demand not in node.full and self.delegations.may_travel(task):
                task.assign(node)
                queue.stop_one()  # The queue skips it from now on.
                self.delegations.send(queue, node, [task])
                self.tables.count("sent_to_inputs")

    def _node_of_inputs(self, task: TaskRecord) -> NodeRecord | None:
        """The node with most bytes of its inputs, if it can start there before they can be here."""
        bytes_at = bytes_by_node(self.tables, dict.fromkeys(task.row[3]))
        here = bytes_at.pop(self.tables.cluster.node, 0)
        place = max(bytes_at, key=lambda each: bytes_at[each], default=b"")
        node = self.tables.nodes.get(place)
        if node is None or not node.is_ready or node.draining:
            return None
        whole, bandwidth = bytes_at.total() + here, self.tables.config.node_bandwidth
        saved = (bytes_at[place] - here) / bandwidth
        cpus = max(1.0, node.resources.get("CPU", 0) / RESOURCE_UNIT)
        queued = len(node.inflight) // cpus * (task.function.mean or 0.0)
        there = max(queued, (whole - bytes_at[place]) / bandwidth)
        return node if saved > self.tables.config.spill_after and there < (whole - here) / bandwidth else None

    # -- by their options --

    def deal_out(self, now: float) -> None:
        """Deal out all queues that are away."""
        self.holding = False
        for queue in [queue for queue in self.tables.queues.values() if queue.away and queue.group is None]:
            if queue.drop_stale():
                self._deal(queue, now)
            else:
                queue.infeasible_since = None
        if self.holding:
            self.tables.deadlines.note(HOLDING_ROOM)

    def _deal(self, queue: ShapeQueue, now: float) -> None:
        only = self.tables.nodes.get(queue.only) if queue.only else None
        if only is not None and not only.draining and _is_able(only, queue) and queue.demand not in only.full:
            queue.infeasible_since = None  # The usual case: one look-up, however many nodes there are.
            self._give(queue, [only], False, now)
            return
        hard = [term for term in queue.strategy if term[0] == "hard"]
        nodes = [node for node in self.tables.nodes.values() if accepts(node.labels, hard) and not node.draining]
        here = accepts(self.tables.cluster.labels, hard)
        if not nodes and not here:
            self._nowhere(queue, hard, now)
            return
        others = [node for node in nodes if _is_able(node, queue)]
        fits_here = here and self.tables.pool.fits_total(queue.demand)
        if _on_node(hard) and not others and not fits_here and all(node.is_ready for node in nodes):
            text = f"{describe_strategy(queue.strategy)}, which does not have {describe(queue.demand)}: {SOFT_ADVICE}"
            self._fail(queue, text)
            return
        here = fits_here or (here and not others)
        if not others and not here:
            queue.infeasible_since = now if queue.infeasible_since is None else queue.infeasible_since
            return  # None has enough, or has registered.
        queue.infeasible_since = None
        soft = [term for term in queue.strategy if term[0] == "soft"]
        able = [*others, *((None,) if here else ())]
        preferred = [node for node in able if accepts(self.tables.cluster.labels if node is None else node.labels, soft)]
        if soft and not preferred and any(accepts(node.labels, soft) for node in nodes if not node.is_ready):
            return  # A preferred node has just joined, or its daemon is restarted.
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
        """Whether actors leave room, as far as is known. None is this node."""
        return covers(self.tables.capacity(), queue.demand) if node is None else queue.demand not in node.full

    def _try(self, queue: ShapeQueue, full: list[NodeRecord], now: float) -> None:
        """Give a few tasks to nodes without room a while ago: the first that ends shows that there is room."""
        for node in full:
            if now >= node.full[queue.demand]:
                node.full[queue.demand] = now + FULL_SECONDS
                self.delegations.give(queue, node, TRIED_MOST, now)

    def next_deadline(self) -> float | None:
        """When a node is to be tried."""
        if not self.holding:
            return None
        waiting = {queue.demand for queue in self.tables.queues.values() if queue.away and queue and queue.group is None}
        return min((node.full[demand] for node in self.tables.nodes.values() for demand in waiting & node.full.keys()), default=None)

    def _give(self, queue: ShapeQueue, nodes: list[NodeRecord | None], here: bool, now: float) -> None:
        """Give each node its share; None is this one. Tasks that cannot travel run here, or fail."""
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

    def deal_anew(self, queue: ShapeQueue) -> None:
        """Have tasks that were dealt to this node dealt out again."""
        self._move(queue, queue.strategy[1:])

    def _move(self, queue: ShapeQueue, strategy: Strategy) -> None:
        queue.move_to(self.tables.queues.like(queue, strategy))

    def _nowhere(self, queue: ShapeQueue, hard: list[tuple[str, str, str, tuple[str, ...]]], now: float) -> None:
        """Fail tasks for a missing node; tasks for labels wait."""
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
    return any(key == NODE_ID and operator == "in" for _, key, operator, _ in hard)


def _is_able(node: NodeRecord, queue: ShapeQueue) -> bool:
    return node.is_ready and covers(node.resources, queue.demand)


def bytes_by_node(tables: Tables, object_ids: Iterable[bytes]) -> Counter[bytes]:
    """Bytes of large values, by node, this one included."""
    found: Counter[bytes] = Counter()
    for record in map(tables.find, object_ids):
        if record is not None and isinstance(record.value, Stored | Elsewhere):
            found[record.value.place if isinstance(record.value, Elsewhere) else tables.cluster.node] += record.value.size
    return found


def was_dealt(strategy: Strategy) -> bool:
    """Whether a strategy dealt them to this node."""
    return strategy[:1] == HERE and len(strategy) > 1


def why_it_stays(task: TaskRecord) -> str:
    """Why another node cannot run it."""
    if task.function.shared:
        return "lightweight actors live on the node where they are created"
    if task.option("remake") is not None:
        return "a value of an actor is made again where the actor's log is"
    if task.rare is not None and task.rare.stays:
        return "that node returned it: as many of its workers are blocked as may be, or its value cannot travel"
    return "its arguments cannot travel"
