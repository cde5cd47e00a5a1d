"""Guests: actors of other homes that live here (decision 0034). This node passes on the home's requests, and reports the death of the
process. If the home dies, the process ends.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.actor_records import GuestRecord
from zfabric.machines.local_scheduler.actors.directory import EXITED, NODE_DRAINED, ActorDirectory, how_it_died
from zfabric.machines.local_scheduler.nodes.executions import Executions
from zfabric.machines.local_scheduler.nodes.relayed_logs import GuestLogs
from zfabric.machines.local_scheduler.records import WorkerRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.machines.local_scheduler.transitions import ActorLifeEnded, GuestDied, GuestTaskEnded
from zfabric.protocol import messages as m
from zfabric.protocol.effects import KillProcess
from zfabric.protocol.ids import JOB_BYTES, Address
from zfabric.protocol.messages import CREATED, OK, RETIRED


class Guests:
    """The guests of this node."""

    def __init__(
        self,
        tables: Tables,
        actors: ActorDirectory,
        executions: Executions,
        workers: WorkerPool,
        dispatcher: Dispatcher,
        logs: GuestLogs,
    ) -> None:
        self.tables = tables
        self.actors = actors
        self.executions = executions
        self.workers = workers
        self.dispatcher = dispatcher
        self.logs = logs
        self.records = tables.guests
        self._watched: dict[bytes, bytes] = {}
        """Groups watched during a drain, each with the daemon asked."""

    def on_task_ended(self, ended: GuestTaskEnded) -> None:
        """Enter a guest, or end its useless process."""
        task, worker, status = ended
        if worker is not None and status == OK:
            self.records[task.id] = GuestRecord(task, worker)
            self.logs.made(task.id)
            return
        self.logs.ended(task.id)
        if worker is None:
            return
        worker.actors.pop(task.id, None)
        if not worker.gpus:
            self.dispatcher.release(worker)
        self.workers.end_once_unneeded(worker, "its actor could not be made")

    # -- what homes send --

    def on_stop_delegated(self, now: float, source: Address, message: m.StopDelegated) -> None:
        """Stop an attempt, or end the actor that it made: at once, or after its calls."""
        guest = self.records.get(message.task_id)
        if guest is not None and guest.home == source[1:] and guest.task.attempt == message.attempt:
            if message.reason == RETIRED:
                self.tables.send_to_control(guest.worker, m.RetireActor(guest.id, message.attempt, False))
            else:
                self._kill(guest.worker, "its home has ended it")
        elif message.reason != RETIRED:
            self.logs.stopped(source, message.task_id, message.attempt)
            self.executions.on_stop_delegated(now, source, message)

    def _kill(self, worker: WorkerRecord, reason: str) -> None:
        if worker.pid:
            worker.kill_reason = worker.kill_reason or reason
            self.tables.emit(KillProcess(worker.pid, reason))

    # -- this node is drained --

    def staying(self) -> list[GuestRecord]:
        """Guests that must end before this node leaves."""
        return list(self.records.values())

    def drain(self, movable: bool) -> None:
        """Have guests end: movable ones after their running calls, others once they have no calls."""
        for guest in self.staying():
            if guest.may_restart == movable and not guest.leaving and guest.worker.process is not None and self.may_leave(guest):
                guest.leaving = True
                actor_id, attempt = guest.id, guest.task.attempt
                if movable:
                    self.tables.send_to_control(guest.worker, m.DrainActor(actor_id, attempt))
                else:
                    guest.ending = guest.ending or NODE_DRAINED
                    self.tables.send_to_control(guest.worker, m.RetireActor(actor_id, attempt, False))

    def may_leave(self, guest: GuestRecord) -> bool:
        """Whether a guest may end here: its placement group must have its bundle elsewhere."""
        term = self.tables.queue_of(guest.task).group
        home = self.tables.nodes.get(term.home) if term is not None else None
        if term is None or home is None or not guest.may_restart:
            return True
        known = self.tables.known_groups.get(term.group)
        if self._watched.get(term.group) != home.daemon:
            self._watched[term.group] = home.daemon
            self.tables.send_to_node(term.home, m.WatchGroup(term.group))
        return known is not None and known.state == CREATED and self.tables.cluster.node not in known.places

    def on_actor_drained(self, now: float, source: Address, message: m.ActorDrained) -> None:
        """Record that it ends because of the drain."""
        guest, worker = self.records.get(message.actor_id), self.tables.worker_of(source)
        if guest is not None and guest.worker is worker and guest.task.attempt == message.attempt:
            guest.drained = True

    # -- what homes receive --

    def on_actor_exiting(self, now: float, source: Address, message: m.ActorExiting) -> None:
        """Handle ``exit_actor``: the home must not restart it."""
        guest = self.records.get(message.actor_id)
        if guest is not None:
            guest.ending = EXITED  # In case the daemon of its home dies with this message.
            self.tables.send_to_node(guest.home, message)
        else:
            self.actors.on_actor_exiting(now, source, message)

    def on_died(self, death: GuestDied) -> None:
        """Report a guest's death, behind the outcomes of its calls."""
        actor_id, worker, died = death
        guest = self.records.get(actor_id)
        if guest is None or guest.worker is not worker:
            return
        del self.records[actor_id]
        executing = died.executing if died.executing != actor_id else b""
        cause, stderr, _ = how_it_died(worker, died)
        if guest.drained:  # All callers have the outcomes of what it began.
            executing, cause = actor_id, NODE_DRAINED
        facts = (worker.pid, died.signal, died.exit_code, died.peak)
        calls = next((count for each, count in died.ended if each == actor_id), -1)
        message = m.LifeEnded(actor_id, guest.task.attempt, executing, cause, stderr, facts, guest.ending, calls)
        self.actors.behind_ends.append((guest.home, message))
        home = self.tables.nodes.get(guest.home)
        if home is not None:
            self.executions.life_ended(home, actor_id, guest.task.attempt)
        self.logs.ended(actor_id)
        self.tables.report(ActorLifeEnded(actor_id))

    # -- ends --

    def node_died(self, node: bytes) -> None:
        """End the guests of a dead home."""
        self.logs.node_died(node)
        for guest in self.records.values():
            if guest.home == node:
                self._kill(guest.worker, "its home, the node where it was made, is dead")

    def job_ended(self, job: bytes) -> None:
        """Drop the guests of an ended job."""
        self.logs.job_ended(job)
        for actor_id in [each for each in self.records if each[:JOB_BYTES] == job]:
            del self.records[actor_id]
