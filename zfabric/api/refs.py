"""Refs: the names of values that exist or will exist."""

from __future__ import annotations

import os
from collections.abc import Generator
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from zfabric.adapters.collector import untrack
from zfabric.adapters.namespaces import register_without_data
from zfabric.adapters.serialization import Outcome, deserialize, note_reference, register_plain
from zfabric.api.errors import error_of
from zfabric.api.lifecycle import connected
from zfabric.api.types import Value_co
from zfabric.exceptions import ArgumentTypeError, NotInitializedError
from zfabric.protocol.ids import JOB_BYTES, OBJECT_BYTES, TASK_BYTES, short
from zfabric.protocol.messages import OK
from zfabric.runtime import interface
from zfabric.runtime.interface import ClientInterface
from zfabric.runtime.process_exit import hold_thread

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


_OF_FUTURES = {
    **dict.fromkeys(("add_done_callback", "get_loop", "remove_done_callback"), "asyncio"),
    **dict.fromkeys(("result", "exception", "done", "cancelled", "running"), "concurrent.futures"),
}
"""What programs ask of a ref that they take for a future, and whose future."""


class ObjectRef(Generic[Value_co]):
    """The name of a value that exists or will exist; ``zf.get(ref)`` returns the value.

    The value is retained as long as any process has a ref to it. A ref can be awaited, hashed, compared, pickled, and passed to tasks: as
    an argument it arrives as the value, inside another value as a ref. ``ObjectRef(object_id)`` is one more ref to the value with this id
    (20 bytes, from ``binary``); ArgumentTypeError is raised for anything else.

    >>> import zfabric as zf
    >>> ref = zf.put("a value")
    >>> ref == zf.ObjectRef(ref.binary())
    True
    """

    __slots__ = ("__weakref__", "_client", "_id")

    def __init__(self, object_id: bytes, client: ClientInterface | None = None) -> None:
        """With ``client``, take over a reference that the client has counted; without, count a new one."""
        if client is None:
            if type(object_id) is not bytes or len(object_id) != OBJECT_BYTES:
                raise ArgumentTypeError(
                    f"an ObjectRef is made of {OBJECT_BYTES} bytes, not {object_id!r}; refs come from f.remote() and zf.put()"
                )
            client = interface.current()
            if client is not None:
                client.add_reference(object_id)
        self._id = object_id
        self._client = client
        if type(self) is ObjectRef:  # A user's subclass may have attributes of any kind.
            untrack(self)

    def __del__(self) -> None:
        try:
            self._client.drop_reference(self._id)  # type: ignore[union-attr]
        except Exception:  # Without a client, or partly initialized. A finalizer has no caller to raise to.
            pass

    def __hash__(self) -> int:
        return hash(self._id)

    def __eq__(self, other: object) -> bool:
        # Ids are unique within a cluster only.
        return type(other) is ObjectRef and self._id == other._id and self._client is other._client

    def __repr__(self) -> str:
        return f"ObjectRef({short(self._id)})"

    def _repr_html_(self) -> str | None:
        from zfabric.api.explanations import html_of  # Only notebooks need it.

        return html_of(self, lambda: owner_of(self), self._id)

    def binary(self) -> bytes:
        """The id as 20 bytes."""
        return self._id

    def hex(self) -> str:
        """The id as hexadecimal text."""
        return self._id.hex()

    def task_id(self) -> bytes:
        """The id of the task that makes the value."""
        return self._id[:TASK_BYTES]

    def job_id(self) -> bytes:
        """The id of the value's job."""
        return self._id[:JOB_BYTES]

    def is_nil(self) -> bool:
        """False: a ref always names a value."""
        return False

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: Any) -> GenericAlias:
            return GenericAlias(cls, item)  # For annotations: ``ObjectRef[int]``.

    def join(self, client: ClientInterface) -> None:
        """Count a ref that was unpickled before there was a client."""
        self._client = client
        client.add_reference(self._id)

    # -- copies --

    def travel(self) -> bytes:
        """The id, for a message. Raises NotInitializedError for a ref of another cluster, where the id has another meaning."""
        if self._client is not interface._current and self._client is not None:
            raise NotInitializedError("a ref or a handle in what is passed on belongs to a cluster that was shut down")
        return self._id

    def __reduce__(self) -> tuple[Any, ...]:
        if note_reference(self._id):
            self.travel()
        elif self._client is not None:
            self._client.add_reference(self._id)  # The copy leaves the fabric: pinned until the job ends.
        return ObjectRef, (self._id,)

    def __copy__(self) -> ObjectRef:
        return ObjectRef(self._id)

    def __deepcopy__(self, memo: Any) -> ObjectRef:
        return ObjectRef(self._id)

    # -- waiting --

    def __await__(self) -> Generator[Any, None, Value_co]:
        return self._read_in_loop().__await__()

    def future(self) -> Future[Value_co]:
        """A ``concurrent.futures.Future`` of the value. Cancelling it does not cancel the task.

        One thread runs the callbacks of all futures: one that waits for another future blocks all.

        >>> import zfabric as zf
        >>> zf.put(5).future().result()
        5
        """
        from zfabric.api.futures import future_of

        return future_of(owner_of(self), self._id, self._read)

    def as_future(self) -> asyncio.Future[Value_co]:
        """An asyncio future of the value in the running event loop, for ``asyncio.wait``.

        >>> import asyncio, zfabric as zf
        >>> async def first():
        ...     done, _ = await asyncio.wait([zf.put(1).as_future(), zf.put(1).as_future()])
        ...     return done.pop().result()
        >>> asyncio.run(first())
        1
        """
        import asyncio

        return asyncio.ensure_future(self._read_in_loop())

    def _read(self) -> Any:
        return value_of(owner_of(self).get((self._id,), None)[0])

    async def _read_in_loop(self) -> Any:
        from zfabric.api.futures import arrival

        await arrival(owner_of(self), self._id)
        return self._read()

    # -- what people try first (and type checkers are not to see) --

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            advice = "zf.get(ref) has the value"
            if name in _OF_FUTURES:
                advice = (
                    f"for {_OF_FUTURES[name]} write {'ref.as_future()' if _OF_FUTURES[name] == 'asyncio' else 'ref.future()'}; {advice}"
                )
            raise AttributeError(f"an ObjectRef is the name of a value and has no {name!r}; {advice}", name=name, obj=self)

        def __format__(self, form: str) -> str:
            return self._no() if form else str(self)

        def _no(self, *_: Any) -> NoReturn:
            raise TypeError(f"this is an ObjectRef, the name of a value; call zf.get(ref) for the value ({self!r})")

        __bool__ = __iter__ = __len__ = __getitem__ = __int__ = __float__ = __index__ = __neg__ = _no
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __mod__ = __pow__ = _no
        __floordiv__ = __rfloordiv__ = __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _no


