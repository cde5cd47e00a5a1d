"""Requests for nodes."""

from typing import Any

from zfabric.ray_mode.absent import attributes


def request_resources(num_cpus: int | None = None, bundles: list[dict[str, Any]] | None = None, **ignored: Any) -> None:
    """Nothing: no autoscaler is attached to this cluster, which Ray ignores, too."""


__getattr__ = attributes(__name__)
