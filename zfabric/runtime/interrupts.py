"""Interrupts: raised in user code, never inside the fabric's own work.

Both kinds are asynchronous: a signal in the main thread, the interpreter's exception in others. A thread's *fence* shows whether it runs
user code. At other moments nothing is raised; ``interrupter`` repeats.
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
    """Stops an attempt. Like Ctrl-C it passes ``except Exception``."""


class _Withdrawn(BaseException):
    """Replaces a withdrawn interrupt; caught at once."""


class Fence:
    """A thread's fence. ``depth`` is 0 in user code, else that of calls into the fabric."""

    __slots__ = ("asked", "depth", "missed", "thread")

    def __init__(self) -> None:
        self.depth = 0
        self.missed = False
        """Whether an interrupt arrived outside user code; raised when that next enters the fabric."""
        self.asked = False
        """Whether the interpreter was asked for an interrupt since ``forget``."""
        self.thread = threading.get_ident()

    def interrupt(self) -> bool:
        """Raise ``TaskInterrupt`` in the fence's thread, from another. Return False if no user code runs there.

        The interrupt is withdrawn if the thread enters the fabric meanwhile.
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
        """Withdraw an interrupt not raised yet, by the thread itself while ``depth`` is above 0.

        Another exception takes its place, and is raised here. Without one, Python 3.11 would search for it again and again, and a traced
        function would never begin.
        """
        if self.asked:
            self.asked = False
            with contextlib.suppress(_Withdrawn):
                _raise_in(self.thread, _Withdrawn)


class Fences(threading.local):
    """``mine`` is the calling thread's fence."""

    def __init__(self) -> None:
        self.mine = Fence()

    def closed(self, function: _Function, catch_up: Callable[[Fence], None]) -> _Function:
        """Let a function run to its end without interrupts. ``catch_up`` first raises a missed one."""

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
