"""The exceptions behind a packed one: ``__cause__``, ``__context__`` and ``__suppress_context__``, which pickle drops.

Exceptions become rows, the packed one first, then the nearest. Each is packed alone, so that an unpicklable or large one spoils no other; a
member of a group is named by its place in the group. Links may form cycles. At a bound, links end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from zfabric.exceptions import TaskError

LINKED_MAX = 64
"""A loop that retries in an ``except`` clause makes chains of any length."""
LINKED_BYTES_MAX = 256 * 1024
"""Most bytes behind one exception: they travel in messages."""

Packed = tuple[str, str, bytes | None]
"""A linked exception: class name, text, and its pickle or None."""
Row = tuple[Packed | tuple[int, int] | None, int, int, bool]
"""(source, index of the cause or -1, index of the context or -1, whether the context is suppressed).

The source is None for the packed exception, (row of a group, place) for a member, else the packed form.
"""
NO_ROWS: tuple[Row, ...] = ()

_ATTRIBUTES: Any = vars(BaseException)
"""Descriptors of the links: a class may shadow these names, or forbid assignment."""
_LOADED = "_linked"
"""Attribute of a loaded error: the links in its original bytes."""


def rows_of(exception: BaseException, pack: Callable[[BaseException, int], Packed]) -> tuple[Row, ...]:
    """Return rows for the exceptions behind ``exception``. ``pack(exception, bytes_max)`` packs one of them."""
    found = _reached(exception)
    if all(_links(each) is _NO_LINKS for each in found):
        return NO_ROWS
    holders = {
        id(member): (each, place)
        for each in reversed(found)
        if isinstance(each, BaseExceptionGroup) and not _is_loaded(each)
        for place, member in enumerate(each.exceptions)
    }
    sources: list[Packed | tuple[int, int] | None] = [None]
    indices = {id(exception): 0}
    left = LINKED_BYTES_MAX

    def index_of(linked: BaseException) -> int:
        nonlocal left
        if id(linked) not in indices:
            source: Packed | tuple[int, int]
            if id(linked) in holders:
                group, place = holders[id(linked)]
                source = index_of(group), place
            else:
                source = pack(linked, left)
                left -= len(source[2] or b"")
            indices[id(linked)] = len(sources)
            sources.append(source)
        return indices[id(linked)]

    for each in found:
        index_of(each)
    ends: dict[int, tuple[int, int, bool]] = {}
    for each in found:
        cause, context, suppressed = _links(each)
        ends[indices[id(each)]] = (indices.get(id(cause), -1), indices.get(id(context), -1), suppressed)
    return tuple((source, *ends[index]) for index, source in enumerate(sources))


def restore(rows: tuple[Row, ...], error: BaseException, raised: BaseException | None, load: Callable[[Packed], BaseException]) -> None:
    """Restore links. ``error`` is what readers get, ``raised`` the packed exception if it could be loaded.

    An exception whose row has no links has those of its bytes; ``error`` has those of ``raised``.
    """
    objects: list[BaseException | None] = []
    for source, _, _, _ in rows:
        if source is None:
            objects.append(error if raised is None else raised)
        elif len(source) == 2:
            objects.append(_member(objects[source[0]], source[1]))
        else:
            objects.append(load(source))
    for (_, cause, context, suppressed), each in zip(rows, objects, strict=True):
        if each is not None and (cause >= 0 or context >= 0 or suppressed):
            _set_links(each, (objects[cause] if cause >= 0 else None, objects[context] if context >= 0 else None, suppressed))
    if raised is not None and _links(raised, packed=False) is not _NO_LINKS:
        _set_links(error, _links(raised, packed=False))


def note_loaded(error: BaseException) -> None:
    """Record the links in an error's own bytes: they need no rows."""
    vars(error)[_LOADED] = tuple(_ATTRIBUTES[name].__get__(error) for name in _NAMES)


_NAMES = ("__cause__", "__context__", "__suppress_context__")  # In this order: setting the first sets the last.
_NO_LINKS: tuple[None, None, bool] = (None, None, False)


Links = tuple[BaseException | None, BaseException | None, bool]


def _set_links(exception: BaseException, links: Links) -> None:
    for name, value in zip(_NAMES, links, strict=True):
        _ATTRIBUTES[name].__set__(exception, value)


def _links(exception: BaseException, packed: bool = True) -> Links:
    """Return (cause, context, suppressed). With ``packed``, return none if the exception's own bytes have these links."""
    cause, context, suppressed = (_ATTRIBUTES[name].__get__(exception) for name in _NAMES)
    if packed and _is_loaded(exception):
        loaded = vars(exception)[_LOADED]
        if cause is loaded[0] and context is loaded[1]:
            return _NO_LINKS
    return (cause, context, suppressed) if suppressed or cause is not None or context is not None else _NO_LINKS


def _is_loaded(exception: BaseException) -> bool:
    return isinstance(exception, TaskError) and _LOADED in vars(exception)


def _reached(exception: BaseException) -> list[BaseException]:
    found = {id(exception): exception}
    queue = [exception]
    for each in queue:
        for linked in _next(each):
            if len(found) == LINKED_MAX:
                return queue
            if id(linked) not in found:
                found[id(linked)] = linked
                queue.append(linked)
    return queue


def _next(exception: BaseException) -> Iterator[BaseException]:
    for linked in _links(exception)[:2]:
        if linked is not None:
            yield linked
    if isinstance(exception, BaseExceptionGroup) and not _is_loaded(exception):
        yield from exception.exceptions


def _member(group: BaseException | None, place: int) -> BaseException | None:
    members = group.exceptions if isinstance(group, BaseExceptionGroup) else ()
    return members[place] if place < len(members) else None
