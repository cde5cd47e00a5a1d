"""Who may send which message over a socket: processes of the node, their peers, daemons and transfer agents of other nodes.

The decorators of a message declare it. Any other message that arrives on a socket is refused and counted. The machines of one daemon send
each other more kinds, never over a socket: so the receiving role alone decides, whatever role a sender claims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type[Any])

FROM_PROCESSES: dict[bytes, set[type[Any]]] = {}
"""Messages that drivers, workers and tools may send, by the receiving role."""
FROM_NODES: dict[bytes, set[type[Any]]] = {}
"""Messages that the daemons of other nodes may send, by the receiving role."""
FROM_PEERS: dict[bytes, set[type[Any]]] = {}
"""Messages that a process may send to another process of its node, by the receiving role."""
FROM_AGENTS: set[type[Any]] = set()
"""Messages that transfer agents of other nodes may send to this node's, on sockets of their own."""
READ_TABLES = frozenset({"member", "object"})
"""The head's tables that other nodes may read: which nodes are alive, and durable values."""
WRITE_TABLE = "object"
"""The head's table that other nodes may write to: durable values."""


def from_processes(role: bytes) -> Callable[[Kind], Kind]:
    """Drivers, workers and tools may send the message to this role."""
    return _accepted(FROM_PROCESSES.setdefault(role, set()))


def from_nodes(role: bytes) -> Callable[[Kind], Kind]:
    """Daemons of other nodes may send the message to this role."""
    return _accepted(FROM_NODES.setdefault(role, set()))


def from_peers(role: bytes) -> Callable[[Kind], Kind]:
    """A process may send the message to this role of another process of its node."""
    return _accepted(FROM_PEERS.setdefault(role, set()))


def from_agents(kind: Kind) -> Kind:
    """Transfer agents of other nodes may send the message to this node's agent."""
    return _accepted(FROM_AGENTS)(kind)


def _accepted(kinds: set[type[Any]]) -> Callable[[Kind], Kind]:
    def declare(kind: Kind) -> Kind:
        kinds.add(kind)
        return kind

    return declare
