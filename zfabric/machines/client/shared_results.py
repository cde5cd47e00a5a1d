"""Results of calls that others hear of.

A small result is the business of the process that has called: the scheduler does not know it. It is *shared* as soon as another process
may hear of it (it is named by a row, or inside a value): then the scheduler is told to expect it, and offered the value when it
has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from zfabric.machines.client.targets import Target
from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES, is_call
from zfabric.protocol.messages import Row

if TYPE_CHECKING:
    from zfabric.machines.client.calls import Calls


class SharedResults:
    """Those of one process. Works on the tables of its calls, and of its client."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.ids: set[bytes] = set()
        """Results that the scheduler knows, or expects."""
        self.awaited: set[bytes] = set()
        """Those that others were promised, and that have not come."""

    def share(self, object_ids: Iterable[bytes]) -> None:
        """Other processes are about to hear of these: results of calls among them are made known to the scheduler."""
        client, pending = self.calls.client, self.calls.pending
        for identifier in object_ids:
            if not is_call(identifier):
                continue
            if identifier in self.ids and (identifier in self.awaited or identifier[:TASK_BYTES] not in pending):
                continue  # What is only known since the daemon was restarted (``share_sent``) is promised now.
            entry = client.entry(identifier)
            if entry is None:
                continue
            target = pending.get(identifier[:TASK_BYTES])
            if target is not None:
                self.expect(identifier, target)
            else:
                self.ids.add(identifier)
                client.outbox.add(m.OfferResults, (identifier, entry.status, entry.data, ()))
                client.outbox.add(m.Hold, identifier)

    def expect(self, identifier: bytes, target: Target) -> None:
        """The scheduler is to expect a result that has not come."""
        client = self.calls.client
        client.entry(identifier)  # What the plainest outcome would not be, since this one is said on.
        self.ids.add(identifier)
        self.awaited.add(identifier)
        client.outbox.add(m.ExpectResults, self._expected(identifier, target))

    def _expected(self, identifier: bytes, target: Target) -> Row:
        ahead = self.calls.ahead_of(identifier[:TASK_BYTES])
        return (identifier, target.actor_id) if ahead is None else (identifier, target.actor_id, ahead)

    def let_go(self, identifier: bytes) -> bool:
        """The last ref to a result is gone. Whether the scheduler is to be told."""
        if identifier not in self.ids:
            return False
        if identifier[:TASK_BYTES] not in self.calls.pending:
            self.ids.discard(identifier)
        return True

    def is_private(self, identifier: bytes) -> bool:
        """Whether the scheduler does not know of this object, and need not."""
        return is_call(identifier) and identifier not in self.ids

    # -- after a restart of the daemon --

    def share_sent(self) -> None:
        """A value may be in the arena already, and the news of it still on its way: the next scheduler is to keep it."""
        for call_id, target in self.calls.pending.items():
            if call_id in target.sent:
                self.ids.update(self.calls.values_of(call_id))

    def expected(self) -> Iterator[tuple[type[Any], Row]]:
        """What a restarted scheduler is to expect, as ``Calls.holdings`` says it."""
        for identifier in sorted(self.ids):
            target = self.calls.pending.get(identifier[:TASK_BYTES])
            if target is not None:
                yield m.ExpectResults, self._expected(identifier, target)
