"""The key-value store of the cluster: local scheduler <-> control store of the head.

``writer`` of a message is ``(job, home of the job, process, number, oldest)``. ``number`` is that of the request among those of the
process, and ``oldest`` the number of its oldest request without an answer. A request may come twice, since it is repeated to the next
daemon of the head: the second one changes nothing, and has the answer of the first.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.config import MiB
from zfabric.protocol.access import from_nodes
from zfabric.protocol.ids import CONTROL_STORE, LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import Row

KEY_LENGTH_MAX = 4096
"""Most bytes of a key."""
NAMESPACE_LENGTH_MAX = 200
"""Most bytes of a namespace in UTF-8: it is a part of keys of the control store, which are short."""
PART_BYTES = MiB
"""Bytes of each part of a value but the last one. A value of one part is sent with its key."""


@from_nodes(CONTROL_STORE)
class PutKey(NamedTuple):
    """local scheduler -> control store. Store a value under a key, unless ``overwrite`` is false and the key exists.

    The value is ``value``, or, if ``upload`` is not 0, the parts that were sent under this number. ``keep`` says that the key outlives its
    job. The payload of ``KeyAnswer`` is ``(whether it was stored, whether the key existed)``.
    """

    token: int
    writer: Row
    namespace: str
    key: bytes
    value: bytes
    upload: int
    overwrite: bool
    keep: bool


@from_nodes(CONTROL_STORE)
class PutPart(NamedTuple):
    """local scheduler -> control store. Part ``place`` (from 0) of a value of ``size`` bytes; ``PutKey`` follows once all are durable.

    The number of ``writer`` is that of the upload. The payload of ``KeyAnswer`` is empty.
    """

    token: int
    writer: Row
    place: int
    size: int
    part: bytes


@from_nodes(CONTROL_STORE)
class DropUpload(NamedTuple):
    """local scheduler -> control store. The parts under the number of ``writer`` will not be a value. The payload is empty."""

    token: int
    writer: Row


@from_nodes(CONTROL_STORE)
class DeleteKeys(NamedTuple):
    """local scheduler -> control store. Delete a key, or (``by_prefix``) keys that begin so, a bounded number at a time.

    The payload of ``KeyAnswer`` is ``(keys deleted, whether there are more)``.
    """

    token: int
    writer: Row
    namespace: str
    key: bytes
    by_prefix: bool


@from_nodes(CONTROL_STORE)
class GetKey(NamedTuple):
    """local scheduler -> control store. Request part ``place`` of a key's value; of none if it is negative.

    The payload of ``KeyAnswer`` is ``(version, size, part)``. It is empty if the key is absent, or has another ``version`` than this one
    (empty: any).
    """

    token: int
    namespace: str
    key: bytes
    version: bytes
    place: int


@from_nodes(CONTROL_STORE)
class ListKeys(NamedTuple):
    """local scheduler -> control store. Request keys of a namespace that begin with ``prefix`` and follow ``after`` (empty: all).

    The payload of ``KeyAnswer`` is ``(keys, whether there are more)``.
    """

    token: int
    namespace: str
    prefix: bytes
    after: bytes


@from_nodes(CONTROL_STORE)
class EndKeys(NamedTuple):
    """local scheduler -> control store. A job has ended: its keys are deleted, except those put with ``keep=True``. ``Written`` answers."""

    token: int
    job: bytes


@from_nodes(LOCAL_SCHEDULER)
class KeyAnswer(NamedTuple):
    """control store -> local scheduler. The answer to a request about keys, or the name of an ``error`` and its text.

    If the transaction was rolled back, ``Written`` says so instead.
    """

    token: int
    payload: Row
    error: str
    text: str
