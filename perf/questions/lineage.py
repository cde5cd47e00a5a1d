"""What does it cost that every task can be run again after a loss?

The floor is zfabric itself with ``config={"lineage": False}``, which writes no rows of tasks to the control store.
"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples
from perf.workloads import WORKLOADS, tasks_async


def measure(run: Run) -> Samples:
    """In turns, each time on a new cluster."""
    return run.interleave(lambda: _rate(run, True), "the same without lineage", lambda: _rate(run, False))


def _rate(run: Run, lineage: bool) -> float:
    work = WORKLOADS["tasks_async"]
    with run.cluster(config={"lineage": lineage}) as system:
        tasks_async(system, work.quick)
        return tasks_async(system, run.pick(work.size, work.quick))


QUESTION = Question("lineage", "no-op tasks with lineage, and without", (Aim("", "tasks/s", True),), measure)
