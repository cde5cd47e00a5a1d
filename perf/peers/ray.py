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
