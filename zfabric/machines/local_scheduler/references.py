"""Who needs a value, who needs the row that makes it, and what goes when nobody does.

A value stays while a process holds a ref to it, while an unfinished row names it, while a live value contains it, or while somebody
has asked for it. The row that makes it stays longer: as long as a kept row names one of its values, since a rebuild would need
it. Freeing the last value of a long chain therefore frees the whole chain: ``collect`` works through it in slices,
so that no loop turn grows with the length of a chain.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.local_scheduler.records import DONE, PENDING, AnyObject, Stored, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.transitions import ActorUnreferenced, StreamUnreferenced
from zfabric.protocol.ids import FIRST_RETURN, TASK_BYTES
from zfabric.protocol.messages import OK, Row

COLLECT_PER_TURN = 20_000
"""Records looked at in one turn: about 10 ms."""
LINEAGE_LOOK = 64
"""Tasks looked at to find out whether a value could be made again from nothing but tasks; with more it is spilled as others are."""
ABSORB_BYTES_MIN = 1024
"""Values smaller than this stay where they are: their records weigh as much."""
ROW_BYTES = 200
"""What a retained row weighs beyond its arguments."""


class References:
    """Holders, pins and lineage over the shared tables."""

    def __init__(self, tables: Tables, blocks: BlockWriter) -> None:
        self.tables = tables
        self.blocks = blocks
        self.lineage_bytes = 0
        self._lineage: OrderedDict[bytes, TaskRecord] = OrderedDict()
        """Finished tasks whose values are gone and whose rows are retained, oldest first."""
        self.evicted = 0
        self._absorbing: Iterator[AnyObject] | None = None
        self._absorb_above = 0

    # -- holders --

    def hold(self, object_ids: Iterable[bytes], process: bytes) -> list[bytes]:
        """``process`` has refs to these; those that are not known come back."""
        unknown = []
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is None:
                unknown.append(object_id)
            else:
                add_holder(record, process)
        return unknown

    def release(self, object_ids: Iterable[bytes], process: bytes) -> None:
        """``process`` has no refs to these any more."""
        tasks, objects, spare = self.tables.tasks, self.tables.objects, self.tables.spare
        dropped, drop_row = 0, self.blocks.drop
        for object_id in object_ids:
            record: AnyObject | None = tasks.get(object_id[:TASK_BYTES])
            if record is not None and record.holders == process and is_plain(record):  # type: ignore[arg-type]
                # Most tasks end here: finished, small, and nobody else's business.
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
                if record.status != PENDING:
                    spare.append(record)
                    if record.pins > 0 and type(record.value) is bytes:
                        self._secure(record)
                elif self.tables.streams:
                    spare.append(record)
            elif type(record.holders) is set:
                drop_holder(record, process)
                spare.append(record)
                if type(record.value) is bytes and record.status == OK:
                    self._secure(record)
            elif record.holders is None:
                spare.append(record)  # It was let go of before, and offered again by another attempt of its caller.
        self.tables.inline.add(-dropped)

    def _secure(self, record: AnyObject) -> None:
        """Others still need a value whose holder releases it, and with it perhaps the only other copy.

        In the arena it survives this daemon. Errors stay: their task says them again.
        """
        if record.status == OK and self.tables.store_address is not None:
            self.tables.absorbed.append((record.object_id, record.value, False))
            self.tables.inline.replace(record, Stored(len(record.value)))  # type: ignore[arg-type]

    def process_gone(self, process: bytes) -> None:
        """A process's death is proved: it holds and has asked for nothing any more. Looks at every record."""
        for table in (self.tables.tasks, self.tables.objects):
            for record in table.values():
                if record.fetchers is not None:
                    record.fetchers.discard(process)
                holders = record.holders
                if holders == process or (type(holders) is set and process in holders):
                    drop_holder(record, process)
                    self.tables.spare.append(record)

    # -- pins --

    def pin(self, object_ids: Iterable[bytes]) -> None:
        """One more unfinished row names, or one more live value contains, each of these."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None:
                record.pins += 1

    def unpin(self, object_ids: Iterable[bytes]) -> None:
        """One fewer."""
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None:
                record.pins -= 1
                if record.pins <= 0:
                    self.tables.spare.append(record)

    def keep_row(self, task: TaskRecord) -> None:
        """Retain a row that names objects, from now on."""
        for object_id in named_by(task):
            record = self.tables.find(object_id)
            if record is not None:
                record.named += 1

    def may_be_dropped(self, task: TaskRecord) -> bool:
        """Whether values of a task need no copy on disk: it is deterministic by its options, and all that it needs is made by tasks.

        What was put is gone with its last ref, though rows name it that would be run again for what others still hold. A value that was
        made again once gets its copy: in a small store the task that makes it may itself need the room, and drop it without end.
        """
        if not task.option("deterministic", False) or (task.rare is not None and task.rare.rebuilt):
            return False
        agenda, seen = [task], {task.id}
        while agenda:
            for object_id in named_by(agenda.pop()):
                record = self.tables.find(object_id)
                maker = record.task if record is not None else None
                if maker is None or len(seen) > LINEAGE_LOOK:
                    return False
                if maker.id not in seen:
                    seen.add(maker.id)
                    agenda.append(maker)
        return True

    # -- freeing --

    def collect(self) -> bool:
        """Free what nobody needs. True if some is left for the next turn."""
        spare = self.tables.spare
        budget = COLLECT_PER_TURN
        while spare and budget:
            budget -= 1
            record = spare.popleft()
            if record.holders is None and record.pins <= 0:
                if record.status == PENDING:
                    if self.tables.streams:
                        self.tables.transitions.append(StreamUnreferenced(record))
                elif not record.fetchers:
                    self._free(record)
        while self.lineage_bytes > self.tables.config.lineage_bytes and self._lineage:
            self.evicted += 1
            self._forget(next(iter(self._lineage.values())))
        return bool(spare)

    def absorb(self) -> bool:
        """Move values from this process's memory into the arena until they are under the limit, a slice a turn.

        True if there are more to look at. Where a whole pass found too little, the next waits until a quarter more has come.
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
                tables.absorbed.append((record.object_id, value, record.task is not None and self.may_be_dropped(record.task)))
                inline.replace(record, Stored(len(value)))
            if inline.total <= limit:
                return False
            if looked >= COLLECT_PER_TURN:
                return True
        self._absorbing = None
        self._absorb_above = inline.total * 5 // 4
        return False

    def clear(self, record: AnyObject) -> None:
        """Free a value, whoever may need it."""
        if type(record.value) is Stored:
            self.tables.freed.append(record.object_id)
        self.tables.inline.replace(record, None)

    def _free(self, record: AnyObject) -> None:
        task = record.task
        if not _is_told_again(record):
            self._empty(record)
        if task is not None and task.function.actor is not None:
            self.tables.transitions.append(ActorUnreferenced(task))
        if self.tables.streams and record.object_id[:TASK_BYTES] in self.tables.streams:
            self.tables.transitions.append(StreamUnreferenced(record))
        if task is None:
            self.tables.objects.pop(record.object_id, None)
            if self.tables.orphans:
                self._forget_orphan(record.object_id)
        elif task.state == DONE and self.tables.tasks.get(task.id) is task:  # Its job may have ended meanwhile.
            self._maybe_forget(task)

    def _empty(self, record: AnyObject) -> None:
        self.clear(record)
        if record.contained:
            contained, record.contained = record.contained, ()
            self.unpin(contained)

    def _forget_orphan(self, object_id: bytes) -> None:
        values = self.tables.orphans.get(object_id[:TASK_BYTES])
        if values is not None:
            values.pop(object_id, None)
            if not values:
                del self.tables.orphans[object_id[:TASK_BYTES]]

    def _maybe_forget(self, task: TaskRecord) -> None:
        named = False
        for value in task.values():
            if value.holders is not None or value.pins > 0 or value.fetchers:
                return
            named = named or value.named > 0
        if not named:
            self._forget(task)
        elif task.rare is None or not task.rare.kept:
            weight = ROW_BYTES + len(task.row[2]) + sum(len(each.value) for each in task.values() if type(each.value) is bytes)
            task.facts().kept = weight
            self.lineage_bytes += weight
            self._lineage[task.id] = task

    def _forget(self, task: TaskRecord) -> None:
        self.revive(task)
        if self.tables.tasks.pop(task.id, None) is None:
            return
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
                record.named -= 1
                if record.named <= 0 and record.status != PENDING:
                    self.tables.spare.append(record)

    def revive(self, task: TaskRecord) -> None:
        """A finished task is lineage no longer: it is to run again, or goes."""
        if task.rare is not None and task.rare.kept:
            self.lineage_bytes -= task.rare.kept
            task.rare.kept = 0
            del self._lineage[task.id]


