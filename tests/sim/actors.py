"""Programs with actors: created, called by many, passed on in arguments and values, held by other actors, killed.

A method's result depends only on its arguments, as a task's does. So the model of ``programs`` holds whoever calls, and whenever.

Actors are numbered in the order of their creation. Refs inside a call's arguments lead only to actors with smaller numbers than the called
one's. So no actor waits for itself, and none keeps itself alive.

Statements in addition to those of ``programs``: ``make``, ``invoke``, ``keep`` (hold a ref as long as the actor lives), ``kill``, ``exit``,
``abandon`` (leave a handle to the garbage collector).
"""

from __future__ import annotations

import random
from typing import Any

from tests.sim.logged import READONLY
from tests.sim.network import Faults
from tests.sim.programs import (
    ACTOR,
    CRASHED,
    FOREVER,
    LIGHT,
    LONG,
    LOST,
    MODULUS,
    NOTHING,
    PAIR,
    PLAIN,
    STOPPED,
    VOID,
    WHOLE_MEMORY,
    Author,
    ExpectedOutcome,
    Handle,
    Program,
    Scope,
    mix,
    reach,
)
from zfabric.protocol.options import LOGGED, SPREAD

GONE = frozenset({"ActorDiedError", "ActorUnavailableError"})


class ActorAuthor(Author):
    """Writes programs that create and call actors, too."""

    patience = (0, 0, 0, 8)

    def __init__(self, seed: str, faults: Faults, cpus: int, large: bool) -> None:
        super().__init__(seed, faults, cpus, large)
        self.logging = random.Random(f"{seed}/logging")
        self.logs = 0.6
        """Share of the actors that are logged."""
        self.left = self.random.choice((4, 8, 16))
        self.actors_left = self.random.choice((1, 2, 3, 5))
        self.calls_left = self.random.choice((3, 8, 20, 40))
        self.actors = 0
        self.light = random.Random(f"light actors of {seed}")
        self.sharing = self.light.random() < 0.5
        """Whether the program has lightweight actors. It then kills more actors than others do."""
        self._within_light = False
        """Whether the body being written runs in, or was submitted by, a lightweight actor."""
        self._lightweight: set[int] = set()
        self._sheltered: set[int] = set()
        """Lightweight actors created by lightweight actors. They never kill their process: creators who live in it would create them again
        for ever.
        """
        self.several = random.Random(f"actors of {seed} that run several calls at once")
        self.cycles = random.Random(f"{seed}/reference cycles")
        self.direct = random.Random(f"{seed}/large arguments")
        self.directs = self.direct.choice((0.0, 0.0, 0.3, 0.8))
        """Share of the calls that take a large value put just before."""
        self.more_calls = self.several.choice((6, 12, 24))
        """Additional calls of concurrent actors with checkpoints, so that several run at once."""

    def write(self) -> Program:
        """Write a program, in some with a last task that needs a resource of an actor whose only handle is in a reference cycle."""
        program = super().write()
        if self.cycles.random() > 0.3:
            return program
        slot = 10**6
        actor = ("make", slot, ACTOR, (1, False, (), ((0, ()),)), (("max_restarts", 0), *WHOLE_MEMORY), ())
        task = ("call", (slot + 1,), PLAIN, (2, False, (), ((0, ()),)), WHOLE_MEMORY, (), ())
        found = ("peek", ((slot + 1, mix(2, 0), tuple(sorted(CRASHED | LOST))),))
        return program._replace(statements=(*program.statements, actor, ("abandon", slot), task, found), tasks=program.tasks + 1)

    def _statement(self, scope: Scope) -> None:
        choice = self.random.random()
        deeper = scope.depth < self.depth_max
        if (self.actors == 0 and scope.depth == 0) or (choice < 0.12 and self.actors_left > 0 and deeper):
            self._make(scope)
        elif choice < 0.55 and scope.handles and self.calls_left > 0 and deeper:
            slot = self.random.choice(list(scope.handles))
            for _ in range(self.random.randrange(1, self.fanout + 1)):
                if self.calls_left > 0:
                    self._invoke(scope, slot)
            self._invoke_more(scope, slot)
        elif choice < 0.59 and scope.handles:
            slot = self.random.choice(list(scope.handles))
            del scope.handles[slot]
            scope.statements.append(("drop", slot))
        elif choice < (0.75 if self.sharing else 0.63) and any(handle.mortal for handle in scope.handles.values()):
            slot = self.random.choice([slot for slot, handle in scope.handles.items() if handle.mortal])
            scope.statements.append(("kill", slot, self.random.random() < 0.6))
        else:
            super()._statement(scope)

    def _boxed(self, scope: Scope) -> tuple[int, ...]:
        return self._inside(scope, self.actors + 1)

    def _inside(self, scope: Scope, below: int) -> tuple[int, ...]:
        """Choose slots for refs inside an argument or value; none leads to an actor with a number from ``below`` on."""
        able = [slot for slot in (*scope.slots, *scope.handles) if all(number < below for number in reach(scope.models((slot,))))]
        if not able or self.random.random() < 0.4:
            return ()
        return tuple(self.random.sample(able, min(len(able), self.random.randrange(1, 4))))

    def _make(self, scope: Scope) -> None:
        rng = self.random
        self.actors_left -= 1
        self.actors += 1
        ordinal = self.actors
        boxed = self._inside(scope, ordinal)
        mortal = rng.random() < (0.5 if self.sharing else 0.3)
        restarts, retries = rng.choice(((0, 0), (1, 0), (1, 1), (-1, -1), (-1, -1), (-1, 0)))
        kind = LIGHT if self.sharing and self.light.random() < 0.7 else ACTOR
        logged = kind == ACTOR and self.logging.random() < self.logs
        beside, saved = self._beside() if kind == ACTOR and not logged else ((), False)
        if logged:
            restarts, retries = -1, LOGGED
        elif saved and not restarts:
            restarts, retries = self.several.choice(((1, 0), (-1, 0), (-1, 2), (-1, -1)))
        dies = self.crashing or (self.deaths and kind == LIGHT)  # It dies with an actor that shares its process.
        errors = GONE if mortal or (dies and not self._outlives(restarts, retries)) else NOTHING
        if scope.doomed:
            errors |= GONE | STOPPED | {"doomed"}
        inner = self._inner(scope, boxed)
        label = rng.randrange(MODULUS)
        spec, outcomes = self._birth(ordinal, kind, label, inner, scope, mortal)
        born = outcomes[0].number is not None
        several = any(name == "max_concurrency" and size > 1 for name, size in beside)
        errors = errors if born else errors | GONE | outcomes[0].errors
        handle = scope.slot(Handle(ordinal, errors, retries, mortal, born, logged or saved, several))
        every = (("checkpoint_every", self.logging.choice((0, 1, 2, 5))),) if logged else ()
        options = (("max_restarts", restarts), *every, *beside, *((("contains", boxed),) if boxed else ()))
        scope.statements.append(("make", handle, kind, spec, options, boxed))
        self._invoke_more(scope, handle)

    def _invoke_more(self, scope: Scope, slot: int) -> None:
        """Call an unlogged actor with checkpoints many times at once. Nothing else depends on these calls."""
        handle = scope.handles[slot]
        if handle.has_checkpoints and handle.retries != LOGGED:
            rest, self.random = self.random, self.several
            for _ in range(min(self.more_calls, self.several.choice((2, 4, 8)))):
                self.more_calls -= 1
                self._invoke(scope, slot)
            self.random = rest

    def _beside(self) -> tuple[tuple[tuple[str, Any], ...], bool]:
        """Choose the options of a concurrent actor, or none, and whether it has checkpoints."""
        choice = self.several.random()
        if choice > 0.9:
            return (), False
        size = (("max_concurrency", self.several.choice((1, 2, 5))),)
        if choice > 0.7:
            return size, False
        return (*size, ("checkpoint_every", self.several.choice((1, 2, 4))), ("unlogged", True)), True

    def _birth(
        self, ordinal: int, kind: int, label: int, inner: tuple[Any, ...], scope: Scope, mortal: bool
    ) -> tuple[Any, tuple[ExpectedOutcome, ...]]:
        """Write the body of ``__init__``; return (spec, expected outcomes). A mortal actor may be killed while it runs."""
        deaths, within = self.deaths, self._within_light
        if kind == LIGHT:
            self._lightweight.add(ordinal)
            self._within_light = True
            if within:
                self._sheltered.add(ordinal)
                self.deaths = False
        born = self._task(PLAIN, label, label, inner, scope.doomed, True, scope.depth + 1, 0.0, False, mortal)
        self.deaths, self._within_light = deaths, within
        return born

    def _outlives(self, restarts: int, retries: int) -> bool:
        """Whether an actor survives all faults: not if a daemon may lose its row while its process dies."""
        killers = self.faults.worker_crashes or self.faults.pressure or self.deaths
        return restarts < 0 and retries < 0 and not (self.faults.daemons_die and killers)

    def _inner(self, scope: Scope, boxed: tuple[int, ...]) -> tuple[Any, ...]:
        models = scope.models(boxed)
        return tuple(model.or_else(LOST) for model in models) if self.faults.daemons_die else models

    def _put_argument(self, scope: Scope) -> int:
        number = self.direct.randrange(MODULUS)
        slot = scope.slot(ExpectedOutcome(number, NOTHING, (), reach(()), True))
        scope.statements.append(("put", slot, number, self.direct.choice((70_000, 300_000, 1_500_000)), ()))
        return slot

    def _invoke(self, scope: Scope, slot: int) -> None:
        rng = self.random
        self.calls_left -= 1
        handle = scope.handles[slot]
        kind = rng.choice((PLAIN, PLAIN, PLAIN, PAIR, VOID))
        dependencies = tuple(rng.choice(list(scope.slots)) for _ in range(rng.choice((0, 0, 0, 1, 2)))) if scope.slots else ()
        if handle.retries == LOGGED:  # A log retains what its arguments lead to: an actor must not retain itself.
            dependencies = tuple(each for each in dependencies if all(number < handle.ordinal for number in reach(scope.models((each,)))))
        taken = self._put_argument(scope) if self.direct.random() < self.directs else None
        dependencies += () if taken is None else (taken,)
        boxed = self._inside(scope, handle.ordinal)
        stop = self.stops and kind != VOID and rng.random() < 0.15
        timeout = self.stops and rng.random() < 0.08
        forever = stop and scope.depth == 0 and rng.random() < 0.5
        label = rng.randrange(MODULUS)
        total = label
        for each in dependencies:
            total = mix(total, scope.slots[each].number or 0)
        stoppable = stop or timeout or handle.mortal
        spec, outcomes = self._method(handle, kind, label, total, self._inner(scope, boxed), scope, stoppable, forever)
        errors = handle.errors.union(*(scope.slots[each].errors for each in dependencies))
        if stop or timeout:
            errors |= STOPPED
        if errors & LOST:
            errors |= {"doomed"}  # A large argument may be lost on the way.
        if scope.doomed:
            errors |= STOPPED | {"doomed"}
        if (self.crashing or self.deaths or self.stops) and scope.depth > 0:  # ``cancel`` with ``force`` kills a process, too.
            errors |= LOST  # Only the caller has the result until it has offered it to others.
        if self.faults.daemons_die and any(each.inner for each in outcomes):
            errors |= LOST  # Only the daemon has values with refs inside until callers fetch them.
        runs = handle.born and all(scope.slots[each].number is not None for each in dependencies)
        touches = reach((handle, *scope.models(dependencies), *scope.models(boxed)))
        outcomes = tuple((each.or_else(errors) if runs else ExpectedOutcome(None, errors))._replace(touches=touches) for each in outcomes)
        slots = tuple(scope.slot(outcome) for outcome in outcomes)
        options: list[tuple[str, Any]] = [("contains", boxed)] if boxed else []
        if timeout:
            options.append(("timeout", 0.02 + 0.1 * rng.random()))
        if kind != PLAIN:
            options.append(("num_returns", len(slots)))
        chooses = self.logging if handle.retries == LOGGED else self.several
        method = READONLY if handle.has_checkpoints and chooses.random() < 0.2 else "method"
        terms = (handle.retries, method, handle.has_checkpoints, handle.unordered)
        scope.statements.append(("invoke", slots, slot, spec, tuple(options), dependencies, boxed, *terms))
        if taken is not None and self.direct.random() < 0.7:
            del scope.slots[taken]
            scope.statements.append(("drop", taken))
        if stop:
            if rng.random() < 0.5:
                scope.statements.append(("sleep", self._time()))
            scope.statements.append(("cancel", slots[0], False, False))
        elif rng.random() < 0.1:
            for each in slots:
                del scope.slots[each]
                scope.statements.append(("drop", each))

    def _method(
        self, handle: Handle, kind: int, label: int, total: int, inner: tuple[Any, ...], scope: Scope, stoppable: bool, forever: bool
    ) -> tuple[Any, tuple[ExpectedOutcome, ...]]:
        """Write the body of a call. It kills its process only if the actor may die, or actor and call are repeated."""
        deaths, within = self.deaths, self._within_light
        self.deaths = deaths and (handle.mortal or handle.errors >= GONE) and handle.ordinal not in self._sheltered
        self._within_light = within or handle.ordinal in self._lightweight
        steady = not (self.crashing or deaths)  # What it cancels runs on if its process dies before that is sent.
        length = FOREVER if forever else 0.0
        spec, outcomes = self._task(kind, label, total, inner, scope.doomed, steady, scope.depth + 1, length, False, stoppable)
        self.deaths, self._within_light = deaths, within
        statements = spec[2]
        if inner and self.random.random() < 0.3:
            statements = (("keep", self.random.randrange(len(inner))), *statements)
        if handle.mortal and outcomes and outcomes[0].number is not None and self.random.random() < 0.06:
            statements = (*statements, ("exit",))
            outcomes = tuple(ExpectedOutcome(None, GONE) for _ in outcomes)
        returns = spec[3]
        if handle.retries == LOGGED:  # A replay returns other refs than the first run, and the model has only one run.
            returns = tuple((size, ()) for size, _ in returns)
            outcomes = tuple(each._replace(inner=()) for each in outcomes)
        return (spec[0], spec[1], statements, returns), outcomes


