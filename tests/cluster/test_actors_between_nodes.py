"""Actors that are called from other nodes, on clusters of real processes: order, errors, values, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from faults import LEASE, descendants, eventually, gone, name_of, on_node

import zfabric as zf
from zfabric.runtime import interface
from zfabric.util.scheduling_strategies import In, NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy
from zfabric.util.state import list_actors, list_jobs

WITHIN = 60


@zf.remote
class Counter:
    """Counts, and keeps what it is given."""

    def __init__(self) -> None:
        self.value = 0
        self.kept: list[Any] = []

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def keep(self, box: list[Any]) -> int:
        self.kept += box
        return len(self.kept)

    def hand_out(self) -> list[Any]:
        return self.kept

    def drop(self) -> None:
        self.kept.clear()

    def pid(self) -> int:
        return os.getpid()

    def total(self) -> float:
        return float(sum(value.sum() for value in zf.get(self.kept)))

    def sum(self, value: Any) -> float:
        print("a line, behind which the value goes")
        return float(value.sum())

    def large(self, size: int) -> Any:
        return np.ones(size)

    def put(self, size: int) -> list[Any]:
        return [zf.put(np.ones(size))]

    def fail(self) -> None:
        raise KeyError("missing")

    def pause(self) -> int:
        time.sleep(0.02)
        return self.add()

    def sleep(self) -> None:
        time.sleep(600.0)

    def exit_process(self) -> None:
        os._exit(3)

    def leave(self) -> None:
        zf.exit_actor()

    def node(self) -> str:
        return zf.get_runtime_context().get_node_id()

    def me(self) -> Any:
        return zf.get_runtime_context().current_actor


@pytest.fixture(scope="module")
def nodes() -> Iterator[zf.LocalCluster]:
    """Two nodes of two CPUs."""
    with zf.LocalCluster(nodes=1, cpus_per_node=2, object_store_memory=128 * 2**20, config={"preload": ("pytest", "numpy")}) as made:
        made.add_node(num_cpus=2, resources={"special": 1}, labels={"zone": "b"})
        yield made


@pytest.fixture
def cluster(nodes: zf.LocalCluster) -> Iterator[zf.LocalCluster]:
    """The same, with this program connected."""
    with zf.init(nodes.address):
        yield nodes


def there(cluster: zf.LocalCluster, function: Any, *args: Any) -> Any:
    """Run a function as a task of the second node, and return its value. The handles in ``args`` are in a list."""
    return zf.get(zf.remote(function).options(scheduling_strategy=on_node(cluster.nodes[1])).remote(list(args)), timeout=WITHIN)


def made_there(cluster: zf.LocalCluster) -> Any:
    """An actor that a task of the second node made; its handle is in the task's value."""

    def make(_: list[Any]) -> list[Any]:
        counter = Counter.remote()
        zf.get(counter.add.remote(10))
        return [counter]

    (counter,) = there(cluster, make)
    return counter


def test_a_handle_goes_to_another_node_and_calls_of_a_process_are_run_in_order(cluster: zf.LocalCluster) -> None:
    counter = Counter.remote()

    def count(box: list[Any]) -> list[int]:
        return zf.get([box[0].add.remote() for _ in range(500)])

    assert there(cluster, count, counter) == list(range(1, 501))
    assert zf.get(counter.add.remote(), timeout=WITHIN) == 501


def test_a_task_of_another_node_makes_an_actor_that_outlives_it(cluster: zf.LocalCluster) -> None:
    counter = made_there(cluster)
    assert zf.get(counter.node.remote(), timeout=WITHIN) == cluster.nodes[1].node_id
    assert zf.get([counter.add.remote() for _ in range(3)], timeout=WITHIN) == [11, 12, 13]
    again = zf.get(counter.me.remote(), timeout=WITHIN)
    assert zf.get(again.add.remote(), timeout=WITHIN) == 14, "a weak handle leads to the actor, whose home nobody has named"


