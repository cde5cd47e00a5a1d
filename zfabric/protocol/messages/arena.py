"""The arena: client <-> object store, local scheduler <-> object store.

A place is the offset of an object's payload in the arena. A negative offset stands for a file of the node's spill directory: if the
arena has no room, a value is written there and read there (``zfabric.machines.common.extents``).
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Rows


class Reserve(NamedTuple):
    """client -> object store. Room for an object of ``size`` bytes; wait up to ``patience`` seconds for it. The store adds the header.

    ``wish`` is the preferred size of a range to bump-allocate in; 0 requests room for that one object only.
    """

    token: int
    size: int
    wish: int
    patience: float


class Granted(NamedTuple):
    """object store -> client. The client may write the range ``offset … offset + size`` of the arena.

    If the request was for one object's room, the answer may be a file (``offset`` is negative): the arena has no room, and none is
    coming.
    """

    token: int
    offset: int
    size: int


class NoSpace(NamedTuple):
    """object store -> client. No grant. ``kind`` is "too_large", "full" or "memory"; ``text`` says what to do.

    "alone": the arena has no room for a range to bump-allocate in; request one object's room (``wish`` 0), which may be a file.
    """

    token: int
    kind: str
    text: str


class ReturnGrant(NamedTuple):
    """client -> object store. The client writes no more into the grant at ``offset``; past ``used`` bytes it holds nothing.

    ``gaps`` are rows ``(offset, size)`` before that which hold nothing either: a write was abandoned there, and later ones follow it.
    """

    offset: int
    used: int
    gaps: Rows = ()


class RecallGrant(NamedTuple):
    """object store -> client control. Return the idle grant at ``offset`` if possible."""

    offset: int


class GrantsHeld(NamedTuple):
    """client -> object store, between ``Register`` and ``Ready``. The client's grants: rows ``(offset, size, used)``.

    Only unfinished ones: the rest of a grant (``used`` 0), or an object being written (``used`` its whole size).
    """

    rows: Rows


class Pinned(NamedTuple):
    """client -> object store, between ``Register`` and ``Ready``. The client's pins: rows ``(object_id, offset, size)``."""

    rows: Rows


class Unpin(NamedTuple):
    """client -> object store. Release pins of these objects.

    Each ``Located`` row that reached this process is one pin, and an id is listed here once for each pin. So an ``Unpin``
    that crosses a new ``Located`` releases the older pins only, and nothing is moved under a reader.
    """

    object_ids: Ids


class RecallPins(NamedTuple):
    """object store -> client. Room is short: unpin every listed object that no live value of the process uses."""

    object_ids: Ids


class Sealed(NamedTuple):
    """local scheduler -> object store. Objects written: rows ``(object_id, offset, size, writer incarnation, rebuildable)``.

    Sent for every location in a ``Completed`` or ``Put``, also for objects that nobody needs (``Free`` follows): from here on the room
    belongs to the store. If an object is written twice, the first copy stays. Readers get its place from ``Located``, never from the
    writer.
    """

    rows: Rows


class Absorb(NamedTuple):
    """local scheduler -> object store. Take over these inline values: rows ``(object_id, value, rebuildable)``."""

    rows: Rows


class Locate(NamedTuple):
    """local scheduler -> object store. Pin objects and answer with their places: rows ``(object_id, process incarnation)``.

    Spilled objects are restored first. Every row is answered by one row of ``Located`` or ``ObjectsLost``, and every row of ``Located``
    is one pin (see ``Unpin``).
    """

    rows: Rows


class Located(NamedTuple):
    """object store -> local scheduler. Rows ``(object_id, process incarnation, offset, size)``: pinned by that process.

    The scheduler sends each row to that process exactly once, even if the process no longer needs it: the process then unpins it.
    """

    rows: Rows


class ObjectsLost(NamedTuple):
    """object store -> local scheduler. Rows ``(object_id, reason)``: no copy is left here.

    ``reason`` is "evicted" (a rebuildable value made room), "missing", or starts with "unreadable:" or "full:" (an inline value that is
    larger than the whole store).
    """

    rows: Rows


class Free(NamedTuple):
    """local scheduler -> object store. Nobody refers to these objects any more; free each once it is unpinned."""

    object_ids: Ids


class Protect(NamedTuple):
    """local scheduler -> object store. These objects cannot be made again any more: they are spilled, and no longer dropped."""

    object_ids: Ids


class ProcessGone(NamedTuple):
    """local scheduler -> object store. This process is proved dead: its pins and grants are void."""

    incarnation: bytes


class RetainOnly(NamedTuple):
    """local scheduler -> object store, once after a restart. Exactly these objects are referred to; free all others, and begin."""

    object_ids: Ids


class ExtentReady(NamedTuple):
    """shell -> object store. The extent is reserved and warm, or (``error`` not empty) could not be."""

    offset: int
    size: int
    error: str


class Spilled(NamedTuple):
    """shell -> object store. The object's bytes are on disk, or (``error`` not empty) could not be written."""

    object_id: bytes
    error: str


class Restored(NamedTuple):
    """shell -> object store. The object's bytes are back in the arena, or whole on disk; or (``error`` not empty) could not be read."""

    object_id: bytes
    error: str


class FileReady(NamedTuple):
    """shell -> object store. The file exists, with disk space behind all of it; or (``error`` not empty) could not be made."""

    file: int
    error: str


class ArenaFound(NamedTuple):
    """shell -> object store, first after a restart. Sealed in the arena: ``(object_id, offset, size)``; files: ``(object_id, size,
    file)``.

    A file that may be incomplete is listed without an id: a process may still be writing it.
    """

    sealed: Rows
    spilled: Rows
