"""Detached actors in programs of several nodes: made by tasks anywhere, and by a driver that mostly dies.

Whoever was notified that an actor is made, or has called it, may rely on it: whatever has died since, the next driver finds the actor by
its name, calls it and ends it. Actors whose creator died may exist or not. When all have ended, nothing is left of the first driver's job.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import msgpack
from tests.sim.actors import GONE
from tests.sim.ledgers import somewhere
from tests.sim.network import Faults
from tests.sim.processes import Process
from tests.sim.programs import (
    ACTOR,
    FUNCTIONS,
    LONG,
    LOST,
    MODULUS,
    NOTHING,
    PLAIN,
    Doomed,
    Program,
    Spec,
    function_id,
    mix,
    unpack_value,
)
from zfabric.protocol.ids import FIRST_RETURN, call_value
from zfabric.protocol.messages import OK

NEXT = Program((("inherit",),), 0)
"""What the next driver does."""


def with_dying_drivers(faults: Faults, seed: int) -> Faults:
    """Have the driver die in half of these worlds, and its node in others."""
    return faults._replace(driver_crash=random.Random(f"{seed}/drivers of detached actors").random() < 0.5)


class DetachedAuthor:
    """Writes one program, for ``nodes`` nodes."""

    def __init__(self, seed: str, faults: Faults, nodes: int) -> None:
        self.random = random.Random(f"{seed}/detached")
        self.nodes = nodes
        self.errors = GONE | LOST if faults.daemons_die else NOTHING
        self.tasks = 0

    def write(self) -> Program:
        """Write actors that the root and its tasks make, calls of these from here and elsewhere, and pauses."""
        rng = self.random
        statements: list[Any] = []
        made: list[int] = []
        slot = 0
        for _ in range(rng.choice((1, 2, 4))):
            if rng.random() < 0.3:
                statements.append(self._detach(slot))
                made.append(slot)
            else:
                value = self._maker(statements, slot)
                statements += [("get", ((slot, value),)), ("open", slot, 0, slot + 1)]
                made.append(slot + 1)
            slot += 2
            statements.append(("sleep", rng.choice((0.0, 0.0, 0.05, 1.0))))
            for actor in made:
                if rng.random() < 0.6:
                    self._use(statements, slot, actor)
                    slot += 1
        statements.append(("sleep", rng.choice((0.0, 1.0, 4.0))))
        return Program(tuple(statements), self.tasks)

    def _maker(self, statements: list[Any], slot: int) -> int:
        """Write a task that makes an actor and returns its handle. Return the task's value."""
        rng = self.random
        self.tasks += 1
        label = total = rng.randrange(MODULUS)
        body: list[Any] = [("sleep", rng.choice((0.0, 0.01, 0.3))), self._detach(0), ("sleep", rng.choice((0.0, 0.0, 0.02, 1.0)))]
        if rng.random() < 0.4:
            total = self._use(body, 1, 0, total)
        statements.append(("call", (slot,), PLAIN, (label, False, tuple(body), ((0, (0,)),)), somewhere(self.random, self.nodes), (), ()))
        return mix(total, 0)

    def _detach(self, slot: int) -> tuple[Any, ...]:
        rng = self.random
        logged = (("checkpoint_every", rng.choice((0, 2))),) if rng.random() < 0.3 else ()
        spec = rng.randrange(MODULUS), False, (), ((0, ()),)
        return "detach", slot, spec, (("max_restarts", -1), *logged, *somewhere(rng, self.nodes))

    def _use(self, statements: list[Any], slot: int, actor: int, total: int = 0) -> int:
        """Write a call of an actor. Whoever has its outcome relies on the actor. Return the total with the call's value."""
        rng = self.random
        label = rng.randrange(MODULUS)
        pause = (("sleep", rng.choice((0.01, 0.2))),) if rng.random() < 0.3 else ()
        statements.append(("invoke", (slot,), actor, (label, False, pause, ((0, ()),)), (), (), (), -1))
        if self.errors:
            statements.append(("peek", ((slot, mix(label, 0), tuple(sorted(self.errors))),)))
            return total
        statements += [("get", ((slot, mix(label, 0)),)), ("rely", actor)]
        return mix(total, mix(label, 0))


class Detached:
    """The detached actors of one world: whether somebody relies on each."""

    def __init__(self) -> None:
        self.relied: dict[bytes, bool] = {}

    def make(self, process: Process, spec: Spec, options: tuple[Any, ...]) -> Generator[tuple[Any, ...], Any, bytes]:
        """Make an actor at the head, as ``ClientInterface.create_detached`` does. Return its handle's id."""
        machine, kind = process.machine, function_id(ACTOR)
        if kind not in machine.tasks.functions:
            machine.tasks.export(kind, *FUNCTIONS[kind])
        actor_id = process.top.namer.child()
        process.world.ancestry.made(actor_id, process.top.item)
        self.relied[actor_id] = False
        row = (actor_id, kind, msgpack.packb((spec, ())), (), (*options, ("detached", True), ("name", actor_id.hex())))
        answer = yield ("ask", "create actor", (row,))
        if answer.error:
            if not process.world.condemned(process.top) and process.world.invariants.is_member(process.node):
                process.world.fail(f"{process.name}: a detached actor is not made: {answer.error}")
            yield ("sleep", LONG)  # Its job has ended, or its node is about to.
            raise Doomed
        if answer.payload:
            self.relied[actor_id] = True
            machine.references.add(actor_id + FIRST_RETURN)
            return actor_id + FIRST_RETURN
        return machine.tasks.submit(row, 1)

    def inherit(self, process: Process) -> Generator[tuple[Any, ...], Any, None]:
        """As the next driver, find all actors by their names, call them, and end them."""
        for number, (actor_id, relied) in enumerate(self.relied.items(), 1):
            answer = yield ("ask", "actor", (actor_id.hex(), ""))
            if answer.error or answer.payload is None:
                if relied:
                    process.world.fail(f"the detached actor {actor_id.hex()} is gone: {answer.error or 'nobody has its name'}")
                continue
            spec = (number, False, (), ((0, ()),))
            call_id = process.invoke(actor_id, msgpack.packb((spec, ())), (), None, 1, -1)
            value = call_value(call_id, 0)
            ((status, data),) = yield ("get", (value,), None)
            if status != OK or unpack_value(data).number != mix(number, 0):
                process.world.fail(f"a call of the detached actor {actor_id.hex()} ended with {process.look(value, status, data)[0]}")
            process.kill_actor(actor_id, True)
            process.drop(value)
            process.world.states["detached actor found"] += 1
            process.world.states["detached actor found that nobody relied on"] += not relied


__all__ = ["NEXT", "Detached", "DetachedAuthor", "with_dying_drivers"]
