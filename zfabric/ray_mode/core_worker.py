"""Ray's core worker: what its libraries ask this process about values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zfabric.api.lifecycle import connected
from zfabric.api.refs import ObjectRef
from zfabric.protocol.messages import ALIVE, DEAD
from zfabric.ray_mode.absent import Incomplete
from zfabric.util.values import locate, on_freed


class CoreWorkerClient(Incomplete):
    """``global_worker.core_worker``."""

    STANDS_FOR = "ray._private.worker.global_worker.core_worker"

    def add_object_out_of_scope_callback(self, ref: ObjectRef, callback: Callable[[bytes], None]) -> bool:
        """Call ``callback`` with the id of a value once nothing in the cluster refers to it."""
        on_freed(ref, callback)
        return True

    def get_object_locations(self, refs: list[ObjectRef], timeout_ms: int = -1) -> dict[ObjectRef, dict[str, Any]]:
        """Where values are, and their sizes in bytes."""
        return locations(refs)

    def get_local_actor_state(self, actor_id: bytes) -> int | None:
        """The state of an actor as this process last received it, in Ray's numbers; None if this process has not called it."""
        return local_actor_state(actor_id)

    def get_local_memory_store_bytes_used(self) -> int:
        """0: values that are not in the store are in messages."""
        return 0

    def get_disable_job_level_lineage_reconstruction(self) -> bool:
        """False: lost values are made again."""
        return False


def locations(refs: list[ObjectRef]) -> dict[ObjectRef, dict[str, Any]]:
    """Where values are, in Ray's form."""
    found = locate(refs)
    return {ref: {"node_ids": list(found[ref].nodes), "object_size": found[ref].size, "did_spill": found[ref].spilled} for ref in refs}


def local_actor_state(actor_id: bytes) -> int | None:
    """The state of an actor, as ``CoreWorkerClient.get_local_actor_state`` returns it."""
    known = connected().actor_state(bytes(actor_id))
    if known is None:
        return None
    state, has_lived = known
    return {ALIVE: 2, DEAD: 4}.get(state, 3 if has_lived else 1)  # Otherwise RESTARTING, or PENDING_CREATION.
