"""The client's room in the arena: requests to the object store, its answers, and the resulting grants (decision 0001).

A large object gets room of its own; smaller ones share grants. Without room for grants, each object has room of its own, perhaps a file.
The client's lock is held.
"""

from __future__ import annotations

from collections.abc import Callable

from zfabric.config import Config
from zfabric.machines.client.grants import Grants
from zfabric.machines.client.objects import Place
from zfabric.machines.client.outbox import Outbox
from zfabric.machines.common.extents import footprint
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import Row

AHEAD_GRANTS = 2
"""Room ahead, in usual grants: a new one may take as long to arrive as one to fill."""
WISH_MOST = 8
"""Largest grant, in usual ones: milliseconds of copying against round trips."""
AHEAD_PATIENCE = 1.0
"""Seconds that the store may delay a grant which no put waits for."""


class Reservations:
    """Requests for room, by token."""

    def __init__(self, config: Config, token: Callable[[], int], send: Callable[[m.Message], None]) -> None:
        self.grants = Grants()
        self.requests: dict[int, m.Reserve] = {}
        self.answers: dict[int, m.Granted | m.NoSpace] = {}
        """Answers not taken yet."""
        self.ahead = 0
        """Token of the request made ahead, or 0."""
        self.wish = config.grant_bytes
        """Size of the next grant: twice the last."""
        self._alone = False
        """Whether the store has no grants to share."""
        self._rested = False
        self._grant_bytes = config.grant_bytes
        self._token = token
        self._send = send

    # -- requests --

    def shares(self, size: int) -> bool:
        """Whether an object of this size shares a grant."""
        return footprint(size) <= self.wish // 2 and not self._alone

    def reserve(self, size: int, exact: bool, patience: float) -> int:
        """Request room; the answer comes under the returned token."""
        token = self._token()
        request = self.requests[token] = m.Reserve(token, size, 0 if exact else self.wish, patience)
        self._send(request)
        self.wish = min(2 * max(self.wish, footprint(size)), WISH_MOST * self._grant_bytes)
        return token

    def allocate(self, size: int) -> int | None:
        """Allocate an object; return its payload offset. None: reserve a grant first, unless one is on its way (``ahead``)."""
        self._rested = False
        offset = self.grants.allocate(size)
        least = max(AHEAD_GRANTS * self._grant_bytes, self.wish // 2)
        if not self.ahead and (offset is None or self.grants.nearly_spent(size, least)):
            for row in self.grants.spent(size):
                self._send(m.ReturnGrant(*row))
            if offset is not None:
                self.ahead = self.reserve(size, False, AHEAD_PATIENCE)
        return offset

    def answered(self, token: int) -> bool:
        """Whether a request has been answered."""
        return token not in self.requests

    def take(self, token: int) -> m.Granted | m.NoSpace | None:
        """Take an answer; None without one, or if the grant was requested ahead."""
        return self.answers.pop(token, None)

    def cancel(self, token: int) -> None:
        """Give up a request; its room is returned."""
        if token == self.ahead:
            self.ahead = 0
        self.requests.pop(token, None)
        answer = self.answers.pop(token, None)
        if type(answer) is m.Granted:
            self._send(m.ReturnGrant(answer.offset, 0))

    # -- writing --

    def finished(self, offset: int) -> None:
        """Record a sealed object, its place on its way."""
        row = self.grants.finished(offset)
        if row is not None:
            self._send(m.ReturnGrant(*row))

    def abandon(self, offset: int) -> None:
        """Record that an object will not be written."""
        row = self.grants.abandon(offset)
        if row is not None:
            self._send(m.ReturnGrant(*row))

    # -- answers of the store --

    def on_granted(self, now: float, source: Address, message: m.Granted) -> None:
        """Store granted room, or return it if no request waits."""
        if self.requests.pop(message.token, None) is None:
            self._send(m.ReturnGrant(message.offset, 0))
        elif message.token == self.ahead:
            self.ahead = 0
            self.grants.add(message.offset, message.size)
        else:
            self._alone = self._alone and message.offset < 0
            self.answers[message.token] = message

    def on_no_space(self, now: float, source: Address, message: m.NoSpace) -> None:
        """Record that there is no room."""
        if self.requests.pop(message.token, None) is None:
            return
        self.wish = self._grant_bytes
        self._alone = self._alone or message.kind == "alone"
        if message.token == self.ahead:
            self.ahead = 0  # A put that needs the room requests it again, with more patience.
        else:
            self.answers[message.token] = message

    def on_recall_grant(self, now: float, source: Address, message: m.RecallGrant) -> None:
        """Return this grant if idle."""
        self.wish = self._grant_bytes
        row = self.grants.give_back(message.offset)
        if row is not None:
            self._send(m.ReturnGrant(*row))

    def rest(self) -> None:
        """If nothing was written since the last call, return surplus grants and restart with small requests."""
        if self._rested and self.wish > self._grant_bytes:
            self.wish = self._grant_bytes
            for row in self.grants.idle(self._grant_bytes):
                self._send(m.ReturnGrant(*row))
        self._rested = True

    # -- after a restart of the daemon --

    def rows(self) -> tuple[tuple[int, int, int], ...]:
        """For ``GrantsHeld``: (offset, size, used) of grants and untaken room."""
        not_taken = (answer for answer in self.answers.values() if type(answer) is m.Granted)
        return (*self.grants.rows(), *((answer.offset, answer.size, 0) for answer in not_taken))

    def repeat_requests(self) -> None:
        """Repeat requests to a restarted daemon."""
        for request in self.requests.values():
            self._send(request)


def _nothing(offset: int) -> None:
    pass


class Arguments:
    """Large arguments of calls, of which only the actor that copies them has been notified (decision 0004). ``most``: bytes of them.

    Their caller writes such a value into a grant of its own, and uses the room again if the outcome comes soon. The value is reported once
    the actor is elsewhere, or is to fetch it; when many bytes, or this value for long, are under way; or when the store wants room.
    """

    def __init__(self, outbox: Outbox, reservations: Reservations, written: dict[bytes, Row], most: int) -> None:
        self.places: dict[bytes, Place] = {}
        """Places by object id, the oldest first."""
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
