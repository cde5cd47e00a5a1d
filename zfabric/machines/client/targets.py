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
        "tried",
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
        """Whether the last handle was dropped: its ref is released after the last outcome."""
        self.tried: dict[bytes, int] = {}
        """Number of repeats of each call."""
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


class PendingCalls:
    """Pending calls of this process, and their values. Only ``Calls`` changes it."""

    def __init__(self) -> None:
        self.targets: dict[bytes, Target] = {}
        self.several: dict[bytes, int] = {}
        """Number of values of each call without exactly one."""
        self.streams: dict[bytes, int] = {}
        """By call that makes a stream: how many values it may be ahead of its consumer (0: as configured)."""

    def values_of(self, call_id: bytes) -> list[bytes]:
        """Value ids of a call."""
        return [call_value(call_id, index) for index in range(self.several.get(call_id, 1))]

    def ahead_of(self, call_id: bytes) -> int | None:
        """How many values a call's stream may be ahead; None without a stream."""
        return self.streams.get(call_id)
