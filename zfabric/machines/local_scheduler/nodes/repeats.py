"""What two nodes repeat to each other when the daemon of either is new: the table of decision 0005.

Earlier messages are void. Each side registers (``RegisterNode``), repeats what concerns the other, and sends ``Ready``. Attempts that are
not repeated are lost, and holds that are not repeated are released.
"""

from __future__ import annotations

from collections.abc import Iterable

from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.barrier import NODES
from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.groups.directory import Groups
from zfabric.machines.local_scheduler.lifecycle.detached import DetachedActors
from zfabric.machines.local_scheduler.lifecycle.jobs import Jobs
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.detached_creation import DetachedCreation
from zfabric.machines.local_scheduler.nodes.draining import Draining
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.executions import Executions
from zfabric.machines.local_scheduler.nodes.failover import Failover
from zfabric.machines.local_scheduler.nodes.group_tasks import GroupTasks
from zfabric.machines.local_scheduler.nodes.peer_entries import PeerEntries
from zfabric.machines.local_scheduler.nodes.peer_recovery import PeerRecovery
from zfabric.machines.local_scheduler.nodes.placement.back import Reclaiming
from zfabric.machines.local_scheduler.nodes.receipts import Receipts
from zfabric.machines.local_scheduler.nodes.reference_watches import ReferenceWatches
from zfabric.machines.local_scheduler.nodes.relayed_logs import GuestLogs
from zfabric.machines.local_scheduler.nodes.remote_streams import RemoteStreams
from zfabric.machines.local_scheduler.object_places import Elsewhere, Stored
from zfabric.machines.local_scheduler.objects.call_results import CallResults
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import DONE, AnyObject, NodeRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, Address, call_value, node_of_caller


