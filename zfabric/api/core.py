"""Functions on values and refs: ``get``, ``put``, ``wait``, ``as_completed`` and ``cancel``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

from zfabric.adapters.serialization import Outcome, deserialize_all, serialize
from zfabric.api.errors import a, check_flag, check_timeout
from zfabric.api.generators import DynamicObjectRefGenerator, ObjectRefGenerator
from zfabric.api.lifecycle import connected
from zfabric.api.refs import ObjectRef, owner_of, stale, value_of
from zfabric.api.types import R
from zfabric.exceptions import ArgumentTypeError, GetTimeoutError
from zfabric.protocol.ids import is_put
from zfabric.runtime import interface

READ_SECONDS = 5.0
"""Least seconds that ``as_completed`` allows an existing value to arrive."""
_ONLY_REFS, _ONLY_SMALL = {ObjectRef}, {bytes}
S = TypeVar("S")
Waitable = TypeVar("Waitable")
"""A ref, or a generator of refs."""
Generated = TypeVar("Generated", ObjectRefGenerator, DynamicObjectRefGenerator)


# --- values -----------------------------------------------------------------------------------------------------------------------


@overload
def get(refs: ObjectRef[R], *, timeout: float | None = None, copy: bool = False, return_exceptions: Literal[False] = False) -> R: ...
@overload
def get(
    refs: list[ObjectRef[R]], *, timeout: float | None = None, copy: bool = False, return_exceptions: Literal[False] = False
) -> list[R]: ...
@overload
def get(
    refs: tuple[ObjectRef[R], ObjectRef[S]], *, timeout: float | None = None, copy: bool = False, return_exceptions: Literal[False] = False
) -> tuple[R, S]: ...
@overload
def get(
    refs: tuple[ObjectRef[R], ...], *, timeout: float | None = None, copy: bool = False, return_exceptions: Literal[False] = False
) -> tuple[R, ...]: ...
@overload
def get(refs: ObjectRef[R], *, timeout: float | None = None, copy: bool = False, return_exceptions: bool) -> R | Exception: ...
@overload
def get(refs: list[ObjectRef[R]], *, timeout: float | None = None, copy: bool = False, return_exceptions: bool) -> list[R | Exception]: ...
@overload
def get(refs: Sequence[Any], *, timeout: float | None = None, copy: bool = False, return_exceptions: bool = False) -> Any: ...
@overload
def get(refs: Generated, *, timeout: float | None = None, copy: bool = False, return_exceptions: bool = False) -> Generated: ...
def get(refs: Any, *, timeout: float | None = None, copy: bool = False, return_exceptions: bool = False) -> Any:
    """Wait for refs and return their values: one value for a ref, a list for a list or tuple (also nested) of refs.

    Arrays are read-only views of shared memory; ``copy=True`` returns writable copies. A ref listed twice returns the same object twice. A
    generator of refs is returned as it is.

    Raises a task's error as soon as one has failed: a TaskError that is also an instance of the raised class. Other tasks continue. With
    ``return_exceptions=True`` it waits for all, and returns exceptions in place of values. Raises GetTimeoutError after ``timeout`` seconds
    (0 does not wait), and ArgumentTypeError (a TypeError and a ValueError) for what is no ref.

    >>> import zfabric as zf
    >>> zf.get(zf.put("value"))
    'value'
    >>> zf.get([zf.put(1), [zf.put(2), zf.put(3)]])
    [1, [2, 3]]
    >>> one, error = zf.get([zf.put(1), zf.remote(max).remote([])], return_exceptions=True)
    >>> one, isinstance(error, ValueError)
    (1, True)
    """
    if timeout is not None:
        check_timeout(timeout)
    if return_exceptions is not False:
        check_flag("return_exceptions", return_exceptions)
    if type(refs) is ObjectRef:
        outcome = owner_of(refs).get((refs._id,), timeout)[0]
        return _value_or_error(outcome, copy) if return_exceptions else value_of(outcome, copy)
    if type(refs) is list and set(map(type, refs)) == _ONLY_REFS:
        return _values(refs, timeout, copy, return_exceptions)
    if isinstance(refs, (ObjectRefGenerator, DynamicObjectRefGenerator)):
        return refs
    flat: list[ObjectRef] = []
    _flatten(refs, "", flat)
    values = _values(flat, timeout, copy, return_exceptions) if flat else []
    return _shape(refs, {ref._id: value for ref, value in zip(flat, values, strict=True)})


def _values(refs: Sequence[ObjectRef], timeout: float | None, copy: bool, return_exceptions: bool) -> list[Any]:
    """Return the values of ``refs``, at least one. On an error, release unread outcomes."""
    clients = {ref._client for ref in refs}
    client = owner_of(refs[0])
    if len(clients) > 1 and not clients <= {client, None}:
        raise stale()
    read = _read_all if return_exceptions else _read
    ids = [ref._id for ref in refs]
    if len(set(ids)) == len(ids):
        return read(client.get(ids, timeout, not return_exceptions), copy)
    once = list(dict.fromkeys(ids))
    values = dict(zip(once, read(client.get(once, timeout, not return_exceptions), copy), strict=True))
    return [values[object_id] for object_id in ids]


def _read(outcomes: list[bytes | Outcome], copy: bool) -> list[Any]:
    if not copy and set(map(type, outcomes)) == _ONLY_SMALL:
        return deserialize_all(outcomes)  # type: ignore[arg-type]
    rest = iter(outcomes)
    try:
        return [value_of(outcome, copy) for outcome in rest]
    finally:
        for outcome in rest:
            if not isinstance(outcome, bytes) and outcome.release is not None:
                outcome.release()


def _read_all(outcomes: list[bytes | Outcome], copy: bool) -> list[Any]:
    return [_value_or_error(outcome, copy) for outcome in outcomes]


def _value_or_error(outcome: bytes | Outcome, copy: bool) -> Any:
    try:
        return value_of(outcome, copy)
    except Exception as error:  # The task's error, or one while reading its value: the caller asked for either.
        return error


def _flatten(refs: Any, path: str, into: list[ObjectRef]) -> None:
    if type(refs) is ObjectRef:
        into.append(refs)
    elif isinstance(refs, (list, tuple)):
        for index, item in enumerate(refs):
            _flatten(item, f"{path}[{index}]", into)
    else:
        where = f"get([...]){path} is {a(refs)}" if path else f"get() was given {a(refs)}"
        if isinstance(refs, Mapping):
            raise ArgumentTypeError(f"{where}; get takes a ref or a list of refs, so write zf.get(list(refs.values()))")
        if hasattr(refs, "__iter__") and not isinstance(refs, (str, bytes)):
            raise ArgumentTypeError(f"{where}; get takes a ref or a list of refs, so write zf.get(list(...))")
        raise ArgumentTypeError(f"{where}, not an ObjectRef; f.remote(...) and zf.put(...) give refs, and get takes them or lists of them")


def _shape(refs: Any, values: dict[bytes, Any]) -> Any:
    if type(refs) is ObjectRef:
        return values[refs._id]
    shaped = [_shape(item, values) for item in refs]
    return shaped if isinstance(refs, list) else tuple(shaped)


def put(value: R, *, durable: bool = False) -> ObjectRef[R]:
    """Store ``value`` once, for many tasks or readers; return its ref.

    With ``durable``, the control store (of several nodes, the head's) has committed the value when this returns, and retains it as long as
    the job needs it. The setting ``durability`` says whether a commit survives power loss. A later cluster on the same ``--store`` has the
    value, too: ``zf.ObjectRef(bytes.fromhex(text))`` is a ref to it, where ``text`` was ``ref.hex()``. Without ``durable``, a lost value
    cannot be rebuilt.

    Raises SerializationError, ObjectTooLargeError, ObjectStoreFullError, OutOfDiskError if a durable value cannot be written, and TypeError
    for a ref.

    >>> import zfabric as zf
    >>> ref = zf.put([1, 2, 3])
    >>> zf.get(ref)
    [1, 2, 3]
    """
    if type(value) is ObjectRef:
        raise TypeError(f"put() was given an ObjectRef, which names a stored value already; pass it on, or put [ref] ({value!r})")
    if durable is not False:
        check_flag("durable", durable)
    client = interface._current or connected()
    return ObjectRef(client.put(serialize(value), durable), client)


# --- waiting ------------------------------------------------------------------------------------------------------------------------


_left_last = 0
"""A hash of the refs that the last ``wait`` returned as not ready: usually the next call passes this list, which has no duplicates."""


def wait(
    refs: Sequence[Waitable], *, num_returns: int | Literal["all"] = 1, timeout: float | None = None, fetch_local: bool = True
) -> tuple[list[Waitable], list[Waitable]]:
    """Wait for ``num_returns`` outcomes ("all" for each ref), or ``timeout`` seconds; return (ready, not ready).

    Both lists preserve the order of ``refs``; the first has at most ``num_returns`` items. With ``fetch_local=False`` a value is ready
    where it exists, and is not brought here. An ``ObjectRefGenerator`` is ready when its ``next`` would not wait. To consume many refs one
    by one, ``as_completed`` is faster.

    Raises TypeError for what is no list of refs, and ValueError if a ref is listed twice or ``num_returns`` is not between 1 and their
    number.

    >>> import zfabric as zf
    >>> ready, rest = zf.wait([zf.put(1), zf.put(2)], num_returns=2)
    >>> len(ready), len(rest)
    (2, 0)
    """
    global _left_last
    if isinstance(refs, ObjectRef):
        raise TypeError("wait() takes a list of ObjectRefs, and was given a single one; write zf.wait([ref])")
    if not isinstance(refs, (list, tuple)):
        listed = "; write zf.wait(list(...))" if hasattr(refs, "__iter__") else ""
        raise TypeError(f"wait() takes a list of ObjectRefs, not {a(refs)}{listed}")
    if timeout is not None:
        check_timeout(timeout)
    check_flag("fetch_local", fetch_local)
    if not refs:
        return [], []
    items: Sequence[Any] = refs
    if set(map(type, items)) == _ONLY_REFS:
        ids: list[bytes] = [ref._id for ref in items]
    else:
        ids = [ref._id if type(ref) is ObjectRef else _coming(ref, index) for index, ref in enumerate(refs)]
    if hash(tuple(ids)) != _left_last:
        if len({ref._client for ref in refs if type(ref) is ObjectRef}) > 1:
            for ref in refs:
                if type(ref) is ObjectRef:
                    owner_of(ref)  # One of an earlier cluster may have another object's id.
        if len(set(ids)) != len(ids):
            twice = next(index for index, object_id in enumerate(ids) if object_id in ids[:index])
            raise ValueError(f"wait() takes each ref once: wait([...])[{twice}] was listed before")
    if num_returns == "all":
        num_returns = len(ids)
    if isinstance(num_returns, bool) or not isinstance(num_returns, int):
        raise TypeError(f'num_returns is an int or "all", not {a(num_returns)}')
    if not 1 <= num_returns <= len(ids):
        raise ValueError(f"num_returns is from 1 to the number of refs ({len(ids)}), not {num_returns}")
    first: Any = refs[0]
    done = owner_of(first if type(first) is ObjectRef else first.completed()).wait(ids, num_returns, timeout, fetch_local)
    if len(done) == 1:  # Programs often consume refs one by one: avoid work for each ref that remains.
        rest, place = list(refs), ids.index(next(iter(done)))
        del ids[place]
        _left_last = hash(tuple(ids))
        return [rest.pop(place)], rest
    ready = [ref for ref, object_id in zip(refs, ids, strict=True) if object_id in done]
    return ready, [ref for ref, object_id in zip(refs, ids, strict=True) if object_id not in done]


def _coming(stream: Any, index: int) -> bytes:
    """The id of a stream's next value, or of its end."""
    if not hasattr(stream, "_coming"):
        raise TypeError(f"wait([...])[{index}] is {a(stream)}, not an ObjectRef")
    ref: ObjectRef = stream.completed() if stream.is_finished() else stream._coming()
    return ref._id


def check_refs(refs: Iterable[Any], name: str) -> None:
    """Raise TypeError unless every item is a ref."""
    for index, ref in enumerate(refs):
        if type(ref) is not ObjectRef:
            raise TypeError(f"{name}([...])[{index}] is {a(ref)}, not an ObjectRef")


@overload
def as_completed(
    refs: Iterable[ObjectRef[R]],
    *,
    timeout: float | None = None,
    with_values: Literal[False] = False,
    return_exceptions: Literal[False] = False,
) -> Iterator[ObjectRef[R]]: ...
@overload
def as_completed(
    refs: Iterable[ObjectRef[R]], *, timeout: float | None = None, with_values: Literal[True], return_exceptions: Literal[False] = False
) -> Iterator[tuple[ObjectRef[R], R]]: ...
@overload
def as_completed(
    refs: Iterable[ObjectRef[R]], *, timeout: float | None = None, with_values: Literal[True], return_exceptions: bool
) -> Iterator[tuple[ObjectRef[R], R | Exception]]: ...
def as_completed(
    refs: Iterable[ObjectRef], *, timeout: float | None = None, with_values: bool = False, return_exceptions: bool = False
) -> Iterator[Any]:
    """Yield each ref when it has a value or an error; with ``with_values``, yield pairs of a ref and its value.

    Raises GetTimeoutError if refs are incomplete ``timeout`` seconds after the first ``next``; the program's own time counts, but an
    existing value has at least five seconds to arrive. With values, it raises a task's error and ends; with ``return_exceptions``, it
    yields the exception instead.

    >>> import zfabric as zf
    >>> sorted(zf.get(ref) for ref in zf.as_completed([zf.put(1), zf.put(2)]))
    [1, 2]
    >>> sorted(value for ref, value in zf.as_completed([zf.put(1), zf.put(2)], with_values=True))
    [1, 2]
    """
    if isinstance(refs, ObjectRef):
        raise TypeError("as_completed() takes several ObjectRefs, and was given a single one; write zf.as_completed([ref])")
    if timeout is not None:
        check_timeout(timeout)
    check_flag("with_values", with_values)
    check_flag("return_exceptions", return_exceptions)
    if return_exceptions and not with_values:
        raise ValueError("return_exceptions gives exceptions in the place of values: add with_values=True")
    listed = list(refs)
    check_refs(listed, "as_completed")
    completions = _completions({ref._id: ref for ref in listed}, timeout)
    return _and_values(completions, timeout, return_exceptions) if with_values else completions


def _and_values(refs: Iterator[ObjectRef], timeout: float | None, return_exceptions: bool) -> Iterator[tuple[ObjectRef, Any]]:
    deadline = None if timeout is None else time.monotonic() + timeout
    for ref in refs:
        left = None if deadline is None else max(READ_SECONDS, deadline - time.monotonic())
        yield ref, get(ref, timeout=left, return_exceptions=return_exceptions)


def _completions(waiting: dict[bytes, ObjectRef], timeout: float | None) -> Iterator[ObjectRef]:
    deadline = None if timeout is None else time.monotonic() + timeout
    here: deque[ObjectRef] = deque()
    wanted = [True]

    def arrived(object_id: bytes) -> None:
        ref = waiting.pop(object_id)  # The dictionary held the ref until now: a watch on a released object would never fire.
        if wanted:
            here.append(ref)

    try:
        owners = {owner_of(ref) for ref in waiting.values()}  # This process's client; otherwise owner_of has raised.
        for client in owners:
            client.watch(list(waiting), arrived)
        while here or waiting:
            if not here:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                client = owner_of(next(iter(waiting.values())))
                if not client.await_watched(waiting, lambda: bool(here), left):
                    raise GetTimeoutError(f"{len(waiting)} of the refs had no value after {timeout:g} s; their tasks go on")
            yield here.popleft()
    finally:
        wanted.clear()
        here.clear()


def failed(ref: ObjectRef) -> bool:
    """Whether a ref's outcome is here and an error. Reads neither: the error may still be shown as unread."""
    return owner_of(ref).has_failed(ref._id)


def cancel(ref: ObjectRef, *, force: bool = False, recursive: bool = True) -> None:
    """Cancel the task that makes ``ref``: it does not start, or TaskCancelledError interrupts it. ``get`` of its ref raises
    TaskCancelledError.

    ``force`` kills its worker instead (but not an actor's); ``recursive`` also cancels the tasks that it started. A finished task is
    unaffected.

    >>> import zfabric as zf
    >>> @zf.remote
    ... def forever():
    ...     while True: pass
    >>> ref = forever.remote()
    >>> zf.cancel(ref)
    >>> try: zf.get(ref)
    ... except zf.TaskCancelledError: print("cancelled")
    cancelled
    """
    ref = getattr(ref, "_end", ref)  # Cancel the whole stream.
    if type(ref) is not ObjectRef:
        each = "; write: for ref in refs: zf.cancel(ref)" if isinstance(ref, (list, tuple)) else ""
        raise TypeError(f"cancel() takes an ObjectRef, not {a(ref)}{each}")
    check_flag("force", force)
    check_flag("recursive", recursive)
    if is_put(ref._id):
        raise ValueError("cancel() takes the ref of a task; this one was put, and no task makes it")
    owner_of(ref).cancel((ref._id,), force, recursive)
