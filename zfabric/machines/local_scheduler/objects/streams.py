"""Streams: tasks whose values are consumed while they run (decision 0012).

A streaming task has one value, the *end* of its stream; a ref to the end is the right to read. Value i is the object (task, i + 1).
Requests are also the flow control (``AllowYields``). For an actor's method, the caller announces the end (``ExpectResults``), and the actor
sends the outcome here, too (``CallOutcomes``).

The stream retains values that no process has held, and releases them with itself. A failure becomes the last value. Requests beyond the end
receive ``StreamEnded``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zfabric.machines.local_scheduler.barrier import NODES, PROCESSES
from zfabric.machines.local_scheduler.channel import TurnOutbox
from zfabric.machines.local_scheduler.object_places import PENDING, Stored
from zfabric.machines.local_scheduler.records import (
    ASSIGNED,
    DONE,
    READY,
    WAITING,
    AnyObject,
    ObjectRecord,
    RelayedStream,
    StreamRecord,
    TaskRecord,
    WorkerRecord,
)
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.transitions import StreamMakerEnded, StreamUnreferenced, StreamWanted
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import LOCAL_SCHEDULER, TASK_BYTES, WORKER, Address, daemons_of, index_of, object_id, short
from zfabric.protocol.messages import FAILED, OK


class Streams:
    """All streams of this home."""

    def __init__(self, tables: Tables, references: References, outcomes: Outcomes, rebuilding: Rebuilding) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.records = tables.streams
        self.relayed: TurnOutbox[tuple[bytes, m.Row]] = TurnOutbox()
        """Values for other homes' streams: (home, row of ``RelayedYields``), with the refs inside pinned."""
        self.relayed_calls: dict[bytes, RelayedStream] = {}
        """Streams that actors here make for other nodes' callers, by call."""
        self.dropped: dict[bytes, int] = {}
        """Calls whose values were dropped before their home was known, with numbers of values."""

    @property
    def any_here(self) -> bool:
        """Whether the end of a call may end one."""
        return bool(self.tables.streams or self.dropped)

    def begin(self, task: TaskRecord) -> None:
        """Record a submitted stream."""
        self.records[task.id] = StreamRecord(task, task.option("stream") or self.tables.config.stream_buffered, b"")
        task.facts()  # So that it is not plain: its values' ids begin with its id.

    def begin_call(self, identifier: bytes, actor_id: bytes, ahead: int) -> None:
        """Record an actor's stream; ``identifier`` is its end."""
        call_id = identifier[:TASK_BYTES]
        owner = self.tables.objects.get(identifier)
        if owner is None:
            owner = self.tables.new_object(identifier)
        if call_id not in self.records and owner.status == PENDING:
            self.records[call_id] = StreamRecord(owner, ahead or self.tables.config.stream_buffered, actor_id)

    # -- the consumer --

    def claim(self, object_ids: Iterable[bytes]) -> None:
        """Handle holds: streams release these values, and may go on to the last."""
        touched: dict[StreamRecord, None] = {}
        expected: dict[StreamRecord, None] = {}
        for identifier in object_ids:
            stream = self.records.get(identifier[:TASK_BYTES])
            if stream is None or identifier == stream.owner.object_id:
                continue
            index = index_of(identifier) - 1
            if identifier not in self.tables.objects:
                self._expect(stream, index, identifier)
                expected[stream] = None
            self._release(stream, index)
            if index >= stream.upto:
                stream.upto = index + 1
                touched[stream] = None
        for stream in touched:
            self._allow(stream)
        for stream in {**touched, **expected} if not self.tables.barrier.awaits(PROCESSES) else ():
            self._rebuild(stream)

    def _rebuild(self, stream: StreamRecord) -> None:
        """Run a task for values lost with an earlier daemon."""
        task = stream.owner
        if not isinstance(task, TaskRecord) or not stream.pending:
            return
        if task.state != DONE:
            self._cut(stream, task)
        elif stream.end is None:
            self.rebuilding.make_available(task, "values of its stream went with the node's daemon")

    def _cut(self, stream: StreamRecord, task: TaskRecord) -> None:
        """End a running task, to run again, if a wanted value is lost: it may be waiting for its reader."""
        if task.state != ASSIGNED or stream.reached[0] != task.attempt or stream.reached[1] <= min(stream.pending):
            return
        if not self.tables.runs_once(task):
            stream.cut = task.attempt
            self._allow(stream)
            return
        text = f"a value of the stream of {stream.name} is lost, and max_retries=0 forbids that it runs again"
        for index in sorted(each for each in stream.pending if each < stream.reached[1]):
            self.outcomes.settle_value(stream.pending.pop(index), FAILED, pack_failure("ObjectLostError", text))

    def on_wanted(self, wanted: StreamWanted) -> None:
        """Run a task again for lost values."""
        stream, task = wanted.stream, wanted.stream.owner
        if not isinstance(task, TaskRecord) or not stream.pending:
            return
        stream.upto = max(stream.upto, max(stream.pending) + 1)  # A restarted scheduler has had no request for it.
        if self.tables.tasks.get(task.id) is not task:
            text = f"{stream.name} is lost: {wanted.reason}, and its task's row went at the lineage cap"
            self._end(stream, FAILED, pack_failure("LineageEvictedError", text))
        elif task.state == DONE:
            why = self.rebuilding.rebuild(task, wanted.reason)
            if why:
                kind = "LineageEvictedError" if "lineage cap" in why else "ObjectLostError"
                self._end(stream, FAILED, pack_failure(kind, f"what {stream.name} yielded is lost: {why}"))
        else:
            self._cut(stream, task)
            self._allow(stream)

    def _expect(self, stream: StreamRecord, index: int, identifier: bytes) -> None:
        """Record a requested value: pending, dropped, or beyond the end."""
        record = self.tables.value_of(stream, identifier)
        if stream.end is not None and index >= stream.end:
            self._end_at(record, stream)
        elif index < stream.count:
            self._drop(record, stream, index)
        else:
            stream.pending[index] = record

    def _drop(self, record: AnyObject, stream: StreamRecord, index: int) -> None:
        takers = "another copy of its generator, or by an attempt of a task that has died"
        text = f"value {index} of the stream of {stream.name} was taken by {takers}, and dropped"
        self.outcomes.settle_value(record, FAILED, pack_failure("ObjectFreedError", text))

    def _end_at(self, record: ObjectRecord, stream: StreamRecord) -> None:
        text = f"the stream of {stream.name} has {stream.end} values"
        self.outcomes.settle_value(record, FAILED, pack_failure("StreamEnded", text))

    def _release(self, stream: StreamRecord, index: int) -> None:
        if index in stream.unclaimed:
            stream.unclaimed.discard(index)
            self.references.unpin((stream.value(index),))

    # -- the producer --

    def on_yielded(self, now: float, source: Address, message: m.Yielded) -> None:
        """Accept yielded values."""
        worker = self.tables.worker_of(source)
        if worker is None:
            self.tables.count("refused")
        else:
            self.take(worker, message.rows)

    def take(self, worker: WorkerRecord, rows: m.Rows) -> None:
        """Accept values from a worker or node."""
        touched: dict[StreamRecord, None] = {}
        for task_id, attempt, index, value, contained in rows:
            stream = self.records.get(task_id)
            if stream is None or not self._is_maker(worker, stream) or not self._is_current(stream, attempt):
                home = self._home_of(worker, task_id, attempt) if stream is None else b""
                if home:
                    self._relay(worker, home, (task_id, attempt, index, value, contained))
                else:
                    self.outcomes.drop_copy(worker, object_id(task_id, index + 1), value)
                    if stream is None and worker.actors and daemons_of(self.tables.first_attempt):
                        self.dropped[task_id] = index + (value is not None)
            elif index > stream.count and worker.remote and stream.actor:
                self._lose(stream)
                self.outcomes.drop_copy(worker, object_id(task_id, index + 1), value)
                stream.allowed = None  # Its daemon is new, and an earlier close may be lost.
                touched[stream] = None
            elif value is None:
                stream.reached = (attempt, index)
                if stream.cut is None or stream.cut != attempt:
                    self._declare(stream, index)
                if worker.remote and stream.actor:  # Its daemon may be new, without word of how far it may go.
                    stream.allowed = None
                    touched[stream] = None
            else:
                stream.reached = (attempt, index + 1)
                if index == 0:
                    stream.allowed = None  # The stream begins (again): its maker has had no ``AllowYields``.
                self._accept(worker, stream, index, value, contained)
                touched[stream] = None
        is_settled = not self.tables.barrier.awaits(NODES)
        for stream in touched:
            if is_settled and stream.pending and isinstance(stream.owner, TaskRecord):
                self._cut(stream, stream.owner)  # Values come in order: a missing one went with a daemon.
            self._allow(stream)

    def _declare(self, stream: StreamRecord, count: int) -> None:
        """Record an attempt's number of values. Those of earlier attempts beyond it are lost."""
        stream.declared = count
        if stream.actor or self.tables.barrier.awaits(NODES):
            return
        for index in sorted(each for each in stream.pending if count <= each < stream.count):
            text = f"{stream.name} yielded {count} values as it ran again, and more before: value {index} is lost"
            self.outcomes.settle_value(stream.pending.pop(index), FAILED, pack_failure("ObjectLostError", text))

    def _accept(self, worker: WorkerRecord, stream: StreamRecord, index: int, value: Any, contained: tuple[bytes, ...]) -> None:
        identifier = stream.value(index)
        record = self.tables.objects.get(identifier)
        fresh = index >= stream.count and stream.end is None and not (value is True and record is None)
        if fresh:
            stream.count = index + 1
        if record is None and fresh and not stream.closed:
            record = self.tables.value_of(stream, identifier)
        if record is None or record.status != PENDING:
            if value is not True:
                self.outcomes.drop_copy(worker, identifier, value)
        elif value is True:  # An earlier daemon had released it, and it is wanted again (``recovered``).
            if stream.actor:
                stream.pending.pop(index, None)
                self._drop(record, stream, index)
            return
        else:
            stream.pending.pop(index, None)
            self.outcomes.set_value(record, value, contained, worker.process.incarnation if worker.process else b"", False)
            self.outcomes.announce(record)
        if record is None or record.holders is not None or record.pins > 0:
            return
        if fresh and not stream.closed:
            record.pin()
            stream.unclaimed.add(index)
        else:
            self.references.collect_later(record)

    def _relay(self, worker: WorkerRecord, home: bytes, row: m.Row) -> None:
        """Queue a value for its home; a large one is retained here."""
        task_id, attempt, index, value, contained = row
        identifier = object_id(task_id, index + 1)
        if value is True:
            record = self.tables.find(identifier)
            if record is None or type(record.value) is not Stored:
                return  # Its home has released it.
            value = record.value.size
        else:
            value = self.outcomes.retain_for_home(identifier, home, worker, value, contained)
        self.references.pin(contained)
        self.relayed.append((home, (task_id, attempt, index, value, contained)))

    def begin_relayed(self, call_id: bytes, stream: RelayedStream) -> None:
        """Begin the stream of a call from another node."""
        self.relayed_calls[call_id] = stream

    def relayed_ended(self, call_id: bytes) -> None:
        """End the stream of a call from another node, if it is one."""
        self.relayed_calls.pop(call_id, None)
        self.dropped.pop(call_id, None)

    def end_relayed(self, home: bytes = b"", actor: bytes = b"") -> None:
        """Drop the streams of a dead home, or of an actor's ended life."""
        left = self.relayed_calls.items()
        self.relayed_calls = {call_id: each for call_id, each in left if each.home != home and each.actor != actor}

    def relay_dropped(self, home: bytes, call_id: bytes) -> None:
        """Report how many values of a call's stream were dropped, when it is announced again."""
        self.relayed.append((home, (call_id, 0, self.dropped.pop(call_id, 0), None, ())))

    def _home_of(self, worker: WorkerRecord, task_id: bytes, attempt: int) -> bytes:
        call = self.relayed_calls.get(task_id)
        if call is not None:
            lives = self.tables.guests.get(call.actor) or self.tables.actors.get(call.actor)
            return call.home if lives is not None and lives.worker is worker else b""
        task = self.tables.tasks.get(task_id)
        if task is None or not task.function.delegated or task.worker is not worker or task.attempt != attempt:
            return b""
        return task.submitter

    def _worker_of(self, stream: StreamRecord) -> WorkerRecord | None:
        if not stream.actor:
            return stream.owner.task.worker if stream.owner.task is not None else None
        lives = self.tables.guests.get(stream.actor) or self.tables.actors.get(stream.actor)
        if lives is not None:
            return lives.worker
        remote = self.tables.remote_actors.get(stream.actor)
        return self.tables.nodes.get(remote.node) if remote is not None else None

    def _is_maker(self, worker: WorkerRecord, stream: StreamRecord) -> bool:
        """Whether a worker makes it; an actor's node may be unknown after a restart."""
        maker = self._worker_of(stream)
        return worker is maker or (maker is None and worker.remote and stream.actor != b"")

    def _is_current(self, stream: StreamRecord, attempt: int) -> bool:
        return stream.actor != b"" or (stream.owner.task is not None and stream.owner.task.attempt == attempt)

    def _allow(self, stream: StreamRecord) -> None:
        """Allow a maker what is new. Before its first value it is not notified."""
        worker = self._worker_of(stream)
        if worker is None or worker.process is None:
            return
        upto = stream.upto_now
        known = stream.allowed[1] if stream.allowed is not None and stream.allowed[0] == worker.token else stream.ahead
        if known != upto:
            stream.allowed = (worker.token, upto)
            to = LOCAL_SCHEDULER if worker.remote else WORKER
            self.tables.send(to + worker.process.incarnation, m.AllowYields(stream.owner.object_id[:TASK_BYTES], upto))

    def repeat(self, worker: WorkerRecord) -> None:
        """Allow again what a new daemon's streams may make."""
        for stream in self.records.values():
            if self._worker_of(stream) is worker:
                stream.allowed = None
                self._allow(stream)

    def found_actor(self, actor_id: bytes) -> None:
        """Allow again what an actor, found again, may make."""
        for stream in self.records.values():
            if stream.actor == actor_id:
                stream.allowed = None
                self._allow(stream)

    # -- the end --

    def on_maker_ended(self, ended: StreamMakerEnded) -> None:
        """End the stream of a task, or of a call with unreadable values."""
        self._end(self.records.get(ended.task_id), ended.status, ended.payload)

    def call_ended(self, call_id: bytes, status: int, payload: Any) -> None:
        """End the stream of a call."""
        self.dropped.pop(call_id, None)
        self._end(self.records.get(call_id), status, payload)

    def _end(self, stream: StreamRecord | None, status: int, payload: Any) -> None:
        if stream is None:
            return
        if stream.end is None and status == OK and not stream.whole:  # Of a call; a task would run again.
            status, payload = FAILED, _lost(stream)
        if status != OK and (stream.closed or stream.end is not None):  # It ran again for these.
            for index in sorted(each for each in stream.pending if stream.end is None or each < stream.end):
                self.outcomes.settle_value(stream.pending.pop(index), status, payload if type(payload) is bytes else b"")
        elif stream.end is None and status != OK:
            stream.count = min((stream.count, *stream.pending))  # A reader sees it at the first lost value.
            identifier = stream.value(stream.count)
            record = stream.pending.pop(stream.count, None)
            if record is None:
                record = self.tables.value_of(stream, identifier)
                record.pin()
                stream.unclaimed.add(stream.count)
            stream.count += 1
            self.outcomes.settle_value(record, status, payload if type(payload) is bytes else b"")
        if stream.end is None:
            stream.end = stream.count
        pending, stream.pending = stream.pending, {}
        for _, record in sorted(pending.items()):
            self._end_at(record, stream)

    def _lose(self, stream: StreamRecord) -> None:
        if stream.end is None:
            self._end(stream, FAILED, _lost(stream))
            stream.closed = True

    def on_unreferenced(self, unreferenced: StreamUnreferenced) -> None:
        """Handle a stream, or a pending value, that nobody needs."""
        record = unreferenced.record
        stream = self.records.get(record.object_id[:TASK_BYTES])
        if stream is None:
            return
        owner = stream.owner
        if record is not owner:
            if record.status == PENDING:
                stream.pending.pop(index_of(record.object_id) - 1, None)
                self._allow(stream)
                if record.named > 0 and stream.owner.task is not None:  # It was to be rebuilt for a task that does not run now.
                    record.lose(self.tables.inline)
                    return
                text = f"nobody reads {short(record.object_id)} any more"
                self.outcomes.settle_value(record, FAILED, pack_failure("ObjectFreedError", text))
            return
        stream.closed = True
        if owner.status == PENDING or stream.actor:
            self._allow(stream)  # The call may outlive its caller, which would have reported the end.
        self.references.unpin(stream.take_unclaimed())
        if not isinstance(owner, TaskRecord):
            if owner.status != PENDING:
                del self.records[owner.object_id[:TASK_BYTES]]
        elif owner.state in (WAITING, READY) and not stream.values:  # Otherwise it may run again for its values.
            self.outcomes.stopped(owner, "cancelled")

    # -- after a restart of the daemon --

    def is_value(self, identifier: bytes) -> bool:
        """Whether an object is a value of this home's streams."""
        stream = self.records.get(identifier[:TASK_BYTES])
        return stream is not None and identifier != stream.owner.object_id

    def may_be_repeated(self, identifier: bytes, node: bytes) -> bool:
        """Whether a node may repeat a value: it makes the stream, or its maker's place is unknown."""
        stream = self.records.get(identifier[:TASK_BYTES])
        maker = self._worker_of(stream) if stream is not None else None
        return maker.token == node if maker is not None else stream is not None and stream.actor != b""

    def found(self, record: AnyObject) -> None:
        """Accept a requested value that a node retained."""
        self.records[record.object_id[:TASK_BYTES]].pending.pop(index_of(record.object_id) - 1, None)
        self.outcomes.announce(record)

    def positions_known(self) -> None:
        """Set each ``count`` once all consumers have reported: values before the first requested one were accepted."""
        for stream in self.records.values():
            if not stream.count:
                stream.count = min(stream.pending, default=0)

    def recovered(self) -> None:
        """Let streams go on; rebuild ended ones that lack values."""
        for stream in list(self.records.values()):
            self._rebuild(stream)
            self._allow(stream)


def _lost(stream: StreamRecord) -> bytes:
    text = f"values of the stream of {stream.name} are lost: an earlier daemon or process had them, and they cannot be made again"
    return pack_failure("ObjectLostError", text)
