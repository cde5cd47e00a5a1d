"""Cancellation that crosses nodes: children of a task or call are stopped on whichever node they are. Real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import eventually, on_node

import zfabric as zf

PATIENCE = 60


@pytest.fixture(scope="module")
def nodes() -> Iterator[zf.LocalCluster]:
    """Three nodes: those in the middle of a chain of parents are blocked."""
    with zf.LocalCluster(nodes=3, cpus_per_node=1, object_store_memory=64 * 2**20, config={"preload": ("pytest",)}) as made:
        yield made


@pytest.fixture
def cluster(nodes: zf.LocalCluster) -> Iterator[zf.LocalCluster]:
    with zf.init(nodes.address):
        yield nodes


def begun(path: str) -> None:
    """Note that a task has begun, and compute until it is stopped."""
    try:  # From the start: whoever sees the file may stop it at once.
        Path(path).touch()
        time.sleep(600.0)
    except BaseException:  # Whatever stops it.
        Path(path + " stopped").touch()
        raise


@zf.remote
def parent(paths: list[str], nodes: list[str], waits: bool) -> list[Any]:
    """Submits a child on each node, and each of them another one on the next node."""
    path, *rest = paths
    made = [parent.options(scheduling_strategy=on_node(nodes[0])).remote(rest, nodes[1:], waits)] if rest else []
    if waits or not rest:
        begun(path)
    return made


@zf.remote
class Foreman:
    """Submits what its caller tells it to."""

    def submit(self, paths: list[str], nodes: list[str]) -> Any:
        parent.options(scheduling_strategy=on_node(nodes[0])).remote(paths, nodes[1:], True)
        time.sleep(600.0)

    def ping(self) -> int:
        return 1


@zf.remote
def foreman() -> list[Any]:
    made = Foreman.remote()
    zf.get(made.ping.remote())
    return [made]


@pytest.mark.parametrize("how", ["running", "ended", "call"])
def test_cancelling_reaches_children_and_their_children_on_every_node(cluster: zf.LocalCluster, tmp_path: Path, how: str) -> None:
    """They wait, on three nodes; their parent has ended; a method of an actor on another node has submitted them."""
    paths = [str(tmp_path / str(number)) for number in range(3)]
    around = [cluster.nodes[number].node_id for number in (1, 2, 0, 1, 2)]
    if how == "call":
        (actor,) = zf.get(foreman.options(scheduling_strategy=on_node(cluster.nodes[1])).remote(), timeout=PATIENCE)
        ref = actor.submit.remote(paths, around[1:])
    else:
        ref = parent.options(scheduling_strategy=on_node(cluster.nodes[1])).remote(paths, around[1:], how == "running")
    last = paths[-1]
    eventually(lambda: os.path.exists(last), "the last one runs")
    if how == "ended":
        zf.wait([ref], timeout=PATIENCE)
    zf.cancel(ref, recursive=True)
    for path in paths if how != "ended" else [last]:
        eventually(lambda path=path: os.path.exists(path + " stopped"), "it is stopped")


@zf.remote
class Beginner:
    def begin(self, path: str) -> None:
        begun(path)

    def stream(self, path: str) -> Iterator[int]:
        yield 1
        begun(path)


@zf.remote
def begin_on(node: str, path: str, how: str) -> list[Any]:
    """Begin something on a node. Return its ref, and a handle that keeps its actor."""
    if how == "task":
        return [parent.options(scheduling_strategy=on_node(node)).remote([path], [], True)]
    actor = Beginner.options(scheduling_strategy=on_node(node)).remote()  # type: ignore[attr-defined]
    return [actor.begin.remote(path) if how == "call" else actor.stream.remote(path), actor]


@pytest.mark.parametrize("where", [1, 2])
@pytest.mark.parametrize("how", ["task", "call", "stream"])
def test_cancelling_reaches_what_a_task_of_another_node_has_begun(cluster: zf.LocalCluster, tmp_path: Path, how: str, where: int) -> None:
    """It runs on that node, or on a third one."""
    path = str(tmp_path / "path")
    beginner = begin_on.options(scheduling_strategy=on_node(cluster.nodes[1]))
    ref, *_actor = zf.get(beginner.remote(cluster.nodes[where].node_id, path, how), timeout=PATIENCE)
    eventually(lambda: os.path.exists(path), "it runs")
    zf.cancel(ref)
    eventually(lambda: os.path.exists(path + " stopped"), "it is stopped")
    if how == "stream":
        assert zf.get(next(ref), timeout=PATIENCE) == 1
        ref = next(ref)
    with pytest.raises(zf.TaskCancelledError):
        zf.get(ref, timeout=PATIENCE)
