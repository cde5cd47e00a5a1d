"""Random programs for a simulated node, with a model that predicts their values. ``interpreter`` runs them.

A program is a tree of *specs*: plain data that travels as the arguments of tasks. The author writes each statement with the model's
prediction, so that a program checks itself while it runs. Where a value is certain, any other value fails the world. Where it is not (a
task may be cancelled before or after it ends), the model lists the permitted errors, and the outcome does not affect the program's total.

Statements are tuples: ``sleep``, ``deaf`` (a sleep that ignores interrupts), ``call``, ``put``, ``get`` (with the expected values),
``peek`` (``get`` with several permitted outcomes), ``open`` (take a ref out of a value), ``timed`` (``get`` with a timeout), ``wait``,
``drop``, ``cancel``, ``fail``, ``die``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgpack
from tests.sim.network import Faults
from zfabric.protocol.ids import FUNCTION_BYTES
from zfabric.protocol.inside import with_refs, without_refs
from zfabric.protocol.options import MEMORY, ONE_CPU, RESOURCE_UNIT

MODULUS = 1_000_003
FOREVER = 500.0
"""Seconds of a computation that only an interrupt ends."""
LONG = 10.0
"""Seconds of a computation that is interrupted long before its end, unless the task that would cancel it is stopped first."""
DEAF = 0.8
"""Seconds of a computation that ignores interrupts. The scheduler gives it an outcome earlier (``stop_patience``)."""
STOPPED = frozenset({"TaskCancelledError", "TaskTimeoutError"})
CRASHED = frozenset({"WorkerCrashedError", "PoisonedTaskError", "OutOfMemoryError"})
LOST = frozenset({"ObjectLostError", "ObjectFreedError", "LineageEvictedError"})
NOTHING: frozenset[str] = frozenset()

PLAIN, PAIR, RETRIED, APART, PURE, VOID, HALF, WIDE, ACTOR, LIGHT, STREAM = range(11)
"""Kinds of functions: one value; two values; retried exceptions; never inline; deterministic; no value; half a CPU; two CPUs; classes;
streams.
"""

_OPTIONS: tuple[tuple[tuple[str, Any], ...], ...] = (
    (),
    (("num_returns", 2),),
    (("retry_errors", True),),
    (("inline", False),),
    (("deterministic", True),),
    (("num_returns", 0),),
    (("demand", (("CPU", RESOURCE_UNIT // 2),)),),
    (("demand", (("CPU", 2 * RESOURCE_UNIT),)),),
    (("actor", b"blueprint"),),
    (("actor", b"blueprint"), ("lightweight", True)),
    (("stream", 0),),
)
_NAMES = ("plain", "pair", "retried", "apart", "pure", "void", "half", "wide", "actor", "light", "stream")


def function_id(kind: int) -> bytes:
    """The function id of a kind."""
    return bytes([kind + 1]) * FUNCTION_BYTES


NODE_MEMORY = 2**40 * RESOURCE_UNIT
"""The memory of each node, in 1/10,000 of a byte."""
WHOLE_MEMORY = (("demand", ((MEMORY, NODE_MEMORY),)),)
"""Options of tasks and actors that reserve all memory of a node."""

FUNCTIONS = {
    function_id(kind): (_NAMES[kind], b"", (("demand", ONE_CPU), ("max_retries", -1), *options)[0 if kind < HALF else 1 :])
    for kind, options in enumerate(_OPTIONS)
}
"""function id -> (name, payload, options)"""


class Value(NamedTuple):
    """What a task returns or a program puts: a number, and refs."""

    number: int
    refs: tuple[bytes, ...]


def pack_value(value: Value) -> bytes:
    """Pack a value."""
    return with_refs(msgpack.packb(value), value.refs)


def unpack_value(payload: bytes) -> Value:
    """Unpack a value."""
    return Value(*msgpack.unpackb(without_refs(payload), use_list=False))


class Boom(Exception):
    """Raised by user code, with a ref inside."""

    def __init__(self, retry: bool, inside: bytes) -> None:
        super().__init__("boom")
        self.retry = retry
        self.inside = inside


class Interrupted(BaseException):
    """Raised where an attempt is interrupted."""


class Doomed(Exception):
    """Raised in a descendant of a cancelled task that meets an outcome with which it cannot go on."""


class Left(BaseException):
    """Raised by an actor that ends itself."""


class WaitRefused(Exception):
    """Raised where a wait is refused because it would never end."""


class StoreFull(Exception):
    """Raised where the object store has no room for a value."""


class ExpectedOutcome(NamedTuple):
    """The model of an object: its number (None: certainly an error), the permitted errors, the refs inside."""

    number: int | None
    errors: frozenset[str] = NOTHING
    inner: tuple[ExpectedOutcome | Handle, ...] = ()
    touches: frozenset[int] = frozenset()
    """Actors that may have to run before the object exists."""
    frail: bool = False
    """Whether it was put, or needs what was put: nothing makes it again if it is lost with its node."""

    @property
    def certain(self) -> bool:
        """Whether there is only one possible outcome."""
        return self.number is None or not self.errors

    def or_else(self, errors: frozenset[str]) -> ExpectedOutcome:
        """The same outcome with more errors permitted."""
        return self._replace(errors=self.errors | errors) if errors else self


class Handle(NamedTuple):
    """The model of an actor: its place in the order of creation, and how its calls may fail."""

    ordinal: int
    errors: frozenset[str]
    retries: int
    mortal: bool
    """Whether the program may kill it."""
    born: bool
    """Whether its ``__init__`` returns."""
    has_checkpoints: bool = False
    """Whether it has checkpoints, with or without a log."""
    unordered: bool = False
    """Whether it runs several calls at once."""

    def or_else(self, errors: frozenset[str]) -> Handle:
        """The same actor with more errors permitted in its calls."""
        return self._replace(errors=self.errors | errors)


Model = ExpectedOutcome | Handle


def reach(models: Iterable[Model]) -> frozenset[int]:
    """The actors that a holder of these models may wait for, or keep alive."""
    found: set[int] = set()
    for model in models:
        found |= {model.ordinal} if isinstance(model, Handle) else model.touches | reach(model.inner)
    return frozenset(found)


def mix(total: int, number: int) -> int:
    """Add a number to a task's total."""
    return (total * 31 + number + 7) % MODULUS


