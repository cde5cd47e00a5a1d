"""The client's grants: which bytes of the arena this process may write, and how many it has used.

After ``allocate``, the writer calls ``finished`` once the object is sealed *and a message with its place is on its way*, or ``abandon``. A
grant is returned only while no write in it is under way: bytes that the store has freed are never written. Offsets are payloads'; the
header is in the 64 bytes before. Used under the client's lock.
"""

from __future__ import annotations

from zfabric.machines.common.extents import HEADER_BYTES, footprint

Rest = tuple[int, int, tuple[tuple[int, int], ...]]
"""(offset, used, gaps), for ``ReturnGrant``."""
LEAST_ROOM = 64 * 2**10
"""Least room of a retained grant: smaller values are rarely written."""


class Grant:
    """``used`` bytes of objects, of which ``writing`` are being written."""

    __slots__ = ("exact", "gaps", "offset", "size", "used", "writing")

    def __init__(self, offset: int, size: int, exact: bool) -> None:
        self.offset = offset
        self.size = size
        self.exact = exact
        self.used = 0
        self.writing: dict[int, int] = {}
        self.gaps: list[tuple[int, int]] = []

    def take(self, need: int) -> int | None:
        """Allocate in an abandoned gap or at the end; return the start, or None without room."""
        for index, (start, size) in enumerate(self.gaps):
            if size >= need:
                del self.gaps[index]
                if size > need:
                    self.gaps.append((start + need, size - need))
                self.writing[start] = need
                return start
        if self.used + need > self.size:
            return None
        start = self.offset + self.used
        self.used += need
        self.writing[start] = need
        return start

    def abandon(self, start: int) -> None:
        """Free an unwritten object's bytes."""
        size = self.writing.pop(start)
        if start + size == self.offset + self.used:
            self.used -= size
        else:
            self.gaps.append((start, size))


class Grants:
    """All grants of this process."""

    def __init__(self) -> None:
        self._grants: dict[int, Grant] = {}
        self._used_up = False

    def __len__(self) -> int:
        return len(self._grants)

    def add(self, offset: int, size: int) -> None:
        """Add a grant."""
        self._grants[offset] = Grant(offset, size, False)

    def add_exact(self, offset: int, size: int) -> int:
        """Add room for one object; return its payload offset."""
        grant = Grant(offset, size, True)
        grant.take(size)
        self._grants[offset] = grant
        return offset + HEADER_BYTES

    def allocate(self, size: int) -> int | None:
        """Allocate an object; return its payload offset, or None: ``Reserve`` first."""
        need = footprint(size)
        for grant in self._grants.values():
            if not grant.exact:
                start = grant.take(need)
                if start is not None:
                    return start + HEADER_BYTES
        return None

    def nearly_spent(self, size: int, least: int) -> bool:
        """Whether to request the next grant: less than ``least`` bytes are left, or less than half before any grant was used up."""
        need = footprint(size)
        shared = [grant for grant in self._grants.values() if not grant.exact]
        if not self._used_up:
            least = min(least, sum(grant.size for grant in shared) // 2)
        return sum(rest for grant in shared if (rest := grant.size - grant.used) >= need) < least

    def _holding(self, start: int) -> Grant:
        for grant in self._grants.values():
            if start in grant.writing:
                return grant
        raise KeyError(f"nothing is being written at {start + HEADER_BYTES}")

    def finished(self, offset: int) -> Rest | None:
        """Record a sealed object on its way. Return the grant's row if full; the store closes an exact grant itself."""
        start = offset - HEADER_BYTES
        grant = self._holding(start)
        del grant.writing[start]
        if grant.exact:
            del self._grants[grant.offset]
        elif grant.used == grant.size and not grant.writing and not grant.gaps:
            self._used_up = True
            return self._drop(grant)
        return None

    def abandon(self, offset: int) -> Rest | None:
        """Record that an object will not be written. Return the grant's row if the grant ends."""
        start = offset - HEADER_BYTES
        grant = self._holding(start)
        grant.abandon(start)
        return self._drop(grant) if grant.exact else None

    def _drop(self, grant: Grant) -> Rest:
        del self._grants[grant.offset]
        return grant.offset, grant.used, tuple(sorted(grant.gaps))

    def spent(self, size: int) -> list[Rest]:
        """Remove grants without room for ``size`` bytes; return their rows. If none has room, the largest remains."""
        need = footprint(size)
        shared = sorted((grant for grant in self._grants.values() if not grant.exact), key=lambda grant: grant.used - grant.size)
        full = [grant for grant in shared if grant.size - grant.used < need]
        self._used_up = self._used_up or bool(full)
        if full and len(full) == len(shared) and full[0].size - full[0].used >= LEAST_ROOM:
            del full[0]
        return [self._drop(grant) for grant in full if not grant.writing]

    def idle(self, keep: int = 0) -> list[Rest]:
        """Remove grants without writes; return their rows. Those with the least room stay, up to ``keep`` bytes together."""
        returned = []
        for grant in sorted(self._grants.values(), key=lambda grant: grant.size - grant.used):
            if not grant.writing:
                keep -= grant.size - grant.used
                if keep < 0 or grant.used == grant.size:
                    returned.append(self._drop(grant))
        return returned

    def give_back(self, offset: int) -> Rest | None:
        """Remove a recalled grant; return its row, or None if in use or not ours."""
        grant = self._grants.get(offset)
        return self._drop(grant) if grant is not None and not grant.writing else None

    def rows(self) -> tuple[tuple[int, int, int], ...]:
        """For ``GrantsHeld``: (offset, size, used). The store reports finished objects: a grant becomes its unused rest (``used`` is 0),
        and an object being written an exact grant (``used`` is its size).
        """
        held: dict[int, Grant] = {}
        for grant in self._grants.values():
            for start, size in grant.writing.items():
                held[start] = Grant(start, size, True)
                held[start].take(size)
            if not grant.exact and grant.size > grant.used:
                start = grant.offset + grant.used
                held[start] = Grant(start, grant.size - grant.used, False)
        self._grants = held
        return tuple((grant.offset, grant.size, grant.used) for grant in held.values())
