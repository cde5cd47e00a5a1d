"""Results of calls that other processes need, too.

A small result concerns only the caller and the actor: the scheduler has no record of it. It is *shared* as soon as another process
may need it (a row or a value names it): the scheduler is then told to expect it, and receives the value when it has arrived.
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
    """The shared results that this process has refs to."""

    def __init__(self, objects: ObjectTable, outbox: Outbox, pending: PendingCalls) -> None:
        self.ids: set[bytes] = set()
        """Results that the scheduler has or expects."""
        self.awaited: set[bytes] = set()
        """Results that were promised to other processes and have not arrived."""
        self._objects = objects
        self._outbox = outbox
        self._pending = pending

    def share(self, object_ids: Iterable[bytes]) -> None:
        """Tell the scheduler of those of these objects that are results of calls: other processes are about to receive refs to them."""
        pending = self._pending.targets
        for identifier in object_ids:
            if not is_call(identifier):
                continue
            if identifier in self.ids and (identifier in self.awaited or identifier[:TASK_BYTES] not in pending):
                continue  # One that is in ``ids`` only since the daemon was restarted (``share_sent``) is promised now.
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
        """Tell the scheduler to expect a result that has not arrived."""
        self._objects.entry(identifier)  # Its outcome is not a plain one, since the scheduler receives it, too.
        self.ids.add(identifier)
        self.awaited.add(identifier)
        self._outbox.add(m.ExpectResults, self._expected(identifier, target))

    def _expected(self, identifier: bytes, target: Target) -> Row:
        ahead = self._pending.ahead_of(identifier[:TASK_BYTES])
        return (identifier, target.actor_id) if ahead is None else (identifier, target.actor_id, ahead)

    def add(self, identifier: bytes) -> None:
        """The scheduler has this result."""
        self.ids.add(identifier)

    def remove(self, identifier: bytes) -> None:
        """This process has no ref to a result any more."""
        self.ids.discard(identifier)

    def arrived(self, identifier: bytes) -> None:
        """A result is awaited no longer."""
        self.awaited.discard(identifier)

    def release(self, identifier: bytes) -> bool:
        """The last ref to a result was dropped. Whether to tell the scheduler."""
        if identifier not in self.ids:
            return False
        if identifier[:TASK_BYTES] not in self._pending.targets:
            self.ids.discard(identifier)
        return True

    def is_private(self, identifier: bytes) -> bool:
        """Whether the scheduler has no record of this object, and needs none."""
        return is_call(identifier) and identifier not in self.ids

    # -- after a restart of the daemon --

    def share_sent(self) -> None:
        """Count the results of all calls that were sent as shared: a value may be in the arena, and the scheduler's record of it lost."""
        for call_id, target in self._pending.targets.items():
            if call_id in target.sent:
                self.ids.update(self._pending.values_of(call_id))

    def expected(self) -> Iterator[tuple[type[Any], Row]]:
        """Results that a restarted scheduler must expect: (kind of message, row)."""
        for identifier in sorted(self.ids):
            target = self._pending.targets.get(identifier[:TASK_BYTES])
            if target is not None:
                yield m.ExpectResults, self._expected(identifier, target)
