"""One kill, pause and cut of each kind on real nodes, each under another program. ``scripts/nightly`` runs the whole matrix."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from bad_days import CANNOT, FAULTS, IN_GOOD_HEALTH, cluster_for, run_case
from faults import LEASE, eventually
from programs_of_nodes import PROGRAMS
from relay import Fault, Relay, RelayedCluster, free_port

import zfabric as zf

CASES = (
    ("puts", "kill_node"),
    ("wait_loop", "kill_two_nodes"),
    ("shuffle", "pause_node"),
    ("training", "pause_head_daemon"),
    ("streams", "pause_briefly"),
    ("training", "cut"),
    ("arrays", "cut_one_way"),
    ("wait_loop", "cut_off"),
    ("chain", "flap"),
    ("squares", "replace_nodes"),
)
CASES_IN_GOOD_HEALTH = (
    ("parameter_server", "kill_worker"),
    ("arrays", "kill_agent"),
    ("nested", "kill_daemon"),
    ("streams", "kill_head_daemon"),
    ("actors_elsewhere", "kill_daemon"),
    ("shuffle", "reset"),
    ("recursion", "slow"),
    ("arrays", "thin"),
    ("arrays", "dead_data_path"),
    ("training", "add_nodes"),
)


def with_cases(cases: tuple[tuple[str, str], ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("program", "fault"), cases, ids=["-".join(case) for case in cases])


@pytest.fixture(scope="class")
def cluster_that_loses_nodes() -> Iterator[RelayedCluster]:
    """One for all cases of which nodes may die: dead ones are replaced before the next case."""
    with cluster_for("kill_node") as cluster:
        yield cluster


@pytest.fixture(scope="class")
def cluster_in_good_health() -> Iterator[RelayedCluster]:
    """One for all cases of which no node dies."""
    with cluster_for("none") as cluster:
        yield cluster


class TestDaysOnWhichNodesMayDie:
    @with_cases(CASES)
    def test_results_are_right_and_nothing_is_left(self, cluster_that_loses_nodes: RelayedCluster, program: str, fault: str) -> None:
        run_case(cluster_that_loses_nodes, program, fault, seed=1)


class TestDaysInGoodHealth:
    @with_cases(CASES_IN_GOOD_HEALTH)
    def test_results_are_right_and_nothing_is_left(self, cluster_in_good_health: RelayedCluster, program: str, fault: str) -> None:
        run_case(cluster_in_good_health, program, fault, seed=1)
        assert all(node.alive() for node in cluster_in_good_health.nodes)


def test_every_program_is_among_the_cases() -> None:
    assert {program for program, _ in (*CASES, *CASES_IN_GOOD_HEALTH)} == set(PROGRAMS)
    assert {fault for _, fault in CASES} <= set(FAULTS) - set(IN_GOOD_HEALTH)
    assert {fault for _, fault in CASES_IN_GOOD_HEALTH} <= set(IN_GOOD_HEALTH)


def test_nodes_are_cut_off_by_links_of_the_kernel_as_well() -> None:
    """Where that is permitted. The relay's faults are tested everywhere."""
    command = [sys.executable, "bad_days.py", "--links", "--programs", "squares", "--faults", "cut_off", "--start", "113"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=100, check=False)
    if done.returncode == CANNOT:
        warnings.warn(done.stderr, stacklevel=1)  # It is shown at the end of the run, as a skipped test is not.
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ok     squares cut_off 113 "), done.stdout


# --- the relay ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def relay() -> Iterator[Relay]:
    with Relay() as made:
        yield made


def test_nodes_reach_each_other_at_their_advertised_addresses_alone(relay: Relay) -> None:
    options = {"object_store_memory": 32 * 2**20, "config": {"node_lease": LEASE}}
    with RelayedCluster(relay, nodes=2, cpus_per_node=1, **options) as cluster, zf.init(cluster.address):
        assert zf.get(zf.remote(lambda: 1).options(scheduling_strategy="SPREAD").remote(), timeout=60) == 1
        passed = relay("passed")
        assert passed["node2>node1 control"] > 0
        assert passed["node1>node2 control"] > 0
        assert not [name for name in passed if "outside" in name and passed[name] > 64], passed
        relay.cut("node1", "node2")
        eventually(lambda: len(zf.nodes()) == 1, "the node that is cut off is declared dead")
        eventually(lambda: not cluster.nodes[1].alive(), "and ends itself")


def test_the_relay_passes_delays_holds_and_ends(relay: Relay) -> None:
    with ExitStack() as stack:
        port = free_port()
        listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", port))))
        there = stack.enter_context(closing(socket.create_connection(("127.0.0.1", relay("listen", "a", "control", port)))))
        here = stack.enter_context(closing(listener.accept()[0]))
        here.settimeout(60)
        there.sendall(b"at once")
        assert here.recv(100) == b"at once"
        relay.fault("*", "a", Fault(delay=0.3))
        begun = time.monotonic()
        there.sendall(b"late")
        assert here.recv(100) == b"late"
        assert time.monotonic() - begun >= 0.3
        relay.fault("*", "a", Fault(cut=True))
        here.sendall(b"back")
        assert there.recv(100) == b"back", "one way only"
        there.sendall(b"held")
        here.settimeout(0.1)
        with pytest.raises(TimeoutError):
            here.recv(100)
        here.settimeout(60)
        relay.heal()
        assert here.recv(100) == b"held"
        assert relay.reset() == 1
        with pytest.raises(ConnectionResetError):
            here.recv(100)
