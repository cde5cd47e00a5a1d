"""Requests for nodes."""

from typing import Any

from zfabric.ray_mode.absent import attributes


def request_resources(num_cpus: int | None = None, bundles: list[dict[str, Any]] | None = None, **ignored: Any) -> None:
    """Do nothing: there is no autoscaler."""


__getattr__ = attributes(__name__)
