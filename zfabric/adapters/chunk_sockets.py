"""The TCP sockets of a transfer agent: one that others dial for values of this node, and one to each node with values for this node.

A chunk is sent from its own memory, without a copy. Frames may be lost: agents repeat requests, so ZeroMQ may reconnect by itself.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import zmq
import zmq.backend

from zfabric.adapters import curve
from zfabric.adapters.curve import Authenticator, Context, KeyPair, Socket
from zfabric.exceptions import ConnectionLostError
from zfabric.protocol.access import FROM_AGENTS
from zfabric.protocol.codec import MalformedFrame, decode, encode
from zfabric.protocol.ids import TRANSFER_AGENT
from zfabric.protocol.messages import Chunk, Message, Row

QUEUED_MAX = 64
"""Frames queued per connection; chunks are bounded by credit."""
FRAMES_PER_TURN = 16
"""Frames that one ``receive`` reads from each socket: chunks stay in memory until written."""
MESSAGES_MAX = 32
MESSAGE_BYTES_MAX = 4096
RECONNECT_MS, RECONNECT_MS_MAX = 100, 2000
REDIAL_SECONDS = 5.0
"""A connection silent for so long is redialled: ZeroMQ gives up refused ones."""

EVENTS, POLLIN, DONTWAIT, SNDMORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.DONTWAIT), int(zmq.SNDMORE)
_option: Any = zmq.backend.Socket.get
_recv: Any = zmq.backend.Socket.recv
_send: Any = zmq.backend.Socket.send
"""As in ``adapters.sockets``."""


class Received(NamedTuple):
    """A message of another agent; ``data`` are the bytes of a chunk."""

    node: bytes
    message: Message
    data: memoryview


class _Source:
    __slots__ = ("address", "asked_at", "key", "received_at", "socket")

    def __init__(self, address: str, key: bytes, socket: Socket, now: float) -> None:
        self.address = address
        self.key = key
        self.socket = socket
        self.received_at = now
        self.asked_at = now


class ChunkSockets:
    """The sockets of one agent, used by one thread that never waits in them.

    ``bound`` is the descriptor of a listening TCP socket whose port outlives agents; without it the agent listens at ``endpoint``. Keys
    without a secret half are for measurements: nothing is encrypted, names are believed.
    """

    def __init__(self, context: Context, keys: KeyPair, endpoint: str, bound: int = -1) -> None:
        self._context = context
        self._keys = keys
        self.refused: Counter[str] = Counter()
        self._rows: dict[bytes, Row] = {}
        self._by_key: dict[bytes, bytes] = {}
        self._readers: dict[bytes, bytes] = {}
        """The newest connection of each node that reads from this one."""
        self._sources: dict[bytes, _Source] = {}
        self._unsent: deque[tuple[Any, bytes]] = deque()
        """(tracker, object id) of chunks whose memory ZeroMQ still reads."""
        self.authenticator = Authenticator(context) if keys.secret else None
        try:
            self.server = self._listen(endpoint, bound)
        except zmq.ZMQError as error:
            if self.authenticator is not None:
                self.authenticator.close()
            raise ConnectionLostError(f"the transfer agent cannot listen at {endpoint}: {error.strerror}") from None
        self.address = self.server.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        """Where the agent listens, with the port."""
        self.sources: list[tuple[Any, int]] = []
        """What to poll. It changes when a connection is made."""
        self._poll()

    def _listen(self, endpoint: str, bound: int) -> Socket:
        if not self._keys.secret:
            socket: Socket = self._context.socket(zmq.ROUTER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(endpoint)
            return socket
        return curve.listen(self._context, endpoint, self._keys, QUEUED_MAX, bound)

    def _poll(self) -> None:
        keys = [(self.authenticator.socket, POLLIN)] if self.authenticator is not None else []
        self.sources = [(self.server, POLLIN), *keys, *((each.socket, POLLIN) for each in self._sources.values())]

    # -- which nodes there are --

    def connect(self, rows: dict[bytes, Row]) -> None:
        """Apply the rows of a ``NodeTable``, by node: admit these alone, close connections to others."""
        self._rows = rows
        self._by_key = {row[5]: node for node, row in rows.items()}
        if self.authenticator is not None:
            self.authenticator.admit(frozenset(self._by_key))
        for node, source in list(self._sources.items()):
            row = rows.get(node)
            if row is None or (row[4], row[5]) != (source.address, source.key):
                self._close(node)
        self._readers = {node: connection for node, connection in self._readers.items() if node in rows}

    def _source(self, node: bytes, now: float) -> _Source | None:
        found = self._sources.get(node)
        if found is not None and found.asked_at - found.received_at > REDIAL_SECONDS:
            self._close(node)
            found = None
        row = self._rows.get(node)
        if found is not None or row is None or not row[4]:
            return found
        if not self._keys.secret:
            socket: Socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.ROUTING_ID, self._keys.public)
        else:
            socket = curve.dealer(self._context, self._keys, row[5], QUEUED_MAX)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        curve.connect(socket, row[4])
        made = self._sources[node] = _Source(row[4], row[5], socket, now)
        self._poll()
        return made

    def _close(self, node: bytes) -> None:
        self._sources.pop(node).socket.close(0)
        self._poll()

    # -- sending --

    def ask(self, node: bytes, messages: list[Message], now: float) -> None:
        """Send messages to an agent that has values."""
        source = self._source(node, now)
        if source is not None:
            source.asked_at = now
            for start in range(0, len(messages), MESSAGES_MAX):
                self._write(source.socket, (_encoded(*messages[start : start + MESSAGES_MAX]),))

    def answer(self, node: bytes, message: Message) -> None:
        """Send a message to an agent that reads values."""
        connection = self._readers.get(node)
        if connection is not None:
            self._write(self.server, (connection, _encoded(message)))

    def send_chunk(self, node: bytes, message: Chunk, object_id: bytes, data: memoryview) -> None:
        """Send a chunk to a reader. The bytes may change once ``sent`` has yielded the object id."""
        connection = self._readers.get(node)
        tracker = None
        if connection is not None and self._write(self.server, (connection, _encoded(message)), more=True):
            tracker = self.server.send(data, DONTWAIT, copy=False, track=True)
        self._unsent.append((tracker, object_id))

    def _write(self, socket: Socket, parts: tuple[bytes, ...], more: bool = False) -> bool:
        """Return False if the frame was dropped: the connection has ended or is full."""
        try:
            for index, part in enumerate(parts, 1):
                _send(socket, part, DONTWAIT | (SNDMORE if more or index < len(parts) else 0))
        except zmq.ZMQError:
            self.refused["frames_dropped"] += 1
            return False
        return True

    def sent(self) -> Iterator[bytes]:
        """Yield the object id of each chunk whose memory may change now."""
        while self._unsent and (self._unsent[0][0] is None or self._unsent[0][0].done):
            yield self._unsent.popleft()[1]

    @property
    def sending(self) -> bool:
        """Whether ZeroMQ still reads a chunk's memory. Nobody is woken when that ends."""
        return bool(self._unsent)

    # -- receiving --

    def receive(self, now: float, ready: Container[Any]) -> Iterator[Received]:
        """Yield some messages from those of ``sources`` that are ready. The key identifies the sender."""
        if self.authenticator is not None:
            if self.authenticator.socket in ready:
                self._authenticate(now)
            self.authenticator.expire(now)
        if self.server in ready:
            yield from self._take(self.server, self._from_reader)
        for node, source in list(self._sources.items()):
            if source.socket not in ready:
                continue
            for received in self._take(source.socket, partial(_from_source, node)):
                source.received_at = now
                yield received

    def _authenticate(self, now: float) -> None:
        assert self.authenticator is not None
        for _ in range(FRAMES_PER_TURN):
            if not _readable(self.authenticator.socket):
                break
            self.authenticator.answer(now)

    def next_deadline(self) -> float | None:
        """When ``receive`` is due even if nothing arrives."""
        return self.authenticator.next_deadline() if self.authenticator is not None else None

    def _from_reader(self, parts: list[Any]) -> tuple[bytes, list[Any]] | None:
        connection = parts[0].bytes
        node = self._by_key.get(curve.user_of(parts[-1]) if self._keys.secret else connection)
        if node is None:
            return None
        self._readers[node] = connection
        return node, parts[1:]

    def _take(self, socket: Socket, sender_of: Callable[[list[Any]], tuple[bytes, list[Any]] | None]) -> Iterator[Received]:
        for _ in range(FRAMES_PER_TURN):
            if not _readable(socket):
                return
            parts = [_recv(socket, DONTWAIT, False)]
            while parts[-1].more:
                parts.append(_recv(socket, DONTWAIT, False))
                if len(parts) > 4:
                    parts[3:] = parts[-1:]
            found = sender_of(parts)
            received = _decoded(*found) if found is not None else ()
            if not received:
                self.refused["frames_refused"] += 1
            yield from received

    def close(self) -> None:
        """Close every socket."""
        for source in self._sources.values():
            source.socket.close(0)
        self._sources.clear()
        self.server.close(0)
        if self.authenticator is not None:
            self.authenticator.close()


