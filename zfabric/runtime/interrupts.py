"""Interrupts: raised in user code, never in the middle of the fabric's own bookkeeping.

The main thread is interrupted by a signal, other threads by the interpreter. Both are asynchronous, so each thread has a *fence* that
says whether it runs user code. One that comes at another moment is not raised, and one that is may be lost in a finalizer: so who
asks for it asks again until what is to be stopped has ended.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

INTERRUPT = int(signal.SIGRTMIN) + 7
AGAIN_AFTER = 0.02
"""When one that was not raised is tried again, in seconds."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


class TaskInterrupt(KeyboardInterrupt):
    """Raised in user code to stop its attempt. Like Ctrl-C it passes ``except Exception``."""


class Fence:
    """One thread's. ``depth`` is 0 while it runs user code, and counts how deep it is in the fabric otherwise."""

    __slots__ = ("depth", "missed", "thread")

    def __init__(self) -> None:
        self.depth = 0
        self.missed = False
        """Whether one came while no user code ran: it may be raised when that enters the fabric next."""
        self.thread = threading.get_ident()

    def interrupt(self) -> bool:
        """Raise ``TaskInterrupt`` in its thread. False if that runs no user code now; called by another thread.

        Between the question and the answer the thread may have gone on into the fabric: then it is taken back.
        """
        if not self.depth:
            _raise_in(self.thread, TaskInterrupt)
            if not self.depth:
                return True
            _raise_in(self.thread, None)
        self.missed = True
        return False

    def forget(self) -> None:
        """One that was asked for and has not been raised never is. Called by the thread itself, once ``depth`` is above 0."""
        _raise_in(self.thread, None)


class Fences(threading.local):
    """``mine`` is the fence of the thread that asks."""

    def __init__(self) -> None:
        self.mine = Fence()


def closed_to_interrupts(method: _Method) -> _Method:
    """The same, for user code to call: what it does is done whole. It belongs to a class with ``fences`` and ``catch_up``."""

    @wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        fence = self.fences.mine
        if fence.missed and not fence.depth:
            self.catch_up(fence)
        fence.depth += 1
        try:
            return method(self, *args, **kwargs)
        finally:
            fence.depth -= 1

    return guarded  # type: ignore[return-value]


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error))
