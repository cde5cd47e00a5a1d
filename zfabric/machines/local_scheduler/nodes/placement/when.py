"""When tasks leave this node: those that wait here, or can never run here (decision 0031).

A queue asks a global scheduler for nodes (``Place``): after ``spill_after`` unless it ends soon, or at once if this node can never meet its
demand. An unanswered question is repeated elsewhere, and the first answer counts. A queue for which no other node is named waits twice as
long each time. If no node can meet its demand, the driver is warned, or the tasks fail.

This node's share of spread tasks, and of tasks that prefer labels, waits here for a second and is then placed as other tasks are.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import NamedTuple
from zlib import crc32

from zfabric.machines.common.resources import count_fitting, describe, describe_node
from zfabric.machines.local_scheduler.due import STARVING, UNMET
from zfabric.machines.local_scheduler.nodes.delegations import Delegations, is_own_work
from zfabric.machines.local_scheduler.nodes.heartbeats import Heartbeats, mean_of
from zfabric.machines.local_scheduler.nodes.placement.where import bytes_by_node
from zfabric.machines.local_scheduler.records import HOSTING, READY, STARTING, ShapeQueue
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import FOR_LIFE
from zfabric.protocol.options import HERE, describe_strategy, only_prefers

WORTH_SECONDS = 50e-6
"""Shorter tasks stay: delegation costs both daemons about as much."""
STAY_SECONDS = 1.0
"""How long a queue is left alone whose tasks stay, or were dealt to this node."""
DOUBLED_MOST = 5
"""Most doublings of a queue's wait: 32 times ``spill_after``, 0.64 s."""
LOOKED_AT = 16
"""Tasks of a queue whose inputs are measured."""


class _Question(NamedTuple):
    asked: float
    times: int


class _Wait(NamedTuple):
    """When a queue began to wait or was last examined, with its first task then."""

    since: float
    first: bytes
    doubled: int = 0
    """How often in a row no other node was named."""
    answered: bool = False


