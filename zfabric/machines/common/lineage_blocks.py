"""Task rows in blocks: how lineage is stored at a fraction of a microsecond a row.

A row of the "task" table is a *block*: up to 1,024 successive children of one parent. They are of one *run*: their counters agree
but for the lowest ten bits. The key of a block is the id of its first task. So one ordered look-up finds the block of a task: the
largest key that is not past the task's id.

Four rules make that complete:

- A block is written once; rows of the same run that come later go into a further block. So blocks of one run may interleave, and a
  look-up that misses goes on to the block before, down to the beginning of the run.
- A row that is dropped before its block is written is never written (most tasks of most programs end that way). When the last row
  of a written block is dropped, the block is deleted. When less than a quarter of its rows are left, it is written again with these.
- A row that is withdrawn is gone with the next flush. So are rows of that task which were dropped before, and which are still in written
  blocks of its run: the task may have come again in between.
- A block may begin with the id that is the key of another block, if a task's row was dropped and came again. Then one more byte is
  appended to its key, which sorts directly behind.

One writer owns the blocks of a parent; the control store only looks into them (``read_rows``).

The home of a job has rows of other homes, too, which are entrusted to it. Such a row has one more option: its home, and the homes of what
it names.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import msgpack

from zfabric.protocol.ids import PREFIX_BYTES, TASK_BYTES, pack_counter, unpack_counter
from zfabric.protocol.messages import Row, Rows

TABLE = "task"
BLOCK_ROWS = 1024
"""Most rows in a block: one run. 1,024 rows pack in about 0.3 ms and make some 100 kB."""
ENTRUSTED = "entrusted"
_LAST_SUFFIX = b"\xff"
_REWRITE_BELOW = 4
"""A written block is written again once fewer than one in this many of its rows are alive."""

Floor = Callable[[str, bytes, bytes], "tuple[bytes, bytes] | None"]
"""(table, prefix, key) -> the row with the largest key that starts with ``prefix`` and is not past ``key``."""


class LineageBlock:
    """The rows of one run that were written together: ``low`` … ``high`` bound the ids, ``key`` is empty until written."""

    __slots__ = ("high", "key", "low", "rows", "since", "written")

    def __init__(self, low: bytes, high: bytes) -> None:
        self.low = low
        self.high = high
        self.rows: dict[bytes, Row] = {}
        self.key = b""
        self.written = 0
        self.since: float | None = None
        """Time of its first row; the others followed soon after. None if that was before a restart."""


def run_of(task_id: bytes) -> tuple[bytes, bytes]:
    """The first and the last id of the run that ``task_id`` belongs to."""
    counter = unpack_counter(task_id[PREFIX_BYTES:TASK_BYTES])[0]
    first = counter & ~(BLOCK_ROWS - 1)
    prefix = task_id[:PREFIX_BYTES]
    return prefix + pack_counter(first), prefix + pack_counter(first | (BLOCK_ROWS - 1))


def pack_block(rows: list[Row]) -> bytes:
    """Pack the rows of a block as its value."""
    packed: bytes = msgpack.packb(rows, use_bin_type=True)
    return packed


def read_block(value: bytes) -> tuple[Row, ...]:
    """Unpack the task rows of a block's value."""
    rows: tuple[Row, ...] = msgpack.unpackb(value, use_list=False, raw=False, strict_map_key=False)
    return rows


def entrusted_row(row: Row, home: bytes, homes: Rows) -> Row:
    """A row of another home, as it is stored: ``homes`` are rows ``(object, home)`` of what it names."""
    options = row[4] if len(row) > 4 and row[4] else ()
    return (*row[:4], (*options, (ENTRUSTED, (home, homes))))


def split_row(row: Row) -> tuple[Row, bytes, Rows]:
    """A stored row without its mark, its home, and the homes of what it names. Of a row that is at home here the home is empty.

    >>> row = (bytes(16), bytes(16), b"", (), (("name", "Ada"),))
    >>> split_row(entrusted_row(row, b"node B", ())) == (row, b"node B", ()) and split_row(row) == (row, b"", ())
    True
    """
    options = row[4] if len(row) > 4 else None
    if not options or options[-1][0] != ENTRUSTED:
        return row, b"", ()
    home, homes = options[-1][1]
    return (*row[:4], options[:-1]) if len(options) > 1 else row[:4], home, homes


def read_rows(task_ids: tuple[bytes, ...], floor: Floor) -> Iterator[tuple[bytes, Row]]:
    """``(task id, row)`` for those of ``task_ids`` whose rows are kept. Neighbours cost one decoded block together."""
    decoded: dict[bytes, dict[bytes, Row]] = {}
    for task_id in task_ids:
        low = run_of(task_id)[0]
        key = task_id + _LAST_SUFFIX
        while True:
            found = floor(TABLE, task_id[:PREFIX_BYTES], key)
            if found is None or found[0] < low:
                break
            rows = decoded.get(found[0])
            if rows is None:
                if len(decoded) >= 8:
                    decoded.clear()
                rows = decoded[found[0]] = {row[0]: row for row in read_block(found[1])}
            row = rows.get(task_id)
            if row is not None:
                yield task_id, split_row(row)[0]
                break
            before = _before(found[0])
            if before is None:
                break
            key = before


