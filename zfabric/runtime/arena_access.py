"""Large values: written into the arena, or into the file that the store grants instead, and read there.

Room is reserved, written and sealed here; whoever asked for it sends the message that reports the value.
"""

from __future__ import annotations

import errno
from functools import partial

from zfabric.adapters.arena import Arena
from zfabric.adapters.serialization import OWN_MEMORY
from zfabric.adapters.spill import SpillFiles
from zfabric.config import NUMBER_MAX, SMALL_BYTES
from zfabric.exceptions import ObjectLostError, ObjectStoreFullError, ObjectTooLargeError, OutOfDiskError
from zfabric.machines.common.extents import file_number
from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES
from zfabric.runtime.connection import Connection, clock
from zfabric.runtime.interface import Serialized

_OWN_MEMORY = bytes((OWN_MEMORY,))


class ArenaAccess:
    """One process's access to its node's arena, mapped on first use."""

    def __init__(self, connection: Connection, path: str, size: int, spill: str) -> None:
        self._connection = connection
        self._arena_path = path
        self.size = size
        """Of the whole arena, in bytes."""
        self._arena: Arena | None = None
        self._files = SpillFiles(spill)

    def write(self, identifier: bytes, value: Serialized) -> tuple[int, int]:
        """Write a large value where the store gives it room, and seal it: (offset, size).

        The caller calls ``finished`` of the client's room when it has reported the value.
        """
        size = value.size
        offset = self._room_for(size)
        arena = self.arena()
        try:
            if offset < 0:
                self._write_file(offset, identifier, value)
            else:
                value.write_into(arena.writable(offset, size))
                arena.seal(offset, identifier, size)
        except BaseException:  # an interrupt of the task, or the user's own buffers: the room is not to be waited for
            with self._connection.lock:
                self._connection.machine.reservations.abandon(offset)
            raise
        return offset, size

    def _write_file(self, offset: int, identifier: bytes, value: Serialized) -> None:
        try:
            self._files.fill(file_number(offset), identifier, value.pieces())
        except OSError as error:
            raise OutOfDiskError(f"the value cannot be written to disk ({error}), and the object store has no room for it") from None

    def view(self, place: tuple[int, int]) -> memoryview:
        """The bytes at a place that this process was told: read-only in the arena, a private mapping of a file, or of what has tensors."""
        offset, size = place
        arena = self.arena()
        try:
            if offset >= 0:
                view = arena.view(offset, size)
                return arena.private(offset, size) if view[:1] == _OWN_MEMORY else view
            return self._files.map(file_number(offset), size)
        except FileNotFoundError:
            raise ObjectLostError("the file that the value was in is gone") from None
        except OSError as error:
            if error.errno == errno.EIO:
                raise ObjectLostError(f"the file that the value was in is damaged ({error.strerror})") from None
            raise ObjectStoreFullError(f"the value cannot be mapped ({error})") from None

    def _room_for(self, size: int) -> int:
        connection, room = self._connection, self._connection.machine.reservations
        deadline = clock() + connection.config.put_patience
        if room.ahead:
            connection.look()  # It may have come; then the one after it is asked for now, and not when this one is used up.
        while True:
            with connection.lock:
                connection.check_usable()
                asked_before = room.ahead
                exact = not room.shares(size)
                if not exact:
                    offset = room.allocate(size)
                    if offset is not None:
                        if room.ahead != asked_before:
                            connection.flush()  # The daemon makes the next grant ready while this value is written.
                        return offset
                ahead = 0 if exact else room.ahead
                token = ahead or room.reserve(size, exact, max(0.0, deadline - clock()))
                connection.flush()
            try:
                answered = connection.wait_until(partial(room.answered, token), deadline + 5.0)
            except BaseException:  # Ctrl-C and interrupts too: what is granted now has nobody who would write there
                with connection.lock:
                    room.forsake(token)
                raise
            with connection.lock:
                answer = room.take(token)
                if type(answer) is m.Granted and exact:
                    return room.grants.add_exact(answer.offset, answer.size)
                if type(answer) is m.Granted:
                    room.grants.add(answer.offset, answer.size)
                    continue
                if answered and token == ahead:
                    continue
                if type(answer) is m.NoSpace and answer.kind == "alone":
                    continue
                room.forsake(token)
            text = answer.text if type(answer) is m.NoSpace else "the object store did not answer in time"
            kind = ObjectTooLargeError if type(answer) is m.NoSpace and answer.kind == "too_large" else ObjectStoreFullError
            raise kind(text if answered else f"{text} ({size} bytes)")

    def arena(self) -> Arena:
        """The node's arena, mapped on first use."""
        if self._arena is None:
            if not self._arena_path:
                raise ObjectTooLargeError("this node has no object store (object_store_memory=0)")
            self._arena = Arena(self._arena_path, self.size, writable=True)
        return self._arena

    def close(self) -> None:
        """Release the arena; arrays that look into it stay valid."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None


class UnreportedWrites:
    """Values that tasks and calls have written, and that no message reports yet."""

    def __init__(self, connection: Connection, values: ArenaAccess) -> None:
        self.offsets: dict[bytes, list[int]] = {}
        """Where they are, by task or call: others may run beside it."""
        self._room = connection.machine.reservations
        self._inline_bytes = connection.config.inline_bytes
        self._values = values

    def store(self, identifier: bytes, packed: Serialized, room: int = NUMBER_MAX) -> bytes | tuple[int, int]:
        """A value as a message reports it: inline bytes, ``room`` at most, or the place in the arena where it was written."""
        if packed.size <= self._inline_bytes and packed.size <= max(room, SMALL_BYTES):
            return packed.to_bytes()
        place = self._values.write(identifier, packed)
        self.offsets.setdefault(identifier[:TASK_BYTES], []).append(place[0])
        return place

    def finish(self, identifier: bytes) -> None:
        """The values of a task or a call are in a message that leaves next. The caller holds the lock."""
        for offset in self.offsets.pop(identifier, ()):
            self._room.finished(offset)

    def abandon(self, identifier: bytes) -> None:
        """No message will report the values of a task or a call. The caller holds the lock."""
        for offset in self.offsets.pop(identifier, ()):
            self._room.abandon(offset)

    def hold(self, identifier: bytes) -> None:
        """The outcome of a call is held back; the machine returns its values when it leaves (``Mailbox.written``)."""
        self.offsets.pop(identifier, None)
