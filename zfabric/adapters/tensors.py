"""Tensors of torch on the CPU: written without a copy, and read in place, in private memory of the reader.

torch has no read-only tensors, and a write through a read-only mapping ends the process. So a value with tensors is marked, and its
reader maps it privately: a write copies its page at that moment, and the stored value stays as it is. All else about a tensor (views,
gradients, parameters, names) is torch's own pickling; only the storage, which has the numbers, is a buffer here.
"""

from __future__ import annotations

import ctypes
import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

SHARE_LEAST = 0.5
"""A tensor that uses a smaller part of its storage than this is pickled without the rest, which may be much larger."""

Reducer = Callable[[Any], Any]


def tensor_types() -> tuple[type[Any], ...]:
    """Return the types that have a reducer here; none unless torch is loaded."""
    torch: Any = sys.modules.get("torch")
    storage = getattr(getattr(torch, "storage", None), "TypedStorage", None)
    return (torch.Tensor, storage) if storage is not None and hasattr(torch, "frombuffer") else ()


def reducers(note: Callable[[], None]) -> dict[type[Any], Reducer]:
    """Return the reducers of tensors and storages, by type. ``note`` is called for each storage that becomes a buffer."""

    def reduce_storage(storage: Any) -> Any:
        untyped = storage._untyped_storage  # As torch's own pickling does: the public attribute warns.
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
    """Return the bytes of a storage, which lives as long as they are used."""
    if not untyped.nbytes():
        return b""
    memory: Any = (ctypes.c_ubyte * untyped.nbytes()).from_address(untyped.data_ptr())
    memory.owner = untyped
    return memory


def _storage(buffer: Any, dtype: Any) -> Any:
    """Make a storage on the memory of ``buffer``, which is writable although the buffer is marked read-only (see ``deserialize``)."""
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
