"""Ray's iterators over results, which yield values where ``zf.as_completed`` yields refs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from zfabric import api as zf
from zfabric.exceptions import GetTimeoutError

_logged: set[str] = set()


def as_completed(
    refs: Iterable[zf.ObjectRef],
    *,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> Iterator[Any]:
    """Yield the values of ``refs`` (or the refs, with ``yield_obj_refs``) as they complete; raise a task's error.

    Raises GetTimeoutError after ``timeout`` seconds. ``chunk_size`` and ``fetch_local`` are Ray's and have no effect.

    >>> import zfabric as zf
    >>> from zfabric.util import as_completed
    >>> sorted(as_completed([zf.put(1), zf.put(2)]))
    [1, 2]
    """
    _check(chunk_size, "chunk_size")
    if yield_obj_refs:
        yield from zf.as_completed(refs, timeout=timeout)
    else:
        for _, value in zf.as_completed(refs, timeout=timeout, with_values=True):
            yield value


def map_unordered(
    fn: zf.RemoteFunction,
    items: Iterable[Any],
    *,
    backpressure_size: int | None = 100,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> Iterator[Any]:
    """Yield values of ``fn.remote(item)`` for each item as they complete, with at most ``backpressure_size`` tasks in progress.

    ``items`` are read as tasks are submitted. Raises GetTimeoutError if no value exists within ``timeout`` seconds; ``yield_obj_refs``,
    ``chunk_size`` and ``fetch_local`` are as in ``as_completed``.

    >>> import zfabric as zf
    >>> from zfabric.util import map_unordered
    >>> sorted(map_unordered(zf.remote(abs), range(-3, 0), backpressure_size=2))
    [1, 2, 3]
    """
    _check(chunk_size, "chunk_size")
    if backpressure_size is not None:
        _check(backpressure_size, "backpressure_size")
    running: list[zf.ObjectRef] = []
    rest = iter(items)
    while True:
        for item in rest:
            running.append(fn.remote(item))
            if len(running) == backpressure_size:
                break
        if not running:
            return
        ready, running = zf.wait(running, timeout=timeout)
        if not ready:
            raise GetTimeoutError(f"none of {len(running)} tasks had a value within {timeout} s; they go on")
        yield ready[0] if yield_obj_refs else zf.get(ready[0])


def _check(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is an int, at least 1, not {value!r}")


def log_once(key: str) -> bool:
    """Return True on the first call with this ``key`` (any text) in this process.

    >>> from zfabric.util import log_once
    >>> log_once("an example"), log_once("an example")
    (True, False)
    """
    first = key not in _logged
    _logged.add(key)
    return first
