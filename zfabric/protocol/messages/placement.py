"""Global scheduler."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Rows


class Heartbeat(NamedTuple):
    """local scheduler -> global scheduler. What the node has: ``total`` and ``available`` are (resource, amount) pairs in 1/10,000."""

    node: bytes
    total: Rows
    available: Rows
    queued: int
    mean_seconds: float


class Place(NamedTuple):
    """local scheduler -> global scheduler. Where could tasks of these demands run? Rows ``(token, demand pairs)``."""

    rows: Rows


class Placed(NamedTuple):
    """global scheduler -> local scheduler. Rows ``(token, node or empty)``: empty where no node will ever have it."""

    rows: Rows
