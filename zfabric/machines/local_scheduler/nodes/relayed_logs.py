"""Logs of actors that live on another node than their home: what both nodes pass on.

Only the home adds to the log, for one life at a time (``actors.logs``). The node where the actor lives passes on what the process appends,
and the home's answer that it is committed. The process holds outcomes back until then, as it does at home. So no outcome leaves a node
before the home has the rows that restore it, and an earlier life can commit nothing.

Objects that rows name are pinned on the node of the process until the rows are committed. The home registers as a holder before it confirms
the commit. A process in which the actor is made again reads the log through its node, too.

In a log, a caller's name without a node stands for a process of the home. To a process on another node it would stand for one of that node,
so the process translates it (``CallLog.places``). Thus callers are recognised wherever the actor lives next.
"""

from __future__ import annotations

from collections import defaultdict, deque

from zfabric.machines.common.log_format import LOG
from zfabric.machines.common.tables import unpack_row
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.remote_callers import RemoteCallers
from zfabric.machines.local_scheduler.records import TaskRecord, WorkerRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FIRST_RETURN, INCARNATION_BYTES, JOB_BYTES, Address, node_of_caller


class RemoteLogs:
    """The home's side."""

    def __init__(self, tables: Tables, logs: ActorLogs, borrowing: Borrowing) -> None:
        self.tables = tables
        self.logs = logs
        self.borrowing = borrowing

    def on_relayed_block(self, now: float, source: Address, message: m.RelayedBlock) -> None:
        """Write a block of rows to the control store."""
        if self._takes(source, message):
            self.logs.on_log_appended(now, source, m.LogAppended(*message[:-1]))
            self.borrowing.settle(message.refs)

    def on_relayed_checkpoint(self, now: float, source: Address, message: m.RelayedCheckpoint) -> None:
        """Write a part of a checkpoint to the control store."""
        if self._takes(source, message):
            self.logs.on_checkpoint(now, source, m.Checkpoint(*message[:-1]))
            self.borrowing.settle(message.refs)

    def _takes(self, source: Address, message: m.RelayedBlock | m.RelayedCheckpoint) -> bool:
        """Whether a message is of the life that may write the log. Any other life ends: it waits for a word that never comes."""
        if not self.logs.is_of(source, message.actor_id, message.attempt):
            self.tables.counts["refused"] += 1
            self.tables.counts["refused_log_rows"] += 1
            self.tables.send_to_node(source[1:], m.StopDelegated(message.actor_id, message.attempt, "force", False))
            return False
        self.borrowing.refer(message.refs, message.homes, source[1:])
        return True

    def on_read_log(self, now: float, source: Address, message: m.ReadLog) -> None:
        """Read a page of a log for the node where its actor is being made."""
        if self.logs.is_of(source, message.actor_id, message.attempt):
            self.logs.scan(message.actor_id, message.table, message.after, self._found, (source[1:], message))

    def _found(self, now: float, about: tuple[bytes, m.ReadLog], found: m.Found) -> None:
        node, asked = about
        named: dict[bytes, None] = {}
        for _, value in found.rows:
            refs = unpack_row(value)[0 if asked.table == LOG else 1]
            named.update(dict.fromkeys(refs))
        refs = (*named, asked.actor_id + FIRST_RETURN)
        self.borrowing.send_behind(node, m.LogPage(*asked, found.rows, found.more, refs, self.tables.homes_of(refs)))

    def end_of_turn(self) -> None:
        """Notify the nodes of actors of the commits of this turn, once this node holds what the rows name."""
        recorded, self.logs.recorded = self.logs.recorded, {}
        for (node, actor_id, attempt), number in recorded.items():
            if node in self.tables.nodes:
                self.borrowing.send_behind(node, m.LogRecorded(actor_id, attempt, number))


class _Life:
    """What passes through this node of the log of one life of an actor."""

    def __init__(self, attempt: int, home: bytes) -> None:
        self.attempt = attempt
        self.home = home
        self.unrecorded: deque[m.LogAppended | m.Checkpoint] = deque()
        """What its process has sent and the home has not said to be committed. What it names is pinned."""
        self.read: list[bytes] = []
        """What the pages name that it has read, pinned until it has ended or is made."""
        self.reads: dict[tuple[str, bytes], tuple[Address, int]] = {}
        """Requests for pages: who is to receive the answer, and its token, by table and key."""


