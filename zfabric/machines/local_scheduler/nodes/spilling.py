"""When tasks leave this node: a global scheduler is asked for nodes where they would start sooner, or could run at all.

A queue asks once it has waited for ``spill_after`` and will not be empty soon. It asks at once if this node can never meet the demand of
its tasks. The answer is for a number of tasks, not for certain ones: the last tasks of the queue at that time are sent away, and this
node's own share stays. The question and the answer may be lost, or come twice. An unanswered question is asked again elsewhere, and of
several answers only the first counts. A queue for which no other node is named waits twice as long each time.

This node's share of tasks that were spread, or prefer labels, waits here for a second, and is then placed as other tasks are: what it waits
for may be long.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice
from typing import NamedTuple
from zlib import crc32

from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.local_scheduler.nodes.delegations import Delegations, is_own_work
from zfabric.machines.local_scheduler.nodes.heartbeats import Heartbeats, mean_of
from zfabric.machines.local_scheduler.records import Elsewhere, ShapeQueue, Stored
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.placement_requests import PlacementRequests
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import FOR_LIFE
from zfabric.protocol.options import HERE, only_prefers

WORTH_SECONDS = 50e-6
"""Shorter tasks stay: a delegated task costs both daemons about as much."""
STAY_SECONDS = 1.0
"""How long a queue is left alone of which no task could be sent (each may only run here), or whose tasks were dealt to this node."""
DOUBLED_MOST = 5
"""How often the time is doubled after which a queue asks again: to 32 times ``spill_after``, 0.64 s."""
LOOKED_AT = 16
"""Tasks of a queue whose inputs are measured to estimate those of all."""


class _Question(NamedTuple):
    """A question to a global scheduler that was not answered yet."""

    asked: float
    times: int


class _Wait(NamedTuple):
    """Since when a queue waits, or when it was looked at last, with its first task then."""

    since: float
    first: bytes
    doubled: int = 0
    """How often no other node was named for it, one time after the other."""
    answered: bool = False
    """Whether a global scheduler has answered before."""


class Spilling:
    """Queues that have waited long enough, over the shared tables."""

    def __init__(
        self,
        node: bytes,
        tables: Tables,
        pool: ResourcePool,
        delegations: Delegations,
        placement_requests: PlacementRequests,
        heartbeats: Heartbeats,
    ) -> None:
        self.node = node
        self.tables = tables
        self.pool = pool
        self.delegations = delegations
        self.placement_requests = placement_requests
        self.heartbeats = heartbeats
        self._waits: dict[int, _Wait] = {}
        """Queues that have tasks, by token."""
        self._asked: dict[int, _Question] = {}
        """Queues that a global scheduler was asked about."""
        self._first = crc32(node)
        """Selects the global scheduler that this node asks first: the nodes share them evenly."""

    def end_of_turn(self, now: float) -> None:
        """Ask about the queues that have waited long enough."""
        if not (self._waits or self._asked):
            for queue in self.tables.queues.values():
                if queue:
                    break
            else:
                return
        waiting = {queue.token: queue for queue in self.tables.queues.values() if queue and (is_own_work(queue) or _was_dealt(queue))}
        self._asked = {token: question for token, question in self._asked.items() if token in waiting}
        self._waits = {token: self._waits.get(token) or _begin(now, queue) for token, queue in waiting.items()}
        questions: defaultdict[Address, list[m.Row]] = defaultdict(list)
        for token, queue in waiting.items():
            times = self._due(queue, now)
            if times is not None:
                self._asked[token] = _Question(now, times)
                seconds = FOR_LIFE if queue.actors else mean_of(queue) or 0.0
                placer = self.tables.placers[(self._first + times) % len(self.tables.placers)]
                questions[placer].append((token, queue.demand, len(queue), seconds, self._inputs(queue)))
        for placer, rows in questions.items():
            self.heartbeats.send(placer)
            self.tables.send(placer, m.Place(tuple(rows)))

    def _due(self, queue: ShapeQueue, now: float) -> int | None:
        """How often a queue was asked about without an answer, if it is to be asked about now; else None."""
        question = self._asked.get(queue.token)
        if question is not None:
            return question.times + 1 if now >= question.asked + self.tables.config.placer_patience else None
        wait = self._waits[queue.token]
        if now < self._ask_at(wait) and (queue.feasible is not False or wait.answered):
            return None
        if queue.feasible is not False and (
            self._has_room_for(queue) if queue.actors else queue.first.id != wait.first and self._ends_soon(queue)
        ):
            self._waits[queue.token] = _begin(now, queue)
            return None
        return 0

    def _ask_at(self, wait: _Wait) -> float:
        return float(wait.since + self.tables.config.spill_after * 2**wait.doubled)

    def _has_room_for(self, queue: ShapeQueue) -> bool:
        """Whether an actor waits for nothing but a process of this node."""
        return queue.pool.fits(queue.demand)

    def _ends_soon(self, queue: ShapeQueue) -> bool:
        """Whether this node will have begun all tasks of a queue before others could, or they are too short to be sent."""
        mean = mean_of(queue)
        if mean is None:
            return False
        slots = max(1, min((self.pool.total.get(name, 0) // amount for name, amount in queue.demand if amount > 0), default=1))
        return mean < WORTH_SECONDS or mean * len(queue) / slots < self.tables.config.spill_after

    def _inputs(self, queue: ShapeQueue) -> m.Rows:
        """How many bytes of large values a task of a queue reads on average, by the node where they are."""
        tasks = list(islice(reversed(queue), LOOKED_AT))
        found: Counter[bytes] = Counter()
        for record in (self.tables.find(object_id) for task in tasks for object_id in task.row[3]):
            if record is not None and isinstance(record.value, Stored | Elsewhere):
                found[record.value.place if isinstance(record.value, Elsewhere) else self.node] += record.value.size
        return tuple((node, size // len(tasks)) for node, size in found.items())

    def on_placed(self, now: float, source: Address, message: m.Placed) -> None:
        """Nodes where tasks of some queues are to run."""
        for token, places in message.rows:
            queue = self.tables.queues.get(token)
            if self._asked.pop(token, None) is None and self.tables.nodes:
                continue  # Another global scheduler has answered before.
            if queue is None:
                continue
            self.placement_requests.answered(queue, bool(places))
            known = [(self.tables.nodes[node], count) for node, count in places if node in self.tables.nodes]
            elsewhere = [(node, count) for node, count in known if not node.draining]
            given = sum(self.delegations.give(queue, node, count, now) for node, count in elsewhere if node.process and node.process.ready)
            wait = self._waits.get(token)
            if queue and wait is not None:
                doubled = 0 if elsewhere else min(wait.doubled + 1, DOUBLED_MOST)
                since = now if given or not elsewhere else now + STAY_SECONDS
                self._waits[token] = _Wait(since, queue.first.id, doubled, answered=True)

    def next_deadline(self) -> float | None:
        """When the next queue will have waited long enough, for others or for an answer."""
        if not (self.tables.nodes and (self._waits or self._asked)):
            return None
        config = self.tables.config
        due = [self._ask_at(wait) for token, wait in self._waits.items() if token not in self._asked]
        due += [question.asked + config.placer_patience for question in self._asked.values()]
        return min(due, default=None)


def _begin(now: float, queue: ShapeQueue) -> _Wait:
    return _Wait(now + STAY_SECONDS if queue.strategy else now, queue.first.id)


def _was_dealt(queue: ShapeQueue) -> bool:
    """Whether a queue has this node's share of tasks that were spread, or prefer labels."""
    return queue.strategy[:1] == HERE and only_prefers(queue.strategy) and not queue.delegated and not queue.shared
