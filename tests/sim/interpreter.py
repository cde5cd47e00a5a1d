"""Runs programs of ``programs`` and ``actors``: a generator per body yields when it computes or waits, and compares what it gets with the
model.

A statement is a tuple whose first field names the action.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgpack
from tests.sim import streams
from tests.sim.grouped import Groups
from tests.sim.logged import LoggedActors
from tests.sim.processes import Process
from tests.sim.programs import (
    ACTOR,
    STOPPED,
    Boom,
    Doomed,
    Interrupted,
    Left,
    Program,
    Spec,
    StoreFull,
    Value,
    WaitRefused,
    function_id,
    mix,
    pack_value,
)
from zfabric.machines.common.tables import is_remake
from zfabric.machines.worker import Invocation, Item, Worker
from zfabric.protocol.ids import FIRST_RETURN, TASK_BYTES, call_value, object_id, tries_of
from zfabric.protocol.inside import refs_in
from zfabric.protocol.messages import ERROR, OK

Running = Generator[tuple[Any, ...], Any, Any]


class _State:
    """The refs of a running body by slot, the values it got, the ids it holds, its total."""

    def __init__(self, process: Process, total: int, attempt: int, doomed: bool, slots: dict[int, bytes]) -> None:
        self.process = process
        self.total = total
        self.attempt = attempt
        self.doomed = doomed
        self.slots = slots
        self.values: dict[int, Value] = {}
        self.large: dict[int, tuple[int, int]] = {}
        """Numbers and sizes, by slot, of large values without refs inside that it has put."""
        self.held: list[bytes] = list(slots.values())
        self.groups = Groups(process)

    def look(self, identifier: bytes, status: int, data: Any) -> tuple[str, Value | None]:
        """Read a finished object like ``Process.look``, and hold the refs inside it."""
        kind, value = self.process.look(identifier, status, data)
        if value is not None:
            self.held.extend(value.refs)
        elif status == ERROR:
            self.held.extend(refs_in(data))
        return kind, value

    @property
    def condemned(self) -> bool:
        return self.process.world.condemned(self.process.top)

    def take(self, slot: int, identifier: bytes) -> None:
        self.slots[slot] = identifier
        self.large.pop(slot, None)
        self.held.append(identifier)

    def release(self) -> None:
        for identifier in self.held:
            self.process.drop(identifier)
        self.held = []


def _statements(state: _State, statements: tuple[Any, ...]) -> Running:
    for statement in statements:
        action = _ACTIONS[statement[0]]
        following = action(state, *statement[1:])
        if following is not None:
            yield from following


def _do_sleep(state: _State, seconds: float) -> Running:
    yield ("sleep", seconds)


def _do_deaf(state: _State, seconds: float) -> Running:
    yield ("deaf", seconds)


def _do_call(
    state: _State,
    slots: tuple[int, ...],
    kind: int,
    spec: Spec,
    options: tuple[Any, ...],
    dependencies: tuple[int, ...],
    boxed: tuple[int, ...],
) -> None:
    arguments, pairs = _packed(state, spec, options, boxed)
    needed = tuple(state.slots[slot] for slot in dependencies)
    task_id = state.process.submit(function_id(kind), arguments, needed, pairs, len(slots))
    for index, slot in enumerate(slots):
        state.take(slot, object_id(task_id, index))


def _do_group(state: _State, number: int, bundles: tuple[Any, ...], policy: str) -> Running:
    yield from state.groups.make(number, bundles, policy)


def _do_ungroup(state: _State, number: int) -> Running:
    yield from state.groups.remove(number)


def _packed(state: _State, spec: Spec, options: tuple[Any, ...], boxed: tuple[int, ...]) -> tuple[bytes, Any]:
    refs = tuple(state.slots[slot] for slot in boxed)
    values = {"contains": lambda _: refs, "strategy": state.groups.strategy}
    return msgpack.packb((spec, refs)), tuple((name, values[name](value) if name in values else value) for name, value in options) or None


def _do_make(state: _State, slot: int, kind: int, spec: Spec, options: tuple[Any, ...], boxed: tuple[int, ...]) -> None:
    arguments, pairs = _packed(state, spec, options, boxed)
    state.take(slot, state.process.submit(function_id(kind), arguments, (), pairs, 1) + FIRST_RETURN)


def _do_invoke(
    state: _State,
    slots: tuple[int, ...],
    handle: int,
    spec: Spec,
    options: tuple[Any, ...],
    dependencies: tuple[int, ...],
    boxed: tuple[int, ...],
    retries: int,
    method: str = "method",
    has_checkpoints: bool = False,
    unordered: bool = False,
) -> None:
    arguments, pairs = _packed(state, spec, options, boxed)
    direct = {slot: identifier for slot in dict.fromkeys(dependencies) if (identifier := _directly(state, slot)) is not None}
    needed = tuple(direct.get(slot, state.slots[slot]) for slot in dependencies)
    actor_id, returns = state.slots[handle][:TASK_BYTES], len(slots)
    call_id = state.process.invoke(actor_id, arguments, needed, pairs, returns, retries, method, has_checkpoints, unordered)
    for identifier in direct.values():
        state.process.drop(identifier)
    for index, slot in enumerate(slots):
        state.take(slot, call_value(call_id, index))


def _directly(state: _State, slot: int) -> bytes | None:
    """Write a put value once more, for a call to take directly, if there is room. Return its id."""
    number, size = state.large.get(slot, (0, 0))
    if not size or size > state.process.config.copied_bytes:
        return None
    offset = state.process.machine.reservations.allocate(size)
    return None if offset is None else state.process.add_argument(offset, pack_value(Value(number, ())), size)


def _do_detach(state: _State, slot: int, spec: Spec, options: tuple[Any, ...]) -> Running:
    state.take(slot, (yield from state.process.world.detached.make(state.process, spec, options)))


def _do_rely(state: _State, slot: int) -> None:
    state.process.world.detached.relied[state.slots[slot][:TASK_BYTES]] = True


def _do_inherit(state: _State) -> Running:
    yield from state.process.world.detached.inherit(state.process)


def _do_keep(state: _State, slot: int) -> None:
    state.process.keep(state.slots[slot])


def _do_kill(state: _State, slot: int, no_restart: bool) -> None:
    state.process.kill_actor(state.slots[slot][:TASK_BYTES], no_restart)


def _do_exit(state: _State) -> None:
    raise Left


def _do_put(state: _State, slot: int, number: int, size: int, boxed: tuple[int, ...], durable: bool = False) -> Running:
    value = Value(number, tuple(state.slots[each] for each in boxed))
    if durable:
        identifier = state.process.put_small(pack_value(value), value.refs, durable=True)
        yield ("commit", identifier)
    elif size:
        offset = yield from _room(size)
        identifier = state.process.put_large(offset, pack_value(value), size, value.refs)
    else:
        identifier = state.process.put_small(pack_value(value), value.refs)
    state.take(slot, identifier)
    if size and not durable and not value.refs:
        state.large[slot] = number, size


def _room(size: int) -> Running:
    answer: Any = None
    while answer is None:
        answer = yield ("room", size)
    if isinstance(answer, StoreFull):
        raise answer
    return answer


def _do_get(state: _State, expected: tuple[tuple[int, Any], ...]) -> Running:
    found = yield ("get", tuple(state.slots[slot] for slot, _ in expected), None)
    problems = []
    for (slot, wanted), (status, data) in zip(expected, found, strict=True):
        kind, value = state.look(state.slots[slot], status, data)
        right = kind in wanted if isinstance(wanted, tuple) else value is not None and value.number == wanted
        if value is not None and isinstance(wanted, tuple) and not STOPPED.isdisjoint(wanted):
            right = state.process.world.cancel_forgotten
        if not right:
            problems.append(f"{state.slots[slot].hex()} is {kind or value} and should be {wanted}")
        if value is not None:
            state.values[slot] = value
        state.total = mix(state.total, 1 if isinstance(wanted, tuple) else wanted)
    if problems:
        if state.doomed or state.condemned:
            raise Doomed
        state.process.world.fail(f"{state.process.name}: {'; '.join(problems)}")


def _do_peek(state: _State, allowed: tuple[tuple[int, int | None, tuple[str, ...]], ...]) -> Running:
    found = yield ("get", tuple(state.slots[slot] for slot, _, _ in allowed), None)
    for (slot, number, errors), (status, data) in zip(allowed, found, strict=True):
        kind, value = state.look(state.slots[slot], status, data)
        right = kind in errors if value is None else value.number == number
        right |= kind == "ObjectLostError" and state.slots[slot] in state.process.world.invariants.lost
        if not right and not state.doomed and not state.condemned:
            state.process.world.fail(f"{state.process.name}: {state.slots[slot].hex()} is {kind or value}, not {number} or one of {errors}")


def _do_ask(state: _State, slot: int, number: int, errors: tuple[str, ...], gives_up: bool) -> Running:
    try:
        found = yield ("get", (state.slots[slot],), None)
    except WaitRefused:
        if gives_up:
            raise
        return
    kind, value = state.look(state.slots[slot], *found[0])
    right = kind in errors if value is None else value.number == number
    if not right and not state.condemned:
        state.process.world.fail(f"{state.process.name}: {state.slots[slot].hex()} is {kind or value}, not {number} or one of {errors}")


def _do_open(state: _State, box: int, index: int, slot: int) -> None:
    value = state.values.get(box)
    if value is None:
        raise Doomed
    state.slots[slot] = value.refs[index]
    state.process.machine.references.add(value.refs[index])
    state.held.append(value.refs[index])


def _do_timed(state: _State, slot: int, timeout: float) -> Running:
    found = yield ("get", (state.slots[slot],), timeout)
    if found is not None:
        state.look(state.slots[slot], *found[0])


def _do_wait(state: _State, slots: tuple[int, ...], count: int, timeout: float | None) -> Running:
    ready = yield ("wait", tuple(state.slots[slot] for slot in slots), count, timeout)
    if timeout is None and len(ready) < count:
        state.process.world.fail("wait came back too early")


def _do_drop(state: _State, slot: int) -> None:
    identifier = state.slots.pop(slot)
    state.held.remove(identifier)
    state.process.drop(identifier)


def _do_abandon(state: _State, slot: int) -> None:
    identifier = state.slots.pop(slot)
    state.held.remove(identifier)
    state.process.abandon(identifier)


def _do_cancel(state: _State, slot: int, force: bool, recursive: bool) -> None:
    identifier = state.slots[slot]
    state.process.machine.cancel((identifier,), force, recursive)
    state.process.world.cancellers.setdefault(identifier[:TASK_BYTES], set()).add(state.process.incarnation)


def _do_lose(state: _State, share: float) -> None:
    state.process.world.lose(share)


def _do_fail(state: _State, retry: bool, times: int) -> None:
    if state.attempt < times:
        inside = state.process.put_small(pack_value(Value(times, ())), ())
        state.held.append(inside)
        raise Boom(retry, inside)


def _do_die(state: _State, times: int) -> Running:
    if state.attempt < times:
        yield ("die",)


def _do_yield(state: _State, label: int, count: int, size: int, pause: float) -> Running:
    yield from streams.make(state.process, _room, label, count, size, pause)


_ACTIONS: dict[str, Any] = {
    "yield": _do_yield,
    "follow": streams.follow,
    "feed": streams.feed,
    "receive": streams.receive,
    "leave": streams.leave,
    "sleep": _do_sleep,
    "deaf": _do_deaf,
    "call": _do_call,
    "group": _do_group,
    "ungroup": _do_ungroup,
    "put": _do_put,
    "get": _do_get,
    "peek": _do_peek,
    "ask": _do_ask,
    "open": _do_open,
    "timed": _do_timed,
    "wait": _do_wait,
    "drop": _do_drop,
    "abandon": _do_abandon,
    "cancel": _do_cancel,
    "fail": _do_fail,
    "lose": _do_lose,
    "die": _do_die,
    "make": _do_make,
    "invoke": _do_invoke,
    "detach": _do_detach,
    "rely": _do_rely,
    "inherit": _do_inherit,
    "keep": _do_keep,
    "kill": _do_kill,
    "exit": _do_exit,
}


def _fetched(state: _State, identifier: bytes) -> Running:
    """Get a large argument of a call. It must exist as long as the caller, which holds it, and the node of each value live."""
    state.process.machine.references.add(identifier)
    state.held.append(identifier)
    ((status, data),) = yield ("get", (identifier,), None)
    kind, value = state.look(identifier, status, data)
    world = state.process.world
    if value is None and not world.faults.daemons_die and world.caller_lives(state.process.top) and all(node.up for node in world.nodes):
        world.fail(f"{state.process.name}: the argument {identifier.hex()} of a call is {kind}")
    if value is None:
        raise Doomed
    return value


def task_body(process: Process, worker: Worker, logged: LoggedActors, item: Item | Invocation, values: list[tuple[bytes, Any]]) -> Running:
    """Run one attempt or call. Return its values with their places, and the refs to release once the outcome is reported."""
    if is_remake(item.row):
        yield from logged.remade(item, _room)  # type: ignore[arg-type]
        return [], []
    spec, boxed = msgpack.unpackb(item.row[2], use_list=False, strict_map_key=False)
    label, doomed, statements, returns = spec
    for identifier in boxed:
        process.machine.references.add(identifier)
    state = _State(process, label, tries_of(item.attempt), doomed, dict(enumerate(boxed)))
    try:
        for identifier, data in values:
            value = (yield from _fetched(state, identifier)) if data is None else state.look(identifier, OK, data)[1]
            state.total = mix(state.total, value.number if value is not None else 0)
        if worker.interrupted(item):
            raise Interrupted
        yield from _statements(state, statements)
        if item.row[1] == function_id(ACTOR):
            yield from logged.made(item, _room)  # type: ignore[arg-type]
        outputs: list[tuple[Value, tuple[int, int] | None]] = []
        for index, (size, inside) in enumerate(returns):
            value = Value(mix(state.total, index), tuple(state.slots[slot] for slot in inside))
            place = None
            if size:
                place = ((yield from _room(size)), size)
            outputs.append((value, place))
        refs, state.held = state.held, []
        return outputs, refs
    finally:
        state.release()


def driver_body(process: Process, program: Program) -> Running:
    """Run the root of a program, and release every ref at its end."""
    state = _State(process, 0, 0, False, {})
    try:
        yield from _statements(state, program.statements)
        yield from process.world.before_release()
    finally:
        state.release()
        process.collect_garbage()
