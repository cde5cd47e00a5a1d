"""Single bad days that need more than a program and a fault: what is true within so many seconds, and what a cluster ends with."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import LEASE, PATIENCE, descendants, eventually, failure, gone, name_of, on_node, query
from relay import CUT, Fault, Relay, RelayedCluster

import zfabric as zf
from zfabric.runtime.connect import attach
from zfabric.runtime.session import Session

STORE = 96
"""MiB of each node's object store."""
MiB = 2**20


def workers_of(*nodes: Any) -> list[int]:
    """The living workers of these nodes."""
    return [pid for node in nodes for pid in descendants(node.pid) if name_of(pid) == "zf-worker" and not gone(pid)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RelayedCluster]:
    """Three nodes of one CPU behind a relay, none of which dies."""
    options: dict[str, Any] = {"object_store_memory": STORE * MiB, "config": {"transfer_patience": 0.2}}
    with Relay() as relay, RelayedCluster(relay, nodes=3, cpus_per_node=1, **options) as cluster:
        yield cluster


@pytest.fixture
def relayed(nodes: RelayedCluster) -> Iterator[RelayedCluster]:
    """The same, with this program connected to the first."""
    with zf.init(nodes.address):
        yield nodes


@zf.remote
def large(seed: int, size: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def expected(seed: int, size: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


HURT = {
    "agent of the reader": "zf-transfer",
    "agent of the source": "zf-transfer",
    "daemon of the reader": "zf-daemon",
    "daemon of the source": "zf-daemon",
}
"""The process that is killed."""


@pytest.mark.parametrize("hurt", ["cut", "one way", "reset", *HURT])
def test_a_large_value_arrives_whole_whatever_happens_on_its_way(relayed: RelayedCluster, hurt: str) -> None:
    size, (head, source, _) = 48 * MiB, relayed.nodes
    ref = large.options(scheduling_strategy=on_node(source)).remote(1, size)
    assert zf.wait([ref], timeout=60, fetch_local=False)[0]
    relayed.relay.between(source.name, head.name, Fault(rate=6 * MiB), "transfer")  # A busy machine still hurts it in the middle.
    passed = f"{source.name}>{head.name} transfer"
    before = relayed.relay("passed").get(passed, 0)
    waiting = zf.remote(lambda value: int(value[0])).options(scheduling_strategy=on_node(head)).remote(ref)
    eventually(lambda: relayed.relay("passed").get(passed, 0) - before > MiB, "the value is on its way")
    assert relayed.relay("passed")[passed] - before < size, "it is in the middle"
    if hurt in ("cut", "one way"):
        relayed.relay.fault(source.name, head.name, CUT, "transfer")
        if hurt == "cut":
            relayed.relay.fault(head.name, source.name, CUT, "transfer")
        time.sleep(1.0)  # as long as the cut is to last
    elif hurt == "reset":
        assert relayed.relay.reset(source.name, head.name)
    else:
        node = head if "reader" in hurt else source
        (process,) = [pid for pid in descendants(node.pid) if name_of(pid) == HURT[hurt]]
        os.kill(process, signal.SIGKILL)
    relayed.relay.heal()
    wanted = expected(1, size)
    assert zf.get(waiting, timeout=60) == int(wanted[0])
    assert np.array_equal(zf.get(ref, timeout=60), wanted)


LARGE = int(os.environ.get("LARGE_MIB", "96"))
"""MiB of a value whose way is cut: ``scripts/nightly`` has 1,024."""


def digest(value: Any) -> str:
    return hashlib.blake2b(memoryview(value).cast("B")).hexdigest()


@pytest.mark.parametrize(("of", "name"), [(1, "zf-worker"), (1, "zf-daemon"), (0, "zf-daemon")])
def test_each_of_the_tasks_waited_for_one_by_one_has_its_value_when_a_process_on_its_way_is_killed(
    relayed: RelayedCluster, of: int, name: str
) -> None:
    there = zf.remote(lambda number: number * 2).options(scheduling_strategy=on_node(relayed.nodes[1]), max_retries=-1)
    assert [zf.get(there.remote(number), timeout=PATIENCE) for number in range(20)] == list(range(0, 40, 2))
    for number in range(3):  # Wherever it is just then.
        ref = there.remote(number)
        pids = eventually(lambda: [pid for pid in descendants(relayed.nodes[of].pid) if name_of(pid) == name], "the next one starts")
        os.kill(pids[0], signal.SIGKILL)
        assert zf.get(ref, timeout=PATIENCE) == number * 2
        assert zf.get(there.remote(number), timeout=PATIENCE) == number * 2


def test_a_link_that_is_cut_in_the_middle_of_a_very_large_value_goes_on_where_it_was() -> None:
    options: dict[str, Any] = {"object_store_memory": (LARGE + 32) * MiB}
    with Relay() as relay, RelayedCluster(relay, nodes=2, cpus_per_node=1, **options) as cluster, zf.init(cluster.address):
        head, source = cluster.nodes
        ref = large.options(scheduling_strategy=on_node(source)).remote(1, LARGE * MiB)
        expected = zf.get(zf.remote(digest).options(scheduling_strategy=on_node(source)).remote(ref), timeout=300)
        passed = f"{source.name}>{head.name} transfer"
        before = relay("passed").get(passed, 0)
        relay.fault(source.name, head.name, Fault(rate=LARGE * MiB / 8), "transfer")  # A busy machine still cuts it in the middle.
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(lambda: digest(zf.get(ref, timeout=300)))
            eventually(lambda: relay("passed").get(passed, 0) - before > LARGE * MiB / 4, "a quarter of it has come")
            relay.cut(source.name, head.name, "transfer")
            at_cut = relay("passed")[passed] - before
            assert at_cut < LARGE * MiB, "it is in the middle"
            time.sleep(0.5)  # as long as the cut is to last
            assert relay.reset(source.name, head.name), "what was on its way is lost"
            relay.heal()
            assert found.result() == expected
        again = relay("passed")[passed] - before - LARGE * MiB
        assert again < LARGE * MiB / 4, "what had come is not sent again"


DRIVER = """
import sys, time
import zfabric as zf
zf.init(sys.argv[1])
@zf.remote(scheduling_strategy="SPREAD")
def stay(depth):
    children = [stay.remote(depth - 1) for _ in range(2 * (depth > 0))]
    print("begun", flush=True)
    time.sleep(1000)
    return children
refs = [stay.remote(1) for _ in range(12)]
zf.put(bytes(200_000))
print("ready", flush=True)
time.sleep(1000)
"""


def test_of_a_driver_that_is_killed_nothing_is_left_on_any_node_within_ten_seconds(relayed: RelayedCluster) -> None:
    zf.shutdown()
    with subprocess.Popen([sys.executable, "-c", DRIVER, relayed.address], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            eventually(lambda: driver.stdout.readline() == "ready\n", "it has submitted all, of which some may have printed a line")
            eventually(lambda: len(workers_of(*relayed.nodes)) >= 3, "its tasks run on all nodes")
        finally:
            driver.kill()
    eventually(lambda: workers_of(*relayed.nodes) == [], "its workers have ended everywhere, long before a lease would")
    for node in relayed.nodes:
        with zf.init(node.address):
            eventually(lambda: not [row for what in ("tasks", "objects") for row in query(what)], "nothing is left")


def test_without_the_head_drivers_and_nodes_end_after_two_leases() -> None:
    """That these are two, and no more, is shown by the clock of ``test_registry``."""
    with zf.LocalCluster(nodes=3, cpus_per_node=1, object_store_memory=64 * MiB, config={"node_lease": LEASE}) as cluster:
        head, *others = cluster.nodes
        with zf.init(others[0].address):
            ref = zf.remote(lambda: time.sleep(1000)).options(scheduling_strategy=on_node(others[1])).remote()
            head.kill()
            error = failure(ref)
            assert isinstance(error, zf.NodeDiedError)
            assert f"the head (node1, {cluster.address}) did not answer" in str(error)
            eventually(lambda: not any(node.alive() for node in others), "the other nodes have ended")


LINKS = 100


@zf.remote
def link(directory: str, number: int, before: Any) -> Any:
    with Path(directory, str(number)).open("a") as file:
        file.write("x")
    return np.full(100_000, before[0] + 1)


def test_a_chain_of_a_hundred_values_whose_only_copies_are_lost_is_made_again_once(tmp_path: Path) -> None:
    with (
        zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=256 * MiB, config={"node_lease": LEASE}) as cluster,
        zf.init(cluster.address),
    ):
        there = cluster.nodes[1]
        zf.get(zf.remote(max).options(scheduling_strategy=on_node(there)).remote(1, 2), timeout=60)  # It has registered.
        last: Any = np.zeros(1)
        for number in range(LINKS):
            last = link.options(scheduling_strategy=on_node(there, soft=True)).remote(str(tmp_path), number, last)
        assert zf.wait([last], timeout=60, fetch_local=False)[0]
        there.kill()
        assert zf.get(last, timeout=60)[-1] == LINKS
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {str(number): "xx" for number in range(LINKS)}


CHILDREN = 6


@zf.remote(num_cpus=0.5)
def parent(directory: str) -> None:
    for number in range(CHILDREN):
        child.remote(directory, number)


@zf.remote
def child(directory: str, number: int) -> None:
    time.sleep(0.3)
    Path(directory, str(number)).touch()


def test_children_of_a_parent_that_has_ended_run_elsewhere_when_their_node_dies(tmp_path: Path) -> None:
    config = {"node_lease": LEASE, "spill_after": 600.0}  # They stay where they were submitted.
    with zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64 * MiB, config=config) as cluster, zf.init(cluster.address):
        zf.get(parent.options(scheduling_strategy=on_node(cluster.nodes[1])).remote(str(tmp_path)), timeout=60)
        eventually(lambda: list(tmp_path.iterdir()), "the first child has run")
        cluster.nodes[1].kill()
        eventually(lambda: len(list(tmp_path.iterdir())) == CHILDREN, "all children have run")


@zf.remote
def fib(number: int) -> int:
    return number if number < 2 else sum(zf.get([fib.remote(number - 1), fib.remote(number - 2)]))


def test_recursion_over_nodes_of_one_cpu_starts_a_bounded_number_of_processes() -> None:
    most = 4
    config = {"workers_blocked_max": most, "inline_depth": 8}
    with zf.LocalCluster(nodes=3, cpus_per_node=1, object_store_memory=64 * MiB, config=config) as cluster, zf.init(cluster.address):
        ref = fib.options(scheduling_strategy="SPREAD").remote(11)
        highest = 0

        def has_ended() -> bool:
            nonlocal highest
            highest = max(highest, *(len(workers_of(node)) for node in cluster.nodes))
            return bool(zf.wait([ref], timeout=0.05)[0])

        eventually(has_ended, "the recursion ends")
        assert zf.get(ref) == 89
        assert highest <= 1 + most + 1, "one CPU, those that are blocked, and one that is about to end"


def test_more_values_than_a_store_holds_are_read_from_another_node(relayed: RelayedCluster) -> None:
    """The reader's store is full: it spills, and finishes."""
    size, count, (_, source, reader) = STORE * MiB // 10, 16, relayed.nodes
    refs = [large.options(scheduling_strategy=on_node(source)).remote(number, size) for number in range(count)]

    @zf.remote(scheduling_strategy=on_node(reader))
    def sums(values: list[Any]) -> list[int]:
        return [int(zf.get(value).sum()) for value in values]

    assert zf.get(sums.remote(refs), timeout=100) == [int(expected(number, size).sum()) for number in range(count)]


def refused_keys(node: Any) -> int:
    """How many connections the daemon of a node has refused because it did not know their keys."""
    client = attach(Session(node.session_directory), kind="tool")
    try:
        return int(client.query("status", timeout=PATIENCE)["statistics"].get("refused_key", 0))
    finally:
        client.close()


def test_a_node_whose_key_reaches_another_too_late_is_let_in_once_it_has_come(nodes: RelayedCluster) -> None:
    head, second, _ = nodes.nodes
    before = refused_keys(second)
    nodes.relay.fault(head.name, second.name, CUT, "control")
    joiner = nodes._launch(False)._wait()  # As by add_node(), which waits for the answer of the second node, though not for ever.
    eventually(lambda: refused_keys(second) > before, "it has dialled, and was a stranger there")
    nodes.relay.heal()
    with zf.init(joiner.address):
        where = zf.remote(lambda: zf.get_runtime_context().get_node_id())
        assert zf.get(where.options(scheduling_strategy=on_node(second)).remote(), timeout=PATIENCE) == second.node_id
    with zf.init(second.address):
        assert zf.get(where.options(scheduling_strategy=on_node(joiner)).remote(), timeout=PATIENCE) == joiner.node_id
    nodes.remove_node(joiner)
