"""Slots: files of one page that workers write through a mapping. The daemon reads a slot when its worker is dead or does not answer.

It holds the id of the task on top of the stack. For an actor with checkpoints and no log, it also holds how many calls have ended: an exact
number at any moment, without a message. A slot with a count remains until the actor leaves a newer one or has ended. A daemon that
reads it may die before the actor is restarted, and then the next daemon needs the count. The attempt shows which slot is the newest.
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
"""After the task id: number of ended calls, attempt, actor id."""
_SUFFIX = ".slot"


def slot_path(directory: str, token: bytes) -> str:
    """Return the path of a worker's slot."""
    return f"{directory}/{token.hex()}{_SUFFIX}"


def open_slot(directory: str, token: bytes) -> mmap.mmap:
    """Open this worker's slot. On a full disk it is private memory; after a crash the daemon then blames the worker's first task."""
    descriptor = os.open(slot_path(directory, token), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)  # Fail now, rather than with SIGBUS at the first write.
        return mmap.mmap(descriptor, mmap.PAGESIZE)
    except OSError:
        return mmap.mmap(-1, mmap.PAGESIZE)
    finally:
        os.close(descriptor)


class Slots:
    """Reads the slots of dead workers, and of workers that do not answer."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._counting: dict[bytes, tuple[int, str]] = {}
        """(attempt, path) of slots with a count of calls, by actor."""

    def executing(self, token: bytes) -> bytes:
        """Return the task on top in a worker that may live; empty if there is none or no slot."""
        try:
            with open(slot_path(self.directory, token), "rb") as file:
                found = file.read(TASK_BYTES)
        except OSError:
            return b""
        return found if any(found) else b""

    def executes(self, token: bytes, task_id: bytes) -> bool:
        """Whether a living worker has this task on top of its stack. True if its slot is empty because the disk was full."""
        try:
            with open(slot_path(self.directory, token), "rb") as file:
                return file.read(TASK_BYTES) in (task_id, b"")
        except OSError:
            return False

    def read(self, token: bytes) -> tuple[bytes, tuple[Row, ...]]:
        """Read a dead worker's slot: return the task on top (empty: none), and rows as in ``ProcessDied.ended``."""
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
        """Read the slots of all workers that are not living; return rows as in ``ProcessDied.ended``."""
        names = (name.removesuffix(_SUFFIX) for name in sorted(os.listdir(self.directory)) if name.endswith(_SUFFIX))
        rows = [row for token in map(bytes.fromhex, names) if token not in living for row in self.read(token)[1]]
        return tuple({row[0]: row for row in rows}.values())  # The last row of an actor is the newest.

    def release_all_but(self, actors: Container[bytes]) -> None:
        """Delete the slots with counts of all other actors."""
        for actor_id in [each for each in self._counting if each not in actors]:
            _remove(self._counting.pop(actor_id)[1])


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
