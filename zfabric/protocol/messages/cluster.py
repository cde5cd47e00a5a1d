"""Which nodes a cluster has: the registry on the head, and the member of each node."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Rows


class Join(NamedTuple):
    """member -> registry. The first message of a node: it asks to be one of the cluster's. ``Joined`` or ``Refused`` is the answer.

    ``node`` is its id (8 bytes). ``number`` is 0, or the number that an earlier daemon of this node received. ``key`` is the public half of
    the node's key pair, in Z85. ``address`` and ``transfer`` are the endpoints at which other nodes reach its daemon and its transfer agent
    ("tcp://host:port", empty: none). ``resources`` are (name, amount) pairs in 1/10,000, ``labels`` (name, value) pairs, ``versions``
    (what, version) pairs that must be the same on both sides. The member repeats the message until it is answered.
    """

    protocol: int
    node: bytes
    number: int
    name: str
    pid: int
    key: bytes
    address: str
    transfer: str
    resources: Rows
    labels: Rows
    versions: Rows


class Joined(NamedTuple):
    """registry -> member. The node is one of the cluster's: its row is durable.

    ``head`` is the node of the registry. ``number`` is the new node's: unique over the life of the cluster, and a part of each attempt that
    the node gives out. ``lease`` is how long the node may act after it has sent a request that renews its lease, in seconds.
    """

    head: bytes
    number: int
    lease: float


class NodeTable(NamedTuple):
    """registry -> member -> local scheduler. All living nodes, after each change.

    Rows ``(node, number, name, address, transfer, key, resources, labels, pid)``. A node that was in an earlier table and is not in
    this one is dead, and its death is durable. ``version`` counts the changes: a table older than the last one is ignored. ``head`` is the
    node of the registry, whose control store numbers jobs; it is empty where nobody needs it.
    """

    version: int
    rows: Rows
    head: bytes = b""


class RenewLease(NamedTuple):
    """member -> registry. Ask for the lease to be renewed. ``number`` counts the requests of this member."""

    node: bytes
    number: int


class LeaseRenewed(NamedTuple):
    """registry -> member. The lease that request ``number`` asked for begins at the time at which that was sent."""

    number: int


class Leave(NamedTuple):
    """member -> registry. The node ends in order: nothing that others need is there any more."""

    node: bytes
    reason: str


class Expelled(NamedTuple):
    """registry -> member. The node is dead for the cluster: it is to end, and does not come back. ``reason`` is for people."""

    reason: str


class Unreachable(NamedTuple):
    """shell -> member. The nodes to which this one has no connection at present, among those that it dials; after each change."""

    nodes: Ids


class Complain(NamedTuple):
    """member -> registry. These nodes could not be reached for ``pair_patience``. It is repeated as long as that is so."""

    nodes: Ids


class ProbePairs(NamedTuple):
    """registry -> member -> local scheduler -> transfer agent. Find out which nodes this one does not reach.

    ``PairsProbed`` is the answer. ``number`` names the probe. If the message or the answer is lost, the registry decides without it.
    """

    number: int


class PairsProbed(NamedTuple):
    """transfer agent -> local scheduler -> member -> registry. The nodes that were not reached; the member adds those of its own."""

    number: int
    nodes: Ids
