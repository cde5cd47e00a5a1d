"""Ray."""

from __future__ import annotations

import logging
from typing import Any

import ray  # type: ignore[import-not-found, unused-ignore]

from perf.peers import System
from perf.workloads import nothing

_nothing: Any = ray.remote(nothing)


def nested_parent(count: int) -> None:
    """A task that starts ``count`` no-op tasks and waits for them."""
    ray.get([_nothing.remote() for _ in range(count)])


class Ray(System):
    """A local Ray without its dashboard."""

    name = "ray"
    remote = staticmethod(ray.remote)
    get = staticmethod(ray.get)
    put = staticmethod(ray.put)
    wait = staticmethod(ray.wait)
    nested_parent = staticmethod(nested_parent)

    def start(self, workers: int) -> None:
        """As a user would."""
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)

    def stop(self) -> None:
        """End it."""
        ray.shutdown()


class RayNodes(Ray):
    """Two nodes of one CPU each on this machine, as Ray's own tests have them. The first is the driver's."""

    def start(self, workers: int) -> None:
        """Start both, however many workers are asked for."""
        from ray.cluster_utils import Cluster  # type: ignore[import-not-found, unused-ignore]

        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"first": 1}, "include_dashboard": False})
        self._cluster.add_node(num_cpus=1, resources={"second": 1})
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        self._cluster.wait_for_nodes()

    def stop(self) -> None:
        """End both."""
        ray.shutdown()
        self._cluster.shutdown()

    def remote(self, function: Any) -> Any:  # type: ignore[override]
        """What runs on the second node."""
        return ray.remote(function).options(resources={"second": 0.001})

    def here(self, function: Any) -> Any:
        """What runs on the first."""
        return ray.remote(function).options(resources={"first": 0.001})
