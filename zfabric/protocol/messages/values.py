"""Objects: client <-> local scheduler."""

from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_nodes, from_processes
from zfabric.protocol.checks import BOOL, NODE, OBJECT, VALUE, layout, many, optional
from zfabric.protocol.ids import LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import ObjectIds, ObjectRows, Rows


@from_processes(LOCAL_SCHEDULER)
class Put(NamedTuple):
    """client -> local scheduler. New values: rows ``(object_id, value, contained refs, durable)``.

    ``PutCommitted`` answers for the durable ones, after their commit.
    """

    rows: Annotated[Rows, layout(OBJECT, VALUE, many(OBJECT), BOOL)]


class PutCommitted(NamedTuple):
    """local scheduler -> client. These durable values are committed, or (``error`` not empty) could not be."""

    object_ids: ObjectIds
    error: str


@from_processes(LOCAL_SCHEDULER)
class OfferResults(NamedTuple):
    """client -> local scheduler. Results that the client holds: rows ``(object_id, status, value, refs contained)``.

    It is sent between ``Register`` and ``Ready``, and when a result arrives that was announced by ``ExpectResults``. The scheduler
    accepts the results as they are: a value that a program has read is not made again.
    """

    rows: ObjectRows


@from_processes(LOCAL_SCHEDULER)
class Hold(NamedTuple):
    """client -> local scheduler. This process now has refs to these objects. Idempotent: holders are a set."""

    object_ids: ObjectIds


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class Release(NamedTuple):
    """client -> local scheduler. This process no longer has refs to these objects. Idempotent."""

    object_ids: ObjectIds


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class WatchReferences(NamedTuple):
    """client, local scheduler -> local scheduler. Report when nothing in the cluster needs these objects any more.

    ``Unreferenced`` is the answer for each. A client sends it to the scheduler of its node, and that one to the homes of the objects.
    Idempotent; whoever waits for an answer repeats it to a restarted daemon. ``former`` is a node that was the home and has died, if the
    receiver is to take over from it.
    """

    object_ids: ObjectIds
    former: Annotated[bytes, optional(NODE)] = b""


@from_nodes(LOCAL_SCHEDULER)
class Unreferenced(NamedTuple):
    """local scheduler -> client, local scheduler. Nothing needs these objects any more.

    To another scheduler it means: nothing that the sender knows of. The sender may not be the home of the objects.
    """

    object_ids: ObjectIds


@from_processes(LOCAL_SCHEDULER)
class Fetch(NamedTuple):
    """client -> local scheduler. Request these objects. ``Objects`` is the answer for each, as soon as it exists."""

    object_ids: ObjectIds


class Objects(NamedTuple):
    """local scheduler -> client. Requested values: rows ``(object_id, status, value, refs contained)``.

    A value may be a place in the arena, which is then pinned for this process.
    """

    rows: ObjectRows
