"""How long does it take to make an actor, until its first call has run?"""

from __future__ import annotations

from perf.floors import interpreter_ms
from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor: a process that does nothing. Each sample makes actors beside those of the one before, which end."""
    with run.cluster() as system:
        return run.compare("actor_create", system, "one interpreter that does nothing, start to end", interpreter_ms)


QUESTION = Question("actor_create", "an ordinary actor, made and called once", (Aim("", "ms", False, 15, to_be_done=15),), measure)
