"""Nodes that join while the tasks of a node without CPUs wait at others. Real processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from faults import PATIENCE, eventually, query

import zfabric as zf
from zfabric.util.scheduling_strategies import In, NodeLabelSchedulingStrategy

TASKS = 12


def meet(directory: Path, nodes: int) -> str:
    """A task that ends once some have begun on so many nodes. Return its node."""
    node = zf.get_runtime_context().get_node_id()
    (directory / node).touch()
    while len(list(directory.iterdir())) < nodes:
        time.sleep(0.01)
    return node


def test_tasks_that_wait_at_one_node_reach_those_that_join_later(tmp_path: Path) -> None:
    """Plain ones, and others that ask for a label and a resource."""
    labels: dict[str, Any] = {"zone": "a"}
    with zf.LocalCluster(nodes=1, cpus_per_node=0, object_store_memory=64 * 2**20) as cluster, zf.init(cluster.address):
        cluster.add_node(1, resources={"gadget": 1}, labels=labels)
        plain, labelled = tmp_path / "plain", tmp_path / "labelled"
        strategy = NodeLabelSchedulingStrategy(hard={"zone": In("a")})
        options: dict[Path, dict[str, Any]] = {
            plain: {"num_cpus": 1},
            labelled: {"num_cpus": 0, "resources": {"gadget": 1}, "scheduling_strategy": strategy},
        }
        refs = {}
        for directory, chosen in options.items():
            directory.mkdir()
            refs[directory] = [zf.remote(meet).options(**chosen).remote(directory, 3) for _ in range(TASKS)]
        eventually(lambda: query("status")["elsewhere"] == 2 * TASKS, "the first node has all of them")
        late = [cluster.add_node(1, resources={"gadget": 1}, labels=labels) for _ in range(2)]
        for each in refs.values():
            assert set(zf.get(each, timeout=PATIENCE)) >= {node.node_id for node in late}
        assert query("status")["statistics"]["delegated"] <= 2 * len(options) * TASKS, "each was given to two nodes at most"
