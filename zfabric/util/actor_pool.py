"""A pool of actors: each idle actor gets the next item of work. Ray's names and rules."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from zfabric import api as zf

Call = Callable[[Any, Any], zf.ObjectRef | list[zf.ObjectRef]]
"""Calls a method: ``lambda actor, value: actor.double.remote(value)``. ``num_returns`` above 1 returns a list of refs."""


class ActorPool:
    """Spreads calls over ``actors`` (handles), one at a time on each; results come in submission order, or as they complete.

    >>> import zfabric as zf
    >>> from zfabric.util import ActorPool
    >>> @zf.remote
    ... class Doubler:
    ...     def double(self, value):
    ...         return 2 * value
    >>> pool = ActorPool([Doubler.remote(), Doubler.remote()])
    >>> list(pool.map(lambda actor, value: actor.double.remote(value), [1, 2, 3, 4]))
    [2, 4, 6, 8]
    """

    def __init__(self, actors: Iterable[Any]) -> None:
        self._idle = list(actors)
        self._running: dict[zf.ObjectRef, tuple[int, Any, Any]] = {}
        """Running calls by first ref: position in the order, actor, ref or refs."""
        self._done: dict[int, Any] = {}
        """Outcomes not yet returned, by position: a ref, or a list of refs."""
        self._waiting: deque[tuple[int, Call, Any]] = deque()
        self._submitted = 0
        self._next = 0
        """Position of the next ``get_next``."""
        self._dropped: set[int] = set()
        """Positions whose results are discarded."""
        self._unordered = False

    def map(self, fn: Call, values: Iterable[Any]) -> Iterator[Any]:
        """Yield results of ``fn(actor, value)`` for each of ``values``, in order. Discards work that was submitted before.

        ``fn`` calls a method and returns its ref: ``lambda actor, value: actor.double.remote(value)``. Raises TypeError if it returns
        anything else, and a method's error where its result is due.
        """
        self._submit_all(fn, values)
        return self._results(self.get_next)

    def map_unordered(self, fn: Call, values: Iterable[Any]) -> Iterator[Any]:
        """Yield results of ``fn(actor, value)`` for each of ``values`` as they complete; otherwise as ``map``."""
        self._submit_all(fn, values)
        return self._results(self.get_next_unordered)

    def _submit_all(self, fn: Call, values: Iterable[Any]) -> None:
        self._waiting.clear()
        self._done.clear()
        self._dropped = {place for place, *_ in self._running.values()}
        self._next = self._submitted
        self._unordered = False
        for value in values:
            self.submit(fn, value)

    def _results(self, following: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield following()

    def submit(self, fn: Call, value: Any) -> None:
        """Call ``fn(actor, value)``, as in ``map``, on the next free actor. Does not wait."""
        self._waiting.append((self._submitted, fn, value))
        self._submitted += 1
        self._feed()

    def _feed(self) -> None:
        while self._idle and self._waiting:
            place, fn, value = self._waiting.popleft()
            actor = self._idle.pop()
            try:
                made = fn(actor, value)
                refs = made if isinstance(made, list) else [made]
                if not refs or not all(isinstance(ref, zf.ObjectRef) for ref in refs):
                    raise TypeError(f"the function is to return the ref of a call, as actor.method.remote(value) does, not {made!r}")
            except BaseException:  # The caller's function failed; the actor is free.
                self._idle.append(actor)
                self._dropped.add(place)
                raise
            self._running[refs[0]] = (place, actor, made)

    def _collect(self, deadline: float | None) -> bool:
        """Process ended calls, waiting for the first. Return False at the deadline."""
        if not self._running:
            raise ValueError("this pool has work and no actor: push() one")
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        refs = list(self._running)
        ready, rest = zf.wait(refs, num_returns=1, timeout=left)
        if ready and rest:
            ready += zf.wait(rest, num_returns=len(rest), timeout=0)[0]
        for ref in ready:
            place, actor, made = self._running.pop(ref)
            self._idle.append(actor)
            if place in self._dropped:
                self._dropped.discard(place)
            else:
                self._done[place] = made
        self._feed()
        return bool(ready)

    def has_next(self) -> bool:
        """Whether more results will come."""
        wanted = sum(1 for place, *_ in self._running.values() if place not in self._dropped)
        return bool(self._done or self._waiting or wanted)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the next result in submission order, or raise its method's error.

        Raises StopIteration if there is none, and TimeoutError after ``timeout`` seconds; ``ignore_if_timedout`` then skips that result.
        Raises ValueError after ``get_next_unordered``, while earlier submissions are incomplete.
        """
        if not self.has_next():
            raise StopIteration("there are no more results")
        if self._unordered:
            raise ValueError("get_next() cannot follow get_next_unordered(): which result is next is not known any more")
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._next in self._dropped and not any(place == self._next for place, *_ in self._running.values()):
            self._dropped.discard(self._next)
            self._next += 1  # Its call could not be submitted.
        while self._next not in self._done:
            if not self._collect(deadline):
                if ignore_if_timedout:
                    self._dropped.add(self._next)
                    self._next += 1
                raise TimeoutError("the next result was not there in time")
        ref = self._done.pop(self._next)
        self._next += 1
        return zf.get(ref)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the first result that exists, or raise its method's error.

        Raises StopIteration, and TimeoutError after ``timeout`` seconds, as ``get_next`` does. ``ignore_if_timedout`` is Ray's and has no
        effect.
        """
        if not self.has_next():
            raise StopIteration("there are no more results")
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._done:
            if not self._collect(deadline):
                raise TimeoutError("no result was there in time")
        place = next(iter(self._done))
        ref = self._done.pop(place)
        self._unordered = self.has_next()
        self._next = self._submitted
        return zf.get(ref)

    def has_free(self) -> bool:
        """Whether an actor is free and no work waits."""
        self._look()
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> Any | None:
        """Remove a free actor from the pool and return it; None if none is free."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Add ``actor``, a handle. Raises ValueError if it is in the pool."""
        if actor in self._idle or any(actor == busy for _, busy, _ in self._running.values()):
            raise ValueError("the actor is in this pool already")
        self._idle.append(actor)
        self._feed()

    def _look(self) -> None:
        if self._running:
            self._collect(time.monotonic())
