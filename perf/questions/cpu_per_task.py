"""How much CPU does a no-op task take, and in which process?

All threads count, ZeroMQ's too, and so does what happens after the last value has arrived: references released, rows written.
"""

from __future__ import annotations

import os
from collections import Counter

from perf import machine
from perf.peers.zfabric import Zfabric
from perf.question import Aim, Question, Run, Samples
from perf.workloads import tasks_async

ROLES = {"driver": "driver", "daemon": "daemon", "worker": "workers"}
"""Role of a process -> figure. What supervisor and template take is in the sum only."""


def measure(run: Run) -> dict[str, Samples]:
    """In turns with the CPU of an echoed message."""
    count = run.pick(200_000, 1_000)
    samples = {figure: Samples([]) for figure in ROLES.values()}
    samples["all processes"] = Samples([], "a raw message, echoed: both processes")
    with run.cluster() as system, run.echo() as echo:
        tasks_async(system, count // 10)
        for _ in range(run.repeat):
            taken = _one_pass(system, count)
            samples["all processes"].values.append(sum(taken.values()))
            samples["all processes"].floor_values.append(echo.cpu_us_per_message(run.pick(100_000, 5_000)))
            for role, figure in ROLES.items():
                samples[figure].values.append(taken[role])
    return samples


def _one_pass(system: Zfabric, count: int) -> Counter[str]:
    """µs of CPU a task, by role."""
    roles = {os.getpid(): "driver", **system.roles()}
    machine.wait_until_quiet(roles)
    before = {pid: machine.cpu_seconds(pid) for pid in roles}
    tasks_async(system, count)
    machine.wait_until_quiet(roles)
    taken: Counter[str] = Counter()
    for pid, role in roles.items():
        taken[role] += (machine.cpu_seconds(pid) - before[pid]) / count * 1e6  # type: ignore[assignment]
    return taken


QUESTION = Question(
    "cpu_per_task",
    "CPU time of a no-op task, by process",
    (
        Aim("all processes", "µs", False, 14),
        Aim("driver", "µs", False, 5),
        Aim("daemon", "µs", False, 6),
        Aim("workers", "µs", False, 3),
    ),
    measure,
)
