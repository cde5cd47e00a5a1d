"""How tasks come back from the node to which they were given before that has begun them, so that their home places them anew.

The home asks for them (``Reclaim``), for one of these reasons:

- This node has room and nothing to run. It takes back the last half of what the node with the most tasks has.
- Tasks that were spread, or prefer labels, wait where they were dealt. If that node ends none of this home's tasks for two seconds,
  something long is ahead of them: they come back, and are placed as tasks without a strategy are, each once.

Or the executor returns them by itself, with the reason (``Reclaimed``):

- *full*: they wait for resources that actors, or bundles of placement groups, hold. They were sent before those were held. An actor may
  never end, and other nodes may have room. Tasks that this node dealt to itself are dealt out anew, too.
- *blocked*: no more workers may start beside those that are blocked. At home the task stays: it can run on top of what waits for it.
- No reason: the node is drained.

A task that its node has begun never comes back: the answer leaves it out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from zfabric.config import ROWS_MAX
from zfabric.machines.common.resources import covers
from zfabric.machines.local_scheduler.due import CROWDED, RECLAIMING
from zfabric.machines.local_scheduler.nodes.delegations import Delegations
from zfabric.machines.local_scheduler.nodes.placement.where import FULL_SECONDS, Placement, was_dealt
from zfabric.machines.local_scheduler.records import ASSIGNED, READY, STARTING, WAITING, NodeRecord, ShapeQueue, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.options import only_prefers

RECLAIMED_MOST = 256
"""Most tasks that are reclaimed for this node at once: more than a node runs while the message and the answer are under way."""
RECALL_SECONDS = 2.0
"""How long a node may end none of this home's tasks before those come back that any node may run. It may first have to start workers, so
this is twice as long as the home's own share of them waits (``when.STAY_SECONDS``)."""
PATIENCE = 0.2
"""How long there may be no room: many actors end soon, and global schedulers know by then that there is none (``heartbeats.EVERY``)."""


