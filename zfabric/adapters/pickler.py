"""The class of picklers for all but plain data: cloudpickle's, which also pickles cached functions, and code with the name of its file."""

from __future__ import annotations

import functools
import types
from collections import ChainMap
from typing import Any

from zfabric.adapters.cached_functions import CachedFunction, reduce_cached

_FILENAME = 10
"""The place of the file's name among the parameters of ``types.CodeType``."""


@functools.cache
def pickler() -> Any:
    """Return the class of picklers."""
    import cloudpickle  # Plain data is pickled without it: processes start sooner.

    reduce_code = cloudpickle.Pickler.dispatch_table[types.CodeType]

    def reduce_named_code(code: types.CodeType) -> tuple[Any, ...]:
        """Reduce code as cloudpickle does, and name its file: cloudpickle 3.1.3 leaves that out, but tracebacks and debuggers need it."""
        kind, parameters = reduce_code(code)
        return kind, (*parameters[:_FILENAME], "".join(code.co_filename), *parameters[_FILENAME + 1 :])

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table = ChainMap({CachedFunction: reduce_cached, types.CodeType: reduce_named_code}, cloudpickle.Pickler.dispatch_table)

    return Pickler
