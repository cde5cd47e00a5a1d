"""Results of calls that other processes need, too (decision 0011): the scheduler is notified to expect them, and receives them when they
arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from zfabric.machines.client.objects import ObjectTable
from zfabric.machines.client.outbox import Outbox
from zfabric.machines.client.targets import PendingCalls, Target
from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES, is_call
from zfabric.protocol.messages import Row


class SharedResults:
    """Shared results with refs here."""

    def __init__(self, objects: ObjectTable, outbox: Outbox, pending: PendingCalls) -> None:
        self.ids: set[bytes] = set()
        """Results that the scheduler has or expects."""
        self.awaited: set[bytes] = set()
        """Promised results that have not arrived."""
        self._objects = objects
        self._outbox = outbox
        self._pending = pending

    def share(self, object_ids: Iterable[bytes]) -> None:
        """Give the scheduler results; announce those that have not arrived."""
        pending = self._pending.targets
        for identifier in object_ids:
            if not is_call(identifier):
                continue
            if identifier in self.ids and (identifier in self.awaited or identifier[:TASK_BYTES] not in pending):
                continue  # After a daemon's restart it may be in ``ids`` alone (``share_sent``): promise it now.
            entry = self._objects.entry(identifier)
            if entry is None:
                continue
            target = pending.get(identifier[:TASK_BYTES])
            if target is not None:
                self.expect(identifier, target)
            else:
                self.ids.add(identifier)
                self._outbox.add(m.OfferResults, (identifier, entry.status, entry.data, ()))
                self._outbox.add(m.Hold, identifier)

    def expect(self, identifier: bytes, target: Target) -> None:
        """Announce a result."""
        self._objects.entry(identifier)  # As an entry, not a bare row: its outcome is sent on to the scheduler.
        self.ids.add(identifier)
        self.awaited.add(identifier)
        self._outbox.add(m.ExpectResults, self._expected(identifier, target))

    def _expected(self, identifier: bytes, target: Target) -> Row:
        ahead = self._pending.ahead_of(identifier[:TASK_BYTES])
        return (identifier, target.actor_id) if ahead is None else (identifier, target.actor_id, ahead)

    def add(self, identifier: bytes) -> None:
        """Record that the scheduler has a result."""
        self.ids.add(identifier)

    def remove(self, identifier: bytes) -> None:
        """Remove a result without refs here."""
        self.ids.discard(identifier)

    def arrived(self, identifier: bytes) -> None:
        """Record that a result has arrived."""
        self.awaited.discard(identifier)

    def release(self, identifier: bytes) -> bool:
        """Drop a result's last ref. Return whether to notify the scheduler."""
        if identifier not in self.ids:
            return False
        if identifier[:TASK_BYTES] not in self._pending.targets:
            self.ids.discard(identifier)
        return True

    def is_private(self, identifier: bytes) -> bool:
        """Whether an object is a call's result unknown to the scheduler."""
        return is_call(identifier) and identifier not in self.ids

    # -- after a restart of the daemon --

    def share_sent(self) -> None:
        """Share results of sent calls: the scheduler's record of a value in the arena may be lost."""
        for call_id, target in self._pending.targets.items():
            if call_id in target.sent:
                self.ids.update(self._pending.values_of(call_id))

    def expected(self) -> Iterator[tuple[type[Any], Row]]:
        """For a restarted scheduler: (kind of message, row)."""
        for identifier in sorted(self.ids):
            target = self._pending.targets.get(identifier[:TASK_BYTES])
            if target is not None:
                yield m.ExpectResults, self._expected(identifier, target)