def test_large_values_and_refs_go_both_ways_and_are_held_by_who_has_them(cluster: zf.LocalCluster) -> None:
    counter = made_there(cluster)
    given = zf.put(np.ones(300_000))
    assert zf.get(counter.sum.remote(given), timeout=WITHIN) == 300_000
    assert zf.get(counter.sum.remote(np.ones(400_000)), timeout=WITHIN) == 400_000
    assert zf.get(counter.large.remote(500_000), timeout=WITHIN).sum() == 500_000
    (inner,) = zf.get(counter.put.remote(200_000), timeout=WITHIN)
    assert zf.get(inner, timeout=WITHIN).sum() == 200_000
    assert zf.get(counter.keep.remote([given, given]), timeout=WITHIN) == 2
    del given
    assert zf.get(counter.total.remote(), timeout=WITHIN) == 600_000


def test_arguments_of_a_few_calls_to_another_node_travel_with_them(cluster: zf.LocalCluster) -> None:
    """Those of others, and larger ones, are stored, so that many calls are bounded by the store and not by memory."""
    counter = Counter.options(scheduling_strategy=on_node(cluster.nodes[1])).remote()
    held = zf.put(np.ones(10))
    zf.get(counter.add.remote(), timeout=WITHIN)
    client = interface.current()
    assert client is not None
    machine = client.machine  # type: ignore[attr-defined]

    def stored() -> int:
        return len(machine.arguments.places.keys() | machine.written.keys() | machine.pins.places.keys())

    before = stored()
    pid = zf.get(counter.pid.remote(), timeout=WITHIN)
    os.kill(pid, signal.SIGSTOP)  # So that all calls are under way.
    try:
        both = zf.util.call_all([counter, counter], "sum", np.ones(10_000))
        assert stored() == before + 1, "what several calls take is stored once"
        before = stored()
        calls = [counter.sum.remote(np.ones(size)) for size in (10_000, 30_000)]
        assert stored() == before
        calls.append(counter.sum.remote(np.ones(100_000)))
        assert stored() == before + 1
        calls += [counter.sum.remote(np.full(10_000, float(number))) for number in range(200)]
        assert stored() > before + 1
    finally:
        os.kill(pid, signal.SIGCONT)
    assert zf.get(calls, timeout=WITHIN) == [10_000, 30_000, 100_000, *(10_000 * number for number in range(200))]
    assert zf.get(both, timeout=WITHIN) == [10_000, 10_000]
    assert zf.get(counter.keep.remote([held, np.ones(10_000)]), timeout=WITHIN) == 2
    assert zf.get(zf.get(counter.hand_out.remote(), timeout=WITHIN)[0], timeout=WITHIN).sum() == 10


def test_results_of_calls_are_arguments_of_calls_also_with_refs_inside(cluster: zf.LocalCluster) -> None:
    counter = made_there(cluster)
    ten = counter.add.remote(0)
    assert zf.get(counter.add.remote(ten), timeout=WITHIN) == 20
    assert zf.get(counter.add.remote(ten), timeout=WITHIN) == 30, "this program alone has the value"
    box = counter.put.remote(200_000)
    zf.get(box, timeout=WITHIN)
    assert zf.get(counter.keep.remote(box), timeout=WITHIN) == 1
    assert zf.get(counter.total.remote(), timeout=WITHIN) == 200_000
    mine = zf.remote(lambda: [zf.put(np.ones(3))]).remote()
    zf.get(mine, timeout=WITHIN)
    assert zf.get(counter.keep.remote(mine), timeout=WITHIN) == 2
    assert zf.get(counter.total.remote(), timeout=WITHIN) == 200_003


def test_errors_timeouts_and_cancels_are_those_of_a_local_actor(cluster: zf.LocalCluster) -> None:
    counter = made_there(cluster)
    with pytest.raises(KeyError, match="missing"):
        zf.get(counter.fail.remote(), timeout=WITHIN)
    with pytest.raises(zf.TaskTimeoutError):
        zf.get(counter.sleep.options(timeout=0.1).remote(), timeout=WITHIN)
    running, queued = counter.sleep.remote(), counter.add.remote()
    assert zf.wait([running], timeout=0.1) == ([], [running])
    zf.cancel(running)
    with pytest.raises(zf.TaskCancelledError):
        zf.get(running, timeout=WITHIN)
    assert zf.get(queued, timeout=WITHIN) == 11


