"""What does a program pay that submits everything at once, where the data is larger than the object store?

The floor is the same program with a window: it submits a pair of tasks only when fewer than five are unfinished. "Most in the store" is
what objects and grants took at most, as a thread finds that asks every few milliseconds; "spilled" is the number of values that went to
disk.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import zfabric as zf
from perf.peers.zfabric import Zfabric
from perf.question import Aim, Question, Run, Samples
from perf.workloads import MB

STORE_BYTES = 300 * MB
PAIRS = 40
VALUE_BYTES = 50 * MB
WINDOW = 5
ASK_EVERY = 0.005


@zf.remote
def load(number: int, size: int) -> Any:
    """An array of ``size`` bytes."""
    import numpy

    return numpy.full(size // 8, number, float)


@zf.remote
def aggregate(values: Any) -> float:
    """Their sum."""
    return float(values.sum())


class Watch(threading.Thread):
    """Asks the store, again and again, how much of it is in use."""

    def __init__(self, system: Zfabric) -> None:
        super().__init__(daemon=True)
        self.system = system
        self.most = 0
        self._over = threading.Event()

    def run(self) -> None:
        """Until ``end``."""
        while not self._over.wait(ASK_EVERY):
            store = self.system.status()["store"]
            self.most = max(self.most, store["capacity"] - store["ready"] - store["cold"])

    def end(self) -> int:
        """The most that was in use, in bytes."""
        self._over.set()
        self.join()
        return self.most


def once(system: Zfabric, size: int, window: int) -> tuple[float, float, float]:
    """Seconds, megabytes in the store at most, and values spilled."""
    before = system.status()["store"]["spills"]
    watch = Watch(system)
    watch.start()
    begin = time.perf_counter()
    found: list[Any] = []
    unfinished: list[Any] = []
    for number in range(PAIRS):
        while len(unfinished) >= window:
            _, unfinished = zf.wait(unfinished, num_returns=1)
        found.append(
            aggregate.remote(
                load.remote(number, size),
            )
        )
        unfinished.append(found[-1])
    assert zf.get(found) == [float(number * (size // 8)) for number in range(PAIRS)]
    seconds = time.perf_counter() - begin
    return seconds, watch.end() / MB, system.status()["store"]["spills"] - before


def measure(run: Run) -> dict[str, Samples]:
    """In turns with the window."""
    floor = "a window of five"
    names = ("time", "most in the store", "spilled")
    samples = {name: Samples([], "" if name == "spilled" else floor) for name in names}
    size = run.pick(VALUE_BYTES, 5 * MB)
    with run.cluster(object_store_memory=STORE_BYTES) as system:
        once(system, size, WINDOW)
        for _ in range(run.repeat):
            for name, value, bound in zip(names, once(system, size, PAIRS), once(system, size, WINDOW), strict=True):
                samples[name].values.append(value)
                if samples[name].floor:
                    samples[name].floor_values.append(bound)
    return samples


QUESTION = Question(
    "pipeline",
    "40 values of 50 MB through 300 MB, submitted at once",
    (
        Aim("time", "s", False, 1.2, relative=True),
        Aim("most in the store", "MB", False, 1.5, relative=True),
        Aim("spilled", "values", False, 0.0),
    ),
    measure,
)
