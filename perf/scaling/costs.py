"""What the processes of a cluster take for a task or a message, in µs of CPU: the parameters of the simulated clusters."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from perf import machine
from perf.floors import Echo
from perf.nodes import Elsewhere, Nodes
from perf.workloads import tasks_async, tasks_sync
from zfabric.config import Config
from zfabric.machines.global_scheduler import GlobalScheduler, LeastWait
from zfabric.machines.global_scheduler.policies import Batch, NodeView
from zfabric.machines.registry import Registry
from zfabric.protocol import messages as m
from zfabric.protocol.codec import decode_messages, encode_messages
from zfabric.protocol.ids import CONTROL_STORE, GLOBAL_SCHEDULER, LOCAL_SCHEDULER, MEMBER, REGISTRY

DEMAND = (("CPU", 10_000),)
FRAMES = 2
"""Frames of the daemon for each of many tasks that are submitted one after the other: the worker's report, and an acknowledgement."""
ENDS_OF_A_MESSAGE = 4
"""A message that is echoed is sent twice and received twice."""


class Costs(NamedTuple):
    """µs of CPU, with the values of the table in ``docs/performance.md``."""

    driver: float = 3.9
    """Of the driver for a no-op task: submitting it, and taking in its value."""
    daemon: float = 3.3
    """Of the daemon, for a task that runs where it was submitted."""
    worker: float = 2.3
    """Of the worker."""
    home: float = 11.5
    """Of the daemon of the node where a task was submitted that runs elsewhere."""
    executor: float = 8.8
    """Of the daemon of the node where it runs."""
    turn: float = 60.0
    """Of a daemon for a turn, beside what it receives and sends in it."""
    frame: float = 7.4
    """To send or receive a frame within a node."""
    node_frame: float = 9.2
    """The same between nodes, encrypted."""
    heartbeat: float = 5.5
    """Of a global scheduler for one heartbeat, received and decoded."""
    lease: float = 5.0
    """Of the registry for one renewal of a lease, received and answered."""
    placing: float = 5.9
    """Of a global scheduler for one question, for each node that it chooses among."""


def measure(quick: bool = False) -> Costs:
    """Measure all of them on this machine, within half a minute: clusters of one node and of two, and single machines."""
    count = 300 if quick else 100_000
    with Nodes(1, cpus=2) as alone:
        alone.join()
        local = _by_role(alone, tasks_async, alone, count)
        single = _by_role(alone, tasks_sync, alone, min(count, 2_000))
    with Nodes(2, cpus=2) as two:
        two.join()
        elsewhere = _by_role(two, tasks_async, Elsewhere(two), count)
    frames = []
    for encrypted in (False, True):
        with Echo(encrypted) as echo:
            frames.append(echo.cpu_us_per_round_trip(min(count, 5_000)) / ENDS_OF_A_MESSAGE)
    few = min(count, 10_000)
    return Costs(
        driver=local["driver"],
        daemon=local["daemon 0"],
        worker=local["worker 0"],
        home=elsewhere["daemon 0"],
        executor=elsewhere["daemon 1"],
        turn=max(0.0, single["daemon 0"] - local["daemon 0"] - FRAMES * frames[0]),
        frame=frames[0],
        node_frame=frames[1],
        heartbeat=_heartbeat(few),
        lease=_lease(few),
        placing=_placing(few // 100),
    )


def _by_role(nodes: Nodes, work: Callable[[Any, int], float], system: Any, count: int) -> Counter[str]:
    """µs a task, by role and number of the node."""
    work(system, count // 10)
    roles = {os.getpid(): "driver"}
    for node in range(len(nodes.cluster.nodes)):
        roles |= {pid: f"{role} {node}" for pid, role in nodes.roles_of(node).items()}
    machine.wait_until_quiet(roles)
    before = {pid: machine.cpu_seconds_fine([pid]) for pid in roles}
    work(system, count)
    machine.wait_until_quiet(roles)
    taken: Counter[str] = Counter()
    for pid, role in roles.items():
        taken[role] += (machine.cpu_seconds_fine([pid]) - before[pid]) / count * 1e6  # type: ignore[assignment]
    return taken


def _each(count: int, once: Callable[[int], Any]) -> float:
    begin = time.process_time()
    for number in range(count):
        once(number)
    return (time.process_time() - begin) / count * 1e6


def _node(number: int) -> bytes:
    return bytes((2,)) + number.to_bytes(7, "big")


def _heartbeat(count: int) -> float:
    placer = GlobalScheduler(GLOBAL_SCHEDULER + b"placer01", Config())

    frames = [
        encode_messages([(GLOBAL_SCHEDULER, LOCAL_SCHEDULER, m.Heartbeat(_node(number), DEMAND, DEMAND, number % 50, 0.01))])
        for number in range(1000)
    ]

    def once(number: int) -> None:
        ((_, role, message),) = decode_messages(frames[number % 1000])
        placer.step(0.0, role + _node(number % 1000), message)
        placer.take_effects(0.0)

    return _each(count, once)


def _lease(count: int) -> float:
    registry = Registry(REGISTRY + b"registry", _node(0), Config(), CONTROL_STORE + b"registry", (), 0)
    registry.step(0.0, CONTROL_STORE + b"registry", m.Found(1, (), False))
    join = m.Join(m.PROTOCOL_VERSION, _node(1), 0, "node", 0, bytes(40), "", "", DEMAND, (), ())
    registry.step(0.0, MEMBER + _node(1), join)
    for effect in registry.take_effects(0.0):
        if isinstance(effect.message, m.Write):  # type: ignore[union-attr]
            registry.step(0.0, CONTROL_STORE + b"registry", m.Written(effect.message.token, True, ""))  # type: ignore[union-attr]
    registry.take_effects(0.0)

    def once(number: int) -> None:
        ((_, role, message),) = decode_messages(encode_messages([(REGISTRY, MEMBER, m.RenewLease(_node(1), number))]))
        registry.step(0.0, role + _node(1), message)
        (answer,) = registry.take_effects(0.0)
        encode_messages([(MEMBER, REGISTRY, answer.message)])  # type: ignore[union-attr]

    return _each(count, once)


def _placing(count: int) -> float:
    nodes = [NodeView(_node(number), b"", (("CPU", 80_000),), (), number % 7, 0.01) for number in range(100)]
    policy = LeastWait()
    return _each(max(1, count), lambda number: policy.place(Batch(DEMAND, 1000, 0.01, {}), nodes)) / len(nodes)
