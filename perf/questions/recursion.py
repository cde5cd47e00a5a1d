"""What does it take when tasks wait for tasks, deeply?

A worker that waits runs what it waits for on top of its own stack, so the recursion needs no process more than a flat program.
"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples
from perf.workloads import WORKLOADS, fibonacci


def measure(run: Run) -> Samples:
    """In turns with as many messages as there are tasks."""
    work = WORKLOADS["recursion"]
    tasks = 2 * fibonacci(run.pick(work.size, work.quick) + 1) - 1
    with run.cluster() as system, run.echo() as echo:
        return run.compare(
            "recursion", system, "as many raw messages, echoed, many under way", lambda: tasks / echo.messages_per_second(tasks)
        )


QUESTION = Question("recursion", "fib(18), where each of 8,361 calls is a task", (Aim("", "s", False),), measure)
