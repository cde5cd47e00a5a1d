"""Objects on disk: spilled ones, and ones for which the arena had no room.

Each object has a file, named by a number from the object store. The file is renamed once it is whole *and the store has taken it over*:
otherwise it may be half of a result. A header with size, id and checksum turns damage into an error. Nothing is synced: files need not
outlive the machine.

A payload begins at 64 bytes, as in the arena. Readers map a file privately, so writes stay their own; a deleted file's space is freed with
the last mapping.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterable

from zfabric.adapters.mapping import private_view
from zfabric.protocol.ids import OBJECT_BYTES
from zfabric.protocol.inside import read_refs

_MAGIC = b"ZFSPILL1"
_HEADER = struct.Struct("<8sQI20s24x")
"""magic, size, crc32 of the payload, object id"""
_CHUNK = 2**20
"""Bytes per step of checksumming, so that they stay in the processor's cache."""
_OBJECT, _PARTIAL = ".object", ".partial"


class SpillFiles:
    """The files of the directory ``path``, for processes that write or read single files. All methods may raise OSError."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _file(self, number: int, ending: str) -> str:
        return os.path.join(self._path, f"{number}{ending}")

    def _open(self, number: int, ending: str) -> int:
        return os.open(self._file(number, ending), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def fill(self, number: int, object_id: bytes, pieces: Iterable[bytes | memoryview]) -> None:
        """Write an object into a file from ``SpillDirectory.make``."""
        writer = self.begin(number)
        try:
            _fill(writer, object_id, pieces)
        finally:
            writer.close()

    def begin(self, number: int) -> SpillWriter:
        """Begin to write an object, piece by piece."""
        return SpillWriter(os.open(self._file(number, _PARTIAL), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW))

    def map(self, number: int, size: int) -> memoryview:
        """Map a whole file's payload privately."""
        try:
            descriptor = self._open(number, _OBJECT)
        except FileNotFoundError:
            try:
                descriptor = self._open(number, _PARTIAL)  # The store has not taken it over yet.
            except FileNotFoundError:
                descriptor = self._open(number, _OBJECT)  # It just has.
        try:
            if os.fstat(descriptor).st_size < _HEADER.size + size:
                raise OSError(errno.EIO, "the spilled object has lost its end")
            return private_view(descriptor, _HEADER.size, size)
        finally:
            os.close(descriptor)


class SpillDirectory(SpillFiles):
    """The directory ``path``, for this user alone, and its objects. All methods may raise OSError."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        os.makedirs(path, mode=0o700, exist_ok=True)
        os.chmod(path, 0o700)

    def make(self, number: int, size: int) -> None:
        """Make a file for ``size`` bytes, with disk space allocated. After an OSError there is no file."""
        descriptor = self._create(number)
        try:
            try:
                os.posix_fallocate(descriptor, 0, _HEADER.size + size)
            finally:
                os.close(descriptor)
        except OSError:
            os.unlink(self._file(number, _PARTIAL))
            raise

    def take_over(self, number: int) -> None:
        """Take over a process's file, for a restarted daemon to find."""
        os.rename(self._file(number, _PARTIAL), self._file(number, _OBJECT))

    def write(self, number: int, object_id: bytes, data: bytes | memoryview) -> None:
        """Write an object into a file. After an OSError there is none."""
        descriptor = self._create(number)
        try:
            try:
                _fill(SpillWriter(descriptor), object_id, (data,))
            finally:
                os.close(descriptor)
            self.take_over(number)
        except OSError:
            os.unlink(self._file(number, _PARTIAL))
            raise

    def _create(self, number: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._file(number, _PARTIAL), flags, 0o600)

    def read_into(self, number: int, object_id: bytes, target: memoryview) -> None:
        """Read an object into ``target``, of exactly its size. Raises OSError if it is damaged."""
        self._read(number, object_id, len(target), target)

    def check(self, number: int, object_id: bytes, size: int) -> None:
        """Raise OSError if the object is damaged."""
        self._read(number, object_id, size, None)

    def _read(self, number: int, object_id: bytes, size: int, target: memoryview | None) -> None:
        descriptor = self._open(number, _OBJECT)
        try:
            header = os.read(descriptor, _HEADER.size)
            if len(header) != _HEADER.size:
                raise OSError(errno.EIO, "the spilled object has lost its header")
            magic, written_size, checksum, written_id = _HEADER.unpack(header)
            if (magic, written_size, written_id) != (_MAGIC, size, object_id):
                raise OSError(errno.EIO, "the spilled object's header is of something else")
            actual = done = 0
            buffer = memoryview(bytearray(_CHUNK if target is None else 0))
            while done < size:
                into = buffer[: size - done] if target is None else target[done : done + _CHUNK]
                count = os.readv(descriptor, [into])
                if not count:
                    raise OSError(errno.EIO, f"the spilled object ends after {done} of {size} bytes")
                actual = zlib.crc32(into[:count], actual)
                done += count
            if actual != checksum:
                raise OSError(errno.EIO, "the spilled object's checksum is wrong")
        finally:
            os.close(descriptor)

    def remove(self, number: int) -> None:
        """Delete a file, complete or not, if there is one."""
        for ending in (_OBJECT, _PARTIAL):
            try:
                os.unlink(self._file(number, ending))
            except FileNotFoundError:
                pass

    def list(self) -> list[tuple[bytes, int, int]]:
        """Return (object_id, size, number) of all files; id and size are empty for incomplete ones."""
        found: list[tuple[bytes, int, int]] = []
        for name in os.listdir(self._path):
            number, dot, ending = name.partition(".")
            if dot + ending not in (_OBJECT, _PARTIAL) or not (number.isascii() and number.isdecimal()):
                continue
            object_id, size = contents(os.path.join(self._path, name)) if dot + ending == _OBJECT else (b"", 0)
            found.append((object_id, size, int(number)))
        return sorted(found, key=lambda row: row[2])

    def refs_inside(self, number: int, size: int) -> tuple[bytes, ...]:
        """Return the ids of refs inside the object."""
        descriptor = self._open(number, _OBJECT)
        try:
            return read_refs(lambda count: os.pread(descriptor, count, _HEADER.size), size)
        finally:
            os.close(descriptor)


class SpillWriter:
    """Writes one object: bytes in order, header last. All methods may raise OSError."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = self._checksum = 0
        os.lseek(descriptor, _HEADER.size, os.SEEK_SET)

    def write(self, piece: bytes | memoryview) -> None:
        """Write the next bytes."""
        data = memoryview(piece)
        for start in range(0, len(data), _CHUNK):
            chunk = data[start : start + _CHUNK]
            self._checksum = zlib.crc32(chunk, self._checksum)
            _write_all(self._descriptor, chunk)
        self._size += len(data)

    def finish(self, object_id: bytes) -> None:
        """Write the header."""
        os.pwrite(self._descriptor, _HEADER.pack(_MAGIC, self._size, self._checksum, object_id), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _fill(writer: SpillWriter, object_id: bytes, pieces: Iterable[bytes | memoryview]) -> None:
    for piece in pieces:
        writer.write(piece)
    writer.finish(object_id)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def contents(path: str) -> tuple[bytes, int]:
    """Return (object id, size) of a file; the id is empty if the file's length contradicts its header."""
    with open(path, "rb") as file:
        header = file.read(_HEADER.size)
        length = os.fstat(file.fileno()).st_size
    if len(header) == _HEADER.size:
        magic, size, _, object_id = _HEADER.unpack(header)
        if magic == _MAGIC and len(object_id) == OBJECT_BYTES and length == _HEADER.size + size:
            return object_id, int(size)
    return b"", 0
