"""The object store's tables, and the transitions of its operations.

Each change of an entry ends with ``settle``, which moves it into its state's table, and removes it once freed and held by nobody.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque

from zfabric.machines.common.extents import HEADER_BYTES, FreeSpace, Ranges, Taken, file_offset, footprint
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m

SEALED, SPILLING, SPILLED, WAITING, RESTORING, CHECKING = "sealed", "spilling", "spilled", "waiting", "restoring", "checking"
"""The states: in the arena; being copied to disk; readable on disk only; waiting for room; being read back; on disk, being checked before
readers map the file.
"""

GONE_MAX = 4096
"""Remembered dead processes, whose late messages change nothing."""


class StoreEntry:
    """An object. ``offset`` is the payload's, None outside the arena; ``value`` is an inline value on its way there.

    ``pins`` counts ``Located`` rows by process; ``asked`` processes wait. ``freed``: without refs. ``file`` is the file's number, also
    while the file is written; ``on_disk``: it has a copy; ``fresh``: just written by the writer, so that it needs no check.
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
        """Bytes in the arena."""
        return footprint(self.size)

    @property
    def place(self) -> int:
        """The object's offset, or the one that stands for its file."""
        return file_offset(self.file) if self.offset is None else self.offset

    def lies_at(self, offset: int) -> bool:
        """Whether a readable copy is there."""
        if offset < 0:
            return self.on_disk and file_offset(self.file) == offset and self.state in (SEALED, SPILLED)
        return self.offset == offset and self.state in (SEALED, SPILLING)


