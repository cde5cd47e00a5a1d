"""The home of a job takes over what was at home on a node that died: nested refs of tasks whose node is dead have the right values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from zfabric.protocol import messages as m
from zfabric.protocol.options import NODE_ID
from zfabric.sim.network import Faults
from zfabric.sim.node import node_identifier
from zfabric.sim.programs import PLAIN, Program, mix
from zfabric.sim.scenarios import STEADY, call, get, task
from zfabric.sim.world import World

LOST = ("ObjectLostError",)


def on(number: int, slot: int, spec: tuple[Any, ...], needs: tuple[int, ...] = (), inside: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """Return a statement that submits a task to the node with this number."""
    strategy = ("strategy", (("hard", NODE_ID, "in", (node_identifier(number).hex(),)),))
    return ("call", (slot,), PLAIN, spec, (strategy, *((("contains", inside),) if inside else ())), needs, inside)


class Run:
    """A program on several nodes, some of which die at given times."""

    def __init__(self, *statements: Any, kills: dict[int, float], nodes: int = 2, faults: Faults = STEADY, **settings: Any) -> None:
        self.sent: list[tuple[float, str, str, Any]] = []
        usual = {"workers_max": 4, "inline_depth": 100, "worker_idle_seconds": 60.0, "spill_after": 60.0, "node_lease": 2.0}
        self.world = World(
            0,
            faults=faults,
            program=Program(statements, 0),
            observer=lambda now, source, to, message: self.sent.append((now, source, to, message)),
            cpus=2,
            nodes=nodes,
            settings={**usual, **settings},
        )
        for number, time in kills.items():
            self.world.after(time, self._killer(number))
        outcome = self.world.run()
        assert outcome.failure == ""

    def _killer(self, number: int) -> Callable[[], object]:
        return lambda: self.world.nodes[number - 1].end("kill -9")

    def begun(self, function: int = PLAIN) -> Counter[bytes]:
        """How many attempts of each task were sent to workers."""
        return Counter(row[0] for _, _, _, message in self.sent if isinstance(message, m.Dispatch) for row in message.rows)

    def counts(self) -> Counter[str]:
        """The messages between schedulers, by kind."""
        return Counter(
            type(message).__name__ for _, source, to, message in self.sent if source.startswith("scheduler") and to.startswith("scheduler")
        )


def box(*statements: Any, refs: tuple[int, ...], label: int = 7) -> tuple[Any, ...]:
    """A task that returns refs."""
    return task(label, *statements, refs=refs)


def value(label: int, *needs: int) -> int:
    """The value of a task."""
    for each in needs:
        label = mix(label, each)
    return mix(label, 0)


def test_a_child_of_a_task_that_ran_on_a_dead_node_is_made_again() -> None:
    run = Run(
        on(2, 0, box(call(0, task(5)), refs=(0,))),
        get((0, value(7))),
        ("open", 0, 0, 1),
        ("sleep", 6.0),
        get((1, value(5))),
        kills={2: 1.0},
    )
    assert run.counts()["Entrust"] == 1
    assert run.counts()["Remains"] == 0, "no other node knew the dead one"
    assert sorted(run.begun().values()) == [1, 2], "the child once more, and its parent not at all"


def test_a_chain_of_children_is_made_again_each_task_once() -> None:
    chain = [call(0, task(1)), *(call(number, task(1), needs=(number - 1,)) for number in range(1, 100))]
    expected = value(1)
    for _ in range(99):
        expected = value(1, expected)
    run = Run(on(2, 0, box(*chain, refs=(99,))), get((0, value(7))), ("open", 0, 0, 1), ("sleep", 6.0), get((1, expected)), kills={2: 1.0})
    assert sorted(run.begun().values()) == [1] + [2] * 100


def test_a_large_value_on_a_third_node_is_adopted() -> None:
    child = on(3, 0, task(5, size=3_000_000))
    run = Run(
        on(2, 0, box(child, ("sleep", 0.5), refs=(0,))),
        ("wait", (0,), 1, None),
        ("sleep", 0.5),
        get((0, value(7))),
        ("open", 0, 0, 1),
        ("sleep", 6.0),
        get((1, value(5))),
        kills={2: 1.0},
        nodes=3,
    )
    assert set(run.begun().values()) == {1}
    assert run.world.nodes[0].daemon.scheduler.tables.counts["adopted"] == 1


def test_an_attempt_on_a_third_node_goes_on() -> None:
    child = on(3, 0, task(5, ("sleep", 8.0)))
    run = Run(on(2, 0, box(child, refs=(0,))), get((0, value(7))), ("open", 0, 0, 1), get((1, value(5))), kills={2: 1.0}, nodes=3)
    assert set(run.begun().values()) == {1}


def test_an_attempt_at_the_home_of_the_job_goes_on() -> None:
    child = on(1, 0, task(5, ("sleep", 8.0), size=3_000_000))
    run = Run(on(2, 0, box(child, refs=(0,))), get((0, value(7))), ("open", 0, 0, 1), get((1, value(5))), kills={2: 1.0})
    assert set(run.begun().values()) == {1}


def test_a_value_that_was_put_on_a_dead_node_is_lost_and_says_why() -> None:
    run = Run(
        on(2, 0, box(("put", 0, 9, 0, ()), call(1, task(5), needs=(0,)), refs=(0, 1))),
        get((0, value(7))),
        ("open", 0, 0, 1),
        ("open", 0, 1, 2),
        ("sleep", 6.0),
        get((1, LOST), (2, LOST)),
        kills={2: 1.0},
    )
    texts = {
        row[2]
        for _, _, to, message in run.sent
        if to == "driver" and isinstance(message, m.Objects)
        for row in message.rows
        if row[1] == m.FAILED
    }
    assert all(b"the node where it was made, is dead" in each and b"it was put" in each for each in texts)


def test_a_task_on_a_third_node_reads_what_a_dead_node_had_submitted() -> None:
    reader = on(3, 2, task(6, ("sleep", 6.0), get((0, value(5)))), inside=(1,))
    run = Run(
        on(2, 0, box(call(0, task(5)), refs=(0,))),
        get((0, value(7))),
        ("open", 0, 0, 1),
        reader,
        ("drop", 0),
        ("drop", 1),
        get((2, mix(mix(6, value(5)), 0))),
        kills={2: 1.0},
        nodes=3,
    )
    assert run.counts()["Remains"] >= 1
