"""Connects a program to a running session, or starts one first."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from zfabric.config import Config
from zfabric.exceptions import ConfigError, ConnectionLostError, FabricError, NodeDiedError, VersionMismatchError
from zfabric.protocol.effects import DRAINED
from zfabric.protocol.names import Program, is_text
from zfabric.protocol.options import ACCELERATOR_RESOURCE, MEMORY
from zfabric.runtime import interface
from zfabric.runtime.connection import clock
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.session import Session, is_cluster_address, new_incarnation, started_session, where_looked

LOCAL = "local"
"""A new cluster, which ends with its program."""
DAEMON_SECONDS = 15.0
"""Seconds for a restarted daemon to publish its socket."""
REGISTER_SECONDS = 60.0
"""The same for a new node: overloaded machines take long, and a node that ends is noticed at once."""
REGISTERED_SECONDS = 5.0
"""Seconds for nodes to register with each other, usually milliseconds."""
LOOKS = 20
"""Looks for a daemon, a millisecond apart, between two checks whether the session lives: a check costs ten system calls, a look one."""
JOB_VARIABLE = "ZFABRIC_JOB_ID"
"""The id of a program's job (``zfabric submit --detach``)."""
PRELOAD_SECONDS = 300.0
"""Seconds for a node that first imports modules ("preload")."""


def attach(
    session: Session,
    kind: str = "driver",
    namespace: str = "",
    failure: Callable[[], str] | None = None,
    seconds: float = DAEMON_SECONDS,
) -> DriverClient:
    """Connect to a session as a driver or a tool, within ``seconds``.

    ``failure`` returns why the session has ended, by default as recorded.
    """
    daemon = await_daemon(session, failure or session.failure, seconds)
    client = DriverClient(session, new_incarnation(), kind, this_program().pack() if kind == "driver" else b"", b"", namespace)
    try:
        client.connect(daemon)
    except BaseException:  # Ctrl-C too: sockets and the context's threads would stay
        client.connection.abandon()
        raise
    return client


def await_daemon(session: Session, failure: Callable[[], str], seconds: float) -> bytes:
    """Wait for a session's daemon; return its incarnation. Raises why the session has ended."""
    deadline = clock() + seconds
    while (found := session.daemon()) is None:
        reason = failure()
        if reason:
            kind, _, text = reason.partition(": ")
            raise (
                VersionMismatchError(text)
                if kind == VersionMismatchError.__name__
                else ConnectionLostError(text if kind == ConnectionLostError.__name__ else f"the node could not start: {reason}")
            )
        lives = session.alive()
        if not lives and failure():
            continue
        if not lives:
            raise ConnectionLostError(f"no daemon answers in {session.directory}")
        if clock() > deadline:
            why = f"has not started within {seconds:g} s: is the machine overloaded? Its logs are in {session.logs}"
            raise ConnectionLostError(f"the daemon of {session.directory} {why}")
        for _ in range(LOOKS):  # No event covers both a file and the death of a process; the wait is short.
            time.sleep(0.001)
            if session.daemon() is not None:
                break
    return found[0]


def session_to_join(address: str | None) -> Session | None:
    """The session at ``address``, by default the user's latest started one; None if a driver must start its own.

    Raises ConnectionLostError if ``address`` has none.
    """
    if address == LOCAL:
        return None
    return find_session(address) if address else started_session()


def join(session: Session, namespace: str, log_to_driver: bool) -> DriverClient:
    """Join a cluster as a driver. Raises VersionMismatchError for another Python version."""
    from zfabric.adapters.processes import module_paths, working_directory

    description = session.describe()
    version = ".".join(map(str, sys.version_info[:3]))
    if description["python"].split(".")[:2] != version.split(".")[:2]:
        raise VersionMismatchError(
            f"the cluster in {session.directory} runs Python {description['python']}, this program {version}, and neither reads what the "
            f'other pickles: start the cluster with this Python, or pass address="local" for one of this program\'s own'
        )
    client = attach(session, namespace=namespace or str(description["namespace"]), failure=session.failure)
    client.connection.shows_output = log_to_driver
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
    memory: float | None,
    namespace: str,
    config: Config,
    log_to_driver: bool,
    labels: tuple[tuple[str, str], ...],
) -> DriverClient:
    """Start an embedded cluster and connect to it."""
    from zfabric.runtime.launch import launch  # Programs that join a cluster start sooner without it.

    total = node_resources(num_cpus, num_gpus, resources, memory)
    settings = dict(config.pairs())
    settings["log_to_driver"] = log_to_driver and config.log_to_driver
    arena_size = -1 if object_store_memory is None else object_store_memory
    launched = launch(
        config=Config.of(settings), resources=total, labels=labels, namespace=namespace, arena_size=arena_size, warm=interface.warm()
    )
    try:
        seconds = PRELOAD_SECONDS if config.preload else REGISTER_SECONDS
        client = attach(launched.session, namespace=namespace, failure=launched.failure, seconds=seconds)
    except BaseException:  # After Ctrl-C, too: no one else would end the cluster.
        launched.close()
        raise
    client.connection.alive = launched.alive
    client.connection.failure = launched.failure
    client.on_close = launched.close
    return client


