"""Clusters of several nodes on one machine, for tests (``zfabric.LocalCluster``)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import zfabric
from zfabric.config import Config
from zfabric.exceptions import GetTimeoutError
from zfabric.ray_mode.absent import Absent, attributes
from zfabric.ray_mode.starting import init
from zfabric.util.local_cluster import LocalCluster, LocalNode

AutoscalingCluster = Absent("ray.cluster_utils.AutoscalingCluster", "no autoscaler is attached")
cluster_not_supported = False
_WITHOUT_EFFECT = {
    "_system_config", "dashboard_agent_listen_port", "dashboard_host", "dashboard_port", "env_vars", "gcs_server_port", "include_dashboard",
    "metrics_agent_port", "metrics_export_port", "node_ip_address", "node_manager_port", "node_name", "port", "redis_password",
    "runtime_env_agent_port", "temp_dir", "object_manager_port", "object_spilling_directory", "enable_object_reconstruction",
    "min_worker_port", "max_worker_port", "num_redis_shards", "redis_max_memory", "plasma_directory", "log_to_driver",
    "runtime_env_dir_name", "ray_client_server_port", "raylet_name", "include_log_monitor", "worker_port_list", "external_addresses",
    "enable_physical_mode", "dashboard_agent_grpc_port", "tracing_startup_hook",
}  # fmt: skip
"""Arguments of nodes about how Ray runs."""
_LEASE_MIN = 3.0
"""Seconds that a busy machine's node may be silent."""


class Cluster:
    """Nodes, the head first. ``head_node_args`` are arguments of ``add_node``."""

    def __init__(
        self,
        initialize_head: bool = False,
        connect: bool = False,
        head_node_args: dict[str, Any] | None = None,
        shutdown_at_exit: bool = True,
    ) -> None:
        self._cluster: LocalCluster | None = None
        self.connected = False
        if initialize_head:
            self.add_node(**(head_node_args or {}))
            if connect:
                self.connect()

    @property
    def address(self) -> str:
        """What ``ray.init`` takes to join."""
        return self._living().address

    gcs_address = address

    @property
    def head_node(self) -> LocalNode | None:
        """The first node; None before there is one."""
        return self._cluster.nodes[0] if self._cluster is not None and self._cluster.nodes else None

    @property
    def worker_nodes(self) -> set[LocalNode]:
        """The other nodes."""
        return set(self._living().nodes[1:])

    def _living(self) -> LocalCluster:
        if self._cluster is None:
            raise zfabric.FabricError("this Cluster has no node yet: call add_node()")
        return self._cluster

    def connect(self, namespace: str | None = None) -> None:
        """Join the cluster with this process."""
        init(self.address, namespace=namespace)
        self.connected = True

    def add_node(self, wait: bool = True, **arguments: Any) -> LocalNode:
        """Start a node with num_cpus, num_gpus, resources, labels, memory and object_store_memory."""
        given = {name: value for name, value in arguments.items() if name not in _WITHOUT_EFFECT and value is not None}
        if self._cluster is not None:
            return self._cluster.add_node(given.pop("num_cpus", 1), **{"num_gpus": 0, "resources": {}, "labels": {}, **given})
        config = {"node_lease": _lease(arguments.get("_system_config") or {})}
        self._cluster = LocalCluster(1, given.pop("num_cpus", 1), config=config, gpus_per_node=given.pop("num_gpus", 0), **given)
        return self._cluster.nodes[0]

    def remove_node(self, node: LocalNode, allow_graceful: bool = True) -> None:
        """End a node, in order or by killing its processes."""
        if not allow_graceful:
            node.kill()
        self._living().remove_node(node)

    def wait_for_nodes(self, timeout: float = 30) -> None:
        """Wait until this process sees as many nodes as there are. Raises GetTimeoutError after ``timeout`` seconds.

        ``add_node`` returns once the nodes have registered with each other, so an unconnected process need not wait.
        """
        ends = time.monotonic() + timeout
        while zfabric.is_initialized() and len(zfabric.nodes()) != len(self._living().nodes):
            if time.monotonic() > ends:
                raise GetTimeoutError(f"{len(zfabric.nodes())} nodes are registered, not {len(self._living().nodes)}")
            time.sleep(0.05)

    def list_all_nodes(self) -> list[LocalNode]:
        """The nodes, the head first."""
        return list(self._living().nodes)

    def shutdown(self) -> None:
        """End all nodes."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.shutdown()


def _lease(system_config: Mapping[str, Any]) -> float:
    """Seconds after which a silent node is dead, by Ray's settings for its checks, else zfabric's default."""
    period, failures = system_config.get("health_check_period_ms"), system_config.get("health_check_failure_threshold", 5)
    return Config().node_lease if period is None else max(_LEASE_MIN, period * failures / 1000)


__getattr__ = attributes(__name__)
