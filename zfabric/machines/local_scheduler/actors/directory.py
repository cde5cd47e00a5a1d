"""Actors of a home: created, located by their callers, restarted, ended (decision 0011).

An actor *is* the task that makes it, and a handle a ref to that task's value. When the last handle is dropped, the actor ends after the
calls already made; the fabric itself holds a detached actor. If the task was delegated, the actor's worker is the record of that node; this
node still decides on its end and its restarts (decision 0034). Calls do not pass through here, except results that concern other processes
(``call_results``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.local_scheduler.actor_records import ActorRecord, worker_of
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.channel import TurnOutbox
from zfabric.machines.local_scheduler.due import RETIRING
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import DONE, JobRecord, NodeRecord, TaskRecord, WorkerRecord
from zfabric.machines.local_scheduler.references import References, named_by
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.machines.local_scheduler.transitions import (
    ActorLifeEnded,
    ActorNameFreed,
    ActorReturned,
    ActorTaskEnded,
    ActorUnreferenced,
    ActorUnwanted,
    CallerExited,
    CallerNotified,
    DetachedActorsChanged,
    GuestDied,
)
from zfabric.protocol import messages as m
from zfabric.protocol.effects import KillProcess
from zfabric.protocol.failures import Facts, pack_failure, unpack_failure
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES, Address, short, tries_of
from zfabric.protocol.messages import ALIVE, CREATING, DEAD, ERROR, FAILED, OK, RETIRED
from zfabric.protocol.names import brief, size

RETIRE_SECONDS = 30.0
"""Seconds in which an actor must end without handles, or after ``exit_actor``."""
LAST_HANDLE = "its last handle has gone"
NODE_DRAINED = "its node was drained"
EXITED = "it ended itself (exit_actor)"
DETACHED = b"detached"
"""The holder of detached actors: no process has this incarnation."""
STATE_NAMES = {CREATING: "creating", ALIVE: "alive", DEAD: "dead"}

_CRASHES = frozenset({"WorkerCrashedError", "PoisonedTaskError", "OutOfMemoryError"})
"""Failures by dead workers: callers receive ``ActorDiedError``."""


class ActorDirectory:
    """All actors of this home."""

    def __init__(
        self,
        tables: Tables,
        blocks: BlockWriter,
        requests: PendingRequests,
        references: References,
        outcomes: Outcomes,
        rebuilding: Rebuilding,
        workers: WorkerPool,
        dispatcher: Dispatcher,
        streams: Streams,
        logs: ActorLogs,
    ) -> None:
        self.tables = tables
        self.blocks = blocks
        self.requests = requests
        self.references = references
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.workers = workers
        self.dispatcher = dispatcher
        self.streams = streams
        self.logs = logs
        self.records = self.tables.actors
        self.behind_ends: TurnOutbox[tuple[bytes, m.Message]] = TurnOutbox()
        """(node, message) to send behind the outcomes of this turn."""
        self.named: dict[tuple[str, str], ActorRecord] = {}
        self.retiring: dict[ActorRecord, None] = {}
        self._not_durable: set[bytes] = set()
        """Detached actors whose rows are not committed."""
        self._durable_first: set[bytes] = set()
        """Of these, actors that are made only after the commit."""
        self.to_write: list[bytes] = []
        """Detached actors whose rows are due."""

    # -- actors are made --

    def submitted(self, task: TaskRecord, job: JobRecord) -> bool:
        """Record a submitted actor. False if it is refused, which is its outcome."""
        record = self._enter(task, job)
        if record.name:
            holder = self.named.get((record.namespace, record.name))
            if holder is not None and holder.id != record.id:  # After a restart of the daemon, the holder may be the actor itself.
                self.refuse_name(task)
                return False
            self.named[record.namespace, record.name] = record
        if record.detached:
            self._not_durable.add(record.id)
            self.to_write.append(record.id)
            self.tables.report(DetachedActorsChanged(job))
        if record.shared:
            return True
        hosting = sum(1 for each in self.records.values() if each.state != DEAD and not each.shared and not _is_elsewhere(each))
        if hosting > self.tables.config.actors_max:
            text = (
                f"this node has {hosting - 1} actors, each a process of its own, which is its limit (the setting actors_max); "
                "lightweight=True makes actors that share processes"
            )
            self._refuse(task, "ActorLimitExceededError", text)
            return False
        return True

    def refuse_name(self, task: TaskRecord) -> None:
        """Refuse an actor: its name is taken."""
        record = self.records[task.id]
        where = f" in namespace {record.namespace!r}" if record.namespace else ""
        text = f"an actor is called {record.name!r}{where} already; get_if_exists=True takes that one"
        self._refuse(task, "ActorNameTakenError", text)

    def _refuse(self, task: TaskRecord, kind: str, text: str) -> None:
        """Refuse an actor. It is dead at once: rows behind it must find its name free."""
        failure = pack_failure(kind, text)
        self.outcomes.end_with(task, FAILED, failure)
        self.on_task_ended(ActorTaskEnded(task, None, FAILED, failure))

    def _enter(self, task: TaskRecord, job: JobRecord) -> ActorRecord:
        namespace = task.option("namespace") or job.namespace
        before = self.records.get(task.id)
        record = self.records[task.id] = ActorRecord(task, namespace)
        if before is not None:
            record.arguments = before.arguments
        task.facts()  # Extra fields keep it from the short way of release: its last handle ends an actor.
        if record.detached:
            task.add_holder(DETACHED)
        self._retain_arguments(record)
        return record

    def _retain_arguments(self, record: ActorRecord) -> None:
        """Retain arguments for restarts: ``put`` values have no row."""
        if record.task.option("max_restarts", 0) and record.state != DEAD:
            missing = [each for each in dict.fromkeys(named_by(record.task)) if each not in record.arguments and self.tables.find(each)]
            record.arguments.update(missing)
            self.references.pin(missing)

    def retain_arguments(self) -> None:
        """Retain all after this daemon's restart, once all objects have records."""
        for record in self.records.values():
            self._retain_arguments(record)

    def on_task_ended(self, ended: ActorTaskEnded) -> None:
        """Accept that an actor lives, or never will."""
        task, worker, status, payload = ended
        record = self.records.get(task.id)
        if record is None or record.state != CREATING:
            return
        lives_on, record.returning = record.returning, False
        if status == OK:
            task.facts().made()
            self._set_worker(record, worker)
            if lives_on:
                self.logs.lives_on(record.id)
            else:
                self.logs.restarted(record)
            if record.id not in self._not_durable:
                self._set_alive(record)
            return
        if status == ERROR:
            text = f"the actor's __init__ raised, so there is no {record.class_name}"
            self._died(record, pack_failure("ActorDiedError", text, (("cause", payload),)))
        else:
            self._died(record, _as_death(payload))
        if worker is not None and worker.remote:
            self._stop_elsewhere(worker, record)
        elif worker is not None and worker.shared:
            self._vacate(worker, record)
        elif worker is not None:
            worker.actors.pop(record.id, None)
            if not worker.gpus:
                self.dispatcher.release(worker)
            self.workers.end_once_unneeded(worker, "its actor could not be made")

    def end_of_turn(self) -> None:
        """Write rows of new detached actors."""
        if self.to_write:
            actors, self.to_write = tuple(self.to_write), []
            puts, deletes = self.blocks.flush(rows_max=1 << 30)
            self.requests.ask(m.Write, tuple(puts), tuple(deletes), then=self._written, about=actors)

    def is_durable(self, actor_id: bytes) -> bool:
        """Whether a detached actor's row is written."""
        return actor_id not in self._not_durable

    def await_durable(self, actor_id: bytes) -> bool:
        """Have a detached actor wait for its row. Return whether it must."""
        if actor_id in self._not_durable:
            self._durable_first.add(actor_id)
        return actor_id in self._durable_first

    def _written(self, now: float, actor_ids: tuple[bytes, ...], answer: m.Written) -> None:
        """Let actors live whose rows are written, or could not be (a full disk)."""
        self._not_durable.difference_update(actor_ids)
        awaited = self._durable_first.intersection(actor_ids)
        self._durable_first -= awaited
        for record in filter(None, map(self.records.get, actor_ids)):
            if record.id in awaited:
                self.outcomes.resolved(record.task)
            if record.state == CREATING and record.worker is not None:
                self._set_alive(record)

    def _set_worker(self, record: ActorRecord, worker: WorkerRecord | None) -> None:
        record.worker = worker
        if worker is not None:
            worker.actors[record.id] = None

    def _set_alive(self, record: ActorRecord) -> None:
        record.state, record.failure = ALIVE, b""
        if record.killed:
            self._end(record, record.killed)  # It is dead once its process is.
            return
        self._notify(record, record.watchers)
        if record.unreferenced:
            self.retire(record, LAST_HANDLE)

    def on_unwanted(self, unwanted: ActorUnwanted) -> None:
        """End an actor of a void attempt: nobody would call it."""
        worker, actor_id, attempt = unwanted
        record = self.records.get(actor_id)
        if record is None or record.worker is not worker or record.task.attempt != attempt:
            if worker.remote:
                self.tables.send_to_node(worker.token, m.StopDelegated(actor_id, attempt, "force", False))
            else:
                self.tables.send_to_control(worker, m.RetireActor(actor_id, attempt, True))

    def _died(self, record: ActorRecord, failure: bytes) -> None:
        if self.tables.nodes:
            self.tables.report(ActorLifeEnded(record.id))
        record.state = DEAD
        record.returning = False
        record.failure = failure
        if record.worker is not None and record.worker.remote:
            record.worker.actors.pop(record.id, None)
        record.worker = None
        self.retiring.pop(record, None)
        if self.named.get((record.namespace, record.name)) is record:
            del self.named[record.namespace, record.name]
            self.tables.report(ActorNameFreed(record.id, record.namespace, record.name))
        self._notify(record, record.watchers)
        if record.task.block is not None:  # A restarted daemon must not make it again.
            self.blocks.withdraw(record.id, record.task.block)
            record.task.block = None
        self.references.unpin(record.arguments)
        record.arguments = set()
        if record.detached:
            self.references.release((record.task.object_id,), DETACHED)
            self.tables.report(DetachedActorsChanged(record.task.function.queue.job))
        self.logs.drop(record.id)
        if record.unreferenced:
            self.records.pop(record.id, None)

    # -- locations --

    def on_find_actors(self, now: float, source: Address, message: m.FindActors) -> None:
        """Notify a process of locations, now and on every change."""
        process = self.tables.processes.get(source[1:])
        if process is None:
            return
        for actor_id in message.actor_ids:
            record = self.records.get(actor_id)
            if record is None:
                text = f"actor {short(actor_id)} is not known here (any more): its last handle or its job has gone, "
                text += "or its home, the node where it was made, was drained or has died"
                row = (actor_id, DEAD, b"", 0, True, b"", pack_failure("ActorDiedError", text))
                if process.incarnation in self.tables.nodes:
                    self.behind_ends.append((process.incarnation, m.ActorLocations((row,))))
                else:
                    self.tables.send_to_client(process, m.ActorLocations((row,)))
            else:
                record.watchers.add(process.incarnation)
                self._notify(record, (process.incarnation,))

    def _notify(self, record: ActorRecord, incarnations: Any) -> None:
        if record.returning:
            return
        worker = record.worker if record.state == ALIVE else None
        process = worker.process if worker is not None else None
        where = process.incarnation if process is not None else b""
        node = worker.token if worker is not None and worker.remote else self.outcomes.node if where else b""
        row = (record.id, record.state, where, record.task.attempt, record.lives_on, record.executing, record.failure)
        message = m.ActorLocations((row,))
        if worker is not None and worker.remote:  # This daemon stands for the actor (``nodes.remote_actors``).
            message = m.ActorLocations(((*row[:2], self.tables.address[1:], record.task.attempt, True, *row[5:]),))
        for incarnation in sorted(incarnations):
            watcher = self.tables.processes.get(incarnation)
            if watcher is not None and incarnation in self.tables.nodes:
                self.behind_ends.append((incarnation, m.ActorLocations(((*row[:2], node, *row[3:]),))))
            elif watcher is not None and watcher.kind != "node":  # Else it has just died.
                if worker is not None and worker.remote:
                    self.tables.report(CallerNotified(record.id))
                self.tables.send_to_client(watcher, message)

    def process_gone(self, incarnation: bytes) -> None:
        """Notify actors of a caller's exit, and fail what it had promised."""
        if self.tables.nodes:
            self.tables.report(CallerExited(incarnation))
        # The caller may have called actors of a shared process that have no record.
        called: dict[bytes, WorkerRecord] = {token: worker for token, worker in self.tables.workers.items() if worker.shared}
        for record in self.records.values():
            if incarnation in record.watchers:
                record.watchers.discard(incarnation)
                if record.worker is not None:
                    called[record.worker.token] = record.worker
        for worker in called.values():
            if worker.remote:
                self.tables.send_to_node(worker.token, m.CallerGone(incarnation))
            else:
                self.tables.send_to_control(worker, m.CallerGone(incarnation))
        for identifier in self.tables.promises.by(incarnation):
            self.tables.promises.settle(identifier)
            found = self.tables.find(identifier)
            if found is not None and found.status == PENDING:
                text = f"the process that called for {short(identifier)} ended before it had the result"
                failure = pack_failure("ObjectLostError", text)
                self.streams.call_ended(identifier[:TASK_BYTES], FAILED, failure)
                self.outcomes.settle_value(found, FAILED, failure)

    # -- ends --

    def on_unreferenced(self, unreferenced: ActorUnreferenced) -> None:
        """Retire an actor after its last handle."""
        task = unreferenced.task
        record = self.records.get(task.id)
        if record is None:
            return
        record.unreferenced = True
        if record.state == DEAD:
            del self.records[task.id]
        elif record.state == ALIVE:
            self.retire(record, LAST_HANDLE)

    def retire(self, record: ActorRecord, reason: str, patient: bool = False) -> None:
        """End an actor cleanly after its calls. Unless ``patient``, kill it after ``RETIRE_SECONDS``."""
        record.killed = reason
        if record.worker is not None and record.worker.remote:
            self._stop_elsewhere(record.worker, record, RETIRED)
        elif record.worker is not None:
            self.tables.send_to_control(record.worker, m.RetireActor(record.id, record.task.attempt, False))
        if not patient:
            self._end_in_time(record)

    def drain(self) -> None:
        """Retire this node's actors."""
        for record in self.records.values():
            if record.state == ALIVE and not record.killed:
                self.retire(record, NODE_DRAINED, patient=True)

    def on_kill_actor(self, now: float, source: Address, message: m.KillActor) -> None:
        """Handle ``zf.kill``."""
        record = self.records.get(message.actor_id)
        if record is not None:
            self.kill(record, message.no_restart, "zf.kill")

    def kill(self, record: ActorRecord, no_restart: bool, by: str) -> None:
        """End a life, and with ``no_restart`` the actor. ``by`` is what the user called."""
        if record.state == DEAD:
            return
        if no_restart:
            record.killed = f"it was killed ({by})"
        if record.worker is not None:
            self._end(record, by)
        elif record.killed:
            maker = record.task.worker
            if maker is not None and maker.shared:
                self.tables.send_to_control(maker, m.RetireActor(record.id, record.task.attempt, True))
            self.outcomes.fail(record.task, "ActorDiedError", f"the actor is dead: {record.killed}", ())

    def on_actor_exiting(self, now: float, source: Address, message: m.ActorExiting) -> None:
        """Handle ``exit_actor``."""
        record = self.records.get(message.actor_id)
        if record is not None:
            record.killed = EXITED
            self._end_in_time(record)  # Its process exits by itself, unless a method for a clean end does not return.

    def on_actor_ended(self, now: float, source: Address, message: m.ActorEnded) -> None:
        """Accept the end of an actor in a shared process."""
        process = self.tables.processes.get(source[1:])
        worker = self.tables.workers.get(process.name) if process is not None else None
        record = self.records.get(message.actor_id)
        if worker is None:
            return
        if record is None or record.worker is not worker or record.task.attempt != message.attempt:
            return
        record.executing = message.executing
        record.lives_on = True
        worker.last_progress = now
        self._vacate(worker, record)
        if record.state != DEAD:
            facts: Facts = (("pid", worker.pid),) if message.executing else ()
            self._lost(record, message.reason or "it was killed (zf.kill)", "", facts)

    def _vacate(self, worker: WorkerRecord, record: ActorRecord) -> None:
        worker.actors.pop(record.id, None)
        worker.delays.pop(record.id, None)
        record.worker = None

    def _end(self, record: ActorRecord, reason: str) -> None:
        """End a life: kill the process, or only the actor if it is shared."""
        worker = record.worker
        if worker is not None and worker.remote:
            self._stop_elsewhere(worker, record)
        elif worker is not None and worker.shared:
            self.tables.send_to_control(worker, m.RetireActor(record.id, record.task.attempt, True))
        else:
            self._kill_process(worker, reason)

    def _stop_elsewhere(self, node: WorkerRecord, record: ActorRecord, reason: str = "force") -> None:
        request = m.StopDelegated(record.id, record.task.attempt, reason, False)
        if record.ending is None or reason != RETIRED:
            record.ending = request
        self.tables.send_to_node(node.token, request)

    def _kill_process(self, worker: WorkerRecord | None, reason: str) -> None:
        if worker is not None and worker.pid:
            worker.kill_reason = worker.kill_reason or reason
            self.tables.emit(KillProcess(worker.pid, reason))

    def worker_lost(self, worker: WorkerRecord, died: m.ProcessDied) -> None:
        """Restart the actors of a dead process, or let them die."""
        for actor_id in worker.actors:
            record = self.records.get(actor_id)
            if actor_id in self.tables.guests:
                self.tables.report(GuestDied(actor_id, worker, died))
            elif record is not None and record.state != DEAD:
                self._lost_with(record, worker, died)
        for process in self.tables.processes.values() if worker.shared and worker.job is not None else ():
            if process.job is worker.job:  # Their links to the process have outlasted the actors.
                self.tables.send_to_client(process, m.CallerGone(worker.token))

    def _lost_with(self, record: ActorRecord, worker: WorkerRecord, died: m.ProcessDied) -> None:
        record.executing = died.executing if died.executing != record.id else b""
        record.worker = None
        record.lives_on = False
        self.logs.process_gone(record.id)
        if record.state == CREATING and record.task.state != DONE:
            return  # Its task has failed or runs again, as after any worker's death.
        self._lost(record, *how_it_died(worker, died))

    def on_life_ended(self, now: float, source: Address, message: m.LifeEnded) -> None:
        """Accept the death of an actor's process elsewhere."""
        record = self.records.get(message.actor_id)
        if record is None or record.worker is None or record.worker.token != source[1:] or record.task.attempt != message.attempt:
            return
        pid, signal, exit_code, peak = message.facts
        facts = (("pid", pid), ("signal", signal), ("exit_code", exit_code), ("peak", peak), ("node", source[1:].hex()))
        record.killed = record.killed or message.ending
        if message.calls >= 0:
            self.logs.record_ended(((record.id, message.calls),))
        # After a restart either daemon may not know that the other node is drained; then the actor's report counts.
        drained = self.tables.nodes[source[1:]].draining or message.executing == message.actor_id
        self._lost_elsewhere(record, message.executing, message.cause, message.stderr, facts, drained)

    def node_lost(self, node: NodeRecord, actor_ids: Iterable[bytes], cause: str) -> None:
        """Restart a dead node's actors, or let them die."""
        for actor_id in list(actor_ids):
            record = self.records.get(actor_id)
            if record is not None and record.worker is node:
                self._lost_elsewhere(record, b"", cause, "", (("node", node.token.hex()),), node.draining)

    def returning_lost(self, node: NodeRecord, tasks: Iterable[TaskRecord], cause: str) -> None:
        """Take for dead the actors that another node was to report: they may have lived there."""
        for task in tasks:
            record = self.records.get(task.id)
            if record is not None and record.returning and node.inflight.pop(task.id, None) is not None:
                task.finish()
                task.arrive(b"actor", self.tables.inline)
                self.references.unpin(named_by(task))
                record.returning = False
                self._lost_elsewhere(record, b"", cause, "", (("node", node.token.hex()),), node.draining)

    def _lost_elsewhere(self, record: ActorRecord, executing: bytes, cause: str, stderr: str, facts: Facts, drained: bool = False) -> None:
        if record.worker is not None:
            record.worker.actors.pop(record.id, None)
        record.worker = None
        record.ending = None
        self.logs.process_gone(record.id)
        record.executing = executing
        record.lives_on = True  # Callers have their link to this daemon.
        self._lost(record, cause, stderr, facts, drained)

    def _lost(self, record: ActorRecord, cause: str, stderr: str, facts: Facts, drained: bool = False) -> None:
        """Restart an actor without a process if a restart is left; else it is dead. A drained node costs no restart."""
        cause = record.killed or cause
        if drained or cause == NODE_DRAINED:
            facts = (*facts, ("preempted", True))
        limit: int = record.task.option("max_restarts", 0)
        is_left = limit < 0 or record.restarts < limit or (drained and limit > 0)
        why = record.killed or ("" if is_left else "no restart is left" if limit else "it has no restarts")
        if not why:
            if self.tables.nodes:
                self.tables.report(ActorLifeEnded(record.id))
            record.task.facts().retries += not drained
            record.lived_before = True
            record.state = CREATING
            record.failure = pack_failure("ActorUnavailableError", cause, facts)
            self._notify(record, record.watchers)
            why = self._make_again(record)
            if not why:
                again = "which is no restart" if drained else f"restart {record.restarts}" + (f" of {limit}" if limit >= 0 else "")
                named = f"{record.class_name} {record.name!r}" if record.name else record.class_name
                self.tables.notify_again(
                    record.task.function.queue.job, f"actor {named} ({brief(record.id)}) is made again, {again}: {cause}"
                )
        if why:
            text = f"actor {record.class_name} is dead: {cause}" + (f" ({why})" if why != record.killed else "")
            if stderr and not record.killed:
                text += "\nlast lines of its stderr:\n" + stderr
            self._died(record, pack_failure("ActorDiedError", text, (*facts, ("restarts", record.restarts))))

    def _make_again(self, record: ActorRecord) -> str:
        task = record.task
        self.references.clear(task)
        return self.rebuilding.rebuild(task, "its actor is to be restarted")

    def of(self, job: JobRecord) -> list[ActorRecord]:
        """Actors of a job."""
        return [record for record in self.records.values() if record.id[:JOB_BYTES] == job.id]

    def end_unheld(self, job: JobRecord, reason: str) -> None:
        """End a job's actors without handles."""
        for record in self.of(job):
            if not record.detached and record.task.holders is None and record.task.pins <= 0 and record.state != DEAD:
                record.killed = reason
                self._end(record, reason)

    def job_ended(self, job: JobRecord) -> None:
        """Remove a job's actors, and notify callers of other jobs."""
        for record in self.of(job):
            if record.state != DEAD:
                text = f"actor {record.class_name} is dead: {record.killed or 'its job has ended'}"
                record.state, record.returning, record.failure = DEAD, False, pack_failure("ActorDiedError", text)
                self._notify(record, self._of_others(record.watchers, job))
            if record.worker is not None and record.worker.remote:
                record.worker.actors.pop(record.id, None)
            del self.records[record.id]
            self.retiring.pop(record, None)
            if self.named.get((record.namespace, record.name)) is record:
                del self.named[record.namespace, record.name]
                self.tables.report(ActorNameFreed(record.id, record.namespace, record.name))
            self.tables.report(ActorLifeEnded(record.id))
        self.remote_ended(job.id, job)
        for identifier in self.tables.promises:
            if identifier[:JOB_BYTES] == job.id:
                self.tables.promises.settle(identifier)

    def remote_ended(self, job_id: bytes, job: JobRecord | None) -> None:
        """Remove a job's actors of other homes."""
        for identifier in [each for each in self.tables.remote_actors if each[:JOB_BYTES] == job_id]:
            remote = self.tables.remote_actors.pop(identifier)
            text = f"actor {short(identifier)} is dead: its job has ended"
            row = (identifier, DEAD, b"", remote.attempt, True, b"", pack_failure("ActorDiedError", text))
            for incarnation in self._of_others(remote.watchers, job):
                self.tables.send_to_client(self.tables.processes[incarnation], m.ActorLocations((row,)))

    def _of_others(self, incarnations: Iterable[bytes], job: JobRecord | None) -> list[bytes]:
        processes = self.tables.processes
        known = [each for each in sorted(incarnations) if each in processes and each not in self.tables.nodes]
        return [each for each in known if processes[each].job is not job]

    # -- restarts of the daemon, and time --

    def adopt(self, task: TaskRecord, worker: WorkerRecord) -> None:
        """Restore an actor that outlived the daemon."""
        record = self.enter_again(task)
        record.state = ALIVE
        self._set_worker(record, worker)
        record.lives_on = record.shared
        self.logs.lives_on(record.id)
        self.dispatcher.host(worker, task)

    def enter_again(self, task: TaskRecord) -> ActorRecord:
        """Restore an earlier daemon's record."""
        record = self._enter(task, task.function.queue.job)
        task.facts().retries = tries_of(task.attempt)
        record.lived_before = record.restarts > 0
        if record.name:
            self.named[record.namespace, record.name] = record
        return record

    def find_lost(self) -> None:
        """Restart held actors that no process hosts after this daemon's restart."""
        for task in list(self.tables.tasks.values()):
            if task.function.actor is None or task.id in self.records or task.state != DONE:
                continue
            if task.holders is None and task.pins <= 0:
                continue  # It is to be freed, alive or not.
            record = self.enter_again(task)
            if task.status != OK:
                self.on_task_ended(ActorTaskEnded(task, None, task.status, task.value if type(task.value) is bytes else b""))
            else:
                record.lives_on = record.shared  # Perhaps: a link to a dead process does less harm than a broken one to a living process.
                self._lost(record, "its process ended before the node's daemon was restarted, or meanwhile", "", ())

    def may_return(self, task: TaskRecord) -> None:
        """Await another node's report before callers are notified."""
        self.records[task.id].returning = True

    def return_to(self, node: WorkerRecord, task: TaskRecord, attempt: int) -> None:
        """Restore an actor on another node, which reports its creation again."""
        self.references.revive(task)
        self.references.pin(named_by(task))
        self.references.clear(task)
        task.expect(self.tables.inline)
        task.attempt = attempt
        task.ready()
        task.assign(node)
        node.inflight[task.id] = task
        self.enter_again(task).returning = True
        self.tables.report(ActorReturned(task.id))

    def has_returned(self) -> None:
        """Stop awaiting: all nodes have reported."""
        for record in self.records.values():
            worker = record.task.worker
            if record.returning and (worker is None or not worker.remote):
                record.returning = False
                self._notify(record, record.watchers)

    def _end_in_time(self, record: ActorRecord) -> None:
        self.retiring[record] = None
        self.tables.deadlines.note(RETIRING)

    def tick(self, now: float) -> None:
        """End actors that retire for too long."""
        for record in list(self.retiring):
            if record.retire_at is None:
                record.retire_at = now + RETIRE_SECONDS
            elif now >= record.retire_at:
                self.retiring.pop(record, None)
                self._end(record, record.killed)

    def next_deadline(self) -> float | None:
        """When the next retiring actor is ended."""
        if not self.retiring:
            return None
        return min(record.retire_at or 0.0 for record in self.retiring)


def how_it_died(worker: WorkerRecord, died: m.ProcessDied) -> tuple[str, str, Facts]:
    """Why an actor's process ended, the last lines of stderr, and facts."""
    how = f"signal {died.signal}" if died.signal else f"exit code {died.exit_code}"
    cause = f"its process ended with {how}"
    if worker.kill_reason == "memory":
        cause = f"the node ran out of memory, and its process had the most beyond its reservation: {size(died.peak)} in all"
    facts = (("pid", worker.pid), ("signal", died.signal), ("exit_code", died.exit_code), ("peak", died.peak))
    return cause, died.stderr, facts


def _is_elsewhere(record: ActorRecord) -> bool:
    worker = worker_of(record)
    return worker is not None and worker.remote


def _as_death(payload: bytes) -> bytes:
    kind, text, facts = unpack_failure(payload)
    return pack_failure("ActorDiedError" if kind in _CRASHES else kind, text, facts)
