"""Calls of one actor, or async tasks, that run at the same time: in threads, or as coroutines of one event loop.

The main thread goes on receiving; it hands out a call of a concurrency group as long as fewer run of it than may (``max_concurrency`` of
the default one). Whoever ends one takes the next of its group itself, so that calls of a group begin in order, and those of different
ones do not wait for each other. An actor with an ``async def`` method runs all its calls in its event loop, the plain ones too, which
therefore must not block.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from zfabric.machines.worker import CallQueue, Invocation, Item, Worker
from zfabric.runtime.interrupts import Fence, TaskInterrupt

if TYPE_CHECKING:
    import asyncio

    from zfabric.runtime.running import RunningWorker

current_call: ContextVar[Item | Invocation | None] = ContextVar("current_call", default=None)
"""The call, or the async task, that this thread or coroutine runs."""
ASYNC_CONCURRENCY = 1000
"""Calls of an actor with ``async def`` methods that run at the same time, if its options do not say."""


class Group:
    """Calls that wait for each other: at most ``size`` of them run at the same time. Changed under the lock."""

    __slots__ = ("given", "name", "queue", "running", "size", "threads")

    def __init__(self, queue: CallQueue, size: int, name: str = "") -> None:
        self.queue = queue
        self.size = size
        self.name = name
        self.running = 0
        self.threads = 0
        """How many were started for it, where its calls run in threads."""
        self.given: SimpleQueue[Item | Invocation] = SimpleQueue()
        """Calls for those threads, which have begun."""

    @property
    def wanted(self) -> bool:
        """Whether one more is to begin."""
        return bool(self.queue) and self.running < self.size

    def claim(self, worker: Worker) -> Item | Invocation | None:
        """The next of them, which has begun then."""
        return worker.begin_beside(self.queue)


class SharedTurn(Group):
    """What comes next, of all actors that share this process, while what the main thread runs waits, and only then."""

    __slots__ = ("worker",)

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.mailbox.queue, sys.maxsize)
        self.worker = worker

    @property
    def wanted(self) -> bool:
        """See ``Group``."""
        return self.worker.turn_free

    def claim(self, worker: Worker) -> Item | Invocation | None:
        """See ``Group``."""
        return worker.stand_in()


def claimed(runtime: RunningWorker, groups: Iterable[Group]) -> list[tuple[Item | Invocation, Group]]:
    """As many of the calls that wait as may run, which count as running from now on."""
    found: list[tuple[Item | Invocation, Group]] = []
    with runtime.lock:
        for group in groups if not runtime.host.leaving else ():
            while group.wanted and (item := group.claim(runtime.worker)) is not None:
                group.running += 1
                found.append((item, group))
    return found


class Crew(Protocol):
    """Runs calls besides the main thread."""

    def hand_out(self) -> None:
        """Begin as many of the calls that wait as may run. Called by the main thread."""

    def wanted(self) -> bool:
        """Whether there is something to hand out, and somebody to run it. The caller holds the lock."""

    def alone(self, action: Callable[[], None]) -> None:
        """Do something where calls run, at a moment when none does. Called by the main thread."""

    def interrupt(self, item: Item | Invocation) -> bool:
        """Stop what runs. False if that is not possible at this moment. The caller holds the lock."""

    def runs_here(self, item: Item | Invocation) -> bool:
        """Whether it is this thread, or asyncio task, that runs a call, and not one that it has started."""


class Threads:
    """For each group as many threads as calls of it may run at the same time, each started when it is first needed."""

    def __init__(self, runtime: RunningWorker, groups: Sequence[Group]) -> None:
        self.runtime = runtime
        self.groups = groups
        self._fences: dict[bytes, Fence] = {}
        """That of the thread which runs a call."""

    def wanted(self) -> bool:
        """See ``Crew``."""
        return self.runtime.worker.may_begin and any(group.wanted for group in self.groups)

    def hand_out(self) -> None:
        """See ``Crew``."""
        for item, group in claimed(self.runtime, self.groups):
            with self.runtime.lock:
                one_more = group.threads < group.running
                group.threads += one_more
            if one_more:
                name = f"zfabric-call-{group.name}{'-' if group.name else ''}{group.threads}"
                threading.Thread(target=self._work, args=(group,), name=name, daemon=True).start()
            group.given.put(item)

    def _work(self, group: Group) -> None:
        while True:
            item: Item | Invocation | None = group.given.get()
            while item is not None:
                item = self._run(item, group)

    def _run(self, item: Item | Invocation, group: Group) -> Item | Invocation | None:
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
            if type(item) is Item:
                runtime.become_actor(item, value)
                value = None
        except BaseException as error:  # whatever the user's code raises is the call's outcome
            outcome = runtime.failed(item, error, None)
        else:
            outcome = runtime.packed(item, value)
        del self._fences[item.row[0]]
        following = runtime.end_beside(item, group, outcome, started)
        del value  # The refs in it live until its end is told.
        return following

    def alone(self, action: Callable[[], None]) -> None:
        """See ``Crew``."""
        action()

    def runs_here(self, item: Item | Invocation) -> bool:
        """See ``Crew``."""
        fence = self._fences.get(item.row[0])
        return fence is not None and fence.thread == threading.get_ident()

    def interrupt(self, item: Item | Invocation) -> bool:
        """See ``Crew``. The exception is raised when the thread runs Python code next."""
        fence = self._fences.get(item.row[0])
        return fence is not None and fence.interrupt()


class StandIns(Threads):
    """Runs calls of actors that share a process while one that the main thread runs waits, one at a time."""

    def __init__(self, runtime: RunningWorker) -> None:
        super().__init__(runtime, (SharedTurn(runtime.worker),))

    def _run(self, item: Item | Invocation, group: Group) -> Item | Invocation | None:
        self.runtime.mark(item)
        following = super()._run(item, group)
        self.runtime.let_go()
        return following


class Loop:
    """One event loop in a thread of its own."""

    def __init__(self, runtime: RunningWorker, groups: Sequence[Group]) -> None:
        import asyncio

        self.runtime = runtime
        self.groups = groups
        self.running: dict[bytes, asyncio.Task[None] | None] = {}
        """Coroutines that have begun: one that is cancelled before it has begins never, and its call would have no end."""
        self._current = asyncio.current_task
        self._flushing = False
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="zfabric-loop", daemon=True).start()

    def wanted(self) -> bool:
        """See ``Crew``."""
        return self.runtime.worker.may_begin and any(group.wanted for group in self.groups)

    def hand_out(self) -> None:
        """See ``Crew``."""
        found = claimed(self.runtime, self.groups)
        if found:
            self.start(found)

    def start(self, items: Sequence[tuple[Item | Invocation, Group | None]]) -> None:
        """Run these, whatever else runs; tasks are of no group."""
        self.loop.call_soon_threadsafe(self._start, items)

    def _start(self, items: Sequence[tuple[Item | Invocation, Group | None]]) -> None:
        for item, group in items:
            self.loop.create_task(self._run(item, group))

    async def _run(self, item: Item | Invocation, group: Group | None) -> None:
        runtime = self.runtime
        current_call.set(item)
        self.running[item.row[0]] = self._current()
        started = time.monotonic()
        value, retryable = None, None
        try:
            if runtime.worker.interrupts and runtime.worker.interrupted(item):
                raise TaskInterrupt("it is to be stopped before it has begun")
            function, retryable, args, kwargs = runtime.prepare(item)
            value = await runtime.streamed_in_loop(item, function(*args, **kwargs))
            del args, kwargs
        except BaseException as error:  # whatever the user's code raises is the call's outcome
            outcome = runtime.failed(item, error, retryable)
        else:
            outcome = runtime.packed(item, value)
        self.running.pop(item.row[0], None)
        following = runtime.end_beside(item, group, outcome, started, flush=False)
        del value  # The refs in it live until its end is told.
        if following is not None:
            self._start([(following, group)])
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Outcomes of one round of the loop leave as one frame."""
        self._flushing = False
        with self.runtime.lock:
            self.runtime.flush()

    def alone(self, action: Callable[[], None]) -> None:
        """See ``Crew``."""
        self.loop.call_soon_threadsafe(action)

    def interrupt(self, item: Item | Invocation) -> bool:
        """See ``Crew``."""
        self.loop.call_soon_threadsafe(self._cancel, item.row[0])
        return True

    def runs_here(self, item: Item | Invocation) -> bool:
        """See ``Crew``."""
        try:
            task = self._current()
        except RuntimeError:  # another thread
            return False
        return task is not None and task is self.running.get(item.row[0])

    def _cancel(self, call_id: bytes) -> None:
        task = self.running.get(call_id)
        if task is not None:
            task.cancel()


def crew_for(runtime: RunningWorker, instance: Any, size: int | None, sizes: Iterable[tuple[str, int]]) -> Crew | None:
    """Who runs the calls of ``instance``: None if it is the main thread, one after the other.

    ``size`` is that of the default group, ``sizes`` are those of others, by name.
    """
    import inspect

    kind = type(instance)
    methods = [inspect.getattr_static(kind, name, None) for name in dir(kind)]
    if any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in methods):
        return Loop(runtime, _groups(runtime, size or ASYNC_CONCURRENCY, sizes))
    return Threads(runtime, _groups(runtime, size or 1, sizes)) if (size or 1) > 1 or sizes else None


def _groups(runtime: RunningWorker, size: int, sizes: Iterable[tuple[str, int]]) -> list[Group]:
    mailbox = runtime.worker.mailbox
    mailbox.groups = {name: deque() for name, _ in sizes}
    return [Group(mailbox.queue, size), *(Group(mailbox.groups[name], each, name) for name, each in sizes)]
