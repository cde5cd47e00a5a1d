"""Pickles functions with a cache (``functools.lru_cache``, ``functools.cache``).

Python pickles them by name, under which others do not find those of ``__main__`` or of other functions. Those travel as the inner function
and the cache's parameters; a loaded one begins with an empty cache.
"""

from __future__ import annotations

import functools
from typing import Any

from zfabric.adapters.importable import importable

CachedFunction: Any = functools._lru_cache_wrapper
_NAMES = ("__module__", "__name__", "__qualname__", "__doc__")
_MADE = frozenset(functools.WRAPPER_ASSIGNMENTS) | {"__wrapped__", "cache_parameters"}
"""Attributes that the constructor sets."""
_NOTHING = object()


def reduce_cached(cached: Any) -> str | tuple[Any, ...]:
    """Reduce a cached function to its name if other processes can import it, else to its parts."""
    if importable(cached):
        return str(cached.__qualname__)
    inside = cached.__wrapped__
    inherited = getattr(inside, "__dict__", {})
    own = {name: value for name, value in vars(cached).items() if name not in _MADE and inherited.get(name, _NOTHING) is not value}
    named = {name: getattr(cached, name, None) for name in _NAMES}
    changed = {name: value for name, value in named.items() if value != getattr(inside, name, None)}
    return _cached, (inside, cached.cache_parameters()), {**changed, **own} or None


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
