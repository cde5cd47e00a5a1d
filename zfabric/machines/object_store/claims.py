"""Recovery of an object store after a daemon's restart: claims on its bytes, gathered until all have arrived.

The arena's index shows the former store's objects. Processes repeat what they hold, the local scheduler what was written and, last, what is
referred to (``RetainOnly``). Until then nothing moves. Then unclaimed files are deleted (``on_disk``), and other claims laid out, those of
the index first. A claim that overlaps an earlier one is void; if a process reads there, the place stays blocked while it lives. Also void
is an object where a process may write now, even its writer: the former store had freed it and given its room away.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.machines.common.extents import HEADER_BYTES, PIECE, Range, Ranges, file_number, footprint, round_up
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address


class Layout(NamedTuple):
    """Objects ``(object_id, offset, size, writer, rebuildable)``, grants ``(offset, size, holder, exact, open)``, free room."""

    objects: list[tuple[bytes, int, int, bytes, bool]]
    pins: dict[bytes, dict[bytes, int]]
    grants: list[tuple[int, int, bytes, bool, Ranges]]
    ready: Ranges
    cold: Ranges


class Disk(NamedTuple):
    """Objects ``(object_id, size, file, writer, rebuildable)``; a pin ``(object_id, process, file)`` per ``Located`` row; files that
    processes may write ``(process, footprint)``; files to delete; the highest number of a file.
    """

    objects: list[tuple[bytes, int, int, bytes, bool]]
    pins: list[tuple[bytes, bytes, int]]
    grants: dict[int, tuple[bytes, int]]
    unlink: list[int]
    last: int


class Claims:
    """All claims. ``deferred`` messages are answered once the store begins."""

    def __init__(self) -> None:
        self.kept: set[bytes] = set()
        self.deferred: list[tuple[Address, m.Message]] = []
        self._files: list[tuple[bytes, int, int]] = []
        self._found: list[tuple[bytes, int, int, bytes, bool]] = []
        self._written: list[tuple[bytes, int, int, bytes, bool]] = []
        self._pinned: list[tuple[bytes, bytes, int, int]] = []
        self._grants: list[tuple[bytes, int, int, int]] = []
        self._arrived: set[type] = set()

    @property
    def complete(self) -> bool:
        """Whether the arena was read and ``RetainOnly`` has come."""
        return self._arrived == {m.ArenaFound, m.RetainOnly}

    def take(self, process: bytes, message: m.Message) -> bool:
        """Record a claim; False for other messages."""
        if isinstance(message, m.ArenaFound):
            self._arrived.add(m.ArenaFound)
            self._found += [(object_id, offset, size, b"", False) for object_id, offset, size in message.sealed]
            self._files += message.spilled
        elif isinstance(message, m.RetainOnly):
            self._arrived.add(m.RetainOnly)
            self.kept.update(message.object_ids)
        elif isinstance(message, m.Sealed):
            self._written += message.rows
        elif isinstance(message, m.Pinned):
            self._pinned += [(process, *row) for row in message.rows]
        elif isinstance(message, m.GrantsHeld):
            self._grants += [(process, *row) for row in message.rows]
        else:
            return False
        return True

    def layout(self, start: int, end: int) -> Layout:
        """The owner of every byte."""
        free = Ranges(((start, end - start),))
        objects: dict[bytes, tuple[bytes, int, int, bytes, bool]] = {}
        facts = {row[:3]: row for row in self._written}
        pinned = [(object_id, offset, size, b"", False) for _, object_id, offset, size in self._pinned]
        written = [row for row in self._written if not self._given_away(row)]
        for row in [*self._found, *pinned, *written]:
            if row[0] not in objects and row[2] >= 0 and _claim(free, row[1] - HEADER_BYTES, footprint(row[2]), start):
                objects[row[0]] = facts.get(row[:3], row)
        pins: dict[bytes, dict[bytes, int]] = {}
        grants: list[tuple[int, int, bytes, bool, Ranges]] = []
        for process, offset, size, used in self._grants:
            for parts in _held(free, offset, size, start, end):
                grants.append((offset, size, process, used > 0, parts))
        for process, object_id, offset, size in self._pinned:
            known = objects.get(object_id)
            if known is not None and known[1:3] == (offset, size):
                pins.setdefault(object_id, {}).setdefault(process, 0)
                pins[object_id][process] += 1
                continue
            for parts in _held(free, offset - HEADER_BYTES, footprint(size), start, end):
                grants += [(begin, length, process, True, Ranges(((begin, length),))) for begin, length in parts]
        ready, cold = _by_temperature(free)
        return Layout(list(objects.values()), pins, grants, ready, cold)

    def on_disk(self) -> Disk:
        """The files' owners. What may still be written is no object."""
        there = {number for _, _, number in self._files}
        grants = {file_number(offset + HEADER_BYTES): (process, size) for process, offset, size, _ in self._grants if offset < 0}
        written = {file_number(row[1]): row for row in self._written if row[1] < 0}
        pins = [(object_id, process, file_number(offset)) for process, object_id, offset, _ in self._pinned if offset < 0]
        read = {number for _, _, number in pins}
        objects: dict[bytes, tuple[bytes, int, int, bytes, bool]] = {}
        unlink: list[int] = []
        # Of two files of one object the older was to be deleted, unless it is read.
        for found_id, found_size, number in sorted(self._files, key=lambda row: (row[2] in read, row[2]), reverse=True):
            if number in grants:
                continue
            object_id, _, size, writer, rebuildable = written.get(number, (found_id, 0, found_size, b"", False))
            if found_id and found_id != object_id:
                object_id, size, writer, rebuildable = found_id, found_size, b"", False
            if object_id and object_id not in objects:
                objects[object_id] = (object_id, size, number, writer, rebuildable)
            else:
                unlink.append(number)
        last = max((*there, *grants, *written, *read), default=0)
        return Disk(list(objects.values()), pins, {number: grant for number, grant in grants.items() if number in there}, unlink, last)

    def _given_away(self, row: tuple[bytes, int, int, bytes, bool]) -> bool:
        """Whether another process may write there, or the writer in unused room."""
        _, offset, size, writer, _ = row
        begin, end = offset - HEADER_BYTES, offset + max(size, 0)
        rooms = ((start, length) for process, start, length, used in self._grants if process != writer or not used)
        return any(begin < start + length and start < end for start, length in rooms)


def _claim(free: Ranges, begin: int, size: int, start: int) -> bool:
    if begin < start or begin % HEADER_BYTES or free.around(begin, size) is None:
        return False
    free.remove(begin, size)
    return True


def _held(free: Ranges, begin: int, size: int, start: int, end: int) -> list[Ranges]:
    if begin < start or begin + size > end or begin % HEADER_BYTES or size % HEADER_BYTES or size < 0:
        return []
    parts = Ranges()
    for first, length in free:
        low, high = max(first, begin), min(first + length, begin + size)
        if low < high:
            free.remove(low, high - low)
            parts.add(low, high - low)
    return [parts] if parts.total else []


def _by_temperature(free: Ranges) -> tuple[Ranges, Ranges]:
    """Free room: whole pieces are cold, the rest ready."""
    ready, cold = Ranges(), Ranges()
    for start, size in free:
        spans: list[Range] = [(start, start + size)]
        first, last = round_up(start, PIECE), (start + size) // PIECE * PIECE
        if first < last:
            cold.add(first, last - first)
            spans = [(start, first), (last, start + size)]
        for low, high in spans:
            ready.add(low, high - low)
    return ready, cold
