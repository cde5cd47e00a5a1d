"""Stacks of a process's threads, walked by itself or, where Python code cannot run, dumped by ``faulthandler``.

A thread's task or call is found in local variables of the frames that run it: nothing is recorded beforehand.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from zfabric.adapters import processes
from zfabric.runtime.lines import is_of_program

DUMP = int(signal.SIGRTMIN) + 8
"""The signal at which a worker dumps its stacks, from C."""
FRAMES_MAX = 100
"""Most frames of a thread, the innermost."""
TOTAL_MAX = 3000
"""Most frames of an answer, which is one message."""
PATH_MAX = 500
_LOOK_EVERY = 0.02
_ASYNCIO = os.path.join(os.path.dirname(os.__file__), "asyncio", "")
_SELECTORS = os.path.join(os.path.dirname(os.__file__), "selectors.py")
"""The standard library's event loop."""

Run = tuple[str, bytes, float]
"""(name, id, seconds since it began)"""
Frame = tuple[str, int, str]
"""(file, line, function)"""
Thread = tuple[str, tuple[Run, ...], tuple[Frame, ...]]
"""(name, runs, frames), outermost first."""
Locals = Callable[[dict[str, Any]], Run | None]
"""Finds what a frame runs by its variables."""


def own_threads(runners: dict[CodeType, Locals], coroutines: Iterable[Any] = ()) -> tuple[Thread, ...]:
    """This process's threads, then these coroutines. The calling thread counts: user code may wait in it.

    ``runners`` maps the code of functions that run tasks to what finds the task.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found, left = [], TOTAL_MAX
    for ident, innermost in sys._current_frames().items():
        if left > 0:
            frames: list[FrameType] = []
            frame: FrameType | None = innermost
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
            found.append(_thread(names.get(ident, "a thread of no name"), frames[::-1], runners, left))
            left -= len(found[-1][2])
    for coroutine in coroutines:
        if left > 0:
            found.append(_thread("coroutine", _awaiting(coroutine), runners, left))
            left -= len(found[-1][2])
    return tuple(found)


def _thread(name: str, frames: list[FrameType], runners: dict[CodeType, Locals], left: int) -> Thread:
    runs = []
    for frame in frames:
        look = runners.get(frame.f_code)
        if look is not None:
            variables = frame.f_locals
            run = look(variables)
            if type(variables) is dict:
                variables.clear()  # The frame would retain this copy, and values that its variables have released.
            if run is not None:
                runs.append(run)
    shown = [(_bounded(each.f_code.co_filename), each.f_lineno or 0, each.f_code.co_qualname) for each in frames[-min(FRAMES_MAX, left) :]]
    return name[:PATH_MAX], tuple(runs), tuple(shown)


def _awaiting(coroutine: Any) -> list[FrameType]:
    frames: list[FrameType] = []
    while coroutine is not None and len(frames) < FRAMES_MAX:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            frames.append(frame)
        waits_for = getattr(coroutine, "cr_await", None)
        coroutine = waits_for if waits_for is not None else getattr(coroutine, "gi_yieldfrom", None)
    return frames


def _bounded(path: str) -> str:
    return path.encode(errors="replace").decode()[-PATH_MAX:]


# -- of a process that does not answer --


def dump_path(directory: str, token: bytes) -> str:
    """The file of a worker's dumps."""
    return f"{directory}/worker-{token.hex()}.stack"


def dump_on_signal(path: str) -> None:
    """Have ``DUMP`` write this process's stacks into a file, whatever runs."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(DUMP, descriptor, all_threads=True)


def dumped_threads(pid: int, path: str, seconds: float) -> tuple[Thread, ...]:
    """The threads of a worker that cannot answer; none if it is stopped or just starting."""
    descriptor = processes.open_pidfd(pid)
    if descriptor is None:
        return ()
    try:
        before = os.stat(path).st_size
        if not processes.signal_pidfd(descriptor, DUMP):
            return ()
    except FileNotFoundError:
        return ()
    finally:
        os.close(descriptor)
    end = time.monotonic() + seconds
    last, size = -1, before
    while time.monotonic() < end and (size == before or size != last):
        time.sleep(_LOOK_EVERY)  # No event marks a whole dump: it has not grown for a moment.
        last, size = size, os.stat(path).st_size
    with open(path, encoding="utf-8", errors="replace") as file:
        file.seek(before)
        return tuple(_parsed(file.read()))


def _parsed(text: str) -> Iterable[Thread]:
    for block in re.split(r"^(?=(?:Current thread|Thread) 0x)", text, flags=re.M):
        header, *lines = block.splitlines() or [""]
        frames = [(each[1], int(each[2]), each[3]) for line in lines if (each := _DUMPED.fullmatch(line))]
        if frames:
            yield header.partition(" (")[0], (), tuple(frames[::-1])


_DUMPED = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def is_idle_loop(frames: tuple[Frame, ...]) -> bool:
    """Whether a thread runs no user code, and the selector innermost."""
    inside = [path for path, _, function in frames if is_of_program(path, function)]
    return bool(inside) and inside[-1] == _SELECTORS and all(path.startswith((_ASYNCIO, _SELECTORS)) for path in inside)


def frames_of_program(frames: tuple[Frame, ...], is_worker: bool) -> tuple[Frame, ...]:
    """The frames of user code."""
    if is_worker and frames and frames[0][::2] == ("<string>", "<module>"):
        frames = frames[1:]
    return tuple(frame for frame in frames if is_of_program(frame[0], frame[2]))
