"""Control store."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Rows


class Write(NamedTuple):
    """any -> control store. Puts ``(table, key, value)`` and deletes ``(table, key)``; ``token`` 0 wants no answer.

    With a token, ``Written`` follows the commit, and the commit does not wait for a batch to fill. A ``Write`` without rows
    is a barrier: it is answered once all that came before it is committed.
    """

    token: int
    puts: Rows
    deletes: Rows


class Written(NamedTuple):
    """control store -> writer. Committed. ``ok`` is False where a condition failed or the store is read-only; ``text`` says which."""

    token: int
    ok: bool
    text: str


class Create(NamedTuple):
    """any -> control store. Put the row only if its key is free. Answered with ``Written``; ``ok`` is False if it exists.

    The very same row there already counts as put (the request came twice): put into the value who creates it.
    """

    token: int
    table: str
    key: bytes
    value: bytes


class Swap(NamedTuple):
    """any -> control store. Put the row only if the key's value is ``expected`` (None: absent). Answered with ``Written``.

    A row that has the new value already counts as put (the request came twice).
    """

    token: int
    table: str
    key: bytes
    expected: bytes | None
    value: bytes


class NewJob(NamedTuple):
    """local scheduler -> control store. The next job number, durably counted. Answered with ``JobNumber``.

    A store that cannot write answers ``Written`` with this token and ``ok`` False.
    """

    token: int


class JobNumber(NamedTuple):
    """control store -> local scheduler. The number is yours alone; it is committed."""

    token: int
    number: int


class Read(NamedTuple):
    """any -> control store. The rows of ``table`` under these keys. Answered with ``Found``; absent keys are left out."""

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
    """local scheduler -> control store. The task rows of these task ids, out of their blocks.

    Answered with ``Found``, whose rows are ``(task_id, task row)``; ids that are not kept are left out.
    """

    token: int
    task_ids: Ids


class Subscribe(NamedTuple):
    """any -> control store. Keep me told of ``table`` rows that start with ``prefix``: a ``Snapshot`` now, then ``Publication``."""

    subscription: int
    table: str
    prefix: bytes


class Unsubscribe(NamedTuple):
    """any -> control store. No more of this subscription."""

    subscription: int


class Snapshot(NamedTuple):
    """control store -> subscriber. All rows ``(key, value)`` as of ``sequence``."""

    subscription: int
    sequence: int
    rows: Rows


class Publication(NamedTuple):
    """control store -> subscriber. Changes ``(key, value or None)`` since the publication before; a hint.

    Repeated (empty) every 500 ms, so that a gap in ``sequence`` shows; on a gap, subscribe again.
    """

    subscription: int
    sequence: int
    rows: Rows


class Committed(NamedTuple):
    """shell -> control store. Transactions up to ``sequence`` are durable, or (``error`` not empty) were rolled back."""

    sequence: int
    error: str
