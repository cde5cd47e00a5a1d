"""What a client keeps of objects besides their entries, and how it lets go of them.

When the last ref to an object has gone here, its entry goes, and the scheduler is told. Some things stay: what a row that has no outcome
names, since a restarted scheduler may have to be told of it, and the rows of values that only exist in the arena, for as long as those
may have to be made again. Refs inside a value count as refs of this process while it has the value.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from zfabric.config import ROWS_MAX
from zfabric.machines.client.entries import ObjectEntry
from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES, is_call
from zfabric.protocol.messages import OK, Row
from zfabric.protocol.options import option

if TYPE_CHECKING:
    from zfabric.machines.client.machine import Client


class RetainedObjects:
    """What is kept, by object. Works on its client's tables, under its client's lock."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.lineage: dict[bytes, Row] = {}
        """Rows of values that live in the arena, and of actors: what a restarted scheduler would make them from again."""
        self.values: dict[bytes, set[bytes]] = {}
        """Of those, tasks with several values: which of them this process has refs to."""
        self.needed: Counter[bytes] = Counter()
        """Objects that rows without an outcome name, and in how many such rows."""
        self.retired: dict[bytes, ObjectEntry] = {}
        """What is known of needed objects to which this process has no ref any more: a restarted scheduler is told it again."""
        self.containing: dict[bytes, tuple[bytes, ...]] = {}
        """Refs inside values that this process has, for a restarted scheduler."""

    # -- kept --

    def contain(self, identifier: bytes, contained: tuple[bytes, ...]) -> None:
        """A value this process has refs to has refs inside: those count as refs of this process for as long."""
        self.containing[identifier] = contained
        self.client.unread.expected(contained)  # Whoever has that value may read them.
        for inner in contained:
            self.client.add_reference(inner)

    def need(self, row: Row) -> tuple[bytes, ...]:
        """A row has no outcome yet: the objects that it names are needed until it has."""
        names = _names(row)
        self.needed.update(names)
        if len(names) > len(row[3]):
            self.client.unread.expected(names[len(row[3]) :])
        return names

    def ended(self, row: Row) -> None:
        """A row that names objects has its outcome."""
        needed = self.needed
        for identifier in _names(row):
            needed[identifier] -= 1
            if needed[identifier] <= 0:
                del needed[identifier]
                if self.retired.pop(identifier, None) is not None:
                    self.client.dropped.extend(self.containing.pop(identifier, ()))

    # -- let go of --

    def settle(self) -> None:
        """Do what finalizers asked for: drop refs, then unpin what nothing looks at any more."""
        client = self.client
        dropped, unviewed, entries, calls, outbox = client.dropped, client.unviewed, client.entries, client.calls, client.outbox
        rare = bool(client.pins.tellings or self.lineage or self.containing or self.needed or client.cancelled or calls.targets)
        while dropped:
            identifier = dropped.popleft()
            entry = entries.get(identifier)
            if entry is None and client.submitted:
                client.take_up()  # It may be the value of a row that was only appended.
                entry = entries.get(identifier)
            if entry is None:
                continue
            if type(entry) is bytes and not rare:
                del entries[identifier]
            elif type(entry) is bytes and is_call(identifier) and not self._concerns_others(identifier):
                del entries[identifier]
                continue
            else:
                full = client.entry(identifier)
                if full is None:
                    continue
                full.refs -= 1
                if full.refs or (calls.targets and calls.takes_over(identifier, full)):
                    continue
                if full.status > OK and identifier[:TASK_BYTES] in client.unread.held:
                    client.unread.dropped(identifier)
                if full.row is None:
                    del entries[identifier]
                if rare:
                    self._let_go(identifier, full)
            if is_call(identifier) and not calls.results.let_go(identifier):
                continue
            if outbox.kind is m.Release and len(outbox.tail) < ROWS_MAX:
                outbox.tail.append(identifier)
            else:
                outbox.add(m.Release, identifier)
        while unviewed:
            client.pins.unview(unviewed.popleft())

    def _concerns_others(self, identifier: bytes) -> bool:
        """Whether a small result of a call is known beyond this process, or to more than its refs here."""
        client = self.client
        known = identifier in client.calls.results.ids or identifier in client.cancelled
        return known or identifier in self.needed or identifier in self.containing

    def _let_go(self, identifier: bytes, entry: ObjectEntry) -> None:
        """The last ref is gone: what else was kept of the object goes too."""
        client = self.client
        if entry.row is None:
            self._retire(identifier, entry, self.lineage.get(identifier[:TASK_BYTES]))
        if identifier in client.pins.tellings:
            client.pins.let_go(identifier)
        self._drop_lineage(identifier)
        client.calls.forget(identifier)
        if identifier not in self.retired:
            client.dropped.extend(self.containing.pop(identifier, ()))

    def settled_unseen(self, identifier: bytes, entry: ObjectEntry, row: Row) -> None:
        """An outcome has come of which this process let go before."""
        self._retire(identifier, entry, row)
        if self.client.pins.tellings:
            self.client.pins.let_go(identifier)
        self._drop_lineage(identifier)

    def _retire(self, identifier: bytes, entry: ObjectEntry, row: Row | None) -> None:
        """No ref is left here; what a restarted scheduler could not know is kept as long as a row without an outcome names it."""
        client = self.client
        if client.cancelled and identifier[:TASK_BYTES] not in client.several:
            client.cancelled.pop(identifier, None)
        if self.needed and identifier in self.needed and (type(entry.data) is bytes or row is not None):
            if type(entry.data) is bytes:
                entry.row = None
            else:
                entry.data, entry.row = None, row  # A place is no longer known for sure: its pin goes with the last ref.
            self.retired[identifier] = entry

    def _drop_lineage(self, identifier: bytes) -> None:
        task_id = identifier[:TASK_BYTES]
        if task_id not in self.lineage:
            return
        values = self.values.get(task_id)
        if values is not None:
            values.discard(identifier)
        if not values and identifier not in self.client.entries:
            self.forget_row(task_id)

    def forget_row(self, task_id: bytes) -> None:
        """Nothing of a task is to be made again."""
        row = self.lineage.pop(task_id, None)
        self.values.pop(task_id, None)
        if row is not None and (row[3] or len(row) > 4):
            self.ended(row)


def _names(row: Row) -> tuple[bytes, ...]:
    """The objects a row names: dependencies, and refs inside its arguments."""
    names: tuple[bytes, ...] = row[3]
    return names + option(row[4], "contains", ()) if len(row) > 4 else names
