"""Runs calls of one actor, or async tasks, at once: in threads, or as coroutines of one loop.

The main thread receives, and starts queued calls up to their group's limit (``max_concurrency`` for the default group). Whoever ends a call
claims the group's next, so calls of a group start in order, and groups do not wait for each other. An actor with an ``async def`` method
runs all calls in its loop, where plain methods must not block. Its ``__init__`` runs in the loop if ``async def``, else in the main thread
before the loop does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from zfabric.machines.worker import Invocation, Item
from zfabric.runtime.call_groups import Group, SharedTurn
from zfabric.runtime.contexts import current_call
from zfabric.runtime.hosting import Crew
from zfabric.runtime.interrupts import Fence, Interrupter, TaskInterrupt
from zfabric.runtime.reporting import Reporter
from zfabric.runtime.streaming import StreamProducer
from zfabric.runtime.user_code import Ending, UserCode
from zfabric.runtime.worker_connection import WorkerConnection

if TYPE_CHECKING:
    import asyncio

ASYNC_CONCURRENCY = 1000
"""Default of actors with ``async def`` methods."""


class CallRunner:
    """Runs a call from claim to report, in the calling thread or loop."""

    def __init__(
        self,
        connection: WorkerConnection,
        interrupter: Interrupter,
        user_code: UserCode,
        streams: StreamProducer,
        reporter: Reporter,
    ) -> None:
        self.connection = connection
        self.worker = connection.worker
        self.host = connection.host
        self.interrupter = interrupter
        self.reporter = reporter
        self._user_code = user_code
        self._streams = streams

    def claim(self, groups: Iterable[Group]) -> list[tuple[Item | Invocation, Group]]:
        """Claim as many queued calls as may run."""
        found: list[tuple[Item | Invocation, Group]] = []
        with self.connection.lock:
            for group in groups if not self.host.leaving else ():
                while group.wanted and (item := group.claim(self.worker)) is not None:
                    group.running += 1
                    found.append((item, group))
        return found

    def any_wanted(self, groups: Iterable[Group]) -> bool:
        """Whether a group may start a call. The caller holds the lock."""
        return self.worker.may_begin and any(group.wanted for group in groups)

    def run(self, item: Item | Invocation) -> tuple[Ending, Any]:
        """Run a call here. Return its outcome, and its result to hold until the report."""
        user_code, value = self._user_code, None
        try:
            function, _, args, kwargs = user_code.prepare(item)
            value = self._streams.streamed(item, self.interrupter.run_as_user(function, *args, **kwargs))
            del args, kwargs
            if type(item) is Item:
                self.host.begin_shared(item, value)
                value = None
        except BaseException as error:  # The call's outcome, whatever it is.
            self.interrupter.fences.mine.depth = 1  # An interrupt may have preceded the line that sets this.
            return user_code.failed(item, error, None), value
        returned = [value]
        del value  # A returned exception refers to this frame by its traceback.
        return user_code.packed(item, returned[0]), returned.pop()

    async def run_in_loop(self, item: Item | Invocation) -> tuple[Ending, Any]:
        """Do as ``run``, in this loop."""
        user_code, worker = self._user_code, self.worker
        value, retryable = None, None
        try:
            if worker.interrupts and worker.interrupted(item):
                raise TaskInterrupt("it is to be stopped before it has begun")
            function, retryable, args, kwargs = user_code.prepare(item)
            value = await self._streams.streamed_in_loop(item, function(*args, **kwargs))
            del args, kwargs
        except BaseException as error:  # As above.
            return user_code.failed(item, error, retryable), value
        return user_code.packed(item, value), value


class Threads:
    """Threads, per group up to its limit, started when needed."""

    def __init__(self, runner: CallRunner, groups: Sequence[Group]) -> None:
        self._runner = runner
        self._groups = groups
        self._fences: dict[bytes, Fence] = {}
        """Fences by the running call's id."""

    def wanted(self) -> bool:
        """As ``Crew.wanted``."""
        return self._runner.any_wanted(self._groups)

    def hand_out(self) -> None:
        """As ``Crew.hand_out``."""
        for item, group in self._runner.claim(self._groups):
            with self._runner.connection.lock:
                one_more = group.threads < group.running
                group.threads += one_more
            if one_more:
                name = f"zfabric-call-{group.name}{'-' if group.name else ''}{group.threads}"
                threading.Thread(target=self._work, args=(group,), name=name, daemon=True).start()
            group.claimed.put(item)

    def _work(self, group: Group) -> None:
        while True:
            item: Item | Invocation | None = group.claimed.get()
            while item is not None:
                item = self._run(item, group)

    def _run(self, item: Item | Invocation, group: Group) -> Item | Invocation | None:
        runner = self._runner
        fence = runner.interrupter.fences.mine
        fence.depth = 1
        self._fences[item.row[0]] = fence
        current_call.set(item)
        started = time.monotonic()
        outcome, value = runner.run(item)
        del self._fences[item.row[0]]
        following = runner.reporter.end_beside(item, group, outcome, started)
        del value  # Refs inside the result live until the outcome is reported.
        return following

    def alone(self, action: Callable[[], None]) -> None:
        """As ``Crew.alone``: here, since no call runs."""
        action()

    def runs_here(self, item: Item | Invocation) -> bool:
        """As ``Crew.runs_here``."""
        fence = self._fences.get(item.row[0])
        return fence is not None and fence.thread == threading.get_ident()

    def interrupt(self, item: Item | Invocation) -> bool:
        """As ``Crew.interrupt``: False if the thread runs no user code."""
        fence = self._fences.get(item.row[0])
        return fence is not None and fence.interrupt()


