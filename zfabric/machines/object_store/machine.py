"""The object store as a machine (decisions 0001 and 0004).

A *grant* is one process's right to write a range. A ``Sealed`` row makes a part an *object*. Without refs (``Free``), readers (pins) and
copying (spilling), an object becomes *free space*, ready or cold (``common.extents``). These, and what is being made ready, always tile the
arena exactly (``check_invariants``). Pins are counted, by ``Located`` rows less mentions in ``Unpin``.

States of an object: *sealed*, *spilling* (being copied to disk), *spilled* (on disk only), *waiting* for room, *restoring* (being read
back), sealed again. Inline values that move into the arena wait, too. The copy on disk stays, so that another eviction is free.

Without room, now or soon, a new object is written to a file. A spilled one is *checked* and read from its file, which stays while it has
pins; while one process reads there, all do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zfabric.config import Config
from zfabric.machines.common.extents import ALIGNMENT, HEADER_BYTES, arena_bytes, data_start, file_number, file_offset, footprint, round_up
from zfabric.machines.object_store import report
from zfabric.machines.object_store.claims import Claims
from zfabric.machines.object_store.room import Room
from zfabric.machines.object_store.tables import (
    CHECKING,
    RESTORING,
    SEALED,
    SPILLED,
    SPILLING,
    WAITING,
    FileGrant,
    StoreEntry,
    StoreGrant,
    StoreTables,
    Waiter,
)
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address, short
from zfabric.protocol.machine import Handler, Handlers, Refusal

ROOM_STEPS = 16
"""Parts of the room; a change by one is reported."""


class ObjectStore:
    """One node's store. ``capacity`` is the arena file's size, its index included."""

    def __init__(self, address: Address, scheduler: Address, config: Config, capacity: int, recovering: bool = False) -> None:
        self.address = address
        self._scheduler = scheduler
        self._put_patience = config.put_patience
        size = arena_bytes(capacity)
        self._tables = StoreTables(data_start(size), size)
        self._room = Room(self._tables, config)
        self._claims = Claims() if recovering else None
        self._reported = self._tables.capacity
        """Free room as last reported, or as it would have been with less than half free."""
        self.handlers = Handlers(self._tables.counts, self._accepted())

    # -- the contract ------------------------------------------------------------------------------------------------------

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Take in one message."""
        if self._claims is None or type(message) is m.Query:
            self.handlers[type(message)](now, source, message)
        elif not self._claims.take(source[1:], message):
            self._claims.deferred.append((source, message))
        elif self._claims.complete:
            self._begin(now, self._claims)

    def tick(self, now: float) -> None:
        """Refuse those whose patience has expired."""
        if self._claims is None:
            self._room.expire(now)

    def next_deadline(self) -> float | None:
        """When patience expires, or room is to be made."""
        return self._room.next_deadline() if self._claims is None else None

    def take_effects(self, now: float) -> list[e.Effect]:
        """Give and make room; return the effects."""
        tables = self._tables
        if self._claims is None:
            self._room.serve(now)
            self._report_room()
        effects, tables.effects = tables.effects, []
        if tables.unlink:
            effects.append(e.Unlink(tuple(tables.unlink)))
            tables.unlink = []
        if tables.located:
            effects.append(e.Send(self._scheduler, m.Located(tuple(tables.located))))
            tables.located = []
        if tables.lost:
            effects.append(e.Send(self._scheduler, m.ObjectsLost(tuple(tables.lost.items()))))
            tables.lost = {}
        return effects

    def _report_room(self) -> None:
        """Report free room if it has changed by much, and less than half is or was free."""
        tables = self._tables
        free = tables.free_room()
        if abs(free - self._reported) * ROOM_STEPS < tables.capacity:
            return
        few, were_few = (2 * room <= tables.capacity for room in (free, self._reported))
        self._reported = free
        if few or were_few:
            tables.effects.append(e.Send(self._scheduler, m.StoreRoom(free if few else -1)))

    def statistics(self) -> Mapping[str, float]:
        """Bytes by owner, objects by state, and counters."""
        return report.statistics(self._tables)

    def room(self, counted: int) -> tuple[int, int]:
        """Bytes of values in the arena, and on disk (0 with more than ``counted`` values)."""
        return report.room(self._tables, counted)

    def check_invariants(self) -> None:
        """Check the arena's tiles and the states' tables."""
        report.check(self._tables)

    def on_query(self, now: float, source: Address, message: m.Query) -> None:
        """Answer people's question."""
        payload = report.answer(self._tables, message.what, message.arguments)
        self._tables.effects.append(e.Send(source, m.Answer(message.token, payload, "")))

    # -- grants ------------------------------------------------------------------------------------------------------------

    def on_reserve(self, now: float, source: Address, message: m.Reserve) -> None:
        """Queue a process for room to write."""
        if message.size < 0 or message.wish < 0 or not message.patience >= 0:
            raise Refusal(f"a reservation of {message.size} bytes, or {message.wish}, within {message.patience} seconds")
        process = source[1:]
        known = [waiter for waiter in self._tables.waiters() if waiter.process == process and waiter.token == message.token]
        if process in self._tables.gone or known:
            return
        waiter = Waiter(message.size, now + message.patience, message.wish)
        waiter.process, waiter.token = process, message.token
        capacity = self._tables.capacity
        if waiter.need > capacity:
            text = f"an object of {report.readable(message.size)} is larger than the whole object store"
            text += f" ({report.readable(capacity)}); give the node a larger object_store_memory, or split the value"
            self._room.give_up(waiter, "too_large", text)
        else:
            self._room.enqueue(waiter)

    def on_return_grant(self, now: float, source: Address, message: m.ReturnGrant) -> None:
        """End a grant. What was written is sealed, or will be by messages under way."""
        if message.offset < 0:
            number = file_number(message.offset + HEADER_BYTES)
            if self._granted_file(number, source[1:]):
                self._tables.close_file(number)
            else:
                self._tables.counts["refused"] += 1
            return
        grant = self._tables.grants.get(message.offset)
        if grant is None or grant.holder != source[1:] or grant.returned:
            self._tables.counts["refused"] += 1
            return
        used_to = grant.offset + round_up(max(message.used, 0), ALIGNMENT)
        for start, size in grant.open:
            free_from = max(start, used_to)
            if free_from < start + size:
                grant.open.remove(free_from, start + size - free_from)
                self._tables.release(free_from, start + size - free_from)
        for start, size in message.gaps:
            if size > 0 and grant.open.around(start, size) is not None:
                grant.open.remove(start, size)
                grant.parked.add(start, size)
        grant.returned = True
        grant.end = min(grant.end, used_to)
        if not grant.open.total:
            self._tables.close_grant(grant)

    def on_grants_held(self, now: float, source: Address, message: m.GrantsHeld) -> None:
        """Check a late process's grants: only known ones are valid."""
        for offset, _, _ in message.rows:
            grant = self._tables.grants.get(offset)
            known = grant is not None and grant.holder == source[1:]
            if not known and not (offset < 0 and self._granted_file(file_number(offset + HEADER_BYTES), source[1:])):
                self._refuse(source, f"the grant at {offset} was given to others after a restart")

    def _granted_file(self, number: int, process: bytes) -> bool:
        file = self._tables.files.get(number)
        return file is not None and file.holder == process

    # -- objects -----------------------------------------------------------------------------------------------------------

    def on_sealed(self, now: float, source: Address, message: m.Sealed) -> None:
        """Take over written objects."""
        tables = self._tables
        for object_id, offset, size, writer, rebuildable in message.rows:
            entry = tables.entries.get(object_id)
            if entry is not None and (entry.offset == offset or entry.lies_at(offset)):
                tables.revive(entry)
                continue
            if offset < 0:
                self._sealed_on_disk(entry, object_id, file_number(offset), size, writer, rebuildable)
                continue
            start, length = offset - HEADER_BYTES, footprint(size)
            grant = tables.grant_of(start)
            if size < 0 or grant is None or grant.holder != writer or grant.open.around(start, length) is None:
                tables.counts["refused"] += 1
                if entry is None:
                    tables.lost[object_id] = "missing"
                continue
            grant.open.remove(start, length)
            if entry is None:
                tables.enter(StoreEntry(object_id, size, SEALED, offset, writer, rebuildable))
                tables.effects.append(e.WriteHeader(offset, e.SEALED))
            else:
                tables.counts["copies_dropped"] += 1
                tables.effects.append(e.WriteHeader(offset, e.FREED))
                tables.give_up(start, length)
                tables.revive(entry)
            if grant.exact or (grant.returned and not grant.open.total):
                tables.close_grant(grant)

    def _sealed_on_disk(self, entry: StoreEntry | None, object_id: bytes, number: int, size: int, writer: bytes, rebuildable: bool) -> None:
        tables = self._tables
        if not self._granted_file(number, writer) or tables.files[number].room != footprint(size):
            tables.counts["refused"] += 1
            if entry is None:
                tables.lost[object_id] = "missing"
        elif entry is None:
            del tables.files[number]
            tables.counts["written_on_disk"] += 1
            tables.effects.append(e.WriteHeader(file_offset(number), e.SEALED))
            entry = _spilled(object_id, size, number, writer, rebuildable)
            entry.fresh = True
            tables.enter(entry)
        else:
            tables.counts["copies_dropped"] += 1
            tables.close_file(number)
            tables.revive(entry)

    def on_absorb(self, now: float, source: Address, message: m.Absorb) -> None:
        """Queue inline values, to move into the arena."""
        for object_id, value, rebuildable in message.rows:
            entry = self._tables.entries.get(object_id)
            if entry is not None:
                self._tables.revive(entry)
            elif footprint(len(value)) > self._tables.capacity:
                self._tables.lost[object_id] = "full: it is larger than the whole object store"
            else:
                entry = StoreEntry(object_id, len(value), WAITING, None, b"", rebuildable)
                entry.value = value
                self._tables.enter(entry)
                self._room.enqueue(Waiter(entry.size, float("inf"), entry=entry))

    def on_locate(self, now: float, source: Address, message: m.Locate) -> None:
        """Pin objects and send their places, once readable."""
        for object_id, process in message.rows:
            entry = self._tables.entries.get(object_id)
            if process in self._tables.gone:
                continue
            if entry is None:
                self._tables.lost[object_id] = "missing"
            elif entry.lies_at(entry.place) and (entry.offset is not None or entry.pins or (entry.fresh and process == entry.writer)):
                self._tables.tell(entry, process)
            else:
                entry.asked.append(process)
                if entry.state == SPILLED:
                    entry.state = WAITING
                    self._room.enqueue(Waiter(entry.size, now + self._put_patience, entry=entry))

    def on_pinned(self, now: float, source: Address, message: m.Pinned) -> None:
        """Check a late process's pins: valid where the object still is."""
        for object_id, offset, _ in message.rows:
            entry = self._tables.entries.get(object_id)
            if entry is not None and entry.lies_at(offset):
                self._tables.pin(entry, source[1:])
            else:
                self._refuse(source, f"object {short(object_id)} was moved after a restart")

    def on_unpin(self, now: float, source: Address, message: m.Unpin) -> None:
        """Remove a process's pins."""
        process = source[1:]
        for object_id in message.object_ids:
            entry = self._tables.entries.get(object_id)
            if entry is not None and process in entry.pins:
                entry.pins[process] -= 1
                if not entry.pins[process]:
                    del entry.pins[process]
                    self._tables.settle(entry)

    def on_free(self, now: float, source: Address, message: m.Free) -> None:
        """Free objects without refs, once unpinned."""
        for object_id in message.object_ids:
            entry = self._tables.entries.get(object_id)
            if entry is not None:
                entry.freed = True
                self._tables.settle(entry)

    def on_protect(self, now: float, source: Address, message: m.Protect) -> None:
        """Never drop these: they cannot be made again."""
        for object_id in message.object_ids:
            entry = self._tables.entries.get(object_id)
            if entry is not None:
                entry.rebuildable = False

    def on_process_gone(self, now: float, source: Address, message: m.ProcessGone) -> None:
        """Remove a dead process. What it sealed stays."""
        self._tables.forget_process(message.incarnation)

    # -- answers of the shell ------------------------------------------------------------------------------------------------

    def on_extent_ready(self, now: float, source: Address, message: m.ExtentReady) -> None:
        """Room is ready, or could not be made so."""
        if message.offset not in self._tables.preparing:
            raise Refusal(f"nothing is being made ready at {message.offset}")
        self._room.made_ready(now, message.offset, message.error)

    def on_spilled(self, now: float, source: Address, message: m.Spilled) -> None:
        """Bytes are on disk, or that has failed."""
        self._room.spilled(now, self._entry(message.object_id, SPILLING), message.error)

    def on_restored(self, now: float, source: Address, message: m.Restored) -> None:
        """Bytes are back, or whole on disk; or the copy is of no use."""
        entry = self._entry(message.object_id, RESTORING, CHECKING)
        if message.error:
            self._tables.lost[entry.object_id] = f"unreadable: {message.error}"
            self._tables.end_of(entry, f"unreadable: {message.error}")
        elif entry.state == CHECKING:
            self._tables.counts["read_on_disk"] += 1
            self._room.checked(entry)
        else:
            self._tables.counts["restores"] += 1
            self._room.arrived(entry)

    def on_file_ready(self, now: float, source: Address, message: m.FileReady) -> None:
        """A file can be written, or could not be made."""
        if message.file not in self._tables.making:
            raise Refusal(f"file {message.file} is not being made")
        self._room.file_made(now, message.file, message.error)

    def _entry(self, object_id: bytes, *states: str) -> StoreEntry:
        entry = self._tables.entries.get(object_id)
        if entry is None or entry.state not in states:
            raise Refusal(f"object {short(object_id)} is not {' or '.join(states)}")
        return entry

    # -- after a restart -----------------------------------------------------------------------------------------------------

    def _begin(self, now: float, claims: Claims) -> None:
        """Lay out the arena, free what nobody retains, handle deferred messages."""
        self._claims = None
        tables = self._tables
        layout = claims.layout(tables.start, tables.end)
        tables.space.ready, tables.space.cold = layout.ready, layout.cold
        tables.effects += [e.Clear(start, size) for start, size in layout.ready]
        tables.effects += [e.Punch(start, size) for start, size in layout.cold]
        for begin, size, holder, exact, parts in layout.grants:
            tables.add_grant(StoreGrant(begin, size, holder, exact, parts))
        for object_id, offset, size, writer, rebuildable in layout.objects:
            entry = tables.entries[object_id] = StoreEntry(object_id, size, SEALED, offset, writer, rebuildable)
            tables.effects.append(e.WriteHeader(offset, e.SEALED))
        disk = claims.on_disk()
        tables.last_file, tables.unlink = disk.last, disk.unlink
        tables.files = {number: FileGrant(process, room) for number, (process, room) in disk.grants.items()}
        for object_id, size, number, writer, rebuildable in disk.objects:
            known = tables.entries.get(object_id)
            if known is None:
                tables.entries[object_id] = _spilled(object_id, size, number, writer, rebuildable)
                tables.effects.append(e.WriteHeader(file_offset(number), e.SEALED))
            elif known.size == size:
                known.file, known.on_disk = number, True
            else:
                tables.unlink.append(number)
        for object_id, pins in layout.pins.items():
            tables.entries[object_id].pins = pins
        for object_id, process, number in disk.pins:
            known = tables.entries.get(object_id)
            if known is not None and known.on_disk and known.file == number:
                known.pins[process] = known.pins.get(process, 0) + 1
        for entry in list(tables.entries.values()):
            entry.freed = entry.object_id not in claims.kept
            tables.settle(entry)
        for source, message in claims.deferred:
            self.step(now, source, message)

    def on_claim(self, now: float, source: Address, message: m.Message) -> None:
        """Refuse: only a recovering store receives claims."""
        raise Refusal("this object store is not recovering")

    def _refuse(self, source: Address, text: str) -> None:
        self._tables.counts["refused"] += 1
        self._tables.effects.append(e.Send(source, m.Refused("ObjectLostError", text)))

    def _accepted(self) -> dict[type[Any], Handler]:
        return {
            m.Reserve: self.on_reserve,
            m.ReturnGrant: self.on_return_grant,
            m.GrantsHeld: self.on_grants_held,
            m.Pinned: self.on_pinned,
            m.Unpin: self.on_unpin,
            m.Sealed: self.on_sealed,
            m.Absorb: self.on_absorb,
            m.Locate: self.on_locate,
            m.Free: self.on_free,
            m.Protect: self.on_protect,
            m.ProcessGone: self.on_process_gone,
            m.ExtentReady: self.on_extent_ready,
            m.Spilled: self.on_spilled,
            m.Restored: self.on_restored,
            m.FileReady: self.on_file_ready,
            m.ArenaFound: self.on_claim,
            m.RetainOnly: self.on_claim,
            m.Query: self.on_query,
        }


def _spilled(object_id: bytes, size: int, number: int, writer: bytes, rebuildable: bool) -> StoreEntry:
    entry = StoreEntry(object_id, size, SPILLED, None, writer, rebuildable)
    entry.file, entry.on_disk = number, True
    return entry