def _before(key: bytes) -> bytes | None:
    """An upper bound for the keys of all blocks before ``key``."""
    if len(key) > TASK_BYTES:
        suffix = key[TASK_BYTES]
        return key[:TASK_BYTES] + bytes((suffix - 1,)) if suffix else key[:TASK_BYTES]
    counter = unpack_counter(key[PREFIX_BYTES:])[0]
    return key[:PREFIX_BYTES] + pack_counter(counter - 1) + _LAST_SUFFIX if counter else None


def _free_key(task_id: bytes, kept: Container[bytes]) -> bytes:
    if task_id not in kept:
        return task_id
    return next(key for suffix in range(255) if (key := task_id + bytes((suffix,))) not in kept)


class BlockWriter:
    """The blocks of one local scheduler.

    >>> writer = BlockWriter()
    >>> task = bytes(16)
    >>> block = writer.add((task, bytes(16), b"", ()))
    >>> writer.drop(task, block)
    >>> writer.flush()
    ([], [])
    """

    def __init__(self) -> None:
        self._open: dict[bytes, LineageBlock] = {}
        self._kept: dict[bytes, dict[bytes, LineageBlock]] = {}
        """Written blocks by their run (``low``), then by key."""
        self._changed: dict[bytes, LineageBlock] = {}
        self._current = _NOTHING
        self.now: float | None = None
        """The time of the rows that are added now."""

    def add(self, row: Row) -> LineageBlock:
        """Add a task row and return its block, which ``drop`` takes. A row that is added again before it was written replaces itself."""
        task_id = row[0]
        block = self._current
        if not block.low <= task_id <= block.high:
            block = self._current = self._open_for(task_id)
        block.rows[task_id] = row
        return block

    def drop(self, task_id: bytes, block: LineageBlock) -> None:
        """Release a row. Releasing it twice is harmless."""
        rows = block.rows
        if rows.pop(task_id, None) is None:
            return
        if block.written:
            if block.written > len(rows) * _REWRITE_BELOW:
                self._changed[block.key] = block
        elif not rows:
            del self._open[block.low]
            self._current = _NOTHING

    def withdraw(self, task_id: bytes, block: LineageBlock) -> None:
        """Withdraw a row that no later daemon may run again: the next flush removes it, whatever else is in its block."""
        if task_id in block.rows:
            self.drop(task_id, block)
            for each in self._kept.get(block.low, {}).values():
                if each.written > len(each.rows):
                    self._changed[each.key] = each

    def flush(self, rows_max: int = 16 * BLOCK_ROWS) -> tuple[list[tuple[str, bytes, bytes]], list[tuple[str, bytes]]]:
        """Puts and deletes for the control store, of about ``rows_max`` rows; ``pending`` says whether any are left."""
        puts: list[tuple[str, bytes, bytes]] = []
        deletes: list[tuple[str, bytes]] = []
        self._current = _NOTHING
        while self._changed and rows_max > 0:
            key, block = self._changed.popitem()
            rows_max -= len(block.rows) or 1
            if block.rows:
                puts.append(self._written(block))
            else:
                kept = self._kept[block.low]
                del kept[key]
                if not kept:
                    del self._kept[block.low]
                deletes.append((TABLE, key))
        while self._open and rows_max > 0:
            block = self._open.pop(next(iter(self._open)))
            kept = self._kept.setdefault(block.low, {})
            block.key = _free_key(min(block.rows), kept)
            kept[block.key] = block
            rows_max -= len(block.rows)
            puts.append(self._written(block))
        freed = {key for _, key, _ in puts}
        return puts, [delete for delete in deletes if delete[1] not in freed]

    @property
    def pending(self) -> bool:
        """Whether ``flush`` has anything to write."""
        return bool(self._changed or self._open)

    def adopt(self, key: bytes, value: bytes) -> LineageBlock:
        """Take over a block found in the control store, after a restart. Its rows are alive until they are dropped."""
        block = LineageBlock(*run_of(key))
        block.key = key
        block.rows = {row[0]: row for row in read_block(value)}
        block.written = len(block.rows)
        self._kept.setdefault(block.low, {})[key] = block
        return block

    def statistics(self) -> dict[str, float]:
        """Blocks and rows kept, and rows not written yet."""
        return {
            "lineage_blocks": sum(map(len, self._kept.values())),
            "lineage_rows": sum(len(block.rows) for kept in self._kept.values() for block in kept.values()),
            "lineage_unwritten": sum(len(block.rows) for block in self._open.values()),
        }

    def _open_for(self, task_id: bytes) -> LineageBlock:
        low, high = run_of(task_id)
        block = self._open.get(low)
        if block is None:
            block = self._open[low] = LineageBlock(low, high)
            block.since = self.now
        return block

    def _written(self, block: LineageBlock) -> tuple[str, bytes, bytes]:
        block.written = len(block.rows)
        return TABLE, block.key, pack_block(list(block.rows.values()))


_NOTHING = LineageBlock(b"\xff", b"")
"""A block that no id belongs to."""
