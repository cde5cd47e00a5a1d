"""Worlds whose programs run on a node without CPUs, as a head often is, while nodes with CPUs join late.

Whatever asks for a CPU is placed elsewhere, also before another node exists. Actors hold all CPUs for a while; some tasks ask for a
resource that only the last node has. If nodes may die, one more joins after all faults, with room for everything: nothing may wait for
ever, and every value is certain.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from tests.sim.actors import GONE
from tests.sim.network import Faults, NodeFaults
from tests.sim.programs import ACTOR, HALF, LOST, MODULUS, NOTHING, PLAIN, WHOLE_MEMORY, Program, mix
from zfabric.protocol.options import ONE_CPU, RESOURCE_UNIT, SPREAD

LATE = (("late", RESOURCE_UNIT),)
"""What only the last node has."""
USUAL = ((PLAIN, ()), (PLAIN, ()), (HALF, ()), (PLAIN, (("demand", ()),)))
"""Kinds and options of tasks."""
ALL = (*USUAL, (PLAIN, WHOLE_MEMORY), (PLAIN, (("demand", LATE),)))
"""The same for tasks that wait for no others: while a task waits, only CPUs are lent."""
ACTORS_MOST = 6
"""Actors that live at once: as many as the last node has CPUs."""
LEASES = 3
"""Leases after the last fault until another node joins."""


class Layout(NamedTuple):
    """The nodes of a world, by number from 1: their CPUs, and the seconds after which each begins. The last one has ``LATE``."""

    cpus: tuple[int, ...]
    begins: tuple[float, ...]
    home: int
    """The number of the driver's node, which begins at once, like the head."""

    @property
    def able(self) -> int:
        """How many actors of one CPU have room at the end."""
        return sum(self.cpus)


def with_restarts(faults: Faults, seed: int) -> Faults:
    """Leave half of these worlds only restarts of daemons: then no node joins later than others, which would have room again."""
    rng = random.Random(f"{seed}/bare faults")
    if rng.random() < 0.5:
        return faults
    restarts = NodeFaults(restarts=rng.choice((0, 0, 1, 2, 4)), delays=rng.choice((0, 0, 2)), window=rng.choice((1.0, 2.0, 6.0)))
    return faults._replace(loss=0.0, nodes=restarts)


def layout(seed: int, count: int, faults: Faults, lease: float) -> Layout:
    """Choose ``count`` nodes, and one more if nodes may die, or by chance."""
    rng = random.Random(f"{seed}/bare nodes")
    home = 2 if count > 2 and rng.random() < 0.5 else 1
    most = rng.choice((1, 2))
    cpus = [0 if number == home or (number == 1 and rng.random() < 0.7) else rng.randint(1, most) for number in range(1, count + 1)]
    scale = rng.choice((0.0, 0.05, 0.5, 4.0))
    begins = [0.0 if number <= home else scale * rng.random() for number in range(1, count + 1)]
    if faults.nodes.deaths or faults.loss or rng.random() < 0.3:
        cpus.append(ACTORS_MOST)
        begins.append(max(faults.window, faults.nodes.window + LEASES * lease) + rng.choice((0.0, 2.0)))
    else:
        begins[-1] = rng.choice((0.1, 1.0, 4.0)) * rng.random()
    return Layout(tuple(cpus), tuple(begins), home)


class BareAuthor:
    """Writes one such program."""

    def __init__(self, seed: str, faults: Faults, nodes: Layout) -> None:
        self.random = random.Random(f"{seed}/bare")
        self.room = nodes.cpus[-1] if faults.nodes.deaths or faults.loss else nodes.able
        killers = faults.worker_crashes or faults.pressure or faults.start_failures or faults.nodes.deaths or faults.loss
        self.errors = GONE | LOST if faults.daemons_die and killers else NOTHING
        self.tasks = 0

    def write(self) -> Program:
        """Write rounds of tasks, of actors that hold CPUs while they are called, and of tasks behind these."""
        rng = self.random
        statements: list[Any] = []
        number = 0
        actors_first = rng.random() < 0.4
        for _ in range(rng.choice((1, 2, 3))):
            tasks: dict[int, int] = {}
            for _ in range(rng.choice((1, 4, 12)) if number or not actors_first else 0):
                tasks[number] = self._task(statements, number, tasks)
                number += 1
            if tasks:
                self._pause(statements)
            most = min(self.room, ACTORS_MOST)
            actors = range(number, number + (most if not number else rng.randrange(most + 1)))
            for slot in actors:
                statements.append(self._actor(slot))
            number = actors.stop
            calls: dict[int, int] = {}
            for slot in actors:
                for _ in range(rng.choice((1, 1, 2))):
                    calls[number] = self._invoke(statements, number, slot)
                    number += 1
            if rng.random() < 0.3:  # Behind the actors.
                tasks[number] = self._task(statements, number, tasks)
                number += 1
            statements += [self._look(slot, value) for slot, value in calls.items()]
            self._pause(statements)
            statements += [("drop", slot) for slot in actors]
            statements += [("get", ((slot, value),)) for slot, value in tasks.items()]
        return Program(tuple(statements), self.tasks)

    def _pause(self, statements: list[Any]) -> None:
        statements.append(("sleep", self.random.choice((0.0, 0.0, 0.02, 0.5, 3.0))))

    def _task(self, statements: list[Any], slot: int, known: dict[int, int], depth: int = 1) -> int:
        """Write a task that may need others, and may submit some and wait for them. Return its value."""
        rng = self.random
        self.tasks += 1
        label = total = rng.randrange(MODULUS)
        needs = (rng.choice(list(known)),) if known and rng.random() < 0.3 else ()
        for each in needs:
            total = mix(total, known[each])
        body: list[Any] = [("sleep", rng.choice((0.0, 0.001, 0.02, 0.3)))]
        for child in range(rng.choice((0, 0, 1, 3)) if depth < 3 else 0):
            value = self._task(body, child, {}, depth + 1)
            body.append(("get", ((child, value),)))
            total = mix(total, value)
        kind, options = rng.choice(USUAL if any(each[0] == "call" for each in body) else ALL)
        if depth == 1 and rng.random() < 0.1:
            options = (*options, ("strategy", SPREAD))
        statements.append(("call", (slot,), kind, (label, False, tuple(body), ((0, ()),)), options, needs, ()))
        return mix(total, 0)

    def _actor(self, slot: int) -> tuple[Any, ...]:
        rng = self.random
        strategy = (("strategy", SPREAD),) if rng.random() < 0.2 else ()
        options = (("max_restarts", -1), ("demand", ONE_CPU), *strategy)
        return "make", slot, ACTOR, (rng.randrange(MODULUS), False, (), ((0, ()),)), options, ()

    def _invoke(self, statements: list[Any], slot: int, actor: int) -> int:
        rng = self.random
        label = rng.randrange(MODULUS)
        pause = (("sleep", rng.choice((0.01, 0.1, 1.0))),) if rng.random() < 0.4 else ()
        statements.append(("invoke", (slot,), actor, (label, False, pause, ((0, ()),)), (), (), (), -1))
        return mix(label, 0)

    def _look(self, slot: int, value: int) -> tuple[Any, ...]:
        if self.errors:
            return "peek", ((slot, value, tuple(sorted(self.errors))),)
        return "get", ((slot, value),)
