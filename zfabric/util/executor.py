"""A ``concurrent.futures.Executor`` that runs calls on the cluster's workers."""

from __future__ import annotations

import atexit
import functools
import logging
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures import Executor as _Executor
from concurrent.futures._base import CANCELLED, PENDING
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from itertools import count, islice
from typing import Any, ParamSpec, TypeVar

from zfabric import api as zf
from zfabric._version import __version__
from zfabric.api.lifecycle import connected
from zfabric.api.refs import owner_of
from zfabric.exceptions import ArgumentTypeError, FabricError, NotInitializedError, OptionError
from zfabric.util.initializers import Initializer, InitializerError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

FUNCTIONS_MAX = 1000
"""Most cached remote functions: a loop that submits lambdas makes a new one each time."""
_BEGUN = ("running", "blocked")
TASKS_MAX = 10_000
"""More than any node runs."""


class TaskFuture(Future[Result]):
    """The future of one call. Made by ``Executor.submit``, with the standard library's rules.

    ``zf.cancel(future.ref)`` also stops a call that runs.
    """

    ref: zf.ObjectRef | None = None
    """The task's ref, from submission to outcome; else None."""
    begun = False

    def running(self) -> bool:
        """Whether the call runs. Queries the cluster unless the state is known here."""
        ref = self.ref
        if ref is None or self.done() or super().running():
            return super().running()
        try:
            running = zf.explain(ref).state in _BEGUN
        except FabricError:  # The cluster is gone.
            return False
        return running and self.set_running()

    def set_running(self) -> bool:
        """Mark the call as running or ended; return False if it was cancelled and needs no outcome."""
        with self._condition:
            if super().running():
                return True
            return self._state in (PENDING, CANCELLED) and self.set_running_or_notify_cancel()

    def cancel(self) -> bool:
        """Cancel the call, unless it runs or has ended; return whether it is cancelled."""
        if self.running() or not super().cancel():
            return False
        self._withdraw()
        return True

    def cancel_unless(self, running: set[str]) -> None:
        """Cancel the call unless its task's id is in ``running``."""
        if self.ref is not None and self.ref.task_id().hex() in running:
            self.set_running()
        elif super().cancel():
            self._withdraw()

    def _withdraw(self) -> None:
        ref = self.ref
        if ref is not None:
            try:
                zf.cancel(ref)
            except FabricError:  # The cluster is gone.
                pass
        elif not self.begun:
            self.set_running_or_notify_cancel()  # Nothing else would wake those that wait for it.


def _running_tasks() -> set[str]:
    try:
        rows = connected().query("tasks", TASKS_MAX, _BEGUN) if zf.is_initialized() else ()
    except FabricError:  # The cluster is gone.
        rows = ()
    return {row["task_id"] for row in rows}


_keys = count()
_open: weakref.WeakSet[Executor] = weakref.WeakSet()
"""Executors that may have open calls when the interpreter ends."""
_exiting = False


def _at_exit() -> None:
    """Run all submitted calls before the program and its cluster end, as the standard library does."""
    global _exiting
    _exiting = True
    for executor in list(_open):
        executor.shutdown(wait=zf.is_initialized())


def _sets_lock_of_tqdm(initializer: Callable[..., Any]) -> bool:
    """Whether this is the initializer of ``tqdm.contrib.concurrent``, whose lock on the terminal cannot be sent and is not needed."""
    owner = getattr(initializer, "__self__", None)
    return getattr(initializer, "__name__", "") == "set_lock" and str(getattr(owner, "__module__", "")).partition(".")[0] == "tqdm"


