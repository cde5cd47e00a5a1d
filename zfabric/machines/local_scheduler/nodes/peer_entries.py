"""What this node retains for others: the entries of their ledgers, each kind with its own answer to what is missing after a restart.

| kind | here | not among what the other node repeats |
|---|---|---|
| ``HOLD``, ``SEARCH`` | the node is a holder of the object | it is none any more |
| ``ROW`` | the row that makes the object is retained | it is released |
| ``ENTRUSTED``, ``UNFINISHED`` | ``Tables.entrusted`` | stays: this node reports it, and the other one ends it |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.failover import Failover
from zfabric.machines.local_scheduler.object_places import PENDING, Stored
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import NO_HOME, AnyObject, NodeRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import ENTRUSTED, HOLD, ROW, SEARCH, UNFINISHED


class PeerEntries:
    """Enters and ends entries of other nodes."""

    def __init__(self, tables: Tables, references: References, streams: Streams, entrusting: Entrusting, failover: Failover) -> None:
        self.tables = tables
        self.references = references
        self.streams = streams
        self.entrusting = entrusting
        self._end: dict[str, Callable[[bytes, m.Ids], None]] = {
            HOLD: lambda node, ids: references.release(ids, node),
            ROW: references.release_rows_for,
            ENTRUSTED: failover.drop_rows,
            UNFINISHED: failover.finished,
        }

    def on_update_ledger(self, now: float, source: Address, message: m.UpdateLedger) -> None:
        """Enter and end entries. Rows of the objects are entrusted before the acknowledgement."""
        node = self.tables.nodes[source[1:]]
        found: m.Ids = ()
        for kind, ids in message.added:
            if not node.is_ready:
                node.repeated.update((ROW if kind == ROW else HOLD, each) for each in ids)
            if kind == ROW:
                self.references.retain_rows_for(node.token, ids)
            else:
                found += self._hold(node.token, ids, kind == SEARCH)
        for kind, ids in message.ended:
            self._end[kind](node.token, ids)
        if message.number:
            self.tables.ledger.rows.send(node.token, m.LedgerUpdated(message.number, ((SEARCH, found),) if found else ()))

    def _hold(self, node: bytes, object_ids: m.Ids, is_search: bool) -> m.Ids:
        """Register a node as a holder. Return the searched objects that are at home here."""
        if is_search:  # Perhaps for a home that is that node: outcomes come later than the answer.
            self.send_retained(node, map(self.tables.find, object_ids))
        if self.tables.streams:
            self.streams.claim(object_ids)
        here = tuple(each for each in object_ids if self._is_home_of(each, is_search))
        self.references.hold(here, node)
        self.tables.count("holds_of_unknown", len(object_ids) - len(here))
        self.entrusting.entrust(object_ids)
        return here if is_search else ()

    def _is_home_of(self, object_id: bytes, is_search: bool) -> bool:
        """Whether this node is an object's home, or its heir that has yet to rebuild it. Only a search may ask another node."""
        record = self.tables.find(object_id)
        if record is None or not record.home:
            return record is not None
        return self.tables.job_home(object_id) == b"" and (not is_search or record.home in self.tables.dead)

    def node_ready(self, node: NodeRecord) -> None:
        """End the entries that a node has not repeated."""
        for record in self.tables.values():
            # A value of unknown home may be retained for that node, which has yet to receive its outcome.
            may_be_over = not record.home or (record.home == NO_HOME and record.status == PENDING)
            if may_be_over and (HOLD, record.object_id) not in node.repeated and node.token in record.all_holders:
                record.drop_holder(node.token)
                self.references.collect_later(record)
        rows = self.references.rows_retained_for(node.token)
        self.references.release_rows_for(node.token, [each for each in rows if (ROW, each) not in node.repeated])
        node.repeated.clear()

    def send_retained(self, home: bytes, records: Iterable[AnyObject | None]) -> None:
        """Send a home the sizes of its values that this node retains."""
        retained = tuple(
            (each.object_id, each.value.size, each.contained)
            for each in records
            if each is not None and each.home == home and type(each.value) is Stored and home in each.all_holders
        )
        for rows in batches(retained):
            homes = self.tables.homes_of(each for *_, contained in rows for each in contained)
            self.tables.send_to_node(home, m.RetainedValues(rows, homes))
