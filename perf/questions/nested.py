"""How fast do tasks start tasks?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare("nested", system, "raw messages, echoed, many under way", echo.messages_per_second)


QUESTION = Question("nested", "four tasks that start 200 each and wait for them", (Aim("", "tasks/s", True),), measure)
