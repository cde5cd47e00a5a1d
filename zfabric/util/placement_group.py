"""Placement groups, under Ray's names. This module is also a function: ``zf.util.placement_group(...)`` makes a group."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from zfabric.api.placement_groups import (
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "PlacementGroup",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]


class _Callable(ModuleType):
    """A module that can be called: the import system puts it where Ray has the function of that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> PlacementGroup:
        return placement_group(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (__name__,)  # As any module: a function whose global it is can be sent.


sys.modules[__name__].__class__ = _Callable
