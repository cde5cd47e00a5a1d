"""Objects: client <-> local scheduler."""

from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_nodes, from_processes
from zfabric.protocol.checks import BOOL, NODE, OBJECT, VALUE, layout, many, optional
from zfabric.protocol.ids import LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import ObjectIds, ObjectRows, Rows


@from_processes(LOCAL_SCHEDULER)
class Put(NamedTuple):
    """client -> local scheduler. New values: rows ``(object_id, value, contained refs, durable)``.

    ``PutCommitted`` answers for durable ones.
    """

    rows: Annotated[Rows, layout(OBJECT, VALUE, many(OBJECT), BOOL)]


class PutCommitted(NamedTuple):
    """local scheduler -> client. These durable values are committed, or (``error`` not empty) could not be."""

    object_ids: ObjectIds
    error: str


@from_processes(LOCAL_SCHEDULER)
class OfferResults(NamedTuple):
    """client -> local scheduler. Results that the client holds: rows ``(object_id, status, value, refs contained)``.

    Sent on registration, and when a result of ``ExpectResults`` arrives. A value that a program has read is not made again.
    """

    rows: ObjectRows


@from_processes(LOCAL_SCHEDULER)
class Hold(NamedTuple):
    """client -> local scheduler. This process has refs to these objects. Idempotent."""

    object_ids: ObjectIds


@from_processes(LOCAL_SCHEDULER)
class Release(NamedTuple):
    """client -> local scheduler. This process no longer has refs to these objects. Idempotent."""

    object_ids: ObjectIds


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class WatchReferences(NamedTuple):
    """client, local scheduler of another node -> local scheduler. Report when nothing in the cluster needs these objects.

    ``Unreferenced`` answers for each. A client's scheduler passes it on to the homes. Idempotent; whoever waits repeats it to a restarted
    daemon. ``former`` is a dead home of which the receiver is to take over, or empty.
    """

    object_ids: ObjectIds
    former: Annotated[bytes, optional(NODE)] = b""


@from_nodes(LOCAL_SCHEDULER)
class Unreferenced(NamedTuple):
    """local scheduler -> client, local scheduler of another node. Nothing needs these objects any more.

    To another scheduler it means: nothing that the sender knows of, which may not be the home.
    """

    object_ids: ObjectIds


@from_processes(LOCAL_SCHEDULER)
class Fetch(NamedTuple):
    """client, transfer agent -> local scheduler. Request these objects. ``Objects`` answers for each as soon as it exists."""

    object_ids: ObjectIds


class Objects(NamedTuple):
    """local scheduler -> client, transfer agent. Requested values: rows ``(object_id, status, value, refs contained)``.

    A place in the arena is pinned for this process.
    """

    rows: ObjectRows
