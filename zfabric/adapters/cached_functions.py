"""Pickles functions with a cache (``functools.lru_cache``, ``functools.cache``).

Python pickles them by name alone. So those of ``__main__``, and those made inside other functions, are not found in other processes. Here
they travel as the inner function and the parameters of the cache, wherever cloudpickle would send that function by value. Each process
that loads one has a cache of its own, empty at first.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

CachedFunction: Any = functools._lru_cache_wrapper
"""The class of the functions that ``functools.lru_cache`` makes."""
_NAMES = ("__module__", "__name__", "__qualname__", "__doc__")
_MADE = frozenset(functools.WRAPPER_ASSIGNMENTS) | {"__wrapped__", "cache_parameters"}
"""Attributes that the constructor sets."""
_NOTHING = object()


def reduce_cached(cached: Any) -> str | tuple[Any, ...]:
    """Reduce a cached function for pickle: to its name if other processes can import it, or else to its parts."""
    if _importable(cached):
        return str(cached.__qualname__)
    inside = cached.__wrapped__
    inherited = getattr(inside, "__dict__", {})
    own = {name: value for name, value in vars(cached).items() if name not in _MADE and inherited.get(name, _NOTHING) is not value}
    named = {name: getattr(cached, name, None) for name in _NAMES}
    changed = {name: value for name, value in named.items() if value != getattr(inside, name, None)}
    return _cached, (inside, cached.cache_parameters()), {**changed, **own} or None


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _importable(cached: Any) -> bool:
    """Whether other processes can and should import it by name."""
    import cloudpickle  # Plain data is pickled without it: processes start sooner.

    found: Any = sys.modules.get(str(cached.__module__))
    if found is None or cached.__module__ == "__main__":
        return False
    by_value = cloudpickle.list_registry_pickle_by_value()
    if any(cached.__module__ == module or cached.__module__.startswith(f"{module}.") for module in by_value):
        return False
    for name in cached.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cached
