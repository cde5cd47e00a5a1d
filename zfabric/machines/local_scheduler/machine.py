"""The local scheduler: accepts the tasks of its node, decides when and where they run, and fixes their outcomes.

``_accepted`` has the handler of every message, ``take_effects`` the order of a turn. A part reports to a part above it by a transition,
delivered at the end of a step. After a restart nothing is dispatched or freed until every living process has registered
(``lifecycle.rejoining``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zfabric.config import Config
from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.common.tables import pack_row
from zfabric.machines.local_scheduler import due
from zfabric.machines.local_scheduler.actors.deadlocks import Deadlocks
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.actors.names import ActorNames
from zfabric.machines.local_scheduler.actors.remakes import Remakes
from zfabric.machines.local_scheduler.barrier import HOMES, NODES, PROCESSES
from zfabric.machines.local_scheduler.due import Timed
from zfabric.machines.local_scheduler.groups.bundles import Bundles
from zfabric.machines.local_scheduler.groups.directory import Groups
from zfabric.machines.local_scheduler.lifecycle.departures import Departures
from zfabric.machines.local_scheduler.lifecycle.detached import DetachedActors
from zfabric.machines.local_scheduler.lifecycle.former_jobs import FormerJobs
from zfabric.machines.local_scheduler.lifecycle.jobs import Jobs, JobShutdown
from zfabric.machines.local_scheduler.lifecycle.membership import Membership
from zfabric.machines.local_scheduler.lifecycle.recovery import Recovery
from zfabric.machines.local_scheduler.lifecycle.rejoining import Rejoining
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.children import Children
from zfabric.machines.local_scheduler.nodes.copies import Copies
from zfabric.machines.local_scheduler.nodes.delegations import Delegations
from zfabric.machines.local_scheduler.nodes.detached_creation import DetachedCreation
from zfabric.machines.local_scheduler.nodes.draining import Draining
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.executions import Executions
from zfabric.machines.local_scheduler.nodes.failover import Failover
from zfabric.machines.local_scheduler.nodes.fetching import Fetching
from zfabric.machines.local_scheduler.nodes.group_tasks import GroupTasks
from zfabric.machines.local_scheduler.nodes.guests import Guests
from zfabric.machines.local_scheduler.nodes.heartbeats import Heartbeats
from zfabric.machines.local_scheduler.nodes.key_requests import KeyRequests
from zfabric.machines.local_scheduler.nodes.lone_tasks import Finders, LoneTasks
from zfabric.machines.local_scheduler.nodes.orphans import Orphans
from zfabric.machines.local_scheduler.nodes.peer_entries import PeerEntries
from zfabric.machines.local_scheduler.nodes.peer_recovery import PeerRecovery
from zfabric.machines.local_scheduler.nodes.peers import Peers
from zfabric.machines.local_scheduler.nodes.placement.back import Reclaiming, Returns
from zfabric.machines.local_scheduler.nodes.placement.when import PlacementRequests, Starvation
from zfabric.machines.local_scheduler.nodes.placement.where import Placement
from zfabric.machines.local_scheduler.nodes.queries import ClusterQueries
from zfabric.machines.local_scheduler.nodes.receipts import Receipts
from zfabric.machines.local_scheduler.nodes.reference_watches import ReferenceWatches
from zfabric.machines.local_scheduler.nodes.relayed_logs import GuestLogs, RemoteLogs
from zfabric.machines.local_scheduler.nodes.remote_actors import RemoteActors
from zfabric.machines.local_scheduler.nodes.remote_callers import RemoteCallers
from zfabric.machines.local_scheduler.nodes.remote_streams import RemoteStreams
from zfabric.machines.local_scheduler.nodes.repeats import Repeats
from zfabric.machines.local_scheduler.nodes.unknown_nodes import UnknownNodes
from zfabric.machines.local_scheduler.objects.call_results import CallResults
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.objects.values import Values
from zfabric.machines.local_scheduler.records import (
    ENDING,
    HOSTING,
    IDLE,
    LEASED,
    WorkerRecord,
)
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.reports import invariants
from zfabric.machines.local_scheduler.reports.events import Events
from zfabric.machines.local_scheduler.reports.report import Reports
from zfabric.machines.local_scheduler.reports.sampling import Sampling
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.submission import Submission
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.admission import Admission
from zfabric.machines.local_scheduler.tasks.direct_submission import DirectSubmissions
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.machines.local_scheduler.transitions import (
    ActorLifeEnded,
    ActorNameFreed,
    ActorReturned,
    ActorTaskEnded,
    ActorUnreferenced,
    ActorUnwanted,
    AgentReady,
    CallerExited,
    CallerNotified,
    CallsEndReceived,
    DetachedActorsChanged,
    GuestDied,
    GuestTaskEnded,
    JobOver,
    NodeFoundDead,
    NodeGone,
    NodeReady,
    ObjectUnreferenced,
    Recovered,
    RemakeEnded,
    RemakeWanted,
    StreamMakerEnded,
    StreamUnreferenced,
    StreamWanted,
)
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, KillProcess, Send
from zfabric.protocol.ids import Address, first_attempt
from zfabric.protocol.machine import Diagnosis, Handler, Handlers, InvariantViolation
from zfabric.protocol.names import size
from zfabric.protocol.options import Demand

PASSED_ON = frozenset({m.Call, m.RelayedCalls, m.CallOutcomes, m.CallsEnded})
"""Messages mostly passed on. A handler that leaves the end of the turn something to decide sets ``Tables.end_due``."""


class LocalScheduler:
    """The local scheduler of one node.

    ``first_token`` is the first of its workers' tokens, unique to this incarnation; ``daemons`` counts earlier daemons: if any, it
    recovers.
    """

    def __init__(
        self,
        address: Address,
        node: bytes,
        config: Config,
        total: Demand,
        store: Address | None,
        control: Address,
        placer: Address,
        first_token: int,
        daemons: int,
    ) -> None:
        self.address = address
        self.node = node
        self.config = config
        self.pool = ResourcePool(total)
        self.blocks = BlockWriter()
        self.tables = Tables(address, node, store, control, placer, config, first_attempt(daemons), daemons > 0, self.pool)
        self.references = References(self.tables, self.blocks)
        self.requests = PendingRequests(self.tables)
        self.outcomes = Outcomes(self.tables, self.references, node)
        self.rebuilding = Rebuilding(self.tables, self.references, self.outcomes)
        self.stopping = Stopping(self.tables, self.outcomes)
        self.admission = Admission(self.tables, self.blocks, self.outcomes, self.rebuilding, self.stopping)
        self.direct = DirectSubmissions(self.tables, self.references, self.outcomes, self.stopping, self.admission)
        self.workers = WorkerPool(self.tables, self.pool, first_token)
        self.dispatcher = Dispatcher(self.tables, self.outcomes, self.rebuilding, self.stopping, self.direct, self.pool, self.workers)
        self.streams = Streams(self.tables, self.references, self.outcomes, self.rebuilding)
        self.values = Values(self.tables, self.requests, self.references, self.outcomes, self.rebuilding, self.dispatcher, self.streams)
        self.call_results = CallResults(self.tables, self.requests, self.references, self.outcomes, self.streams)
        self.deadlocks = Deadlocks(self.tables, self.dispatcher)
        self.logs = ActorLogs(self.tables, self.requests, self.references)
        self.remakes = Remakes(self.tables, self.pool, self.outcomes, self.rebuilding, self.admission, self.workers)
        self.actors = ActorDirectory(
            self.tables,
            self.blocks,
            self.requests,
            self.references,
            self.outcomes,
            self.rebuilding,
            self.workers,
            self.dispatcher,
            self.streams,
            self.logs,
        )
        self.names = ActorNames(self.tables, self.actors, self.outcomes, node)
        self.entrusting = Entrusting(self.tables)
        self.submission = Submission(
            self.tables,
            self.blocks,
            self.outcomes,
            self.admission,
            self.stopping,
            self.direct,
            self.values,
            self.streams,
            self.actors,
            self.names,
        )
        self.children = Children(self.tables, self.outcomes, self.submission, self.entrusting)
        self.events = Events(node, self.outcomes, self.actors)
        self.departures = Departures(self.tables, self.references, self.outcomes, self.direct, self.actors)
        self.detached = DetachedActors(self.tables, self.stopping, self.departures, self.actors)
        self.job_shutdown = JobShutdown(self.actors)
        self.jobs = Jobs(
            self.tables,
            self.blocks,
            self.requests,
            self.references,
            self.outcomes,
            self.stopping,
            self.direct,
            self.workers,
            self.dispatcher,
            self.actors,
            self.logs,
            self.remakes,
            self.events,
            self.departures,
            self.detached,
            self.job_shutdown,
        )
        self.former_jobs = FormerJobs(self.tables, self.requests)
        self.orphans = Orphans(self.tables, self.outcomes, self.rebuilding)
        self.unknown_nodes = UnknownNodes(self.tables, self.requests)
        self.watches = ReferenceWatches(self.tables, self.references, self.unknown_nodes)
        self.borrowing = Borrowing(self.tables, self.references, self.unknown_nodes, self.orphans, node)
        self.copies = Copies(self.tables, node)
        self.fetching = Fetching(
            self.tables,
            self.references,
            self.outcomes,
            self.rebuilding,
            self.unknown_nodes,
            self.entrusting,
            self.orphans,
            self.borrowing,
            self.copies,
        )
        self.executions = Executions(
            self.tables,
            self.references,
            self.outcomes,
            self.stopping,
            self.submission,
            self.jobs,
            self.borrowing,
            self.entrusting,
            self.children,
            self.fetching,
        )
        self.receipts = Receipts(self.tables)
        self.remote_streams = RemoteStreams(
            self.tables,
            self.references,
            self.outcomes,
            self.streams,
            self.call_results,
            self.borrowing,
            self.executions,
            self.receipts,
        )
        self.creation = DetachedCreation(
            self.tables, self.requests, self.references, self.submission, self.actors, self.borrowing, self.executions
        )
        self.bundles = Bundles(self.tables, self.requests, self.outcomes, self.workers, self.dispatcher, self.actors)
        self.groups = Groups(self.tables, self.requests, self.bundles)
        self.recovery = Recovery(
            self.tables,
            self.blocks,
            self.references,
            self.outcomes,
            self.rebuilding,
            self.stopping,
            self.admission,
            self.workers,
            self.dispatcher,
            self.streams,
            self.values,
            self.call_results,
            self.logs,
            self.actors,
            self.executions.adopt,
            self.groups,
            self.step,
            self.deliver,
        )
        self.rejoining = Rejoining(self.tables, self.blocks, self.requests, self.workers, self.logs, self.jobs, self.recovery)
        self.membership = Membership(
            node,
            self.tables,
            self.requests,
            self.outcomes,
            self.stopping,
            self.direct,
            self.workers,
            self.dispatcher,
            self.logs,
            self.actors,
            self.events,
            self.departures,
            self.jobs,
            self.rejoining,
            self.deliver,
        )
        self.delegations = Delegations(
            self.tables, self.references, self.outcomes, self.rebuilding, self.borrowing, self.copies, self.receipts, node
        )
        self.remote_callers = RemoteCallers(
            self.tables,
            self.references,
            self.outcomes,
            self.streams,
            self.call_results,
            self.actors,
            self.borrowing,
            self.executions,
        )
        self.remote_logs = RemoteLogs(self.tables, self.logs, self.borrowing)
        self.guest_logs = GuestLogs(self.tables, self.references, self.logs, self.borrowing, self.remote_callers, node)
        self.guests = Guests(self.tables, self.actors, self.executions, self.workers, self.dispatcher, self.guest_logs)
        self.remote_actors = RemoteActors(
            self.tables, self.actors, self.call_results, self.borrowing, self.remote_callers, self.receipts, node
        )
        self.heartbeats = Heartbeats(self.tables, self.outcomes)
        self.placement_requests = PlacementRequests(self.tables, self.outcomes, self.delegations, self.heartbeats)
        self.starvation = Starvation(self.tables, self.dispatcher)
        self.placement = Placement(self.tables, self.outcomes, self.delegations)
        self.group_tasks = GroupTasks(self.tables, self.outcomes, self.delegations)
        self.reclaiming = Reclaiming(self.tables, self.outcomes, self.delegations)
        self.returns = Returns(self.tables, self.outcomes, self.placement)
        self.draining = Draining(self.tables, self.returns, self.actors, self.guests, self.groups, self.workers)
        self.key_requests = KeyRequests(self.tables, self.requests)
        self.cluster_queries = ClusterQueries(self.tables, self.requests, node)
        self.failover = Failover(
            self.tables,
            self.blocks,
            self.references,
            self.outcomes,
            self.rebuilding,
            self.stopping,
            self.admission,
            self.submission,
            self.departures,
            self.borrowing,
            self.delegations,
            self.reclaiming,
        )
        self.peer_recovery = PeerRecovery(
            self.tables,
            self.references,
            self.outcomes,
            self.jobs,
            self.borrowing,
            self.recovery,
            self.streams,
            self.step,
        )
        self.entries = PeerEntries(
            self.tables,
            self.references,
            self.streams,
            self.names,
            self.detached,
            self.draining,
            self.entrusting,
            self.failover,
            self.peer_recovery,
        )
        self.repeats = Repeats(
            self.tables,
            self.references,
            self.outcomes,
            self.jobs,
            self.detached,
            self.creation,
            self.actors,
            self.borrowing,
            self.executions,
            self.reclaiming,
            self.entrusting,
            self.failover,
            self.peer_recovery,
            self.groups,
            self.group_tasks,
            self.call_results,
            self.streams,
            self.remote_streams,
            self.guest_logs,
            self.watches,
            self.draining,
            self.receipts,
            self.entries,
        )
        self.peers = Peers(
            node,
            self.tables,
            self.requests,
            self.outcomes,
            self.stopping,
            self.departures,
            self.jobs,
            self.creation,
            self.entrusting,
            self.executions,
            self.fetching,
            self.failover,
            self.copies,
            self.cluster_queries,
            self.repeats,
            self.peer_recovery,
            self.remote_callers,
            self.remote_actors,
            self.names,
            self.actors,
            daemons,
        )
        self.lone_tasks = LoneTasks(
            self.tables,
            self.outcomes,
            self.stopping,
            self.streams,
            self.jobs,
            self.dispatcher,
            self.children,
            self.failover,
            node,
        )
        self.ahead_of_processes: Finders = {
            m.Submit: self.lone_tasks.submitted,
            m.Completed: self.lone_tasks.completed,
        }
        """What to send before a process's first message of a turn is processed."""
        self.ahead_of_nodes: Finders = {
            m.Delegate: self.lone_tasks.given,
            m.Ended: self.lone_tasks.ended,
        }
        """The same for nodes."""
        self.sampling = Sampling(self.tables, self.pool, self.events, self.jobs.take_ended, self.copies.copied_bytes)
        self.reports = Reports(
            node,
            self.tables,
            self.pool,
            self.requests,
            self.actors,
            self.logs,
            self.deadlocks,
            self.groups,
            self.guest_logs.read,
            self.draining.drain,
            self.draining.idle_seconds,
            self.stopping,
            self.sampling,
            self.statistics,
            self.copies.copied_bytes,
            {**self.creation.queries, **self.key_requests.queries},
        )
        self.receivers: dict[type[Any], Callable[[Any], None]] = {
            ActorTaskEnded: self.actors.on_task_ended,
            ActorUnreferenced: self.actors.on_unreferenced,
            ActorUnwanted: self.actors.on_unwanted,
            RemakeEnded: self.remakes.on_ended,
            RemakeWanted: self.remakes.on_wanted,
            DetachedActorsChanged: self.detached.on_changed,
            ActorLifeEnded: self.remote_callers.on_life_ended,
            ActorNameFreed: self.names.on_freed,
            ActorReturned: self.names.on_returned,
            CallerExited: self.remote_actors.on_caller_exited,
            CallerNotified: self.remote_actors.on_caller_notified,
            GuestTaskEnded: self.guests.on_task_ended,
            GuestDied: self.guests.on_died,
            CallsEndReceived: self.remote_callers.on_end_received,
            StreamMakerEnded: self.streams.on_maker_ended,
            ObjectUnreferenced: self.watches.on_object_unreferenced,
            StreamUnreferenced: self.streams.on_unreferenced,
            StreamWanted: self.streams.on_wanted,
            NodeFoundDead: self._node_found_dead,
            AgentReady: self.copies.on_agent_ready,
            Recovered: self._recovered,
            NodeReady: self.peers.on_node_ready,
            NodeGone: self._node_gone,
            JobOver: self._job_over,
        }
        self.timed: dict[int, Timed] = {
            due.STOPPING: Timed(self.stopping.next_deadline, self.stopping.tick),
            due.OVERDUE: Timed(lambda: self.dispatcher.overdue_at, self.dispatcher.tick),
            due.TRIMMING: Timed(lambda: self.workers.trim_at, self.workers.tick),
            due.UNMET: Timed(self.placement_requests.next_deadline, self.placement_requests.tick),
            due.STARVING: Timed(self.starvation.next_deadline, self.starvation.tick),
            due.RETIRING: Timed(self.actors.next_deadline, self.actors.tick),
            due.WAITS: Timed(lambda: self.deadlocks.look_at, self.deadlocks.tick),
            due.LOGS: Timed(self.logs.next_deadline, self.logs.tick),
            due.TOMBSTONES: Timed(self.jobs.next_deadline, self.jobs.tick),
            due.STARTING_WORKERS: Timed(self.membership.next_deadline, self.membership.tick),
            due.REJOINING: Timed(self.rejoining.next_deadline, self.rejoining.tick),
            due.QUERIES: Timed(self.cluster_queries.next_deadline, self.cluster_queries.tick),
            due.GROUPS: Timed(self.groups.next_deadline, self.groups.tick),
            due.CONFIRMING: Timed(lambda: self.call_results.confirm_at, self.call_results.tick),
            due.IDLENESS: Timed(lambda: self.draining.look_at, self.draining.tick),
            due.FLUSHING: Timed(lambda: self._flush_at),
            due.HEARTBEATS: Timed(self.heartbeats.next_deadline),
            due.HOLDING_ROOM: Timed(self.placement.next_deadline),
            due.CROWDED: Timed(self.returns.next_deadline),
            due.RECLAIMING: Timed(self.reclaiming.next_deadline),
            due.OWED: Timed(self.receipts.next_deadline),
            due.SHUTDOWN: Timed(self.job_shutdown.next_deadline),
            due.DIRECT: Timed(self.direct.next_deadline),
            due.BACKPRESSURE: Timed(lambda: self.dispatcher.backpressure.until),
        }
        """Each part that has deadlines."""
        self._flush_at: float | None = None
        self._more_to_collect = False
        self._node_written = False
        self._finished = 0
        """Counts attempts of workers that ended."""
        self.handlers = Handlers(self.tables.counts, self._accepted())

    # -- the machine --

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Handle one message, then its transitions."""
        self.tables.latencies.now = now
        if type(message) not in PASSED_ON:
            self.tables.end_due = True
        if not (self.tables.barrier.awaits(HOMES) and self.rejoining.holds_back(source, message)):
            self.handlers[type(message)](now, source, message)
            if self.tables.transitions:
                self.deliver()

    def deliver(self) -> bool:
        """Deliver reported transitions. Return whether there were any."""
        transitions = self.tables.transitions
        found = bool(transitions)
        while transitions:
            transition = transitions.popleft()
            self.receivers[type(transition)](transition)
        return found

    def tick(self, now: float) -> None:
        """Apply the deadlines that have passed."""
        self.tables.end_due = True
        for part in self.tables.deadlines.passed(now):
            if (tick := self.timed[part].tick) is not None:
                tick(now)
        self.deliver()

    def next_deadline(self) -> float | None:
        """When to call ``tick`` or ``take_effects``."""
        if self._more_to_collect or self.dispatcher.in_a_hurry:
            return 0.0
        return self.tables.deadlines.next(self.timed)

    def take_effects(self, now: float) -> list[Effect]:
        """Dispatch, send results, release what nobody needs, and write due rows; return the effects.

        Parts with nothing to do are not called: while a program waits for one task after the other, the code of a turn comes from memory
        each time, and what is not called costs nothing.
        """
        tables = self.tables
        if not tables.end_due and not self._is_end_due():
            return tables.take_effects()
        if self.stopping.cancelled:
            self.stopping.end_of_turn(now)
        if tables.transitions:
            self.deliver()
        if not tables.barrier.awaits(PROCESSES):
            self._dispatch(now)
        if tables.transitions:
            self.deliver()
        if self.outcomes.touched:
            self.outcomes.send_results()
        if self.jobs.without_driver or self.job_shutdown.until or self.detached.over:
            self.jobs.end_of_turn(now)
        if tables.cluster.rows:
            self._send_to_nodes(now)
        if self.watches.to_ask or self.watches.to_notify:
            self.watches.end_of_turn()
        if self.actors.to_write:
            self.actors.end_of_turn()
        if self.rebuilding.durable_wanted or self.references.unneeded_durable:
            self.values.read_durable()
        if tables.transitions:
            self.deliver()
        if self.outcomes.touched:
            self.outcomes.send_results()  # Of tasks that failed as a driver left. The driver has received its own before its farewell.
        if self.logs.acknowledged:
            self.logs.acknowledge()
        if not self._node_written:
            self._write_node()
            self.draining.begin(now)
        if self._flush_at is None or now >= self._flush_at:
            self._flush_rows(now)
        self.heartbeats.end_of_turn(now)
        if self.rejoining.retained_due:
            self.rejoining.send_retained()
        tables.end_due = False
        return tables.take_effects()

    def _is_end_due(self) -> bool:
        """Whether anything is to be decided once outcomes of relayed calls are sent."""
        if self.call_results.relayed and not self.tables.end_due:
            self.remote_callers.end_of_turn()
        return self.tables.end_due

    def take_lone(self) -> Send | None:
        """Take the only effect of a message passed on; None if there are others, left to ``take_effects``."""
        if self._is_end_due() or len(effects := self.tables.effects) != 1 or type(effect := effects[0]) is not Send:
            return None
        self.tables.effects = []
        return effect

    def _dispatch(self, now: float) -> None:
        tables, references = self.tables, self.references
        if self.watches.undecided:
            self.watches.review()
        limit = self.config.lineage_bytes
        if references.to_collect or references.lineage_bytes > limit or references.inputs_bytes > limit:
            self._more_to_collect = references.collect()
            if tables.transitions and self.deliver():
                self._more_to_collect = references.collect()  # These may have been the last to refer to others.
        else:
            self._more_to_collect = False
        if tables.inline.total > self.config.inline_memory:
            self._more_to_collect |= references.absorb()
        if self.outcomes.with_inputs:
            self.placement.send_to_inputs(now)
        if tables.queues.any_away:
            self.placement.deal_out(now)
            if tables.queues.any_in_groups:
                self.group_tasks.end_of_turn(now)
        if tables.bundles or self.bundles.watchers:
            self.bundles.end_of_turn()
        if self.groups.records:
            self.groups.end_of_turn(now)
        if self.names.early:
            self.names.answer_early()
        self.dispatcher.turn(now)
        if self.dispatcher.ahead:
            self.dispatcher.take_back_ahead()
        if self.direct.waiting or self.names.held:
            for source, message in (*self.direct.take_waiting(), *self.names.take_held()):
                self.step(now, source, message)
        if self.direct.active or self.direct.candidates:
            self.direct.end_of_turn(now)
        if self.dispatcher.overdue_at is None:
            self.dispatcher.watch(now)
        self.placement_requests.find_unmet(now)
        if tables.nodes:
            if self.workers.stuck:
                self.returns.return_queues(self.workers.take_stuck(), "blocked")
            if self.dispatcher.starved or self.returns.crowded:
                self.returns.end_of_turn(now)
            self.placement_requests.ask(now)
            self.reclaiming.end_of_turn(now)
        if self.dispatcher.starved or self.starvation.since is not None:
            self.starvation.end_of_turn(now)
        if self.workers.trim_at is None:
            self.workers.trim(now)

    def _send_to_nodes(self, now: float) -> None:
        """Send new holds first, then what may end another node's hold."""
        tables = self.tables
        if self.submission.of_other_homes or self.outcomes.ended_entrusted:
            self.children.end_of_turn()
        if self.detached.changed:
            self.detached.end_of_turn()
        if tables.ledger.is_due:
            self.borrowing.end_of_turn()
        if self.failover.to_tell:
            self.failover.end_of_turn()
        if self.streams.relayed or self.remote_streams.last:
            self.remote_streams.end_of_turn()
        if self.creation.made:
            self.creation.end_of_turn()
        if self.guest_logs.to_send:
            self.guest_logs.end_of_turn()
        if self.outcomes.delegated_ends:
            self.executions.end_of_turn()
        if self.remote_actors.later or self.remote_actors.kills:
            self.remote_actors.end_of_turn()
        if self.call_results.relayed or self.actors.behind_ends:
            self.remote_callers.end_of_turn()
        if self.logs.recorded:
            self.remote_logs.end_of_turn()
        if self.receipts.owed and now >= min(self.receipts.owed.values()):
            self.receipts.end_of_turn(now)
        if tables.transfers:
            self.fetching.end_of_turn()
        if tables.draining and not tables.barrier.awaits(PROCESSES):
            self.draining.end_of_turn(now)
        if self.draining.wanted:
            self.draining.answer()

    def _flush_rows(self, now: float) -> None:
        if self._flush_at is None:
            if self.blocks.pending or self.logs.spare or self.events:
                self._flush_at = now + self.config.lineage_delay
                self.tables.deadlines.note(due.FLUSHING, self._flush_at)
        elif now >= self._flush_at:
            puts, deletes = self.blocks.flush()
            if not self.blocks.pending:  # With its row and without its log, an actor would restart as if never called.
                deletes += self.logs.spare
                self.logs.spare = []
            self._flush_at = now + self.config.lineage_delay if self.blocks.pending else None
            self._write((*puts, *self.events.take()), tuple(deletes))

    def _write(self, puts: m.Rows, deletes: m.Rows) -> None:
        if puts or deletes:
            self.tables.send(self.tables.cluster.control_address, m.Write(0, puts, deletes))

    def _write_node(self) -> None:
        if not self._node_written:
            self._node_written = True
            row = pack_row({"resources": dict(self.pool.total), "daemon": self.address[1:], "protocol": m.PROTOCOL_VERSION})
            self.tables.send(self.tables.cluster.control_address, m.Write(0, (("node", self.node, row),), ()))

    # -- tasks --

    def on_completed(self, now: float, source: Address, message: m.Completed) -> None:
        """Accept ends of attempts."""
        worker = self.tables.worker_of(source)
        if worker is None:
            self.tables.count("refused")
            return
        self.outcomes.completed(worker, message, now)
        self._finished += len(message.attempts)
        if message.times:
            self.events.attempts_ended(now, worker, message)

    def on_call_times(self, now: float, source: Address, message: m.CallTimes) -> None:
        """Record when calls ran, as events."""
        worker = self.tables.worker_of(source)
        if worker is not None:
            self.events.calls_ended(now, worker, message)

    # -- deaths and ends that concern several parts --

    def _node_gone(self, gone: NodeGone) -> None:
        self.guests.node_died(gone.node)
        self.groups.node_died(gone.node)
        self.bundles.node_died(gone.node)
        self.group_tasks.node_died(gone.node)
        if self.references.watches:
            self.watches.node_died(gone.node)
        self.key_requests.end_orphaned()

    def _node_found_dead(self, found: NodeFoundDead) -> None:
        self.fetching.on_node_found_dead(found)
        if self.references.watches:
            self.watches.node_died(found.node)

    def _recovered(self, recovered: Recovered) -> None:
        self.peer_recovery.on_recovered(recovered)
        self.key_requests.end_orphaned()

    def _job_over(self, over: JobOver) -> None:
        self.guests.job_ended(over.job)
        self.groups.job_ended(over.job)
        self.bundles.job_ended(over.job)
        self.group_tasks.job_ended(over.job)
        if self.references.watches:
            self.watches.job_ended(over.job)

    # -- queries and output --

    def on_query(self, now: float, source: Address, message: m.Query) -> None:
        """Answer a query, behind reports that its sender has received."""
        if self.direct.wait(source, message) or self.names.holds_back(source, message):
            return
        self._write(self.events.take(), ())
        self.dispatcher.end_idle(now)
        if not self.cluster_queries.takes(now, source, message):
            self.reports.answer(now, source, message)

    def on_log_lines(self, now: float, source: Address, message: m.LogLines) -> None:
        """Send workers' output to their driver."""
        by_job: dict[bytes, list[m.Row]] = {}
        for row in message.rows:
            worker = self.tables.by_pid.get(row[0])
            if isinstance(worker, WorkerRecord) and worker.job is not None:
                by_job.setdefault(worker.job.id, []).append(row)
        for identifier, rows in by_job.items():
            job = self.tables.jobs.get(identifier)
            if job is not None and job.home:
                self.tables.send_to_node(job.home, m.JobOutput(job.id, tuple(rows), ()))
            elif job is not None and job.driver is not None:
                self.tables.send_to_client(job.driver, m.LogLines(tuple(rows)))

    def on_job_output(self, now: float, source: Address, message: m.JobOutput) -> None:
        """Pass another node's output and notices on."""
        job, node = self.tables.jobs.get(message.job), self.tables.nodes.get(source[1:])
        if job is None or node is None or job.driver is None:
            return
        if message.lines:
            lines = tuple((pid, f"{name} on {node.name}" if name else f"on {node.name}", *rest) for pid, name, *rest in message.lines)
            self.tables.send_to_client(job.driver, m.LogLines(lines))
        for level, text in message.notices:
            if level == "again":
                self.tables.notify_again(job, f"on {node.name}: {text}")
            else:
                self.tables.send_to_client(job.driver, m.Notice(level, f"on {node.name}: {text}"))

    def on_inspected(self, now: float, source: Address, message: m.Inspected) -> None:
        """Answer the asker."""
        if message.asker[1:] in self.tables.processes:
            self.tables.send(message.asker, m.Answer(message.token, message.rows, ""))

    def on_output_written(self, now: float, source: Address, message: m.OutputWritten) -> None:
        """Do nothing: the shell has it (``LogLines``)."""

    def on_memory_pressure(self, now: float, source: Address, message: m.MemoryPressure) -> None:
        """Kill the worker with most memory beyond its reservation."""
        if any(worker.kill_reason == "memory" for worker in self.tables.workers.values()):
            return
        workers = ((self.tables.by_pid.get(pid), resident) for pid, resident in message.usage)
        over = [
            (resident - worker.reserved_bytes, resident, worker)
            for worker, resident in workers
            if isinstance(worker, WorkerRecord) and worker.state in (LEASED, HOSTING, IDLE)
        ]
        if not over:
            return
        _, resident, worker = max(over, key=lambda row: row[0])
        worker.kill_reason = "memory"
        if worker.state == IDLE:
            worker.state = ENDING
        reserved = f"{size(worker.reserved_bytes)} reserved" if worker.reserved_bytes else "none reserved"
        reason = f"it had the most memory beyond its reservation, {size(resident)} with {reserved}, when the node ran short"
        self.tables.emit(KillProcess(worker.pid, reason))
        self.tables.count("memory_kills")

    # -- the state as a whole --

    @property
    def is_recovering(self) -> bool:
        """Whether an earlier daemon's processes have yet to register again."""
        return self.tables.barrier.awaits(PROCESSES)

    @property
    def busy(self) -> bool:
        """Whether workers have tasks, or host actors, whose calls the scheduler does not see."""
        return any(worker.state in (LEASED, HOSTING) for worker in self.tables.workers.values())

    def statistics(self) -> Mapping[str, float]:
        """Counters and sizes."""
        queued = sum(map(len, self.tables.queues.values()))
        return {
            **self.tables.counts,
            "tasks_submitted": self.submission.submitted + self.admission.handed,
            "tasks_handed": self.admission.handed,
            "dispatched": self.dispatcher.dispatched,
            "tasks_finished": self._finished,
            "inline_bytes": self.tables.inline.total,
            **self.blocks.statistics(),
            "tasks": len(self.tables.tasks),
            "objects": len(self.tables.objects),
            "watches": len(self.references.watches),
            "queued": queued,
            "workers": len(self.tables.workers),
            "processes": len(self.tables.processes),
            "lineage_bytes": self.references.lineage_bytes,
            "lineage_evicted": self.references.evicted,
        }

    def explain(self, subject: bytes) -> Diagnosis | None:
        """Why a task, object, worker or job is in its state."""
        return self.reports.diagnoses.explain(subject)

    def check_invariants(self) -> None:
        """Check that the tables agree."""
        invariants.check(self.tables, self.pool, self.references.lineage_bytes, self._left_by_turn())
        if missing := self.tables.deadlines.missing(self.timed):
            raise InvariantViolation(f"parts {missing} have deadlines that they have not noted")

    def _left_by_turn(self) -> dict[str, object]:
        """What no turn may leave."""
        tables = self.tables
        left: dict[str, object] = {
            "things to decide": tables.end_due,
            "transitions": tables.transitions,
            "results": self.outcomes.touched,
            "durable values to read": self.rebuilding.durable_wanted,
            "durable rows to delete": self.references.unneeded_durable,
        }
        if tables.cluster.rows and not tables.barrier.awaits(NODES):
            left["entries to send"] = [*tables.ledger.added, *tables.ledger.ended]
            left["copies to stop"] = tables.transfers.unwanted
            left["values to send"] = tables.transfers.for_nodes
            left["children to enter or to report"] = [*self.submission.of_other_homes, *self.outcomes.ended_entrusted]
        return left

    def _accepted(self) -> dict[type[Any], Handler]:
        """The handler of each message.

        ``failover``, ``peer_recovery`` and ``repeats`` note what they need of a message, and pass most on to a part below.
        """
        of_nodes: dict[type[Any], Handler] = {
            m.Delegate: self.executions.on_delegate,
            m.Reclaim: self.returns.on_reclaim,
            m.Reclaimed: self.failover.on_reclaimed,
            m.StopDelegated: self.guests.on_stop_delegated,
            m.StopChildren: self.stopping.on_stop_children,
            m.LifeEnded: self.actors.on_life_ended,
            m.RelayedBlock: self.remote_logs.on_relayed_block,
            m.RelayedCheckpoint: self.remote_logs.on_relayed_checkpoint,
            m.ReadLog: self.remote_logs.on_read_log,
            m.LogRecorded: self.guest_logs.on_log_recorded,
            m.LogPage: self.guest_logs.on_log_page,
            m.Ended: self.failover.on_ended,
            m.RelayedYields: self.remote_streams.on_relayed_yields,
            m.AllowYields: self.remote_streams.on_allow_yields,
            m.EndsReceived: self.remote_streams.on_ends_received,
            m.UpdateLedger: self.entries.on_update_ledger,
            m.LedgerUpdated: self.entries.on_ledger_updated,
            m.FetchValues: self.fetching.on_fetch_values,
            m.CopyLost: self.fetching.on_copy_lost,
            m.FetchedValues: self.fetching.on_values,
            m.JobOutput: self.on_job_output,
            m.Entrust: self.failover.on_entrust,
            m.Holdings: self.repeats.on_holdings,
            m.TookOver: self.failover.on_took_over,
            m.ClaimValues: self.repeats.on_claim_values,
            m.ActorLocations: self.remote_actors.on_actor_locations,
            m.RelayedCalls: self.remote_callers.on_relayed_calls,
            m.RelayedReceipt: self.remote_callers.on_relayed_receipt,
            m.CallsEnded: self.remote_actors.on_calls_ended,
            m.CallerGone: self.remote_callers.on_caller_gone,
        }
        return {
            **{kind: self.peers.of_registered(handler) for kind, handler in of_nodes.items()},
            m.Register: self.membership.on_register,
            m.Ready: self.membership.on_ready,
            m.Goodbye: self.jobs.on_goodbye,
            m.RunningTasks: self.rejoining.on_running_tasks,
            m.WorkerSpawned: self.membership.on_worker_spawned,
            m.ProcessDied: self.membership.on_process_died,
            m.ProcessTable: self.rejoining.on_process_table,
            m.ArenaFound: self.rejoining.on_arena_found,
            m.Export: self.submission.on_export,
            m.Submit: self.submission.on_submit,
            m.SubmittedDirect: self.direct.on_submitted_direct,
            m.DirectCounts: self.direct.on_direct_counts,
            m.Completed: self.on_completed,
            m.CallTimes: self.on_call_times,
            m.Yielded: self.streams.on_yielded,
            m.Blocked: self.deadlocks.on_blocked,
            m.Unblocked: self.dispatcher.on_unblocked,
            m.WaitDetails: self.deadlocks.on_wait_details,
            m.TakenBack: self.dispatcher.on_taken_back,
            m.Cancel: self.stopping.on_cancel,
            m.FindActors: self.remote_actors.on_find_actors,
            m.Call: self.remote_actors.on_call,
            m.OutcomesReceived: self.remote_actors.on_outcomes_received,
            m.StopRelayed: self.remote_actors.on_stop_relayed,
            m.CallsRepeated: self.remote_actors.on_calls_repeated,
            m.Receipt: self.receipts.on_receipt,
            m.ExpectResults: self.call_results.on_expect_results,
            m.CallOutcomes: self.call_results.on_call_outcomes,
            m.KillActor: self.remote_actors.on_kill_actor,
            m.ActorExiting: self.guests.on_actor_exiting,
            m.ActorDrained: self.guests.on_actor_drained,
            m.ActorEnded: self.actors.on_actor_ended,
            m.HostDelays: self.deadlocks.on_host_delays,
            m.HostedActors: self.recovery.on_hosted_actors,
            m.LogAppended: self.guest_logs.on_log_appended,
            m.Checkpoint: self.guest_logs.on_checkpoint,
            m.ReplayProgress: self.guest_logs.on_replay_progress,
            m.CallCounts: self.guest_logs.on_call_counts,
            m.Put: self.values.on_put,
            m.OfferResults: self.values.on_offer_results,
            m.Hold: self.values.on_hold,
            m.Release: self.values.on_release,
            m.WatchReferences: self.watches.on_watch_references,
            m.Unreferenced: self.watches.on_unreferenced,
            m.Fetch: self.values.on_fetch,
            m.Located: self.values.on_located,
            m.ObjectsLost: self.values.on_objects_lost,
            m.StoreRoom: self.values.on_store_room,
            m.Written: self.requests.on_answer,
            m.JobNumber: self.requests.on_answer,
            m.Found: self.requests.on_answer,
            m.KeyAnswer: self.requests.on_answer,
            m.Placed: self.placement_requests.on_placed,
            m.NodeTable: self.peers.on_node_table,
            m.RegisterNode: self.peers.on_register_node,
            m.EndJob: self.jobs.on_end_job,
            m.JobGone: self.jobs.on_job_gone,
            m.ValueRead: self.fetching.on_value_read,
            m.AskRoom: self.bundles.on_ask_room,
            m.PrepareBundles: self.bundles.on_prepare_bundles,
            m.CommitBundles: self.bundles.on_commit_bundles,
            m.FreeBundles: self.bundles.on_free_bundles,
            m.HoldBundles: self.bundles.on_hold_bundles,
            m.NodeRoom: self.groups.on_room,
            m.BundlesPrepared: self.groups.on_bundles_prepared,
            m.WatchGroup: self.groups.on_watch_group,
            m.GroupState: self.group_tasks.on_group_state,
            m.Pulled: self.copies.on_pulled,
            m.PullFailed: self.copies.on_pull_failed,
            m.ProbePairs: self.copies.on_probe_pairs,
            m.PairsProbed: self.copies.on_agent_reports,
            m.PeersSilent: self.copies.on_agent_reports,
            m.Query: self.on_query,
            m.Answer: self.requests.on_answer,
            m.LogLines: self.on_log_lines,
            m.OutputWritten: self.on_output_written,
            m.Inspected: self.on_inspected,
            m.MemoryPressure: self.on_memory_pressure,
        }
