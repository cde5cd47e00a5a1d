"""A caller's record of each actor: where it lives, and its pending calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from zfabric.protocol.ids import FIRST_RETURN, PREFIX_BYTES, Address, call_value
from zfabric.protocol.messages import CREATING, Row
from zfabric.protocol.messages.rows import CALL_OPTIONS
from zfabric.protocol.options import option


class Target:
    """One actor, as a caller sees it."""

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
        """Whether outcomes outlive the actor's process until acknowledged: it is logged, or has checkpoints."""
        self.state = CREATING
        self.incarnation = b""
        self.address: Address = b""
        """Where calls go: the actor's process, or the local scheduler for another node."""
        self.attempt = 0
        """Attempt number of its present life."""
        self.failure = b""
        self.unordered = False
        """Whether it runs several calls at once, so that none waits for another's arguments."""
        self.lanes: dict[bytes, deque[Row]] = {}
        """Calls not sent to the present incarnation, by order (``order_of``). No queue is empty between steps."""
        self.parked: dict[bytes, tuple[Row, bytes]] = {}
        """Calls without an order that wait for arguments, with what makes the first missing one (empty: they wait for the scheduler)."""
        self.sent: dict[bytes, Row] = {}
        """Sent calls without an outcome, in order."""
        self.outbox: list[Row] = []
        """Calls of ``sent`` that leave with the next frame."""
        self.repeated: set[bytes] = set()
        """Calls of ``outbox`` that were sent to this life before, by way of an earlier daemon."""
        self.leaving = False
        """Whether the program has dropped its last handle: the handle's ref is released once the last call has an outcome."""
        self.unacknowledged: list[bytes] = []
        """Calls whose outcomes have arrived unacknowledged, if the actor retains them."""

    @property
    def handle(self) -> bytes:
        """The object whose refs are the actor's handles."""
        return self.actor_id + FIRST_RETURN

    def order_of(self, row: Row) -> bytes:
        """The order of a call: calls of one task and concurrency group are sent as they were made."""
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
        """Put calls ahead of all others, in this order."""
        for row in reversed(list(rows)):
            self.lane(row).appendleft(row)


UNASKED, ASKED, RECORDED = range(3)
"""Whether the scheduler was asked for an answer that shows that it has recorded what a call refers to, and has given it."""


class CallExtras:
    """Fields that only some calls need: those with options, refs in their arguments, or not exactly one value; and repeated ones."""

    __slots__ = ("ahead", "held", "limited", "recorded", "returns", "stopped", "tried")

    def __init__(self) -> None:
        self.returns = 1
        """Number of its values."""
        self.ahead: int | None = None
        """How many values its stream may be ahead of its consumer (0: as configured); None if it makes no stream."""
        self.held: tuple[bytes, ...] = ()
        """Refs that it holds until its outcome arrives."""
        self.limited = False
        """Whether it has a timeout, so that it may end without running."""
        self.recorded = UNASKED
        """How far the scheduler's answer is that it may have to wait for, before it is sent to the present incarnation."""
        self.stopped: str | None = None
        """The reason if it was sent and is to be stopped: then it is not repeated."""
        self.tried: int | None = None
        """How often it was repeated; None if it cannot have run before."""


class PendingCalls:
    """Calls of this process that have no outcome. Only ``Calls`` changes it."""

    def __init__(self) -> None:
        self.targets: dict[bytes, Target] = {}
        """The actor of each call."""
        self.extras: dict[bytes, CallExtras] = {}
        """The extra fields of those calls that need them."""

    def extras_of(self, call_id: bytes) -> CallExtras:
        """The extra fields of a call, made on first use."""
        extras = self.extras.get(call_id)
        if extras is None:
            extras = self.extras[call_id] = CallExtras()
        return extras

    def values_of(self, call_id: bytes) -> list[bytes]:
        """Ids of the values of a call."""
        extras = self.extras.get(call_id)
        return [call_value(call_id, index) for index in range(1 if extras is None else extras.returns)]

    def ahead_of(self, call_id: bytes) -> int | None:
        """How many values the stream of a call may be ahead; None if it makes no stream."""
        extras = self.extras.get(call_id)
        return None if extras is None else extras.ahead