def _is_told_again(record: AnyObject) -> bool:
    """Whether a value that nobody needs is an error whose row stays: its task is not run again, so who asks again receives it."""
    task = record.task
    return task is not None and task.state == DONE and record.status != OK and any(value.named > 0 for value in task.values())


def is_plain(task: TaskRecord) -> bool:
    """Whether a task has finished with one small value, makes no actor, names nothing, is named by nothing, and has no rare facts."""
    return (
        task.state == DONE
        and task.rare is None
        and not task.pins
        and not task.named
        and type(task.value) is bytes
        and task.fetchers is None
        and not task.contained
        and task.outputs is None
        and len(task.row) == 4
        and not task.row[3]
        and task.function.actor is None
        and task.block is not None
    )


def named_by(task: TaskRecord) -> tuple[bytes, ...]:
    """All objects a row names: dependencies and refs inside its arguments."""
    dependencies: tuple[bytes, ...] = task.row[3]
    return dependencies + task.contains() if len(task.row) > 4 else dependencies


def add_holder(record: AnyObject, process: bytes) -> None:
    """``process`` holds ``record``. Idempotent."""
    holders = record.holders
    if holders is None:
        record.holders = process
    elif type(holders) is set:
        holders.add(process)
    elif holders != process:
        record.holders = {holders, process}  # type: ignore[arg-type]


def holders_of(record: AnyObject) -> frozenset[bytes]:
    """All processes that hold ``record``."""
    holders = record.holders
    return frozenset() if holders is None else frozenset(holders) if isinstance(holders, set) else frozenset({holders})


def drop_holder(record: AnyObject, process: bytes) -> None:
    """``process`` does not hold ``record``. Idempotent."""
    holders = record.holders
    if type(holders) is set:
        holders.discard(process)
        if not holders:
            record.holders = None
    elif holders == process:
        record.holders = None


def row_names(row: Row) -> bool:
    """Whether a row names other objects at all."""
    return bool(row[3]) or len(row) > 4
