"""Placement groups with real processes: reserved on one node and on several, used by tasks and actors, removed, made whole again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from faults import LEASE, descendants, eventually, gone, kill_daemon, name_of, patient_queries

import zfabric as zf
from zfabric.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    OptionError,
    OptionTypeError,
    PlacementGroupRemovedError,
    TaskUnschedulableError,
)
from zfabric.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from zfabric.util.scheduling_strategies import PlacementGroupSchedulingStrategy as InGroup

PATIENCE = 60


def here() -> tuple[str, str | None, int]:
    """A task: its node, its group, its process."""
    context = zf.get_runtime_context()
    return context.get_node_id(), context.get_placement_group_id(), os.getpid()


def here_for(_: int) -> tuple[str, str | None, int]:
    return here()


def run_in(group: PlacementGroup | None, index: int = -1, **options: Any) -> Any:
    return zf.remote(here).options(scheduling_strategy=InGroup(group, index), **options).remote()


def state(group: PlacementGroup) -> str:
    return str(placement_group_table(group)["state"])


def free(amount: float) -> Callable[[], bool]:
    return lambda: zf.available_resources().get("CPU", 0.0) == amount


@pytest.fixture(scope="module")
def node() -> Iterator[zf.LocalCluster]:
    config = {"preload": ("pytest", "numpy")}
    with zf.LocalCluster(nodes=1, cpus_per_node=3, object_store_memory=64 * 2**20, resources={"disk": 1}, config=config) as made:
        yield made


@pytest.fixture(autouse=True)
def one_node(node: zf.LocalCluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """One node of three CPUs, with this program connected: each test is a job of its own."""
    if {"three", "three_with_short_leases"} & set(request.fixturenames):
        yield
        return
    with zf.init(node.address):
        eventually(free(3.0), "the job before has ended")
        yield


# --- one node ---------------------------------------------------------------------------------------------------------------------


def test_bundles_are_taken_from_the_node_and_used_by_tasks_that_name_them() -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    assert zf.get(group.ready(), timeout=PATIENCE) == group
    assert free(1.0)()
    assert group.bundle_specs == [{"CPU": 1.0}, {"CPU": 1.0}]
    rows = zf.get([run_in(group, index) for index in (0, np.int64(1), -1, -1)], timeout=PATIENCE)
    assert {name for _, name, _ in rows} == {group.id.hex()}
    assert zf.get(run_in(None), timeout=PATIENCE)[1] is None
    node = zf.nodes()[0]["NodeID"]
    assert placement_group_table(group) == {
        "placement_group_id": group.id.hex(),
        "name": "",
        "bundles": {0: {"CPU": 1.0}, 1: {"CPU": 1.0}},
        "bundles_to_node_id": {0: node, 1: node},
        "strategy": "PACK",
        "state": "CREATED",
    }
    assert placement_group_table().keys() == {group.id.hex()}


def test_a_group_without_room_waits_and_is_reserved_when_the_other_is_removed() -> None:
    first, second = placement_group([{"CPU": 2}]), placement_group([{"CPU": 2}])
    assert first.wait(PATIENCE)
    task = run_in(second)
    with patient_queries(), pytest.raises(GetTimeoutError, match="PENDING"):
        zf.get(task, timeout=0.5)
    assert not second.wait(0.1)
    assert state(second) == "PENDING"
    remove_placement_group(first)
    assert zf.get(task, timeout=PATIENCE)[1] == second.id.hex()
    eventually(free(1.0), "the resources of the first are free, but for the second's")


def test_each_of_many_waiting_groups_has_its_turn() -> None:
    groups = [placement_group([{"CPU": 3}]) for _ in range(5)]
    for group in groups:
        assert group.wait(PATIENCE)
        remove_placement_group(group)


def test_a_group_does_not_wait_for_a_stream_of_small_tasks() -> None:
    @zf.remote
    def small() -> None:
        time.sleep(0.005)

    pending = [small.remote() for _ in range(3000)]
    group = placement_group([{"CPU": 3}])
    assert group.wait(PATIENCE)
    ended, _ = zf.wait(pending, num_returns=len(pending), timeout=0)
    assert len(ended) < len(pending)
    remove_placement_group(group)


def test_removal_ends_what_runs_in_the_group_with_an_error_that_says_so(tmp_path: Any) -> None:
    @zf.remote
    class Sleeper:
        def pid(self) -> int:
            return os.getpid()

        def sleep(self) -> None:
            time.sleep(600)

    @zf.remote
    def sleep(path: str) -> None:
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)

    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    actor = Sleeper.options(num_cpus=1, max_restarts=-1, scheduling_strategy=InGroup(group, 0)).remote()
    pids = [zf.get(actor.pid.remote(), timeout=PATIENCE)]
    call = actor.sleep.remote()
    tasks = [sleep.options(scheduling_strategy=InGroup(group, 1)).remote(str(tmp_path / f"{index}")) for index in range(3)]
    eventually(lambda: (tmp_path / "0").exists() and (tmp_path / "0").read_text() != "", "the first task runs")
    pids.append(int((tmp_path / "0").read_text()))
    remove_placement_group(group)
    remove_placement_group(group)
    for each in (*tasks, run_in(group), group.ready()):
        with pytest.raises(PlacementGroupRemovedError, match="removed"):
            zf.get(each, timeout=PATIENCE)
    with pytest.raises(ActorDiedError, match="placement group"):
        zf.get(call, timeout=PATIENCE)
    with pytest.raises(PlacementGroupRemovedError):
        group.wait(PATIENCE)
    eventually(lambda: all(map(gone, pids)), "their processes have ended")
    eventually(free(3.0), "their resources are free")


def test_captured_children_run_in_the_group_and_others_where_they_like() -> None:
    @zf.remote
    def parent() -> list[Any]:
        child = zf.remote(here)
        outside = child.options(scheduling_strategy=InGroup(None))
        assert zf.get_runtime_context().should_capture_child_tasks_in_placement_group
        return zf.get([child.remote(), *zf.remote(here_for).map([0]), outside.remote()])

    @zf.remote
    def grandparent() -> Any:
        return zf.get(parent.remote()), zf.util.get_current_placement_group()

    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    rows, found = zf.get(grandparent.options(scheduling_strategy=InGroup(group, 0, True)).remote(), timeout=PATIENCE)
    assert [name for _, name, _ in rows] == [group.id.hex(), group.id.hex(), None]
    assert found == group
    assert found.bundle_specs == group.bundle_specs


def test_actors_leave_a_bundle_with_more_to_those_that_need_it() -> None:
    made = actors_that_fill(placement_group([{"CPU": 1, "disk": 1}, {"CPU": 1}, {"CPU": 1}]))
    assert len(zf.get([actor.node.remote() for actor in made], timeout=PATIENCE)) == 3


def test_what_no_bundle_has_is_refused_at_the_call() -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 2}])
    with pytest.raises(OptionError, match=r"asks for 2 CPU.*bundle 0 has 1 CPU"):
        run_in(group, 0, num_cpus=2)
    with pytest.raises(OptionError, match="none of its bundles"):
        run_in(group, num_cpus=3)
    with pytest.raises(OptionError, match="from 0 to 1"):
        InGroup(group, 2)
    with pytest.raises(TypeError):
        InGroup("a group")
    for index in (True, 0.0, "0"):
        with pytest.raises(OptionTypeError, match=f"is an int, not {index!r}"):
            InGroup(group, index)  # type: ignore[arg-type]
    assert zf.get(run_in(group, num_cpus=2), timeout=PATIENCE)[1] == group.id.hex()

    @zf.remote
    def parent() -> Any:
        return zf.get(zf.remote(here).options(num_cpus=3).remote())

    with pytest.raises(TaskUnschedulableError, match="no bundle"):
        zf.get(parent.options(scheduling_strategy=InGroup(group, 0, True)).remote(), timeout=PATIENCE)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([],), "list of dicts"),
        (({"CPU": 1},), "list of dicts"),
        (([{}],), "bundle 0 is a dict"),
        (([{"CPU": 0}],), "asks for nothing"),
        (([{"CPU": 1}, {"CPU": -1}],), "bundle 1: num_cpus cannot be negative"),
        (([{"CPU": 1}], "TOGETHER"), "strategy is one of PACK"),
        (([{"CPU": 1}], "PACK", "", "forever"), "lifetime"),
        (([{"CPU": 1}] * 501,), "at most 500"),
        (([{"CPU": 1}], "PACK", "", None, {"zone": "a"}), "a list of dicts, one for each bundle"),
        (([{"CPU": 1}], "PACK", "", None, [{}, {}]), "2 dicts for 1 bundles"),
        (([{"CPU": 1}], "PACK", "", None, [{"zone": "in()"}]), "label_selector"),
    ],
)
def test_a_bad_group_is_refused_at_the_call(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        placement_group(*arguments)


def test_a_function_may_name_the_module_that_makes_groups() -> None:
    from zfabric.util import placement_group as make

    assert zf.get(zf.remote(lambda: make is zf.util.placement_group).remote(), timeout=PATIENCE)


def test_a_name_finds_a_group_and_only_one_group_has_it() -> None:
    group = zf.util.placement_group([{"CPU": 1}], name="trainers")
    assert zf.util.get_placement_group("trainers") == group
    with pytest.raises(OptionError, match="called 'trainers' already"):
        placement_group([{"CPU": 1}], name="trainers")
    remove_placement_group(group)
    with pytest.raises(ValueError, match="no placement group"):
        zf.util.get_placement_group("trainers")


def test_groups_outlive_the_daemon() -> None:
    group, waiting = placement_group([{"CPU": 2}]), placement_group([{"CPU": 2}])
    before = zf.get(run_in(group), timeout=PATIENCE)

    @zf.remote
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

        def count(self) -> int:
            self.calls += 1
            return self.calls

    counter = Counter.options(num_cpus=1, scheduling_strategy=InGroup(group)).remote()
    assert zf.get(counter.count.remote(), timeout=PATIENCE) == 1
    kill_daemon()
    assert zf.get(run_in(group), timeout=PATIENCE)[1] == before[1]
    assert zf.get(counter.count.remote(), timeout=PATIENCE) == 2
    assert (state(group), state(waiting)) == ("CREATED", "PENDING")
    assert free(1.0)()
    remove_placement_group(group)
    assert waiting.wait(PATIENCE)
    remove_placement_group(waiting)
    eventually(free(3.0), "all resources are free")


# --- three nodes --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> Iterator[zf.LocalCluster]:
    config = {"preload": ("pytest", "numpy")}
    with zf.LocalCluster(nodes=3, cpus_per_node=1, object_store_memory=64 * 2**20, resources={"disk": 1}, config=config) as made:
        yield made


@pytest.fixture
def three(nodes: zf.LocalCluster) -> Iterator[zf.LocalCluster]:
    """Three nodes of one CPU, with this program connected."""
    with zf.init(nodes.address):
        yield nodes


@pytest.fixture
def three_with_short_leases() -> Iterator[zf.LocalCluster]:
    """The same, of which one may be killed."""
    with (
        zf.LocalCluster(nodes=3, cpus_per_node=1, object_store_memory=64 * 2**20, config={"node_lease": LEASE}) as made,
        zf.init(made.address),
    ):
        yield made


@zf.remote
class Place:
    """An actor in a bundle."""

    def node(self) -> str:
        return zf.get_runtime_context().get_node_id()

    def stay(self) -> None:
        time.sleep(600)


def actors_that_fill(group: PlacementGroup) -> list[Any]:
    """Two actors of a CPU each, and a third that needs the only bundle with a disk."""
    kinds: list[dict[str, float]] = [{}, {}, {"disk": 1}]
    return [Place.options(num_cpus=1, resources=kind, scheduling_strategy=InGroup(group)).remote() for kind in kinds]


def places_of(group: PlacementGroup) -> list[str]:
    return list(placement_group_table(group)["bundles_to_node_id"].values())


def test_bundles_of_several_nodes_are_reserved_together_and_made_whole_after_a_death(three_with_short_leases: zf.LocalCluster) -> None:
    three = three_with_short_leases
    group = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
    assert group.wait(PATIENCE)
    places = places_of(group)
    assert set(places) == {node.node_id for node in three.nodes}
    assert [node for node, _, _ in zf.get([run_in(group, index) for index in range(3)], timeout=PATIENCE)] == places
    used: set[str] = set()  # One bundle may have had several before the next one is submitted.
    eventually(
        lambda: used.update(node for node, _, _ in zf.get([run_in(group) for _ in range(6)], timeout=PATIENCE)) or used == set(places),
        "tasks that name no bundle run in all of them",
    )
    outside = zf.remote(here).remote()
    with pytest.raises(GetTimeoutError):
        zf.get(outside, timeout=0.5)
    other = placement_group([{"CPU": 1}])
    assert not other.wait(0.1)

    lost = three.nodes.pop()
    index = places.index(lost.node_id)
    mover, stays = (
        Place.options(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=InGroup(group, each)).remote()
        for each in (index, (index + 1) % 3)
    )
    assert zf.get([mover.node.remote(), stays.node.remote()], timeout=PATIENCE) == [places[index], places[(index + 1) % 3]]
    waiting = run_in(group, index)
    lost.kill()
    eventually(lambda: state(group) == "RESCHEDULING", "the group has lost a bundle")
    remaining = [each for each in range(3) if each != index]
    assert len(zf.get([run_in(group, each) for each in remaining], timeout=PATIENCE)) == 2
    new = three.add_node()
    assert group.wait(PATIENCE)
    assert places_of(group)[index] == new.node_id
    assert zf.get([waiting, run_in(group, index)], timeout=PATIENCE)[1][0] == new.node_id
    assert zf.get(mover.node.remote(), timeout=PATIENCE) == new.node_id
    calls = [actor.stay.remote() for actor in (mover, stays)]  # Others could be answered before the removal reaches their node.
    remove_placement_group(group)
    for call in calls:
        with pytest.raises((ActorDiedError, PlacementGroupRemovedError), match="placement group"):
            zf.get(call, timeout=PATIENCE)
    assert other.wait(PATIENCE)
    assert zf.get(outside, timeout=PATIENCE)[1] is None
    remove_placement_group(other)
    eventually(free(3.0), "all resources are free")


def test_actors_leave_a_node_whose_bundle_has_more_to_those_that_need_it(three: zf.LocalCluster) -> None:
    group = placement_group([{"CPU": 1, "disk": 1}, {"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    assert group.wait(PATIENCE)
    found = zf.get([actor.node.remote() for actor in actors_that_fill(group)], timeout=PATIENCE)
    assert set(found[:2]) == set(places_of(group)[1:])
    assert found[2] == places_of(group)[0]


def test_groups_outlive_the_daemons_of_their_home_and_of_their_bundles(three: zf.LocalCluster) -> None:
    group = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
    pids = {index: zf.get(run_in(group, index), timeout=PATIENCE)[2] for index in range(3)}
    for node in reversed(three.nodes):  # The home is the last.
        os.kill(next(pid for pid in descendants(node.pid) if name_of(pid) == "zf-daemon"), signal.SIGKILL)
        rows = zf.get([run_in(group, index) for index in range(3)], timeout=PATIENCE)
        assert [row[0] for row in rows] == places_of(group)
        assert not any(map(gone, pids.values())), "no worker has ended"
    assert state(group) == "CREATED"
    waiting = placement_group([{"CPU": 1}])
    assert not waiting.wait(0.1)
    remove_placement_group(group)
    assert waiting.wait(PATIENCE)
    eventually(free(2.0), "the resources of the first are free")


def test_bundles_are_on_nodes_with_the_labels_that_they_ask_for(three: zf.LocalCluster) -> None:
    """Of a group that waits for such a node, too, and while the daemon of its home is killed."""
    with_labels = [three.add_node(2, labels={"zone": zone}) for zone in "ab"]
    a, b = (node.node_id for node in with_labels)
    group = placement_group([{"CPU": 1}] * 3, bundle_label_selector=[{"zone": "b"}, {"zone": "in(a, b)"}, {"zone": "!in(a, b)"}])
    waiting = placement_group([{"CPU": 1}], "STRICT_PACK", bundle_label_selector=[{"zone": "c"}])
    assert group.wait(PATIENCE)
    places = places_of(group)
    assert (places[0], places[1] in (a, b), places[2] in (a, b)) == (b, True, False)
    ready = waiting.ready()
    eventually(lambda: "no nodes have room yet for 1 CPU, on nodes with the labels" in str(zf.explain(ready)), "it says what it waits for")
    home = three.nodes[0]
    os.kill(next(pid for pid in descendants(home.pid) if name_of(pid) == "zf-daemon"), signal.SIGKILL)
    zf.get(run_in(group, 0), timeout=PATIENCE)
    eventually(lambda: state(waiting) == "PENDING", "its home has another daemon, by which a node can join")
    with_labels.append(three.add_node(1, labels={"zone": "c"}))
    assert waiting.wait(PATIENCE)
    assert places_of(waiting) == [with_labels[-1].node_id]
    for each in (group, waiting):
        remove_placement_group(each)
    for node in with_labels:
        three.remove_node(node)
    eventually(free(3.0), "all resources are free")


def test_the_end_of_the_job_frees_its_groups_on_all_nodes(three: zf.LocalCluster) -> None:
    group = placement_group([{"CPU": 1}] * 3, strategy="SPREAD")
    pids = [pid for _, _, pid in zf.get([run_in(group, index) for index in range(3)], timeout=PATIENCE)]
    zf.shutdown()
    eventually(lambda: all(map(gone, pids)), "nothing of the job runs")
    with zf.init(three.address):
        eventually(lambda: placement_group_table() == {}, "there is no group")
        eventually(free(3.0), "all resources are free")
        assert placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD").wait(PATIENCE)


def test_a_group_may_be_made_and_removed_by_a_task_on_another_node(three: zf.LocalCluster) -> None:
    there = three.nodes[2].node_id

    @zf.remote(num_cpus=0)
    def made() -> Any:
        group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD", name="made there")
        zf.get(group.ready())
        return group, zf.get(run_in(group))

    @zf.remote(num_cpus=0)
    def removed(group: PlacementGroup) -> None:
        remove_placement_group(group)

    at = partial(zf.util.scheduling_strategies.NodeAffinitySchedulingStrategy, soft=False)
    group, row = zf.get(made.options(scheduling_strategy=at(there)).remote(), timeout=PATIENCE)
    assert row[1] == group.id.hex()
    assert zf.util.get_placement_group("made there") == group
    assert zf.get(run_in(group), timeout=PATIENCE)[1] == group.id.hex()
    zf.get(removed.options(scheduling_strategy=at(there)).remote(group), timeout=PATIENCE)
    with pytest.raises(PlacementGroupRemovedError):
        zf.get(run_in(group), timeout=PATIENCE)


def test_a_program_is_warned_of_a_group_that_no_node_can_hold() -> None:
    """With sizes, and not of one that waits for others. Ray's Tune reserves a group for each trial, and itself says nothing of memory."""
    source = """
import zfabric as zf
from zfabric.util.placement_group import placement_group
zf.init(num_cpus=2, _memory=2**30)
fits = [placement_group([{"CPU": 2}]) for _ in range(2)]
trial = placement_group([{"CPU": 1, "memory": 2**40}], name="trial")
together = placement_group([{"CPU": 2}] * 2, strategy="STRICT_PACK")
zf.get(trial.ready())
"""
    with subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        patience = threading.Timer(PATIENCE, program.kill)
        patience.start()
        first, second = (next(line for line in program.stderr if "warning" in line) for _ in range(2))
        program.kill()
        patience.cancel()
    assert "group 'trial' asks one node for 1 CPU, 1024 GiB memory, which none has (this one has 2 CPU, 1.0 GiB memory)" in first
    assert "a placement group asks one node for 4 CPU, which none has" in second
