"""Durable values in programs of worlds: put by the driver and by tasks on any node, and read after nodes and daemons have died.

The head stores them: no death of another node or of a daemon, the head's included, loses one. So each value is certain.
"""

from __future__ import annotations

import random
from typing import Any

from tests.sim.network import Faults
from tests.sim.programs import FOREVER, MODULUS, PLAIN, Program, mix
from zfabric.protocol.options import SPREAD

FIRST_SLOT = 40_000
"""The first slot of durable values: no author uses it."""


def with_deaths(faults: Faults, seed: int) -> Faults:
    """Have a node die once the program has begun in most of these worlds, and daemons in most of them."""
    rng = random.Random(f"{seed}/deaths of durable values")
    late, restarts = rng.choice((0, 1, 1)), rng.choice((0, 1, 2, 4))
    return faults._replace(nodes=faults.nodes._replace(late_kills=late, restarts=max(restarts, faults.nodes.restarts)))


def with_durable_puts(program: Program, seed: int) -> Program:
    """Have a program's root put durable values, and take some out of tasks' values; read them later, here and on other nodes."""
    rng = random.Random(f"{seed}/durable values")
    statements = list(program.statements)
    steps: list[list[Any]] = []
    tasks = 0
    for slot in range(FIRST_SLOT, FIRST_SLOT + 10 * rng.choice((1, 2, 4)), 10):
        number, label = rng.randrange(MODULUS), rng.randrange(MODULUS)
        put = ("put", slot, number, 0, (), True)
        if rng.random() < 0.7:
            spec = (label, False, (("put", 0, number, 0, (), True), ("sleep", rng.choice((0.0, 0.1, 1.0)))), ((0, (0,)),))
            steps.append([("call", (slot + 1,), PLAIN, spec, (("strategy", SPREAD),), (), ())])
            steps.append([("get", ((slot + 1, mix(label, 0)),)), ("open", slot + 1, 0, slot), ("drop", slot + 1)])
            tasks += 1
        else:
            steps.append([put])
        steps.append([("sleep", rng.choice((0.0, 0.5, 2.0)))])
        if rng.random() < 0.5:
            reader = (label, False, (("get", ((0, number),)),), ((0, ()),))
            steps.append([("call", (slot + 2,), PLAIN, reader, (("strategy", SPREAD), ("contains", (slot,))), (), (slot,))])
            steps.append([("get", ((slot + 2, mix(mix(label, number), 0)),))])
            tasks += 1
        steps.append([("get", ((slot, number),))])
        steps.append([("drop", slot)] if rng.random() < 0.5 else [])
    waits_for_cancel = repr(FOREVER) in repr(statements)  # Meanwhile no CPU may be free for what is read in between.
    places = sorted(len(statements) if waits_for_cancel else rng.randrange(len(statements) + 1) for _ in steps)
    for place, step in reversed(list(zip(places, steps, strict=True))):
        statements[place:place] = step
    return Program(tuple(statements), program.tasks + tasks)
