"""Writes and reads large values: in the arena, or in files that the store grants instead."""

from __future__ import annotations

import errno
import threading
from functools import partial

from zfabric.adapters.arena import Arena
from zfabric.adapters.serialization import SerializedValue, has_own_memory
from zfabric.adapters.spill import SpillFiles
from zfabric.config import NUMBER_MAX, SMALL_BYTES
from zfabric.exceptions import ObjectLostError, ObjectStoreFullError, ObjectTooLargeError, OutOfDiskError
from zfabric.machines.common.extents import file_number
from zfabric.protocol import messages as m
from zfabric.protocol.ids import TASK_BYTES
from zfabric.runtime.connection import Connection, clock

COPIES_KEPT = 4
"""Kept copies, counted in values of the largest copied size."""
COPIES_REMEMBERED = 64


class ArenaAccess:
    """One process's access to its node's arena."""

    def __init__(self, connection: Connection, path: str, size: int, spill: str) -> None:
        self._connection = connection
        self._arena_path = path
        self.size = size
        self._arena: Arena | None = None
        self._files = SpillFiles(spill)

    def write(self, identifier: bytes, value: SerializedValue) -> tuple[int, int]:
        """Write and seal a large value. Return (offset, size).

        The caller reports the value, then calls ``Reservations.finished``.
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
        except BaseException:  # An interrupt, too.
            with self._connection.lock:
                self._connection.machine.reservations.abandon(offset)
            raise
        return offset, size

    def _write_file(self, offset: int, identifier: bytes, value: SerializedValue) -> None:
        try:
            self._files.fill(file_number(offset), identifier, value.pieces())
        except OSError as error:
            raise OutOfDiskError(f"the value cannot be written to disk ({error}), and the object store has no room for it") from None

    def view(self, place: tuple[int, int]) -> memoryview:
        """A view of the arena, or a private mapping of a file or of a value with tensors."""
        offset, size = place
        arena = self.arena()
        try:
            if offset >= 0:
                view = arena.view(offset, size)
                return arena.private(offset, size) if has_own_memory(view) else view
            return self._files.map(file_number(offset), size)
        except FileNotFoundError:
            raise ObjectLostError("the file that the value was in is gone") from None
        except OSError as error:
            if error.errno == errno.EIO:
                raise ObjectLostError(f"the file that the value was in is damaged ({error.strerror})") from None
            raise ObjectStoreFullError(f"the value cannot be mapped ({error})") from None

    def void(self, offset: int) -> None:
        """Void the header of a value whose room this process will write again."""
        if self._arena is not None:
            self._arena.void(offset)

    def copy(self, identifier: bytes, place: tuple[int, int]) -> memoryview | None:
        """Copy a value without a pin; None if the value is gone."""
        offset, size = place
        if not self._arena_path or size > self._connection.config.copied_bytes:
            return None
        return self.arena().copy(offset, size, identifier)

    def _room_for(self, size: int) -> int:
        connection, room = self._connection, self._connection.machine.reservations
        deadline = clock() + connection.config.put_patience
        if room.ahead:
            connection.look()  # A grant may have arrived; the next one is then requested at once.
        while True:
            with connection.lock:
                connection.check_usable()
                asked_before = room.ahead
                exact = not room.shares(size)
                if not exact:
                    offset = room.allocate(size)
                    if offset is not None:
                        if room.ahead != asked_before:
                            connection.flush()  # The daemon prepares the next grant while this value is written.
                        return offset
                ahead = 0 if exact else room.ahead
                if not ahead:
                    connection.machine.arguments.report_all()  # The store may need the room of arguments.
                token = ahead or room.reserve(size, exact, max(0.0, deadline - clock()))
                connection.flush()
            try:
                answered = connection.wait_until(partial(room.answered, token), deadline + 5.0)
            except BaseException:  # Ctrl-C and interrupts, too.
                with connection.lock:
                    room.cancel(token)
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
                room.cancel(token)
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
        """Release the arena. Arrays on its memory remain valid."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None


class KeptCopies:
    """Copies of values for calls; only values taken again are kept."""

    def __init__(self, connection: Connection, values: ArenaAccess) -> None:
        self._values = values
        self._most = COPIES_KEPT * connection.config.copied_bytes
        self._lock = threading.Lock()
        self._taken: dict[bytes, None] = {}
        """Values taken before, the oldest first."""
        self._kept: dict[bytes, memoryview] = {}
        """Read-only copies, least recently used first."""
        self._bytes = 0

    def take(self, identifier: bytes, place: tuple[int, int]) -> memoryview | None:
        """The value at a place, or None if it is gone. Kept copies are read-only, since several calls share them."""
        with self._lock:
            kept = self._kept.pop(identifier, None)
            if kept is not None:
                self._kept[identifier] = kept
                return kept
        copy = self._values.copy(identifier, place)
        if copy is None:
            return None
        with self._lock:
            if identifier not in self._taken:
                self._taken[identifier] = None
                if len(self._taken) > COPIES_REMEMBERED:
                    del self._taken[next(iter(self._taken))]
                return copy
            copy = copy.toreadonly()
            if identifier not in self._kept:
                self._kept[identifier] = copy
                self._bytes += len(copy)
            while self._bytes > self._most:
                oldest = next(iter(self._kept))
                self._bytes -= len(self._kept.pop(oldest))
        return copy


class UnreportedWrites:
    """Written values that no message has reported."""

    def __init__(self, connection: Connection, values: ArenaAccess) -> None:
        self.offsets: dict[bytes, list[int]] = {}
        """Offsets by task or call id."""
        self._room = connection.machine.reservations
        self._inline_bytes = connection.config.inline_bytes
        self._values = values

    def store(self, identifier: bytes, packed: SerializedValue, room: int = NUMBER_MAX) -> bytes | tuple[int, int]:
        """Return a value as messages report it: inline bytes, at most ``room``, or its place once written."""
        if packed.size <= self._inline_bytes and packed.size <= max(room, SMALL_BYTES):
            return packed.to_bytes()
        place = self._values.write(identifier, packed)
        self.offsets.setdefault(identifier[:TASK_BYTES], []).append(place[0])
        return place

    def finish(self, identifier: bytes) -> None:
        """Stop tracking values that are about to be reported. The caller holds the lock."""
        for offset in self.offsets.pop(identifier, ()):
            self._room.finished(offset)

    def abandon(self, identifier: bytes) -> None:
        """Return the room of values that will not be reported. The caller holds the lock."""
        for offset in self.offsets.pop(identifier, ()):
            self._room.abandon(offset)

    def hold(self, identifier: bytes) -> None:
        """Stop tracking a call whose outcome waits for a commit: ``Mailbox.written`` takes over."""
        self.offsets.pop(identifier, None)
