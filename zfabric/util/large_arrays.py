"""Pickles a call with its large arrays by reference, wherever they are in it: each is stored once for all calls.

A call reads the largest in place and copies others, so that it may write to them: cheaper than to send them each time. Arrays of a file
(``numpy.memmap`` and its views) travel as the file's path, so writes to them are shared on this machine. Refs in a call are retained until
it has ended.
"""

from __future__ import annotations

import io
import mmap
import threading
import weakref
from collections import ChainMap
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy

from zfabric import api as zf
from zfabric.adapters.arrays import ArrowReducers
from zfabric.adapters.pickler import pickler
from zfabric.adapters.serialization import deserialize

_Base: Any = pickler()

STORED_FROM = 64 * 1024
"""Smaller arrays travel with their call."""


class StoredArrays:
    """Refs of stored arrays, as long as the arrays exist. An array must not change while its ref is used."""

    def __init__(self) -> None:
        self._refs: dict[int, tuple[weakref.ref[Any], zf.ObjectRef]] = {}
        """By the array's address, which another one may have later."""
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._refs)

    def ref(self, array: Any) -> zf.ObjectRef:
        """Return the ref of an array, stored on first use. Raises ObjectStoreFullError."""
        key = id(array)
        with self._lock:
            found = self._refs.get(key)
            if found is not None and found[0]() is array:
                return found[1]
            stored = zf.put(numpy.asarray(array))
            self._refs[key] = weakref.ref(array, lambda gone: self._forget(key, gone)), stored
            return stored

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        """Drop the ref of a collected array. Takes no lock: the collector runs at any moment."""
        found = self._refs.get(key)
        if found is not None and found[0] is gone:
            self._refs.pop(key, None)

    def clear(self) -> None:
        """Drop all refs."""
        self._refs.clear()


class PackedCall(NamedTuple):
    """A callable as arguments of a task: its pickle, the refs inside, and its large arrays."""

    payload: bytes
    references: list[zf.ObjectRef]
    arrays: list[zf.ObjectRef]


class _Pickler(_Base):  # type: ignore[misc]  # Made at run time: cloudpickle has no types.
    dispatch_table = ChainMap(_Base.dispatch_table, ArrowReducers())

    def __init__(self, file: io.BytesIO, stored: StoredArrays, shared_from: float) -> None:
        super().__init__(file, protocol=5)
        self.references: list[zf.ObjectRef] = []
        self.arrays: list[zf.ObjectRef] = []
        self._stored = stored
        self._shared_from = shared_from

    def reducer_override(self, thing: Any) -> Any:
        """Reduce arrays and refs to their places in the lists; all else as cloudpickle does."""
        kind = type(thing)
        if (kind is numpy.ndarray or kind is numpy.memmap) and not thing.dtype.hasobject:
            file = _file_of(thing)
            if file is not None:
                return _reopened, file
            if thing.nbytes >= STORED_FROM:
                self.arrays.append(self._stored.ref(thing))
                return _array, (len(self.arrays) - 1, thing.nbytes < self._shared_from)
        elif kind is zf.ObjectRef:
            self.references.append(thing)
            return _reference, (len(self.references) - 1,)
        return super().reducer_override(thing)


def pack(call: Callable[[], Any], stored: StoredArrays, shared_from: float) -> PackedCall:
    """Pickle a call, which will read arrays of at least ``shared_from`` bytes in place. Raises what pickling raises."""
    file = io.BytesIO()
    made = _Pickler(file, stored, shared_from)
    made.dump(call)
    return PackedCall(made.finished(file.getvalue()), made.references, made.arrays)


class _Loading(threading.local):
    """Parts of the call that this thread unpickles."""

    references: list[zf.ObjectRef] = []
    arrays: tuple[Any, ...] = ()


_loading = _Loading()


def unpack(payload: bytes, references: list[zf.ObjectRef], arrays: tuple[Any, ...]) -> Callable[[], Any]:
    """Unpickle a call, given what was packed beside its pickle."""
    before = _loading.references, _loading.arrays
    _loading.references, _loading.arrays = references, arrays
    try:
        call: Callable[[], Any] = deserialize(payload)
        return call
    finally:
        _loading.references, _loading.arrays = before


def _reference(index: int) -> zf.ObjectRef:
    return _loading.references[index]


def _array(index: int, copied: bool) -> Any:
    found = _loading.arrays[index]
    return found.copy(order="K") if copied else found


def _file_of(array: Any) -> tuple[Any, ...] | None:
    """Arguments for ``_reopened`` if an array is memory of a file that others can map, else None."""
    root = array
    while root is not None and not (isinstance(root, numpy.memmap) and isinstance(root.base, mmap.mmap)):
        root = getattr(root, "base", None)
    if root is None or root.filename is None or root.mode == "c":  # "c" has memory of its own where it was changed.
        return None
    start = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    mode = "r+" if root.mode == "w+" else root.mode
    return str(root.filename), mode, root.offset, root.nbytes, start, array.dtype, array.shape, array.strides


def _reopened(
    path: str, mode: Any, offset: int, size: int, start: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    whole: Any = numpy.memmap(path, numpy.uint8, mode, offset, (size,))
    return numpy.ndarray(shape, dtype, whole, start, strides)
