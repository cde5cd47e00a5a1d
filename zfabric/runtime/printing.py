"""What a worker's code prints: named after the task or actor that does so, and shown before what its caller gets.

``sys.stdout`` and ``sys.stderr`` of a worker are ``NamedOutput``: a *mark* (see ``lines``) goes before the first thing that a task or a
call writes, and ``Client.printed`` says that it has written something. Only then does its end cost anything: its output is closed, and
``OutputWritten`` goes ahead of its outcome, so that the daemon looks into the files first. Whoever gets an outcome past the daemon gets
``OutputWritten`` too: a driver then has the daemon look before ``get`` returns, and a worker passes it on with its own outcome.

What goes to the descriptors directly, from C or a child process, has no name (in an actor's process: neither), and comes a little later.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Callable
from typing import Any

from zfabric.machines.client import Client
from zfabric.runtime.lines import mark


class NamedOutput(io.TextIOWrapper):
    """A text stream that marks who writes. ``name_of_writer`` is asked at each write."""

    def __init__(self, stream: io.TextIOWrapper, name_of_writer: Callable[[], str], machine: Client) -> None:
        binary = io.BufferedWriter(io.FileIO(stream.fileno(), "wb", closefd=False))
        super().__init__(binary, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
        self._writer = name_of_writer
        self._machine = machine
        self._marked = ""
        """The name in the last mark."""

    def write(self, text: str, /) -> int:
        """See ``io.TextIOWrapper``."""
        self._mark(self._writer())
        self._machine.printed = True
        return super().write(text)

    @property
    def buffer(self) -> Any:
        """The binary stream below: whoever asks for it is about to write."""
        if self._marked != (name := self._writer()):
            self._mark(name)
            self.flush()
        self._machine.printed = True
        return super().buffer

    def close_output(self) -> None:
        """What was written so far is whole: a line without an end has one here."""
        self._mark("")
        self.flush()

    def _mark(self, name: str) -> None:
        if name != self._marked:
            self._marked = name
            super().write(mark(name))


def name_output(name_of_writer: Callable[[], str], machine: Client) -> Callable[[], None]:
    """Have this process's standard streams mark who writes; returns what closes the output of one that has ended.

    Records of ``logging`` that no handler takes have their level and their logger in front. (No handler is added: ``basicConfig`` in a
    task would do nothing then.)
    """
    streams = []
    for name in ("stdout", "stderr"):
        before: Any = getattr(sys, name)
        with contextlib.suppress(Exception):
            before.flush()
        stream = NamedOutput(before, name_of_writer, machine)
        setattr(sys, name, stream)
        streams.append(stream)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter(logging.BASIC_FORMAT))

    def close_output() -> None:
        for stream in streams:
            with contextlib.suppress(OSError, ValueError):  # The disk is full, or the program has closed it.
                stream.close_output()

    return close_output
