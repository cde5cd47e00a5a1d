"""Refs that this process receives or passes on, and what it retains of objects besides their entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from zfabric.machines.client.objects import ABSENT, ObjectEntry, ObjectTable, Pins
from zfabric.machines.client.outbox import Outbox
from zfabric.machines.client.shared_results import SharedResults
from zfabric.machines.client.unread import UnreadFailures
from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES, is_call, is_put
from zfabric.protocol.inside import refs_in
from zfabric.protocol.messages import Row
from zfabric.protocol.messages.rows import DEPENDENCIES, OPTIONS
from zfabric.protocol.options import option

PASSED_MAX = 100_000
"""Refs after which older ones are dropped earlier."""


class ReceivedReferences:
    """Refs received from others, inside values, and as copies. ``Releases`` removes them."""

    def __init__(
        self, objects: ObjectTable, outbox: Outbox, results: SharedResults, retained: RetainedObjects, unread: UnreadFailures
    ) -> None:
        self._objects = objects
        self._outbox = outbox
        self._results = results
        self._retained = retained
        self._unread = unread

    def add(self, identifier: bytes) -> None:
        """Count a ref. The scheduler is notified of the first."""
        entry = self._objects.entry(identifier)
        if entry is None:
            entry = self._objects.entries[identifier] = ObjectEntry(0, ABSENT, None, None)
            if is_call(identifier):
                self._results.add(identifier)  # The result of another process's call, which shared it.
            self._retained.add_value(identifier)
        if entry.refs == 0:
            self._outbox.add(m.Hold, identifier)
        entry.refs += 1

    def contain(self, identifier: bytes, contained: tuple[bytes, ...]) -> None:
        """Record refs inside a value: they count while this process has refs to it."""
        self._retained.retain_contained(identifier, contained)
        self._unread.expected(contained)  # Whoever receives that value may read them.
        for inner in contained:
            self.add(inner)

    def contain_failure(self, identifier: bytes, payload: bytes) -> None:
        """Record refs inside an error, like ``contain``."""
        refs = refs_in(payload)
        if refs and identifier not in self._retained.containing:
            self.contain(identifier, refs)


class RetainedObjects:
    """Rows, outcomes and refs by object: what a row without an outcome names, and rows of values that are only in the arena.

    A restarted scheduler receives both: unfinished tasks need the former, rebuilds the latter. Refs inside a value count as this process's
    while it has the value.
    """

    def __init__(self, objects: ObjectTable, pins: Pins) -> None:
        self.lineage: dict[bytes, Row] = {}
        """Rows of values in the arena, and of actors, for a restarted scheduler."""
        self.values: dict[bytes, set[bytes]] = {}
        """Values with refs here, by task of ``lineage`` with several values."""
        self.needed: Counter[bytes] = Counter()
        """How many rows without an outcome name each object."""
        self.retired: dict[bytes, ObjectEntry] = {}
        """Outcomes of needed objects without refs here."""
        self.containing: dict[bytes, tuple[bytes, ...]] = {}
        """Refs inside each value here."""
        self._objects = objects
        self._pins = pins

    # -- rows without an outcome --

    def need(self, row: Row) -> tuple[bytes, ...]:
        """Retain what a row names until ``release_needs``; return dependencies, then refs inside arguments."""
        names = _names(row)
        if names:
            self.needed.update(names)
        return names

    def release_needs(self, row: Row) -> None:
        """Release what a row named."""
        needed = self.needed
        for identifier in _names(row):
            needed[identifier] -= 1
            if needed[identifier] <= 0:
                del needed[identifier]
                if self.retired.pop(identifier, None) is not None:
                    self.release_contained(identifier)

    # -- lineage --

    def retain_row(self, task_id: bytes, row: Row) -> None:
        """Retain the row of a value in the arena, or of an actor."""
        self.lineage[task_id] = row

    def retain_values(self, task_id: bytes, held: set[bytes]) -> None:
        """Record refs here to several values of a task."""
        self.values[task_id] = held

    def add_value(self, identifier: bytes) -> None:
        """Record a new ref to a value."""
        held = self.values.get(identifier[:TASK_BYTES])
        if held is not None:
            held.add(identifier)

    def release_value(self, identifier: bytes) -> None:
        """Record a value without refs. A task's last one releases its row."""
        task_id = identifier[:TASK_BYTES]
        if task_id not in self.lineage:
            return
        values = self.values.get(task_id)
        if values is not None:
            values.discard(identifier)
        if not values and identifier not in self._objects.entries:
            self.release_row(task_id)

    def release_row(self, task_id: bytes) -> None:
        """Release a row that will not be rebuilt."""
        row = self.lineage.pop(task_id, None)
        self.values.pop(task_id, None)
        if row is not None and (row[3] or len(row) > 4):
            self.release_needs(row)

    # -- refs inside values --

    def retain_contained(self, identifier: bytes, contained: tuple[bytes, ...]) -> None:
        """Record refs inside a value."""
        self.containing[identifier] = contained

    def release_contained(self, identifier: bytes) -> None:
        """Drop refs inside a value."""
        self._objects.dropped.extend(self.containing.pop(identifier, ()))

    # -- objects without a ref --

    def retire(self, identifier: bytes, entry: ObjectEntry, row: Row | None) -> None:
        """Retain an outcome without refs while a pending row names it."""
        if self.needed and identifier in self.needed and (type(entry.data) is bytes or row is not None):
            if type(entry.data) is bytes:
                entry.row = None
            else:
                entry.data, entry.row = None, row  # The place may change once the last ref's pin is released.
            self.retired[identifier] = entry

    def settle_unreferenced(self, identifier: bytes, entry: ObjectEntry, row: Row) -> None:
        """Handle an outcome whose last ref was dropped."""
        self.retire(identifier, entry, row)
        if self._pins.counts:
            self._pins.release_if_unused(identifier)
        self.release_value(identifier)


def _names(row: Row) -> tuple[bytes, ...]:
    names: tuple[bytes, ...] = row[DEPENDENCIES]
    return names + option(row[OPTIONS], "contains", ()) if len(row) > OPTIONS else names


class PassedReferences:
    """Refs to results of tasks that this process has passed on in outcomes, for one to two rests. Used under the client's lock.

    What a task submits may end, and all its refs may have left with the task's value, before its row is in the control store
    (``lineage_delay``). Then only the daemon has a small result, which is lost if the daemon dies. So the submitter keeps its refs for a
    second or two longer: it repeats the row, or the result, to the next daemon.
    """

    def __init__(self, objects: ObjectTable) -> None:
        self._objects = objects
        self._recent: list[bytes] = []
        """Passed on since the last rest."""
        self._older: list[bytes] = []
        """Passed on before it."""

    def __bool__(self) -> bool:
        return bool(self._recent or self._older)

    def add(self, identifiers: Collection[bytes]) -> None:
        """Add a ref to each result of a task; the process has refs to all."""
        for identifier in identifiers:
            entry = None if is_put(identifier) or is_call(identifier) else self._objects.entry(identifier)
            if entry is not None:
                entry.refs += 1
                self._recent.append(identifier)
        if len(self._recent) > PASSED_MAX:
            self.rest()

    def rest(self) -> None:
        """Drop refs from before the last rest."""
        self._objects.dropped.extend(self._older)
        self._older, self._recent = self._recent, []
