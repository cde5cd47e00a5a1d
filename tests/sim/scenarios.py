"""Small scripted worlds whose messages are printed, one a line, and compared with ``tests/scenarios``.

A scenario is a program and at most one fault, in a world without randomness: one CPU or two, and a network that takes 0.2 ms for each
frame. ``python -m tests.sim.scenarios DIRECTORY`` (``scripts/bless``) writes all of them. Routine messages (heartbeats, events of the
timeline, extents made ready) are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.sim.kinds import Kind
from tests.sim.network import Faults
from tests.sim.node import node_identifier
from tests.sim.programs import ACTOR, HALF, PLAIN, WIDE, Program
from tests.sim.world import World
from zfabric.machines.common.resources import describe
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FUNCTION_BYTES, INCARNATION_BYTES, OBJECT_BYTES, TASK_BYTES, daemons_of, is_put, job_id, node_of, tries_of
from zfabric.protocol.options import LOGGED, MEMORY, NODE_ID

QUIET = (m.Heartbeat, m.ExtentReady, m.Committed, m.Place, m.Placed, m.RenewLease, m.LeaseRenewed)
STEADY = Faults(jitter=False, delay=0.0002, window=0.0)
NOTHING: tuple[Any, ...] = ()


class Scenario(NamedTuple):
    """A program with its title and its node. ``disturb`` schedules faults in the world."""

    title: str
    statements: tuple[Any, ...]
    cpus: int = 1
    pieces: int = 16
    disturb: Callable[[World], None] | None = None
    nodes: int = 1


def task(label: int, *statements: Any, size: int = 0, refs: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """The spec of a task with one value; ``size`` is the value's size in the arena, or 0."""
    return (label, False, statements, ((size, refs),))


