"""The arena: one sparse shared-memory file with a node's values.

The supervisor creates the file without a name, so nothing outlives a kill. Others open it as ``/proc/<pid>/fd/<n>`` (decision 0001).

**No byte is touched before its memory exists**: touching a hole without memory kills the process (SIGBUS). ``make_ready`` allocates pieces
of 2 MiB: one page each, then ``MADV_COLLAPSE`` makes a huge page, eight times faster than all small pages. If the kernel refuses,
``posix_fallocate`` allocates the piece.

**A restarted daemon finds sealed objects by an index** at the start of the file, since reused room is full of old headers. Only the daemon
writes the index, an entry's state byte last. An entry counts if the object's header agrees: same id, same size, sealed.

**Reading without a pin** (``copy``) works like a sequence lock: a copy counts if the header is this sealed object's before and afterwards.
So the daemon voids a header before it gives the room away (``mark``), and clears room where a dead process may have written unreported
objects.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import time

from zfabric.adapters.mapping import Mapping, aligned_room, private_view
from zfabric.machines.common.extents import HEADER_BYTES, INDEX_ENTRY_BYTES, PIECE, arena_bytes, data_start, round_up
from zfabric.protocol.effects import FREED, SEALED, WRITING
from zfabric.protocol.inside import read_refs

_MAGIC = 0x4F42465A
_VERSION = 1
_HEADER = struct.Struct("<IBBxxQ20s16s12x")
"""magic, version, state, size, object id, digest (zeros: none)"""
_ENTRY = struct.Struct("<IBBxxQ20s4xQ16x")
"""magic, version, state, size, object id, payload offset"""
_STATE_AT = 5
_INDEX_STEP = 64 * 2**10
_MEMORY_RESERVE = 64 * 2**20
"""Bytes left to the system: without memory, the kernel kills processes and reports no error."""

_TRY_AGAIN_SECONDS, _TRY_AGAIN_SECONDS_MOST = 0.005, 0.1
"""Seconds without huge pages after the first slow one (7 ms if the host must provide it); doubled up to the second value."""
_SLOW_BYTES_PER_SECOND = 2 * 2**30
"""Below this rate, huge pages are slower than small ones."""
_HUGE_STEP_MOST = 32 * 2**20
"""Most bytes of huge pages per call after fast ones: the speed is known only afterwards."""

_MADV_REMOVE, _MADV_COLLAPSE = 9, 25
_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 0x2, 0x4


def create_arena(directory: str, size: int) -> int:
    """Create an arena of ``size`` bytes without a name; return its descriptor.

    ``directory`` is a tmpfs; if empty, the memory is anonymous. The size never changes, so no mapping loses its end.
    """
    size = arena_bytes(size)
    if not directory:
        descriptor = os.memfd_create("zfabric-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, size)
        if not directory:
            import fcntl  # Only the supervisor creates arenas.

            fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Arena:
    """This process's mapping of the arena at ``path``; ``writable`` adds a second one for writing.

    Offsets are those of payloads, as in messages. Raises OSError if the file cannot be opened or has another size.
    """

    def __init__(self, path: str, size: int, writable: bool) -> None:
        self.size = arena_bytes(size)
        self._descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            actual = os.fstat(self._descriptor).st_size
            if actual != self.size:
                raise OSError(errno.EINVAL, f"the arena {path} has {actual} bytes, not {self.size}")
            self._readable = Mapping(self._descriptor, 0, self.size, writable=False).memory().toreadonly()
            self._mapping = Mapping(self._descriptor, 0, self.size, writable=True) if writable else None
        except OSError:
            os.close(self._descriptor)
            raise
        self._memory = self._mapping.memory() if self._mapping is not None else self._readable
        self._slots: dict[int, int] = {}
        self._free_slots: list[int] = []
        self._slots_used = 0
        self._index_ready = 0
        self._try_again_after = 0.0
        """0 after fast huge pages."""
        self._try_again_at = 0.0
        self._huge_step = PIECE
        self._index_end = data_start(self.size)

    def close(self) -> None:
        """Close the file. Views in use remain valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._mapping = None
            del self._readable, self._memory

    # -- values --

    def view(self, offset: int, size: int) -> memoryview:
        """Return a payload, read-only."""
        return self._readable[offset : offset + size]

    def private(self, offset: int, size: int) -> memoryview:
        """Return a private copy-on-write view of a payload. Raises OSError if it cannot be mapped."""
        return private_view(self._descriptor, offset, size)

    def copy(self, offset: int, size: int, object_id: bytes) -> memoryview | None:
        """Return a writable copy of an object; None unless the object was sealed there before and after. System calls read the room,
        because freed room may have no memory.
        """
        start = offset - HEADER_BYTES
        if not self._index_end <= start <= self.size - HEADER_BYTES - size:
            return None
        room = aligned_room(HEADER_BYTES + size)
        if os.preadv(self._descriptor, (room,), start) != len(room):
            return None
        header = bytes(room[:HEADER_BYTES])
        if _HEADER.unpack(header)[:5] != (_MAGIC, _VERSION, SEALED, size, object_id):
            return None
        return room[HEADER_BYTES:] if os.pread(self._descriptor, HEADER_BYTES, start) == header else None

    def writable(self, offset: int, size: int) -> memoryview:
        """Return a writable payload, for the process that has the grant."""
        return self._memory[offset : offset + size]

    def void(self, offset: int) -> None:
        """Void an object's header, so that copies no longer count."""
        self._memory[offset - HEADER_BYTES + _STATE_AT] = FREED

    def seal(self, offset: int, object_id: bytes, size: int, digest: bytes = b"") -> None:
        """Write the header of a complete payload, its state last."""
        start = offset - HEADER_BYTES
        _HEADER.pack_into(self._memory, start, _MAGIC, _VERSION, WRITING, size, object_id, digest)
        self._memory[start + _STATE_AT] = SEALED

    def write(self, offset: int, object_id: bytes, value: bytes | memoryview) -> None:
        """Write a payload, then its header."""
        self._memory[offset : offset + len(value)] = value
        self.seal(offset, object_id, len(value))

    # -- the index (daemon only) --

    def mark(self, offset: int, state: int) -> bool:
        """Index an object (SEALED), or remove it and void its header (FREED), while the room is still its own.

        Returns False if a restart would not find the object: the header is not sealed, or the index is full.
        """
        if state == FREED:
            self.void(offset)
            slot = self._slots.pop(offset, None)
            if slot is not None:
                self._memory[slot * INDEX_ENTRY_BYTES + _STATE_AT] = FREED
                self._free_slots.append(slot)
            return True
        # By a system call: a client's wrong offset may point to unallocated memory.
        magic, version, sealed, size, object_id, _ = _HEADER.unpack(os.pread(self._descriptor, HEADER_BYTES, offset - HEADER_BYTES))
        if (magic, version, sealed) != (_MAGIC, _VERSION, SEALED):
            return False
        if offset in self._slots:
            return True
        slot = self._slot()
        if slot is None:
            return False
        self._slots[offset] = slot
        at = slot * INDEX_ENTRY_BYTES
        _ENTRY.pack_into(self._memory, at, _MAGIC, _VERSION, WRITING, size, object_id, offset)
        self._memory[at + _STATE_AT] = SEALED
        return True

    def _slot(self) -> int | None:
        if self._free_slots:
            return self._free_slots.pop()
        end = (self._slots_used + 1) * INDEX_ENTRY_BYTES
        if end > self._index_ready:
            if end > self._index_end:
                return None
            try:
                os.posix_fallocate(self._descriptor, self._index_ready, _INDEX_STEP)
            except OSError:
                return None
            self._index_ready += _INDEX_STEP
        self._slots_used += 1
        return self._slots_used - 1

    def find_sealed(self) -> list[tuple[bytes, int, int]]:
        """Return (object_id, offset, size) of indexed objects. A restarted daemon calls this before ``mark``."""
        used = min(round_up(os.lseek(self._descriptor, 0, os.SEEK_HOLE), _INDEX_STEP), self._index_end)
        index = os.pread(self._descriptor, used, 0)
        self._index_ready = used
        self._slots, self._free_slots, self._slots_used = {}, [], 0
        found: list[tuple[bytes, int, int]] = []
        for slot in range(len(index) // INDEX_ENTRY_BYTES):
            magic, version, state, size, object_id, offset = _ENTRY.unpack_from(index, slot * INDEX_ENTRY_BYTES)
            if (magic, version, state) == (_MAGIC, _VERSION, SEALED) and self._agrees(object_id, offset, size):
                self._slots[offset] = slot
                found.append((object_id, offset, size))
                self._free_slots.extend(range(self._slots_used, slot))
                self._slots_used = slot + 1
        return found

    def refs_inside(self, offset: int, size: int) -> tuple[bytes, ...]:
        """Return the ids of refs inside a sealed value."""
        return read_refs(lambda count: os.pread(self._descriptor, count, offset), size)

    def _agrees(self, object_id: bytes, offset: int, size: int) -> bool:
        if not self._index_end + HEADER_BYTES <= offset <= self.size - size:
            return False
        header = os.pread(self._descriptor, HEADER_BYTES, offset - HEADER_BYTES)
        return _HEADER.unpack(header)[:5] == (_MAGIC, _VERSION, SEALED, size, object_id)

    # -- memory (daemon only) --

    def make_ready(self, offset: int, size: int) -> str:
        """Allocate memory for whole pieces, huge pages if possible. Return an empty string, or why it was refused.

        Huge pages are several times faster. But if a virtual machine gets them from its host, they are thirty times slower than freed
        memory. So they are used until they are slow, and tried again after a growing pause. Speed is measured in processor time, which
        includes waiting for the host but not the machine's load.
        """
        if self._mapping is None:
            return "the arena is open for reading only"
        short = _memory_short(size)
        if short:
            return short
        try:
            done = 0
            while done < size and (not self._try_again_after or time.monotonic() >= self._try_again_at):
                done += self._make_huge(offset + done, min(size - done, self._huge_step))
            os.posix_fallocate(self._descriptor, offset, size)
        except OSError as error:
            return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
        return ""

    def _make_huge(self, offset: int, size: int) -> int:
        assert self._mapping is not None
        began = time.thread_time()
        for piece in range(offset, offset + size, PIECE):
            os.posix_fallocate(self._descriptor, piece, mmap.PAGESIZE)
        self._mapping.advise(offset, size, _MADV_COLLAPSE)
        slow = size < _SLOW_BYTES_PER_SECOND * (time.thread_time() - began)
        if slow:
            self._huge_step = PIECE
            self._try_again_after = min(max(2 * self._try_again_after, _TRY_AGAIN_SECONDS), _TRY_AGAIN_SECONDS_MOST)
            self._try_again_at = time.monotonic() + self._try_again_after
        else:
            self._huge_step = min(4 * self._huge_step, _HUGE_STEP_MOST)
            self._try_again_after = 0.0
        return size

    def clear(self, offset: int, size: int) -> None:
        """Fill room that is ready with zeros."""
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(self._memory, offset)), 0, size)

    def punch(self, offset: int, size: int) -> None:
        """Return whole pieces to the system. They read as zeros and must not be touched."""
        if self._mapping is not None:
            self._mapping.advise(offset, size, _MADV_REMOVE)


def _memory_short(size: int) -> str:
    with open("/proc/meminfo", "rb") as lines:
        for line in lines:
            if line.startswith(b"MemAvailable:"):
                available = int(line.split()[1]) * 1024
                if available < size + _MEMORY_RESERVE:
                    return f"the machine has {available // 2**20} MiB of memory left"
                break
    return ""
