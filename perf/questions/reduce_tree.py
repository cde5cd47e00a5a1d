"""What do dependencies cost where there is parallelism?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare("reduce_tree", system, "raw messages, echoed, many under way", echo.messages_per_second)


QUESTION = Question("reduce_tree", "a binary tree of 2,047 tasks that adds up its leaves", (Aim("", "tasks/s", True),), measure)