Spec = tuple[Any, ...]
"""(label, doomed, statements, returns); ``returns`` is a tuple of (size of the value in the arena or 0, slots of refs inside)."""


class Program(NamedTuple):
    """A driver's statements, and how many tasks they submit in all."""

    statements: tuple[Any, ...]
    tasks: int


# --- the author -------------------------------------------------------------------------------------------------------------------


class Scope:
    """A body that is being written: its refs by slot, its statements, and the model of its total."""

    def __init__(self, total: int, boxed: tuple[Model, ...], doomed: bool, steady: bool, depth: int) -> None:
        self.slots: dict[int, ExpectedOutcome] = {}
        self.handles: dict[int, Handle] = {}
        self.next_slot = 0
        for model in boxed:
            self.slot(model)
        self.statements: list[Any] = []
        self.total = total
        self.doomed = doomed
        self.steady = steady
        self.depth = depth
        self.stoppable = False
        """Whether it may be stopped while tasks that it submitted go on; none of these may compute for ever."""
        self.got: set[int] = set()

    def slot(self, model: Model) -> int:
        """A new slot for this model."""
        number = self.next_slot
        self.next_slot += 1
        if isinstance(model, Handle):
            self.handles[number] = model
        else:
            self.slots[number] = model
        return number

    def models(self, slots: Iterable[int]) -> tuple[Model, ...]:
        """The models of these slots."""
        return tuple(self.handles[slot] if slot in self.handles else self.slots[slot] for slot in slots)


