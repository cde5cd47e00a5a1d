"""The arena: client <-> object store, local scheduler <-> object store.

A place is the offset of an object's payload in the arena. A negative offset stands for a file of the node's spill directory, in which a
value is written and read while the arena has no room (``zfabric.machines.common.extents``). A transfer agent is a client of its store.
"""

from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_processes
from zfabric.protocol.checks import INT, OBJECT, layout
from zfabric.protocol.ids import OBJECT_STORE
from zfabric.protocol.messages.rows import ObjectIds, Rows


@from_processes(OBJECT_STORE)
class Reserve(NamedTuple):
    """client, transfer agent -> object store. Request room for an object of ``size`` bytes, and wait for it up to ``patience`` seconds.

    The store adds room for the header. ``wish`` is the preferred size of a range for further objects; 0 requests room for this one only.
    """

    token: int
    size: int
    wish: int
    patience: float


class Granted(NamedTuple):
    """object store -> client, transfer agent. The receiver may write the range ``offset … offset + size`` of the arena.

    A single object's room may be a file (``offset`` is negative), if the arena cannot get room.
    """

    token: int
    offset: int
    size: int


class NoSpace(NamedTuple):
    """object store -> client, transfer agent. No grant. ``kind`` is "too_large", "full" or "memory"; ``text`` is advice to the user.

    "alone" refuses a range only: request room for the one object (``wish`` 0), which may be a file.
    """

    token: int
    kind: str
    text: str


@from_processes(OBJECT_STORE)
class ReturnGrant(NamedTuple):
    """client, transfer agent -> object store. No more is written into the grant at ``offset``; past ``used`` bytes it is empty.

    ``gaps`` are empty ranges ``(offset, size)`` before.
    """

    offset: int
    used: int
    gaps: Annotated[Rows, layout(INT, INT)] = ()


class RecallGrant(NamedTuple):
    """object store -> client, transfer agent. Return the idle grant at ``offset`` if possible. It goes to the control socket."""

    offset: int


@from_processes(OBJECT_STORE)
class GrantsHeld(NamedTuple):
    """client -> object store. On registration: the unfinished grants, rows ``(offset, size, used)``.

    ``used`` is 0 for the rest of a grant, and the whole size for an object being written.
    """

    rows: Annotated[Rows, layout(INT, INT, INT)]


@from_processes(OBJECT_STORE)
class Pinned(NamedTuple):
    """client -> object store. On registration: the sender's pins, rows ``(object_id, offset, size)``."""

    rows: Annotated[Rows, layout(OBJECT, INT, INT)]


@from_processes(OBJECT_STORE)
class Unpin(NamedTuple):
    """client, transfer agent, local scheduler -> object store. Release a pin for each id listed.

    Each ``Located`` row that reached the process is one pin. So an ``Unpin`` that crosses a ``Located`` releases older pins only, and
    nothing moves under a reader.
    """

    object_ids: ObjectIds


class RecallPins(NamedTuple):
    """object store -> client, transfer agent. The arena is short of room.

    Unpin each of these objects that no live value of the process uses.
    """

    object_ids: ObjectIds


class Sealed(NamedTuple):
    """local scheduler -> object store. Objects written: rows ``(object_id, offset, size, writer incarnation, rebuildable)``.

    Sent for every place in a ``Completed`` or ``Put``, needed or not (``Free`` follows): the room is now the store's. Of two copies the
    first stays: readers get its place from ``Located`` alone.
    """

    rows: Rows


class Absorb(NamedTuple):
    """local scheduler -> object store. Take over these inline values: rows ``(object_id, value, rebuildable)``."""

    rows: Rows


class Locate(NamedTuple):
    """local scheduler -> object store. Pin objects and answer with their places: rows ``(object_id, process incarnation)``.

    Spilled objects are restored first. One row of ``Located``, which is one pin, or of ``ObjectsLost`` answers each.
    """

    rows: Rows


class Located(NamedTuple):
    """object store -> local scheduler. Rows ``(object_id, process incarnation, offset, size)``: pinned by that process.

    The scheduler sends each row to that process exactly once, needed or not; the process unpins it.
    """

    rows: Rows


class ObjectsLost(NamedTuple):
    """object store -> local scheduler. Rows ``(object_id, reason)``: no copy is left here.

    ``reason`` is "evicted" (rebuildable, dropped to make room) or "missing", or begins with "unreadable:" or with "full:" (an inline value
    larger than the store).
    """

    rows: Rows


class StoreRoom(NamedTuple):
    """object store -> local scheduler. The free room of the arena in bytes, less what processes wait for; -1: more than half is free.

    Sent after a change by a sixteenth of the arena, for tasks that only produce and may wait (``Backpressure``). Both
    are in one daemon, so none is lost.
    """

    free: int


class Free(NamedTuple):
    """local scheduler -> object store. Nobody refers to these objects any more; free each once it is unpinned."""

    object_ids: ObjectIds


class Protect(NamedTuple):
    """local scheduler -> object store. These objects cannot be made again any more: spill them instead of dropping them."""

    object_ids: ObjectIds


class ProcessGone(NamedTuple):
    """local scheduler -> object store, global scheduler. This process is proved dead: its pins and grants are void.

    To the global scheduler: this node is dead.
    """

    incarnation: bytes


class RetainOnly(NamedTuple):
    """local scheduler -> object store. Once after a restart: begin, and free all objects but these, to which processes refer."""

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
    """shell -> object store. The file exists, with disk space behind all of it, or (``error`` not empty) could not be made."""

    file: int
    error: str


class ArenaFound(NamedTuple):
    """shell -> object store, local scheduler. The first message after a restart: what the arena and the spill directory have.

    ``sealed`` are rows ``(object_id, offset, size)``, ``spilled`` rows ``(object_id, size, file)``, with an empty id for a file that a
    process may still be writing. ``inside`` are rows ``(object_id, refs inside)``.
    """

    sealed: Rows
    spilled: Rows
    inside: Rows = ()
