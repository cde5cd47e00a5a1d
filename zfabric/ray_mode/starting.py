"""``ray.init``: zfabric's, with the arguments of Ray's that mean something else here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zfabric.api import lifecycle
from zfabric.api.lifecycle import ClusterContext
from zfabric.exceptions import ConfigError

CLIENT_SCHEME = "ray://"
hooks: list[Callable[[], None]] = []
"""What libraries have run once a program is connected: Ray's ``_post_init_hooks``."""


def init(address: str | None = None, *, _memory: float | None = None, **options: Any) -> ClusterContext:
    """Join or start a cluster, as ``zfabric.init`` does; ``address`` and ``options`` are its arguments.

    Raises ConfigError for an address of Ray's client.
    """
    if isinstance(address, str) and address.startswith(CLIENT_SCHEME):
        raise ConfigError(
            f"init: {address!r} is an address of Ray's client, which is not here: run the program on a machine of the cluster, with the "
            'address of a node (tcp://host:port) or "auto" (docs/as-ray.md)'
        )
    if _memory is not None:
        options["_memory"] = _memory
    context = lifecycle.init(address, **options)
    for hook in hooks:
        hook()
    return context
