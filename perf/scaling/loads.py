"""What simulated clusters are asked to do, and how busy each role is meanwhile.

"each for itself"    every node has a driver with no-op tasks, which run where they are submitted
"one for all"        one driver has tasks of 10 ms for all CPUs of the cluster
"idle"               every node has a driver with one or two long tasks: the head receives leases and heartbeats, and nothing else
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgpack

from perf.scaling.world import Cluster, Jobs
from tests.sim.programs import PLAIN, function_id

FUNCTION = function_id(PLAIN)
CPUS = 2
TASK_SECONDS = 0.01
"""How long a task of "one for all" runs."""
LONG_SECONDS = 0.15
"""The same for "idle", or two or three times that: each heartbeat has news."""
WARMING_SECONDS = 1.0
"""Virtual seconds until the tasks that count begin."""
GOLDEN = 0.618034


class Result(NamedTuple):
    """What one load came to on a cluster of some size."""

    load: str
    nodes: int
    tasks: int
    per_second: float
    """Tasks."""
    ideal: float
    """Tasks a second if nothing but the CPUs that run tasks set a limit; 0 where tasks take no time."""
    busy: dict[str, float]
    """The share of its time for which a process of each role was busy: the busiest of its kind, but of workers the mean."""
    messages: float
    """Leases and heartbeats a second that arrived at the head and at the second global scheduler together."""

    @property
    def first(self) -> str:
        """The role that is busy first."""
        return max(self.busy, key=lambda role: self.busy[role])


def _arguments(seconds: float) -> bytes:
    statements = (("sleep", seconds),) if seconds else ()
    packed: bytes = msgpack.packb(((1, False, statements, ((0, ()),)), ()))
    return packed


def _warmed_up(jobs: Jobs, seconds: float, at: float) -> Iterator[Any]:
    """Run some tasks, so that their function is known, and begin at a time."""
    refs = yield from jobs.submit_tasks(4 * CPUS, FUNCTION, _arguments(seconds))
    yield from jobs.values(refs)
    yield ("sleep", max(0.0, at - jobs.now))
    jobs.begin()


def _at_once(jobs: Jobs, tasks: int, seconds: float, at: float) -> Iterator[Any]:
    yield from _warmed_up(jobs, seconds, at)
    refs = yield from jobs.submit_tasks(tasks, FUNCTION, _arguments(seconds))
    yield from jobs.values(refs)


def _now_and_then(jobs: Jobs, seconds: float, number: int, at: float) -> Iterator[Any]:
    """Have one or two tasks at a time, for some seconds."""
    yield from _warmed_up(jobs, LONG_SECONDS, at)
    while jobs.now < at + seconds:
        number = (number * 31 + 7) % 97
        refs = yield from jobs.submit_tasks(1 + number % CPUS, FUNCTION, _arguments(LONG_SECONDS * (1 + number % 3)))
        yield from jobs.values(refs)


def each_for_itself(cluster: Cluster, tasks: int = 1_000) -> Result:
    """No-op tasks of every node, on that node. Drivers begin one after the other, within the time between two heartbeats of a node."""
    nodes = len(cluster.nodes)
    spread, at = max(0.1, nodes / 1000), cluster.now + WARMING_SECONDS
    seconds = _ran(
        cluster, at, [partial(_at_once, tasks=tasks, seconds=0.0, at=at + place * GOLDEN % 1 * spread) for place in range(nodes)]
    )
    drivers = cluster.drivers
    busy = {"driver": max(driver.busy["driver"] for driver in drivers), "head's daemon": drivers[0].busy["daemon"]}
    if nodes > 1:
        busy["other daemons"] = max(driver.busy["daemon"] for driver in drivers[1:])
    busy["workers"] = sum(driver.busy["workers"] for driver in drivers) / nodes
    rate = sum(tasks / ((driver.ended_at or 0.0) - driver.began_at) for driver in drivers)
    return Result("each for itself", nodes, nodes * tasks, rate, 0.0, busy, _messages(cluster) / seconds)


def one_for_all(cluster: Cluster, tasks: int = 40) -> Result:
    """Tasks of 10 ms of one driver, ``tasks`` for each CPU; it is not on the head, unless that is alone."""
    nodes, at = len(cluster.nodes), cluster.now + WARMING_SECONDS
    seconds = _ran(cluster, at, [partial(_at_once, tasks=nodes * CPUS * tasks, seconds=TASK_SECONDS, at=at)])
    (driver,) = cluster.drivers
    busy = {"driver": driver.busy["driver"], "driver's daemon": driver.busy["daemon"]}
    if nodes > 1:
        busy["head's daemon"] = cluster.busy(cluster.nodes[0].daemon) / seconds
        busy["other daemons"] = max((cluster.busy(node.daemon) for node in cluster.nodes[1:-1]), default=0.0) / seconds
    count = nodes * CPUS * tasks
    workers = sum(cluster.busy(worker) for node in cluster.nodes for worker in node.workers.values())
    busy["workers"] = (workers + count * TASK_SECONDS) / seconds / (nodes * CPUS)
    return Result("one for all", nodes, count, count / seconds, nodes * CPUS / TASK_SECONDS, busy, _messages(cluster) / seconds)


def idle(cluster: Cluster, seconds: float = 5.0) -> Result:
    """Long tasks of every node for some seconds."""
    nodes, at = len(cluster.nodes), cluster.now + WARMING_SECONDS
    seconds = _ran(cluster, at, [partial(_now_and_then, seconds=seconds, number=place, at=at) for place in range(nodes)])
    busy = {"head's daemon": cluster.busy(cluster.nodes[0].daemon) / seconds}
    if nodes > 1:
        busy["other daemons"] = max(cluster.busy(node.daemon) for node in cluster.nodes[1:]) / seconds
    return Result("idle", nodes, 0, 0.0, 0.0, busy, _messages(cluster) / seconds)


LOADS: dict[str, Callable[[Cluster], Result]] = {"each for itself": each_for_itself, "one for all": one_for_all, "idle": idle}


def _ran(cluster: Cluster, at: float, programs: list[Callable[[Jobs], Iterator[Any]]]) -> float:
    """Run a program on each of the last nodes from a time on; return how long that took."""
    cluster.rest()
    first = len(cluster.nodes) - len(programs)
    for place, program in enumerate(programs, start=first):
        cluster.run(place, program)
    cluster.at(at, cluster.measure)
    cluster.until(lambda: all(driver.ended_at is not None for driver in cluster.drivers), "the end of all drivers")
    cluster.measuring = False
    return max(driver.ended_at or 0.0 for driver in cluster.drivers) - at


def _messages(cluster: Cluster) -> float:
    return cluster.messages["Heartbeat"] + cluster.messages["RenewLease"]
