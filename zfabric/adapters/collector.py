"""Saves work of Python's cyclic garbage collector, which reads every container in each full pass.

A program may have millions of refs, so they are hidden from the collector (``untrack``). The collector could never free them: a cycle
through a ref would go through the ref's client, which lives until shutdown.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

WHOLE_SHARE = 1000
"""A full pass takes at most one part in this many of the time."""

untrack: Callable[[Any], None] = ctypes.pythonapi["PyObject_GC_UnTrack"]  # By item: a new function object, whose types only we declare.
"""Hide an object from the collector. A cycle through it is never freed."""
untrack.argtypes, untrack.restype = (ctypes.py_object,), None  # type: ignore[attr-defined]


class IdleCollector:
    """Collects garbage when its owner, the daemon, is idle. ``clock`` returns seconds.

    A full pass stops the owner for half a second per million tasks, so long ones are rare.
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
