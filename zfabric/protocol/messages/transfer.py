"""The transfer channel: copies of large values from node to node.

A local scheduler asks its node's transfer agent for a value, and the agent asks that of a node with a complete copy. The reader decides
all: what it has received is in its own tables. So messages between agents may be lost, repeated or late, and there is no link to repair
that. The agent that asks is the *reader*, the other one the *source*. A *want* is one request for one value, under a token of its reader.
The bytes of a chunk travel behind its message and are no part of it.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids


class Pull(NamedTuple):
    """local scheduler -> transfer agent. Copy an object of ``size`` bytes from one of the nodes ``sources``, in order of preference.

    ``Pulled`` or ``PullFailed`` is the answer. If the agent has this pull already, only its sources are replaced. A pull that has failed
    for want of a source is begun again after a pause only.
    """

    object_id: bytes
    size: int
    sources: Ids


class StopPull(NamedTuple):
    """local scheduler -> transfer agent. Nobody needs this copy any more. ``Pulled`` may have been sent by then."""

    object_id: bytes


class Pulled(NamedTuple):
    """transfer agent -> local scheduler. The object is here, whole and sealed, in room that was granted to the agent, as in a ``Put``."""

    object_id: bytes
    offset: int
    size: int


class PullFailed(NamedTuple):
    """transfer agent -> local scheduler. The object cannot be copied.

    ``kind`` is "lost" (no source has it), "too_large", "full" or "memory" (as in ``NoSpace``), "disk" (the bytes cannot be written), or
    "busy" (too many pulls). ``text`` is for people.
    """

    object_id: bytes
    kind: str
    text: str


class Want(NamedTuple):
    """reader -> source. Send this object from ``position`` on, up to ``limit``: both are bytes of it.

    A repeated want begins at ``position`` again. One for an object that the reader wants already replaces the earlier one.
    """

    token: int
    object_id: bytes
    size: int
    position: int
    limit: int


class Credit(NamedTuple):
    """reader -> source. The reader has room for the object up to ``limit``."""

    token: int
    limit: int


class StopWant(NamedTuple):
    """reader -> source. Send nothing more. ``complete``: the reader has the whole object, of several chunks: of one, the source knows."""

    token: int
    complete: bool


class Chunk(NamedTuple):
    """source -> reader. The ``size`` bytes from ``position`` on, which follow this message."""

    token: int
    position: int
    size: int


class Queued(NamedTuple):
    """source -> reader. Others are served first."""

    token: int


class Redirect(NamedTuple):
    """source -> reader. That node has a complete copy and fewer readers; this want is dropped here."""

    token: int
    node: bytes


class Unavailable(NamedTuple):
    """source -> reader. There is no copy of the object here."""

    token: int
    reason: str


class PeersSilent(NamedTuple):
    """transfer agent -> local scheduler -> member. These nodes were asked for values, and have not answered for ``pair_patience``."""

    nodes: Ids


class Ping(NamedTuple):
    """transfer agent -> transfer agent. Answer: all pairs are probed. Lost pings are repeated."""

    number: int


class Pong(NamedTuple):
    """transfer agent -> transfer agent. The answer to ``Ping``."""

    number: int


class ChunkSent(NamedTuple):
    """shell -> transfer agent. The bytes of one chunk of this object have left the arena, or will never be sent."""

    object_id: bytes


class ChunkFailed(NamedTuple):
    """shell -> transfer agent. The bytes of one chunk of this object cannot be read."""

    object_id: bytes
    error: str


class ValueSealed(NamedTuple):
    """shell -> transfer agent. All bytes of this object are written, and it is sealed; or (``error`` not empty) they could not be."""

    object_id: bytes
    error: str
