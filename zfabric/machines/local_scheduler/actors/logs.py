"""Call logs of actors, on the scheduler's side: blocks and checkpoints go to the control store, and commits are reported (decision 0013).

*One writer.* Blocks that arrive before their process's death is known are written before the next life reads the log, since both go through
here. So the committed part of a log is always a prefix of the calls that ran.

*Pins.* Objects in rows, or in a checkpoint, are pinned on arrival, while the sender still holds them, until the rows are dropped. A
checkpoint drops the rows before it once its last part is committed; the end of the actor drops everything. Rows that made large values are
retained, with the checkpoint before them, as long as these exist: a replay can make them again (``remakes``).

*Calls that are not logged* (``quiescence``) have checkpoints only. The number of lost calls is read from what the process left, and the
driver is notified when the actor lives again.

*A control store that cannot write* (a full disk): messages wait here, in order, and outcomes in the actor's process. If that process dies,
those calls have never happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from zfabric.machines.common.tables import CHECKPOINT, LOG, pack_row, part_key, unpack_row
from zfabric.machines.local_scheduler.actor_records import ActorLog, ActorRecord, LogBlock, RetainedBlocks, Writing, is_unlogged, worker_of
from zfabric.machines.local_scheduler.due import LOGS
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES, Address, node_of_caller
from zfabric.protocol.messages import DEAD, FAILED, Row
from zfabric.protocol.names import brief
from zfabric.protocol.options import option

PAGE = 500
"""Rows per answer to a replay, which also ends after a few megabytes."""


class ActorLogs:
    """The logs of this home's actors."""

    def __init__(self, tables: Tables, requests: PendingRequests, references: References) -> None:
        self.tables = tables
        self.requests = requests
        self.references = references
        self.logs = self.tables.logs
        self.spare: list[tuple[str, bytes]] = []
        """Rows of dead actors to delete."""
        self.acknowledged: dict[bytes, int] = {}
        """Last committed messages, by actor, sent at the end of this turn."""
        self.recorded: dict[tuple[bytes, bytes, int], int] = {}
        """The same elsewhere, by node, actor and attempt."""

    # -- messages of actors --

    def on_log_appended(self, now: float, source: Address, message: m.LogAppended) -> None:
        """Write a block of rows."""
        log = self._of(source, message)
        if log is None:
            return
        block = LogBlock(message.last, 0, message.refs, message.made)
        before = next((known.last for known in reversed(log.blocks) if known.last <= block.last), 0)
        if before != block.last:  # Otherwise it is a repeat.
            self.references.pin(block.refs)
            log.blocks.append(block)
        log.last = max(log.last, message.last)
        value = pack_row((message.refs, message.made, message.rows))
        self._write(log, Writing(source[1:], message.attempt, message.number, (*block.keys(log.actor_id)[0], value), block))

    def on_checkpoint(self, now: float, source: Address, message: m.Checkpoint) -> None:
        """Write a part of a checkpoint."""
        log = self._of(source, message)
        if log is None:
            return
        known = log.checkpoint is not None and log.checkpoint.last == message.last
        if message.part == 0 and not known:
            log.stray.append(LogBlock(message.last, message.parts, ()))
        whole = LogBlock(message.last, message.parts, message.refs) if message.part == message.parts - 1 else None
        if whole is not None and not known:
            self.references.pin(whole.refs)
        log.last = max(log.last, message.last)
        row = (CHECKPOINT, part_key(log.actor_id, message.last, message.part), pack_row((message.parts, message.refs, message.data)))
        self._write(log, Writing(source[1:], message.attempt, message.number, row, whole))

    def on_replay_progress(self, now: float, source: Address, message: m.ReplayProgress) -> None:
        """Record a replay's progress and, at its end, callers with retained outcomes."""
        record = self._record(source, message.actor_id)
        worker = worker_of(record) if record is not None else None
        if record is None or worker is None:
            return
        log = self.logs.setdefault(message.actor_id, ActorLog(message.actor_id))
        log.replayed, log.to_replay = message.done, message.total
        for caller in message.callers:
            if caller in self.tables.processes:
                record.watchers.add(caller)
            elif node_of_caller(caller) not in self.tables.nodes:
                self.tables.send_to_control(worker, m.CallerGone(caller))

    def on_call_counts(self, now: float, source: Address, message: m.CallCounts) -> None:
        """Record how many unlogged calls ended, unless the actor is being made: its last life had more."""
        record = self._record(source, message.actor_id)
        if record is not None and record.worker is not None:
            log = self.logs.setdefault(message.actor_id, ActorLog(message.actor_id))
            log.ended, log.waits_for = message.ended, message.waits_for

    def _of(self, source: Address, message: m.LogAppended | m.Checkpoint) -> ActorLog | None:
        if not self.is_of(source, message.actor_id, message.attempt):
            self.tables.count("refused")
            return None
        return self.logs.setdefault(message.actor_id, ActorLog(message.actor_id))

    def is_of(self, source: Address, actor_id: bytes, attempt: int) -> bool:
        """Whether a sender is the writer: the process, or its node, in this attempt."""
        record = self._record(source, actor_id)
        return record is not None and record.task.attempt == attempt

    def _record(self, source: Address, actor_id: bytes) -> ActorRecord | None:
        """An actor, if the sender is its process, or the node of that."""
        record = self.tables.actors.get(actor_id)
        process = self.tables.processes.get(source[1:])
        worker = (self.tables.workers.get(process.name) or self.tables.nodes.get(process.name)) if process is not None else None
        if record is None or worker is None or record.state == DEAD:
            return None
        return record if worker is worker_of(record) else None

    # -- the control store --

    def _write(self, log: ActorLog, writing: Writing) -> None:
        log.writing.append(writing)
        if log.failed:
            log.failed.append(writing)
        else:
            self._ask(log, writing)

    def _ask(self, log: ActorLog, writing: Writing) -> None:
        self.requests.ask(m.Write, (writing.row,), (), then=self._written, about=(log, writing))

    def _written(self, now: float, about: tuple[ActorLog, Writing], answer: m.Written) -> None:
        log, writing = about
        if self.logs.get(log.actor_id) is not log or writing not in log.writing:
            return
        if answer.ok:
            writing.committed = True
            log.trouble = ""
            self._advance(log)
        elif self._may_write_again(writing, log):
            log.failed.append(writing)
            log.retry_at = now + self.tables.config.store_retry_every
            self.tables.deadlines.note(LOGS, log.retry_at)
            self._warn(log, answer.text)
        else:
            self._forget(log, writing)

    def _may_write_again(self, writing: Writing, log: ActorLog) -> bool:
        record = self.tables.actors.get(log.actor_id)
        return writing.writer in self.tables.processes and record is not None and record.task.attempt == writing.attempt

    def _warn(self, log: ActorLog, text: str) -> None:
        record = self.tables.actors.get(log.actor_id)
        if log.trouble or record is None:
            return
        log.trouble = text
        driver = record.task.function.queue.job.driver
        if driver is not None:
            name = f"actor {record.class_name} {brief(record.id)}"
            what = f"the results of its calls wait until the log of {name} can be written (checkpoint_every)"
            self.tables.send_to_client(driver, m.Notice("warning", f"{what}: {text}"))

    def _advance(self, log: ActorLog) -> None:
        record = self.tables.actors.get(log.actor_id)
        worker = worker_of(record) if record is not None else None
        home = worker.process.incarnation if worker is not None and worker.process is not None else b""
        while log.writing and log.writing[0].committed:
            writing = log.writing.popleft()
            if writing.writer in self.tables.nodes:
                self.recorded[writing.writer, log.actor_id, writing.attempt] = writing.number
            elif writing.writer == home:
                self.acknowledged[log.actor_id] = writing.number
            if writing.block is not None and writing.block.parts:
                self._truncate(log, writing.block)

    def _truncate(self, log: ActorLog, checkpoint: LogBlock) -> None:
        """Drop what is before a complete checkpoint, except blocks that can make existing values."""
        spare = [block for block in log.stray if block.last <= checkpoint.last]
        log.stray = [block for block in log.stray if block.last > checkpoint.last]
        if log.checkpoint is None or log.checkpoint.last < checkpoint.last:
            past = RetainedBlocks(log.checkpoint, [])
            while log.blocks and log.blocks[0].last <= checkpoint.last:
                past.blocks.append(log.blocks.popleft())
            log.past.append(past)
        log.checkpoint = checkpoint
        kept = []
        for past in log.past:
            if any(self._lives(each) for block in past.blocks for each in block.made):
                kept.append(past)
            else:
                spare += past.all()
        log.past = kept
        self._delete(log, spare)

    def _lives(self, identifier: bytes) -> bool:
        """Whether a value may have to be made again, or is being made."""
        record = self.tables.find(identifier)
        return record is not None and record.status != FAILED

    def _delete(self, log: ActorLog, blocks: list[LogBlock]) -> None:
        """Delete blocks, except keys that an incomplete checkpoint after the same call shares."""
        stay = {key for block in self._all(log) if block.parts for key in block.keys(log.actor_id)}
        deletes = tuple(key for block in blocks for key in block.keys(log.actor_id) if key not in stay)
        for block in blocks:
            self.references.unpin(block.refs)
        if deletes:
            self.tables.send(self.tables.cluster.control_address, m.Write(0, (), deletes))

    def _forget(self, log: ActorLog, writing: Writing) -> None:
        """Remove an unwritten message: its calls have never happened."""
        log.writing.remove(writing)
        block = writing.block
        if block is not None:
            self.references.unpin(block.refs)
            if not block.parts and block in log.blocks:
                log.blocks.remove(block)

    def process_gone(self, actor_id: bytes) -> None:
        """Drop a dead process's failed messages."""
        log = self.logs.get(actor_id)
        if log is not None:
            failed, log.failed = log.failed, deque()
            log.retry_at, log.trouble = None, ""
            for writing in failed:
                self._forget(log, writing)

    def record_ended(self, rows: Iterable[Row], early: bool = False) -> None:
        """Record how many calls dead processes had ended; ``early``: actors have no records yet.

        A process that died before its actor lived has run no calls; the earlier number stands.
        """
        for actor_id, ended in rows:
            record = self.tables.actors.get(actor_id)
            if not early and (record is None or record.worker is None):
                continue
            log = self.logs.setdefault(actor_id, ActorLog(actor_id)) if early else self.logs.get(actor_id)
            if log is not None:
                log.ended, log.exact = ended, True

    def lives_on(self, actor_id: bytes) -> None:
        """Reset an earlier life's number: the earlier daemon has reported its loss."""
        log = self.logs.get(actor_id)
        if log is not None:
            log.ended, log.exact = 0, False

    def restarted(self, record: ActorRecord) -> None:
        """Report calls whose effects a restart has lost."""
        log = self.logs.get(record.id)
        if log is None or not record.lived_before or not is_unlogged(record):
            return
        since = log.checkpoint.last if log.checkpoint is not None else 0
        lost, exact = max(0, log.ended - since), log.exact
        log.lost += lost
        log.ended, log.exact, log.waits_for = since, False, 0
        if lost or not exact:
            self._warn_lost(record, f"after {since} calls" if log.checkpoint is not None else "of its beginning", lost, exact)

    def _warn_lost(self, record: ActorRecord, when: str, lost: int, exact: bool) -> None:
        if exact:
            many = f"{lost} call{'s' if lost != 1 else ''}"
        else:
            many = f"at least {lost} calls, and perhaps more," if lost else "an unknown number of calls, if any,"
        text = (
            f"actor {record.class_name} {brief(record.id)} goes on from its checkpoint {when}: what {many} did to it that ended after "
            "that is lost (their results are not)"
        )
        self.tables.write_log("warning", text)
        driver = record.task.function.queue.job.driver
        if driver is not None:
            self.tables.send_to_client(driver, m.Notice("warning", text))

    def acknowledge(self) -> None:
        """Notify actors of this turn's commits."""
        acknowledged, self.acknowledged = self.acknowledged, {}
        for actor_id, number in acknowledged.items():
            record = self.tables.actors.get(actor_id)
            worker = worker_of(record) if record is not None else None
            if worker is not None:
                self.tables.send_to_control(worker, m.LogCommitted(actor_id, number))

    # -- reading a log --

    def read(self, source: Address, token: int, actor_id: bytes, table: str, after: bytes) -> None:
        """Read a page for an actor's process or for a replay. Raises ValueError for others."""
        may = self._record(source, actor_id) is not None or self._remakes(source, actor_id)
        if table not in (LOG, CHECKPOINT) or not may:
            raise ValueError("the log of an actor is read by the process that is to be the actor")
        self.scan(actor_id, table, after, self._found, (source, token))

    def scan(self, actor_id: bytes, table: str, after: bytes, then: Callable[[float, Any, m.Found], None], about: Any) -> None:
        """Read a page, which ``then`` receives."""
        self.requests.ask(m.Scan, table, actor_id, after, PAGE, then=then, about=about)

    def _remakes(self, source: Address, actor_id: bytes) -> bool:
        """Whether a process replays the actor's calls for a lost value."""
        process = self.tables.processes.get(source[1:])
        worker = self.tables.workers.get(process.name) if process is not None else None
        return worker is not None and any(
            task.id in self.tables.remakes and option(task.options, "remake")[0] == actor_id for task in worker.inflight.values()
        )

    def _found(self, now: float, about: tuple[Address, int], message: m.Found) -> None:
        source, token = about
        self.tables.send(source, m.Answer(token, (message.rows, message.more), ""))

    def describe(self, record: ActorRecord) -> dict[str, int | str | None]:
        """Logged calls, last checkpoint, calls after it, progress of a replay, lost calls."""
        every, unlogged = record.task.option("checkpoint_every"), is_unlogged(record)
        log = self.logs.get(record.id)
        checkpoint = log.checkpoint.last if log is not None and log.checkpoint is not None else None
        found: dict[str, int | str | None] = {
            "checkpoint_every": every,
            "logged_calls": None,
            "checkpoint": checkpoint,
            "since_checkpoint": None,
            "checkpoint_waits_for": 0,
            "lost_calls": None,
            "lost_known": True,
            "replaying": "",
        }
        if log is None:
            return found
        found["since_checkpoint"] = max(0, (log.ended if unlogged else log.last) - (checkpoint or 0))
        if unlogged:
            return {**found, "checkpoint_waits_for": log.waits_for, "lost_calls": log.lost, "lost_known": not log.adopted}
        replaying = f"{log.replayed} of {log.to_replay}" if log.replayed < log.to_replay else ""
        return {**found, "logged_calls": log.last, "replaying": replaying}

    # -- the end of a log --

    def drop(self, actor_id: bytes) -> None:
        """Drop a dead actor's log. Its rows are deleted after the actor's."""
        log = self.logs.pop(actor_id, None)
        if log is not None:
            blocks = self._all(log)
            for block in blocks:
                self.references.unpin(block.refs)
            self.spare += [key for block in blocks for key in block.keys(actor_id)]

    def _all(self, log: ActorLog) -> list[LogBlock]:
        """All written or under way. Incomplete checkpoints pin nothing."""
        coming = {block.last: block for writing in log.writing if (block := writing.block) is not None and block.parts}
        stray = [coming.get(block.last, block) for block in log.stray]
        checkpoint = [log.checkpoint] if log.checkpoint is not None else []
        return [*log.blocks, *checkpoint, *stray, *(block for past in log.past for block in past.all())]

    def job_ended(self, job_id: bytes) -> list[tuple[str, bytes]]:
        """Remove a job's logs; return the rows to delete."""
        ended = [actor_id for actor_id in self.logs if actor_id[:JOB_BYTES] == job_id]
        return [key for actor_id in ended for block in self._all(self.logs.pop(actor_id)) for key in block.keys(actor_id)]

    # -- after a restart of the daemon --

    def adopt(self, table: str, rows: tuple[Row, ...]) -> None:
        """Restore logs from rows, in order. ``recover`` pins their refs."""
        for key, value in rows:
            actor_id, last = key[:TASK_BYTES], int.from_bytes(key[TASK_BYTES : TASK_BYTES + 8], "big")
            log = self.logs.setdefault(actor_id, ActorLog(actor_id))
            log.adopted = True
            log.last = max(log.last, last)
            if table == LOG:
                refs, made, _ = unpack_row(value)
                log.blocks.append(LogBlock(last, 0, refs, made))
                continue
            count, refs, _ = unpack_row(value)
            index = int.from_bytes(key[TASK_BYTES + 8 :], "big")
            part = LogBlock(last, count, ())
            replaced = part not in log.stray and (log.checkpoint is None or log.checkpoint[:2] != (last, count))
            if index == 0 or replaced:  # Parts of an incomplete checkpoint may have been replaced by another's.
                log.stray.append(part)
            if index == count - 1 and log.stray and log.stray[-1][:2] == (last, count):  # The last part follows all others.
                log.stray.pop()
                if log.checkpoint is not None:
                    log.past.append(RetainedBlocks(log.checkpoint, []))
                log.checkpoint = LogBlock(last, count, refs)

    def references_of(self) -> Iterator[tuple[bytes, ...]]:
        """Refs of each block, once for each pin."""
        for log in self.logs.values():
            yield from (block.refs for block in self._all(log))

    def recover(self) -> None:
        """Pin the refs of all blocks; all objects have records."""
        for log in self.logs.values():
            self._find_past(log)
        for refs in self.references_of():
            self.references.pin(refs)

    def _find_past(self, log: ActorLog) -> None:
        """Move blocks to the checkpoint that they follow."""
        while log.checkpoint is not None and log.blocks and log.blocks[0].last <= log.checkpoint.last:
            block = log.blocks.popleft()
            before = [past for past in log.past if past.base is None or past.base.last < block.last]
            if not before:
                before = [RetainedBlocks(None, [])]
                log.past[:0] = before
            before[-1].blocks.append(block)

    def drop_lost(self) -> None:
        """Drop logs of dead or unknown actors."""
        for actor_id in list(self.logs):
            record = self.tables.actors.get(actor_id)
            if record is None or record.state == DEAD:
                self.drop(actor_id)

    # -- time --

    def tick(self, now: float) -> None:
        """Repeat writes that have failed."""
        for log in self.logs.values():
            if log.retry_at is not None and now >= log.retry_at:
                log.retry_at = None
                failed, log.failed = log.failed, deque()
                for writing in failed:
                    self._ask(log, writing)

    def next_deadline(self) -> float | None:
        """When a failed write is repeated."""
        return min((log.retry_at for log in self.logs.values() if log.retry_at is not None), default=None)
