"""Tasks that this process submits, until their outcomes."""

from __future__ import annotations

from collections import deque

from zfabric.config import ROWS_MAX
from zfabric.machines.client.calls import Calls
from zfabric.machines.client.direct_submission import DirectSubmitter
from zfabric.machines.client.objects import PENDING, ObjectEntry, ObjectTable
from zfabric.machines.client.outbox import Outbox
from zfabric.machines.client.references import ReceivedReferences, RetainedObjects
from zfabric.machines.client.unread import UnreadFailures
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FIRST_RETURN, TASK_BYTES, WORKER, Address, object_id
from zfabric.protocol.messages import OK, Row
from zfabric.protocol.options import names_objects, option

CallTerms = tuple[bytes, int, bool, bool]
"""An actor's id, and ``retries``, ``keeps``, ``unordered`` of ``Calls.call``."""

_SUBMIT = m.Submit


class Tasks:
    """Tasks without an outcome, and their functions."""

    def __init__(
        self,
        objects: ObjectTable,
        outbox: Outbox,
        direct: DirectSubmitter,
        references: ReceivedReferences,
        retained: RetainedObjects,
        unread: UnreadFailures,
        calls: Calls,
    ) -> None:
        self.functions: dict[bytes, Row] = {}
        self.unfinished = 0
        self.several: dict[bytes, tuple[Row, int]] = {}
        """Rows of tasks without exactly one value, and numbers of values."""
        self.cancelled: dict[bytes, tuple[bool, bool]] = {}
        """Pending objects cancelled here: (force, recursive)."""
        self.submitted: deque[tuple[Row, CallTerms | None]] = deque()
        """Rows of tasks, and of calls with terms, for ``take_up``."""
        self._classes: set[bytes] = set()
        self._objects = objects
        self._entries = objects.entries
        self._outbox = outbox
        self._direct = direct
        self._references = references
        self._retained = retained
        self._unread = unread
        self._calls = calls
        self._results = calls.results
        self._pending_calls = calls.pending

    def export(self, function_id: bytes, name: str, payload: bytes, options: tuple[Row, ...]) -> None:
        """Send a function once."""
        if function_id not in self.functions:
            row = (function_id, name, payload, options)
            self.functions[function_id] = row
            if option(options, "actor") is not None:
                self._classes.add(function_id)
            self._outbox.add(m.Export, row)

    # -- submitting --

    def submit(self, row: Row, returns: int) -> bytes:
        """Queue a row; this process holds its values. Return the first value's id."""
        fresh = True
        identifier: bytes = row[0] + FIRST_RETURN
        if returns == 1:
            if self._entries.setdefault(identifier, row) is not row:  # Each submission has a row of its own, even a repeated one.
                fresh = self._submit_again(identifier, row)
        else:
            fresh = row[0] not in self.several
            if fresh:
                self.several[row[0]] = (row, returns)
            for index in range(returns):
                self._submit_again(object_id(row[0], index), None)
        if fresh:
            self.unfinished += 1
            if row[3] or (len(row) > 4 and names_objects(row)):
                self._results.share(self._need(row))
            if row[1] in self._classes:
                self._retained.retain_row(row[0], row)
                self._need(row)
        if (
            self.unfinished == 1
            and row[1] in self._direct.workers
            and fresh
            and len(row) == 4
            and not row[3]
            and returns == 1
            and not self._pending_calls
        ):
            self._direct.submit(row)  # Most likely the program waits for it, and for nothing else.
            return identifier
        outbox = self._outbox
        if outbox.kind is _SUBMIT and len(outbox.tail) < ROWS_MAX:
            outbox.tail.append(row)
        else:
            outbox.add(_SUBMIT, row)
        return identifier

    def take_up(self) -> None:
        """Enter submitted rows, in order, before the shell looks at a table.

        Appending is one step, which no signal divides.
        """
        submitted, submit = self.submitted, self.submit
        while submitted:
            row, terms = submitted.popleft()
            if terms is None:
                submit(row, 1)
            else:
                self._calls.call(terms[0], row, 1, terms[1], terms[2], terms[3])

    def _submit_again(self, identifier: bytes, row: Row | None) -> bool:
        """Submit a value that may have an entry: its parent ran here before, or a ref arrived. Return whether the row is new."""
        entry = self._objects.entry(identifier)
        if entry is None:
            entry = self._entries[identifier] = ObjectEntry(0, PENDING, None, None)
        entry.refs += 1
        if entry.data is None:
            entry.status = PENDING
        if row is None or entry.row is not None:
            return False
        entry.row = row
        return True

    def _need(self, row: Row) -> tuple[bytes, ...]:
        """Retain what a row names; failures of refs inside its arguments are read elsewhere."""
        names = self._retained.need(row)
        if len(names) > len(row[3]):
            self._unread.expected(names[len(row[3]) :])
        return names

    def on_inherit_tasks(self, now: float, source: Address, message: m.InheritTasks) -> None:
        """Take over dead workers' tasks, to repeat them after a daemon's restart."""
        self.functions.update((function[0], function) for function in message.functions)
        for row in message.rows:
            entry = self._entries.get(row[0] + FIRST_RETURN)
            pending = type(entry) is tuple or (type(entry) is ObjectEntry and entry.row is not None)
            if not pending and row[0] not in self.several:
                self.several[row[0]] = (row, 0)
                self.unfinished += 1
                self._need(row)

    # -- cancelling --

    def cancel(self, identifiers: tuple[bytes, ...], force: bool, recursive: bool) -> None:
        """Record cancellations, to repeat them after a daemon's restart."""
        for identifier in identifiers:
            if not self._objects.known(identifier):
                self.cancelled[identifier] = (force, recursive)

    def forget_cancelled(self, identifier: bytes) -> None:
        """Drop a cancellation without refs here."""
        if self.cancelled and identifier[:TASK_BYTES] not in self.several:
            self.cancelled.pop(identifier, None)

    # -- outcomes --

    def on_results(self, now: float, source: Address, message: m.Results) -> None:
        """Store outcomes, from the scheduler or a worker."""
        entries, watchers, retained = self._entries, self._objects.watchers, self._retained
        if self.cancelled:
            self._end_cancelled(message)
        finished = 0
        for task_id, status, outputs in message.rows:
            identifier = task_id + FIRST_RETURN
            entry = entries.get(identifier)
            if type(entry) is tuple:
                if status == OK and outputs and type(outputs[0]) is bytes and not watchers:
                    # The commonest outcome, in place: the value replaces the row.
                    finished += 1
                    entries[identifier] = outputs[0]
                    if entry[3] or (len(entry) > 4 and names_objects(entry)):
                        retained.release_needs(entry)
                    continue
                entry = self._objects.entry(identifier)
            if type(entry) is not ObjectEntry or entry.row is None:
                self._settle_several(task_id, status, outputs)
                continue
            finished += 1
            row, entry.row = entry.row, None
            if status != OK:
                self._unread.read(row[3])
                self._unread.arrived(task_id, status, outputs, (identifier,) if entry.refs > 0 else ())
            needed = entry.refs > 0 and not (outputs and outputs[0] is not None)  # The row is lineage, which needs what it names.
            if names_objects(row) and not (needed and task_id not in retained.lineage):
                retained.release_needs(row)
            data = outputs[0] if outputs else None
            if entry.refs <= 0:
                del entries[identifier]
                entry.status, entry.data = status, data
                retained.settle_unreferenced(identifier, entry, row)
                continue
            if data is None:
                retained.retain_row(task_id, row)
            elif status != OK:
                self._references.contain_failure(identifier, data)
            self._objects.settle(identifier, entry, status, data)
        self.unfinished -= finished
        if source[:1] == WORKER:
            self._direct.count(source[1:], message.rows)

    def _end_cancelled(self, message: m.Results) -> None:
        outcomes = {task_id for task_id, _, _ in message.rows}
        for identifier in [each for each in self.cancelled if each[:TASK_BYTES] in outcomes]:
            del self.cancelled[identifier]

    def _settle_several(self, task_id: bytes, status: int, outputs: Row) -> None:
        row, count = self.several.pop(task_id, (None, 0))
        if row is None:
            return
        self.unfinished -= 1
        if status != OK:
            self._unread.read(row[3])
            names = (object_id(task_id, index) for index in range(count))
            self._unread.arrived(task_id, status, outputs, [each for each in names if each in self._entries])
        retained = self._retained
        known_before = task_id in retained.lineage
        held: set[bytes] = set()
        for index in range(count):
            identifier = object_id(task_id, index)
            entry = self._objects.entry(identifier)
            data = outputs[index if status == OK else 0] if outputs else None
            if entry is None:
                retained.retire(identifier, ObjectEntry(0, status, data, None), row)
                continue
            if data is None:
                retained.retain_row(task_id, row)
            elif status != OK:
                self._references.contain_failure(identifier, data)
            held.add(identifier)
            self._objects.settle(identifier, entry, status, data)
        if task_id in retained.lineage:
            retained.retain_values(task_id, held)
        if names_objects(row) and (known_before or task_id not in retained.lineage):
            retained.release_needs(row)
