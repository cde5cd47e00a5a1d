"""A ``multiprocessing.Pool`` whose processes are actors: Ray's names, the standard library's rules."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import chain, islice
from multiprocessing import JoinableQueue, TimeoutError
from operator import index
from queue import SimpleQueue
from types import FunctionType
from typing import Any

from zfabric import api as zf
from zfabric.adapters.pickler import CachedFunction
from zfabric.adapters.serialization import deserialize, serialize
from zfabric.adapters.task_errors import HeldRefs, load_error, pack_error
from zfabric.exceptions import ActorDiedError, NotInitializedError, TaskCancelledError
from zfabric.protocol.inside import refs_in
from zfabric.runtime import interface
from zfabric.util import initializers

__all__ = ["AsyncResult", "IMapIterator", "JoinableQueue", "Pool", "TimeoutError"]

CHUNKS_EACH = 4
"""Chunks of a map per process by default: some may take longer than others."""
AHEAD_EACH = 2
"""Chunks of an ``imap`` in progress per process."""

FUNCTIONS_MAX = 16

TERMINATED = "the pool was terminated"

Calls = list[tuple[tuple[Any, ...], Mapping[str, Any]]]


def __getattr__(name: str) -> Any:
    import multiprocessing  # Only names that a pool does not have need it.

    known = hasattr(multiprocessing, name) and not name.startswith("_")
    advice = (
        f"; it has Pool and what goes with that: take {name} from multiprocessing, whose processes are not the cluster's" if known else ""
    )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")


class AsyncResult:
    """The pending result of one or many calls of a pool. Made by ``Pool.apply_async`` and others."""

    def __init__(
        self, pieces: list[Future[list[Any]]], single: bool, callback: Any, error_callback: Any, teller: Callable[..., None]
    ) -> None:
        self._pieces = pieces
        self._single = single
        self._callbacks = callback, error_callback
        self._teller = teller
        self._lock = threading.Lock()
        self._left = len(pieces)
        self._ended = False
        self._whole: Future[Any] = Future()
        for piece in pieces:
            piece.add_done_callback(self._take)
        if not pieces:
            self._end([], None)

    def _take(self, piece: Future[list[Any]]) -> None:
        error = piece.exception() if not piece.cancelled() else TaskCancelledError(TERMINATED)
        with self._lock:
            self._left -= 1
            if self._ended or (error is None and self._left):
                return
            self._ended = True
        results = [] if error is not None else [value for each in self._pieces for value in each.result()]
        self._end(results[0] if results and self._single else results, error)

    def _end(self, value: Any, error: BaseException | None) -> None:
        callback, error_callback = self._callbacks
        if error is None and callback is not None:
            self._teller(partial(self._tell, callback, value, value, None))
        elif error is not None and error_callback is not None:
            self._teller(partial(self._tell, error_callback, error, value, error))
        else:
            self._settle(value, error)

    def _tell(self, callback: Callable[[Any], Any], told: Any, value: Any, error: BaseException | None) -> None:
        try:
            callback(told)
        finally:
            self._settle(value, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if error is None:
            self._whole.set_result(value)
        else:
            self._whole.set_exception(error)

    def get(self, timeout: float | None = None) -> Any:
        """Return the result, or raise the function's error; raises TimeoutError (of ``multiprocessing``) after ``timeout`` seconds."""
        self.wait(timeout)
        if not self.ready():
            raise TimeoutError(f"there was no result within {timeout} s")
        return self._whole.result()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the result, at most ``timeout`` seconds."""
        wait([self._whole], timeout)

    def ready(self) -> bool:
        """Whether the result exists."""
        return self._whole.done()

    def successful(self) -> bool:
        """Whether no call raised an error. Raises ValueError if the result does not exist yet."""
        if not self.ready():
            raise ValueError("the result is not here yet")
        return self._whole.exception() is None


class IMapIterator:
    """Results of ``imap``, one by one. Made by ``Pool.imap`` and ``Pool.imap_unordered``."""

    def __init__(self, pieces: Iterator[Future[list[Any]]], ahead: int, ordered: bool) -> None:
        self._pieces = pieces
        self._ahead = ahead
        self._ordered = ordered
        self._running: list[Future[list[Any]]] = []
        self._here: deque[Any] = deque()
        self._broken: Exception | None = None
        """The iterable's error."""
        self._start()

    def _start(self) -> None:
        try:
            self._running += islice(self._pieces, max(0, self._ahead - len(self._running)))
        except Exception as error:  # The iterable's error; earlier items have results.
            self._broken = error

    def __iter__(self) -> IMapIterator:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result, or raise that call's error; later results still follow.

        Raises TimeoutError (of ``multiprocessing``) after ``timeout`` seconds, and StopIteration at the end.
        """
        while not self._here:
            self._start()
            if not self._running:
                broken, self._broken = self._broken, None
                raise StopIteration if broken is None else broken
            done = wait(self._running[:1] if self._ordered else self._running, timeout, FIRST_COMPLETED).done
            if not done:
                raise TimeoutError(f"there was no result within {timeout} s")
            piece = next(each for each in self._running if each in done)
            self._running.remove(piece)
            if piece.cancelled():
                raise TaskCancelledError(TERMINATED)
            self._here.extend(piece.result())
        found = self._here.popleft()
        if type(found) is _Raised:
            raise load_error(found.payload)
        return found

    def start_all(self) -> None:
        """Start all remaining chunks, even if nothing requests their results."""
        self._ahead = sys.maxsize
        self._start()


class Pool:
    """Runs calls in ``processes`` actors (by default as many as the cluster has CPUs).

    Each actor runs ``initializer(*initargs)`` before the constructor returns; if it fails, the constructor raises ActorDiedError from its
    error. Functions that run there see the script's globals that it sets. An actor is replaced after ``maxtasksperchild`` calls (None:
    never).

    A cluster is started if there is none. ``ray_address`` is one to join, ``ray_remote_args`` are options of the actors; ``context`` has no
    effect. Functions and arguments need not be importable. Raises ValueError for numbers below 1. Leaving the ``with`` block terminates the
    pool, as in the standard library.

    >>> from zfabric.util.multiprocessing import Pool
    >>> with Pool(2) as pool:
    ...     pool.map(abs, [-1, 2, -3]), pool.apply(pow, (2, 10)), pool.starmap(max, [(1, 2), (4, 3)])
    ([1, 2, 3], 1024, [2, 4])
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        ray_address: str | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
    ) -> None:
        if processes is not None:
            processes = _at_least_one("processes", processes, "None for one per CPU of the cluster")
        if maxtasksperchild is not None:
            maxtasksperchild = _at_least_one("maxtasksperchild", maxtasksperchild, "None for no limit")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if not zf.is_initialized():
            zf.init(ray_address, num_cpus=None if ray_address else processes)
        self._size = processes or max(1, int(zf.cluster_resources().get("CPU", 1)))
        self._most = maxtasksperchild
        self._make = partial(
            zf.remote(_Process).options(**{"num_cpus": 0, **(ray_remote_args or {})}).remote, initializer, tuple(initargs or ())
        )
        self._idle: list[tuple[Any, int]] = [(self._make(), 0) for _ in range(self._size)]
        """Idle actors, each with its number of calls."""
        self._busy: dict[Future[list[Any]], Any] = {}
        self._waiting: deque[tuple[Future[list[Any]], Callable[..., Any], Calls, bool]] = deque()
        """Chunks of work, and whether each call has its own outcome."""
        self._results: weakref.WeakSet[IMapIterator] = weakref.WeakSet()
        """Iterators of ``imap`` that the program still holds."""
        self._unread: list[tuple[Callable[..., Any], Generator[Calls, None, None]]] = []
        """Unread parts of ``imap``'s iterables, which run before ``join`` returns."""
        self._lock = threading.Condition()
        self._closed = self._terminated = False
        self._told: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._untold = 0
        """Callbacks that have not returned."""
        self._teller: threading.Thread | None = None
        if initializer is not None:
            zf.get([actor.__ray_ready__.remote() for actor, _ in self._idle])

    # -- one call --

    def apply(self, func: Callable[..., Any], args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run ``func(*args, **kwargs)`` in a process of the pool and return its result, or raise its error.

        Raises ValueError if the pool was closed, and ActorDiedError if the process died.
        """
        return self.apply_async(func, args, kwargs).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> AsyncResult:
        """Start ``func(*args, **kwargs)`` without waiting.

        A thread of the pool calls ``callback`` with the result, or ``error_callback`` with the error; they may block. Raises ValueError if
        the pool was closed.
        """
        self._check()
        return AsyncResult([self._start(func, [(tuple(args or ()), kwargs or {})])], True, callback, error_callback, self._tell)

    # -- many --

    def map(self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = None) -> list[Any]:
        """Return ``func(item)`` for every item of ``iterable``, in order, or raise the first error.

        ``chunksize`` items at a time go to a process; by default each gets about four chunks. Raises ValueError if the pool was closed.
        """
        return list(self.map_async(func, iterable, chunksize).get())

    def map_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> AsyncResult:
        """Start ``map`` without waiting. ``callback`` and ``error_callback`` are as in ``apply_async``."""
        return self._start_all(func, [(item,) for item in iterable], chunksize, callback, error_callback)

    def starmap(self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]], chunksize: int | None = None) -> list[Any]:
        """Return ``func(*item)`` for every item of ``iterable``, in order; otherwise as ``map``."""
        return list(self.starmap_async(func, iterable, chunksize).get())

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> AsyncResult:
        """Start ``starmap`` without waiting. ``chunksize`` is as in ``map``, ``callback`` and ``error_callback`` as in ``apply_async``."""
        return self._start_all(func, [tuple(item) for item in iterable], chunksize, callback, error_callback)

    def imap(self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1) -> IMapIterator:
        """Iterate over ``func(item)`` in order, each as soon as it exists; ``iterable`` is read a few chunks of ``chunksize`` items ahead.

        Raises ValueError if the pool was closed; ``next`` raises the error of a call.
        """
        return self._lazily(func, iterable, chunksize, ordered=True)

    def imap_unordered(self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1) -> IMapIterator:
        """Iterate over ``func(item)``, each as soon as it exists, in any order; otherwise as ``imap``."""
        return self._lazily(func, iterable, chunksize, ordered=False)

    def _start_all(
        self, func: Callable[..., Any], items: list[tuple[Any, ...]], chunksize: int | None, callback: Any, error_callback: Any
    ) -> AsyncResult:
        self._check()
        size = max(1, -(-len(items) // (CHUNKS_EACH * self._size))) if chunksize is None else _at_least_one("chunksize", chunksize)
        calls: Calls = [(item, {}) for item in items]
        pieces = [self._start(func, calls[start : start + size]) for start in range(0, len(calls), size)]
        return AsyncResult(pieces, False, callback, error_callback, self._tell)

    def _lazily(self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int, ordered: bool) -> IMapIterator:
        self._check()
        chunks = _chunks(iter(iterable), _at_least_one("chunksize", chunksize))
        results = IMapIterator((self._start(func, chunk, True) for chunk in chunks), AHEAD_EACH * self._size, ordered)
        self._results.add(results)
        self._unread = [each for each in (*self._unread, (func, chunks)) if getgeneratorstate(each[1]) != GEN_CLOSED]
        return results

    # -- who does what --

    def _check(self) -> None:
        if self._closed:
            raise ValueError("this pool was closed; make another")

    def _start(self, func: Callable[..., Any], calls: Calls, each: bool = False) -> Future[list[Any]]:
        piece: Future[list[Any]] = Future()
        with self._lock:
            if self._terminated:
                raise ValueError("this pool was terminated; make another")
            self._waiting.append((piece, func, calls, each))
        self._feed()
        return piece

    def _feed(self) -> None:
        while True:
            with self._lock:
                if not self._idle or not self._waiting:
                    self._lock.notify_all()
                    return
                actor, count = self._idle.pop()
                piece, func, calls, each = self._waiting.popleft()
                self._busy[piece] = actor
            try:
                if actor is None:
                    actor = self._renewed(piece)
                ref = actor.run.remote(_packed(func), calls, each)
            except Exception as error:  # It cannot be pickled; the actor is free.
                self._end(piece, (actor, count))
                piece.set_exception(error)
                continue
            ref.future().add_done_callback(partial(self._ended, piece, actor, count + len(calls)))

    def _renewed(self, piece: Future[list[Any]]) -> Any:
        if not zf.is_initialized():  # A shutdown must not be followed by a new cluster for this pool.
            raise NotInitializedError("the cluster was shut down, and the processes of this pool with it")
        actor = self._make()
        with self._lock:
            if self._terminated:
                raise TaskCancelledError(TERMINATED)
            self._busy[piece] = actor
        return actor

    def _ended(self, piece: Future[list[Any]], actor: Any, count: int, done: Future[list[Any]]) -> None:
        error = done.exception()
        if isinstance(error, ActorDiedError) or (self._most is not None and count >= self._most):
            actor, count = None, 0
        if piece.set_running_or_notify_cancel():
            if error is not None:
                piece.set_exception(error)
            else:
                piece.set_result(done.result())
        self._end(piece, (actor, count))
        self._feed()

    def _end(self, piece: Future[list[Any]], free: tuple[Any, int]) -> None:
        with self._lock:
            self._busy.pop(piece, None)
            self._idle.append(free)

    def _tell(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._untold += 1
            if self._teller is None:
                self._teller = threading.Thread(target=_call_back, args=(self._told,), name="zfabric-pool", daemon=True)
                self._teller.start()
                weakref.finalize(self, self._told.put, None).atexit = False
        self._told.put(call)
        self._told.put(self._have_told)

    def _have_told(self) -> None:
        with self._lock:
            self._untold -= 1
            self._lock.notify_all()

    # -- the end --

    def close(self) -> None:
        """Accept no more calls; run those submitted."""
        self._closed = True

    def terminate(self) -> None:
        """End the pool and all running calls; calls without a result get none."""
        with self._lock:
            self._closed = self._terminated = True
            waiting, self._waiting = list(self._waiting), deque()
            actors = [actor for actor in (*(free for free, _ in self._idle), *self._busy.values()) if actor is not None]
        for piece, *_ in waiting:
            piece.cancel()
            piece.set_running_or_notify_cancel()  # Only this wakes those that wait for it.
        for actor in actors:
            zf.kill(actor)

    def join(self) -> None:
        """Wait until all calls and their callbacks have run, unread parts of ``imap``'s iterables included.

        Raises ValueError unless the pool was closed or terminated.
        """
        if not self._closed:
            raise ValueError("close() or terminate() comes before join()")
        if threading.current_thread() is self._teller:
            raise RuntimeError("join() waits for callbacks, and this is one")
        for results in list(self._results) if not self._terminated else ():
            results.start_all()
        for func, chunks in self._unread if not self._terminated else ():  # Nobody receives their results.
            with suppress(Exception):
                for chunk in chunks:
                    self._start(func, chunk, True)
        with self._lock:
            self._lock.wait_for(lambda: not self._waiting and not self._busy and not self._untold)

    def __enter__(self) -> Pool:
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        raise NotImplementedError("a pool cannot be passed to another process, or pickled")


def _chunks(items: Iterator[Any], size: int) -> Generator[Calls, None, None]:
    while True:
        chunk: Calls = [((item,), {}) for item in islice(items, size)]
        if not chunk:
            return
        yield chunk


def _at_least_one(name: str, value: Any, other: str = "") -> int:
    try:
        found = index(value)
    except TypeError:
        found = 0
    if found < 1:
        raise ValueError(f"{name} is an int, at least 1{other and ', or '}{other}, not {value!r}")
    return found


def _call_back(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    """Run a pool's callbacks one by one, in a thread without a reference to the pool, which can then be collected."""
    while (call := calls.get()) is not None:
        try:
            call()
        except BaseException:  # The callback's error; later callbacks still run.
            sys.excepthook(*sys.exc_info())
        del call


class _Process:
    def __init__(self, initializer: Callable[..., Any] | None, initargs: tuple[Any, ...]) -> None:
        self._functions: dict[bytes, Callable[..., Any]] = {}
        self._shared = initializers.SharedNames() if initializer is None else initializers.run(initializer, initargs)

    def run(self, func: Callable[..., Any] | _Packed, calls: Calls, each: bool) -> list[Any]:
        """Run a chunk of work and return its results. With ``each``, a call's error stands in place of its value."""
        if isinstance(func, _Packed):
            function = self._loaded(func.payload)
            func = partial(function, *func.args, **func.keywords) if func.args or func.keywords else function
        arguments = chain.from_iterable(call[0] for call in calls) if self._shared.names else ()
        with self._shared.given_to(func, *filter(callable, arguments)):
            run = _outcome if each else _value
            return [run(func, *call) for call in calls]

    def _loaded(self, payload: bytes) -> Callable[..., Any]:
        function = self._functions.pop(payload, None)
        self._functions[payload] = function = function or deserialize(payload)
        if len(self._functions) > FUNCTIONS_MAX:
            del self._functions[next(iter(self._functions))]
        return function


class _Packed:
    """A function as bytes, and the arguments that ``functools.partial`` adds.

    A process loads it once, so that calls share the script's globals and caches.
    """

    def __init__(self, payload: bytes, args: tuple[Any, ...] = (), keywords: Mapping[str, Any] | None = None) -> None:
        self.payload = payload
        self.args = args
        self.keywords = keywords or {}


def _packed(func: Callable[..., Any]) -> Callable[..., Any] | _Packed:
    """Pack a plain function without refs. A callable with state is new in each chunk."""
    if type(func) is partial:
        inside = _packed(func.func)
        return _Packed(inside.payload, func.args, func.keywords) if isinstance(inside, _Packed) else func
    if not isinstance(func, FunctionType | CachedFunction):
        return func
    packed = serialize(func, "func")
    return func if packed.contained else _Packed(packed.to_bytes())


class _Raised:
    """A call's error, as it travels."""

    def __init__(self, payload: bytes, held: HeldRefs | None = None) -> None:
        self.payload = payload
        self.held = held or HeldRefs(refs_in(payload))

    def __reduce__(self) -> tuple[Any, ...]:
        self.held.note()
        return _Raised, (self.payload,)


def _value(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    value = func(*args, **kwargs)
    interface.check_process()
    return value


def _outcome(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        return _value(func, args, kwargs)
    except Exception as error:  # Whatever the work raises is its result.
        interface.check_process(error)
        return _Raised(*pack_error(error, {"function": getattr(func, "__qualname__", type(func).__qualname__), "pid": os.getpid()}))
