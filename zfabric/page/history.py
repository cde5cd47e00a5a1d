"""What ran, by the task stream: submitters, children, an actor's calls in order, durations.

The daemon has no calls, and only tasks with refs. The rest is read here when somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from zfabric.page.spans import Attempt
from zfabric.protocol.ids import JOB_BYTES, PREFIX_BYTES, child_prefix, first_attempt, salt_of
from zfabric.protocol.names import brief
from zfabric.protocol.trace import UNKNOWN

NEAR_MOST = 5
"""Calls drawn before and after one."""
CHILDREN_MOST = 20
"""Most children drawn; ``more`` counts the others."""
TRIES = 4
"""Attempts whose children are recognised."""
PARENTS_MOST = 20_000
"""Tasks among which a parent is searched."""


def add_history(graph: dict[str, Any], centre: bytes, attempts: Sequence[Attempt], numbers: Sequence[int]) -> None:
    """Add edges to a neighbourhood: "control", and "state" between an actor's calls in order.

    ``numbers`` are those of the nodes.
    """
    drawn = _Drawn(graph)
    attempts = list(attempts)  # A deque is slow in its middle.
    own = [each for each in attempts if each.task == centre]
    actor = next((each.actor for each in own if each.actor), b"")
    if own:
        drawn.node(own[-1])
    children = _children(centre, attempts, numbers)
    for child in islice(children.values(), CHILDREN_MOST):
        drawn.edge(centre.hex(), drawn.node(child), "control")
    graph["more"] = graph.get("more", 0) + max(0, len(children) - CHILDREN_MOST)
    parent = _parent(centre, attempts, numbers)
    if parent is not None:
        graph["edges"] = [edge for edge in graph["edges"] if not (edge[2] == "control" and edge[1] == centre.hex())]
        graph["nodes"] = [
            node for node in graph["nodes"] if node["kind"] != "process" or any(node["id"] in edge for edge in graph["edges"])
        ]
        drawn = _Drawn(graph)
        drawn.edge(drawn.node(parent), centre.hex(), "control")
    chain = _order(centre, actor, attempts)
    graph["more"] += chain[1]
    for before, after in zip(chain[0], chain[0][1:], strict=False):
        drawn.edge(drawn.node(before), drawn.node(after), "state")


class _Drawn:
    """A graph under construction: nodes and edges are added once."""

    def __init__(self, graph: dict[str, Any]) -> None:
        self._nodes = graph["nodes"]
        self._edges = graph["edges"]
        self._known = {node["id"] for node in self._nodes}

    def node(self, attempt: Attempt) -> str:
        """Add an attempt, and return its node's id."""
        name = attempt.task.hex()
        if name not in self._known:
            self._known.add(name)
            kind = "call" if attempt.kind == "call" else "task"
            text = f"{attempt.name} {brief(attempt.task)}"
            self._nodes.append({"id": name, "kind": kind, "name": text, "state": attempt.mark or "finished"})
        return name

    def edge(self, source: str, to: str, kind: str) -> None:
        if [source, to, kind] not in [list(edge) for edge in self._edges]:
            self._edges.append([source, to, kind])


def _prefixes(task: bytes, numbers: Sequence[int]) -> set[bytes]:
    """Id prefixes of a task's children, without the job, since a call may be of another job than its actor."""
    tries = {first_attempt(0, number) + attempt for number in {0, *numbers} for attempt in range(TRIES)}
    return {child_prefix(b"", task, 0, salt_of(attempt)) for attempt in tries}


def _children(task: bytes, attempts: Sequence[Attempt], numbers: Sequence[int]) -> dict[bytes, Attempt]:
    prefixes = _prefixes(task, numbers)
    return {each.task: each for each in attempts if each.task[JOB_BYTES:PREFIX_BYTES] in prefixes}


def _parent(task: bytes, attempts: Sequence[Attempt], numbers: Sequence[int]) -> Attempt | None:
    """The attempt that submitted this task, if that attempt has ended."""
    began = min((each.start for each in attempts if each.task == task), default=float("inf"))
    before = (
        each
        for each in reversed(attempts)
        if each.start <= began and (each.kind == "call" or each.task[:JOB_BYTES] == task[:JOB_BYTES]) and each.task != task
    )
    for each in islice(before, PARENTS_MOST):
        if task[JOB_BYTES:PREFIX_BYTES] in _prefixes(each.task, numbers):
            return each
    return None


def _order(centre: bytes, actor: bytes, attempts: Sequence[Attempt]) -> tuple[list[Attempt], int]:
    """An actor's creation and calls around one, in order, and how many are left out."""
    of = actor or centre
    ran = sorted((each for each in attempts if each.actor == of or each.task == of), key=lambda each: each.start)
    if not any(each.actor for each in ran):
        return [], 0
    at = next((place for place, each in enumerate(ran) if each.task == centre), 0)
    shown = ran[max(0, at - NEAR_MOST) : at + NEAR_MOST + 1]
    return shown, len(ran) - len(shown)


def calls_of_actors(attempts: Sequence[Attempt], now: float, seconds: float) -> dict[str, dict[str, Any]]:
    """Calls per second over the last ``seconds``, medians and 99th percentiles, by actor (hex).

    "p50", "p99": from a call's arrival to its end, None if not measured; "run_p50", "run_p99": how long it ran.
    """
    ran: dict[bytes, list[float]] = {}
    took: dict[bytes, list[float]] = {}
    first = now
    for each in attempts:
        if each.actor and each.start + each.seconds >= now - seconds:
            first = min(first, each.start)
            ran.setdefault(each.actor, []).append(each.seconds)
            if each.waited != UNKNOWN:
                took.setdefault(each.actor, []).append(each.waited + each.seconds)
    span = max(1.0, min(seconds, now - first))
    return {
        actor.hex(): {"rate": len(times) / span, **_percentiles(sorted(took.get(actor, ()))), **_percentiles(sorted(times), "run_")}
        for actor, times in ran.items()
    }


IDLE = {"rate": 0.0, "p50": None, "p99": None, "run_p50": None, "run_p99": None}


def _percentiles(times: list[float], prefix: str = "") -> dict[str, float | None]:
    last = len(times) - 1
    return {prefix + name: times[min(last, int(share * len(times)))] if times else None for name, share in (("p50", 0.5), ("p99", 0.99))}
