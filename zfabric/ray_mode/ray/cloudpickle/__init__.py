"""The library cloudpickle, under Ray's name."""

from typing import Any

from cloudpickle import *
from cloudpickle import CloudPickler, Pickler, dump, dumps, load, loads, register_pickle_by_value, unregister_pickle_by_value
from cloudpickle import cloudpickle as cloudpickle


def dumps_debug(value: Any, *args: Any, **kwargs: Any) -> bytes:
    """``dumps``: its errors name what cannot be pickled."""
    pickled: bytes = dumps(value, *args, **kwargs)
    return pickled
