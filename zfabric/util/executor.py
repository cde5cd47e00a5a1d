"""A ``concurrent.futures.Executor`` whose workers are the cluster's: what takes executors, takes a fabric."""

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
from zfabric.api.refs import owner_of
from zfabric.exceptions import ArgumentTypeError, FabricError, NotInitializedError, OptionError
from zfabric.util import initializers

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

FUNCTIONS_MAX = 1000
"""Functions that an executor remembers to have made remote: a loop that submits lambdas makes a new one each time."""
_BEGUN = ("running", "blocked")
"""States of tasks that run, as the cluster's listings show them."""
TASKS_MAX = 10_000
"""Running tasks that one listing may name: more than any node runs at a time."""


class InitializerError(BrokenExecutor):
    """The initializer of an executor has raised in a worker: the executor is of no use any more."""


class TaskFuture(Future[Result]):
    """The future of one call, with the rules of the standard library; ``zf.cancel(future.ref)`` also stops a call that runs."""

    ref: zf.ObjectRef | None = None
    """The task's ref, once the cluster has the call and as long as it has no outcome."""
    begun = False
    """Whether the cluster has the call."""

    def running(self) -> bool:
        """Whether the call is being executed now. The cluster is asked, unless that is known."""
        ref = self.ref
        if ref is None or self.done() or super().running():
            return super().running()
        try:
            running = zf.explain(ref).state in _BEGUN
        except FabricError:  # the cluster is gone, and nothing runs there
            return False
        return running and self.set_running()

    def set_running(self) -> bool:
        """The call runs, or has ended: whether anybody is still to be told its outcome, which is so unless it was cancelled."""
        with self._condition:
            if super().running():
                return True
            return self._state in (PENDING, CANCELLED) and self.set_running_or_notify_cancel()

    def cancel(self) -> bool:
        """Cancel the call, unless it runs or has ended: whether it is cancelled now."""
        if self.running() or not super().cancel():
            return False
        self._withdraw()
        return True

    def cancel_unless(self, running: set[str]) -> None:
        """The same where the ids of all tasks that run are known."""
        if self.ref is not None and self.ref.task_id().hex() in running:
            self.set_running()
        elif super().cancel():
            self._withdraw()

    def _withdraw(self) -> None:
        ref = self.ref
        if ref is not None:
            try:
                zf.cancel(ref)
            except FabricError:  # the cluster is gone, and the task with it
                pass
        elif not self.begun:
            self.set_running_or_notify_cancel()  # Nobody else would tell those who wait for it.


def _running_tasks() -> set[str]:
    """The ids of all tasks that run."""
    from zfabric.api.lifecycle import connected

    try:
        rows = connected().query("tasks", TASKS_MAX, _BEGUN) if zf.is_initialized() else ()
    except FabricError:  # the cluster is gone
        rows = ()
    return {row["task_id"] for row in rows}


