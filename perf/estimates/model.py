"""Nodes with queues, whose tasks the real global scheduler places by one estimate or another.

Batches of a recorded load alternate with batches of tasks that all take equally long, so that queues differ in what they are made of. Each
node reports its queue every tenth of a second, as in ``machines/local_scheduler/nodes/heartbeats.py``, by what it has learned from tasks
that ended there. Whoever submits has learned from all tasks. Nothing is taken back, and values are small.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from zfabric.config import Config
from zfabric.machines.global_scheduler import GlobalScheduler
from zfabric.machines.local_scheduler.records import FunctionRecord
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import GLOBAL_SCHEDULER, LOCAL_SCHEDULER
from zfabric.protocol.options import ONE_CPU, RESOURCE_UNIT

NODES, CPUS = 6, 2
BATCH = 16
LOAD = 0.8
"""The share of all CPUs that the tasks need."""
MEAN_SECONDS = 0.1
"""To this mean, recorded durations are scaled: tasks are worth sending, and end between heartbeats."""
STEADY_SECONDS = 0.1
HEARTBEAT_EVERY = 0.1
STEADY, RECORDED = "steady", "recorded"


class Estimate(Protocol):
    """How long the next task of a function will run."""

    def learn(self, seconds: float) -> None:
        """Take in a task that has ended."""

    @property
    def seconds(self) -> float | None:
        """The estimate; None before the first."""


class Today:
    """The exponential average of ``FunctionRecord``, task by task."""

    def __init__(self) -> None:
        self._record = FunctionRecord(b"", "", b"", ())

    def learn(self, seconds: float) -> None:
        """Take in a task that has ended."""
        self._record.learn(1, seconds)

    @property
    def seconds(self) -> float | None:
        """The estimate."""
        return self._record.mean


class LastOnes:
    """What ``pick`` makes of the last ``count`` durations, or of all."""

    def __init__(self, count: int | None, pick: Callable[[Sequence[float]], float]) -> None:
        self._last: deque[float] = deque(maxlen=count)
        self._pick = pick

    def learn(self, seconds: float) -> None:
        """Take in a task that has ended."""
        self._last.append(seconds)

    @property
    def seconds(self) -> float | None:
        """The estimate."""
        return self._pick(self._last) if self._last else None


class Always:
    """The same for all functions: the policy then counts tasks."""

    seconds: float | None = MEAN_SECONDS

    def learn(self, seconds: float) -> None:
        """Learn nothing."""


ESTIMATES: dict[str, Callable[[], Estimate]] = {
    "exponential average (today)": Today,
    "average of all": lambda: LastOnes(None, statistics.fmean),
    "average of the last 16": lambda: LastOnes(16, statistics.fmean),
    "last value": lambda: LastOnes(1, statistics.fmean),
    "median of the last 15": lambda: LastOnes(15, statistics.median),
    "none: tasks are counted": Always,
}
TRUTH = "true durations"


class _Task(NamedTuple):
    function: str
    seconds: float
    submitted: float


class _Node:
    def __init__(self, number: int) -> None:
        self.id = bytes((number + 1,)) * 8
        self.address = LOCAL_SCHEDULER + self.id
        self.queue: deque[_Task] = deque()
        self.free = CPUS
        self.known: dict[str, Estimate] = {}


def mean_wait(durations: Sequence[float], estimate: str, seed: int = 0) -> float:
    """Place a load; return how many seconds a task waits on average. ``estimate`` is one of ``ESTIMATES``, or ``TRUTH``."""
    return _Model(durations, estimate, seed).run()


class _Model:
    def __init__(self, durations: Sequence[float], estimate: str, seed: int) -> None:
        scale = MEAN_SECONDS / statistics.fmean(durations)
        self._durations = [seconds * scale for seconds in durations]
        self._make = ESTIMATES.get(estimate)
        self._rng = random.Random(f"{seed}")
        self._placer = GlobalScheduler(GLOBAL_SCHEDULER + b"theplace", Config())
        self._nodes = [_Node(number) for number in range(NODES)]
        self._by_id = {node.id: node for node in self._nodes}
        self._home: dict[str, Estimate] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._waits: list[float] = []
        self._left = 0

    def run(self) -> float:
        """All batches, from the first to the end of the last task; the mean wait."""
        at = 0.0
        every = BATCH * (MEAN_SECONDS + STEADY_SECONDS) / 2 / (NODES * CPUS * LOAD)
        for begin in range(0, len(self._durations), BATCH):
            batches = {RECORDED: self._durations[begin : begin + BATCH], STEADY: [STEADY_SECONDS] * BATCH}
            for function, durations in batches.items():
                self._left += len(durations)
                self._at(at, lambda now, function=function, durations=durations: self._submit(now, function, durations))  # type: ignore[misc]
                at += every * self._rng.expovariate(1.0)
        for node in self._nodes:
            self._at(self._rng.random() * HEARTBEAT_EVERY, lambda now, node=node: self._beats(now, node))  # type: ignore[misc]
            self._placer.step(0.0, node.address, self._heartbeat(node))
        while self._left:
            now, _, event = heapq.heappop(self._events)
            event(now)
        return statistics.fmean(self._waits)

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _submit(self, now: float, function: str, durations: Sequence[float]) -> None:
        """Place a batch; its tasks wait in the queues of their nodes."""
        known = self._home.get(function)
        seconds = statistics.fmean(durations) if self._make is None else (known.seconds if known else None) or 0.0
        asker = self._nodes[0].address
        self._placer.step(now, asker, m.Place(((1, ONE_CPU, len(durations), seconds, ()),)))
        (answer,) = (effect for effect in self._placer.take_effects(now) if isinstance(effect, Send))
        assert isinstance(answer.message, m.Placed)
        ((_, places),) = answer.message.rows
        tasks = iter([_Task(function, each, now) for each in durations])
        for identifier, count in places:
            self._by_id[identifier].queue.extend(itertools.islice(tasks, count))
            self._begin(now, self._by_id[identifier])

    def _begin(self, now: float, node: _Node) -> None:
        while node.free and node.queue:
            task = node.queue.popleft()
            node.free -= 1
            self._waits.append(now - task.submitted)
            self._at(now + task.seconds, lambda then, task=task: self._ended(then, node, task))  # type: ignore[misc]

    def _ended(self, now: float, node: _Node, task: _Task) -> None:
        node.free += 1
        self._left -= 1
        if self._make is not None:
            for known in (node.known, self._home):
                if task.function not in known:
                    known[task.function] = self._make()
                known[task.function].learn(task.seconds)
        self._begin(now, node)

    def _beats(self, now: float, node: _Node) -> None:
        self._placer.step(now, node.address, self._heartbeat(node))
        self._at(now + HEARTBEAT_EVERY, lambda then: self._beats(then, node))

    def _heartbeat(self, node: _Node) -> m.Heartbeat:
        """The report of a node: the queue's mean by what it knows of each function, as ``Heartbeats`` has it."""
        work: defaultdict[str, float] = defaultdict(float)
        for task in node.queue:
            known = node.known.get(task.function)
            work[task.function] += task.seconds if self._make is None else (known.seconds if known else None) or MEAN_SECONDS
        mean = sum(work.values()) / len(node.queue) if node.queue else 0.0
        total, available = (("CPU", CPUS * RESOURCE_UNIT),), (("CPU", node.free * RESOURCE_UNIT),)
        return m.Heartbeat(node.id, total, available, len(node.queue), mean)
