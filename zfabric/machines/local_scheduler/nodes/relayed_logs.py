"""Call logs of actors that live on another node than their home: what both nodes pass on (decision 0013).

The home registers as a holder before it confirms a commit (``LogRecorded``). Until then the process retains its outcomes and the node the
pins. So no outcome leaves the node before the home has the rows that restore it, and an earlier life can commit nothing. A process that
replays reads the log through its node (``ReadLog``, ``LogPage``).
"""

from __future__ import annotations

from collections import defaultdict

from zfabric.machines.common.tables import LOG, unpack_row
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.barrier import HOMES
from zfabric.machines.local_scheduler.channel import PeerOutbox
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
        """Write a block of rows."""
        if self._takes(source, message):
            self.logs.on_log_appended(now, source, m.LogAppended(*message[:-1]))
            self.borrowing.settle(message.refs)

    def on_relayed_checkpoint(self, now: float, source: Address, message: m.RelayedCheckpoint) -> None:
        """Write a part of a checkpoint."""
        if self._takes(source, message):
            self.logs.on_checkpoint(now, source, m.Checkpoint(*message[:-1]))
            self.borrowing.settle(message.refs)

    def _takes(self, source: Address, message: m.RelayedBlock | m.RelayedCheckpoint) -> bool:
        """Whether the life may write the log. Any other is stopped: it would wait for ever."""
        if not self.logs.is_of(source, message.actor_id, message.attempt):
            self.tables.count("refused")
            self.tables.count("refused_log_rows")
            self.tables.send_to_node(source[1:], m.StopDelegated(message.actor_id, message.attempt, "force", False))
            return False
        self.borrowing.refer(message.refs, message.homes, source[1:])
        return True

    def on_read_log(self, now: float, source: Address, message: m.ReadLog) -> None:
        """Read a page for the actor's node."""
        if self.logs.is_of(source, message.actor_id, message.attempt):
            self.logs.scan(message.actor_id, message.table, message.after, self._found, (source[1:], message))

    def _found(self, now: float, about: tuple[bytes, m.ReadLog], found: m.Found) -> None:
        node, asked = about
        named: dict[bytes, None] = {}
        for _, value in found.rows:
            refs = unpack_row(value)[0 if asked.table == LOG else 1]
            named.update(dict.fromkeys(refs))
        refs = (*named, asked.actor_id + FIRST_RETURN)
        self.tables.ledger.holds.send(node, m.LogPage(*asked, found.rows, found.more, refs, self.tables.homes_of(refs)))

    def end_of_turn(self) -> None:
        """Report commits, behind the holds on what the rows name."""
        recorded, self.logs.recorded = self.logs.recorded, {}
        for (node, actor_id, attempt), number in recorded.items():
            if node in self.tables.nodes:
                self.tables.ledger.holds.send(node, m.LogRecorded(actor_id, attempt, number))


class _Life:
    def __init__(self, attempt: int, home: bytes) -> None:
        self.attempt = attempt
        self.home = home
        self.unrecorded = PeerOutbox()
        """Messages that the home has not confirmed."""
        self.read: list[bytes] = []
        """Refs of the pages read, pinned until the actor is made or has ended."""
        self.reads: dict[tuple[str, bytes], tuple[Address, int]] = {}
        """Open requests, (reader, token), by table and key."""


