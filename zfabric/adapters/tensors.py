"""Torch's CPU tensors: written without a copy, and read in place in private memory of the reader.

A write through a read-only mapping would end the process, and torch has no read-only tensors. So a value with tensors is marked and mapped
privately: a write copies its page. Only the storage is a buffer; all else is torch's own pickling.
"""

from __future__ import annotations

import ctypes
import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

SHARE_LEAST = 0.5
"""A tensor that uses less than this part of its storage is pickled without the rest."""

Reducer = Callable[[Any], Any]


def tensor_types() -> tuple[type[Any], ...]:
    """Return the types that have a reducer; none unless torch is loaded."""
    torch: Any = sys.modules.get("torch")
    storage = getattr(getattr(torch, "storage", None), "TypedStorage", None)
    return (torch.Tensor, storage) if storage is not None and hasattr(torch, "frombuffer") else ()


def reducers(note: Callable[[], None]) -> dict[type[Any], Reducer]:
    """Return reducers of tensors and storages, by type. ``note`` is called for each storage that becomes a buffer."""

    def reduce_storage(storage: Any) -> Any:
        untyped = storage._untyped_storage  # As torch's pickling does: the public attribute warns.
        if untyped.device.type != "cpu":
            return storage.__reduce_ex__(5)
        note()
        return _storage, (pickle.PickleBuffer(_memory(untyped)), storage.dtype)

    tensor, storage = tensor_types()
    return {tensor: _reduce_tensor, storage: reduce_storage}


def _reduce_tensor(tensor: Any) -> Any:
    torch: Any = sys.modules["torch"]
    if tensor.device.type == "cpu" and tensor.layout is torch.strided:
        used = tensor.numel() * tensor.element_size()
        if used < SHARE_LEAST * tensor.untyped_storage().nbytes() and not tensor.__dict__:
            tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return tensor.__reduce_ex__(5)


def _memory(untyped: Any) -> Any:
    """The bytes keep their storage alive."""
    if not untyped.nbytes():
        return b""
    memory: Any = (ctypes.c_ubyte * untyped.nbytes()).from_address(untyped.data_ptr())
    memory.owner = untyped
    return memory


def _storage(buffer: Any, dtype: Any) -> Any:
    """Make a storage on ``buffer``, whose memory is writable although it is marked read-only (see ``deserialize``)."""
    import numpy  # Loaded with torch.

    torch: Any = importlib.import_module("torch")
    size = len(buffer)
    if not size:
        return torch.storage.TypedStorage(wrap_storage=torch.UntypedStorage(0), dtype=dtype, _internal=True)

    address: int = numpy.frombuffer(buffer, numpy.uint8).__array_interface__["data"][0]
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    memory.owner = buffer
    untyped = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)
