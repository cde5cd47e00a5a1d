"""Numbers of a program's own metrics, in one mapped file per process: counting sends no message, and survives a crash.

A head has the bytes in use (8 bytes). Entries are ``(length of the name, name, padding, value)``: the name is JSON, the value a float64 at
a multiple of 8 bytes, which the processor writes at once. Only its process writes a file.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any

FILE_BYTES = 4 * 2**20
"""A sparse file: blocks without entries take no room."""
_HEAD = struct.Struct("<q")
_LENGTH = struct.Struct("<I")
_VALUE = struct.Struct("<d")

Name = tuple[Any, ...]


class MetricsFull(Exception):
    """A file has no room for another series."""


class MetricFile:
    """This process's file at ``path``, which must not exist."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, FILE_BYTES)
            self._memory = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        self._used = _HEAD.size
        _HEAD.pack_into(self._memory, 0, self._used)

    def add(self, name: Name, value: float) -> int:
        """Add an entry; return the place of its value. Raises MetricsFull."""
        text = json.dumps(name).encode()
        place = -(-(self._used + _LENGTH.size + len(text)) // 8) * 8
        if place + _VALUE.size > FILE_BYTES:
            raise MetricsFull(f"a process has at most {FILE_BYTES >> 20} MiB of names of metrics and tags; use fewer values of tags")
        _LENGTH.pack_into(self._memory, self._used, len(text))
        self._memory[self._used + _LENGTH.size : self._used + _LENGTH.size + len(text)] = text
        _VALUE.pack_into(self._memory, place, value)
        self._used = place + _VALUE.size
        _HEAD.pack_into(self._memory, 0, self._used)  # Last: a reader sees whole entries.
        return place

    def set(self, place: int, value: float) -> None:
        """Write a value at its place."""
        _VALUE.pack_into(self._memory, place, value)


def read_metrics(path: str) -> Iterator[tuple[Name, float]]:
    """Yield the entries of a file. A damaged file ends early."""
    with open(path, "rb") as file:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return
        used = min(_HEAD.unpack(head)[0], FILE_BYTES)
        data = head + file.read(max(0, used - _HEAD.size))
    at = _HEAD.size
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        place = -(-(at + _LENGTH.size + length) // 8) * 8
        if place + _VALUE.size > len(data):
            return
        try:
            name = tuple(json.loads(data[at + _LENGTH.size : at + _LENGTH.size + length]))
        except ValueError:
            return
        yield name, _VALUE.unpack_from(data, place)[0]
        at = place + _VALUE.size
