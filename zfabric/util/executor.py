"""A ``concurrent.futures.Executor`` whose workers are the cluster's: what takes executors, takes a fabric."""

from __future__ import annotations

import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor as _Executor
from concurrent.futures import Future
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from itertools import islice
from typing import Any, TypeVar

import zfabric as zf

Result = TypeVar("Result")
_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

FUNCTIONS_MAX = 1000
"""Functions that an executor remembers to have made remote: a loop that submits lambdas makes a new one each time."""


class TaskFuture(Future[Result]):
    """The future of one call. ``cancel`` also cancels its task, as long as the call has no outcome; ``ref`` is the task's ref."""

    ref: zf.ObjectRef | None = None
    begun = False
    """Whether the cluster has the call."""

    def cancel(self) -> bool:
        """Whether the call is cancelled now: it counts as not begun until its outcome is here."""
        if not super().cancel():
            return False
        if self.ref is not None:
            zf.cancel(self.ref)
        elif not self.begun:
            self.set_running_or_notify_cancel()  # Nobody else would tell those who wait for it.
        return True


class Executor(_Executor):
    """Runs calls as tasks, with the options of ``zf.remote`` for all of them (``num_cpus``, ``max_retries``, ``runtime_env``, …).

    What was submitted is done by the cluster's workers; ``max_workers`` limits how many of this executor's calls are with the
    cluster at a time (default: no limit). A cluster is started if there is none, and goes on after ``shutdown``.

    >>> import zfabric as zf
    >>> with zf.Executor() as executor:
    ...     future = executor.submit(pow, 2, 10)
    ...     list(executor.map(abs, [-1, 2, -3])), future.result()
    ([1, 2, 3], 1024)
    """

    def __init__(self, max_workers: int | None = None, **options: Any) -> None:
        if max_workers is not None and (isinstance(max_workers, bool) or not isinstance(max_workers, int) or max_workers < 1):
            raise ValueError(f"max_workers is an int, at least 1, or None for no limit, not {max_workers!r}")
        if options.get("num_returns", 1) not in (1, None):
            raise zf.OptionError(f"a future has one value: num_returns={options['num_returns']!r} is for f.remote()")
        self._call = zf.remote(**options)(_call) if options else zf.remote(_call)
        self._options = options
        self._functions: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._room = max_workers
        """How many more calls the cluster may be given; None for any number."""
        self._queue: deque[tuple[TaskFuture[Any], _Call]] = deque()
        """Those for which there was no room."""
        self._open: set[TaskFuture[Any]] = set()
        self._idle = threading.Condition(self._lock)
        self._closed = False

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Run ``fn(*args, **kwargs)`` as a task. RuntimeError after ``shutdown``; SerializationError if it cannot be pickled.

        (That is the future's error if the call has to wait for room.)
        """
        future: TaskFuture[Result] = TaskFuture()
        with self._lock:
            if self._closed:
                raise RuntimeError("this executor was shut down; make another")
            self._open.add(future)
            future.begun = self._room is None or self._room > 0
            if not future.begun:
                self._queue.append((future, (fn, args, kwargs)))
            elif self._room is not None:
                self._room -= 1
        if future.begun:
            try:
                self._begin(future, (fn, args, kwargs))
            except BaseException:  # Ctrl-C too: a call that was not made takes no room
                self._ended(future)
                raise
        return future

    def _begin(self, future: TaskFuture[Any], call: _Call) -> None:
        """Hand a call to the cluster."""
        future.ref = ref = self._remote(*call)
        if future.cancelled():
            zf.cancel(ref)  # Meanwhile, when there was no ref to stop it by.
        ref.future().add_done_callback(lambda done: self._done(future, done))

    def _remote(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A plain function is exported once; anything else that can be called travels with its call."""
        if type(fn) is not types.FunctionType:
            if isinstance(fn, zf.RemoteFunction):
                raise TypeError(f"{fn!r} is remote already: call its .remote(...), whose ref has a .future(), or submit its ._function")
            return self._call.remote(fn, args, kwargs)
        if fn.__code__.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
            raise TypeError(f"{fn.__qualname__} yields, and a future has one value: submit a function that returns a list of them")
        remote = self._functions.get(fn)
        if remote is None:
            if len(self._functions) >= FUNCTIONS_MAX:
                self._functions.clear()
            remote = self._functions[fn] = zf.remote(**self._options)(fn) if self._options else zf.remote(fn)
        return remote.remote(*args, **kwargs)

    def _done(self, future: TaskFuture[Any], done: Future[Any]) -> None:
        future.ref = None
        if future.set_running_or_notify_cancel():
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)
        self._ended(future)

    def _ended(self, future: TaskFuture[Any]) -> None:
        """A call has its outcome: there is room for the next."""
        while True:
            with self._lock:
                self._open.discard(future)
                following = self._queue.popleft() if self._queue else None
                if following is not None:
                    following[0].begun = not following[0].cancelled()
                elif self._room is not None:
                    self._room += 1
                if not self._open:
                    self._idle.notify_all()
            if following is None:
                return
            future, call = following
            if future.begun:
                try:
                    if not zf.is_initialized():  # Whoever shut it down did not want another one to be started for this.
                        raise zf.NotInitializedError("the cluster was shut down before this call could begin")
                    self._begin(future, call)
                    return
                except Exception as error:  # it cannot be pickled, or the cluster is gone: whoever submitted it has only the future
                    if future.set_running_or_notify_cancel():
                        future.set_exception(error)

    def map(
        self, fn: Callable[..., Result], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Result]:
        """Results in order, as ``map`` would give them; TimeoutError if the next is not there ``timeout`` seconds after the call.

        ``chunksize`` items make one task. All items are submitted at once.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be at least 1")
        deadline = None if timeout is None else time.monotonic() + timeout
        items = zip(*iterables, strict=False)
        futures: list[Future[Any]]
        if chunksize == 1:
            futures = [self.submit(fn, *item) for item in items]
            return _results(futures, deadline, single=True)
        futures = []
        while chunk := list(islice(items, chunksize)):
            futures.append(self.submit(_call_each, fn, chunk))
        return _results(futures, deadline, single=False)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with ``wait``, return when those taken are done. Idempotent.

        ``cancel_futures`` cancels all that have no outcome, those that run too: their tasks are stopped.
        """
        with self._lock:
            self._closed = True
            waiting = [future for future, _ in self._queue]
            pending = [*waiting, *self._open.difference(waiting)] if cancel_futures else []
        for future in pending:
            future.cancel()
        if wait:
            with self._lock:
                while self._open:
                    self._idle.wait()


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


def _call_each(fn: Callable[..., Any], items: list[tuple[Any, ...]]) -> list[Any]:
    return [fn(*item) for item in items]


def _results(futures: list[Future[Any]], deadline: float | None, single: bool) -> Iterator[Any]:
    """Results as they are asked for; the rest, and what was not there in time, is cancelled when nobody will ask."""
    futures.reverse()
    try:
        while futures:
            value = futures[-1].result(None if deadline is None else max(0.0, deadline - time.monotonic()))
            futures.pop()
            if single:
                yield value
            else:
                yield from value
    finally:
        for future in futures:
            future.cancel()
