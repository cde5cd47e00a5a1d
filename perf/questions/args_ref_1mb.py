"""What do arguments cost that lie in shared memory?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare("args_ref_1mb", system, "raw messages, echoed, many under way", echo.messages_per_second)


QUESTION = Question("args_ref_1mb", "no-op tasks with a ref of an array of 1 MB", (Aim("", "tasks/s", True),), measure)
