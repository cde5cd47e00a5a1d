"""What a node has received of an autoscaler: what is requested, in words, and whether the node stays."""

from __future__ import annotations

from typing import Any

import pytest

from zfabric.machines.local_scheduler.requested_nodes import RequestedNodes
from zfabric.protocol.scaling import KindReport

SMALL = KindReport("small", (("CPU", 20_000),), (("zone", "a"),), 1, 2, 0, 3, 0.0, "", "")


def test_a_report_counts_for_its_time_and_says_what_is_requested() -> None:
    node = RequestedNodes(b"here")
    assert (node.rows(0.0), node.describe(0.0, (), ()), node.node_stays(0.0)) == ([], "", False)
    node.take(1.0, [tuple(SMALL)], (b"here",), 5.0)
    assert node.describe(2.0, (("CPU", 10_000),), ()) == "; autoscaler: 2 nodes of kind 'small' are requested (2 pending)"
    assert "can run it (it has 'small'" in node.describe(2.0, (("GPU", 10_000),), ())
    assert "can run it" in node.describe(2.0, (), (("hard", "zone", "in", ("b",)),))
    assert "are requested" in node.describe(2.0, (), (("soft", "zone", "in", ("b",)), ("hard", "zone", "in", ("a", "b"))))
    assert node.rows(2.0)[0]["resources"] == {"CPU": 2.0}
    assert node.node_stays(5.9)
    assert (node.rows(6.0), node.describe(6.0, (), ()), node.node_stays(6.0)) == ([], "", False)


@pytest.mark.parametrize(
    "report",
    [
        (None, (), 1.0),
        ([()], (), 1.0),
        ([SMALL._replace(name=1)], (), 1.0),
        ([SMALL._replace(reason="x" * 2000)], (), 1.0),
        ([SMALL._replace(nodes=-1)], (), 1.0),
        ([SMALL._replace(resources=((1, 2),))], (), 1.0),
        ([SMALL._replace(resources=5)], (), 1.0),
        ([SMALL._replace(labels=(("a", 2),))], (), 1.0),
        ([SMALL._replace(pause_seconds="1")], (), 1.0),
        ([SMALL._replace(pause_seconds=float("nan"))], (), 1.0),
        ([SMALL] * 1000, (), 1.0),
        ([SMALL], ("here",), 1.0),
        ([SMALL], (), -1.0),
        ([SMALL], (), 1e9),
    ],
)
def test_a_report_that_no_autoscaler_sends_is_refused(report: tuple[Any, ...]) -> None:
    node = RequestedNodes(b"here")
    with pytest.raises((ValueError, TypeError)):
        node.take(0.0, *report)
    assert node.rows(0.0) == []
