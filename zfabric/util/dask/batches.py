"""Which tasks of a graph run together, as one task of the cluster.

A batch has as many tasks as run in a few milliseconds, estimated by earlier tasks of their kind. A shorter batch would cost more per task.
A longer one would share the work less evenly, take longer to run again after a crash, and need more memory. A task of a kind that is not
known yet is a batch with the tasks that follow it alone.

All that a batch needs from others exists when it is formed. A batch goes depth first: tasks whose inputs it makes come before others that
are ready. This is a pure data structure, without Dask and without the cluster.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Protocol

SECONDS = 0.005
"""How long a batch may take: some thirty times what its own task costs."""
BYTES = 32 * 2**20
"""How many bytes a batch may take and make: they are in the memory of its worker until it ends."""
TASKS_MAX = 1000
"""The most tasks of a batch."""
GROUP_BYTES = 64 * 1024
"""Values of a batch are stored together up to this size. A larger one is stored by itself, where tasks read it in place."""
GROUP_MAX = 32
"""The most values that are stored together: who needs one loads all."""
SHARES = 2
"""Batches into which the tasks that are ready are divided, for each that can run at a time."""

Measured = Iterable[tuple[int, int, float, int, int]]
"""What a batch has measured, for each kind of task: kind, number of tasks, their seconds, number of values stored, their bytes."""


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
    """Forms batches of the tasks of a graph, as earlier ones end.

    ``asked`` has the values that are to remain; with ``single`` each of them is stored by itself. ``slots`` is how many batches can run at
    a time.
    """

    def __init__(self, graph: TaskGraph, asked: Iterable[int], slots: int, single: bool = False) -> None:
        self._needs, self._users, self._picks = graph.needs, graph.users, graph.picks
        self._asked = set(asked)
        self._single = single
        self._parts = max(1, SHARES * slots)
        names: dict[str, int] = {}
        self._kinds = [names.setdefault(kind, len(names)) if kind else -1 for kind in graph.kinds]
        self.names = list(names)
        """The kinds of tasks; batches and measurements have their places here."""
        self._seconds: list[float | None] = [None] * len(names)
        """How long one task of a kind takes, if one was measured."""
        self._bytes: list[float | None] = [None] * len(names)
        """How large the value of one is, if one was stored."""
        self._missing = [sum(self._kinds[each] >= 0 for each in needs) for needs in graph.needs]
        """How many values of unfinished tasks each task needs."""
        self._ready = [number for number, kind in enumerate(self._kinds) if kind >= 0 and not self._missing[number]]
        """A heap of the tasks that could begin: those first that come first depth first."""
        self._taken = bytearray(len(self._kinds))
        self.left = sum(kind >= 0 for kind in self._kinds)
        """How many tasks have not ended."""

    def kind(self, number: int) -> int:
        """The kind of a task, as its place in ``names``."""
        return self._kinds[number]

    def next(self) -> GraphBatch | None:
        """Form a batch of what is ready; None if nothing is."""
        ready, needs, users = self._ready, self._needs, self._users
        if not ready:
            return None
        seeds = -(-len(ready) // self._parts)
        tasks: list[int] = []
        inside: set[int] = set()
        enabled: list[int] = []  # A heap of what could begin once the tasks of this batch have ended.
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
        """How many seconds a task takes, and how many bytes it reads from outside and makes."""
        kinds, sizes = self._kinds, self._bytes
        kind = kinds[number]
        seconds = self._seconds[kind]
        size = sizes[kind] or 0.0
        for each in self._needs[number]:
            if each not in inside and kinds[each] >= 0:
                size += sizes[kinds[each]] or 0.0
        return SECONDS if seconds is None else seconds, size

    def _groups(self, tasks: list[int], inside: set[int]) -> list[list[int]]:
        """The values that others need, in groups: those together that the same tasks need, or neighbours of them."""
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
        """Record that a batch has ended, and what it has measured."""
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
    """An estimate after one more measurement. The first of a kind is often too high: it has loaded modules."""
    return now if before is None or now < before else (before + now) / 2


def last_uses(needs: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """For each step, which of ``count`` values no later one needs, by what each needs."""
    seen = bytearray(count)
    found: list[list[int]] = [[] for _ in needs]
    for index in range(len(needs) - 1, -1, -1):
        for each in needs[index]:
            if not seen[each]:
                seen[each] = 1
                found[index].append(each)
    return found
