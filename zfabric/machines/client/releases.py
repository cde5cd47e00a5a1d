"""Dropped refs: what goes with the last one, here and in the scheduler, and is called then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from zfabric.config import ROWS_MAX
from zfabric.machines.client.calls import Calls
from zfabric.machines.client.objects import ObjectEntry, ObjectTable, Pins
from zfabric.machines.client.outbox import Outbox
from zfabric.machines.client.references import RetainedObjects
from zfabric.machines.client.reservations import Arguments
from zfabric.machines.client.shared_results import SharedResults
from zfabric.machines.client.tasks import Tasks
from zfabric.machines.client.unread import UnreadFailures
from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES, Address, is_call
from zfabric.protocol.messages import OK

Callback = Callable[[bytes], None]


class LastReferences:
    """Callbacks for when no ref is left here, or anywhere in the cluster. Used and called under the client's lock.

    For the second kind, the scheduler answers when nothing needs the object (``local_scheduler/nodes/reference_watches.py``). It must have
    a record of the object: results of calls are shared, arguments reported.
    """

    def __init__(self, outbox: Outbox, results: SharedResults, arguments: Arguments) -> None:
        self.here: dict[bytes, list[Callback]] = {}
        """Callbacks that wait for the last ref here."""
        self.everywhere: dict[bytes, list[Callback]] = {}
        """Callbacks that wait for the last ref anywhere."""
        self.count = 0
        """Callbacks that wait."""
        self._outbox = outbox
        self._results = results
        self._arguments = arguments

    def add(self, identifier: bytes, callback: Callback, everywhere: bool) -> None:
        """Call ``callback`` once no ref is left to an object that has one here."""
        self.count += 1
        if not everywhere:
            self.here.setdefault(identifier, []).append(callback)
            return
        if identifier not in self.everywhere:
            self._arguments.report(identifier)
            self._results.share((identifier,))
            self._outbox.add(m.WatchReferences, identifier)
        self.everywhere.setdefault(identifier, []).append(callback)

    def dropped(self, identifier: bytes) -> None:
        """Call back for an object whose last ref here was dropped."""
        self._call(self.here, identifier)

    def on_unreferenced(self, now: float, source: Address, message: m.Unreferenced) -> None:
        """Call back for objects that nothing in the cluster needs."""
        for identifier in message.object_ids:
            self._call(self.everywhere, identifier)

    def _call(self, waiting: dict[bytes, list[Callback]], identifier: bytes) -> None:
        callbacks = waiting.pop(identifier, ())
        self.count -= len(callbacks)
        for callback in callbacks:
            callback(identifier)

    def repeat(self) -> None:
        """Ask a restarted daemon, which has received all that this process holds."""
        for identifier in self.everywhere:
            self._outbox.add(m.WatchReferences, identifier)


_RELEASE = m.Release


class Releases:
    """Drops refs and views in batches. Finalizers, which take no lock, append to its two queues."""

    def __init__(
        self,
        objects: ObjectTable,
        outbox: Outbox,
        pins: Pins,
        retained: RetainedObjects,
        unread: UnreadFailures,
        calls: Calls,
        tasks: Tasks,
        arguments: Arguments,
        last: LastReferences,
    ) -> None:
        self.dropped = objects.dropped
        self.unviewed: deque[bytes] = deque()
        """Object ids of deleted values that looked into the arena."""
        self._objects = objects
        self._entries = objects.entries
        self._outbox = outbox
        self._pins = pins
        self._retained = retained
        self._unread = unread
        self._calls = calls
        self._tasks = tasks
        self._arguments = arguments
        self._last = last
        self._rare_tables = (pins.counts, retained.lineage, retained.containing, retained.needed, tasks.cancelled, calls.targets, last.here)
        """Mostly empty. If all are, dropping a ref to a small value only removes its entry."""

    def settle(self) -> None:
        """Drop refs, then unpin what no value looks into."""
        dropped, unviewed, entries, calls, outbox = self.dropped, self.unviewed, self._entries, self._calls, self._outbox
        pinned, lineage, containing, needed, cancelled, targets, watched = self._rare_tables
        rare = bool(pinned or lineage or containing or needed or cancelled or targets or watched)
        while dropped:
            identifier = dropped.popleft()
            entry = entries.get(identifier)
            if entry is None and self._tasks.submitted:
                self._tasks.take_up()  # It may be the value of a row that was only appended.
                entry = entries.get(identifier)
            if entry is None:
                continue
            if type(entry) is bytes and not rare:
                del entries[identifier]
            elif type(entry) is bytes and is_call(identifier) and not self._concerns_others(identifier):
                del entries[identifier]
                continue
            else:
                full = self._objects.entry(identifier)
                if full is None:
                    continue
                full.refs -= 1
                if full.refs or (targets and calls.takes_over(identifier, full)):
                    continue
                if watched and identifier in watched:
                    self._last.dropped(identifier)
                if full.status > OK and identifier[:TASK_BYTES] in self._unread.held:
                    self._unread.dropped(identifier)
                if full.row is None:
                    del entries[identifier]
                if self._arguments.places and self._arguments.drop(identifier):
                    continue
                if rare:
                    self._release(identifier, full)
            if is_call(identifier) and not calls.results.release(identifier):
                continue
            if outbox.kind is _RELEASE and len(outbox.tail) < ROWS_MAX:
                outbox.tail.append(identifier)
            else:
                outbox.add(_RELEASE, identifier)
        while unviewed:
            self._pins.unview(unviewed.popleft())

    def _concerns_others(self, identifier: bytes) -> bool:
        """Whether a call's small result is more than its entry: another process needs it, or a table names it."""
        retained = self._retained
        shared = identifier in self._calls.results.ids or identifier in self._tasks.cancelled
        return shared or identifier in retained.needed or identifier in retained.containing or identifier in self._last.here

    def _release(self, identifier: bytes, entry: ObjectEntry) -> None:
        retained = self._retained
        if entry.row is None:
            self._tasks.forget_cancelled(identifier)
            retained.retire(identifier, entry, retained.lineage.get(identifier[:TASK_BYTES]))
        if identifier in self._pins.counts:
            self._pins.release_if_unused(identifier)
        retained.release_value(identifier)
        self._calls.forget(identifier)
        if identifier not in retained.retired:
            retained.release_contained(identifier)
