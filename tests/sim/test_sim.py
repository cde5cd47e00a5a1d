"""The simulator: whole nodes of production machines under crashes and a bad network, and proof that it finds what is broken."""

from __future__ import annotations

import inspect
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgpack import ExtraData
from tests.sim import __main__ as command
from tests.sim import network, reproductions, shrinking
from tests.sim.actors import ActorAuthor
from tests.sim.arena import SimStorage
from tests.sim.bodies import Ancestry, StackFrame
from tests.sim.drivers import Driver
from tests.sim.grouped import grouped
from tests.sim.invariants import Invariants
from tests.sim.kinds import Kind
from tests.sim.ledgers import LedgerAuthor
from tests.sim.logged import READONLY
from tests.sim.network import Faults, NodeFaults
from tests.sim.node import SimSupervisor, node_identifier
from tests.sim.programs import ACTOR, FOREVER, LIGHT, LONG, LOST, WIDE, Handle, Program, Scope, function_id, mix
from tests.sim.scenarios import STEADY, call, get, invoke, make, task
from tests.sim.streams import with_streaming_methods
from tests.sim.variants import SCRIPTED, VARIANTS, applied, kind_of, shows
from tests.sim.world import EVENTS_MAX, Failure, World
from zfabric.config import FRAME_BYTES_MIN
from zfabric.machines.local_scheduler.records import ENDING
from zfabric.machines.worker import Item
from zfabric.protocol import messages as m
from zfabric.protocol import pieces
from zfabric.protocol.codec import encode
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER, TASK_BYTES, Namer, call_value
from zfabric.protocol.messages import OK
from zfabric.protocol.options import NODE_ID

ROOT = Path(__file__).parents[2]
REPRODUCTIONS = reproductions.stored()
VARIANT_SEEDS = 200
"""A variant without a reproduction is caught within so many seeds of one node, or a third of it of three: most within a handful."""

WORLDS: dict[Kind, tuple[int, tuple[str, ...]]] = {
    Kind(): (20, ()),
    Kind(actors=True): (20, ()),
    Kind(circles=True): (20, ()),
    Kind(nodes=2): (5, ()),
    Kind(nodes=3): (8, ()),
    Kind(nodes=6): (3, ()),
    Kind(nodes=3, restarts=True): (3, ()),
    Kind(nodes=3, actors=True): (6, ()),
    Kind(nodes=3, actors=True, drains=True): (4, ()),
    Kind(nodes=3, groups=True): (3, ()),
    Kind(nodes=3, bare=True): (4, ()),
    Kind(nodes=3, elsewhere=True): (3, ()),
    Kind(nodes=3, detached=True): (4, ()),
    Kind(nodes=3, streams=True): (8, ("RelayedYields", "AllowYields", "stream read")),
    Kind(nodes=3, elastic=True): (8, ("node left", "Reclaimed")),
    Kind(nodes=3, durable=True): (6, ("node ended", "daemon restarted")),
}
"""How many worlds of each kind are run here, and states that they must reach: few of those that ``scripts/worlds`` runs in the same check,
which looks at what the other kinds reach."""


@pytest.mark.parametrize("kind", WORLDS, ids=lambda kind: " ".join(kind.arguments()) or "one node")
def test_programs_end_with_the_right_values_whatever_happens(kind: Kind) -> None:
    count, expected = WORLDS[kind]
    states: Counter[str] = Counter()
    for seed in range(count):
        outcome = command.run_seed(seed, kind)
        assert not outcome.failure, seed
        states.update(outcome.states)
    assert [name for name in expected if not states[name]] == []


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_logged_actor_whose_results_fill_a_small_store_ends_with_its_last_handle(size: int) -> None:
    """Its caller retained the handle: a call had returned that waited to be made again."""
    assert World(128, Kind(actors=True), pieces=size).run().failure == ""


@pytest.mark.parametrize("kind", [Kind(), Kind(actors=True), Kind(circles=True)], ids=lambda kind: " ".join(kind.arguments()))
def test_no_process_depends_on_the_clock_of_another(kind: Kind) -> None:
    """Messages carry durations, and moments that only people read: the monotonic clocks of two machines have nothing in common."""
    clocks = Kind(clocks=True)
    failures = {seed: outcome.failure for seed in range(10) if (outcome := command.run_seed(seed, clocks | kind)).failure}
    assert failures == {}


def test_a_seed_is_one_world() -> None:
    """Whatever the order in which this interpreter keeps sets: what a machine does depends only on the messages it received."""
    command_line = [sys.executable, "-m", "tests.sim", "--actors", "--trace", "37"]
    traces = [
        subprocess.run(command_line, env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT, capture_output=True, check=True).stdout
        for seed in ("1", "2", "3")
    ]
    assert len(traces[0]) > 1000
    assert len(set(traces)) == 1


