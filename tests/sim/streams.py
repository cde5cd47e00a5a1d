"""Streams in programs of worlds: of tasks and of actors' methods, read by the driver or by its tasks, some not to the end.

The driver reads streams whose home is its own node, and others whose home is that of a task. A value has its index, which readers check.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import msgpack
from tests.sim.actors import GONE
from tests.sim.arena import Content
from tests.sim.network import Faults
from tests.sim.programs import (
    ACTOR,
    CRASHED,
    FOREVER,
    LOST,
    MODULUS,
    NOTHING,
    PLAIN,
    STREAM,
    Program,
    Value,
    function_id,
    mix,
    pack_value,
)
from zfabric.machines.worker import Invocation
from zfabric.protocol.ids import FIRST_RETURN, TASK_BYTES, object_id
from zfabric.protocol.messages import OK
from zfabric.protocol.options import SPREAD, option

Running = Generator[tuple[Any, ...], Any, Any]

FIRST_SLOT = 20_000
"""The first slot of streams: no author uses it."""
METHOD_SLOT = 25_000
"""The first slot of streams that actors make."""
FED_SLOT = 28_000
"""The first slot of streams whose values tasks take."""
WINDOW = 2
"""How many values a reader requests at once."""


def with_streams(program: Program, seed: int, faults: Faults) -> Program:
    """Have a program's root make and read streams, among its other statements."""
    rng = random.Random(f"{seed}/streams")
    statements = list(program.statements)
    tasks = program.tasks
    waits_for_cancel = repr(FOREVER) in repr(statements)  # Meanwhile no CPU may be free for what is read in between.
    for number in range(rng.choice((1, 2, 4))):
        made = _Stream(rng, FIRST_SLOT + 10 * number, faults)
        anywhere = sorted(rng.randrange(len(statements) + 1) for _ in made.steps)
        places = [len(statements)] * len(made.steps) if waits_for_cancel else anywhere
        for place, step in reversed(list(zip(places, made.steps, strict=True))):
            statements[place:place] = step
        tasks += made.tasks
    return Program(tuple(statements), tasks)


def with_fed_tasks(program: Program, seed: int, faults: Faults) -> Program:
    """Have a program's root give values of streams to tasks, drop the stream, and read later what the tasks made of them.

    Whatever dies meanwhile is made again, the stream's task included. A daemon that dies may have the only row of that task, for a moment.
    """
    rng = random.Random(f"{seed}/fed")
    statements = list(program.statements)
    if repr(FOREVER) in repr(statements) or rng.random() < 0.4:
        return program
    nodes = faults.nodes
    errors = LOST - {"ObjectFreedError"} if nodes.restarts or faults.daemon_crashes else NOTHING
    tasks = 0
    for slot in range(FED_SLOT, FED_SLOT + 100 * rng.choice((1, 1, 2)), 100):
        label, count = rng.randrange(MODULUS), rng.choice((1, 3, 8))
        fed = rng.choice((1, count, count))
        size, large, pause = rng.choice((0, 70_000)), rng.choice((0, 70_000, 70_000)), rng.choice((0.0, 0.3))
        where: tuple[Any, ...] = (("strategy", SPREAD),)
        spec = (label, False, (("yield", label, count, size, pause),), ((0, ()),))
        outs = range(slot + 1, slot + 1 + fed)
        expected = tuple((each, mix(mix(label, mix(label, index)), 0), tuple(sorted(errors))) for index, each in enumerate(outs))
        steps: list[list[tuple[Any, ...]]] = [
            [("call", (slot,), STREAM, spec, (("stream", rng.choice((1, 2, 4))), *where), (), ())],
            [("feed", slot, label, tuple(outs), large, where, rng.random() < 0.3), ("leave", slot)],
            [("peek", (each,)) for each in expected] if rng.random() < 0.5 else [("peek", expected)],
        ]
        if rng.random() < 0.7:
            steps[1:2] = [[step] for step in steps[1]]  # The stream goes on for a while.
        places = sorted(rng.randrange(len(statements) + 1) for _ in steps)
        for place, step in reversed(list(zip(places, steps, strict=True))):
            statements[place:place] = step
        tasks += 1 + fed
    return Program(tuple(statements), program.tasks + tasks)


