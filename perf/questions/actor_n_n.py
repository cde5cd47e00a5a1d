"""How fast do actors call actors?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare("actor_n_n", system, "raw messages, echoed, many under way", echo.messages_per_second)


QUESTION = Question("actor_n_n", "two actors call two others", (Aim("", "calls/s", True),), measure)
