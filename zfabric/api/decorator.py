"""The ``zf.remote`` decorator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Protocol, overload

from zfabric.api.actor import ActorClass
from zfabric.api.errors import a
from zfabric.api.generators import ObjectRefGenerator
from zfabric.api.options import ACTOR_OPTIONS, checked, checked_actor
from zfabric.api.refs import ObjectRef
from zfabric.api.remote_function import RemoteFunction, made
from zfabric.api.types import C_co, ClassOf, P, R
from zfabric.exceptions import OptionError


class RemoteDecorator(Protocol):
    """The result of ``@zf.remote(num_cpus=2)``."""

    @overload
    def __call__(self, function: ClassOf[P, C_co], /) -> ActorClass[P, C_co]: ...  # type: ignore[overload-overlap] # called, too
    @overload
    def __call__(self, function: type[R], /) -> ActorClass[..., R]: ...  # type: ignore[overload-overlap] # called, too
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> RemoteFunction[P, ObjectRef[R]]: ...
    @overload
    def __call__(self, function: Callable[P, Iterator[R]], /) -> RemoteFunction[P, ObjectRefGenerator[R]]: ...  # type: ignore[overload-overlap] # it yields
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[R]], /) -> RemoteFunction[P, ObjectRefGenerator[R]]: ...  # type: ignore[overload-overlap] # it yields
    @overload
    def __call__(self, function: Callable[P, R], /) -> RemoteFunction[P, ObjectRef[R]]: ...


@overload
def remote(function: ClassOf[P, C_co], /) -> ActorClass[P, C_co]: ...  # type: ignore[overload-overlap] # called, too
@overload
def remote(function: type[R], /) -> ActorClass[..., R]: ...  # type: ignore[overload-overlap] # called, too
@overload
def remote(function: Callable[P, Coroutine[Any, Any, R]], /) -> RemoteFunction[P, ObjectRef[R]]: ...
@overload
def remote(function: Callable[P, Iterator[R]], /) -> RemoteFunction[P, ObjectRefGenerator[R]]: ...  # type: ignore[overload-overlap] # it yields
@overload
def remote(function: Callable[P, AsyncIterator[R]], /) -> RemoteFunction[P, ObjectRefGenerator[R]]: ...  # type: ignore[overload-overlap] # it yields
@overload
def remote(function: Callable[P, R], /) -> RemoteFunction[P, ObjectRef[R]]: ...
@overload
def remote(*, num_returns: Any, **options: Any) -> Callable[[Callable[P, Any]], RemoteFunction[P, Any]]: ...
@overload
def remote(**options: Any) -> RemoteDecorator: ...
def remote(*args: Any, **options: Any) -> Any:
    """Make a function or a class remote: ``@zf.remote``, ``@zf.remote(num_cpus=2, …)`` or ``zf.remote(f)``. Raises OptionError.

    ``options`` of functions:

    - ``num_cpus`` (1), ``num_gpus``, ``resources`` (a dict): the demand of a call while it runs, in multiples of 0.0001, rounded down:
      three tasks with ``num_gpus=1 / 3`` share a GPU. ``memory``: bytes that it reserves on its node. It may take more; if memory runs
      short, the worker with the most beyond its reservation is ended first.
    - ``num_returns`` (1): the number of values. "streaming", the default of generator functions, returns an ObjectRefGenerator that is
      consumed while the function runs, at most ``max_buffered`` values behind it. "dynamic" returns a ref to a generator of all values.
    - ``max_retries`` (3; -1 for no limit; 0 to run at most once, also if the value is lost later): attempts after the loss of a worker.
      ``retry_exceptions`` (False): True, or a list of exception classes that cause another attempt, too. ``timeout``: seconds from
      submission. ``run_timeout``: seconds of one attempt; a task that takes longer fails, and is not run again.
    - ``name``: a label in listings. ``runtime_env``: "env_vars"; "working_dir" (also a path for imports) and "py_modules", which are
      sent to nodes without what "excludes" and ``.zfabricignore`` name; "pip", which is installed on nodes.
    - ``copy=True``: arguments, of a class those of all methods, arrive as writable copies. By default, arrays and data frames are read-only
      views of shared memory.
    - ``inline=False``: never run on top of a blocked task. ``deterministic=True``: values may be dropped and rebuilt.
    - ``max_concurrency`` (1000): tasks of an ``async def`` function that run in one worker at a time. These hold no CPU by default.

    >>> import zfabric as zf
    >>> @zf.remote
    ... def hello(name):
    ...     return f"hello {name}"
    >>> zf.get(hello.remote("world"))
    'hello world'
    >>> zf.get(zf.remote(max).remote(1, 2))
    2
    """
    if len(args) == 1 and not options and callable(args[0]):
        return _make(args[0], options)
    if args:
        raise TypeError(
            f"remote() takes one function, or options by name: @zf.remote, @zf.remote(num_cpus=2) or zf.remote(f), not {a(args[0])}"
        )
    try:
        checked(options)
    except OptionError:
        # The target may be a function or a class: reject only options that neither accepts.
        if not set(options) <= ACTOR_OPTIONS:
            raise
        checked_actor(options)
    return lambda function: _make(function, options)


def _make(function: Any, options: dict[str, Any]) -> Any:
    if isinstance(function, type):
        return ActorClass(function, checked_actor(options))
    options = checked(options)
    if isinstance(function, (RemoteFunction, ActorClass)):
        raise TypeError(f"{function!r} is remote already; use .options(...) to change its options")
    if not callable(function):
        raise TypeError(f"@zf.remote goes before a function, not {a(function)}")
    return made(function, options)