def with_streaming_methods(program: Program, seed: int, faults: Faults) -> Program:
    """Have a program's root make actors somewhere, and read streams of their methods."""
    rng = random.Random(f"{seed}/streaming methods")
    ends = faults.worker_crashes + faults.pressure + faults.start_failures + faults.nodes.deaths
    errors = GONE | LOST | CRASHED if ends or faults.daemons_die else NOTHING
    where: tuple[Any, ...] = (("strategy", SPREAD),) if rng.random() < 0.8 else ()
    steps: list[list[Any]] = []
    tasks = 0
    for slot in range(METHOD_SLOT, METHOD_SLOT + 10 * rng.choice((1, 2, 3)), 10):
        size, pause = rng.choice((0, 0, 70_000)), rng.choice((0.0, 0.01, 0.3))
        label, count = rng.randrange(MODULUS), rng.choice((0, 1, 3, 8, 20))
        take, retries = rng.choice((1, count, count + 1, count + 1)), rng.choice((0, -1))
        spec = (label, False, (("yield", label, count, size, pause),), ((0, ()),))
        # Each has an actor of its own: one that waits for its reader takes no other call meanwhile.
        born = (("max_restarts", rng.choice((0, -1))), *where)
        steps.append([("make", slot + 2, ACTOR, (1, False, (), ((0, ()),)), born, ())])
        steps.append([("invoke", (slot,), slot + 2, spec, (("stream", rng.choice((1, 2, 4))),), (), (), retries)])
        tasks += 1
        if rng.random() < 0.4:
            allowed = LOST | GONE | CRASHED
            inner = (label, False, (("follow", 0, label, count, take, tuple(sorted(allowed))),), ((0, ()),))
            passed = (("strategy", SPREAD), ("contains", (slot,)))
            steps.append([("call", (slot + 1,), PLAIN, inner, passed, (), (slot,))])
            steps.append([("peek", ((slot + 1, mix(label, 0), tuple(sorted(allowed))),))])
            tasks += 1
        else:
            steps.append([("follow", slot, label, count, take, tuple(sorted(errors)))])
        steps.append([("leave", slot)] if rng.random() < 0.7 else [])
    statements = list(program.statements)
    waits_for_cancel = repr(FOREVER) in repr(statements)  # Meanwhile there may be no process for the actor.
    places = sorted(len(statements) if waits_for_cancel else rng.randrange(len(statements) + 1) for _ in steps)
    for place, step in reversed(list(zip(places, steps, strict=True))):
        statements[place:place] = step
    return Program(tuple(statements), program.tasks + tasks)


class _Stream:
    """The statements that make, read and drop one stream."""

    def __init__(self, rng: random.Random, slot: int, faults: Faults) -> None:
        self.rng = rng
        nodes = faults.nodes
        deaths, restarts = nodes.deaths, nodes.restarts + faults.daemon_crashes
        size, pause = rng.choice((0, 0, 70_000)), rng.choice((0.0, 0.01, 0.3))
        label, count = rng.randrange(MODULUS), rng.choice((0, 1, 3, 8, 20))
        far = rng.random() < 0.3
        readers = rng.choice((0, 1, 1, 2)) if not far else 0
        errors = LOST if (size and deaths) or (far and deaths + restarts) else NOTHING
        self.tasks = 1 + far + readers
        spec = (label, False, (("yield", label, count, size, pause),), ((0, ()),))
        options = (("stream", rng.choice((1, 2, 4))), *self._where())
        take = rng.choice((1, count, count + 1, count + 1))
        made: list[Any] = [("call", (slot,), STREAM, spec, options, (), ())]
        if far:
            outer = (label, False, (("call", (0,), STREAM, spec, options, (), ()),), ((0, (0,)),))
            made = [("call", (slot + 1,), PLAIN, outer, self._where(), (), ()), ("receive", slot + 1, slot, tuple(sorted(errors)))]
        used: list[Any] = [("follow", slot, label, count, take, tuple(sorted(errors)))]
        if readers:  # One that is retried, or is not alone, finds values gone that were taken before.
            inner = (label, False, (("follow", 0, label, count, take, tuple(sorted(LOST))),), ((0, ()),))
            passed = (*self._where(), ("contains", (slot,)))
            slots = range(slot + 2, slot + 2 + readers)
            used = [("call", (each,), PLAIN, inner, passed, (), (slot,)) for each in slots]
            used += [("peek", tuple((each, mix(label, 0), tuple(sorted(LOST | CRASHED))) for each in slots))]
        self.steps = [made, used, [("leave", slot)] if rng.random() < 0.7 else []]

    def _where(self) -> tuple[Any, ...]:
        return (("strategy", SPREAD),) if self.rng.random() < 0.7 else ()


