"""What is new in Ray, from zfabric or the user's Ray."""

from typing import Any

from zfabric import NotInitializedError, is_initialized
from zfabric.ray_mode.absent import submodules
from zfabric.ray_mode.core_worker import locations as get_local_object_locations

_load = submodules(__name__)


def get_object_locations(obj_refs: list[Any], timeout_ms: int = -1) -> dict[Any, dict[str, Any]]:
    """Size in bytes, ids of nodes, and whether on disk, of each ref's value."""
    if not is_initialized():
        raise NotInitializedError("there is no cluster here; call ray.init()")
    return get_local_object_locations(obj_refs)


def __getattr__(name: str) -> Any:
    """Modules, on first use."""
    return _load(name)