def test_callers_on_other_nodes_are_told_of_an_actors_death_and_how_far_it_had_come(cluster: zf.LocalCluster) -> None:
    counter = made_there(cluster)
    fatal, behind = counter.exit_process.remote(), counter.add.remote()
    with pytest.raises(zf.ActorDiedError) as caught:
        zf.get(fatal, timeout=WITHIN)
    assert caught.value.facts["outcome"] == "unknown"
    with pytest.raises(zf.ActorDiedError) as caught:
        zf.get(behind, timeout=WITHIN)
    assert caught.value.facts["outcome"] == "not run"
    with pytest.raises(zf.ActorDiedError):
        zf.get(counter.add.remote(), timeout=WITHIN)


def test_an_actor_restarts_and_its_calls_are_repeated_for_a_caller_on_another_node(cluster: zf.LocalCluster) -> None:
    lasting = zf.remote(max_restarts=1, max_task_retries=1)(Counter._kind).remote()

    def end(box: list[Any]) -> str:
        try:
            zf.get(box[0].exit_process.remote())
        except zf.ActorDiedError as error:
            return str(error.facts["outcome"])
        return ""

    def count(box: list[Any]) -> int:
        return zf.get(box[0].add.remote())

    zf.get(lasting.add.remote(5), timeout=WITHIN)
    zf.kill(lasting, no_restart=False)
    assert there(cluster, count, lasting) == 1
    assert there(cluster, end, lasting) == "unknown", "no restart is left"


def test_a_logged_actor_loses_nothing_that_a_caller_on_another_node_has_seen(cluster: zf.LocalCluster) -> None:
    logged = zf.remote(max_restarts=-1, checkpoint_every=10)(Counter._kind).remote()

    def count(box: list[Any]) -> list[int]:
        found = []
        for index in range(60):
            found.append(box[0].add.remote())
            if index in (20, 41):
                zf.kill(box[0], no_restart=False)
        return zf.get(found)

    assert there(cluster, count, logged) == list(range(1, 61))
    assert zf.get(logged.add.remote(), timeout=WITHIN) == 61


def test_an_actor_is_made_on_the_node_that_its_options_name(cluster: zf.LocalCluster) -> None:
    second = cluster.nodes[1].node_id
    counter = Counter.options(name="made elsewhere", scheduling_strategy=on_node(cluster.nodes[1])).remote()
    assert zf.get([counter.add.remote() for _ in range(200)], timeout=WITHIN) == list(range(1, 201))
    assert zf.get(counter.node.remote(), timeout=WITHIN) == second
    assert zf.get(counter.me.remote(), timeout=WITHIN) == counter, "it can name itself there"

    def count(box: list[Any]) -> int:
        return zf.get(box[0].add.remote() if box else zf.get_actor("made elsewhere").add.remote())

    assert there(cluster, count, counter) == 201, "a process of its node calls it"
    assert there(cluster, count) == 202
    assert zf.get(zf.remote(count).remote([counter]), timeout=WITHIN) == 203
    with pytest.raises(KeyError, match="missing"):
        zf.get(counter.fail.remote(), timeout=WITHIN)
    given = zf.put(np.ones(300_000))
    assert zf.get(counter.sum.remote(given), timeout=WITHIN) == 300_000
    (row,) = [row for row in list_actors(detail=True) if row["name"] == "made elsewhere"]
    assert (row["node"], row["pid"]) == ("node2", zf.get(counter.pid.remote(), timeout=WITHIN))
    assert "lives on node node2" in str(zf.explain(counter))


