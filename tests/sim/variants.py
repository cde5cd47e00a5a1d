"""Machines broken on purpose. The simulator must find every one of these mistakes.

Each variant replaces a method or two by versions with a plausible mistake. ``applied`` inserts the mistake for the time of a context.
A variant that no seed finds is a hole in the simulator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.sim.kinds import ONE_NODE, Kind
from zfabric.machines.client import rejoin
from zfabric.machines.client.calls import Calls
from zfabric.machines.client.machine import Client
from zfabric.machines.client.references import PassedReferences
from zfabric.machines.common.link import Link
from zfabric.machines.common.node_link import NOBODY, NodeLink
from zfabric.machines.control_store.machine import ControlStore
from zfabric.machines.global_scheduler.machine import GlobalScheduler
from zfabric.machines.local_scheduler.actors.deadlocks import Deadlocks
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.channel import PeerChannel, PeerOutbox
from zfabric.machines.local_scheduler.group_records import GroupRecord
from zfabric.machines.local_scheduler.groups.bundles import Bundles
from zfabric.machines.local_scheduler.groups.directory import Groups
from zfabric.machines.local_scheduler.lifecycle.detached import DetachedActors
from zfabric.machines.local_scheduler.lifecycle.jobs import Jobs
from zfabric.machines.local_scheduler.lifecycle.rejoining import Rejoining
from zfabric.machines.local_scheduler.nodes import failover
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.copies import Copies
from zfabric.machines.local_scheduler.nodes.delegations import Delegations
from zfabric.machines.local_scheduler.nodes.draining import Draining
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.executions import Executions
from zfabric.machines.local_scheduler.nodes.failover import Failover
from zfabric.machines.local_scheduler.nodes.fetching import Fetching
from zfabric.machines.local_scheduler.nodes.heartbeats import Heartbeats
from zfabric.machines.local_scheduler.nodes.lone_tasks import Ahead, LoneTasks
from zfabric.machines.local_scheduler.nodes.peer_recovery import PeerRecovery
from zfabric.machines.local_scheduler.nodes.peers import Peers
from zfabric.machines.local_scheduler.nodes.placement import when
from zfabric.machines.local_scheduler.nodes.placement.back import Reclaiming
from zfabric.machines.local_scheduler.nodes.placement.when import Starvation
from zfabric.machines.local_scheduler.nodes.relayed_logs import GuestLogs
from zfabric.machines.local_scheduler.nodes.remote_callers import RemoteCallers
from zfabric.machines.local_scheduler.nodes.remote_streams import RemoteStreams
from zfabric.machines.local_scheduler.nodes.repeats import Repeats
from zfabric.machines.local_scheduler.records import ASSIGNED, DONE, NOT_DURABLE, TASKS, NodeRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks import stopping
from zfabric.machines.local_scheduler.tasks.direct_submission import DirectSubmissions
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.transitions import AgentReady, CallsEndReceived
from zfabric.machines.member import Member
from zfabric.machines.object_store.tables import StoreTables
from zfabric.machines.registry import Registry
from zfabric.machines.worker.actor_queues import ActorQueues
from zfabric.machines.worker.call_log import CallLog
from zfabric.machines.worker.machine import Worker
from zfabric.machines.worker.mailbox import Mailbox
from zfabric.machines.worker.quiescence import Gate
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import JOB_BYTES, Address, first_attempt
from zfabric.protocol.messages import DEAD

Patch = tuple[Any, str, Callable[[Any], Any]]
"""(class or module, method, function from the right method to the broken one)"""
Patches = tuple[Patch, ...]


def _nothing(_: Any) -> Any:
    return lambda *arguments, **named: None


def _written_late(right: Any) -> Any:
    def elsewhere(self: Jobs, job: Any) -> None:
        asked, self.requests = self.requests, _Unanswered(self.tables)  # type: ignore[assignment]
        right(self, job)
        self.requests = asked

    return elsewhere


class _Unanswered:
    """Writes that nobody waits for."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def ask(self, message: Any, *fields: Any, then: Any, about: Any = None) -> None:
        self.tables.send(self.tables.control_address, message(0, *fields))


def _pins_not_reported_again(right: Any) -> Any:
    """After a restart of the daemon, a process does not report which places it has."""

    def rejoin(self: Client, register: Any, running: Any = (), unread: Any = ()) -> None:
        places = self.pins.counts.copy()
        self.pins.counts.clear()
        right(self, register, running, ())
        self.pins.counts.update(places)

    return rejoin


def _release_first(right: Any) -> Any:
    """Releases are sent before the outcomes of tasks whose values contain the released refs."""

    def take_before_releases(self: Client) -> Any:
        self.releases.settle()
        return right(self)

    return take_before_releases


def _answer_before_commit(right: Any) -> Any:
    """The control store answers writers before a transaction is committed."""

    def hand_over(self: ControlStore, transaction: Any) -> None:
        self._answer_waiters(transaction)
        right(self, transaction)

    return hand_over


def _take_back_presumed(right: Any) -> Any:
    """Tasks to be taken back are dispatched to other workers before the worker has confirmed."""

    def overdue(self: Dispatcher, now: float) -> Any:
        answer = right(self, now)
        for each in self.tables.workers.values():
            if each.taking_back:
                behind = list(each.inflight.values())[1 + len(each.blocked_tasks) :]
                self.outcomes.give_back(behind)
        return answer

    return overdue