class GuestLogs:
    """The side of the actor's node. What concerns no guest is for an actor of this home."""

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
            self.tables.count("refused")
            return
        self.references.pin(message.refs)
        life.unrecorded.retain(message, message.refs)
        self.to_send.append((life.home, message))

    def on_replay_progress(self, now: float, source: Address, message: m.ReplayProgress) -> None:
        """Pass on how far a replay is; at its end find out which callers are gone."""
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
        """Ask other nodes which callers of an actor here are gone."""
        by_node: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for caller in message.callers:
            node = node_of_caller(caller)
            if node in self.tables.nodes:
                self.callers.expect(caller)
                by_node[node].append(caller[:INCARNATION_BYTES])
        self.to_send += [(node, message._replace(callers=tuple(callers))) for node, callers in by_node.items()]

    def _replays_elsewhere(self, now: float, source: Address, message: m.ReplayProgress) -> None:
        """Handle a replay of this home's actor, or another node's question about callers here."""
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
        """Pass on how many unlogged calls ended."""
        life = self._life_in(source, message.actor_id)
        if life is None:
            self.logs.on_call_counts(now, source, message)
        else:
            self.to_send.append((life.home, message))

    def read(self, source: Address, token: int, actor_id: bytes, table: str, after: bytes) -> None:
        """Request a page from the home."""
        life = self._life_in(source, actor_id)
        if life is None:
            self.logs.read(source, token, actor_id, table, after)
        else:
            life.reads[table, after] = source, token
            self.to_send.append((life.home, m.ReadLog(actor_id, life.attempt, table, after)))

    def _task_of(self, actor_id: bytes) -> TaskRecord | None:
        guest = self.tables.guests.get(actor_id)
        if guest is not None:
            return guest.task
        task = self.tables.tasks.get(actor_id)
        return task if task is not None and task.function.delegated else None

    def _worker_in(self, actor_id: bytes, task: TaskRecord) -> WorkerRecord | None:
        guest = self.tables.guests.get(actor_id)
        return guest.worker if guest is not None else task.worker

    def _life_in(self, source: Address, actor_id: bytes) -> _Life | None:
        """An actor's present life, if the sender is its process."""
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
        """Release pins and notify the process of a commit."""
        life = self._of(source, message.actor_id, message.attempt)
        if life is None:
            return
        for _, refs, *_ in life.unrecorded.acknowledged(message.upto):
            self.references.unpin(refs)
        task = self._task_of(message.actor_id)
        worker = self._worker_in(message.actor_id, task) if task is not None and task.attempt == message.attempt else None
        if worker is not None:
            self.tables.send_to_control(worker, m.LogCommitted(message.actor_id, message.upto))
        self._forget_if_over(message.actor_id)

    def on_log_page(self, now: float, source: Address, message: m.LogPage) -> None:
        """Send on a page, with both nodes' names, by which the process translates callers."""
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
        """Send homes what processes sent, behind all holds: a checkpoint drops rows at home, and with them holds."""
        if not self.to_send or self.tables.barrier.awaits(HOMES):
            return  # Homes have yet to register after a restart, or homes of refs are unknown.
        to_send, self.to_send = self.to_send, []
        for home, message in to_send:
            if home not in self.tables.nodes:
                continue
            if isinstance(message, m.LogAppended):
                message = m.RelayedBlock(*message, self.tables.homes_of(message.refs))
            elif isinstance(message, m.Checkpoint):
                message = m.RelayedCheckpoint(*message, self.tables.homes_of(message.refs))
            self.tables.ledger.holds.send(home, message)

    def repeat(self, home: bytes) -> None:
        """Repeat unconfirmed messages and open requests to a home."""
        self.to_send = [each for each in self.to_send if each[0] != home]
        for actor_id, life in self._lives.items():
            task = self._task_of(actor_id)
            if life.home == home and task is not None and task.attempt == life.attempt:
                self.to_send += [(home, message) for message in life.unrecorded]
                self.to_send += [(home, m.ReadLog(actor_id, life.attempt, *key)) for key in life.reads]

    # -- ends --

    def made(self, actor_id: bytes) -> None:
        """Release the pages read: the process holds their refs."""
        life = self._lives.get(actor_id)
        if life is not None:
            self._release(life)

    def ended(self, actor_id: bytes) -> None:
        """End a life here. Unconfirmed messages remain pinned."""
        self.made(actor_id)
        self._forget_if_over(actor_id)

    def stopped(self, source: Address, actor_id: bytes, attempt: int) -> None:
        """Drop a life that its home has stopped."""
        if self._of(source, actor_id, attempt) is not None and self._task_of(actor_id) is None:
            self._forget(actor_id)

    def _forget_if_over(self, actor_id: bytes) -> None:
        life, task = self._lives.get(actor_id), self._task_of(actor_id)
        if life is not None and not life.unrecorded.retained and (task is None or task.attempt != life.attempt):
            self._forget(actor_id)

    def _release(self, life: _Life) -> None:
        self.references.unpin(life.read)
        life.read, life.reads = [], {}

    def _forget(self, actor_id: bytes) -> None:
        life = self._lives.pop(actor_id, None)
        if life is not None:
            self._release(life)
            for _, refs, *_ in life.unrecorded.take_all():
                self.references.unpin(refs)

    def node_died(self, node: bytes) -> None:
        """Drop the logs of a dead home."""
        for actor_id in [each for each, life in self._lives.items() if life.home == node]:
            self._forget(actor_id)

    def job_ended(self, job: bytes) -> None:
        """Drop the logs of an ended job."""
        for actor_id in [each for each in self._lives if each[:JOB_BYTES] == job]:
            self._forget(actor_id)
