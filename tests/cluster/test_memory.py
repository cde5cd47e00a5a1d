"""``memory``: tasks, actors and bundles reserve it on their nodes, and who is furthest over its reservation ends first when it is short."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import PATIENCE, eventually, failure, gone, kill_daemon, on_node
from files import wait_for_file
from scheduler_alone import ACTOR_CLASS, DRIVER, OWN, Node, row

import zfabric as zf
from zfabric.adapters import processes
from zfabric.api.options import pairs_of, pairs_of_actor
from zfabric.exceptions import OptionError, TaskUnschedulableError
from zfabric.machines.common.resources import BYTES_MAX, demand_of
from zfabric.protocol import codec
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT
from zfabric.protocol.options import ONE_CPU, RESOURCE_UNIT
from zfabric.runtime.supervisor import reservable_bytes
from zfabric.util.placement_group import placement_group, remove_placement_group
from zfabric.util.scheduling_strategies import PlacementGroupSchedulingStrategy as InGroup

MIB, GIB = 2**20, 2**30
HEAD, LOCAL = "node:__internal_head__", "node:127.0.0.1"


# --- the meaning of options ----------------------------------------------------------------------------------------------------------


def test_memory_is_in_whole_bytes_up_to_what_an_integer_of_a_message_holds() -> None:
    assert demand_of(num_cpus=0, memory=1.5e9 + 0.5) == (("memory", 1_500_000_000 * RESOURCE_UNIT),)
    assert demand_of(num_cpus=0, memory=0) == ()
    ((_, most),) = demand_of(num_cpus=0, memory=BYTES_MAX)
    assert most // RESOURCE_UNIT == BYTES_MAX
    assert most < 2**63
    for wrong, text in (
        (0.5, "at least 1"),
        (-1, "negative"),
        ("1GiB", "number of bytes"),
        (BYTES_MAX + 1, "at most"),
        (10**400, "finite"),
    ):
        with pytest.raises(OptionError, match=text):
            zf.remote(memory=wrong)


def test_memory_alone_is_added_to_the_usual_demand() -> None:
    assert pairs_of({"memory": 100}) == (("demand", (("CPU", RESOURCE_UNIT), ("memory", 100 * RESOURCE_UNIT))),)
    assert dict(pairs_of_actor({"memory": 100}, b""))["demand"] == (("memory", 100 * RESOURCE_UNIT),)
    assert dict(pairs_of_actor({"memory": 100, "num_gpus": 1}, b""))["demand"] == demand_of(num_gpus=1, memory=100)


def test_who_names_no_memory_has_the_shape_that_it_had() -> None:
    assert pairs_of({}) == ()
    assert pairs_of({"num_cpus": 1}) == (("demand", ONE_CPU),)
    assert "demand" not in dict(pairs_of_actor({}, b""))


def test_a_lightweight_actor_reserves_none() -> None:
    with pytest.raises(OptionError, match="leave num_cpus, num_gpus, resources and memory out"):
        zf.remote(lightweight=True, memory=1)(Holder).remote()


def test_nodes_of_one_machine_share_what_is_left_beside_their_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "memory_total", lambda: 10 * GIB)
    assert reservable_bytes(3 * GIB) == pytest.approx(4.9 * GIB)
    assert reservable_bytes(3 * GIB, nodes=2) == pytest.approx(1.4 * GIB)
    assert reservable_bytes(6 * GIB, nodes=2) == 0


# --- the scheduler alone -------------------------------------------------------------------------------------------------------------


def reserving(number: int, memory: int) -> tuple[Any, ...]:
    return row(number, demand=demand_of(memory=memory * MIB))


def ended_for_want_of_memory(reserved: tuple[int, ...], resident: tuple[int, ...]) -> int:
    """The number of the task whose worker is ended: each reserves, and has, so many MiB."""
    node = Node(cpus=len(reserved), others=(("memory", GIB * RESOURCE_UNIT),))
    node.driver()
    node.submit(*(reserving(number, memory) for number, memory in enumerate(reserved, 1)))
    workers = node.workers()
    tasks = {node.pids[worker]: number for worker, number, _ in node.dispatched()}
    assert len(tasks) == len(workers) == len(reserved)
    sizes = {number: have * MIB for number, have in enumerate(resident, 1)}
    node.send(b"X" + OWN, m.MemoryPressure(0, GIB, tuple((pid, sizes[number]) for pid, number in tasks.items())))
    (killed,) = [effect for effect in node.effects if isinstance(effect, e.KillProcess)]
    return tasks[killed.pid]


@pytest.mark.parametrize(
    ("reserved", "resident", "ended"),
    [
        ((0, 0, 0), (10, 30, 20), 2),  # Nobody has reserved any: the largest.
        ((0, 500, 0), (10, 490, 20), 3),  # The largest has what it reserved.
        ((0, 100, 0), (10, 490, 20), 2),
        ((100, 300, 0), (250, 460, 120), 2),
        ((400, 300, 200), (300, 250, 199), 3),  # All are within their reservations: the one nearest to its own.
    ],
)
def test_the_worker_furthest_over_its_reservation_is_ended(reserved: tuple[int, ...], resident: tuple[int, ...], ended: int) -> None:
    assert ended_for_want_of_memory(reserved, resident) == ended


def test_actors_that_wait_for_more_than_there_is_are_reported_in_a_message_of_bounded_numbers() -> None:
    node = Node(cpus=1, others=(("memory", GIB * RESOURCE_UNIT),))
    node.driver()
    options = (("actor", b"blueprint"), ("demand", demand_of(num_cpus=0, memory=BYTES_MAX)))
    node.send(CLIENT + DRIVER, m.Export(((ACTOR_CLASS, "A", b"payload", options),)))
    node.submit(*((*row(number)[:1], ACTOR_CLASS, *row(number)[2:]) for number in range(1, 10)))
    node.now += 10
    node.turn()
    beats = node.take(m.Heartbeat)
    assert beats[-1][1].lasting == (("memory", 2**63 - 1),), "they wait for more than a message can carry"
    codec.encode(0, 0, [(b"G", b"L", beat) for _, beat in beats])


def test_tasks_of_different_reservations_wait_in_different_queues() -> None:
    node = Node(cpus=4, others=(("memory", 100 * MIB * RESOURCE_UNIT),))
    node.driver()
    node.submit(reserving(1, 60), reserving(2, 60), reserving(3, 40), row(4))
    node.workers()
    assert sorted(number for _, number, _ in node.dispatched()) == [1, 3, 4], "the second waits for the first"


# --- real nodes ----------------------------------------------------------------------------------------------------------------------


class Holder:
    def where(self) -> tuple[str, int, dict[str, float]]:
        context = zf.get_runtime_context()
        return context.get_node_id(), os.getpid(), context.get_assigned_resources()


def here(marks: str, name: str) -> str:
    """A task: it marks that it runs, and ends when it is to; its node."""
    Path(marks, f"{name} runs").touch()
    wait_for_file(Path(marks, f"{name} may end"))
    return zf.get_runtime_context().get_node_id()


def free(amount: float, name: str = "memory") -> Callable[[], bool]:
    return lambda: zf.available_resources().get(name, 0.0) == amount


@pytest.fixture(scope="module")
def nodes() -> Iterator[zf.LocalCluster]:
    with zf.LocalCluster(2, 2, object_store_memory=64 * MIB, memory=GIB, config={"infeasible": "raise"}) as made:
        yield made


@pytest.fixture
def two(nodes: zf.LocalCluster) -> Iterator[zf.LocalCluster]:
    """Two nodes of 1 GiB, with this program connected: each test is a job of its own."""
    with zf.init(nodes.address):
        eventually(free(2 * GIB), "the job before has ended")
        yield nodes


def test_nodes_have_memory_a_store_and_themselves(two: zf.LocalCluster) -> None:
    own = {"CPU": 2.0, "memory": GIB, LOCAL: 1.0, "object_store_memory": 64 * MIB}
    assert [node["Resources"] for node in zf.nodes()] == [{**own, HEAD: 1.0}, own]
    assert zf.cluster_resources() == {**{name: 2 * amount for name, amount in own.items()}, HEAD: 1.0}
    before = zf.available_resources()["object_store_memory"]
    ref = zf.put(bytes(8 * MIB))
    eventually(lambda: zf.available_resources()["object_store_memory"] <= before - 8 * MIB, "the value is in the store")
    del ref


def test_a_node_is_asked_for_by_its_address_or_as_the_head(two: zf.LocalCluster) -> None:
    holders = [zf.remote(Holder).options(num_cpus=0, resources={HEAD: 0.001}).remote() for _ in range(3)]
    assert {node for node, _, _ in zf.get([each.where.remote() for each in holders], timeout=PATIENCE)} == {two.nodes[0].node_id}
    holder = zf.remote(Holder).options(num_cpus=0, resources={LOCAL: 0.001}).remote()
    assert zf.get(holder.where.remote(), timeout=PATIENCE)[2] == {LOCAL: 0.001}


def test_tasks_run_where_memory_is_free_and_wait_where_none_is(two: zf.LocalCluster, tmp_path: Path) -> None:
    task = zf.remote(here).options(num_cpus=0, memory=GIB // 2)
    refs = [task.remote(str(tmp_path), str(number)) for number in range(4)]
    eventually(lambda: len(list(tmp_path.glob("* runs"))) == 4, "two on each node")
    assert free(0.0)()
    late = task.remote(str(tmp_path), "late")
    reason = eventually(lambda: (text := zf.explain(late).reason).startswith("waits for") and text, "it is queued")
    assert "waits for 512 MiB memory: free now is 2 CPU, 0 B memory of 2 CPU, 1.0 GiB memory" in reason
    for number in range(4):
        (tmp_path / f"{number} may end").touch()
    nodes = zf.get(refs, timeout=PATIENCE)
    assert sorted(map(nodes.count, {node.node_id for node in two.nodes})) == [2, 2]
    (tmp_path / "late may end").touch()
    zf.get(late, timeout=PATIENCE)
    eventually(free(2 * GIB), "all of it is given back")


def test_what_no_node_has_is_an_error_that_names_sizes(two: zf.LocalCluster) -> None:
    error = failure(zf.remote(here).options(memory=3 * GIB).remote("", ""))
    assert isinstance(error, TaskUnschedulableError)
    assert "1 CPU, 3.0 GiB memory" in str(error)
    holder = zf.remote(Holder).options(memory=3 * GIB).remote()
    assert "3.0 GiB memory" in str(failure(holder.where.remote()))


def test_reservations_outlive_the_daemon(cluster: Callable[..., Any], tmp_path: Path) -> None:
    cluster(num_cpus=2, _memory=GIB, object_store_memory=64 * MIB)
    holder = zf.remote(Holder).options(memory=GIB // 2).remote()
    _, pid, assigned = zf.get(holder.where.remote(), timeout=PATIENCE)
    assert assigned == {"memory": GIB / 2}, "an actor that names no CPUs holds none"
    task = zf.remote(here).options(memory=GIB // 4).remote(str(tmp_path), "task")
    eventually((tmp_path / "task runs").exists, "it runs")
    kill_daemon()
    late = zf.remote(here).options(memory=GIB // 2).remote(str(tmp_path), "late")
    assert zf.get(holder.where.remote(), timeout=PATIENCE)[1] == pid
    eventually(free(GIB / 4), "both have what they had")
    assert not (tmp_path / "late runs").exists()
    zf.kill(holder)
    eventually((tmp_path / "late runs").exists, "what the actor had is free")
    for name in ("task", "late"):
        (tmp_path / f"{name} may end").touch()
    zf.get([task, late], timeout=PATIENCE)
    eventually(free(GIB), "all of it is given back")


def test_bundles_reserve_memory(two: zf.LocalCluster) -> None:
    group = placement_group([{"memory": 0.75 * GIB}, {"CPU": 1, "memory": 0.75 * GIB}])
    assert group.wait(PATIENCE)
    assert group.bundle_specs == [{"memory": 0.75 * GIB}, {"CPU": 1.0, "memory": 0.75 * GIB}]
    assert free(GIB / 2)()
    holder = zf.remote(Holder).options(memory=GIB // 2, scheduling_strategy=InGroup(group)).remote()
    assert zf.get(holder.where.remote(), timeout=PATIENCE)[2] == {"memory": GIB / 2}
    assert free(GIB / 2)()
    with pytest.raises(OptionError, match=r"asks for 1\.0 GiB memory, and is to run in a placement group: none of its bundles"):
        zf.remote(Holder).options(memory=GIB, scheduling_strategy=InGroup(group)).remote()
    remove_placement_group(group)
    eventually(free(2 * GIB), "all of it is given back")


def test_a_node_with_more_memory_is_used_and_drained(two: zf.LocalCluster, tmp_path: Path) -> None:
    large = two.add_node(memory=4 * GIB)
    assert zf.cluster_resources()["memory"] == 6 * GIB
    task = zf.remote(here).options(memory=3 * GIB).remote(str(tmp_path), "task")
    eventually((tmp_path / "task runs").exists, "the new node has room")
    assert free(3 * GIB)()
    (tmp_path / "task may end").touch()
    assert zf.get(task, timeout=PATIENCE) == large.node_id
    holder = zf.remote(Holder).options(memory=GIB, max_restarts=1, scheduling_strategy=on_node(large, soft=True)).remote()
    node, pid, _ = zf.get(holder.where.remote(), timeout=PATIENCE)
    assert node == large.node_id
    two.remove_node(large, drain=True)
    assert gone(pid)
    assert zf.get(holder.where.options(max_task_retries=-1).remote(), timeout=PATIENCE)[0] in {each.node_id for each in two.nodes}
    eventually(free(GIB), "the actor's memory is reserved where it lives now")
