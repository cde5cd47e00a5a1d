"""What this node retains for others: the entries of their ledgers, each kind with its own answer to what is missing after a restart.

| kind | here | not among what the other node repeats |
|---|---|---|
| ``HOLD``, ``SEARCH`` | the node is a holder of the object | it is none any more |
| ``ROW`` | the row that makes the object is retained | it is released |
| ``ENTRUSTED``, ``UNFINISHED`` | ``Tables.entrusted`` | stays: this node reports it, and the other one ends it |
| ``LIVING`` | the job goes on without its driver | it may end; forgotten as soon as the node registers |
| ``LEAVING`` | nothing is placed on the node | it takes part again; forgotten as soon as it registers |
| ``COPY`` | the value is copied, which is reported | stays: a copy is not amiss |
| ``NAME`` | on the head, the actor has the name | the name is free |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zfabric.machines.local_scheduler.actors.names import ActorNames
from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.lifecycle.detached import DetachedActors
from zfabric.machines.local_scheduler.nodes.draining import Draining
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.failover import Failover
from zfabric.machines.local_scheduler.nodes.peer_recovery import PeerRecovery
from zfabric.machines.local_scheduler.object_places import PENDING, Stored
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import NO_HOME, AnyObject, NodeRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import COPIED, COPY, ENTRUSTED, GRANTED, HOLD, LEAVING, LIVING, NAME, OK, ROW, SEARCH, TAKEN, UNFINISHED


class PeerEntries:
    """Enters and ends entries of other nodes."""

    def __init__(
        self,
        tables: Tables,
        references: References,
        streams: Streams,
        names: ActorNames,
        detached: DetachedActors,
        draining: Draining,
        entrusting: Entrusting,
        failover: Failover,
        peer_recovery: PeerRecovery,
    ) -> None:
        self.tables = tables
        self.references = references
        self.streams = streams
        self.names = names
        self.entrusting = entrusting
        self.peer_recovery = peer_recovery
        self._add: dict[str, Callable[[bytes, m.Row], None]] = {
            ROW: references.retain_rows_for,
            LIVING: detached.lives,
            LEAVING: draining.node_leaves,
            COPY: draining.copy,
            NAME: names.claimed,
        }
        self._end: dict[str, Callable[[bytes, m.Row], None]] = {
            HOLD: lambda node, ids: references.release(ids, node),
            ROW: references.release_rows_for,
            ENTRUSTED: failover.drop_rows,
            UNFINISHED: failover.finished,
            LIVING: detached.lives_no_more,
            NAME: names.freed,
        }
        self._reported: dict[str, Callable[[bytes, m.Row], None]] = {
            SEARCH: peer_recovery.found,
            ENTRUSTED: entrusting.reported,
            COPIED: draining.copied,
            GRANTED: names.granted,
            TAKEN: names.taken,
        }

    def on_update_ledger(self, now: float, source: Address, message: m.UpdateLedger) -> None:
        """Enter and end entries. Rows of the objects are entrusted before the acknowledgement."""
        node = self.tables.nodes[source[1:]]
        found: m.Ids = ()
        for kind, entries in message.added:
            if not node.is_ready:
                node.repeated.update((HOLD if kind == SEARCH else kind, each) for each in entries)
            if kind in (HOLD, SEARCH):
                found += self._hold(node.token, entries, kind == SEARCH)
            else:
                self._add[kind](node.token, entries)
        for kind, entries in message.ended:
            self._end[kind](node.token, entries)
        if message.number:
            self.tables.ledger.rows.send(node.token, m.LedgerUpdated(message.number, ((SEARCH, found),) if found else ()))

    def on_ledger_updated(self, now: float, source: Address, message: m.LedgerUpdated) -> None:
        """Accept an acknowledgement, and what the node reports on entries."""
        for kind, entries in message.entries:
            self._reported[kind](source[1:], entries)
        self.tables.ledger.acknowledged(source[1:], message.number)
        self.peer_recovery.acknowledged(source[1:], message.number, now)

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
        self.names.free_all(node.token, node.repeated)
        node.repeated.clear()

    def send_retained(self, home: bytes, records: Iterable[AnyObject | None]) -> None:
        """Send a home the sizes of its values that this node retains."""
        retained = tuple(
            (each.object_id, OK, each.value.size, each.contained)
            for each in records
            if each is not None and each.home == home and type(each.value) is Stored and home in each.all_holders
        )
        for rows in batches(retained):
            homes = self.tables.homes_of(each for *_, contained in rows for each in contained)
            self.tables.send_to_node(home, m.Holdings(b"", rows, homes, (), False))
