"""Programs whose actors wait for each other, some in circles, and a check of the warnings and refusals that follow.

A *chain* of calls and tasks goes from actor to actor. Each makes the next one and waits for it. Its end decides what must follow:

- the last one returns, and all of them get what they wait for;
- ``close``: the last one calls an actor that the chain came by, and waits: a circle. If that is its own actor, the wait is refused.
  Otherwise the driver is warned, and kills one of the actors. Without a warning, the program never ends;
- ``timed``: as ``close``, with a timeout; or ``asked``: the last one waits for a call, which has run, that the driver made to the first
  actor before the chain. The driver must not be warned of either.

Between processes, chains go to actors with larger numbers, and back only at their ends. The actors of a circle are in no other chain, so
that no circle forms by chance. The additional statement is ``ask`` (get, or be refused).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.sim.actors import GONE
from tests.sim.bodies import StackFrame
from tests.sim.network import Faults
from tests.sim.node import Overview
from tests.sim.processes import Process
from tests.sim.programs import ACTOR, CRASHED, LIGHT, LOST, MODULUS, NOTHING, PLAIN, STOPPED, Author, Program, Spec, function_id, mix
from zfabric.machines.local_scheduler import WAITING, Deadlocks
from zfabric.machines.worker import Invocation
from zfabric.protocol.ids import FIRST_RETURN, TASK_BYTES, short

REPORT_SECONDS = 1.0
"""Seconds within which the scheduler receives that a process has died or waits no longer."""
REFUSED = "refused"
"""The error of a body whose wait was refused."""
Waiting = tuple["Process", "StackFrame"]
"""A body and its process."""


class CircleAuthor(Author):
    """Writes programs whose bodies have all actors in the slots 0, 1, …, and after them the result of their chain's earlier call."""

    def __init__(self, seed: str, faults: Faults, cpus: int, large: bool) -> None:
        super().__init__(seed, faults, cpus, large)
        rng = self.random
        lightweight = rng.choice((0.0, 0.5, 1.0)) if cpus == 1 else rng.choice((0.0, 0.0, 0.5))
        open_chains, circles = rng.randrange(0, 5), rng.randrange(0, 4)
        sizes = [rng.randrange(1, 5) for _ in range(1 + circles)]
        self.kinds = tuple(LIGHT if rng.random() < lightweight else ACTOR for _ in range(sum(sizes)))
        self.together = cpus == 1 and set(self.kinds) == {LIGHT}
        """Whether all actors share one process."""
        self.chains = [(range(sizes[0]), False)] * open_chains
        """(range of actors, whether it ends in a circle) of each chain."""
        for circle in range(circles):
            first = sum(sizes[: circle + 1])
            self.chains.append((range(len(self.kinds)) if self.together else range(first, first + sizes[circle + 1]), True))
        rng.shuffle(self.chains)
        self.restarts, self.retries = rng.choice(((0, 0), (-1, 0), (-1, -1)))
        if circles and self.crashing:
            self.restarts = self.retries = 0  # The rest of a chain and its repeated calls could wait for each other.
        self.errors = (GONE | LOST | CRASHED | {"doomed"}) if self.crashing else NOTHING

    def write(self) -> Program:
        """Write actors, and chains that begin with calls of the driver."""
        rng, actors = self.random, len(self.kinds)
        statements: list[Any] = []
        for actor, kind in enumerate(self.kinds):
            options = (("max_restarts", self.restarts),)
            statements.append(("make", actor, kind, (rng.randrange(MODULUS), False, (), ((0, ()),)), options, ()))
        ends: list[tuple[Any, ...]] = []
        cancels: list[Any] = []
        for number, (members, closes) in enumerate(self.chains):
            before, slot = actors + 2 * number, actors + 2 * number + 1
            chain = _Chain(self, self._path(members), closes or self.together, closes)
            earlier = chain.invoke(before, chain.path[0], chain.earlier, self._sleeps(), ())
            spec, label = chain.body(0)
            statements += [earlier, chain.call(slot, chain.path[0], spec, (*range(actors), before)), *self._sleeps()]
            errors = chain.errors
            if rng.random() < 0.5:
                cancels += [*self._sleeps(), ("cancel", slot, False, False)]
                errors = (*errors, *STOPPED)
            ends += [("peek", ((before, mix(chain.earlier, 0), chain.errors),)), ("peek", ((slot, mix(label, 0), errors),))]
        rng.shuffle(ends)
        return Program((*statements, *cancels, *ends), 0)

    def _path(self, members: range) -> list[int]:
        rng = self.random
        if self.together:
            return [rng.choice(members) for _ in range(rng.randrange(1, 5))]
        return sorted(rng.sample(members, rng.randrange(1, len(members) + 1)))

    def _sleeps(self) -> list[Any]:
        return [("sleep", self._time())] if self.random.random() < 0.5 else []


