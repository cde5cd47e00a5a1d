"""A key-value store of the cluster: the driver, tasks and actors of all nodes see the same keys and values.

Keys are in namespaces. Values are bytes, never unpickled here. A change is durable when its call returns: it survives the death of any
process. Keys end with the job that put them; with ``keep=True`` they live as long as the head's control store. All programs of the cluster
read, write and delete all keys.

Each call is a round trip to the head, 0.2 ms on one machine; a change waits for a commit. What many tasks read belongs in ``zf.put``.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from typing import Any, NamedTuple

from zfabric import exceptions
from zfabric.api.errors import a
from zfabric.api.lifecycle import connected
from zfabric.exceptions import ArgumentTypeError, FabricError, GetTimeoutError
from zfabric.protocol.messages.key_values import KEY_LENGTH_MAX, NAMESPACE_LENGTH_MAX, PART_BYTES

__all__ = ["delete", "exists", "get", "list", "put"]

Key = str | bytes
Value = bytes | bytearray | memoryview
Keys = list[bytes]


class _Numbers:
    """Unanswered changes of this process: the head remembers answers of these, and of later ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = itertools.count(1)
        self._open: set[int] = set()

    def new(self) -> int:
        """Return a new number."""
        with self._lock:
            return next(self._next)

    def begin(self) -> tuple[int, int]:
        """Return the number of a new change, and that of the oldest unanswered one."""
        with self._lock:
            number = next(self._next)
            self._open.add(number)
            return number, min(self._open)

    def end(self, number: int) -> None:
        """Note that nobody waits for this change's answer."""
        with self._lock:
            self._open.discard(number)


_numbers = _Numbers()


class _Deadline:
    """When a call gives up."""

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0):
            raise ArgumentTypeError(f"timeout is a number of seconds, at least 0, or None; it cannot be {timeout!r}")
        self._timeout = math.inf if timeout is None else timeout
        self._at = time.monotonic() + self._timeout

    def ask(self, what: str, *arguments: Any) -> tuple[Any, ...]:
        """Have the head answer a request. Raises the answer's error, and GetTimeoutError."""
        try:
            payload, error, text = connected().query("keys", what, *arguments, timeout=max(0.0, self._at - time.monotonic()))
        except GetTimeoutError:
            raise GetTimeoutError(f"the key-value store did not answer within {self._timeout:g} s") from None
        if error:
            raise getattr(exceptions, error, FabricError)(text)
        return tuple(payload)

    def change(self, what: str, *arguments: Any) -> tuple[Any, ...]:
        """Have the head change keys, once even if the request is repeated."""
        number, oldest = _numbers.begin()
        try:
            return self.ask(what, number, oldest, *arguments)
        finally:
            _numbers.end(number)


def put(key: Key, value: Value, *, namespace: str = "", overwrite: bool = True, keep: bool = False, timeout: float | None = None) -> bool:
    """Store the bytes ``value`` under ``key`` in ``namespace``; return whether they were stored.

    ``overwrite=False`` leaves an existing key and returns False: of several programs that put at once, one stores. With ``keep=True`` the
    key outlives the job. A key is 1 to 4,096 bytes, or a text (its UTF-8), a namespace a text of at most 200 bytes. A value over 1 MiB is
    sent in parts, and replaces another once it is complete; until then both take room.

    Raises KeyValueStoreFullError if the store has no room left (config ``kv_bytes``), OutOfDiskError if the head cannot write,
    GetTimeoutError after ``timeout`` seconds (None: no limit; the value may be stored or not), and ArgumentTypeError.

    >>> from zfabric.util import kv
    >>> kv.put("model", b"weights", namespace="docs")
    True
    >>> kv.put("model", b"others", namespace="docs", overwrite=False)
    False
    >>> kv.get("model", namespace="docs")
    b'weights'
    """
    return store(key, value, namespace, overwrite, keep, timeout).stored


class PutOutcome(NamedTuple):
    """What ``store`` returns."""

    stored: bool
    existed: bool


def store(key: Key, value: Value, namespace: str, overwrite: bool, keep: bool, timeout: float | None = None) -> PutOutcome:
    """Store a value as ``put`` does; return also whether the key existed. Raises what ``put`` raises."""
    name, deadline = _key(key), _Deadline(timeout)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ArgumentTypeError(f"a value is bytes, not {a(value)}; encode a text, pickle another object")
    _check_namespace(namespace)
    data = memoryview(value).cast("B") if memoryview(value).contiguous else memoryview(bytes(value))
    how = bool(overwrite), bool(keep)
    if len(data) <= PART_BYTES:
        return PutOutcome(*deadline.change("put", namespace, name, bytes(data), 0, *how))
    if not overwrite and deadline.ask("get", namespace, name, b"", -1):
        return PutOutcome(stored=False, existed=True)
    upload = _numbers.new()
    try:
        for place, start in enumerate(range(0, len(data), PART_BYTES)):
            deadline.ask("part", upload, upload, place, len(data), bytes(data[start : start + PART_BYTES]))
        return PutOutcome(*deadline.change("put", namespace, name, b"", upload, *how))
    except BaseException:  # Ctrl-C, too. The parts would take room until the job ends.
        _drop(upload)
        raise


