"""The home of a job takes over what was at home on a node that died: nested refs of tasks whose node is dead have the right values."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import LEASE, on_node

import zfabric as zf
from tests.sim.kinds import Kind
from tests.sim.network import Faults
from tests.sim.node import node_identifier
from tests.sim.programs import PLAIN, VOID, Program, mix
from tests.sim.scenarios import STEADY, call, get, task
from tests.sim.variants import applied
from tests.sim.world import World
from zfabric.machines.local_scheduler.nodes.failover import Failover
from zfabric.protocol import messages as m
from zfabric.protocol.options import NODE_ID

LOST = ("ObjectLostError",)


def on(number: int, slot: int, spec: tuple[Any, ...], needs: tuple[int, ...] = (), inside: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """Return a statement that submits a task to the node with this number."""
    strategy = ("strategy", (("hard", NODE_ID, "in", (node_identifier(number).hex(),)),))
    return ("call", (slot,), PLAIN, spec, (strategy, *((("contains", inside),) if inside else ())), needs, inside)


class Run:
    """A program on several nodes, some of which die at given times. From some time on, ``deaf`` ones receive nothing of others."""

    def __init__(
        self,
        *statements: Any,
        kills: dict[int, float],
        deaf: dict[int, float] | None = None,
        nodes: int = 2,
        faults: Faults = STEADY,
        **settings: Any,
    ) -> None:
        self.sent: list[tuple[float, str, str, Any]] = []
        usual = {"workers_max": 4, "inline_depth": 100, "worker_idle_seconds": 60.0, "spill_after": 60.0, "node_lease": 2.0}
        self.world = World(
            0,
            Kind(nodes=nodes),
            faults=faults,
            program=Program(statements, 0),
            observer=lambda now, source, to, message: self.sent.append((now, source, to, message)),
            cpus=2,
            settings={**usual, **settings},
        )
        for number, seconds in kills.items():
            self.world.after(seconds, self._killer(number))
        for number, seconds in (deaf or {}).items():
            self.world.after(seconds, lambda number=number: self._deafen(number))
        outcome = self.world.run()
        assert outcome.failure == ""

    def _deafen(self, number: int) -> None:
        node = self.world.nodes[number - 1].identifier
        self.world.network.cuts.update((other.identifier, node) for other in self.world.nodes if other.identifier != node)

    def _killer(self, number: int) -> Callable[[], object]:
        return lambda: self.world.nodes[number - 1].end("kill -9")

    def begun(self, function: int = PLAIN) -> Counter[bytes]:
        """How many attempts of each task were sent to workers. One that is taken back and sent to another of the node counts once."""
        sent = [(source, message) for _, source, _, message in self.sent if isinstance(message, m.Dispatch)]
        attempts = {
            (row[0], source, {each[0]: each[1] for each in message.details}.get(index, message.attempt))
            for source, message in sent
            for index, row in enumerate(message.rows)
        }
        return Counter(task_id for task_id, _, _ in attempts)

    def counts(self) -> Counter[str]:
        """The messages between schedulers, by kind."""
        return Counter(
            type(message).__name__ for _, source, to, message in self.sent if source.startswith("scheduler") and to.startswith("scheduler")
        )

    def finished(self) -> int:
        """How many unfinished tasks had outcomes."""
        ended = [row for _, _, _, message in self.sent if isinstance(message, m.UpdateLedger) for row in message.ended]
        return sum(len(ids) for kind, ids in ended if kind == m.UNFINISHED)


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
    assert run.counts()["Holdings"] == 0, "no other node knew the dead one"
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


def test_a_failure_that_was_read_counts_as_one_at_the_home_of_the_job() -> None:
    child = call(0, (5, True, (("fail", False, 1),), ((0, ()),)))
    read = (get((0, value(7))), ("open", 0, 0, 1), get((1, ("boom",))))
    run = Run(on(2, 0, box(child, refs=(0,))), *read, ("sleep", 6.0), kills={2: 1.0})
    assert run.world.states["taken_over"] == 1


def test_what_was_put_as_durable_on_a_dead_node_is_read_from_the_head() -> None:
    """Also a value that a task needs which runs again, and one whose ref is only inside of another one."""
    inside = ("put", 2, 3, 0, (1,), True)
    parent = box(("put", 0, 9, 0, (), True), ("put", 1, 11, 0, (), True), inside, call(3, task(5), needs=(0,)), refs=(0, 2, 3))
    run = Run(
        on(2, 0, parent),
        get((0, value(7))),
        ("open", 0, 0, 1),
        ("open", 0, 1, 2),
        ("open", 0, 2, 3),
        ("sleep", 6.0),
        get((3, value(5, 9)), (1, 9), (2, 3)),
        ("open", 2, 0, 4),
        get((4, 11)),
        on(1, 5, task(6), needs=(4,)),
        get((5, value(6, 11))),
        kills={2: 1.0},
        nodes=3,
    )
    read = [message.keys for _, _, to, message in run.sent if isinstance(message, m.Read) and message.table == "object"]
    assert (len(read), len({*read})) == (3, 3), "each is read once"


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
    assert run.counts()["Holdings"] >= 1


def test_a_task_reads_what_is_at_home_on_a_third_node_after_who_lent_it_has_let_go() -> None:
    reader = on(3, 2, task(6, ("sleep", 1.0), get((0, value(5)))), inside=(1,))
    Run(
        on(2, 0, box(call(0, task(5)), refs=(0,))),
        get((0, value(7))),
        ("open", 0, 0, 1),
        reader,
        ("drop", 0),
        ("drop", 1),
        get((2, mix(mix(6, value(5)), 0))),
        kills={},
        nodes=3,
    )


def test_a_child_whose_parent_has_ended_runs_elsewhere_although_nobody_waits_for_it() -> None:
    child = ("call", (), VOID, (5, False, (("sleep", 3.0),), ()), (), (), ())
    run = Run(on(2, 0, box(child, refs=())), get((0, value(7))), ("sleep", 12.0), kills={2: 1.0})
    assert sorted(run.begun().values()) == [1, 2]
    assert run.finished() == 0


def test_a_child_of_a_child_that_has_ended_runs_elsewhere() -> None:
    grandchild = call(0, task(6, ("sleep", 3.0)))
    child = call(0, task(5, grandchild, ("drop", 0), ("sleep", 0.5)))
    run = Run(on(2, 0, box(child, ("drop", 0), refs=())), get((0, value(7))), ("sleep", 12.0), kills={2: 2.0})
    assert sorted(run.begun().values()) == [1, 1, 2], "the grandchild once more"
    assert run.finished() == 1, "the child had its outcome"


def test_children_that_have_ended_do_not_run_again() -> None:
    child = call(0, task(5))
    run = Run(on(2, 0, box(child, ("drop", 0), ("sleep", 0.3), refs=())), get((0, value(7))), ("sleep", 8.0), kills={2: 1.0})
    assert sorted(run.begun().values()) == [1, 1]
    assert run.counts()["Entrust"] == 0


@pytest.mark.parametrize("child", [task(5, ("sleep", 8.0)), task(5, size=3_000_000)], ids=["attempt", "value"])
def test_a_task_that_runs_although_another_node_has_its_attempt_or_its_value_is_found(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("_adopt_values", "_adopt_attempts"):
        monkeypatch.setattr(Failover, method, lambda *_: None)
    with pytest.raises(AssertionError, match=r"begins on worker|FabricError"):
        Run(
            on(2, 0, box(on(3, 0, child), ("sleep", 0.5), refs=(0,))),
            get((0, value(7))),
            ("open", 0, 0, 1),
            ("sleep", 6.0),
            get((1, value(5))),
            kills={2: 1.0},
            nodes=3,
        )


# -- real processes --


@zf.remote
def link(directory: str, number: int, before: bytes = b"") -> bytes:
    """A task of a chain: a file for each time it runs, and a value that is larger than its input."""
    Path(directory, f"{number}.{time.monotonic_ns()}").touch()
    return before + bytes([number]) * 2000


@zf.remote
def parent(directory: str, length: int) -> list[zf.ObjectRef]:
    """Submit a chain of tasks, and return the refs of its middle and its end, which are not done."""
    refs = [link.remote(directory, 0)]
    for number in range(1, length):
        refs.append(link.remote(directory, number, refs[-1]))
    return [refs[length // 2], refs[-1]]


def test_the_values_of_a_chain_on_a_killed_node_are_made_again(tmp_path: Path) -> None:
    with (
        zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64 * 2**20, config={"node_lease": LEASE}) as cluster,
        zf.init(cluster.address),
    ):
        victim = cluster.nodes[1]
        there = on_node(victim)
        middle, end = zf.get(parent.options(scheduling_strategy=there).remote(str(tmp_path), 100), timeout=60)
        zf.wait([end], timeout=60, fetch_local=False)
        victim.kill()
        assert zf.get(end, timeout=60) == b"".join(bytes([number]) * 2000 for number in range(100))
        assert zf.get(middle, timeout=60) == b"".join(bytes([number]) * 2000 for number in range(51))
        runs = Counter(path.name.split(".")[0] for path in tmp_path.iterdir())
        assert len(runs) == 100
        assert max(runs.values()) == 2


@pytest.mark.parametrize("executor", [1, 3], ids=("the home of the job", "another node"))
def test_an_end_that_a_dead_home_has_not_acknowledged_counts(executor: int) -> None:
    child = on(executor, 0, task(5, ("sleep", 0.5)))
    run = Run(
        on(2, 0, box(child, refs=(0,))),
        get((0, value(7))),
        ("open", 0, 0, 1),
        ("sleep", 6.0),
        get((1, value(5))),
        kills={2: 1.0},
        deaf={2: 0.3},
        nodes=3,
    )
    assert set(run.begun().values()) == {1}


def test_children_of_an_attempt_whose_end_a_dead_home_has_not_acknowledged_go_on() -> None:
    child = on(3, 0, task(5, call(0, task(6, ("sleep", 9.0))), ("sleep", 0.5), refs=(0,), size=3_000_000))
    run = Run(
        on(2, 0, box(child, refs=(0,))),
        get((0, value(7))),
        ("open", 0, 0, 1),
        ("sleep", 6.0),
        get((1, value(5))),
        ("open", 1, 0, 2),
        get((2, value(6))),
        kills={2: 1.0},
        deaf={2: 0.3},
        nodes=3,
    )
    assert set(run.begun().values()) == {1}


def test_a_child_that_must_not_run_twice_fails_with_the_node_where_it_may_have_begun() -> None:
    once = (("max_retries", 0),)
    child = ("call", (0,), PLAIN, task(5, ("sleep", 9.0)), once, (), ())
    unread = ("call", (), VOID, (6, False, (("sleep", 9.0),), ()), once, (), ())
    run = Run(
        on(2, 0, box(child, unread, refs=(0,))),
        get((0, value(7))),
        ("open", 0, 0, 1),
        ("sleep", 6.0),
        get((1, ("WorkerCrashedError",))),
        kills={2: 1.0},
    )
    assert set(run.begun().values()) == {1}


@pytest.mark.parametrize(
    ("variant", "scripted"),
    [
        ("ids-without-home", test_a_task_reads_what_is_at_home_on_a_third_node_after_who_lent_it_has_let_go),
        ("rows-not-entrusted", test_a_child_of_a_task_that_ran_on_a_dead_node_is_made_again),
        ("values-that-exist-made-again", test_a_large_value_on_a_third_node_is_adopted),
        ("attempts-that-run-begin-again", test_an_attempt_on_a_third_node_goes_on),
    ],
)
def test_a_variant_is_caught(variant: str, scripted: Callable[[], None]) -> None:
    with applied(variant), pytest.raises(AssertionError):
        scripted()
