"""Python's cyclic garbage collector, which reads every container in each of its passes.

A program has as many refs as tasks, and a pass of the collector reads every one of them and its id, from memory that no cache holds
any more. A ref has neither a dict nor a slot for anything but its id and its client. A cycle can go through it only by way of the
client, which lives until it is shut down and keeps no refs then. So the collector could find nothing in refs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

untrack: Callable[[Any], None] = ctypes.pythonapi["PyObject_GC_UnTrack"]  # by item: one of our own, which nobody else declares
"""The collector does not look at this object any more. What counts its references frees it as before, finalizer and weak refs included;
a cycle through it would stay for ever."""
untrack.argtypes, untrack.restype = (ctypes.py_object,), None  # type: ignore[attr-defined]
