"""The global scheduler."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Rows


class Heartbeat(NamedTuple):
    """local scheduler -> global scheduler. The node's resources: ``total`` and ``available`` are (resource, amount) pairs in 1/10,000.

    ``queued`` is how many of its tasks wait, ``mean_seconds`` how long one takes on average.
    """

    node: bytes
    total: Rows
    available: Rows
    queued: int
    mean_seconds: float


class Place(NamedTuple):
    """local scheduler -> global scheduler. Ask which nodes could run tasks of these demands. Rows ``(token, demand pairs, tasks)``: how
    many tasks of each demand.
    """

    rows: Rows


class Placed(NamedTuple):
    """global scheduler -> local scheduler. Rows ``(token, places)``. The places are rows ``(node, tasks)``: how many of the tasks are to
    run on each node, the asking one perhaps included. There are none where no node will ever have what the demand asks for.
    """

    rows: Rows