def node_resources(
    num_cpus: float | None, num_gpus: float | None, resources: dict[str, float] | None, memory: float | None
) -> dict[str, float]:
    """A node's resources: given, or the machine's.

    Without ``memory`` the supervisor adds a share of what the object store leaves.
    """
    from zfabric.adapters.processes import cpu_count, gpu_count, gpu_model, visible_gpus

    total = {"CPU": float(cpu_count() if num_cpus is None else num_cpus)}
    gpus = gpu_count() if num_gpus is None else num_gpus
    if gpus:
        visible = visible_gpus()
        if visible and len(visible) < gpus:
            raise ConfigError(f"num_gpus is {gpus:g}, and CUDA_VISIBLE_DEVICES names {len(visible)} ({', '.join(visible)})")
        total["GPU"] = float(gpus)
        if model := gpu_model():
            total[f"{ACCELERATOR_RESOURCE}{model}"] = 1.0
    total.update({name: float(amount) for name, amount in (resources or {}).items()})
    if memory is not None:
        total[MEMORY] = float(int(memory))
    return total


def node_of_cluster(address: str) -> Session:
    """This machine's node of a cluster: the addressed one, else the oldest."""
    from zfabric.runtime.cluster import nodes_here, reach

    here = nodes_here(address)
    if not here:
        reach(address)
        raise ConnectionLostError(
            f"no node of the cluster at {address} runs on this machine, and a program joins through one; start one here with "
            f"`zfabric start --address {address} --key-file FILE`"
        )
    return here[0]


def find_session(address: str) -> Session:
    """The session at "auto" (the started one), "tcp://host:port" or a session directory."""
    if address == "auto":
        session = started_session()
        if session is None:
            raise ConnectionLostError(
                f"no cluster is running here ({where_looked()}); start one with `zfabric start`, or by zf.init() without an address"
            )
        return session
    if is_cluster_address(address):
        return node_of_cluster(address)
    if address.startswith("ray://"):
        raise ConnectionLostError(
            f"{address!r} is an address of a Ray client, which zfabric does not have: a program joins through a node on its own machine, "
            'which `zfabric start --address` starts; "auto" or tcp://HOST:PORT of the cluster then finds it'
        )
    if re.fullmatch(r"[^/\s]+:\d+", address):
        raise ConnectionLostError(f"{address!r} is no address: write tcp://{address} for a cluster of several nodes")
    path = address.removeprefix("ipc://")
    if not os.path.isdir(path):
        raise ConnectionLostError(
            f'there is no session at {address!r}: it has ended, or never was; an address is a session directory, "auto" or tcp://HOST:PORT'
        )
    session = Session(path)
    if not session.alive():
        raise ConnectionLostError(f"the session at {address!r} has ended")
    return session


def await_registered(client: DriverClient, nodes: Iterable[str]) -> None:
    """Wait until these nodes (ids as text) have registered with each other, before which they exchange no tasks.

    At most ``REGISTERED_SECONDS``, and not for silent nodes.
    """
    waiting, until = set(nodes), clock() + REGISTERED_SECONDS
    while len(waiting) > 1:
        registered = {}
        for node in waiting:
            with suppress(FabricError):  # It has died, or is held up.
                registered[node] = {node, *client.query("at", bytes.fromhex(node), "registered")}
        waiting &= registered.keys()
        if all(waiting <= each for each in registered.values()) or clock() >= until:
            break
        time.sleep(0.002)  # A tool polls: the daemon does not notify it.


def drain_node(
    session: Session,
    node: str,
    timeout: float | None = None,
    force: bool = False,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> bool:
    """Drain a node (its id as text) and wait until it has left. Return False if ``timeout`` seconds ended it.

    ``report`` receives what is left on the node. Raises FabricError if it cannot be drained, or dies too early.
    """
    identifier = bytes.fromhex(node)
    client = attach(session, kind="tool")
    in_time, left = True, None
    try:
        until = None if timeout is None else clock() + timeout
        while any(row["node"] == node for row in client.query("nodes")):
            late = until is not None and clock() >= until
            try:
                left = client.query("at", identifier, "drain", force, late)
            except FabricError:
                if any(row["node"] == node for row in client.query("nodes")):
                    raise
                break
            in_time &= not late or not (left["tasks"] or left["values"] or left["actors"])
            if report is not None:
                report(left)
            time.sleep(0.05)  # As above.
        if left is None:
            raise NodeDiedError("that node has died, or was stopped, before it could be drained")
        return in_time
    except NodeDiedError as error:
        if client.node != identifier or DRAINED not in str(error):
            raise
        return in_time  # The tool's own node has left.
    finally:
        client.close()


def this_program() -> Program:
    """This program's script and command, as far as known."""
    arguments = [text for text in getattr(sys, "orig_argv", []) if isinstance(text, str)]
    return Program(os.environ.get(JOB_VARIABLE, ""), _script(), shlex.join(arguments))


def _script() -> str:
    first = sys.argv[0] if getattr(sys, "argv", None) else ""
    if first in ("", "-c", "-m", "-"):
        return {"-c": "python -c"}.get(first, "python")
    name = os.path.basename(first)
    if name in ("__main__.py", "__init__.py"):  # python -m package
        return os.path.basename(os.path.dirname(os.path.abspath(first)))
    return "notebook" if name == "ipykernel_launcher.py" else name
