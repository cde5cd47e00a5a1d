"""Generators of refs: the results of calls with ``num_returns="streaming"`` or ``"dynamic"``.

A stream's value ids are known in advance. Its generator holds refs to the next values, as many as the producer may be ahead, and thereby
requests them. Each value taken requests one more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic

from zfabric.adapters.generated_values import Raises, Unfinished
from zfabric.adapters.serialization import register_plain, serialize
from zfabric.api.errors import a, check_timeout
from zfabric.api.lifecycle import connected
from zfabric.api.refs import ObjectRef, owner_of
from zfabric.api.types import Value_co
from zfabric.exceptions import GetTimeoutError
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import object_id, short
from zfabric.protocol.messages import FAILED, OK
from zfabric.runtime import interface

ASK_EACH_TIME = 8
"""Windows up to this size request one value per value taken; larger ones request half a window at once."""


class ObjectRefGenerator(Generic[Value_co]):
    """Refs to the values that a task yields, in order, each as soon as it exists. Made by ``num_returns="streaming"``.

    Iterate with ``for`` or ``async for``, from one thread at a time. A task's error is the last ref's. The task is at most ``max_buffered``
    values ahead. Closing the generator, or releasing its last copy, cancels the task: its last ``yield`` raises GeneratorExit. Another task
    may get the generator, and continues at the same position; no two copies return the same value.

    >>> import zfabric as zf
    >>> @zf.remote(num_returns="streaming")
    ... def count(n):
    ...     for i in range(n):
    ...         yield i
    >>> for ref in count.remote(3):
    ...     print(zf.get(ref))
    0
    1
    2
    """

    def __init__(self, end: ObjectRef, ahead: int, position: int = 0, window: Iterable[ObjectRef] = (), finished: bool = False) -> None:
        self._end: ObjectRef | None = end
        self._task = end.task_id()
        self._ahead = ahead
        self._position = position
        self._window = deque(window)
        """Refs to the next values."""
        self._finished = finished
        self._failed = False
        """Whether the next value is an error, and so the last."""

    # -- iteration --

    def __iter__(self) -> ObjectRefGenerator[Value_co]:
        return self

    def __aiter__(self) -> ObjectRefGenerator[Value_co]:
        return self

    def __next__(self) -> ObjectRef[Value_co]:
        return self.next()

    def next(self, timeout: float | None = None) -> ObjectRef[Value_co]:
        """Return the next ref, once its value exists.

        Raises StopIteration at the end, and GetTimeoutError after ``timeout`` seconds.

        >>> import zfabric as zf
        >>> letters = zf.remote(num_returns="streaming")(lambda: iter("ab")).remote()
        >>> zf.get(letters.next(timeout=60))
        'a'
        """
        if timeout is not None:
            check_timeout(timeout)
        if self._finished:
            raise StopIteration
        if not self._is_value(self._coming(), timeout):
            raise StopIteration
        return self._take()

    async def __anext__(self) -> ObjectRef[Value_co]:
        from zfabric.api.futures import arrival  # This import loads asyncio.

        if self._finished:
            raise StopAsyncIteration
        ref = self._coming()
        await arrival(owner_of(ref), ref.binary())
        if not self._is_value(ref, None):
            raise StopAsyncIteration
        return self._take()

    def _coming(self) -> ObjectRef:
        if not self._window:
            self._ask()
        return self._window[0]

    def _take(self) -> ObjectRef:
        self._position += 1
        taken = self._window.popleft()
        if self._failed:
            self._finish()
        elif len(self._window) <= self._ahead // 2 or self._ahead <= ASK_EACH_TIME:
            self._ask()
        return taken

    def _ask(self) -> None:
        first = self._position + len(self._window)
        names = [object_id(self._task, index + 1) for index in range(first, self._position + self._ahead)]
        client = owner_of(self.completed())
        client.follow(names)
        self._window.extend(ObjectRef(name, client) for name in names)

    def _is_value(self, ref: ObjectRef, timeout: float | None) -> bool:
        """Wait until ``ref`` has a value, or an error as the last one; return False at the stream's end."""
        outcome = owner_of(ref).get((ref.binary(),), timeout)[0]
        if isinstance(outcome, bytes):
            return True
        status, data, release = outcome
        if release is not None:
            release()
        if status == OK:
            return True
        if status == FAILED and unpack_failure(bytes(data))[0] == "StreamEnded":
            self._finish()
            return False
        self._failed = True
        return True

    def _finish(self) -> None:
        self._finished = True
        self._window.clear()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: Any) -> GenericAlias:
            return GenericAlias(cls, item)

    # -- more about it --

    def next_ready(self) -> bool:
        """Whether ``next`` would return a ref without waiting; False at the end.

        >>> import zfabric as zf
        >>> generator = zf.remote(num_returns="streaming")(lambda: iter("a")).remote()
        >>> while not generator.next_ready():
        ...     pass
        >>> zf.get(next(generator))
        'a'
        """
        if self._finished:
            return False
        try:
            return self._is_value(self._coming(), 0)
        except GetTimeoutError:
            return False

    def is_finished(self) -> bool:
        """Whether the last value was taken, or the generator was closed."""
        return self._finished

    def completed(self) -> ObjectRef:
        """Return a ref that is ready once the task ends: its value is the number of values yielded, or the task's error.

        The task does not end before the stream is consumed if it yields more values than it may be ahead.
        """
        if self._end is None:
            raise ValueError("this generator was closed, and its task with it")
        return self._end

    def task_id(self) -> bytes:
        """The id of the task that yields the values."""
        return self._task

    def close(self) -> None:
        """Close the generator. The task is cancelled, unless another copy of this generator exists.

        >>> import zfabric as zf
        >>> @zf.remote(num_returns="streaming")
        ... def numbers():
        ...     number = 0
        ...     while True:
        ...         yield number
        ...         number += 1
        >>> generator = numbers.remote()
        >>> zf.get(next(generator))
        0
        >>> generator.close()
        >>> list(generator)
        []
        """
        self._finished = True
        self._window.clear()
        if self._end is not None:
            client, self._end = self._end._client, None
            if client is not None:
                client.follow(())  # Send the release now, not with this process's next message.

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({short(self._task)}, {self._position} taken)"

    def _repr_html_(self) -> str | None:
        from zfabric.api.explanations import html_of  # Only notebooks need it.

        return html_of(self, lambda: owner_of(self.completed()), self._task)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectRefGenerator, (self.completed(), self._ahead, self._position, list(self._window), self._finished)


