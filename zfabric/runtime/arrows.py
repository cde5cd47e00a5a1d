"""Arrows of the timeline: why something ran after something else, as flow events of the Chrome trace format.

Nothing is recorded for them while tasks run. Who submitted a task is in its id, as a hash: so the hashes of all that ran are looked up
(*control*). What a task took as an argument is in its row, as long as the control store keeps that, and an actor notes it for its calls
(*data*). Which call of an actor came after which is in their times (*state*). What is not known any more has no arrow: rows go with the
values that they make, and what threads of a task submit has names at random.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from zfabric.machines.common.lineage_blocks import read_block
from zfabric.machines.common.naming import put_salt, salt_of
from zfabric.protocol.ids import JOB_BYTES, PREFIX_BYTES, child_prefix, first_attempt, is_put, root_task, task_of

ATTEMPTS_TRIED = (*range(8), *(first_attempt(daemons) + tries for daemons in range(1, 4) for tries in range(4)))
"""Attempts of a parent whose children are recognised: each names them anew, and costs a hash for all that ran."""
WITHIN = 1.0
"""An arrow begins this long before the end of a bar, in microseconds: at its very end there is no bar that it could belong to."""


class Span(NamedTuple):
    """An attempt, or a call, as it was drawn: times in microseconds, place and thread as in its event."""

    start: float
    length: float
    place: int
    thread: int

    @property
    def end(self) -> float:
        """When it ended."""
        return self.start + self.length

    @property
    def last_moment(self) -> float:
        """When it was about to end."""
        return self.end - min(WITHIN, self.length / 2)


class Spans:
    """All that was drawn, by task or call, in numbers: there may be a million."""

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}
        self._more: defaultdict[bytes, list[int]] = defaultdict(list)
        """Where those of tasks are that ran several times."""
        self._times = array("d")
        self._places = array("l")
        self.arguments: list[tuple[bytes, tuple[bytes, ...]]] = []
        """What calls took: call, objects."""
        self.actors: defaultdict[tuple[int, int, bytes], list[Span]] = defaultdict(list)
        """Calls of actors, by place, process and actor."""

    def add(self, task: bytes, span: Span) -> None:
        """One more."""
        index = len(self._times) // 2
        if self._first.setdefault(task, index) != index:
            self._more[task].append(index)
        self._times.extend(span[:2])
        self._places.extend(span[2:])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._first)

    def of(self, task: bytes) -> list[Span]:
        """The attempts of a task, in the order in which they were drawn."""
        first = self._first.get(task)
        if first is None:
            return []
        times, places = self._times, self._places
        indices = (2 * each for each in (first, *self._more.get(task, ())))
        return [Span(times[each], times[each + 1], places[each], places[each + 1]) for each in indices]


def arrows(spans: Spans, blocks: Iterable[tuple[bytes, bytes]]) -> Iterator[dict[str, Any]]:
    """All arrows between what was drawn: a pair of events each. ``blocks`` are the rows of the table "task"."""
    number = 0
    for kind, found in (("control", _control(spans)), ("data", _data(spans, blocks)), ("state", _state(spans))):
        for at, source, target in found:
            number += 1
            yield _end("s", kind, number, at, source)
            yield {**_end("f", kind, number, target.start, target), "bp": "e"}


def _end(phase: str, kind: str, number: int, at: float, span: Span) -> dict[str, Any]:
    return {"name": kind, "cat": kind, "ph": phase, "id": number, "ts": at, "pid": span.place, "tid": span.thread}


Arrow = tuple[float, Span, Span]
"""(when it begins, where, where it ends)."""


def _control(spans: Spans) -> Iterator[Arrow]:
    """From who submitted to what was submitted. It begins with the submitter's bar: when in it that was, is not known."""
    parents = _parents(spans, {task[:PREFIX_BYTES] for task in spans})
    for task in spans:
        parent = parents.get(task[:PREFIX_BYTES])
        for target in spans.of(task) if parent is not None else ():
            began = [each for each in spans.of(parent or b"") if each.start <= target.start]
            if began:
                yield began[-1].start, began[-1], target


def _parents(spans: Spans, prefixes: set[bytes], puts: bool = False) -> dict[bytes, bytes]:
    """Who named what begins so: prefix -> task. Of those that a driver named, nobody."""
    found: dict[bytes, bytes] = {}
    salt = put_salt if puts else salt_of
    left = prefixes - {child_prefix(job, root_task(job), 0, salt(0)) for job in {prefix[:JOB_BYTES] for prefix in prefixes}}
    for attempt in ATTEMPTS_TRIED:
        if not left:
            break
        for task in spans:
            prefix = child_prefix(task[:JOB_BYTES], task, 0, salt(attempt))
            if prefix in left:
                found[prefix] = task
                left.discard(prefix)
    return found


def _data(spans: Spans, blocks: Iterable[tuple[bytes, bytes]]) -> Iterator[Arrow]:
    """From what made a value, or put it, to what took it as an argument."""
    taken = [*spans.arguments, *((row[0], row[3]) for _, block in blocks for row in read_block(block) if row[3])]
    puts = _parents(spans, {each[:PREFIX_BYTES] for _, objects in taken for each in objects if is_put(each)}, puts=True)
    for task, objects in taken:
        made = dict.fromkeys((puts.get(each[:PREFIX_BYTES], b""), True) if is_put(each) else (task_of(each), False) for each in objects)
        for target in spans.of(task):
            for source, put in made:
                # A value is put while its task runs, and returned when that ends.
                before = [each for each in spans.of(source) if (each.start if put else each.end) <= target.start]
                if before:
                    yield min(before[-1].last_moment, target.start), before[-1], target


def _state(spans: Spans) -> Iterator[Arrow]:
    """From each call of an actor to the next, beginning with what made it."""
    for (place, process, actor), calls in spans.actors.items():
        before = next((each for each in reversed(spans.of(actor)) if (each.place, each.thread) == (place, process)), None)
        for span in sorted(calls):
            if before is not None:
                yield min(before.last_moment, span.start), before, span
            before = span