class PlacementRequests:
    """Asks global schedulers about queues."""

    def __init__(self, tables: Tables, outcomes: Outcomes, delegations: Delegations, heartbeats: Heartbeats) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.delegations = delegations
        self.heartbeats = heartbeats
        self.unmet = False
        """Whether this node cannot or must not meet some demand."""
        self._waits: dict[int, _Wait] = {}
        """Queues that have tasks, by token."""
        self._asked: dict[int, _Question] = {}
        self._first = crc32(tables.cluster.node)
        """The global scheduler to ask first; nodes share them."""

    # -- demands that this node cannot meet --

    def find_unmet(self, now: float) -> None:
        """Note unmet demands. Without other nodes, ask this node's global scheduler."""
        tables = self.tables
        rows = []
        self.unmet = False
        for queue in tables.queues.values():
            if queue.away:
                self.unmet |= queue.infeasible_since is not None
                continue  # Its tasks are dealt out by their strategy.
            if queue.feasible is None:
                queue.feasible = queue.pool.fits_total(queue.demand)
            if queue.feasible:
                continue
            self.unmet = True
            if not queue.drop_stale():  # Nothing else removes stopped tasks.
                queue.infeasible_since = None
                continue
            if queue.infeasible_since is None:
                queue.infeasible_since = now
            if (not queue.placed or tables.config.infeasible == "raise") and not tables.nodes:  # Else ``ask`` does.
                queue.placed = True
                rows.append((queue.token, queue.demand, len(queue), 0.0, ()))
        if self.unmet:
            tables.deadlines.note(UNMET)
        if rows:
            tables.send(tables.cluster.placers[0], m.Place(tuple(rows)))

    def tick(self, now: float) -> None:
        """Warn drivers once of each demand that no node meets."""
        tables = self.tables
        for queue in tables.queues.values():
            since = queue.infeasible_since
            if since is None or queue.warned or now < since + tables.config.infeasible_warning:
                continue
            task = next((task for task in queue if task.state == READY), None)
            if task is None:
                continue  # All were stopped in this turn: warn of the next one.
            queue.warned = True
            driver = queue.job.driver
            if driver is not None:
                where = describe_strategy(queue.strategy)
                text = (
                    f"{task.name} asks for {describe(queue.demand)}{where and ' '}{where}, which no node has "
                    f"(this one has {describe_node(tuple(sorted(tables.pool.total.items())))}); it stays pending until one joins that "
                    f"does{tables.requested_nodes.describe(now, queue.demand, queue.strategy)}. Ask for less, add a node that has it, or "
                    "set config infeasible='raise' to get an error instead."
                )
                tables.send_to_client(driver, m.Notice("warning", text))

    # -- questions --

    def ask(self, now: float) -> None:
        """Ask about queues that have waited long enough. For clusters of several nodes."""
        tables = self.tables
        if not (self._waits or self._asked or any(tables.queues.values())):
            return
        tables.deadlines.note(UNMET)
        waiting = {queue.token: queue for queue in tables.queues.values() if queue and (is_own_work(queue) or _was_dealt(queue))}
        self._asked = {token: question for token, question in self._asked.items() if token in waiting}
        self._waits = {token: self._waits.get(token) or _begin(now, queue) for token, queue in waiting.items()}
        questions: defaultdict[Address, list[m.Row]] = defaultdict(list)
        for token, queue in waiting.items():
            times = self._due(queue, now)
            if times is not None:
                self._asked[token] = _Question(now, times)
                seconds = FOR_LIFE if queue.actors else mean_of(queue) or 0.0
                placer = tables.cluster.placers[(self._first + times) % len(tables.cluster.placers)]
                questions[placer].append((token, queue.demand, len(queue), seconds, self._inputs(queue)))
        for placer, rows in questions.items():
            self.heartbeats.send(placer)
            tables.send(placer, m.Place(tuple(rows)))

    def _due(self, queue: ShapeQueue, now: float) -> int | None:
        """How often it was asked about without an answer, if it is due; else None."""
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
        return queue.pool.fits(queue.demand)

    def _ends_soon(self, queue: ShapeQueue) -> bool:
        """Whether this node will begin a queue's tasks sooner than others, or they are too short to send."""
        mean = mean_of(queue)
        if mean is None:
            return False
        slots = max(1, count_fitting(self.tables.pool.total, queue.demand, 1))
        return mean < WORTH_SECONDS or mean * len(queue) / slots < self.tables.config.spill_after

    def _inputs(self, queue: ShapeQueue) -> m.Rows:
        tasks = list(islice(reversed(queue), LOOKED_AT))
        found = bytes_by_node(self.tables, [object_id for task in tasks for object_id in task.row[3]])
        return tuple((node, size // len(tasks)) for node, size in found.items())

    # -- answers --

    def on_placed(self, now: float, source: Address, message: m.Placed) -> None:
        """Give tasks to the nodes of an answer."""
        tables = self.tables
        for token, places in message.rows:
            queue = tables.queues.get(token)
            if self._asked.pop(token, None) is None and tables.nodes:
                continue  # Another global scheduler has answered before.
            if queue is None:
                continue
            if not tables.pool.fits_total(queue.demand):
                self._answer_unmet(queue, bool(places))
            known = [(tables.nodes[node], count) for node, count in places if node in tables.nodes]
            elsewhere = [(node, count) for node, count in known if not node.draining]
            given = sum(self.delegations.give(queue, node, count, now) for node, count in elsewhere if node.is_ready)
            wait = self._waits.get(token)
            if queue and wait is not None:
                doubled = 0 if elsewhere else min(wait.doubled + 1, DOUBLED_MOST)
                since = now if given or not elsewhere else now + STAY_SECONDS
                self._waits[token] = _Wait(since, queue.first.id, doubled, answered=True)

    def _answer_unmet(self, queue: ShapeQueue, somewhere: bool) -> None:
        """Note that some node can run its tasks; if none can, fail them if the settings say so."""
        if somewhere:
            queue.infeasible_since = None
        elif self.tables.config.infeasible == "raise":
            for task in list(queue):
                if task.state == READY:
                    text = f"no node will ever have what {task.name} asks for: {describe(queue.demand)}"
                    self.outcomes.fail(task, "TaskUnschedulableError", text, ())

    def next_deadline(self) -> float | None:
        """When to ask, to repeat a question, or to warn a driver."""
        due: list[float] = []
        config = self.tables.config
        if self.tables.nodes and (self._waits or self._asked):
            due += [self._ask_at(wait) for token, wait in self._waits.items() if token not in self._asked]
            due += [question.asked + config.placer_patience for question in self._asked.values()]
        if self.unmet:
            due += [
                queue.infeasible_since + config.infeasible_warning
                for queue in self.tables.queues.values()
                if not queue.feasible and queue.infeasible_since is not None and not queue.warned
            ]
        return min(due, default=None)


def _begin(now: float, queue: ShapeQueue) -> _Wait:
    return _Wait(now + STAY_SECONDS if queue.strategy else now, queue.first.id)


def _was_dealt(queue: ShapeQueue) -> bool:
    """Whether a queue is this node's share of tasks that any node may run."""
    return queue.strategy[:1] == HERE and only_prefers(queue.strategy) and not queue.delegated and not queue.shared


class Starvation:
    """Requests garbage collections while demands wait for resources of actors.

    A handle in a reference cycle retains its actor until Python's collector runs, which counts objects and not CPUs. A collection is costly
    and mostly finds nothing, so each pause is half as long again as the wait so far.
    """

    def __init__(self, tables: Tables, dispatcher: Dispatcher) -> None:
        self.tables = tables
        self.dispatcher = dispatcher
        self.since: float | None = None
        """Since when demands have waited in every turn."""
        self._due = 0.0

    def end_of_turn(self, now: float) -> None:
        """Note whether a demand waits."""
        if not self.dispatcher.starved:
            self.since = None
        elif self.since is None:
            self._begin(now)

    def _begin(self, now: float) -> None:
        self.since, self._due = now, now + self.tables.config.collect_seconds
        self.tables.deadlines.note(STARVING, self._due)

    def next_deadline(self) -> float | None:
        """When the next request is due, if actors hold what the demands need."""
        return self._due if self.since is not None else None

    def tick(self, now: float) -> None:
        """Have all processes collect, if demands wait for resources of actors."""
        if self.since is None or now < self._due:
            return
        if not self._actors_hold_it():
            self._begin(now)
            return
        self._due = now + max(self.tables.config.collect_seconds, (now - self.since) * 1.5)
        self.tables.count("collections")
        for worker in self.tables.workers.values():
            if worker.state != STARTING:
                self.tables.send_to_control(worker, m.CollectGarbage())
        for job in self.tables.jobs.values():
            if job.driver is not None:
                self.tables.send_to_client(job.driver, m.CollectGarbage())

    def _actors_hold_it(self) -> bool:
        held = {name for worker in self.tables.workers.values() if worker.state == HOSTING for name, _ in worker.demand}
        if not held:
            return False
        waiting = [queue for queue in self.tables.queues.values() if queue and not queue.leased and queue.feasible]
        return any(name in held for queue in waiting if not queue.pool.fits(queue.demand) for name, _ in queue.demand)
