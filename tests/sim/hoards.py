"""Programs that hoard large results of logged actors: more than the arena has room for, so that they are spilled, and their files lost.

A lost result is rebuilt from its actor's log when it is read. Meanwhile the actors go on, their processes and the daemon die, checkpoints
cut the logs, and results are dropped. The additional statement ``lose`` deletes files of results that a log can rebuild.
"""

from __future__ import annotations

import random
from typing import Any

from tests.sim.actors import GONE, ActorAuthor
from tests.sim.programs import ACTOR, LOST, MODULUS, NOTHING, PLAIN, ExpectedOutcome, Handle, Program, Scope, mix
from zfabric.protocol.options import LOGGED

SIZES = (700_000, 1_500_000, 3_000_000, 3_000_000)
SHARE = 0.06
"""Share of the seeds with actors that have such a program."""


def hoards(seed: int) -> bool:
    """Whether a seed with actors has such a program."""
    return random.Random(f"{seed}/does it hoard").random() < SHARE


class Hoarder(ActorAuthor):
    """Writes one program."""

    def write(self) -> Program:
        """Write a program that makes, loses and rereads large results."""
        scope = Scope(0, (), False, True, 0)
        actors = [self._logged_actor(scope) for _ in range(self.random.choice((1, 1, 2)))]
        for _ in range(self.random.randrange(2, 5)):
            for _ in range(self.random.randrange(4, 9)):
                self._large_call(scope, self.random.choice(actors))
                if self.random.random() < 0.4:
                    self._errand(scope, self.random.choice(actors))
            scope.statements.append(("wait", tuple(scope.slots), len(scope.slots), None))
            self._look_again(scope, self.random.randrange(1, 4))
            for slot in self.random.sample(list(scope.slots), len(scope.slots) // 4):
                del scope.slots[slot]
                scope.statements.append(("drop", slot))
        self._look_again(scope, len(scope.slots))
        return Program(tuple(scope.statements), self.tasks)

    def _logged_actor(self, scope: Scope) -> int:
        self.actors += 1
        lost = self.faults.daemon_crashes and (self.faults.worker_crashes or self.faults.pressure)
        slot = scope.slot(Handle(self.actors, GONE | LOST if lost else NOTHING, LOGGED, False, True))
        options = (("max_restarts", -1), ("checkpoint_every", self.random.choice((0, 1, 2, 5))))
        scope.statements.append(("make", slot, ACTOR, (self.random.randrange(MODULUS), False, (), ((0, ()),)), options, ()))
        return slot

    def _large_call(self, scope: Scope, actor: int) -> None:
        handle = scope.handles[actor]
        needed = tuple(self.random.sample(list(scope.slots), min(len(scope.slots), self.random.choice((0, 0, 0, 1)))))
        number = label = self.random.randrange(MODULUS)
        for slot in needed:
            number = mix(number, scope.slots[slot].number or 0)
        pause = (("sleep", self._time()),) if self.random.random() < 0.5 else ()
        spec = (label, False, pause, ((self.random.choice(SIZES), ()),))
        slot = scope.slot(ExpectedOutcome(mix(number, 0), handle.errors, (), frozenset({handle.ordinal})))
        scope.statements.append(("invoke", (slot,), actor, spec, (), needed, (), LOGGED))

    def _errand(self, scope: Scope, actor: int) -> None:
        """Write a task that calls the actor too: only the log has the order in which calls of several callers ran."""
        self.tasks += 1
        handle = scope.handles[actor]
        label = total = self.random.randrange(MODULUS)
        statements: list[tuple[Any, ...]] = []
        for slot in range(1, self.random.randrange(2, 5)):
            number = self.random.randrange(MODULUS)
            statements.append(("invoke", (slot,), 0, (number, False, (), ((0, ()),)), (), (), (), LOGGED))
        for _, (slot,), _, (number, *_), *_ in list(statements):
            if handle.errors:
                statements.append(("peek", ((slot, mix(number, 0), tuple(sorted(handle.errors))),)))
            else:
                statements.append(("get", ((slot, mix(number, 0)),)))
                total = mix(total, mix(number, 0))
        made = scope.slot(ExpectedOutcome(mix(total, 0), handle.errors, (), frozenset({handle.ordinal})))
        scope.statements.append(
            ("call", (made,), PLAIN, (label, False, tuple(statements), ((0, ()),)), (("contains", (actor,)),), (), (actor,))
        )

    def _look_again(self, scope: Scope, count: int) -> None:
        slots = self.random.sample(list(scope.slots), min(len(scope.slots), count))
        for start in range(0, len(slots), 3):
            scope.statements.append(("lose", self.random.choice((0.5, 1.0))))
            self._get(scope, slots[start : start + 3])
