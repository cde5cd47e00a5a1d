"""The daemon of a node is killed and restarted while other nodes live on: with real processes, and message by message."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from faults import descendants, eventually, name_of

import zfabric as zf

TASKS = 150


class Counter:
    """An actor on the driver's node."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> tuple[int, int]:
        self.count += 1
        return self.count, os.getpid()


@zf.remote
def half(number: int) -> int:
    time.sleep(0.005)
    return number


@zf.remote
def twice(number: int, before: Any) -> tuple[int, bytes]:
    """A task with a child, and a value that is small or large."""
    time.sleep(0.01)
    return zf.get(half.remote(number)) * 2, bytes(200_000 if number % 5 == 0 else 10)


def daemon_of(node: Any) -> int:
    """The pid of a node's daemon; 0 while it is restarted."""
    return next((pid for pid in descendants(node.pid) if name_of(pid) == "zf-daemon"), 0)


def test_a_job_goes_on_when_the_daemons_of_executor_home_and_head_are_killed() -> None:
    with zf.LocalCluster(nodes=3, cpus_per_node=1, object_store_memory=64 * 2**20) as cluster:
        head, home, executor = cluster.nodes
        with zf.init(home.address):
            counter: Any = zf.remote(num_cpus=0)(Counter).remote()
            _, process = zf.get(counter.next.remote(), timeout=30)
            calls = 1
            shared = zf.put(bytes(300_000))
            for node in (executor, home, head):
                refs = [twice.remote(number, shared) for number in range(TASKS)]
                zf.get(refs[0], timeout=30)
                before = daemon_of(node)
                os.kill(before, signal.SIGKILL)
                values = zf.get(refs, timeout=60)
                assert [value for value, _ in values] == [2 * number for number in range(TASKS)]
                assert [len(data) for _, data in values] == [200_000 if number % 5 == 0 else 10 for number in range(TASKS)]
                assert daemon_of(node) != before
                calls += 1
                assert zf.get(counter.next.remote(), timeout=30) == (calls, process), "no actor is replaced"
                eventually(lambda: len(zf.nodes()) == 3, "all nodes")
            assert all(node.alive() for node in cluster.nodes)
