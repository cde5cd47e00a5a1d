"""What the processes of actors run, and how many calls wait in them, by their own answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from zfabric.exceptions import FabricError
from zfabric.protocol.names import brief
from zfabric.protocol.wording import counted, span
from zfabric.runtime.timeline import Asker, nodes_of

ASKED_MOST = 64
ANSWER_SECONDS = 0.5
"""A control thread answers beside user code, unless C code holds the interpreter's lock."""
SHOWN_MOST = 3
"""A concurrent actor may run thousands of calls."""


class Activity(NamedTuple):
    """What a process runs."""

    runs: tuple[tuple[str, bytes, float], ...]
    """(name, id, seconds), the longest first."""
    waiting: int

    def __str__(self) -> str:
        named = [f"{name} ({brief(identifier)}) for {span(seconds)}" for name, identifier, seconds in self.runs[:SHOWN_MOST]]
        more = len(self.runs) - SHOWN_MOST
        runs = ", ".join(named) + (f" and {more:,} more" if more > 0 else "")
        waiting = f"{counted(self.waiting, 'call')} {'waits' if self.waiting == 1 else 'wait'}"
        return f"runs {runs}; {waiting}" if runs else f"runs nothing; {waiting}"


def activity_of(client: Asker, pid: int) -> Activity | None:
    """What a worker of the asked node runs; None without an answer."""
    try:
        *rows, last = client.query("runs", pid, timeout=ANSWER_SECONDS)
    except FabricError:
        return None
    return Activity(tuple(sorted(map(tuple, rows), key=lambda run: -run[2])), int(last[2]))


def activities(client: Asker, workers: Sequence[dict[str, Any]]) -> dict[tuple[str, int], Activity]:
    """What the processes of these workers' actors run, by (node, pid); the node is "" in a cluster of one."""
    actors = [row for row in workers if row["actor_id"] and row["pid"]]
    askers = {node.name: node.asker for node in nodes_of(client)} if actors else {}
    found = {}
    for row in islice(actors, ASKED_MOST):
        activity = activity_of(askers.get(row.get("node", ""), client), row["pid"])
        if activity is not None:
            found[row.get("node", ""), row["pid"]] = activity
    return found


def activity_of_actor(client: Asker, actor_id: bytes) -> dict[str, str]:
    """The fact "activity" for an actor's explanation; empty without an answer."""
    rows = [row for row in client.query("workers") if row["actor_id"] == actor_id.hex()]
    found = next(iter(activities(client, rows).values()), None)
    return {} if found is None else {"activity": str(found)}