class TravellingActorAuthor(ActorAuthor):
    """Writes programs with handles inside most arguments and values, so that several nodes call actors."""

    def __init__(self, seed: str, faults: Faults, cpus: int, large: bool) -> None:
        super().__init__(seed, faults, cpus, large)
        self.travels = random.Random(f"{seed}/handles that travel")
        nodes = faults.nodes
        self._fails = nodes.deaths > 0
        self.left = self.travels.choice((8, 16, 24))
        self.calls_left = self.travels.choice((16, 32, 48))
        self.depth_max = self.travels.choice((2, 3, 4))
        self.elsewhere = random.Random(f"{seed}/actors elsewhere")
        self.share = self.elsewhere.choice((0.0, 0.5, 0.9))
        """Share of the actors that are spread over the nodes; others are made where their creators run."""
        if self.share:  # Lightweight actors, and those with checkpoints, stay.
            self.logs = 0.2
            self.sharing = self.sharing and self.elsewhere.random() < 0.3
            self.actors_left += 2

    def _statement(self, scope: Scope) -> None:
        """Have a task or call often call the actors to which it has handles."""
        if not scope.depth or not scope.handles or scope.depth >= self.depth_max or self.travels.random() < 0.3:
            super()._statement(scope)
            return
        slot = self.travels.choice(list(scope.handles))
        for _ in range(self.travels.randrange(1, 4)):
            if self.calls_left > 0:
                self._invoke(scope, slot)

    def _beside(self) -> tuple[tuple[tuple[str, Any], ...], bool]:
        return ((), False) if self.elsewhere.random() < self.share else super()._beside()

    def _make(self, scope: Scope) -> None:
        before, at = set(scope.handles), len(scope.statements)
        super()._make(scope)
        if self.elsewhere.random() < self.share:
            made = scope.statements[at]
            scope.statements[at] = (*made[:4], (*made[4], ("strategy", SPREAD)), *made[5:])
        if self._fails:  # Actors die with their homes.
            for slot in scope.handles.keys() - before:
                scope.handles[slot] = scope.handles[slot].or_else(GONE | LOST)

    def _invoke(self, scope: Scope, slot: int) -> None:
        before = set(scope.slots)
        super()._invoke(scope, slot)
        if self._fails:
            for each in scope.slots.keys() - before:
                scope.slots[each] = scope.slots[each].or_else(GONE | LOST)

    def _inside(self, scope: Scope, below: int) -> tuple[int, ...]:
        chosen = super()._inside(scope, below)
        if self.travels.random() < 0.2:
            return chosen
        handles = [slot for slot, handle in scope.handles.items() if handle.ordinal < below and slot not in chosen]
        return (*chosen, *handles[:2])


