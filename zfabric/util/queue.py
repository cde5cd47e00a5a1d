"""A queue that tasks, actors and drivers share: Ray's names, the rules of ``queue.Queue``."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterable
from typing import Any

from zfabric import api as zf


class Empty(queue.Empty):
    """The queue had no item (in time)."""


class Full(queue.Full):
    """The queue had no room (in time)."""


class Queue:
    """First in, first out; ``maxsize`` items at most (0: any number). Can be passed to tasks and actors.

    The items live in an actor, which ends with the last copy of the queue; ``actor_options`` are its options. Raises TypeError for a
    ``maxsize`` that is no int, OptionError for invalid options, and ActorDiedError if the actor is dead.

    >>> import zfabric as zf
    >>> from zfabric.util.queue import Queue
    >>> numbers = Queue(maxsize=10)
    >>> @zf.remote
    ... def produce(numbers):
    ...     for number in range(3):
    ...         numbers.put(number)
    >>> producer = produce.remote(numbers)
    >>> [numbers.get(timeout=30) for _ in range(3)]
    [0, 1, 2]
    """

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None) -> None:
        if isinstance(maxsize, bool) or not isinstance(maxsize, int):
            raise TypeError(f"maxsize is a number of items, or 0 for no limit, not {maxsize!r}")
        self.maxsize = maxsize
        self.actor: Any = zf.remote(_Items).options(**(actor_options or {})).remote(maxsize)

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """The number of items."""
        return int(zf.get(self._actor().size.remote()))

    qsize = size

    def empty(self) -> bool:
        """Whether there are no items."""
        return self.size() == 0

    def full(self) -> bool:
        """Whether there is no room for another item."""
        return 0 < self.maxsize <= self.size()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add ``item``; wait for room at most ``timeout`` seconds, or not at all without ``block``. Raises Full."""
        if not _ended(self._actor().put.remote(item, _patience(block, timeout))):
            raise Full

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Remove and return the first item; wait at most ``timeout`` seconds, or not at all without ``block``. Raises Empty."""
        return _first(_ended(self._actor().get.remote(_patience(block, timeout))))

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add ``item`` as ``put`` does, without blocking the event loop. Raises Full."""
        if not await _awaited(self._actor().put.remote(item, _patience(block, timeout))):
            raise Full

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """Remove and return the first item as ``get`` does, without blocking the event loop. Raises Empty."""
        return _first(await _awaited(self._actor().get.remote(_patience(block, timeout))))

    def put_nowait(self, item: Any) -> None:
        """Add ``item``. Raises Full if there is no room."""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """Remove and return the first item. Raises Empty if there is none."""
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all ``items`` in one step, or raise Full and add none."""
        if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
            raise TypeError(f"put_nowait_batch() takes several items, such as a list, not {items!r}")
        batch = list(items)
        size = _ended(self._actor().put_batch.remote(batch))
        if size is not None:
            raise Full(f"cannot add {len(batch)} items to a queue with {size}, of at most {self.maxsize}")

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Remove and return ``num_items`` items in one step, or raise Empty and remove none."""
        if isinstance(num_items, bool) or not isinstance(num_items, int):
            raise TypeError(f"get_nowait_batch() takes a number of items, not {num_items!r}")
        if num_items < 0:
            raise ValueError("num_items must not be negative")
        taken, items = _ended(self._actor().get_batch.remote(num_items))
        if not taken:
            raise Empty(f"cannot take {num_items} items from a queue with {items}")
        return list(items)

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the queue and discard its items; waiting callers get ActorDiedError.

        Unless ``force``, earlier calls have ``grace_period_s`` seconds to begin.
        """
        if self.actor is None:
            return
        if not force:
            zf.wait([self.actor.size.remote()], timeout=grace_period_s)
        zf.kill(self.actor)
        self.actor = None

    def _actor(self) -> Any:
        if self.actor is None:
            raise RuntimeError("this queue was shut down; make another")
        return self.actor


def _patience(block: bool, timeout: float | None) -> float | None:
    if not block:
        return 0.0
    if timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return timeout


def _first(answer: tuple[bool, Any]) -> Any:
    found, item = answer
    if not found:
        raise Empty
    return item


def _ended(ref: zf.ObjectRef) -> Any:
    """Cancel the call if the wait is interrupted, so that no item is lost."""
    try:
        return zf.get(ref)
    except (KeyboardInterrupt, SystemExit):
        zf.cancel(ref)
        raise


async def _awaited(ref: zf.ObjectRef) -> Any:
    try:
        return await ref
    except asyncio.CancelledError:
        zf.cancel(ref)
        raise


class _Items:
    """The queue's actor. Its calls run concurrently in one event loop, so a waiting call delays no other."""

    def __init__(self, maxsize: int) -> None:
        self.items: asyncio.Queue[Any] = asyncio.Queue(maxsize)

    async def size(self) -> int:
        return self.items.qsize()

    async def put(self, item: Any, patience: float | None) -> bool:
        """Add an item; return whether there was room in time."""
        try:
            if patience == 0:
                self.items.put_nowait(item)
            else:
                await asyncio.wait_for(self.items.put(item), patience)
        except (asyncio.QueueFull, TimeoutError):
            return False
        return True

    async def get(self, patience: float | None) -> tuple[bool, Any]:
        """Return (whether there was an item in time, the item)."""
        try:
            return True, self.items.get_nowait() if patience == 0 else await asyncio.wait_for(self.items.get(), patience)
        except (asyncio.QueueEmpty, TimeoutError):
            return False, None

    async def put_batch(self, items: list[Any]) -> int | None:
        """Add all items and return None; without room, return the number of items in the queue."""
        if self.items.maxsize > 0 and self.items.qsize() + len(items) > self.items.maxsize:
            return self.items.qsize()
        for item in items:
            self.items.put_nowait(item)
        return None

    async def get_batch(self, count: int) -> tuple[bool, Any]:
        """Return (True, items), or (False, the number of items in the queue) if there are fewer."""
        if self.items.qsize() < count:
            return False, self.items.qsize()
        return True, [self.items.get_nowait() for _ in range(count)]
