"""Output of user code: named after its task or actor, and shown before the outcome reaches the caller.

``sys.stdout`` and ``sys.stderr`` write a *mark* (``lines``) before a task's first output, and set ``Client.printed``. If that is set at the
end, the output is closed and ``OutputWritten`` precedes the outcome: the daemon reads the files first. Who receives the outcome directly
also receives ``OutputWritten``: a driver has the daemon read the files before ``get`` returns, a worker sends it on with its own outcome.
Output straight to a descriptor has no name, and is shown a little later.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Callable
from time import time
from typing import Any

from zfabric.machines.client import Client
from zfabric.runtime.lines import mark

MARK_EVERY = 1.0
"""Seconds after which a line gets a mark for the time alone."""


class NamedOutput(io.TextIOWrapper):
    """A text stream that marks its writers. ``name_of_writer`` is called at each write."""

    def __init__(self, stream: io.TextIOWrapper, name_of_writer: Callable[[], str], machine: Client) -> None:
        binary = io.BufferedWriter(io.FileIO(stream.fileno(), "wb", closefd=False))
        super().__init__(binary, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
        self._writer = name_of_writer
        self._machine = machine
        self._marked = ""
        self._marked_at = 0.0
        self._in_line = False
        """Whether the last text has no newline: a mark would end the line."""

    def write(self, text: str, /) -> int:
        """Mark a new writer, or the time, then write."""
        self._mark(self._writer())
        self._machine.printed = True
        self._in_line = not text.endswith("\n") and (bool(text) or self._in_line)
        return super().write(text)

    @property
    def buffer(self) -> Any:
        """Mark a writer: the caller is about to write."""
        if self._marked != (name := self._writer()):
            self._mark(name)
            self.flush()
        self._machine.printed = self._in_line = True
        return super().buffer

    def close_output(self) -> None:
        """End the writer's output, with an unfinished line."""
        self._mark("")
        self.flush()

    def _mark(self, name: str) -> None:
        now = time()
        if name != self._marked or (name and not self._in_line and not 0.0 <= now - self._marked_at < MARK_EVERY):
            self._marked, self._marked_at, self._in_line = name, now, False
            super().write(mark(name, now, int.from_bytes(self._machine.job, "big")) if name else mark(name))


def name_output(name_of_writer: Callable[[], str], machine: Client) -> Callable[[], None]:
    """Have the standard streams mark their writers. Return what closes a task's or call's output.

    ``logging`` without a handler shows level and logger; a handler would disable ``basicConfig`` in tasks.
    """
    streams = []
    for name in ("stdout", "stderr"):
        before: Any = getattr(sys, name)
        with contextlib.suppress(Exception):  # The stream may be user code's, closed, or None.
            before.flush()
        stream = NamedOutput(before, name_of_writer, machine)
        setattr(sys, name, stream)
        streams.append(stream)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter(logging.BASIC_FORMAT))

    def close_output() -> None:
        for stream in streams:
            with contextlib.suppress(OSError, ValueError):  # The disk is full, or the program has closed the stream.
                stream.close_output()

    return close_output
