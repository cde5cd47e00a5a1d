"""Worlds of a cluster that grows and shrinks: nodes join while tasks wait, and drain themselves once they are idle.

The driver's node has no CPUs, as a machine that only submits. Otherwise only links are slow, so that tasks are on their way to nodes that
leave, and some daemons restart. So:

- No task is lost with a node that leaves.
- Where no daemon restarts, no attempt of the driver's tasks is given to a third node, and no node stays idle while another one has more of
  them than it can run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

from tests.sim.bare import Layout
from tests.sim.network import Faults, NodeFaults
from tests.sim.node import Node, Overview, SimDaemon
from tests.sim.programs import HALF, MODULUS, PLAIN, Program, mix
from zfabric.machines.local_scheduler import ASSIGNED
from zfabric.protocol import messages as m
from zfabric.protocol.ids import short
from zfabric.protocol.messages import Envelope
from zfabric.protocol.options import SPREAD

NODES_MOST = 60
"""Nodes that may join in one world, one after the other."""
LOOK_EVERY = 0.3
"""Seconds between looks whether another node is to join."""
IDLE_MOST = 2.0
"""Seconds for which a node may be idle while another one has too much: several looks of the home, and a question."""
HANDED_MOST = 2
"""How often an attempt is given to a node, not counting one that returns it because it is drained."""


def with_restarts(faults: Faults, seed: int) -> Faults:
    """Leave nodes only restarts of daemons and slow links."""
    rng = random.Random(f"{seed}/elastic faults")
    restarts, delays = rng.choice((0, 0, 0, 0, 1, 2)), rng.choice((0, 3, 6))
    nodes = NodeFaults(restarts=restarts, delays=delays, clocks=rng.random() < 0.3, window=rng.choice((6.0, 20.0)))
    return faults._replace(loss=0.0, worker_crashes=0, pressure=0, driver_crash=False, start_failures=0, nodes=nodes)


def layout(seed: int) -> Layout:
    """The driver's node, and CPUs of those that may join."""
    rng = random.Random(f"{seed}/elastic nodes")
    most = rng.choice((1, 2))
    return Layout((0, *(rng.randint(1, most) for _ in range(NODES_MOST))), (0.0,), 1)


class ElasticAuthor:
    """Writes one program."""

    def __init__(self, seed: str, idle_seconds: float) -> None:
        self.random = random.Random(f"{seed}/elastic")
        self.idle_seconds = idle_seconds
        self.seconds = self.random.choice((0.02, 0.3, 1.0))
        self.tasks = 0

    def write(self) -> Program:
        """Write rounds of tasks, with pauses in which nodes leave, or are about to. Some tasks read such nodes' values."""
        rng = self.random
        statements: list[Any] = []
        values: dict[int, int] = {}
        rounds, sizes = rng.choice(((1, (12, 24)), (3, (1, 4, 12)), (8, (1, 2, 4))))
        for _ in range(rounds):
            for _ in range(rng.choice(sizes)):
                slot = len(values)
                values[slot] = self._task(statements, slot, values)
            if rng.random() < 0.8:
                statements += [("get", ((slot, value),)) for slot, value in values.items()]
            pause = self.idle_seconds * (1.0 + 0.3 * rng.random())
            statements.append(("sleep", rng.choice((0.0, pause, pause, 2 * pause))))
        statements += [("get", ((slot, value),)) for slot, value in values.items()]
        return Program(tuple(statements), self.tasks)

    def _task(self, statements: list[Any], slot: int, known: dict[int, int], depth: int = 1) -> int:
        """Write a task; most are alike. Return its value."""
        rng = self.random
        self.tasks += 1
        label = total = rng.randrange(MODULUS)
        needs = (rng.choice(list(known)),) if known and rng.random() < 0.15 else ()
        for each in needs:
            total = mix(total, known[each])
        body: list[Any] = [("sleep", self.seconds if rng.random() < 0.8 else rng.choice((0.0, 0.3, 1.0)))]
        for child in range(rng.choice((0, 0, 0, 0, 1, 3)) if depth < 2 else 0):
            value = self._task(body, child, {}, depth + 1)
            body.append(("get", ((child, value),)))
            total = mix(total, value)
        options = (("strategy", SPREAD),) if depth == 1 and rng.random() < 0.15 else ()
        returns = ((rng.choice((0, 0, 0, 200_000)), ()),)
        statements.append(("call", (slot,), rng.choice((PLAIN, PLAIN, HALF)), (label, False, tuple(body), returns), options, needs, ()))
        return mix(total, 0)


