"""The source's side: values of this node that other agents read (decision 0032).

A wanted value is pinned (and so restored, if spilled) until nobody wants it and none of its bytes is on its way out. Wants are served in
order, for a few nodes at a time (``transfer_readers``); others are queued, and notified. A value of one chunk counts as served once the
chunk is on its way: a reader without it asks again. The reader of a larger value reports that it is complete.

A complete copy's reader gets some queued readers, an equal share for each node that has the value or soon will. So no further reader is
served while one has more than half of the value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from zfabric.config import CHUNK_BYTES, Config
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import TRANSFER_AGENT, Address, short
from zfabric.protocol.machine import InvariantViolation
from zfabric.protocol.messages import OK

QUEUED_MAX = 10_000
"""Most wants. Further ones are ignored; their readers repeat them."""
REASON_MAX = 500
"""Most characters of a reason: messages between agents are bounded."""
READER_PATIENCE = 10.0
"""In units of ``transfer_patience``. A reader that lives asks again."""


class Delivery:
    """A reader's want: what was sent (``position``), and how far it may go (``limit``)."""

    __slots__ = ("due", "limit", "position", "reader", "served", "supply", "token", "told")

    def __init__(self, reader: bytes, token: int, supply: Supply) -> None:
        self.reader = reader
        self.token = token
        self.supply = supply
        self.position = self.limit = 0
        self.served = False
        self.told = False
        """Whether the reader was notified of the queue."""
        self.due = float("inf")


class Supply:
    """A wanted value. ``offset`` is its place once pinned, ``pins`` how often; ``unsent`` chunks are on their way out."""

    __slots__ = ("object_id", "offset", "pins", "readers", "size", "unsent")

    def __init__(self, object_id: bytes, size: int) -> None:
        self.object_id = object_id
        self.size = size
        self.offset: int | None = None
        self.pins = 0
        self.unsent = 0
        self.readers: dict[bytes, Delivery] = {}
        """Each node's newest want, in order."""