def _dispatched_task_still_queued(right: Any) -> Any:
    """A task that was dispatched stays in its queue."""

    def assign(self: Dispatcher, worker: Any, batch: Any, now: float, inline: bool) -> None:
        right(self, worker, batch, now, inline)
        for task in batch:
            if task.state == 2 and not inline:
                task.state = 1
                self.tables.queue_of(task).tasks.append(task)
                task.state = 2
                if task.id[-1] % 3 == 0:
                    task.worker = None
                    task.state = 1
                    worker.inflight.pop(task.id, None)

    return assign


def _forget_fetchers(right: Any) -> Any:
    """A process that requested a value before it existed is never notified."""

    def announce(self: Outcomes, record: Any) -> None:
        record.fetchers = None
        right(self, record)

    return announce


def _free_though_pinned(right: Any) -> Any:
    """A value is freed with its last holder, even if an unfinished row or another value names it."""

    def release(self: References, object_ids: Any, process: bytes) -> None:
        object_ids = tuple(object_ids)
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None:
                record.pins = 0
        right(self, object_ids, process)

    return release


def _repeats_all_but(kind: type[m.Message]) -> Callable[[Any], Any]:
    """After a restart of the daemon, processes do not repeat what they have of one kind."""
    return lambda right: lambda *parts: ((each, item) for each, item in right(*parts) if each is not kind)


def _begun_task_given_back(right: Any) -> Any:
    """A worker also returns the task that it has begun."""

    def on_take_back(self: Worker, now: float, source: bytes, message: m.TakeBack) -> None:
        right(self, now, source, message)
        if self.stack and self.stack[-1].row[0] in message.task_ids:
            self._effects.append(Send(self.scheduler, m.TakenBack((self.stack[-1].row[0],), b"")))

    return on_take_back


def _queue_retained_while_blocked(right: Any) -> Any:
    """A blocked worker does not return the tasks that it has not begun."""

    def block(self: Worker, *fields: Any) -> None:
        queue = tuple(self.queue)
        self.queue.clear()
        right(self, *fields)
        self.queue.extend(queue)

    return block


def _no_repeats(right: Any) -> Any:
    """Frames are never repeated."""
    return lambda self, now: [frame for frame in right(self, now) if frame[0] == 0]


def _duplicates_delivered(right: Any) -> Any:
    """A frame that arrives twice is delivered twice."""

    def receive(self: Link, sequence: int, acknowledged: int, envelopes: Any, now: float) -> Any:
        ready = right(self, sequence, acknowledged, envelopes, now)
        return [envelopes] if not ready and 0 < sequence <= self.received else ready

    return receive


def _prefetched_tasks_lost(right: Any) -> Any:
    """Only the task that a dead worker executed runs again, not those queued behind it."""

    def worker_lost(self: Outcomes, worker: Any, died: m.ProcessDied) -> None:
        for task in list(worker.inflight.values())[1:]:
            del worker.inflight[task.id]
            task.worker = None
            task.state = 0
            task.facts().unresolved = 1
        right(self, worker, died)

    return worker_lost


def _lent_cpu_not_returned(right: Any) -> Any:
    """A worker that is no longer blocked does not take back the CPU that it lent."""

    def unblocked(self: Dispatcher, worker: Any, message: m.Unblocked) -> None:
        lent = worker.lent
        worker.lent = False
        right(self, worker, message)
        worker.lent = lent and bool(worker.blocked_tasks)

    return unblocked


def _recover_at_once(right: Any) -> Any:
    """A restarted scheduler does not wait for the living processes to register again."""

    def on_process_table(self: Rejoining, now: float, source: bytes, message: m.ProcessTable) -> None:
        right(self, now, source, message)
        self._expected.clear()

    return on_process_table


def _retry_same_attempt(right: Any) -> Any:
    """A task runs again under the number of the lost attempt."""

    def again(self: Outcomes, task: Any, front: bool = True) -> None:
        right(self, task, front)
        task.attempt -= 1

    return again


def _attempts_come_again(right: Any) -> Any:
    """A restarted scheduler begins with the same attempt numbers as the previous one."""
    return lambda self, *fields: right(self, *fields[:-1], 0)


def _located_without_pin(right: Any) -> Any:
    """The object store sends a location without a pin."""

    def tell(self: Any, entry: Any, process: bytes) -> None:
        self.located.append((entry.object_id, process, entry.offset, entry.size))

    return tell


def _given_away_unvoided(right: Any) -> Any:
    """The object store gives an object's room away and leaves its header as it was."""

    def vacate(self: StoreTables, entry: Any) -> None:
        if entry.offset is not None:
            slot = len(self.effects)
            right(self, entry)
            del self.effects[slot]

    return vacate


def _lineage_never_dropped(right: Any) -> Any:
    """Rows of tasks that are no longer needed stay in the control store."""

    def forget(self: References, task: Any) -> None:
        task.block = None
        right(self, task)

    return forget


def _late_end_counts(right: Any) -> Any:
    """A task that did not stop was given an outcome; the outcome that it reports later replaces it."""

    def give_up(self: Outcomes, task: Any) -> None:
        attempt = task.attempt
        right(self, task)
        task.attempt = attempt

    return give_up


def _given_up_is_over(right: Any) -> Any:
    """The resources of a task that does not stop are freed once it was given its outcome."""

    def give_up(self: Outcomes, task: Any) -> None:
        worker = task.worker
        right(self, task)
        del worker.inflight[task.id]
        task.rare.running_on = None

    return give_up


