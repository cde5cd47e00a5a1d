"""Programs whose driver submits tasks to certain nodes, most of them one after the other, each waited for before the next.

Such a task is sent ahead of the books of both daemons (``machines/local_scheduler/nodes/lone_tasks.py``). Some tasks between are not alone,
are cancelled, or submit tasks themselves. A named node may have died, or not have joined yet.
"""

from __future__ import annotations

import random
from typing import Any

from tests.sim.node import node_identifier
from tests.sim.programs import MODULUS, PLAIN, STOPPED, Program, mix
from zfabric.protocol.options import NODE_ID

UNSCHEDULABLE = "TaskUnschedulableError"


class ElsewhereAuthor:
    """Writes one program, for ``nodes`` nodes."""

    def __init__(self, seed: str, nodes: int) -> None:
        self.random = random.Random(seed)
        self.nodes = nodes
        self.statements: list[Any] = []
        self.tasks = 0
        self._slots = 0

    def write(self) -> Program:
        """Write runs of lone tasks on one node each, with pauses between."""
        rng = self.random
        for _ in range(rng.randrange(2, 6)):
            where = rng.randrange(1, self.nodes + 1)
            for _ in range(rng.choice((3, 6, 12))):
                self._tasks(where)
            self._pause()
        return Program(tuple(self.statements), self.tasks)

    def _pause(self) -> None:
        if self.random.random() < 0.5:
            self.statements.append(("sleep", self.random.choice((0.0, 0.001, 0.03, 0.3, 1.0))))

    def _tasks(self, where: int) -> None:
        """Submit tasks, mostly one; wait for each, and drop most."""
        rng = self.random
        slots = []
        for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 1, 4))):
            slots.append(self._call(where))
        cancelled = rng.random() < 0.05
        if cancelled:
            self.statements.append(("cancel", slots[0][0], rng.random() < 0.3, rng.random() < 0.5))
        errors = (UNSCHEDULABLE, "doomed", *sorted(STOPPED)) if cancelled else (UNSCHEDULABLE,)
        for slot, number in slots:
            self.statements.append(("peek", ((slot, number, errors),)))
            if rng.random() < 0.8:
                self.statements.append(("drop", slot))
        if rng.random() < 0.1:
            self._pause()

    def _call(self, where: int) -> tuple[int, int]:
        """Write a call. Return its value's slot and number."""
        rng = self.random
        self.tasks += 1
        label = rng.randrange(MODULUS)
        total = label
        body: list[Any] = []
        if rng.random() < 0.3:
            body.append(("sleep", rng.choice((0.0, 0.0005, 0.002, 0.05))))
        if rng.random() < 0.1:  # It submits a task itself, and waits for it.
            self.tasks += 1
            inner = rng.randrange(MODULUS)
            body.append(("call", (0,), PLAIN, (inner, False, (), ((0, ()),)), (), (), ()))
            body.append(("get", ((0, mix(inner, 0)),)))
            total = mix(total, mix(inner, 0))
        spec = (label, False, tuple(body), ((0, ()),))  # A large value would be lost with its node, where alone it may be made again.
        slot, self._slots = self._slots, self._slots + 1
        strategy = (("hard", NODE_ID, "in", (node_identifier(where).hex(),)),)
        self.statements.append(("call", (slot,), PLAIN, spec, (("strategy", strategy),), (), ()))
        return slot, mix(total, 0)
