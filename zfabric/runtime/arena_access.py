"""Large values on their way into the arena: room is reserved, written, sealed, and told of by whoever asked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zfabric.adapters.arena import Arena
from zfabric.exceptions import ObjectStoreFullError, ObjectTooLargeError
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.runtime.interface import Serialized

if TYPE_CHECKING:
    from zfabric.runtime.client import FabricClient

clock = time.monotonic


class ArenaAccess:
    """One process's access to its node's arena, mapped on first use."""

    def __init__(self, client: FabricClient, path: str, size: int) -> None:
        self._client = client
        self._arena_path = path
        self._arena_size = size
        self._arena: Arena | None = None

    def write(self, identifier: bytes, value: Serialized) -> tuple[int, int]:
        """Write a large value into the arena and seal it: (offset, size). The caller says ``finished`` when it has told of it."""
        size = value.size
        offset = self._room_for(size)
        arena = self.arena()
        try:
            value.write_into(arena.writable(offset, size))
            arena.seal(offset, identifier, size)
        except BaseException:
            with self._client.lock:
                returned = self._client.machine.grants.abandon(offset)
                if returned is not None:
                    self._client.machine._controls.append(Send(self._client.machine.store, m.ReturnGrant(*returned)))
            raise
        return offset, size

    def _room_for(self, size: int) -> int:
        exact = size > self._client.config.grant_bytes // 2
        deadline = clock() + self._client.config.put_patience
        while True:
            with self._client.lock:
                self._client._check_usable()
                if not exact:
                    offset = self._client.machine.grants.allocate(size)
                    if offset is not None:
                        return offset
                    for row in self._client.machine.grants.spent():
                        self._client.machine._controls.append(Send(self._client.machine.store, m.ReturnGrant(*row)))
                token = self._client.machine.reserve(size, exact, max(0.0, deadline - clock()))
                self._client.flush()
            try:
                answered = self._client._wait_until(lambda token=token: token in self._client.machine.reservations, deadline + 5.0)  # type: ignore[misc]
            except BaseException:
                with self._client.lock:
                    self._client.machine.forsake(token)
                raise
            with self._client.lock:
                answer = self._client.machine.reservations.pop(token, None)
                if type(answer) is m.Granted:
                    if exact:
                        return self._client.machine.grants.add_exact(answer.offset, answer.size)
                    self._client.machine.grants.add(answer.offset, answer.size)
                    continue
                self._client.machine.forsake(token)
            text = answer.text if type(answer) is m.NoSpace else "the object store did not answer in time"
            kind = ObjectTooLargeError if type(answer) is m.NoSpace and answer.kind == "too_large" else ObjectStoreFullError
            raise kind(text if answered else f"{text} ({size} bytes)")

    def arena(self) -> Arena:
        """The node's arena, mapped on first use."""
        if self._arena is None:
            if not self._arena_path:
                raise ObjectTooLargeError("this node has no object store (object_store_memory=0)")
            self._arena = Arena(self._arena_path, self._arena_size, writable=True)
        return self._arena

    def close(self) -> None:
        """Let go of the arena; arrays that look into it stay valid."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None