def _reported_once(right: Any) -> Any:
    """An actor reports outcomes once, and does not repeat them to a daemon that has not received them."""
    return lambda self: (self._unsent_reports.clear(), ())[1]


def _all_not_run(right: Any) -> Any:
    """All calls of a dead actor are reported as not run."""

    def fail(self: Calls, target: Any, row: Any, outcome: str) -> None:
        right(self, target, row, "not run")

    return fail


def _retried_backwards(right: Any) -> Any:
    """Calls are repeated in the wrong order."""

    def interrupted(self: Calls, target: Any, executing: bytes, in_order: bool) -> None:
        right(self, target, executing, in_order)
        for lane in target.lanes.values():
            lane.reverse()

    return interrupted


def _retried_for_ever(right: Any) -> Any:
    """Calls that may have run are repeated, whether or not that is permitted."""
    return lambda self, target, call_id: True


def _handle_released_first(right: Any) -> Any:
    """The last handle is released although calls have not run yet."""
    return lambda self, handle, entry: False


def _accepted_twice(right: Any) -> Any:
    """A call is queued twice, if no other call waits."""

    def accept(self: Mailbox, now: float, source: bytes, message: m.Call) -> None:
        idle = not self.queue
        right(self, now, source, message)
        if idle and self.queue:
            self.queue.append(next(iter(self.queue)))

    return accept


def _newest_call_first(right: Any) -> Any:
    """An actor runs the newest waiting call first."""

    def begin(self: Worker, spare: Any = None) -> Any:
        queue = self.mailbox.queue
        if queue and isinstance(queue, deque):
            queue.rotate(1)
        return right(self, spare)

    return begin


def _kill_ends_neighbours(right: Any) -> Any:
    """An actor is killed with its process, even if others share it."""
    return lambda self, record, reason: self._kill_process(record.worker, reason)


def _duplicates_run_again(right: Any) -> Any:
    """A call that a logged actor receives again is run again."""
    return lambda self, caller, call_id: None


def _cut_without_checkpoint(right: Any) -> Any:
    """Rows of a log are dropped when the first part of a checkpoint arrives, before it is committed."""

    def on_checkpoint(self: ActorLogs, now: float, source: bytes, message: m.Checkpoint) -> None:
        log = self.logs.get(message.actor_id)
        if log is not None:
            spare, log.blocks = list(log.blocks), type(log.blocks)()
            self._delete(log, spare)

    return on_checkpoint


def _results_before_commit(right: Any) -> Any:
    """Actors are notified that rows are committed before they are written, and send outcomes."""

    def write(self: ActorLogs, log: Any, writing: Any) -> None:
        right(self, log, writing)
        self.acknowledged[log.actor_id] = writing.number
        if writing.block is not None and not writing.block.parts:
            self.tables.effects.pop()

    return write


def _results_before_home(right: Any) -> Any:
    """Guests are notified that rows are committed before their homes have them, and send outcomes."""

    def pass_on(self: GuestLogs, source: bytes, message: Any) -> None:
        right(self, source, message)
        worker = self.tables.worker_of(source)
        if worker is not None and type(message) is m.LogAppended and self.to_send:
            self.to_send.pop()
            self.tables.send_to_control(worker, m.LogCommitted(message.actor_id, message.number))

    return pass_on


def _callers_not_translated(right: Any) -> Any:
    """In the log of an actor elsewhere, a caller has the name that it has to the actor's process."""
    return lambda self, caller: caller


def _written_later(right: Any) -> Any:
    """Rows are written late; together with the mistake beside it, even after the next incarnation has read the log."""

    def on_log_appended(self: ActorLogs, now: float, source: bytes, message: m.LogAppended) -> None:
        log = self._of(source, message)
        first = log is not None and not log.failed
        if log is not None and first:
            log.failed.append(None)  # type: ignore[arg-type]
        right(self, now, source, message)
        if log is not None and first:
            log.failed.popleft()
            log.retry_at = now + 0.005

    return on_log_appended


def _state_forgets_outcomes(right: Any) -> Any:
    """Checkpoints lack the outcomes that callers may not have received."""

    def checkpoint(self: CallLog, state: bytes, refs: Any) -> None:
        retained, self.retained = self.retained, {}
        right(self, state, refs)
        self.retained = retained

    return checkpoint


def _all_outcomes_dropped(right: Any) -> Any:
    """A logged actor drops all outcomes of a caller that has received some."""
    return lambda self, caller, call_ids, others: self.retained.pop(caller, None)


def _queried_call_runs(right: Any) -> Any:
    """A call whose outcome its caller only queries is run, whether or not it may be repeated."""

    def accept(self: Mailbox, now: float, source: bytes, message: m.Call) -> None:
        rows = tuple(row if len(row) == 3 else (*row[:5], tuple(each for each in row[5] or () if each[0] != "ask")) for row in message.rows)
        right(self, now, source, message._replace(rows=rows))

    return accept


def _limits_ignored(right: Any) -> Any:
    """A wait with a timeout counts as one without."""
    return lambda self, frame: True


