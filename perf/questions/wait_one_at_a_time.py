"""What does a program pay that takes results as they come?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare("wait_one_at_a_time", system, "raw messages, echoed, many under way", echo.messages_per_second)


QUESTION = Question("wait_one_at_a_time", "1,000 refs, each taken by a wait() of its own", (Aim("", "refs/s", True),), measure)
