"""Programs whose actors wait for each other, some of them in circles; and who truly waits for whom, in a world that sees everybody.

*Chains* of calls and tasks go from actor to actor. Each asks for the next one and waits for it. How one ends decides what is to come of it:

- it ends, and all have what they wait for;
- ``close``: the last waits for a call of its own of an actor in whose call the chain began, or came by: a circle. If it is its own actor,
  that is refused. Else the driver is warned, and kills one of the actors; if nobody is warned, this program has no end;
- ``timed``: it waits so for a while only; or ``asked``: for a call of the first actor that somebody else made, before the chain: that has
  run. The driver may not be warned of either.

Between processes, chains go to actors with larger numbers, and back only at their ends, and those of a circle are in no other chain: else
chains that nobody meant to close would. The statement beyond those of ``programs`` and ``actors``: ``ask`` (get, or be refused).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zfabric.machines.local_scheduler import WAITING
from zfabric.machines.worker import Invocation
from zfabric.protocol.ids import FIRST_RETURN, TASK_BYTES, short
from zfabric.sim.actors import GONE
from zfabric.sim.network import Faults
from zfabric.sim.programs import ACTOR, CRASHED, LIGHT, LOST, MODULUS, NOTHING, PLAIN, STOPPED, Author, Program, Spec, function_id, mix

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler import Deadlocks
    from zfabric.sim.frames import Frame
    from zfabric.sim.node import Overview
    from zfabric.sim.processes import Process

NEWS_SECONDS = 1.0
"""How long it may take until the scheduler is told that somebody goes on, or is dead."""
REFUSED = "refused"
"""How a body ends that does not go on without what it was refused to wait for."""
Waiting = tuple["Process", "Frame"]


class CircleAuthor(Author):
    """Writes one program. Every body knows all actors, by the slots 0, 1, …, and in the slot after those what was asked of one before."""

    def __init__(self, seed: str, faults: Faults, cpus: int, large: bool) -> None:
        super().__init__(seed, faults, cpus, large)
        rng = self.random
        lightweight = rng.choice((0.0, 0.5, 1.0)) if cpus == 1 else rng.choice((0.0, 0.0, 0.5))
        open_chains, circles = rng.randrange(0, 5), rng.randrange(0, 4)
        sizes = [rng.randrange(1, 5) for _ in range(1 + circles)]
        self.kinds = tuple(LIGHT if rng.random() < lightweight else ACTOR for _ in range(sum(sizes)))
        self.together = cpus == 1 and set(self.kinds) == {LIGHT}
        """Whether all live in one process."""
        self.chains = [(range(sizes[0]), False)] * open_chains
        """The actors of each chain, and whether it ends in a circle."""
        for circle in range(circles):
            first = sum(sizes[: circle + 1])
            self.chains.append((range(len(self.kinds)) if self.together else range(first, first + sizes[circle + 1]), True))
        rng.shuffle(self.chains)
        self.restarts, self.retries = rng.choice(((0, 0), (-1, 0), (-1, -1)))
        if circles and self.crashing:
            self.restarts = self.retries = 0  # What is left of a chain, and what is made of it again, may wait for each other.
        self.errors = (GONE | LOST | CRASHED | {"doomed"}) if self.crashing else NOTHING

    def write(self) -> Program:
        """Actors, and chains that begin with calls of the driver's."""
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
    """One chain, by the actors that it goes to."""

    def __init__(self, author: CircleAuthor, path: list[int], broken: bool, closes: bool) -> None:
        self.author = author
        self.random = author.random
        self.path = path
        self.closes = closes
        self.errors = tuple(sorted(author.errors | GONE | LOST | {REFUSED} if broken else author.errors))
        self.earlier = self.random.randrange(MODULUS)
        """The number of what the driver has asked the first of them before."""
        self.known = tuple(range(len(author.kinds) + 1))
        """What each body of it knows."""

    def call(self, slot: int, actor: int, spec: Spec, known: tuple[int, ...]) -> tuple[Any, ...]:
        """A call."""
        return ("invoke", (slot,), actor, spec, (("contains", known),) if known else (), (), known, self.author.retries)

    def invoke(self, slot: int, actor: int, label: int, statements: list[Any], known: tuple[int, ...]) -> tuple[Any, ...]:
        """A call that runs these statements."""
        return self.call(slot, actor, _spec(label, statements), known)

    def _ask(self, slot: int, number: int) -> tuple[Any, ...]:
        return ("ask", slot, number, self.errors, self.random.random() < 0.5)

    def body(self, position: int) -> tuple[Spec, int]:
        """What the call at a place of the chain runs, and its number."""
        rng, author = self.random, self.author
        slot, label = len(self.known), rng.randrange(MODULUS)
        statements = author._sleeps()
        if position + 1 == len(self.path):
            return _spec(label, [*statements, *self._end(), *author._sleeps()]), label
        spec, following = self.body(position + 1)
        call = self.call(slot, self.path[position + 1], spec, self.known)
        if rng.random() < 0.25 and not author.together:  # By way of a task, of which a process that actors share knows nothing.
            between = rng.randrange(MODULUS)
            inside = [*author._sleeps(), call, self._ask(slot, mix(following, 0))]
            call = ("call", (slot,), PLAIN, _spec(between, inside), (("contains", self.known),), (), self.known)
            following = between
        statements += [call, *author._sleeps(), self._ask(slot, mix(following, 0))]
        return _spec(label, [*statements, *author._sleeps()]), label

    def _end(self) -> list[Any]:
        rng, author = self.random, self.author
        slot = len(self.known)
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