def _ends_of_the_dead_accepted(right: Any) -> Any:
    """The end of a task is accepted from whatever node has run it, also from one that is dead."""

    def on_ended(self: Delegations, now: float, source: bytes, message: m.Ended) -> None:
        completed = m.Completed(*message.completed)
        if source[1:] in self.tables.nodes:
            right(self, now, source, message)
            return
        dead = NodeRecord(source[1:], 0, "", {}, {}, now)
        for task_id, attempt, _, _ in completed.rows:
            task = self.tables.tasks.get(task_id)
            if task is not None and task.state != DONE:
                dead.inflight[task_id] = task
                task.attempt = attempt
        self.outcomes.completed(dead, completed, now)

    return on_ended


def _dead_nodes_heard(right: Any) -> Any:
    """What a node has ended is passed on to its handler, whether or not the node lives."""

    def of_registered(self: Peers, handler: Any) -> Any:
        checked = right(self, handler)

        def handle(now: float, source: bytes, message: Any) -> None:
            (handler if type(message) is m.Ended and source[1:] not in self.tables.nodes else checked)(now, source, message)

        return handle

    return of_registered


def _passed_on(right: Any) -> Any:
    """A node passes on tasks that were delegated to it."""
    return lambda queue: queue.shape[2] == TASKS


def _lost_attempts_come_again(right: Any) -> Any:
    """What a dead node ran runs again under the same number."""

    def node_lost(self: Outcomes, node: Any) -> None:
        lost = {task: task.attempt for task in node.inflight.values()}
        right(self, node)
        for task, attempt in lost.items():
            task.attempt = attempt

    return node_lost


def _one_task_of_the_dead_runs_again(right: Any) -> Any:
    """Of what a dead node ran, only the first task runs again."""

    def node_lost(self: Outcomes, node: Any) -> None:
        node.inflight = dict(list(node.inflight.items())[:1])
        right(self, node)

    return node_lost


def _said_before_deleted(right: Any) -> Any:
    """The registry says that a node is dead before its row is deleted."""

    def end(self: Registry, identifier: bytes, node: Any, reason: str) -> None:
        right(self, identifier, node, reason)
        node.durable = False
        self._changed = True

    return end


def _lives_on_without_lease(right: Any) -> Any:
    """A node goes on although it cannot renew its lease."""

    def watch(self: Member, now: float, lease: float) -> None:
        self._until = now + lease
        right(self, now, lease)

    return watch


def _taken_over_at_once(right: Any) -> Any:
    """The home of a job takes over from a dead node as soon as it is notified of the death, with what has been reported by then."""

    def advance(self: Failover, now: float) -> None:
        for takeover in self._takeovers.values():
            takeover.reported |= takeover.survivors or set()
        right(self, now)

    return advance


def _early_registration_lost(right: Any) -> Any:
    """A node that registers before the table with it arrives is not remembered."""

    def on_register_node(self: Peers, now: float, source: bytes, message: m.RegisterNode) -> None:
        right(self, now, source, message)
        self._early.clear()

    return on_register_node


def _functions_sent_once(right: Any) -> Any:
    """A function that one node has received is not sent to others."""

    def send(self: Delegations, queue: Any, node: Any, batch: Any) -> None:
        for other in self.tables.nodes.values():
            node.functions |= other.functions
        right(self, queue, node, batch)

    return send


def _begun_anew_on_one_side(right: Any) -> Any:
    """The link to a restarted daemon goes on with the numbers of the one before; that daemon begins with 1."""

    def agree(self: NodeLink, hello: Any, now: float, answered: bool) -> None:
        if self.peer_daemon not in (NOBODY, hello.daemon):
            self.peer_daemon, self.peer_daemons = hello.daemon, hello.daemons
        right(self, hello, now, answered)

    return agree


def _forgotten_when_sent(right: Any) -> Any:
    """An executor forgets how attempts ended as soon as it has sent that."""

    def end_of_turn(self: Executions) -> None:
        right(self)
        for home in self.tables.nodes.values():
            for _, pins, *_ in home.ends.take_all():
                self.references.unpin(pins)

    return end_of_turn


def _recovered_without_peers(right: Any) -> Any:
    """A restarted scheduler runs again at once what no process of its own node reports."""

    def on_recovered(self: PeerRecovery, transition: Any) -> None:
        right(self, transition)
        self._awaited.clear()
        self._go_on(transition.now)

    return on_recovered


def _copies_of_a_dead_agent_lost(right: Any) -> Any:
    """A new transfer agent is not asked for what the one before had not copied."""

    def on_agent_ready(self: Copies, transition: AgentReady) -> None:
        self._agent = transition.process
        self._tell(self._nodes)

    return on_agent_ready


def _copied_values_not_released(right: Any) -> Any:
    """A home that has copied its value to itself does not release the one that another node retained."""

    def copied(self: Fetching, now: float, message: m.Pulled | m.PullFailed, writer: bytes) -> None:
        before = list(self.tables.given_up)
        right(self, now, message, writer)
        self.tables.given_up[:] = before

    return copied


def _ids_without_home(right: Any) -> Any:
    """Messages between nodes do not say where the objects that they name are at home: the receiver takes the sender for it."""
    return lambda self, object_ids: ()


def _values_that_exist_made_again(right: Any) -> Any:
    """The home of a job that takes over makes values again of which other nodes have reported copies."""

    def adopt_values(self: Failover, takeover: Any, records: Any) -> None:
        for identifier, copies in takeover.copies.items():
            self.tables.given_up += [(copy.node, identifier) for copy in copies]

    return adopt_values


def _attempts_that_run_begin_again(right: Any) -> Any:
    """The home of a job that takes over runs tasks again of which other nodes have reported attempts."""
    return lambda self, takeover, needed: None


