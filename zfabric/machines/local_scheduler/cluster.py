"""The cluster, as the newest node table has it."""

from __future__ import annotations

from zfabric.protocol import messages as m
from zfabric.protocol.ids import CONTROL_STORE, GLOBAL_SCHEDULER, Address
from zfabric.protocol.messages import Row
from zfabric.protocol.options import NODE_ID


class ClusterView:
    """Nodes by the head's table, the head, and which global schedulers to ask. ``control`` and ``placer`` are this node's.

    ``update`` changes it; the shell sets the labels of a node alone, and how a joining node reaches the head before the first table.
    ``Tables.nodes`` has the other nodes as peers.
    """

    def __init__(self, node: bytes, control: Address, placer: Address, placers_max: int) -> None:
        self.node = node
        self.control_address = control
        self.local_placer = placer
        self._placers_max = placers_max
        self._version = 0
        self.rows: dict[bytes, Row] = {}
        """Rows of the table, by node; empty in a cluster of one."""
        self.head = b""
        """The node of registry and control store; empty in a cluster of one."""
        self.head_control_address = control
        """The head's control store, with job numbers and durable values."""
        self.placers: tuple[Address, ...] = (placer,)
        """Global schedulers, by their nodes' numbers."""
        self.labels: dict[str, str] = {NODE_ID: node.hex()}
        """Labels of this node."""

    def update(self, message: m.NodeTable) -> bool:
        """Accept a table. Return whether it is newer than the last."""
        if message.version <= self._version:
            return False
        self._version = message.version
        self.rows = {row[0]: row for row in message.rows}
        self.head = message.head
        self.head_control_address = self.control_address if message.head in (b"", self.node) else CONTROL_STORE + message.head
        own = self.rows.get(self.node)
        if own is not None:
            self.labels = labels_of(own)
        oldest = sorted(self.rows.values(), key=lambda row: row[1])[: self._placers_max]
        placers = tuple(self.local_placer if row[0] == self.node else GLOBAL_SCHEDULER + row[0] for row in oldest)
        self.placers = placers or (self.local_placer,)
        return True

    @property
    def is_head(self) -> bool:
        """Whether this is the head, or a cluster of one."""
        return self.head_control_address == self.control_address

    def number_of(self, node: bytes) -> int:
        """A node's number, or 0."""
        row = self.rows.get(node)
        return 0 if row is None else int(row[1])


def labels_of(row: Row) -> dict[str, str]:
    """A node's labels, with its id."""
    return {**dict(row[7]), NODE_ID: row[0].hex()}
