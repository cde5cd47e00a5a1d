"""The cluster's resources and nodes, in the form of Ray's ``state``."""

from __future__ import annotations

from typing import Any

import zfabric
from zfabric.api.cluster import nodes
from zfabric.api.lifecycle import connected
from zfabric.util import placement_group_table

_seen: dict[str, dict[str, Any]] = {}
"""Each node as last seen here: of a dead one the cluster has the id alone."""


def all_nodes() -> list[dict[str, Any]]:
    """The living nodes, as ``zfabric.nodes`` lists them, then those that died or left, without resources."""
    living = [{**node, "Resources": _without_nothing(node["Resources"])} for node in nodes()]
    _seen.update({node["NodeID"]: node for node in living})
    dead = [each for each in connected().query("dead nodes") if each not in {node["NodeID"] for node in living}]
    nothing = {"Alive": False, "alive": False, "Resources": {}}
    return [*living, *({**_seen.get(each, {"NodeID": each, "Labels": {}}), **nothing} for each in dead)]


def cluster_resources() -> dict[str, float]:
    """The resources of all nodes together, without zeros, as in Ray."""
    return _without_nothing(zfabric.cluster_resources())


def _without_nothing(amounts: dict[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in amounts.items() if amount}


def totals_by_node() -> dict[str, dict[str, float]]:
    """The resources of each living node, by id."""
    return {node["NodeID"]: dict(node["Resources"]) for node in nodes()}


def available_by_node() -> dict[str, dict[str, float]]:
    """What is free on each living node, by id."""
    return {str(status["node"]): dict(status["available"]) for status in connected().query("statuses")}


class GlobalState:
    """``ray._private.state.state``."""

    def placement_group_table(self, placement_group_id: Any) -> dict[str, Any]:
        """Describe a placement group. Raises KeyError for an unknown id."""
        name = placement_group_id.hex() if isinstance(placement_group_id, bytes) else str(placement_group_id)
        found: dict[str, Any] = placement_group_table()[name]
        return found

    def node_table(self) -> list[dict[str, Any]]:
        """All nodes."""
        return all_nodes()

    def get_draining_nodes(self) -> dict[str, int]:
        """Nodes about to end, with deadlines: none, since zfabric moves what runs there."""
        return {}

    def get_cluster_config(self) -> None:
        """None: no autoscaler is attached."""

    def get_max_resources_from_cluster_config(self) -> None:
        """None: no autoscaler is attached."""
