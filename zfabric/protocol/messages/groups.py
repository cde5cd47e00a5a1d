"""Placement groups, between the local schedulers of several nodes: resources that are reserved together.

The *home* of a group is the node of the driver whose job made it. It reserves bundles on its own node by sending these messages to itself.
"""

from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_nodes
from zfabric.protocol.checks import BOOL, COUNT, NODE, TASK, MalformedFrame, each, layout, one_of, optional
from zfabric.protocol.ids import LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import Amounts, Count, Rows, TaskId, check_amounts

PENDING_GROUP, CREATED, RESCHEDULING, REMOVED = GROUP_STATES = "PENDING", "CREATED", "RESCHEDULING", "REMOVED"
"""States of a placement group, by Ray's names. A group is RESCHEDULING while bundles that it lost are reserved again."""


@from_nodes(LOCAL_SCHEDULER)
class AskRoom(NamedTuple):
    """home -> node. Ask what could be reserved there. ``NodeRoom`` answers, at once and when there is more."""

    survey: Count


@from_nodes(LOCAL_SCHEDULER)
class NodeRoom(NamedTuple):
    """node -> home. Its resources that are free now (``free``), and those that would be free if no task ran (``capacity``).

    Both are (name, amount in 1/10,000) pairs, without what actors or other bundles hold. ``survey`` 0: there is more room than
    in the last answer.
    """

    survey: Count
    free: Amounts
    capacity: Amounts


def _check_bundles(rows: Rows) -> None:
    if not rows or len({index for index, _ in rows}) < len(rows):
        raise MalformedFrame("bundles have numbers of their own, and there is one at least")


@from_nodes(LOCAL_SCHEDULER)
class PrepareBundles(NamedTuple):
    """home -> node. Reserve bundles: rows ``(index, demand)``. ``BundlesPrepared`` answers, once no task uses those resources.

    ``reservation`` counts the attempts to reserve the group. The bundles of a ``detached`` group outlive its job.
    """

    group: TaskId
    reservation: Count
    detached: bool
    rows: Annotated[Rows, layout(COUNT, each(check_amounts)), _check_bundles]


@from_nodes(LOCAL_SCHEDULER)
class BundlesPrepared(NamedTuple):
    """node -> home. The bundles are reserved, durably, or (``ok`` is false) the node does not have enough resources."""

    group: TaskId
    reservation: Count
    ok: bool


@from_nodes(LOCAL_SCHEDULER)
class CommitBundles(NamedTuple):
    """home -> node. All bundles of a group are reserved, for the first time or after a loss: tasks may run in them."""

    group: TaskId


@from_nodes(LOCAL_SCHEDULER)
class FreeBundles(NamedTuple):
    """home -> node. These bundles of a group (``indexes`` empty: all) are no longer needed.

    What runs in them is killed, with ``reason``.
    """

    group: TaskId
    indexes: Annotated[tuple[int, ...], COUNT]
    reason: str


@from_nodes(LOCAL_SCHEDULER)
class HoldBundles(NamedTuple):
    """home -> node. When either daemon is new: the bundles that the node is to have for this home.

    Rows ``(group, index, whether it is committed)``. The node frees all other bundles of this home.
    """

    rows: Annotated[Rows, layout(TASK, COUNT, BOOL)]


@from_nodes(LOCAL_SCHEDULER)
class WatchGroup(NamedTuple):
    """node -> home. A task of this node is to run in the group. ``GroupState`` answers, at once and after every change."""

    group: TaskId


@from_nodes(LOCAL_SCHEDULER)
class GroupState(NamedTuple):
    """home -> node. The state of a group in which tasks of the node are to run: one of ``GROUP_STATES``.

    ``rows`` has ``(demand, node)`` for each bundle, without a node while it is not reserved. ``reason`` is that of a removal.
    """

    group: TaskId
    state: Annotated[str, one_of(GROUP_STATES)]
    rows: Annotated[Rows, layout(each(check_amounts), optional(NODE))]
    reason: str
