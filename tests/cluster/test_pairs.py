"""Pairs of nodes that cannot reach each other: the node with the bad connections goes, and the program does not notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from faults import LEASE, eventually, on_node
from relay import Relay, RelayedCluster

import zfabric as zf
from tests.sim.kinds import Kind
from tests.sim.node import node_identifier
from tests.sim.programs import PLAIN, Program, mix
from tests.sim.scenarios import STEADY, get, task
from tests.sim.world import World
from zfabric.machines.registry import Registry
from zfabric.protocol import messages as m
from zfabric.protocol.options import NODE_ID

MiB = 2**20


def on(number: int, slot: int, label: int, *, needs: tuple[int, ...] = (), soft: bool = True) -> tuple[Any, ...]:
    """Return a statement that submits a task, which takes half a second, to the node with this number."""
    strategy = ("strategy", (("soft" if soft else "hard", NODE_ID, "in", (node_identifier(number).hex(),)),))
    return ("call", (slot,), PLAIN, task(label, ("sleep", 0.5), size=300_000), (strategy,), needs, ())


def value(label: int, *needs: int) -> int:
    """The value of a task."""
    for each in needs:
        label = mix(label, each)
    return mix(label, 0)


class Cuts:
    """A world of four nodes, in which some pairs are cut after a second. Tasks of two nodes need what others have made."""

    def __init__(self, *pairs: tuple[int, int], seconds: float = 30.0, **settings: Any) -> None:
        self.sent: list[tuple[float, str, str, Any]] = []
        made = [on(number, number, number) for number in (2, 3, 4)]
        program = (
            *made,
            get(*((number, value(number)) for number in (2, 3, 4))),
            ("sleep", 2.0),
            on(4, 5, 5, needs=(3,)),
            on(3, 6, 6, needs=(4,)),
            on(2, 7, 7, needs=(3, 4)),
            ("sleep", 4.0),
            get((5, value(5, value(3))), (6, value(6, value(4))), (7, value(7, value(3), value(4)))),
        )
        usual = {"workers_max": 4, "worker_idle_seconds": 60.0, "spill_after": 60.0, "node_lease": 2.0, "pair_patience": 1.5}
        self.world = World(
            0,
            Kind(nodes=4),
            faults=STEADY,
            program=Program(program, 0),
            observer=lambda now, source, to, message: self.sent.append((now, source, to, message)),
            cpus=2,
            settings={**usual, **settings},
        )
        nodes = [each.identifier for each in self.world.nodes]
        cuts = {(nodes[one - 1], nodes[other - 1]) for one, other in pairs}
        for number in {number for pair in pairs for number in pair}:
            self.world.nodes[number - 1].excused = True
        self.world.after(1.0, lambda: self.world.network.cuts.update(cuts))
        self.world.after(1.0 + seconds, lambda: self.world.network.cuts.difference_update(cuts))
        assert self.world.run().failure == ""

    @property
    def dead(self) -> list[int]:
        """Nodes that have ended."""
        return [node.number for node in self.world.nodes if node.dead]


def both(one: int, other: int) -> list[tuple[int, int]]:
    return [(one, other), (other, one)]


def test_a_node_that_two_others_cannot_reach_ends() -> None:
    assert Cuts(*both(3, 2), *both(3, 4)).dead == [3]


@pytest.mark.parametrize("pairs", [[(2, 4)], [(4, 2)], both(2, 4)], ids=["from", "to", "both"])
def test_of_two_nodes_that_cannot_reach_each_other_the_younger_ends(pairs: list[tuple[int, int]]) -> None:
    """Also if only what one of them sends is lost."""
    assert Cuts(*pairs).dead == [4]


def test_a_cut_that_is_over_in_time_ends_nobody() -> None:
    assert Cuts(*both(3, 2), *both(3, 4), seconds=1.0).dead == []


def test_a_node_that_is_ended_without_a_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that declares it dead at once, while it has a lease."""
    monkeypatch.setattr(Registry, "_condemn", lambda self, identifier, node, reason: self._end(identifier, node, reason))
    with pytest.raises(AssertionError, match="is declared dead, and acts"):
        Cuts(*both(3, 2), *both(3, 4))


def test_a_registry_that_ends_whom_it_is_told_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not probe, and believes the first who complains."""

    def believe(self: Registry, now: float, source: bytes, message: m.Complain) -> None:
        for node in message.nodes:
            self._condemn(node, self._nodes[node], "somebody says so")

    monkeypatch.setattr(Registry, "on_complain", believe)
    assert Cuts(*both(3, 2), *both(3, 4)).dead != [3]


# --- a real cluster, behind a relay ---------------------------------------------------------------------------------------------


@zf.remote
def ones(size: int) -> Any:
    return np.ones(size, np.uint8)


def test_the_node_whose_data_path_is_dead_ends_although_it_renews_its_lease() -> None:
    """It is not the one that complains, nor the youngest. What it had is made again elsewhere."""
    options: dict[str, Any] = {
        "object_store_memory": 64 * MiB,
        "config": {"node_lease": LEASE, "pair_patience": 2.0, "transfer_patience": 0.2},
    }
    with Relay() as relay, RelayedCluster(relay, nodes=3, cpus_per_node=1, **options) as cluster, zf.init(cluster.address):
        head, broken, other = cluster.nodes
        here, there = (on_node(node, soft=True) for node in (other, broken))
        for node in (other, broken):  # One that has not registered yet is not preferred.
            zf.get(ones.options(scheduling_strategy=on_node(node)).remote(1), timeout=60)
        lost = ones.options(scheduling_strategy=there).remote(3 * MiB)
        assert zf.wait([lost], timeout=60, fetch_local=False)[0]
        for node in (head, other):
            relay.cut(broken.name, node.name, "transfer")
        total = zf.remote(lambda values: int(values.sum())).options(scheduling_strategy=here).remote(lost)
        assert zf.get(total, timeout=60) == 3 * MiB
        assert {row["NodeID"] for row in zf.nodes()} == {head.node_id, other.node_id}, "the value was made again once it was dead"
        eventually(lambda: not broken.alive(), "it ends itself")
