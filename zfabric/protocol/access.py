"""Which messages a process of the node may send to which role of its daemon, or of another process; and a daemon to that of another node.

The decorators of a message declare its senders and receivers. All others that arrive on a socket are refused and counted.

Machines in one daemon send each other more kinds, but never over a socket. So the role that a message claims for its sender proves
nothing, and the receiving role alone decides which messages are accepted.
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
"""Messages that transfer agents of other nodes may send to this node's agent. They have sockets of their own."""
READ_TABLES = frozenset({"member", "object"})
"""The tables of the head that other nodes may read: which nodes are alive, and durable values."""
WRITE_TABLE = "object"
"""The table of the head that other nodes may write to: durable values."""


def from_processes(role: bytes) -> Callable[[Kind], Kind]:
    """Declare that drivers, workers and tools may send a message to this role."""
    return _accepted(FROM_PROCESSES.setdefault(role, set()))


def from_nodes(role: bytes) -> Callable[[Kind], Kind]:
    """Declare that the daemons of other nodes may send a message to this role."""
    return _accepted(FROM_NODES.setdefault(role, set()))


def from_peers(role: bytes) -> Callable[[Kind], Kind]:
    """Declare that a process may send a message to this role of another process of its node."""
    return _accepted(FROM_PEERS.setdefault(role, set()))


def from_agents(kind: Kind) -> Kind:
    """Declare that transfer agents of other nodes may send a message to this node's agent."""
    return _accepted(FROM_AGENTS)(kind)


def _accepted(kinds: set[type[Any]]) -> Callable[[Kind], Kind]:
    def declare(kind: Kind) -> Kind:
        kinds.add(kind)
        return kind

    return declare
