"""The other nodes: their arrival, registration and death.

The registry decides on members and deaths and sends its table (``NodeTable``). Nodes register with each other as processes do:
``RegisterNode``, what each has of the other's, ``Ready``. ``_died`` has everything that follows from a death, in order.
"""

from __future__ import annotations

import functools

from zfabric.machines.local_scheduler.actors.directory import NODE_DRAINED, ActorDirectory
from zfabric.machines.local_scheduler.actors.names import ActorNames
from zfabric.machines.local_scheduler.barrier import HOMES
from zfabric.machines.local_scheduler.cluster import labels_of
from zfabric.machines.local_scheduler.lifecycle.departures import Departures
from zfabric.machines.local_scheduler.lifecycle.jobs import Jobs
from zfabric.machines.local_scheduler.nodes.copies import Copies
from zfabric.machines.local_scheduler.nodes.detached_creation import DetachedCreation
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.executions import Executions
from zfabric.machines.local_scheduler.nodes.failover import Failover
from zfabric.machines.local_scheduler.nodes.fetching import Fetching
from zfabric.machines.local_scheduler.nodes.peer_recovery import PeerRecovery
from zfabric.machines.local_scheduler.nodes.queries import ClusterQueries
from zfabric.machines.local_scheduler.nodes.remote_actors import RemoteActors
from zfabric.machines.local_scheduler.nodes.remote_callers import RemoteCallers
from zfabric.machines.local_scheduler.nodes.repeats import Repeats
from zfabric.machines.local_scheduler.records import PROBE, REPLICATE, SNAPSHOT, NodeRecord, ProcessRecord
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.transitions import NodeGone, NodeReady
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address, first_attempt
from zfabric.protocol.machine import Handler

EARLY_MAX = 1000
"""Most nodes remembered that registered before their table came."""