def test_actors_go_where_their_labels_resources_and_spread_take_them(cluster: zf.LocalCluster) -> None:
    first, second = (node.node_id for node in cluster.nodes)
    labelled = Counter.options(scheduling_strategy=NodeLabelSchedulingStrategy(hard={"zone": In("b")})).remote()
    special = Counter.options(resources={"special": 1}).remote()
    found = [zf.get(each.node.remote(), timeout=WITHIN) for each in (labelled, special)]
    assert found == [second, second]
    spread = [Counter.options(scheduling_strategy="SPREAD").remote() for _ in range(4)]
    assert sorted(zf.get([each.node.remote() for each in spread], timeout=WITHIN)) == sorted([first, second] * 2)
    with pytest.raises(zf.TaskUnschedulableError, match="not in this cluster"):
        unknown = Counter.options(scheduling_strategy=on_node("f" * 16)).remote()
        zf.get(unknown.add.remote(), timeout=WITHIN)
    anywhere = Counter.options(scheduling_strategy=on_node("f" * 16, soft=True)).remote()
    assert zf.get(anywhere.add.remote(), timeout=WITHIN) == 1


def test_actors_for_which_there_is_no_room_here_are_made_where_there_is(cluster: zf.LocalCluster) -> None:
    actors = [Counter.options(num_cpus=1).remote() for _ in range(4)]
    places = zf.get([each.node.remote() for each in actors], timeout=WITHIN)
    assert sorted(places) == sorted([node.node_id for node in cluster.nodes] * 2)
    late = Counter.options(num_cpus=1).remote()
    waits = late.node.remote()
    assert zf.wait([waits], timeout=0.1) == ([], [waits])
    zf.kill(actors[places.index(cluster.nodes[1].node_id)])
    assert zf.get(waits, timeout=WITHIN) == cluster.nodes[1].node_id


def test_an_actor_elsewhere_ends_when_it_is_killed_dropped_or_by_itself(cluster: zf.LocalCluster) -> None:
    killed, dropped, leaves = (Counter.options(max_restarts=-1, scheduling_strategy=on_node(cluster.nodes[1])).remote() for _ in range(3))
    pids = zf.get([each.pid.remote() for each in (killed, dropped, leaves)], timeout=WITHIN)
    zf.kill(killed)
    with pytest.raises(zf.ActorDiedError, match=r"zf\.kill"):
        zf.get(killed.add.remote(), timeout=WITHIN)
    foreign = made_there(cluster)
    zf.kill(foreign)
    with pytest.raises(zf.ActorDiedError, match=r"zf\.kill"):
        zf.get(foreign.add.remote(), timeout=WITHIN)
    last = [dropped.pause.remote() for _ in range(5)]
    del dropped
    assert zf.get(last, timeout=WITHIN) == [1, 2, 3, 4, 5], "it ends after the calls that were made"
    with pytest.raises(zf.ActorDiedError):
        zf.get(leaves.leave.remote(), timeout=WITHIN)
    eventually(lambda: all(map(gone, pids)), "the processes have ended")


def test_an_actor_elsewhere_is_made_again_when_its_process_dies(cluster: zf.LocalCluster) -> None:
    counter = Counter.options(max_restarts=1, scheduling_strategy=on_node(cluster.nodes[1])).remote()
    patient = Counter.options(max_restarts=-1, max_task_retries=1, scheduling_strategy=on_node(cluster.nodes[1])).remote()
    assert zf.get(counter.add.remote(5), timeout=WITHIN) == 5
    with pytest.raises(zf.ActorUnavailableError) as caught:
        zf.get(counter.exit_process.remote(), timeout=WITHIN)
    assert caught.value.facts["outcome"] == "unknown"
    assert zf.get(counter.add.remote(), timeout=WITHIN) == 1
    assert zf.get(counter.node.remote(), timeout=WITHIN) == cluster.nodes[1].node_id
    with pytest.raises(zf.ActorDiedError, match="no restart is left"):
        zf.get(counter.exit_process.remote(), timeout=WITHIN)
    pid = zf.get(patient.pid.remote(), timeout=WITHIN)
    behind = [patient.pause.remote() for _ in range(10)]
    os.kill(pid, signal.SIGKILL)
    assert zf.get(behind, timeout=WITHIN)[-1] in range(1, 11), "its calls are repeated"
    assert zf.get(patient.pid.remote(), timeout=WITHIN) != pid


