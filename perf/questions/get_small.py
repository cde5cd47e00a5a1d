"""How fast is a small value read that this process knows?"""

from __future__ import annotations

from perf import floors
from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with unpickling alone."""
    with run.cluster() as system:
        return run.compare("get_small", system, "values looked up and unpickled", lambda: floors.unpickles_per_second(17))


QUESTION = Question("get_small", "gets of an int that was got before", (Aim("", "gets/s", True, 500_000),), measure)
