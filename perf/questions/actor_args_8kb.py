"""How fast do calls with arguments of 8 kB go?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare(
            "actor_args_8kb", system, "raw messages, echoed, many under way", lambda: echo.messages_per_second(run.pick(20_000, 500), 8000)
        )


QUESTION = Question("actor_args_8kb", "calls of one actor with 8 kB each", (Aim("", "calls/s", True, 25_000),), measure)