def test_an_actor_lives_as_long_as_another_node_has_a_handle(cluster: zf.LocalCluster) -> None:
    holder, kept = made_there(cluster), Counter.remote()
    assert zf.get(kept.add.remote(7), timeout=WITHIN) == 7
    zf.get(holder.keep.remote([kept]), timeout=WITHIN)
    del kept
    (found,) = zf.get(holder.hand_out.remote(), timeout=WITHIN)
    assert zf.get(found.add.remote(), timeout=WITHIN) == 8


def test_an_actor_ends_once_no_node_has_a_handle(cluster: zf.LocalCluster) -> None:
    holder, kept = made_there(cluster), Counter.remote()
    pid = zf.get(kept.pid.remote(), timeout=WITHIN)
    zf.get(holder.keep.remote([kept]), timeout=WITHIN)
    del kept
    assert not gone(pid)
    zf.get(holder.drop.remote(), timeout=WITHIN)
    eventually(lambda: gone(pid), "the actor ends with the handle that the other node had")


def test_a_name_is_found_from_every_node_and_free_again_after_the_actors_end(cluster: zf.LocalCluster) -> None:
    def make(_: list[Any]) -> list[Any]:
        named = Counter.options(name="one of all").remote()
        zf.get(named.add.remote(20))
        return [named]

    (named,) = there(cluster, make)
    assert zf.get(zf.get_actor("one of all").add.remote(), timeout=WITHIN) == 21
    assert "one of all" in zf.util.list_named_actors()
    taken = Counter.options(name="one of all", get_if_exists=True).remote()
    assert taken == named
    with pytest.raises(zf.ActorNameTakenError):
        Counter.options(name="one of all").remote()
    zf.kill(named)

    def is_free() -> bool:
        try:
            zf.get_actor("one of all")
        except zf.ActorNotFoundError:
            return True
        return False

    eventually(is_free, "the name is free")
    again = Counter.options(name="one of all").remote()
    assert there(cluster, lambda _: zf.get(zf.get_actor("one of all").add.remote(5))) == 5
    del again


