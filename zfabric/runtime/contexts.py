"""Which task or call each thread and coroutine of a worker runs, and the namers of what these submit.

The main thread runs a stack: a task may run on top of one that waits in ``get``. Others run one call or async task each (``current_call``).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from threading import get_ident

from zfabric.machines.client import Client
from zfabric.machines.worker import Invocation, Item, Worker, actor_of
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES, Namer

current_call: ContextVar[Item | Invocation | None] = ContextVar("current_call", default=None)
"""What runs in this thread or coroutine beside others."""


class Contexts:
    """The main thread's stack, and all namers. Made in the main thread."""

    def __init__(self, machine: Client, worker: Worker) -> None:
        self.main = get_ident()
        self.stack: list[Item | Invocation] = []
        """Outermost first."""
        self.namers: list[Namer | None] = []
        """The namers of ``stack``; None until a task submits."""
        self._machine = machine
        self._worker = worker
        self._threads = threading.local()
        self._calls: dict[bytes, Namer] = {}
        """Namers of what runs beside others, by id."""

    @property
    def in_main(self) -> bool:
        """Whether this is the main thread."""
        return get_ident() == self.main

    @property
    def top(self) -> Item | Invocation | None:
        """The top of the main thread's stack."""
        return self.stack[-1] if self.stack else None

    @property
    def here(self) -> Item | Invocation | None:
        """What runs here. Threads of user code count as the main thread."""
        return current_call.get() or self.top

    @property
    def of_thread(self) -> Item | Invocation | None:
        """As ``here``, but None in a thread that user code started."""
        return current_call.get() or (self.top if self.in_main else None)

    def caller_of(self, actor_id: bytes) -> Item | Invocation | None:
        """This thread's task or call if it is of this actor, else None."""
        item = self.of_thread
        return item if item is not None and actor_of(item) == actor_id else None

    def namer(self) -> Namer:
        """The namer of what runs here; a random one in threads of user code, and after a call's end."""
        if self.stack and get_ident() == self.main:
            depth = len(self.stack) - 1
            namer = self.namers[depth]
            if namer is None:
                made = _namer_of(self.stack[depth])
                namer = self.namers[depth] = self.namers[depth] or made  # A finalizer may have set it.
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
        """Release an ended call's namer."""
        self._calls.pop(call_id, None)

    @contextlib.contextmanager
    def running_as(self, item: Invocation, namer: Namer | None) -> Iterator[None]:
        """Run a replayed call in the main thread, with its own namer or this one."""
        self.namers.append(namer)
        self.stack.append(item)
        try:
            yield
        finally:
            self.stack.pop()
            self.namers.pop()


def _namer_of(item: Item | Invocation) -> Namer:
    """What a call submits is of its actor's job, whoever calls."""
    return Namer(actor_of(item)[:JOB_BYTES], item.row[0], attempt=item.attempt)
