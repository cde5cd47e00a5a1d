"""How much memory do 10,000 actors take that share processes?

The resident memory of all processes of the cluster and of its driver, added up: what they share counts several times. Each actor is a
counter that has been called once.
"""

from __future__ import annotations

import os
from contextlib import suppress

from perf import machine
from perf.question import Aim, Question, Run, Samples
from perf.workloads import Count

FIGURES = ("all processes", "for each")
ROUNDS = 3


def measure(run: Run) -> dict[str, Samples]:
    """Each time on a new cluster."""
    count = run.pick(10_000, 50)
    samples = {figure: Samples([]) for figure in FIGURES}
    for _ in range(min(run.repeat, ROUNDS)):
        with run.cluster() as system:
            kind = system.remote(Count).options(lightweight=True)
            system.get(kind.remote().add.remote(1))
            before = _resident(system.processes())
            counters = [kind.remote() for _ in range(count)]
            if system.get([counter.add.remote(2) for counter in counters]) != [2] * count:
                raise RuntimeError("a counter is wrong")
            resident = _resident(system.processes())
            samples["all processes"].values.append(resident / machine.MiB)
            samples["for each"].values.append((resident - before) / count)
    return samples


def _resident(pids: list[int]) -> float:
    total = 0.0
    for pid in {os.getpid(), *pids}:
        with suppress(OSError):  # It has ended since the list was made: a spare worker whose time was up.
            total += machine.status_bytes(pid, "VmRSS")
    return total


QUESTION = Question(
    "actors_10000_memory",
    "10,000 lightweight counters, each called once",
    (Aim("all processes", "MiB", False, 2048), Aim("for each", "bytes", False)),
    measure,
)
