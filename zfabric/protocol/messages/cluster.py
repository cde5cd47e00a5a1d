"""Which nodes a cluster has: the registry on the head, and the member of each node."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Rows


class NodeTable(NamedTuple):
    """registry -> member -> local scheduler. All living nodes, after each change.

    Rows ``(node, number, name, address, transfer, key, resources, labels, pid)``. A node that was in an earlier table and is not in
    this one is dead, and its death is durable. ``version`` counts the changes: a table older than the last one is ignored.
    """

    version: int
    rows: Rows