class Peers:
    """The other nodes. ``daemons`` is the number of this node's earlier daemons."""

    def __init__(
        self,
        node: bytes,
        tables: Tables,
        requests: PendingRequests,
        outcomes: Outcomes,
        stopping: Stopping,
        departures: Departures,
        jobs: Jobs,
        creation: DetachedCreation,
        entrusting: Entrusting,
        executions: Executions,
        fetching: Fetching,
        failover: Failover,
        copies: Copies,
        cluster_queries: ClusterQueries,
        repeats: Repeats,
        peer_recovery: PeerRecovery,
        remote_callers: RemoteCallers,
        remote_actors: RemoteActors,
        names: ActorNames,
        actors: ActorDirectory,
        daemons: int,
    ) -> None:
        self.node = node
        self.tables = tables
        self.requests = requests
        self.outcomes = outcomes
        self.stopping = stopping
        self.departures = departures
        self.jobs = jobs
        self.creation = creation
        self.entrusting = entrusting
        self.executions = executions
        self.fetching = fetching
        self.failover = failover
        self.copies = copies
        self.cluster_queries = cluster_queries
        self.repeats = repeats
        self.peer_recovery = peer_recovery
        self.remote_callers = remote_callers
        self.remote_actors = remote_actors
        self.names = names
        self.actors = actors
        self.daemons = daemons
        self._early: dict[bytes, m.RegisterNode] = {}
        """Registrations of nodes that no table names yet."""

    def on_node_table(self, now: float, source: Address, message: m.NodeTable) -> None:
        """Accept a newer table."""
        cluster = self.tables.cluster
        control, is_newer = cluster.head_control_address, cluster.update(message)
        if not is_newer:
            return
        table = cluster.rows
        if cluster.head_control_address != control:
            self.requests.repeat(cluster.head_control_address[1:])
        if self.node in table:
            self.tables.first_attempt = first_attempt(self.daemons, table[self.node][1])
        for node, row in table.items():
            if node != self.node and node not in self.tables.nodes:
                self._joined(node, row, now)
        # New nodes included: this node may have missed the table in which they met the dead one.
        survivors = self.tables.nodes.keys() & table.keys()
        for gone in [each for each in self.tables.nodes.values() if each.token not in table]:
            self._died(gone, survivors, now)
        self.tables.queues.nodes_changed()
        self.copies.nodes_changed(message)

    def _joined(self, node: bytes, row: m.Row, now: float) -> None:
        record = NodeRecord(node, row[1], row[2], dict(row[6]), labels_of(row), now)
        process = ProcessRecord(node, "node", 0, 0, None, node, node)
        record.process = process
        self.tables.nodes[node] = record
        self.tables.enter_process(process)
        early = self._early.pop(node, None)
        if self.daemons:
            record.progress = PROBE
            self.tables.send_to_node(node, m.RegisterNode(m.PROTOCOL_VERSION, self.tables.address[1:], m.ANY_DAEMON))
        else:
            self.tables.send_to_node(node, m.RegisterNode(m.PROTOCOL_VERSION, self.tables.address[1:]))
            self.tables.send_to_node(node, m.Ready())
        self.fetching.unknown_nodes.joined(node)
        self.jobs.node_joined(node)
        if early is not None:
            self._registers(record, early)
            if not early.peer and record.progress == SNAPSHOT:
                record.progress = REPLICATE  # It had nothing to repeat: ``Ready`` followed at once.

    def on_register_node(self, now: float, source: Address, message: m.RegisterNode) -> None:
        """Register a node, or its new daemon."""
        node = self.tables.nodes.get(source[1:])
        if node is None:
            self.tables.count("refused")  # It is dead, or a table with it is under way.
            if len(self._early) < EARLY_MAX:
                self._early[source[1:]] = message
        else:
            self._registers(node, message)

    def _registers(self, node: NodeRecord, message: m.RegisterNode) -> None:
        """Register a node. If either daemon is a successor, both repeat."""
        new = message.daemon != node.daemon
        first = new and not node.daemon and not message.peer and not self.daemons
        if new:
            if node.daemon or message.peer:
                node.progress = PROBE
                node.restarts += 1
            node.progress = min(node.progress, SNAPSHOT)
            node.daemon = message.daemon
            node.draining = False  # Its next daemon says so again.
        if first:
            # What was sent before it had this node's table was refused.
            self.jobs.node_joined(node.token)
            self.failover.repeat_reports(node.token)
        elif node.answered != message.daemon:
            node.answered = message.daemon
            self.repeats.begin_anew(node)
            self.tables.send_to_node(node.token, m.RegisterNode(m.PROTOCOL_VERSION, self.tables.address[1:], message.daemon))
            self.names.repeat(node.token, True)
            self.repeats.send(node)
            self.remote_actors.repeat(node.token)
            self.names.repeat(node.token, False)
        if new:
            self.requests.repeat(node.token)
        if message.peer == self.tables.address[1:]:
            node.progress = max(node.progress, SNAPSHOT)

    def of_registered(self, handler: Handler) -> Handler:
        """Wrap a handler: messages of unregistered senders are void, and some wait (``PeerRecovery``)."""

        @functools.wraps(handler)
        def handle(now: float, source: Address, message: m.Message) -> None:
            node = self.tables.nodes.get(source[1:])
            if node is None or node.progress == PROBE:
                self.tables.count("refused" if node is None else "void")
            elif not (self.tables.barrier.awaits(HOMES) and self.peer_recovery.holds_back(source, message)):
                handler(now, source, message)

        return handle

    def on_node_ready(self, transition: NodeReady) -> None:
        """Accept that a node has repeated everything."""
        node = self.tables.nodes.get(transition.process.incarnation)
        if node is None or node.progress == PROBE:
            return
        if node.answered:
            self.repeats.node_ready(node, transition.now)
        node.progress = REPLICATE
        self.peer_recovery.node_ready(node.token, transition.now)

    def _died(self, node: NodeRecord, survivors: set[bytes], now: float) -> None:
        """Handle a death, in this order; ``survivors`` report on it."""
        del self.tables.nodes[node.token]
        self.entrusting.repeat_jobs(self.jobs.pass_on(node.token))
        self.tables.send(self.tables.cluster.local_placer, m.ProcessGone(node.token))
        self.peer_recovery.name_homes(node.token)
        ended = self.executions.home_died(node)
        self.fetching.node_died(node.token)
        self.failover.node_died(node.token, survivors, ended, now)
        self.tables.write_log("warning", f"node {node.name} is dead: {len(node.inflight)} tasks that it had run again")
        self.tables.count("lost_with_nodes", len(node.inflight))
        cause = NODE_DRAINED if node.draining else f"the node on which it lived, {node.name}, is dead"
        self.actors.returning_lost(node, list(node.inflight.values()), cause)
        self.outcomes.node_lost(node)
        self.actors.node_lost(node, node.actors, cause)
        if node.process is not None:
            self.departures.release(node.process)
        self._stop_tasks_of(node.token, now)
        self.executions.drop_ends_for(node)
        for job in [each for each in self.tables.jobs.values() if each.home == node.token]:
            self.jobs.end_job(job, now)
        self.requests.node_died(node.token)
        self.creation.node_died(node.token)
        self.jobs.node_died(node.token)
        self.cluster_queries.node_died(node.token)
        self.peer_recovery.node_died(node.token, now)
        self.tables.report(NodeGone(node.token))
        self.remote_callers.node_died(node.token)
        self.remote_actors.node_died(node.token)
        self.names.free_all(node.token)

    def _stop_tasks_of(self, home: bytes, now: float) -> None:
        """Stop a dead home's tasks here, with their children: nobody reads their values."""
        tasks = [each for each in self.tables.tasks.values() if each.submitter == home and each.function.delegated]
        for task in self.stopping.with_children(tasks):
            self.stopping.stop(task, "cancelled", now)
