"""Reducers of other libraries' arrays: torch's CPU tensors, and arrays of Arrow. Neither library is imported here.

Tensors are written without a copy, and read in place. A write through a read-only mapping would end the process, and torch has no read-only
tensors. So a value with tensors is marked, and the reader maps it privately: a write copies its page. Only the storage is a buffer; all
else is torch's own pickling.

A slice of an Arrow array has the buffers of the whole array, which Arrow's own pickling writes. Here an array that uses less than it has is
copied before it is pickled. Dictionaries stay whole, since programs see them; so do children of dense unions and nested string views, which
Arrow cannot cut.
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
UNUSED_MAX = 0.1
"""Unused share of an Arrow array's buffers from which a copy saves more than it costs."""
VIEW_BYTES = 16
UNUSED_BYTES_MIN = 1024
"""Smaller waste does not count: buffers are rounded up."""

Reducer = Callable[[Any], Any]


def tensor_types() -> tuple[type[Any], ...]:
    """Return the types that have a reducer; none unless torch is loaded."""
    torch: Any = sys.modules.get("torch")
    storage = getattr(getattr(torch, "storage", None), "TypedStorage", None)
    return (torch.Tensor, storage) if storage is not None and hasattr(torch, "frombuffer") else ()


def tensor_reducers(note: Callable[[], None]) -> dict[type[Any], Reducer]:
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


def is_arrow_loaded() -> bool:
    """Whether pyarrow is imported."""
    return "pyarrow.lib" in sys.modules


class ArrowReducers(dict[type[Any], Reducer]):
    """Reducers of Arrow's array classes, made on first use: programs define such classes."""

    def __missing__(self, kind: type[Any]) -> Reducer:
        """Return the reducer of a class of arrays. Raises KeyError for other classes."""
        array = getattr(sys.modules.get("pyarrow.lib"), "Array", None)
        if array is None or not issubclass(kind, array):
            raise KeyError(kind)
        self[kind] = _reduce_array
        return _reduce_array


def _reduce_array(array: Any) -> Any:
    arrow: Any = sys.modules["pyarrow.lib"]
    try:
        array = _compact(arrow, array)
    except arrow.ArrowException:  # This version cannot do it with this type.
        pass
    return array.__reduce_ex__(5)


def _compact(arrow: Any, array: Any) -> Any:
    kind = array.type
    if kind.id in _views(arrow):
        return _copy_of_views(arrow, array) if _is_cut(array) else array
    if not _is_wasteful(array):
        return array
    copy = arrow.concat_arrays([array])
    if isinstance(copy, arrow.DictionaryArray) and _is_wasteful(copy):  # Its dictionary is a slice.
        return arrow.DictionaryArray.from_arrays(copy.indices, _compact(arrow, copy.dictionary), ordered=kind.ordered)
    return copy


def _is_wasteful(array: Any) -> bool:
    whole = array.get_total_buffer_size()
    return _is_much(whole - array.nbytes, whole)


def _is_much(unused: int, whole: int) -> bool:
    return unused > max(UNUSED_BYTES_MIN, UNUSED_MAX * whole)


def _is_cut(views: Any) -> bool:
    buffer = views.buffers()[1]
    return buffer is not None and _is_much(buffer.size - VIEW_BYTES * len(views), buffer.size)


def _views(arrow: Any) -> tuple[Any, ...]:
    """Types whose elements refer to shared buffers; None for a type that this version of Arrow lacks."""
    return (getattr(arrow, "Type_STRING_VIEW", None), getattr(arrow, "Type_BINARY_VIEW", None))


def _copy_of_views(arrow: Any, array: Any) -> Any:
    plain = arrow.large_string() if array.type.id == arrow.Type_STRING_VIEW else arrow.large_binary()
    return array.cast(plain).cast(array.type)
