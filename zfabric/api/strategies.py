"""Strategies: which nodes may run a task or an actor, under Ray's names. Validated here, and encoded for messages (``protocol.options``).

The options are ``scheduling_strategy`` and ``label_selector``, with ids and labels as in ``zf.nodes()``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import index as integer
from typing import Any, SupportsIndex, TypeVar

from zfabric.exceptions import OptionError, OptionTypeError, TaskUnschedulableError
from zfabric.machines.common.resources import covers, describe, named_demand
from zfabric.protocol.names import check_length, is_text
from zfabric.protocol.options import ANY_BUNDLE, NODE_ID, SPREAD, Demand, GroupTerm, Strategy, group_strategy
from zfabric.runtime.interface import ClientInterface

NODE_ID_LABELS = ("ray.io/node-id", "ray.io/node_id")
"""Ray's labels, newer and older, for a node's id."""

_Of = TypeVar("_Of")


class NodeAffinitySchedulingStrategy:
    """Run on the node with the id ``node_id``; with ``soft``, on another one if that node does not exist.

    Used as ``scheduling_strategy`` of a function or class. The call raises TaskUnschedulableError if the node does not exist. If it dies
    later, that is the outcome of its tasks.

    >>> import zfabric as zf
    >>> from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    >>> here = NodeAffinitySchedulingStrategy(node_id=zf.nodes()[0]["NodeID"], soft=False)
    >>> zf.get(zf.remote(max).options(scheduling_strategy=here).remote(1, 2))
    2
    """

    def __init__(self, node_id: str, soft: bool) -> None:
        if not isinstance(node_id, str):
            raise TypeError(f"node_id is an id as zf.nodes() and zf.get_runtime_context() give it, not {node_id!r}")
        self.node_id = node_id
        self.soft = bool(soft)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeAffinitySchedulingStrategy) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.node_id, self.soft))

    def __repr__(self) -> str:
        return f"NodeAffinitySchedulingStrategy(node_id={self.node_id!r}, soft={self.soft})"


class _Operator:
    operator = "in"

    def __init__(self, *values: str) -> None:
        for value in values:
            if not isinstance(value, str):
                raise OptionTypeError(f"{type(self).__name__}: the value of a label is a str, not {value!r}")
        self.values = values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.values))})"


class In(_Operator):
    """The label has one of these ``values``."""

    def __init__(self, *values: str) -> None:
        super().__init__(*values)
        if not values:
            raise OptionError(f"{type(self).__name__} needs a value at least")


class NotIn(In):
    """The label has none of these ``values``, or the node has no such label."""

    operator = "not in"


class Exists(_Operator):
    """The node has the label."""

    def __init__(self) -> None:
        super().__init__()


class DoesNotExist(Exists):
    """The node does not have the label."""

    operator = "not in"


class NodeLabelSchedulingStrategy:
    """Run on nodes whose labels satisfy all of ``hard``; among these, on ones that satisfy all of ``soft``, if there are any.

    Both map a label to ``In``, ``NotIn``, ``Exists`` or ``DoesNotExist``, or OptionTypeError is raised. Tasks are dealt out evenly to the
    nodes that fit, and wait while there is none.

    >>> from zfabric.util.scheduling_strategies import In, NodeLabelSchedulingStrategy
    >>> NodeLabelSchedulingStrategy(hard={"zone": In("a", "b")})
    NodeLabelSchedulingStrategy(hard={'zone': In('a', 'b')}, soft={})
    """

    def __init__(self, hard: Mapping[str, _Operator] | None = None, soft: Mapping[str, _Operator] | None = None) -> None:
        self.hard = dict(hard or {})
        self.soft = dict(soft or {})
        for label, operator in (*self.hard.items(), *self.soft.items()):
            _check_label(label)
            if not isinstance(operator, _Operator):
                raise OptionTypeError(f"label {label!r} is compared by In, NotIn, Exists or DoesNotExist, not {operator!r}")

    def __repr__(self) -> str:
        return f"NodeLabelSchedulingStrategy(hard={self.hard!r}, soft={self.soft!r})"


class PlacementGroupSchedulingStrategy:
    """Run in ``placement_group``, in the bundle ``placement_group_bundle_index`` or (-1) in any; with None as the group, outside of all.

    With ``placement_group_capture_child_tasks``, what a task submits runs in the group, too, unless it says otherwise. The call raises
    OptionError if the bundle, or each of the bundles, has less than the task asks for.

    >>> import zfabric as zf
    >>> from zfabric.util.scheduling_strategies import PlacementGroupSchedulingStrategy
    >>> group = zf.util.placement_group([{"CPU": 1}])
    >>> there = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    >>> zf.get(zf.remote(max).options(scheduling_strategy=there).remote(1, 2))
    2
    >>> zf.util.remove_placement_group(group)
    """

    def __init__(
        self, placement_group: Any, placement_group_bundle_index: int = -1, placement_group_capture_child_tasks: bool | None = None
    ) -> None:
        index = placement_group_bundle_index
        if placement_group is not None and not hasattr(placement_group, "bundle_specs"):
            raise OptionTypeError(f"placement_group is the result of zf.util.placement_group(), not {placement_group!r}")
        if isinstance(index, bool) or not isinstance(index, SupportsIndex):
            raise OptionTypeError(f"placement_group_bundle_index is an int, not {index!r}")
        index = integer(index)  # Of NumPy's integers, too.
        count = 0 if placement_group is None else placement_group.bundle_count
        if not ANY_BUNDLE <= index < max(count, 0 if placement_group is None else 1):
            raise OptionError(f"placement_group_bundle_index is from 0 to {count - 1}, or -1 for any bundle, not {index}")
        self.placement_group = placement_group
        self.placement_group_bundle_index = index
        self.placement_group_capture_child_tasks = placement_group_capture_child_tasks

    def __repr__(self) -> str:
        return f"PlacementGroupSchedulingStrategy({self.placement_group!r}, {self.placement_group_bundle_index})"


def check_strategy(value: Any) -> None:
    """Raise OptionTypeError unless this is a scheduling strategy."""
    kinds = NodeAffinitySchedulingStrategy | NodeLabelSchedulingStrategy | PlacementGroupSchedulingStrategy
    if value not in ("DEFAULT", "SPREAD") and not isinstance(value, kinds):
        raise OptionTypeError(
            "scheduling_strategy is 'DEFAULT', 'SPREAD', a NodeAffinitySchedulingStrategy, a NodeLabelSchedulingStrategy or a "
            f"PlacementGroupSchedulingStrategy, not {value!r}"
        )


def check_selector(value: Any) -> None:
    """Raise OptionError unless this is a label selector: a dict of a label to "value", "!value", "in(a, b)" or "!in(a, b)".

    Values have no parentheses, since a misspelt operator would fit no node. ``In`` takes values with parentheses.
    """
    if not isinstance(value, Mapping):
        raise OptionTypeError(f'label_selector is a dict such as {{"zone": "in(a, b)"}}, not {value!r}')
    for label, text in value.items():
        _check_label(label)
        if not isinstance(text, str):
            raise OptionTypeError(f"label_selector[{label!r}] is a str, not {text!r}")
        values = _values(text.removeprefix("!"))
        if not all(values) or any(each in value for value in values for each in "()"):
            raise OptionError(f"label_selector[{label!r}] is 'value', '!value', 'in(a, b)' or '!in(a, b)', not {text!r}")


def _check_label(label: Any) -> None:
    if not isinstance(label, str) or not label:
        raise OptionTypeError(f"a label is a non-empty str, not {label!r}")
    check_length("a label", label)
    if not is_text(label):
        raise OptionError(f"a label is text, and {label!r} is not (it has no UTF-8)")


def _values(text: str) -> tuple[str, ...]:
    several = re.fullmatch(r"in\((.*)\)", text)
    return tuple(each.strip() for each in several[1].split(",")) if several is not None else (text,)


def _keys(labels: Mapping[str, _Of]) -> dict[str, _Of]:
    """``labels`` with the key of a node's id for Ray's names of it."""
    return {NODE_ID if label in NODE_ID_LABELS else label: value for label, value in labels.items()}


def strategy_of(options: Mapping[str, Any]) -> Strategy | None:
    """Encode checked options about nodes: empty for any node, also in a placement group's task; None if they say nothing."""
    strategy, selector = options.get("scheduling_strategy"), options.get("label_selector") or {}
    terms = [
        ("hard", label, "not in" if text.startswith("!") else "in", _values(text.removeprefix("!")))
        for label, text in sorted(_keys(selector).items())
    ]
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        if terms:
            raise OptionError("label_selector: the bundles of a placement group have their nodes; leave one of the two out")
        return _in_group(strategy)
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        terms.append(("soft" if strategy.soft else "hard", NODE_ID, "in", (strategy.node_id,)))
    elif isinstance(strategy, NodeLabelSchedulingStrategy):
        for rank, labels in (("hard", strategy.hard), ("soft", strategy.soft)):
            terms += [(rank, label, each.operator, each.values) for label, each in sorted(_keys(labels).items())]
    elif strategy == "SPREAD" and not terms:
        return SPREAD
    return tuple(terms) if terms or strategy not in (None, "DEFAULT") else None


