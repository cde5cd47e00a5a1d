"""Values that cross between nodes: small and durable ones in daemons' messages, others as copies of the transfer agents (decision 0032).

A home answers ``FetchValues`` with the value or with an *offer*. If no copy succeeds, the home is asked again.
"""

from __future__ import annotations

from collections import defaultdict

from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.copies import Copies
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.orphans import Orphans
from zfabric.machines.local_scheduler.nodes.unknown_nodes import UnknownNodes
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere, Stored
from zfabric.machines.local_scheduler.records import WAITING, AnyObject
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.transitions import NodeFoundDead
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import Address, short
from zfabric.protocol.inside import refs_in
from zfabric.protocol.messages import FAILED, HOLD, OK


class Fetching:
    """Sends values to other nodes, and requests theirs."""

    def __init__(
        self,
        tables: Tables,
        references: References,
        outcomes: Outcomes,
        rebuilding: Rebuilding,
        unknown_nodes: UnknownNodes,
        entrusting: Entrusting,
        orphans: Orphans,
        borrowing: Borrowing,
        copies: Copies,
    ) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.unknown_nodes = unknown_nodes
        self.entrusting = entrusting
        self.orphans = orphans
        self.borrowing = borrowing
        self.copies = copies

    def end_of_turn(self) -> None:
        """Request values, answer requests, and end unneeded copies."""
        for object_id in self.tables.transfers.unwanted.take():
            self.copies.stop(object_id)
        for node, object_ids in self._take_fetches().items():
            for batch in batches(object_ids):
                self.unknown_nodes.send(node, m.FetchValues(batch))
        while wanted := self.tables.transfers.for_nodes.take():  # A value that proves to be lost is an answer, too.
            self._answer(wanted)

    def on_node_found_dead(self, transition: NodeFoundDead) -> None:
        """Handle the death of a node unknown here."""
        self.node_died(transition.node)

    def node_died(self, node: bytes) -> None:
        """Report what this node has of the dead one (``Orphans.report``), and find other sources for its values."""
        self.unknown_nodes.mark_dead(node)
        self.borrowing.node_died(node)
        for record in self.tables.values():
            if isinstance(record.value, Elsewhere) and record.value.place == node:
                self.rebuilding.copy_lost(record, "the node that had it is dead")
            elif record.hold is not None and record.hold.asked == node:
                self._ask_next_home(record)
            if record.home and record.holders is None and record.pins <= 0:
                self.references.collect_later(record)

    def _ask_next_home(self, record: AnyObject) -> None:
        """Request a dead home's value from the heir. If that is this node, the value waits for the succession."""
        if record.status == PENDING and self.orphans.rehome(record):
            self.tables.transfers.want(record)

    # -- at home --

    def on_fetch_values(self, now: float, source: Address, message: m.FetchValues) -> None:
        """Answer requests for existing values; note the others."""
        node = source[1:]
        if node not in self.tables.nodes:
            return
        for object_id in message.object_ids:
            record = self.tables.find(object_id)
            if record is None:
                self.tables.send_to_node(node, m.FetchedValues(((object_id, OK, (), ()),), ()))
                continue
            if record.is_lost:
                self.rebuilding.make_available(record)
            if record.status == PENDING:
                record.add_fetchers(node)
            else:
                self.tables.transfers.for_nodes.append((node, record))

    def _answer(self, wanted: list[tuple[bytes, AnyObject]]) -> None:
        """Answer requests. Small values in the arena are read first."""
        for node, record in wanted:
            if node not in self.tables.nodes:
                continue
            if self.tables.find(record.object_id) is not record:  # It was freed since it was requested.
                self.tables.send_to_node(node, m.FetchedValues(((record.object_id, OK, (), ()),), ()))
                continue
            value = record.value
            if record.is_lost and record.holders is None and record.pins <= 0:
                # The reader has released it: made again, it would be dropped before it is sent.
                self.tables.send_to_node(node, m.FetchedValues(((record.object_id, OK, (), ()),), ()))
            elif record.is_lost:  # It was lost since it was requested.
                record.add_fetchers(node)
                self.rebuilding.make_available(record)
            elif isinstance(value, Elsewhere) or (type(value) is Stored and value.size > self.tables.config.inline_bytes):
                self._send_value(node, record, self.copies.offer(record, node))
            elif isinstance(value, Stored):
                self.tables.store.read_for(record.object_id, node, self.tables.nodes, self.tables.address[1:])
            else:
                self._send_value(node, record, value or b"")

    def _send_value(self, node: bytes, record: AnyObject, value: bytes | m.Row) -> None:
        row = (record.object_id, record.status, value, record.contained)
        self.entrusting.entrust(record.contained)
        self.tables.ledger.rows.send(node, m.FetchedValues((row,), self.tables.homes_of(record.contained)))

    def on_value_read(self, now: float, source: Address, message: m.ValueRead) -> None:
        """Send a value read from the arena, and unpin it."""
        self.tables.send_to_store(m.Unpin((message.object_id,)))
        record = self.tables.find(message.object_id)
        for node in self.tables.store.was_read(message.object_id, self.tables.nodes):
            if record is not None and not message.error:
                self._send_value(node, record, message.value)
            else:
                text = f"object {short(message.object_id)} cannot be read: {message.error or 'it was freed'}"
                row = (message.object_id, FAILED, pack_failure("ObjectLostError", text), ())
                self.tables.send_to_node(node, m.FetchedValues((row,), ()))

    def on_copy_lost(self, now: float, source: Address, message: m.CopyLost) -> None:
        """Record that a value retained for this node is lost."""
        record = self.tables.find(message.object_id)
        if record is not None and isinstance(record.value, Elsewhere) and record.value.place == source[1:]:
            self.rebuilding.copy_lost(record, message.reason)

    # -- away from home --

    def _take_fetches(self) -> dict[bytes, list[bytes]]:
        """Begin copies of own values that lie elsewhere. Return requests for others, by home."""
        by_home: defaultdict[bytes, list[bytes]] = defaultdict(list)
        while wanted := self.tables.transfers.wanted.take():
            for record in wanted:
                if isinstance(record.value, Elsewhere):
                    self.copies.pull(record.object_id, *self.copies.places(record.value), ended=self._copied)
                elif record.home and self.unknown_nodes.is_dead(record.home):
                    self._ask_next_home(record)
                elif record.home:
                    by_home[record.home].append(record.object_id)
        return by_home

    def on_values(self, now: float, source: Address, message: m.FetchedValues) -> None:
        """Accept requested values or offers."""
        for object_id, status, value, contained in message.rows:
            record = self.tables.find(object_id)
            if record is not None and record.home and record.status == PENDING:
                if isinstance(value, tuple) and value:
                    self.copies.stop(object_id)  # Requested again: the value may have been made again.
                    self.expect(record, value, contained, message.homes, source[1:])
                else:
                    self._receive(record, status, value, contained, message.homes, source[1:])

    def expect(self, record: AnyObject, offer: m.Row, contained: m.Ids, homes: m.Rows, sender: bytes) -> None:
        """Have a large value copied; ``offer`` is its size and nodes. Hold the refs inside."""
        self.borrowing.refer(contained, homes, sender)
        self.outcomes.contain(record, contained)
        self.borrowing.settle(contained)
        record.ask()
        self.copies.pull(record.object_id, offer[0], offer[1:], ended=self._copied)

    def _receive(self, record: AnyObject, status: int, value: object, contained: m.Ids, homes: m.Rows, sender: bytes) -> None:
        if not isinstance(value, bytes):
            text = f"object {short(record.object_id)} is unknown at its home: its last reference was dropped, or its job has ended"
            status, value = FAILED, pack_failure("ObjectFreedError", text)
        refs = contained if status == OK else refs_in(value)
        self.borrowing.refer(refs, homes, sender)
        if status == OK:
            self.outcomes.set_value(record, value, contained, b"", False)
        else:
            self.outcomes.set_failure(record, status, value)
        self.borrowing.settle(refs)
        self._arrived(record)

    def _arrived(self, record: AnyObject) -> None:
        self.outcomes.announce(record)
        if record.holders is None and record.pins <= 0:
            self.references.collect_later(record)

    def _copied(self, now: float, message: m.Pulled | m.PullFailed, writer: bytes) -> None:
        record = self.tables.find(message.object_id)
        if isinstance(message, m.PullFailed):
            if record is not None:
                self._not_copied(record, message)
            return
        place = (message.offset, message.size)
        if record is not None and record.hold is not None and record.status == PENDING:
            self.outcomes.set_value(record, place, record.contained, writer, not record.hold.dropped)
            self._arrived(record)
        elif record is not None and isinstance(record.value, Elsewhere):
            before = record.value
            self.tables.ledger.end(before.place, HOLD, record.object_id)
            self.outcomes.set_value(record, place, record.contained, writer, False)
            record.value.copies = before.copies
            self._arrived(record)
        else:
            self.copies.discard(message, writer)

    def _not_copied(self, record: AnyObject, message: m.PullFailed) -> None:
        """Request the value again; or fail its readers if this node has no room."""
        if isinstance(record.value, Elsewhere):
            record.value.asked = False
        elif record.home and record.status == PENDING:
            record.expect(self.tables.inline)
        else:
            return
        if message.kind != "lost":
            kind = "ObjectTooLargeError" if message.kind == "too_large" else "ObjectStoreFullError"
            self._refuse(
                record, pack_failure(kind, f"object {short(record.object_id)} cannot be copied to {self._own_name()}: {message.text}")
            )
        elif record.fetchers or record.dependents:
            self.tables.transfers.want(record)

    def _own_name(self) -> str:
        row = self.tables.cluster.rows.get(self.tables.cluster.node)
        return f"node {row[2]}" if row is not None else "this node"

    def _refuse(self, record: AnyObject, failure: bytes) -> None:
        """Fail all who wait. Later requests may succeed."""
        for incarnation in record.take_fetchers():
            if incarnation in self.tables.nodes:
                self.tables.send_to_node(incarnation, m.FetchedValues(((record.object_id, FAILED, failure, ()),), ()))
            elif (process := self.tables.processes.get(incarnation)) is not None:
                self.tables.send_to_client(process, m.Objects(((record.object_id, FAILED, failure, ()),)))
        for task in record.take_dependents():
            if task.state == WAITING:
                self.outcomes.end_with(task, FAILED, failure)
