"""Pickles Arrow arrays without the memory that a slice does not use.

A slice has the buffers of the whole, which Arrow's own pickling writes. Here an array that uses less than it has is copied first.
Dictionaries stay, since programs see them; so do children of dense unions and nested string views, which Arrow cannot cut.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

UNUSED_MAX = 0.1
"""Unused share of the buffers from which a copy saves more than it costs."""
VIEW_BYTES = 16
UNUSED_BYTES_MIN = 1024
"""Smaller waste does not count: buffers are rounded up."""


def is_loaded() -> bool:
    """Whether pyarrow is imported."""
    return "pyarrow.lib" in sys.modules


class Reducers(dict[type[Any], Callable[[Any], Any]]):
    """Reducers of Arrow's array classes, made on first use: programs define such classes."""

    def __missing__(self, kind: type[Any]) -> Callable[[Any], Any]:
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
    """Types whose elements refer to shared buffers; None for those that this version lacks."""
    return (getattr(arrow, "Type_STRING_VIEW", None), getattr(arrow, "Type_BINARY_VIEW", None))


def _copy_of_views(arrow: Any, array: Any) -> Any:
    plain = arrow.large_string() if array.type.id == arrow.Type_STRING_VIEW else arrow.large_binary()
    return array.cast(plain).cast(array.type)
