"""What ``zfabric autoscale`` makes of a cluster's answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from zfabric.launch.autoscaler import observed
from zfabric.launch.policy import ObservedNode, WaitingWork
from zfabric.protocol.options import NODE_ID

NODES = [{"node": node, "resources": {"CPU": 2.0}, "labels": {"zone": "a"}, "head": node == "01"} for node in ("01", "silent", "leaves")]
STATUSES = [
    {"node": "01", "resources": {"CPU": 2.0}, "available": {"CPU": 0.5}, "draining": False},
    {"node": "leaves", "resources": {"CPU": 2.0}, "available": {"CPU": 2.0}, "draining": True},
]
SHAPE = {"resources": {"CPU": 1.0}, "labels": {"zone": {"in": ["a", "b"]}}, "ready": 3, "oldest_seconds": 4.0, "mean_seconds": None}
BUNDLES = [{"resources": {"CPU": 1.0}, "labels": {}}, {"resources": {"CPU": 1.0, "GPU": 1.0}, "labels": {"zone": {"not in": []}}}]


class Answers:
    """A connection to a cluster with these placement groups."""

    def __init__(self, strategy: str) -> None:
        self.groups = [{"group": "0a", "name": "", "strategy": strategy, "bundles": BUNDLES}]

    def query(self, what: str) -> Any:
        return {"nodes": NODES, "statuses": STATUSES, "demand": [{"demand": [SHAPE], "pending_groups": self.groups}]}[what]


def test_nodes_and_tasks_are_observed() -> None:
    work, nodes = observed(Answers("PACK"))  # type: ignore[arg-type]
    assert nodes == [
        ObservedNode("01", {"CPU": 20_000}, {"CPU": 5_000}, {"zone": "a", NODE_ID: "01"}),
        ObservedNode("silent", {"CPU": 20_000}, {}, {"zone": "a", NODE_ID: "silent"}),
    ], "what drains takes no work"
    assert work[0] == WaitingWork({"CPU": 10_000}, (("hard", "zone", "in", ("a", "b")),), 3, 4.0, None)


@pytest.mark.parametrize(("strategy", "apart"), [("PACK", ""), ("SPREAD", ""), ("STRICT_SPREAD", "0a")])
def test_each_bundle_is_work(strategy: str, apart: str) -> None:
    _, *bundles = observed(Answers(strategy))[0]  # type: ignore[arg-type]
    assert bundles == [
        WaitingWork({"CPU": 10_000}, (), 1, math.inf, None, apart),
        WaitingWork({"CPU": 10_000, "GPU": 10_000}, (("hard", "zone", "not in", ()),), 1, math.inf, None, apart),
    ]


def test_bundles_for_one_node_are_one_piece_of_work() -> None:
    _, *bundles = observed(Answers("STRICT_PACK"))[0]  # type: ignore[arg-type]
    assert bundles == [WaitingWork({"CPU": 20_000, "GPU": 10_000}, (("hard", "zone", "not in", ()),), 1, math.inf, None)]
