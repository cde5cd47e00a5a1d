"""Connection to a cluster: ``init``, ``shutdown``, and the start on first use.

In a forked child, every use of the client raises an error: sockets and shared mappings are the parent's, and two processes on one socket
lose each other's messages. Refs in the child release nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

from zfabric.api.environments import NO_RUNTIME_ENV, RuntimeEnv, decoded, environment_of, inherited, sent
from zfabric.api.errors import check_flag, check_labels, near
from zfabric.api.interruption import install, is_interrupted
from zfabric.config import Config, size_of
from zfabric.exceptions import AlreadyInitializedError, ConfigError, NotInitializedError
from zfabric.protocol.names import check_length, is_text
from zfabric.runtime import interface, process_exit
from zfabric.runtime.interface import ClientInterface

if TYPE_CHECKING:
    from zfabric.api.dashboard import PageProcess

AUTO = "auto"
"""The address of whatever cluster runs for this program."""
ADDRESS_VARIABLE = "ZFABRIC_ADDRESS"
"""Environment variable: the cluster to join if ``init`` is given no address."""
SUBMIT_VARIABLE = "ZFABRIC_SUBMIT"
"""Environment variable: options of ``zfabric submit`` as JSON, for arguments of ``init`` that the program does not pass. ``zfabric submit
--working-dir`` and jobs set "runtime_env" in it.
"""

PAGE_VARIABLE = "ZFABRIC_PAGE"
"""Environment variable of ``zfabric submit --page``: 1 if ``init`` is to show the page."""

_IGNORED = {
    "logging_level",
    "logging_format",
    "logging_config",
    "configure_logging",
    "job_config",
    "log_to_driver_stderr",
    "local_mode_warning",
    "cgroup_path",
    "enable_resource_isolation",
    "proxy_server_url",
    "system_reserved_cpu",
    "system_reserved_memory",
    "allow_multiple",
    "storage",
    "_temp_dir",
    "_node_ip_address",
    "_driver_object_store_memory",
    "_redis_password",
    "_redis_username",
    "_metrics_export_port",
    "_system_config",
    "_tracing_startup_hook",
    "_enable_object_reconstruction",
    "_plasma_directory",
    "_object_spilling_directory",
    "_node_name",
    "_skip_env_hook",
}
"""Ray's keywords of ``init`` about how Ray runs, not what the program means: without effect."""

_lock = threading.RLock()
_started: ClientInterface | None = None
_runtime_env: RuntimeEnv | None = None
_page: PageProcess | None = None
local_clusters: list[weakref.ref[Any]] = []
"""Open clusters of several nodes of this program, each with an ``address``: ``init`` joins the latest by default."""


class _ForkedClient:
    """The client of a forked child: every use raises an error."""

    def __getattr__(self, name: str) -> NoReturn:
        from zfabric.runtime.connection import FORKED  # Loaded in every process that has a client.

        raise NotInitializedError(FORKED)


def _after_fork() -> None:
    global _lock, _started, _page
    _lock = threading.RLock()  # A thread that the child does not have may hold the parent's.
    _started = _page = None
    local_clusters.clear()
    process_exit.withdraw()
    if interface.current() is not None:
        interface.set_current(cast(ClientInterface, _ForkedClient()))


os.register_at_fork(after_in_child=_after_fork)


