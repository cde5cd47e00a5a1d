"""What a caller knows of one actor: where it lives, and the calls of it that have no outcome yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from zfabric.protocol.ids import FIRST_RETURN, PREFIX_BYTES
from zfabric.protocol.messages import CREATING, Row
from zfabric.protocol.options import option


class Target:
    """One actor, as a caller sees it."""

    __slots__ = (
        "actor_id",
        "attempt",
        "failure",
        "incarnation",
        "keeps",
        "lanes",
        "leaving",
        "outbox",
        "parked",
        "retries",
        "sent",
        "state",
        "tried",
        "unordered",
        "untaken",
    )

    def __init__(self, actor_id: bytes) -> None:
        self.actor_id = actor_id
        self.retries = 0
        """How often a call that may have run is made again by itself; -1 without end, ``LOGGED`` if the actor recognises it."""
        self.keeps = False
        """Whether the actor keeps outcomes until it is told that they are here, beyond its process: it is logged, or has checkpoints."""
        self.state = CREATING
        self.incarnation = b""
        self.attempt = 0
        """Which of its lives it is in."""
        self.failure = b""
        self.unordered = False
        """Whether it runs several calls at once, so that none waits for the arguments of another."""
        self.lanes: dict[bytes, deque[Row]] = {}
        """Calls that were not sent to the present incarnation: a queue for each order (``order_of``). None is empty between two steps."""
        self.parked: dict[bytes, tuple[Row, bytes]] = {}
        """Calls without an order whose arguments are awaited, and what of those is awaited first (empty: the scheduler)."""
        self.sent: dict[bytes, Row] = {}
        """Calls that were, and have no outcome yet, in order."""
        self.outbox: list[Row] = []
        """Those of them that leave with the next frame."""
        self.leaving = False
        """Whether the program has no handle any more: the last ref goes once the last call has an outcome."""
        self.tried: dict[bytes, int] = {}
        """Calls that were made again, and how often."""
        self.untaken: list[bytes] = []
        """Calls whose outcomes came since an actor that keeps them was told so."""

    @property
    def handle(self) -> bytes:
        """The object that stands for the actor."""
        return self.actor_id + FIRST_RETURN

    def order_of(self, row: Row) -> bytes:
        """Calls of one order are sent in the order in which they were made: those of one task, of one concurrency group."""
        if self.unordered:
            return b""
        group = option(row[5], "concurrency_group") if len(row) > 3 else None
        caller: bytes = row[0][:PREFIX_BYTES]
        return caller if group is None else caller + group.encode()

    def lane(self, row: Row) -> deque[Row]:
        """The queue that a call waits in."""
        order = self.order_of(row)
        found = self.lanes.get(order)
        if found is None:
            found = self.lanes[order] = deque()
        return found

    def unsent(self) -> Iterator[Row]:
        """All calls that were not sent to the present incarnation."""
        yield from (row for row, _ in self.parked.values())
        for lane in self.lanes.values():
            yield from lane

    @property
    def waits(self) -> int:
        """How many those are."""
        return len(self.parked) + sum(map(len, self.lanes.values())) if self.lanes or self.parked else 0

    def put_first(self, rows: Iterable[Row]) -> None:
        """These wait ahead of all others, in this order."""
        for row in reversed(list(rows)):
            self.lane(row).appendleft(row)
