"""``LocalCluster``: a cluster of several nodes on this machine, for tests and for trying things out.

Each node is complete: supervisor, daemon, workers, stores, and an encrypted TCP connection to each other node. They divide the machine's
memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zfabric.adapters import processes
from zfabric.api.errors import check_labels
from zfabric.api.lifecycle import local_clusters, shutdown
from zfabric.config import Config
from zfabric.exceptions import ConfigError, FabricError
from zfabric.machines.common.resources import demand_of
from zfabric.runtime import interface

if TYPE_CHECKING:
    from zfabric.runtime.launch import Launched
    from zfabric.runtime.session import ClusterSettings

MEMORY_SHARE = 0.95
"""Share of the machine's memory for the workers of all nodes."""


class LocalNode:
    """One node of a ``LocalCluster``. ``pid`` is that of its supervisor, with which all its processes end."""

    def __init__(self, launched: Launched, name: str) -> None:
        self._launched = launched
        self._paused: list[int] = []
        self.name = name
        self.pid = launched.pid
        self.node_id = ""
        """The node's id in hexadecimal, as ``get_runtime_context().get_node_id()`` returns it there."""
        self.address = ""
        """Where other nodes reach it; ``zf.init()`` with it submits through this node."""

    def __repr__(self) -> str:
        return f"LocalNode({self.name!r}, {self.node_id!r}, pid={self.pid})"

    def _wait(self) -> LocalNode:
        from zfabric.runtime.connect import REGISTER_SECONDS, await_daemon  # It loads ZeroMQ, which no program needs before its cluster.

        session = self._launched.session
        await_daemon(session, self._launched.failure, REGISTER_SECONDS)
        membership = session.membership()
        assert membership is not None
        self.node_id, self.address = str(session.describe()["node"]), membership.address
        return self

    @property
    def session_directory(self) -> str:
        """The directory with the node's logs."""
        return self._launched.session.directory

    def alive(self) -> bool:
        """Whether its supervisor runs."""
        return self._launched.alive()

    def kill(self) -> None:
        """Kill all its processes at once, as a power failure would. Returns when its supervisor is gone."""
        if self.alive():  # Else its pid may be another process's by now.
            _signal(self.pid, signal.SIGKILL)
        self._launched.close()

    def pause(self) -> None:
        """Stop all its processes (SIGSTOP). After ``node_lease`` seconds the others declare it dead."""
        while self.alive() and (new := [pid for pid in processes.descendants(self.pid) if pid not in self._paused]):
            for pid in new:
                _signal(pid, signal.SIGSTOP)
            self._paused += new

    def resume(self) -> None:
        """Continue what ``pause`` has stopped."""
        while self._paused:
            _signal(self._paused.pop(), signal.SIGCONT)

    def _request_end(self) -> None:
        self.resume()
        self._launched.request_end()

    def _close(self) -> None:
        self._request_end()
        self._launched.close()


