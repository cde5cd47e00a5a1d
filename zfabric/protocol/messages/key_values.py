"""The key-value store of the cluster: local scheduler <-> control store of the head.

``writer`` is ``(job, home of the job, process, number, oldest)``: the number of the process's request, and of its oldest one without an
answer. Requests are repeated to the head's next daemon: the second changes nothing, and has the answer of the first. That is ``KeyAnswer``,
with the payload named here.
"""

from typing import Annotated, NamedTuple, TypeAlias

from zfabric.config import MiB
from zfabric.protocol.access import from_nodes
from zfabric.protocol.checks import COUNT, INCARNATION, JOB, NODE, SIZE_MAX, MalformedFrame, row, short_bytes, short_text, within
from zfabric.protocol.ids import CONTROL_STORE, LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import Count, JobId, Row

KEY_LENGTH_MAX = 4096
"""Most bytes of a key."""
NAMESPACE_LENGTH_MAX = 200
"""Most bytes of a namespace in UTF-8: it is a part of keys of the control store, which are short."""
PART_BYTES = MiB
"""Bytes of each part of a value but the last one. A value of one part is sent with its key."""

Writer: TypeAlias = Annotated[Row, row(JOB, NODE, INCARNATION, COUNT, COUNT)]
Namespace: TypeAlias = Annotated[str, short_text(NAMESPACE_LENGTH_MAX)]
Key: TypeAlias = Annotated[bytes, short_bytes(KEY_LENGTH_MAX)]
Part: TypeAlias = Annotated[bytes, short_bytes(PART_BYTES)]


@from_nodes(CONTROL_STORE)
class PutKey(NamedTuple):
    """local scheduler -> control store. Store a value under a key, unless ``overwrite`` is false and the key exists.

    The value is ``value``, or the parts of upload ``upload`` if that is not 0. With ``keep``, the key outlives its job. The payload is
    ``(whether it was stored, whether the key existed)``.
    """

    token: Count
    writer: Writer
    namespace: Namespace
    key: Key
    value: Part
    upload: Count
    overwrite: bool
    keep: bool


@from_nodes(CONTROL_STORE)
class PutPart(NamedTuple):
    """local scheduler -> control store. Part ``place`` (from 0) of a value of ``size`` bytes; ``PutKey`` follows once all are durable.

    The number of ``writer`` is that of the upload. The payload is empty.
    """

    token: Count
    writer: Writer
    place: Count
    size: Count
    part: Part

    def check(self) -> None:
        """Check that the part is as long as its place says."""
        if not 0 < len(self.part) == min(PART_BYTES, self.size - self.place * PART_BYTES):
            raise MalformedFrame(f"each part of a value has {PART_BYTES} bytes, the last one those that are left")


@from_nodes(CONTROL_STORE)
class DropUpload(NamedTuple):
    """local scheduler -> control store. The parts under the number of ``writer`` will not be a value. The payload is empty."""

    token: Count
    writer: Writer


@from_nodes(CONTROL_STORE)
class DeleteKeys(NamedTuple):
    """local scheduler -> control store. Delete a key, or (``by_prefix``) keys that begin so, a bounded number at a time.

    The payload is ``(keys deleted, whether there are more)``.
    """

    token: Count
    writer: Writer
    namespace: Namespace
    key: Key
    by_prefix: bool


@from_nodes(CONTROL_STORE)
class GetKey(NamedTuple):
    """local scheduler -> control store. Request part ``place`` of a key's value; none of it if negative.

    The payload is ``(version, size, part)``, or empty if the key is absent or has another ``version`` (empty: any).
    """

    token: Count
    namespace: Namespace
    key: Key
    version: bytes
    place: Annotated[int, within(-1, SIZE_MAX - 1)]


@from_nodes(CONTROL_STORE)
class ListKeys(NamedTuple):
    """local scheduler -> control store. Request keys of a namespace that begin with ``prefix`` and follow ``after`` (empty: all).

    The payload is ``(keys, whether there are more)``.
    """

    token: Count
    namespace: Namespace
    prefix: Key
    after: Key


@from_nodes(CONTROL_STORE)
class EndKeys(NamedTuple):
    """local scheduler -> control store. A job has ended: delete its keys, except those put with ``keep=True``. ``Written`` answers."""

    token: Count
    job: JobId


@from_nodes(LOCAL_SCHEDULER)
class KeyAnswer(NamedTuple):
    """control store -> local scheduler. The answer to a request about keys, or the name of an ``error`` and its text.

    After a rollback, ``Written`` answers instead.
    """

    token: Count
    payload: Row
    error: str
    text: str
