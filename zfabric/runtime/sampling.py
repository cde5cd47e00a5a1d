"""Where a process spends its wall time: stacks, also of waiting threads, sampled by a thread that lives only that long."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType

from zfabric.protocol.messages import Rows

SECONDS_MOST = 1.5
"""Longest time of one question."""
EVERY_SECONDS = 0.01
DEPTH_MOST = 100
"""Most frames of a stack, outermost first."""
FRAMES_MOST = 6000
"""Most frames of an answer, which is one message. Later stacks are counted without frames."""
PATH_MOST = 200

Codes = tuple[CodeType, ...]
Answer = Callable[[list[tuple[bytes, int]], Rows], None]
"""Receives the askers (asker, token), and the rows."""


def sampled_threads(seconds: float) -> Rows:
    """Stacks seen in this time: rows ``(thread, frames, samples)``, frames ``(file, line, function)``, outermost first.

    The line is the function's. The calling thread is left out.
    """
    own, counts = get_ident(), dict[tuple[str, Codes], int]()
    began = time.monotonic()
    due, end = began, began + min(seconds, SECONDS_MOST)
    room = FRAMES_MOST
    time.sleep(EVERY_SECONDS)  # What started this thread goes on with its own work.
    while True:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, innermost in sys._current_frames().items():
            if ident != own:
                key = names.get(ident, "a thread of no name")[:PATH_MOST], _codes(innermost)
                if key not in counts:
                    room -= len(key[1])
                    if room < 0:
                        key = key[0], ()
                counts[key] = counts.get(key, 0) + 1
        due += EVERY_SECONDS
        now = time.monotonic()
        if due < now:  # Another thread may not release the interpreter.
            due = now
        if due >= end:
            break
        time.sleep(due - now)  # Samples are taken at a fixed pace.
    return tuple((thread, tuple(map(_frame, codes)), count) for (thread, codes), count in counts.items())


def _codes(frame: FrameType | None) -> Codes:
    found = []
    while frame is not None:
        found.append(frame.f_code)
        frame = frame.f_back
    return tuple(found[: -DEPTH_MOST - 1 : -1])


def _frame(code: CodeType) -> tuple[str, int, str]:
    path = os.fsencode(code.co_filename).decode(errors="replace")
    return path[-PATH_MOST:], code.co_firstlineno, code.co_qualname[:PATH_MOST]


class Sampler:
    """Samples for one question at a time; others meanwhile get the same answer."""

    def __init__(self) -> None:
        self._asked: list[tuple[bytes, int]] = []
        self._lock = threading.Lock()

    def ask(self, asker: bytes, token: int, seconds: float, answer: Answer) -> None:
        """Have a thread call ``answer`` with all askers and the rows. Raises RuntimeError if no thread can start."""
        with self._lock:
            self._asked.append((asker, token))
            if len(self._asked) > 1:
                return
        try:
            threading.Thread(target=self._run, args=(seconds, answer), name="zfabric-sample", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._asked.clear()
            raise

    def _run(self, seconds: float, answer: Answer) -> None:
        rows = sampled_threads(seconds)
        with self._lock:
            asked, self._asked = self._asked, []
        answer(asked, rows)
