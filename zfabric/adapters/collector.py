"""Saves the work of Python's cyclic garbage collector, which reads every container in each full pass.

A program may have as many refs as tasks. Each pass would read all of them and their ids, from memory that is no longer in any cache, so
they are hidden from it. A ref has only two slots, for its id and its client, and no dict. So a cycle through a ref also goes through the
client, which lives until it is shut down and then has no refs. The collector could never find garbage in refs.

A daemon has its collector turned off, and runs it when there is nothing else to do (``IdleCollector``).
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

WHOLE_SHARE = 1000
"""A full pass takes at most one part in this many of the time."""

untrack: Callable[[Any], None] = ctypes.pythonapi["PyObject_GC_UnTrack"]  # By item: a new function object, whose types only we declare.
"""Hide an object from the collector. Reference counting still frees it, with finalizers and weak refs. A cycle through it would never be
freed."""
untrack.argtypes, untrack.restype = (ctypes.py_object,), None  # type: ignore[attr-defined]


class IdleCollector:
    """Collects garbage when its owner has nothing else to do. ``clock`` tells seconds.

    A pass reads what was made since the last one. A full one takes half a second where a million tasks have records, and the owner stands
    still meanwhile: so it is rare where it takes long.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._whole_at = clock()

    def run(self) -> None:
        """Do one pass."""
        began = self._clock()
        if began < self._whole_at:
            gc.collect(1)
        else:
            gc.collect()
            ended = self._clock()
            self._whole_at = ended + WHOLE_SHARE * (ended - began)
