"""Placement groups in programs of worlds: made by the driver, used by some of its tasks, removed at the end or left to the end of the job.

The bundles are small shares of the memory that every node has: all groups of a program fit on one node, since the others may die. Only the
last group, which nobody uses, may have no room.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

from tests.sim.actors import GONE
from tests.sim.network import Faults
from tests.sim.processes import Process
from tests.sim.programs import ACTOR, CRASHED, FOREVER, LOST, MODULUS, NODE_MEMORY, PLAIN, Program, mix
from zfabric.protocol.options import ANY_BUNDLE, LOGGED, MEMORY, RESOURCE_UNIT, GroupTerm, Strategy, group_strategy

BUNDLE = ((MEMORY, NODE_MEMORY // 4),)
"""The resources of each bundle."""
DEMANDS = (BUNDLE, ((MEMORY, NODE_MEMORY // 8),), ())
"""What tasks in a group ask for."""
IN_GROUP = "in group"
SHARE = (("share", RESOURCE_UNIT),)
"""What every node has for the groups of actors. (Programs with actors ask for all memory of a node at times.)"""
SMALL = (("share", RESOURCE_UNIT // 4),)
"""The resources of each bundle of actors."""
OF_ACTORS = 9
"""The number of the group of actors."""
ACTOR_SLOT = 12_000
"""The first slot of actors in groups: no author uses it."""
LAST_SLOT = 10_000
"""The first slot that no author uses."""


def grouped(program: Program, seed: int, nodes: int) -> Program:
    """Have some tasks of a program's root run in placement groups."""
    rng = random.Random(f"{seed}/groups")
    used = [(rng.choice((1, 2)), rng.choice(("PACK", "SPREAD", "STRICT_PACK"))), (1, rng.choice(("PACK", "STRICT_SPREAD")))]
    used = used[: rng.choice((1, 2))]
    statements: list[Any] = [("group", index, (BUNDLE,) * bundles, policy) for index, (bundles, policy) in enumerate(used)]
    if rng.random() < 0.5:
        statements.append(("group", len(used), (BUNDLE,) * rng.randrange(1, nodes + 2), "STRICT_SPREAD"))
    share = rng.choice((0.3, 0.7))
    for each in program.statements:
        if each[0] == "call" and each[2] < ACTOR and not each[4] and rng.random() < share:
            which = rng.randrange(len(used))
            each = (*each[:4], _options(rng, which, used[which][0]), *each[5:])
        statements.append(each)
    if rng.random() < 0.5:  # One of its tasks may have ended before a group is removed, or not. All others have.
        statements = _awaited(statements, 0)
        label = rng.randrange(MODULUS)
        spec = (label, False, (("sleep", rng.choice((0.0, 0.05, 5.0))),), ((0, ()),))
        statements.append(("call", (LAST_SLOT,), PLAIN, spec, _options(rng, 0, used[0][0]), (), ()))
        statements += [("sleep", rng.choice((0.0, 0.01, 0.2))), ("ungroup", 0)]
        statements.append(("peek", ((LAST_SLOT, mix(label, 0), ("PlacementGroupRemovedError",)),)))
    return Program(tuple(statements), program.tasks + 1)


def _awaited(statements: list[Any], group: int) -> list[Any]:
    """Have a root wait for those of its tasks in a group of which it gets no value: other such tasks may need these values."""
    got = {each[0] for kind, *about in statements if kind in ("get", "peek") for each in about[0]}
    calls = [each for each in statements if each[0] == "call" and dict(each[4]).get("strategy", ())[:2] == (IN_GROUP, group)]
    awaited = tuple(slot for each in calls for slot in each[1] if slot not in got)
    kept = [each for each in statements if each[0] != "drop" or each[1] not in awaited]
    return [*kept, ("wait", awaited, len(awaited), None)] if awaited else kept


