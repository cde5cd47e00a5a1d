"""What do arguments and results of 100 kB and 1 MB cost a call of an actor, beyond the same call with 4 kB?

The floor of each figure is the same call with 4 kB, in turns. "Pipelined" are 300 calls under way. From a direct argument of 1 MB the time
is subtracted that a copy of it takes, between arrays that were not used lately: somebody has to copy it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import zfabric as zf
from perf.question import Aim, Question, Run, Samples

KB = 250
"""Elements of an array of float32 in a kilobyte."""
SMALL, MIDDLE, LARGE = 4 * KB, 100 * KB, 1000 * KB
PIPELINED, ALONE = 300, 150
COLD = 40
"""Arrays that a copy goes through: more than a cache holds."""


class Actor:
    """Takes and returns arrays."""

    def take(self, value: Any) -> int:
        """The length of an array."""
        return len(value)

    def give(self, length: int) -> Any:
        """An array of this length."""
        import numpy

        return numpy.ones(length, numpy.float32)


def pipelined(call: Callable[[], Any], count: int) -> float:
    """Microseconds for each of many calls under way."""
    begin = time.perf_counter()
    zf.get([call() for _ in range(count)])
    return (time.perf_counter() - begin) / count * 1e6


def alone(call: Callable[[], Any], count: int) -> float:
    """Microseconds for each of many calls, one after the other."""
    begin = time.perf_counter()
    for _ in range(count):
        zf.get(call())
    return (time.perf_counter() - begin) / count * 1e6


def copying(length: int) -> float:
    """Microseconds for a copy of an array that nobody has used lately."""
    import numpy

    arrays = [numpy.ones(length, numpy.float32) for _ in range(COLD)]
    target = [numpy.ones(length, numpy.float32) for _ in range(COLD)]
    begin = time.perf_counter()
    for source, copy in zip(arrays, target, strict=True):
        copy[:] = source
    return (time.perf_counter() - begin) / COLD * 1e6


def measure(run: Run) -> dict[str, Samples]:
    """All figures in turns."""
    import numpy

    samples = {aim.figure: Samples([], "with 4 kB") for aim in QUESTION.aims}
    many, few = run.pick(PIPELINED, 20), run.pick(ALONE, 10)
    with run.cluster():
        actor = zf.remote(Actor).remote()
        arrays = {length: numpy.ones(length, numpy.float32) for length in (SMALL, MIDDLE, LARGE)}
        refs = {length: zf.put(array) for length, array in arrays.items()}

        def note(figure: str, value: float, floor: float) -> None:
            samples[figure].values.append(value)
            samples[figure].floor_values.append(floor)

        for turn in range(run.repeat + 1):
            direct = {length: pipelined(partial(actor.take.remote, arrays[length]), many) for length in arrays}
            single = {length: alone(partial(actor.take.remote, arrays[length]), few) for length in (SMALL, MIDDLE)}
            put = {length: pipelined(partial(actor.take.remote, refs[length]), many) for length in arrays}
            result = {length: pipelined(partial(actor.give.remote, length), many) for length in (SMALL, MIDDLE)}
            copied = copying(LARGE)
            if not turn:
                continue  # Code is loaded, and memory is ready.
            note("100 kB argument, pipelined", direct[MIDDLE], direct[SMALL])
            note("1 MB argument, pipelined, without a copy", max(0.1, direct[LARGE] - copied), direct[SMALL])
            note("100 kB argument, one call after the other", single[MIDDLE], single[SMALL])
            note("100 kB, a ref, pipelined", put[MIDDLE], put[SMALL])
            note("1 MB, a ref, pipelined", put[LARGE], put[SMALL])
            note("100 kB result, pipelined", result[MIDDLE], result[SMALL])
    return samples


QUESTION = Question(
    "actor_values",
    "calls of an actor with arguments and results of 100 kB and 1 MB",
    (
        Aim("100 kB argument, pipelined", "µs", False, 2.0, True, 3.0),
        Aim("1 MB argument, pipelined, without a copy", "µs", False, 3.0, True, 5.0),
        Aim("100 kB argument, one call after the other", "µs", False, 1.5, True, 2.0),
        Aim("100 kB, a ref, pipelined", "µs", False, 1.3, True, 2.0),
        Aim("1 MB, a ref, pipelined", "µs", False, 1.3, True, 2.0),
        Aim("100 kB result, pipelined", "µs", False, 1.5, True, 2.0),
    ),
    measure,
)
