"""Objects of other nodes: which are borrowed from their homes, what is fetched from there, and when a hold may end.

An object has one home, the node of the task or process that made it. Its holders are registered there: processes of that node, and other
nodes. A node that receives an id of another home makes a record of its own (``BorrowedRecord``), and registers as a holder at the home
(``Borrow``) unless the sender retains the object for as long as it is needed. One rule makes this safe: what may end the hold of another
node (``Release``, ``Ended``, ``EndsReceived``) leaves this node only when every ``Borrow`` sent before it was acknowledged. So a new
holder is registered before the lender releases, over any number of nodes. Holders are sets, not counts.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

from zfabric.config import DURABLE_BYTES_MAX, ROWS_MAX
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.orphans import Orphans
from zfabric.machines.local_scheduler.nodes.unknown_nodes import UnknownNodes
from zfabric.machines.local_scheduler.records import PENDING, AnyObject, BorrowedRecord, Elsewhere, Stored
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure, refs_in
from zfabric.protocol.ids import Address, short
from zfabric.protocol.messages import FAILED, OK


class Borrowing:
    """Records of objects of other nodes, and holds at their homes."""

    def __init__(
        self,
        tables: Tables,
        requests: PendingRequests,
        references: References,
        outcomes: Outcomes,
        rebuilding: Rebuilding,
        entrusting: Entrusting,
        orphans: Orphans,
        node: bytes,
    ) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.entrusting = entrusting
        self.orphans = orphans
        self.node = node
        self.unknown_nodes = UnknownNodes(tables, requests, self.node_died)
        self._last = 0
        """The number of the last ``Borrow``."""
        self._open: dict[int, bytes] = {}
        """Homes that have not acknowledged a ``Borrow``, by its number, in order."""
        self._behind: deque[tuple[int, bytes, m.Message]] = deque()
        """Messages that wait for all ``Borrow`` up to a number: (number, node, message)."""
        self._released: defaultdict[bytes, dict[bytes, int]] = defaultdict(dict)
        """Holds that this node gives up, by home: by object, the number of the last ``Borrow`` before."""

    # -- ids that cross between nodes --

    def refer(self, object_ids: Iterable[bytes], homes: m.Rows, sender: bytes) -> None:
        """Make records for objects that a message of ``sender`` names and that are unknown here."""
        known: dict[bytes, bytes] = dict(homes)
        for object_id in object_ids:
            home = known.get(object_id, sender)
            if home != self.node and self.tables.find(object_id) is None:
                self.tables.objects[object_id] = BorrowedRecord(object_id, home)

    def settle(self, object_ids: Iterable[bytes]) -> None:
        """Borrow those of these objects that something here needs by now; the records of others go."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if isinstance(record, BorrowedRecord):
                if record.is_needed:
                    self._borrow(record)
                else:
                    self.tables.spare.append(record)

    def forget_unneeded(self, object_ids: Iterable[bytes]) -> None:
        """Let the records of objects go that nothing here needs."""
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
        for record in self.tables.to_borrow:
            if not self.unknown_nodes.is_dead(record.home) or self.orphans.rehome(record):
                by_home[record.home].append(record.id)
        self.tables.to_borrow.clear()
        for home, object_ids in by_home.items():
            for start in range(0, len(object_ids), ROWS_MAX):
                self._last += 1
                self._open[self._last] = home
                self.unknown_nodes.send(home, m.Borrow(self._last, tuple(object_ids[start : start + ROWS_MAX])))

    def send_behind(self, node: bytes, message: m.Message) -> None:
        """Send a message that may end a hold, once all holds of this node that were asked for until now are registered."""
        if self._open or self._behind:
            self._behind.append((self._last, node, message))
        else:
            self.entrusting.send(node, message)

    def end_of_turn(self) -> None:
        """Send what is fetched, what others fetched, and the holds that are given up."""
        for node, object_ids in self._take_fetches().items():
            for start in range(0, len(object_ids), ROWS_MAX):
                self.unknown_nodes.send(node, m.FetchValues(tuple(object_ids[start : start + ROWS_MAX])))
        while self.tables.for_nodes:  # A value that turns out to be lost for good is an answer, too.
            self._answer()
        for home, object_id in self.tables.given_up:
            self._released[home][object_id] = self._last
        self.tables.given_up.clear()
        self._release()

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

    def _flush(self) -> None:
        oldest = next(iter(self._open), None)
        while self._behind and (oldest is None or oldest > self._behind[0][0]):
            _, node, message = self._behind.popleft()
            if node in self.tables.nodes:
                self.entrusting.send(node, message)
        self._release()

    def node_died(self, node: bytes) -> None:
        """A home is dead: what this node held there it holds at the homes of the jobs, which are to register that."""
        self.unknown_nodes.mark_dead(node)
        self._open = {number: home for number, home in self._open.items() if home != node}
        self._released.pop(node, None)
        self.entrusting.node_died(node)
        self._wait_for(self.orphans.report(node))
        for record in self.tables.values():
            self._without(node, record)
            if record.home and record.holders is None and record.pins <= 0:
                self.tables.spare.append(record)

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

    def _without(self, node: bytes, record: AnyObject) -> None:
        """Get a value without a dead node: from its home if the dead one was another; else it is lost."""
        if isinstance(record.value, Elsewhere) and record.value.place == node:
            self.rebuilding.copy_lost(record, "the node that had it is dead")
        elif (
            isinstance(record, BorrowedRecord)
            and record.status == PENDING
            and record.asked == node
            and (record.home != node or self.orphans.rehome(record))
        ):
            record.asked = b""
            self.tables.want(record)

    # -- at home --

    def on_borrow(self, now: float, source: Address, message: m.Borrow) -> None:
        """Another node has refs to objects of this one."""
        if source[1:] not in self.tables.nodes:
            return
        unknown = self.references.hold(message.object_ids, source[1:])
        self.tables.counts["holds_of_unknown"] += len(unknown)
        self.entrusting.entrust(message.object_ids)
        self.entrusting.send(source[1:], m.Borrowed(message.number))

    def on_fetch_values(self, now: float, source: Address, message: m.FetchValues) -> None:
        """Another node wants values."""
        node = source[1:]
        if node not in self.tables.nodes:
            return
        for object_id in message.object_ids:
            record = self.tables.find(object_id)
            if record is None:
                self.tables.send_to_node(node, m.FetchedValues(((object_id, OK, (), ()),), ()))
                continue
            if record.status == OK and record.value is None:
                self.rebuilding.make_available(record, "evicted")
            if record.status == PENDING:
                if record.fetchers is None:
                    record.fetchers = set()
                record.fetchers.add(node)
            else:
                self.tables.for_nodes.append((node, record))

    def _answer(self) -> None:
        """Send the values that other nodes have fetched and that exist now; have those read first that lie in the arena."""
        wanted, self.tables.for_nodes = self.tables.for_nodes, []
        for node, record in wanted:
            if node not in self.tables.nodes:
                continue
            if record.status == OK and record.value is None:  # It was lost since it was requested, or found.
                record.fetchers = (record.fetchers or set()) | {node}
                self.rebuilding.make_available(record, "evicted")
            elif isinstance(record.value, Elsewhere):
                row = (record.object_id, record.status, (record.value.place,), record.contained)
                self.tables.send_to_node(node, m.FetchedValues((row,), self.tables.homes_of(record.contained)))
            elif isinstance(record.value, Stored) and record.value.size > DURABLE_BYTES_MAX:
                size = f"{record.value.size / 2**20:.0f} MiB, and a value between nodes has at most {DURABLE_BYTES_MAX / 2**20:.0f} MiB"
                failure = pack_failure("ObjectTooLargeError", f"object {short(record.object_id)} has {size}")
                self.tables.send_to_node(node, m.FetchedValues(((record.object_id, FAILED, failure, ()),), ()))
            elif isinstance(record.value, Stored):
                askers = self.tables.locating.setdefault(record.object_id, [])
                if not any(asker in self.tables.nodes for asker in askers):
                    self.tables.locates.append((record.object_id, self.tables.address[1:]))
                askers.append(node)
            else:
                self._send_value(node, record, record.value or b"")

    def _send_value(self, node: bytes, record: AnyObject, value: bytes) -> None:
        row = (record.object_id, record.status, value, record.contained)
        self.entrusting.entrust(record.contained)
        self.entrusting.send(node, m.FetchedValues((row,), self.tables.homes_of(record.contained)))

    def on_value_read(self, now: float, source: Address, message: m.ValueRead) -> None:
        """Send a value that lay in the arena to the nodes that have requested it. This scheduler had it pinned."""
        if self.tables.store_address is not None:
            self.tables.send(self.tables.store_address, m.Unpin((message.object_id,)))
        askers = self.tables.locating.get(message.object_id, [])
        nodes = [asker for asker in askers if asker in self.tables.nodes]
        left = [asker for asker in askers if asker not in self.tables.nodes]
        if left:
            self.tables.locating[message.object_id] = left
        else:
            self.tables.locating.pop(message.object_id, None)
        record = self.tables.find(message.object_id)
        for node in nodes:
            if record is not None and not message.error:
                self._send_value(node, record, message.value)
            else:
                text = f"object {short(message.object_id)} cannot be read: {message.error or 'it was freed'}"
                row = (message.object_id, FAILED, pack_failure("ObjectLostError", text), ())
                self.tables.send_to_node(node, m.FetchedValues((row,), ()))

    # -- away from home --

    def _take_fetches(self) -> dict[bytes, list[bytes]]:
        by_node: defaultdict[bytes, list[bytes]] = defaultdict(list)
        while self.tables.to_fetch:
            wanted, self.tables.to_fetch = self.tables.to_fetch, []
            for node, record in wanted:
                if self.unknown_nodes.is_dead(node):
                    self._without(node, record)
                else:
                    by_node[node].append(record.object_id)
        return by_node

    def on_values(self, now: float, source: Address, message: m.FetchedValues) -> None:
        """Values that this node has fetched, or where they are."""
        for object_id, status, value, contained in message.rows:
            record = self.tables.find(object_id)
            if isinstance(record, BorrowedRecord) and record.status == PENDING:
                self._receive(record, status, value, contained, message.homes, source[1:])
            elif record is not None and isinstance(record.value, Elsewhere) and record.value.place == source[1:]:
                self._receive_own(record, status, value)

    def _receive(self, record: BorrowedRecord, status: int, value: Any, contained: m.Ids, homes: m.Rows, sender: bytes) -> None:
        """Take in the value of an object of another node."""
        if isinstance(value, tuple) and (value or sender != record.home):
            record.asked = value[0] if value else record.home  # The node that had it has let it go since the home named it.
            self.tables.to_fetch.append((record.asked, record))
            return
        if isinstance(value, tuple):
            text = f"object {short(record.id)} is unknown at its home: its last reference was dropped, or its job has ended"
            status, value = FAILED, pack_failure("ObjectFreedError", text)
        refs = contained if status == OK else refs_in(value)
        self.refer(refs, homes, sender)
        if status == OK:
            self.outcomes.set_value(record, value, contained, b"", False)
            if len(value) > self.tables.config.inline_bytes:
                self.references.move_to_arena(record)
        else:
            self.outcomes.set_failure(record, status, value)
        self.settle(refs)
        self.outcomes.announce(record)
        if record.holders is None and record.pins <= 0:
            self.tables.spare.append(record)

    def _receive_own(self, record: AnyObject, status: int, value: Any) -> None:
        """Take in a value of this node that another one has retained for it, which may let it go now."""
        if status != OK or isinstance(value, tuple):
            self.rebuilding.copy_lost(record, "lost on the node that had it")
            return
        self.tables.given_up.append((record.value.place, record.object_id))  # type: ignore[union-attr]
        self.tables.inline.replace(record, value)
        if len(value) > self.tables.config.inline_bytes:
            self.references.move_to_arena(record)
        self.outcomes.announce(record)
        if record.holders is None:
            self.tables.spare.append(record)

    def on_copy_lost(self, now: float, source: Address, message: m.CopyLost) -> None:
        """Another node has lost a value that it retained for this one."""
        record = self.tables.find(message.object_id)
        if record is not None and isinstance(record.value, Elsewhere) and record.value.place == source[1:]:
            self.rebuilding.copy_lost(record, message.reason)
