"""What outlives a worker process: its slot, a page that it writes and the daemon reads when it is dead, or does not answer.

In it is the task on top of the stack, and, of an actor that has checkpoints and whose calls are not logged, how many have ended: exact
at any moment, and without a message. A page that counts calls stays until the same actor leaves a newer one, or is no more: a daemon that
reads it may die before the actor lives again, and the next one is to know it, too. Which of several is the newest, its attempt says.
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
"""Behind the task: how many calls have ended, in which attempt of which actor."""
_SUFFIX = ".slot"


def slot_path(directory: str, token: bytes) -> str:
    """Where a worker's is."""
    return f"{directory}/{token.hex()}{_SUFFIX}"


def open_slot(directory: str, token: bytes) -> mmap.mmap:
    """A worker's own. Where the disk is full it is lost with it, and the daemon suspects the first of the tasks that the worker had."""
    descriptor = os.open(slot_path(directory, token), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)  # An error now, rather than a SIGBUS when it is first written to.
        return mmap.mmap(descriptor, mmap.PAGESIZE)
    except OSError:
        return mmap.mmap(-1, mmap.PAGESIZE)
    finally:
        os.close(descriptor)


class Slots:
    """Those of the dead, and of who is to die."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._counting: dict[bytes, tuple[int, str]] = {}
        """Pages that count calls, and of which attempts they are, by actor."""

    def executing(self, token: bytes) -> bytes:
        """The task on top in a worker that may live; empty: none, or not known."""
        try:
            with open(slot_path(self.directory, token), "rb") as file:
                found = file.read(TASK_BYTES)
        except OSError:
            return b""
        return found if any(found) else b""

    def executes(self, token: bytes, task_id: bytes) -> bool:
        """Whether a living worker has this task on top of its stack; also if nobody can tell, since the disk is full."""
        try:
            with open(slot_path(self.directory, token), "rb") as file:
                return file.read(TASK_BYTES) in (task_id, b"")
        except OSError:
            return False

    def read(self, token: bytes) -> tuple[bytes, tuple[Row, ...]]:
        """The task that was on top (empty: none), and rows as in ``ProcessDied.ended``."""
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
        """What all have left that are not among the living."""
        names = (name.removesuffix(_SUFFIX) for name in sorted(os.listdir(self.directory)) if name.endswith(_SUFFIX))
        rows = [row for token in map(bytes.fromhex, names) if token not in living for row in self.read(token)[1]]
        return tuple({row[0]: row for row in rows}.values())  # The last that was read of an actor is the newest.

    def release_all_but(self, actors: Container[bytes]) -> None:
        """What others have left is of no use to anybody."""
        for actor_id in [each for each in self._counting if each not in actors]:
            _remove(self._counting.pop(actor_id)[1])


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