STOPPING = 0.15
"""Share of the worlds of several nodes that stop calls on other nodes."""
STOPPED_SLOT = 30_000
"""The first slot of these calls: no author uses it."""


def with_stopped_calls(program: Program, seed: int) -> Program:
    """Have some programs stop calls of an actor on some node, once they run or may run. The actor takes the next call."""
    rng = random.Random(f"{seed}/calls that are stopped")
    if rng.random() >= STOPPING:
        return program
    actor, calls = STOPPED_SLOT, range(STOPPED_SLOT + 1, STOPPED_SLOT + 1 + rng.choice((1, 2, 3)))
    born = (("max_restarts", rng.choice((0, -1))), ("strategy", SPREAD))
    steps: list[Any] = [("make", actor, ACTOR, (1, False, (), ((0, ()),)), born, ())]
    for slot in calls:
        limit = (("timeout", rng.choice((0.1, 0.5, 1.0))),) if rng.random() < 0.3 else ()
        steps.append(("invoke", (slot,), actor, (slot, False, (("sleep", LONG),), ((0, ()),)), limit, (), (), 0))
        steps.append(("sleep", rng.choice((0.0, 0.05, 0.3, 1.0))))
        steps += [("cancel", slot, False, False)] if not limit else []
    errors = tuple(sorted(STOPPED | GONE | LOST))
    last = calls[-1] + 1
    steps.append(("invoke", (last,), actor, (last, False, (), ((0, ()),)), (), (), (), 0))
    steps.append(("peek", tuple((slot, mix(slot, 0), errors) for slot in calls)))
    steps.append(("peek", ((last, mix(last, 0), tuple(sorted(GONE | LOST))),)))
    statements = list(program.statements)
    waits_for_cancel = repr(FOREVER) in repr(statements)  # Meanwhile there may be no process for the actor.
    at = len(statements) if waits_for_cancel else rng.randrange(len(statements) + 1)
    statements[at:at] = steps
    return Program(tuple(statements), program.tasks + 1)


__all__ = ["GONE", "ActorAuthor", "TravellingActorAuthor", "with_stopped_calls"]
