"""What zfabric's refs, generators, actors and functions have in this mode alone: names that Ray's libraries use, and programs hardly."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zfabric.api.actor import ActorClass, ActorHandle, ActorMethod
from zfabric.api.context import RuntimeContext
from zfabric.api.futures import when_done
from zfabric.api.generators import ObjectRefGenerator
from zfabric.api.placement_groups import PlacementGroup
from zfabric.api.refs import ObjectRef, owner_of
from zfabric.api.remote_function import RemoteFunction
from zfabric.exceptions import GetTimeoutError, NotInitializedError, NotInRayModeError
from zfabric.ray_mode.core_worker import local_actor_state
from zfabric.ray_mode.ids import ActorID, JobID, NodeID, PlacementGroupID, TaskID, WorkerID
from zfabric.util.local_cluster import LocalNode
from zfabric.util.metrics import Metric


def add() -> None:
    """Add the names to zfabric's classes, for the process's life."""
    kinds: dict[type, dict[str, Any]] = {
        ObjectRef: {
            "__bool__": lambda ref: True,
            "nil": classmethod(lambda kind: NO_REF),
            "size": classmethod(lambda kind: len(NO_REF.binary())),
            "from_binary": classmethod(lambda kind, data: kind(data)),
            "from_hex": classmethod(lambda kind, text: kind(bytes.fromhex(text))),
            "task_id": _as_id(ObjectRef.task_id, TaskID),
            "job_id": _as_id(ObjectRef.job_id, JobID),
            "_on_completed": _on_completed,
            "_on_ready": _on_ready,
        },
        ObjectRefGenerator: {
            "_next_sync": _next_sync,
            "_stream_exhausted": ObjectRefGenerator.is_finished,
            "_generator_ref": property(ObjectRefGenerator.completed),
            "_get_next_ref_n": _next_refs,
            "_consume_next_ref_n": _consume,
        },
        RemoteFunction: {"_remote": _remote},
        ActorClass: {
            "_remote": _remote,
            "__ray_metadata__": property(_Metadata),
            "__ray_actor_class__": property(lambda kind: kind._kind),
            "__init__": _named_type(ActorClass.__init__),
            "__setstate__": _named_type(ActorClass.__setstate__),
            "__reduce__": lambda kind: (object.__new__, (ActorClass,), kind.__getstate__()),
        },
        ActorMethod: {"_remote": _remote},
        ActorHandle: {
            "_actor_id": property(lambda handle: ActorID(handle._id)),
            "_ray_actor_id": property(lambda handle: ActorID(handle._id)),
            "_ray_is_cross_language": False,
            "_get_local_state": lambda handle: local_actor_state(handle._id),
            "_ray_method_signatures": property(lambda handle: {name: known.signature for name, known in handle._methods.items()}),
        },
        PlacementGroup: {"id": _IdOfGroup()},
        LocalNode: {
            "unique_id": property(lambda node: node.node_id),
            "remaining_processes_alive": LocalNode.alive,
            "kill_raylet": lambda node, check_alive=True: node.kill(),
        },
        Metric: {
            "_tag_keys": property(lambda metric: metric._keys),
            "_default_tags": property(lambda metric: dict(metric._defaults)),
        },
        RuntimeContext: {
            "worker": property(lambda context: importlib.import_module("ray._private.worker").global_worker),
            "job_id": property(lambda context: JobID.from_hex(context.get_job_id())),
            "node_id": property(lambda context: NodeID.from_hex(context.get_node_id())),
            "worker_id": property(lambda context: WorkerID.from_hex(context.get_worker_id())),
            "task_id": property(lambda context: _id_or_none(TaskID, context.get_task_id())),
            "actor_id": property(lambda context: _id_or_none(ActorID, context.get_actor_id())),
            "current_placement_group_id": property(lambda context: _id_or_none(PlacementGroupID, context.get_placement_group_id())),
        },
    }
    for kind, names in kinds.items():
        for name, value in names.items():
            setattr(kind, name, value)


# --- refs -----------------------------------------------------------------------------------------------------------------


class _NoRef:
    """Ray's nil ref: names no value."""

    def is_nil(self) -> bool:
        return True

    def __bool__(self) -> bool:
        return False

    def binary(self) -> bytes:
        return b"\xff" * 20

    def hex(self) -> str:
        return self.binary().hex()

    def __reduce__(self) -> str:
        return "NO_REF"

    def __repr__(self) -> str:
        return "ObjectRef(nil)"


