"""Placement groups. As in Ray, ``ray.util.placement_group`` is a function, too."""

import sys as _sys
from typing import Any

import zfabric.util.placement_group as _module
from zfabric.api.placement_groups import check_arguments, check_selectors
from zfabric.ray_mode.absent import Absent, attributes
from zfabric.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

_validate_bundles = Absent("ray.util.placement_group._validate_bundles", "validate_placement_group checks the bundles, too")
_validate_bundle_label_selector = Absent("ray.util.placement_group._validate_bundle_label_selector")
VALID_PLACEMENT_GROUP_STRATEGIES = {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}


def check_placement_group_index(group: PlacementGroup | None, bundle_index: int) -> None:
    """Raise ValueError if the group has no such bundle; -1 is any."""
    if group is not None and not -1 <= bundle_index < group.bundle_count:
        raise ValueError(f"there is no bundle {bundle_index} in a placement group of {group.bundle_count}")


def _valid_resource_shape(resources: dict[str, float], bundle_specs: list[dict[str, float]]) -> bool:
    """Whether a bundle has room for these resources."""
    return any(all(bundle.get(name, 0) >= amount for name, amount in resources.items()) for bundle in bundle_specs)


def validate_placement_group(
    bundles: Any, strategy: str | None = None, lifetime: str | None = None, bundle_label_selector: Any = None, **options: Any
) -> None:
    """Raise ValueError unless ``placement_group`` takes these arguments."""
    check_selectors(bundle_label_selector, len(check_arguments(bundles, strategy or "PACK", lifetime, options)))


_sys.modules[__name__].__class__ = type(_module)
__getattr__: Any = attributes(__name__)
