"""Slots: one-page files that workers write through a mapping, and the daemon reads of dead or silent workers.

A slot has the id of the task on top. Of an unlogged actor with checkpoints it also has the exact number of ended calls, which costs no
message. That count remains until the actor leaves a newer one (by attempt) or has ended: the next daemon needs it if this one dies first.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Collection, Container

from zfabric.protocol.ids import TASK_BYTES
from zfabric.protocol.messages import Row

COUNT = struct.Struct(f"<QQ{TASK_BYTES}s")
"""After the task id: ended calls, attempt, actor id."""
_SUFFIX = ".slot"


def slot_path(directory: str, token: bytes) -> str:
    """The path of a worker's slot."""
    return f"{directory}/{token.hex()}{_SUFFIX}"


def open_slot(directory: str, token: bytes) -> mmap.mmap:
    """Open this worker's slot. On a full disk it is private memory, and after a crash the daemon blames the first task."""
    descriptor = os.open(slot_path(directory, token), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)  # Fail now, rather than with SIGBUS at the first write.
        return mmap.mmap(descriptor, mmap.PAGESIZE)
    except OSError:
        return mmap.mmap(-1, mmap.PAGESIZE)
    finally:
        os.close(descriptor)


class Slots:
    """Reads slots of dead or silent workers."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._counting: dict[bytes, tuple[int, str]] = {}
        """(attempt, path) of actors' counts."""

    def executing(self, token: bytes) -> bytes:
        """The task on top in a worker that may live, or empty."""
        try:
            with open(slot_path(self.directory, token), "rb") as file:
                found = file.read(TASK_BYTES)
        except OSError:
            return b""
        return found if any(found) else b""

    def executes(self, token: bytes, task_id: bytes) -> bool:
        """Whether a living worker has this task on top, or an empty slot of a full disk."""
        try:
            with open(slot_path(self.directory, token), "rb") as file:
                return file.read(TASK_BYTES) in (task_id, b"")
        except OSError:
            return False

    def read(self, token: bytes) -> tuple[bytes, tuple[Row, ...]]:
        """A dead worker's task on top (or empty), and rows as in ``ProcessDied.ended``."""
        path = slot_path(self.directory, token)
        try:
            with open(path, "rb") as file:
                left = file.read(TASK_BYTES + COUNT.size).ljust(TASK_BYTES + COUNT.size, b"\0")
        except OSError:
            return b"", ()
        executing = left[:TASK_BYTES]
        ended, attempt, actor_id = COUNT.unpack_from(left, TASK_BYTES)
        before = self._counting.get(actor_id, (-1, ""))
        newest = any(actor_id) and attempt >= before[0]
        if newest:
            self._counting[actor_id] = attempt, path
        spare = before[1] if newest else path
        if spare != path or not newest:
            _remove(spare)
        return executing if any(executing) else b"", ((actor_id, ended),) if newest else ()

    def read_others(self, living: Collection[bytes]) -> tuple[Row, ...]:
        """Rows as in ``ProcessDied.ended`` of all workers not living."""
        names = (name.removesuffix(_SUFFIX) for name in sorted(os.listdir(self.directory)) if name.endswith(_SUFFIX))
        rows = [row for token in map(bytes.fromhex, names) if token not in living for row in self.read(token)[1]]
        return tuple({row[0]: row for row in rows}.values())  # An actor's last row is the newest.

    def release_all_but(self, actors: Container[bytes]) -> None:
        """Delete other actors' counts."""
        for actor_id in [each for each in self._counting if each not in actors]:
            _remove(self._counting.pop(actor_id)[1])


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
