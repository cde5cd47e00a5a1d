"""Messages to the daemon, in batches of one kind.

Finalizers may submit tasks and send, whenever making a list or tuple runs the garbage collector. So each method makes what it needs first,
then changes the outbox in steps that make nothing.
"""

from __future__ import annotations

from typing import Any

from zfabric.config import ROWS_MAX
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, Send
from zfabric.protocol.ids import Address


class Outbox:
    """Batches in order. Frequent senders append to ``tail`` while it has room and ``kind`` is theirs."""

    __slots__ = ("_batches", "kind", "tail")

    def __init__(self) -> None:
        self._batches: list[tuple[Any, list[Any]]] = []
        self.kind: Any = None
        self.tail: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def urgent(self) -> bool:
        """Whether anything but releases is to be sent."""
        batches = self._batches
        return bool(batches) and (len(batches) > 1 or batches[0][0] is not m.Release)

    @property
    def ends_with_lone_row(self) -> bool:
        """Whether one row was added behind releases."""
        batches = self._batches
        return len(self.tail) == 1 and (len(batches) == 1 or (len(batches) == 2 and batches[0][0] is m.Release))

    def take_last_row(self) -> Any:
        """Take the newest batch's only row."""
        tail: list[Any] = []
        self.kind = None
        self.tail = tail
        return self._batches.pop()[1][0]

    def add(self, kind: Any, item: Any) -> None:
        """Add a row of this kind."""
        if self.kind is kind and len(self.tail) < ROWS_MAX:
            self.tail.append(item)
            return
        tail = [item]
        batch = (kind, tail)
        self.kind = kind
        self.tail = tail
        self._batches.append(batch)

    def add_message(self, message: m.Message) -> None:
        """Add a whole message, in order."""
        batch: tuple[Any, list[Any]] = (None, [message])
        tail: list[Any] = []
        self.kind = None
        self.tail = tail
        self._batches.append(batch)

    def clear(self) -> None:
        """Drop everything."""
        self._take_batches()

    def take(self, scheduler: Address, store: Address) -> list[Effect]:
        """Take everything, as messages."""
        batches = self._take_batches()
        effects: list[Effect] = []
        for kind, items in batches:
            if kind is None:
                effects.append(Send(scheduler, items[0]))
            elif items:
                effects.append(Send(store if kind is m.Unpin else scheduler, kind(tuple(items))))
        return effects

    def _take_batches(self) -> list[tuple[Any, list[Any]]]:
        fresh: list[tuple[Any, list[Any]]] = []
        tail: list[Any] = []
        batches = self._batches
        self._batches = fresh
        self.kind = None
        self.tail = tail
        return batches
