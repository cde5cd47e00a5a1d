"""Who needs a value, who needs the row that makes it, and what is freed when nobody does.

Users of a value are processes with refs, requesters, unfinished rows that name it, and live values that contain it. Its row stays longer,
while a retained row names one of its values: a rebuild would need it. So the last value of a chain frees the whole chain, in slices: no
turn grows with its length.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator

from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.local_scheduler.barrier import HOMES
from zfabric.machines.local_scheduler.channel import TurnOutbox
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere, Stored
from zfabric.machines.local_scheduler.records import DONE, DURABLE, NO_HOME, AnyObject, HoldAtHome, ReferenceWatch, StreamRecord, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.transitions import ActorUnreferenced, ObjectUnreferenced, StreamUnreferenced
from zfabric.protocol.ids import FIRST_RETURN, JOB_BYTES, TASK_BYTES, is_call, is_put
from zfabric.protocol.messages import ENTRUSTED, HOLD, OK, ROW

COLLECT_PER_TURN = 20_000
"""Records checked in one turn: about 10 ms."""
LINEAGE_LOOK = 64
"""Tasks visited by ``may_be_dropped``: a value that depends on more is spilled."""
ABSORB_BYTES_MIN = 1024
"""Smaller values stay: their records weigh as much."""
ROW_BYTES = 200
"""Bytes of a retained row besides arguments."""


class References:
    """Holders, pins and lineage."""

    def __init__(self, tables: Tables, blocks: BlockWriter) -> None:
        self.tables = tables
        self.blocks = blocks
        self.to_collect: deque[AnyObject] = deque()
        """Records that may be unneeded."""
        self.watches: dict[bytes, ReferenceWatch] = {}
        """Watches of objects, by their ids: for ``ReferenceWatches``."""
        self._retained_rows: dict[bytes, set[bytes]] = {}
        """Objects whose rows other nodes' rows need, by node."""
        self.unneeded_durable: TurnOutbox[bytes] = TurnOutbox()
        """Durable values that the head is to delete."""
        self.lineage_bytes = 0
        self._lineage: OrderedDict[bytes, TaskRecord] = OrderedDict()
        """Finished tasks with freed values and retained rows, oldest first."""
        self.inputs_bytes = 0
        self._inputs: OrderedDict[bytes, tuple[AnyObject, int]] = OrderedDict()
        """Values retained without a ref since no task may make them again, with sizes, oldest first."""
        self.evicted = 0
        self._may_drop: Callable[[TaskRecord], bool] = is_plain
        self._absorbing: Iterator[AnyObject] | None = None
        self._absorb_above = 0

    def choose(self) -> None:
        """Choose which tasks take the short way in ``release``."""
        self._may_drop = _never if self.tables.barrier.awaits(HOMES) else self._is_unwatched if self.watches else is_plain

    def _is_unwatched(self, task: TaskRecord) -> bool:
        return task.object_id not in self.watches and is_plain(task)

    # -- holders --

    def hold(self, object_ids: Iterable[bytes], process: bytes) -> list[bytes]:
        """Register a holder; return the ids without a record."""
        unknown = []
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is None:
                unknown.append(object_id)
            else:
                record.add_holder(process)
                if record.hold is not None:
                    self.tables.ledger.hold(record)
        return unknown

    def release(self, object_ids: Iterable[bytes], process: bytes) -> None:
        """Remove ``process`` as a holder."""
        tasks, objects, spare = self.tables.tasks, self.tables.objects, self.to_collect
        dropped, drop_row, may_drop = 0, self.blocks.drop, self._may_drop
        for object_id in object_ids:
            record: AnyObject | None = tasks.get(object_id[:TASK_BYTES])
            if record is not None and record.holders == process and may_drop(record):  # type: ignore[arg-type]
                # Most tasks end here: finished and small, with no other user.
                del tasks[object_id[:TASK_BYTES]]
                dropped += len(record.value)  # type: ignore[arg-type]
                drop_row(object_id[:TASK_BYTES], record.block)  # type: ignore[union-attr]
                continue
            if record is None or record.outputs is not None or object_id[TASK_BYTES:] != FIRST_RETURN:  # type: ignore[union-attr]
                record = objects.get(object_id)
                if record is None:
                    continue
            if record.holders == process:
                record.holders = None
                if record.status != PENDING or record.home:
                    spare.append(record)
                    if record.pins > 0 and type(record.value) is bytes:
                        self.move_to_arena(record)
                elif self.tables.streams:
                    spare.append(record)
            elif type(record.holders) is set:
                record.drop_holder(process)
                spare.append(record)
                if type(record.value) is bytes and record.status == OK:
                    self.move_to_arena(record)
            elif record.holders is None:
                spare.append(record)  # Released before, and offered again by another attempt of its caller.
        self.tables.inline.count(-dropped)

    def move_to_arena(self, record: AnyObject) -> None:
        """Copy a needed value, whose other copy may have gone with its holder.

        In the arena it survives this daemon. Errors are not copied: their task repeats them.
        """
        if record.status == OK and self.tables.store.address is not None:
            self.tables.store.absorb(record.object_id, record.value, False)  # type: ignore[arg-type]
            record.arrive(Stored(len(record.value)), self.tables.inline)  # type: ignore[arg-type]

    def process_gone(self, process: bytes) -> None:
        """Release all of a dead process. Visits every record."""
        for table in (self.tables.tasks, self.tables.objects):
            for record in table.values():
                if record.fetchers is not None:
                    record.drop_fetcher(process)
                    if record.home:
                        self.to_collect.append(record)
                holders = record.holders
                if holders == process or (type(holders) is set and process in holders):
                    record.drop_holder(process)
                    self.to_collect.append(record)
        self.tables.store.process_gone(process)
        self.drop_watcher(process)

    def drop_watcher(self, process: bytes) -> None:
        """Remove a watcher, a process or node."""
        watches = self.watches
        for object_id, watch in list(watches.items()):
            watch.watchers.discard(process)
            if not watch.watchers:
                del watches[object_id]
        self.choose()

    def may_travel(self, object_id: bytes) -> bool:
        """Whether a ref may go to another node: its home must be known."""
        record = self.tables.find(object_id)
        return record is not None and record.home != NO_HOME

    # -- pins --

    def pin(self, object_ids: Iterable[bytes]) -> None:
        """Pin for an unfinished row that names these, or a live value that contains them."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None:
                record.pin()

    def unpin(self, object_ids: Iterable[bytes]) -> None:
        """Undo one ``pin`` of each object."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None:
                record.unpin()
                if record.pins <= 0:
                    self.to_collect.append(record)

    def retain_row(self, task: TaskRecord) -> None:
        """Count a retained row of what it names."""
        for object_id in named_by(task):
            record = self.tables.find(object_id)
            if record is not None:
                record.retain_row()

    def may_be_dropped(self, task: TaskRecord) -> bool:
        """Whether a task's values need no copy on disk: it is deterministic, and tasks make all that it needs.

        A ``put`` value is freed with its last ref, even if a rebuild would need it. A rebuilt value gets its copy, as a small store could
        drop and rebuild it without end.
        """
        if not task.option("deterministic", False) or (task.rare is not None and task.rare.rebuilt) or self.tables.runs_once(task):
            return False
        agenda, seen = [task], {task.id}
        while agenda:
            for object_id in named_by(agenda.pop()):
                record = self.tables.find(object_id)
                maker = record.task if record is not None else None
                if maker is None or self.tables.runs_once(maker) or len(seen) > LINEAGE_LOOK:
                    return False
                if maker.id not in seen:
                    seen.add(maker.id)
                    agenda.append(maker)
        return True

    # -- freeing --

    def collect_later(self, record: AnyObject) -> None:
        """Have ``collect`` free a record if nobody needs it."""
        self.to_collect.append(record)

    def collect(self) -> bool:
        """Free what nobody needs. Return whether some is left for the next turn."""
        if self.tables.barrier.awaits(HOMES):
            return False
        spare = self.to_collect
        budget = COLLECT_PER_TURN
        while spare and budget:
            budget -= 1
            record = spare.popleft()
            if record.holders is None and record.pins <= 0:
                if record.status == PENDING and not record.home:
                    if self.tables.streams:
                        self.tables.report(StreamUnreferenced(record))
                elif not record.fetchers:
                    self._free(record)
            elif record.hold is not None and not record.is_needed:
                self.tables.ledger.give_back(record)  # The home's hold here does not need a hold there.
        while self.lineage_bytes > self.tables.config.lineage_bytes and self._lineage:
            self.evicted += 1
            self._forget(next(iter(self._lineage.values())))
        while self.inputs_bytes > self.tables.config.lineage_bytes:
            record, _ = next(iter(self._inputs.values()))
            self._forget_input(record)
            if record.holders is None and record.pins <= 0 and not record.fetchers:
                self.evicted += 1
                self._free_now(record)
        return bool(spare)

    def absorb(self) -> bool:
        """Move values to the arena until memory is under the limit. Return whether more are left.

        After a pass that freed too little, the next one waits until a quarter more has arrived.
        """
        tables = self.tables
        inline, limit = tables.inline, tables.config.inline_memory
        if self._absorbing is None:
            if inline.total <= self._absorb_above:
                return False
            records: list[AnyObject] = [*tables.objects.values(), *tables.tasks.values()]
            self._absorbing = iter(records)
        for looked, record in enumerate(self._absorbing):
            value = record.value
            if record.status == OK and type(value) is bytes and len(value) >= ABSORB_BYTES_MIN:
                tables.store.absorb(record.object_id, value, record.task is not None and self.may_be_dropped(record.task))
                record.arrive(Stored(len(value)), inline)
            if inline.total <= limit:
                return False
            if looked >= COLLECT_PER_TURN:
                return True
        self._absorbing = None
        self._absorb_above = inline.total * 5 // 4
        return False

    def clear(self, record: AnyObject) -> None:
        """Free a value, even a needed one."""
        if self._inputs:
            self._forget_input(record)
        if type(record.value) is Stored:
            self.tables.store.free(record.object_id)
        elif isinstance(record.value, Elsewhere):
            self.tables.transfers.unwanted.append(record.object_id)
            self.tables.ledger.end(record.value.place, HOLD, record.object_id)
        if record.value is not None:
            record.lose(self.tables.inline)

    def _free(self, record: AnyObject) -> None:
        if self.watches and not record.home and record.object_id in self.watches:
            self.tables.report(ObjectUnreferenced(record.object_id))
        if not record.named or not self._retain_input(record):
            self._free_now(record)

    def _retain_input(self, record: AnyObject) -> bool:
        """Retain a value without a ref if a rebuild may need it and no task may make it again. Return whether it is retained.

        If another node dies, rows run again to make its values. They may name puts, and results of actors and of tasks that run once.
        """
        if not self.tables.nodes or record.home or record.status != OK:
            return False
        task = self.tables.makes(record)
        if not (is_put(record.object_id) or is_call(record.object_id) if task is None else self.tables.runs_once(task)):
            return False
        if record.object_id not in self._inputs:
            value = record.value
            size = len(value) if type(value) is bytes else value.size if isinstance(value, Stored | Elsewhere) else 0
            self._inputs[record.object_id] = (record, size)
            self.inputs_bytes += size
        return True

    def _forget_input(self, record: AnyObject) -> None:
        _, size = self._inputs.pop(record.object_id, (record, 0))
        self.inputs_bytes -= size

    def _free_now(self, record: AnyObject) -> None:
        task = record.task
        if not _is_repeatable_error(record):
            self._empty(record)
        if task is not None and task.function.actor is not None:
            self.tables.report(ActorUnreferenced(task))
        stream = self.tables.streams.get(record.object_id[:TASK_BYTES]) if self.tables.streams else None
        if stream is not None:
            self.tables.report(StreamUnreferenced(record))
        if record.hold is not None:
            self._free_borrowed(record, record.hold)
        elif stream is not None and record is not stream.owner:
            self._free_yielded(record, stream)
        elif task is None:
            self.tables.objects.pop(record.object_id, None)
            if record.durable == DURABLE:  # type: ignore[union-attr]
                self.unneeded_durable.append(record.object_id)
            if self.tables.orphans:
                self.tables.orphans.forget(record.object_id)
        elif task.state == DONE and self.tables.tasks.get(task.id) is task:  # Its job may have ended meanwhile.
            self._maybe_forget(task)

    def _free_yielded(self, record: AnyObject, stream: StreamRecord) -> None:
        """Drop a stream's value, unless a retained row names it and its task could make it again."""
        task = stream.owner.task
        if record.named > 0 and record.status == OK and task is not None and not self.tables.runs_once(task):
            return
        if self.tables.objects.pop(record.object_id, None) is record:
            stream.values -= 1
        if task is not None and task.state == DONE and not stream.values:
            self.to_collect.append(task)

    def _free_borrowed(self, record: AnyObject, hold: HoldAtHome) -> None:
        """Release a hold. If a retained row names the object, its home retains its row."""
        object_id = record.object_id
        if self.tables.objects.get(object_id) not in (record, None):
            return  # It was replaced when its home was found.
        self.tables.transfers.unwanted.append(object_id)
        self.tables.ledger.give_back(record)
        if record.named > 0:
            record.expect(self.tables.inline)
            self.tables.ledger.retain_row(record)
            return
        self.tables.objects.pop(object_id, None)
        if hold.row_retained:
            self.tables.ledger.end(hold.home, ROW, object_id)

    def rows_retained_for(self, node: bytes) -> list[bytes]:
        """Objects whose rows another node's rows need."""
        return list(self._retained_rows.get(node, ()))

    def retain_rows_for(self, node: bytes, object_ids: Iterable[bytes]) -> None:
        """Retain rows that make these, for another node's rows."""
        retained = self._retained_rows.setdefault(node, set())
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None and object_id not in retained:
                retained.add(object_id)
                record.retain_row()

    def release_rows_for(self, node: bytes, object_ids: Iterable[bytes]) -> None:
        """Undo ``retain_rows_for``."""
        retained = self._retained_rows.get(node, set())
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if object_id in retained:
                retained.discard(object_id)
                if record is not None:
                    record.release_row()
                    self.to_collect.append(record)
        if not retained:
            self._retained_rows.pop(node, None)

    def job_ended(self, job: bytes) -> None:
        """Forget which rows of a job other nodes need: all of them are dropped."""
        for retained in self._retained_rows.values():
            retained.difference_update([each for each in retained if each[:JOB_BYTES] == job])

    def node_gone(self, node: bytes) -> None:
        """Release all of a dead node."""
        self.process_gone(node)
        self.release_rows_for(node, self.rows_retained_for(node))

    def _empty(self, record: AnyObject) -> None:
        self.clear(record)
        if record.contained:
            self.unpin(record.contain(()))

    def _maybe_forget(self, task: TaskRecord) -> None:
        named = False
        for value in task.values():
            if value.holders is not None or value.pins > 0 or value.fetchers:
                return
            named = named or value.named > 0
        stream = self.tables.streams.get(task.id) if self.tables.streams else None
        if not named and (stream is None or not stream.values):
            self._forget(task)
        elif task.rare is None or not task.rare.lineage_weight:
            weight = ROW_BYTES + len(task.row[2]) + sum(len(each.value) for each in task.values() if type(each.value) is bytes)
            task.facts().lineage_weight = weight
            self.lineage_bytes += weight
            self._lineage[task.id] = task

    def _forget(self, task: TaskRecord) -> None:
        self.revive(task)
        if self.tables.drop_task(task.id) is None:
            return
        stream = self.tables.streams.pop(task.id, None) if self.tables.streams else None
        if stream is not None:
            self.unpin(stream.take_unclaimed())
        if task.rare is not None and task.rare.entrusted:
            self.tables.ledger.end(task.function.queue.job.home, ENTRUSTED, task.id)
        for value in task.values():
            if type(value.value) is bytes:
                self._empty(value)
        if task.outputs is not None:
            for value in task.outputs:
                self.tables.objects.pop(value.object_id, None)
        if task.block is not None:
            self.blocks.drop(task.id, task.block)
        if task.row[3] or len(task.row) > 4:
            for object_id in named_by(task):
                record = self.tables.find(object_id)
                if record is None:
                    continue
                record.release_row()
                if record.named <= 0 and (record.status != PENDING or record.home):
                    self.to_collect.append(record)

    def revive(self, task: TaskRecord) -> None:
        """Take a task out of the lineage: it runs again, or is dropped."""
        if task.rare is not None and task.rare.lineage_weight:
            self.lineage_bytes -= task.rare.lineage_weight
            task.rare.lineage_weight = 0
            del self._lineage[task.id]


def _is_repeatable_error(record: AnyObject) -> bool:
    """Whether later requests receive it: an error with a retained row."""
    task = record.task
    return task is not None and task.state == DONE and record.status != OK and any(value.named > 0 for value in task.values())


def is_plain(task: TaskRecord) -> bool:
    """Whether a finished task has one small value and may be freed the short way."""
    return (
        task.state == DONE
        and (len(task.row) == 4 if task.rare is None else task.rare.common)
        and not task.pins
        and not task.named
        and type(task.value) is bytes
        and task.fetchers is None
        and not task.contained
        and task.outputs is None
        and not task.row[3]
        and task.function.actor is None
        and task.block is not None
    )


def _never(task: TaskRecord) -> bool:
    return False


def named_by(task: TaskRecord) -> tuple[bytes, ...]:
    """Dependencies, and refs inside arguments."""
    dependencies: tuple[bytes, ...] = task.row[3]
    return dependencies + task.contains() if len(task.row) > 4 else dependencies