def check_place(options: Mapping[str, Any], client: ClientInterface, name: str, usual: Demand) -> None:
    """Raise TaskUnschedulableError for a required node that does not exist, OptionError for more than a group's bundles have.

    ``usual`` is the demand without options.
    """
    strategy = options.get("scheduling_strategy")
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        wanted = named_demand(options, usual)
        _check_bundles(strategy, usual if wanted is None else wanted, name)
    if not isinstance(strategy, NodeAffinitySchedulingStrategy) or strategy.soft or strategy.node_id == client.node.hex():
        return
    if not any(dict(row)["node"] == strategy.node_id for row in client.query("nodes")):
        raise TaskUnschedulableError(
            f"{name} is to run on node {strategy.node_id}, which is not in this cluster: zf.nodes() has ids; soft=True runs it elsewhere"
        )


def _in_group(strategy: PlacementGroupSchedulingStrategy) -> Strategy:
    group = strategy.placement_group
    if group is None:
        return ()
    captures = bool(strategy.placement_group_capture_child_tasks)
    return group_strategy(GroupTerm(group.id, group.home, strategy.placement_group_bundle_index, captures))


def _check_bundles(strategy: PlacementGroupSchedulingStrategy, demand: Demand, name: str) -> None:
    """Raise OptionError if no usable bundle has as much."""
    index = strategy.placement_group_bundle_index
    if strategy.placement_group is None or index < ANY_BUNDLE:
        return
    bundles = strategy.placement_group.demands
    if not any(covers(dict(bundle), demand) for bundle in (bundles if index < 0 else bundles[index : index + 1])):
        what = f"bundle {index} has {describe(bundles[index])}" if index >= 0 else "none of its bundles has as much"
        raise OptionError(f"{name} asks for {describe(demand)}, and is to run in a placement group: {what}")
