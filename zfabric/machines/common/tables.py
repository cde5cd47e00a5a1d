"""The control store's tables, the format of their rows, and reads of their journal."""

from __future__ import annotations

from typing import Any, Protocol

import msgpack

TABLES = ("meta", "task", "function", "object", "actor", "name", "node", "job", "event", "log", "checkpoint", "member", "group", "kv")
""""meta" is the control store's own; keys of "event" begin with the time, so that the first are the oldest; those of "log" and "checkpoint"
with the actor and the number of a call, in the order in which calls ran. "node" has what a node reports of itself, in its own store;
"member" the living nodes of a cluster, in the store of the head. "group" has placement groups, in the store of their home, and "kv" the
cluster's key-value store, in the store of the head.
"""
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
