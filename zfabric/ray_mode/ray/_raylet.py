"""Names of Ray's binary that its libraries import."""

import socket as _socket
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import msgpack

from zfabric import DynamicObjectRefGenerator, ObjectRef, ObjectRefGenerator, YieldStatistics
from zfabric.api.cluster import node_ip_address
from zfabric.ray_mode.absent import Absent, attributes
from zfabric.ray_mode.control import ControlClient as GcsClient
from zfabric.ray_mode.control import ErrorSubscriber as GcsErrorSubscriber
from zfabric.ray_mode.ids import ActorClassID, ActorID, ClusterID, FunctionID, JobID, NodeID, PlacementGroupID, TaskID, UniqueID, WorkerID

StreamingGeneratorStats = YieldStatistics
RAY_NODE_ID_KEY = "ray.io/node-id"
RAY_NODE_TPU_POD_TYPE_KEY = "ray.io/tpu-pod-type"
RAY_NODE_TPU_SLICE_NAME_KEY = "ray.io/tpu-slice-name"
RAY_NODE_TPU_TOPOLOGY_KEY = "ray.io/tpu-topology"
RAY_NODE_TPU_WORKER_ID_KEY = "ray.io/tpu-worker-id"
IMPLICIT_RESOURCE_PREFIX = "node:__internal_implicit_resource_"
RESOURCE_UNIT_SCALING = 10_000
GRPC_STATUS_CODE_DEADLINE_EXCEEDED, GRPC_STATUS_CODE_RESOURCE_EXHAUSTED = 4, 8
GRPC_STATUS_CODE_UNIMPLEMENTED, GRPC_STATUS_CODE_UNAVAILABLE = 12, 14
async_task_id: ContextVar[Any] = ContextVar("async_task_id", default=None)

Count = Absent("ray._raylet.Count", "ray.util.metrics.Counter counts")
Gauge = Absent("ray._raylet.Gauge", "ray.util.metrics.Gauge is here")
Histogram = Absent("ray._raylet.Histogram", "ray.util.metrics.Histogram is here")
Sum = Absent("ray._raylet.Sum", "ray.util.metrics.Counter sums up")
GlobalStateAccessor = Absent("ray._raylet.GlobalStateAccessor", "ray.util.state lists what there is")
for _name in (
    "AuthenticationMode", "AuthenticationTokenLoader", "Config", "CoreWorker", "CppFunctionDescriptor", "EventRecorder", "GcsClientOptions",
    "GcsLogSubscriber",
    "JavaFunctionDescriptor", "MessagePackSerializedObject", "Pickle5SerializedObject", "Pickle5Writer", "PythonFunctionDescriptor",
    "RawSerializedObject", "RayEvent", "RayletClient", "STREAMING_GENERATOR_RETURN", "SerializedObject", "SerializedRayObject",
    "StreamRedirector", "del_key_prefix_from_storage", "get_authentication_mode", "get_port_filename", "get_session_key_from_storage",
    "merge_instantaneous_total_cython", "persist_port", "raise_sys_exit_with_custom_error_message", "split_buffer",
    "unpack_pickle5_buffers", "validate_authentication_token", "wait_for_persisted_port",
):  # fmt: skip
    globals()[_name] = Absent(f"ray._raylet.{_name}")
DASHBOARD_AGENT_LISTEN_PORT_NAME, METRICS_AGENT_PORT_NAME = "dashboard_agent_listen_port", "metrics_agent_port"
METRICS_EXPORT_PORT_NAME, GCS_SERVER_PORT_NAME, RUNTIME_ENV_AGENT_PORT_NAME = (
    "metrics_export_port",
    "gcs_server_port",
    "runtime_env_agent_port",
)
GCS_PID_KEY, RAY_INTERNAL_NAMESPACE_PREFIX, RAY_INTERNAL_DASHBOARD_NAMESPACE = "gcs_pid", "_ray_internal_", "_ray_internal_dashboard"
WORKER_PROCESS_SETUP_HOOK_KEY_NAME_GCS = "FunctionsToRun"
ObjectID = ObjectRef
ObjectRefStreamEndOfStreamError = StopIteration


class Language:
    """The languages of tasks: Python alone."""

    PYTHON = 0


def is_ipv6(host: str) -> bool:
    """Whether ``host`` is an address of IPv6."""
    try:
        _socket.inet_pton(_socket.AF_INET6, host)
    except OSError:
        return False
    return True


def is_localhost(host: str) -> bool:
    """Whether ``host`` is this machine's loopback."""
    return host in ("localhost", "127.0.0.1", "::1")


def get_localhost_ip() -> str:
    """The address of this machine's loopback."""
    return "127.0.0.1"


def get_all_interfaces_ip() -> str:
    """The address by which a server listens on all networks."""
    return "0.0.0.0"


def build_address(host: str, port: int | str) -> str:
    """``host:port``, with brackets around an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, str] | None:
    """(host, port) of what ``build_address`` has made; None without a port."""
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        return None
    return host.strip("[]"), port


def node_ip_address_from_perspective(address: str | None = None) -> str:
    """The address at which others reach this node."""
    return node_ip_address()


def node_labels_match_selector(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node's labels match a ``label_selector``: a value, ``!value``, ``in(a, b)`` or ``!in(a, b)``."""

    def fits(value: str | None, wanted: str) -> bool:
        negative = wanted.startswith("!")
        wanted = wanted.removeprefix("!")
        values = [each.strip() for each in wanted[3:-1].split(",")] if wanted.startswith("in(") else [wanted]
        return (value in values) != negative

    return all(fits(labels.get(name), wanted) for name, wanted in selector.items())


def time_weighted_average_cython(
    series: Iterable[Any], window_start: float | None = None, window_end: float | None = None, last_window_s: float = 1.0
) -> float | None:
    """Average a step function over a window of time; None if it has no step there.

    ``series`` are points with ``timestamp`` (seconds) and ``value``, in order. A value holds until the next point, the last one for
    ``last_window_s``. ``window_start`` and ``window_end`` are seconds; None: from the first point, to the end of the last.
    """
    points = [(each.timestamp, each.value) for each in series]
    if not points:
        return None
    start = points[0][0] if window_start is None else window_start
    end = points[-1][0] + last_window_s if window_end is None else window_end
    total = weight = 0.0
    for index, (at, value) in enumerate(points):
        until = points[index + 1][0] if index + 1 < len(points) else end
        span = min(until, end) - max(at, start)
        if span > 0:
            total, weight = total + value * span, weight + span
    return total / weight if weight > 0 else None


class MessagePackSerializer:
    """Values as MessagePack."""

    @staticmethod
    def dumps(value: Any) -> tuple[bytes, list[Any]]:
        """(bytes, the Python objects among them: always none)."""
        packed: bytes = msgpack.packb(value)
        return packed, []

    @staticmethod
    def loads(data: bytes, objects: Any = None) -> Any:
        """The value of what ``dumps`` has made."""
        return msgpack.unpackb(data)


def getproctitle() -> str:
    """The title of this process, as ``ps`` shows it."""
    with open("/proc/self/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace").strip()


__getattr__ = attributes(__name__)