class Author:
    """Writes one random program."""

    patience = (0, 4, 8, 16)
    """Choices of how many tasks the driver submits one by one."""

    def __init__(self, seed: str, faults: Faults, cpus: int, large: bool) -> None:
        self.random = random.Random(seed)
        self.one_by_one = random.Random(f"{seed}/one by one")
        self.faults = faults
        self.kinds = (PLAIN,) * 6 + (PAIR, RETRIED, APART, PURE, VOID, HALF) + ((WIDE,) if cpus > 1 else ())
        self.large = large and self.random.random() < 0.6
        self.left = self.random.choice((6, 12, 25, 45))
        self.fanout = self.random.choice((2, 3, 6, 12))
        self.depth_max = self.random.choice((1, 2, 3, 7))
        self.boxes = self.random.random() < 0.5
        self.stops = self.random.random() < 0.4
        self.deaths = self.random.random() < 0.3
        self.tasks = 0
        daemons = faults.daemons_die
        self.crashing = bool(faults.worker_crashes or daemons or faults.pressure or faults.start_failures)

    def write(self) -> Program:
        """Write random statements, then a ``get`` of most of the root's objects."""
        scope = Scope(0, (), False, True, 0)
        patient = self.one_by_one.choice(self.patience)
        self._one_by_one(scope, patient)
        rounds = self.random.randrange(3, 12)
        while self.left > 0 and rounds > 0:
            rounds -= 1
            self._statement(scope)
            if self.random.random() < 0.3:
                scope.statements.append(("sleep", self._time()))
            if patient and self.one_by_one.random() < 0.1:
                self._one_by_one(scope, patient)
        rest = [slot for slot in scope.slots if self.random.random() < 0.9]
        self.random.shuffle(rest)
        for start in range(0, len(rest), 5):
            self._get(scope, rest[start : start + 5])
        return Program(tuple(scope.statements), self.tasks)

    def _one_by_one(self, scope: Scope, count: int) -> None:
        """Submit tasks one by one and wait for each, so that the driver may submit them directly to a worker."""
        usual, self.random = self.random, self.one_by_one
        left, self.left = self.left, self.random.choice((0, 0, 3))
        for _ in range(count):
            self.tasks += 1
            label = self.random.randrange(MODULUS)
            spec, outcomes = self._task(PLAIN, label, label, (), False, True, scope.depth + 1, 0.0, False)
            slots = tuple(scope.slot(outcome) for outcome in outcomes)
            scope.statements.append(("call", slots, PLAIN, spec, (), (), ()))
            if self.random.random() < 0.1:
                scope.statements.append(("sleep", self._time()))
            if self.random.random() < 0.9:
                self._get(scope, list(slots))
            if self.random.random() < 0.7:
                for slot in [each for each in slots if each in scope.slots]:
                    del scope.slots[slot]
                    scope.statements.append(("drop", slot))
        self.random, self.left = usual, left

    def _time(self) -> float:
        return self.random.choice((0.0, 0.0005, 0.002, 0.01, 0.05)) * (0.5 + self.random.random())

    def _size(self) -> int:
        """Choose a size: bytes in the arena, or 0 for an inline value."""
        if not self.large or self.random.random() < 0.5:
            return 0
        return self.random.choice((200_000, 700_000, 1_500_000, 3_000_000))

    def _statement(self, scope: Scope) -> None:
        choice = self.random.random()
        if choice < 0.5 and self.left > 0 and scope.depth < self.depth_max:
            for _ in range(self.random.randrange(1, self.fanout + 1)):
                if self.left > 0:
                    self._call(scope)
        elif choice < 0.58:
            self._put(scope)
        elif choice < 0.78 and scope.slots:
            self._get(scope, self.random.sample(list(scope.slots), min(len(scope.slots), self.random.randrange(1, 6))))
        elif choice < 0.84 and scope.slots:
            chosen = tuple(self.random.sample(list(scope.slots), min(len(scope.slots), self.random.randrange(1, 6))))
            scope.statements.append(("wait", chosen, self.random.randrange(1, len(chosen) + 1), self.random.choice((None, 0.0, 0.01))))
        elif choice < 0.88 and scope.slots:
            scope.statements.append(("timed", self.random.choice(list(scope.slots)), self._time()))
        elif choice < 0.96 and scope.slots:
            slot = self.random.choice(list(scope.slots))
            del scope.slots[slot]
            scope.statements.append(("drop", slot))
        else:
            scope.statements.append(("sleep", self._time()))

    def _get(self, scope: Scope, slots: list[int]) -> None:
        certain = [slot for slot in slots if scope.slots[slot].certain]
        unsure = [slot for slot in slots if not scope.slots[slot].certain]
        if certain:
            expected: list[tuple[int, Any]] = []
            for slot in certain:
                outcome = scope.slots[slot]
                if outcome.number is None:
                    expected.append((slot, tuple(sorted(outcome.errors))))
                    scope.total = mix(scope.total, 1)
                else:
                    expected.append((slot, outcome.number))
                    scope.total = mix(scope.total, outcome.number)
                    scope.got.add(slot)
            scope.statements.append(("get", tuple(expected)))
            for slot in certain:
                if scope.slots[slot].inner and self.random.random() < 0.7:
                    self._open(scope, slot)
        if unsure:
            allowed = tuple((slot, scope.slots[slot].number, tuple(sorted(scope.slots[slot].errors))) for slot in unsure)
            scope.statements.append(("peek", allowed))

    def _elsewhere(self, model: Model) -> Model:
        """The model of an object whose ref leaves its body: it may be lost with a daemon or, if it is frail, with the body's node."""
        nodes = self.faults.nodes
        frail = isinstance(model, ExpectedOutcome) and model.frail and nodes.deaths > 0
        return model.or_else(LOST) if frail or self.faults.daemon_crashes + nodes.restarts > 0 else model

    def _open(self, scope: Scope, box: int) -> None:
        index = self.random.randrange(len(scope.slots[box].inner))
        inner = self._elsewhere(scope.slots[box].inner[index])
        if self.random.random() < 0.5:
            new = scope.slot(inner)
            scope.statements.append(("open", box, index, new))
            if self.random.random() < 0.5:
                del scope.slots[box]
                scope.statements.append(("drop", box))
            if new in scope.slots:
                self._get(scope, [new])

    def _put(self, scope: Scope) -> None:
        number = self.random.randrange(MODULUS)
        boxed = self._boxed(scope)
        inner = scope.models(boxed)
        slot = scope.slot(ExpectedOutcome(number, NOTHING, inner, reach(inner), True))
        scope.statements.append(("put", slot, number, self._size(), boxed))

    def _boxed(self, scope: Scope) -> tuple[int, ...]:
        if not self.boxes or not scope.slots or self.random.random() < 0.6:
            return ()
        return tuple(self.random.sample(list(scope.slots), min(len(scope.slots), self.random.randrange(1, 3))))

    def _call(self, scope: Scope) -> None:
        self.left -= 1
        self.tasks += 1
        rng = self.random
        stop = rng.random() < 0.2 and self.stops and not scope.doomed
        timeout = rng.random() < 0.1 and self.stops
        kind = rng.choice(self.kinds)
        forever = (timeout or (stop and kind != VOID)) and scope.steady and not scope.doomed and rng.random() < 0.5
        doomed = scope.doomed or stop or timeout
        fragile = rng.random() < 0.1 and not forever and kind != RETRIED
        dependencies = tuple(rng.choice(list(scope.slots)) for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3)))) if scope.slots else ()
        boxed = self._boxed(scope)
        label = rng.randrange(MODULUS)
        errors: frozenset[str] = frozenset().union(*(scope.slots[slot].errors for slot in dependencies))
        runs = all(scope.slots[slot].number is not None for slot in dependencies)
        total = label
        for slot in dependencies:
            total = mix(total, scope.slots[slot].number or 0)
        inner = tuple(map(self._elsewhere, scope.models(boxed)))
        touches = reach((*scope.models(dependencies), *inner))
        steady = not (fragile and self.crashing)
        length = (LONG if scope.stoppable else FOREVER) if forever else 0.0
        spec, outcomes = self._task(kind, label, total, inner, doomed, steady, scope.depth + 1, length, fragile)
        options: list[tuple[str, Any]] = [("contains", boxed)] if boxed else []
        if fragile:
            options.append(("max_retries", 1))
            errors |= CRASHED if self.crashing or self.stops else NOTHING
        if timeout:
            options.append(("timeout", 0.02 + 0.1 * rng.random()))
        if doomed:
            errors |= STOPPED | {"doomed"} | ({"boom"} if kind == RETRIED else NOTHING)
        named = (*(scope.slots[slot] for slot in dependencies), *(each for each in inner if isinstance(each, ExpectedOutcome)))
        frail = any(each.frail for each in named)
        outcomes = tuple((each.or_else(errors) if runs else ExpectedOutcome(None, errors)) for each in outcomes)
        outcomes = tuple(each._replace(touches=touches, frail=frail) for each in outcomes)
        slots = tuple(scope.slot(outcome) for outcome in outcomes)
        scope.statements.append(("call", slots, kind, spec, tuple(options), dependencies, boxed))
        if stop and slots:
            if rng.random() < 0.5:
                scope.statements.append(("sleep", self._time()))
            recursive = rng.random() < 0.7
            scope.statements.append(("cancel", slots[0], rng.random() < 0.3, recursive))
        if rng.random() < 0.05:
            for slot in slots:
                if not forever or timeout:
                    del scope.slots[slot]
                    scope.statements.append(("drop", slot))

    def _task(
        self,
        kind: int,
        label: int,
        total: int,
        boxed: tuple[Model, ...],
        doomed: bool,
        steady: bool,
        depth: int,
        forever: float,
        fragile: bool,
        stoppable: bool = False,
    ) -> tuple[Spec, tuple[ExpectedOutcome, ...]]:
        rng = self.random
        scope = Scope(total, boxed, doomed, steady, depth)
        scope.stoppable = stoppable
        failure: frozenset[str] = NOTHING
        if rng.random() < 0.6:
            scope.statements.append(("sleep", self._time()))
        if self.deaths and rng.random() < 0.1:
            always = fragile and rng.random() < 0.5
            scope.statements.append(("die", 1_000 if always else 1))
            failure = CRASHED if always else NOTHING
        elif kind == RETRIED:
            scope.statements.append(("fail", True, rng.randrange(0, 3)))
        for _ in range(rng.randrange(0, 5)):
            self._statement(scope)
        if doomed and label % 3:
            scope.statements.append(("deaf", DEAF))
        if forever:
            scope.statements.append(("sleep", forever))
            failure = STOPPED
        elif rng.random() < 0.06:
            scope.statements.append(("fail", False, 1_000))
            failure = failure or frozenset({"boom"})
        returns, outcomes = [], []
        for index in range({PAIR: 2, VOID: 0}.get(kind, 1)):
            inside = self._boxed(scope)
            inner = scope.models(inside)
            returns.append((self._size(), inside))
            number = mix(scope.total, index)
            if kind == VOID or failure:
                outcomes.append(ExpectedOutcome(None, failure))
            else:
                outcomes.append(ExpectedOutcome(number, NOTHING, inner))
        return (label, doomed, tuple(scope.statements), tuple(returns)), tuple(outcomes)
