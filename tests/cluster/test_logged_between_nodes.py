"""Logged actors that live on another node than their home, on clusters of real processes: no call is lost or done twice."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
from faults import LEASE, descendants, name_of, on_node

import zfabric as zf

SIZE = 20_000
"""Numbers in an array that is too large to be sent with an outcome."""
WITHIN = 60


@zf.remote(max_restarts=-1, checkpoint_every=10)
class Ledger:
    """Counts, and keeps a ref that it was given. Each sum is a checkpoint or a replay away from its calls."""

    def __init__(self) -> None:
        self.value = 0
        self.kept: list[Any] = []

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def keep(self, box: list[Any]) -> int:
        self.kept += box
        return self.add(0)

    def total(self) -> int:
        return sum(zf.get(self.kept))

    def node(self) -> str:
        return zf.get_runtime_context().get_node_id()

    def pid(self) -> int:
        return os.getpid()


def moving(cluster: zf.LocalCluster, index: int) -> Any:
    """A ledger on a node, which is made elsewhere if that dies."""
    zf.get(
        three.options(scheduling_strategy=on_node(cluster.nodes[index])).remote(), timeout=WITHIN
    )  # A node that is not ready yet is not preferred.
    ledger = Ledger.options(scheduling_strategy=on_node(cluster.nodes[index], soft=True)).remote()
    assert zf.get(ledger.node.remote(), timeout=WITHIN) == cluster.nodes[index].node_id
    return ledger


class Weights:
    """Adds up large arrays, and returns their sum."""

    def __init__(self) -> None:
        self.sum = np.zeros(SIZE)

    def add(self, gradient: Any) -> float:
        self.sum = self.sum + gradient
        return float(self.sum[0])

    def read(self) -> Any:
        return self.sum


@zf.remote
def one_more(weights: Any) -> Any:
    return weights + 1


@zf.remote
def add_many(box: list[Any], count: int) -> list[int]:
    return zf.get([box[0].add.remote() for _ in range(count)])


@zf.remote
def three() -> int:
    return 3


def test_no_call_is_lost_or_done_twice_when_its_process_and_its_node_die_or_stop_under_load() -> None:
    config = {"node_lease": LEASE}
    with zf.LocalCluster(nodes=3, cpus_per_node=2, object_store_memory=64 * 2**20, config=config) as own, zf.init(own.address):
        ledger = moving(own, 1)
        kept = zf.get(ledger.keep.remote([three.remote(), zf.put(4)]), timeout=WITHIN)
        there = add_many.options(scheduling_strategy=on_node(own.nodes[2])).remote([ledger], 40)
        here = [ledger.add.remote() for _ in range(40)]
        zf.get(here[5], timeout=WITHIN)
        os.kill(zf.get(ledger.pid.remote(), timeout=WITHIN), signal.SIGKILL)
        here += [ledger.add.remote() for _ in range(40)]
        zf.get(here[50], timeout=WITHIN)
        again = add_many.options(scheduling_strategy=on_node(own.nodes[2])).remote([ledger], 40)
        own.nodes[1].kill()
        here += [ledger.add.remote() for _ in range(40)]
        found = [*zf.get(here, timeout=WITHIN), *zf.get(there, timeout=WITHIN), *zf.get(again, timeout=WITHIN)]
        assert kept == 0
        assert sorted(found) == list(range(1, 201))
        assert zf.get(ledger.total.remote(), timeout=WITHIN) == 7
        assert zf.get(ledger.node.remote(), timeout=WITHIN) != own.nodes[1].node_id
        other = moving(own, 2)
        refs = [other.add.remote() for _ in range(30)]
        own.nodes[2].pause()
        refs += [other.add.remote() for _ in range(30)]
        assert zf.get(refs, timeout=WITHIN) == list(range(1, 61)), "its node was stopped past its lease"
        own.nodes[2].resume()
        refs += [other.add.remote() for _ in range(30)]
        assert zf.get(refs, timeout=WITHIN) == list(range(1, 91)), "what ran there and was not committed has never happened"
        assert zf.get(other.node.remote(), timeout=WITHIN) == own.nodes[0].node_id


def test_its_log_goes_on_through_restarts_of_both_daemons() -> None:
    config = {"node_lease": 10 * LEASE}  # Nothing here is to wait for one.
    with zf.LocalCluster(nodes=2, cpus_per_node=2, object_store_memory=64 * 2**20, config=config) as own, zf.init(own.address):
        ledger = moving(own, 1)
        pid = zf.get(ledger.pid.remote(), timeout=WITHIN)
        refs = [ledger.add.remote() for _ in range(30)]
        for node in own.nodes:
            (daemon,) = [each for each in descendants(node.pid) if name_of(each) == "zf-daemon"]
            os.kill(daemon, signal.SIGKILL)
            refs += [ledger.add.remote() for _ in range(30)]
            zf.get(refs[-1], timeout=WITHIN)
        assert zf.get(ledger.pid.remote(), timeout=WITHIN) == pid, "it lives through both"
        os.kill(pid, signal.SIGKILL)
        refs += [ledger.add.remote() for _ in range(30)]
        assert zf.get(refs, timeout=WITHIN) == list(range(1, 121))


def test_a_replay_has_arguments_made_of_results_that_were_freed_when_the_nodes_of_all_die() -> None:
    with zf.LocalCluster(nodes=3, cpus_per_node=1, config={"node_lease": LEASE}) as own, zf.init(own.address):
        logged = zf.remote(max_restarts=-1, checkpoint_every=100)(Weights)
        weights = logged.options(scheduling_strategy=on_node(own.nodes[1], soft=True)).remote()
        for _ in range(4):
            read = weights.read.remote()
            gradient = one_more.options(scheduling_strategy=on_node(own.nodes[2], soft=True)).remote(read)
            total = zf.get(weights.add.remote(gradient), timeout=WITHIN)
        del read, gradient
        for node in own.nodes[1:]:
            node.kill()
        assert total == 15.0
        assert zf.get(weights.add.remote(1.0), timeout=WITHIN) == 16.0


def test_what_a_task_made_of_a_result_of_an_actor_is_made_again_if_only_its_node_dies() -> None:
    with zf.LocalCluster(nodes=2, cpus_per_node=1, config={"node_lease": LEASE}) as own, zf.init(own.address):
        weights = zf.remote(Weights).options(scheduling_strategy=on_node(own.nodes[0])).remote()
        made = one_more.options(scheduling_strategy=on_node(own.nodes[1], soft=True)).remote(weights.read.remote())
        zf.wait([made], timeout=WITHIN, fetch_local=False)
        own.nodes[1].kill()
        assert zf.get(made, timeout=WITHIN).tolist() == [1.0] * SIZE
