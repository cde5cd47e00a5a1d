"""Machines broken on purpose. The simulator must find every one of these mistakes.

Most act at a seam (``seams``): a message between two roles is lost, altered or repeated, an answer comes before its effect, a barrier does
not wait. What a message cannot show is broken in a method or function, with a line that says why. ``applied`` inserts the mistake for the
time of a context. A variant that no seed finds is a hole in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.sim.kinds import ONE_NODE, Kind
from tests.sim.seams import (
    Arrivals,
    Memory,
    Patch,
    altered,
    arriving,
    changed,
    early,
    followed,
    hurried,
    leaving,
    lost,
    lost_ahead,
    lost_beside,
    not_repeated,
    nothing,
    overtaking,
    repeated,
    sends,
    true,
    unsent,
)
from zfabric.machines.client.calls import Calls
from zfabric.machines.client.machine import Client
from zfabric.machines.client.references import PassedReferences
from zfabric.machines.common.link import Link
from zfabric.machines.common.node_link import NOBODY, NodeLink, read_hello
from zfabric.machines.common.tables import CHECKPOINT, LOG, unpack_row
from zfabric.machines.control_store.machine import ControlStore
from zfabric.machines.global_scheduler.machine import GlobalScheduler
from zfabric.machines.local_scheduler import machine as local_scheduler
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.channel import PeerChannel, PeerOutbox
from zfabric.machines.local_scheduler.machine import LocalScheduler
from zfabric.machines.local_scheduler.nodes import peers
from zfabric.machines.local_scheduler.nodes.lone_tasks import Ahead, LoneTasks
from zfabric.machines.local_scheduler.nodes.peer_entries import PeerEntries
from zfabric.machines.local_scheduler.nodes.placement import when
from zfabric.machines.local_scheduler.records import TASKS
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tasks import outcomes
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.member import Member
from zfabric.machines.object_store.machine import ObjectStore
from zfabric.machines.registry import Registry
from zfabric.machines.worker import call_log
from zfabric.machines.worker.actor_queues import ActorQueues
from zfabric.machines.worker.call_log import CallLog
from zfabric.machines.worker.machine import Worker
from zfabric.machines.worker.quiescence import Gate
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER, Address, tries_of
from zfabric.protocol.messages import INTERRUPTED, Row
from zfabric.protocol.options import LOGGED

Patches = tuple[Patch, ...]

# -- altered messages --


def _without_option(name: str) -> Callable[[m.Rows], m.Rows]:
    """Drop an option of task or call rows. Options come last."""
    return lambda rows: tuple(
        row if row[-1] is None or len(row) in (3, 4) else (*row[:-1], tuple(each for each in row[-1] if each[0] != name)) for row in rows
    )


def _except_kind(kind: str) -> Callable[[m.Rows], m.Rows]:
    return lambda entries: tuple(each for each in entries if each[0] != kind)


def _confirmed_at_once(asked: m.UpdateLedger) -> m.LedgerUpdated | None:
    """Report that all is copied, and acknowledge an update without new entries."""
    copied = tuple((m.COPIED, ids) for kind, ids in asked.added if kind == m.COPY)
    return m.LedgerUpdated(0 if asked.added else asked.number, copied) if copied or not asked.added else None


def _except(*tables: str) -> Callable[[m.Rows], m.Rows]:
    """Drop rows of these tables from what a write puts or deletes."""
    return lambda rows: tuple(row for row in rows if row[0] not in tables)


def _executing(of: Callable[[Row], bytes]) -> Callable[[m.Rows], m.Rows]:
    """Name another call, ``of(row)``, as the one that ran when an actor's last life ended."""
    return lambda rows: tuple((*row[:5], of(row), row[6]) for row in rows)


def _with_places(completed: Row) -> Row:
    """Put places in an arena for the sizes of large values."""
    outputs = tuple(tuple((0, value) if type(value) is int else value for value in values) for values in completed[2])
    return (*completed[:2], outputs, *completed[3:])


def _is_job_elsewhere(message: m.Write) -> bool:
    """Whether a write records that this node works for another home's job."""
    return any(table == "job" and unpack_row(value).get("home") for table, _, value in message.puts)


