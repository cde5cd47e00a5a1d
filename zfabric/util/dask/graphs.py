"""Dask's graphs as the planner and the workers take them. The only place that knows Dask's own types.

Dask 2025.1 and newer describe a task by ``dask._task_spec``; Dask itself converts graphs of plain tuples.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef, _execute_subgraph, convert_legacy_graph
from dask.utils import key_split

from zfabric import api as zf

Step = tuple[Any, int, Any, Any, tuple[tuple[Any, int], ...]]
"""One task as a worker runs it: key, kind, function, arguments, and pairs (position among the arguments, number of a value). For tasks that
are no plain calls the function is None, the arguments are Dask's node, and the pairs begin with keys.
"""


class StoredValue(TaskRef):  # type: ignore[misc]  # Dask's types are not looked at.
    """A value that stays in the store; ``ref`` is its ref. Graphs may contain it in the place of the value.

    Dask takes it for a reference to a task. A process has one per ref: graphs have its name alone.
    """

    __slots__ = ("__weakref__", "ref")

    def __init__(self, ref: zf.ObjectRef) -> None:
        super().__init__(f"zfabric-{ref.hex()}")
        self.ref = ref

    def __reduce__(self) -> tuple[Any, ...]:
        return stored_value, (self.ref,)

    def __dask_tokenize__(self) -> str:
        name: str = self.key
        return name


_stored: WeakValueDictionary[str, StoredValue] = WeakValueDictionary()
"""By their name in graphs."""


def stored_value(ref: zf.ObjectRef) -> StoredValue:
    """The placeholder of a ref's value in graphs."""
    made = StoredValue(ref)
    return _stored.setdefault(made.key, made)


class Graph:
    """The part of a graph that makes the asked keys. Tasks and data are numbers, each after all that it needs, depth first."""

    __slots__ = ("_nodes", "_numbers", "by_key", "kinds", "needs", "picks", "users")

    def __init__(self, dsk: Any, asked: list[Any]) -> None:
        self._numbers: dict[Any, int] = {}
        """By key. An alias has its target's number."""
        self._nodes: list[Any] = []
        self.needs: list[tuple[int, ...]] = []
        """Numbers of the tasks whose values each task takes, once each."""
        self.users: list[list[int]] = []
        """The tasks that take its value."""
        self.kinds: list[str] = []
        """Kind of each task: the beginning of its key, shared by tasks that do the same. Empty for data."""
        self.picks: list[bool] = []
        """Whether it takes a part of one value: almost free where that is made."""
        self.by_key: dict[Any, Any] = convert_legacy_graph(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__())
        """Dask's node for each key, of the whole graph."""
        self._read(self.by_key, asked)

    def __len__(self) -> int:
        return len(self._nodes)

    def number(self, key: Any) -> int:
        """The number of a key."""
        return self._numbers[key]

    def is_data(self, number: int) -> bool:
        """Whether it is a value that the graph has."""
        return not self.kinds[number]

    def datum(self, number: int) -> Any:
        """The value of data."""
        return self._nodes[number].value

    def key(self, number: int) -> Any:
        """The key of a task or data."""
        return self._nodes[number].key

    def _read(self, nodes: dict[Any, Any], asked: list[Any]) -> None:
        numbers = self._numbers
        order: dict[Any, int] | None = None
        opened: set[Any] = set()
        for first in asked:
            if first not in nodes:
                raise KeyError(first)
            stack = [first]
            while stack:
                key = stack[-1]
                if key in numbers:
                    stack.pop()
                    continue
                node = nodes.get(key)
                if node is None and (stored := _stored.get(key)) is not None:
                    node = DataNode(key, stored.ref)
                if node is None:
                    raise ValueError(f"the graph has no {key!r}, which {stack[-2]!r} needs")
                waiting = [each for each in node.dependencies if each not in numbers]
                if not waiting:
                    stack.pop()
                    if type(node) is Alias:
                        numbers[key] = numbers[node.target]
                    else:
                        self._add(key, node)
                elif key in opened:
                    _refuse_cycle(key, nodes)
                else:
                    opened.add(key)
                    if len(waiting) > 1:  # Sets have another order in each run.
                        if order is None:
                            order = {each: place for place, each in enumerate(nodes)}
                        waiting.sort(key=lambda each: -order.get(each, 0))
                    stack += waiting

    def _add(self, key: Any, node: Any) -> None:
        numbers = self._numbers
        number = numbers[key] = len(self._nodes)
        needs = {numbers[each] for each in node.dependencies}
        is_data = type(node) is DataNode
        if not is_data and type(node) is Task:
            if node.func is _execute_subgraph:
                node = _with_refs_outside(node)
            for each in node.args:
                if type(each) is zf.ObjectRef:  # As an argument of ``f.remote`` it stands for its value.
                    numbers[key] = number + 1
                    needs.add(self._ref(each))
                    number = numbers[key] = len(self._nodes)
        self._append(node, tuple(sorted(needs)), "" if is_data else kind_of(key))
        self.picks[number] = len(needs) == 1 and getattr(node, "func", None) is operator.getitem
        for each in needs:
            self.users[each].append(number)

    def _ref(self, ref: zf.ObjectRef) -> int:
        key = (zf.ObjectRef, ref.binary())
        if key not in self._numbers:
            self._numbers[key] = len(self._nodes)
            self._append(DataNode(key, ref), (), "")
        return self._numbers[key]

    def _append(self, node: Any, needs: tuple[int, ...], kind: str) -> None:
        self._nodes.append(node)
        self.needs.append(needs)
        self.users.append([])
        self.kinds.append(kind)
        self.picks.append(False)

    def step(self, number: int, kind: int, places: Mapping[int, int]) -> Step:
        """A task as a worker runs it. ``places`` has each value's number there."""
        node, numbers = self._nodes[number], self._numbers
        if type(node) is Task and not node.kwargs:
            args = list(node.args)
            found: list[tuple[Any, int]] = []
            for index, each in enumerate(node.args):
                if isinstance(each, TaskRef):
                    found.append((index, places[numbers[each.key]]))
                elif type(each) is Alias:
                    found.append((index, places[numbers[each.target]]))
                elif type(each) is zf.ObjectRef:
                    found.append((index, places[numbers[zf.ObjectRef, each.binary()]]))
                elif isinstance(each, GraphNode):
                    break
                else:
                    continue
                args[index] = None
            else:
                return node.key, kind, node.func, args, tuple(found)
        return node.key, kind, None, node, tuple((each, places[numbers[each]]) for each in node.dependencies)


