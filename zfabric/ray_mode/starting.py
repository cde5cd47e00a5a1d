"""``ray.init``: zfabric's ``init``, with those of Ray's arguments that mean something else here."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

from zfabric.api import lifecycle
from zfabric.api.lifecycle import ClusterContext
from zfabric.exceptions import ConfigError

CLIENT_SCHEME = "ray://"
DETACHED = 0
"""How a ``JobConfig`` writes that its actors are detached by default."""
hooks: list[Callable[[], None]] = []
"""Called once a program is connected: Ray's ``_post_init_hooks``."""
MODIN_IMPORTS = "__MODIN_AUTOIMPORT_PANDAS__"
"""Set by Modin while it calls ``init``: then its ``.pth`` file imports pandas in every new interpreter, which may start threads before
zfabric forks.
"""


def init(address: str | None = None, *, _memory: float | None = None, job_config: Any = None, **options: Any) -> ClusterContext:
    """Join or start a cluster, as ``zfabric.init`` does; ``address`` and ``options`` are its arguments.

    Missing ones (None) come from ``job_config``, and from RAY_ADDRESS, RAY_NAMESPACE and RAY_LOG_TO_DRIVER. Raises ConfigError for an
    address of Ray's client, and for a job whose actors are all to be detached.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if isinstance(address, str) and address.startswith(CLIENT_SCHEME):
        raise ConfigError(
            f"init: {address!r} is an address of Ray's client, which is not here: run the program on a machine of the cluster, with the "
            'address of a node (tcp://host:port) or "auto" (docs/as-ray.md)'
        )
    if _memory is not None:
        options["_memory"] = _memory
    if (spilling := options.pop("object_spilling_directory", None)) is not None:
        os.makedirs(spilling, exist_ok=True)
        options["config"] = {**(options.get("config") or {}), "spill_directory": spilling}
    if job_config is not None:
        _take(job_config, options)
    if options.get("namespace") is None:
        options["namespace"] = os.environ.get("RAY_NAMESPACE") or str(uuid.uuid4())  # As in Ray, that of this program alone.
    options.setdefault("log_to_driver", os.environ.get("RAY_LOG_TO_DRIVER") != "0")
    modin = os.environ.pop(MODIN_IMPORTS, None)
    try:
        context = lifecycle.init(address, **options)
    finally:
        if modin is not None:
            os.environ[MODIN_IMPORTS] = modin
    for hook in hooks:
        hook()
    return context


def _take(job_config: Any, options: dict[str, Any]) -> None:
    """Add the namespace and the runtime_env of a ``ray.job_config.JobConfig`` to the arguments of ``init``, which win."""
    if getattr(job_config, "_default_actor_lifetime", None) == DETACHED:
        raise ConfigError("init: default_actor_lifetime='detached' has no meaning here: pass lifetime='detached' to each actor's options")
    for option, value in (("namespace", job_config.ray_namespace), ("runtime_env", job_config.runtime_env)):
        if options.get(option) is None and value:
            options[option] = value
