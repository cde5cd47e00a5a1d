"""Hides refs from Python's cyclic garbage collector, which reads every container in each pass.

A program may have as many refs as tasks. Each pass would read all of them and their ids, from memory that is no longer in any cache.
A ref has only two slots, for its id and its client, and no dict. So a cycle through a ref also goes through the client, which lives until
it is shut down and then has no refs. The collector could never find garbage in refs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

untrack: Callable[[Any], None] = ctypes.pythonapi["PyObject_GC_UnTrack"]  # By item: a new function object, whose types only we declare.
"""Hide an object from the collector. Reference counting still frees it, with finalizers and weak refs. A cycle through it would never be
freed."""
untrack.argtypes, untrack.restype = (ctypes.py_object,), None  # type: ignore[attr-defined]
