"""Programs of several nodes with logged actors that live anywhere: called from the driver and from tasks on all nodes, while nodes die.

Nothing that happens to a node other than the driver's may lose a call of these actors: every value is certain, except large ones of
unlogged calls. (Only a daemon that dies soon after another process may have known of an actor what nobody else does.) Tasks call them too,
because only the log has the order of such calls.
"""

from __future__ import annotations

import random
from typing import Any

from tests.sim.actors import GONE
from tests.sim.logged import READONLY
from tests.sim.network import Faults
from tests.sim.node import node_identifier
from tests.sim.programs import ACTOR, LOST, MODULUS, NOTHING, PLAIN, Program, mix
from zfabric.protocol.options import LOGGED, NODE_ID, SPREAD

SHARE = 0.2
"""Share of the worlds of several nodes with actors that have such a program."""


def has_ledgers(seed: int) -> bool:
    """Whether a seed of several nodes with actors has such a program."""
    return random.Random(f"{seed}/does it have ledgers").random() < SHARE


def with_deaths(faults: Faults, seed: int) -> Faults:
    """Have a node die in most of these worlds, and no daemon in half of them: then every value is certain."""
    rng = random.Random(f"{seed}/deaths of ledgers")
    nodes = faults.nodes._replace(late_kills=1) if rng.random() < 0.7 else faults.nodes
    return faults._replace(nodes=nodes._replace(restarts=0) if rng.random() < 0.5 else nodes)


def somewhere(rng: random.Random, nodes: int) -> tuple[tuple[str, Any], ...]:
    """Options of a task or an actor: any node, spread, or preferably a certain one of ``nodes``."""
    number = rng.randrange(nodes + 2)
    if not number:
        return ()
    if number > nodes:
        return (("strategy", SPREAD),)
    return (("strategy", (("soft", NODE_ID, "in", (node_identifier(number).hex(),)),)),)


class LedgerAuthor:
    """Writes one program, for ``nodes`` nodes."""

    def __init__(self, seed: str, faults: Faults, nodes: int) -> None:
        self.random = random.Random(f"{seed}/ledgers")
        self.nodes = nodes
        restarts = faults.nodes.restarts > 0
        self.errors = (
            GONE | LOST
            if restarts and (faults.worker_crashes or faults.pressure or faults.nodes.kills or faults.nodes.late_kills)
            else NOTHING
        )
        self.large = not self.errors and self.random.random() < 0.3
        self.tasks = 0
        self.deaths = faults.nodes.deaths > 0 or faults.loss > 0
        """Whether nodes may die, also by losing their lease."""
        self.unlogged: set[int] = set()
        """Slots of large values that no log can make again: they are lost with the last node that has them."""

    def write(self) -> Program:
        """Write actors, then rounds of calls and tasks that call, with pauses, and at last ``get`` all values."""
        rng = self.random
        statements: list[Any] = []
        actors = list(range(rng.choice((1, 1, 2, 3))))
        for slot in actors:
            statements.append(self._actor(slot))
        slots: dict[int, int] = {}
        for _ in range(rng.randrange(2, 6)):
            for _ in range(rng.randrange(2, 9)):
                slot = len(actors) + len(slots)
                if rng.random() < 0.6:
                    slots[slot] = self._invoke(statements, slot, rng.choice(actors), self.large)
                else:
                    slots[slot] = self._errand(statements, slot, rng.choice(actors))
            statements.append(("sleep", rng.choice((0.0, 0.1, 1.0, 2.5))))
            if rng.random() < 0.5:
                chosen = rng.choice(list(slots))
                statements.append(self._look(chosen, slots[chosen], chosen in self.unlogged))
        statements += [self._look(slot, number, slot in self.unlogged) for slot, number in slots.items()]
        return Program(tuple(statements), self.tasks)

    def _actor(self, slot: int) -> tuple[Any, ...]:
        options = (("max_restarts", -1), ("checkpoint_every", self.random.choice((0, 0, 1, 3, 20))), *somewhere(self.random, self.nodes))
        return "make", slot, ACTOR, (self.random.randrange(MODULUS), False, (), ((0, ()),)), options, ()

    def _invoke(self, statements: list[Any], slot: int, actor: int, large: bool = False) -> int:
        """Write a call. Return its value."""
        rng = self.random
        label = rng.randrange(MODULUS)
        pause = (("sleep", rng.choice((0.01, 0.1, 0.4))),) if rng.random() < 0.4 else ()
        size = rng.choice((0, 200_000)) if large else 0
        method = READONLY if rng.random() < 0.15 else "method"
        if size and method == READONLY and self.deaths:
            self.unlogged.add(slot)
        statements.append(("invoke", (slot,), actor, (label, False, pause, ((size, ()),)), (), (), (), LOGGED, method, True))
        return mix(label, 0)

    def _errand(self, statements: list[Any], slot: int, actor: int) -> int:
        """Write a task that calls an actor. Return its value."""
        rng = self.random
        self.tasks += 1
        label = total = rng.randrange(MODULUS)
        body: list[Any] = []
        numbers = {each: self._invoke(body, each, 0) for each in range(1, rng.randrange(2, 6))}
        for each, number in numbers.items():
            body.append(self._look(each, number))
            total = total if self.errors else mix(total, number)
        spec = (label, False, tuple(body), ((0, ()),))
        statements.append(("call", (slot,), PLAIN, spec, (*somewhere(self.random, self.nodes), ("contains", (actor,))), (), (actor,)))
        return mix(total, 0)

    def _look(self, slot: int, number: int, unlogged: bool = False) -> tuple[Any, ...]:
        errors = frozenset({"ObjectLostError"}) if unlogged else self.errors
        if errors:
            return "peek", ((slot, number, tuple(sorted(errors))),)
        return "get", ((slot, number),)