class StandIns(Threads):
    """Runs lightweight actors' calls, one at a time, while the main thread's waits."""

    def __init__(self, runner: CallRunner, release_gone: Callable[[], None]) -> None:
        super().__init__(runner, (SharedTurn(runner.worker),))
        self._release_gone = release_gone

    def _run(self, item: Item | Invocation, group: Group) -> Item | Invocation | None:
        self._runner.reporter.mark(item)
        following = super()._run(item, group)
        self._release_gone()
        return following


class Loop:
    """Coroutines of one event loop, in a thread."""

    def __init__(self, runner: CallRunner, groups: Sequence[Group], loop: asyncio.AbstractEventLoop | None = None) -> None:
        import asyncio

        self._runner = runner
        self._groups = groups
        self.running: dict[bytes, asyncio.Task[None] | None] = {}
        """Begun coroutines: one cancelled earlier would never begin, nor would its call end."""
        self._current = asyncio.current_task
        self._flushing = False
        self.loop = loop or asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="zfabric-loop", daemon=True)
        self.thread.start()

    def wanted(self) -> bool:
        """As ``Crew.wanted``."""
        return self._runner.any_wanted(self._groups)

    def hand_out(self) -> None:
        """As ``Crew.hand_out``."""
        found = self._runner.claim(self._groups)
        if found:
            self.start(found)

    def start(self, items: Sequence[tuple[Item | Invocation, Group | None]]) -> None:
        """Run these without a limit. Async tasks have no group."""
        self.loop.call_soon_threadsafe(self._start, items)

    def _start(self, items: Sequence[tuple[Item | Invocation, Group | None]]) -> None:
        for item, group in items:
            self.loop.create_task(self._run(item, group))

    async def _run(self, item: Item | Invocation, group: Group | None) -> None:
        runner = self._runner
        current_call.set(item)
        self.running[item.row[0]] = self._current()
        started = time.monotonic()
        outcome, value = await runner.run_in_loop(item)
        self.running.pop(item.row[0], None)
        following = runner.reporter.end_beside(item, group, outcome, started, flush=False)
        del value  # As in ``Threads``.
        if following is not None:
            self._start([(following, group)])
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send one round's outcomes in one frame."""
        self._flushing = False
        connection = self._runner.connection
        with connection.lock:
            if not connection.closed:
                connection.flush()

    def alone(self, action: Callable[[], None]) -> None:
        """As ``Crew.alone``: in the loop's thread."""
        self.loop.call_soon_threadsafe(action)

    def interrupt(self, item: Item | Invocation) -> bool:
        """As ``Crew.interrupt``: cancels the call's asyncio task."""
        self.loop.call_soon_threadsafe(self._cancel, item.row[0])
        return True

    def runs_here(self, item: Item | Invocation) -> bool:
        """As ``Crew.runs_here``."""
        try:
            task = self._current()
        except RuntimeError:  # Another thread.
            return False
        return task is not None and task is self.running.get(item.row[0])

    def _cancel(self, call_id: bytes) -> None:
        task = self.running.get(call_id)
        if task is not None:
            task.cancel()


def loop_for(kind: type) -> asyncio.AbstractEventLoop | None:
    """The loop of an actor's class; None without an ``async def`` method."""
    import inspect  # Workers without actors start sooner without it.

    methods = [inspect.getattr_static(kind, name, None) for name in dir(kind)]
    if not any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in methods):
        return None
    import asyncio

    return asyncio.new_event_loop()


def creator_of(kind: type, loop: asyncio.AbstractEventLoop | None) -> Callable[..., Any]:
    """What makes an instance: the class, or a function that runs an ``async def __init__`` in the loop."""
    import inspect

    if loop is None or not inspect.iscoroutinefunction(kind.__init__):  # type: ignore[misc]
        return kind

    def create(*args: Any, **kwargs: Any) -> Any:
        instance = kind.__new__(kind, *args, **kwargs)
        if isinstance(instance, kind):
            set_running_loop(None)
            try:
                loop.run_until_complete(instance.__init__(*args, **kwargs))  # type: ignore[misc]
            finally:
                set_running_loop(loop)
        return instance

    return create


def set_running_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """Make ``loop`` this thread's running one. Asyncio tasks begin once it runs."""
    import asyncio

    asyncio._set_running_loop(loop)


def crew_for(runner: CallRunner, loop: asyncio.AbstractEventLoop | None, size: int | None, sizes: Iterable[tuple[str, int]]) -> Crew | None:
    """The crew of an actor; None if the main thread runs its calls in turn.

    ``size`` is the default group's limit, ``sizes`` are the others'.
    """
    if loop is not None:
        return Loop(runner, _groups(runner, size or ASYNC_CONCURRENCY, sizes), loop)
    return Threads(runner, _groups(runner, size or 1, sizes)) if (size or 1) > 1 or sizes else None


def _groups(runner: CallRunner, size: int, sizes: Iterable[tuple[str, int]]) -> list[Group]:
    mailbox = runner.worker.mailbox
    mailbox.groups = {name: deque() for name, _ in sizes}
    return [Group(mailbox.queue, size), *(Group(mailbox.groups[name], each, name) for name, each in sizes)]
