"""Who gets room in the arena next, and how it is made.

One queue has all who want room: processes that want grants, objects that come back, inline values. While its head finds none, room is made,
by the cheapest means first:

- Unused grants are recalled.
- Values with a current copy on disk, and rebuildable ones, are dropped.
- Other values are copied to disk, least recently used first.
- Readers are asked for pins that they do not need.

A reservation waits for its patience, a restore for ``put_patience``. If no room can be made, the disk is used (``_use_disk``): a writer
gets a file, a reader maps the object's, an inline value is written to one. A reservation is refused only if the disk is full, too.

Room is made ready before it is given, a few grants' worth ahead of demand, more if a process had to wait. A waiter takes over what is being
made ready. Freed room stays ready up to a bound, and after a while without demand only those few grants.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from zfabric.config import Config
from zfabric.machines.common.extents import HEADER_BYTES, PIECE, Ranges, Taken, file_offset
from zfabric.machines.object_store.report import why_full
from zfabric.machines.object_store.tables import (
    CHECKING,
    RESTORING,
    SEALED,
    SPILLED,
    SPILLING,
    WAITING,
    FileGrant,
    Preparation,
    StoreEntry,
    StoreGrant,
    StoreTables,
    Waiter,
)
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT

MiB = 2**20

GRANTS_MOST = 8
"""Largest grant, in usual ones."""
IDLE_GRANT_SHARE = 8
"""One part of the arena in so many may be in unused grants."""
WARM_SHARE = 2
"""One part in so many is kept ready while free; the rest returns to the system."""
COOL_AFTER = 10.0
"""Seconds without demand after which ready room returns to the system."""
READY_AHEAD_GRANTS = 2
"""Grants' worth kept ready: one to give while the next is made ready."""
READY_AHEAD_MOST = 8
"""The same if large grants are wished for, or somebody had to wait."""
MAKE_READY_BYTES = 32 * MiB
"""Most bytes made ready per effect: others come between."""
SPILL_AHEAD_BYTES = 64 * MiB
"""Bytes spilled per round even if the head needs less: the next will need them."""
DROP_SHARE = 16
"""One part in so many of what is wanted is dropped per round, if cheap: free room may be in pieces."""
PRESSURE_PAUSE = 0.25
"""Seconds between rounds for the same head, and for recalled pins and grants before the disk is used."""
RECALL_PAUSE = 1.0
"""Seconds before a process is asked again."""
FAULT_PAUSE = 1.0
"""Seconds without spilling after a full disk, or making ready after short memory."""

NEVER = float("-inf")


