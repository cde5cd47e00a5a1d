"""The control store's tables, the formats of their rows, those of a logged actor's log included, and reads of their journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import msgpack

from zfabric.protocol.ids import TASK_BYTES
from zfabric.protocol.messages import Row
from zfabric.protocol.options import LOG_NUMBERS_MAX, option

TABLES = ("meta", "task", "function", "object", "actor", "name", "node", "job", "event", "log", "checkpoint", "member", "group", "kv")
""""meta" is the control store's own. Keys of "event" begin with the time: the first are the oldest. Keys of "log" and "checkpoint" begin
with the actor and the number of a call, in the order in which calls ran. "node" has what a node reports of itself, in its own store;
"member" the living nodes of a cluster, in the head's. "group" has placement groups, in the store of their home, and "kv" the cluster's
key-value store, in the head's.
"""
LOG, CHECKPOINT = "log", "checkpoint"
KEY_BYTES_MAX = 511
"""The shortest has one byte. (What LMDB 0.9 allows.)"""

Pair = tuple[bytes, bytes]


class Reader(Protocol):
    """Reads of committed rows: a commit shows once it has ended."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value of ``key``, or None."""

    def scan(self, table: str, prefix: bytes = b"", after: bytes = b"", limit: int = 1000) -> list[Pair]:
        """Up to ``limit`` rows with keys that start with ``prefix`` and come after ``after``, in order."""

    def floor(self, table: str, prefix: bytes, key: bytes) -> Pair | None:
        """The row with the largest key that starts with ``prefix`` and is not past ``key``."""


def pack_row(value: Any) -> bytes:
    """Pack plain data as a row's value."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def unpack_row(data: bytes) -> Any:
    """Return what ``pack_row`` packed."""
    return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False)


# --- the log of a logged actor: for the actor, a replay and ``zfabric state dump`` ----------------------------------------------------


class LoggedCall(NamedTuple):
    """A call that has run, to run again in the state that the calls before it left."""

    number: int
    call_id: bytes
    caller: bytes
    method: str
    arguments: bytes
    dependencies: tuple[bytes, ...]
    values: tuple[bytes | None, ...]
    options: tuple[Row, ...] | None
    status: int
    outputs: tuple[bytes | None, ...]
    again: bool
    """Whether a replay runs it: not if it was stopped in its middle, at an unknown place."""
    calls: tuple[Row, ...] = ()
    """The actor's calls of itself since the row before, and outcomes of such calls without a row (``OwnCalls``)."""


def is_note(row: Row) -> bool:
    """Whether a row records the end of a call, and no call."""
    return len(row) == 2


def calls_in(block: bytes) -> list[LoggedCall]:
    """Unpack the calls of a block."""
    return [LoggedCall(*fields) for fields in unpack_row(block)[1]]


def part_key(actor_id: bytes, last: int, index: int) -> bytes:
    """The key of a part of a checkpoint."""
    return actor_id + last.to_bytes(8, "big") + index.to_bytes(4, "big")


def newest(parts: Iterable[Row], before: int = LOG_NUMBERS_MAX) -> tuple[bytes | None, int]:
    """An actor's last complete checkpoint, and the call after which it was taken; (None, 0) without one.

    Only those from before call ``before`` count.
    """
    found: tuple[bytes | None, int] = None, 0
    pieces: list[bytes] = []
    wanted = 0
    for key, value in parts:
        count, _, data = unpack_row(value)
        if int.from_bytes(key[TASK_BYTES:-4], "big") >= before:
            break
        if int.from_bytes(key[-4:], "big") == 0:
            pieces, wanted = [], count
        if count == wanted:  # Not one of a checkpoint after the same call that was never whole.
            pieces.append(data)
            if len(pieces) == count:
                found = b"".join(pieces), int.from_bytes(key[TASK_BYTES:-4], "big")
    return found


def blocks_after(last: int, blocks: Iterable[Row]) -> Iterator[bytes]:
    """The rows from call ``last`` + 1 on."""
    for key, value in blocks:
        if int.from_bytes(key[TASK_BYTES:], "big") > last:
            yield unpack_row(value)[2]


def is_remake(row: Row) -> bool:
    """Whether a task replays calls for a lost value."""
    return len(row) > 4 and option(row[4], "remake") is not None