class Elastic:
    """Starts nodes while tasks wait, and checks where the tasks go."""

    def __init__(self, world: Overview, most: int, start: Callable[[int], None]) -> None:
        self.world = world
        self.most = most
        """Nodes besides the head at the same time."""
        self._start = start
        self._rng = random.Random(f"{world.seed}/elastic joins")
        self._handed: Counter[tuple[bytes, int]] = Counter()
        self._idle: dict[int, float] = {}
        """Since when a node, by number, is idle while another one has too much."""
        world.after(LOOK_EVERY, self._scale)

    @property
    def _tables(self) -> Any:
        return self.world.nodes[0].daemon.scheduler.tables

    def _scale(self) -> None:
        """Have another node join if tasks wait and there are few enough nodes."""
        if self.world.driver.finished:
            return
        tables = self._tables
        staying = [node for node in self.world.living[1:] if not node.daemon.scheduler.tables.draining]
        waits = any(tables.queues.values()) or any(_waiting(tables, record) for record in tables.nodes.values())
        if waits and len(staying) < self.most and len(self.world.nodes) <= NODES_MOST and (not staying or self._rng.random() < 0.5):
            self.world.states["node joins late"] += 1
            self._start(len(self.world.nodes) + 1)
        self.world.after(LOOK_EVERY, self._scale)

    # -- checks --

    def between_nodes(self, daemon: SimDaemon, envelopes: list[Envelope]) -> None:
        """Count to how many nodes each attempt was given."""
        for _, _, message in envelopes:
            if type(message) is m.Reclaimed and (message.reason or daemon.scheduler.tables.draining):
                tasks = [self._tables.tasks[each] for each in message.task_ids if each in self._tables.tasks]
                self._handed.subtract((task.id, task.attempt) for task in tasks)
            if type(message) is m.Delegate and daemon.node is self.world.nodes[0]:
                attempts: dict[int, int] = dict(message.attempts)
                for index, row in enumerate(message.rows):
                    key = row[0], attempts.get(index, message.attempt)
                    self._handed[key] += 1
                    if self._handed[key] > HANDED_MOST and not self.world.faults.nodes.restarts:
                        self.world.fail(f"{short(row[0])} is given to another node for the {self._handed[key]}th time")

    def after_turn(self, daemon: SimDaemon) -> None:
        """Fail if tasks were lost with a node that left, or a node stays idle beside one with too much."""
        if self.world.faults.nodes.restarts:
            return
        if daemon.scheduler.tables.counts["lost_with_nodes"]:
            self.world.fail(f"tasks that node {daemon.node.number} had given to another one were lost with it")
        busy = [record for record in self._tables.nodes.values() if _waiting(self._tables, record)]
        for node in self.world.living[1:]:
            if not self._is_idle(node) or not busy:
                self._idle.pop(node.number, None)
            elif self.world.now > self._idle.setdefault(node.number, self.world.now) + IDLE_MOST:
                self.world.fail(f"node {node.number} is idle, and {busy[0].name} has more than it can run")

    def _is_idle(self, node: Node) -> bool:
        record = self._tables.nodes.get(node.identifier)
        tables = node.daemon.scheduler.tables
        return record is not None and record.is_ready and not record.draining and not tables.draining and not tables.tasks


def _waiting(tables: Any, record: Any) -> bool:
    """Whether a node has tasks that it cannot have begun, and that may move."""
    last = islice(reversed(record.inflight.values()), len(record.inflight) - tables.begun_at(record))
    return any(task.state == ASSIGNED and not task.row[3] and (task.rare is None or task.rare.moved != task.attempt) for task in last)
