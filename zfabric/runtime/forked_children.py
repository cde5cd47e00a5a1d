"""Forked children of a worker: user code that comes back to the fabric in another process than the one that began it ends that process.

A child has copies of all that the worker has, its sockets included, and of the frames that would report an outcome. So what it returns or
raises must not get there: the process ends as the interpreter would end it, with a traceback, exit handlers and the usual code. Nothing is
checked while tasks run. The fork itself puts these in the way:

* the fence of the thread that forked, which the fabric closes as soon as user code has returned or raised (see ``interrupts``);
* the functions that pack errors, for coroutines, which have no fence;
* the queue of the event loop, if it is the loop's thread that forked: a coroutine that awaits would have the loop run in the child;
* the lock of the connection, without which nothing is sent or written into the arena: it stops all other ways back.

Functions of the API raise NotInitializedError in a child (``api.lifecycle``).
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
"""The depth that a fence had at the fork, whatever its class is now."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
AWAITED = "this process was forked by an async call, and awaits something: the event loop is that of its parent, and does not run here"


class OneWayFence(Fence):
    """What the fence of a thread becomes in a forked child: user code gets out, and the process ends as soon as the fabric closes it."""

    __slots__ = ()
    runners: tuple[CodeType, ...] = ()
    """Functions of the fabric that run tasks and calls."""

    @property
    def depth(self) -> int:
        """0: user code runs here."""
        return 0

    @depth.setter
    def depth(self, value: int) -> None:
        _end(_raised_into(sys._getframe(1)))

    @property
    def missed(self) -> bool:  # type: ignore[override]
        """Asked when user code enters the fabric, which is not possible here. Raises NotInitializedError."""
        raise NotInitializedError(FORKED)


class _ParentsQueue(deque[Any]):
    """What is to run next in an event loop whose thread has forked."""

    def popleft(self) -> NoReturn:
        _end(RuntimeError(AWAITED))


def end_forked_children(host: Host, fences: Fences, user_code: UserCode, attempts: AttemptRunner, runners: tuple[CodeType, ...]) -> None:
    """Have forked children of this worker end where their code comes back to the fabric, from now on.

    ``runners`` are the functions that run tasks and calls: what their callers handle has nothing to do with user code.
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
    """Have the event loop of this thread end the process when it gets control."""
    loop: Any = crew.loop
    if isinstance(getattr(loop, "_ready", None), deque):
        loop._ready = _ParentsQueue([*loop._ready, None])  # Nothing of the parent is destroyed here, and it is not empty.
    else:  # A loop that is not asyncio's own runs what is ready first.
        loop.call_soon(_end, RuntimeError(AWAITED))


def _raised_into(frame: FrameType | None) -> BaseException | None:
    """Return the exception with which user code has come back to this frame, or to one that has called it. None if it has returned.

    An exception begins its traceback with the frame that handles it. A caller further out may handle one in which this code has no part.
    """
    error = sys.exception()
    while error is not None and error.__traceback__ is not None and frame is not None:
        if error.__traceback__.tb_frame is frame:
            return error
        frame = frame.f_back if frame.f_code not in OneWayFence.runners else None
    return None


def _end(error: BaseException | None = None) -> NoReturn:
    """End the process, as one whose main program has ended, or has raised ``error``."""
    if isinstance(error, SerializationError) and isinstance(error.__cause__, SystemExit):
        error = error.__cause__  # The child has called sys.exit() while it pickled a value, which the fabric has made an error.
    if error is not None:
        shown = error.__traceback__
        while shown is not None and shown.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            shown = shown.tb_next
        error.__traceback__ = shown
    exit_as_interpreter(error)
