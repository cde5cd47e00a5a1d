"""How long does it take to make a lightweight actor, where many are made?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """From the first creation to the value of the first call of the last, in turns with raw messages."""
    with run.cluster() as system, run.echo() as echo:
        floor = "a raw message, echoed, many under way"
        return run.compare("actor_create_light", system, floor, lambda: 1e3 / echo.messages_per_second())


QUESTION = Question("actor_create_light", "5,000 lightweight actors, made and called once each", (Aim("", "ms", False, 0.3),), measure)
