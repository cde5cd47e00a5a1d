"""Where a value is, which changes of that are allowed, and how many bytes are in memory.

Methods of ``records.Object`` change a place; each is a row of ``CHANGES``, which the simulator checks. Above ``inline_memory``, values move
to the arena (``References.absorb``). Two hot loops write values themselves and count a sum per batch: completion of tasks, and release.
"""

from __future__ import annotations

from enum import Enum

from zfabric.protocol.messages import OK

PENDING = -1
"""The ``status`` before a value exists."""


class Stored:
    """In this node's object store."""

    __slots__ = ("copies", "size")

    copies: tuple[bytes, ...]
    """Nodes that may have a copy; unset until one requests it."""

    def __init__(self, size: int) -> None:
        self.size = size


class Elsewhere:
    """At another node, which retains it."""

    __slots__ = ("asked", "copies", "place", "size")

    def __init__(self, size: int, place: bytes) -> None:
        self.size = size
        self.place = place
        """The node."""
        self.asked = False
        self.copies: tuple[bytes, ...] = ()


Value = bytes | Stored | Elsewhere
"""A value, or the error in its place, in memory; or where it is."""


def copies_of(value: Stored | Elsewhere) -> tuple[bytes, ...]:
    """Nodes that may have further copies."""
    return getattr(value, "copies", ())


class ObjectPlace(Enum):
    """Where the value of an object is."""

    NOWHERE = "nowhere"
    """It does not exist yet."""
    ASKED = "asked"
    INLINE = "inline"
    STORED = "stored"
    """In this node's object store."""
    ELSEWHERE = "elsewhere"
    """At another node, retained for this home."""
    FAILED = "failed"
    """An error is in its place."""
    LOST = "lost"
    """It existed, and no copy is left."""


_NOWHERE, _ASKED, _INLINE, _STORED, _ELSEWHERE, _FAILED, _LOST = ObjectPlace
_SOMEWHERE = {_INLINE, _STORED, _ELSEWHERE}

CHANGES: dict[str, dict[ObjectPlace, set[ObjectPlace]]] = {
    "ask": {_NOWHERE: {_ASKED}, _ASKED: {_ASKED}},
    "arrive": {
        _NOWHERE: _SOMEWHERE,
        _ASKED: _SOMEWHERE,  # Elsewhere: a call of a process here made it, and this node does not know yet that it is the home.
        _LOST: _SOMEWHERE,
        _FAILED: {_INLINE, _STORED},
        _INLINE: {_STORED},
        _STORED: {_ELSEWHERE},
        _ELSEWHERE: {_STORED, _ELSEWHERE},
    },
    "fail": {_NOWHERE: {_FAILED}, _ASKED: {_FAILED}, _LOST: {_FAILED}},
    "lose": {_NOWHERE: {_LOST}, _INLINE: {_LOST}, _STORED: {_LOST}, _ELSEWHERE: {_LOST}, _FAILED: {_FAILED}, _LOST: {_LOST}},
    "expect": {_NOWHERE: {_NOWHERE}, _ASKED: {_NOWHERE}, _FAILED: {_NOWHERE}, _LOST: {_NOWHERE}},
    "become_home": {_NOWHERE: {_NOWHERE}, _ASKED: {_NOWHERE}, _INLINE: {_INLINE}, _STORED: {_STORED}, _FAILED: {_FAILED}, _LOST: {_LOST}},
}
"""Where each method may move a value, by its place before."""
IN_PLACE = {_NOWHERE: {_INLINE}}
"""What the loop over completed tasks changes."""


def place_of(status: int, value: Value | None, asked: bool) -> ObjectPlace:
    """A value's place. ``asked``: whether another node, its home, was."""
    if status == PENDING:
        return ObjectPlace.ASKED if asked else ObjectPlace.NOWHERE
    if status != OK:
        return ObjectPlace.FAILED
    if value is None:
        return ObjectPlace.LOST
    return ObjectPlace.INLINE if type(value) is bytes else ObjectPlace.STORED if type(value) is Stored else ObjectPlace.ELSEWHERE


class InlineValues:
    """Bytes of values in memory."""

    def __init__(self) -> None:
        self.total = 0

    def replaced(self, before: Value | None, after: Value | None) -> None:
        """Count one value in another's place."""
        if type(before) is bytes:
            self.total -= len(before)
        if type(after) is bytes:
            self.total += len(after)

    def count(self, difference: int) -> None:
        """Count a batch of a hot loop."""
        self.total += difference
