"""Arrays of Arrow: written without the memory that a slice does not use.

A slice of an Arrow array, and so of a table, a record batch or a chunked array, has the buffers of the whole, and Arrow's own pickling
writes all of them. Here an array that uses less than it has is copied first. So a table in a hundred slices takes as much room as whole.
Dictionaries stay as they are: programs see them. So do the children of dense unions, and texts of views (``string_view``) that are inside
of other arrays: Arrow has no way to cut these. pandas cuts its arrays by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

UNUSED_MAX = 0.1
"""An array is copied if its buffers have more bytes than it uses, by this share of them: less would cost more than it saves."""
VIEW_BYTES = 16
"""Bytes of an element of an array of views."""
UNUSED_BYTES_MIN = 1024
"""Fewer unused bytes do not count: buffers of small arrays are rounded up."""


def is_loaded() -> bool:
    """Whether this process has imported pyarrow."""
    return "pyarrow.lib" in sys.modules


class Reducers(dict[type[Any], Callable[[Any], Any]]):
    """The reducers of Arrow's arrays, by type, found when first asked for: programs define types of their own."""

    def __missing__(self, kind: type[Any]) -> Callable[[Any], Any]:
        """Return the reducer of a class of arrays. Raises KeyError for all others."""
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
    """Return an array that has not much more memory than it uses: this one, or a copy."""
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
    """Whether an array of views is a small part of another one."""
    buffer = views.buffers()[1]
    return buffer is not None and _is_much(buffer.size - VIEW_BYTES * len(views), buffer.size)


def _views(arrow: Any) -> tuple[Any, ...]:
    """Return the ids of types whose elements refer to buffers that all slices share. Old versions of Arrow have none."""
    return (getattr(arrow, "Type_STRING_VIEW", None), getattr(arrow, "Type_BINARY_VIEW", None))


def _copy_of_views(arrow: Any, array: Any) -> Any:
    plain = arrow.large_string() if array.type.id == arrow.Type_STRING_VIEW else arrow.large_binary()
    return array.cast(plain).cast(array.type)