# -- what depends on earlier messages --

_tables, _living, _functions, _beats, _looks, _pids = (Memory() for _ in range(6))


def _rows_of_the_dead_stay(machine: Any, source: Address, message: m.NodeTable) -> Arrivals:
    rows = _tables.of(machine)
    rows.update((row[0], row) for row in message.rows)
    return ((source, message._replace(rows=tuple(rows.values()))),)


def _functions_sent_once(machine: Any, effects: list[Any]) -> list[Any]:
    known, changed = _functions.of(machine), list(effects)
    for index, effect in enumerate(effects):
        if sends(effect, m.Delegate):
            new = tuple(row for row in effect.message.functions if known.setdefault(row[0], effect.to) == effect.to)
            changed[index] = Send(effect.to, effect.message._replace(functions=new))
    return changed


def _only_changed_heartbeats(machine: Any, effects: list[Any]) -> list[Any]:
    known, changed = _beats.of(machine), []
    for effect in effects:
        if sends(effect, m.Heartbeat):
            if known.get(effect.to) == effect.message:
                continue
            known[effect.to] = effect.message
        changed.append(effect)
    return changed


def _taken_over_at_once(machine: Any, source: Address, message: m.NodeTable) -> Arrivals:
    living, known = {row[0] for row in message.rows}, _living.of(machine)
    dead = [node for node in known if node not in living]
    known.clear()
    known.update(dict.fromkeys(living))
    reports = [(LOCAL_SCHEDULER + node, m.Holdings(each, (), (), (), True)) for each in dead for node in sorted(living)]
    return ((source, message), *reports)


def _pids_by_control(machine: Any, source: Address, message: m.Register) -> Arrivals:
    _pids.of(machine)[message.control] = message.pid
    return ((source, message),)


def _processes_killed(machine: Any, effects: list[Any]) -> list[Any]:
    pids = _pids.of(machine)
    return [
        e.KillProcess(pids[each.to[1:]], "an actor ends")
        if sends(each, m.RetireActor) and each.message.at_once and each.to[1:] in pids
        else each
        for each in effects
    ]


def _unpinned_at_once(machine: Any, effects: list[Any]) -> list[Any]:
    located = [effect.message for effect in effects if sends(effect, m.Located)]
    for object_id, process, *_ in (row for message in located for row in message.rows):
        machine.step(0.0, CLIENT + process, m.Unpin((object_id,)))
    return effects


def _missed_looks_made_up(right: Any) -> Any:
    """A registry that was held up looks at all leases as they were meanwhile, before it reads who has renewed them."""

    def step(self: Registry, now: float, source: Address, message: m.Message) -> None:
        at = _looks.of(self).setdefault("at", now)
        while (at := at + 0.1) < now:
            self.tick(at)
        _looks.of(self)["at"] = now
        right(self, now, source, message)

    return step


# -- methods and functions --


def _does_nothing(_: Any) -> Any:
    return lambda *arguments, **named: None


def _no_repeats(right: Any) -> Any:
    return lambda self, now: [frame for frame in right(self, now) if frame[0] == 0]


def _duplicates_delivered(right: Any) -> Any:
    def receive(self: Link, sequence: int, acknowledged: int, envelopes: Any, now: float) -> Any:
        ready = right(self, sequence, acknowledged, envelopes, now)
        return [envelopes] if not ready and 0 < sequence <= self.received else ready

    return receive


def _state_forgets_outcomes(right: Any) -> Any:
    def checkpoint(self: CallLog, state: bytes, refs: Any) -> None:
        retained, self.retained = self.retained, {}
        right(self, state, refs)
        self.retained = retained

    return checkpoint


def _goes_on_with_the_next_daemon(right: Any) -> Any:
    def confirm(self: NodeLink, frame: bytes, now: float) -> None:
        hello = read_hello(frame)
        if self.peer_daemon not in (NOBODY, hello.daemon):
            self.peer_daemon, self.peer_daemons = hello.daemon, hello.daemons
        right(self, frame, now)

    return confirm