def _readable(socket: Socket) -> bool:
    """An attempt to receive nothing would cost an exception."""
    return bool(_option(socket, EVENTS) & POLLIN)


def _from_source(node: bytes, parts: list[Any]) -> tuple[bytes, list[Any]]:
    return node, parts


def _encoded(*messages: Message) -> bytes:
    return encode(0, 0, [(TRANSFER_AGENT, TRANSFER_AGENT, message) for message in messages])


def _decoded(node: bytes, parts: list[Any]) -> Sequence[Received]:
    """Decode a message of an agent; return nothing for a message that no agent sends."""
    if not parts or len(parts[0].buffer) > MESSAGE_BYTES_MAX:
        return ()
    try:
        _, _, body = decode(parts[0].bytes)
    except MalformedFrame:
        return ()
    messages = [each[2] for each in body] if isinstance(body, list) else []
    if not messages or any(type(each) not in FROM_AGENTS for each in messages):
        return ()
    data = parts[1].buffer if len(parts) == 2 else memoryview(b"")
    chunk = next((each for each in messages if isinstance(each, Chunk)), None)
    if len(parts) > 2 or len(data) != (chunk.size if chunk is not None else 0) or (chunk is not None and len(messages) > 1):
        return ()
    return [Received(node, each, data) for each in messages]
