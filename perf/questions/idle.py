"""What does a cluster cost that has nothing to do?

Supervisor, daemon, template and two workers, a while after their last task. Unique memory is what would come free if they ended.
The driver does not count. Dask's scheduler runs in its driver, so it does not count either.
"""

from __future__ import annotations

from perf import floors
from perf.question import Aim, Question, Run, Samples
from perf.workloads import WORKLOADS


def measure(run: Run) -> dict[str, Samples]:
    """Memory in turns with that of as many bare interpreters; there is no floor of doing nothing."""
    cpu = WORKLOADS["idle_cpu"]
    with run.cluster() as system:
        processes = len(system.processes())
        return {
            "unique memory": run.compare("idle_memory", system, "as many bare interpreters", lambda: processes * floors.interpreter_mib()),
            "CPU": run.interleave(lambda: cpu.run(system, run.pick(cpu.size, cpu.quick)), "", None, lambda: run.ask_peers("idle_cpu")),
        }


QUESTION = Question(
    "idle",
    "an idle cluster of two workers",
    (Aim("unique memory", "MiB", False, 120), Aim("CPU", "% of a core", False, 0.5)),
    measure,
)
