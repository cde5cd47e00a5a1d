"""Ray's view of the whole cluster."""

from typing import Any

from zfabric import available_resources, get_runtime_context, timeline
from zfabric.ray_mode.absent import attributes
from zfabric.ray_mode.control import GlobalState, available_by_node, cluster_resources, totals_by_node
from zfabric.ray_mode.control import all_nodes as nodes

state = GlobalState()
total_resources_per_node = totals_by_node
available_resources_per_node = available_by_node


def actors(actor_id: str | None = None, **ignored: Any) -> dict[str, Any]:
    """Actors as ``ray.util.state`` lists them, by id; only ``actor_id`` if given."""
    from zfabric.util.state import get_actor, list_actors

    if actor_id is not None:
        found = get_actor(actor_id)
        return {} if found is None else dict(found)
    return {row["actor_id"]: dict(row) for row in list_actors(limit=10_000)}


def node_ids() -> list[str]:
    """The resource ``node:...`` of each node."""
    return [name for node in nodes() for name in node["Resources"] if name.startswith("node:")]


def current_node_id() -> str:
    """The resource ``node:...`` of this node."""
    here = get_runtime_context().get_node_id()
    return next(
        str(name)
        for node in nodes()
        if node["NodeID"] == here
        for name in node["Resources"]
        if name.startswith("node:") and "__" not in name
    )


__getattr__ = attributes(__name__)
