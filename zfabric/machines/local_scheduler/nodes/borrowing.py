"""Objects of other nodes: which are borrowed from their homes, and when a hold may end.

An object has one home, the node of the task or process that made it. Its holders are registered there: processes of that node, and other
nodes. A node that receives an id of another home makes a record of its own (``BorrowedRecord``). It registers as a holder at the home
(``Borrow``), unless the sender retains the object for as long as it is needed.

One rule makes this safe. A message that may end the hold of another node (``Release``, ``Ended``, ``EndsReceived``) leaves this node only
when every ``Borrow`` before it was acknowledged. So a new holder is registered before the lender releases, over any number of nodes.
Holders are sets, not counts.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from zfabric.config import ROWS_MAX
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.orphans import Orphans
from zfabric.machines.local_scheduler.nodes.unknown_nodes import UnknownNodes
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import PENDING, BorrowedRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address


class Borrowing:
    """Records of objects of other nodes, and holds at their homes."""

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
        self._last = 0
        """The number of the last ``Borrow``."""
        self._open: dict[int, bytes] = {}
        """Homes that have not acknowledged a ``Borrow``, by its number, in order."""
        self._behind: deque[tuple[int, bytes, m.Message]] = deque()
        """Messages that wait for all ``Borrow`` up to a number: (number, node, message)."""
        self._released: defaultdict[bytes, dict[bytes, int]] = defaultdict(dict)
        """Holds that this node gives up, by home: each object with the number of the last ``Borrow`` before."""

    # -- ids that cross between nodes --

    def refer(self, object_ids: Iterable[bytes], homes: m.Rows, sender: bytes) -> None:
        """Make records for objects that a message of ``sender`` names and that are unknown here."""
        known: dict[bytes, bytes] = dict(homes)
        for object_id in object_ids:
            home = known.get(object_id, sender)
            if home != self.node and self.tables.find(object_id) is None:
                self.tables.objects[object_id] = BorrowedRecord(object_id, home)

    def settle(self, object_ids: Iterable[bytes]) -> None:
        """Borrow the objects of these ids that something here needs, and drop the records of the others."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if isinstance(record, BorrowedRecord):
                if record.is_needed:
                    self._borrow(record)
                else:
                    self.tables.spare.append(record)

    def forget_unneeded(self, object_ids: Iterable[bytes]) -> None:
        """Drop the records of objects that nothing here needs."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if isinstance(record, BorrowedRecord) and record.holders is None and record.pins <= 0:
                self.tables.spare.append(record)

    def _borrow(self, record: BorrowedRecord) -> None:
        if record.borrowed:
            return
        record.borrowed = True
        if self._released[record.home].pop(record.id, None) is None:  # Else it is still registered.
            self.tables.to_borrow.append(record)

    # -- the order in which things leave --

    def begin_end_of_turn(self) -> None:
        """Send the holds of this turn, before anything that may end a hold of somebody else."""
        by_home: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for record in self.tables.first_held:
            if record.is_needed:
                self._borrow(record)
        self.tables.first_held.clear()
        for home, object_ids in self._take_rows_to_retain().items():
            for start in range(0, len(object_ids), ROWS_MAX):
                self.unknown_nodes.send(home, m.RetainRows(tuple(object_ids[start : start + ROWS_MAX])))
        for record in self.tables.to_borrow:
            if not self.unknown_nodes.is_dead(record.home) or self.orphans.rehome(record):
                by_home[record.home].append(record.id)
        self.tables.to_borrow.clear()
        for home, object_ids in by_home.items():
            for start in range(0, len(object_ids), ROWS_MAX):
                self._last += 1
                self._open[self._last] = home
                self.unknown_nodes.send(home, m.Borrow(self._last, tuple(object_ids[start : start + ROWS_MAX])))

    def _take_rows_to_retain(self) -> dict[bytes, list[bytes]]:
        by_home: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for record in self.tables.to_retain:
            if record.row_retained and (not self.unknown_nodes.is_dead(record.home) or self.orphans.rehome(record)):
                by_home[record.home].append(record.id)
        self.tables.to_retain.clear()
        return by_home

    @property
    def is_clear(self) -> bool:
        """Whether a message that ``send_behind`` sends leaves at once."""
        return not (self._open or self._behind or self.tables.first_held or self.tables.to_borrow)

    def send_behind(self, node: bytes, message: m.Message) -> None:
        """Send a message that may end a hold, once all holds of this node that were asked for until now are registered."""
        if self._open or self._behind:
            self._behind.append((self._last, node, message))
        else:
            self.entrusting.send(node, message)

    def end_of_turn(self) -> None:
        """Send the holds that are given up."""
        for home, object_id in self.tables.given_up:
            self._released[home][object_id] = self._last
        self.tables.given_up.clear()
        self._release()
        rows: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for home, object_id in self.tables.rows_given_up:
            rows[home].append(object_id)
        self.tables.rows_given_up.clear()
        for home, object_ids in rows.items():
            for start in range(0, len(object_ids) if home in self.tables.nodes else 0, ROWS_MAX):
                self.tables.send_to_node(home, m.ReleaseRows(tuple(object_ids[start : start + ROWS_MAX])))

    def _release(self) -> None:
        """Give up holds, once all that were asked for before are registered."""
        oldest = next(iter(self._open), None)
        for home, waiting in self._released.items():
            due = [object_id for object_id, number in waiting.items() if oldest is None or number < oldest]
            for object_id in due:
                del waiting[object_id]
            for start in range(0, len(due) if home in self.tables.nodes else 0, ROWS_MAX):
                self.tables.send_to_node(home, m.Release(tuple(due[start : start + ROWS_MAX])))

    def on_borrowed(self, now: float, source: Address, message: m.Borrowed) -> None:
        """A home has registered this node as a holder."""
        self._open.pop(message.number, None)
        self._flush()

    def begin_anew(self, node: bytes) -> None:
        """Forget what was under way to a node whose daemon is new. ``repeat`` sends what still counts; the node repeats its requests."""
        self._open = {number: home for number, home in self._open.items() if home != node}
        self._behind = deque(each for each in self._behind if each[1] != node)
        self._released.pop(node, None)
        for record in self.tables.values():
            if record.fetchers is not None:
                record.fetchers.discard(node)
            if isinstance(record, BorrowedRecord) and record.status == PENDING and record.asked == node:
                self.tables.to_fetch.append(record)

    def repeat(self, node: bytes) -> None:
        """Borrow again what this node has of another one. What waits for earlier holds waits for these, too: some were dropped."""
        objects = [each for each in self.tables.objects.values() if isinstance(each, BorrowedRecord) and each.home == node]
        self.borrow(node, [each.id for each in objects if each.borrowed])
        self.tables.to_retain += [each for each in objects if each.row_retained]
        self._behind = deque((self._last, to, message) for _, to, message in self._behind)
        for waiting in self._released.values():
            waiting.update(dict.fromkeys(waiting, self._last))
        self._flush()

    def repeat_cancelled(self, node: bytes) -> None:
        """Cancel again what a node makes that processes of this one have cancelled."""
        for record in self.tables.objects.values():
            if isinstance(record, BorrowedRecord) and record.home == node and record.cancelled and record.status == PENDING:
                self.tables.send_to_node(node, m.Cancel((record.id,), *record.cancelled))

    def borrow(self, node: bytes, object_ids: list[bytes], certain: bool = True) -> list[int]:
        """Ask a home to register this node as a holder. Return the numbers of the messages."""
        numbers = []
        for start in range(0, len(object_ids), ROWS_MAX):
            self._last += 1
            self._open[self._last] = node
            self.tables.send_to_node(node, m.Borrow(self._last, tuple(object_ids[start : start + ROWS_MAX]), certain))
            numbers.append(self._last)
        return numbers

    def _flush(self) -> None:
        oldest = next(iter(self._open), None)
        while self._behind and (oldest is None or oldest > self._behind[0][0]):
            _, node, message = self._behind.popleft()
            if node in self.tables.nodes:
                self.entrusting.send(node, message)
        self._release()

    def node_died(self, node: bytes) -> None:
        """A home is dead: what this node held there it holds at the homes of the jobs, which are to register that."""
        self._open = {number: home for number, home in self._open.items() if home != node}
        self._released.pop(node, None)
        self.entrusting.node_died(node)
        self._wait_for(self.orphans.report(node))

    def _wait_for(self, homes: Iterable[bytes]) -> None:
        """Hold back what may end a hold until these homes have registered what was sent to them before."""
        for home in homes:
            self._last += 1
            self._open[self._last] = home
            self.tables.send_to_node(home, m.Borrow(self._last, ()))
        self._behind = deque((self._last, node, message) for _, node, message in self._behind)
        for waiting in self._released.values():
            waiting.update(dict.fromkeys(waiting, self._last))
        self._flush()

    # -- at home --

    def on_borrow(self, now: float, source: Address, message: m.Borrow) -> None:
        """Another node has refs to objects of this one."""
        if source[1:] not in self.tables.nodes:
            return
        if self.tables.streams:
            self.streams.claim(message.object_ids)
        here = [each for each in message.object_ids if self._is_home_of(each)]
        self.references.hold(here, source[1:])
        unknown = tuple(dict.fromkeys(message.object_ids).keys() - set(here)) if len(here) < len(message.object_ids) else ()
        self.tables.counts["holds_of_unknown"] += len(unknown)
        self.entrusting.entrust(message.object_ids)
        self.entrusting.send(source[1:], m.Borrowed(message.number, unknown))

    def _is_home_of(self, object_id: bytes) -> bool:
        """Whether an object is at home here, or will be once this node has taken over from a dead one."""
        record = self.tables.find(object_id)
        if record is None or not record.home:
            return record is not None
        return record.home in self.tables.dead and self.tables.job_home(object_id) == b""

    def on_retain_rows(self, now: float, source: Address, message: m.RetainRows) -> None:
        """Rows of another node name objects of this one."""
        if source[1:] in self.tables.nodes:
            self.references.retain_rows_for(source[1:], message.object_ids)

    def on_release_rows(self, now: float, source: Address, message: m.ReleaseRows) -> None:
        """No row of another node names these objects any more."""
        self.references.release_rows_for(source[1:], message.object_ids)
