"""Arrows of the timeline, as flow events of the Chrome trace format: why one task or call ran after another.

Nothing is recorded while tasks run. *control*: a task's id has a hash of its submitter, searched among all tasks' hashes. *data*: rows of
the control store, or an actor's record, name arguments. *state*: an actor's calls in order. Arrows are missing where rows were deleted with
their values, and for tasks of threads.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from zfabric.machines.common.lineage_blocks import read_block
from zfabric.protocol.ids import JOB_BYTES, PREFIX_BYTES, child_prefix, first_attempt, is_put, put_salt, root_task, salt_of, task_of

TRIES = ((0, 8), (1, 4), (2, 4), (3, 4))
"""(earlier daemons of the node, attempts) whose children are recognised. Each attempt costs a hash per task."""
WITHIN = 1.0
"""Microseconds: viewers attach no arrow to the very end of a bar."""


class Span(NamedTuple):
    """A bar; times in microseconds."""

    start: float
    length: float
    place: int
    thread: int

    @property
    def end(self) -> float:
        """When the bar ends."""
        return self.start + self.length

    @property
    def last_moment(self) -> float:
        """A moment just before the end."""
        return self.end - min(WITHIN, self.length / 2)


class Spans:
    """All bars by id, in arrays: there may be a million."""

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}
        self._more: defaultdict[bytes, list[int]] = defaultdict(list)
        """Bars of later attempts."""
        self._times = array("d")
        self._places = array("l")
        self.arguments: list[tuple[bytes, tuple[bytes, ...]]] = []
        """(call, ids of its arguments)."""
        self.actors: defaultdict[tuple[int, int, bytes], list[Span]] = defaultdict(list)
        """Calls by (place, process, actor)."""

    def add(self, task: bytes, span: Span) -> None:
        """Add a bar."""
        index = len(self._times) // 2
        if self._first.setdefault(task, index) != index:
            self._more[task].append(index)
        self._times.extend(span[:2])
        self._places.extend(span[2:])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._first)

    def of(self, task: bytes) -> list[Span]:
        """A task's bars, as added."""
        first = self._first.get(task)
        if first is None:
            return []
        times, places = self._times, self._places
        indices = (2 * each for each in (first, *self._more.get(task, ())))
        return [Span(times[each], times[each + 1], places[each], places[each + 1]) for each in indices]


def arrows(spans: Spans, blocks: Iterable[tuple[bytes, bytes]], nodes: tuple[int, ...] = (0,)) -> Iterator[dict[str, Any]]:
    """Yield all arrows, two events each.

    ``blocks`` are rows of the table "task"; ``nodes`` are numbers of nodes that gave out attempts.
    """
    number = 0
    attempts = [first_attempt(daemons, node) + tries for daemons, most in TRIES for tries in range(most) for node in nodes]
    for kind, found in (("control", _control(spans, attempts)), ("data", _data(spans, blocks, attempts)), ("state", _state(spans))):
        for at, source, target in found:
            number += 1
            yield _end("s", kind, number, at, source)
            yield {**_end("f", kind, number, target.start, target), "bp": "e"}


def _end(phase: str, kind: str, number: int, at: float, span: Span) -> dict[str, Any]:
    return {"name": kind, "cat": kind, "ph": phase, "id": number, "ts": at, "pid": span.place, "tid": span.thread}


Arrow = tuple[float, Span, Span]
"""(start time, bar at its start, bar at its end)."""


def _control(spans: Spans, attempts: list[int]) -> Iterator[Arrow]:
    """Yield arrows from submitters to their tasks, from the start of the submitter's bar: the moment is not recorded."""
    parents = _parents(spans, {task[:PREFIX_BYTES] for task in spans}, attempts)
    for task in spans:
        parent = parents.get(task[:PREFIX_BYTES])
        for target in spans.of(task) if parent is not None else ():
            began = [each for each in spans.of(parent or b"") if each.start <= target.start]
            if began:
                yield began[-1].start, began[-1], target


def _parents(spans: Spans, prefixes: set[bytes], attempts: list[int], puts: bool = False) -> dict[bytes, bytes]:
    """Map id prefixes to the tasks that named these ids."""
    found: dict[bytes, bytes] = {}
    salt = put_salt if puts else salt_of
    left = prefixes - {child_prefix(job, root_task(job), 0, salt(0)) for job in {prefix[:JOB_BYTES] for prefix in prefixes}}
    by_parent = {prefix[JOB_BYTES:]: prefix for prefix in left}  # A call's children may be of another job than its actor.
    for attempt in attempts:
        if not by_parent:
            break
        for task in spans:
            prefix = by_parent.pop(child_prefix(b"", task, 0, salt(attempt)), None)
            if prefix is not None:
                found[prefix] = task
    return found


def _data(spans: Spans, blocks: Iterable[tuple[bytes, bytes]], attempts: list[int]) -> Iterator[Arrow]:
    taken = [*spans.arguments, *((row[0], row[3]) for _, block in blocks for row in read_block(block) if row[3])]
    puts = _parents(spans, {each[:PREFIX_BYTES] for _, objects in taken for each in objects if is_put(each)}, attempts, puts=True)
    for task, objects in taken:
        made = dict.fromkeys((puts.get(each[:PREFIX_BYTES], b""), True) if is_put(each) else (task_of(each), False) for each in objects)
        for target in spans.of(task):
            for source, put in made:
                # Tasks put values while they run, and return them at their end.
                before = [each for each in spans.of(source) if (each.start if put else each.end) <= target.start]
                if before:
                    yield min(before[-1].last_moment, target.start), before[-1], target


def _state(spans: Spans) -> Iterator[Arrow]:
    for (place, process, actor), calls in spans.actors.items():
        before = next((each for each in reversed(spans.of(actor)) if (each.place, each.thread) == (place, process)), None)
        for span in sorted(calls):
            if before is not None:
                yield min(before.last_moment, span.start), before, span
            before = span