class _Chain:
    """One chain: ``path`` lists its actors, ``broken`` says whether its waits may be refused."""

    def __init__(self, author: CircleAuthor, path: list[int], broken: bool, closes: bool) -> None:
        self.author = author
        self.random = author.random
        self.path = path
        self.closes = closes
        self.errors = tuple(sorted(author.errors | GONE | LOST | {REFUSED} if broken else author.errors))
        self.earlier = self.random.randrange(MODULUS)
        """The label of the driver's call to the first actor before the chain."""
        self.passed = tuple(range(len(author.kinds) + 1))
        """The slots that each body passes to the next one."""

    def call(self, slot: int, actor: int, spec: Spec, passed: tuple[int, ...]) -> tuple[Any, ...]:
        return ("invoke", (slot,), actor, spec, (("contains", passed),) if passed else (), (), passed, self.author.retries)

    def invoke(self, slot: int, actor: int, label: int, statements: list[Any], passed: tuple[int, ...]) -> tuple[Any, ...]:
        return self.call(slot, actor, _spec(label, statements), passed)

    def _ask(self, slot: int, number: int) -> tuple[Any, ...]:
        return ("ask", slot, number, self.errors, self.random.random() < 0.5)

    def body(self, position: int) -> tuple[Spec, int]:
        """Write the body of the call at a position of the chain. Return its spec and its label."""
        rng, author = self.random, self.author
        slot, label = len(self.passed), rng.randrange(MODULUS)
        statements = author._sleeps()
        if position + 1 == len(self.path):
            return _spec(label, [*statements, *self._end(), *author._sleeps()]), label
        spec, following = self.body(position + 1)
        call = self.call(slot, self.path[position + 1], spec, self.passed)
        if rng.random() < 0.25 and not author.together:  # Put a task between the calls. Shared processes cannot see through tasks.
            between = rng.randrange(MODULUS)
            inside = [*author._sleeps(), call, self._ask(slot, mix(following, 0))]
            call = ("call", (slot,), PLAIN, _spec(between, inside), (("contains", self.passed),), (), self.passed)
            following = between
        statements += [call, *author._sleeps(), self._ask(slot, mix(following, 0))]
        return _spec(label, [*statements, *author._sleeps()]), label

    def _end(self) -> list[Any]:
        rng, author = self.random, self.author
        slot = len(self.passed)
        how = rng.choice(("close", "close", "argument")) if self.closes else rng.choice(("nothing", "timed", "asked"))
        if how == "nothing":
            return []
        if how == "asked":
            return [self._ask(slot - 1, mix(self.earlier, 0))]
        label = rng.randrange(MODULUS)
        call = self.invoke(slot, rng.choice(self.path), label, author._sleeps(), ())
        if how == "timed":
            return [call, ("timed", slot, rng.choice((0.05, 0.05, 8.0)) + author._time())]
        if how == "close" or author.together:
            return [call, *author._sleeps(), self._ask(slot, mix(label, 0))]
        needs = rng.randrange(MODULUS)
        task = ("call", (slot + 1,), PLAIN, _spec(needs, []), (), (slot,), ())
        return [call, task, self._ask(slot + 1, mix(mix(needs, mix(label, 0)), 0))]


def _spec(label: int, statements: list[Any]) -> Spec:
    return (label, False, tuple(statements), ((0, ()),))


