"""Checks a control store's data file for damage before LMDB maps it.

LMDB trusts page numbers: a truncated file causes a SIGBUS. This module reads the file (LMDB 0.9's format, decision 0002) by system calls.
It checks both trees: each page is used once and lies within the file. It checks rows, since a row that a machine cannot process would crash
every daemon.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from zfabric.machines.common.lineage_blocks import read_block
from zfabric.protocol.ids import FUNCTION_BYTES, INCARNATION_BYTES, JOB_BYTES, OBJECT_BYTES, TASK_BYTES

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_PAGE = struct.Struct("=QHHHH")
"""number, padding, flags, end of the pointers, beginning of the nodes"""
_HEAD = _PAGE.size
_META = struct.Struct("=IIQQ")
"""magic, version, address, map size"""
_TREE = struct.Struct("=IHHQQQQQ")
"""padding (of the first: the page size), flags, depth, branch pages, leaf pages, overflow pages, entries, root"""
_LAST = struct.Struct("=QQ")
"""last page used, number of the transaction"""
_NODE = struct.Struct("=HHHH")
"""data size or page number, low and high; flags, or more of the number; key size"""
_BRANCH, _LEAF, _OVERFLOW, _IS_META = 1, 2, 4, 8
_BIG, _TREE_INSIDE, _DUPLICATES = 1, 2, 4
_INTEGER_KEYS = 8
_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32


class _Damage(Exception):
    """The file is not as LMDB writes it; the text describes the damage."""


def find_damage(path: str, thorough: bool, rows: bool = True) -> str:
    """Describe damage of the data file at ``path``; return an empty string if there is none, or no file.

    ``thorough`` reads all pages, and rows if ``rows``; otherwise the first pages and the file's length are checked.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        file = _File(descriptor)
        if not file.size:
            return ""
        file.read_meta()
        # Last pages to which nothing refers may be missing.
        if thorough or file.size < (file.last + 1) * file.page_size:
            for table, key, value in file.rows():
                problem = _row_problem(table, key, value) if thorough and rows else ""
                if problem:
                    return f"a row of the table {table!r} ({key.hex()}) {problem}"
    except (_Damage, struct.error) as damage:
        return str(damage)
    finally:
        os.close(descriptor)
    return ""


