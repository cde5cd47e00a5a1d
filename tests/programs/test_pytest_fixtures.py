"""The fixtures that pytest gets from an installed zfabric."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def zfabric_options():
    return {"num_cpus": 1}
"""

OF_THEIR_OWN = """
import os, pytest, zfabric as zf

@zf.remote
def node():
    print("a worker's line")
    return zf.get_runtime_context().get_node_id()

def test_output_of_workers_is_captured(zfabric_cluster):
    zf.get(node.remote())
    assert zf.cluster_resources()["CPU"] == 7, "fails: conftest gives one"

@pytest.mark.zfabric(num_cpus=1, resources={"disk": 1})
class TestMarked:
    @pytest.mark.zfabric(num_cpus=3)
    def test_markers_change_options(self, zfabric_cluster):
        assert (zf.cluster_resources()["CPU"], zf.cluster_resources()["disk"]) == (3, 1)

@pytest.mark.zfabric(nodes=2)
def test_several_nodes(zfabric_nodes):
    assert len(zf.nodes()) == len(zfabric_nodes.nodes) == 2
    zfabric_nodes.nodes[1].kill()
    assert zf.get(node.remote()) == zfabric_nodes.nodes[0].node_id

def test_nothing_is_left():
    assert not zf.is_initialized()

@pytest.mark.zfabric(3)
def test_options_have_names(zfabric_cluster):
    pass

def test_one_at_a_time(zfabric_cluster, zfabric_nodes):
    pass
"""

SHARED = """
import zfabric as zf
seen = []

def test_first(zfabric_session_cluster):
    seen.append(zfabric_session_cluster["address"])

def test_second(zfabric_session_cluster):
    assert seen == [zfabric_session_cluster["address"]] and zf.is_initialized()
"""


def test_clusters_of_tests_and_of_runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_of_their_own=OF_THEIR_OWN, test_shared=SHARED)
    ran = pytester.runpytest_subprocess("-p", "zfabric.util.pytest_fixtures", "-p", "no:cacheprovider", "--strict-markers", timeout=100)
    ran.assert_outcomes(passed=5, failed=1, errors=2)
    ran.stdout.fnmatch_lines(["zfabric_nodes: this process is connected*", "E *assert 1*== 7*", "(node pid=*) a worker's line"])
    assert "@pytest.mark.zfabric(3,): its options have names" in ran.stdout.str()


def test_an_installed_zfabric_costs_a_run_of_pytest_nothing_heavy() -> None:
    configuration = configparser.ConfigParser()
    configuration.read(ROOT / "setup.cfg")
    module = "zfabric.util.pytest_fixtures"
    assert configuration["options.entry_points"]["pytest11"].split() == [module, "=", module]
    code = f"import sys, pytest; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert not {"asyncio", "numpy", "psutil", "click", "rich", "multiprocessing", "cloudpickle", "lmdb", "zmq"} & set(loaded)