def call(slot: int, spec: tuple[Any, ...], kind: int = PLAIN, needs: tuple[int, ...] = (), inside: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """A statement that submits a task, its value in ``slot``; ``needs`` are dependencies, ``inside`` refs inside arguments."""
    return ("call", (slot,), kind, spec, (("contains", inside),) if inside else (), needs, inside)


def call_on(number: int, slot: int, spec: tuple[Any, ...], needs: tuple[int, ...] = (), inside: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """Like ``call``, on the node with this number."""
    strategy = ("strategy", (("hard", NODE_ID, "in", (node_identifier(number).hex(),)),))
    return ("call", (slot,), PLAIN, spec, (strategy, *((("contains", inside),) if inside else ())), needs, inside)


def make(slot: int, spec: tuple[Any, ...], restarts: int = 0, every: int | None = None) -> tuple[Any, ...]:
    """A statement that creates an actor, its handle in ``slot``; ``every`` is its ``checkpoint_every``."""
    logged = (("checkpoint_every", every),) if every is not None else ()
    return ("make", slot, ACTOR, spec, (("max_restarts", restarts), *logged), NOTHING)


def invoke(
    slot: int, handle: int, spec: tuple[Any, ...], needs: tuple[int, ...] = (), inside: tuple[int, ...] = (), retries: int = 0
) -> tuple[Any, ...]:
    """A statement that calls the actor in slot ``handle``, the value in ``slot``. The rest is as for ``call``."""
    return ("invoke", (slot,), handle, spec, (("contains", inside),) if inside else (), needs, inside, retries)


def get(*expected: tuple[int, Any]) -> tuple[Any, ...]:
    """A statement that gets slots and expects these numbers, or one of these kinds of errors."""
    return ("get", expected)


def _at(when: float, what: Callable[[World], None]) -> Callable[[World], None]:
    return lambda world: world.at(when, lambda: what(world))


def _kill_worker(world: World) -> None:
    next(worker for worker in world.workers.values() if worker.stack).die("kill -9")


def _replace_node(world: World) -> None:
    world.nodes[1].end("kill -9")
    world.after(world.config.node_lease + 1.0, lambda: world.start_node(3))


def _kill_daemon(world: World) -> None:
    if world.daemon is not None:
        world.daemon_died(world.daemon)


SCENARIOS: dict[str, Scenario] = {
    "one_task": Scenario("One task, from submission to value.", (call(0, task(5)), get((0, 162)))),
    "dependency": Scenario(
        "A task that needs the value of another.",
        (call(0, task(5)), call(1, task(6), needs=(0,)), get((1, 11012))),
    ),
    "nested_inline": Scenario(
        "A task that waits for its child, which runs on top of it.",
        (call(0, task(5, call(0, task(6)), get((0, 193)))), get((0, 11012))),
    ),
    "large_value": Scenario(
        "A large value: put, read, released; and one that a task returns.",
        (("put", 0, 7, 3_000_000, NOTHING), call(1, task(5, size=3_000_000), needs=(0,)), ("drop", 0), get((1, 5246))),
    ),
    "full_store": Scenario(
        "A store without room: unused values are spilled, and restored when they are requested.",
        (*(("put", slot, slot, 7_000_000, NOTHING) for slot in range(4)), get((0, 0))),
        pieces=12,
    ),
    "cancel": Scenario(
        "A running task is cancelled, and the one behind it is run.",
        (
            call(0, task(5, ("sleep", 9.0))),
            ("sleep", 0.05),
            ("cancel", 0, False, True),
            call(1, task(6)),
            get((0, ("TaskCancelledError",)), (1, 193)),
        ),
    ),
    "delegated": Scenario(
        "A node has one CPU and two tasks: another node runs the second, and the first value comes last.",
        (call(0, task(5, ("sleep", 0.2))), call(1, task(6)), get((1, 193), (0, 162))),
        nodes=2,
    ),
    "dead_home": Scenario(
        "A ref to a value of a dead node reaches a node that joined later and never knew the dead one: the value is lost.",
        (
            call_on(2, 0, task(5, ("put", 0, 9, 0, NOTHING), refs=(0,))),
            get((0, 162)),
            ("open", 0, 0, 1),
            ("drop", 0),
            ("sleep", 15.0),
            call_on(3, 2, task(6, get((0, ("ObjectLostError",)))), inside=(1,)),
            get((2, 6021)),
        ),
        nodes=2,
        disturb=_at(101.0, _replace_node),
    ),
    "take_back": Scenario(
        "A task turns out long, and the one queued behind it is dispatched to another worker.",
        (
            call(0, task(1), kind=HALF),
            get((0, 38)),
            call(1, task(2, ("sleep", 0.1)), kind=HALF),
            call(2, task(3), kind=HALF),
            get((2, 100), (1, 69)),
        ),
        cpus=2,
    ),
    "worker_crash": Scenario(
        "A worker is killed while it runs a task, which is then run by another.",
        (call(0, task(5, ("sleep", 0.03))), get((0, 162))),
        disturb=_at(100.02, _kill_worker),
    ),
    "daemon_restart": Scenario(
        "The daemon is killed while a task runs and another waits: the task goes on, and nothing is lost.",
        (call(0, task(5, ("sleep", 0.2))), call(1, task(6), needs=(0,)), get((1, 11012))),
        disturb=_at(100.02, _kill_daemon),
    ),
    "ref_inside": Scenario(
        "A value with a ref inside: its reader holds the inner object before the value is released.",
        (
            call(0, task(5, ("put", 0, 9, 0, NOTHING), refs=(0,))),
            get((0, 162)),
            ("open", 0, 0, 1),
            ("drop", 0),
            get((1, 9)),
        ),
    ),
    "actor_calls": Scenario(
        "An actor: created, found, called past the scheduler, in order; ended when the last handle is dropped.",
        (make(0, task(1)), invoke(1, 0, task(5)), invoke(2, 0, task(6), needs=(1,)), ("drop", 0), get((1, 162), (2, 11012))),
    ),
    "actor_reports": Scenario(
        "Results that go through the scheduler: a large one, and one that a task depends on before it exists.",
        (
            make(0, task(1)),
            invoke(1, 0, task(5, ("sleep", 0.01))),
            call(2, task(6), needs=(1,)),
            invoke(3, 0, task(7, size=3_000_000)),
            get((2, 11012), (3, 224)),
        ),
    ),
    "actor_restart": Scenario(
        "An actor's process is killed and the actor restarted: the running call may not be repeated, the one behind it had not begun.",
        (
            make(0, task(1), restarts=1),
            invoke(1, 0, task(5, ("sleep", 0.05))),
            invoke(2, 0, task(6)),
            get((1, ("ActorUnavailableError",)), (2, 193)),
        ),
        disturb=_at(100.03, _kill_worker),
    ),
    "actor_logged": Scenario(
        "A logged actor's process is killed: its checkpoint is restored, the call after it is replayed, and the running one is repeated.",
        (
            make(0, task(1), restarts=-1, every=2),
            invoke(1, 0, task(5), retries=LOGGED),
            invoke(2, 0, task(6), retries=LOGGED),
            invoke(3, 0, task(7), retries=LOGGED),
            get((3, 224)),
            invoke(4, 0, task(8, ("sleep", 0.05)), retries=LOGGED),
            get((1, 162), (2, 193), (4, 255)),
        ),
        disturb=_at(100.03, _kill_worker),
    ),
    "infeasible_waits": Scenario(
        "A task demands two CPUs: it waits until both are free.",
        (call(0, task(5, ("sleep", 0.03))), call(1, task(6), kind=WIDE), get((1, 193), (0, 162))),
        cpus=2,
    ),
}
"""file name -> scenario"""


def render(name: str) -> str:
    """Run a scenario; return its messages, one a line."""
    scenario = SCENARIOS[name]
    transcript = _Transcript()
    world = World(
        0,
        Kind(nodes=scenario.nodes),
        faults=STEADY,
        program=Program(scenario.statements, 0),
        observer=transcript.record,
        pieces=scenario.pieces,
        cpus=scenario.cpus,
        settings={"workers_max": 4, "inline_depth": 100, "prefetch_tasks": 64, "worker_idle_seconds": 60.0, "spill_after": 0.02},
    )
    transcript.world = world
    if scenario.disturb is not None:
        scenario.disturb(world)
    outcome = world.run()
    if outcome.failure:
        raise AssertionError(f"{name}: {outcome.failure}")
    return "\n".join((f"# {scenario.title}", *transcript.lines)) + "\n"


class _Transcript:
    """Records messages as lines. Ids get names, numbered in the order of their appearance."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.world: World | None = None
        self._names: dict[bytes, str] = {}

    def record(self, now: float, source: str, to: str, message: Any) -> None:
        """Record a message or, without a source, an event."""
        if not source and not to:
            self.lines.append(f"{1000 * (now - 100.0):9.2f}  ({message[0]})")
        elif not isinstance(message, QUIET) and not _is_event(message):
            self.lines.append(f"{1000 * (now - 100.0):9.2f}  {source} -> {to}: {type(message).__name__}{self._fields(message)}")

    def _fields(self, message: Any) -> str:
        if isinstance(message, m.Welcome):
            return ""
        usual = message._field_defaults
        shown = ["" if usual.get(name) == value else self._show(value) for name, value in zip(message._fields, message, strict=True)]
        if isinstance(message, m.Completed):
            shown = [self._show(message.rows), self._show(message.extras)]
        while shown and shown[-1] in ("", "()"):
            shown.pop()
        return " " + " ".join(value for value in shown if value) if shown else ""

    def _show(self, value: Any) -> str:
        if isinstance(value, bytes):
            return self._name(value)
        if isinstance(value, tuple) and value[:1] == (MEMORY,):
            return f"({describe((value,))})"
        if isinstance(value, tuple):
            return "(" + " ".join(shown for each in value if (shown := self._show(each))) + ")"
        if type(value) is int and value > 0 and daemons_of(value) > 0:
            return f"{daemons_of(value)}.{tries_of(value)}"  # An attempt that a later daemon dispatched.
        if type(value) is int and value > 0 and node_of(value) > 0:
            return f"{node_of(value)}:{tries_of(value)}"  # One that a node of a cluster gave out.
        return "-" if value is None else str(value)

    def _name(self, value: bytes) -> str:
        if not value:
            return ""
        if len(value) >= FUNCTION_BYTES and len(set(value[-FUNCTION_BYTES:])) == 1:
            return "f"
        if len(value) == OBJECT_BYTES:
            return self._numbered(value, "put") if is_put(value) else self._numbered(value[:TASK_BYTES], "task") + "'s"
        if len(value) == TASK_BYTES:
            return self._numbered(value, "task")
        if len(value) == INCARNATION_BYTES and self.world is not None:
            return self.world.who(value)
        return "job" if value == job_id(1) else "data"

    def _numbered(self, identifier: bytes, kind: str) -> str:
        name = self._names.get(identifier)
        if name is None:
            number = 1 + sum(each.startswith(kind) for each in self._names.values())
            name = self._names[identifier] = f"{kind}{number}"
        return name


def _is_event(message: Any) -> bool:
    """Whether a write has only events of the timeline, or the node's own row."""
    return isinstance(message, m.Write) and not message.deletes and all(row[0] in ("event", "node") for row in message.puts)


def main(directory: str) -> None:
    """Write every scenario's file into ``directory``."""
    for name in SCENARIOS:
        path = Path(directory, f"{name}.txt")
        text = render(name)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1])
