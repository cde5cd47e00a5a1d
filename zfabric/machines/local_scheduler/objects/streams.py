"""Streams: tasks whose values come one by one, while they run, and are consumed meanwhile.

A streaming task is a task with one value, which stands for the end of the stream: who holds a ref to it may read the stream. What it
yields as its i-th value is the object (task, i + 1), which may be held and fetched *before it exists*. That is all a consumer does, and it
is the credit too: a task may be as far as somebody has asked, and waits there (``AllowYields``). So is order (the index), and so is a
retry: it names the same values, and those that were accepted once are not accepted again.

A method of an actor makes a stream in the same way: its caller announces the end of it (``ExpectResults``), and the actor sends the outcome
of the call here, behind the values (``CallOutcomes``), and not only to its caller.

A value that nobody has held yet is kept by the stream, and goes with it. A task that ends badly has its failure as the last
value of its stream; what was asked for beyond the end has the failure ``StreamEnded``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zfabric.machines.local_scheduler.records import (
    DONE,
    PENDING,
    READY,
    WAITING,
    ObjectRecord,
    StreamRecord,
    TaskRecord,
    WorkerRecord,
)
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.transitions import StreamTaskEnded, StreamUnreferenced
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import TASK_BYTES, WORKER, Address, index_of, object_id, short
from zfabric.protocol.messages import CLOSE, FAILED, OK


class Streams:
    """All streams of this node."""

    def __init__(self, tables: Tables, references: References, outcomes: Outcomes, rebuilding: Rebuilding) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.records = tables.streams

    def begin(self, task: TaskRecord) -> None:
        """A row that makes a stream was submitted."""
        self.records[task.id] = StreamRecord(task, task.option("stream") or self.tables.config.stream_buffered, b"")
        task.facts()  # It is not plain: its id begins those of values that come and go before it does.

    def begin_call(self, identifier: bytes, actor_id: bytes, ahead: int) -> None:
        """A caller expects a stream of an actor's; its end has this name."""
        call_id = identifier[:TASK_BYTES]
        owner = self.tables.objects.get(identifier)
        if owner is None:
            owner = self.tables.objects[identifier] = ObjectRecord(identifier, None, None)
        if call_id not in self.records and owner.status == PENDING:
            self.records[call_id] = StreamRecord(owner, ahead or self.tables.config.stream_buffered, actor_id)

    # -- the consumer --

    def claim(self, object_ids: Iterable[bytes]) -> None:
        """A process is about to hold these: values of streams among them are its own to keep now, and are made as far as they go."""
        touched: dict[StreamRecord, None] = {}
        for identifier in object_ids:
            stream = self.records.get(identifier[:TASK_BYTES])
            if stream is None or identifier == stream.owner.object_id:
                continue
            index = index_of(identifier) - 1
            if identifier not in self.tables.objects:
                self._expect(stream, index, identifier)
            self._let_go(stream, index)
            if index >= stream.upto:
                stream.upto = index + 1
                touched[stream] = None
        for stream in touched:
            self._allow(stream)

    def _expect(self, stream: StreamRecord, index: int, identifier: bytes) -> None:
        """Somebody wants a value that is not here: it will come, or there will be none."""
        record = self.tables.objects[identifier] = ObjectRecord(identifier, None, None)
        if stream.end is not None and index >= stream.end:
            self._end_at(record, stream)
        elif index < stream.count:
            text = f"value {index} of the stream of {stream.name} was taken by another copy of its generator, and dropped"
            self.outcomes.settle_value(record, FAILED, pack_failure("ObjectFreedError", text))
        else:
            stream.pending[index] = record

    def _end_at(self, record: ObjectRecord, stream: StreamRecord) -> None:
        text = f"the stream of {stream.name} has {stream.end} values"
        self.outcomes.settle_value(record, FAILED, pack_failure("StreamEnded", text))

    def _let_go(self, stream: StreamRecord, index: int) -> None:
        """The stream releases a value."""
        if index in stream.unclaimed:
            stream.unclaimed.discard(index)
            self.references.unpin((stream.value(index),))

    # -- the producer --

    def on_yielded(self, now: float, source: Address, message: m.Yielded) -> None:
        """Values of streams."""
        worker = self.tables.worker_of(source)
        if worker is None:
            self.tables.counts["refused"] += 1
            return
        touched: dict[StreamRecord, None] = {}
        for task_id, attempt, index, value, contained in message.rows:
            stream = self.records.get(task_id)
            if stream is None or worker is not self._worker_of(stream) or not self._is_current(stream, attempt):
                self.outcomes.drop_copy(worker, object_id(task_id, index + 1), value)
            elif value is None:
                stream.declared = index
            else:
                if index == 0:
                    stream.told = None  # It begins (again), and knows no more than its options say.
                self._accept(worker, stream, index, value, contained)
                touched[stream] = None
        for stream in touched:
            self._allow(stream)

    def _accept(self, worker: WorkerRecord, stream: StreamRecord, index: int, value: Any, contained: tuple[bytes, ...]) -> None:
        identifier = stream.value(index)
        record = self.tables.objects.get(identifier)
        fresh = index >= stream.count and stream.end is None and not (value is True and record is None)
        if fresh:
            stream.count = index + 1
        if record is None and fresh and not stream.closed:
            record = self.tables.objects[identifier] = ObjectRecord(identifier, None, None)
        if record is None or record.status != PENDING:
            if value is not True:
                self.outcomes.drop_copy(worker, identifier, value)
        else:
            stream.pending.pop(index, None)
            self.outcomes.set_value(record, value, contained, worker.process.incarnation if worker.process else b"", False)
            self.outcomes.announce(record)
        if record is not None and fresh and record.holders is None and record.pins <= 0:
            record.pins += 1
            stream.unclaimed.add(index)

    def _worker_of(self, stream: StreamRecord) -> WorkerRecord | None:
        """Who makes a stream now."""
        if not stream.actor:
            return stream.owner.task.worker if stream.owner.task is not None else None
        actor = self.tables.actors.get(stream.actor)
        return actor.worker if actor is not None else None

    def _is_current(self, stream: StreamRecord, attempt: int) -> bool:
        return stream.actor != b"" or (stream.owner.task is not None and stream.owner.task.attempt == attempt)

    def _allow(self, stream: StreamRecord) -> None:
        """Send the maker of a stream how far it may go, unless it knows. One that has not begun receives it after its first value."""
        worker = self._worker_of(stream)
        if worker is None or worker.process is None:
            return
        upto = CLOSE if stream.closed else stream.upto
        known = stream.told[1] if stream.told is not None and stream.told[0] == worker.token else stream.ahead
        if known != upto:
            stream.told = (worker.token, upto)
            self.tables.send(WORKER + worker.process.incarnation, m.AllowYields(stream.owner.object_id[:TASK_BYTES], upto))

    # -- the end --

    def on_task_ended(self, ended: StreamTaskEnded) -> None:
        """A streaming task has its outcome: its failure, if it is one, is the last value."""
        self._end(self.records.get(ended.task.id), ended.status, ended.payload)

    def call_ended(self, call_id: bytes, status: int, payload: Any) -> None:
        """A call of an actor has its outcome."""
        self._end(self.records.get(call_id), status, payload)

    def _end(self, stream: StreamRecord | None, status: int, payload: Any) -> None:
        if stream is None:
            return
        if stream.end is None and status == OK and not stream.whole:  # Of a call; a task would run again.
            text = f"values of the stream of {stream.name} went with the node's daemon, and it had ended"
            status, payload = FAILED, pack_failure("ObjectLostError", text)
        if stream.end is None and status != OK and not stream.closed:
            stream.count = min((stream.count, *stream.pending))  # A reader sees it at the first value that went with an earlier daemon.
            identifier = stream.value(stream.count)
            record = stream.pending.pop(stream.count, None)
            if record is None:
                record = self.tables.objects[identifier] = ObjectRecord(identifier, None, None)
                record.pins += 1
                stream.unclaimed.add(stream.count)
            stream.count += 1
            self.outcomes.settle_value(record, status, payload if type(payload) is bytes else b"")
        if stream.end is None:
            stream.end = stream.count
        pending, stream.pending = stream.pending, {}
        for _, record in sorted(pending.items()):
            self._end_at(record, stream)

    def on_unreferenced(self, unreferenced: StreamUnreferenced) -> None:
        """Nobody needs a stream any more, or a value that it does not have yet."""
        record = unreferenced.record
        stream = self.records.get(record.object_id[:TASK_BYTES])
        if stream is None:
            return
        owner = stream.owner
        if record is not owner:
            if record.status == PENDING:
                stream.pending.pop(index_of(record.object_id) - 1, None)
                text = f"nobody reads {short(record.object_id)} any more"
                self.outcomes.settle_value(record, FAILED, pack_failure("ObjectFreedError", text))
            return
        stream.closed = True
        if owner.status == PENDING or stream.actor:
            self._allow(stream)  # A call may go on although its caller, which would have told its end, is gone.
        for index in list(stream.unclaimed):
            self._let_go(stream, index)
        if owner.status != PENDING:
            del self.records[owner.object_id[:TASK_BYTES]]
        elif isinstance(owner, TaskRecord) and owner.state in (WAITING, READY):
            self.outcomes.stopped(owner, "cancelled")

    # -- after a restart of the daemon --

    def positions_known(self) -> None:
        """Every consumer has reported what it waits for: what comes before that was accepted by the daemon before this one."""
        for stream in self.records.values():
            stream.count = min(stream.pending, default=0)

    def recovered(self) -> None:
        """Streams go on where they are; one that had ended, and of which values are missing, is made again."""
        for stream in list(self.records.values()):
            if isinstance(stream.owner, TaskRecord) and stream.owner.state == DONE and stream.pending:
                stream.end = None
                self.rebuilding.make_available(stream.owner, "values of its stream went with the node's daemon")
            self._allow(stream)