def _dead_nodes_renew(right: Any) -> Any:
    """A node that was declared dead goes on renewing its lease: time alone was to end it."""

    def on_renew_lease(self: Registry, now: float, source: bytes, message: m.RenewLease) -> None:
        right(self, now, source, message)
        if self._effects and isinstance(self._effects[-1], Send) and isinstance(self._effects[-1].message, m.Expelled):
            self._effects[-1] = Send(source, m.LeaseRenewed(message.number))

    return on_renew_lease


def _dead_nodes_not_told(right: Any) -> Any:
    """A node is not told that it was declared dead."""

    def row_deleted(self: Registry, now: float, identifier: bytes, answer: m.Written) -> None:
        right(self, now, identifier, answer)
        self._effects = [each for each in self._effects if not (isinstance(each, Send) and isinstance(each.message, m.Expelled))]

    return row_deleted


def _sent_at_once(right: Any) -> Any:
    """Nodes learn that they are registered as holders before the home of the job has the rows, which are needed if this node dies."""
    return lambda self, node, message: self._send(node, message) if self._ordered else right(self, node, message)


def _lent_and_let_go(right: Any) -> Any:
    """What may end a hold leaves before the holds of this node are registered."""
    return lambda self, node, message: right(self, node, message) if self._ordered else self._send(node, message)


def _not_renewed(right: Any) -> Any:
    """What waited for a former daemon is sent before the next one has received what is sent to it again."""
    return lambda self: self._flush()


def _callers_not_waited_for(right: Any) -> Any:
    """Outcomes of calls are over once the node of their caller has them, which may lose them with its daemon."""
    return lambda self, number, lacking=(): right(self, number)


def _released_at_once(right: Any) -> Any:
    """Holds are given up before those that were asked for earlier are registered."""

    def release(self: Borrowing) -> None:
        open_, self.holds._open = self.holds._open, {}
        right(self)
        self.holds._open = open_

    return release


def _borrowed_while_released(right: Any) -> Any:
    """A release that waits to be sent covers a ref that came back meanwhile."""

    def borrow(self: Borrowing, record: Any) -> None:
        if (record.home, record.id) in self._releasing:
            record.hold.register()
        right(self, record)

    return borrow


def _places_sent_abroad(right: Any) -> Any:
    """The home of a task gets the place of a large value in the arena of the node that made it."""

    def retain_for_home(self: Outcomes, identifier: bytes, home: bytes, worker: Any, value: object, refs: m.Ids) -> object:
        right(self, identifier, home, worker, value, refs)
        return value

    return retain_for_home


def _numbers_without_node(right: Any) -> Any:
    """Numbers of attempts do not name the node that gives them out."""

    def on_node_table(self: Peers, now: float, source: bytes, message: m.NodeTable) -> None:
        right(self, now, source, message)
        self.tables.first_attempt = first_attempt(self.daemons)

    return on_node_table


def _death_before_holds(right: Any) -> Any:
    """What a dead node held is released at once: a hold of whom it has lent a ref to may be on its way."""

    def node_died(self: Failover, dead: bytes, survivors: Any, ended: Any, now: float) -> None:
        self.references.node_gone(dead)
        right(self, dead, survivors, ended, now)

    return node_died


def _stall_not_noticed(right: Any) -> Any:
    """A registry that was held up counts that time as theirs who could not renew their leases meanwhile."""

    def notice_stall(self: Registry, now: float) -> None:
        self._look_at = max(self._look_at, now)
        right(self, now)

    return notice_stall


def _relayed_outcomes_confirmed_when_sent(right: Any) -> Any:
    """Actors release outcomes of relayed calls as soon as these are sent."""

    def end_of_turn(self: RemoteCallers) -> None:
        right(self)
        for node in self.tables.nodes.values():
            for *_, calls in node.ends.retained:
                self.on_end_received(CallsEndReceived(calls))

    return end_of_turn


def _relayed_arguments_not_pinned(right: Any) -> Any:
    """What the arguments of relayed calls name is not pinned at the actor's node."""

    def on_relayed_calls(self: RemoteCallers, now: float, source: bytes, message: m.RelayedCalls) -> None:
        known = set(self._pinned)
        right(self, now, source, message)
        for call_id in self._pinned.keys() - known:
            self.references.unpin(self._pinned.pop(call_id)[1])

    return on_relayed_calls


def _children_adopted_early(right: Any) -> Any:
    """The home of a job runs tasks whose parent has ended although their own home lives."""

    def on_entrust(self: Failover, now: float, source: bytes, message: m.Entrust) -> None:
        right(self, now, source, message)
        rows = self.tables.entrusted.get(source[1:], {})
        for task in self._restore_tasks(source[1:], rows, list(message.unfinished), now).values():
            self._run(task, "its parent has ended")

    return on_entrust


def _adopted_as_own(right: Any) -> Any:
    """A restarted executor takes the tasks of other nodes that its workers run for its own."""

    def adopt(self: Executions, row: m.Row, attempt: int, job: Any) -> Any:
        task = right(self, row, attempt, job)
        if task is not None and row[1] in job.functions:
            task.function.received -= 1
            task.function, task.outputs = job.functions[row[1]], None
            task.function.received += 1
        return task

    return adopt


def _ends_pinned_for_the_dead(right: Any) -> Any:
    """What ends of attempts name stays pinned if the home dies that has not acknowledged them."""

    def died(self: Peers, node: NodeRecord, survivors: set[bytes], now: float) -> None:
        node.ends.retained = deque((message, (), calls) for message, _, calls in node.ends.retained)
        right(self, node, survivors, now)

    return died


