"""Nodes that others name and this node's table lacks: dead, or in a table under way.

The sender of such a ref had its table from the head; so once the head has answered a question, every table with the node has arrived, and a
node that is still missing is dead.
"""

from __future__ import annotations

from collections import defaultdict

from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.transitions import NodeFoundDead
from zfabric.protocol import messages as m

DEAD_MAX = 4096
"""Dead nodes remembered: as many as a cluster has nodes."""


class UnknownNodes:
    """Messages that wait until their receiver is known."""

    def __init__(self, tables: Tables, requests: PendingRequests) -> None:
        self.tables = tables
        self.requests = requests
        self._waiting: defaultdict[bytes, list[m.Message]] = defaultdict(list)

    def send(self, node: bytes, message: m.Message) -> None:
        """Send to a node once it is known; drop it if the node is dead."""
        if node in self.tables.nodes:
            self.tables.send_to_node(node, message)
        elif node not in self.tables.dead:
            if node not in self._waiting:
                self.requests.ask_head(m.Read, "member", (node,), then=self._answered, about=node)
            self._waiting[node].append(message)

    def is_dead(self, node: bytes) -> bool:
        """Whether a node was found dead."""
        return node in self.tables.dead

    def joined(self, node: bytes) -> None:
        """Send what waited for a node."""
        for message in self._waiting.pop(node, ()):
            self.tables.send_to_node(node, message)

    def mark_dead(self, node: bytes) -> None:
        """Mark a node dead, and drop what waited for it."""
        self._waiting.pop(node, None)
        self.tables.dead.setdefault(node, False)
        if len(self.tables.dead) > DEAD_MAX:
            del self.tables.dead[next(iter(self.tables.dead))]

    def _answered(self, now: float, node: bytes, answer: m.Found) -> None:
        if node in self._waiting and not answer.rows:
            self.tables.dead[node] = True  # Nobody reports on it to this node, which never knew it.
            self.tables.report(NodeFoundDead(node))
