"""Waiting for objects in asyncio and with ``concurrent.futures``. Imported on first use: most programs need neither.

A thread of the client calls back when an object has an outcome. Callbacks for asyncio are collected per event loop: one wake-up serves all.
One thread of this module reads the values of ``concurrent.futures`` futures, since the client's thread must not block.
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
    """Futures of one event loop whose objects have outcomes, and whether a wake-up is pending."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wake = loop.call_soon_threadsafe
        self._ready: deque[asyncio.Future[None]] = deque()
        self._armed = False

    def add(self, future: asyncio.Future[None]) -> None:
        """Resolve ``future`` in its loop; safe from any thread. Appending precedes the test of ``_armed``, so no wake-up is lost."""
        self._ready.append(future)
        if not self._armed:
            self._armed = True
            try:
                self._wake(self._flush)
            except RuntimeError:  # The loop is closed: nothing waits any more.
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
        except BaseException:  # Call the remaining callbacks nevertheless.
            sys.excepthook(*sys.exc_info())
        del callback


def call_later(callback: Callable[[], None]) -> None:
    """Call ``callback()`` in the thread of futures, behind those that wait. Call ``begin`` before."""
    _queue.put(callback)


def begin() -> None:
    """Start the thread of futures, once."""
    global _thread
    with _starting:
        if _thread is None:
            _thread = threading.Thread(target=_call_back, name="zfabric-futures", daemon=True)
            _thread.start()


def when_done(client: ClientInterface, object_id: bytes, callback: Callable[[], None]) -> None:
    """Call ``callback()`` in the thread of futures once the object has an outcome. It may call ``get``."""
    begin()
    client.add_done_callback(object_id, lambda _: call_later(callback))


def future_of(client: ClientInterface, object_id: bytes, read: Callable[[], V]) -> Future[V]:
    """Return a future for the result or error of ``read()``, called once the object has an outcome."""
    future: Future[V] = Future()
    when_done(client, object_id, partial(_resolve, future, read))
    return future


def _resolve(future: Future[V], read: Callable[[], V]) -> None:
    try:
        if future.set_running_or_notify_cancel():
            future.set_result(read())
    except BaseException as error:  # The future raises whatever it is.
        future.set_exception(error)
    finally:
        del future, read  # The error's traceback references this frame: avoid a cycle of frame, future and error.
