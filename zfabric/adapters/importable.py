"""Decides whether a function or a class travels by its name or by value.

By value travels what other processes cannot import (what ``__main__`` or a function made), and contents of modules registered with
``cloudpickle.register_pickle_by_value``.
"""

from __future__ import annotations

import sys
from typing import Any

MAIN = "__main__"
_NOTHING = object()


def importable(named: Any) -> bool:
    """Whether other processes can and should import this function or class by name."""
    module = getattr(named, "__module__", None)
    if not isinstance(module, str) or module == MAIN or module not in sys.modules:
        return False
    if _travels_by_value(module):
        return False
    return found_in(sys.modules[module], getattr(named, "__qualname__", "")) is named


def found_in(place: Any, path: str) -> Any:
    """Return the attribute at a dotted path, or a unique object if there is none."""
    for name in path.split("."):
        place = getattr(place, name, _NOTHING)
        if place is _NOTHING:
            break
    return place


def _travels_by_value(module: str) -> bool:
    cloudpickle = sys.modules.get("cloudpickle")  # Whoever registers a module has loaded it.
    registered = () if cloudpickle is None else cloudpickle.list_registry_pickle_by_value()
    return bool(registered) and any(module == each or module.startswith(f"{each}.") for each in registered)
