"""Streams: tasks whose values are consumed one by one while they run.

A streaming task is a task with one value, which stands for the end of the stream: whoever holds a ref to it may read the stream. The i-th
value that it yields is the object (task, i + 1), which may be held and fetched *before it exists*. Consumers do nothing else, and their
requests are the flow control, too: a task may yield up to the last index requested, and waits there (``AllowYields``). The index also gives
the order. A retry yields values of the same names, and a value that was accepted once is not accepted again.

A method of an actor makes a stream in the same way. Its caller announces the stream's end (``ExpectResults``). After the values the actor
sends the outcome of the call to the scheduler, as well as to its caller (``CallOutcomes``).

A value that no process has held yet is retained by the stream, and released with it. If a task fails, its failure is the last value of its
stream. Requests beyond the end receive the failure ``StreamEnded``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zfabric.machines.local_scheduler.records import (
    ASSIGNED,
    DONE,
    PENDING,
    READY,
    WAITING,
    AnyObject,
    ObjectRecord,
    Stored,
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
    """All streams of this node."""

    def __init__(self, tables: Tables, references: References, outcomes: Outcomes, rebuilding: Rebuilding) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.records = tables.streams
        self.dropped: dict[bytes, int] = {}
        """Calls of actors whose values were dropped, since this restarted scheduler did not know yet for which node they are, and how many
        values they had yielded."""

    @property
    def any_here(self) -> bool:
        """Whether the end of a call may be the end of a stream."""
        return bool(self.tables.streams or self.dropped)

    def begin(self, task: TaskRecord) -> None:
        """Make the record of a stream whose row was submitted."""
        self.records[task.id] = StreamRecord(task, task.option("stream") or self.tables.config.stream_buffered, b"")
        task.facts()  # It is not plain: its id begins the ids of values that are freed before it is.

    def begin_call(self, identifier: bytes, actor_id: bytes, ahead: int) -> None:
        """Make the record of a stream of an actor, whose caller expects it. ``identifier`` is the id of its end."""
        call_id = identifier[:TASK_BYTES]
        owner = self.tables.objects.get(identifier)
        if owner is None:
            owner = self.tables.objects[identifier] = ObjectRecord(identifier, None, None)
        if call_id not in self.records and owner.status == PENDING:
            self.records[call_id] = StreamRecord(owner, ahead or self.tables.config.stream_buffered, actor_id)

    # -- the consumer --

    def claim(self, object_ids: Iterable[bytes]) -> None:
        """Handle a process's holds of values of streams: the streams release those values, and may go on as far as was requested."""
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
        for stream in {**touched, **expected} if not self.tables.recovering else ():
            self._rebuild(stream)

    def _rebuild(self, stream: StreamRecord) -> None:
        """Run a task again of which values are missing that went with an earlier daemon."""
        task = stream.owner
        if not isinstance(task, TaskRecord) or not stream.pending:
            return
        if task.state != DONE:
            self._cut(stream, task)
        elif stream.end is None:
            self.rebuilding.make_available(task, "values of its stream went with the node's daemon")

    def _cut(self, stream: StreamRecord, task: TaskRecord) -> None:
        """If a task runs, and has yielded values that are wanted and lost, have it end early and run again.

        It may wait for the reader of such a value, so nobody waits for its end.
        """
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
        """Run the task of a stream again for lost values."""
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
        """Make the record of a requested value that does not exist: pending, dropped, or beyond the end."""
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
        """Release a value that the stream itself retained."""
        if index in stream.unclaimed:
            stream.unclaimed.discard(index)
            self.references.unpin((stream.value(index),))

    # -- the producer --

    def on_yielded(self, now: float, source: Address, message: m.Yielded) -> None:
        """Accept values of streams."""
        worker = self.tables.worker_of(source)
        if worker is None:
            self.tables.counts["refused"] += 1
        else:
            self.take(worker, message.rows)

    def take(self, worker: WorkerRecord, rows: m.Rows) -> None:
        """Accept rows of ``Yielded`` from a worker, or from the node that runs the tasks."""
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
                stream.allowed = None  # Its daemon is new. If it was told to close the stream before it had the call again, that is lost.
                touched[stream] = None
            elif value is None:
                stream.reached = (attempt, index)
                if stream.cut is None or stream.cut != attempt:
                    self._declare(stream, index)
                if worker.remote and stream.actor:  # Its daemon may be new, and nothing was allowed since.
                    stream.allowed = None
                    touched[stream] = None
            else:
                stream.reached = (attempt, index + 1)
                if index == 0:
                    stream.allowed = None  # The stream begins (again): its maker has received no ``AllowYields``.
                self._accept(worker, stream, index, value, contained)
                touched[stream] = None
        for stream in touched:
            self._allow(stream)

    def _declare(self, stream: StreamRecord, count: int) -> None:
        """An attempt has yielded all its values. Those that an earlier one had yielded beyond cannot be waited for."""
        stream.declared = count
        if stream.actor or self.tables.recovering or self.tables.unsettled is not None:
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
        elif value is True:  # An earlier daemon had released it, and it is wanted again. A task yields it again (``recovered``).
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
            record.pins += 1
            stream.unclaimed.add(index)
        else:
            self.tables.spare.append(record)

    def _relay(self, worker: WorkerRecord, home: bytes, row: m.Row) -> None:
        """Have a value sent to another node at the end of the turn. This node retains a large one for it."""
        task_id, attempt, index, value, contained = row
        identifier = object_id(task_id, index + 1)
        if value is True:
            record = self.tables.find(identifier)
            if record is None or type(record.value) is not Stored:
                return  # An earlier daemon knew its place, and it is not there: its home has released it.
            value = record.value.size
        else:
            value = self.outcomes.retain_for_home(identifier, home, worker, value, contained)
        self.references.pin(contained)
        self.tables.relayed_yields.append((home, (task_id, attempt, index, value, contained)))

    def _home_of(self, worker: WorkerRecord, task_id: bytes, attempt: int) -> bytes:
        """The node for which this worker makes a stream; empty if there is none."""
        call = self.tables.relayed_streams.get(task_id)
        if call is not None:
            lives = self.tables.guests.get(call.actor) or self.tables.actors.get(call.actor)
            return call.home if lives is not None and lives.worker is worker else b""
        task = self.tables.tasks.get(task_id)
        if task is None or not task.function.delegated or task.worker is not worker or task.attempt != attempt:
            return b""
        return task.submitter

    def _worker_of(self, stream: StreamRecord) -> WorkerRecord | None:
        """The worker that makes a stream now."""
        if not stream.actor:
            return stream.owner.task.worker if stream.owner.task is not None else None
        lives = self.tables.guests.get(stream.actor) or self.tables.actors.get(stream.actor)
        if lives is not None:
            return lives.worker
        remote = self.tables.remote_actors.get(stream.actor)
        return self.tables.nodes.get(remote.node) if remote is not None else None

    def _is_maker(self, worker: WorkerRecord, stream: StreamRecord) -> bool:
        """Whether a worker makes a stream. A restarted scheduler may receive values before it knows on which node an actor is."""
        maker = self._worker_of(stream)
        return worker is maker or (maker is None and worker.remote and stream.actor != b"")

    def _is_current(self, stream: StreamRecord, attempt: int) -> bool:
        return stream.actor != b"" or (stream.owner.task is not None and stream.owner.task.attempt == attempt)

    def _allow(self, stream: StreamRecord) -> None:
        """Notify the maker of a stream how far it may go, if that has changed.

        One that has not begun is notified after its first value.
        """
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
        """Notify a node that makes streams, whose daemon is new, how far they may go."""
        for stream in self.records.values():
            if self._worker_of(stream) is worker:
                stream.allowed = None
                self._allow(stream)

    def found_actor(self, actor_id: bytes) -> None:
        """Notify an actor of another node, whose location is known again, how far its streams may go."""
        for stream in self.records.values():
            if stream.actor == actor_id:
                stream.allowed = None
                self._allow(stream)

    # -- the end --

    def on_maker_ended(self, ended: StreamMakerEnded) -> None:
        """End the stream of a task that has its outcome, or of a call of which values cannot be read. A failure becomes the last value."""
        self._end(self.records.get(ended.task_id), ended.status, ended.payload)

    def call_ended(self, call_id: bytes, status: int, payload: Any) -> None:
        """End the stream of a call that has its outcome."""
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
            stream.count = min((stream.count, *stream.pending))  # A reader sees it at the first value that went with an earlier daemon.
            identifier = stream.value(stream.count)
            record = stream.pending.pop(stream.count, None)
            if record is None:
                record = self.tables.value_of(stream, identifier)
                record.pins += 1
                stream.unclaimed.add(stream.count)
            stream.count += 1
            self.outcomes.settle_value(record, status, payload if type(payload) is bytes else b"")
        if stream.end is None:
            stream.end = stream.count
        pending, stream.pending = stream.pending, {}
        for _, record in sorted(pending.items()):
            self._end_at(record, stream)

    def _lose(self, stream: StreamRecord) -> None:
        """End the stream of a call of which values went with the daemon of the actor's node. It is closed, so that the call ends, too."""
        if stream.end is None:
            self._end(stream, FAILED, _lost(stream))
            stream.closed = True

    def on_unreferenced(self, unreferenced: StreamUnreferenced) -> None:
        """Handle a stream, or a value that does not exist yet, which nobody needs any more."""
        record = unreferenced.record
        stream = self.records.get(record.object_id[:TASK_BYTES])
        if stream is None:
            return
        owner = stream.owner
        if record is not owner:
            if record.status == PENDING:
                stream.pending.pop(index_of(record.object_id) - 1, None)
                self._allow(stream)
                if record.named > 0 and stream.owner.task is not None:  # It was to be made again for a task that does not run now.
                    record.status = OK
                    return
                text = f"nobody reads {short(record.object_id)} any more"
                self.outcomes.settle_value(record, FAILED, pack_failure("ObjectFreedError", text))
            return
        stream.closed = True
        if owner.status == PENDING or stream.actor:
            self._allow(stream)  # The call may go on although its caller, which would have reported the end, has exited.
        self.references.unpin(stream.take_unclaimed())
        if not isinstance(owner, TaskRecord):
            if owner.status != PENDING:
                del self.records[owner.object_id[:TASK_BYTES]]
        elif owner.state in (WAITING, READY) and not stream.values:  # Else it may run again for what was made of them.
            self.outcomes.stopped(owner, "cancelled")

    # -- after a restart of the daemon --

    def is_value(self, identifier: bytes) -> bool:
        """Whether an object is a value of a stream of this node, which may be requested before it exists."""
        stream = self.records.get(identifier[:TASK_BYTES])
        return stream is not None and identifier != stream.owner.object_id

    def may_be_repeated(self, identifier: bytes, node: bytes) -> bool:
        """Whether a node may repeat a value of a stream that it retains: it makes the stream, or an actor does whose place is not known."""
        stream = self.records.get(identifier[:TASK_BYTES])
        maker = self._worker_of(stream) if stream is not None else None
        return maker.token == node if maker is not None else stream is not None and stream.actor != b""

    def found(self, record: AnyObject) -> None:
        """Handle a requested value that another node has retained."""
        self.records[record.object_id[:TASK_BYTES]].pending.pop(index_of(record.object_id) - 1, None)
        self.outcomes.announce(record)

    def positions_known(self) -> None:
        """Set each stream's ``count``, after all consumers have reported their requests.

        An earlier daemon had accepted all values before the first one requested.
        """
        for stream in self.records.values():
            if not stream.count:
                stream.count = min(stream.pending, default=0)

    def recovered(self) -> None:
        """Let streams go on. A stream that had ended, and of which values are missing, is rebuilt."""
        for stream in list(self.records.values()):
            self._rebuild(stream)
            self._allow(stream)


def _lost(stream: StreamRecord) -> bytes:
    text = f"values of the stream of {stream.name} are lost: an earlier daemon or process had them, and they cannot be made again"
    return pack_failure("ObjectLostError", text)