class Truth:
    """Who waits for whom in a world."""

    def __init__(self, world: Overview) -> None:
        self.world = world
        self.ended: set[bytes] = set()
        """Calls that have."""
        self._went_on: dict[bytes, float] = {}
        """When what had waited went on, or its process died."""
        self._circles: dict[str, list[bytes]] = {}
        """The actors of a circle, by the warning of it."""
        self._chance = random.Random(f"{world.seed}/circles")

    def goes_on(self, frame: Frame) -> None:
        """What is on a stack waits no longer."""
        if frame.item is not None:
            self._went_on[frame.item.row[0]] = self.world.now

    def refused(self, process: Process, frame: Frame, wanted: tuple[bytes, ...]) -> None:
        """An actor is refused to wait for these calls of itself."""
        assert frame.item is not None
        self.world.states["circle refused"] += 1
        if not self.world.circling or not self._waits_for_itself(process, frame, wanted):
            names = ", ".join(map(short, wanted))
            self.world.fail(f"{process.name}: {short(frame.item.row[0])} is refused to wait for {names}, which is no circle")

    def warned(self, text: str, deadlocks: Deadlocks) -> None:
        """The scheduler warns the driver."""
        if "wait for each other" not in text:
            return
        if not self.world.circling:
            self.world.fail(f"the driver is warned that {text}, and no program makes such a circle")
        self.world.states["circle warned"] += 1
        circle = dict(next(circle for circle, told in deadlocks.warned.items() if told == text))
        waiting: set[bytes] = set()
        actors: set[bytes] = set()
        for process in self.world.processes():
            for frame in process.frames:
                item, wait = frame.item, frame.wait
                if item is None or item.row[0] not in circle:
                    continue
                if wait is not None and wait.deadline is None and self._waits_for_itself(process, frame, circle[item.row[0]]):
                    waiting.add(item.row[0])
                if type(item) is Invocation or item.row[1] in (function_id(ACTOR), function_id(LIGHT)):
                    actors.add(item.actor_id if type(item) is Invocation else item.row[0])
        last_news = max(self._went_on.get(task_id, 0.0) for task_id in circle)
        if waiting != set(circle) and self.world.now - last_news > NEWS_SECONDS:
            names = ", ".join(map(short, set(circle) - waiting))
            self.world.fail(f"the driver is warned of {names}, which do not wait for themselves: {text}")
        self._circles[text] = sorted(actors)

    def heard(self, process: Process, text: str) -> None:
        """The driver has the warning, and kills one of the actors."""
        actors = self._circles.pop(text, [])
        if actors:
            self.world.states["circle broken"] += 1
            actor_id = self._chance.choice(actors)
            process.machine.references.add(actor_id + FIRST_RETURN)  # Its program may have dropped its own handle.
            process.kill_actor(actor_id, True)
            process.drop(actor_id + FIRST_RETURN)
            process.wake()

    def _waits_for_itself(self, process: Process, frame: Frame, wanted: tuple[bytes, ...]) -> bool:
        """Whether what waits for these waits for itself, by way of others, and none of them goes on before."""
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
        """What has to go on before an object can be there."""
        maker = identifier[:TASK_BYTES]
        everyone = self.world.processes()
        caller = next((each for each in everyone if maker in each.machine.calls.pending), None)
        if maker in self.ended:
            return
        if caller is not None:
            actor_id = caller.machine.calls.pending[maker].actor_id
            for process in everyone:
                for frame in process.frames:
                    item = frame.item
                    if item is not None and (item.actor_id if type(item) is Invocation else item.row[0]) == actor_id:
                        yield process, frame
            return
        for process in everyone:
            yield from ((process, frame) for frame in process.frames if frame.item is not None and frame.item.row[0] == maker)
        daemon = self.world.daemon
        task = daemon.scheduler.tables.tasks.get(maker) if daemon is not None else None
        if task is not None and task.state == WAITING:
            for needed in task.row[3]:
                yield from self._makers(needed)