def test_a_ledgers_large_value_is_certain_unless_no_log_has_its_call_and_its_node_may_die() -> None:
    """What a ``readonly`` method returned cannot be made again, and lies on the actor's node until somebody reads it."""
    seen = set()
    for seed in range(300):
        for nodes in (NodeFaults(late_kills=1), NodeFaults(restarts=1)):
            statements = LedgerAuthor(str(seed), Faults(nodes=nodes), 3).write().statements
            large = {each[1][0]: each[8] for each in statements if each[0] == "invoke" and each[3][3][0][0]}
            for each in statements:
                if each[0] in ("get", "peek") and each[1][0][0] in large:
                    lost = large[each[1][0][0]] == READONLY and bool(nodes.late_kills)
                    assert (each[1][0][2:] == (("ObjectLostError",),)) == (each[0] == "peek") == lost
                    seen.add((each[0], large[each[1][0][0]]))
    assert seen == {("get", "method"), ("get", READONLY), ("peek", READONLY)}


def test_a_stream_of_a_method_is_certain_unless_its_node_may_die() -> None:
    deaths = ({each: 1} for each in ("kills", "late_kills", "stops", "cuts", "clogs"))
    for faults in ({}, *deaths):
        program = with_streaming_methods(Program((), 0), 0, Faults(nodes=NodeFaults(**faults)))
        read = [each for each in program.statements if each[0] == "follow"]
        assert read
        assert {"ActorUnavailableError" in each[5] for each in read} == {bool(faults)}, faults


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_variant_is_caught(name: str) -> None:
    """By its reproduction if there is one, else by programs of the kind that finds it."""
    kind = kind_of(name)
    with applied(name):
        if name in REPRODUCTIONS:
            failures = REPRODUCTIONS[name].failures(reproductions.SEEDS)
        else:
            failures = (command.run_seed(seed, kind).failure for seed in range(VARIANT_SEEDS // kind.nodes))
        assert any(shows(name, failure) for failure in failures), (
            f"nothing shows it; python -m tests.sim --variant {name} --seeds 2000 may find a seed, --reduce SEED stores what shows it"
        )


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_a_reproduction_shows_its_mistake_and_nothing_else(name: str) -> None:
    assert list(REPRODUCTIONS[name].failures(range(4))) == []
    assert reproductions.parse(REPRODUCTIONS[name].text()) == REPRODUCTIONS[name]
    assert name in VARIANTS


def test_a_second_hop_is_seen_where_the_task_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only by the message that passes it on."""
    monkeypatch.setattr(Invariants, "_delegated", lambda *_: None)
    with applied("second-hop"):
        seeds = dict.fromkeys((26, *range(VARIANT_SEEDS)))  # Where one is known to show it, and those after it in case it does no longer.
        failures = (command.run_seed(seed, Kind(nodes=3)).failure for seed in seeds)
        assert any("which is not its home" in failure for failure in failures)


def test_a_failing_world_is_shrunk_to_one_that_fails_alike_with_fewer_faults_and_statements() -> None:
    with applied("lost-attempts-come-again"):
        # From 6 on: its world runs quickly, and is run again and again.
        whole = next(outcome for outcome in command.run_seeds(range(6, VARIANT_SEEDS), 1, Kind(nodes=3)) if outcome.failure)
        began = World(whole.seed, Kind(nodes=3))
        found = shrinking.shrink(whole.seed, Kind(nodes=3))
        assert shrinking.without_names(found.result.failure) == shrinking.without_names(whole.failure)
        assert len(found.program.statements) < len(began.program.statements)
        assert sum(map(bool, found.faults)) + sum(map(bool, found.faults.nodes)) < sum(map(bool, began.faults)) + sum(
            map(bool, began.faults.nodes)
        )
        again = command.run_seed(whole.seed, Kind(nodes=3), reduced=(found.faults, found.program))
        assert again.failure == found.result.failure
    with pytest.raises(ValueError, match="does not fail"):
        shrinking.shrink(whole.seed, Kind(nodes=3))


def test_variants_have_the_signatures_of_the_originals() -> None:
    """Else each call of it would fail, and the variant be caught for that alone."""
    for name, patches in {**VARIANTS, **SCRIPTED}.items():
        for owner, method, breaks in patches:
            right = getattr(owner, method)
            broken = inspect.signature(breaks(right)).parameters.values()
            several = any(each.kind is each.VAR_POSITIONAL for each in broken)
            assert several or len(broken) == len(inspect.signature(right).parameters), f"{name}: {method}"


def test_variants_act_at_seams_where_they_can_and_never_in_a_private_method() -> None:
    """At a seam, a redesign of what is behind it leaves them as they are."""
    patched = {name: {method for _, method, _ in patches} for name, patches in {**VARIANTS, **SCRIPTED}.items()}
    assert not [name for name, methods in patched.items() if any(method.startswith("_") for method in methods)]
    assert len([name for name in VARIANTS if not patched[name] <= {"step", "take_effects", "transmit"}]) <= 19


def test_there_are_enough_variants_and_they_are_undone() -> None:
    assert len(VARIANTS) >= 95
    patched = {(owner, method) for patches in VARIANTS.values() for owner, method, _ in patches}
    before = {(owner, method): getattr(owner, method) for owner, method in patched}
    for name, patches in VARIANTS.items():
        with applied(name):
            assert all(getattr(owner, method) is not before[owner, method] for owner, method, _ in patches)
    assert before == {(owner, method): getattr(owner, method) for owner, method in patched}


def test_one_seed_is_one_world() -> None:
    def story(seed: int) -> list[str]:
        lines: list[str] = []
        World(seed, observer=lambda now, source, to, message: lines.append(f"{now} {source} {to} {message}")).run()
        return lines

    for seed in (5, 91, 4257):
        assert story(seed) == story(seed)


def test_outcomes_after_the_death_of_a_driver_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    # An actor, called by another one, asks a third, and receives that it has ended with the job: its own caller lives a little longer.
    monkeypatch.setattr(SimSupervisor, "kill", lambda supervisor, pid: None)
    messages: list[Any] = []

    def observe(now: float, source: str, to: str, message: Any) -> None:
        if source == "worker2" and to == "worker1" and isinstance(message, m.Call):
            world.after(0.0, lambda: world.driver.die("killed"))
        messages.append((source, message))

    third = invoke(2, 1, task(6))
    second = invoke(2, 0, task(5, ("sleep", 1.0), third, get((2, mix(6, 0)))), inside=(0, 1))
    first = task(4, second, get((2, mix(mix(5, mix(6, 0)), 0))))
    statements = (*(make(slot, task(slot)) for slot in range(3)), invoke(3, 2, first, inside=(0, 1)), ("sleep", 30.0))
    world = World(0, faults=STEADY._replace(driver_crash=True, window=60.0), program=Program(statements, 0), cpus=3, observer=observe)
    for _ in range(20_000):
        if not world.step() or world.now > 110.0:
            break
    assert any(isinstance(message, m.ActorLocations) and message.rows[0][1] == m.DEAD for _, message in messages)


@pytest.mark.parametrize("ended", [True, False])
def test_only_the_end_of_a_job_loses_a_ref_inside_an_error(ended: bool) -> None:
    world = World(0, faults=STEADY, program=Program((), 0))
    if ended:
        world.driver.die("killed")
    with nullcontext() if ended else pytest.raises(Failure, match="no longer exists"):
        world.invariants.seen_inside(world.nodes[0], call_value(bytes(16), 0), call_value(bytes(16), 1))


def test_only_what_attempts_have_submitted_that_died_with_their_node_is_void() -> None:
    """What they read may be lost with that node; what others read, the parents of these included, must be there."""
    ancestry = Ancestry()
    first, second = (Item((b"parent", b"", b"", ()), attempt) for attempt in (1, 2))
    ancestry.made(b"child", first)
    ancestry.made(b"call", Item((b"child", b"", b"", ()), 1))
    ancestry.made(b"again", second)
    assert not any(map(ancestry.is_void, (b"child", b"call", b"again")))
    ancestry.broke_off([StackFrame(first, (_ for _ in ()), Namer(bytes(4), b"parent"), 0.0)])
    assert [each for each in (b"parent", b"child", b"call", b"again") if ancestry.is_void(each)] == [b"child", b"call"]


def test_what_the_children_of_an_attempt_have_become_is_not_judged_while_its_worker_is_killed() -> None:
    world = World(0, Kind(nodes=2), faults=STEADY, program=Program((call(0, task(1, ("sleep", 1.0))), get((0, mix(1, 0)))), 1))
    while not (frames := [(node, worker, frame) for node in world.nodes for worker in node.workers.values() for frame in worker.stack]):
        world.step()
    ((node, worker, frame),) = frames
    assert not world.condemned(frame)
    node.daemon.scheduler.tables.workers[worker.incarnation].state = ENDING
    assert world.condemned(frame)


@pytest.mark.parametrize("both", [True, False])
def test_a_result_of_an_actor_may_be_lost_if_the_daemons_of_its_node_and_of_its_caller_die_together(both: bool) -> None:
    """If the next daemon of the caller's node has been told of the result, the death of the other one is no excuse."""
    there = ("strategy", (("hard", NODE_ID, "in", (node_identifier(2).hex(),)),))
    actor = ("make", 0, ACTOR, task(1), (("max_restarts", 1), there), ())
    calls = (invoke(1, 0, task(2, size=200_000)), invoke(2, 0, task(3, ("sleep", 4.0))), get((2, mix(3, 0))))
    program = Program((actor, *calls, ("peek", ((1, mix(2, 0), ()),))), 0)
    world = World(0, Kind(nodes=2), faults=STEADY, program=program, settings={"worker_idle_seconds": 60.0})
    world.after(2.0, world.nodes[0].kill_daemon)
    world.after(2.001 if both else 3.0, world.nodes[1].kill_daemon)
    assert world.run().failure == ""
    assert world.states["daemon restarted"] == 2
    assert len(world.invariants.lost) == both


def test_a_node_that_died_while_it_was_stopped_is_excused_until_the_first_turn_of_its_daemon() -> None:
    world = World(0, Kind(nodes=2), faults=STEADY, program=Program((), 0))
    node = world.nodes[1]
    while not node.joined_as:
        world.step()
    node.stop(1.0)
    world.invariants._members = {world.head}
    assert not world.invariants.is_behind(node), "it does nothing"
    while node.stopped_until:
        world.step()
    assert world.invariants.is_behind(node)
    assert not world.invariants.is_behind(world.nodes[0])
    while node.resuming:
        world.step()
    assert not world.invariants.is_behind(node)


@pytest.mark.parametrize("dropped", [True, False])
def test_a_group_is_removed_once_tasks_in_it_have_ended_whose_values_others_may_need(dropped: bool) -> None:
    """The root gets neither the value of the task nor that of another one which needs it, and sees no failure of that."""
    reader = call(1, task(2, get((0, mix(1, 0)))), inside=(0,))
    statements = (call(0, task(1, ("sleep", 1.0))), reader, *((("drop", 0),) if dropped else ()))
    removed = 0
    for seed in range(20):
        program = grouped(Program(statements, 2), seed, 1)
        removed += ("ungroup", 0) in program.statements
        assert World(0, faults=STEADY, program=program, cpus=2).run().failure == ""
    assert removed


def test_what_stands_for_the_value_of_a_handle_is_not_judged_as_a_value() -> None:
    world = World(0, faults=STEADY, program=Program((), 0))
    sent = m.Results(((b"actor in a world", OK, (b"actor",)),))
    world.daemon.scheduler.tables.actors[b"actor in a world"] = world  # type: ignore[assignment]
    world.invariants.sent(world.daemon, sent)
    world.daemon.scheduler.tables.actors.clear()
    with pytest.raises(ExtraData):
        world.invariants.sent(world.daemon, sent)


@pytest.mark.parametrize("lives", [True, False])
def test_an_actor_that_has_died_is_made_again_although_its_home_has_not_acknowledged_that_it_was_made(lives: bool) -> None:
    """The node does not send that end again, or leaves the actor out of it."""
    world = World(0, Kind(nodes=2), faults=STEADY, program=Program((), 0))
    home, executor = world.nodes
    while executor.identifier not in home.daemon.scheduler.tables.nodes:
        world.step()
    actor = (bytes(TASK_BYTES), function_id(ACTOR), b"", ())
    record: Any = SimpleNamespace(function=SimpleNamespace(delegated=False), rare=None)
    home.daemon.scheduler.tables.tasks[actor[0]] = record
    ended = m.Ended(1, tuple(m.Completed.of(((actor[0], 1, OK, (b"actor",)),), (), ())), ())
    world.invariants.between_nodes(executor.daemon, home.identifier, [(LOCAL_SCHEDULER, LOCAL_SCHEDULER, ended)])
    host = executor.make_worker(b"the host", b"", 1)
    host.worker.mailbox.actors[actor[0]] = actor, 1
    if not lives:
        executor.process_died(host)
    worker: Any = SimpleNamespace(name="worker1", incarnation=b"")
    with pytest.raises(Failure, match="node 2 has its outcome") if lives else nullcontext():
        world.invariants._alone(worker, Item(actor, 2))


def of_three() -> tuple[World, Any, Any]:
    """A steady world of three nodes, with the last two, which have met."""
    world = World(0, Kind(nodes=3), faults=STEADY, program=Program((), 0))
    _, executor, home = world.nodes
    while executor.identifier not in home.daemon.scheduler.tables.nodes:
        world.step()
    return world, executor, home


@pytest.mark.parametrize("home_is_dead", [False, True])
def test_the_record_of_a_dead_home_says_nothing_of_its_task(home_is_dead: bool) -> None:
    """Its daemon may go on until it learns that it is dead. The home of the job takes over, and knows what living nodes report."""
    world, executor, home = of_three()
    record: Any = SimpleNamespace(function=SimpleNamespace(delegated=False), rare=None)
    home.daemon.scheduler.tables.tasks[bytes(TASK_BYTES)] = record
    world.invariants._ended[executor.identifier] = {(home.identifier, 1, 0): (bytes(TASK_BYTES), 0)}
    world.invariants._members = {node.identifier for node in world.nodes if node is not home or not home_is_dead}
    worker: Any = SimpleNamespace(name="worker1", incarnation=b"")
    with nullcontext() if home_is_dead else pytest.raises(Failure, match="node 2 has its outcome"):
        world.invariants._alone(worker, Item((bytes(TASK_BYTES), b"", b"", ()), 1))


@pytest.mark.parametrize("is_taken_in", [False, True])
def test_a_stream_runs_again_that_has_ended_elsewhere_once_its_home_has_taken_that_in(is_taken_in: bool) -> None:
    """The home finds out then that values are lost. It acknowledges the end a little later."""
    world, executor, home = of_three()
    tables = home.daemon.scheduler.tables
    record: Any = SimpleNamespace(function=SimpleNamespace(delegated=False), rare=None)
    stream: Any = SimpleNamespace(cut=None)
    tables.tasks[bytes(TASK_BYTES)], tables.streams[bytes(TASK_BYTES)] = record, stream
    world.invariants._ended[executor.identifier] = {(home.identifier, 3, 0): (bytes(TASK_BYTES), 0)}
    world.invariants._members = {node.identifier for node in world.nodes}
    tables.nodes[executor.identifier].inbox.newest = 3 if is_taken_in else 2
    worker: Any = SimpleNamespace(name="worker1", incarnation=b"")
    with nullcontext() if is_taken_in else pytest.raises(Failure, match="node 2 has its outcome"):
        world.invariants._alone(worker, Item((bytes(TASK_BYTES), b"", b"", ()), 1))


def bodies(statements: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The statements of a program, of all that it runs, of what that runs, and so on."""
    yield statements
    for name, *fields in statements:
        if name in ("call", "make", "invoke"):
            yield from bodies(fields[2][2])


def test_children_of_a_stopped_call_end_by_themselves() -> None:
    """A call is stopped without what it has submitted, and does not come to the statement that stops that."""
    lengths: Counter[float] = Counter()
    for seed in range(1000):
        for body in bodies(ActorAuthor(str(seed), STEADY, 2, False).write().statements):
            cancelled = {fields[0] for name, *fields in body if name == "cancel"}
            for name, *fields in body:
                if name == "invoke" and (cancelled & set(fields[0]) or "timeout" in dict(fields[3])):
                    left = [each[3][2] for each in fields[2][2] if each[0] == "call"]
                    lengths.update(each[1] for statements in left for each in statements if each[0] == "sleep")
    assert lengths[LONG] > 0
    assert lengths[FOREVER] == 0


def test_children_of_killed_actors_end_by_themselves() -> None:
    """A constructor or a call that is killed does not come to the statement that stops what it has submitted."""
    lengths: Counter[float] = Counter()
    for seed in range(1000):
        for body in bodies(ActorAuthor(str(seed), STEADY, 2, False).write().statements):
            killed = {fields[0] for name, *fields in body if name == "kill"}
            for name, *fields in body:
                if (name == "make" and fields[0] in killed) or (name == "invoke" and fields[1] in killed):
                    left = [each[3][2] for each in fields[2][2] if each[0] == "call"]
                    lengths.update(each[1] for statements in left for each in statements if each[0] == "sleep")
    assert lengths[LONG] > 0
    assert lengths[FOREVER] == 0


def test_a_forced_cancel_may_lose_results_that_the_killed_process_had_promised() -> None:
    author = ActorAuthor("0", STEADY, 2, False)
    author.stops, author.deaths = True, False
    scope = Scope(0, (), False, True, 1)
    author._invoke(scope, scope.slot(Handle(1, frozenset(), 0, False, True)))
    assert all(outcome.errors >= LOST for outcome in scope.slots.values())


SMALL_FRAMES = {"frame_bytes_max": FRAME_BYTES_MIN}
CUT_HERE = {
    *(
        "Call",
        "Checkpoint",
        "Completed",
        "HostDelays",
        "Dispatch",
        "ExpectResults",
        "Export",
        "SubmitDirect",
        "SubmittedDirect",
        "Hold",
        "InheritTasks",
        "LogAppended",
        "Objects",
    ),
    *("OfferResults", "Put", "Release", "Results", "Submit", "CallTimes", "Welcome", "ActorLocations"),
}
"""Messages that are larger than such a frame in these worlds. ``test_codec`` cuts every message that has a text or a list."""


def test_programs_end_with_the_right_values_where_frames_are_small() -> None:
    cut: Counter[str] = Counter()
    for seed in range(64):
        for kind in (Kind(), Kind(actors=True), Kind(circles=True)):
            world = World(seed, kind, settings=SMALL_FRAMES)
            assert world.run().failure == "", (seed, kind)
            cut.update(world.network.cut)
        if seed >= 7 and cut.keys() >= CUT_HERE:
            return
    raise AssertionError(f"never cut: {CUT_HERE - cut.keys()}")


def test_programs_end_with_the_right_values_where_rows_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SMALL_BYTES", 0)
    missing: Counter[str] = Counter()

    def observe(now: float, source: str, to: str, message: Any) -> None:
        if isinstance(message, m.Dispatch):
            missing["tasks"] += sum(row[2].count(None) for row in message.details)
        elif isinstance(message, m.Call):
            missing["calls"] += sum(row[4].count(None) for row in message.rows if len(row) > 3)

    for seed in range(24):
        assert World(seed, Kind(actors=True), settings={"inline_bytes": 1}, observer=observe).run().failure == "", seed
    assert missing["tasks"]
    assert missing["calls"]


def test_a_world_fails_where_a_frame_is_larger_than_its_receiver_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.Link, "pack", lambda link, body, now, limit: [encode(link.send(body, now), link.received, body)])
    assert "bytes, where 128 are accepted" in World(1, settings=SMALL_FRAMES).run().failure


@pytest.mark.parametrize("light", [True, False])
def test_a_circle_ends_with_its_driver(light: bool) -> None:
    ends = invoke(2, 0, task(6), inside=(0, 1))
    second = invoke(2, 1, task(5, ends, get((2, mix(6, 0)))), inside=(0, 1))
    first = invoke(2, 0, task(4, second, get((2, mix(mix(5, mix(6, 0)), 0)))), inside=(0, 1))
    makes = tuple((*make(slot, task(slot))[:2], LIGHT if light else ACTOR, *make(slot, task(slot))[3:]) for slot in range(2))
    faults = STEADY._replace(driver_crash=True, window=1e6)
    world = World(0, Kind(circles=True), faults=faults, program=Program((*makes, first, ("timed", 2, 30.0)), 0), cpus=2)
    world.after(2.0, lambda: world.driver.die("killed"))
    outcome = world.run()
    assert outcome.failure == ""
    assert outcome.states["driver crashed"] == 1
    assert outcome.states["HostDelays" if light else "WaitDetails"] > 0, "they wait"


@pytest.mark.parametrize("number", [1, 2])
def test_a_circle_is_seen_by_way_of_a_task_whose_home_is_any_node(number: int) -> None:
    """The actor waits for a task, and that for a call of the actor, as an argument. The driver is warned and kills the actor."""
    closing = task(1, invoke(1, 0, task(2)), call(2, task(3), needs=(1,)), get((2, ("ActorDiedError", "TaskCancelledError"))))
    program = Program((make(0, task(0)), invoke(1, 0, closing, inside=(0,)), get((1, ("ActorDiedError",)))), 0)
    world = World(0, Kind(nodes=2, circles=True), faults=STEADY, program=program)
    home = world.nodes[number - 1]
    world.driver = Driver(world, home, world.incarnation(), home.supervisor.pid(), program)
    assert world.run().failure == ""
    assert world.states["circle broken"] == 1


def test_a_dead_driver_leaves_no_records() -> None:
    for seed in range(40):
        outcome = World(seed, faults=Faults(driver_crash=True, window=0.2, loss=0.02)).run()
        assert outcome.failure == ""
        assert outcome.states["driver crashed"] == 1


def test_the_driver_has_read_the_warning_of_an_infeasible_demand_within_two_seconds_and_once() -> None:
    # Two CPUs are asked for where there is one, and again later; the program computes all the while, so it looks only now and then.
    submitted: list[float] = []
    warned: list[tuple[float, str]] = []

    def observe(now: float, source: str, to: str, message: Any) -> None:
        if isinstance(message, m.Submit):
            submitted.append(now)
        elif isinstance(message, m.Notice):
            warned.append((now, message.text))

    statements = (
        *(call(slot, task(slot), kind=WIDE) for slot in range(3)),
        ("sleep", 10.0),
        call(3, task(3), kind=WIDE),
        ("sleep", 10.0),
        *(("cancel", slot, False, True) for slot in range(4)),
        get(*((slot, ("TaskCancelledError",)) for slot in range(4))),
    )
    assert World(0, faults=STEADY, program=Program(statements, 0), observer=observe, cpus=1).run().failure == ""
    ((at, text),) = warned
    assert at - (submitted[0] - STEADY.delay) <= 2.0
    assert "wide asks for" in text
    assert "pending" in text


def test_a_blocked_task_is_not_covered_by_a_task_that_waits_for_it() -> None:
    # Both children of a parent come to its worker at once; the first waits for what it was given inside its arguments, the second for the
    # first. What the second needs is below it then, unless it is given back.
    first = task(3, get((0, 7)))
    second = task(4, get((0, mix(mix(3, 7), 0))))
    numbers = mix(mix(3, 7), 0), mix(mix(4, mix(mix(3, 7), 0)), 0)
    parent = task(2, call(1, first, inside=(0,)), call(2, second, inside=(1,)), get((1, numbers[0]), (2, numbers[1])))
    known = call(9, task(1)), get((9, mix(1, 0)))  # How long such tasks take is known: so they come two at a time.
    statements = (*known, ("put", 0, 7, 0, ()), call(1, parent, inside=(0,)), ("sleep", 5.0))
    world = World(0, faults=STEADY, program=Program((*statements, get((1, mix(mix(mix(2, numbers[0]), numbers[1]), 0)))), 0), cpus=1)
    assert world.run().failure == ""


def after_a_restart(*statements: Any) -> str:
    """How a program ends whose daemon dies in its second second."""
    world = World(0, faults=STEADY, program=Program(statements, 0), cpus=1)
    world.after(1.5, lambda: world.daemon_died(world.daemon) if world.daemon is not None else None)
    return world.run().failure


def test_a_task_that_does_not_stop_keeps_its_worker_though_the_daemon_dies() -> None:
    # Its driver has its outcome, and offers that to the next daemon; the worker reports that it runs.
    deaf = (5, True, (("deaf", 5.0),), ((0, ()),))
    stopped = (call(0, deaf), ("sleep", 0.2), ("cancel", 0, False, True), get((0, ("TaskCancelledError",))), ("sleep", 1.5))
    assert after_a_restart(*stopped, call(1, task(7)), get((1, mix(7, 0)))) == ""


def test_a_result_that_was_acknowledged_outlives_the_daemon_though_the_storage_thread_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    # Room is being made ready all the while; the actor forgets its result once it is acknowledged, and then the daemon dies.
    monkeypatch.setattr(SimStorage, "_next", lambda storage: storage.after(0.1, storage._finish))
    died: list[float] = []

    def observe(now: float, source: str, to: str, message: Any) -> None:
        if isinstance(message, m.OutcomesRecorded) and not died:
            died.append(now)
            world.after(0.0, lambda: world.daemon_died(world.daemon) if world.daemon is not None else None)

    statements = (make(0, task(1)), invoke(1, 0, task(7, size=200_000)), ("sleep", 5.0), get((1, 224)))
    world = World(0, faults=STEADY, program=Program(statements, 0), cpus=1, observer=observe)
    assert world.run().failure == ""
    assert died


def test_a_cancelled_task_does_not_run_again_for_the_next_daemon() -> None:
    # A task has one of its children cancelled, and returns refs to all; nobody looks at that one before the daemon dies.
    endless = (5, True, (("sleep", FOREVER),), ((0, ()),))
    others = [call(slot, task(slot)) for slot in range(1, 9)]
    stopped = (call(0, endless), *others, ("sleep", 0.2), ("cancel", 0, False, True), ("sleep", 0.02))
    parent = task(1, *stopped, refs=tuple(range(9)))
    lost = get((1, ("ObjectLostError", "TaskCancelledError")))
    assert after_a_restart(call(0, parent), get((0, mix(1, 0))), ("open", 0, 0, 1), ("sleep", 2.0), lost) == ""


def test_a_process_does_not_join_a_daemon_that_has_died_though_its_request_comes_late() -> None:
    world = World(0, faults=STEADY, program=Program((call(0, task(5, ("sleep", 0.5))), get((0, 162))), 0), cpus=1)
    dead = bytes(8)

    def ask() -> None:
        for process in world.processes():
            process.deliver(dead, CLIENT, LOCAL_SCHEDULER + dead, m.RegisterAgain(""))
        for worker in world.workers.values():
            worker._controlled(dead, LOCAL_SCHEDULER + dead, m.RegisterAgain(""))
        joined.update(process.daemon for process in world.processes())

    joined: set[bytes] = set()
    world.after(0.1, ask)
    assert world.run().failure == ""
    assert joined == {world.nodes[0].published}


@pytest.mark.parametrize("pressure", [False, True])
@pytest.mark.parametrize("crashes", [3, 4])
def test_faults_kill_no_task_so_often_that_it_fails_for_good(crashes: int, pressure: bool) -> None:
    # Three deaths while it ran alone, after two that made it suspect, condemn a task: no value could be expected of it.
    program = Program((call(0, task(5, ("sleep", 0.5))), get((0, 162))), 0)
    dispatched: list[Any] = []

    def observe(now: float, source: str, to: str, message: Any) -> None:
        if isinstance(message, m.Dispatch):
            dispatched.append(message)

    world = World(0, faults=STEADY, program=program, cpus=1, observer=observe)

    def crash() -> None:
        (running,) = world.daemon.scheduler.tables.tasks.values()  # type: ignore[union-attr]  # The daemon lives.
        running.facts().crashes = crashes
        running.facts().alone = max(0, crashes - 2)
        if pressure:
            world._press()
        else:
            world._crash_worker(random.Random(0), lambda worker: True)

    world.after(0.1, crash)
    assert world.run().failure == ""
    assert len(dispatched) == 1 + (crashes == 3), "it was killed, and runs again"


@pytest.mark.parametrize("asked_again", [True, False])
def test_a_rebuilt_task_that_had_been_cancelled_may_run_to_its_end(asked_again: bool) -> None:
    # A daemon that died has forgotten the cancel, and somebody who is gone by now had asked for the value. Nothing else may go on.
    world = World(0, faults=STEADY, program=Program((call(0, task(5, ("sleep", FOREVER))), ("sleep", 0.2), ("drop", 0)), 0), cpus=1)

    def ask() -> None:
        (running,) = world.daemon.scheduler.tables.tasks.values()  # type: ignore[union-attr]  # The daemon lives.
        running.facts().rebuilt = asked_again

    world.after(0.1, ask)
    outcome = world.run()
    assert (outcome.failure == "") == asked_again
    assert outcome.states["forgotten cancel"] == asked_again


def test_a_world_whose_task_runs_to_its_end_may_have_more_events() -> None:
    world = World(0, faults=STEADY, program=Program((call(0, task(5, ("sleep", FOREVER))), ("sleep", 0.2), ("drop", 0)), 0), cpus=1)

    def ask() -> None:
        (running,) = world.daemon.scheduler.tables.tasks.values()  # type: ignore[union-attr]  # The daemon lives.
        running.facts().rebuilt = True
        world.events = EVENTS_MAX

    world.after(10.0, ask)
    assert world.run().failure == ""
    assert world.events > EVENTS_MAX


@pytest.mark.parametrize("alive", [True, False])
def test_a_task_may_run_to_its_end_if_all_who_had_it_cancelled_and_their_daemon_have_died(alive: bool) -> None:
    world = World(0, faults=STEADY, program=Program((call(0, task(5, ("sleep", FOREVER))), ("sleep", 0.2), ("drop", 0)), 0), cpus=2)

    def forget() -> None:
        (running,) = world.daemon.scheduler.tables.tasks.values()  # type: ignore[union-attr]  # The daemon lives.
        world.cancellers[running.id] = {world.driver.incarnation if alive else b"gone"}
        world.states["daemon restarted"] += 1

    world.after(0.1, forget)
    assert (world.run().failure == "") != alive


@pytest.mark.parametrize("restarted", [True, False])
def test_a_value_in_the_arena_may_outlive_all_messages_about_the_call_that_made_it(restarted: bool) -> None:
    # Actor and daemon have died, and the caller is told that the outcome is unknown. Others may find the value.
    world = World(0, faults=STEADY, program=Program((), 0))
    world.states["daemon restarted"] += restarted
    unknown = pack_failure("ActorUnavailableError", "its process ended", (("outcome", "unknown"),))
    world.calls.looked(call_value(bytes(16), 1), m.OK, b"value")
    with nullcontext() if restarted else pytest.raises(Failure, match="it had ended with"):
        world.calls.looked(call_value(bytes(16), 0), m.FAILED, unknown)


@pytest.mark.parametrize("length", [LONG, FOREVER])
@pytest.mark.parametrize("made_again", [True, False])
def test_a_value_is_accepted_instead_of_an_error_that_was_not_durable(made_again: bool, length: float) -> None:
    # Nothing stops it here: only what is made again, and is known to a daemon that has forgotten the cancel, may come to its end.
    due = ("TaskCancelledError",)
    world = World(0, faults=STEADY, program=Program((call(0, task(5, ("sleep", length))), get((0, due))), 0), cpus=1)

    def ask() -> None:
        (running,) = world.daemon.scheduler.tables.tasks.values()  # type: ignore[union-attr]  # The daemon lives.
        running.facts().rebuilt = made_again

    world.after(0.1, ask)
    with nullcontext() if made_again else pytest.raises(Failure, match="should be"):
        while not world.driver.finished and world.step():
            pass
    assert world.cancel_forgotten == made_again


def test_an_actor_that_was_killed_does_not_live_again_for_the_next_daemon() -> None:
    # Its row was written as one of several, most of which are still needed; its next caller has not been notified of its death.
    others = [call(slot, task(slot)) for slot in range(1, 9)]
    known = get(*((slot, mix(slot, 0)) for slot in range(1, 9)))
    heir = call(9, task(9, invoke(1, 0, task(3)), get((1, ("ActorDiedError",)))), inside=(0,))
    program = (make(0, task(0), restarts=-1), *others, known, ("sleep", 0.3), ("kill", 0, True), ("sleep", 2.0))
    assert after_a_restart(*program, heir, get((9, mix(mix(9, 1), 0)))) == ""


def test_the_command_prints_how_to_reproduce_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "2"]) == 0
    assert "2 seeds, 0 failed" in capsys.readouterr().out
    assert command.main(["--seeds", "5", "--variant", "dispatched-twice"]) == 0
    output = capsys.readouterr().out
    assert "caught" in output
    assert "--trace 0 --variant dispatched-twice" in output
    assert command.main(["--trace", "0"]) == 0
    assert "all is well" in capsys.readouterr().out
