"""The client's side of pins: which places in the arena this process was told, and which of its values look into them.

A place that is told is a pin, once for every telling (see ``Unpin``). The pins of an object go when this process has neither a ref to it
nor a value that looks into it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container

Place = tuple[int, int]
"""(offset, size) in the arena."""


class Pins:
    """Places told and values that look into them; ``referred`` has the objects with refs, ``unpin`` says that one telling is over."""

    def __init__(self, referred: Container[bytes], unpin: Callable[[bytes], None]) -> None:
        self.tellings: Counter[bytes] = Counter()
        """Times the place of an object was told to this process and not unpinned yet."""
        self.places: dict[bytes, Place] = {}
        """Where those objects are."""
        self.views: Counter[bytes] = Counter()
        """Live values of this process that look into the arena, by object."""
        self._referred = referred
        self._unpin = unpin

    def told(self, identifier: bytes, place: Place) -> None:
        """A place was told to this process: that is a pin."""
        self.tellings[identifier] += 1
        self.places[identifier] = place

    def view(self, identifier: bytes) -> None:
        """A value of this process looks into the arena."""
        self.views[identifier] += 1

    def viewed(self, identifier: bytes) -> bool:
        """Whether any does."""
        return self.views.get(identifier, 0) > 0

    def unview(self, identifier: bytes) -> None:
        """One of them is gone."""
        self.views[identifier] -= 1
        if self.views[identifier] <= 0:
            del self.views[identifier]
            self.let_go(identifier)

    def let_go(self, identifier: bytes) -> None:
        """Unpin an object, unless it is still in use here."""
        if identifier not in self._referred and not self.viewed(identifier):
            self.release(identifier)

    def release(self, identifier: bytes) -> None:
        """Unpin an object: as often as its place was told."""
        self.places.pop(identifier, None)
        for _ in range(self.tellings.pop(identifier, 0)):
            self._unpin(identifier)

    def rows(self) -> list[tuple[bytes, int, int]]:
        """What ``Pinned`` says after a restart of the daemon: a row for every telling."""
        return [(identifier, *self.places[identifier]) for identifier in self.tellings.elements()]