def _committed_too_early(right: Any) -> Any:
    """A group counts as whole once its first bundles are prepared."""

    def go_on(self: Groups, record: GroupRecord) -> None:
        if len(set(record.target.values())) > len(record.steps):
            record.steps.clear()
        right(self, record)

    return go_on


def _actors_outside_of_bundles(right: Any) -> Any:
    """An actor in a placement group has resources of its node, and not of its bundle."""

    def host(self: Dispatcher, worker: Any, task: Any) -> None:
        right(self, worker, task)
        if worker.demand and worker.pool is not self.pool:
            worker.pool.release(worker.demand)
            worker.pool = self.pool
            self.pool.acquire(worker.demand)

    return host


def _forgotten_when_yielded(right: Any) -> Any:
    def _free_yielded(self: References, record: Any, stream: Any) -> None:
        record.named = 0
        right(self, record, stream)

    return _free_yielded


def _all_may_have_begun(right: Any) -> Any:
    def _interrupted(self: Calls, target: Any, executing: bytes, in_order: bool) -> None:
        right(self, target, executing, False)

    return _interrupted


def _never_restarted(right: Any) -> Any:
    """Nodes without news send a restarted global scheduler no heartbeat."""
    return lambda self, placer: 0


def _never_durable(right: Any) -> Any:
    """The home of a job that takes over does not ask the head for values that were put on the dead node."""
    return lambda identifier: NOT_DURABLE


def _sent_ahead_as_another_attempt(right: Any) -> Any:
    def submitted(self: LoneTasks, source: Address, message: m.Submit) -> Ahead | None:
        ahead: Ahead | None = right(self, source, message)
        if ahead is None:
            return None
        to, delegate = ahead.send
        return ahead._replace(send=Send(to, delegate._replace(attempt=delegate.attempt + 1)))  # type: ignore[attr-defined]

    return submitted


def _not_awaited(right: Any) -> Any:
    """A restarted head counts no detached actor that another node has yet to report."""

    def lives_here(self: DetachedActors, job: Any) -> bool:
        return any(each.detached and each.state != DEAD and each.id[:JOB_BYTES] == job.id for each in self.tables.actors.values())

    return lives_here


def _moved_again(right: Any) -> Any:
    """A task that has moved may move again."""
    return lambda self, task: task.state == ASSIGNED


def _moved_to_no_better_place(right: Any) -> Any:
    """Nodes are given tasks though they have as many as the node that has these."""
    return lambda self, donor, like: [(node, 1) for node in self.tables.nodes.values() if node is not donor and node.is_ready]


