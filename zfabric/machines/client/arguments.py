"""Large arguments of calls, of which only the actor that copies them has been notified (decision 0004).

Its caller writes such a value into a grant of its own, and uses the room again if the outcome comes soon. The value is reported once the
actor is elsewhere, or is to fetch it; much is under way, or for long; or the store wants room.
"""

from __future__ import annotations

from collections.abc import Callable

from zfabric.machines.client.outbox import Outbox
from zfabric.machines.client.pins import Place
from zfabric.machines.client.reservations import Reservations
from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row


def _nothing(offset: int) -> None:
    pass


class Arguments:
    """Unreported arguments, under the client's lock. ``most``: bytes of them."""

    def __init__(self, outbox: Outbox, reservations: Reservations, written: dict[bytes, Row], most: int) -> None:
        self.places: dict[bytes, Place] = {}
        """Where they are, the oldest first."""
        self.void: Callable[[int], None] = _nothing
        """Voids the header of the value at an offset."""
        self._outbox = outbox
        self._reservations = reservations
        self._written = written
        self._most = most
        self._bytes = 0

    def add(self, identifier: bytes, place: Place) -> None:
        """Add a written value without refs inside. It is in an entry already."""
        self.places[identifier] = place
        self._bytes += place[1]
        while self._bytes > self._most:
            self.report(next(iter(self.places)))

    def report(self, identifier: bytes) -> None:
        """Report a value once."""
        place = self.places.pop(identifier, None)
        if place is not None:
            self._bytes -= place[1]
            row = self._written[identifier] = identifier, place, (), False
            self._outbox.add(m.Put, row)
            self._reservations.finished(place[0])

    def report_all(self) -> None:
        """Report all values."""
        while self.places:
            self.report(next(iter(self.places)))

    def drop(self, identifier: bytes) -> bool:
        """Use an unreferenced value's room again. False if it is reported: others decide."""
        place = self.places.pop(identifier, None)
        if place is None:
            return False
        self._bytes -= place[1]
        self.void(place[0])
        self._reservations.abandon(place[0])
        return True
