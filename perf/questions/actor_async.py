"""How many calls of one actor a second, from one caller?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare("actor_async", system, "raw messages, echoed, many under way", echo.messages_per_second)


QUESTION = Question("actor_async", "calls of one actor, many under way", (Aim("", "calls/s", True, 150_000),), measure)
