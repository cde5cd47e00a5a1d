"""``zf.remote``."""

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
    """What ``@zf.remote(num_cpus=2)`` gives: it makes a function or a class remote."""

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
    """Make a function or a class remote: ``@zf.remote``, ``@zf.remote(num_cpus=2, …)`` or ``zf.remote(f)``.

    Options: ``num_cpus`` (1), ``num_gpus``, ``resources`` (a dict) say what a call holds while it runs; ``num_returns`` (1),
    or "streaming", as generator functions do by themselves, for an ObjectRefGenerator that is consumed while the function runs (at most
    ``max_buffered`` values ahead), or "dynamic" for a ref whose value is one over all that it has yielded (also of ``async def``);
    ``max_retries`` (3) after the loss of a worker, -1 without end; ``retry_exceptions`` (False) True or a list of exception
    classes after which it is run again too; ``timeout`` in seconds from submission; ``name`` for people; ``runtime_env`` with
    "env_vars", "working_dir" (where modules are found, too) and "py_modules"; ``inline=False`` never to run on top of a waiting
    task; ``deterministic=True`` if its values may be dropped and made again. Tasks of an ``async def`` function run many at a
    time in one worker (``max_concurrency``, 1000) and hold no CPU meanwhile (``num_cpus``, 0), unless they say otherwise.

    Raises OptionError for options that do not exist or cannot have that value.

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
        # Whether a function or a class follows is not known yet: what neither can have is said here and now.
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
