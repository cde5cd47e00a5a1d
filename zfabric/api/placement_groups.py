"""Placement groups: resources of one or several nodes, reserved together, all or nothing, for tasks and actors that name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zfabric.api.core import get, wait
from zfabric.api.lifecycle import connected
from zfabric.api.options import _name_of
from zfabric.api.refs import ObjectRef
from zfabric.api.remote_function import made
from zfabric.api.strategies import PlacementGroupSchedulingStrategy, check_selector, strategy_of
from zfabric.exceptions import OptionError, OptionTypeError
from zfabric.machines.common.resources import CPU, GPU, demand_of
from zfabric.protocol.options import GROUP_POLICIES, MEMORY, RESOURCE_UNIT, STORE_MEMORY, WHOLE_GROUP, Demand, Strategy, group_of
from zfabric.runtime import interface

BUNDLES_MAX = 500


class PlacementGroup:
    """A placement group. Made by ``zf.util.placement_group``; may be passed to tasks and actors."""

    def __init__(self, identifier: bytes, home: bytes, demands: tuple[Demand, ...]) -> None:
        self.id = identifier
        """Its id: 16 bytes."""
        self.home = home
        """The id of the node that decides about it."""
        self.demands = demands
        """Its bundles, as sorted (name, amount in 1/10,000) pairs."""

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """The resources of each bundle, by name."""
        return [{name: amount / RESOURCE_UNIT for name, amount in demand} for demand in self.demands]

    @property
    def bundle_count(self) -> int:
        """The number of bundles."""
        return len(self.demands)

    @property
    def is_empty(self) -> bool:
        """False: a group has a bundle at least."""
        return not self.demands

    def ready(self) -> ObjectRef[PlacementGroup]:
        """Return a ref to this group that has a value once all bundles are reserved.

        ``zf.get`` of it raises PlacementGroupRemovedError if the group is removed before.

        >>> import zfabric as zf
        >>> group = zf.util.placement_group([{"CPU": 1}])
        >>> zf.get(group.ready()) == group
        True
        >>> zf.util.remove_placement_group(group)
        """
        strategy = PlacementGroupSchedulingStrategy(self)
        strategy.placement_group_bundle_index = WHOLE_GROUP
        ref: ObjectRef[PlacementGroup] = made(_itself, {"num_cpus": 0, "name": "placement group", "scheduling_strategy": strategy}).remote(
            self
        )
        return ref

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Wait until all bundles are reserved. Return False after ``timeout_seconds``; a negative number is no limit.

        Raises PlacementGroupRemovedError if the group is removed before.

        >>> import zfabric as zf
        >>> group = zf.util.placement_group([{"CPU": 1}])
        >>> group.wait(timeout_seconds=10)
        True
        >>> zf.util.remove_placement_group(group)
        """
        ready, _ = wait([self.ready()], timeout=None if timeout_seconds < 0 else timeout_seconds)
        return bool(ready) and get(ready[0]) == self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        return PlacementGroup, (self.id, self.home, self.demands)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()}, {self.bundle_specs})"


def _itself(group: PlacementGroup) -> PlacementGroup:
    return group


