"""Pools, queues, executors, strategies and bridges, built on the public names only."""

from typing import Any

__all__ = [
    "ActorPool",
    "as_completed",
    "call_all",
    "deregister_serializer",
    "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "locate",
    "log_once",
    "map_unordered",
    "on_freed",
    "on_ready",
    "placement_group",
    "placement_group_table",
    "register_serializer",
    "remove_placement_group",
]

_PLACES = {
    "ActorPool": ("zfabric.util.actor_pool", "ActorPool"),
    "as_completed": ("zfabric.util.iteration", "as_completed"),
    "call_all": ("zfabric.api.actor", "call_all"),
    "log_once": ("zfabric.util.iteration", "log_once"),
    "map_unordered": ("zfabric.util.iteration", "map_unordered"),
    "locate": ("zfabric.util.values", "locate"),
    "on_freed": ("zfabric.util.values", "on_freed"),
    "on_ready": ("zfabric.util.values", "on_ready"),
    "deregister_serializer": ("zfabric.api.serializers", "deregister_serializer"),
    "get_node_ip_address": ("zfabric.api.cluster", "node_ip_address"),
    "inspect_serializability": ("zfabric.api.serializers", "inspect_serializability"),
    "get_current_placement_group": ("zfabric.util.placement_group", "get_current_placement_group"),
    "get_placement_group": ("zfabric.util.placement_group", "get_placement_group"),
    "placement_group_table": ("zfabric.util.placement_group", "placement_group_table"),
    "remove_placement_group": ("zfabric.util.placement_group", "remove_placement_group"),
    "list_named_actors": ("zfabric.api.cluster", "named_actors"),
    "register_serializer": ("zfabric.api.serializers", "register_serializer"),
}
_MODULES = (
    "actor_pool",
    "dask",
    "executor",
    "iteration",
    "joblib",
    "kv",
    "local_cluster",
    "metrics",
    "multiprocessing",
    "placement_group",
    "progress",
    "queue",
    "scheduling_strategies",
    "state",
    "tracing",
    "values",
)


def __getattr__(name: str) -> Any:
    import importlib

    if name in _PLACES:
        module, there = _PLACES[name]
        return getattr(importlib.import_module(module), there)
    if name in _MODULES:
        return importlib.import_module(f"zfabric.util.{name}")
    hint = "" if name.startswith("_") else "; docs/migrating-from-ray.md says which names of Ray are here"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
