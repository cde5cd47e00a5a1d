"""Calls of one actor, or async tasks, that run at the same time: in threads, or as coroutines of one event loop.

The main thread goes on receiving; it hands out a call as long as fewer than ``max_concurrency`` run. Whoever ends one takes the next
itself. An actor with an ``async def`` method runs all its calls in its event loop, the plain ones too, which therefore must not block.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextvars import ContextVar
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from zfabric.machines.parts.mailbox import Invocation
from zfabric.machines.worker import Item
from zfabric.runtime.interrupts import Fence

if TYPE_CHECKING:
    import asyncio

    from zfabric.runtime.worker import WorkerRuntime

current_call: ContextVar[Item | Invocation | None] = ContextVar("current_call", default=None)
"""The call, or the async task, that this thread or coroutine runs."""
ASYNC_CONCURRENCY = 1000
"""Calls of an actor with ``async def`` methods that run at the same time, if its options do not say."""


class Crew(Protocol):
    """Runs calls besides the main thread."""

    def hand_out(self) -> None:
        """Begin as many of the calls that wait as may run. Called by the main thread."""

    def wanted(self) -> bool:
        """Whether there is something to hand out, and somebody to run it. The caller holds the lock."""

    def interrupt(self, item: Item | Invocation) -> bool:
        """Stop what runs. False if that is not possible at this moment. The caller holds the lock."""


class Threads:
    """``size`` threads, each started when it is first needed."""

    def __init__(self, runtime: WorkerRuntime, size: int) -> None:
        self.runtime = runtime
        self.size = size
        self._started = 0
        self._idle = 0
        self._given: SimpleQueue[Invocation] = SimpleQueue()
        self._fences: dict[bytes, Fence] = {}
        """That of the thread which runs a call."""

    def wanted(self) -> bool:
        """See ``Crew``."""
        return bool(self.runtime.worker.mailbox.queue) and (self._idle > 0 or self._started < self.size)

    def hand_out(self) -> None:
        """See ``Crew``."""
        with self.runtime.lock:
            while self.wanted() and (item := self.runtime.worker.begin_beside()) is not None:
                if self._idle:
                    self._idle -= 1
                else:
                    self._started += 1
                    threading.Thread(target=self._work, name=f"zfabric-call-{self._started}", daemon=True).start()
                self._given.put(item)

    def _work(self) -> None:
        while True:
            item: Invocation | None = self._given.get()
            while item is not None:
                item = self._run(item)

    def _run(self, item: Invocation) -> Invocation | None:
        runtime = self.runtime
        fence = runtime.fences.mine
        fence.depth = 1
        self._fences[item.row[0]] = fence
        current_call.set(item)
        started = time.monotonic()
        value = None
        try:
            function, _, args, kwargs = runtime.prepare(item)
            value = runtime.streamed(item, runtime.as_user(function, *args, **kwargs))
            del args, kwargs
        except BaseException as error:  # whatever the user's code raises is the call's outcome
            outcome = runtime.failed(item, error, None)
        else:
            outcome = runtime.packed(item, value)
        del self._fences[item.row[0]]
        following = runtime.end_beside(item, outcome, started)
        if following is None:
            with runtime.lock:
                self._idle += 1
        del value  # The refs in it live until its end is told.
        return following

    def interrupt(self, item: Item | Invocation) -> bool:
        """See ``Crew``. The exception is raised when the thread runs Python code next."""
        fence = self._fences.get(item.row[0])
        return fence is not None and fence.interrupt()


class Loop:
    """One event loop in a thread of its own."""

    def __init__(self, runtime: WorkerRuntime, size: int) -> None:
        import asyncio

        self.runtime = runtime
        self.size = size
        self._running: dict[bytes, asyncio.Task[None] | None] = {}
        self._flushing = False
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="zfabric-loop", daemon=True).start()

    def wanted(self) -> bool:
        """See ``Crew``."""
        return bool(self.runtime.worker.mailbox.queue) and len(self._running) < self.size

    def hand_out(self) -> None:
        """See ``Crew``."""
        items = []
        with self.runtime.lock:
            while self.wanted() and (item := self.runtime.worker.begin_beside()) is not None:
                self._running[item.row[0]] = None
                items.append(item)
        if items:
            self.start(items)

    def start(self, items: Sequence[Item | Invocation]) -> None:
        """Run these, whatever else runs."""
        self.loop.call_soon_threadsafe(self._start, items)

    def _start(self, items: Sequence[Item | Invocation]) -> None:
        for item in items:
            self._running[item.row[0]] = self.loop.create_task(self._run(item))

    async def _run(self, item: Item | Invocation) -> None:
        runtime = self.runtime
        current_call.set(item)
        started = time.monotonic()
        value, retryable = None, None
        try:
            function, retryable, args, kwargs = runtime.prepare(item)
            value = await runtime.streamed_in_loop(item, function(*args, **kwargs))
            del args, kwargs
        except BaseException as error:  # whatever the user's code raises is the call's outcome
            outcome = runtime.failed(item, error, retryable)
        else:
            outcome = runtime.packed(item, value)
        self._running.pop(item.row[0], None)
        following = runtime.end_beside(item, outcome, started, flush=False)
        del value  # The refs in it live until its end is told.
        if following is not None:
            self._running[following.row[0]] = None
            self._start([following])
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Outcomes of one round of the loop leave as one frame."""
        self._flushing = False
        with self.runtime.lock:
            self.runtime.flush()

    def interrupt(self, item: Item | Invocation) -> bool:
        """See ``Crew``."""
        self.loop.call_soon_threadsafe(self._cancel, item.row[0])
        return True

    def _cancel(self, call_id: bytes) -> None:
        task = self._running.get(call_id)
        if task is not None:
            task.cancel()


def crew_for(runtime: WorkerRuntime, instance: Any, size: int | None) -> Crew | None:
    """Who runs the calls of ``instance``: None if it is the main thread, one after the other."""
    import inspect

    kind = type(instance)
    methods = [inspect.getattr_static(kind, name, None) for name in dir(kind)]
    if any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in methods):
        return Loop(runtime, size or ASYNC_CONCURRENCY)
    return Threads(runtime, size) if size is not None and size > 1 else None
