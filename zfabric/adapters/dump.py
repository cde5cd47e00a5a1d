"""Rows of a control store in readable form: from a directory that no daemon has open, or from a ``Scan``.

Tables are msgpack, shown as plain data: short bytes in hex, longer ones by their length. Nothing is unpickled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import msgpack

from zfabric.adapters.journal import ReadOnlyJournal
from zfabric.exceptions import ConfigError
from zfabric.machines.common.lineage_blocks import read_block
from zfabric.machines.common.tables import CHECKPOINT, LOG, TABLES, LoggedCall, Pair, calls_in
from zfabric.protocol.ids import TASK_BYTES

HEX_BYTES_MAX = 32
_PAGE = 256
_UNREADABLE = (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError, msgpack.UnpackException)
"""Raised by rows in an unknown format, which are shown as they are."""


def dump(path: str, table: str | None = None, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield rows of the store in ``path`` as dictionaries: of ``table`` or of all, at most ``limit`` per table.

    Raises ConfigError if there is no such store or table, FabricError if a daemon has it open (query the daemon instead),
    VersionMismatchError for an unknown format.
    """
    if table is not None and table not in TABLES:
        raise ConfigError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    journal = ReadOnlyJournal.look_into(path)
    try:
        for name in (table,) if table is not None else TABLES:
            yield from itertools.islice(describe_rows(name, _all_rows(journal, name)), limit)
    finally:
        journal.close()


def describe_rows(table: str, rows: Iterable[Pair]) -> Iterator[dict[str, Any]]:
    """Yield ``(key, value)`` rows of ``table`` as plain data. A block yields many tasks or calls."""
    for key, value in rows:
        if table == "task":
            yield from _tasks(key, value)
        elif table == LOG:
            yield from _calls(key, value)
        elif table == CHECKPOINT:
            yield _checkpoint(key, value)
        elif table == "kv":
            yield _key_value(key, value)
        else:
            yield {"table": table, "key": _key(table, key), "value": _decoded(value)}


def plain(value: Any) -> Any:
    """Return ``value`` without bytes, for JSON."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex() if len(value) <= HEX_BYTES_MAX else f"<{len(value)} bytes>"
    if isinstance(value, dict):
        return {name if isinstance(name, str) else str(plain(name)): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _tasks(key: bytes, value: bytes) -> Iterator[dict[str, Any]]:
    try:
        rows = [_task(*row) for row in read_block(value)]
    except _UNREADABLE:
        rows = [{"table": "task", "key": key.hex(), "value": plain(value)}]
    yield from rows


def _task(task_id: bytes, function_id: bytes, arguments: bytes, dependencies: Any, options: Any = None) -> dict[str, Any]:
    return {
        "table": "task",
        "key": plain(task_id),
        "function": plain(function_id),
        "arguments": f"<{len(arguments)} bytes>",
        "dependencies": plain(dependencies),
        "options": {str(name): plain(option) for name, option in options or ()},
    }


def _calls(key: bytes, value: bytes) -> Iterator[dict[str, Any]]:
    try:
        rows = [_call(key, call) for call in calls_in(_unpacked(value)[2])]
    except _UNREADABLE:
        rows = [{"table": LOG, "key": key.hex(), "value": plain(value)}]
    yield from rows


def _call(key: bytes, call: LoggedCall) -> dict[str, Any]:
    size = sum(len(output) for output in call.outputs if output is not None)
    return {
        "table": LOG,
        "key": plain(key[:TASK_BYTES]),
        "number": plain(call.number),
        "call": plain(call.call_id),
        "method": plain(call.method),
        "arguments": f"<{len(call.arguments)} bytes>",
        "status": plain(call.status),
        "outputs": f"<{size} bytes>" if None not in call.outputs else "in the object store",
    }


def _checkpoint(key: bytes, value: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {"table": CHECKPOINT, "key": plain(key[:TASK_BYTES])}
    try:
        parts, _, data = _unpacked(value)
        number, part = int.from_bytes(key[TASK_BYTES:-4], "big"), int.from_bytes(key[-4:], "big")
        return {**row, "number": number, "part": f"{part + 1} of {plain(parts)}", "value": f"<{len(data)} bytes>"}
    except _UNREADABLE:
        return {**row, "value": plain(value)}


def _key_value(key: bytes, value: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {"table": "kv", "key": key.hex()}
    try:
        if key[:1] == b"k":
            name, _, size, job = _unpacked(value)
            namespace = key[2 : 2 + key[1]].decode(errors="backslashreplace")
            row["key"] = name.decode(errors="backslashreplace")
            return {**row, "namespace": namespace, "job": plain(job), "value": f"<{plain(size)} bytes>"}
        return {**row, "value": f"<{len(value)} bytes>" if key[:1] == b"v" else plain(value)}
    except _UNREADABLE:
        return {**row, "value": plain(value)}


def _key(table: str, key: bytes) -> str:
    if table in ("name", "meta"):
        return key.decode("utf-8", errors="backslashreplace")
    return key.hex()


def _decoded(value: bytes) -> Any:
    try:
        return plain(_unpacked(value))
    except _UNREADABLE:
        return plain(value)


def _unpacked(value: bytes) -> Any:
    return msgpack.unpackb(value, use_list=False, raw=False, strict_map_key=False)


def _all_rows(journal: ReadOnlyJournal, table: str) -> Iterator[Pair]:
    after = b""
    while page := journal.scan(table, b"", after, _PAGE):
        yield from page
        after = page[-1][0]
