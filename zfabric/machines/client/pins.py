"""The client's side of pins (decision 0004): places in the arena that this process has received, and its values that look into them.

Each received place is a pin (``Unpin``), released when this process has neither a ref to the object nor a value that looks into it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container

Place = tuple[int, int]
"""(offset, size) in the arena."""


class Pins:
    """Places received and values that look into them. ``referred`` has objects with refs; ``unpin`` releases one pin."""

    def __init__(self, referred: Container[bytes], unpin: Callable[[bytes], None]) -> None:
        self.counts: Counter[bytes] = Counter()
        self.places: dict[bytes, Place] = {}
        self.views: Counter[bytes] = Counter()
        """Live values that look into each object."""
        self._referred = referred
        self._unpin = unpin

    def add(self, identifier: bytes, place: Place) -> None:
        """Count a received place."""
        self.counts[identifier] += 1
        self.places[identifier] = place

    def view(self, identifier: bytes) -> None:
        """Count a value that looks into an object."""
        self.views[identifier] += 1

    def viewed(self, identifier: bytes) -> bool:
        """Whether a value looks into an object."""
        return self.views.get(identifier, 0) > 0

    def unview(self, identifier: bytes) -> None:
        """Count off a deleted value; unpin the object if unused."""
        self.views[identifier] -= 1
        if self.views[identifier] <= 0:
            del self.views[identifier]
            self.release_if_unused(identifier)

    def release_if_unused(self, identifier: bytes) -> None:
        """Unpin an object that is not in use."""
        if identifier not in self._referred and not self.viewed(identifier):
            self.release(identifier)

    def release(self, identifier: bytes) -> None:
        """Release all pins on an object."""
        self.places.pop(identifier, None)
        for _ in range(self.counts.pop(identifier, 0)):
            self._unpin(identifier)

    def rows(self) -> list[tuple[bytes, int, int]]:
        """For ``Pinned``, one row for each pin."""
        return [(identifier, *self.places[identifier]) for identifier in self.counts.elements()]
