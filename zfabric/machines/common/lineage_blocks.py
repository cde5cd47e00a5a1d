"""Task rows in blocks: stores lineage at a fraction of a microsecond per row.

A row of the "task" table is a *block*: up to 1,024 children of one parent and one *run* (counters that agree but for the lowest ten bits).
Its key is its first task's id, so one ordered look-up finds a task's block: the largest key up to the id.

- A block is written once; later rows of the run go into a further one. Blocks of a run may interleave, so a look-up that misses goes back
  block by block to the run's beginning.
- A row dropped before its block is written, as most are, is never written. A block is written again with less than a quarter of its rows
  alive, and deleted with none.
- A withdrawn row is gone with the next flush, with earlier dropped rows of that task in other blocks.
- If a task's row was dropped and came again, a block's first id may be another block's key: one more byte is appended, which sorts directly
  behind.

One writer owns a parent's blocks; the control store only reads them (``read_rows``). A row that another home has entrusted to a job's home
has one more option: its home, and the homes of what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import msgpack

from zfabric.protocol.ids import PREFIX_BYTES, TASK_BYTES, pack_counter, unpack_counter
from zfabric.protocol.messages import Row, Rows

TABLE = "task"
BLOCK_ROWS = 1024
"""They pack in about 0.3 ms into some 100 kB."""
ENTRUSTED = "entrusted"
_LAST_SUFFIX = b"\xff"
_REWRITE_BELOW = 4
"""Rewrite a block with fewer than one in so many rows alive."""

Floor = Callable[[str, bytes, bytes], "tuple[bytes, bytes] | None"]
"""(table, prefix, key) -> the row with the largest key that starts with ``prefix`` and is not past ``key``."""


class LineageBlock:
    """Rows written together, with ids ``low`` … ``high``. ``key`` is empty until written."""

    __slots__ = ("high", "key", "low", "rows", "since", "written")

    def __init__(self, low: bytes, high: bytes) -> None:
        self.low = low
        self.high = high
        self.rows: dict[bytes, Row] = {}
        self.key = b""
        self.written = 0
        self.since: float | None = None
        """Time of its first row; None if before a restart."""


def run_of(task_id: bytes) -> tuple[bytes, bytes]:
    """First and last id of its run."""
    counter = unpack_counter(task_id[PREFIX_BYTES:TASK_BYTES])[0]
    first = counter & ~(BLOCK_ROWS - 1)
    prefix = task_id[:PREFIX_BYTES]
    return prefix + pack_counter(first), prefix + pack_counter(first | (BLOCK_ROWS - 1))


def pack_block(rows: list[Row]) -> bytes:
    """Pack a block's rows as its value."""
    packed: bytes = msgpack.packb(rows, use_bin_type=True)
    return packed


def read_block(value: bytes) -> tuple[Row, ...]:
    """Unpack the rows of a block's value."""
    rows: tuple[Row, ...] = msgpack.unpackb(value, use_list=False, raw=False, strict_map_key=False)
    return rows


def entrusted_row(row: Row, home: bytes, homes: Rows) -> Row:
    """Another home's row, as stored. ``homes``: rows ``(object, home)`` of what it names."""
    options = row[4] if len(row) > 4 and row[4] else ()
    return (*row[:4], (*options, (ENTRUSTED, (home, homes))))


def split_row(row: Row) -> tuple[Row, bytes, Rows]:
    """(row, home, homes of what it names) of a stored row; the home is empty for a row at home here.

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
    """``(task id, row)`` of existing rows. Neighbours share one decoded block."""
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
    """An upper bound of earlier blocks' keys."""
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
        """By run (``low``), then key."""
        self._changed: dict[bytes, LineageBlock] = {}
        self._current = _NOTHING
        self.now: float | None = None
        """Time of rows added now."""

    def add(self, row: Row) -> LineageBlock:
        """Add a row, or replace it before it is written; return its block, for ``drop``."""
        task_id = row[0]
        block = self._current
        if not block.low <= task_id <= block.high:
            block = self._current = self._open_for(task_id)
        block.rows[task_id] = row
        return block

    def drop(self, task_id: bytes, block: LineageBlock) -> None:
        """Release a row. Idempotent."""
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
        """Remove a row with the next flush: no later daemon may run its task."""
        if task_id in block.rows:
            self.drop(task_id, block)
            for each in self._kept.get(block.low, {}).values():
                if each.written > len(each.rows):
                    self._changed[each.key] = each

    def flush(self, rows_max: int = 16 * BLOCK_ROWS) -> tuple[list[tuple[str, bytes, bytes]], list[tuple[str, bytes]]]:
        """Puts and deletes of about ``rows_max`` rows. More may be ``pending``."""
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
        """Take over a block after a restart. Its rows are alive until dropped."""
        block = LineageBlock(*run_of(key))
        block.key = key
        block.rows = {row[0]: row for row in read_block(value)}
        block.written = len(block.rows)
        self._kept.setdefault(block.low, {})[key] = block
        return block

    def statistics(self) -> dict[str, float]:
        """Counts of blocks and rows."""
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
