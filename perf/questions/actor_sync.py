"""How long does one call of an actor take, from the call to its value?

It goes from the caller to the actor and back: as many messages as the floor.
"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare("actor_sync", system, "raw round trip", echo.round_trip_us)


QUESTION = Question(
    "actor_sync", "one call of an actor after the other", (Aim("", "µs", False, 1.6, relative=True, to_be_done=2.0),), measure
)
