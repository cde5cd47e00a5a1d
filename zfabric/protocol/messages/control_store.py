"""The control store."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Rows


class Write(NamedTuple):
    """any -> control store. Puts ``(table, key, value)`` and deletes ``(table, key)``; ``token`` 0 requests no answer.

    With a token, ``Written`` follows the commit, and the commit does not wait for a batch to fill. A ``Write`` without rows
    is a barrier: it is answered once everything before it is committed.
    """

    token: int
    puts: Rows
    deletes: Rows


class DeleteRows(NamedTuple):
    """any -> control store. Delete the rows of ``table`` whose keys are at least ``start`` and less than ``end``. ``Written`` answers.

    It covers rows whose commit is under way. ``token`` 0 requests no answer. To repeat it does no harm.
    """

    token: int
    table: str
    start: bytes
    end: bytes


class Written(NamedTuple):
    """control store -> writer. The write is committed. ``ok`` is False where a condition failed or the store is read-only; ``text`` says
    which.
    """

    token: int
    ok: bool
    text: str


class Create(NamedTuple):
    """any -> control store. Put the row only if its key is free. ``Written`` answers; ``ok`` is False if the key exists.

    If the same row is there already, it counts as put (the request came twice). So the value must name its creator.
    """

    token: int
    table: str
    key: bytes
    value: bytes


class Swap(NamedTuple):
    """any -> control store. Put the row only if the key's value is ``expected`` (None: absent). ``Written`` answers.

    If the row has the new value already, it counts as put (the request came twice).
    """

    token: int
    table: str
    key: bytes
    expected: bytes | None
    value: bytes


class NewJob(NamedTuple):
    """local scheduler -> control store. Request the next job number, durably counted. ``JobNumber`` answers.

    A store that cannot write answers with ``Written``, this token and ``ok`` False.
    """

    token: int


class JobNumber(NamedTuple):
    """control store -> local scheduler. A number that no other job has; it is committed."""

    token: int
    number: int


class Read(NamedTuple):
    """any -> control store. Request the rows of ``table`` under these keys. ``Found`` answers; absent keys are left out."""

    token: int
    table: str
    keys: Ids


class Scan(NamedTuple):
    """any -> control store. Up to ``limit`` rows of ``table`` whose keys start with ``prefix``, after ``after``, in key order."""

    token: int
    table: str
    prefix: bytes
    after: bytes
    limit: int


class Found(NamedTuple):
    """control store -> asker. Rows ``(key, value)``; ``more`` says that a ``Scan`` stopped at its limit."""

    token: int
    rows: Rows
    more: bool


class ReadBlocks(NamedTuple):
    """local scheduler -> control store. Request the task rows of these task ids, out of their blocks.

    ``Found`` answers, with rows ``(task_id, task row)``; ids that are not stored are left out.
    """

    token: int
    task_ids: Ids


class Committed(NamedTuple):
    """shell -> control store. Transactions up to ``sequence`` are durable, or (``error`` not empty) were rolled back."""

    sequence: int
    error: str
