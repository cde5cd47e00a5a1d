"""The client's side of room in the arena: requests to the object store, its answers, and the grants that result.

Room for one large object is reserved exactly; smaller ones share grants. A process that uses up one grant after the other requests the next
while it writes into the last (``ahead``), so that a put waits for no round trip. Each request is for a larger grant than the one before
(``wish``). The more a grant holds, the longer its successor may take to arrive, and the larger are the objects that can share it. Where the
store has no room for grants, each object has room of its own, which may be a file on disk. Once the process writes no more, it returns the
grants that it does not need (``rest``). Not thread-safe: the client's lock is held.
"""

from __future__ import annotations

from collections.abc import Callable

from zfabric.config import Config
from zfabric.machines.client.grants import Grants
from zfabric.machines.common.extents import footprint
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address

AHEAD_GRANTS = 2
"""Room ahead of a process that uses up one grant after the other, in usual grants: a new grant may arrive as slowly as one is filled."""
WISH_MOST = 8
"""Size of the largest grant that a process requests, in usual grants: several milliseconds of copying, and some more round trips."""
AHEAD_PATIENCE = 1.0
"""Seconds that the store may delay a request for a grant which no put waits for."""


class Reservations:
    """Requests for room, by token. ``send`` sends a message to the object store."""

    def __init__(self, config: Config, token: Callable[[], int], send: Callable[[m.Message], None]) -> None:
        self.grants = Grants()
        self.requests: dict[int, m.Reserve] = {}
        """Requests without an answer."""
        self.answers: dict[int, m.Granted | m.NoSpace] = {}
        """Answers that nobody has taken yet."""
        self.ahead = 0
        """Token of the request for the next grant, made before the last one is used up; 0 if there is none."""
        self.wish = config.grant_bytes
        """Size that the next request for a grant asks for: twice the size of the one before."""
        self._alone = False
        """Whether the store at present has no grants to share."""
        self._rested = False
        self._grant_bytes = config.grant_bytes
        self._token = token
        self._send = send

    # -- requests --

    def shares(self, size: int) -> bool:
        """Whether an object of ``size`` bytes shares a grant with others, rather than having room of its own."""
        return footprint(size) <= self.wish // 2 and not self._alone

    def reserve(self, size: int, exact: bool, patience: float) -> int:
        """Request room; the answer arrives under the returned token."""
        token = self._token()
        request = self.requests[token] = m.Reserve(token, size, 0 if exact else self.wish, patience)
        self._send(request)
        self.wish = min(2 * max(self.wish, footprint(size)), WISH_MOST * self._grant_bytes)
        return token

    def allocate(self, size: int) -> int | None:
        """Allocate a new object in a grant; return its payload offset.

        None if there is no room: a grant must be reserved first, or is on its way (``ahead``).
        """
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
        """Take the answer to a request. None if there is none, or if the answer was a grant requested ahead."""
        return self.answers.pop(token, None)

    def cancel(self, token: int) -> None:
        """Give up a request; room that arrives for it is returned."""
        if token == self.ahead:
            self.ahead = 0
        self.requests.pop(token, None)
        answer = self.answers.pop(token, None)
        if type(answer) is m.Granted:
            self._send(m.ReturnGrant(answer.offset, 0))

    # -- writing --

    def finished(self, offset: int) -> None:
        """Record that the object with its payload at ``offset`` is sealed, and its place is in a message on its way."""
        row = self.grants.finished(offset)
        if row is not None:
            self._send(m.ReturnGrant(*row))

    def abandon(self, offset: int) -> None:
        """Record that the object at ``offset`` will not be written."""
        row = self.grants.abandon(offset)
        if row is not None:
            self._send(m.ReturnGrant(*row))

    # -- answers of the store --

    def on_granted(self, now: float, source: Address, message: m.Granted) -> None:
        """Store the room that was granted, or return it if no request waits for it any more."""
        if self.requests.pop(message.token, None) is None:
            self._send(m.ReturnGrant(message.offset, 0))
        elif message.token == self.ahead:
            self.ahead = 0
            self.grants.add(message.offset, message.size)
        else:
            self._alone = self._alone and message.offset < 0
            self.answers[message.token] = message

    def on_no_space(self, now: float, source: Address, message: m.NoSpace) -> None:
        """Record that the store has no room for a request."""
        if self.requests.pop(message.token, None) is None:
            return
        self.wish = self._grant_bytes
        self._alone = self._alone or message.kind == "alone"
        if message.token == self.ahead:
            self.ahead = 0  # A put that needs the room will request it again, with more patience.
        else:
            self.answers[message.token] = message

    def on_recall_grant(self, now: float, source: Address, message: m.RecallGrant) -> None:
        """Return this grant if it is idle: the store is short of room."""
        self.wish = self._grant_bytes
        row = self.grants.give_back(message.offset)
        if row is not None:
            self._send(m.ReturnGrant(*row))

    def rest(self) -> None:
        """Return surplus grants and make small requests again if nothing was written since the last call. Called now and then."""
        if self._rested and self.wish > self._grant_bytes:
            self.wish = self._grant_bytes
            for row in self.grants.idle(self._grant_bytes):
                self._send(m.ReturnGrant(*row))
        self._rested = True

    # -- after a restart of the daemon --

    def rows(self) -> tuple[tuple[int, int, int], ...]:
        """Rows of ``GrantsHeld``: (offset, size, used) of grants, and of granted room that nobody has taken."""
        not_taken = (answer for answer in self.answers.values() if type(answer) is m.Granted)
        return (*self.grants.rows(), *((answer.offset, answer.size, 0) for answer in not_taken))

    def repeat_requests(self) -> None:
        """Repeat all requests to a restarted daemon."""
        for request in self.requests.values():
            self._send(request)