class _Initializer:
    """Runs an executor's initializer once in each worker process, ahead of the first call there."""

    done: dict[int, InitializerError | initializers.SharedNames] = {}
    """What came of each in this process, by executor."""

    def __init__(self, key: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.parts = key, function, arguments

    def __call__(self) -> initializers.SharedNames:
        """What the functions of this process are to see of it."""
        key, function, arguments = self.parts
        if key not in self.done:
            self.done[key] = initializers.SharedNames()  # It may itself wait for calls, which then run here.
            try:
                self.done[key] = initializers.run(function, arguments)
            except Exception as error:  # the user's own
                self.done[key] = failed = InitializerError(f"the initializer raised {type(error).__name__}: {error}")
                failed.__cause__ = error
        found = self.done[key]
        if isinstance(found, InitializerError):
            raise found
        return found


_keys = count()
_open: weakref.WeakSet[Executor] = weakref.WeakSet()
"""Executors that may have calls without an outcome when the interpreter ends."""
_exiting = False


def _at_exit() -> None:
    """As the standard library's executors: what was submitted is run before the program, and the cluster inside it, end."""
    global _exiting
    _exiting = True
    for executor in list(_open):
        executor.shutdown(wait=zf.is_initialized())


def _sets_lock_of_tqdm(initializer: Callable[..., Any]) -> bool:
    """Whether this is what ``tqdm.contrib.concurrent`` initializes workers with, so that they write to one terminal in turns.

    They share none here: what they print comes to the driver line by line. And no other process could be given that lock.
    """
    owner = getattr(initializer, "__self__", None)
    return getattr(initializer, "__name__", "") == "set_lock" and str(getattr(owner, "__module__", "")).partition(".")[0] == "tqdm"


class Executor(_Executor):
    """Runs calls as tasks, with the options of ``zf.remote`` for all of them (``num_cpus``, ``max_retries``, ``runtime_env``, …).

    What was submitted is done by the cluster's workers; ``max_workers`` limits how many of this executor's calls are with the
    cluster at a time (default: no limit). ``initializer(*initargs)`` is called once in each worker process before the first call
    there; if it raises, that call, all others and ``submit`` raise ``concurrent.futures.BrokenExecutor``. The globals of a script that
    it sets are those of the functions that run there. A cluster is started if there is none, and goes on after ``shutdown``.

    As in the standard library, a call that runs cannot be cancelled (``zf.cancel(future.ref)`` stops it nevertheless), and the
    interpreter does not end before all calls have.

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
        # A number and the address of this object would do in one process; workers serve those of several.
        key = hash((__version__, id(self), time.time_ns(), next(_keys)))
        self._initializer = None if initializer is None else _Initializer(key, initializer, tuple(initargs))
        self._options = options
        self._call = self._made_remote(_call)
        self._functions: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._limit = max_workers
        self._room = max_workers
        """How many more calls the cluster may be given; None for any number."""
        self._queue: deque[tuple[TaskFuture[Any], _Call]] = deque()
        """Those for which there was no room."""
        self._open: dict[TaskFuture[Any], None] = {}
        """Those without an outcome, in the order of submission."""
        self._idle = threading.Condition(self._lock)
        self._closed = False
        self._broken: str | bool = False
        _open.add(self)

    @property
    def _max_workers(self) -> int:
        """How many calls may run at a time, as other code looks it up: the limit, or the CPUs of the cluster."""
        return self._limit or max(1, int(zf.cluster_resources().get("CPU", 1)))

    def _made_remote(self, function: Callable[..., Any]) -> Any:
        if self._initializer is not None:
            function = _after(self._initializer, function)
        return zf.remote(**self._options)(function) if self._options else zf.remote(function)

    def submit(self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Future[Result]:
        """Run ``fn(*args, **kwargs)`` as a task. RuntimeError after ``shutdown``; SerializationError if it cannot be pickled.

        (That is the future's error if the call has to wait for room.)
        """
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
            except BaseException:  # Ctrl-C too: a call that was not made takes no room
                self._ended(future)
                raise
        return future

    def _begin(self, future: TaskFuture[Any], call: _Call) -> None:
        """Hand a call to the cluster."""
        from zfabric.api.futures import when_done  # It loads asyncio.

        future.ref = ref = self._remote(*call)
        if future.cancelled():
            zf.cancel(ref)  # Meanwhile, when there was no ref to stop it by.
        when_done(owner_of(ref), ref.binary(), functools.partial(self._done, future, ref))

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
            remote = self._functions[fn] = self._made_remote(fn)
        return remote.remote(*args, **kwargs)

    def _done(self, future: TaskFuture[Any], ref: zf.ObjectRef) -> None:
        future.ref = None
        if future.set_running():
            try:
                future.set_result(zf.get(ref))
            except BaseException as error:  # whatever it is, it is the future's to raise
                if isinstance(error, InitializerError):
                    self._break(error)
                future.set_exception(error)
        self._ended(future)

    def _break(self, error: InitializerError) -> None:
        """The initializer has raised: what has not begun fails, as all that is submitted from now on."""
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
        """A call has its outcome: there is room for the next."""
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
                    if not zf.is_initialized():  # Whoever shut it down did not want another one to be started for this.
                        raise NotInitializedError("the cluster was shut down before this call could begin")
                    self._begin(future, call)
                    return
                except Exception as error:  # it cannot be pickled, or the cluster is gone: whoever submitted it has only the future
                    if future.set_running():
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

        ``cancel_futures`` cancels the calls that do not run yet: all but the first ones, of which there are as many as workers, and
        others that the cluster says are running.
        """
        with self._lock:
            self._closed = True
            pending = list(self._open) if cancel_futures else []
            begun = [future for future in pending if future.begun]
        if begun and zf.is_initialized():
            for future in begun[: min(self._max_workers, int(zf.cluster_resources().get("CPU", 1)) or 1)]:
                pending.remove(future)  # Whether or not the workers have got to it yet.
        _cancel(pending)
        if wait:
            with self._lock:
                while self._open:
                    self._idle.wait()


def _cancel(futures: list[Any]) -> None:
    """Cancel those that do not run; the cluster is asked once which those are."""
    running = _running_tasks() if any(future.ref is not None for future in futures) else set()
    for future in futures:
        future.cancel_unless(running)


def _after(initialize: _Initializer, function: Callable[..., Any]) -> Callable[..., Any]:
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
    """Results as they are asked for, none kept; of the rest, and of what was not there in time, what does not run is cancelled."""
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


atexit.register(_at_exit)  # After the module that ends clusters, and so it runs before that.
