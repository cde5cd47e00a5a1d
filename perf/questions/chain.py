"""How fast does a value wake the task that waits for it?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare("chain", system, "raw round trips, one after the other", lambda: 1e6 / echo.round_trip_us())


QUESTION = Question("chain", "tasks that each take the value of the one before", (Aim("", "tasks/s", True),), measure)
