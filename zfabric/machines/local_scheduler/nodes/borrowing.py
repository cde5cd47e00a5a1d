"""Holds of this node at the homes of other nodes' objects (decision 0030).

A node that receives the id of another home's object becomes a holder there, unless the sender retains the object for as long as it is
needed. ``Ledger`` has the order in which holds begin and end. When a home dies, its holds move to the homes of the jobs (``orphans``).
"""

from __future__ import annotations

from collections.abc import Iterable

from zfabric.machines.local_scheduler.nodes.orphans import Orphans
from zfabric.machines.local_scheduler.nodes.unknown_nodes import UnknownNodes
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.messages import HOLD, ROW


class Borrowing:
    """Holds at other homes."""

    def __init__(self, tables: Tables, references: References, unknown_nodes: UnknownNodes, orphans: Orphans, node: bytes) -> None:
        self.tables = tables
        self.ledger = tables.ledger
        self.references = references
        self.unknown_nodes = unknown_nodes
        self.orphans = orphans
        self.node = node

    # -- ids that cross between nodes --

    def refer(self, object_ids: Iterable[bytes], homes: m.Rows, sender: bytes) -> None:
        """Make records for unknown objects of a message."""
        known: dict[bytes, bytes] = dict(homes)
        for object_id in object_ids:
            home = known.get(object_id, sender)
            if home != self.node and self.tables.find(object_id) is None:
                self.tables.refer(object_id, home)

    def settle(self, object_ids: Iterable[bytes]) -> None:
        """Hold what something here needs, and drop the other records."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None and record.home:
                if record.is_needed:
                    self.ledger.hold(record)
                else:
                    self.references.collect_later(record)

    def forget_unneeded(self, object_ids: Iterable[bytes]) -> None:
        """Drop unneeded records."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None and record.home and record.holders is None and record.pins <= 0:
                self.references.collect_later(record)

    def end_of_turn(self) -> None:
        """Send the ledger's entries: new holds before anything that may end another node's hold."""
        for home in [each for each in self.ledger.added if self.unknown_nodes.is_dead(each)]:
            for kind, identifier in self.ledger.added.pop(home):
                record = self.tables.find(identifier) if kind in (HOLD, ROW) else None
                if record is not None and record.home == home:
                    self.orphans.rehome(record)
        for node, messages in self.ledger.take().items():
            for message in messages:
                self.unknown_nodes.send(node, message)

    def begin_anew(self, node: bytes) -> None:
        """Drop what is under way to a former daemon: ``repeat`` sends what still counts."""
        self.ledger.drop(node)
        for record in self.tables.values():
            record.drop_fetcher(node)
            if record.hold is not None and record.status == PENDING and record.hold.asked == node:
                self.tables.transfers.wanted.append(record)

    def repeat(self, node: bytes) -> None:
        """Send a node's next daemon all entries."""
        for record in self.tables.objects.values():
            if record.home == node:
                self.ledger.enter_again(record)
        self.ledger.send_added(node)

    def repeat_cancelled(self, node: bytes) -> None:
        """Repeat the cancellations of tasks whose home is that node."""
        for record in self.tables.objects.values():
            hold = record.hold
            if hold is not None and hold.home == node and hold.cancelled and record.status == PENDING:
                self.tables.send_to_node(node, m.Cancel((record.id,), *hold.cancelled))

    def node_died(self, node: bytes) -> None:
        """Move a dead home's holds to the homes of the jobs."""
        self.ledger.drop(node)
        self.orphans.report(node)
        self.ledger.renew()