class LocalCluster:
    """A cluster of ``nodes`` nodes on this machine, each with ``cpus_per_node`` CPUs and ``gpus_per_node`` GPUs.

    A context manager; the nodes end with this program. ``object_store_memory`` is each node's in bytes, ``memory`` what tasks and actors
    may reserve there; by default the nodes share what one node would have. ``resources``, ``config`` (limits of ``zfabric.config``) and
    ``labels`` are those of each node. This program joins by ``zf.init()``; others at the ``address`` of the cluster (its first node), or of
    one of ``nodes``. Raises ConfigError or OptionError for invalid settings.

    >>> import zfabric as zf
    >>> with zf.LocalCluster(nodes=2, cpus_per_node=1) as cluster:
    ...     zf.shutdown()
    ...     with zf.init(cluster.address):
    ...         len(zf.nodes())
    2
    """

    def __init__(
        self,
        nodes: int = 1,
        cpus_per_node: int = 1,
        *,
        gpus_per_node: int = 0,
        object_store_memory: float | None = None,
        memory: float | None = None,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        from zfabric.runtime.supervisor import arena_bytes, reservable_bytes  # Its other parts are not needed here.

        if not isinstance(nodes, int) or nodes < 1:
            raise ConfigError(f"LocalCluster: nodes is a whole number from 1, not {nodes!r}")
        self.nodes: list[LocalNode] = []
        """The remaining nodes, the head first."""
        self._head: LocalNode | None = None
        self._reference = weakref.ref(self)
        self._cpus = cpus_per_node
        self._gpus = gpus_per_node
        self._resources = resources or {}
        self._labels = labels or {}
        self._count = 0
        settings = {"memory_limit": int(processes.memory_total() * MEMORY_SHARE) // nodes, **(config or {})}
        self._config = Config.of(settings)
        self._arena_size = _bytes("object_store_memory", object_store_memory, 1, arena_bytes(self._config) // nodes)
        self._memory = _bytes("memory", memory, 0, reservable_bytes(self._arena_size, nodes))
        try:
            for index in range(nodes):
                self._launch(index == 0)
            for node in self.nodes:
                node._wait()
            self._await_registered()
            local_clusters.append(self._reference)
        except BaseException:  # Ctrl-C too.
            self.shutdown()
            raise

    @property
    def address(self) -> str:
        """The address of the head: "tcp://host:port". Raises FabricError if the cluster has ended."""
        return self._living_head().address

    @property
    def key_file(self) -> str:
        """The key file with which further nodes can join: `zfabric start --address ADDRESS --key-file FILE`."""
        return self._living_head()._launched.session.cluster_key

    def _living_head(self) -> LocalNode:
        if self._head not in self.nodes:
            raise FabricError("this LocalCluster has ended, with its head; make another one")
        return self.nodes[0]

    def __repr__(self) -> str:
        return f"LocalCluster({self.nodes!r})"

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def add_node(
        self,
        num_cpus: int | None = None,
        *,
        num_gpus: int | None = None,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        object_store_memory: float | None = None,
        memory: float | None = None,
    ) -> LocalNode:
        """Start one more node and return it once it and the others have registered with each other.

        It has ``num_cpus`` CPUs, ``num_gpus`` GPUs, further ``resources``, ``labels``, an object store of ``object_store_memory`` bytes,
        and ``memory`` bytes that tasks and actors may reserve; None is as on the other nodes. Raises ConfigError or OptionError for invalid
        settings.
        """
        node = self._launch(False, num_cpus, num_gpus, resources, labels, object_store_memory, memory)
        try:
            node._wait()
            self._await_registered()
        except BaseException:  # Ctrl-C too.
            self.nodes.remove(node)
            node._close()
            raise
        return node

    def remove_node(self, node: LocalNode, drain: bool = False) -> None:
        """End ``node`` in order. The end of the first one, the head, ends the cluster.

        With ``drain``, first wait until its tasks and calls have ended and its values are copied, as `zfabric drain` does. Raises
        FabricError if it cannot be drained (NodeDiedError if it has died), or is not one of the cluster's.
        """
        if node not in self.nodes:
            raise FabricError(f"{node!r} is no node of this LocalCluster (any more)")
        if drain:
            from zfabric.runtime.connect import drain_node  # It loads ZeroMQ, which no program needs before its cluster.

            drain_node(self._living_head()._launched.session, node.node_id)
        self.nodes.remove(node)
        node._close()

    def shutdown(self) -> None:
        """End all nodes, and this program's connection. Has no effect if called again."""
        with contextlib.suppress(ValueError):
            local_clusters.remove(self._reference)
        directory = getattr(getattr(interface.current(), "session", None), "directory", "")
        if directory in [node.session_directory for node in self.nodes]:
            shutdown()
        nodes, self.nodes = self.nodes, []
        for node in reversed(nodes):
            node._request_end()
        for node in reversed(nodes):
            node._close()

    def _await_registered(self) -> None:
        """Wait until all nodes that are neither paused nor dead give each other tasks."""
        nodes = [node.node_id for node in self.nodes if node.alive() and not node._paused]
        if len(nodes) > 1:
            from zfabric.runtime.connect import attach, await_registered  # They load ZeroMQ, which no program needs before its cluster.

            with contextlib.closing(attach(self._living_head()._launched.session, kind="tool")) as client:
                await_registered(client, nodes)

    def _launch(
        self,
        head: bool,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        object_store_memory: float | None = None,
        memory: float | None = None,
    ) -> LocalNode:
        from zfabric.runtime.connect import node_resources  # These load ZeroMQ, which no program needs before its cluster.
        from zfabric.runtime.launch import launch
        from zfabric.runtime.session import ClusterSettings

        labels = self._labels if labels is None else labels
        check_labels("LocalCluster: labels", labels)
        resources = self._resources if resources is None else resources
        cpus = self._cpus if num_cpus is None else num_cpus
        gpus = self._gpus if num_gpus is None else num_gpus
        memory = _bytes("memory", memory, 0, self._memory)
        demand_of(cpus, gpus, resources, memory)
        address, key_file = ("", "") if head else (self.address or self.nodes[0].session_directory, self.key_file)
        self._count += 1
        name = f"node{self._count}"
        launched = launch(
            config=self._config,
            resources=node_resources(cpus, gpus, dict(resources), memory),
            arena_size=_bytes("object_store_memory", object_store_memory, 1, self._arena_size),
            cluster=self._reached(ClusterSettings(head, "", 0, address, key_file, name, tuple(sorted(labels.items())), "")),
        )
        node = LocalNode(launched, name)
        self.nodes.append(node)
        self._head = self._head or node
        return node

    def _reached(self, settings: ClusterSettings) -> ClusterSettings:
        """Return a new node's settings. Tests override this: nodes reach each other through a relay, at other addresses."""
        return settings


def _bytes(name: str, size: float | None, least: int, usual: int) -> int:
    if size is None:
        return usual
    if isinstance(size, bool) or not isinstance(size, int | float) or not least <= size < float("inf"):
        raise ConfigError(f"LocalCluster: {name} is a number of bytes, not {size!r}")
    return int(size)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
