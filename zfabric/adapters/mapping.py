"""Ranges of files mapped into memory, shared or private, and aligned room for copies."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

from zfabric.machines.common.extents import ALIGNMENT, PIECE

_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


_new_room = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_room.restype = ctypes.py_object
_new_room.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)


def aligned_room(size: int) -> memoryview:
    """Return ``size`` bytes of uninitialized memory aligned to ``ALIGNMENT``."""
    room = _new_room(None, size + ALIGNMENT)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(room)) % ALIGNMENT
    return memoryview(room)[begin : begin + size]


class Mapping:
    """A mapping of ``size`` bytes of a file from ``offset``, a multiple of the page size. The file may be closed afterwards.

    The memory is unmapped with its last view. Address and offset agree modulo 2 MiB, so huge pages stay huge. Raises OSError.
    """

    def __init__(self, descriptor: int, offset: int, size: int, writable: bool, private: bool = False) -> None:
        self.size = size
        spare_size = size + 2 * PIECE
        spare = _map(None, spare_size, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.address = spare + (offset - spare) % PIECE
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED) | _MAP_FIXED
        try:
            _map(self.address, size, protection, flags, descriptor, offset)
        except OSError:
            _libc.munmap(spare, spare_size)
            raise
        end = -(-(self.address + size) // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.address > spare:
            _libc.munmap(spare, self.address - spare)
        _libc.munmap(end, spare + spare_size - end)

    def memory(self) -> memoryview:
        """Return a view of all of it. The mapping lives as long as this view and views of it."""
        memory: Any = (ctypes.c_ubyte * self.size).from_address(self.address)
        memory.owner = self
        return memoryview(memory).cast("B")

    def advise(self, offset: int, size: int, advice: int) -> None:
        """Call ``madvise`` on a part. Errors are ignored."""
        _libc.madvise(self.address + offset, size, advice)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            _libc.munmap(self.address, self.size)


def private_view(descriptor: int, offset: int, size: int) -> memoryview:
    """Map ``size`` bytes of a file privately: writes do not change the file. Raises OSError."""
    if not size:
        return memoryview(bytearray())
    before = offset % mmap.PAGESIZE
    return Mapping(descriptor, offset - before, before + size, writable=True, private=True).memory()[before:]


def _map(address: int | None, size: int, protection: int, flags: int, descriptor: int, offset: int) -> int:
    mapped: int | None = _libc.mmap(address, size, protection, flags | _MAP_NORESERVE, descriptor, offset)
    if mapped is None or mapped == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"the object store's {size} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")
    return mapped