class WaitGraph:
    """Records who waits for whom; checks that warnings and refusals are right."""

    def __init__(self, world: Overview) -> None:
        self.world = world
        self.ended: set[bytes] = set()
        """Tasks and calls that have ended."""
        self._resumed_at: dict[bytes, float] = {}
        """When each task or call last stopped waiting, or lost its process."""
        self._circles: dict[str, list[bytes]] = {}
        """The actors of a circle, by the warning's text."""
        self._chance = random.Random(f"{world.seed}/circles")

    def resumed(self, frame: StackFrame) -> None:
        """Record that a body no longer waits."""
        if frame.item is not None:
            self._resumed_at[frame.item.row[0]] = self.world.now

    def refused(self, process: Process, frame: StackFrame, wanted: tuple[bytes, ...]) -> None:
        """Fail if an actor was refused to wait for these objects but does not wait for itself."""
        assert frame.item is not None
        self.world.states["circle refused"] += 1
        if not self.world.kind.circles or not self._waits_for_itself(process, frame, wanted):
            names = ", ".join(map(short, wanted))
            self.world.fail(f"{process.name}: {short(frame.item.row[0])} is refused to wait for {names}, which is no circle")

    def warned(self, text: str, deadlocks: Deadlocks) -> None:
        """Check a warning of the scheduler to the driver."""
        if "wait for each other" not in text:
            return
        if not self.world.kind.circles:
            self.world.fail(f"the driver is warned that {text}, and no program makes such a circle")
        self.world.states["circle warned"] += 1
        circle = dict(next(circle for circle, warning in deadlocks.warned.items() if warning == text))
        waiting: set[bytes] = set()
        actors: set[bytes] = set()
        for process in self.world.processes():
            for frame in process.stack:
                item, wait = frame.item, frame.wait
                if item is None or item.row[0] not in circle:
                    continue
                if wait is not None and wait.deadline is None and self._waits_for_itself(process, frame, circle[item.row[0]]):
                    waiting.add(item.row[0])
                if type(item) is Invocation or item.row[1] in (function_id(ACTOR), function_id(LIGHT)):
                    actors.add(item.actor_id if type(item) is Invocation else item.row[0])
        last_change = max(self._resumed_at.get(task_id, 0.0) for task_id in circle)
        if waiting != set(circle) and self.world.now - last_change > REPORT_SECONDS:
            names = ", ".join(map(short, set(circle) - waiting))
            self.world.fail(f"the driver is warned of {names}, which do not wait for themselves: {text}")
        self._circles[text] = sorted(actors)

    def warning_received(self, process: Process, text: str) -> None:
        """Have the driver kill one of the actors in a warning."""
        actors = self._circles.pop(text, [])
        if actors:
            self.world.states["circle broken"] += 1
            actor_id = self._chance.choice(actors)
            process.machine.references.add(actor_id + FIRST_RETURN)  # Its program may have dropped its own handle.
            process.kill_actor(actor_id, True)
            process.drop(actor_id + FIRST_RETURN)
            process.wake()

    def _waits_for_itself(self, process: Process, frame: StackFrame, wanted: tuple[bytes, ...]) -> bool:
        """Whether a body that waits for these objects waits for itself, directly or through others without a timeout."""
        agenda: list[tuple[Process, tuple[bytes, ...]]] = [(process, wanted)]
        seen: set[int] = set()
        while agenda:
            who, objects = agenda.pop()
            for identifier in objects:
                if who.machine.objects.at_hand(identifier):
                    continue
                for home, following in self._makers(identifier):
                    if following is frame:
                        return True
                    wait = following.wait
                    if wait is None or not wait.blocking or wait.deadline is not None or id(following) in seen:
                        continue
                    seen.add(id(following))
                    agenda.append((home, wait.wanted))
        return False

    def _makers(self, identifier: bytes) -> Iterator[Waiting]:
        """Yield the bodies that must go on before an object can exist."""
        maker = identifier[:TASK_BYTES]
        everyone = self.world.processes()
        caller = next((each for each in everyone if maker in each.machine.calls.pending), None)
        if maker in self.ended:
            return
        if caller is not None:
            actor_id = caller.machine.calls.pending[maker].actor_id
            for process in everyone:
                for frame in process.stack:
                    item = frame.item
                    if item is not None and (item.actor_id if type(item) is Invocation else item.row[0]) == actor_id:
                        yield process, frame
            return
        for process in everyone:
            yield from ((process, frame) for frame in process.stack if frame.item is not None and frame.item.row[0] == maker)
        task = self.world.task_record(maker)
        if task is not None and task.state == WAITING:
            for needed in task.row[3]:
                yield from self._makers(needed)
