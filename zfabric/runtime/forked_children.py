"""Ends a worker's forked child once its user code comes back to the fabric.

A child has copies of the sockets, and of the frames that would report an outcome. It must not report: it ends as the interpreter would,
with traceback, exit handlers and the usual code. Running tasks pay nothing for that. The fork itself replaces:

* the forking thread's fence, which closes when user code returns or raises (``interrupts``);
* the functions that pack errors, for coroutines, which have no fence;
* the loop's queue, if its thread forked: an ``await`` would run the loop in the child;
* the connection's lock, needed for every send and write: it stops all other ways back.

The API raises NotInitializedError in a child (``api.lifecycle``).
"""

from __future__ import annotations

import os
import sys
from collections import deque
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NoReturn

from zfabric.adapters.processes import exit_as_interpreter
from zfabric.exceptions import NotInitializedError, SerializationError
from zfabric.runtime import connection, interface
from zfabric.runtime.attempts import AttemptRunner
from zfabric.runtime.connection import FORKED
from zfabric.runtime.crew import Loop
from zfabric.runtime.hosting import Host
from zfabric.runtime.interrupts import Fence, Fences
from zfabric.runtime.user_code import UserCode

_DEPTH: Any = vars(Fence)["depth"]
"""The depth at the fork, whatever the fence's class."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
AWAITED = "this process was forked by an async call, and awaits something: the event loop is that of its parent, and does not run here"


class OneWayFence(Fence):
    """A fence in a forked child: closing it ends the process."""

    __slots__ = ()
    runners: tuple[CodeType, ...] = ()
    """Code of what runs tasks and calls."""

    @property
    def depth(self) -> int:
        """User code runs here."""
        return 0

    @depth.setter
    def depth(self, value: int) -> None:
        _end(_raised_into(sys._getframe(1)))

    @property
    def missed(self) -> bool:  # type: ignore[override]
        """Read when user code enters the fabric. Raises NotInitializedError."""
        raise NotInitializedError(FORKED)


class _ParentsQueue(deque[Any]):
    """What an event loop runs next, if its thread has forked."""

    def popleft(self) -> NoReturn:
        _end(RuntimeError(AWAITED))


def end_forked_children(host: Host, fences: Fences, user_code: UserCode, attempts: AttemptRunner, runners: tuple[CodeType, ...]) -> None:
    """Have this worker's forked children end where their code comes back.

    ``runners`` run tasks and calls; what their callers handle is not user code's.
    """
    OneWayFence.runners = runners

    def at_lock() -> None:
        fence = fences.mine
        if not _DEPTH.__get__(fence):
            raise NotInitializedError(FORKED)
        _end(_raised_into(sys._getframe(2)))

    def raised(item: Any, error: BaseException, retryable: Any) -> NoReturn:
        _end(error)

    def after_fork() -> None:
        fence = fences.mine
        interface.check_process = _end
        connection.in_child = at_lock
        user_code.failed = attempts._failed = raised  # type: ignore[method-assign]
        user_code.error = lambda error, item: _end(error)  # type: ignore[method-assign]
        for crew in (host.crew, host.loop):
            if isinstance(crew, Loop) and crew.thread.ident == get_ident():
                _stop(crew)
                _DEPTH.__set__(fence, 1)
        fence.__class__ = OneWayFence

    os.register_at_fork(after_in_child=after_fork)


def _stop(crew: Loop) -> None:
    """Have this thread's loop end the process."""
    loop: Any = crew.loop
    if isinstance(getattr(loop, "_ready", None), deque):
        loop._ready = _ParentsQueue([*loop._ready, None])  # The parent's entries stay alive, and the queue is not empty.
    else:  # A loop other than asyncio's.
        loop.call_soon(_end, RuntimeError(AWAITED))


def _raised_into(frame: FrameType | None) -> BaseException | None:
    """The exception with which user code has come back to ``frame`` or a caller; None if it returned.

    Its traceback begins with the frame that handles it. Callers further out may handle another.
    """
    error = sys.exception()
    while error is not None and error.__traceback__ is not None and frame is not None:
        if error.__traceback__.tb_frame is frame:
            return error
        frame = frame.f_back if frame.f_code not in OneWayFence.runners else None
    return None


def _end(error: BaseException | None = None) -> NoReturn:
    if isinstance(error, SerializationError) and isinstance(error.__cause__, SystemExit):
        error = error.__cause__  # From sys.exit() in the child's pickling, which the fabric made an error.
    if error is not None:
        shown = error.__traceback__
        while shown is not None and shown.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            shown = shown.tb_next
        error.__traceback__ = shown
    exit_as_interpreter(error)