OF_KINDS: tuple[tuple[Kind, dict[str, Patches]], ...] = (
    (
        ONE_NODE,
        {
            "pins-not-reported-again": ((Client, "rejoin", _pins_not_reported_again),),
            "release-before-hold": ((Client, "take_before_releases", _release_first),),
            "answer-before-commit": ((ControlStore, "_hand_over", _answer_before_commit),),
            "take-back-presumed": ((Dispatcher, "overdue", _take_back_presumed),),
            "dispatched-twice": ((Dispatcher, "_assign", _dispatched_task_still_queued),),
            "fetchers-forgotten": ((Outcomes, "announce", _forget_fetchers),),
            "freed-while-named": ((References, "release", _free_though_pinned),),
            "holders-not-reported-again": ((rejoin, "holdings", _repeats_all_but(m.Hold)),),
            "begun-given-back": ((Worker, "on_take_back", _begun_task_given_back),),
            "queue-kept-while-waiting": ((Worker, "block", _queue_retained_while_blocked),),
            "frames-not-repeated": ((Link, "due", _no_repeats),),
            "duplicates-delivered": ((Link, "receive", _duplicates_delivered),),
            "prefetched-tasks-lost": ((Outcomes, "worker_lost", _prefetched_tasks_lost),),
            "lent-cpu-kept": ((Dispatcher, "unblocked", _lent_cpu_not_returned),),
            "recovery-too-early": ((Rejoining, "on_process_table", _recover_at_once),),
            "retry-without-new-attempt": ((Outcomes, "again", _retry_same_attempt),),
            "attempts-come-again": ((Tables, "__init__", _attempts_come_again),),
            "rows-not-reported-again": ((rejoin, "holdings", _repeats_all_but(m.Submit)),),
            "located-without-pin": ((StoreTables, "tell", _located_without_pin),),
            "lineage-never-dropped": ((References, "_forget", _lineage_never_dropped),),
            "early-outcome-ignored": ((Outcomes, "_ended_early", _nothing),),
            "direct-tasks-not-reported-again": ((DirectSubmissions, "_report_again", _nothing),),
            "late-end-counts": ((Outcomes, "give_up", _late_end_counts),),
            "given-up-is-over": ((Outcomes, "give_up", _given_up_is_over),),
            "given-up-forgotten": ((Stopping, "still_running", _nothing),),
        },
    ),
    (
        Kind(actors=True),
        {
            "reported-once": ((Mailbox, "unrecorded", _reported_once),),
            "given-away-unvoided": ((StoreTables, "vacate", _given_away_unvoided),),
            "expected-not-reported-again": ((rejoin, "holdings", _repeats_all_but(m.ExpectResults)),),
            "callers-forgotten": ((ActorDirectory, "process_gone", _nothing),),
            "all-not-run": ((Calls, "_fail", _all_not_run),),
            "retried-backwards": ((Calls, "_interrupted", _retried_backwards),),
            "retried-for-ever": ((Calls, "_may_retry", _retried_for_ever),),
            "handles-go-first": ((Calls, "takes_over", _handle_released_first),),
            "last-handle-unnoticed": ((ActorDirectory, "on_unreferenced", _nothing),),
            "accepted-twice": ((Mailbox, "accept", _accepted_twice),),
            "newest-call-first": ((Worker, "begin", _newest_call_first),),
            "actor-made-again-too-early": ((Rejoining, "on_process_table", _recover_at_once),),
            "kill-ends-neighbours": ((ActorDirectory, "_end", _kill_ends_neighbours),),
            "called-while-it-waits": ((ActorQueues, "set_aside", _nothing),),
            "stops-do-not-overtake": ((Mailbox, "stop_later", _nothing),),
            "logged-duplicates-run-again": ((CallLog, "answer", _duplicates_run_again),),
            "logged-results-before-commit": ((ActorLogs, "_write", _results_before_commit),),
            "log-cut-without-checkpoint": ((ActorLogs, "on_checkpoint", _cut_without_checkpoint),),
            "checkpoints-forget-outcomes": ((CallLog, "checkpoint", _state_forgets_outcomes),),
            "outcomes-dropped-too-early": ((CallLog, "_forget", _all_outcomes_dropped),),
            "checkpoint-while-calls-run": ((Gate, "began", _nothing),),
            "lost-calls-not-counted": ((ActorLogs, "record_ended", _nothing),),
            "asked-for-runs-again": ((Mailbox, "accept", _queried_call_runs),),
            "garbage-never-collected": ((Starvation, "_actors_hold_it", _nothing),),
            "log-not-dropped": ((ActorLogs, "drop", _nothing),),
            "rows-of-the-dead-written": ((ActorLogs, "process_gone", _nothing),),
            "stale-incarnation-commits": ((ActorLogs, "on_log_appended", _written_later), (ActorLogs, "process_gone", _nothing)),
        },
    ),
    (
        Kind(circles=True),
        {
            "circles-unseen": ((Deadlocks, "look_later", _nothing),),
            "limits-ignored": ((Deadlocks, "_lasts", _limits_ignored),),
        },
    ),
    (
        Kind(nodes=3),
        {
            "second-hop": ((when, "is_own_work", _passed_on),),
            "lost-attempts-come-again": ((Outcomes, "node_lost", _lost_attempts_come_again),),
            "one-lost-task-runs-again": ((Outcomes, "node_lost", _one_task_of_the_dead_runs_again),),
            "death-not-noticed": ((Peers, "_died", _nothing),),
            "holds-of-the-dead-stay": ((References, "node_gone", _nothing),),
            "death-without-durability": ((Registry, "_end", _said_before_deleted),),
            "lives-on-without-lease": ((Member, "_watch_lease", _lives_on_without_lease),),
            "early-registration-lost": ((Peers, "on_register_node", _early_registration_lost),),
            "functions-sent-to-one-node": ((Delegations, "send", _functions_sent_once),),
            "dead-nodes-awaited": ((Jobs, "node_died", _nothing),),
            "copies-of-a-dead-agent-lost": ((Copies, "on_agent_ready", _copies_of_a_dead_agent_lost),),
            "copied-values-not-released": ((Fetching, "_copied", _copied_values_not_released),),
            "link-begun-anew-on-one-side": ((NodeLink, "_agree", _begun_anew_on_one_side),),
            "ends-forgotten-when-sent": ((Executions, "end_of_turn", _forgotten_when_sent),),
            "recovered-without-peers": ((PeerRecovery, "on_recovered", _recovered_without_peers),),
            "failover-on-half-a-picture": ((Failover, "_advance", _taken_over_at_once),),
            "places-sent-abroad": ((Outcomes, "retain_for_home", _places_sent_abroad),),
            "attempts-without-node": ((Peers, "on_node_table", _numbers_without_node),),
            "stalled-registry-kills": ((Registry, "_notice_stall", _stall_not_noticed),),
            "children-adopted-early": ((Failover, "on_entrust", _children_adopted_early),),
            "ends-pinned-for-the-dead": ((Peers, "_died", _ends_pinned_for_the_dead),),
        },
    ),
    (
        Kind(nodes=3, restarts=True),
        {
            "places-not-repeated": ((Repeats, "on_retained_values", _nothing), (PeerRecovery, "take_retained", _nothing)),
            "adopted-as-own": ((Executions, "adopt", _adopted_as_own),),
            "passed-refs-dropped-at-once": ((PassedReferences, "add", _nothing),),
            "jobs-elsewhere-written-late": ((Jobs, "elsewhere", _written_late),),
        },
    ),
    (
        Kind(nodes=3, actors=True),
        {
            "fence-by-time-only": ((Registry, "on_renew_lease", _dead_nodes_renew), (Registry, "_row_deleted", _dead_nodes_not_told)),
            "guests-results-before-commit": ((GuestLogs, "_pass_on", _results_before_home),),
            "callers-not-translated": ((CallLog, "_stored", _callers_not_translated), (CallLog, "_here", _callers_not_translated)),
        },
    ),
    (
        Kind(nodes=3, groups=True),
        {
            "committed-too-early": ((Groups, "_go_on", _committed_too_early),),
            "lost-bundles-not-noticed": ((Groups, "node_died", _nothing),),
            "groups-outlive-their-job": ((Bundles, "job_ended", _nothing), (Groups, "job_ended", _nothing)),
        },
    ),
    (
        Kind(nodes=3, actors=True, groups=True),
        {
            "actors-outside-of-bundles": ((Dispatcher, "host", _actors_outside_of_bundles),),
        },
    ),
    (
        Kind(nodes=3, streams=True),
        {
            "permission-not-passed-on": ((RemoteStreams, "on_allow_yields", _nothing),),
            "yielded-values-are-no-lineage": ((References, "_free_yielded", _forgotten_when_yielded),),
        },
    ),
    (
        Kind(nodes=3, actors=True, drains=True),
        {
            "calls-of-the-drained-unclear": ((Calls, "_interrupted", _all_may_have_begun),),
        },
    ),
    (
        Kind(nodes=3, bare=True),
        {
            "placed-for-ever": ((GlobalScheduler, "_forget_unconfirmed", _nothing),),
            "heartbeats-not-repeated": ((Heartbeats, "_restarts_of", _never_restarted),),
        },
    ),
    (
        Kind(nodes=3, elastic=True),
        {
            "moved-for-ever": ((Reclaiming, "_may_move", _moved_again), (Reclaiming, "_receivers", _moved_to_no_better_place)),
            "never-moved": ((Reclaiming, "_reclaim_for_others", _nothing),),
            "leaves-unconfirmed": ((Draining, "_take_leave", lambda right: lambda self: self._end()),),
        },
    ),
    (
        Kind(nodes=3, durable=True),
        {
            "durable-values-not-read-again": ((failover, "_durability", _never_durable),),
        },
    ),
    (
        Kind(nodes=3, elsewhere=True),
        {
            "sent-ahead-as-another-attempt": ((LoneTasks, "submitted", _sent_ahead_as_another_attempt),),
        },
    ),
    (
        Kind(nodes=3, detached=True),
        {
            "detached-end-with-their-creators": ((stopping, "_outlives_its_parent", lambda right: lambda task: False),),
            "detached-not-awaited": ((DetachedActors, "lives_here", _not_awaited),),
        },
    ),
)
"""Variants by the kind of worlds that find them."""
VARIANTS = {name: patches for _, variants in OF_KINDS for name, patches in variants.items()}