def _with_refs_outside(task: Any) -> Any:
    """A fused task with the refs inside among its own arguments, as what the inner tasks depend on."""
    inner, out, inputs, *dependencies = task.args
    refs: dict[Any, zf.ObjectRef] = {}
    changed: dict[Any, Any] = {}

    def named(ref: zf.ObjectRef) -> Any:
        name = zf.ObjectRef, ref.binary()
        refs[name] = ref
        return TaskRef(name)

    for key, node in inner.items():
        if type(node) is DataNode and type(node.value) is zf.ObjectRef:
            refs[key] = node.value
        elif type(node) is Task and any(type(each) is zf.ObjectRef for each in node.args):
            args = [named(each) if type(each) is zf.ObjectRef else each for each in node.args]
            changed[key] = Task(node.key, node.func, *args, **node.kwargs)
    if not refs:
        return task
    return Task(task.key, task.func, {**inner, **changed}, out, (*inputs, *refs), *dependencies, *refs.values())


def kind_of(key: Any) -> str:
    """The beginning that keys of tasks share which do the same."""
    return key_split(key) or "task"


def _refuse_cycle(key: Any, nodes: dict[Any, Any]) -> NoReturn:
    """Raise RuntimeError, as Dask does, for a task that needs its own value."""
    path, seen = [key], {key}
    while True:  # Follow what can be reached from it, until it is met again.
        stack, before = [path[0]], {path[0]: None}
        while stack:
            here = stack.pop()
            for each in nodes[here].dependencies if here in nodes else ():
                if each == path[0]:
                    around = [each, here]
                    while (step := before[around[-1]]) is not None:
                        around.append(step)
                    raise RuntimeError(f"the graph has a cycle: {' -> '.join(map(repr, reversed(around)))}")
                if each not in seen:
                    seen.add(each)
                    before[each] = here
                    stack.append(each)
        raise RuntimeError(f"the graph has a cycle at {key!r}")
