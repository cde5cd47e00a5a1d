"""A caller's record of each actor, and its pending calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from zfabric.protocol.ids import FIRST_RETURN, PREFIX_BYTES, Address, call_value
from zfabric.protocol.messages import CREATING, Row
from zfabric.protocol.messages.rows import CALL_OPTIONS
from zfabric.protocol.options import option


class Target:
    """An actor, as a caller sees it."""

    __slots__ = (
        "actor_id",
        "address",
        "attempt",
        "failure",
        "incarnation",
        "keeps",
        "lanes",
        "leaving",
        "outbox",
        "parked",
        "repeated",
        "retries",
        "sent",
        "state",
        "unacknowledged",
        "unordered",
    )

    def __init__(self, actor_id: bytes) -> None:
        self.actor_id = actor_id
        self.retries = 0
        """How often a call that may have run is repeated; -1: no limit, ``LOGGED``: the actor recognises repeats."""
        self.keeps = False
        """Whether outcomes outlive the process: it is logged, or has checkpoints."""
        self.state = CREATING
        self.incarnation = b""
        self.address: Address = b""
        """Where calls go: its process, or the local scheduler for another node."""
        self.attempt = 0
        self.failure = b""
        self.unordered = False
        """Whether it runs several calls at once: none waits for another's arguments."""
        self.lanes: dict[bytes, deque[Row]] = {}
        """Calls not sent to the present incarnation, by order (``order_of``). No queue is empty between steps."""
        self.parked: dict[bytes, tuple[Row, bytes]] = {}
        """Calls without an order that wait for arguments, with what makes the first missing one (empty: they wait for the scheduler)."""
        self.sent: dict[bytes, Row] = {}
        """Sent calls without an outcome, in order."""
        self.outbox: list[Row] = []
        """Calls of the next frame."""
        self.repeated: set[bytes] = set()
        """Calls that an earlier daemon sent to this life."""
        self.leaving = False
        """Whether the last handle was dropped: its ref goes with the last call."""
        self.unacknowledged: list[bytes] = []
        """Calls with unacknowledged outcomes, if the actor retains them."""

    @property
    def handle(self) -> bytes:
        """The object whose refs are handles."""
        return self.actor_id + FIRST_RETURN

    def order_of(self, row: Row) -> bytes:
        """Calls of one task and concurrency group are sent as they were made."""
        if self.unordered:
            return b""
        group = option(row[CALL_OPTIONS], "concurrency_group") if len(row) > 3 else None
        caller: bytes = row[0][:PREFIX_BYTES]
        return caller if group is None else caller + group.encode()

    def lane(self, row: Row) -> deque[Row]:
        """The queue in which a call waits."""
        order = self.order_of(row)
        found = self.lanes.get(order)
        if found is None:
            found = self.lanes[order] = deque()
        return found

    def unsent(self) -> Iterator[Row]:
        """Calls not sent to the present incarnation."""
        yield from (row for row, _ in self.parked.values())
        for lane in self.lanes.values():
            yield from lane

    @property
    def waits(self) -> int:
        """Number of ``unsent`` calls."""
        return len(self.parked) + sum(map(len, self.lanes.values())) if self.lanes or self.parked else 0

    def put_first(self, rows: Iterable[Row]) -> None:
        """Put calls first, in this order."""
        for row in reversed(list(rows)):
            self.lane(row).appendleft(row)


UNASKED, ASKED, RECORDED = range(3)
"""Whether the scheduler was asked to confirm that it has recorded what a call refers to, and has answered."""


class CallExtras:
    """Rare fields: of calls with options, refs in arguments, or not exactly one value; and repeated ones."""

    __slots__ = ("ahead", "held", "limited", "recorded", "returns", "stopped", "tried")

    def __init__(self) -> None:
        self.returns = 1
        self.ahead: int | None = None
        """How many values its stream may be ahead (0: as configured); None without a stream."""
        self.held: tuple[bytes, ...] = ()
        """Refs held until its outcome."""
        self.limited = False
        """Whether a timeout may end it without running."""
        self.recorded = UNASKED
        """State of the confirmation that the call may wait for before it is sent to the present incarnation."""
        self.stopped: str | None = None
        """The reason if it was sent and is to be stopped: it is not repeated."""
        self.tried: int | None = None
        """How often it was repeated; None if it cannot have run."""


class PendingCalls:
    """Calls without an outcome. Only ``Calls`` changes it."""

    def __init__(self) -> None:
        self.targets: dict[bytes, Target] = {}
        """The actor of each call."""
        self.extras: dict[bytes, CallExtras] = {}

    def extras_of(self, call_id: bytes) -> CallExtras:
        """A call's extra fields, made on first use."""
        extras = self.extras.get(call_id)
        if extras is None:
            extras = self.extras[call_id] = CallExtras()
        return extras

    def values_of(self, call_id: bytes) -> list[bytes]:
        """Ids of its values."""
        extras = self.extras.get(call_id)
        return [call_value(call_id, index) for index in range(1 if extras is None else extras.returns)]

    def ahead_of(self, call_id: bytes) -> int | None:
        """How far ahead a call's stream may be; None without one."""
        extras = self.extras.get(call_id)
        return None if extras is None else extras.ahead
