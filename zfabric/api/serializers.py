"""Custom serializers for classes, and a check whether a value can be pickled. Both have Ray's names."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any, NamedTuple

_OWN = frozenset({type(None), bool, int, float, str, bytes, bytearray, tuple, list, dict, set, frozenset, type, type(lambda: 0)})
"""Classes that ``pickle`` handles itself, without consulting registered functions."""


_before: dict[type, Any] = {}
"""Classes with a registered serializer, and the reduce functions that these replaced."""


class FailureTuple(NamedTuple):
    """A value that cannot be pickled."""

    obj: Any
    """The part that cannot be pickled."""
    name: str
    """The path to it."""
    parent: Any
    """The value that contains it."""


def register_serializer(cls: type, *, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]) -> None:
    """Pickle instances of exactly ``cls`` as ``serializer(instance)``, and restore them with ``deserializer``.

    This applies to the current process; every process can unpickle the result. The standard library's ``pickle`` and ``copy`` use it, too.
    Raises TypeError for arguments of other types, and ValueError for a class that ``pickle`` handles itself.

    >>> import threading
    >>> import zfabric as zf
    >>> class Guarded:
    ...     def __init__(self, value):
    ...         self.value, self.lock = value, threading.Lock()
    >>> zf.util.register_serializer(Guarded, serializer=lambda it: it.value, deserializer=Guarded)
    >>> zf.get(zf.put(Guarded(5))).value
    5
    >>> zf.util.deregister_serializer(Guarded)
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_serializer() takes a class, not {cls!r}")
    if not callable(serializer) or not callable(deserializer):
        raise TypeError("serializer and deserializer are functions: the first of an instance, the second of what the first returns")
    if cls in _OWN:
        raise ValueError(f"instances of {cls.__name__} are always pickled by pickle itself: register a class of your own that has one")

    def reduce(instance: Any) -> tuple[Any, ...]:
        return deserializer, (serializer(instance),)

    _before.setdefault(cls, copyreg.dispatch_table.get(cls))
    copyreg.pickle(cls, reduce)


def deregister_serializer(cls: type) -> None:
    """Remove the serializer of ``cls``. Has no effect if none was registered."""
    if cls in _before:
        before = _before.pop(cls)
        copyreg.dispatch_table.pop(cls, None)
        if before is not None:
            copyreg.dispatch_table[cls] = before


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int | None = None, print_file: Any = None
) -> tuple[bool, set[FailureTuple]]:
    """Return whether ``base_obj`` can be pickled, and the parts that cannot; print them to ``print_file`` (standard output).

    The output calls the value ``name``.

    ``depth`` has no effect, and exists for Ray programs: the output shows the whole path to the part.

    >>> import threading
    >>> from zfabric.util import inspect_serializability
    >>> inspect_serializability(threading.Lock(), name="lock")[0]
    lock cannot be pickled:
      lock: lock
    False
    """
    from zfabric.adapters.unpicklable import picklable, trail  # Only needed here.

    name = name or str(getattr(base_obj, "__qualname__", type(base_obj).__qualname__))
    if picklable(base_obj):
        print(f"{name} can be pickled", file=print_file)
        return True, set()
    way = trail(base_obj, name)
    print(f"{name} cannot be pickled:", file=print_file)
    for path, part in way:
        print(f"  {path}: {type(part).__qualname__}", file=print_file)
    path, found = way[-1]
    return False, {_Failure(found, path, way[-2][1] if len(way) > 1 else None)}


class _Failure(FailureTuple):
    """Compared by identity: a value that cannot be pickled can often not be hashed either."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other
