"""Output of user code: it gets the name of its task or actor, and is shown before the outcome reaches the caller.

``sys.stdout`` and ``sys.stderr`` of a worker are ``NamedOutput``. They write a *mark* (see ``lines``) before a task's or call's first
output, and set ``Client.printed``. If that is set at the end of a task or call, its output is closed. ``OutputWritten`` is sent ahead of
the outcome, so that the daemon reads the files first. A process that receives the outcome directly receives ``OutputWritten`` directly,
too. A driver then has the daemon read the files before ``get`` returns, and a worker sends it on with its own outcome.

Output written straight to the descriptors, by C code or a child process, has no name and is shown a little later.
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
"""Seconds after which a line gets a mark of its own, which has the time, though its writer is the same."""


class NamedOutput(io.TextIOWrapper):
    """A text stream that marks its writers. ``name_of_writer`` is called at each write."""

    def __init__(self, stream: io.TextIOWrapper, name_of_writer: Callable[[], str], machine: Client) -> None:
        binary = io.BufferedWriter(io.FileIO(stream.fileno(), "wb", closefd=False))
        super().__init__(binary, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
        self._writer = name_of_writer
        self._machine = machine
        self._marked = ""
        """The name in the last mark."""
        self._marked_at = 0.0
        self._in_line = False
        """Whether the last text did not end its line, as far as is known: a mark would end it."""

    def write(self, text: str, /) -> int:
        """Write a mark if the writer has changed, or if the last one is old, then the text."""
        self._mark(self._writer())
        self._machine.printed = True
        self._in_line = not text.endswith("\n") and (bool(text) or self._in_line)
        return super().write(text)

    @property
    def buffer(self) -> Any:
        """The binary stream below, with a mark: its caller is about to write."""
        if self._marked != (name := self._writer()):
            self._mark(name)
            self.flush()
        self._machine.printed = self._in_line = True
        return super().buffer

    def close_output(self) -> None:
        """End the writer's output, an unfinished line included."""
        self._mark("")
        self.flush()

    def _mark(self, name: str) -> None:
        now = time()
        if name != self._marked or (name and not self._in_line and not 0.0 <= now - self._marked_at < MARK_EVERY):
            self._marked, self._marked_at, self._in_line = name, now, False
            super().write(mark(name, now, int.from_bytes(self._machine.job, "big")) if name else mark(name))


def name_output(name_of_writer: Callable[[], str], machine: Client) -> Callable[[], None]:
    """Have this process's standard streams mark their writers. Return a function that closes the output of a task or call.

    ``logging`` records without a handler are printed with their level and logger. No handler is added: ``basicConfig`` in a
    task would do nothing then.
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
