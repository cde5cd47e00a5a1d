"""Which tasks of a graph run together, as one task of the cluster. A pure data structure, without Dask and without the cluster.

A batch has as many tasks as run in a few milliseconds, estimated from earlier tasks of their kind: shorter ones cost more per task; longer
ones share work less evenly, take longer to repeat after a crash, and need more memory. A task of an unknown kind is a batch with the tasks
that follow it alone. A batch goes depth first: tasks whose inputs it makes come before other ready ones. Inputs from outside exist when it
is formed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Protocol

SECONDS = 0.005
"""Longest batch, in seconds: some thirty times what its own task costs."""
BYTES = 32 * 2**20
"""Most bytes that a batch takes and makes: its worker holds them until it ends."""
TASKS_MAX = 1000
"""Most tasks of a batch."""
GROUP_BYTES = 64 * 1024
"""Largest value of a group. A larger one is stored alone, and read in place."""
GROUP_MAX = 32
"""Most values that are stored together: who needs one loads all."""
SHARES = 2
"""Batches of ready tasks for each that can run at a time."""

Measured = Iterable[tuple[int, int, float, int, int]]
"""By kind of task: kind, number of tasks, their seconds, number of stored values, their bytes."""


class TaskGraph(Protocol):
    """The part of a graph that this module uses."""

    needs: list[tuple[int, ...]]
    users: list[list[int]]
    kinds: list[str]
    picks: list[bool]


class GraphBatch:
    """Tasks that run together, in order, and the values that others need, in groups that are stored together."""

    __slots__ = ("groups", "tasks")

    def __init__(self, tasks: list[int], groups: list[list[int]]) -> None:
        self.tasks = tasks
        self.groups = groups


class Planner:
    """Forms batches of a graph's tasks as earlier ones end.

    ``asked`` has the values that are to remain; with ``single`` each is stored by itself. ``slots`` batches can run at a time.
    """

    def __init__(self, graph: TaskGraph, asked: Iterable[int], slots: int, single: bool = False) -> None:
        self._needs, self._users, self._picks = graph.needs, graph.users, graph.picks
        self._asked = set(asked)
        self._single = single
        self._parts = max(1, SHARES * slots)
        names: dict[str, int] = {}
        self._kinds = [names.setdefault(kind, len(names)) if kind else -1 for kind in graph.kinds]
        self.names = list(names)
        """Kinds of tasks; batches and measurements have their places here."""
        self._seconds: list[float | None] = [None] * len(names)
        """Seconds of one task of a kind, if measured."""
        self._bytes: list[float | None] = [None] * len(names)
        """Bytes of a kind's value, if one was stored."""
        self._missing = [sum(self._kinds[each] >= 0 for each in needs) for needs in graph.needs]
        """Unfinished inputs of each task."""
        self._ready = [number for number, kind in enumerate(self._kinds) if kind >= 0 and not self._missing[number]]
        """A heap of ready tasks, in depth-first order."""
        self._taken = bytearray(len(self._kinds))
        self.left = sum(kind >= 0 for kind in self._kinds)
        """Tasks that have not ended."""

    def kind(self, number: int) -> int:
        """The kind of a task, as its place in ``names``."""
        return self._kinds[number]

    def next(self) -> GraphBatch | None:
        """Form a batch of ready tasks; None if there are none."""
        ready, needs, users = self._ready, self._needs, self._users
        if not ready:
            return None
        seeds = -(-len(ready) // self._parts)
        tasks: list[int] = []
        inside: set[int] = set()
        enabled: list[int] = []  # A heap of what could begin after this batch's tasks.
        missing: dict[int, int] = {}
        seconds, size = 0.0, 0.0
        while len(tasks) < TASKS_MAX and (enabled or (ready and seeds)):
            number = enabled[0] if enabled else ready[0]
            takes, moves = self._cost(number, inside)
            is_pick = bool(enabled) and self._picks[number]
            follows = bool(enabled) and len(needs[number]) == 1 and len(users[needs[number][0]]) == 1
            if tasks and not is_pick and not follows and (seconds + takes > SECONDS or size + moves > BYTES):
                if not enabled:
                    break
                heapq.heappop(enabled)  # It is ready when this batch has ended.
                continue
            if enabled:
                heapq.heappop(enabled)
            else:
                heapq.heappop(ready)
                seeds -= 1
            seconds += takes
            size += moves
            tasks.append(number)
            inside.add(number)
            self._taken[number] = 1
            for user in users[number]:
                still = missing.get(user, self._missing[user]) - 1
                missing[user] = still
                if not still:
                    heapq.heappush(enabled, user)
        return GraphBatch(tasks, self._groups(tasks, inside))

    def _cost(self, number: int, inside: set[int]) -> tuple[float, float]:
        """Seconds of a task, and bytes that it reads from outside and makes."""
        kinds, sizes = self._kinds, self._bytes
        kind = kinds[number]
        seconds = self._seconds[kind]
        size = sizes[kind] or 0.0
        for each in self._needs[number]:
            if each not in inside and kinds[each] >= 0:
                size += sizes[kinds[each]] or 0.0
        return SECONDS if seconds is None else seconds, size

    def _groups(self, tasks: list[int], inside: set[int]) -> list[list[int]]:
        """Values that others need, grouped by the tasks that need them, or as neighbours."""
        asked, users, sizes, kinds = self._asked, self._users, self._bytes, self._kinds
        found = []
        for number in tasks:
            first = next((user for user in users[number] if user not in inside), -1)
            if number in asked:
                found.append((0, number, number))
            elif first >= 0:
                found.append((1, first, number))
        found.sort()
        groups: list[list[int]] = []
        room, sort = 0.0, -1
        for kept, _, number in found:
            size = sizes[kinds[number]]
            if size is None or size >= GROUP_BYTES or (self._single and not kept):
                groups.append([number])
                sort = -1
                continue
            if sort != kept or size > room or len(groups[-1]) >= GROUP_MAX:
                groups.append([])
                room, sort = float(GROUP_BYTES), kept
            groups[-1].append(number)
            room -= size
        return groups

    def ended(self, batch: GraphBatch, measured: Measured) -> None:
        """Record the end of a batch, and its measurements."""
        users, missing, ready, taken = self._users, self._missing, self._ready, self._taken
        for number in batch.tasks:
            for user in users[number]:
                missing[user] -= 1
                if not missing[user] and not taken[user]:
                    heapq.heappush(ready, user)
        self.left -= len(batch.tasks)
        for kind, count, seconds, values, size in measured:
            self._seconds[kind] = _learnt(self._seconds[kind], seconds / count)
            if values:
                self._bytes[kind] = _learnt(self._bytes[kind], size / values)


def _learnt(before: float | None, now: float) -> float:
    """An estimate after one more measurement. A kind's first is often too high: it has loaded modules."""
    return now if before is None or now < before else (before + now) / 2


def last_uses(needs: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """For each step, given the values that each needs, which of ``count`` values no later step needs."""
    seen = bytearray(count)
    found: list[list[int]] = [[] for _ in needs]
    for index in range(len(needs) - 1, -1, -1):
        for each in needs[index]:
            if not seen[each]:
                seen[each] = 1
                found[index].append(each)
    return found
