"""Programs with actors on nodes that are drained, called from the driver and from tasks on all nodes.

Nothing else happens to nodes or processes. So no call may fail or run twice, although none may be repeated. The actors live on although
they may restart only once: a move from a drained node does not count.
"""

from __future__ import annotations

import random
from typing import Any

from tests.sim.ledgers import LedgerAuthor
from tests.sim.network import Faults, NodeFaults
from tests.sim.node import node_identifier
from tests.sim.programs import ACTOR, MODULUS, mix
from zfabric.protocol.options import NODE_ID


def with_drains(faults: Faults, seed: int) -> Faults:
    """Have nodes drained, and nothing else happen to nodes or processes."""
    rng = random.Random(f"{seed}/how many drains")
    nodes = NodeFaults(drains=rng.choice((1, 1, 2)), delays=rng.choice((0, 2, 3)), window=rng.choice((0.5, 1.0, 3.0)))
    return faults._replace(worker_crashes=0, pressure=0, driver_crash=False, start_failures=0, nodes=nodes)


class DrainAuthor(LedgerAuthor):
    """Writes one program, for ``nodes`` nodes."""

    def __init__(self, seed: str, faults: Faults, nodes: int) -> None:
        super().__init__(seed, faults, nodes)
        self.size = self.random.choice((0, 0, 1, 3))
        """How many calls an actor runs at once; 0: one after the other."""

    def _actor(self, slot: int) -> tuple[Any, ...]:
        beside = (("max_concurrency", self.size),) if self.size else ()
        where = node_identifier(self.random.randrange(2, self.nodes + 1)).hex()
        options = (("max_restarts", 1), *beside, ("strategy", (("soft", NODE_ID, "in", (where,)),)))
        return "make", slot, ACTOR, (self.random.randrange(MODULUS), False, (), ((0, ()),)), options, ()

    def _invoke(self, statements: list[Any], slot: int, actor: int, large: bool = False) -> int:
        rng = self.random
        label = rng.randrange(MODULUS)
        pause = (("sleep", rng.choice((0.01, 0.1, 0.4))),) if rng.random() < 0.4 else ()
        size = rng.choice((0, 200_000)) if large else 0
        statements.append(("invoke", (slot,), actor, (label, False, pause, ((size, ()),)), (), (), (), 0, "method", False, self.size > 1))
        return mix(label, 0)