class Executor(_Executor):
    """Runs calls as tasks; ``options`` are those of ``zf.remote``, for all of them (``num_cpus``, ``max_retries``, ``runtime_env``, …).

    ``max_workers`` limits how many calls are in the cluster at a time (default: no limit). ``initializer(*initargs)`` runs once in each
    worker process before the first call there; if it fails, all calls and ``submit`` raise ``concurrent.futures.BrokenExecutor``. Calls see
    the script's globals that it sets. A cluster is started if there is none, and outlives ``shutdown``.

    As in the standard library, a running call cannot be cancelled (``zf.cancel(future.ref)`` stops it), and the interpreter waits for all
    calls.

    >>> import zfabric as zf
    >>> with zf.Executor() as executor:
    ...     future = executor.submit(pow, 2, 10)
    ...     list(executor.map(abs, [-1, 2, -3])), future.result()
    ([1, 2, 3], 1024)
    """

    def __init__(
        self,
        max_workers: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        **options: Any,
    ) -> None:
        if max_workers is not None and (isinstance(max_workers, bool) or not isinstance(max_workers, int)):
            raise ArgumentTypeError(f"max_workers is an int, at least 1, or None for no limit, not {max_workers!r}")
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"max_workers must be greater than 0 (at least 1, or None for no limit), not {max_workers!r}")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if options.get("num_returns", 1) not in (1, None):
            raise OptionError(f"a future has one value: num_returns={options['num_returns']!r} is for f.remote()")
        if initializer is not None and _sets_lock_of_tqdm(initializer):
            initializer = None
        # A number and this object's address are unique in one process only; workers serve several.
        key = hash((__version__, id(self), time.time_ns(), next(_keys)))
        self._initializer = None if initializer is None else Initializer(key, initializer, tuple(initargs))
        self._options = options
        self._call = self._made_remote(_call)
        self._functions: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._limit = max_workers
        self._room = max_workers
        """How many more calls may be submitted; None for no limit."""
        self._queue: deque[tuple[TaskFuture[Any], _Call]] = deque()
        self._open: dict[TaskFuture[Any], None] = {}
        """Calls without an outcome, in submission order."""
        self._idle = threading.Condition(self._lock)
        self._closed = False
        self._broken: str | bool = False
        _open.add(self)

    @property
    def _max_workers(self) -> int:
        """Concurrent calls, which other libraries read: the limit, or the cluster's CPUs."""
        return self._limit or max(1, int(zf.cluster_resources().get("CPU", 1)))

    def _made_remote(self, function: Callable[..., Any]) -> Any:
        if self._initializer is not None:
            function = _after(self._initializer, function)
        return zf.remote(**self._options)(function) if self._options else zf.remote(function)

    def submit(self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Future[Result]:
        """Run ``fn(*args, **kwargs)`` as a task.

        Raises RuntimeError after ``shutdown``, and TypeError for a function that yields or is remote. The future has the error if the call
        cannot be pickled or its arguments do not fit.
        """
        _check(fn)
        future: TaskFuture[Result] = TaskFuture()
        with self._lock:
            if self._broken:
                raise BrokenExecutor(self._broken)
            if _exiting:
                raise RuntimeError("cannot schedule new futures after interpreter shutdown")
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown: this executor was shut down; make another")
            self._open[future] = None
            future.begun = self._room is None or self._room > 0
            if not future.begun:
                self._queue.append((future, (fn, args, kwargs)))
            elif self._room is not None:
                self._room -= 1
        if future.begun:
            try:
                self._begin(future, (fn, args, kwargs))
            except TypeError as error:  # As in the standard library, the future raises it.
                if future.set_running():
                    future.set_exception(error)
                self._ended(future)
            except BaseException:  # Ctrl-C too: a call that was not submitted takes no room.
                self._ended(future)
                raise
        return future

    def _begin(self, future: TaskFuture[Any], call: _Call) -> None:
        from zfabric.api.futures import when_done  # This import loads asyncio.

        future.ref = ref = self._remote(*call)
        if future.cancelled():
            zf.cancel(ref)  # It was cancelled before it had a ref.
        when_done(owner_of(ref), ref.binary(), functools.partial(self._done, future, ref))

    def _remote(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A plain function is exported once; any other callable travels with its call."""
        if type(fn) is not types.FunctionType:
            return self._call.remote(fn, args, kwargs)
        remote = self._functions.get(fn)
        if remote is None:
            if len(self._functions) >= FUNCTIONS_MAX:
                self._functions.clear()
            remote = self._functions[fn] = self._made_remote(fn)
        return remote.remote(*args, **kwargs)

    def _done(self, future: TaskFuture[Any], ref: zf.ObjectRef) -> None:
        future.ref = None
        if future.set_running():
            try:
                future.set_result(zf.get(ref))
            except BaseException as error:  # The future raises whatever it is.
                if isinstance(error, InitializerError):
                    self._break(error)
                future.set_exception(error)
        self._ended(future)

    def _break(self, error: InitializerError) -> None:
        """Fail all calls that have not begun, and later ones."""
        with self._lock:
            if self._broken:
                return
            self._broken = f"an initializer of this executor failed, and it is not usable any more: {error}"
            waiting, self._queue = self._queue, deque()
            for future, _ in waiting:
                self._open.pop(future, None)
            self._idle.notify_all()
        logging.getLogger("concurrent.futures").critical("Exception in initializer:", exc_info=error)
        for future, _ in waiting:
            if future.set_running():
                future.set_exception(BrokenExecutor(self._broken))

    def _ended(self, future: TaskFuture[Any]) -> None:
        """Record an outcome, and submit the next call."""
        while True:
            with self._lock:
                self._open.pop(future, None)
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
                    if not zf.is_initialized():  # A shutdown must not be followed by a new cluster for this call.
                        raise NotInitializedError("the cluster was shut down before this call could begin")
                    self._begin(future, call)
                    return
                except Exception as error:  # The submitter has only the future.
                    if future.set_running():
                        future.set_exception(error)

    def map(
        self, fn: Callable[..., Result], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Result]:
        """Yield ``fn(*items)`` for the items of ``iterables``, in order, as the built-in ``map`` does.

        Submits all items at once, ``chunksize`` per task. Raises TimeoutError if the next result does not exist ``timeout`` seconds after
        the call.
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
        """Accept no more calls; with ``wait``, return when all have ended. Idempotent.

        ``cancel_futures`` cancels calls beyond the first ``max_workers`` that the cluster does not list as running.
        """
        with self._lock:
            self._closed = True
            pending = list(self._open) if cancel_futures else []
            begun = [future for future in pending if future.begun]
        if begun and zf.is_initialized():
            for future in begun[: min(self._max_workers, int(zf.cluster_resources().get("CPU", 1)) or 1)]:
                pending.remove(future)  # Even if the workers have not begun it yet.
        _cancel(pending)
        if wait:
            with self._lock:
                while self._open:
                    self._idle.wait()


def _cancel(futures: list[Any]) -> None:
    """Cancel the calls that do not run, by one query of the cluster."""
    running = _running_tasks() if any(future.ref is not None for future in futures) else set()
    for future in futures:
        future.cancel_unless(running)


def _check(fn: Any) -> None:
    if isinstance(fn, zf.RemoteFunction):
        raise TypeError(f"{fn!r} is remote already: call its .remote(...), whose ref has a .future(), or submit its ._function")
    if type(fn) is types.FunctionType and fn.__code__.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        raise TypeError(f"{fn.__qualname__} yields, and a future has one value: submit a function that returns a list of them")


def _after(initialize: Initializer, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def initialized(*args: Any, **kwargs: Any) -> Any:
        with initialize().given_to(function, *filter(callable, args)):
            return function(*args, **kwargs)

    return initialized


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


def _call_each(fn: Callable[..., Any], items: list[tuple[Any, ...]]) -> list[Any]:
    return [fn(*item) for item in items]


def _results(futures: list[Future[Any]], deadline: float | None, single: bool) -> Iterator[Any]:
    """Yield results, retaining none; at the end or on a timeout, cancel calls that do not run."""
    futures.reverse()
    try:
        while futures:
            if single:
                yield _next(futures, deadline)
            else:
                values = _next(futures, deadline)
                values.reverse()
                while values:
                    yield values.pop()
    finally:
        _cancel(futures)


def _next(futures: list[Future[Any]], deadline: float | None) -> Any:
    value = futures[-1].result(None if deadline is None else max(0.0, deadline - time.monotonic()))
    futures.pop()
    return value


atexit.register(_at_exit)  # After the module that ends clusters, so run before it.