def test_of_actors_with_one_name_made_on_two_nodes_at_once_one_is_made(cluster: zf.LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    def make(index: int) -> bytes:
        handle = Counter.options(name=f"wanted {index}", get_if_exists=True, lifetime="detached").remote()
        zf.get(handle.add.remote())
        return bytes(handle._actor_id)

    nodes = [on_node(node) for node in cluster.nodes]
    refs = [[zf.remote(make).options(scheduling_strategy=each).remote(index) for each in nodes] for index in range(8)]
    made = [zf.get(pair, timeout=WITHIN) for pair in refs]
    assert all(first == second for first, second in made)
    for index in range(8):
        named = zf.get_actor(f"wanted {index}")
        assert zf.get(named.add.remote(), timeout=WITHIN) == 3, "both tasks have called the same actor"
        zf.kill(named)
    assert "nobody asked for" not in capfd.readouterr().err, "who lost the race has an actor"
    assert there(cluster, lambda _: 5, []) == 5, "the job goes on where its last detached actor has ended"


@pytest.mark.parametrize("lightweight", [True, False])
def test_a_detached_actor_outlives_its_driver_on_whatever_node_it_was_made(nodes: zf.LocalCluster, lightweight: bool) -> None:
    def make(box: list[Any]) -> list[Any]:
        kept = Counter.options(name=box[0], lifetime="detached", lightweight=lightweight).remote()
        return [zf.get(kept.node.remote())]

    with zf.init(nodes.address, namespace="outlived"):
        assert there(nodes, make, "kept") == [nodes.nodes[1 if lightweight else 0].node_id], "others are at home on the head"
    with zf.init(nodes.address, namespace="outlived"):
        kept = zf.get_actor("kept")
        assert zf.get(kept.add.remote(), timeout=WITHIN) == 1
        job = kept._actor_id[:4].hex()
        zf.kill(kept)
        eventually(lambda: job not in [each.job_id for each in list_jobs() if each.status == "RUNNING"], "its job ends with it")


def test_detached_actors_outlive_the_nodes_of_their_programs_and_of_the_tasks_that_made_them() -> None:
    config = {"node_lease": LEASE}
    with zf.LocalCluster(nodes=3, cpus_per_node=2, object_store_memory=64 * 2**20, config=config) as own:
        head, home, other = own.nodes
        on_head, there_if_possible = on_node(own.nodes[0]), on_node(own.nodes[2], soft=True)
        with zf.init(home.address, namespace="outlived"):
            logged = Counter.options(
                name="logged", lifetime="detached", max_restarts=1, checkpoint_every=2, scheduling_strategy=there_if_possible
            )
            first = logged.remote()
            assert zf.get([first.add.remote() for _ in range(3)], timeout=WITHIN) == [1, 2, 3]

            def make(node: NodeAffinitySchedulingStrategy) -> int:
                return int(zf.get(Counter.options(name="of a task", lifetime="detached", scheduling_strategy=node).remote().add.remote()))

            assert zf.get(zf.remote(make).options(scheduling_strategy=on_node(own.nodes[2])).remote(on_head), timeout=WITHIN) == 1
        own.remove_node(home)
        with zf.init(other.address, namespace="outlived"):
            second = Counter.options(name="second", lifetime="detached", scheduling_strategy=on_head).remote()
            found = [zf.get_actor("logged"), zf.get_actor("of a task"), second]
            assert zf.get([each.add.remote() for each in found], timeout=WITHIN) == [4, 2, 1], "their job's home has left the cluster"
        (daemon,) = [pid for pid in descendants(head.pid) if name_of(pid) == "zf-daemon"]
        os.kill(daemon, signal.SIGKILL)
        other.kill()
        with zf.init(head.address, namespace="outlived"):
            eventually(lambda: len(zf.nodes()) == 1, "the node is dead")
            found = [zf.get_actor(name) for name in ("logged", "of a task", "second")]
            assert zf.get([each.add.remote() for each in found], timeout=WITHIN) == [5, 3, 2], "one is made again from its log"
            jobs = {each._actor_id[:4].hex() for each in found}
            assert len(jobs) == 2
            for each in found:
                zf.kill(each)
            eventually(lambda: jobs.isdisjoint(each.job_id for each in list_jobs() if each.status == "RUNNING"), "their jobs end with them")
            with pytest.raises(zf.ActorDiedError):
                zf.get(found[0].add.remote(), timeout=WITHIN)


@pytest.mark.parametrize("of_caller", [False, True])
def test_no_call_is_lost_or_run_twice_when_a_daemon_on_its_way_is_killed(of_caller: bool) -> None:
    with zf.LocalCluster(nodes=2, cpus_per_node=2, object_store_memory=64 * 2**20) as own, zf.init(own.address):
        counter, guest = made_there(own), Counter.options(name="guest", scheduling_strategy=on_node(own.nodes[1])).remote()
        zf.get([counter.add.remote(), guest.add.remote(11)], timeout=WITHIN)
        refs, others = ([each.pause.remote() for _ in range(40)] for each in (counter, guest))
        zf.get([refs[5], others[5]], timeout=WITHIN)
        node = own.nodes[0 if of_caller else 1]
        (daemon,) = [pid for pid in descendants(node.pid) if name_of(pid) == "zf-daemon"]
        os.kill(daemon, signal.SIGKILL)
        refs += [counter.pause.remote() for _ in range(10)]
        others += [guest.pause.remote() for _ in range(10)]
        assert zf.get(refs, timeout=WITHIN) == list(range(12, 62))
        assert zf.get(others, timeout=WITHIN) == list(range(12, 62)), "its home has one daemon, the node on which it lives another"
        pid = zf.get(guest.pid.remote(), timeout=WITHIN)
        assert zf.get_actor("guest") == guest
        zf.kill(guest)
        eventually(lambda: gone(pid), "its home ends it")


def test_the_death_of_an_actors_node_is_that_of_the_actor_and_its_callers_are_told() -> None:
    config = {"node_lease": LEASE}
    with zf.LocalCluster(nodes=2, cpus_per_node=2, object_store_memory=64 * 2**20, config=config) as own, zf.init(own.address):
        counter = made_there(own)
        mover = Counter.options(max_restarts=1, max_task_retries=1, scheduling_strategy=on_node(own.nodes[1], soft=True)).remote()
        unclear = Counter.options(max_restarts=1, scheduling_strategy=on_node(own.nodes[1], soft=True)).remote()
        stays = Counter.options(max_restarts=1, scheduling_strategy=on_node(own.nodes[1])).remote()
        assert zf.get([each.node.remote() for each in (mover, unclear, stays)], timeout=WITHIN) == [own.nodes[1].node_id] * 3
        running = counter.sleep.remote()
        assert zf.wait([running], timeout=0.2) == ([], [running])
        repeated, once = [mover.pause.remote() for _ in range(20)], unclear.sleep.remote()
        own.nodes[1].kill()
        with pytest.raises(zf.ActorDiedError, match="the node where it was made, was drained or has died") as caught:
            zf.get(running, timeout=WITHIN)
        assert caught.value.facts["outcome"] == "unknown"
        with pytest.raises(zf.ActorDiedError):
            zf.get(counter.add.remote(), timeout=WITHIN)
        assert len(zf.get(repeated, timeout=WITHIN)) == 20, "made on another node, it runs the calls again"
        assert zf.get([each.node.remote() for each in (mover, unclear)], timeout=WITHIN) == [own.nodes[0].node_id] * 2
        with pytest.raises(zf.ActorUnavailableError, match="it lived, node2, is dead; the actor is made again") as unavailable:
            zf.get(once, timeout=WITHIN)
        assert unavailable.value.facts["outcome"] == "unknown"
        with pytest.raises(zf.TaskUnschedulableError, match="which has died or left"):
            zf.get(stays.add.remote(), timeout=WITHIN)


@zf.remote(num_cpus=0)
class Submitter:
    def submit(self) -> str:
        return str(zf.get(where.options(resources={"special": 0.1}).remote()))


@zf.remote
def where(_ref: Any = None) -> str:
    return str(zf.get_runtime_context().get_node_id())


def test_what_a_detached_actor_submits_for_another_program_runs_on_any_node(nodes: zf.LocalCluster) -> None:
    with zf.init(nodes.address):
        zf.get(Submitter.options(name="submits", lifetime="detached").remote().__ray_ready__.remote(), timeout=WITHIN)
    with zf.init(nodes.address):
        actor = zf.get_actor("submits")
        assert zf.get(actor.submit.remote(), timeout=WITHIN) == nodes.nodes[1].node_id
        zf.kill(actor)


ENDING = """
    import sys, time, zfabric as zf

    @zf.remote(num_cpus=0)
    def forever(): time.sleep(10**6)

    @zf.remote(num_cpus=0, max_concurrency=2)
    class Named:
        def begin(self): return [forever.remote()]
        def wait(self): time.sleep(10**6)

    with zf.init(address=sys.argv[1]):
        named = Named.options(name="ends").remote()
        zf.get(named.__ray_ready__.remote())
        print("made", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.parametrize("where_it_waits", [0, 1])
def test_a_program_that_waits_for_what_another_one_makes_is_notified_of_its_end(nodes: zf.LocalCluster, where_it_waits: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(ENDING), nodes.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "made\n"
        with zf.init(nodes.nodes[where_it_waits].address):
            named = zf.get_actor("ends")
            (ref,) = zf.get(named.begin.remote(), timeout=WITHIN)
            needs_it = where.options(num_cpus=0, scheduling_strategy=on_node(nodes.nodes[where_it_waits])).remote(ref)
            waiting = [each.future() for each in (ref, needs_it, named.wait.remote())]
            program.communicate("\n", timeout=WITHIN)
            errors = [each.exception(timeout=WITHIN) for each in waiting]
    assert [type(each) for each in errors] == [zf.ObjectFreedError, zf.ObjectFreedError, zf.ActorDiedError]
