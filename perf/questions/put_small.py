"""How fast are small values stored?

Until ``put`` returns; the daemon receives them in batches meanwhile.
"""

from __future__ import annotations

from perf import floors
from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with pickling alone."""
    with run.cluster() as system:
        return run.compare("put_small", system, "values pickled and kept in a dict", lambda: floors.pickles_per_second(17))


QUESTION = Question("put_small", "puts of an int, refs kept", (Aim("", "puts/s", True, 100_000),), measure)
