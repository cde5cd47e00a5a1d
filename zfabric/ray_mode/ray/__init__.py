"""``ray`` itself: the names of Ray's core, which are zfabric's own."""

import logging as _logging
import sys as _sys
from contextlib import suppress as _suppress
from typing import Any as _Any

import zfabric as _zfabric
from zfabric import (
    ActorClass,
    ActorHandle,
    DynamicObjectRefGenerator,
    ObjectRef,
    ObjectRefGenerator,
    RemoteFunction,
    as_completed,
    available_resources,
    cancel,
    exit_actor,
    get,
    get_actor,
    get_gpu_ids,
    get_runtime_context,
    is_initialized,
    kill,
    method,
    put,
    remote,
    shutdown,
    timeline,
    wait,
)
from zfabric.exceptions import *
from zfabric.ray_mode.absent import Absent as _Absent
from zfabric.ray_mode.absent import submodules as _submodules
from zfabric.ray_mode.control import all_nodes as nodes
from zfabric.ray_mode.control import cluster_resources
from zfabric.ray_mode.finder import NEWEST as _NEWEST
from zfabric.ray_mode.finder import Finder as _Finder
from zfabric.ray_mode.ids import (
    ActorClassID,
    ActorID,
    ClusterID,
    FunctionID,
    JobID,
    NodeID,
    PlacementGroupID,
    TaskID,
    UniqueID,
    WorkerID,
)
from zfabric.ray_mode.starting import init

_installed = next(each.installed for each in _sys.meta_path if isinstance(each, _Finder))
__version__ = _NEWEST if _installed is None else _installed.version
__commit__ = f"zfabric {_zfabric.__version__}"

SCRIPT_MODE, WORKER_MODE, LOCAL_MODE, RESTORE_WORKER_MODE, SPILL_WORKER_MODE = range(5)
ObjectID = ObjectRef
logger = _logging.getLogger("ray")


class LoggingConfig:
    """Ray's log format, without effect; ``log_level`` is that of the logger ``ray``."""

    def __init__(self, encoding: str = "TEXT", log_level: str = "INFO", additional_log_standard_attrs: _Any = None) -> None:
        self.encoding, self.log_level = encoding, log_level
        self.additional_log_standard_attrs = list(additional_log_standard_attrs or ())


java_function = _Absent("ray.java_function", "tasks are functions of Python")
java_actor_class = _Absent("ray.java_actor_class", "actors are classes of Python")
cpp_function = _Absent("ray.cpp_function", "tasks are functions of Python")
client = _Absent("ray.client", "a program joins a cluster by ray.init(address), from one of its machines")
ClientBuilder = _Absent("ray.ClientBuilder", "a program joins a cluster by ray.init(address), from one of its machines")

_load = _submodules(__name__)


def __getattr__(name: str) -> _Any:
    """Modules below ``ray``, on first use."""
    if name == "Language":
        return _load("_raylet").Language
    if name in ("worker", "state", "ray_constants"):
        name = f"_private.{name}"  # Their place in former versions.
    return _load(name)


if _installed is not None:  # A module of Ray sets up its loggers.
    with _suppress(AttributeError):
        _load("_private").log.generate_logging_config()
