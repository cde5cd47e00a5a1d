"""The client's side of room in the arena: what was asked of the object store, what it answered, and the grants that came of it.

Room for one large object is reserved exactly; smaller ones share grants. A process that uses up one grant after the other asks for the
next while it writes into the last (``ahead``), so that a put waits for no round trip, and wishes for larger and larger ones (``wish``);
where the store has no room for grants, each object has a room of its own, which may be a file on disk. The wish grows since
the more a grant holds, the longer its successor may take to come, and the larger may be what shares it. When it writes no more, it
gives back what it has too much (``rest``). Not thread-safe: the client's lock is held.
"""

from __future__ import annotations

from collections.abc import Callable

from zfabric.config import Config
from zfabric.machines.client.grants import Grants
from zfabric.machines.common.extents import footprint
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address

AHEAD_GRANTS = 2
"""Grants' worth of room that a process has which uses up one after the other: a new one may take as long to come as one to fill."""
WISH_MOST = 8
"""Usual grants' worth that a process wishes for in one grant at most: several milliseconds of copying, and some more round trips."""
AHEAD_PATIENCE = 1.0
"""Seconds that a request for a grant may wait which nobody waits for yet."""


class Reservations:
    """Requests for room, by token; ``tell`` says something to the object store."""

    def __init__(self, config: Config, token: Callable[[], int], tell: Callable[[m.Message], None]) -> None:
        self.grants = Grants()
        self.requests: dict[int, m.Reserve] = {}
        """Those that were not answered yet."""
        self.answers: dict[int, m.Granted | m.NoSpace] = {}
        """Answers that nobody has taken yet."""
        self.ahead = 0
        """The request for the next grant, made before the last one is used up; 0 if there is none."""
        self.wish = config.grant_bytes
        """How large the next grant is liked best: twice as large as the one before."""
        self._alone = False
        """Whether the store has no grants to share at present."""
        self._rested = False
        self._grant_bytes = config.grant_bytes
        self._token = token
        self._tell = tell

    # -- asking --

    def shares(self, size: int) -> bool:
        """Whether an object of ``size`` bytes is to share a grant with others, rather than have room of its own."""
        return footprint(size) <= self.wish // 2 and not self._alone

    def reserve(self, size: int, exact: bool, patience: float) -> int:
        """Ask for room; the answer comes under the token."""
        token = self._token()
        request = self.requests[token] = m.Reserve(token, size, 0 if exact else self.wish, patience)
        self._tell(request)
        self.wish = min(2 * max(self.wish, footprint(size)), WISH_MOST * self._grant_bytes)
        return token

    def allocate(self, size: int) -> int | None:
        """The payload offset of a new object in a grant, or None: a grant must be reserved first, or has been (``ahead``)."""
        self._rested = False
        offset = self.grants.allocate(size)
        least = max(AHEAD_GRANTS * self._grant_bytes, self.wish // 2)
        if not self.ahead and (offset is None or self.grants.nearly_spent(size, least)):
            for row in self.grants.spent(size):
                self._tell(m.ReturnGrant(*row))
            if offset is not None:
                self.ahead = self.reserve(size, False, AHEAD_PATIENCE)
        return offset

    def answered(self, token: int) -> bool:
        """Whether a request waits no longer."""
        return token not in self.requests

    def take(self, token: int) -> m.Granted | m.NoSpace | None:
        """The answer to a request, once; None if there is none, or it was a grant asked for ahead."""
        return self.answers.pop(token, None)

    def forsake(self, token: int) -> None:
        """The room that was asked for is not wanted any more; should it come, it goes back."""
        if token == self.ahead:
            self.ahead = 0
        self.requests.pop(token, None)
        answer = self.answers.pop(token, None)
        if type(answer) is m.Granted:
            self._tell(m.ReturnGrant(answer.offset, 0))

    # -- writing --

    def finished(self, offset: int) -> None:
        """The object with its payload at ``offset`` is sealed, and its place is in a message on its way."""
        row = self.grants.finished(offset)
        if row is not None:
            self._tell(m.ReturnGrant(*row))

    def abandon(self, offset: int) -> None:
        """The object at ``offset`` will not be written."""
        row = self.grants.abandon(offset)
        if row is not None:
            self._tell(m.ReturnGrant(*row))

    # -- what the store says --

    def on_granted(self, now: float, source: Address, message: m.Granted) -> None:
        """The store granted room. Return it if no request waits for it any more."""
        if self.requests.pop(message.token, None) is None:
            self._tell(m.ReturnGrant(message.offset, 0))
        elif message.token == self.ahead:
            self.ahead = 0
            self.grants.add(message.offset, message.size)
        else:
            self._alone = self._alone and message.offset < 0
            self.answers[message.token] = message

    def on_no_space(self, now: float, source: Address, message: m.NoSpace) -> None:
        """The store has no room for a request."""
        if self.requests.pop(message.token, None) is None:
            return
        self.wish = self._grant_bytes
        self._alone = self._alone or message.kind == "alone"
        if message.token == self.ahead:
            self.ahead = 0  # Whoever needs the room asks again, with more patience.
        else:
            self.answers[message.token] = message

    def on_recall_grant(self, now: float, source: Address, message: m.RecallGrant) -> None:
        """The store is short of room: return this grant if it is idle."""
        self.wish = self._grant_bytes
        row = self.grants.give_back(message.offset)
        if row is not None:
            self._tell(m.ReturnGrant(*row))

    def rest(self) -> None:
        """Called now and then: if nothing was written since the last time, what is too much is given back, and wishes are small again."""
        if self._rested and self.wish > self._grant_bytes:
            self.wish = self._grant_bytes
            for row in self.grants.idle(self._grant_bytes):
                self._tell(m.ReturnGrant(*row))
        self._rested = True

    # -- after a restart of the daemon --

    def rows(self) -> tuple[tuple[int, int, int], ...]:
        """What ``GrantsHeld`` says: (offset, size, used) of grants, and of room that came and was not taken."""
        untaken = (answer for answer in self.answers.values() if type(answer) is m.Granted)
        return (*self.grants.rows(), *((answer.offset, answer.size, 0) for answer in untaken))

    def ask_again(self) -> None:
        """A new daemon has heard none of the requests."""
        for request in self.requests.values():
            self._tell(request)
