"""How long does it take to read a large array that is on this node? It must not depend on its size."""

from __future__ import annotations

from functools import partial

from perf import floors
from perf.question import Aim, Question, Run, Samples
from perf.workloads import LARGE_MEGABYTES, MB


def measure(run: Run) -> dict[str, Samples]:
    """Each size in turns with unpickling onto memory that is mapped already."""
    import numpy

    with run.cluster() as system:
        return {
            f"{size} MB": run.compare(
                f"get_{size}mb",
                system,
                "an array unpickled onto mapped memory",
                partial(floors.view_us, numpy.ones(size * MB, numpy.uint8)),
            )
            for size in LARGE_MEGABYTES
        }


QUESTION = Question(
    "get_large",
    "gets of arrays of 1, 16 and 100 MB, zero-copy",
    tuple(Aim(f"{size} MB", "µs", False, 30) for size in LARGE_MEGABYTES),
    measure,
)
