"""Ray's inside, asked for its state."""

from typing import Any

from zfabric import ObjectRef
from zfabric.ray_mode.absent import Absent, attributes

memory_summary = Absent("ray._private.internal_api.memory_summary", "`zfabric memory` shows it")
get_memory_info_reply = Absent("ray._private.internal_api.get_memory_info_reply", "ray.util.state.summarize_objects() has sizes")
get_state_from_address = Absent("ray._private.internal_api.get_state_from_address")
store_stats_summary = Absent("ray._private.internal_api.store_stats_summary")
global_gc = Absent("ray._private.internal_api.global_gc")
node_stats = Absent("ray._private.internal_api.node_stats", "`zfabric status` shows them")


def free(object_refs: ObjectRef | list[ObjectRef], local_only: bool = False) -> None:
    """Do nothing: a value is freed with its last ref."""


def get_local_ongoing_lineage_reconstruction_tasks() -> list[Any]:
    """None: zfabric reports no reruns."""
    return []


__getattr__ = attributes(__name__)