class StoreGrant:
    """A range that ``holder`` may write; ``open`` is what has not become an object.

    ``parked`` was objects that are gone, or abandoned writes. It returns with the grant: grants never overlap, and ranges come back whole.
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
    """A place in the queue for ``need`` bytes, for a grant (``entry`` None) or an object."""

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
        """Whether the room is for one object only."""
        return not self.wish


class Preparation:
    """Room being made ready for ``waiter`` or (None) ahead of demand; ``pending`` parts have no answer yet."""

    __slots__ = ("failed", "pending", "taken", "waiter")

    def __init__(self, taken: Taken, waiter: Waiter | None) -> None:
        self.taken = taken
        self.waiter = waiter
        self.pending: dict[int, int] = {}
        self.failed: list[tuple[int, int]] = []


class FileGrant:
    """A file for one object of footprint ``room``, written by ``holder``."""

    __slots__ = ("holder", "room")

    def __init__(self, holder: bytes, room: int) -> None:
        self.holder = holder
        self.room = room


class StoreTables:
    """All tables, with the next turn's effects and rows."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.capacity = end - start
        self.space = FreeSpace(start, end)
        self.entries: dict[bytes, StoreEntry] = {}
        self.idle: dict[bytes, StoreEntry] = {}
        """Evictable: sealed, unpinned, with refs, least recently used first."""
        self.pinned: dict[bytes, StoreEntry] = {}
        """Located longest ago first."""
        self.grants: dict[int, StoreGrant] = {}
        self.grant_starts: list[int] = []
        self.queue: deque[Waiter] = deque()
        self.preparing: dict[int, Preparation] = {}
        self.files: dict[int, FileGrant] = {}
        """Files that processes may write."""
        self.making: dict[int, Waiter] = {}
        """Who waits for each new file."""
        self.last_file = 0
        """The highest so far: no number is used again."""
        self.spilling = 0
        self.gone: dict[bytes, None] = {}
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
        """Add an object."""
        self.entries[entry.object_id] = entry
        self.settle(entry)

    def settle(self, entry: StoreEntry) -> None:
        """Move an object into its state's table, or remove it if freed and held by nobody."""
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
        """A perhaps freed object has refs again."""
        entry.freed = False
        self.settle(entry)

    def pin(self, entry: StoreEntry, process: bytes) -> None:
        """Add one pin for ``process``."""
        entry.pins[process] = entry.pins.get(process, 0) + 1
        self.pinned.pop(entry.object_id, None)
        self.settle(entry)

    def tell(self, entry: StoreEntry, process: bytes) -> None:
        """Pin, and send the place."""
        self.pin(entry, process)
        entry.fresh = False
        self.located.append((entry.object_id, process, entry.place, entry.size))

    def tell_askers(self, entry: StoreEntry) -> None:
        """Locate for all who asked before."""
        asked, entry.asked = entry.asked, []
        for process in asked:
            self.tell(entry, process)
        self.settle(entry)

    def end_of(self, entry: StoreEntry, reason: str) -> None:
        """Remove an object with room and file; report it lost to askers."""
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
        """Free an object's room in the arena."""
        offset, entry.offset = entry.offset, None
        if offset is not None:
            self.effects.append(e.WriteHeader(offset, e.FREED))
            self.give_up(offset - HEADER_BYTES, entry.room)

    def waiters(self) -> list[Waiter]:
        """All who wait, also while room is made ready."""
        waiting = [p.waiter for p in self.preparing.values() if p.waiter is not None]
        return [*self.queue, *waiting, *self.making.values()] if waiting or self.making else list(self.queue)

    def new_file(self) -> int:
        """A new file's number."""
        self.last_file += 1
        return self.last_file

    def close_file(self, number: int) -> None:
        """Delete a file that nobody will write."""
        del self.files[number]
        self.unlink.append(number)

    # -- room --

    def give_up(self, start: int, size: int) -> None:
        """Free an object's room, at once or with its grant."""
        grant = self.grant_of(start)
        if grant is not None:
            grant.parked.add(start, size)
        else:
            self.release(start, size)

    def release(self, start: int, size: int) -> None:
        """Free ready bytes."""
        self.space.free(start, size)
        self.freed_some = True

    def add_grant(self, grant: StoreGrant) -> None:
        """Add a grant."""
        self.grants[grant.offset] = grant
        insort(self.grant_starts, grant.offset)

    def close_grant(self, grant: StoreGrant) -> None:
        """End a grant and free what is no object."""
        for start, size in sorted([*grant.open, *grant.parked]):
            self.release(start, size)
        del self.grants[grant.offset]
        del self.grant_starts[bisect_right(self.grant_starts, grant.offset) - 1]

    def grant_of(self, offset: int) -> StoreGrant | None:
        """The grant around ``offset``, or None."""
        index = bisect_right(self.grant_starts, offset)
        grant = self.grants[self.grant_starts[index - 1]] if index else None
        return grant if grant is not None and offset < grant.end else None

    def free_room(self) -> int:
        """Bytes that are free or will be, less what the queue waits for."""
        ahead = sum(each.taken.size for each in set(self.preparing.values()) if each.waiter is None) if self.preparing else 0
        return max(0, self.space.total + ahead - sum(waiter.need for waiter in self.queue if not waiter.cancelled))

    def in_grants(self) -> int:
        """Open bytes of shared grants."""
        return sum(grant.open.total for grant in self.grants.values() if not grant.exact)

    def forget_process(self, process: bytes) -> None:
        """Drop a dead process's grants, files, pins and requests."""
        self.gone[process] = None
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]
        for waiter in self.waiters():
            if waiter.entry is None:
                waiter.cancelled = waiter.cancelled or waiter.process == process
        for grant in [grant for grant in self.grants.values() if grant.holder == process]:
            # A large value is alone, at its grant's beginning.
            self.effects += [e.Clear(start, HEADER_BYTES if grant.exact else size) for start, size in grant.open]
            self.close_grant(grant)
        for number in [number for number, file in self.files.items() if file.holder == process]:
            self.close_file(number)
        for entry in list(self.entries.values()):
            if process in entry.asked:
                entry.asked = [other for other in entry.asked if other != process]
            if entry.pins.pop(process, None):
                self.settle(entry)
