"""The end of a process, as threads see it that still run: daemon threads, which go on until the process has exited.

What such a thread waits for does not come any more, and an error that nobody can handle would only be printed. So it waits for the exit, as
it would in any other call that blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from zfabric.exceptions import FabricError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_begun = False


def begin() -> None:
    """Record that this process exits: its connection is about to be closed for good."""
    global _begun
    _begun = True


def withdraw() -> None:
    """Record that this process does not exit: it was forked from one that does."""
    global _begun
    _begun = False


def hold_thread() -> None:
    """Block the calling thread for ever if the process exits, unless this is the main thread. The caller holds no lock of the fabric."""
    if _begun and threading.current_thread() is not threading.main_thread():
        never = threading.Lock()
        never.acquire()
        never.acquire()


def holding(function: _Function) -> _Function:
    """Make a function hold its thread instead of raising an error of the fabric, once the process exits."""

    @wraps(function)
    def held(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except FabricError:
            hold_thread()
            raise

    return held  # type: ignore[return-value]
