"""How tasks come back unbegun from the node to which they were given, to be placed again (decision 0031).

The home asks for them (``Reclaim``):

- This node has nothing to run: it asks for the last half of the largest share.
- Another node would begin them sooner.
- Spread tasks, or tasks that prefer labels, wait on a node that has ended none of this home's tasks for two seconds: they are placed as if
  without a strategy.

For the last two reasons each attempt comes back once. Or the executor returns them (``Reclaimed``), with a reason:

- *full*: actors or bundles hold the resources, perhaps for ever. Tasks that this node dealt to itself are dealt out again, too.
- *blocked*: it has as many blocked workers as it may. The task stays at home, and runs on top of a task that waits for it.
- No reason: the node is drained, or answers ``Reclaim``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import nlargest
from itertools import islice

from zfabric.machines.common.resources import count_fitting, covers
from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.due import CROWDED, RECLAIMING
from zfabric.machines.local_scheduler.nodes.delegations import Delegations
from zfabric.machines.local_scheduler.nodes.placement.where import FULL_SECONDS, Placement, was_dealt
from zfabric.machines.local_scheduler.records import ASSIGNED, READY, STARTING, WAITING, NodeRecord, ShapeQueue, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.options import accepts, only_prefers

RECLAIMED_MOST = 256
"""Tasks reclaimed at once: more than a node runs while messages are under way."""
RECALL_SECONDS = 2.0
"""How long a node may end none of this home's tasks before ``_recall``: it may first start workers, so twice ``when.STAY_SECONDS``."""
LOOK_SECONDS = 0.05
"""Between looks whether others would begin sooner: half as long as a heartbeat may be old."""
DONORS_MOST = 4
"""Nodes a look examines, until some task can move."""
PATIENCE = 0.2
"""How long room may be lacking: many actors end soon, and by then global schedulers know (``heartbeats.EVERY``)."""


