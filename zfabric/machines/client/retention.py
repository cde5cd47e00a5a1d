"""What a client retains of objects besides their entries.

When the last ref to an object is dropped in this process, its entry is removed and the scheduler is notified. Two things are retained
longer. Objects that a row without an outcome names: a restarted scheduler may need them. And task rows of values that are only in the
arena, as long as a rebuild may need them. Refs inside a value count as refs of this process while it has the value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from zfabric.machines.client.objects import ObjectEntry, ObjectTable
from zfabric.machines.client.pins import Pins
from zfabric.protocol.ids import TASK_BYTES, is_call, is_put
from zfabric.protocol.messages import Row
from zfabric.protocol.messages.rows import DEPENDENCIES, OPTIONS
from zfabric.protocol.options import option


class RetainedObjects:
    """Rows, outcomes and refs by object. Used under the client's lock."""

    def __init__(self, objects: ObjectTable, pins: Pins) -> None:
        self.lineage: dict[bytes, Row] = {}
        """Rows of values in the arena, and of actors: a restarted scheduler makes them again from these."""
        self.values: dict[bytes, set[bytes]] = {}
        """For tasks of ``lineage`` with several values: the values to which this process has refs."""
        self.needed: Counter[bytes] = Counter()
        """Number of rows without an outcome that name each object."""
        self.retired: dict[bytes, ObjectEntry] = {}
        """Outcomes of needed objects to which this process has no ref any more."""
        self.containing: dict[bytes, tuple[bytes, ...]] = {}
        """Refs inside each value that this process has."""
        self._objects = objects
        self._pins = pins

    # -- rows without an outcome --

    def need(self, row: Row) -> tuple[bytes, ...]:
        """Retain the objects that a row names until ``release_needs``; return them: dependencies, then refs inside arguments."""
        names = _names(row)
        if names:
            self.needed.update(names)
        return names

    def release_needs(self, row: Row) -> None:
        """Release the objects that a row named, which has its outcome."""
        needed = self.needed
        for identifier in _names(row):
            needed[identifier] -= 1
            if needed[identifier] <= 0:
                del needed[identifier]
                if self.retired.pop(identifier, None) is not None:
                    self.release_contained(identifier)

    # -- lineage --

    def retain_row(self, task_id: bytes, row: Row) -> None:
        """Retain the row of a task that has a value in the arena or makes an actor."""
        self.lineage[task_id] = row

    def retain_values(self, task_id: bytes, held: set[bytes]) -> None:
        """Record to which values of a task with several values this process has refs."""
        self.values[task_id] = held

    def add_value(self, identifier: bytes) -> None:
        """Record that this process has a ref to a value again."""
        held = self.values.get(identifier[:TASK_BYTES])
        if held is not None:
            held.add(identifier)

    def release_value(self, identifier: bytes) -> None:
        """Record that this process has no ref to a value. The last value of a task releases its row."""
        task_id = identifier[:TASK_BYTES]
        if task_id not in self.lineage:
            return
        values = self.values.get(task_id)
        if values is not None:
            values.discard(identifier)
        if not values and identifier not in self._objects.entries:
            self.release_row(task_id)

    def release_row(self, task_id: bytes) -> None:
        """Release the row of a task of which nothing will be rebuilt."""
        row = self.lineage.pop(task_id, None)
        self.values.pop(task_id, None)
        if row is not None and (row[3] or len(row) > 4):
            self.release_needs(row)

    # -- refs inside values --

    def retain_contained(self, identifier: bytes, contained: tuple[bytes, ...]) -> None:
        """Record the refs inside a value that this process has."""
        self.containing[identifier] = contained

    def release_contained(self, identifier: bytes) -> None:
        """Drop the refs inside a value that this process no longer has."""
        self._objects.dropped.extend(self.containing.pop(identifier, ()))

    # -- objects without a ref --

    def retire(self, identifier: bytes, entry: ObjectEntry, row: Row | None) -> None:
        """Retain the outcome of an object without a ref for as long as a row without an outcome names it."""
        if self.needed and identifier in self.needed and (type(entry.data) is bytes or row is not None):
            if type(entry.data) is bytes:
                entry.row = None
            else:
                entry.data, entry.row = None, row  # The place may change once the pin is released with the last ref.
            self.retired[identifier] = entry

    def settle_unreferenced(self, identifier: bytes, entry: ObjectEntry, row: Row) -> None:
        """Handle an outcome that arrived after the last ref to it was dropped."""
        self.retire(identifier, entry, row)
        if self._pins.counts:
            self._pins.release_if_unused(identifier)
        self.release_value(identifier)


def _names(row: Row) -> tuple[bytes, ...]:
    """Objects that a row names: dependencies, and refs inside its arguments."""
    names: tuple[bytes, ...] = row[DEPENDENCIES]
    return names + option(row[OPTIONS], "contains", ()) if len(row) > OPTIONS else names


PASSED_MAX = 100_000
"""Refs after which older ones are dropped earlier."""


class PassedReferences:
    """Refs to results of tasks that this process has passed on in outcomes, for one to two rests. Used under the client's lock.

    What a task submits may end, and all its refs may have left with the task's value, before its row is in the control store
    (``lineage_delay``). Then only the daemon has the result, if it is small, and a daemon that dies would take it along. So the process
    that submitted the task keeps its refs for a second or two longer: it repeats the row, or the result, to the next daemon. After that
    time the row is in the control store.
    """

    def __init__(self, objects: ObjectTable) -> None:
        self._objects = objects
        self._recent: list[bytes] = []
        """Refs that were passed on since the last rest."""
        self._older: list[bytes] = []
        """Refs that were passed on in the rest before it."""

    def __bool__(self) -> bool:
        """Whether any refs are kept."""
        return bool(self._recent or self._older)

    def add(self, identifiers: Collection[bytes]) -> None:
        """Keep one more ref to each result of a task among these. The process has refs to them all."""
        for identifier in identifiers:
            entry = None if is_put(identifier) or is_call(identifier) else self._objects.entry(identifier)
            if entry is not None:
                entry.refs += 1
                self._recent.append(identifier)
        if len(self._recent) > PASSED_MAX:
            self.rest()

    def rest(self) -> None:
        """Drop the refs that were kept before the last rest."""
        self._objects.dropped.extend(self._older)
        self._older, self._recent = self._recent, []