NO_REF = _NoRef()


def _as_id(method: Callable[[ObjectRef], bytes], kind: type[Any]) -> Callable[[ObjectRef], Any]:
    return lambda ref: kind(method(ref))


def _id_or_none(kind: Any, text: str | None) -> Any:
    return None if text is None else kind.from_hex(text)


def _on_completed(self: ObjectRef, callback: Callable[[Any], None]) -> None:
    """Call ``callback`` with the value, or with the error of reading it."""

    def read() -> None:
        try:
            found = self._read()
        except NotInitializedError:  # As in Ray, nothing is called after this process has left the cluster.
            return
        except Exception as error:  # The callback gets any error.
            found = error
        callback(found)

    when_done(owner_of(self), self.binary(), read)


def _on_ready(self: ObjectRef, callback: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``callback(None)`` once the value exists, without reading it. Return a function that revokes this."""
    wanted = [callback]

    def tell() -> None:
        if wanted:
            wanted.pop()(None)

    when_done(owner_of(self), self.binary(), tell)
    return wanted.clear


# --- generators -----------------------------------------------------------------------------------------------------------


def _next_sync(self: ObjectRefGenerator, timeout_s: float | None = None) -> Any:
    """Return the next ref, or the nil ref after ``timeout_s`` (None or -1: wait). Raises StopIteration at the end."""
    with contextlib.suppress(GetTimeoutError):
        return self.next(timeout=None if timeout_s is None or timeout_s < 0 else timeout_s)
    return NO_REF


def _next_refs(self: ObjectRefGenerator, count: int) -> list[ObjectRef]:
    """Return the next ``count`` refs without taking them."""
    while len(self._window) < count:
        self._ask()
    return list(self._window)[:count]


def _consume(self: ObjectRefGenerator, count: int) -> None:
    """Take the next ``count`` refs."""
    for _ in range(count):
        self._coming()
        self._take()


class _IdOfGroup:
    """A placement group's ``id`` as an object like Ray's; the group has the bytes."""

    def __get__(self, group: PlacementGroup | None, kind: type) -> Any:
        return self if group is None else PlacementGroupID(vars(group)["id"])

    def __set__(self, group: PlacementGroup, identifier: bytes) -> None:
        vars(group)["id"] = identifier


# --- functions and actors -------------------------------------------------------------------------------------------------


def _remote(self: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """``remote`` with positional and keyword arguments as two values, and options."""
    return (self.options(**options) if options else self).remote(*args, **(kwargs or {}))


@functools.lru_cache(maxsize=1024)
def _type_called(name: str) -> type[ActorClass[..., Any]]:
    return type(f"ActorClass({name})", (ActorClass,), {})


def _named_type(fill: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method that fills a remote class: as in Ray, its type gets the class's name, which veRL uses."""

    @functools.wraps(fill)
    def filled(self: Any, *args: Any) -> None:
        fill(self, *args)
        self.__class__ = _type_called(self._kind.__name__)

    return filled


class _Metadata:
    """What programs read of a remote class: the class, its name and its declared options."""

    def __init__(self, kind: ActorClass) -> None:
        self.modified_class = kind._kind
        self.class_name = kind._kind.__qualname__
        self._options = kind._options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("num_cpus", "num_gpus", "memory", "resources", "max_restarts", "max_task_retries", "max_concurrency", "runtime_env"):
            return self._options.get(name)
        raise NotInRayModeError(f"ActorClass.__ray_metadata__ has no {name!r} in zfabric (docs/as-ray.md)")