class Reclaiming:
    """The home's side: asks other nodes for tasks of this one, and receives what they return, over the shared tables."""

    def __init__(self, tables: Tables, outcomes: Outcomes, delegations: Delegations) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.delegations = delegations
        self._asked = b""
        """The node from which tasks were reclaimed for this one and that has not answered yet."""

    def begin_anew(self, node: NodeRecord) -> None:
        """Expect no answer of a node whose daemon is new."""
        node.reclaimable = False
        if self._asked == node.token:
            self._asked = b""

    def end_of_turn(self, now: float) -> None:
        """Reclaim what is to be placed anew. Called if there are other nodes."""
        if self.delegations.preferring:
            self.tables.deadlines.note(RECLAIMING)
            for node in self.delegations.take_slow(now, RECALL_SECONDS):
                self._recall(node)
        if self._asked not in self.tables.nodes:
            self._reclaim_for_this_node()

    def next_deadline(self) -> float | None:
        """When tasks that may run on any other node are recalled from one, unless it ends one before."""
        preferring = self.delegations.preferring
        return min(preferring.values()) + RECALL_SECONDS if preferring and self.tables.nodes else None

    def _recall(self, node: NodeRecord) -> None:
        """Reclaim the tasks of a node that may run on any, to be placed as if they had no strategy."""
        found = list(filter(self._may_run_anywhere, node.inflight.values()))
        for task in found:
            task.facts().demand_queue = self.tables.queue_like(self.tables.queue_of(task), ())
        self._reclaim(node, found)

    def _may_run_anywhere(self, task: TaskRecord) -> bool:
        """Whether a task only prefers where it runs. Actors stay, and so does what may be waiting for copies of large inputs."""
        strategy = self.tables.queue_of(task).strategy
        if task.state != ASSIGNED or task.function.actor is not None or not strategy or not only_prefers(strategy):
            return False
        return not self.outcomes.reads_large(task)

    def _reclaim_for_this_node(self) -> None:
        """If this node has room and nothing to run, reclaim the last half of the tasks of the node with the most."""
        given = [node for node in self.tables.nodes.values() if node.reclaimable and node.inflight]
        if not given or any(queue and queue.feasible is not False and not queue.away for queue in self.tables.queues.values()):
            return
        if any(worker.state == STARTING for worker in self.tables.workers.values()):
            return  # Until it is ready, nothing that came back would begin.
        node = max(given, key=lambda each: len(each.inflight))
        tasks = self._last_half(node)
        if not tasks:
            node.reclaimable = False  # All of them are to run there: they are not looked at again each turn.
        elif self.tables.pool.fits(self.tables.queue_of(tasks[-1]).demand):
            self._asked = node.token
            node.reclaimable = False  # Unless some are returned, or more are sent meanwhile.
            self._reclaim(node, tasks)

    def _last_half(self, node: NodeRecord) -> list[TaskRecord]:
        """The last half of a node's tasks, without those that are to run there: by their strategy, or since their inputs lie elsewhere."""
        most = min(RECLAIMED_MOST, (len(node.inflight) + 1) // 2)
        found: list[TaskRecord] = []
        for task in reversed(node.inflight.values()):
            if len(found) == most:
                break
            queue = self.tables.queue_of(task)
            if task.state == ASSIGNED and queue.feasible is not False and not queue.strategy and not self.outcomes.reads_elsewhere(task):
                found.append(task)
        return found[::-1]

    def _reclaim(self, node: NodeRecord, tasks: list[TaskRecord]) -> None:
        for start in range(0, len(tasks), ROWS_MAX):
            self.tables.send_to_node(node.token, m.Reclaim(tuple(task.id for task in tasks[start : start + ROWS_MAX])))

    def on_reclaimed(self, now: float, source: Address, message: m.Reclaimed) -> None:
        """A node returns tasks that it has not begun."""
        node = self.tables.nodes.get(source[1:])
        if node is None:
            self.tables.counts["refused"] += 1
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
        self.outcomes.give_back(tasks)
        self.tables.counts["reclaimed"] += len(tasks)


class Returns:
    """The executor's side: returns tasks of other homes that have not begun here, over the shared tables."""

    def __init__(self, tables: Tables, outcomes: Outcomes, placement: Placement) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.placement = placement
        self.crowded: dict[int, float] = {}
        """Queues with tasks for which actors or bundles leave no room, by token, and since when."""

    def on_reclaim(self, now: float, source: Address, message: m.Reclaim) -> None:
        """A home has room for tasks that it has delegated to this node, or places them anew."""
        if source[1:] in self.tables.nodes:
            tasks = [task for task in map(self.tables.tasks.get, message.task_ids) if task is not None and task.submitter == source[1:]]
            self._return_unbegun(source[1:], [task for task in tasks if task.state in (READY, WAITING)])

    def return_all(self) -> None:
        """Return all tasks of other nodes that have not begun here. Those in a bundle of this node stay."""
        by_home: defaultdict[bytes, list[TaskRecord]] = defaultdict(list)
        for task in self.tables.tasks.values():
            if task.function.delegated and task.state in (READY, WAITING) and self.tables.queue_of(task).group is None:
                by_home[task.submitter].append(task)
        for home, tasks in by_home.items():
            self._return_unbegun(home, tasks)

    def end_of_turn(self, now: float) -> None:
        """Send away what has waited for actors for long enough."""
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
        """When the next queue will have waited for actors for long enough."""
        return min(self.crowded.values()) + PATIENCE if self.crowded and self.tables.nodes else None

    def return_queues(self, queues: Iterable[ShapeQueue], reason: str) -> None:
        """Return the tasks of queues from which nothing begins: "blocked" is what waits for them, or "full" is this node."""
        by_home: defaultdict[bytes, list[TaskRecord]] = defaultdict(list)
        for queue in queues:
            for task in queue:
                if task.state == READY:
                    by_home[task.submitter].append(task)
            queue.clear()
        for home, tasks in by_home.items():
            self._return(home, tasks, reason)

    def _return_unbegun(self, home: bytes, tasks: list[TaskRecord]) -> None:
        """Return tasks that wait here: in their queues, where they are skipped from now on, or for values."""
        for task in tasks:
            if task.state == READY:
                self.tables.queue_of(task).stop_one()
        self._return(home, tasks, "")

    def _return(self, home: bytes, tasks: list[TaskRecord], reason: str) -> None:
        for task in tasks:
            self.outcomes.remove_delegated(task)
        self.tables.counts["handed_back" if reason else "returned"] += len(tasks)
        self.tables.send_to_node(home, m.Reclaimed(tuple(task.id for task in tasks), reason))