class UncountedRef(ObjectRef):
    """A ref that does not retain its object, as in weak handles."""

    __slots__ = ()

    def __init__(self, object_id: bytes) -> None:
        self._id = object_id
        self._client = interface.current()

    def __del__(self) -> None:
        pass  # There is nothing to drop.

    def join(self, client: ClientInterface) -> None:
        """Use a client that did not exist when this ref was unpickled."""
        self._client = client

    def __reduce__(self) -> tuple[Any, ...]:
        self.travel()
        return UncountedRef, (self._id,)

    def __copy__(self) -> UncountedRef:
        return UncountedRef(self._id)

    def __deepcopy__(self, memo: Any) -> UncountedRef:
        return UncountedRef(self._id)


register_plain(ObjectRef)


def owner_of(ref: ObjectRef, lost: str = "its value went") -> ClientInterface:
    """Return the client of ``ref``.

    Raises NotInitializedError if its cluster was shut down; ``lost`` is what was lost with it, for the text.
    """
    client = interface.current()
    if client is not ref._client:
        if ref._client is None:  # Unpickled before there was a client
            client = connected()
            ref.join(client)
            return client
        hold_thread()
        if client is None or not client.job:  # the second raises with advice in a forked child
            raise NotInitializedError(f"there is no cluster any more: zf.shutdown() was called, and {lost} with it")
        raise stale(lost)
    return client  # type: ignore[return-value]


def stale(lost: str = "its value went") -> NotInitializedError:
    """Return the error for a ref of a cluster that was shut down; ``lost`` says what was lost."""
    return NotInitializedError(f"this belongs to a cluster that was shut down, and {lost} with it")


def value_of(outcome: bytes | Outcome, copy: bool = False) -> Any:
    """Return the value of an outcome, or raise its error."""
    if isinstance(outcome, bytes):
        return deserialize(outcome, copy=copy)
    status, data, release = outcome
    if status != OK:
        raise error_of(outcome)
    return deserialize(data, release, copy)


def _after_fork() -> None:
    """In a forked child, release nothing: refs belong to the parent."""
    if interface.current() is not None and "__del__" in vars(ObjectRef):
        del ObjectRef.__del__


os.register_at_fork(after_in_child=_after_fork)


register_without_data(ObjectRef)