def make(process: Any, room: Callable[[int], Running], label: int, count: int, size: int, pause: float) -> Running:
    """Yield the values of the running task, as ``runtime.streaming.Production`` does."""
    item, yields = process.top.item, process.worker.yields
    assert item is not None
    task_id = item.row[0]
    options = item.options if isinstance(item, Invocation) else item.row[4] if len(item.row) > 4 else None
    yields.begin(task_id, option(options, "stream", 0) or process.config.stream_buffered)
    made = 0
    while made < count:
        yield ("permission", lambda made=made: yields.may_go_on(task_id, made))
        if yields.closed(task_id):
            break
        if pause:
            yield ("sleep", pause)
        value: Any = pack_value(Value(mix(label, made), ()))
        if size:
            offset = yield from room(size)
            process.node.arena.write(offset, Content(object_id(task_id, made + 1), size, value))
            process.machine.reservations.finished(offset)
            value = (offset, size)
        yields.add((task_id, item.attempt, made, value, ()))
        process.flush()
        made += 1
    yields.add((task_id, item.attempt, made, None, ()))


def follow(state: Any, slot: int, label: int, count: int, take: int, errors: tuple[str, ...]) -> Running:
    """Read a stream's first values, in order, with a window of requests. The one after the last is its end."""
    if slot not in state.slots:
        return  # Its home has died.
    process, task_id = state.process, state.slots[slot][:TASK_BYTES]
    window: deque[bytes] = deque()
    asked = 0
    for index in range(take):
        while asked <= index + WINDOW:
            name = object_id(task_id, asked + 1)
            asked += 1
            window.append(name)
            process.machine.references.add(name)
            state.held.append(name)
            process.machine.objects.want((name,))
        ((status, data),) = yield ("get", (window[0],), None)
        kind, value = state.look(window[0], status, data)
        process.world.states["stream read"] += 1
        right = value is not None and value.number == mix(label, index) if index < count else kind == "StreamEnded"
        if not right and (value is not None or kind not in errors) and not state.doomed and not state.condemned:
            process.world.fail(f"{process.name}: value {index} of {count} of a stream is {kind or value}")
        if status != OK:
            break
        _drop(state, window.popleft())
    for name in window:
        _drop(state, name)


def feed(state: Any, slot: int, label: int, outs: tuple[int, ...], size: int, options: tuple[Any, ...], waits: bool) -> Running:
    """Give each of a stream's first values to a task, and drop the value, at once or when it exists."""
    process, task_id = state.process, state.slots[slot][:TASK_BYTES]
    for index, out in enumerate(outs):
        name = object_id(task_id, index + 1)
        process.machine.references.add(name)
        state.held.append(name)
        process.machine.objects.want((name,))
        if waits:
            yield ("wait", (name,), 1, None)
        arguments = msgpack.packb(((label, False, (), ((size, ()),)), ()))
        state.take(out, process.submit(function_id(PLAIN), arguments, (name,), options, 1) + FIRST_RETURN)
        process.world.states["value of a stream passed on"] += 1
        _drop(state, name)


def _drop(state: Any, name: bytes) -> None:
    state.held.remove(name)
    state.process.drop(name)


def receive(state: Any, box: int, slot: int, errors: tuple[str, ...]) -> Running:
    """Take a stream out of the value of a task."""
    ((status, data),) = yield ("get", (state.slots[box],), None)
    kind, value = state.look(state.slots[box], status, data)
    if value is None:
        if kind not in errors and not state.condemned:
            state.process.world.fail(f"{state.process.name}: what has a stream inside is {kind}")
        return
    state.process.machine.references.add(value.refs[0])
    state.take(slot, value.refs[0])


def leave(state: Any, slot: int) -> None:
    """Drop a stream, if it was received."""
    if slot in state.slots:
        _drop(state, state.slots.pop(slot))