SAYS = {
    "children-adopted-early": "is at home on",
    "adopted-as-own": "is at home on",
    "ends-pinned-for-the-dead": "things name it",
    "given-away-unvoided": "which belongs to others",
}
"""Part of the failure that shows these, if no other invariant is sure to."""

SCRIPTED: dict[str, Patches] = {
    "no-fence": ((Peers, "of_registered", _dead_nodes_heard), (Delegations, "on_ended", _ends_of_the_dead_accepted)),
    "ids-without-home": ((Tables, "homes_of", _ids_without_home),),
    "rows-not-entrusted": ((Entrusting, "_entrust", _nothing),),
    "acknowledged-before-entrusted": ((PeerChannel, "send", _sent_at_once),),
    "values-that-exist-made-again": ((Failover, "_adopt_values", _values_that_exist_made_again),),
    "attempts-that-run-begin-again": ((Failover, "_adopt_attempts", _attempts_that_run_begin_again),),
    "lender-lets-go-first": ((PeerChannel, "send", _lent_and_let_go),),
    "wait-ends-with-daemon": ((PeerChannel, "renew", _not_renewed),),
    "outcomes-lost-on-the-way": ((PeerOutbox, "acknowledged", _callers_not_waited_for),),
    "requests-not-repeated": ((PendingRequests, "repeat", _nothing),),
    "release-overtakes-hold": ((Borrowing, "_release", _released_at_once),),
    "release-covers-later-hold": ((Borrowing, "_borrow", _borrowed_while_released),),
    "death-overtakes-hold": ((Failover, "node_died", _death_before_holds),),
    "void-children-run-on": ((Stopping, "stop_void", _nothing),),
    "relayed-outcomes-released-early": ((RemoteCallers, "end_of_turn", _relayed_outcomes_confirmed_when_sent),),
    "relayed-arguments-not-pinned": ((RemoteCallers, "on_relayed_calls", _relayed_arguments_not_pinned),),
}
"""Variants that need an order of events which chance rarely meets: a test of these events fails (``tests/sim/test_sim.py``)."""


def shows(name: str, failure: str) -> bool:
    """Whether a failure shows a variant's mistake. An exception that the variant raises does not: it fits the machine no longer."""
    return bool(failure) and SAYS.get(name, "") in failure and "(variants.py:" not in failure


def kind_of(name: str | None) -> Kind:
    """The kind of worlds that find a variant; one node without a variant."""
    return next((kind for kind, variants in OF_KINDS if name in variants), ONE_NODE)


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Break machines with the variant ``name`` within the context. None leaves them as they are."""
    patches = {**VARIANTS, **SCRIPTED}[name] if name is not None else ()
    right = [(owner, method, getattr(owner, method)) for owner, method, _ in patches]
    try:
        for (owner, method, function), (_, _, make) in zip(right, patches, strict=True):
            setattr(owner, method, make(function))
        yield
    finally:
        for owner, method, function in right:
            setattr(owner, method, function)


__all__ = ["SCRIPTED", "VARIANTS", "applied", "kind_of", "shows"]
