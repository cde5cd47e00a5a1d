"""Durations of tasks of small programs, in the order of their calls: ``python -m perf.estimates.record`` writes ``loads.json``.

They are times of CPU: what else the machine had to do has no part in them.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import zfabric as zf
from perf.machine import ROOT

PATH = Path(__file__).with_name("loads.json")
COUNT = 320
"""Tasks of each load."""


def darts(number: int) -> int:
    """Throws darts, always as many."""
    across, down = np.random.default_rng(number).random((2, 250_000))
    return int(np.count_nonzero(across * across + down * down < 1))


def words(path: str) -> int:
    """Counts the words of a file: sizes differ as those of files do."""
    return len(Counter(re.findall(r"[a-z]+", Path(path).read_text().lower())))


def episode(number: int) -> int:
    """Plays until an end that comes by chance: most episodes are short, some are very long."""
    rng = random.Random(number)
    length = int(2_000 * rng.paretovariate(1.3))
    return sum(rng.random() < 0.5 for _ in range(min(length, 400_000)))


def validate(number: int) -> float:
    """Trains for a step, and after every tenth validates, which takes ten times as long."""
    size = 150
    rounds = 20 if number % 10 else 200
    matrix = np.ones((size, size)) / size
    for _ in range(rounds):
        matrix = matrix @ matrix
    return float(matrix[0, 0])


def grow(number: int) -> int:
    """Takes longer and longer: the primes below a limit that grows."""
    limit = 20_000 + 1_500 * number
    sieve = np.ones(limit, bool)
    for each in range(2, int(limit**0.5) + 1):
        sieve[each * each :: each] = False
    return int(np.count_nonzero(sieve))


def phases(number: int) -> int:
    """Changes every forty tasks, between long and short."""
    return sum(index % 7 for index in range(20_000 if number // 40 % 2 else 120_000))


def timed(function: Any, argument: Any) -> int:
    """µs of CPU of a call."""
    begin = time.thread_time()
    function(argument)
    return max(1, round((time.thread_time() - begin) * 1e6))


def main() -> None:
    """Run each program on two workers, and write what its tasks took, in µs."""
    files = sorted(map(str, [*ROOT.glob("docs/**/*.md"), *ROOT.glob("zfabric/**/*.py")]))
    random.Random(1).shuffle(files)
    programs: dict[Any, list[Any]] = {function: list(range(COUNT)) for function in (darts, episode, validate, grow, phases)}
    programs[words] = files[:COUNT]
    found = {}
    with zf.init("local", num_cpus=2, log_to_driver=False):
        run = zf.remote(timed)
        for function, arguments in programs.items():
            found[function.__name__] = zf.get([run.remote(function, argument) for argument in arguments])
    PATH.write_text(json.dumps(found, separators=(",", ":")).replace("],", "],\n") + "\n")


if __name__ == "__main__":
    main()
