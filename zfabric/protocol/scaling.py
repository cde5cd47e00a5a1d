"""What an autoscaler reports to the nodes of its cluster about each kind of nodes that it can add, and how that is said to people."""

from __future__ import annotations

from typing import Any, NamedTuple

from zfabric.protocol.names import counted, is_text, span
from zfabric.protocol.options import Demand

KINDS_MOST = 100
TEXT_MOST = 1000
"""Most kinds of a report, and most characters of a name or a reason."""
PAUSE_SECONDS_MOST = 1e7


class KindReport(NamedTuple):
    """One kind of nodes: what a node has, and how many there are and were requested."""

    name: str
    resources: Demand
    labels: tuple[tuple[str, str], ...]
    nodes: int
    """Nodes that have joined."""
    pending: int
    """Jobs that wait to run."""
    starting: int
    """Jobs that run, and whose node has not joined."""
    max: int
    """Most jobs at a time."""
    pause_seconds: float
    """For how long no job is submitted after failures; 0.0: no pause."""
    unknown: str
    """Why the state of the jobs is unknown; empty if it is known."""
    reason: str
    """Why the last job failed; empty once a node has joined since."""

    def requested(self) -> str:
        """What was requested, or why nothing is.

        >>> report = KindReport("small", (), (), 1, 2, 1, 8, 0.0, "", "")
        >>> report.requested(), report._replace(pending=0, starting=0, max=1).requested()
        ("3 nodes of kind 'small' are requested (2 pending, 1 starting)", "kind 'small' has its maximum of 1 node")
        """
        kind, coming = f"kind {self.name!r}", self.pending + self.starting
        if self.unknown:
            return f"the jobs of {kind} are not known: {self.unknown}"
        if coming:
            states = ", ".join(f"{count} {what}" for count, what in ((self.pending, "pending"), (self.starting, "starting")) if count)
            return f"{counted(coming, 'node')} of {kind} {'is' if coming == 1 else 'are'} requested ({states})"
        if self.pause_seconds:
            why = f"since jobs ended before their nodes joined: {self.reason}"
            return f"no node of {kind} is requested for {span(self.pause_seconds)}, {why}"
        if self.nodes >= self.max:
            return f"{kind} has its maximum of {counted(self.max, 'node')}"
        return f"no node of {kind} is requested yet"


def kind_reports(rows: Any) -> tuple[KindReport, ...]:
    """Check rows that a process has sent. Raises ValueError."""
    if not isinstance(rows, tuple | list) or len(rows) > KINDS_MOST:
        raise ValueError(f"a report has at most {KINDS_MOST} kinds")
    return tuple(_checked(row) for row in rows)


def _checked(row: Any) -> KindReport:
    if not isinstance(row, tuple | list) or len(row) != len(KindReport._fields):
        raise ValueError("a kind has other fields")
    report = KindReport(*row)
    texts = (report.name, report.unknown, report.reason)
    counts = (report.nodes, report.pending, report.starting, report.max)
    if not all(isinstance(text, str) and len(text) <= TEXT_MOST and is_text(text) for text in texts):
        raise ValueError(f"names and reasons are texts of at most {TEXT_MOST} characters")
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("counts are whole numbers")
    if not isinstance(report.pause_seconds, int | float) or not 0.0 <= report.pause_seconds <= PAUSE_SECONDS_MOST:
        raise ValueError(f"a pause is a number of seconds, up to {PAUSE_SECONDS_MOST:,.0f}")
    resources = tuple((name, amount) for name, amount in report.resources)
    labels = tuple((name, value) for name, value in report.labels)
    if not all(isinstance(name, str) and type(amount) is int for name, amount in resources):
        raise ValueError("resources are amounts by name")
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in labels):
        raise ValueError("labels are texts by name")
    return report._replace(resources=resources, labels=labels)