def placement_group(
    bundles: Sequence[Mapping[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
    bundle_label_selector: Sequence[Mapping[str, str]] | None = None,
    **unsupported: Any,
) -> PlacementGroup:
    """Reserve bundles of resources on the nodes of the cluster, all or nothing. Return at once: ``ready`` says when they are reserved.

    A bundle maps names to amounts: "CPU", "GPU", "memory" (bytes) and others. ``bundle_label_selector`` has a ``label_selector`` for each
    bundle; an empty one takes any node. ``strategy`` is "PACK" (as few nodes as possible), "SPREAD" (as many as possible), "STRICT_PACK"
    (one node) or "STRICT_SPREAD" (a node for each bundle). Tasks and actors run in a group by ``PlacementGroupSchedulingStrategy``.

    A group waits until nodes have room; bundles of a dead node are reserved elsewhere. It is freed when its job ends; with the ``lifetime``
    "detached", by ``remove_placement_group``, or when its driver's node ends. Raises OptionError for invalid arguments, and if a group of
    the namespace has the ``name`` already. Ray's other arguments are ``unsupported``.

    >>> import zfabric as zf
    >>> group = zf.util.placement_group([{"CPU": 1}], strategy="STRICT_PACK")
    >>> group.bundle_specs
    [{'CPU': 1.0}]
    >>> zf.util.remove_placement_group(group)
    """
    demands = check_arguments(bundles, strategy, lifetime, unsupported)
    selectors = check_selectors(bundle_label_selector, len(demands))
    if name:
        _name_of("placement_group: name")(name)
    client = connected()
    identifier = client.new_id()
    terms = (identifier, demands, strategy, name or "", client.namespace, lifetime == "detached", selectors)
    home, error = client.query("create group", *terms)
    if error:
        raise OptionError(f"placement_group: {error}")
    return PlacementGroup(identifier, home, demands)


def check_arguments(bundles: Any, strategy: Any, lifetime: Any, unsupported: Mapping[str, Any]) -> tuple[Demand, ...]:
    """Check arguments of ``placement_group``; return its bundles' demands. Raises OptionError or TypeError."""
    for option, value in unsupported.items():
        if option != "_soft_target_node_id":
            raise TypeError(f"placement_group() has no argument {option!r}")
        if value:
            raise OptionError(f"placement_group: {option} is not supported; bundle_label_selector chooses nodes")
    if strategy not in GROUP_POLICIES:
        raise OptionError(f"placement_group: strategy is one of {', '.join(GROUP_POLICIES)}, not {strategy!r}")
    if lifetime not in (None, "detached"):
        raise OptionError(f"placement_group: lifetime is None or 'detached', not {lifetime!r}")
    if isinstance(bundles, str | Mapping) or not isinstance(bundles, Sequence) or not bundles:
        raise OptionTypeError(f"placement_group: bundles is a list of dicts, such as [{{'CPU': 1}}], not {bundles!r}")
    if len(bundles) > BUNDLES_MAX:
        raise OptionError(f"placement_group: a group has at most {BUNDLES_MAX} bundles, not {len(bundles)}")
    return tuple(_demand(index, bundle) for index, bundle in enumerate(bundles))


def _demand(index: int, bundle: Any) -> Demand:
    if not isinstance(bundle, Mapping) or not bundle:
        raise OptionTypeError(f"placement_group: bundle {index} is a dict such as {{'CPU': 1}}, not {bundle!r}")
    rest = {name: amount for name, amount in bundle.items() if name not in (CPU, GPU, MEMORY, STORE_MEMORY)}
    try:
        demand = demand_of(bundle.get(CPU, 0), bundle.get(GPU), rest, bundle.get(MEMORY))
    except OptionError as error:
        raise type(error)(f"placement_group: bundle {index}: {error}") from None
    if not demand and STORE_MEMORY not in bundle:  # That option has no effect.
        raise OptionError(f"placement_group: bundle {index} asks for nothing: {bundle!r}")
    return demand


def check_selectors(selectors: Any, count: int) -> tuple[Strategy, ...]:
    """Check the label selectors of ``count`` bundles, and encode them; empty if no bundle asks for labels."""
    if not selectors:
        return ()
    if isinstance(selectors, str | Mapping) or not isinstance(selectors, Sequence):
        raise OptionTypeError(f"placement_group: bundle_label_selector is a list of dicts, one for each bundle, not {selectors!r}")
    if len(selectors) != count:
        raise OptionError(f"placement_group: bundle_label_selector has {len(selectors)} dicts for {count} bundles: it is one for each")
    for each in selectors:
        check_selector(each)
    encoded = tuple(strategy_of({"label_selector": each}) or () for each in selectors)
    return encoded if any(encoded) else ()


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Free the bundles of ``placement_group``, and kill what runs in them. Has no effect on a group that was removed before.

    Tasks without an outcome fail with PlacementGroupRemovedError, and actors die.

    >>> import zfabric as zf
    >>> group = zf.util.placement_group([{"CPU": 1}])
    >>> zf.util.remove_placement_group(group)
    >>> zf.util.placement_group_table(group)["state"]
    'REMOVED'
    """
    _checked(placement_group)
    connected().query("remove group", placement_group.id, placement_group.home)


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Describe ``placement_group``, or all groups by id: state, strategy, bundles, and the node of each.

    The state is "PENDING", "CREATED", "RESCHEDULING" (a node with bundles has died) or "REMOVED", of which only the state is known.

    >>> import zfabric as zf
    >>> group = zf.util.placement_group([{"CPU": 1}])
    >>> group.wait(10)
    True
    >>> zf.util.placement_group_table(group)["state"]
    'CREATED'
    >>> zf.util.remove_placement_group(group)
    """
    if placement_group is not None:
        _checked(placement_group)
    rows = {row["group"]: _described(row) for row in connected().query("groups")}
    if placement_group is None:
        return rows
    removed = {"placement_group_id": placement_group.id.hex(), "state": "REMOVED"}
    return rows.get(placement_group.id.hex(), removed)


def _described(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "placement_group_id": row["group"],
        "name": row["name"],
        "bundles": dict(enumerate(row["bundles"])),
        "bundles_to_node_id": dict(enumerate(row["places"])),
        "strategy": row["strategy"],
        "state": row["state"],
    }


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Return the group called ``placement_group_name`` in the program's namespace. Raises ValueError if there is none.

    >>> import zfabric as zf
    >>> group = zf.util.placement_group([{"CPU": 1}], name="trainers")
    >>> zf.util.get_placement_group("trainers") == group
    True
    >>> zf.util.remove_placement_group(group)
    """
    _name_of("placement_group_name")(placement_group_name)
    client = connected()
    found = client.query("group", placement_group_name, client.namespace)
    if found is None:
        raise OptionError(f"there is no placement group {placement_group_name!r} in this namespace")
    return PlacementGroup(*found[:3])


def get_current_placement_group() -> PlacementGroup | None:
    """Return the group in which this task or actor runs; None if it runs in none, and in a driver.

    >>> import zfabric as zf
    >>> zf.util.get_current_placement_group() is None
    True
    """
    task = interface.current_task()
    term = group_of(task.strategy) if task is not None else None
    if term is None:
        return None
    found = connected().query("group", "", "", term.group)
    return None if found is None else PlacementGroup(*found[:3])


def _checked(placement_group: Any) -> None:
    if not isinstance(placement_group, PlacementGroup):
        raise OptionTypeError(f"a placement group is the result of zf.util.placement_group(), not {placement_group!r}")
