"""The global scheduler."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Rows

FOR_LIFE = 1e9
"""How long the tasks of ``Place`` run, in seconds, that make actors: these hold what they ask for until they end."""


class Heartbeat(NamedTuple):
    """local scheduler -> global scheduler. The node's resources: ``total`` and ``available`` are (resource, amount) pairs in 1/10,000.

    ``queued`` is how many of its tasks wait, ``mean_seconds`` how long one of them takes on average (0.0: no task has ended there yet).
    ``lasting`` is what bundles of placement groups hold, and actors hold or wait for, in the same form. It is sent after a change, some
    time after the one before, and before each ``Place``. A lost one is replaced by the next.
    """

    node: bytes
    total: Rows
    available: Rows
    queued: int
    mean_seconds: float
    lasting: Rows = ()


class Place(NamedTuple):
    """local scheduler -> global scheduler. Ask which nodes could run tasks of these demands. Rows ``(token, demand pairs, tasks, seconds,
    inputs)``: how many tasks of each demand, how long one runs on average (0.0: unknown), and rows ``(node, bytes)``: how much of what one
    reads lies on each node. Without an answer the question is asked again. Actors (``FOR_LIFE`` seconds) are placed where there is room.
    """

    rows: Rows


class Placed(NamedTuple):
    """global scheduler -> local scheduler. Rows ``(token, places)``. The places are rows ``(node, tasks)``: how many of the tasks are to
    run on each node, the asking one perhaps included. There are none where no node will ever have what the demand asks for. While there is
    no room for actors, a node that could have them takes none.
    """

    rows: Rows
