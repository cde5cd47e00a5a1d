"""Waiting for objects in asyncio and by ``concurrent.futures``. Imported on first use, since most programs need neither.

A thread of the fabric's own calls back when an object has an outcome. Callbacks for asyncio are collected per event loop, and the loop
is woken once for all of them; the value is read in the loop's thread. A future's value is read by one thread of this module, because the
fabric's own must not wait.
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
from typing import TypeVar
from weakref import WeakKeyDictionary

from zfabric.runtime.interface import ClientInterface

V = TypeVar("V")


class _Wakeups:
    """Futures of one event loop whose objects have an outcome, and whether the loop has been woken for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wake = loop.call_soon_threadsafe
        self._ready: deque[asyncio.Future[None]] = deque()
        self._armed = False

    def add(self, future: asyncio.Future[None]) -> None:
        """Resolve ``future`` in its loop; from any thread. Appending precedes the test of ``_armed``, so no wake-up is lost."""
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


async def arrival(client: ClientInterface, object_id: bytes) -> None:
    """Wait until the object has an outcome, without blocking the running event loop."""
    loop = asyncio.get_running_loop()
    wakeups = _loops.get(loop)
    if wakeups is None:
        wakeups = _loops[loop] = _Wakeups(loop)
    done = loop.create_future()
    add = wakeups.add
    client.add_done_callback(object_id, lambda _: add(done))
    await done


_queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
_thread: threading.Thread | None = None
_starting = threading.Lock()


def _call_back() -> None:
    while True:
        callback = _queue.get()
        try:
            callback()
        except BaseException:  # the next ones are called nevertheless
            sys.excepthook(*sys.exc_info())
        del callback


def when_done(client: ClientInterface, object_id: bytes, callback: Callable[[], None]) -> None:
    """Call ``callback()`` in the thread of futures once the object has an outcome. There it may ``get`` it."""
    global _thread
    with _starting:
        if _thread is None:
            _thread = threading.Thread(target=_call_back, name="zfabric-futures", daemon=True)
            _thread.start()
    client.add_done_callback(object_id, lambda _: _queue.put(callback))


def future_of(client: ClientInterface, object_id: bytes, read: Callable[[], V]) -> Future[V]:
    """A future of what ``read()`` returns or raises, which is called once the object has an outcome."""
    future: Future[V] = Future()
    when_done(client, object_id, partial(_resolve, future, read))
    return future


def _resolve(future: Future[V], read: Callable[[], V]) -> None:
    try:
        if future.set_running_or_notify_cancel():
            future.set_result(read())
    except BaseException as error:  # whatever it is, it is the future's to raise
        future.set_exception(error)
    finally:
        del future, read  # The error's traceback has this frame: the future, its error and the frame would be a cycle.