class Repeats:
    """Repeats to other nodes, and accepts repeats."""

    def __init__(
        self,
        tables: Tables,
        references: References,
        outcomes: Outcomes,
        jobs: Jobs,
        detached: DetachedActors,
        creation: DetachedCreation,
        actors: ActorDirectory,
        borrowing: Borrowing,
        executions: Executions,
        reclaiming: Reclaiming,
        entrusting: Entrusting,
        failover: Failover,
        peer_recovery: PeerRecovery,
        groups: Groups,
        group_tasks: GroupTasks,
        call_results: CallResults,
        streams: Streams,
        remote_streams: RemoteStreams,
        guest_logs: GuestLogs,
        watches: ReferenceWatches,
        draining: Draining,
        receipts: Receipts,
        entries: PeerEntries,
    ) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.jobs = jobs
        self.detached = detached
        self.creation = creation
        self.actors = actors
        self.borrowing = borrowing
        self.executions = executions
        self.reclaiming = reclaiming
        self.entrusting = entrusting
        self.failover = failover
        self.peer_recovery = peer_recovery
        self.groups = groups
        self.group_tasks = group_tasks
        self.call_results = call_results
        self.streams = streams
        self.remote_streams = remote_streams
        self.guest_logs = guest_logs
        self.watches = watches
        self.draining = draining
        self.receipts = receipts
        self.entries = entries

    # -- what this node repeats --

    def begin_anew(self, node: NodeRecord) -> None:
        """Drop what is under way to and from a former daemon."""
        node.functions.clear()
        node.reported.clear()
        node.repeated.clear()
        self.receipts.begin_anew(node)
        self.borrowing.begin_anew(node.token)
        self.detached.begin_anew(node.token)
        self.creation.begin_anew(node.token)
        self.reclaiming.begin_anew(node)
        self.failover.begin_anew(node.token)
        self.peer_recovery.begin_anew(node.token)
        self.references.drop_watcher(node.token)

    def send(self, node: NodeRecord) -> None:
        """Repeat everything to a node."""
        token = node.token
        self._name_jobs(token)
        self.draining.repeat(token)
        self.detached.repeat(token)
        self.borrowing.repeat(token)
        self.peer_recovery.search(token)
        for rows in batches(self.executions.attempts_of(node)):
            self.tables.send_to_node(token, m.Holdings(b"", (), (), rows, False))
        records = self.tables.values()
        claimed = [each for each in records if isinstance(each.value, Elsewhere) and each.value.place == token]
        for rows in batches(tuple((each.object_id, each.contained) for each in claimed)):
            self.tables.send_to_node(token, m.ClaimValues(rows, self._homes(rows)))
        in_outcomes = self._in_outcomes(token, node.ends)
        self.entries.send_retained(token, (each for each in records if each.object_id not in in_outcomes))
        self.entrusting.repeat(token)
        self.tables.ledger.renew()
        self.failover.repeat(token)
        self.groups.repeat(token)
        self.group_tasks.repeat(token)
        self.tables.send_to_node(token, m.Ready())
        self.borrowing.repeat_cancelled(token)
        self.streams.repeat(node)
        self.remote_streams.repeat(node)
        self.executions.repeat_ends(node)
        self.guest_logs.repeat(token)
        self.watches.repeat(token)
        self.jobs.node_joined(token)

    def _name_jobs(self, token: bytes) -> None:
        """Name the jobs of objects borrowed there, which the daemon may not have written."""
        objects = (each for each in self.tables.objects.values() if each.home == token and each.hold is not None and each.hold.registered)
        for job in map(self.tables.jobs.get, dict.fromkeys(each.id[:JOB_BYTES] for each in objects)):
            if job is not None and not job.ended:
                about = (job.id, job.namespace, job.home or self.tables.cluster.node)
                self.tables.send_to_node(token, m.Delegate(about, (), (), (), (), (), self.tables.first_attempt))

    def _in_outcomes(self, home: bytes, ends: Iterable[m.Message]) -> set[bytes]:
        """Values in unacknowledged outcomes: they must arrive with these."""
        rows = [row for message in ends if isinstance(message, m.CallsEnded) for row in message.rows]
        rows += [row for _, row, _ in self.call_results.relayed if node_of_caller(row[1]) == home]
        return {call_value(row[0], index) for row in rows for index, _ in enumerate(row[3])}

    def _homes(self, rows: m.Rows) -> m.Rows:
        return self.tables.homes_of(each for *_, contained in rows for each in contained)

    # -- what others repeat --

    def on_holdings(self, now: float, source: Address, message: m.Holdings) -> None:
        """Accept what a node has of this home's objects and tasks, or of a dead home's."""
        if message.node:
            self.failover.on_remains(now, source, message)
        else:
            self.tables.nodes[source[1:]].reported.update(message.attempts)
            self.peer_recovery.take_retained(source[1:], message)

    def on_claim_values(self, now: float, source: Address, message: m.ClaimValues) -> None:
        """Retain values for their home, or report them lost."""
        home = source[1:]
        for object_id, contained in message.rows:
            record = self.tables.find(object_id)
            size = self.peer_recovery.recovery.stored_size(object_id)
            if record is not None and record.home and record.is_here:
                record.add_holder(home)
                self.tables.protect(record)
            elif size is None or (record is not None and not record.home):
                self.tables.send_to_node(home, m.CopyLost(object_id, "the node that was to have it has lost it, and no other one has it"))
            else:
                self._claimed(record or self.tables.refer(object_id, home), home, size, contained, message.homes)

    def _claimed(self, record: AnyObject, home: bytes, size: int, contained: m.Ids, homes: m.Rows) -> None:
        record.find_home(home)
        record.add_holder(home)
        self.borrowing.refer(contained, homes, home)
        record.arrive(Stored(size), self.tables.inline)
        self.outcomes.contain(record, contained)
        self.borrowing.settle(contained)
        self.outcomes.announce(record)

    def node_ready(self, node: NodeRecord, now: float) -> None:
        """End attempts and entries that a node has not repeated."""
        cause = "its process ended before the daemon of its node was restarted, or meanwhile"
        missing = [task for task in node.inflight.values() if node.reported.get(task.id) != task.attempt]
        self.actors.returning_lost(node, missing, cause)
        for task in reversed(list(node.inflight.values())):
            attempt = node.reported.get(task.id)
            if task.state == DONE and attempt is None:
                del node.inflight[task.id]
                self.outcomes.attempt_lost(task, node)
            elif task.state != DONE and attempt != task.attempt:
                node.inflight.pop(task.id, None)
                self.tables.count("lost_with_daemons")
                self.outcomes.attempt_lost(task, node)
        ended = [each for each in node.actors if node.reported.get(each) != self.tables.actors[each].task.attempt]
        self.actors.node_lost(node, ended, cause)
        self.entries.node_ready(node)
        if not self.tables.barrier.awaits(NODES):
            self.peer_recovery.stop_unwanted(node)