class Supplies:
    """All wants of other nodes."""

    def __init__(
        self,
        config: Config,
        counts: Counter[str],
        tell_scheduler: Callable[[m.Message], None],
        tell_store: Callable[[m.Message], None],
        perform: Callable[[e.Effect], None],
    ) -> None:
        self._slots = max(1, config.transfer_readers)
        self._credit = config.transfer_credit * CHUNK_BYTES
        self._patience = READER_PATIENCE * config.transfer_patience
        self._counts = counts
        self._tell_scheduler = tell_scheduler
        self._tell_store = tell_store
        self._perform = perform
        self._supplies: dict[bytes, Supply] = {}
        self._wants: dict[tuple[bytes, int], Delivery] = {}
        self._queue: dict[tuple[bytes, int], Delivery] = {}
        self._served: dict[tuple[bytes, int], Delivery] = {}
        self._ready: dict[tuple[bytes, int], Delivery] = {}
        """Served wants, perhaps with something to send."""
        self._fetch: list[bytes] = []
        self._unpin: list[bytes] = []
        self._changed = False
        """Whether a reader may have to be admitted."""

    def __len__(self) -> int:
        return len(self._supplies)

    # -- readers --

    def on_want(self, now: float, source: Address, message: m.Want) -> None:
        """A reader wants a value, perhaps again."""
        reader = source[1:]
        position, limit = message.position, message.limit
        if position % CHUNK_BYTES or not 0 <= position < limit <= message.size or limit - position > self._credit:
            self._counts["refused"] += 1
            return
        delivery = self._wants.get((reader, message.token))
        if delivery is None:
            delivery = self._enter(reader, message)
            if delivery is None:
                return
        elif delivery.supply.object_id != message.object_id:
            self._counts["refused"] += 1
            return
        elif not delivery.served:
            delivery.told = False
            self._changed = True
        delivery.limit = max(delivery.limit, limit)
        # No more than the credit is under way: a late want does not repeat everything.
        delivery.position = max(position, -(-(delivery.limit - self._credit) // CHUNK_BYTES) * CHUNK_BYTES)
        self._renew(delivery, now)

    def _enter(self, reader: bytes, message: m.Want) -> Delivery | None:
        supply = self._supplies.get(message.object_id)
        if supply is None:
            if len(self._wants) >= QUEUED_MAX:
                self._counts["wants_ignored"] += 1
                return None
            supply = self._supplies[message.object_id] = Supply(message.object_id, message.size)
            self._fetch.append(message.object_id)
        elif supply.size != message.size or len(self._wants) >= QUEUED_MAX:
            self._counts["wants_ignored"] += 1
            return None
        delivery = Delivery(reader, message.token, supply)
        key = (reader, message.token)
        earlier = supply.readers.get(reader)
        self._wants[key] = delivery
        if earlier is None:
            self._queue[key] = delivery
        else:  # It has the earlier one's place.
            old = (reader, earlier.token)
            del self._wants[old]
            self._ready.pop(old, None)
            delivery.served = earlier.served
            if earlier.served:
                del self._served[old]
                self._served[key] = delivery
            else:
                self._queue = {key if each == old else each: delivery if each == old else other for each, other in self._queue.items()}
        supply.readers[reader] = delivery
        self._changed = True
        return delivery

    def _renew(self, delivery: Delivery, now: float) -> None:
        if delivery.served:
            delivery.due = now + self._patience
            self._ready[(delivery.reader, delivery.token)] = delivery

    def on_credit(self, now: float, source: Address, message: m.Credit) -> None:
        """A reader has received some."""
        delivery = self._wants.get((source[1:], message.token))
        if delivery is None:
            self._counts["late"] += 1
        elif message.limit > min(delivery.supply.size, delivery.position + self._credit):
            self._counts["refused"] += 1
        else:
            delivery.limit = max(delivery.limit, message.limit)
            self._renew(delivery, now)

    def on_stop_want(self, now: float, source: Address, message: m.StopWant) -> None:
        """A reader has the value."""
        delivery = self._wants.get((source[1:], message.token))
        if delivery is None:
            self._counts["late"] += 1
            return
        self._remove(delivery)
        if message.complete and delivery.served:
            self._counts["served"] += 1
            self._share(delivery.supply, delivery.reader)

    def _share(self, supply: Supply, holder: bytes) -> None:
        """Send a new copy's node its share of the queued readers."""
        queued = [each for each in supply.readers.values() if not each.served]
        others = len(supply.readers) - len(queued)
        for delivery in queued[: len(queued) // (others + 2)]:
            self._remove(delivery)
            self._tell(delivery.reader, m.Redirect(delivery.token, holder))
            self._counts["redirects"] += 1

    def _remove(self, delivery: Delivery) -> None:
        key = (delivery.reader, delivery.token)
        del self._wants[key]
        del delivery.supply.readers[delivery.reader]
        for table in (self._queue, self._served, self._ready):
            table.pop(key, None)
        self._changed = True
        self._settle(delivery.supply)

    def _settle(self, supply: Supply) -> None:
        """Unpin what nobody wants, once no byte is on its way."""
        if not supply.readers and not supply.unsent and self._supplies.get(supply.object_id) is supply:
            del self._supplies[supply.object_id]
            self._unpin += [supply.object_id] * supply.pins

    def _tell(self, node: bytes, message: m.Message) -> None:
        self._perform(e.Send(TRANSFER_AGENT + node, message))

    def node_died(self, node: bytes) -> None:
        """A dead node reads nothing."""
        for delivery in [each for each in self._wants.values() if each.reader == node]:
            self._remove(delivery)

    # -- values --

    def on_objects(self, now: float, source: Address, message: m.Objects) -> None:
        """Values were pinned, or are not here."""
        for object_id, status, value, _ in message.rows:
            supply = self._supplies.get(object_id)
            if type(value) is not tuple:
                if supply is not None and supply.offset is None:
                    failed = status != OK and bool(value)
                    self._refuse(supply, unpack_failure(value)[1] if failed else "its value is not in the object store")
            elif supply is None:
                self._unpin.append(object_id)
            else:
                supply.pins += 1
                if value[1] != supply.size:
                    self._refuse(supply, f"it has {value[1]} bytes, not {supply.size}")
                elif supply.offset is None:
                    supply.offset = value[0]
                    self._ready.update(((each.reader, each.token), each) for each in supply.readers.values() if each.served)

    def _refuse(self, supply: Supply, reason: str) -> None:
        for delivery in list(supply.readers.values()):
            self._tell(delivery.reader, m.Unavailable(delivery.token, reason[:REASON_MAX]))
            self._remove(delivery)
        self._settle(supply)

    def on_chunk_failed(self, now: float, source: Address, message: m.ChunkFailed) -> None:
        """The shell could not read a value's bytes."""
        supply = self._supplies.get(message.object_id)
        if supply is not None:
            supply.unsent -= 1
            self._refuse(supply, message.error)

    def on_chunk_sent(self, now: float, source: Address, message: m.ChunkSent) -> None:
        """A chunk's bytes are on their way, and may change here."""
        supply = self._supplies.get(message.object_id)
        if supply is None:
            return
        supply.unsent -= 1
        if supply.size <= CHUNK_BYTES and not supply.unsent:
            for delivery in [each for each in supply.readers.values() if each.position]:
                self._counts["served"] += 1
                self._remove(delivery)
        self._settle(supply)

    # -- the end of a turn --

    def end_of_turn(self, now: float) -> None:
        """Admit readers, send, pin and unpin."""
        if self._changed:
            self._changed = False
            self._admit(now)
        for delivery in self._ready.values():
            self._send(delivery)
        self._ready.clear()
        if self._fetch:
            self._tell_scheduler(m.Fetch(tuple(self._fetch)))
            self._fetch = []
        if self._unpin:
            self._tell_store(m.Unpin(tuple(self._unpin)))
            self._unpin = []

    def _admit(self, now: float) -> None:
        """Serve the first; notify the others."""
        nodes = {each.reader for each in self._served.values()}
        for key, delivery in list(self._queue.items()):
            if delivery.reader not in nodes and len(nodes) >= self._slots:
                break  # Nobody is overtaken for want of a slot.
            if not self._has_heir(delivery.supply):
                nodes.add(delivery.reader)
                del self._queue[key]
                self._served[key] = delivery
                delivery.served = True
                self._renew(delivery, now)
        for delivery in self._queue.values():
            if not delivery.told:
                delivery.told = True
                self._tell(delivery.reader, m.Queued(delivery.token))

    def _has_heir(self, supply: Supply) -> bool:
        return any(each.served and 2 * each.position > supply.size for each in supply.readers.values())

    def _send(self, delivery: Delivery) -> None:
        supply = delivery.supply
        if supply.offset is None:
            return
        while delivery.position < delivery.limit:
            size = min(CHUNK_BYTES, supply.size - delivery.position)
            to = TRANSFER_AGENT + delivery.reader
            self._perform(e.SendChunk(to, delivery.token, supply.object_id, supply.offset, delivery.position, size))
            delivery.position += size
            supply.unsent += 1
            self._counts["bytes_served"] += size

    def tick(self, now: float) -> None:
        """Drop silent readers, unless the value is not pinned yet."""
        for delivery in [each for each in self._served.values() if each.due <= now]:
            if delivery.supply.offset is None:
                delivery.due = now + self._patience
            else:
                self._counts["silent_readers"] += 1
                self._remove(delivery)

    def next_deadline(self) -> float | None:
        """When a reader is silent for too long."""
        return min((each.due for each in self._served.values()), default=None)

    def check_invariants(self) -> None:
        """Check slots, credit and pins."""
        if len({each.reader for each in self._served.values()}) > self._slots:
            raise InvariantViolation("more nodes are served than may be")
        if self._queue.keys() & self._served.keys() or len(self._queue) + len(self._served) != len(self._wants):
            raise InvariantViolation("a want is neither queued nor served, or both")
        for supply in self._supplies.values():
            if not (supply.readers or supply.unsent) or supply.unsent < 0:
                raise InvariantViolation(f"{short(supply.object_id)} is pinned for nobody")
            if any(self._wants.get((each.reader, each.token)) is not each for each in supply.readers.values()):
                raise InvariantViolation(f"a reader of {short(supply.object_id)} has no want")