register_plain(ObjectRefGenerator)


class DynamicObjectRefGenerator(Generic[Value_co]):
    """Refs to all values that a task yielded. Made by ``num_returns="dynamic"``, as the value of its ref.

    If the task raised an error after its first value, the last ref has it.

    >>> import zfabric as zf
    >>> @zf.remote(num_returns="dynamic")
    ... def letters(text):
    ...     yield from text
    >>> refs = zf.get(letters.remote("abc"))
    >>> len(refs), [zf.get(ref) for ref in refs]
    (3, ['a', 'b', 'c'])
    """

    def __init__(self, refs: Iterable[ObjectRef]) -> None:
        self._refs = tuple(refs)

    def __iter__(self) -> Iterator[ObjectRef[Value_co]]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __repr__(self) -> str:
        return f"DynamicObjectRefGenerator({len(self._refs)} refs)"


class Collected:
    """What a worker runs for ``num_returns="dynamic"``: it consumes the generator and stores each value at once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__qualname__ = str(getattr(function, "__qualname__", type(function).__qualname__))

    def __call__(self, *args: Any, **kwargs: Any) -> DynamicObjectRefGenerator | Coroutine[Any, Any, DynamicObjectRefGenerator]:
        """Return the refs, or a coroutine of them for an ``async def`` function."""
        values = self.function(*args, **kwargs)
        if hasattr(values, "__aiter__"):
            return self._collect(values)
        if not hasattr(values, "__next__"):
            raise TypeError(f'{self.__qualname__} declares num_returns="dynamic" and returned {a(values)}: it should yield its values')
        refs: list[ObjectRef] = []
        try:
            refs.extend(map(_stored, values))
        except Exception as error:  # User code: values before its error have refs.
            raise Unfinished(error, partial(_and_failure, refs)) from error
        return DynamicObjectRefGenerator(refs)

    async def _collect(self, values: AsyncIterable[Any]) -> DynamicObjectRefGenerator:
        refs: list[ObjectRef] = []
        try:
            async for value in values:
                refs.append(_stored(value))
        except Exception as error:  # As above.
            raise Unfinished(error, partial(_and_failure, refs)) from error
        return DynamicObjectRefGenerator(refs)


def _and_failure(refs: list[ObjectRef], failure: Raises, _count: int) -> DynamicObjectRefGenerator:
    return DynamicObjectRefGenerator([*refs, _stored(failure)])


def _stored(value: Any) -> ObjectRef:
    client = connected()
    return ObjectRef(client.put(serialize(value), False), client)


interface.collected = Collected
