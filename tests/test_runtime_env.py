"""What a ``runtime_env`` sends to nodes: working directories and modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zfabric as zf
from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PATIENCE = 60


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    """A cluster of two nodes; the ids of this program's and of the other."""
    with zf.LocalCluster(nodes=2, cpus_per_node=2) as cluster, zf.init(cluster.address):
        here = zf.get_runtime_context().get_node_id()
        yield [here, *(node["NodeID"] for node in zf.nodes() if node["NodeID"] != here)]


def at(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


def project(tmp_path: Path, value: int = 42) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "a_module_that_is_sent.py").write_text(f"VALUE = {value}\n")
    (place / "data.txt").write_text("found")
    (place / "secret.log").write_text("not to be sent")
    (place / ".zfabricignore").write_text("*.log\n")
    return place


def look() -> Any:
    import a_module_that_is_sent

    return zf.get_runtime_context().get_node_id(), os.getcwd(), sorted(set(os.listdir(".")) - {"__pycache__"}), a_module_that_is_sent.VALUE


@zf.remote
class Looker:
    def __init__(self) -> None:
        self.first = look()

    def child(self) -> Any:
        return self.first, zf.get(zf.remote(look).remote())


def test_a_directory_is_sent_to_each_node_once(nodes: list[str], tmp_path: Path) -> None:
    place = project(tmp_path)
    env = {"working_dir": str(place)}
    task = zf.remote(look).options(runtime_env=env)
    found = zf.get([task.options(scheduling_strategy=at(node)).remote() for node in nodes for _ in range(3)], timeout=PATIENCE)
    assert [each[0] for each in found] == [node for node in nodes for _ in range(3)]
    (here, there) = {each[1] for each in found}
    assert {os.path.basename(here), os.path.basename(there)} == {"project"}
    assert os.path.dirname(here).split("/")[-2:] == os.path.dirname(there).split("/")[-2:], "the same hash in two sessions"
    assert str(place) not in (here, there)
    assert {tuple(each[2]) for each in found} == {(".zfabricignore", "a_module_that_is_sent.py", "data.txt")}
    assert {each[3] for each in found} == {42}
    (place / "a_module_that_is_sent.py").write_text("VALUE = 1\n")  # It was sent as it was.
    assert zf.get(task.remote(), timeout=PATIENCE)[3] == 42


def test_actors_and_children_are_in_the_directory_of_their_parent(nodes: list[str], tmp_path: Path) -> None:
    place = project(tmp_path, 7)
    actor = Looker.options(runtime_env={"working_dir": str(place)}).remote()
    first, child = zf.get(actor.child.remote(), timeout=PATIENCE)
    assert first[3] == child[3] == 7
    nested = zf.remote(lambda: zf.get(zf.remote(look).options(scheduling_strategy=at(nodes[0])).remote()))
    there = nested.options(scheduling_strategy=at(nodes[1]), runtime_env={"working_dir": str(place)})
    assert zf.get(there.remote(), timeout=PATIENCE)[::3] == (nodes[0], 7)


def test_modules_are_sent(nodes: list[str], tmp_path: Path) -> None:
    package = tmp_path / "a_package_that_is_sent"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import VALUE\n")
    (package / "inner.py").write_text("VALUE = 1\n")
    single = tmp_path / "a_file_that_is_sent.py"
    single.write_text("VALUE = 2\n")
    (tmp_path / "beside_it.py").write_text("")
    place = project(tmp_path, 3)

    def values() -> Any:
        from importlib import import_module
        from importlib.util import find_spec

        names = ("a_package_that_is_sent", "a_file_that_is_sent", "a_module_that_is_sent")
        return [import_module(name).VALUE for name in names], find_spec("beside_it"), str(tmp_path) in sys.path

    env = {"py_modules": [package, str(single), str(place)]}
    found = zf.remote(values).options(runtime_env=env, scheduling_strategy=at(nodes[1])).remote()
    assert zf.get(found, timeout=PATIENCE) == ([1, 2, 3], None, False)
