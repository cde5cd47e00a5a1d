"""Holds of this node at the homes of other nodes' objects, and when they may end (decision 0030).

A node that receives the id of another home's object registers there (``Borrow``, acknowledged by ``Borrowed``) unless the sender retains
the object for as long as it is needed. The barrier: what may end another node's hold (``Release``, ``Ended``, ``EndsReceived``) is sent
only when every earlier ``Borrow`` of this node has been acknowledged.

When a home's daemon restarts, all holds there are borrowed again, and whatever waited waits for these. When a home dies, its holds move to
the homes of the jobs (``orphans``), with an empty ``Borrow`` to each as a barrier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from zfabric.machines.local_scheduler.channel import PeerChannel, batches
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.orphans import Orphans
from zfabric.machines.local_scheduler.nodes.unknown_nodes import UnknownNodes
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import AnyObject
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address


class Borrowing:
    """Holds at other homes."""

    def __init__(
        self,
        tables: Tables,
        references: References,
        unknown_nodes: UnknownNodes,
        entrusting: Entrusting,
        orphans: Orphans,
        streams: Streams,
        node: bytes,
    ) -> None:
        self.tables = tables
        self.references = references
        self.unknown_nodes = unknown_nodes
        self.entrusting = entrusting
        self.orphans = orphans
        self.streams = streams
        self.node = node
        self.holds = PeerChannel(tables.nodes, entrusting.rows.send)
        """``Borrow`` messages; what may end a hold is sent behind them, and behind rows."""
        self._releasing: dict[tuple[bytes, bytes], int] = {}
        """Barrier of each hold to release, by (home, object)."""

    # -- ids that cross between nodes --

    def refer(self, object_ids: Iterable[bytes], homes: m.Rows, sender: bytes) -> None:
        """Make records for unknown objects of a message."""
        known: dict[bytes, bytes] = dict(homes)
        for object_id in object_ids:
            home = known.get(object_id, sender)
            if home != self.node and self.tables.find(object_id) is None:
                self.tables.refer(object_id, home)

    def settle(self, object_ids: Iterable[bytes]) -> None:
        """Borrow what something here needs, and drop the other records."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None and record.home:
                if record.is_needed:
                    self._borrow(record)
                else:
                    self.tables.spare.append(record)

    def forget_unneeded(self, object_ids: Iterable[bytes]) -> None:
        """Drop unneeded records."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None and record.home and record.holders is None and record.pins <= 0:
                self.tables.spare.append(record)

    def _borrow(self, record: AnyObject) -> None:
        hold = record.hold
        if hold is None or not hold.register():
            return
        if self._releasing.pop((hold.home, record.id), None) is None:  # A hold that is not yet released is still registered.
            self.tables.to_borrow.append(record)

    # -- the order in which things leave --

    def begin_end_of_turn(self) -> None:
        """Send new holds, before anything that may end another node's hold."""
        by_home: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for record in self.tables.first_held:
            if record.is_needed:
                self._borrow(record)
        self.tables.first_held.clear()
        for home, object_ids in self._take_rows_to_retain().items():
            for batch in batches(object_ids):
                self.unknown_nodes.send(home, m.RetainRows(batch))
        for record in self.tables.to_borrow:
            if self._has_home(record):
                by_home[record.home].append(record.object_id)
        self.tables.to_borrow.clear()
        for home, object_ids in by_home.items():
            for batch in batches(object_ids):
                self.unknown_nodes.send(home, m.Borrow(self.holds.number_for(home), batch))

    def _take_rows_to_retain(self) -> dict[bytes, list[bytes]]:
        by_home: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for record in self.tables.to_retain:
            if record.hold is not None and record.hold.row_retained and self._has_home(record):
                by_home[record.home].append(record.object_id)
        self.tables.to_retain.clear()
        return by_home

    def _has_home(self, record: AnyObject) -> bool:
        return record.home != b"" and (not self.unknown_nodes.is_dead(record.home) or self.orphans.rehome(record))

    @property
    def is_clear(self) -> bool:
        """Whether ``holds`` has nothing to wait for."""
        return self.holds.is_clear and not (self.tables.first_held or self.tables.to_borrow)

    def end_of_turn(self) -> None:
        """Release holds, and rows retained elsewhere."""
        for each in self.tables.given_up:
            self._releasing.pop(each, None)  # So that barriers rise.
            self._releasing[each] = self.holds.barrier
        self.tables.given_up.clear()
        self._release()
        rows: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for home, object_id in self.tables.rows_given_up:
            rows[home].append(object_id)
        self.tables.rows_given_up.clear()
        for home, object_ids in rows.items():
            self.tables.send_ids(home, m.ReleaseRows, object_ids)

    def _release(self) -> None:
        """Release the holds whose barrier has closed."""
        due: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for (home, object_id), barrier in self._releasing.items():
            if not self.holds.has_closed(barrier):
                break
            due[home].append(object_id)
        for home, object_ids in due.items():
            for object_id in object_ids:
                del self._releasing[home, object_id]
            self.tables.send_ids(home, m.Release, object_ids)

    def on_borrowed(self, now: float, source: Address, message: m.Borrowed) -> None:
        """Accept an acknowledgement of a ``Borrow``."""
        self.holds.acknowledged(source[1:], message.number)
        self._release()

    def begin_anew(self, node: bytes) -> None:
        """Drop what is under way to a former daemon: ``repeat`` sends what still counts."""
        self._drop(node)
        for record in self.tables.values():
            record.drop_fetcher(node)
            if record.hold is not None and record.status == PENDING and record.hold.asked == node:
                self.tables.to_fetch.append(record)

    def repeat(self, node: bytes) -> None:
        """Borrow again from a node. Waiting messages now wait for these holds."""
        holds = [(each, each.hold) for each in self.tables.objects.values() if each.hold is not None and each.hold.home == node]
        self.borrow(node, [each.id for each, hold in holds if hold.registered])
        self.tables.to_retain += [each for each, hold in holds if hold.row_retained]
        self._renew()

    def repeat_cancelled(self, node: bytes) -> None:
        """Repeat the cancellations of tasks whose home is that node."""
        for record in self.tables.objects.values():
            hold = record.hold
            if hold is not None and hold.home == node and hold.cancelled and record.status == PENDING:
                self.tables.send_to_node(node, m.Cancel((record.id,), *hold.cancelled))

    def borrow(self, node: bytes, object_ids: list[bytes], certain: bool = True) -> list[int]:
        """Send ``Borrow``; return the numbers of the messages. ``certain`` is false for a search: the node may not be their home."""
        numbers = []
        for batch in batches(object_ids):
            numbers.append(self.holds.number_for(node))
            self.tables.send_to_node(node, m.Borrow(numbers[-1], batch, certain))
        return numbers

    def _drop(self, node: bytes) -> None:
        self.holds.drop(node)
        self._releasing = {each: barrier for each, barrier in self._releasing.items() if each[0] != node}

    def _renew(self) -> None:
        self._releasing = dict.fromkeys(self._releasing, self.holds.barrier)
        self.holds.renew()
        self._release()

    def node_died(self, node: bytes) -> None:
        """Move a dead home's holds to the homes of the jobs."""
        self._drop(node)
        self.entrusting.node_died(node)
        for home in self.orphans.report(node):  # It is to receive all that was sent so far before a hold ends.
            self.tables.send_to_node(home, m.Borrow(self.holds.number_for(home), ()))
        self._renew()

    # -- at home --

    def on_borrow(self, now: float, source: Address, message: m.Borrow) -> None:
        """Register another node as a holder. Rows of these objects are entrusted before the acknowledgement."""
        if source[1:] not in self.tables.nodes:
            return
        if self.tables.streams:
            self.streams.claim(message.object_ids)
        here = [each for each in message.object_ids if self._is_home_of(each)]
        self.references.hold(here, source[1:])
        unknown = tuple(dict.fromkeys(message.object_ids).keys() - set(here)) if len(here) < len(message.object_ids) else ()
        self.tables.counts["holds_of_unknown"] += len(unknown)
        self.entrusting.entrust(message.object_ids)
        self.entrusting.rows.send(source[1:], m.Borrowed(message.number, unknown))

    def _is_home_of(self, object_id: bytes) -> bool:
        """Whether this node is an object's home, or its heir that has yet to rebuild it."""
        record = self.tables.find(object_id)
        if record is None or not record.home:
            return record is not None
        return record.home in self.tables.dead and self.tables.job_home(object_id) == b""

    def on_retain_rows(self, now: float, source: Address, message: m.RetainRows) -> None:
        """Retain rows that another node's rows name."""
        if source[1:] in self.tables.nodes:
            self.references.retain_rows_for(source[1:], message.object_ids)

    def on_release_rows(self, now: float, source: Address, message: m.ReleaseRows) -> None:
        """Release rows that another node no longer names."""
        self.references.release_rows_for(source[1:], message.object_ids)
