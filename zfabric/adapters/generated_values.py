"""Collects the values of generator functions that are not streams, and resumes generators of both kinds.

With ``num_returns=3``, a generator's items are its values. If it raises after the first, its caller gets the items that exist, and the
error in place of the others.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Callable, Generator, Iterator, Sequence
from types import GeneratorType
from typing import Any, NamedTuple

from zfabric.adapters.serialization import register_plain
from zfabric.adapters.task_errors import HeldRefs, load_error
from zfabric.protocol.inside import refs_in

YIELDS = 0x20 | 0x200
"""``inspect.CO_GENERATOR`` and ``CO_ASYNC_GENERATOR``, without importing inspect in every worker."""


END = object()
"""The end of a stream's values."""


def advanced(source: Any, statistics: Any) -> Any:
    """Return the next value of an iterator. A ``yield`` that waits returns ``statistics``."""
    inner = source
    while type(inner) is GeneratorType and inner.gi_yieldfrom is not None:
        inner = inner.gi_yieldfrom  # ``yield from`` may iterate over what is no generator.
    return source.send(statistics) if isinstance(inner, Generator) else next(source)


def resumed(source: Iterator[Any], statistics: Any) -> Any:
    """Return what ``advanced`` does, or ``END``."""
    try:
        return advanced(source, statistics)
    except StopIteration:
        return END


class Raises:
    """Raises an error when read, in place of a value that a generator did not yield. ``pack_error`` made the payload."""

    def __init__(self, payload: bytes, held: HeldRefs | None = None) -> None:
        self.payload = payload
        self.held = held or HeldRefs(refs_in(payload))

    def __reduce__(self) -> tuple[Any, ...]:
        self.held.note()
        return _raise, (self.payload,)


def _raise(payload: bytes) -> None:
    raise load_error(payload)


register_plain(Raises)


class YieldStatistics(NamedTuple):
    """What ``yield`` returns in a task or method that makes a stream: how the value became an object.

    ``object_creation_dur_s`` are the seconds that it took to pickle the value and to store it, ``size_bytes`` its bytes when pickled.

    >>> import zfabric as zf
    >>> @zf.remote
    ... def blocks():
    ...     statistics = yield [1, 2, 3]
    ...     yield statistics.size_bytes > 0
    >>> [zf.get(ref) for ref in blocks.remote()]
    [[1, 2, 3], True]
    """

    object_creation_dur_s: float
    size_bytes: int


class Unfinished(Exception):
    """A generator raised ``error`` after yielding values that its caller receives.

    ``finish(failure, count)`` returns ``count`` values, with ``failure`` for each missing one.
    """

    def __init__(self, error: Exception, finish: Callable[[Raises, int], Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.finish = finish


class YieldedItems(tuple[Any, ...]):
    """All values that a generator yielded."""


def and_failures(found: Sequence[Any], failure: Raises, count: int) -> Sequence[Any]:
    """Return ``count`` values: those found, then ``failure`` for each missing one."""
    return [*found, *[failure] * (count - len(found))] if len(found) < count else found


def run_to_its_end(generator: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that collects all values of a (plain or async) generator function.

    The returned function raises ``Unfinished`` if the generator raises after its first value.
    """

    def items(*args: Any, **kwargs: Any) -> Any:
        values = generator(*args, **kwargs)
        if hasattr(values, "__aiter__"):
            return items_in_loop(values)
        found: list[Any] = []
        try:
            found.extend(values)
        except Exception as error:  # User code: the values before its error are returned.
            if found:
                raise Unfinished(error, functools.partial(and_failures, found)) from error
            raise
        return YieldedItems(found)

    async def items_in_loop(values: AsyncIterable[Any]) -> YieldedItems:
        found: list[Any] = []
        try:
            async for value in values:
                found.append(value)
        except Exception as error:  # As above.
            if found:
                raise Unfinished(error, functools.partial(and_failures, found)) from error
            raise
        return YieldedItems(found)

    items.__name__, items.__qualname__ = generator.__name__, generator.__qualname__
    return items


def returning_all(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, or for a generator function, one that returns all its values."""
    yields = getattr(getattr(function, "__code__", None), "co_flags", 0) & YIELDS
    return run_to_its_end(function) if yields else function
