"""Which nodes a cluster has: the registry on the head, and the member of each node."""

from functools import partial
from typing import Annotated, NamedTuple, TypeAlias

from zfabric.protocol.access import from_nodes, from_processes
from zfabric.protocol.checks import BYTES, COUNT, INT, NODE, STR, Check, MalformedFrame, each, ids_of, layout, optional, short_text, within
from zfabric.protocol.ids import LOCAL_SCHEDULER, MEMBER, NODE_NUMBER_MAX, REGISTRY
from zfabric.protocol.messages.rows import Count, Ids, NodeId, NodeIds, Rows, Seconds, Text
from zfabric.protocol.names import NAME_BYTES_MAX

KEY_BYTES = 40
"""Bytes of a public key in Z85."""
LABELS_MAX = 1000
"""Most labels, resources or versions of one node."""

TEXT = short_text(NAME_BYTES_MAX)
NODE_NUMBER = within(0, NODE_NUMBER_MAX)
NodeNumber: TypeAlias = Annotated[int, NODE_NUMBER]


def _check_pairs(check: Check, rows: Rows) -> None:
    if len(rows) > LABELS_MAX:
        raise MalformedFrame(f"a node has at most {LABELS_MAX} resources, labels and versions of each")
    check(rows)


_check_resources = partial(_check_pairs, layout(TEXT, COUNT))
_check_labels = partial(_check_pairs, layout(TEXT, TEXT))
Resources: TypeAlias = Annotated[Rows, _check_resources]
Labels: TypeAlias = Annotated[Rows, _check_labels]


@from_nodes(REGISTRY)
class Join(NamedTuple):
    """member -> registry. The first message of a node, which asks to join the cluster.

    ``Joined`` or ``Refused`` answers; until then it is repeated. ``number`` is 0, or that of an earlier daemon of this node. ``key`` is the
    node's public key, in Z85. ``address`` and ``transfer`` are endpoints of its daemon and transfer agent ("tcp://host:port", empty: none).
    ``resources`` are (name, amount in 1/10,000) pairs. ``versions`` are (what, version) pairs, which both sides must share.
    """

    protocol: int
    node: NodeId
    number: NodeNumber
    name: Text
    pid: Count
    key: Annotated[bytes, ids_of(KEY_BYTES)]
    address: Text
    transfer: Text
    resources: Resources
    labels: Labels
    versions: Labels


@from_nodes(MEMBER)
class Joined(NamedTuple):
    """registry -> member. The node has joined the cluster: its row is durable.

    ``head`` is the node of the registry. ``number`` is the new node's: unique over the life of the cluster, and a part of each attempt that
    the node gives out. ``lease`` is in seconds, and begins when the request that renews it is sent.
    """

    head: NodeId
    number: Annotated[int, within(1, NODE_NUMBER_MAX)]
    lease: Seconds

    def check(self) -> None:
        """Check that there is a lease."""
        if not self.lease:
            raise MalformedFrame("a node has a lease")


@from_nodes(MEMBER)
class NodeTable(NamedTuple):
    """registry -> member -> local scheduler -> transfer agent. All living nodes, after each change.

    Rows ``(node, number, name, address, transfer, key, resources, labels, pid)``. A node that is missing since an earlier table is dead,
    durably. ``version`` counts the changes: older tables are ignored. ``head`` is the registry's node, whose control store numbers jobs. It
    is empty in the first table, which has no nodes.
    """

    version: Count
    rows: Annotated[Rows, layout(NODE, NODE_NUMBER, STR, STR, STR, BYTES, each(_check_resources), each(_check_labels), INT)]
    head: Annotated[bytes, optional(NODE)] = b""


@from_nodes(REGISTRY)
class RenewLease(NamedTuple):
    """member -> registry. Renew the lease. ``LeaseRenewed`` answers."""

    node: NodeId
    number: Count


@from_nodes(MEMBER)
class LeaseRenewed(NamedTuple):
    """registry -> member. Request ``number`` has renewed the lease, which begins when that request was sent."""

    number: Count


@from_nodes(REGISTRY)
class Leave(NamedTuple):
    """member -> registry. The node leaves the cluster: it has nothing any more that others need."""

    node: NodeId
    reason: str


@from_nodes(MEMBER)
class Expelled(NamedTuple):
    """registry -> member. The cluster has declared this node dead: it is to end. ``reason`` is shown to users."""

    reason: str


class Unreachable(NamedTuple):
    """shell -> member. The nodes that this one dials and has no connection to at present; sent after each change."""

    nodes: Ids


@from_nodes(REGISTRY)
class Complain(NamedTuple):
    """member -> registry. This node could not reach these nodes for ``pair_patience``. Repeated until it can."""

    nodes: NodeIds


@from_nodes(MEMBER)
class ProbePairs(NamedTuple):
    """registry -> member -> local scheduler -> transfer agent. Find out which nodes this one cannot reach.

    ``PairsProbed`` answers. ``number`` names the probe. If either is lost, the registry decides without the answer.
    """

    number: Count


@from_processes(LOCAL_SCHEDULER)
@from_nodes(REGISTRY)
class PairsProbed(NamedTuple):
    """transfer agent -> local scheduler -> member -> registry. The nodes that were out of reach.

    The member adds the daemon's to the agent's.
    """

    number: Count
    nodes: NodeIds
