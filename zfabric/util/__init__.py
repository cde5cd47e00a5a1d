"""Built on the public names only: pools, queues, executors, strategies, bridges."""

from typing import Any

__all__ = ["ActorPool"]


def __getattr__(name: str) -> Any:
    """``ActorPool`` and the module ``queue``, loaded on first use."""
    import importlib

    if name == "ActorPool":
        return importlib.import_module("zfabric.util.actor_pool").ActorPool
    if name in ("actor_pool", "executor", "queue"):
        return importlib.import_module(f"zfabric.util.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
