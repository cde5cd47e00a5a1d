"""Placement groups: resources of several nodes that are reserved together. Between the local schedulers of the nodes.

The *home* of a group is the node of the driver whose job made it. A node sends these messages to itself, too: a bundle of the home's own
node is reserved as any other.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Rows


class AskRoom(NamedTuple):
    """home -> node. What could be reserved there? ``NodeRoom`` is the answer; a ``RoomGrew`` follows when there is more than that."""

    survey: int


class NodeRoom(NamedTuple):
    """node -> home. What is free of its resources now (``free``), and what would be if no task ran (``capacity``).

    Both are (name, amount in 1/10,000) pairs. Other bundles, and what actors hold, are in neither.
    """

    survey: int
    free: Rows
    capacity: Rows


class RoomGrew(NamedTuple):
    """node -> home. There is more room than the last ``NodeRoom`` said."""


class PrepareBundles(NamedTuple):
    """home -> node. Reserve bundles: rows (index, demand). ``BundlesPrepared`` answers once no task uses those resources any more.

    ``reservation`` numbers the attempts to reserve the group. The bundles of a ``detached`` group outlive its job.
    """

    group: bytes
    reservation: int
    detached: bool
    rows: Rows


class BundlesPrepared(NamedTuple):
    """node -> home. Bundles are reserved, durably; or the node has not as much (``ok`` is false)."""

    group: bytes
    reservation: int
    ok: bool


class CommitBundles(NamedTuple):
    """home -> node. All bundles of a group are reserved, or those that were lost are again: tasks may run in them."""

    group: bytes


class FreeBundles(NamedTuple):
    """home -> node. Bundles of a group, or all of them (``indexes`` is empty), are no longer needed.

    What runs in them is killed, with ``reason``.
    """

    group: bytes
    indexes: tuple[int, ...]
    reason: str


class HoldBundles(NamedTuple):
    """home -> node, when the daemon of one of them is new. The bundles that the node has for this home.

    Rows (group, index, whether it is committed). The node frees all others of this home.
    """

    rows: Rows


class WatchGroup(NamedTuple):
    """node -> home. A task of this node is to run in a group. ``GroupState`` answers, now and after every change."""

    group: bytes


class GroupState(NamedTuple):
    """home -> node. A group that tasks of the node name: ``state`` is one of ``GROUP_STATES``.

    Rows (demand, node), one for each bundle; the node is empty while the bundle is not reserved. ``reason`` says why a group was removed.
    """

    group: bytes
    state: str
    rows: Rows
    reason: str


PENDING_GROUP, CREATED, RESCHEDULING, REMOVED = GROUP_STATES = "PENDING", "CREATED", "RESCHEDULING", "REMOVED"
"""States of a placement group, by Ray's names. It is RESCHEDULING while bundles are lost that were reserved once."""