class Room:
    """The queue for room. ``serve`` runs once per turn."""

    def __init__(self, tables: StoreTables, config: Config) -> None:
        self.tables = tables
        self.grant_bytes = config.grant_bytes
        self.ahead = self._ahead(READY_AHEAD_GRANTS)
        self.demand = 0
        """What a process had to wait for lately: as much is kept ready in one piece."""
        self.disk_again = NEVER
        self.memory_again = NEVER
        self.pressure_at: float | None = None
        self.full_since: float | None = None
        """When the search failed, with nobody given room since."""
        self.cool_at: float | None = None
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._numbers = count()

    def _ahead(self, grants: int) -> int:
        return min(grants * self.grant_bytes, self.tables.capacity // IDLE_GRANT_SHARE)

    def next_deadline(self) -> float | None:
        """When patience expires, room is to be made, or memory returned."""
        while self._deadlines and not _waits(self._deadlines[0][2]):
            heappop(self._deadlines)
        times = [self._deadlines[0][0]] if self._deadlines else []
        if self.tables.queue and self.pressure_at is not None:
            times.append(self.pressure_at)
        if not self.tables.queue and self.cool_at is not None:
            times.append(self.cool_at)
        return min(times, default=None)

    def enqueue(self, waiter: Waiter, front: bool = False) -> None:
        """Add a waiter; ``front``: it was first already."""
        waiter.queued = True
        if front:
            self.tables.queue.appendleft(waiter)
        else:
            self.tables.queue.append(waiter)
        if waiter.deadline < float("inf"):
            heappush(self._deadlines, (waiter.deadline, next(self._numbers), waiter))

    def serve(self, now: float) -> None:
        """Give room in order; make some for the first without; keep some ready."""
        queue = self.tables.queue
        self.pressure_at = None
        while queue:
            head = queue[0]
            if head.cancelled or self._place(now, head):
                queue.popleft().queued = False
            elif not self._make_room(now, head):
                if not self._use_disk(now, head):
                    break
                queue.popleft().queued = False
        self._make_ready_ahead(now)
        self._cool(now)

    def expire(self, now: float) -> None:
        """End expired patience."""
        while self._deadlines and self._deadlines[0][0] <= now:
            waiter = heappop(self._deadlines)[2]
            if _waits(waiter) and waiter.entry is not None and waiter.entry.on_disk:
                waiter.cancelled = True
                self._read_on_disk(waiter.entry)
            elif _waits(waiter):
                self.give_up(waiter, "memory" if self.tables.memory_error else "full", why_full(self.tables, waiter.size))

    def give_up(self, waiter: Waiter, kind: str, text: str) -> None:
        """Refuse a reservation."""
        waiter.cancelled = True
        self.tables.counts["full"] += 1
        self.tables.effects.append(e.Send(CLIENT + waiter.process, m.NoSpace(waiter.token, kind, text)))

    # -- giving ------------------------------------------------------------------------------------------------------------

    def _place(self, now: float, waiter: Waiter) -> bool:
        """Give room, or take some that is the waiter's once ready."""
        self.cool_at = now + COOL_AFTER
        self._hurry(READY_AHEAD_GRANTS * waiter.wish)
        usual = self._grant_size(waiter, self.grant_bytes)
        for size in dict.fromkeys((self._grant_size(waiter, GRANTS_MOST * self.grant_bytes), usual, waiter.need)):
            start = self.tables.space.take_ready(size)
            if start is not None:
                self._give(waiter, start, size)
                return True
            if size > usual:
                continue  # More than usual is given only where nobody has to wait for it.
            if self._adopt(waiter, size) or (now >= self.memory_again and self._warm_up(waiter, size)):
                self.demand = max(self.demand, size)
                if not waiter.exact:
                    self._hurry(2 * self.ahead)
                return True
        taken = self.tables.space.take_mixed(waiter.need) if now >= self.memory_again else None
        if taken is not None:
            self._prepare(taken, waiter)
        return taken is not None

    def _hurry(self, ahead: int) -> None:
        """Keep this much ready, if more than before, within bounds."""
        self.ahead = max(self.ahead, min(ahead, self._ahead(READY_AHEAD_MOST)))

    def _adopt(self, waiter: Waiter, size: int) -> bool:
        """Give the waiter what is being made ready: anything else comes behind."""
        for preparation in self.tables.preparing.values():
            if preparation.waiter is None and preparation.taken.size >= size and not preparation.failed:
                preparation.waiter = waiter
                return True
        return False

    def _warm_up(self, waiter: Waiter, size: int) -> bool:
        taken = self.tables.space.take_cold(size)
        if taken is not None:
            self._prepare(taken, waiter)
        return taken is not None

    def _grant_size(self, waiter: Waiter, most: int) -> int:
        """A waiter's exact need, or a grant, smaller the more room grants have."""
        if waiter.exact:
            return waiter.need
        left = self.tables.capacity // IDLE_GRANT_SHARE - self.tables.in_grants()
        return max(waiter.need, min(waiter.wish, most, left // 2) // PIECE * PIECE)

    def _give(self, waiter: Waiter, start: int, size: int) -> None:
        self.full_since = None
        entry = waiter.entry
        effects = self.tables.effects
        if entry is None:
            self.tables.add_grant(StoreGrant(start, size, waiter.process, waiter.exact, Ranges(((start, size),))))
            effects.append(e.Send(CLIENT + waiter.process, m.Granted(waiter.token, start, size)))
            return
        entry.offset = start + HEADER_BYTES
        if entry.value is None:
            entry.state = RESTORING
            effects.append(e.Unspill(entry.object_id, entry.file, entry.offset, entry.size))
        else:
            effects.append(e.WriteValue(entry.offset, entry.object_id, entry.value))
            entry.value = None
            self.arrived(entry)

    def arrived(self, entry: StoreEntry) -> None:
        """Locate an object in the arena for its askers."""
        entry.state = SEALED
        self.tables.effects.append(e.WriteHeader(entry.offset or 0, e.SEALED))
        self.tables.tell_askers(entry)

    # -- making ready ------------------------------------------------------------------------------------------------------

    def _prepare(self, taken: Taken, waiter: Waiter | None) -> None:
        preparation = Preparation(taken, waiter)
        for start, size in taken.cold:
            for offset in range(start, start + size, MAKE_READY_BYTES):
                length = min(MAKE_READY_BYTES, start + size - offset)
                preparation.pending[offset] = length
                self.tables.preparing[offset] = preparation
                self.tables.effects.append(e.MakeReady(offset, length))

    def made_ready(self, now: float, offset: int, error: str) -> None:
        """A part is ready, or has failed."""
        preparation = self.tables.preparing.pop(offset)
        size = preparation.pending.pop(offset)
        if error:
            self.tables.memory_error, self.memory_again = error, now + FAULT_PAUSE
            preparation.failed.append((offset, size))
        else:
            preparation.taken.ready.append((offset, size))
        if not preparation.pending:
            self._prepared(preparation)

    def _prepared(self, preparation: Preparation) -> None:
        taken, waiter, space = preparation.taken, preparation.waiter, self.tables.space
        for begin, size in taken.ready:
            space.free(begin, size)
        for begin, size in preparation.failed:
            self.tables.effects.append(e.Punch(begin, size))
            space.freeze(begin, size)
        if not preparation.failed:
            self.tables.memory_error = ""
        if waiter is None or waiter.cancelled:
            return
        size = self._portion(preparation)
        # Not necessarily where it was made ready: rests beside it may have been joined to it, and are filled first.
        start = None if preparation.failed else self.tables.space.take_ready(size)
        if start is None:
            self.enqueue(waiter, front=True)
        else:
            self._give(waiter, start, size)

    def _portion(self, preparation: Preparation) -> int:
        waiter = preparation.waiter
        if waiter is None or waiter.cancelled:
            return 0
        return min(preparation.taken.size, self._grant_size(waiter, GRANTS_MOST * self.grant_bytes))

    def _make_ready_ahead(self, now: float) -> None:
        if self.tables.queue or now < self.memory_again:
            return
        most = self.tables.capacity // IDLE_GRANT_SHARE
        least = min(self.grant_bytes, self.ahead) // PIECE * PIECE or PIECE
        self._keep_ready(least, self.ahead, max(least, self.ahead // READY_AHEAD_GRANTS // PIECE * PIECE))
        if min(self.grant_bytes, most) < self.demand <= most:
            self._keep_ready(self.demand, self.demand, self.demand)

    def _keep_ready(self, size: int, total: int, step: int) -> None:
        """Keep ``total`` bytes ready or coming, in pieces of ``size`` or more, ``step`` bytes at a time if possible."""
        space = self.tables.space
        rests = [preparation.taken.size - self._portion(preparation) for preparation in set(self.tables.preparing.values())]
        coming = sum(rest for rest in rests if rest >= size)
        most = self.tables.capacity // WARM_SHARE - space.ready.total  # More would be cooled again at once.
        while space.ready.total_from(size) + coming < total and coming + size <= most:
            taken = (space.take_cold(step) if coming + step <= most else None) or space.take_cold(size)
            if taken is None:
                return
            coming += taken.size
            self._prepare(taken, None)

    def _cool(self, now: float) -> None:
        """Return free memory: the excess at once, the rest after a while without demand."""
        if self.tables.queue:
            return
        keep = self.tables.capacity // WARM_SHARE
        if self.tables.freed_some:
            self.tables.freed_some = False
            self.cool_at = now + COOL_AFTER
        elif self.cool_at is not None and now >= self.cool_at:
            self.cool_at = None
            self.demand = 0
            keep = self.ahead = self._ahead(READY_AHEAD_GRANTS)
        excess = self.tables.space.ready.total - keep
        if excess >= PIECE:
            self.tables.effects += [e.Punch(start, size) for start, size in self.tables.space.cool(excess)]

    # -- making room -------------------------------------------------------------------------------------------------------

    def _make_room(self, now: float, waiter: Waiter) -> bool:
        """Make room for the head, one round; return whether to look again at once."""
        tables = self.tables
        self.pressure_at = now + PRESSURE_PAUSE
        self._recall_grants(now)
        usable = tables.space.total if now >= self.memory_again else tables.space.ready.total
        if tables.spilling and usable + tables.spilling >= waiter.need:
            return False
        if self._evict(now, waiter.need - usable, waiter.need // DROP_SHARE):
            return True
        if not tables.spilling:
            self._recall_pins(now, waiter.need)
        return False

    def _recall_grants(self, now: float) -> None:
        for grant in self.tables.grants.values():
            if not grant.exact and not grant.returned and now - grant.recalled >= RECALL_PAUSE:
                grant.recalled = now
                self.tables.effects.append(e.Send(CLIENT + grant.holder, m.RecallGrant(grant.offset)))

    def _evict(self, now: float, missing: int, least: int) -> bool:
        """Drop least recently used objects, or begin to copy some; return whether any was dropped."""
        tables = self.tables
        wanted = max(missing, min(SPILL_AHEAD_BYTES, tables.capacity // IDLE_GRANT_SHARE)) - tables.spilling
        enough = max(missing, least)
        victims: list[StoreEntry] = []
        dropped: list[StoreEntry] = []
        for entry in tables.idle.values():
            if tables.grant_of((entry.offset or 0) - HEADER_BYTES) is not None:
                continue  # Its room is free only once the recalled grant is back.
            if enough <= 0 and dropped:
                break
            if entry.on_disk or entry.rebuildable:
                enough -= entry.room
                dropped.append(entry)
            if dropped:
                continue  # Nothing is copied where this will do.
            if wanted <= 0:
                break
            if now < self.disk_again:
                continue
            wanted -= entry.room
            victims.append(entry)
        for entry in dropped:
            self._drop(entry)
        if dropped:
            return True
        if victims and tables.unlink:
            tables.effects.append(e.Unlink(tuple(tables.unlink)))
            tables.unlink = []
        for entry in victims:
            entry.state = SPILLING
            entry.file = tables.new_file()
            tables.spilling += entry.room
            tables.effects.append(e.Spill(entry.object_id, entry.file, entry.offset or 0, entry.size, b""))
            tables.settle(entry)
        return False

    def _drop(self, entry: StoreEntry) -> None:
        self.tables.counts["evictions"] += 1
        if entry.on_disk:
            entry.state = SPILLED
            self.tables.vacate(entry)
            self.tables.settle(entry)
        else:
            self.tables.lost[entry.object_id] = "evicted"
            self.tables.end_of(entry, "evicted")

    def _recall_pins(self, now: float, wanted: int) -> None:
        """Recall readers' oldest pins, the lately asked last, and pins of freed objects."""
        asked: dict[bytes, list[bytes]] = {}
        lately = {True: list[StoreEntry](), False: list[StoreEntry]()}
        for entry in self.tables.pinned.values():
            if entry.offset is not None or entry.freed:
                lately[now - entry.recalled < RECALL_PAUSE].append(entry)
        wanted -= sum(entry.room for entry in lately[True])
        for entry in sorted(lately[False], key=lambda entry: entry.recalled):
            if wanted <= 0 and not entry.freed:
                continue
            entry.recalled = now
            wanted -= entry.room
            for process in entry.pins:
                asked.setdefault(process, []).append(entry.object_id)
        for process, object_ids in asked.items():
            self.tables.counts["recalls"] += len(object_ids)
            self.tables.effects.append(e.Send(CLIENT + process, m.RecallPins(tuple(object_ids))))

    def spilled(self, now: float, entry: StoreEntry, error: str) -> None:
        """An object is on disk, or could not be written."""
        tables = self.tables
        self._disk_answered(now, error)
        if not error:
            tables.counts["spills"] += 1
            entry.on_disk = True
        if entry.value is None:
            tables.spilling -= entry.room
            entry.state = SEALED
            if entry.on_disk and not entry.pins and not entry.freed:
                entry.state = SPILLED
                tables.vacate(entry)
        elif error:
            entry.state = WAITING
            self.enqueue(Waiter(entry.size, float("inf"), entry=entry), front=True)
        else:
            entry.state, entry.value = SPILLED, None
            tables.tell_askers(entry)
            return
        tables.settle(entry)

    # -- doing without room ------------------------------------------------------------------------------------------------

    def _use_disk(self, now: float, waiter: Waiter) -> bool:
        """Give the head the disk, unless room is being made; return whether it left the queue."""
        tables, entry = self.tables, waiter.entry
        if tables.spilling or tables.preparing:
            return False
        if self.full_since is None:
            self.full_since = now
        ask_until = self.full_since + PRESSURE_PAUSE
        asked = any(each.offset is not None for each in tables.pinned.values()) or any(not grant.exact for grant in tables.grants.values())
        if asked and now < ask_until:
            self.pressure_at = min(ask_until, self.pressure_at or ask_until)
            return False
        if entry is not None and entry.on_disk:
            self._read_on_disk(entry)
        elif now < self.disk_again:
            # Neither memory nor disk, and nobody who could release any.
            if entry is None and now < self.memory_again and not (tables.idle or tables.pinned or tables.grants):
                self.give_up(waiter, "memory", why_full(tables, waiter.size))
            return waiter.cancelled
        elif entry is not None:
            entry.state, entry.file = SPILLING, tables.new_file()
            tables.effects.append(e.Spill(entry.object_id, entry.file, 0, entry.size, entry.value or b""))
            tables.settle(entry)
        elif waiter.exact:
            number = tables.new_file()
            tables.making[number] = waiter
            tables.effects.append(e.MakeFile(number, waiter.size))
        else:
            text = "the object store has no room for more than one object at a time"
            tables.effects.append(e.Send(CLIENT + waiter.process, m.NoSpace(waiter.token, "alone", text)))
        return True

    def _read_on_disk(self, entry: StoreEntry) -> None:
        """Let the askers read the file, once checked."""
        entry.state = CHECKING
        self.tables.effects.append(e.CheckFile(entry.object_id, entry.file, entry.size))
        self.tables.settle(entry)

    def checked(self, entry: StoreEntry) -> None:
        """Locate an object whose file is whole."""
        entry.state = SPILLED
        self.tables.tell_askers(entry)

    def file_made(self, now: float, number: int, error: str) -> None:
        """Give a waiter its file, or note a full disk."""
        tables = self.tables
        waiter = tables.making.pop(number)
        self._disk_answered(now, error)
        if error:
            self.enqueue(waiter, front=True)
            return
        tables.files[number] = FileGrant(waiter.process, waiter.need)
        if waiter.cancelled:
            tables.close_file(number)
        else:
            start = file_offset(number) - HEADER_BYTES
            tables.effects.append(e.Send(CLIENT + waiter.process, m.Granted(waiter.token, start, waiter.need)))

    def _disk_answered(self, now: float, error: str) -> None:
        self.tables.disk_error = error
        if error:
            self.disk_again = now + FAULT_PAUSE


def _waits(waiter: Waiter) -> bool:
    return waiter.queued and not waiter.cancelled