def _retried_for_ever(right: Any) -> Any:
    def call(self: Calls, actor_id: bytes, row: Row, returns: int, retries: int, *more: Any, **named: Any) -> bytes:
        identifier: bytes = right(self, actor_id, row, returns, retries if retries == LOGGED else -1, *more, **named)
        return identifier

    return call


def _acknowledged_when_numbered(right: Any) -> Any:
    def number_for(self: PeerChannel, node: bytes) -> int:
        number: int = right(self, node)
        self.acknowledged(node, number)
        return number

    return number_for


def _sent_ahead_as_another_attempt(right: Any) -> Any:
    def submitted(self: LoneTasks, source: Address, message: m.Submit) -> Ahead | None:
        ahead: Ahead | None = right(self, source, message)
        if ahead is None:
            return None
        to, delegate = ahead.send
        return ahead._replace(send=Send(to, delegate._replace(attempt=delegate.attempt + 1)))  # type: ignore[attr-defined]

    return submitted


_SAME_ATTEMPT: Patch = (outcomes, "next_attempt", lambda right: lambda attempt, first: attempt)

OF_KINDS: tuple[tuple[Kind, dict[str, Patches]], ...] = (
    (
        ONE_NODE,
        {
            # After a restart of the daemon, the object store is not told what processes have pinned.
            "pins-not-reported-again": (lost(ObjectStore, m.Pinned),),
            # Releases overtake the outcomes of tasks whose values contain the released refs.
            "release-before-hold": (overtaking(m.Release),),
            # A write counts as committed as soon as it is requested.
            "answer-before-commit": (
                early(LocalScheduler, m.Write, lambda asked: m.Written(asked.token, True, "") if asked.token else None),
            ),
            # All tasks but the first of a worker count as returned as soon as they are requested back.
            "take-back-presumed": (early(LocalScheduler, m.TakeBack, lambda asked: m.TakenBack(asked.task_ids[1:], b"")),),
            # A worker receives its tasks twice.
            "dispatched-twice": (repeated(Worker, m.Dispatch),),
            # Of several values that arrive together, a process does not get the first.
            "fetchers-forgotten": (altered(Client, m.Objects, rows=lambda rows: rows[-1:]),),
            # The refs inside a put value are not counted: what they name is freed with its last holder.
            "freed-while-named": (altered(LocalScheduler, m.Put, rows=lambda rows: tuple((*row[:2], (), row[3]) for row in rows)),),
            # After a restart of the daemon, processes do not repeat which objects they hold.
            "holders-not-reported-again": (not_repeated(m.Hold),),
            # A worker also returns the task that it runs.
            "begun-given-back": (
                changed(LocalScheduler, m.TakenBack, lambda message: message._replace(task_ids=(*message.task_ids, message.running))),
            ),
            # A worker that blocks does not report the unbegun tasks that it returns.
            "queue-kept-while-waiting": (altered(LocalScheduler, m.Blocked, returned=nothing),),
            # Frames are sent once: a lost one stays lost.
            "frames-not-repeated": ((Link, "due", _no_repeats),),
            # A frame that arrives twice is delivered twice.
            "duplicates-delivered": ((Link, "receive", _duplicates_delivered),),
            # One of the tasks that a worker returns is lost on the way.
            "returned-tasks-lost": (altered(LocalScheduler, m.TakenBack, task_ids=lambda ids: ids[1:]),),
            # The scheduler is not told that a worker goes on, and does not take back the CPU that it lent.
            "lent-cpu-kept": (lost(LocalScheduler, m.Unblocked),),
            # A restarted scheduler waits for registrations, and not for what follows them.
            "recovery-too-early": hurried(LocalScheduler, m.Ready, behind=m.Register),
            # A task runs again under the number of the lost attempt. The number is chosen inside.
            "retry-without-new-attempt": (_SAME_ATTEMPT,),
            # A restarted scheduler begins with the same attempt numbers as the one before. The number is chosen inside.
            "attempts-come-again": ((local_scheduler, "first_attempt", lambda right: lambda daemons, node=0: right(0, node)),),
            # After a restart of the daemon, processes do not repeat the rows of their tasks.
            "rows-not-reported-again": (not_repeated(m.Submit),),
            # The place of an object is not pinned for the process to which it is sent.
            "located-without-pin": (leaving(ObjectStore, _unpinned_at_once),),
            # Rows of tasks that nobody needs stay in the control store.
            "lineage-never-dropped": (altered(ControlStore, m.Write, deletes=_except("task")),),
            # The scheduler is not told which tasks a driver has submitted to a worker directly.
            "direct-tasks-unreported": (lost(LocalScheduler, m.SubmittedDirect),),
            # What a driver is sent in the turn in which it may no longer submit to a worker directly is lost.
            "direct-tasks-not-reported-again": (
                lost_beside(LocalScheduler, m.Results, beside=m.DirectAllowed, which=lambda message: not message.functions),
            ),
            # A task that was given up keeps its attempt: the outcome that it reports later replaces the one that it was given.
            "late-end-counts": (_SAME_ATTEMPT,),
            # A task counts as ended once it is asked to stop: its resources are free while it still runs.
            "stopped-once-asked": (
                early(
                    LocalScheduler,
                    m.Interrupt,
                    lambda asked: m.Completed.of(((asked.task_id, asked.attempt, INTERRUPTED, (asked.reason.encode(),)),)),
                ),
            ),
            # After a restart of the daemon, a worker does not report the tasks that it was asked to stop.
            "stopped-forgotten": (altered(LocalScheduler, m.RunningTasks, rows=lambda rows: tuple(row for row in rows if not row[3])),),
        },
    ),
    (
        Kind(actors=True),
        {
            # An actor reports outcomes once, and does not repeat them to a daemon that has not received them.
            "reported-once": (not_repeated(m.CallOutcomes),),
            # The room of an object is given away, and its header stays as it was.
            "given-away-unvoided": (unsent(ObjectStore, e.WriteHeader, lambda effect: effect.state == e.FREED),),
            # After a restart of the daemon, callers do not repeat which results others expect of them.
            "expected-not-reported-again": (not_repeated(m.ExpectResults),),
            # An actor takes a caller for gone as soon as that has called it.
            "callers-taken-for-gone": (
                arriving(Worker, m.Call, lambda _, source, message: ((source, message), (source, m.CallerGone(source[1:])))),
            ),
            # Every life of an actor counts as ended before any pending call began.
            "all-not-run": (altered(Client, m.ActorLocations, rows=_executing(lambda row: row[0])),),
            # A later life of an actor receives its calls in the wrong order.
            "retried-backwards": (
                changed(Worker, m.Call, lambda message: message._replace(rows=message.rows[:: -1 if tries_of(message.attempt) else 1])),
            ),
            # Calls that may have run are repeated, whether or not that is permitted.
            "retried-for-ever": ((Calls, "call", _retried_for_ever),),
            # The last handle is released although calls have not run yet. Which calls are pending is known inside.
            "handles-go-first": ((Calls, "takes_over", lambda right: lambda self, handle, entry: False),),
            # A process's releases do not arrive: no actor has a last handle.
            "last-handle-unnoticed": (lost(LocalScheduler, m.Release),),
            # An actor receives its calls twice.
            "accepted-twice": (repeated(Worker, m.Call),),
            # Calls that arrive together are in the wrong order.
            "newest-call-first": (altered(Worker, m.Call, rows=lambda rows: rows[::-1]),),
            # A restarted scheduler waits for registrations, and not for what follows them.
            "actor-made-again-too-early": hurried(LocalScheduler, m.Ready, behind=m.Register),
            # An actor is killed with its process, even if others share it.
            "kill-ends-neighbours": (arriving(LocalScheduler, m.Register, _pids_by_control), leaving(LocalScheduler, _processes_killed)),
            # An actor that waits is called. Who waits is known inside.
            "called-while-it-waits": ((ActorQueues, "set_aside", _does_nothing),),
            # A request to stop a call is lost if it overtakes the call.
            "stops-do-not-overtake": lost_ahead(
                Worker, m.StopCall, lambda _, message: message.call_id, of=m.Call, named=lambda message: [row[0] for row in message.rows]
            ),
            # A call that a logged actor receives again is run again. Whether it has run is known inside.
            "logged-duplicates-run-again": ((CallLog, "answer", lambda right: lambda self, caller, call_id: None),),
            # Rows of an actor's log count as committed as soon as they are sent: outcomes leave before.
            "logged-results-before-commit": (early(Worker, m.LogAppended, lambda asked: m.LogCommitted(asked.actor_id, asked.number)),),
            # Rows of a log are deleted behind a checkpoint that is not written.
            "log-cut-without-checkpoint": (altered(ControlStore, m.Write, puts=_except(CHECKPOINT)),),
            # Checkpoints lack the outcomes that callers may not have received. What a checkpoint has is packed inside.
            "checkpoints-forget-outcomes": ((CallLog, "checkpoint", _state_forgets_outcomes),),
            # A caller that has received some outcomes counts as one that has received all.
            "outcomes-dropped-too-early": (altered(Worker, m.OutcomesReceived, call_ids=nothing, others=true),),
            # A checkpoint does not wait for calls that run. Which run is known inside.
            "checkpoint-while-calls-run": ((Gate, "began", _does_nothing),),
            # The scheduler is not told how many calls a dead process had ended.
            "lost-calls-not-counted": (altered(LocalScheduler, m.ProcessDied, ended=nothing),),
            # A call whose outcome its caller only requests is run, whether or not it may be repeated.
            "asked-for-runs-again": (altered(Worker, m.Call, rows=_without_option("ask")),),
            # Processes are never asked to collect garbage.
            "garbage-never-collected": (unsent(LocalScheduler, m.CollectGarbage),),
            # The log of a dead actor stays in the control store.
            "log-not-dropped": (altered(ControlStore, m.Write, deletes=_except(LOG, CHECKPOINT)),),
            # Rows of a dead process that a full disk has refused are written later. They wait inside.
            "rows-of-the-dead-written": ((ActorLogs, "process_gone", _does_nothing),),
            # Rows of a log are lost, and count as committed.
            "log-rows-lost": (altered(ControlStore, m.Write, puts=_except(LOG)),),
        },
    ),
    (
        Kind(circles=True),
        {
            # The scheduler is not told what calls wait for.
            "circles-unseen": (lost(LocalScheduler, m.WaitDetails), lost(LocalScheduler, m.HostDelays)),
            # A wait with a timeout counts as one without.
            "limits-ignored": (
                altered(LocalScheduler, m.WaitDetails, certain=true),
                altered(LocalScheduler, m.HostDelays, rows=lambda rows: tuple((*row[:-1], True) for row in rows)),
            ),
        },
    ),
    (
        Kind(nodes=3),
        {
            # A node passes on tasks that were delegated to it. Whose a task is, is known inside.
            "second-hop": ((when, "is_own_work", lambda right: lambda queue: queue.shape[2] == TASKS),),
            # What a dead node ran runs again under the same number. The number is chosen inside.
            "lost-attempts-come-again": (_SAME_ATTEMPT,),
            # Of the tasks that are delegated together, only the first arrives.
            "one-delegated-task-arrives": (altered(LocalScheduler, m.Delegate, rows=lambda rows: rows[:1]),),
            # The refs inside the arguments of a delegated task are not counted where it runs.
            "delegated-arguments-not-pinned": (altered(LocalScheduler, m.Delegate, rows=_without_option("contains")),),
            # Nodes are not told of deaths.
            "death-not-noticed": (arriving(LocalScheduler, m.NodeTable, _rows_of_the_dead_stay),),
            # Nodes are not told that others have taken over from a dead one: what it held stays.
            "holds-of-the-dead-stay": (lost(LocalScheduler, m.TookOver),),
            # The registry reports a death before the row is deleted.
            "death-without-durability": (early(Registry, m.Write, lambda asked: m.Written(asked.token, True, "")),),
            # A lease counts as renewed as soon as that is requested.
            "lives-on-without-lease": (early(Member, m.RenewLease, lambda asked: m.LeaseRenewed(asked.number)),),
            # A node that registers before the table with it arrives is not remembered.
            "early-registration-lost": lost_ahead(
                LocalScheduler,
                m.RegisterNode,
                lambda source, _: source[1:],
                of=m.NodeTable,
                named=lambda message: [row[0] for row in message.rows],
            ),
            # A function that one node has received is not sent to others.
            "functions-sent-to-one-node": (leaving(LocalScheduler, _functions_sent_once),),
            # The home of a job is not told that nothing of it is left elsewhere.
            "job-end-unconfirmed": (lost(LocalScheduler, m.JobGone),),
            # A new transfer agent is not asked for what the one before had not copied.
            "copies-of-a-dead-agent-lost": (lost_beside(LocalScheduler, m.Pull, beside=m.NodeTable),),
            # Values that a node retains for a home are not released.
            "copied-values-not-released": (altered(LocalScheduler, m.UpdateLedger, ended=_except_kind(m.HOLD)),),
            # The link to a restarted daemon goes on with the numbers of the one before; that daemon begins with 1.
            "link-begun-anew-on-one-side": ((NodeLink, "confirm", _goes_on_with_the_next_daemon),),
            # Ends of attempts count as received as soon as they are sent.
            "ends-forgotten-when-sent": (early(LocalScheduler, m.Ended, lambda asked: m.EndsReceived(asked.number)),),
            # A restarted scheduler waits for the registrations of other nodes, and not for what follows them.
            "recovered-without-peers": (followed(LocalScheduler, m.RegisterNode, lambda message: m.Ready()),),
            # The home of a job takes over from a dead node as if all others had reported that they have nothing of it.
            "failover-on-half-a-picture": (arriving(LocalScheduler, m.NodeTable, _taken_over_at_once),),
            # The home of a task gets the place of a large value in the arena of the node that made it.
            "places-sent-abroad": (altered(LocalScheduler, m.Ended, completed=_with_places),),
            # Numbers of attempts do not name the node that gives them out. The number is chosen inside.
            "attempts-without-node": ((peers, "first_attempt", lambda right: lambda daemons, node=0: right(daemons)),),
            # A registry that was held up counts that time as theirs who could not renew their leases meanwhile.
            "stalled-registry-kills": ((Registry, "step", _missed_looks_made_up),),
            # The home of a job keeps rows that are withdrawn.
            "rows-not-withdrawn": (altered(LocalScheduler, m.UpdateLedger, ended=_except_kind(m.ENTRUSTED)),),
            # Ends of attempts are never acknowledged: what they name stays pinned.
            "ends-not-acknowledged": (lost(LocalScheduler, m.EndsReceived),),
        },
    ),
    (
        Kind(nodes=3, restarts=True),
        {
            # After a restart, nodes do not report the values that they retain for others.
            "places-not-repeated": (lost(LocalScheduler, m.Holdings, lambda message: not message.node and bool(message.objects)),),
            # After a restart of the daemon, workers do not report what they run.
            "running-tasks-not-repeated": (not_repeated(m.RunningTasks),),
            # A process releases a ref that it has passed on at once. When a ref is passed on is known inside.
            "passed-refs-dropped-at-once": ((PassedReferences, "add", _does_nothing),),
            # That a node works for another home's job is written when there is time.
            "jobs-elsewhere-written-late": (
                changed(ControlStore, m.Write, lambda message: message._replace(token=0) if _is_job_elsewhere(message) else message),
            ),
        },
    ),
    (
        Kind(nodes=3, actors=True),
        {
            # A node that was declared dead goes on renewing its lease: time alone was to end it.
            "fence-by-time-only": (lost(Member, m.Expelled), early(Member, m.RenewLease, lambda asked: m.LeaseRenewed(asked.number))),
            # Rows of a guest's log are lost on the way to its home, and count as committed: outcomes leave.
            "guests-results-before-commit": (
                early(LocalScheduler, m.RelayedBlock, lambda asked: m.LogRecorded(asked.actor_id, asked.attempt, asked.number)),
                lost(LocalScheduler, m.RelayedBlock),
            ),
            # In the log of an actor elsewhere, a caller has the name that it has to the actor's process. The log is packed inside.
            "callers-not-translated": ((call_log, "node_of_caller", lambda right: lambda caller: b"elsewhere"),),
        },
    ),
    (
        Kind(nodes=3, groups=True),
        {
            # Bundles count as prepared as soon as that is requested.
            "committed-too-early": (
                early(LocalScheduler, m.PrepareBundles, lambda asked: m.BundlesPrepared(asked.group, asked.reservation, True)),
            ),
            # Nodes are not told that a group is whole.
            "bundles-not-committed": (lost(LocalScheduler, m.CommitBundles),),
            # Bundles that nobody needs stay reserved.
            "groups-outlive-their-job": (lost(LocalScheduler, m.FreeBundles),),
        },
    ),
    (
        Kind(nodes=3, actors=True, groups=True),
        {
            # What is to run in a placement group runs outside.
            "actors-outside-of-bundles": (altered(LocalScheduler, m.Submit, rows=_without_option("strategy")),),
        },
    ),
    (
        Kind(nodes=3, streams=True),
        {
            # Workers are not told that consumers elsewhere have requested more values of a stream.
            "permission-not-passed-on": (lost(LocalScheduler, m.AllowYields),),
            # The last of the yielded values that arrive together is lost.
            "yielded-values-lost": (altered(LocalScheduler, m.RelayedYields, rows=lambda rows: rows[:-1]),),
        },
    ),
    (
        Kind(nodes=3, actors=True, drains=True),
        {
            # Callers are not told that a drained actor has begun none of their pending calls.
            "calls-of-the-drained-unclear": (
                altered(Client, m.ActorLocations, rows=_executing(lambda row: b"" if row[5] == row[0] else row[5])),
            ),
        },
    ),
    (
        Kind(nodes=3, bare=True),
        {
            # For the global scheduler no time passes: what it has placed somewhere counts there for ever.
            "placed-for-ever": ((GlobalScheduler, "take_effects", lambda right: lambda self, now: right(self, 0.0)),),
            # Nodes without news send a restarted global scheduler no heartbeat.
            "heartbeats-not-repeated": (leaving(LocalScheduler, _only_changed_heartbeats),),
        },
    ),
    (
        Kind(nodes=3, elastic=True),
        {
            # Tasks count as returned as soon as they are given to another node, and are given away again.
            "moved-for-ever": (early(LocalScheduler, m.Delegate, lambda given: m.Reclaimed(tuple(row[0] for row in given.rows), "")),),
            # Tasks count as returned as soon as that is requested: they run there, too.
            "returned-once-asked": (early(LocalScheduler, m.Reclaim, lambda asked: m.Reclaimed(asked.task_ids, "")),),
            # Nodes are not told that others would begin their tasks sooner.
            "never-moved": (lost(LocalScheduler, m.Reclaim),),
            # A drained node leaves as soon as it has asked others to copy its values, and whether they have received everything.
            "leaves-unconfirmed": (early(LocalScheduler, m.UpdateLedger, _confirmed_at_once),),
        },
    ),
    (
        Kind(nodes=3, durable=True),
        {
            # The home of a job that takes over gets no durable values from the head.
            "durable-values-not-read-again": (
                changed(ControlStore, m.Read, lambda message: message._replace(keys=()) if message.table == "object" else message),
            ),
        },
    ),
    (
        Kind(nodes=3, elsewhere=True),
        {
            # What is sent ahead of a turn is not what the turn decides. The two are compared inside.
            "sent-ahead-as-another-attempt": ((LoneTasks, "submitted", _sent_ahead_as_another_attempt),),
        },
    ),
    (
        Kind(nodes=3, detached=True),
        {
            # That an actor is detached does not arrive: it ends with its creator.
            "detached-end-with-their-creators": (altered(LocalScheduler, m.Submit, rows=_without_option("detached")),),
            # The home of a job is not told that detached actors of it live elsewhere.
            "detached-not-awaited": (altered(LocalScheduler, m.UpdateLedger, added=_except_kind(m.LIVING)),),
        },
    ),
)
"""Variants by the kind of worlds that find them."""
VARIANTS = {name: patches for _, variants in OF_KINDS for name, patches in variants.items()}

