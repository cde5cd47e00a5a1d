"""How many no-op tasks a second, from submission to value?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare("tasks_async", system, "raw messages, echoed, many under way", echo.messages_per_second)


QUESTION = Question("tasks_async", "no-op tasks, one driver, two workers, everything on", (Aim("", "tasks/s", True, 100_000),), measure)
