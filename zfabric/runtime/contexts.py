"""What each thread and coroutine of a worker runs, and the namers of what these submit.

The main thread runs a stack: a task that waits in ``get`` may have another one on top. Every other thread or coroutine runs one call or
one async task, in ``current_call``.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from threading import get_ident

from zfabric.machines.client import Client
from zfabric.machines.common.naming import Namer
from zfabric.machines.worker import Invocation, Item, Worker
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES

current_call: ContextVar[Item | Invocation | None] = ContextVar("current_call", default=None)
"""The call or the async task that this thread or coroutine runs beside others."""


class Contexts:
    """The stack of the main thread, and the namers of all threads. Created in the main thread."""

    def __init__(self, machine: Client, worker: Worker) -> None:
        self.main = get_ident()
        """The main thread."""
        self.stack: list[Item | Invocation] = []
        """What the main thread runs, the outermost first."""
        self.namers: list[Namer | None] = []
        """The namer of each entry of the stack; None until the first submission."""
        self._machine = machine
        self._worker = worker
        self._threads = threading.local()
        self._calls: dict[bytes, Namer] = {}
        """Namers of what runs beside others, by call or task id."""

    @property
    def in_main(self) -> bool:
        """Whether the main thread asks."""
        return get_ident() == self.main

    @property
    def top(self) -> Item | Invocation | None:
        """What the main thread runs now."""
        return self.stack[-1] if self.stack else None

    @property
    def here(self) -> Item | Invocation | None:
        """What this thread or coroutine runs. A thread of the program's own counts as part of what the main thread runs."""
        return current_call.get() or self.top

    @property
    def of_thread(self) -> Item | Invocation | None:
        """What this very thread or coroutine runs. None in a thread of the program's own."""
        return current_call.get() or (self.top if self.in_main else None)

    def namer(self) -> Namer:
        """The namer of what runs here. Threads of the program's own, and coroutines that outlive their call, have a random salt."""
        if self.stack and get_ident() == self.main:
            depth = len(self.stack) - 1
            namer = self.namers[depth]
            if namer is None:
                made = _namer_of(self.stack[depth])
                namer = self.namers[depth] = self.namers[depth] or made  # A finalizer, which may run at any moment, may have set it.
            return namer
        call = current_call.get()
        if call is not None and call.row[0] in self._worker.running_calls:
            named = self._calls.get(call.row[0])
            return named if named is not None else self._calls.setdefault(call.row[0], _namer_of(call))  # As above.
        found: Namer | None = getattr(self._threads, "namer", None)
        if found is None:
            parent = self.stack[-1].row[0] if self.stack else bytes(TASK_BYTES)
            found = self._threads.namer = Namer(self._machine.job or parent[:JOB_BYTES], parent, salt=os.urandom(8))
        return found

    def forget_call(self, call_id: bytes) -> None:
        """Release the namer of a call that ran beside others."""
        self._calls.pop(call_id, None)

    @contextlib.contextmanager
    def running_as(self, item: Invocation, namer: Namer | None) -> Iterator[None]:
        """Attribute what the main thread does to a replayed call. ``namer`` names what it submits; None: one of the call's own."""
        self.namers.append(namer)
        self.stack.append(item)
        try:
            yield
        finally:
            self.stack.pop()
            self.namers.pop()


def _namer_of(item: Item | Invocation) -> Namer:
    return Namer(item.row[0][:JOB_BYTES], item.row[0], attempt=item.attempt)
