"""Large values between nodes with real processes: every byte arrives, whatever happens to agents, nodes and stores meanwhile."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import LEASE, descendants, eventually, name_of, on_node
from files import wait_for_file
from relay import Fault, Relay, RelayedCluster

import zfabric as zf
from zfabric.config import MiB
from zfabric.util.local_cluster import LocalNode

LARGE = int(os.environ.get("LARGE_MIB", "0"))
"""A size to be tested, too, in MiB: ``scripts/nightly`` has 1,024."""


@contextmanager
def cluster(nodes: int, store: int, **config: Any) -> Iterator[zf.LocalCluster]:
    """A cluster whose nodes have stores of so many MiB, with this program on the first one."""
    with zf.LocalCluster(nodes=nodes, cpus_per_node=1, object_store_memory=store * MiB, config=config) as made, zf.init(made.address):
        yield made


def on(node: LocalNode, function: Callable[..., Any]) -> Any:
    """A function as tasks that run on this node alone."""
    return zf.remote(function).options(scheduling_strategy=on_node(node))


def numbers(size: int, seed: int = 1) -> Any:
    """``size`` MiB of random bytes."""
    return np.random.default_rng(seed).integers(0, 256, size * MiB, dtype=np.uint8)


def zeros(size: int) -> Any:
    """``size`` MiB."""
    return np.zeros(size * MiB, dtype=np.uint8)


def hold(value: Any, begun: str, over: str) -> None:
    """Hold a value until the file ``over`` exists. ``begun`` is made first."""
    Path(begun).touch()
    wait_for_file(over)


def digest(value: Any) -> str:
    """The digest of an array's bytes."""
    return hashlib.blake2b(memoryview(value).cast("B")).hexdigest()


def agent_of(node: LocalNode) -> int:
    """The transfer agent of a node."""
    return process_of(node, "zf-transfer")


def process_of(node: LocalNode, name: str) -> int:
    """The process of a node with this name."""
    found = eventually(lambda: [pid for pid in descendants(node.pid) if name_of(pid) == name], name)
    return int(found[0])


class Get(threading.Thread):
    """Gets a ref in a thread, and digests the value."""

    def __init__(self, ref: Any) -> None:
        super().__init__(daemon=True)
        self.ref = ref
        self.result: Any = None
        self.start()

    def run(self) -> None:
        """Get the value."""
        try:
            self.result = digest(zf.get(self.ref, timeout=120))
        except Exception as error:  # It is the result, whatever it is.
            self.result = error

    def wait(self) -> Any:
        """The digest of the value, or the error."""
        self.join(180)
        return self.result


def stopped_in_the_middle(relay: Relay, ref: Any, reader: LocalNode, source: LocalNode) -> Get:
    """Begin to get a value, and stop the source's agent (SIGSTOP) once some of it has come."""
    passed = f"{source.name}>{reader.name} transfer"
    before = relay("passed").get(passed, 0)
    relay.between(source.name, reader.name, Fault(rate=12 * MiB), "transfer")  # Of a hundred: a busy machine still stops it in the middle.
    getting = Get(ref)
    eventually(lambda: relay("passed").get(passed, 0) - before > MiB, "bytes")
    os.kill(agent_of(source), signal.SIGSTOP)
    assert getting.is_alive()
    return getting


@pytest.mark.parametrize("size", [40, *([LARGE] if LARGE else [])])
def test_every_byte_arrives_in_both_directions(size: int) -> None:
    with cluster(2, size + 32) as made:
        here, there = made.nodes
        ref = on(there, numbers).remote(size)
        expected = zf.get(on(there, digest).remote(ref), timeout=120)
        assert digest(zf.get(ref, timeout=120)) == expected
        assert zf.get(on(there, digest).remote(zf.put(zf.get(ref))), timeout=120) == expected
        assert zf.get(on(here, digest).remote(ref), timeout=120) == expected


def test_the_source_dies_in_the_middle_and_another_copy_or_the_task_gives_the_value(tmp_path: Path) -> None:
    options: dict[str, Any] = {"object_store_memory": 240 * MiB, "config": {"transfer_patience": 0.2, "node_lease": LEASE}}
    with Relay() as relay, RelayedCluster(relay, nodes=4, cpus_per_node=1, **options) as made, zf.init(made.address):
        here, there, third, fourth = made.nodes
        zf.get([on(node, len).remote(b"") for node in made.nodes], timeout=60)  # All nodes have registered.
        again = zf.remote(numbers).options(scheduling_strategy=on_node(there, soft=True)).remote(100)
        expected = zf.get(on(there, digest).remote(again), timeout=120)
        getting = stopped_in_the_middle(relay, again, here, there)
        there.kill()  # The only copy goes with it: the task runs again.
        assert getting.wait() == expected
        assert zf.get(on(third, digest).remote(again), timeout=120) == expected
        kept = on(third, numbers).remote(100, 2)
        expected = zf.get(on(third, digest).remote(kept), timeout=120)
        begun, over = tmp_path / "begun", tmp_path / "over"
        holding = on(fourth, hold).remote(kept, str(begun), str(over))
        eventually(begun.exists, "the copy on the fourth node")
        getting = stopped_in_the_middle(relay, kept, here, third)
        third.kill()  # Now the fourth node has the only copy: the task cannot run again, since its node is gone.
        assert getting.wait() == expected
        over.touch()
        zf.get(holding, timeout=60)


def test_a_source_spills_what_it_sends_and_a_reader_without_room_writes_to_disk() -> None:
    with cluster(2, 64) as made:
        there = made.nodes[1]
        first, second = on(there, numbers).remote(40, 1), on(there, numbers).remote(40, 2)
        expected = zf.get([on(there, digest).remote(each) for each in (first, second)], timeout=120)  # One of them is on disk by then.
        assert [digest(zf.get(each, timeout=120)) for each in (first, second)] == expected
        filling = zf.get(zf.put(numbers(40, 3)))
        third = on(there, numbers).remote(40, 4)
        assert zf.get(on(there, digest).remote(third), timeout=120) == digest(zf.get(third, timeout=120))
        assert digest(filling) == digest(numbers(40, 3))


def test_a_value_that_is_larger_than_the_readers_store_is_refused_there_with_both_sizes() -> None:
    with cluster(1, 64) as made:
        other = made.add_node(object_store_memory=160 * MiB)
        ref = on(other, zeros).remote(100)
        assert zf.get(on(other, len).remote(ref), timeout=60) == 100 * MiB
        for _ in range(2):
            with pytest.raises(
                zf.ObjectTooLargeError,
                match=r"copied to node node1: an object of 100\.0 MiB .*larger than the whole object store \(6\d\.\d MiB\)",
            ):
                zf.get(ref, timeout=60)
        large = on(other, zeros).remote(80)
        for task in (on(made.nodes[0], digest).remote(large), on(made.nodes[0], lambda refs: digest(zf.get(refs[0]))).remote([large])):
            with pytest.raises(zf.ObjectTooLargeError, match="larger than the whole object store"):
                zf.get(task, timeout=60)
