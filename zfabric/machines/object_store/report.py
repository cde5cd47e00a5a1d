"""The object store's statistics, entries and invariants."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from zfabric.machines.common.extents import HEADER_BYTES
from zfabric.machines.object_store.tables import CHECKING, RESTORING, SEALED, SPILLED, SPILLING, WAITING, StoreTables
from zfabric.protocol.ids import short
from zfabric.protocol.machine import InvariantViolation
from zfabric.protocol.messages import Row

MiB = 2**20


def readable(size: int) -> str:
    """Format bytes for people."""
    return f"{size / MiB:,.1f} MiB" if size >= MiB else f"{size:,} bytes"


def why_full(tables: StoreTables, size: int) -> str:
    """Why there is no room for ``size`` bytes, with advice."""
    pinned = sum(entry.room for entry in tables.pinned.values() if entry.offset is not None)
    granted = sum(grant.open.total for grant in tables.grants.values())
    text = f"no room for an object of {readable(size)}: of the object store's {readable(tables.capacity)}, {readable(pinned)} are in use"
    text += f" by live values and {readable(granted)} are being written; {readable(tables.space.total)} are free, but not in one piece"
    if tables.disk_error:
        text += f"; the disk takes no more values ({tables.disk_error})"
    if tables.memory_error:
        text += f"; the system gives no more memory ({tables.memory_error})"
    return text + "; delete references and arrays that are no longer needed, or give init() a larger object_store_memory"


def statistics(tables: StoreTables) -> Mapping[str, float]:
    """Bytes by owner, objects by state, counters."""
    resident = [entry for entry in tables.entries.values() if entry.offset is not None]
    spilled = [entry for entry in tables.entries.values() if entry.on_disk]
    return {
        "capacity": tables.capacity,
        "used": sum(entry.room for entry in resident),
        "granted": sum(grant.open.total for grant in tables.grants.values()),
        "ready": tables.space.ready.total,
        "cold": tables.space.cold.total,
        "pinned": sum(entry.room for entry in tables.pinned.values() if entry.offset is not None),
        "spilled": _on_disk(tables),
        "spilling": tables.spilling,
        "objects": len(tables.entries),
        "objects_in_arena": len(resident),
        "objects_pinned": len(tables.pinned),
        "objects_spilled": len(spilled),
        "objects_read_on_disk": sum(entry.offset is None for entry in tables.pinned.values()),
        "grants": len(tables.grants),
        "files_granted": len(tables.files) + len(tables.making),
        "waiting": sum(not waiter.cancelled for waiter in tables.waiters()),
        **tables.counts,
    }


def room(tables: StoreTables, counted: int) -> tuple[int, int]:
    """Bytes of values in the arena, and on disk if at most ``counted``: cheap enough for each second."""
    used = tables.capacity - tables.space.total - sum(grant.open.total for grant in tables.grants.values())
    spills = bool(tables.files) or tables.counts["spills"] > 0 or tables.counts["written_on_disk"] > 0
    return used, _on_disk(tables) if spills and len(tables.entries) <= counted else 0


def _on_disk(tables: StoreTables) -> int:
    return sum(entry.size for entry in tables.entries.values() if entry.on_disk) + sum(file.room for file in tables.files.values())


def answer(tables: StoreTables, what: str, arguments: Row) -> object:
    """ "statistics", or "entries": ``(state, pins, on disk)`` by object."""
    if what == "statistics":
        return dict(statistics(tables))
    found = ((object_id, tables.entries.get(object_id)) for object_id in arguments)
    return {object_id: (entry.state, sum(entry.pins.values()), entry.on_disk) for object_id, entry in found if entry is not None}


def check(tables: StoreTables) -> None:
    """Raise InvariantViolation unless tiles and tables agree."""
    position = tables.start
    for start, size, owner in sorted(_tiles(tables), key=lambda tile: tile[:2]):
        if start != position:
            name = owner if isinstance(owner, str) else f"object {short(owner)}"
            raise InvariantViolation(f"{name} at {start} follows what ends at {position}")
        position = start + size
    _require(position == tables.end, f"the arena is accounted for up to {position} of {tables.end}")
    _require(tables.grant_starts == sorted(tables.grants), "the grants' order is not theirs")
    for first, second in pairwise(tables.grant_starts):
        _require(tables.grants[first].end <= second, f"the grants at {first} and {second} overlap")
    _check_entries(tables)


def _tiles(tables: StoreTables) -> list[tuple[int, int, str | bytes]]:
    """(start, size, owner) of each part of the arena; the owner is the id of an object, or named in words."""
    tiles: list[tuple[int, int, str | bytes]] = [(start, size, "ready room") for start, size in tables.space.ready]
    tiles += [(start, size, "cold room") for start, size in tables.space.cold]
    for grant in tables.grants.values():
        tiles += [(start, size, "a grant") for start, size in (*grant.open, *grant.parked)]
    for preparation in set(tables.preparing.values()):
        parts = [*preparation.taken.ready, *preparation.pending.items(), *preparation.failed]
        tiles += [(start, size, "room being made ready") for start, size in parts]
    for entry in tables.entries.values():
        if entry.offset is not None:
            tiles.append((entry.offset - HEADER_BYTES, entry.room, entry.object_id))
    return tiles


def _check_entries(tables: StoreTables) -> None:
    waiting = {waiter.entry.object_id for waiter in tables.waiters() if waiter.entry is not None and not waiter.cancelled}
    for object_id, entry in tables.entries.items():
        readable = entry.state in (SEALED, SPILLED) or (entry.state == SPILLING and entry.value is None)
        resident = entry.state in (SEALED, RESTORING) or (entry.state == SPILLING and entry.value is None)
        mistakes = {
            "in the arena or not": (entry.offset is not None) != resident,
            "idle or not": (object_id in tables.idle) != (entry.state == SEALED and not entry.pins),
            "pinned or not": (object_id in tables.pinned) != bool(entry.pins),
            "pins that are none": min(entry.pins.values(), default=1) <= 0,
            "pinned where it is not": bool(entry.pins) and not readable,
            "keeps readers waiting": bool(entry.asked) and readable,
            "in the queue or not": (entry.state == WAITING) != (object_id in waiting),
            "its inline value": entry.value is not None and entry.state not in (WAITING, SPILLING),
            "on disk or not": entry.state in (SPILLED, CHECKING) and not entry.on_disk,
            "its file": entry.on_disk and not 0 < entry.file <= tables.last_file,
            "freed, but not gone": entry.freed and not entry.pins and entry.state not in (SPILLING, RESTORING, CHECKING),
        }
        if True in mistakes.values():
            (what, *_) = (text for text, made in mistakes.items() if made)
            raise InvariantViolation(f"object {short(object_id)} ({entry.state}): {what}")
    _require(set(tables.idle) | set(tables.pinned) <= set(tables.entries), "objects that are not there")
    spilling = sum(entry.room for entry in tables.entries.values() if entry.state == SPILLING and entry.value is None)
    _require(spilling == tables.spilling, "the bytes being spilled")
    written = [entry.file for entry in tables.entries.values() if entry.on_disk or entry.state == SPILLING]
    files = [*written, *tables.files, *tables.making, *tables.unlink]
    _require(len(set(files)) == len(files), "a file that is two objects'")


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise InvariantViolation(text)
