"""Refs received: from others, inside values, and as copies."""

from __future__ import annotations

from zfabric.machines.client.objects import ABSENT, ObjectEntry, ObjectTable
from zfabric.machines.client.outbox import Outbox
from zfabric.machines.client.retention import RetainedObjects
from zfabric.machines.client.shared_results import SharedResults
from zfabric.machines.client.unread import UnreadFailures
from zfabric.protocol import messages as m
from zfabric.protocol.ids import is_call
from zfabric.protocol.inside import refs_in


class ReceivedReferences:
    """Adds refs; ``Releases`` takes them away."""

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