class ClusterContext(Mapping[str, Any]):
    """The result of ``init``: facts about the cluster, and a context manager that shuts it down.

    >>> import zfabric as zf
    >>> with zf.init(num_cpus=1, ignore_reinit_error=True) as cluster:
    ...     len(cluster["node_id"]) > 0
    True
    """

    def __init__(self, client: ClientInterface) -> None:
        self._client = client
        self.session_directory = str(getattr(getattr(client, "session", None), "directory", ""))
        self.address_info: dict[str, Any] = {
            "address": self.session_directory,
            "node_id": client.node.hex(),
            "job_id": client.job.hex(),
            "namespace": client.namespace,
            "session_dir": self.session_directory,
            "gcs_address": self.session_directory,
            "node_ip_address": "127.0.0.1",
            "webui_url": "",
        }
        self.dashboard_url = ""

    def __getitem__(self, key: str) -> Any:
        return self.address_info[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.address_info)

    def __len__(self) -> int:
        return len(self.address_info)

    def __repr__(self) -> str:
        return f"ClusterContext({self.address_info})"

    def __enter__(self) -> ClusterContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Leave the cluster, and end it if ``init`` started it. Has no effect if called again."""
        with _lock:
            if self._client is _started:
                shutdown()


def init(
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    resources: dict[str, float] | None = None,
    object_store_memory: float | None = None,
    namespace: str | None = None,
    config: dict[str, Any] | Config | None = None,
    log_to_driver: bool = True,
    labels: dict[str, str] | None = None,
    ignore_reinit_error: bool = False,
    runtime_env: dict[str, Any] | None = None,
    include_dashboard: bool | None = None,
    dashboard_host: str = "127.0.0.1",
    dashboard_port: int | None = None,
    _memory: float | None = None,
    **ignored: Any,
) -> ClusterContext:
    """Join the cluster at ``address``, or start one inside this program. Returns a context manager. A program that never calls this does so
    on first use.

    ``address`` is one of these:

    - the directory of a session, which is another program's ``init(...)["address"]``;
    - ``tcp://host:port`` of a node of a cluster of several; the program joins through a node on its own machine;
    - "local" for a new cluster that ends with the program;
    - None, the default: that of ``ZFABRIC_ADDRESS``; else the ``LocalCluster`` that the program has open; else the latest cluster of this
      ``TMPDIR`` that was started with ``zfabric start``, with a line on standard error; else a new one;
    - "auto": as None, but it is an error if there is no cluster.

    ``num_cpus``, ``num_gpus``, ``resources``, ``object_store_memory`` (bytes), ``labels`` of the node and ``config`` (limits of
    ``zfabric.config`` by name) apply to a new cluster. So does ``_memory``: the bytes that ``memory=`` may reserve there, by default 70 %
    of what the machine, or its control group, has beside the object store.

    Functions inherit ``runtime_env``. Actors' names are in ``namespace``: by default that of ``zfabric start --namespace``, else the empty
    one, which programs share. Without ``log_to_driver`` workers' output is not shown. With ``include_dashboard``, a page (extra "page")
    shows the cluster while this program is connected, at ``dashboard_host`` and ``dashboard_port`` (by default a free port); its address is
    printed to standard error, and is the result's "webui_url". Ray's other keywords about how Ray runs (``ignored``) have no effect.

    Raises AlreadyInitializedError if there is a cluster already, unless ``ignore_reinit_error``; ConfigError (a ValueError) or OptionError
    for invalid values, and for options that a joined cluster was not started with; ConnectionLostError if there is no cluster at
    ``address``.

    >>> import zfabric as zf
    >>> cluster = zf.init(num_cpus=2, ignore_reinit_error=True)
    >>> zf.is_initialized()
    True
    """
    global _started, _runtime_env, _page
    install()
    process_exit.hold_thread()
    if ignored.pop("local_mode", False):
        raise ConfigError(
            "init: there is no local_mode, in which tasks would run in this process one after the other; to look into a task, write "
            "breakpoint() in it and attach with `zfabric debug`, and to run its function here, call it: f._function(...)"
        )
    for name in ignored:
        if name not in _IGNORED:
            known = ["address", *(init.__kwdefaults__ or ())]
            raise TypeError(f"init() has no argument {name!r}{near(name, known)}")
    check_flag("init: log_to_driver", log_to_driver)
    check_flag("init: ignore_reinit_error", ignore_reinit_error)
    check_labels("init: labels", labels or {})
    if include_dashboard is not None:
        check_flag("init: include_dashboard", include_dashboard)
    if not isinstance(dashboard_host, str):
        raise TypeError(f"init: dashboard_host is a str, not {dashboard_host!r}")
    if not (dashboard_port is None or (type(dashboard_port) is int and 0 <= dashboard_port < 65536)):
        raise ConfigError(f"init: dashboard_port is a port from 0 to 65535, not {dashboard_port!r}")
    shown = os.environ.get(PAGE_VARIABLE) == "1" if include_dashboard is None else include_dashboard
    with _lock:
        existing = interface.current()
        if existing is not None:
            if not ignore_reinit_error:
                node = existing.node.hex()[:8]  # Raises by itself in a forked child.
                raise AlreadyInitializedError(
                    f"this process is connected already (node {node}); call zf.shutdown() first, or pass ignore_reinit_error=True"
                )
            return ClusterContext(existing)
        wanted = {
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "resources": resources,
            "object_store_memory": object_store_memory,
            "_memory": _memory,
            "labels": labels,
        }
        given = [name for name, value in wanted.items() if value is not None] + ["config"] * bool(config)
        submitted: dict[str, Any] = json.loads(os.environ.get(SUBMIT_VARIABLE, "{}"))
        num_cpus = submitted.get("num_cpus") if num_cpus is None else num_cpus
        num_gpus = submitted.get("num_gpus") if num_gpus is None else num_gpus
        resources = submitted.get("resources") if resources is None else resources
        object_store_memory = submitted.get("object_store_memory") if object_store_memory is None else object_store_memory
        _memory = submitted.get("memory") if _memory is None else _memory
        if not isinstance(config, Config) and (config is None or isinstance(config, dict)):
            config = {**submitted.get("config", {}), **(config or {})}
        settings = _checked(address, num_cpus, num_gpus, resources, object_store_memory, _memory, namespace, config)
        environment = inherited(runtime_env or {}, environment_of(submitted.get("runtime_env") or {}))
        running = address == AUTO  # As in Ray, the address in the environment comes first.
        where = (None if running else address) or os.environ.get(ADDRESS_VARIABLE)
        if not where and (running or not given):
            where = next((cluster.address for each in reversed(local_clusters) if (cluster := each()) is not None), address)
        with _outside_deleted_directory():
            from zfabric.runtime.connect import join, session_to_join, start  # It loads ZeroMQ, which no program needs before its cluster.

        session = session_to_join(where)
        client: ClientInterface
        if session is not None:
            if given:
                raise ConfigError(
                    f"init: {', '.join(given)}: this program joins the cluster in {session.directory}, which has what it was started with; "
                    'leave this out, or pass address="local" for a cluster of this program\'s own'
                )
            client = join(session, namespace or "", log_to_driver)
            if not where:
                _announce(session.directory)
        else:
            client = start(
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                resources=resources,
                object_store_memory=None if object_store_memory is None else int(object_store_memory),
                memory=_memory,
                namespace=namespace or "",
                config=settings,
                log_to_driver=log_to_driver,
                labels=tuple(sorted((labels or {}).items())),
            )
        interface.set_current(client)
        _started = client
        if environment != NO_RUNTIME_ENV:
            try:
                _runtime_env = sent(environment)
            except BaseException:  # Ctrl-C too: the caller gets no client to shut down.
                shutdown()
                raise
        context = ClusterContext(client)
        if shown:
            from zfabric.api.dashboard import PageProcess  # Most programs show no page.

            try:
                _page = PageProcess(context.session_directory, dashboard_host, dashboard_port or 0)
            except BaseException:  # As above.
                shutdown()
                raise
            context.address_info["webui_url"] = _page.url
            _say(f"this page shows the cluster: {_page.url}")
        return context


def _announce(directory: str) -> None:
    """Print that this program joined a running cluster. Ignores a closed or full standard error."""
    text = 'joined the cluster that you have started; zf.init(address="local") starts another'
    _say(f"{text} ({directory})")


def _say(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"zfabric: {text}", file=sys.stderr)


def _checked(
    address: Any, num_cpus: Any, num_gpus: Any, resources: Any, object_store_memory: Any, memory: Any, namespace: Any, config: Any
) -> Config:
    from zfabric.machines.common.resources import demand_of  # Not needed to import zfabric.

    if not (address is None or isinstance(address, str)):
        raise TypeError(f"init: address is a str, not {address!r}")
    if not (namespace is None or isinstance(namespace, str)):
        raise TypeError(f"init: namespace is a str, not {namespace!r}")
    check_length("init: namespace", namespace or "")
    if namespace == "":
        raise ConfigError('init: "" is not a namespace; leave it out (or None) for the one that programs share which name none')
    if namespace and not is_text(namespace):
        raise ConfigError(f"init: namespace is text, and {namespace!r} is not (it has no UTF-8)")
    counts = {"num_cpus": num_cpus, "num_gpus": num_gpus, "object_store_memory": object_store_memory, "_memory": memory}
    for name, count in counts.items():
        whole = name.startswith("num_")  # Sizes are often computed as a share of memory.
        if count is not None and not _is_amount(count, whole):
            what = "whole number" if whole else "number of bytes"
            raise ConfigError(f"init: {name} is a {what} from 0, not {count!r}{'' if whole else _bytes_meant(count)}")
    demand_of(num_cpus, num_gpus, resources, memory)
    if isinstance(config, Config):
        return config
    if not (config is None or isinstance(config, dict)):
        raise TypeError(f"init: config is a dict of settings, not {config!r}")
    return Config.of(config)


def _is_amount(count: Any, whole: bool) -> bool:
    if isinstance(count, bool) or not isinstance(count, (int, float)) or not math.isfinite(count) or count < 0:
        return False
    return not whole or count == int(count)


def _bytes_meant(text: Any) -> str:
    """Return a Python expression for a size such as "2GB"; empty if the text is no size."""
    meant = size_of(text) if isinstance(text, str) else None
    if meant is None:
        return ""
    shorter = next((f"{meant // 2**power} * 2**{power}" for power in (40, 30, 20) if meant and meant % 2**power == 0), str(meant))
    decimal = next((f"{meant // 10**power} * 10**{power}" for power in (12, 9, 6) if meant and meant % 10**power == 0), shorter)
    return f"; write {decimal if shorter == str(meant) else shorter}"


def default_environment() -> RuntimeEnv:
    """Return the environment to inherit: ``init(runtime_env=)`` in a driver, its own in a worker."""
    if _runtime_env is None and interface.environment:
        return decoded(interface.environment)
    return _runtime_env or NO_RUNTIME_ENV


def shutdown(_exiting_interpreter: bool = False) -> None:
    """Leave the cluster, and end it if ``init`` started it. Has no effect without a cluster, nor in a task, whose connection is the
    worker's.

    >>> import zfabric as zf
    >>> zf.shutdown()
    >>> zf.is_initialized()
    False
    """
    global _started, _runtime_env, _page
    with _lock:
        page, _page = _page, None
        if page is not None:
            page.close()
        client, _started = _started, None
        if client is None:
            return
        _runtime_env = None
        if interface.current() is client:
            interface.set_current(None)
        if is_interrupted():
            client.ignore_unread()
        client.close()


def _at_exit() -> None:
    process_exit.begin()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C again: the cluster has ended, or its supervisor ends it.
        shutdown()


atexit.register(_at_exit)


def is_initialized() -> bool:
    """Whether this process is connected to a cluster.

    >>> import zfabric as zf
    >>> cluster = zf.init(ignore_reinit_error=True)
    >>> zf.is_initialized()
    True
    """
    client = interface.current()
    return client is not None and not isinstance(client, _ForkedClient)


@contextlib.contextmanager
def _outside_deleted_directory() -> Iterator[None]:
    """Leave a deleted working directory for a moment: importing there, Python 3.13.0 raises SystemError."""
    try:
        os.getcwd()
    except FileNotFoundError:
        pass
    else:
        yield
        return
    place = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(place)
        os.close(place)


def connected() -> ClientInterface:
    """Return this process's client; start a cluster if there is none."""
    client = interface.current()
    if client is not None:
        return client
    process_exit.hold_thread()
    with _lock:
        if interface.current() is None:
            init()
        client = interface.current()
    if client is None:
        raise NotInitializedError("there is no cluster here; call zf.init()")
    return client