def with_grouped_actors(program: Program, seed: int, faults: Faults) -> Program:
    """Have a program's root make actors in a group of their own, call them, and read streams that they yield, among its other statements.

    Actors are made again where their bundle is reserved next. Nodes of actors that may restart once are only drained, which is no restart.
    """
    rng = random.Random(f"{seed}/actors in groups")
    killers = faults.worker_crashes or faults.pressure or faults.start_failures or faults.nodes.deaths or faults.loss
    drained = faults.nodes.drains > 0
    errors = tuple(sorted(GONE | LOST)) if faults.daemons_die and killers else ()
    bundles = rng.choice((1, 2, 3, 4))
    steps: list[list[Any]] = [[("group", OF_ACTORS, (SMALL,) * bundles, rng.choice(("PACK", "SPREAD", "SPREAD", "STRICT_PACK")))]]
    for slot in range(ACTOR_SLOT, ACTOR_SLOT + 20 * bundles, 20):
        bundle = (slot - ACTOR_SLOT) // 20
        demand = (("demand", SMALL),) if rng.random() < 0.7 else ()
        logged = (("checkpoint_every", rng.choice((0, 2))),) if rng.random() < 0.3 else ()
        restarts = 1 if drained and not killers else -1
        where = (("strategy", (IN_GROUP, OF_ACTORS, bundle)),)
        steps.append([("make", slot, ACTOR, (slot, False, (), ((0, ()),)), (("max_restarts", restarts), *demand, *logged, *where), ())])
        for number in range(1, rng.choice((2, 4, 8))):
            pause = (("sleep", rng.choice((0.01, 0.2, 1.0))),) if rng.random() < 0.5 else ()
            label = rng.randrange(MODULUS)
            retries = LOGGED if logged else -1
            steps.append(
                [("invoke", (slot + number,), slot, (label, False, pause, ((0, ()),)), (), (), (), retries, "method", bool(logged))]
            )
            look = ("peek", ((slot + number, mix(label, 0), errors),)) if errors else ("get", ((slot + number, mix(label, 0)),))
            steps.append([look, ("sleep", rng.choice((0.0, 0.0, 0.3)))])
        if not logged and rng.random() < 0.4:
            label, count = rng.randrange(MODULUS), rng.choice((1, 3, 8))
            spec = (label, False, (("yield", label, count, 0, rng.choice((0.0, 0.01, 0.3))),), ((0, ()),))
            steps.append([("invoke", (slot + 10,), slot, spec, (("stream", rng.choice((1, 2, 4))),), (), (), -1)])
            allowed = tuple(sorted(GONE | LOST | CRASHED)) if killers or faults.daemons_die else ()
            steps.append([("follow", slot + 10, label, count, count + 1, allowed)])
    statements = list(program.statements)
    waits_for_cancel = repr(FOREVER) in repr(statements)
    places = sorted(len(statements) if waits_for_cancel else rng.randrange(len(statements) + 1) for _ in steps)
    for place, step in reversed(list(zip(places, steps, strict=True))):
        statements[place:place] = step
    return Program(tuple(statements), program.tasks)


def _options(rng: random.Random, group: int, bundles: int) -> tuple[Any, ...]:
    return (("demand", rng.choice(DEMANDS)), ("strategy", (IN_GROUP, group, rng.choice((ANY_BUNDLE, rng.randrange(bundles))))))


class Groups:
    """A process's placement groups, by number in the program: (id, home)."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.made: dict[int, tuple[bytes, bytes]] = {}

    def strategy(self, value: Any) -> Strategy:
        """Where a call says that it runs."""
        if not value or value[0] != IN_GROUP:
            return value  # type: ignore[no-any-return]
        _, number, bundle = value
        return group_strategy(GroupTerm(*self.made[number], bundle, False))

    def make(self, number: int, bundles: tuple[Any, ...], policy: str) -> Generator[tuple[Any, ...], Any, Any]:
        """Make a group, and wait until its home has it."""
        identifier = self.process.top.namer.child()
        home, error = yield from self._ask("create group", identifier, bundles, policy, "", "", False)
        if error:
            self.process.world.fail(f"a group is refused: {error}")
        self.made[number] = identifier, home

    def remove(self, number: int) -> Generator[tuple[Any, ...], Any, Any]:
        """Remove a group, and wait until its home has."""
        yield from self._ask("remove group", *self.made[number])

    def _ask(self, what: str, *arguments: Any) -> Generator[tuple[Any, ...], Any, Any]:
        answer = yield ("ask", what, arguments)
        while answer.error:  # The disk is full for a while.
            yield ("sleep", 0.1)
            answer = yield ("ask", what, arguments)
        return answer.payload
