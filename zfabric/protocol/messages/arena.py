"""The arena: client <-> object store, local scheduler <-> object store.

A place is the offset of an object's payload in the arena. A negative offset stands for a file of the node's spill directory, in which a
value is written and read while the arena has no room (``zfabric.machines.common.extents``).
"""

from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_processes
from zfabric.protocol.checks import INT, OBJECT, layout
from zfabric.protocol.ids import OBJECT_STORE
from zfabric.protocol.messages.rows import ObjectIds, Rows


@from_processes(OBJECT_STORE)
class Reserve(NamedTuple):
    """client -> object store. Request room for an object of ``size`` bytes, and wait for it up to ``patience`` seconds.

    The store adds room for the header. ``wish`` is the preferred size of a range in which the client places further objects, too; 0
    requests room for this object only.
    """

    token: int
    size: int
    wish: int
    patience: float


class Granted(NamedTuple):
    """object store -> client. The client may write the range ``offset … offset + size`` of the arena.

    Room for one object may be a file (``offset`` is negative): the arena has no room then, and cannot get any.
    """

    token: int
    offset: int
    size: int


class NoSpace(NamedTuple):
    """object store -> client. No grant. ``kind`` is "too_large", "full" or "memory"; ``text`` says what to do.

    A ``kind`` of "alone" refuses a range only: request room for the one object (``wish`` 0), which may be a file.
    """

    token: int
    kind: str
    text: str


@from_processes(OBJECT_STORE)
class ReturnGrant(NamedTuple):
    """client -> object store. The client writes no more into the grant at ``offset``; past ``used`` bytes it is empty.

    ``gaps`` are rows ``(offset, size)`` of empty ranges before that, where writes were abandoned.
    """

    offset: int
    used: int
    gaps: Annotated[Rows, layout(INT, INT)] = ()


class RecallGrant(NamedTuple):
    """object store -> client control. Return the idle grant at ``offset`` if possible."""

    offset: int


@from_processes(OBJECT_STORE)
class GrantsHeld(NamedTuple):
    """client -> object store, between ``Register`` and ``Ready``. The client's grants: rows ``(offset, size, used)``.

    Only unfinished grants are listed: the rest of a grant (``used`` is 0), or an object being written (``used`` is its whole size).
    """

    rows: Annotated[Rows, layout(INT, INT, INT)]


@from_processes(OBJECT_STORE)
class Pinned(NamedTuple):
    """client -> object store, between ``Register`` and ``Ready``. The client's pins: rows ``(object_id, offset, size)``."""

    rows: Annotated[Rows, layout(OBJECT, INT, INT)]


@from_processes(OBJECT_STORE)
class Unpin(NamedTuple):
    """client -> object store. Release pins of these objects.

    Each ``Located`` row that reached this process is one pin, and an id is listed here once for each pin. So an ``Unpin``
    that crosses a new ``Located`` releases the older pins only, and nothing is moved under a reader.
    """

    object_ids: ObjectIds


class RecallPins(NamedTuple):
    """object store -> client. The arena is short of room: unpin each of these objects that no live value of the process uses."""

    object_ids: ObjectIds


class Sealed(NamedTuple):
    """local scheduler -> object store. Objects written: rows ``(object_id, offset, size, writer incarnation, rebuildable)``.

    It is sent for every place in a ``Completed`` or ``Put``, since the room belongs to the store from here on. Objects that nobody needs
    are included, and ``Free`` follows for them. If an object is written twice, the first copy stays. Readers get its place from
    ``Located``, never from the writer.
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

    ``reason`` is "evicted" (a rebuildable value was dropped to make room) or "missing", or begins with "unreadable:" or with "full:" (an
    inline value is larger than the whole store).
    """

    rows: Rows


class StoreRoom(NamedTuple):
    """object store -> local scheduler. The free room of the arena in bytes, less what processes wait for; -1: more than half is free.

    It is sent when that has changed by a sixteenth of the arena, and tasks that only produce may wait for room (``Backpressure``).
    The two are in one daemon, so none is lost; a later daemon begins anew.
    """

    free: int


class Free(NamedTuple):
    """local scheduler -> object store. Nobody refers to these objects any more; free each once it is unpinned."""

    object_ids: ObjectIds


class Protect(NamedTuple):
    """local scheduler -> object store. These objects cannot be made again any more: they are spilled, and no longer dropped."""

    object_ids: ObjectIds


class ProcessGone(NamedTuple):
    """local scheduler -> object store. This process is proved dead: its pins and grants are void."""

    incarnation: bytes


class RetainOnly(NamedTuple):
    """local scheduler -> object store, once after a restart. Begin, and free all objects but these, to which processes refer."""

    object_ids: ObjectIds


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
    """shell -> object store. The object's bytes are back in the arena, or all of them on disk, or (``error`` not empty) unreadable."""

    object_id: bytes
    error: str


class FileReady(NamedTuple):
    """shell -> object store. The file exists, with disk space behind all of it; or (``error`` not empty) could not be made."""

    file: int
    error: str


class ArenaFound(NamedTuple):
    """shell -> object store. The first message after a restart: what the arena and the spill directory have.

    ``sealed`` are rows ``(object_id, offset, size)``, ``spilled`` rows ``(object_id, size, file)``. A file that may be incomplete has an
    empty id: a process may still be writing it. ``inside`` are rows ``(object_id, refs inside)`` of those that contain refs.
    """

    sealed: Rows
    spilled: Rows
    inside: Rows = ()
