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
from faults import descendants, eventually, name_of

import zfabric as zf
from zfabric.config import MiB
from zfabric.util.local_cluster import LocalNode
from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy

LEASE = 2.0
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def cluster(nodes: int, store: int, **config: Any) -> Iterator[zf.LocalCluster]:
    """A cluster whose nodes have stores of so many MiB, with this program on the first one."""
    settings = {"node_lease": LEASE, **config}
    with zf.LocalCluster(nodes=nodes, cpus_per_node=1, object_store_memory=store * MiB, config=settings) as made, zf.init(made.address):
        yield made


def on(node: LocalNode, function: Callable[..., Any]) -> Any:
    """A function as tasks that run on this node alone."""
    return zf.remote(function).options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False))


def numbers(size: int, seed: int = 1) -> Any:
    """``size`` MiB of random bytes."""
    return np.random.default_rng(seed).integers(0, 256, size * MiB, dtype=np.uint8)


def digest(value: Any) -> str:
    """The digest of an array's bytes."""
    return hashlib.blake2b(memoryview(value).cast("B")).hexdigest()


def agent_of(node: LocalNode) -> int:
    """The transfer agent of a node."""
    found = eventually(lambda: [pid for pid in descendants(node.pid) if name_of(pid) == "zf-transfer"], "a transfer agent")
    return int(found[0])


def cpu_seconds(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


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
        except Exception as error:
            self.result = error

    def wait(self) -> Any:
        """The digest of the value, or the error."""
        self.join(180)
        return self.result


def stopped_in_the_middle(ref: Any, reader: LocalNode, source: LocalNode) -> Get:
    """Begin to get a value, and stop the source's agent (SIGSTOP) once some of it has come."""
    agents = agent_of(reader), agent_of(source)
    began = [cpu_seconds(pid) for pid in agents]
    getting = Get(ref)
    eventually(lambda: all(cpu_seconds(pid) >= before + 0.05 for pid, before in zip(agents, began, strict=True)), "bytes")
    os.kill(agents[1], signal.SIGSTOP)
    assert getting.is_alive()
    return getting


@pytest.mark.parametrize("size", [200, 540])
def test_every_byte_arrives_in_both_directions(size: int) -> None:
    with cluster(2, size + 32) as made:
        here, there = made.nodes
        ref = on(there, numbers).remote(size)
        expected = zf.get(on(there, digest).remote(ref), timeout=120)
        assert digest(zf.get(ref, timeout=120)) == expected
        assert zf.get(on(there, digest).remote(zf.put(zf.get(ref))), timeout=120) == expected
        assert zf.get(on(here, digest).remote(ref), timeout=120) == expected


@pytest.mark.parametrize("victim", ["reader", "source"])
def test_an_agent_is_killed_in_the_middle_and_the_next_one_goes_on(victim: str) -> None:
    with cluster(2, 240, transfer_patience=0.2) as made:
        here, there = made.nodes
        ref = on(there, numbers).remote(200)
        expected = zf.get(on(there, digest).remote(ref), timeout=120)
        source = agent_of(there)
        getting = stopped_in_the_middle(ref, here, there)
        os.kill(agent_of(here) if victim == "reader" else source, signal.SIGKILL)
        if victim == "reader":
            os.kill(source, signal.SIGCONT)
        assert getting.wait() == expected
