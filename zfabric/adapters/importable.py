"""Decides whether a function or a class travels by its name or by value.

What other processes can import travels by its module's name and its own. What they cannot import travels by value: whatever belongs to
``__main__``, what was made inside a function, and the contents of modules registered with ``cloudpickle.register_pickle_by_value``.
"""

from __future__ import annotations

import sys
from typing import Any

MAIN = "__main__"
"""The name of the program's own module."""
_NOTHING = object()


def importable(named: Any) -> bool:
    """Whether other processes can and should import this function or class by its name."""
    module = getattr(named, "__module__", None)
    if not isinstance(module, str) or module == MAIN or module not in sys.modules:
        return False
    if _travels_by_value(module):
        return False
    return found_in(sys.modules[module], getattr(named, "__qualname__", "")) is named


def found_in(place: Any, path: str) -> Any:
    """Return the attribute that a dotted path names, or an object that nothing else is."""
    for name in path.split("."):
        place = getattr(place, name, _NOTHING)
        if place is _NOTHING:
            break
    return place


def _travels_by_value(module: str) -> bool:
    cloudpickle = sys.modules.get("cloudpickle")  # Whoever registers a module has loaded it.
    registered = () if cloudpickle is None else cloudpickle.list_registry_pickle_by_value()
    return bool(registered) and any(module == each or module.startswith(f"{each}.") for each in registered)
