"""zfabric: a brokerless compute fabric in Python over ZeroMQ.

>>> import zfabric as zf
>>> @zf.remote
... def f(x):
...     return x * 2
>>> zf.get([f.remote(i) for i in range(10)])
[0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
"""

from typing import TYPE_CHECKING

from zfabric import _beginning as _beginning
from zfabric import actor
from zfabric._version import __version__
from zfabric.adapters.generated_values import YieldStatistics
from zfabric.api.actor import ActorClass, ActorHandle, exit_actor, get_actor, kill, typed
from zfabric.api.cluster import available_resources, cluster_resources, explain, nodes, timeline
from zfabric.api.context import get_gpu_ids, get_runtime_context
from zfabric.api.core import as_completed, cancel, get, put, wait
from zfabric.api.decorator import remote
from zfabric.api.generators import DynamicObjectRefGenerator, ObjectRefGenerator
from zfabric.api.lifecycle import init, is_initialized, shutdown
from zfabric.api.methods import method
from zfabric.api.refs import ObjectRef
from zfabric.api.remote_function import RemoteFunction
from zfabric.exceptions import (
    ActorDiedError,
    ActorError,
    ActorLimitExceededError,
    ActorNameTakenError,
    ActorNotFoundError,
    ActorUnavailableError,
    AlreadyInitializedError,
    ArgumentTypeError,
    CallbackLimitExceededError,
    ConfigError,
    ConnectionLostError,
    DeadlockError,
    FabricError,
    GetTimeoutError,
    JobEndedError,
    JobError,
    KeyValueStoreFullError,
    LineageEvictedError,
    NodeDiedError,
    NodeDiedException,
    NotInitializedError,
    ObjectFreedError,
    ObjectLostError,
    ObjectReconstructionFailedError,
    ObjectReconstructionFailedLineageEvictedError,
    ObjectStoreError,
    ObjectStoreFullError,
    ObjectTooLargeError,
    OptionError,
    OptionTypeError,
    OutOfDiskError,
    OutOfMemoryError,
    PendingCallsLimitExceededError,
    PoisonedTaskError,
    RayActorError,
    RayError,
    RayOutOfMemoryError,
    RaySystemError,
    RayTaskError,
    RuntimeEnvSetupError,
    SerializationError,
    TaskCancelledError,
    TaskError,
    TaskTimeoutError,
    TaskUnschedulable,
    TaskUnschedulableError,
    VersionMismatchError,
    WorkerCrashedError,
)

if TYPE_CHECKING:
    from zfabric import util as util
    from zfabric.util.executor import Executor
    from zfabric.util.local_cluster import LocalCluster
    from zfabric.util.progress import progress

__all__ = [
    "ActorClass",
    "ActorDiedError",
    "ActorError",
    "ActorHandle",
    "ActorLimitExceededError",
    "ActorNameTakenError",
    "ActorNotFoundError",
    "ActorUnavailableError",
    "AlreadyInitializedError",
    "ArgumentTypeError",
    "CallbackLimitExceededError",
    "ConfigError",
    "ConnectionLostError",
    "DeadlockError",
    "DynamicObjectRefGenerator",
    "Executor",
    "FabricError",
    "GetTimeoutError",
    "JobEndedError",
    "JobError",
    "KeyValueStoreFullError",
    "LineageEvictedError",
    "LocalCluster",
    "NodeDiedError",
    "NodeDiedException",
    "NotInitializedError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectReconstructionFailedLineageEvictedError",
    "ObjectRef",
    "ObjectRefGenerator",
    "ObjectStoreError",
    "ObjectStoreFullError",
    "ObjectTooLargeError",
    "OptionError",
    "OptionTypeError",
    "OutOfDiskError",
    "OutOfMemoryError",
    "PendingCallsLimitExceededError",
    "PoisonedTaskError",
    "RayActorError",
    "RayError",
    "RayOutOfMemoryError",
    "RaySystemError",
    "RayTaskError",
    "RemoteFunction",
    "RuntimeEnvSetupError",
    "SerializationError",
    "TaskCancelledError",
    "TaskError",
    "TaskTimeoutError",
    "TaskUnschedulable",
    "TaskUnschedulableError",
    "VersionMismatchError",
    "WorkerCrashedError",
    "YieldStatistics",
    "__version__",
    "actor",
    "as_completed",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exit_actor",
    "explain",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "progress",
    "put",
    "remote",
    "shutdown",
    "timeline",
    "typed",
    "wait",
]


_LAZY = {
    "Executor": "zfabric.util.executor",
    "LocalCluster": "zfabric.util.local_cluster",
    "progress": "zfabric.util.progress",
    "util": "zfabric.util",
}
"""Names that are loaded on first use, and from where: few programs need them, and they need more modules."""


def __getattr__(name: str) -> object:
    """Names of ``_LAZY``."""
    if name in _LAZY:
        import importlib

        module = importlib.import_module(_LAZY[name])
        return module if name == "util" else getattr(module, name)
    hint = "" if name.startswith("_") else "; docs/migrating-from-ray.md says which names of Ray are here"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
