"""Ranges of the arena's bytes, and its free space.

The arena is cut into *pieces* of 2 MiB. Free room is tracked by the byte where *ready* (its memory exists), by the piece where *cold*
(touching it would allocate). Freed room is ready; whole free pieces can be made cold again. The file's layout:

    0 … data_start        the index: what a restarted daemon reads to find the sealed objects
    data_start … end      objects, each a header of 64 bytes and then its payload, both aligned to 64 bytes

An object without room lies in a numbered file. Its place looks alike: a negative offset names the file (``file_offset``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from zfabric.protocol.machine import InvariantViolation

ALIGNMENT = 64
"""For vector instructions and numpy."""
HEADER_BYTES = 64
PIECE = 2 * 2**20
"""A huge page."""
INDEX_ENTRY_BYTES = 64
INDEX_SHARE = 4096
"""Values up to 64 KiB are rarely here, so entries suffice."""

SCARCE_SHARE = 4
"""Room is scarce if less than one part in so many is free."""

Range = tuple[int, int]
"""``(start, size)`` in bytes."""


def round_up(size: int, step: int) -> int:
    """The least multiple of ``step`` not below ``size``."""
    return -(-size // step) * step


def footprint(size: int) -> int:
    """Bytes that a payload takes."""
    return HEADER_BYTES + round_up(size, ALIGNMENT)


def arena_bytes(wanted: int) -> int:
    """Whole pieces: at least one each for the index and for objects."""
    return max(round_up(wanted, PIECE), 2 * PIECE)


def data_start(size: int) -> int:
    """Where objects begin in a file of ``size`` bytes."""
    return round_up(size // INDEX_SHARE * INDEX_ENTRY_BYTES, PIECE)


def file_offset(number: int) -> int:
    """The negative payload offset of spilled file ``number`` (1 or more)."""
    return -number * HEADER_BYTES


def file_number(offset: int) -> int:
    """The file of a negative payload offset."""
    return -offset // HEADER_BYTES


class Ranges:
    """Disjoint ranges, merged where they touch, with searches for room."""

    __slots__ = ("_by_size", "_sizes", "_starts", "total")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._by_size: list[Range] = []
        self.total = 0
        for start, size in ranges:
            self.add(start, size)

    def __iter__(self) -> Iterator[Range]:
        return iter([(start, self._sizes[start]) for start in self._starts])

    def __len__(self) -> int:
        return len(self._starts)

    def _insert(self, start: int, size: int) -> None:
        insort(self._starts, start)
        self._sizes[start] = size
        insort(self._by_size, (size, start))

    def _delete(self, start: int) -> int:
        del self._starts[bisect_left(self._starts, start)]
        size = self._sizes.pop(start)
        del self._by_size[bisect_left(self._by_size, (size, start))]
        return size

    def add(self, start: int, size: int) -> None:
        """Add a range that overlaps no other."""
        if size <= 0:
            return
        self.total += size
        index = bisect_left(self._starts, start)
        following = self._starts[index] if index < len(self._starts) else None
        if following is not None and following < start + size:
            raise InvariantViolation(f"the range at {start} + {size} overlaps the one at {following}")
        if index:
            before = self._starts[index - 1]
            end = before + self._sizes[before]
            if end > start:
                raise InvariantViolation(f"the range at {start} + {size} overlaps the one at {before}")
            if end == start:
                size += self._delete(before)
                start = before
        if following is not None and following == start + size:
            size += self._delete(following)
        self._insert(start, size)

    def around(self, start: int, size: int) -> Range | None:
        """The range around ``start … start + size``, if any."""
        index = bisect_right(self._starts, start)
        if not index:
            return None
        begin = self._starts[index - 1]
        whole = self._sizes[begin]
        return (begin, whole) if begin + whole >= start + size else None

    def remove(self, start: int, size: int) -> None:
        """Remove a part, all of which is here."""
        if size <= 0:
            return
        whole = self.around(start, size)
        if whole is None:
            raise InvariantViolation(f"the range at {start} + {size} is not here")
        begin, length = whole
        self._delete(begin)
        if start > begin:
            self._insert(begin, start - begin)
        if begin + length > start + size:
            self._insert(start + size, begin + length - start - size)
        self.total -= size

    def lowest(self, size: int) -> Range | None:
        """The lowest range of at least ``size`` bytes."""
        if self._by_size and self._by_size[-1][0] >= size:
            for start in self._starts:
                if self._sizes[start] >= size:
                    return start, self._sizes[start]
        return None

    def smallest(self, size: int) -> Range | None:
        """The smallest range of at least ``size`` bytes, the lowest of those."""
        index = bisect_left(self._by_size, (size, -1))
        if index == len(self._by_size):
            return None
        length, start = self._by_size[index]
        return start, length

    def total_from(self, size: int) -> int:
        """Bytes in ranges of at least ``size``."""
        return sum(length for length, _ in self._by_size[bisect_left(self._by_size, (size, -1)) :])


class Taken:
    """Taken room; its ``cold`` parts are to be made ready."""

    __slots__ = ("cold", "ready", "size", "start")

    def __init__(self, start: int, size: int, ready: list[Range], cold: list[Range]) -> None:
        self.start = start
        self.size = size
        self.ready = ready
        self.cold = cold


class FreeSpace:
    """The free part of ``start … end``, all cold at first."""

    def __init__(self, start: int, end: int) -> None:
        self.size = end - start
        self.ready = Ranges()
        self.cold = Ranges(((start, (end - start) // PIECE * PIECE),))

    @property
    def total(self) -> int:
        """Free bytes, ready or cold."""
        return self.ready.total + self.cold.total

    def take_ready(self, size: int) -> int | None:
        """Take ready bytes, the lowest that are free: processes have mapped their pages before.

        Where room is scarce, take the smallest range that has them, which leaves larger ranges whole.
        """
        scarce = self.total < self.size // SCARCE_SHARE
        found = self.ready.smallest(size) if scarce else self.ready.lowest(size)
        if found is None:
            return None
        self.ready.remove(found[0], size)
        return found[0]

    def take_cold(self, size: int) -> Taken | None:
        """Take whole cold pieces."""
        pieces = round_up(size, PIECE)
        found = self.cold.smallest(pieces)
        if found is None:
            return None
        self.cold.remove(found[0], pieces)
        return Taken(found[0], size, [], [(found[0], pieces)])

    def take_mixed(self, size: int) -> Taken | None:
        """Take bytes that run through ready and cold ranges, if possible."""
        run: list[tuple[int, int, bool]] = []
        for start, length, cold in sorted([(*r, False) for r in self.ready] + [(*r, True) for r in self.cold]):
            if run and run[-1][0] + run[-1][1] != start:
                run = []
            run.append((start, length, cold))
            if start + length - run[0][0] >= size:
                return self._take_run(run, size)
        return None

    def _take_run(self, run: list[tuple[int, int, bool]], size: int) -> Taken:
        begin = run[0][0]
        taken = Taken(begin, size, [], [])
        for start, length, cold in run:
            wanted = min(length, begin + size - start)
            if cold:
                wanted = round_up(wanted, PIECE)
                self.cold.remove(start, wanted)
                taken.cold.append((start, wanted))
            else:
                self.ready.remove(start, wanted)
                taken.ready.append((start, wanted))
        return taken

    def free(self, start: int, size: int) -> None:
        """Free these ready bytes."""
        self.ready.add(start, size)

    def freeze(self, start: int, size: int) -> None:
        """Free these whole pieces as cold."""
        self.cold.add(start, size)

    def cool(self, excess: int) -> list[Range]:
        """Turn at most ``excess`` bytes of ready pieces cold, small ranges first; return them."""
        cooled: list[Range] = []
        for size, start in sorted((size, start) for start, size in self.ready if size >= PIECE):
            first = round_up(start, PIECE)
            pieces = min((start + size - first) // PIECE, excess // PIECE)
            if pieces > 0:
                self.ready.remove(first, pieces * PIECE)
                self.cold.add(first, pieces * PIECE)
                cooled.append((first, pieces * PIECE))
                excess -= pieces * PIECE
        return cooled
