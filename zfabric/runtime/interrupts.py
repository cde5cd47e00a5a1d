"""Interrupts: raised in user code, never in the middle of the fabric's own bookkeeping.

The main thread is interrupted by a signal, other threads by the interpreter. Both are asynchronous, so each thread has a *fence* that
shows whether it runs user code. An interrupt at another moment is not raised, and a finalizer may swallow one that is raised.
So it is repeated until the attempt has ended (see ``interrupter``).
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from zfabric.exceptions import FabricError
from zfabric.runtime.process_exit import hold_thread

INTERRUPT = int(signal.SIGRTMIN) + 7
AGAIN_AFTER = 0.02
"""Seconds until an interrupt that was not raised is repeated."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


class TaskInterrupt(KeyboardInterrupt):
    """Raised in user code to stop its attempt. Like Ctrl-C it passes ``except Exception``."""


class _Withdrawn(BaseException):
    """Raised in place of an interrupt that is withdrawn, and caught at once."""


class Fence:
    """The fence of one thread. ``depth`` is 0 while it runs user code; otherwise it is the depth of calls into the fabric."""

    __slots__ = ("asked", "depth", "missed", "thread")

    def __init__(self) -> None:
        self.depth = 0
        self.missed = False
        """Whether an interrupt arrived while no user code ran. It is raised when user code next enters the fabric."""
        self.asked = False
        """Whether the interpreter was asked to raise an interrupt since ``forget`` was called last."""
        self.thread = threading.get_ident()

    def interrupt(self) -> bool:
        """Raise ``TaskInterrupt`` in its thread. Return False if that runs no user code now. Called by another thread.

        If the thread enters the fabric meanwhile, the interrupt is withdrawn.
        """
        if not self.depth:
            self.asked = True
            _raise_in(self.thread, TaskInterrupt)
            if not self.depth:
                return True
            _raise_in(self.thread, None)
            self.asked = True  # The thread may have called ``forget`` meanwhile.
        self.missed = True
        return False

    def forget(self) -> None:
        """Withdraw an interrupt that has not been raised yet. Called by the thread itself, once ``depth`` is above 0.

        An exception takes its place, and is raised here. Without one, Python 3.11 would look for it again and again until another one is
        raised in this interpreter; and a traced function, as under a debugger, would never begin.
        """
        if self.asked:
            self.asked = False
            with contextlib.suppress(_Withdrawn):
                _raise_in(self.thread, _Withdrawn)


class Fences(threading.local):
    """``mine`` is the fence of the calling thread."""

    def __init__(self) -> None:
        self.mine = Fence()

    def closed(self, function: _Function, catch_up: Callable[[Fence], None]) -> _Function:
        """Make a function run to its end without interrupts when user code calls it. ``catch_up`` first raises a missed one."""

        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            fence = self.mine
            if fence.missed and not fence.depth:
                catch_up(fence)
            fence.depth += 1
            try:
                return function(*args, **kwargs)
            except FabricError:
                hold_thread()
                raise
            finally:
                fence.depth -= 1

        return guarded  # type: ignore[return-value]


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error))
