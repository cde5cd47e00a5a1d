"""Interrupts: raised in user code, never inside the fabric's own work.

Both kinds are asynchronous: a signal in the main thread, the interpreter's exception in others. A thread's *fence* shows whether it runs
user code; otherwise nothing is raised.

Interrupts may have no effect (no user code ran, a finalizer swallowed one), so ``Interrupter`` repeats them until the attempt ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any, TypeVar

from zfabric.exceptions import FabricError
from zfabric.machines.worker import Invocation, Item, Worker
from zfabric.protocol.ids import short
from zfabric.runtime.connection import clock
from zfabric.runtime.contexts import Contexts, current_call
from zfabric.runtime.hosting import Host
from zfabric.runtime.process_exit import hold_thread
from zfabric.runtime.worker_connection import WorkerConnection

INTERRUPT = int(signal.SIGRTMIN) + 7
AGAIN_AFTER = 0.02
"""Seconds until an interrupt that was not raised is repeated."""
ABANDON_AFTER = 1.0
"""Seconds after which a call is abandoned: code that does not return to Python cannot be stopped."""
IMPORT_PATIENCE = 10.0
"""Seconds for which loading a value may go on importing: a C library cannot be imported again after an interrupt."""
_IMPORT = "<frozen importlib._bootstrap>"

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
        """Whether an interrupt arrived outside user code; raised when user code next enters the fabric."""
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
        """Let a function run without interrupts. ``catch_up`` first raises a missed one."""

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


class Interrupter:
    """Stops the tasks and calls in ``worker.interrupts``: in the main thread by a signal, beside it through their crew."""

    def __init__(self, connection: WorkerConnection, worker: Worker, contexts: Contexts, host: Host) -> None:
        self.fences = Fences()
        self.fence = self.fences.mine
        """The main thread's fence."""
        self.fence.depth = 1
        self.handler = self._handle
        """One object, so that a library's replacement is detected."""
        self._connection = connection
        self._worker = worker
        self._contexts = contexts
        self._host = host
        self._every = connection.config.interrupt_every
        self._since: dict[bytes, float] = {}
        """When each item was first interrupted, by its id."""
        self._due: dict[bytes, float] = {}
        """When each item is interrupted next, by its id."""

    def deadlines(self) -> list[float]:
        """When interrupts are due. The caller holds the lock, or is the control thread."""
        return list(self._due.values())

    def stop_due(self) -> None:
        """Repeat due interrupts, in the control thread under the lock."""
        for stopped in [each for each, due in self._due.items() if due <= clock()]:
            self.stop(stopped)

    def begin(self, stopped: bytes) -> None:
        """Call ``stop``, unless begun: a second request must not interrupt the clean-up after the first."""
        if stopped not in self._due:
            self.stop(stopped)

    def stop(self, stopped: bytes) -> None:
        """Interrupt what is in ``worker.interrupts``, in the control thread under the lock."""
        connection, worker = self._connection, self._worker
        if stopped not in worker.interrupts:
            self._due.pop(stopped, None)
            self._since.pop(stopped, None)
            return
        now = clock()
        if now - self._since.setdefault(stopped, now) > ABANDON_AFTER and worker.abandon(stopped):
            connection.flush()
        self._due[stopped] = now + AGAIN_AFTER
        beside = worker.running_calls.get(stopped)
        crew = self._host.crew or self._host.loop
        if beside is None or crew is None:
            signal.pthread_kill(self._contexts.main, INTERRUPT)
        elif crew.interrupt(beside):
            self._due[stopped] = now + self._every
        else:
            connection.transport.wake()  # Its thread may be the receiving one.
        connection.wake_followers()

    def stop_soon(self, running: bytes) -> None:
        """Have the control thread interrupt this. The caller holds the lock."""
        self._due[running] = clock()
        self._connection.control_transport.wake()

    def _handle(self, number: int, frame: Any) -> None:
        if self.fence.depth and not self._connection.polling:
            self.fence.missed = True
        elif self._contexts.stack:
            item = self._contexts.stack[-1]
            asked = self._since.get(item.row[0])
            if asked is None or clock() - asked > IMPORT_PATIENCE or not _is_loading_a_module(frame):
                self._raise_if_asked(item)

    def catch_up(self, fence: Fence) -> None:
        """Raise a missed interrupt that still applies, as user code enters the fabric."""
        fence.missed = False
        item = self._contexts.top if fence is self.fence and self._contexts.stack else current_call.get()
        if item is not None:
            self._raise_if_asked(item)

    def _raise_if_asked(self, item: Item | Invocation) -> None:
        if self._worker.interrupted(item):
            self._due[item.row[0]] = clock() + self._every
            raise TaskInterrupt(f"{short(item.row[0])} is to be stopped")

    def closed(self, function: _Function) -> _Function:
        """Let a function run without interrupts."""
        return self.fences.closed(function, self.catch_up)

    def run_as_user(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call user code, with interrupts allowed."""
        fence = self.fences.mine
        fence.depth = 0
        try:
            return function(*args, **kwargs)
        finally:
            fence.depth = 1
            if fence is not self.fence:
                fence.forget()

    def run_value_code(self, function: Callable[..., Any], *args: Any) -> Any:
        """Pickle or load values with interrupts allowed: classes are user code."""
        fence = self.fences.mine
        before, fence.depth = fence.depth, 0
        try:
            return function(*args)
        finally:
            fence.depth = before
            if fence is not self.fence:
                fence.forget()


def _is_loading_a_module(frame: FrameType | None) -> bool:
    """Whether ``run_value_code`` imports a module, not the task."""
    imports = False
    while frame is not None and frame.f_code is not _VALUE_CODE:
        imports = imports or frame.f_code.co_filename == _IMPORT
        frame = frame.f_back
    return imports and frame is not None


_VALUE_CODE = Interrupter.run_value_code.__code__
