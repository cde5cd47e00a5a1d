"""How long does one task take, from the call to its value?

It goes driver, scheduler, worker, scheduler, driver: four messages, where the floor has two."""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare("tasks_sync", system, "raw round trip", echo.round_trip_us)


QUESTION = Question("tasks_sync", "one no-op task after the other, submit to value", (Aim("", "µs", False, 3.0, relative=True),), measure)