class Reclaiming:
    """The home's side: asks for tasks, and receives what is returned."""

    def __init__(self, tables: Tables, outcomes: Outcomes, delegations: Delegations) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.delegations = delegations
        self._asked = b""
        self._look_at: float | None = None
        """When to look whether tasks should move; None while none waits elsewhere."""
        self._delegated = -1
        """Tasks given away when the last look was planned; -1 if it found some waiting. A look is due whenever they differ."""

    def begin_anew(self, node: NodeRecord) -> None:
        """Expect no answer of its former daemon."""
        node.reclaimable = False
        if self._asked == node.token:
            self._asked = b""

    def end_of_turn(self, now: float) -> None:
        """Reclaim what is to be placed again. For clusters of several nodes."""
        if self.delegations.preferring:
            self.tables.deadlines.note(RECLAIMING)
            for node in self.delegations.take_slow(now, RECALL_SECONDS):
                self._recall(node)
        if self._asked not in self.tables.nodes:
            self._reclaim_for_this_node()
        if self._look_at is not None and now >= self._look_at:
            self._look_at = None
            if any(map(self._count_waiting, self.tables.nodes.values())):
                self._delegated = -1
                if self._asked not in self.tables.nodes:
                    self._reclaim_for_others()
        if self._look_at is None and self.tables.counts["delegated"] != self._delegated:
            self._delegated = self.tables.counts["delegated"]
            self._look_at = now + LOOK_SECONDS
            self.tables.deadlines.note(RECLAIMING, self._look_at)

    def next_deadline(self) -> float | None:
        """When tasks that may run anywhere are recalled, or the next look is due."""
        if not self.tables.nodes:
            return None
        due = [] if self._look_at is None else [self._look_at]
        if self.delegations.preferring:
            due.append(min(self.delegations.preferring.values()) + RECALL_SECONDS)
        return min(due, default=None)

    def _recall(self, node: NodeRecord) -> None:
        """Reclaim tasks that may run anywhere, and drop their strategy."""
        found = list(filter(self._may_run_anywhere, node.inflight.values()))
        for task in found:
            task.facts().demand_queue = self.tables.queues.like(self.tables.queue_of(task), ())
            task.facts().moved = task.attempt
        self._reclaim(node, found)

    def _may_run_anywhere(self, task: TaskRecord) -> bool:
        """Whether a task only prefers a place. Actors stay, and so does what may wait for large inputs."""
        strategy = self.tables.queue_of(task).strategy
        if not self._may_move(task) or task.function.actor is not None or not strategy or not only_prefers(strategy):
            return False
        return not self.outcomes.reads_large(task)

    def _reclaim_for_this_node(self) -> None:
        given = [node for node in self.tables.nodes.values() if node.reclaimable and node.inflight]
        if not given or any(queue and queue.feasible is not False and not queue.away for queue in self.tables.queues.values()):
            return
        if any(worker.state == STARTING for worker in self.tables.workers.values()):
            return  # Until it is ready, nothing would begin.
        node = max(given, key=lambda each: len(each.inflight))
        tasks = self._last_half(node)
        if not tasks:
            node.reclaimable = False  # All are bound to that node: it need not be examined each turn.
        elif self.tables.pool.fits(self.tables.queue_of(tasks[-1]).demand):
            self._asked = node.token
            node.reclaimable = False  # Until some are returned, or more are sent.
            self._reclaim(node, tasks)

    def _last_half(self, node: NodeRecord) -> list[TaskRecord]:
        """The last half of its tasks, without those that a strategy or inputs bind to it."""
        most = min(RECLAIMED_MOST, (len(node.inflight) + 1) // 2)
        found: list[TaskRecord] = []
        for task in reversed(node.inflight.values()):
            if len(found) == most:
                break
            queue = self.tables.queue_of(task)
            if task.state == ASSIGNED and queue.feasible is not False and not queue.strategy and not self.outcomes.reads_elsewhere(task):
                found.append(task)
        return found[::-1]

    def _reclaim_for_others(self) -> None:
        """Reclaim what others would begin sooner from a node with most waiting."""
        nodes = [node for node in self.tables.nodes.values() if node.inflight and node.is_ready and not node.draining]
        for donor in nlargest(DONORS_MOST, nodes, key=self._count_waiting):
            if tasks := self._movable(donor):
                self._asked = donor.token
                self._reclaim(donor, tasks)
                return

    def _movable(self, donor: NodeRecord) -> list[TaskRecord]:
        """A donor's last tasks that others would begin sooner. These attempts do not move again."""
        rooms: dict[ShapeQueue, int] = {}
        found: list[TaskRecord] = []
        for task in islice(reversed(donor.inflight.values()), min(RECLAIMED_MOST, self._count_waiting(donor))):
            queue = self.tables.queue_of(task)
            if queue not in rooms:
                rooms[queue] = sum(count for _, count in self._receivers(donor, task))
            if rooms[queue] > 0 and self._may_move(task):
                rooms[queue] -= 1
                task.facts().moved = task.attempt
                found.append(task)
        return found[::-1]

    def _count_waiting(self, node: NodeRecord) -> int:
        return len(node.inflight) - self.tables.begun_at(node)

    def _may_move(self, task: TaskRecord) -> bool:
        if task.state != ASSIGNED or self.outcomes.reads_elsewhere(task):
            return False
        return task.rare is None or task.rare.moved != task.attempt

    def _receivers(self, donor: NodeRecord, like: TaskRecord) -> list[tuple[NodeRecord, int]]:
        """Nodes that would begin such tasks sooner, and how many each until the next look."""
        queue = self.tables.queue_of(like)
        if queue.only or queue.group is not None:
            return []
        rounds = 1.0 + (LOOK_SECONDS / like.function.mean if like.function.mean else 0.0)
        own = count_fitting(donor.resources, queue.demand, 0)
        found = []
        for node in self.tables.nodes.values():
            slots = count_fitting(node.resources, queue.demand, 0)
            if slots and node is not donor and self._takes(node, queue):
                level = (len(donor.inflight) * slots - len(node.inflight) * own) // (own + slots)
                count = min(level, int(slots * rounds) - len(node.inflight))
                found += [(node, count)] if count > 0 else []
        return found

    def _takes(self, node: NodeRecord, queue: ShapeQueue) -> bool:
        return node.is_ready and not node.draining and queue.demand not in node.full and accepts(node.labels, queue.strategy)

    def _reclaim(self, node: NodeRecord, tasks: list[TaskRecord]) -> None:
        for task_ids in batches(task.id for task in tasks):
            self.tables.send_to_node(node.token, m.Reclaim(task_ids))

    def on_reclaimed(self, now: float, source: Address, message: m.Reclaimed) -> None:
        """Place the returned tasks again."""
        node = self.tables.nodes.get(source[1:])
        if node is None:
            self.tables.count("refused")
            return
        tasks = [node.inflight[task_id] for task_id in message.task_ids if task_id in node.inflight]
        if message.reason == "blocked":
            for task in tasks:
                task.facts().stays = True
        elif message.reason == "full":
            node.full.update({self.tables.queue_of(task).demand: now + FULL_SECONDS for task in tasks})
        else:
            self._asked = b""
            node.reclaimable |= bool(tasks)
        dealt = {queue: task for task in tasks if not message.reason and (queue := self.tables.queue_of(task)).away}
        receivers = [(queue, *each) for queue, task in dealt.items() for each in self._receivers(node, task)]
        self.outcomes.give_back(tasks)
        for queue, receiver, count in receivers:  # Dealt out evenly, half of them would return to where they were.
            self.delegations.give(queue, receiver, count, now)
        self.tables.count("reclaimed", len(tasks))


class Returns:
    """The executor's side: returns unbegun tasks."""

    def __init__(self, tables: Tables, outcomes: Outcomes, placement: Placement) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.placement = placement
        self.crowded: dict[int, float] = {}
        """Queues without room because of actors or bundles, by token, and since when."""

    def on_reclaim(self, now: float, source: Address, message: m.Reclaim) -> None:
        """Return the unbegun tasks of a ``Reclaim``."""
        if source[1:] in self.tables.nodes:
            tasks = [task for task in map(self.tables.tasks.get, message.task_ids) if task is not None and task.submitter == source[1:]]
            self._return_unbegun(source[1:], [task for task in tasks if task.state in (READY, WAITING)])

    def return_all(self) -> None:
        """Return all, except those in a bundle here."""
        by_home: defaultdict[bytes, list[TaskRecord]] = defaultdict(list)
        for task in self.tables.tasks.values():
            if task.function.delegated and task.state in (READY, WAITING) and self.tables.queue_of(task).group is None:
                by_home[task.submitter].append(task)
        for home, tasks in by_home.items():
            self._return_unbegun(home, tasks)

    def end_of_turn(self, now: float) -> None:
        """Return what has waited long enough for room."""
        queues = [
            queue
            for queue in self.tables.queues.values()
            if queue and queue.group is None and not queue.away and (queue.delegated or was_dealt(queue.strategy))
        ]
        if not queues and not self.crowded:
            return
        capacity = self.tables.capacity()
        crowded = [queue for queue in queues if not covers(capacity, queue.demand)]
        self.crowded = {queue.token: self.crowded.get(queue.token, now) for queue in crowded}
        self.tables.deadlines.note(CROWDED)
        late = [queue for queue in crowded if now >= self.crowded[queue.token] + PATIENCE]
        if late:
            self.return_queues([queue for queue in late if queue.delegated], "full")
            for queue in late:
                if not queue.delegated:
                    self.placement.deal_anew(queue)

    def next_deadline(self) -> float | None:
        """When the next queue has waited long enough."""
        return min(self.crowded.values()) + PATIENCE if self.crowded and self.tables.nodes else None

    def return_queues(self, queues: Iterable[ShapeQueue], reason: str) -> None:
        """Return the queues' tasks: "blocked" is what waits for them, or "full" is this node."""
        by_home: defaultdict[bytes, list[TaskRecord]] = defaultdict(list)
        for queue in queues:
            for task in queue:
                if task.state == READY:
                    by_home[task.submitter].append(task)
            queue.clear()
        for home, tasks in by_home.items():
            self._return(home, tasks, reason)

    def _return_unbegun(self, home: bytes, tasks: list[TaskRecord]) -> None:
        for task in tasks:
            if task.state == READY:
                self.tables.queue_of(task).stop_one()
        self._return(home, tasks, "")

    def _return(self, home: bytes, tasks: list[TaskRecord], reason: str) -> None:
        for task in tasks:
            self.outcomes.remove_delegated(task)
        self.tables.count("handed_back" if reason else "returned", len(tasks))
        self.tables.send_to_node(home, m.Reclaimed(tuple(task.id for task in tasks), reason))
