"""The transfer channel: copies of large values from node to node.

A local scheduler asks its node's transfer agent, the *reader*, for a value. The reader asks the agent of a node with a complete copy, the
*source*. No link repairs what is lost, repeated or late between agents: the reader decides by what it has received. A *want* is a request
for one value, under a token of its reader. The bytes of a chunk follow its message, and are no part of it.
"""

from typing import NamedTuple

from zfabric.protocol.access import from_agents, from_processes
from zfabric.protocol.ids import LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import Count, Ids, NodeId, ObjectId


class Pull(NamedTuple):
    """local scheduler -> transfer agent. Copy an object of ``size`` bytes from one of ``sources``, in order of preference.

    ``Pulled`` or ``PullFailed`` answers. A repeated pull only replaces the sources. After a failure because no source had the object, the
    next pull begins after a pause.
    """

    object_id: bytes
    size: int
    sources: Ids


class StopPull(NamedTuple):
    """local scheduler -> transfer agent. Nobody needs this copy any more. ``Pulled`` may be under way already."""

    object_id: bytes


@from_processes(LOCAL_SCHEDULER)
class Pulled(NamedTuple):
    """transfer agent -> local scheduler. The object is here, whole and sealed, in room granted to the agent, as in a ``Put``."""

    object_id: bytes
    offset: int
    size: int


@from_processes(LOCAL_SCHEDULER)
class PullFailed(NamedTuple):
    """transfer agent -> local scheduler. The object cannot be copied. ``text`` is shown to users.

    ``kind`` is "lost" (no source has it), "too_large", "full" or "memory" (as in ``NoSpace``), "disk" (the bytes cannot be written), or
    "busy" (too many pulls).
    """

    object_id: bytes
    kind: str
    text: str


@from_agents
class Want(NamedTuple):
    """reader -> source. Send the bytes of this object from ``position`` up to ``limit``.

    A repeated want begins at ``position`` again. It replaces any earlier want of the reader for the object.
    """

    token: Count
    object_id: ObjectId
    size: Count
    position: Count
    limit: Count


@from_agents
class Credit(NamedTuple):
    """reader -> source. The reader has room for the object up to ``limit``."""

    token: Count
    limit: Count


@from_agents
class StopWant(NamedTuple):
    """reader -> source. Send nothing more. ``complete``: the reader has the whole object, which has more than one chunk."""

    token: Count
    complete: bool


@from_agents
class Chunk(NamedTuple):
    """source -> reader. The ``size`` bytes from ``position`` on, which follow this message."""

    token: Count
    position: Count
    size: Count


@from_agents
class Queued(NamedTuple):
    """source -> reader. The want waits: other readers are served first."""

    token: Count


@from_agents
class Redirect(NamedTuple):
    """source -> reader. ``node`` has a complete copy and fewer readers: ask it instead. The source has dropped the want."""

    token: Count
    node: NodeId


@from_agents
class Unavailable(NamedTuple):
    """source -> reader. There is no copy of the object here."""

    token: Count
    reason: str


@from_processes(LOCAL_SCHEDULER)
class PeersSilent(NamedTuple):
    """transfer agent -> local scheduler -> member. The agent asked these nodes for values, and had no answer for ``pair_patience``."""

    nodes: Ids


@from_agents
class Ping(NamedTuple):
    """transfer agent -> transfer agent. Sent while all pairs are probed. ``Pong`` is the answer; a lost ping is repeated."""

    number: Count


@from_agents
class Pong(NamedTuple):
    """transfer agent -> transfer agent. The answer to ``Ping``."""

    number: Count


class ChunkSent(NamedTuple):
    """shell -> transfer agent. The bytes of one chunk of this object have left the arena, or will never be sent."""

    object_id: bytes


class ChunkFailed(NamedTuple):
    """shell -> transfer agent. The bytes of one chunk of this object cannot be read."""

    object_id: bytes
    error: str


class ValueSealed(NamedTuple):
    """shell -> transfer agent. This object is written and sealed, or (``error`` not empty) could not be."""

    object_id: bytes
    error: str
