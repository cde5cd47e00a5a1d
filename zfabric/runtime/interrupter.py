"""Stops running tasks and calls: the one on top of the main thread by a signal, those that run beside others through their crew.

An interrupt may have no effect, because no user code ran at that moment or a finalizer swallowed it. It is repeated until the attempt has
ended.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from zfabric.machines.worker import Invocation, Item, Worker
from zfabric.protocol.ids import short
from zfabric.runtime.connection import clock
from zfabric.runtime.contexts import Contexts, current_call
from zfabric.runtime.hosting import Host
from zfabric.runtime.interrupts import AGAIN_AFTER, INTERRUPT, Fence, Fences, TaskInterrupt
from zfabric.runtime.worker_connection import WorkerConnection

ABANDON_AFTER = 1.0
"""Seconds after which a call that does not stop is abandoned: no interrupt stops code that does not return to Python."""

IMPORT_PATIENCE = 10.0
"""Seconds for which a module may go on to be imported while a value of its is loaded: a library of C code that is interrupted in its import
cannot be imported again by the process."""
_IMPORT = "<frozen importlib._bootstrap>"

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Interrupter:
    """Interrupts the tasks and calls in ``worker.interrupts``."""

    def __init__(self, connection: WorkerConnection, worker: Worker, contexts: Contexts, host: Host) -> None:
        self.fences = Fences()
        self.fence = self.fences.mine
        """The main thread's fence."""
        self.fence.depth = 1
        self.handler = self._handle
        """The handler of the signal ``INTERRUPT``: always the same object, to detect whether a library has replaced it."""
        self._connection = connection
        self._worker = worker
        self._contexts = contexts
        self._host = host
        self._every = connection.config.interrupt_every
        self._since: dict[bytes, float] = {}
        """When each interrupt was first tried, by task or call id."""
        self._due: dict[bytes, float] = {}
        """When each interrupt is tried next, by task or call id."""

    def deadlines(self) -> list[float]:
        """Return when interrupts are tried next. The caller holds the lock, or is the control thread."""
        return list(self._due.values())

    def stop_due(self) -> None:
        """Repeat the interrupts that are due. Called by the control thread; the caller holds the lock."""
        for stopped in [each for each, due in self._due.items() if due <= clock()]:
            self.stop(stopped)

    def begin(self, stopped: bytes) -> None:
        """Interrupt a task or call, unless that goes on already: a second request must not interrupt what cleans up after the first.

        Called as ``stop`` is.
        """
        if stopped not in self._due:
            self.stop(stopped)

    def stop(self, stopped: bytes) -> None:
        """Interrupt a task or call, if it is in ``worker.interrupts``. Called by the control thread; the caller holds the lock."""
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
            connection.transport.wake()  # Its thread may be the one that receives.
        connection.wake_followers()

    def stop_soon(self, running: bytes) -> None:
        """Have the control thread interrupt a task or call. The caller holds the lock."""
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
        """Raise a missed interrupt, if it still applies: user code of this thread enters the fabric."""
        fence.missed = False
        item = self._contexts.top if fence is self.fence and self._contexts.stack else current_call.get()
        if item is not None:
            self._raise_if_asked(item)

    def _raise_if_asked(self, item: Item | Invocation) -> None:
        if self._worker.interrupted(item):
            self._due[item.row[0]] = clock() + self._every
            raise TaskInterrupt(f"{short(item.row[0])} is to be stopped")

    def closed(self, function: _Function) -> _Function:
        """Make a function run to its end without interrupts when user code calls it."""
        return self.fences.closed(function, self.catch_up)

    def run_as_user(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call user code of what this thread runs, with interrupts allowed."""
        fence = self.fences.mine
        fence.depth = 0
        try:
            return function(*args, **kwargs)
        finally:
            fence.depth = 1
            if fence is not self.fence:
                fence.forget()

    def run_value_code(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call what pickles or loads values of user code, whose classes may do anything meanwhile, with interrupts allowed."""
        fence = self.fences.mine
        before, fence.depth = fence.depth, 0
        try:
            return function(*args)
        finally:
            fence.depth = before
            if fence is not self.fence:
                fence.forget()


def _is_loading_a_module(frame: FrameType | None) -> bool:
    """Whether a module is imported because ``run_value_code`` loads a value of it: not by code of the task itself."""
    imports = False
    while frame is not None and frame.f_code is not _VALUE_CODE:
        imports = imports or frame.f_code.co_filename == _IMPORT
        frame = frame.f_back
    return imports and frame is not None


_VALUE_CODE = Interrupter.run_value_code.__code__