class _File:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.page_size = 0
        self.last = 0
        self._roots: tuple[int, int] = (_NO_PAGE, _NO_PAGE)
        """Roots of the trees of free pages and of tables."""
        self._seen: set[int] = set()

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset) if offset + size <= self.size else b""
        if len(data) != size:
            raise _Damage(f"it ends after {self.size:,} bytes, in the middle of what it refers to")
        return data

    def read_meta(self) -> None:
        """Find the last committed transaction."""
        newest = -1
        offset = 0
        for _ in range(2):
            data = self._read(offset, _HEAD + _META.size + 2 * _TREE.size + _LAST.size)
            magic, version, _, _ = _META.unpack_from(data, _HEAD)
            if not _PAGE.unpack_from(data)[2] & _IS_META or (magic, version) != (_MAGIC, _VERSION):
                raise _Damage("it does not begin as a file of LMDB does")
            free, tables = (_TREE.unpack_from(data, _HEAD + _META.size + index * _TREE.size) for index in range(2))
            last, transaction = _LAST.unpack_from(data, _HEAD + _META.size + 2 * _TREE.size)
            if not offset:
                self.page_size = offset = free[0]
                if not 512 <= self.page_size <= 65_536:
                    raise _Damage(f"its pages cannot have {self.page_size} bytes")
            if (free[:2], tables[1]) != ((self.page_size, _INTEGER_KEYS), 0):
                raise _Damage("its first pages are not what they should be")
            if transaction > newest:
                newest, self.last, self._roots = transaction, last, (free[7], tables[7])

    def rows(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield (table, key, value) of every row; check everything else."""
        free: set[int] = set()
        for _, numbers, _ in self._leaves(self._roots[0], 0):
            count, *pages = struct.unpack(f"={len(numbers) // 8}Q", numbers) or (1,)
            if count > len(pages):
                raise _Damage("its list of free pages is cut")
            free.update(pages[:count])
        for name, value, is_tree in self._leaves(self._roots[1], 0):
            tree = _TREE.unpack_from(value) if is_tree else None
            if tree is None or tree[1]:
                raise _Damage(f"its table {name!r} is not what it should be")
            for key, row, _ in self._leaves(tree[7], 0):
                yield name.decode(errors="replace"), key, row
        if any(number < 2 or number > self.last or number in self._seen for number in free):
            raise _Damage("its list of free pages names others")

    def _leaves(self, number: int, depth: int) -> Iterator[tuple[bytes, bytes, bool]]:
        """Yield (key, value, whether the value is a tree) of all nodes below a page."""
        if number == _NO_PAGE:
            return
        page = self._page(number, 1)
        _, _, flags, lower, upper = _PAGE.unpack_from(page)
        usable = flags in (_BRANCH, _LEAF) and _HEAD + (4 if flags == _BRANCH else 2) <= lower <= upper <= self.page_size
        if not usable or depth > _DEPTH_MAX:
            raise _Damage(f"its page {number} is not what it should be")
        for pointer in struct.unpack_from(f"={(lower - _HEAD) // 2}H", page, _HEAD):
            if not upper <= pointer <= self.page_size - _NODE.size:
                raise _Damage(f"its page {number} points outside of itself")
            low, high, node_flags, key_size = _NODE.unpack_from(page, pointer)
            begin = pointer + _NODE.size + key_size
            if begin > self.page_size:
                raise _Damage(f"its page {number} has a key that is larger than itself")
            if flags == _BRANCH:
                yield from self._leaves(low | high << 16 | node_flags << 32, depth + 1)
                continue
            size = low | high << 16
            key = page[pointer + _NODE.size : begin]
            if node_flags & _DUPLICATES or begin + (8 if node_flags & _BIG else size) > self.page_size:
                raise _Damage(f"its page {number} has a row that is larger than itself")
            if node_flags & _BIG:
                (first,) = struct.unpack_from("=Q", page, begin)
                yield key, self._overflow(first, size), False
            else:
                yield key, page[begin : begin + size], bool(node_flags & _TREE_INSIDE)

    def _overflow(self, number: int, size: int) -> bytes:
        pages = (_HEAD + size - 1) // self.page_size + 1
        data = self._page(number, pages)
        if _PAGE.unpack_from(data)[2] != _OVERFLOW:
            raise _Damage(f"its page {number} is not what it should be")
        return data[_HEAD : _HEAD + size]

    def _page(self, number: int, count: int) -> bytes:
        """Read ``count`` pages. Each page may be read only once."""
        if number < 2 or number + count > self.last + 1:
            raise _Damage(f"it refers to its page {number} of {self.last + 1}")
        data = self._read(number * self.page_size, count * self.page_size)
        for each in range(number, number + count):
            if each in self._seen:
                raise _Damage(f"it refers to its page {each} twice")
            self._seen.add(each)
        if _PAGE.unpack_from(data)[0] != number:
            raise _Damage(f"its page {number} is not what it should be")
        return data


# --- rows -------------------------------------------------------------------------------------------------------------------------


def _row_problem(table: str, key: bytes, value: bytes) -> str:
    """Describe why a daemon could not process this row; empty if it can, or never reads the table."""
    check = _CHECKS.get(table)
    if check is None:
        return ""
    try:
        return "" if check(key, value) else "is not of its kind"
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, msgpack.UnpackException) as error:
        return f"cannot be read: {type(error).__name__}: {error}"


def _unpacked(value: bytes) -> Any:
    return msgpack.unpackb(value, use_list=False, raw=False, strict_map_key=False)


def _meta(key: bytes, value: bytes) -> bool:
    return key not in (b"jobs", b"kv bytes") or type(_unpacked(value)) is int


def _job(key: bytes, value: bytes) -> bool:
    facts = _unpacked(value)
    if len(key) != JOB_BYTES or type(facts) is not dict or type(facts["status"]) is not str:
        return False
    if facts["status"] != "running":
        return True
    kinds = {"namespace": str, "name": bytes, "driver": bytes, "control": bytes, "pid": int, "started": int}
    return all(type(facts[name]) is kind for name, kind in kinds.items()) and len(facts["driver"]) in (0, INCARNATION_BYTES)


def _function(key: bytes, value: bytes) -> bool:
    name, options, payload = _unpacked(value)
    return len(key) == JOB_BYTES + FUNCTION_BYTES and type(name) is str and type(payload) is bytes and _are_options(options)


def _task(key: bytes, value: bytes) -> bool:
    rows = read_block(value)
    return type(rows) is tuple and len(key) >= TASK_BYTES and all(map(_is_task_row, rows))


def _is_task_row(row: Any) -> bool:
    if type(row) is not tuple or len(row) not in (4, 5):
        return False
    task_id, function_id, arguments, dependencies = row[:4]
    kinds = type(task_id) is type(function_id) is type(arguments) is bytes
    lengths = kinds and (len(task_id), len(function_id)) == (TASK_BYTES, FUNCTION_BYTES)
    return lengths and _are_objects(dependencies) and (len(row) == 4 or row[4] is None or _are_options(row[4]))


def _log(key: bytes, value: bytes) -> bool:
    refs, made, block = _unpacked(value)
    return len(key) == TASK_BYTES + 8 and _are_objects(refs) and _are_objects(made) and type(block) is bytes


def _checkpoint(key: bytes, value: bytes) -> bool:
    count, refs, part = _unpacked(value)
    return len(key) == TASK_BYTES + 12 and type(count) is int and _are_objects(refs) and type(part) is bytes


def _key_value(key: bytes, value: bytes) -> bool:
    kind, rest = key[:1], key[1:]
    if kind == b"j" and rest[JOB_BYTES : JOB_BYTES + 1] == b"u":
        return type(_unpacked(value)) is int
    if kind == b"j" and rest[JOB_BYTES : JOB_BYTES + 1] == b"a":
        oldest, answers = _unpacked(value)
        return type(oldest) is int and all(type(number) is int and type(payload) is tuple for number, payload in answers)
    if kind != b"k":
        return True
    name, version, size, job = _unpacked(value)
    return type(name) is type(version) is type(job) is bytes and type(size) is int and size >= 0


def _are_objects(ids: Any) -> bool:
    return type(ids) is tuple and all(type(each) is bytes and len(each) == OBJECT_BYTES for each in ids)


def _are_options(options: Any) -> bool:
    return type(options) is tuple and all(type(each) is tuple and len(each) == 2 and type(each[0]) is str for each in options)


_CHECKS: dict[str, Callable[[bytes, bytes], bool]] = {
    "meta": _meta,
    "job": _job,
    "function": _function,
    "task": _task,
    "log": _log,
    "checkpoint": _checkpoint,
    "kv": _key_value,
}