class GuestLogs:
    """The side of the node where the actors live. What does not concern a guest is of an actor of this node."""

    def __init__(
        self, tables: Tables, references: References, logs: ActorLogs, borrowing: Borrowing, callers: RemoteCallers, node: bytes
    ) -> None:
        self.tables = tables
        self.references = references
        self.logs = logs
        self.borrowing = borrowing
        self.callers = callers
        self.node = node
        self._lives: dict[bytes, _Life] = {}
        self.to_send: list[tuple[bytes, m.Message]] = []
        """Messages for homes, in order: (home, message)."""

    # -- what processes send --

    def on_log_appended(self, now: float, source: Address, message: m.LogAppended) -> None:
        """Pass on a block of rows."""
        if self._task_of(message.actor_id) is None:
            self.logs.on_log_appended(now, source, message)
        else:
            self._pass_on(source, message)

    def on_checkpoint(self, now: float, source: Address, message: m.Checkpoint) -> None:
        """Pass on a part of a checkpoint."""
        if self._task_of(message.actor_id) is None:
            self.logs.on_checkpoint(now, source, message)
        else:
            self._pass_on(source, message)

    def _pass_on(self, source: Address, message: m.LogAppended | m.Checkpoint) -> None:
        life = self._life_in(source, message.actor_id)
        if life is None or life.attempt != message.attempt:
            self.tables.counts["refused"] += 1
            return
        self.references.pin(message.refs)
        life.unrecorded.append(message)
        self.to_send.append((life.home, message))

    def on_replay_progress(self, now: float, source: Address, message: m.ReplayProgress) -> None:
        """Pass on how far a replay has come; at its end, find out which callers are gone. Those of other nodes these know."""
        life, worker = self._life_in(source, message.actor_id), self.tables.worker_of(source)
        if life is None or worker is None:
            self._replays_elsewhere(now, source, message)
            return
        self.to_send.append((life.home, message._replace(callers=())))
        self._ask(message)
        for caller in message.callers:
            node = node_of_caller(caller)
            if node not in self.tables.nodes and (node or caller not in self.tables.processes):
                self.tables.send_to_control(worker, m.CallerGone(caller))

    def _ask(self, message: m.ReplayProgress) -> None:
        """Ask other nodes which of their processes are gone that an actor here retains outcomes for."""
        by_node: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for caller in message.callers:
            node = node_of_caller(caller)
            if node in self.tables.nodes:
                self.callers.expect(caller)
                by_node[node].append(caller[:INCARNATION_BYTES])
        self.to_send += [(node, message._replace(callers=tuple(callers))) for node, callers in by_node.items()]

    def _replays_elsewhere(self, now: float, source: Address, message: m.ReplayProgress) -> None:
        """An actor of this node replays, or one of another node that retains outcomes for processes of this one."""
        node = source[1:]
        if node not in self.tables.nodes:
            self.logs.on_replay_progress(now, source, message)
            self._ask(message)
            return
        self.logs.on_replay_progress(now, source, message._replace(callers=()))
        for caller in message.callers:
            if caller not in self.tables.processes:
                self.tables.send_to_node(node, m.CallerGone(caller))

    def on_call_counts(self, now: float, source: Address, message: m.CallCounts) -> None:
        """Pass on how many calls have ended that are not logged."""
        life = self._life_in(source, message.actor_id)
        if life is None:
            self.logs.on_call_counts(now, source, message)
        else:
            self.to_send.append((life.home, message))

    def read(self, source: Address, token: int, actor_id: bytes, table: str, after: bytes) -> None:
        """Request a page of an actor's log from its home, for the process in which the actor is being made."""
        life = self._life_in(source, actor_id)
        if life is None:
            self.logs.read(source, token, actor_id, table, after)
        else:
            life.reads[table, after] = source, token
            self.to_send.append((life.home, m.ReadLog(actor_id, life.attempt, table, after)))

    def _task_of(self, actor_id: bytes) -> TaskRecord | None:
        """The task that has made an actor of another node, or that makes it."""
        guest = self.tables.guests.get(actor_id)
        if guest is not None:
            return guest.task
        task = self.tables.tasks.get(actor_id)
        return task if task is not None and task.function.delegated else None

    def _worker_in(self, actor_id: bytes, task: TaskRecord) -> WorkerRecord | None:
        guest = self.tables.guests.get(actor_id)
        return guest.worker if guest is not None else task.worker

    def _life_in(self, source: Address, actor_id: bytes) -> _Life | None:
        """The present life of an actor of another node, if the sender is its process."""
        task, worker = self._task_of(actor_id), self.tables.worker_of(source)
        if task is None or worker is None or self._worker_in(actor_id, task) is not worker:
            return None
        life = self._lives.get(actor_id)
        if life is None or life.attempt != task.attempt:
            self._forget(actor_id)
            life = self._lives[actor_id] = _Life(task.attempt, task.submitter)
        return life

    # -- what homes send --

    def on_log_recorded(self, now: float, source: Address, message: m.LogRecorded) -> None:
        """What a process has sent about its log is committed: outcomes may leave."""
        life = self._of(source, message.actor_id, message.attempt)
        if life is None:
            return
        while life.unrecorded and life.unrecorded[0].number <= message.upto:
            self.references.unpin(life.unrecorded.popleft().refs)
        task = self._task_of(message.actor_id)
        worker = self._worker_in(message.actor_id, task) if task is not None and task.attempt == message.attempt else None
        if worker is not None:
            self.tables.send_to_control(worker, m.LogCommitted(message.actor_id, message.upto))
        self._forget_if_over(message.actor_id)

    def on_log_page(self, now: float, source: Address, message: m.LogPage) -> None:
        """Send on a page of a log, with the names of the two nodes: the process translates those of callers."""
        life = self._of(source, message.actor_id, message.attempt)
        asker, token = life.reads.pop((message.table, message.after), (b"", 0)) if life is not None else (b"", 0)
        if life is None or not asker:
            return
        self.borrowing.refer(message.refs, message.homes, source[1:])
        self.references.pin(message.refs)
        life.read += message.refs
        self.borrowing.settle(message.refs)
        self.tables.send(asker, m.Answer(token, (message.rows, message.more, self.node, life.home), ""))

    def _of(self, source: Address, actor_id: bytes, attempt: int) -> _Life | None:
        life = self._lives.get(actor_id)
        return life if life is not None and life.attempt == attempt and life.home == source[1:] else None

    # -- sending --

    def end_of_turn(self) -> None:
        """Send homes what processes sent, behind all holds: a checkpoint drops rows at home, and with them what these name."""
        if not self.to_send or self.references.paused or self.tables.recovering or self.tables.unsettled is not None:
            return  # Homes have yet to register with this restarted scheduler, or those of refs are not known.
        to_send, self.to_send = self.to_send, []
        for home, message in to_send:
            if home not in self.tables.nodes:
                continue
            if isinstance(message, m.LogAppended):
                message = m.RelayedBlock(*message, self.tables.homes_of(message.refs))
            elif isinstance(message, m.Checkpoint):
                message = m.RelayedCheckpoint(*message, self.tables.homes_of(message.refs))
            self.borrowing.send_behind(home, message)

    def repeat(self, home: bytes) -> None:
        """Repeat what a home has not said to be committed, and what it was asked: its daemon is new, or this one."""
        self.to_send = [each for each in self.to_send if each[0] != home]
        for actor_id, life in self._lives.items():
            task = self._task_of(actor_id)
            if life.home == home and task is not None and task.attempt == life.attempt:
                self.to_send += [(home, message) for message in life.unrecorded]
                self.to_send += [(home, m.ReadLog(actor_id, life.attempt, *key)) for key in life.reads]

    # -- ends --

    def made(self, actor_id: bytes) -> None:
        """An actor is made here: by now its process holds what it has read."""
        life = self._lives.get(actor_id)
        if life is not None:
            self._release(life)

    def ended(self, actor_id: bytes) -> None:
        """A life is over here. What it has sent is pinned until the home has taken it in."""
        self.made(actor_id)
        self._forget_if_over(actor_id)

    def stopped(self, source: Address, actor_id: bytes, attempt: int) -> None:
        """A home wants nothing more of a life."""
        if self._of(source, actor_id, attempt) is not None and self._task_of(actor_id) is None:
            self._forget(actor_id)

    def _forget_if_over(self, actor_id: bytes) -> None:
        life, task = self._lives.get(actor_id), self._task_of(actor_id)
        if life is not None and not life.unrecorded and (task is None or task.attempt != life.attempt):
            self._forget(actor_id)

    def _release(self, life: _Life) -> None:
        self.references.unpin(life.read)
        life.read, life.reads = [], {}

    def _forget(self, actor_id: bytes) -> None:
        life = self._lives.pop(actor_id, None)
        if life is not None:
            self._release(life)
            for message in life.unrecorded:
                self.references.unpin(message.refs)

    def node_died(self, node: bytes) -> None:
        """Forget the logs of a home that is dead."""
        for actor_id in [each for each, life in self._lives.items() if life.home == node]:
            self._forget(actor_id)

    def job_ended(self, job: bytes) -> None:
        """Forget the logs of a job that has ended."""
        for actor_id in [each for each in self._lives if each[:JOB_BYTES] == job]:
            self._forget(actor_id)
