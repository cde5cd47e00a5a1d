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
    """member -> registry. The first message of a node, which asks to join the cluster. ``Joined`` or ``Refused`` is the answer.

    ``node`` is its id (8 bytes). ``number`` is 0, or the number that an earlier daemon of this node received. ``key`` is the public half of
    the node's key pair, in Z85. Other nodes reach its daemon at the endpoint ``address`` and its transfer agent at ``transfer``
    ("tcp://host:port", empty: none). ``resources`` are (name, amount) pairs in 1/10,000, ``labels`` (name, value) pairs. ``versions`` are
    (what, version) pairs that must be the same on both sides. The member repeats the message until it is answered.
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

    ``head`` is the node of the registry. ``number`` is the node number of the new node. It is unique over the life of the cluster, and a
    part of each attempt that the node gives out. ``lease`` is the length of a lease in seconds; it begins when the request is sent that
    renews it.
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
    """registry -> member -> local scheduler. All living nodes, after each change.

    Rows ``(node, number, name, address, transfer, key, resources, labels, pid)``. A node that was in an earlier table and is missing in
    this one is dead, and its death is durable. ``version`` counts the changes: a table older than the last one is ignored. ``head`` is the
    node of the registry, whose control store numbers jobs. It is empty only in the first table, which has no nodes.
    """

    version: Count
    rows: Annotated[Rows, layout(NODE, NODE_NUMBER, STR, STR, STR, BYTES, each(_check_resources), each(_check_labels), INT)]
    head: Annotated[bytes, optional(NODE)] = b""


@from_nodes(REGISTRY)
class RenewLease(NamedTuple):
    """member -> registry. Ask for the lease to be renewed. ``number`` counts the requests of this member."""

    node: NodeId
    number: Count


@from_nodes(MEMBER)
class LeaseRenewed(NamedTuple):
    """registry -> member. Request ``number`` has renewed the lease, which begins at the time at which the request was sent."""

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
    """shell -> member. The nodes that this one dials and has no connection to at present. It is sent after each change."""

    nodes: Ids


@from_nodes(REGISTRY)
class Complain(NamedTuple):
    """member -> registry. This node could not reach these nodes for ``pair_patience``. It is repeated until it can."""

    nodes: NodeIds


@from_nodes(MEMBER)
class ProbePairs(NamedTuple):
    """registry -> member -> local scheduler -> transfer agent. Find out which nodes this one cannot reach.

    ``PairsProbed`` is the answer. ``number`` names the probe. If the message or the answer is lost, the registry decides without it.
    """

    number: Count


@from_processes(LOCAL_SCHEDULER)
@from_nodes(REGISTRY)
class PairsProbed(NamedTuple):
    """transfer agent -> local scheduler -> member -> registry. The nodes that the agent could not reach.

    The member adds those that the daemon could not reach.
    """

    number: Count
    nodes: NodeIds
