"""Objects on disk: what the arena had no room for.

One file per object, its name made here from the id's hex. A file is written under another name and renamed when it is whole,
so a daemon that dies in between leaves nothing that looks like an object; a header with size and checksum makes a file that
was cut or damaged later an error instead of wrong data. Nothing is synced: what is here need not outlive the machine.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib

from zfabric.protocol.ids import OBJECT_BYTES

_MAGIC = b"ZFSPILL1"
_HEADER = struct.Struct("<8sQI20s24x")
"""magic, size, crc32 of the payload, object id"""
_CHUNK = 2**20
"""Bytes checked and written, or read and checked, while they are in the cache."""
_OBJECT, _PARTIAL = ".object", ".partial"


class SpillDirectory:
    """The directory ``path`` (made if missing, for this user alone) and the objects in it. All methods may raise OSError."""

    def __init__(self, path: str) -> None:
        self._path = path
        os.makedirs(path, mode=0o700, exist_ok=True)
        os.chmod(path, 0o700)

    def _file(self, object_id: bytes, ending: str) -> str:
        return os.path.join(self._path, object_id.hex() + ending)

    def write(self, object_id: bytes, data: memoryview) -> None:
        """Keep an object's bytes. After an OSError (also of a full disk) nothing of it is left."""
        partial = self._file(object_id, _PARTIAL)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                _write_all(descriptor, memoryview(bytes(_HEADER.size)))
                checksum = 0
                for start in range(0, len(data), _CHUNK):
                    chunk = data[start : start + _CHUNK]
                    checksum = zlib.crc32(chunk, checksum)
                    _write_all(descriptor, chunk)
                os.pwrite(descriptor, _HEADER.pack(_MAGIC, len(data), checksum, object_id), 0)
            finally:
                os.close(descriptor)
            os.rename(partial, self._file(object_id, _OBJECT))
        except OSError:
            os.unlink(partial)
            raise

    def read_into(self, object_id: bytes, target: memoryview) -> None:
        """Read an object's bytes into ``target``, which has exactly their size. OSError if they are not what was written."""
        descriptor = os.open(self._file(object_id, _OBJECT), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            header = os.read(descriptor, _HEADER.size)
            if len(header) != _HEADER.size:
                raise OSError(errno.EIO, "the spilled object has lost its header")
            magic, size, checksum, written_id = _HEADER.unpack(header)
            if (magic, size, written_id) != (_MAGIC, len(target), object_id):
                raise OSError(errno.EIO, "the spilled object's header is of something else")
            actual = done = 0
            while done < size:
                count = os.readv(descriptor, [target[done : done + _CHUNK]])
                if not count:
                    raise OSError(errno.EIO, f"the spilled object ends after {done} of {size} bytes")
                actual = zlib.crc32(target[done : done + count], actual)
                done += count
            if actual != checksum:
                raise OSError(errno.EIO, "the spilled object's checksum is wrong")
        finally:
            os.close(descriptor)

    def remove(self, object_id: bytes) -> None:
        """Delete an object's file; harmless if there is none."""
        try:
            os.unlink(self._file(object_id, _OBJECT))
        except FileNotFoundError:
            pass

    def list(self) -> list[tuple[bytes, int]]:
        """(object_id, size) of all that is whole here. What a killed daemon left unfinished is deleted."""
        found: list[tuple[bytes, int]] = []
        for name in sorted(os.listdir(self._path)):
            path = os.path.join(self._path, name)
            object_id = _id_of(name)
            size = _size_of(path, object_id) if object_id is not None else None
            if object_id is not None and size is not None:
                found.append((object_id, size))
            elif name.endswith((_OBJECT, _PARTIAL)):
                os.unlink(path)
        return found


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _id_of(name: str) -> bytes | None:
    if not name.endswith(_OBJECT):
        return None
    try:
        object_id = bytes.fromhex(name[: -len(_OBJECT)])
    except ValueError:
        return None
    return object_id if len(object_id) == OBJECT_BYTES else None


def _size_of(path: str, object_id: bytes) -> int | None:
    """The payload's size if the file is as long as its header says."""
    with open(path, "rb") as file:
        header = file.read(_HEADER.size)
        length = os.fstat(file.fileno()).st_size
    if len(header) != _HEADER.size:
        return None
    magic, size, _, written_id = _HEADER.unpack(header)
    whole = magic == _MAGIC and written_id == object_id and length == _HEADER.size + size
    return int(size) if whole else None
