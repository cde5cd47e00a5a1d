"""Ray's view of this process."""

import os as _os
from typing import Any

from ray import cloudpickle as pickle  # type: ignore[import-not-found, unused-ignore]
from ray.util.serialization import StandaloneSerializationContext  # type: ignore[import-not-found, unused-ignore]

import zfabric as _zfabric
from zfabric import (
    ObjectRef,
    cancel,
    exit_actor,
    get,
    get_actor,
    get_gpu_ids,
    get_runtime_context,
    is_initialized,
    kill,
    put,
    remote,
    shutdown,
    wait,
)
from zfabric.api.cluster import node_ip_address as _node_ip_address
from zfabric.api.cluster import nodes as _nodes
from zfabric.api.lifecycle import ClusterContext
from zfabric.protocol.options import HEAD_RESOURCE
from zfabric.ray_mode.absent import Incomplete, attributes
from zfabric.ray_mode.control import ControlClient
from zfabric.ray_mode.core_worker import CoreWorkerClient
from zfabric.ray_mode.ids import ActorID, ClusterID, JobID, TaskID, WorkerID
from zfabric.ray_mode.starting import hooks as _post_init_hooks
from zfabric.ray_mode.starting import init

SCRIPT_MODE, WORKER_MODE, LOCAL_MODE, RESTORE_WORKER_MODE, SPILL_WORKER_MODE = range(5)
blocking_get_inside_async_warned = False
_worker_logs_enabled = True


class SerializationContext(StandaloneSerializationContext):  # type: ignore[misc, unused-ignore]
    """How values of this process are pickled."""

    def serialize(self, value: Any) -> "PickledValue":
        """Pickle a value as ``put`` would."""
        return PickledValue(value)


class PickledValue:
    """A pickled value."""

    def __init__(self, value: Any) -> None:
        from zfabric.adapters.serialization import serialize

        self._pickled = serialize(value)
        self.total_bytes = self._pickled.size

    def to_bytes(self) -> bytes:
        """The whole value."""
        return self._pickled.to_bytes()


class ThisProcess(Incomplete):
    """This process."""

    STANDS_FOR = "ray._private.worker.global_worker"

    core_worker = CoreWorkerClient()
    gcs_client = ControlClient()
    _filter_logs_by_job = True

    @property
    def connected(self) -> bool:
        """Whether this process is connected to a cluster."""
        return is_initialized()

    @property
    def mode(self) -> int | None:
        """WORKER_MODE in a task or actor, SCRIPT_MODE in a program, None without a cluster."""
        if not is_initialized():
            return None
        return SCRIPT_MODE if get_runtime_context().get_task_id() is None else WORKER_MODE

    @property
    def actor_id(self) -> ActorID:
        """The running actor; nil elsewhere."""
        found = get_runtime_context().get_actor_id()
        return ActorID.from_hex(found) if found else ActorID.nil()

    @property
    def current_job_id(self) -> JobID:
        """The job of this process."""
        return JobID.from_hex(get_runtime_context().get_job_id())

    @property
    def current_task_id(self) -> TaskID:
        """The running task; nil in a program."""
        found = get_runtime_context().get_task_id()
        return TaskID.from_hex(found) if found else TaskID.nil()

    @property
    def worker_id(self) -> bytes:
        """The id of this process."""
        return WorkerID.from_hex(get_runtime_context().get_worker_id()).binary()

    @property
    def current_node_id(self) -> Any:
        """The node of this process."""
        return get_runtime_context().node_id

    @property
    def node(self) -> "ThisNode":
        """The node of this process."""
        return _global_node

    @property
    def node_ip_address(self) -> str:
        """The address at which others reach this node."""
        return _node_ip_address()

    @property
    def namespace(self) -> str:
        """The namespace of this job."""
        return get_runtime_context().namespace

    @property
    def runtime_env(self) -> str:
        """The runtime_env of this code, as JSON."""
        return get_runtime_context().get_runtime_env_string()

    def check_connected(self) -> None:
        """Raise NotInitializedError if this process is not connected to a cluster."""
        if not is_initialized():
            raise _zfabric.NotInitializedError("there is no cluster here; call ray.init()")

    def get_serialization_context(self) -> SerializationContext:
        """How values of this process are pickled."""
        return SerializationContext()

    def set_debugger_port(self, port: int) -> None:
        """Do nothing: ``zfabric debug`` needs no port."""


class ThisNode(Incomplete):
    """This node and its directories, where Ray's libraries write logs."""

    STANDS_FOR = "ray._private.worker._global_node"

    max_bytes = 512 * 1024 * 1024
    """Size at which Ray's libraries rotate logs."""
    backup_count = 5

    @property
    def cluster_id(self) -> ClusterID:
        """The id of the cluster."""
        return next(ClusterID.from_hex(node["NodeID"]) for node in _nodes() if HEAD_RESOURCE in node["Resources"])

    @property
    def node_id(self) -> str:
        """The node's id, as text."""
        return get_runtime_context().get_node_id()

    @property
    def unique_id(self) -> str:
        """The node's id, as text."""
        return self.node_id

    @property
    def node_ip_address(self) -> str:
        """The address at which others reach this node."""
        return _node_ip_address()

    @property
    def address(self) -> str:
        """What ``ray.init`` takes to join this cluster."""
        return get_runtime_context().gcs_address

    gcs_address = address

    @property
    def session_name(self) -> str:
        """The name of the session."""
        return get_runtime_context().get_session_name()

    def get_session_dir_path(self) -> str:
        """The directory of this node's session."""
        return get_runtime_context().gcs_address

    def get_logs_dir_path(self) -> str:
        """The session's directory for logs of Ray's libraries."""
        path = _os.path.join(self.get_session_dir_path(), "libraries")
        _os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def get_temp_dir_path(self) -> str:
        """The directory that holds the session."""
        return get_runtime_context().get_temp_dir()


global_worker = ThisProcess()
_global_node = ThisNode()


def _mode(worker: ThisProcess = global_worker) -> int | None:
    return worker.mode


class BaseContext:
    """What Ray's contexts have in common."""


Worker, RayContext = ThisProcess, ClusterContext


def get_dashboard_url() -> None:
    """None: ``init(include_dashboard=True)`` prints the address of zfabric's page."""


def print_worker_logs(data: Any, print_file: Any) -> None:
    """Do nothing: zfabric shows workers' output itself."""


def get_global_worker() -> ThisProcess:
    """This process."""
    return global_worker


__getattr__ = attributes(__name__)
