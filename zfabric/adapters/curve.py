"""Encrypted TCP sockets between nodes: CURVE on each, and the authenticator, which decides whose keys may enter.

The authenticator answers ZeroMQ's authentication protocol (ZAP) in the daemon's own loop. libzmq checks no key: without
``ZAP_ENFORCE_DOMAIN``, set here, libzmq would admit every peer while nobody answers.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import zmq
from zmq.utils import z85

DOMAIN = b"zfabric"
HANDSHAKE_SECONDS = 3.0
"""Seconds until a connection with an unfinished handshake is closed."""
FRAME_BYTES_MAX = 2**20
"""Largest frame between nodes: a lease waits behind one frame of each sender, about 10 ms at 1 Gbit/s."""
SEALED_BYTES = 64
HEARTBEAT_SECONDS = 2.0
SILENT_SECONDS = 6.0
"""Seconds without any byte until a connection is closed."""
BACKLOG = 1024
HELD_MAX = 64
"""Connections with unknown keys that may wait: strangers can make any number."""
HELD_SECONDS = 2.0
"""Seconds that an unknown key waits: a table that has it arrives within a round trip to the registry."""
FAILURES_READ = 1000
"""Most failures read at a time: strangers can make them as fast as they are read."""

FAILURES = {
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "handshake not finished",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "handshake",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "key",
    int(zmq.EVENT_CLOSED): "nobody listens",
    int(zmq.EVENT_DISCONNECTED): "disconnected",
}
"""A wrong mechanism (NULL, PLAIN) and a wrong server key both fail as "handshake"."""
OF_SERVER = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
"""Without ``EVENT_ACCEPT_FAILED``: out of descriptors, libzmq retries a million times a second."""
OF_DEALER = OF_SERVER | zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=Hi")
"""A socket event of libzmq: event, value. PyZMQ's own parser loads asyncio, which no daemon needs."""

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


class KeyPair(NamedTuple):
    """A CURVE key pair, both halves in Z85."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def make_pair() -> KeyPair:
    """Make a new key pair."""
    return KeyPair(*zmq.curve_keypair())


def listen(context: Context, endpoint: str, keys: KeyPair, queued: int, bound: int = -1) -> Socket:
    """Return a socket that accepts connections at ``endpoint`` from peers that the context's authenticator admits.

    ``bound`` is the descriptor of a TCP socket that listens there already.
    """
    socket = context.socket(zmq.ROUTER)
    try:
        _common(socket, keys, queued)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        if bound >= 0:
            socket.setsockopt(zmq.USE_FD, bound)
        socket.setsockopt(zmq.IPV6, _is_ipv6(endpoint))
        socket.bind(endpoint)
    except BaseException:  # Ctrl-C too: the context waits for open sockets.
        socket.close(0)
        raise
    return socket


def dealer(context: Context, keys: KeyPair, server_key: bytes, queued: int) -> Socket:
    """Return a socket for one connection, never reconnected: lost frames would go unnoticed."""
    socket = context.socket(zmq.DEALER)
    try:
        _common(socket, keys, queued)
        socket.setsockopt(zmq.CURVE_SERVERKEY, server_key)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
    except BaseException:  # As above.
        socket.close(0)
        raise
    return socket


def connect(socket: Socket, endpoint: str) -> None:
    """Begin a connection of a ``dealer``."""
    socket.setsockopt(zmq.IPV6, _is_ipv6(endpoint))
    socket.connect(endpoint)


def _is_ipv6(endpoint: str) -> int:
    """Names count as IPv4."""
    return int("[" in endpoint)


def _common(socket: Socket, keys: KeyPair, queued: int) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, queued)
    socket.setsockopt(zmq.RCVHWM, queued)
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX + SEALED_BYTES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_SECONDS * 1000))
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_SECONDS * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(SILENT_SECONDS * 1000))
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


def observe(context: Context, socket: Socket, name: str, events: int) -> Socket:
    """Return a socket from which ``failures`` reads what happens to connections of ``socket``. ``name`` is unique in the context.

    The queue is unbounded: libzmq's I/O thread would wait for room, for ever while the socket closes.
    """
    socket.monitor(f"inproc://{name}", events)
    observer = context.socket(zmq.PAIR)
    observer.setsockopt(zmq.LINGER, 0)
    observer.setsockopt(zmq.RCVHWM, 0)
    observer.connect(f"inproc://{name}")
    return observer


def failures(observer: Socket) -> Iterator[str]:
    """Yield the reasons of failures that an observer has seen, ``FAILURES_READ`` at most; others follow next time."""
    with contextlib.suppress(zmq.Again):
        for _ in range(FAILURES_READ):
            event, _ = _EVENT.unpack(observer.recv_multipart(zmq.DONTWAIT)[0])
            yield FAILURES.get(event, "")


class Authenticator:
    """Answers whether the owner of a key may connect; one per context.

    An unknown key may belong to a node that has just joined. So its connection waits for a newer table (``admit``) before it is refused.
    """

    def __init__(self, context: Context) -> None:
        self.known: frozenset[bytes] = frozenset()
        """Public keys that may enter."""
        self._held: list[tuple[float, list[bytes], bytes]] = []
        """Waiting connections: (deadline, head of the answer, key), soonest first."""
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")

    def admit(self, known: frozenset[bytes]) -> None:
        """Let in the owners of these keys alone."""
        self.known = known
        held, self._held = self._held, []
        for each in held:
            if each[2] in known:
                self._reply(each[1], b"200", each[2])
            else:
                self._held.append(each)

    def answer(self, now: float) -> None:
        """Answer one request. Raises zmq.Again if there is none."""
        parts = self.socket.recv_multipart(zmq.DONTWAIT)
        head = parts[:4]  # [routing id, empty, version, number of the request]
        key = _key_of(parts[4:]) if len(head) == 4 and head[2] == b"1.0" else b""
        if not key:
            self._reply(head, b"500")
        elif key in self.known:
            self._reply(head, b"200", key)
        elif len(self._held) < HELD_MAX:
            self._held.append((now + HELD_SECONDS, head, key))
        else:
            self._reply(head, b"300")  # Temporary: after a final refusal (400), a libzmq client never retries.

    def waiting(self) -> list[bytes]:
        """Return the unknown keys of waiting connections, the longest waiting first."""
        return [key for _, _, key in self._held]

    def expire(self, now: float) -> None:
        """Refuse connections whose wait has ended."""
        while self._held and self._held[0][0] <= now:
            self._reply(self._held.pop(0)[1], b"400")

    def next_deadline(self) -> float | None:
        """When ``expire`` is due."""
        return self._held[0][0] if self._held else None

    def _reply(self, head: list[bytes], code: bytes, user: bytes = b"") -> None:
        with contextlib.suppress(zmq.ZMQError):
            self.socket.send_multipart([*head, code, b"", user, b""], zmq.DONTWAIT)

    def close(self) -> None:
        """Close the socket: nobody enters any more."""
        self.socket.close(0)


def _key_of(parts: list[bytes]) -> bytes:
    """Return the key in a request ``[domain, address, routing id, mechanism, key]``; empty if there is none."""
    if len(parts) != 5 or parts[0] != DOMAIN or parts[3] != b"CURVE" or len(parts[4]) != 32:
        return b""
    return z85.encode(parts[4])


def user_of(part: Any) -> bytes:
    """Return the sender's public key, as authenticated, from a part of a frame; empty if there is none."""
    try:
        return part.get("User-Id").encode()  # type: ignore[no-any-return]
    except (zmq.ZMQError, UnicodeError):
        return b""