SAYS = {
    "given-away-unvoided": "which belongs to others",
}
"""Part of the failure that shows these, if no other invariant is sure to."""

_ENTRUSTED = early(LocalScheduler, m.Entrust, lambda asked: m.LedgerUpdated(asked.number))
_HELD = early(LocalScheduler, m.UpdateLedger, lambda asked: m.LedgerUpdated(asked.number) if asked.number else None)
_ACKNOWLEDGED: Patch = (PeerChannel, "number_for", _acknowledged_when_numbered)

SCRIPTED: dict[str, Patches] = {
    # A node is heard after its death, since nobody is told of it.
    "no-fence": (arriving(LocalScheduler, m.NodeTable, _rows_of_the_dead_stay),),
    # Messages between nodes do not name the homes of the objects that they name: the receiver takes the sender for it.
    "ids-without-home": tuple(altered(LocalScheduler, kind, homes=nothing) for kind in (m.Delegate, m.Ended, m.FetchedValues)),
    # The home of a job confirms rows that it has not received.
    "rows-not-entrusted": (_ENTRUSTED, lost(LocalScheduler, m.Entrust)),
    # Nodes are registered as holders before the home of the job has the rows, which are needed if this node dies.
    "acknowledged-before-entrusted": (_ENTRUSTED, _ACKNOWLEDGED),
    # The home of a job that takes over is not told which values other nodes have.
    "values-that-exist-made-again": (altered(LocalScheduler, m.Holdings, objects=nothing),),
    # The home of a job that takes over is not told which tasks other nodes run.
    "attempts-that-run-begin-again": (altered(LocalScheduler, m.Holdings, attempts=nothing),),
    # What may end a hold leaves before the holds of this node are registered.
    "lender-lets-go-first": (_HELD, _ACKNOWLEDGED),
    # What waits for messages to a former daemon does not wait for what is sent to the next one again: the barrier has closed.
    "wait-ends-with-daemon": ((PeerChannel, "has_closed", lambda right: lambda self, barrier: True),),
    # Outcomes of calls are over once the node of their caller has them, which may lose them with its daemon.
    "outcomes-lost-on-the-way": ((PeerOutbox, "acknowledged", lambda right: lambda self, number, lacking=(): right(self, number)),),
    # Requests are not repeated to a new daemon.
    "requests-not-repeated": ((PendingRequests, "repeat", _does_nothing),),
    # Holds are released before they are registered.
    "release-overtakes-hold": (_HELD,),
    # Entries that a node's next daemon has not repeated go on. Which are missing is known inside.
    "missing-entries-stay": ((PeerEntries, "node_ready", _does_nothing),),
    # A node that takes over does not wait for the others to do so.
    "death-overtakes-hold": (early(LocalScheduler, m.TookOver, lambda told: told),),
    # Children of a dead attempt run on. Which attempts are void is known inside.
    "void-children-run-on": ((Stopping, "stop_void", _does_nothing),),
    # Outcomes of relayed calls count as received as soon as they are sent.
    "relayed-outcomes-released-early": (early(LocalScheduler, m.CallsEnded, lambda asked: m.EndsReceived(asked.number)),),
    # What the arguments of relayed calls name is not retained at the actor's node.
    "relayed-arguments-not-pinned": (altered(LocalScheduler, m.RelayedCalls, rows=_without_option("contains")),),
}
"""Variants that need an order of events which chance rarely meets: tests of these events fail (``tests/machines``, ``tests/cluster``)."""


def shows(name: str, failure: str) -> bool:
    """Whether a failure shows a variant's mistake. An exception that the variant raises does not: it fits the machine no longer."""
    return bool(failure) and SAYS.get(name, "") in failure and "(variants.py:" not in failure and "(seams.py:" not in failure


def kind_of(name: str | None) -> Kind:
    """The kind of worlds that find a variant; one node without a variant."""
    return next((kind for kind, variants in OF_KINDS if name in variants), ONE_NODE)


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Break machines with the variant ``name`` within the context. None leaves them as they are."""
    patches = {**VARIANTS, **SCRIPTED}[name] if name is not None else ()
    right: list[tuple[Any, str, Any]] = []
    try:
        for owner, method, make in patches:
            right.append((owner, method, getattr(owner, method)))
            setattr(owner, method, make(getattr(owner, method)))
        yield
    finally:
        for owner, method, function in reversed(right):
            setattr(owner, method, function)


__all__ = ["SCRIPTED", "VARIANTS", "applied", "kind_of", "shows"]