def _drop(upload: int) -> None:
    try:
        _Deadline(1.0).ask("drop", upload, upload)
    except FabricError:
        pass  # No answer. The head has the request, or the parts end with the job.


def get(key: Key, *, namespace: str = "", timeout: float | None = None) -> bytes | None:
    """Return the bytes under ``key`` in ``namespace``, or None if there is no such key.

    Raises GetTimeoutError after ``timeout`` seconds (None: no limit), and ArgumentTypeError.

    >>> from zfabric.util import kv
    >>> kv.get("nothing") is None
    True
    """
    name, deadline = _key(key), _Deadline(timeout)
    _check_namespace(namespace)
    while True:
        found = deadline.ask("get", namespace, name, b"", 0)
        if not found:
            return None
        version, size, part = found
        parts = [part]
        while found and len(parts) * PART_BYTES < size:
            found = deadline.ask("get", namespace, name, version, len(parts))
            parts += found[2:]
        if found:  # Else another value is there by now.
            value = b"".join(parts)
            if len(value) != size:
                raise FabricError(f"the value of {key!r} has {len(value)} bytes, and should have {size}")
            return value


def exists(key: Key, *, namespace: str = "", timeout: float | None = None) -> bool:
    """Return whether ``key`` exists in ``namespace``. Arguments and errors as in ``get``.

    >>> from zfabric.util import kv
    >>> kv.exists("nothing")
    False
    """
    name, deadline = _key(key), _Deadline(timeout)
    _check_namespace(namespace)
    return bool(deadline.ask("get", namespace, name, b"", -1))


def delete(key: Key, *, namespace: str = "", prefix: bool = False, timeout: float | None = None) -> int:
    """Delete ``key`` of ``namespace``, or with ``prefix=True`` all keys that begin with it (empty: all); return how many were deleted.

    A few thousand keys are deleted at a time, so others may see a part gone. Arguments and errors otherwise as in ``put``.

    >>> from zfabric.util import kv
    >>> [kv.put(f"step/{number}", b"", namespace="docs") for number in range(3)]
    [True, True, True]
    >>> kv.delete("step/", namespace="docs", prefix=True)
    3
    """
    name, deadline = _key(key, prefix), _Deadline(timeout)
    _check_namespace(namespace)
    deleted, more = 0, True
    while more:
        count, more = deadline.change("delete", namespace, name, bool(prefix))
        deleted += count
    return deleted


def list(prefix: Key = b"", *, namespace: str = "", timeout: float | None = None) -> Keys:
    """Return the keys of ``namespace`` that begin with ``prefix``, as sorted bytes.

    Keys are read in thousands, each at its own time. Arguments and errors otherwise as in ``get``.

    >>> from zfabric.util import kv
    >>> kv.put("b", b"", namespace="listed"), kv.put(b"a", b"", namespace="listed")
    (True, True)
    >>> kv.list(namespace="listed")
    [b'a', b'b']
    """
    name, deadline = _key(prefix, True), _Deadline(timeout)
    _check_namespace(namespace)
    found: tuple[bytes, ...] = ()
    more = True
    while more:
        keys, more = deadline.ask("list", namespace, name, found[-1] if found else b"")
        found += keys
    return sorted(found)


def _key(key: Key, prefix: bool = False) -> bytes:
    if not isinstance(key, str | bytes):
        raise ArgumentTypeError(f"a key is a str or bytes, not {a(key)}")
    try:
        name = key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError:
        raise ArgumentTypeError(f"a key that is a str is text in UTF-8, which {key!r} is not") from None
    if not (name or prefix) or len(name) > KEY_LENGTH_MAX:
        raise ArgumentTypeError(f"a key has 1 to {KEY_LENGTH_MAX:,} bytes, not {len(name):,}")
    return name


def _check_namespace(namespace: str) -> None:
    if not isinstance(namespace, str):
        raise ArgumentTypeError(f"a namespace is a str, not {a(namespace)}")
    try:
        size = len(namespace.encode())
    except UnicodeEncodeError:
        raise ArgumentTypeError(f"a namespace is text in UTF-8, which {namespace!r} is not") from None
    if size > NAMESPACE_LENGTH_MAX:
        raise ArgumentTypeError(f"a namespace has at most {NAMESPACE_LENGTH_MAX} bytes, not {size:,}")
