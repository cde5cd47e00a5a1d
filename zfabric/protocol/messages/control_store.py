"""The control store."""

from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_nodes
from zfabric.protocol.checks import BYTES, STR, MalformedFrame, layout, short_bytes
from zfabric.protocol.ids import CONTROL_STORE, LOCAL_SCHEDULER, OBJECT_BYTES
from zfabric.protocol.messages.rows import Count, Ids, Rows


@from_nodes(CONTROL_STORE)
class Write(NamedTuple):
    """local scheduler, registry -> control store. Put rows ``(table, key, value)`` and delete rows ``(table, key)``.

    ``token`` 0 requests no answer. With a token, ``Written`` follows the commit, which does not wait for a batch to fill. Without rows it
    is a barrier: answered once all before it is committed.
    """

    token: int
    puts: Annotated[Rows, layout(STR, BYTES, BYTES)]
    deletes: Annotated[Rows, layout(STR, BYTES)]


@from_nodes(CONTROL_STORE)
class DeleteRows(NamedTuple):
    """local scheduler -> control store. Delete the rows of ``table`` with ``start`` <= key < ``end``, also those whose commit is under way.

    ``Written`` answers, unless ``token`` is 0. Idempotent.
    """

    token: Count
    table: str
    start: Annotated[bytes, short_bytes(OBJECT_BYTES)]
    end: Annotated[bytes, short_bytes(OBJECT_BYTES)]


@from_nodes(LOCAL_SCHEDULER)
class Written(NamedTuple):
    """control store -> local scheduler, registry. The write is committed, or (``ok`` is False) refused.

    Its condition failed, or the store is read-only (``text``).
    """

    token: Count
    ok: bool
    text: str


class Create(NamedTuple):
    """local scheduler -> control store. Put the row only if its key is free. ``Written`` answers; ``ok`` is False if the key exists.

    If the key has this value already, the request came twice, and ``ok`` is True. So the value must name its creator.
    """

    token: int
    table: str
    key: bytes
    value: bytes


class Swap(NamedTuple):
    """local scheduler -> control store. Put the row only if the key's value is ``expected`` (None: absent), or the new one already.

    ``Written`` answers.
    """

    token: int
    table: str
    key: bytes
    expected: bytes | None
    value: bytes


@from_nodes(CONTROL_STORE)
class NewJob(NamedTuple):
    """local scheduler -> control store. Request the next job number, durably counted.

    ``JobNumber`` answers; ``Written`` with ``ok`` False if the store cannot write.
    """

    token: Count


@from_nodes(LOCAL_SCHEDULER)
class JobNumber(NamedTuple):
    """control store -> local scheduler. A number that no other job has; it is committed."""

    token: Count
    number: Count


READ_MAX = 1000
"""Most rows that one ``Read`` requests."""


def _check_number(keys: Ids) -> None:
    if len(keys) > READ_MAX:
        raise MalformedFrame(f"at most {READ_MAX} keys")


@from_nodes(CONTROL_STORE)
class Read(NamedTuple):
    """local scheduler -> control store. Request the rows of ``table`` under these keys. ``Found`` answers, without absent keys."""

    token: Count
    table: str
    keys: Annotated[Ids, BYTES, _check_number]


class Scan(NamedTuple):
    """local scheduler, registry -> control store. Request up to ``limit`` rows of ``table``, in key order.

    Their keys start with ``prefix`` and are after ``after``. ``Found`` answers.
    """

    token: int
    table: str
    prefix: bytes
    after: bytes
    limit: int


@from_nodes(LOCAL_SCHEDULER)
class Found(NamedTuple):
    """control store -> local scheduler, registry. Rows ``(key, value)``; ``more``: a ``Scan`` stopped at its limit."""

    token: int
    rows: Rows
    more: bool


class ReadBlocks(NamedTuple):
    """local scheduler -> control store. Request the rows of these tasks, which are stored in blocks.

    ``Found`` answers with rows ``(task_id, task row)``, without absent ids.
    """

    token: int
    task_ids: Ids


class Committed(NamedTuple):
    """shell -> control store. Transactions up to ``sequence`` are durable, or (``error`` not empty) were rolled back."""

    sequence: int
    error: str
