"""How fast are logged calls run again, once an actor's process has died?

From the kill to the answer of the next process, which has run all of them: there are no checkpoints here.
"""

from __future__ import annotations

import os
import signal
import time

from perf.peers.zfabric import Zfabric
from perf.question import Aim, Question, Run, Samples
from perf.workloads import Count


def measure(run: Run) -> Samples:
    """Each time a new actor."""
    with run.cluster() as system:
        count = run.pick(30_000, 100)
        return run.interleave(lambda: _replayed(system, count), "", None)


def _replayed(system: Zfabric, count: int) -> float:
    counter = system.remote(Count).options(checkpoint_every=0, max_restarts=1).remote()
    system.get([counter.add.remote(1) for _ in range(count)])
    pid = system.get(counter.pid.remote())
    begin = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    if system.get(counter.add.remote(1)) != count + 1:
        raise RuntimeError("calls were lost: the speed of the replay means nothing")
    return count / (time.perf_counter() - begin)


QUESTION = Question("actor_replay", "30,000 logged calls run again after kill -9", (Aim("", "calls/s", True, 20_000),), measure)
