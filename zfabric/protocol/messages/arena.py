"""The arena: client <-> object store, local scheduler <-> object store.

A place is the offset of an object's payload in the arena. A negative one stands for a file of the node's spill directory: what the
arena has no room for is written there by whoever makes it, and read there by whoever wants it (``zfabric.machines.common.extents``).
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Rows


class Reserve(NamedTuple):
    """client -> object store. Room for an object of ``size`` bytes; wait up to ``patience`` seconds for it. The store adds the header.

    ``wish`` is how large a range to bump-allocate in is liked best; 0 asks for that one object's room and nothing besides.
    """

    token: int
    size: int
    wish: int
    patience: float


class Granted(NamedTuple):
    """object store -> client. The range ``offset … offset + size`` of the arena is yours to write.

    To a request for one object's room, the answer may be a file (``offset`` is negative): the arena has no room, and will have none soon.
    """

    token: int
    offset: int
    size: int


class NoSpace(NamedTuple):
    """object store -> client. No grant. ``kind`` is "too_large", "full" or "memory"; ``text`` says what to do.

    "alone": the arena has no room for a range to bump-allocate in; ask for one object's room (``wish`` 0), which may be a file.
    """

    token: int
    kind: str
    text: str


class ReturnGrant(NamedTuple):
    """client -> object store. I write no more into the grant at ``offset``; past ``used`` bytes it holds nothing.

    Nor do ``gaps``, rows ``(offset, size)`` before that: what was to be written there was given up, behind it others were.
    """

    offset: int
    used: int
    gaps: Rows = ()


class RecallGrant(NamedTuple):
    """object store -> client control. Return the idle grant at ``offset`` if you can."""

    offset: int


class GrantsHeld(NamedTuple):
    """client -> object store, between ``Register`` and ``Ready``. Grants I hold: rows ``(offset, size, used)``.

    Only what is not finished: the rest of a grant (``used`` 0), or an object being written (``used`` its whole size).
    """

    rows: Rows


class Pinned(NamedTuple):
    """client -> object store, between ``Register`` and ``Ready``. Locations I know: rows ``(object_id, offset, size)``."""

    rows: Rows


class Unpin(NamedTuple):
    """client -> object store. I no longer use the locations of these objects.

    A pin is one telling: an id is listed once for every time a location of it was told to this process (a ``Located`` row passed
    on). So an ``Unpin`` that crosses a new telling releases the old ones only, and nothing is moved under a reader.
    """

    object_ids: Ids


class RecallPins(NamedTuple):
    """object store -> client. Room is short: unpin those of these that no live value of yours uses."""

    object_ids: Ids


class Sealed(NamedTuple):
    """local scheduler -> object store. Objects written: rows ``(object_id, offset, size, writer incarnation, rebuildable)``.

    Said of every location a ``Completed`` or ``Put`` brings, also of those nobody wants (``Free`` follows): the room is the store's from
    here on. The first copy of an object stays; what is told its readers comes from ``Located``, never from the writer.
    """

    rows: Rows


class Absorb(NamedTuple):
    """local scheduler -> object store. Take over these inline values: rows ``(object_id, value, rebuildable)``."""

    rows: Rows


class Locate(NamedTuple):
    """local scheduler -> object store. Pin and tell: rows ``(object_id, process incarnation)``. Spilled ones come back first.

    Every row is answered by one row of ``Located`` or ``ObjectsLost``, and every row of ``Located`` is one pin (see ``Unpin``).
    """

    rows: Rows


class Located(NamedTuple):
    """object store -> local scheduler. Rows ``(object_id, process incarnation, offset, size)``: pinned by that process.

    Each row is told to that process exactly once, also when what it was asked for no longer matters: the process unpins it then.
    """

    rows: Rows


class ObjectsLost(NamedTuple):
    """object store -> local scheduler. Rows ``(object_id, reason)``: no copy is left here.

    ``reason`` is "evicted" (a rebuildable value made room), "missing", or starts with "unreadable:" or "full:" (an inline value that is
    larger than the whole store).
    """

    rows: Rows


class Free(NamedTuple):
    """local scheduler -> object store. Nobody refers to these any more; free each once it is unpinned."""

    object_ids: Ids


class ProcessGone(NamedTuple):
    """local scheduler -> object store. This process's death is proved: its pins and grants are void."""

    incarnation: bytes


class RetainOnly(NamedTuple):
    """local scheduler -> object store, once after a restart. Exactly these are referenced; free all others, and begin."""

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
    """shell -> object store. A file has the disk's room behind it, or (``error`` not empty) could not be made."""

    file: int
    error: str


class ArenaFound(NamedTuple):
    """shell -> object store, first after a restart. Sealed in the arena: ``(object_id, offset, size)``; files: ``(object_id, size, file)``.

    A file that is not known to be whole is listed without an id: a process may still be writing it.
    """

    sealed: Rows
    spilled: Rows
