"""What the object store knows, and the few transitions everything there is made of.

An entry is *settled* after each change: it is put into the table it belongs to by now, and ends if it is freed and in
nobody's hands.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque

from zfabric.machines.common.extents import HEADER_BYTES, FreeSpace, Ranges, Taken, file_offset, footprint
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m

SEALED, SPILLING, SPILLED, WAITING, RESTORING, CHECKING = "sealed", "spilling", "spilled", "waiting", "restoring", "checking"
"""In the arena; being copied to disk; on disk only, where it may be read; waiting for room in the arena; being read into it;
being checked on disk before it is read there."""

GONE_MAX = 4096
"""Dead processes remembered, so that what they said before they died gives them nothing."""
HINTS_MAX = 8
"""Ranges remembered per process as last written by it."""


class StoreEntry:
    """An object. ``offset`` is that of its payload, None while it is not in the arena; ``value`` waits to be moved in.

    ``pins`` counts tellings by process; ``asked`` lists the processes to tell once it is there; ``freed`` says that nobody
    refers to it any more; ``on_disk``, that ``file`` has a copy. ``file`` is the number of its file, also while that is being written.
    ``fresh``: its writer has just written that, and need not have it checked.
    """

    __slots__ = (
        "asked",
        "file",
        "freed",
        "fresh",
        "object_id",
        "offset",
        "on_disk",
        "pins",
        "rebuildable",
        "recalled",
        "size",
        "state",
        "value",
        "writer",
    )

    def __init__(self, object_id: bytes, size: int, state: str, offset: int | None, writer: bytes, rebuildable: bool) -> None:
        self.object_id = object_id
        self.size = size
        self.state = state
        self.offset = offset
        self.writer = writer
        self.rebuildable = rebuildable
        self.value: bytes | None = None
        self.file = 0
        self.on_disk = False
        self.freed = False
        self.fresh = False
        self.pins: dict[bytes, int] = {}
        self.asked: list[bytes] = []
        self.recalled = float("-inf")

    @property
    def room(self) -> int:
        """Bytes of the arena it takes."""
        return footprint(self.size)

    @property
    def place(self) -> int:
        """Where it is read: its offset in the arena, or the one that stands for its file."""
        return file_offset(self.file) if self.offset is None else self.offset

    def lies_at(self, offset: int) -> bool:
        """Whether there is a copy at this place that may be read."""
        if offset < 0:
            return self.on_disk and file_offset(self.file) == offset and self.state in (SEALED, SPILLED)
        return self.offset == offset and self.state in (SEALED, SPILLING)


class StoreGrant:
    """A range that ``holder`` may write; ``open`` is what of it has not become an object.

    ``parked`` is what became one and is free again: it stays with the grant until that ends, so that no two grants overlap and
    the range comes back in one piece.
    """

    __slots__ = ("end", "exact", "holder", "offset", "open", "parked", "recalled", "returned")

    def __init__(self, offset: int, size: int, holder: bytes, exact: bool, open: Ranges) -> None:
        self.offset = offset
        self.end = offset + size
        self.parked = Ranges()
        self.holder = holder
        self.exact = exact
        self.open = open
        self.returned = False
        self.recalled = float("-inf")


class Waiter:
    """Someone in the queue for ``need`` bytes: a process for a grant (``entry`` None), or an object."""

    __slots__ = ("cancelled", "deadline", "entry", "need", "process", "queued", "size", "token", "wish")

    def __init__(self, size: int, deadline: float, wish: int = 0, entry: StoreEntry | None = None) -> None:
        self.size = size
        self.need = footprint(size)
        self.deadline = deadline
        self.wish = wish
        self.entry = entry
        self.process = b""
        self.token = 0
        self.queued = False
        self.cancelled = False

    @property
    def exact(self) -> bool:
        """Whether it wants room for one object and nothing besides."""
        return not self.wish


class Preparation:
    """Room being made ready, for ``waiter`` or (None) ahead of demand; ``pending`` parts are not answered for yet."""

    __slots__ = ("failed", "pending", "taken", "waiter")

    def __init__(self, taken: Taken, waiter: Waiter | None) -> None:
        self.taken = taken
        self.waiter = waiter
        self.pending: dict[int, int] = {}
        self.failed: list[tuple[int, int]] = []


class FileGrant:
    """A file that ``holder`` may write one object to, whose footprint is ``room``."""

    __slots__ = ("holder", "room")

    def __init__(self, holder: bytes, room: int) -> None:
        self.holder = holder
        self.room = room


class StoreTables:
    """Every table of the store, and what is to be said and done next."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.capacity = end - start
        self.space = FreeSpace(start, end)
        self.entries: dict[bytes, StoreEntry] = {}
        self.idle: dict[bytes, StoreEntry] = {}
        """Sealed, unpinned and referred to, least recently used first: what can make room."""
        self.pinned: dict[bytes, StoreEntry] = {}
        """Those with pins, the one told longest ago first."""
        self.grants: dict[int, StoreGrant] = {}
        self.grant_starts: list[int] = []
        self.queue: deque[Waiter] = deque()
        self.preparing: dict[int, Preparation] = {}
        self.files: dict[int, FileGrant] = {}
        """Files that processes may write, by number."""
        self.making: dict[int, Waiter] = {}
        """Files being made, by number, and for whom."""
        self.last_file = 0
        """The highest number of a file so far; none is used again."""
        self.spilling = 0
        self.gone: dict[bytes, None] = {}
        self.hints: dict[bytes, deque[tuple[int, int]]] = {}
        self.freed_some = False
        self.disk_error = self.memory_error = ""
        self.effects: list[e.Effect] = []
        self.located: list[m.Row] = []
        self.lost: dict[bytes, str] = {}
        self.unlink: list[int] = []
        counted = ("spills", "restores", "evictions", "recalls", "refused", "full", "copies_dropped", "written_on_disk", "read_on_disk")
        self.counts = dict.fromkeys(counted, 0)

    # -- objects --

    def enter(self, entry: StoreEntry) -> None:
        """An object begins."""
        self.entries[entry.object_id] = entry
        self.settle(entry)

    def settle(self, entry: StoreEntry) -> None:
        """Put an object into the table it belongs to by now; one that is freed and in nobody's hands ends here."""
        object_id = entry.object_id
        if entry.pins:
            self.pinned.setdefault(object_id, entry)
        else:
            self.pinned.pop(object_id, None)
        if entry.freed and not entry.pins and entry.state in (SEALED, SPILLED, WAITING):
            self.end_of(entry, "missing")
        elif entry.state == SEALED and not entry.pins:
            self.idle.setdefault(object_id, entry)
        else:
            self.idle.pop(object_id, None)

    def revive(self, entry: StoreEntry) -> None:
        """An object that may have been freed is referred to again."""
        entry.freed = False
        self.settle(entry)

    def pin(self, entry: StoreEntry, process: bytes) -> None:
        """One more telling to ``process``."""
        entry.pins[process] = entry.pins.get(process, 0) + 1
        self.pinned.pop(entry.object_id, None)
        self.settle(entry)

    def tell(self, entry: StoreEntry, process: bytes) -> None:
        """Pin the object and say where it is."""
        self.pin(entry, process)
        entry.fresh = False
        self.located.append((entry.object_id, process, entry.place, entry.size))

    def tell_askers(self, entry: StoreEntry) -> None:
        """Tell all who asked for the object while it could not be read."""
        asked, entry.asked = entry.asked, []
        for process in asked:
            self.tell(entry, process)
        self.settle(entry)

    def end_of(self, entry: StoreEntry, reason: str) -> None:
        """Forget an object: its room and its copy on disk are free, those who asked for it learn that it is lost."""
        object_id = entry.object_id
        self.idle.pop(object_id, None)
        self.pinned.pop(object_id, None)
        del self.entries[object_id]
        if entry.asked:
            self.lost[object_id] = reason
        if entry.state == WAITING:
            for waiter in self.waiters():
                waiter.cancelled = waiter.cancelled or waiter.entry is entry
        self.vacate(entry)
        if entry.on_disk:
            self.unlink.append(entry.file)

    def vacate(self, entry: StoreEntry) -> None:
        """Give back the room of an object in the arena, if it has any."""
        offset, entry.offset = entry.offset, None
        if offset is not None:
            self.effects.append(e.WriteHeader(offset, e.FREED))
            self.give_up(offset - HEADER_BYTES, entry.room, entry.writer)

    def waiters(self) -> list[Waiter]:
        """All who wait for room, also for room that is being made ready for them."""
        waiting = [p.waiter for p in self.preparing.values() if p.waiter is not None]
        return [*self.queue, *waiting, *self.making.values()] if waiting or self.making else list(self.queue)

    def new_file(self) -> int:
        """The number of a file that does not exist yet."""
        self.last_file += 1
        return self.last_file

    def close_file(self, number: int) -> None:
        """Nobody will write to this file: it goes."""
        del self.files[number]
        self.unlink.append(number)

    # -- room --

    def give_up(self, start: int, size: int, writer: bytes) -> None:
        """The room of an object is free, at once or with the grant it lies in."""
        grant = self.grant_of(start)
        if grant is not None:
            grant.parked.add(start, size)
        else:
            self.release(start, size, writer)

    def release(self, start: int, size: int, writer: bytes) -> None:
        """These bytes are free and ready; ``writer`` has them mapped, so it gets them first."""
        self.space.free(start, size)
        self.freed_some = True
        if writer and writer not in self.gone:
            hints = self.hints.setdefault(writer, deque(maxlen=HINTS_MAX))
            if hints and sum(hints[-1]) == start:
                before = hints.pop()
                start, size = before[0], before[1] + size
            hints.append((start, size))

    def take_ready(self, process: bytes, size: int) -> int | None:
        """Take ready room, where the process wrote before if that is free."""
        hints = self.hints.get(process, ())
        for start, length in tuple(hints):
            if length >= size and self.space.take_at(start, size):
                at = self.hints[process].index((start, length))
                if length > size:
                    self.hints[process][at] = (start + size, length - size)
                else:
                    del self.hints[process][at]
                return start
        return self.space.take_ready(size)

    def add_grant(self, grant: StoreGrant) -> None:
        """A process may write."""
        self.grants[grant.offset] = grant
        insort(self.grant_starts, grant.offset)

    def close_grant(self, grant: StoreGrant) -> None:
        """End a grant; what of it is no object is free."""
        for start, size in sorted([*grant.open, *grant.parked]):
            self.release(start, size, grant.holder)
        del self.grants[grant.offset]
        del self.grant_starts[bisect_right(self.grant_starts, grant.offset) - 1]

    def grant_of(self, offset: int) -> StoreGrant | None:
        """The grant whose range ``offset`` is in."""
        index = bisect_right(self.grant_starts, offset)
        grant = self.grants[self.grant_starts[index - 1]] if index else None
        return grant if grant is not None and offset < grant.end else None

    def in_grants(self) -> int:
        """Bytes in grants that a process may still fill as it likes."""
        return sum(grant.open.total for grant in self.grants.values() if not grant.exact)

    def forget_process(self, process: bytes) -> None:
        """A process is dead: it reads, writes and waits no more."""
        self.gone[process] = None
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]
        self.hints.pop(process, None)
        for waiter in self.waiters():
            if waiter.entry is None:
                waiter.cancelled = waiter.cancelled or waiter.process == process
        for grant in [grant for grant in self.grants.values() if grant.holder == process]:
            self.close_grant(grant)
        for number in [number for number, file in self.files.items() if file.holder == process]:
            self.close_file(number)
        for entry in list(self.entries.values()):
            if process in entry.asked:
                entry.asked = [other for other in entry.asked if other != process]
            if entry.pins.pop(process, None):
                self.settle(entry)
