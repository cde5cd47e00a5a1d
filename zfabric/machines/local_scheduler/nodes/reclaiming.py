"""Tasks that come back: a home with nothing to run takes back what other nodes have not begun, and receives what they cannot begin.

Tasks that were spread, or prefer labels, wait where they were dealt. If that node ends none of this home's tasks for two seconds, something
long is ahead of them: they come back, too, and are placed as tasks without a strategy are, each once.
"""

from __future__ import annotations

from zfabric.config import ROWS_MAX
from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.local_scheduler.records import ASSIGNED, STARTING, Elsewhere, NodeRecord, Stored, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.options import only_prefers

RECLAIMED_MOST = 256
"""Most tasks that are reclaimed by one message: more than a node runs while it and the answer are under way."""

RECALL_SECONDS = 2.0
"""How long a node may end none of this home's tasks before those come back that any node may run. It may first have to start workers, so
this is twice as long as the home's own share of them waits (``spilling.STAY_SECONDS``)."""

FULL_SECONDS = 1.0
"""A node that had no room for a demand beside its actors is not given tasks of it for this long, but for a few to try."""


class Reclaiming:
    """Reclaims delegated tasks, over the shared tables."""

    def __init__(self, tables: Tables, pool: ResourcePool, outcomes: Outcomes) -> None:
        self.tables = tables
        self.pool = pool
        self.outcomes = outcomes
        self._asked = b""
        """The node that was asked and has not answered yet."""

    def begin_anew(self, node: bytes) -> None:
        """Expect no answer of a node whose daemon is new."""
        if self._asked == node:
            self._asked = b""

    def recall(self, now: float) -> None:
        """Reclaim tasks from nodes that have ended none for ``RECALL_SECONDS``, if they may run on any node."""
        for token, since in list(self.tables.preferring.items()):
            if now < since + RECALL_SECONDS:
                continue
            del self.tables.preferring[token]
            node = self.tables.nodes.get(token)
            found = list(filter(self._may_run_anywhere, node.inflight.values())) if node is not None else []
            for task in found:
                queue = self.tables.queue_of(task)
                task.facts().demand_queue = self.tables.queue_for(queue.job, (*queue.shape[:5], ()))
            for start in range(0, len(found), ROWS_MAX):
                self.tables.send_to_node(token, m.Reclaim(tuple(task.id for task in found[start : start + ROWS_MAX])))

    def _may_run_anywhere(self, task: TaskRecord) -> bool:
        """Whether a task only prefers where it runs. Actors stay, and so does what may be waiting for copies of large inputs."""
        strategy = self.tables.queue_of(task).strategy
        if task.state != ASSIGNED or task.function.actor is not None or not strategy or not only_prefers(strategy):
            return False
        return not any(isinstance(record.value, Stored | Elsewhere) for record in map(self.tables.find, task.row[3]) if record is not None)

    def next_deadline(self) -> float:
        """When tasks are reclaimed from a node unless it ends one before; asked while there is such a node."""
        return min(self.tables.preferring.values()) + RECALL_SECONDS

    def end_of_turn(self) -> None:
        """If this node has room and nothing to run, reclaim from the node with the most tasks the last half of its tasks."""
        if self._asked in self.tables.nodes:
            return
        given = [node for node in self.tables.nodes.values() if node.reclaimable and node.inflight]
        if not given or any(queue and queue.feasible is not False and not queue.away for queue in self.tables.queues.values()):
            return
        if any(worker.state == STARTING for worker in self.tables.workers.values()):
            return  # Until it is ready, nothing that came back would begin.
        node = max(given, key=lambda each: len(each.inflight))
        tasks = self._last_half(node)
        if not tasks:
            node.reclaimable = False  # All of them are to run there: they are not looked at again each turn.
        elif self.pool.fits(self.tables.queue_of(tasks[-1]).demand):
            self._asked = node.token
            node.reclaimable = False  # Unless some are returned, or more are sent meanwhile.
            self.tables.send_to_node(node.token, m.Reclaim(tuple(task.id for task in tasks)))

    def _last_half(self, node: NodeRecord) -> list[TaskRecord]:
        most = min(RECLAIMED_MOST, (len(node.inflight) + 1) // 2)
        found: list[TaskRecord] = []
        for task in reversed(node.inflight.values()):
            if len(found) == most:
                break
            queue = self.tables.queue_of(task)
            if task.state == ASSIGNED and queue.feasible is not False and not queue.strategy and not self._has_inputs_elsewhere(task):
                found.append(task)
        return found[::-1]

    def _has_inputs_elsewhere(self, task: TaskRecord) -> bool:
        """Whether a task reads what lies on another node: it was sent there for that."""
        records = map(self.tables.find, task.row[3])
        return any(record is not None and isinstance(record.value, Elsewhere) for record in records)

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
