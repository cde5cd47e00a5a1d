"""What do arguments cost that travel in the message?"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with its floor."""
    with run.cluster() as system, run.echo() as echo:
        return run.compare(
            "args_8kb",
            system,
            "raw messages of 8 kB, echoed, many under way",
            lambda: echo.messages_per_second(run.pick(20_000, 500), 8000),
        )


QUESTION = Question("args_8kb", "no-op tasks with 8 kB of bytes each", (Aim("", "tasks/s", True),), measure)
