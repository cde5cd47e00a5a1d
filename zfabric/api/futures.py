"""Refs for asyncio and for ``concurrent.futures``. Imported on first use, since most programs need neither.

The fabric says that a value is there from a thread of its own. For asyncio the news is collected per event loop, and the loop
is woken once for all of it; the value itself is fetched in the loop's thread, where it is then at hand. A future's value is
fetched by one thread of ours, because the fabric's own must not wait.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

from zfabric.api.refs import ObjectRef


class _Wakeups:
    """What is to be told to one event loop, and whether it has been woken for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wake = loop.call_soon_threadsafe
        self._ready: deque[asyncio.Future[None]] = deque()
        self._armed = False

    def add(self, future: asyncio.Future[None]) -> None:
        """From any thread: ``future`` is done. Appending comes before looking, so no wake-up is lost."""
        self._ready.append(future)
        if not self._armed:
            self._armed = True
            try:
                self._wake(self._flush)
            except RuntimeError:  # the loop is closed, so nobody waits any more
                pass

    def _flush(self) -> None:
        self._armed = False
        while self._ready:
            future = self._ready.popleft()
            if not future.done():
                future.set_result(None)


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Wakeups] = WeakKeyDictionary()


async def wait_in_loop(ref: ObjectRef) -> Any:
    """The value of ``ref``, without blocking the running event loop."""
    from zfabric.api.core import get

    await arrival(ref)
    return get(ref)


async def arrival(ref: ObjectRef) -> None:
    """Until ``ref`` has an outcome, without blocking the running event loop."""
    from zfabric.api.core import owner_of

    loop = asyncio.get_running_loop()
    wakeups = _loops.get(loop)
    if wakeups is None:
        wakeups = _loops[loop] = _Wakeups(loop)
    done = loop.create_future()
    tell = wakeups.add
    owner_of(ref).add_done_callback(ref.binary(), lambda _: tell(done))
    await done


_queue: SimpleQueue[tuple[Callable[[ObjectRef], None], ObjectRef]] = SimpleQueue()
_thread: threading.Thread | None = None
_starting = threading.Lock()


def _call_back() -> None:
    while True:
        callback, ref = _queue.get()
        try:
            callback(ref)
        except BaseException:  # the next ones are called nevertheless
            sys.excepthook(*sys.exc_info())
        del callback, ref


def when_done(ref: ObjectRef, callback: Callable[[ObjectRef], None]) -> None:
    """Call ``callback(ref)`` in the thread of futures once ``ref`` has an outcome. There it may ``get`` it."""
    global _thread
    from zfabric.api.core import owner_of

    with _starting:
        if _thread is None:
            _thread = threading.Thread(target=_call_back, name="zfabric-futures", daemon=True)
            _thread.start()
    owner_of(ref).add_done_callback(ref.binary(), lambda _: _queue.put((callback, ref)))


def future_of(ref: ObjectRef) -> Future[Any]:
    """A future of the value of ``ref``."""
    future: Future[Any] = Future()
    when_done(ref, partial(_resolve, future))
    return future


def _resolve(future: Future[Any], ref: ObjectRef) -> None:
    from zfabric.api.core import get

    try:
        if future.set_running_or_notify_cancel():
            future.set_result(get(ref))
    except BaseException as error:  # whatever it is, it is the future's to raise
        future.set_exception(error)
    finally:
        del future, ref  # The error's traceback has this frame: the future, its error and the frame would be a cycle.
