"""How is one value copied to seven nodes, and how long does that take in copies one after the other?

In the simulator, where the network has no other limit than each node's rate: the agents' machines are the real ones. Every complete copy
serves on, so the first holder does not send all seven.
"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples
from tests.sim.transfers import TransferWorld
from zfabric.config import MiB

SIZE = 64 * MiB
READERS = 7


def measure(run: Run) -> dict[str, Samples]:
    """Once for all rounds: a world is the same each time."""
    one, _ = _copy(1)
    seconds, sent = _copy(READERS)
    return {
        "time": Samples([seconds], "one copy", [one]),
        "copies that the first holder sends": Samples([sent]),
    }


def _copy(readers: int) -> tuple[float, float]:
    """Seconds in the simulator until all readers have the value, and how many copies its first holder has sent, counted by bytes."""
    world = TransferWorld(nodes=1 + readers, pieces=40, rate=100 * MiB)
    first, *others = world.nodes
    value = world.value(0)
    first.put(value, SIZE)
    world.until(lambda: value in first.sizes)
    begin = world.now
    for node in others:
        node.pull(value, SIZE, first)
    world.settle()
    return max(when for when, _, _ in world.copies) - begin, first.sent[value] / SIZE


QUESTION = Question(
    "nodes_fanout",
    "64 MiB copied to seven nodes, in the simulator",
    (
        Aim("time", "s", False, 4.5, relative=True, to_be_done=4.5),
        Aim("copies that the first holder sends", "copies", False, 4, to_be_done=4),
    ),
    measure,
)
