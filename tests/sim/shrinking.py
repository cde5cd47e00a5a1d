"""A smaller world that fails like a given one: with fewer faults and statements, so that its trace can be read.

Something is left out for good if the world then fails with the same text but for names and numbers. A program from which too much was
removed fails in another way (a slot is missing, a total is wrong), and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.sim.kinds import Kind
from tests.sim.network import Faults
from tests.sim.programs import Program
from tests.sim.world import World, WorldResult, run_seed

ATTEMPTS = 600
"""The most worlds run to shrink one."""
_NAMES = re.compile(r"\b[0-9a-f]*[0-9][0-9a-f.-]*\b")
_BINDING = frozenset({"get", "peek", "open", "fail", "die"})
"""Statements of tasks on which their values depend, as other tasks expect them."""

Run = Callable[[Faults, Program], WorldResult]


class Shrunk(NamedTuple):
    """What is left of a world, and how it fails. ``attempts`` counts the worlds run."""

    faults: Faults
    program: Program
    result: WorldResult
    attempts: int


def shrink(seed: int, kind: Kind, attempts: int = ATTEMPTS) -> Shrunk:
    """Shrink the world of a seed and a kind. Raises ``ValueError`` if it does not fail."""
    world = World(seed, kind)
    return shrink_world(world.faults, world.program, lambda faults, program: run_seed(seed, kind, reduced=(faults, program)), attempts)


def shrink_world(faults: Faults, program: Program, run: Run, attempts: int) -> Shrunk:
    """Shrink faults and a program; ``run`` runs a world with them. Raises ``ValueError`` if the first one does not fail."""
    shrinker = _Shrinker(run, attempts, faults, program)
    shrinker.shrink()
    return Shrunk(shrinker.faults, shrinker.program, shrinker.result, shrinker.attempts)


def without_names(failure: str) -> str:
    """A failure without the names and numbers in it."""
    return _NAMES.sub("#", failure)


class _Shrinker:
    def __init__(self, run: Run, most: int, faults: Faults, program: Program) -> None:
        self._run = run
        self._most = most
        self.attempts = 1
        self.faults = faults
        self.program = program
        self.result = run(faults, program)
        if not self.result.failure:
            raise ValueError(f"the world of seed {self.result.seed} does not fail")
        self._failure = without_names(self.result.failure)

    def shrink(self) -> None:
        """Try what leaves out most first, until nothing more can be left out or ``attempts`` is reached."""
        smaller = True
        while smaller and self.attempts < self._most:
            smaller = self._shrink_program()
            smaller |= self._first(((faults, self.program) for faults in _fewer(self.faults)), again=lambda: _fewer(self.faults))

    def _shrink_program(self) -> bool:
        found = False
        size = max(1, len(self.program.statements) // 2)
        while size:
            start = 0
            while start < len(self.program.statements):
                statements = self.program.statements
                if self._try(self.faults, self.program._replace(statements=statements[:start] + statements[start + size :])):
                    found = True
                else:
                    start += size
            size //= 2
        index = 0
        while index < len(self.program.statements):
            inner = next((each for each in _without_one(self.program.statements[index]) if self._try_at(index, each)), None)
            found |= inner is not None
            index += inner is None
        return found

    def _try_at(self, index: int, statement: Any) -> bool:
        statements = self.program.statements
        return self._try(self.faults, self.program._replace(statements=(*statements[:index], statement, *statements[index + 1 :])))

    def _first(self, candidates: Iterator[tuple[Faults, Program]], again: Callable[[], Iterator[Faults]]) -> bool:
        found = any(self._try(*each) for each in candidates)
        while found and any(self._try(faults, self.program) for faults in again()):
            pass
        return found

    def _try(self, faults: Faults, program: Program) -> bool:
        if self.attempts >= self._most:
            return False
        self.attempts += 1
        result = self._run(faults, program)
        if without_names(result.failure) != self._failure:
            return False
        self.faults, self.program, self.result = faults, program, result
        return True


def _fewer(faults: Any) -> Iterator[Any]:
    """Yield these faults without one kind, or with fewer of one kind."""
    for name, value in faults._asdict().items():
        if isinstance(value, tuple):
            yield from (faults._replace(**{name: each}) for each in _fewer(value))
        elif value and name not in ("delay", "window"):
            yield faults._replace(**{name: type(value)()})
            if value > 1:
                yield faults._replace(**{name: value - 1})


def _without_one(statement: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield a call with one statement less in its task, or in one that this submits."""
    if statement[0] != "call":
        return
    label, doomed, statements, returns = statement[3]
    for index, each in enumerate(statements):
        before, after = statements[:index], statements[index + 1 :]
        smaller = () if each[0] in _BINDING else ((*before, *after),)
        for left in (*smaller, *((*before, inner, *after) for inner in _without_one(each))):
            yield (*statement[:3], (label, doomed, left, returns), *statement[4:])
