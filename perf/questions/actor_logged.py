"""What does it cost that the calls of an actor are logged, so that it survives its process?

The floor is the same actor without a log. Each outcome of a logged call leaves once its row is committed, so one call after the other
waits for the control store each time; many under way share its commits.
"""

from __future__ import annotations

from typing import Any

from perf.peers.zfabric import Zfabric
from perf.question import Aim, Question, Run, Samples
from perf.workloads import Count, calls_at_once, calls_in_turn

CHECKPOINT_EVERY = 1_000


def measure(run: Run) -> dict[str, Samples]:
    """In turns with calls that are not logged, on one cluster."""
    with run.cluster() as system:
        many, few = run.pick(20_000, 200), run.pick(500, 20)
        logged, plain = _counter(system, True), _counter(system, False)
        floor = "the same without a log"
        return {
            "many under way": run.interleave(
                lambda: calls_at_once(system, logged, many), floor, lambda: calls_at_once(system, plain, many)
            ),
            "one after the other": run.interleave(
                lambda: calls_in_turn(system, logged, few), floor, lambda: calls_in_turn(system, plain, few)
            ),
        }


def _counter(system: Zfabric, logged: bool) -> Any:
    options = {"checkpoint_every": CHECKPOINT_EVERY, "max_restarts": -1} if logged else {}
    counter = system.remote(Count).options(**options).remote()
    system.get(counter.add.remote(1))
    return counter


QUESTION = Question(
    "actor_logged",
    f"calls of a logged actor, a checkpoint every {CHECKPOINT_EVERY:,}",
    (Aim("many under way", "calls/s", True), Aim("one after the other", "µs", False)),
    measure,
)
