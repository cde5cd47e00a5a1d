"""How a process joins a cluster: attach to a session that runs, or start one and attach to it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from zfabric.config import Config
from zfabric.exceptions import ConfigError, ConnectionLostError, VersionMismatchError
from zfabric.protocol.ids import INCARNATION_BYTES
from zfabric.protocol.names import is_text
from zfabric.runtime.connection import clock
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.session import Session, started_session

LOCAL = "local"
"""The address of a cluster that is to be started by, and end with, the program."""
REGISTER_SECONDS = 15.0
"""How long a node that was just launched may take until its daemon's socket is there."""
PRELOAD_SECONDS = 300.0
"""The same where it imports modules first that its configuration names ("preload")."""


def new_incarnation() -> bytes:
    """A random incarnation; the first byte leaves room for the control socket's variant and is not zero, as ZeroMQ wants."""
    return bytes((1 + os.urandom(1)[0] % 127,)) + os.urandom(INCARNATION_BYTES - 1)


def attach(
    session: Session,
    kind: str = "driver",
    namespace: str = "",
    failure: Callable[[], str] = lambda: "",
    seconds: float = REGISTER_SECONDS,
) -> DriverClient:
    """Connect this process to a session that runs, or that is just starting, as a driver or a tool; wait so many seconds for its daemon."""
    daemon = _await_daemon(session, failure, seconds)
    client = DriverClient(session, new_incarnation(), kind, b"", b"", namespace)
    try:
        client.connect(daemon)
    except BaseException:  # Ctrl-C too: sockets and the context's threads would stay
        client.closed = True
        client.post.close()
        client._context.term()
        raise
    return client


def _await_daemon(session: Session, failure: Callable[[], str], seconds: float) -> bytes:
    deadline = clock() + seconds
    while (found := session.daemon()) is None:
        reason = failure()
        if reason:
            raise ConnectionLostError(f"the node could not start: {reason}")
        if not session.alive() and (reason := failure()):  # it has ended between the two questions
            continue
        if clock() > deadline or not session.alive():
            raise ConnectionLostError(f"no daemon answers in {session.directory}")
        time.sleep(0.001)  # for a file, and a process that may die instead: no one event says either, and it is over in a moment
    return found[0]


def session_to_join(address: str | None) -> Session | None:
    """The session that a driver is to join: the one at ``address``, without one the latest that this user has started.

    None if it is to start its own: with "local", or where none was started. ConnectionLostError if there is nothing at ``address``.
    """
    if address == LOCAL:
        return None
    return find_session(address) if address else started_session()


def join(session: Session, namespace: str, log_to_driver: bool) -> DriverClient:
    """Connect this process to a cluster that runs, as a driver. VersionMismatchError if its Python is another one."""
    from zfabric.adapters.processes import module_paths, working_directory

    description = session.describe()
    version = ".".join(map(str, sys.version_info[:3]))
    if description["python"].split(".")[:2] != version.split(".")[:2]:
        raise VersionMismatchError(
            f"the cluster in {session.directory} runs Python {description['python']}, this program {version}, and neither reads what the "
            f'other pickles: start the cluster with this Python, or pass address="local" for one of this program\'s own'
        )
    client = attach(session, namespace=namespace or str(description["namespace"]), failure=session.failure)
    client.shows_output = log_to_driver
    client.machine.unread.watching &= log_to_driver
    # What is no text cannot be sent: modules in a directory whose name is not UTF-8 are found only by a cluster of one's own.
    client.paths = tuple(dict.fromkeys(path for path in module_paths() if os.path.isdir(path) and is_text(path)))
    directory = working_directory()
    client.directory = directory if is_text(directory) else ""
    return client


def start(
    num_cpus: float | None,
    num_gpus: float | None,
    resources: dict[str, float] | None,
    object_store_memory: int | None,
    namespace: str,
    config: Config,
    log_to_driver: bool,
) -> DriverClient:
    """Start an embedded cluster and connect to it."""
    from zfabric.runtime.launch import launch

    total = node_resources(num_cpus, num_gpus, resources)
    settings = dict(config.pairs())
    settings["log_to_driver"] = log_to_driver and config.log_to_driver
    arena_size = -1 if object_store_memory is None else object_store_memory
    launched = launch(config=Config.of(settings), resources=total, namespace=namespace, arena_size=arena_size)
    try:
        seconds = PRELOAD_SECONDS if config.preload else REGISTER_SECONDS
        client = attach(launched.session, namespace=namespace, failure=launched.failure, seconds=seconds)
    except BaseException:  # Ctrl-C too: a cluster that nobody has is not to stay
        launched.close()
        raise
    client.alive = launched.alive
    client.failure = launched.failure
    client.on_close = launched.close
    return client


def node_resources(num_cpus: float | None, num_gpus: float | None, resources: dict[str, float] | None) -> dict[str, float]:
    """What a node offers: what was said, else what the machine has."""
    from zfabric.adapters.processes import cpu_count, gpu_count, visible_gpus

    total = {"CPU": float(cpu_count() if num_cpus is None else num_cpus)}
    gpus = gpu_count() if num_gpus is None else num_gpus
    if gpus:
        visible = visible_gpus()
        if visible and len(visible) < gpus:
            raise ConfigError(f"num_gpus is {gpus:g}, and CUDA_VISIBLE_DEVICES names {len(visible)} ({', '.join(visible)})")
        total["GPU"] = float(gpus)
    total.update({name: float(amount) for name, amount in (resources or {}).items()})
    return total


def find_session(address: str) -> Session:
    """The session that an address means: "auto" for the started one, else a session directory."""
    if address == "auto":
        session = started_session()
        if session is None:
            raise ConnectionLostError("no cluster is running here; start one with `zfabric start`, or leave the address out")
        return session
    path = address.removeprefix("ipc://")
    if not os.path.isdir(path):
        raise ConnectionLostError(
            f'there is no session at {address!r}: it has ended, or never was; an address is "auto" or a session directory'
        )
    session = Session(path)
    if not session.alive():
        raise ConnectionLostError(f"the session at {address!r} has ended")
    return session
