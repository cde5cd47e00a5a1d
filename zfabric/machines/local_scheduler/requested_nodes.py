"""What an autoscaler has reported last: kinds of nodes that it can add, how many are requested, and which idle nodes stay.

It repeats its report to all nodes. A report expires, so a dead autoscaler promises nothing.
"""

from __future__ import annotations

import math
from typing import Any

from zfabric.machines.common.resources import covers
from zfabric.protocol.options import RESOURCE_UNIT, Demand, Strategy, accepts
from zfabric.protocol.scaling import KindReport, kind_reports

REPORT_SECONDS_MAX = 600.0
"""Longest time for which a report counts."""


class RequestedNodes:
    """The last report of an autoscaler."""

    def __init__(self, node: bytes) -> None:
        self._node = node
        self._kinds: tuple[KindReport, ...] = ()
        self._until = -math.inf
        self._stays = False

    def take(self, now: float, rows: Any, stay: Any, seconds: Any) -> None:
        """Take a report of ``KindReport`` rows for ``seconds``; nodes in ``stay`` (ids) stay although idle.

        Raises ValueError.
        """
        kinds = kind_reports(rows)
        if not isinstance(stay, tuple | list) or not all(isinstance(node, bytes) for node in stay):
            raise ValueError("the nodes that stay are ids")
        if not isinstance(seconds, int | float) or not 0.0 <= seconds <= REPORT_SECONDS_MAX:
            raise ValueError(f"a report counts for 0 to {REPORT_SECONDS_MAX:g} seconds, not {seconds!r}")
        self._kinds, self._until, self._stays = kinds, now + seconds, self._node in stay

    def node_stays(self, now: float) -> bool:
        """Whether this node stays though idle."""
        return self._stays and now < self._until

    def rows(self, now: float) -> list[dict[str, Any]]:
        """The report as plain data, with a summary of each kind; empty without one."""
        return [
            {
                **kind._asdict(),
                "resources": {name: amount / RESOURCE_UNIT for name, amount in kind.resources},
                "labels": dict(kind.labels),
                "summary": kind.requested(),
            }
            for kind in self._kinds
            if now < self._until
        ]

    def describe(self, now: float, demand: Demand, strategy: Strategy = ()) -> str:
        """What is requested for a demand, as the end of a sentence, or empty.

        Placement groups as a strategy accept any kind.
        """
        if now >= self._until:
            return ""
        hard = [term for term in strategy if term[0] == "hard"]
        able = [kind for kind in self._kinds if covers(dict(kind.resources), demand) and accepts(dict(kind.labels), hard)]
        if not able:
            names = ", ".join(repr(kind.name) for kind in self._kinds)
            return f"; no kind of nodes that the autoscaler has can run it (it has {names or 'none'}: zfabric status shows them)"
        return f"; autoscaler: {', '.join(kind.requested() for kind in able)}"
