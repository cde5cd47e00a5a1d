"""Ray's core worker: what its libraries query of this process about values."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from zfabric.api.actor import ActorHandle
from zfabric.api.context import get_runtime_context
from zfabric.api.lifecycle import connected
from zfabric.api.refs import ObjectRef
from zfabric.protocol.ids import FIRST_RETURN
from zfabric.protocol.messages import ALIVE, DEAD
from zfabric.ray_mode.absent import Incomplete
from zfabric.ray_mode.ids import ActorID, WorkerID
from zfabric.util.values import locate, on_freed


class CoreWorkerClient(Incomplete):
    """``global_worker.core_worker``."""

    STANDS_FOR = "ray._private.worker.global_worker.core_worker"

    def add_object_out_of_scope_callback(self, ref: ObjectRef, callback: Callable[[bytes], None]) -> bool:
        """Call ``callback`` with a value's id once nothing in the cluster refers to it."""
        on_freed(ref, callback)
        return True

    def get_object_locations(self, refs: list[ObjectRef], timeout_ms: int = -1) -> dict[ObjectRef, dict[str, Any]]:
        """Return nodes and sizes in bytes of values."""
        return locations(refs)

    def object_exists(self, ref: ObjectRef, memory_store_only: bool = False) -> bool:
        """Whether a value is on this node: in its object store, or small and complete."""
        found = locate([ref])[ref]
        small = found.complete and not found.nodes
        return small if memory_store_only else small or get_runtime_context().get_node_id() in found.nodes

    def get_all_reference_counts(self) -> dict[bytes, dict[str, int]]:
        """Count, by id in hexadecimal, refs of this process, and unfinished tasks and calls that take the value. For tests.

        Looks at all objects of the process. Actor handles are left out.
        """
        handles = {each._id + FIRST_RETURN for each in gc.get_objects() if type(each) is ActorHandle}
        counts = {each: count for each, count in connected().reference_counts().items() if each not in handles}
        return {each.hex().encode(): {"local": refs, "submitted": taken} for each, (refs, taken) in counts.items()}

    def get_actor_id(self) -> ActorID:
        """The running actor's id; the nil id elsewhere."""
        return ActorID.from_hex(get_runtime_context().get_actor_id() or ActorID.nil().hex())

    def get_worker_id(self) -> WorkerID:
        """The id of this process."""
        return WorkerID.from_hex(get_runtime_context().get_worker_id())

    def get_local_actor_state(self, actor_id: bytes) -> int | None:
        """An actor's state as last received here, in Ray's numbers; None if this process has not called it."""
        return local_actor_state(actor_id)

    def get_local_memory_store_bytes_used(self) -> int:
        """Bytes of small values in this process, outside of the object store."""
        return connected().inline_bytes()

    def get_disable_job_level_lineage_reconstruction(self) -> bool:
        """False: lost values are made again."""
        return False


def locations(refs: list[ObjectRef]) -> dict[ObjectRef, dict[str, Any]]:
    """Where values are, in Ray's form. A small value, which travels in messages, is here."""
    here = get_runtime_context().get_node_id()
    return {
        ref: {
            "node_ids": list(found.nodes) or ([here] if found.complete and found.size is not None else []),
            "object_size": found.size,
            "did_spill": found.spilled,
        }
        for ref, found in locate(refs).items()
    }


def local_actor_state(actor_id: bytes) -> int | None:
    """As ``CoreWorkerClient.get_local_actor_state``."""
    known = connected().actor_state(bytes(actor_id))
    if known is None:
        return None
    state, has_lived = known
    return {ALIVE: 2, DEAD: 4}.get(state, 3 if has_lived else 1)  # Otherwise RESTARTING, or PENDING_CREATION.
