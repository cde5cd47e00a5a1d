"""All TCP sockets of one daemon, to the daemons of other nodes.

A node listens on one socket and dials older nodes. The connection's key identifies the sender (``curve.Authenticator``), whatever a frame
claims. Links continue over new connections (``NodeLink``), which are dialled here: ZeroMQ would reconnect unnoticed.

A node outside of the table has no link. It dials the head with the cluster's key, and may send only messages of joining, in frames without
numbers, which it repeats.

The daemon polls one descriptor for all sockets. ZeroMQ's are edge-triggered: a socket stays in ``_ready`` until empty.
"""

from __future__ import annotations

import contextlib
import math
import random
import select
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import zmq
import zmq.backend
from zmq import zmq_poll

from zfabric.adapters import curve
from zfabric.adapters.curve import FRAME_BYTES_MAX, HANDSHAKE_SECONDS, Authenticator, Context, KeyPair, Socket
from zfabric.exceptions import ConnectionLostError
from zfabric.machines.common.link import ACKNOWLEDGE_AFTER
from zfabric.machines.common.node_link import IN_FLIGHT_MAX, HelloRefused, LinkBroken, NodeLink
from zfabric.protocol.codec import MalformedFrame, decode, encode
from zfabric.protocol.ids import HEAD, INCARNATION_BYTES, JOINER
from zfabric.protocol.messages import Envelope, Row

QUEUED_MAX = 2 * IN_FLIGHT_MAX
"""Frames queued per connection: those in flight, and as many acknowledgements."""
FRAMES_PER_TURN = 32
JOIN_BYTES_MAX = 64 * 2**10
HELLO_SECONDS = HANDSHAKE_SECONDS + 1.0
"""Seconds until a connection whose hello is unanswered is redialled."""
REDIAL_SECONDS = 0.005
"""First pause of redialling, doubled each time. A restarted daemon listens again within a few."""
REDIAL_SECONDS_MAX = 2.0
DIAL_AGAIN = b""
"""Ends an accepted connection: ZeroMQ cannot close one of a socket's connections."""

_CONNECTION_BYTES = INCARNATION_BYTES - len(JOINER)

POLLIN, DONTWAIT, SNDMORE = int(zmq.POLLIN), int(zmq.DONTWAIT), int(zmq.SNDMORE)
_recv: Any = zmq.backend.Socket.recv
_send: Any = zmq.backend.Socket.send
"""As in ``adapters.sockets``. Asking a socket for its events costs twice a ``zmq_poll`` of it."""

Received = list[tuple[bytes, list[Envelope]]]
"""Messages by sender."""
Reader = Callable[[float, Received], None]
Admits = Callable[[str, type[Any]], bool]
"""Whether a message type is admitted from "node" (in the table), "joiner", or "head" (answers to a joiner)."""


class DialledConnection:
    """A connection that this node dials, again after each failure."""

    def __init__(self, transport: NodeTransport, address: str, server_key: bytes, keys: KeyPair) -> None:
        self._transport = transport
        self.address = address
        self.server_key = server_key
        self.keys = keys
        self.socket: Socket | None = None
        self.observer: Socket | None = None
        self.due: float | None = None
        """When to dial, or to give up the present attempt."""
        self.trouble = ""
        """Why the last attempt failed; empty while connected."""
        self._pause = REDIAL_SECONDS

    def dial(self, name: str) -> None:
        """Begin a new connection."""
        context = self._transport.context
        self.socket = curve.dealer(context, self.keys, self.server_key, QUEUED_MAX)
        self.observer = curve.observe(context, self.socket, name, curve.OF_DEALER)
        curve.connect(self.socket, self.address)

    def established(self) -> None:
        """Note that the other side has answered."""
        self.trouble = ""
        self.due = None
        self._pause = REDIAL_SECONDS

    def retry(self, now: float, reason: str) -> None:
        """Close the sockets; dial again after a pause."""
        self.close()
        self.trouble = reason
        self.due = now + self._pause * random.uniform(0.5, 1.0)
        self._pause = min(2 * self._pause, REDIAL_SECONDS_MAX)

    def move(self, address: str) -> None:
        """Dial another address, at once."""
        self.close()
        self.address = address
        self.due = 0.0

    def close(self) -> None:
        """Close the sockets."""
        self.due = None
        self._transport.close_dialled(self)


class PeerNode:
    """Another node: its link, and the connection that carries it."""

    __slots__ = ("connection", "dialled", "key", "link")

    def __init__(self, link: NodeLink, key: bytes, dialled: DialledConnection | None) -> None:
        self.link = link
        self.key = key
        self.dialled = dialled
        """The connection if this node dials; None if the peer does."""
        self.connection = b""
        """Routing id of the connection that the peer has dialled."""


class NodeTransport:
    """Connections of one daemon incarnation to other nodes, for one thread. No method waits.

    ``role_keys`` are public keys with which others may join through this node (the head). Raises ConnectionLostError if it cannot listen at
    ``endpoint`` ("tcp://host:port").
    """

    def __init__(
        self,
        context: Context,
        node: bytes,
        daemon: bytes,
        daemons: int,
        keys: KeyPair,
        endpoint: str,
        admits: Admits,
        role_keys: Iterable[bytes] = (),
    ) -> None:
        self.context = context
        self.node = node
        self.daemon = daemon
        self.daemons = daemons
        self.keys = keys
        self.admits = admits
        self.refused: Counter[str] = Counter()
        self.peers: dict[bytes, PeerNode] = {}
        self._role_keys = frozenset(role_keys)
        self._by_key: dict[bytes, bytes] = {}
        self._join: DialledConnection | None = None
        self._due_at = math.inf
        self._names = 0
        self._epoll = select.epoll()
        self._readers: dict[int, tuple[Reader, list[tuple[Any, int]]]] = {}
        """By descriptor: what reads from a socket, and what to poll for that socket alone."""
        self._ready: dict[int, None] = {}
        self.authenticator = Authenticator(context)
        self.authenticator.known = self._role_keys
        try:
            self.server = curve.listen(context, endpoint, keys, QUEUED_MAX)
        except zmq.ZMQError as error:
            self.authenticator.close()
            self._epoll.close()
            raise ConnectionLostError(f"cannot listen at {endpoint}: {error.strerror}") from None
        self.address = self.server.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._observer = curve.observe(context, self.server, self._name(), curve.OF_SERVER)
        self._watch(self.server, self._read_server)
        self._watch(self._observer, self._read_failures)
        self._watch(self.authenticator.socket, self._read_requests)
        self.sources: list[tuple[Any, int]] = [(self._epoll.fileno(), int(zmq.POLLIN))]

    def _name(self) -> str:
        self._names += 1
        return f"connections-{self._names}"

    def _watch(self, socket: Socket, reader: Reader) -> None:
        descriptor = int(socket.getsockopt(zmq.FD))
        self._readers[descriptor] = reader, [(socket, POLLIN)]
        self._epoll.register(descriptor, select.EPOLLIN)
        self._ready[descriptor] = None  # An earlier arrival is not signalled.

    def _forget(self, socket: Socket) -> None:
        descriptor = int(socket.getsockopt(zmq.FD))
        if self._readers.pop(descriptor, None) is not None:
            self._ready.pop(descriptor, None)
            self._epoll.unregister(descriptor)

    # -- which nodes there are --

    def connect(self, rows: Iterable[Row]) -> None:
        """Apply a ``NodeTable``: dial older nodes, expect younger ones, refuse others."""
        table = {row[0]: row for row in rows}
        own = table.get(self.node)
        for node in [node for node, peer in self.peers.items() if node not in table or table[node][5] != peer.key]:
            self._close_peer(self.peers.pop(node))
        for node, row in table.items():
            if node != self.node and node not in self.peers and own is not None:
                link = NodeLink(self.node, self.daemon, self.daemons, node, FRAME_BYTES_MAX)
                dialled = DialledConnection(self, row[3], row[5], self.keys) if row[1] < own[1] else None
                self.peers[node] = PeerNode(link, row[5], dialled)
                if dialled is not None:
                    dialled.due = self._due_at = 0.0
        for node, peer in self.peers.items():
            if peer.dialled is not None and peer.dialled.address != table[node][3]:
                peer.link.disconnected()
                peer.dialled.move(table[node][3])
                self._due_at = 0.0
        self._by_key = {peer.key: node for node, peer in self.peers.items()}
        self.authenticator.admit(self._role_keys.union(self._by_key))
        self._look(self.authenticator.socket)
        if own is not None and self._join is not None:
            self._join.close()
            self._join = None

    def admit_joiners(self, role_keys: Iterable[bytes]) -> None:
        """Let nodes join with these keys alone."""
        self._role_keys = frozenset(role_keys)
        self.authenticator.admit(self._role_keys.union(self._by_key))
        self._look(self.authenticator.socket)

    def join(self, address: str, server_key: bytes, role: KeyPair) -> None:
        """Dial the head with the cluster's keys, until ``connect`` has this node's row."""
        if self._join is not None:
            self._join.close()
        self._join = DialledConnection(self, address, server_key, role)
        self._join.due = self._due_at = 0.0

    def trouble(self, node: bytes = HEAD) -> str:
        """Return why the last attempt to dial a node failed, or an empty string."""
        peer = self.peers.get(node)
        connection = peer.dialled if peer is not None else self._join if node == HEAD else None
        if connection is None or not connection.trouble:
            return ""
        return f"{connection.address}: {'it admits no node with this key' if connection.trouble == 'key' else connection.trouble}"

    def unreachable(self) -> tuple[bytes, ...]:
        """Return the nodes that this one dials without an open connection."""
        return tuple(node for node, peer in self.peers.items() if peer.dialled is not None and not peer.link.open)

    # -- sending --

    def send_envelopes(self, node: bytes, envelopes: list[Envelope], now: float) -> None:
        """Send messages to a node, in order, over this or a later connection. Those for a node outside of the table are dropped.

        Raises TypeError, ValueError or OverflowError for what no frame can carry; then nothing is sent.
        """
        peer = self.peers.get(node)
        if peer is not None:
            self._write(peer, peer.link.send(envelopes, now), now)
        elif node == HEAD:
            if self._join is not None and self._join.socket is not None:
                self._join_write(self._join.socket, encode(0, 0, envelopes))
        elif node.startswith(JOINER):
            self._write_server(node[len(JOINER) :], [encode(0, 0, envelopes)])

    def _join_write(self, socket: Socket, frame: bytes) -> None:
        with contextlib.suppress(zmq.Again):
            socket.send(frame, zmq.DONTWAIT)
        self._look(socket)

    def _write(self, peer: PeerNode, frames: list[bytes], now: float) -> None:
        if frames:
            if peer.dialled is None:
                if not self._write_server(peer.connection, frames):
                    peer.link.disconnected()
                    peer.connection = b""
            elif peer.dialled.socket is not None:
                try:
                    for frame in frames:
                        _send(peer.dialled.socket, frame, DONTWAIT)
                except zmq.Again:
                    self._redial(peer, "the connection has ended", now)
                else:
                    self._look(peer.dialled.socket)
        due = peer.link.next_deadline()
        if due is not None and due < self._due_at:
            self._due_at = due

    def _write_server(self, connection: bytes, frames: list[bytes]) -> bool:
        """Return False if the connection has ended or is full."""
        server = self.server
        try:
            for frame in frames:
                _send(server, connection, DONTWAIT | SNDMORE)
                _send(server, frame, DONTWAIT)
        except zmq.ZMQError:  # Ended (EHOSTUNREACH) or full (EAGAIN): the other side dials again.
            return False
        finally:
            self._look(server)
        return True

    def _look(self, socket: Socket) -> None:
        """Read a socket in the next turn if something has arrived: sending has consumed the socket's signal."""
        if zmq_poll([(socket, POLLIN)], 0):
            self._ready[int(socket.getsockopt(zmq.FD))] = None

    # -- receiving --

    def polled(self, ready: dict[Any, int]) -> bool:
        """Whether ``receive`` is due, after the caller has polled ``sources``."""
        return bool(self._ready) or self._epoll.fileno() in ready

    def receive(self, now: float) -> Iterator[tuple[bytes, list[Envelope]]]:
        """Read some frames. Yield (sender, messages) of each before the next is read.

        The sender is a node id, ``HEAD``, or for a joiner a name to which the answer can be sent.
        """
        for descriptor, _ in self._epoll.poll(0):
            self._ready[descriptor] = None
        found: Received = []
        left = FRAMES_PER_TURN
        for descriptor in list(self._ready):
            watched = self._readers.get(descriptor)
            while left > 0 and watched is not None:
                left -= 1
                read, socket = watched
                try:
                    read(now, found)
                except zmq.Again:  # The signal was for something else, which is rare.
                    more = False
                else:
                    yield from found
                    found.clear()
                    more = self._readers.get(descriptor) is watched and bool(zmq_poll(socket, 0))
                if not more:
                    self._ready.pop(descriptor, None)
                    break

    def _read_requests(self, now: float, found: Received) -> None:
        self.authenticator.answer(now)
        self._authenticator_due()

    def _authenticator_due(self) -> None:
        due = self.authenticator.next_deadline()
        if due is not None and due < self._due_at:
            self._due_at = due

    def _read_failures(self, now: float, found: Received) -> None:
        self.refused.update(curve.failures(self._observer))

    def _read_server(self, now: float, found: Received) -> None:
        connection = _recv(self.server, DONTWAIT)
        part = _recv(self.server, DONTWAIT, False)
        key = curve.user_of(part)
        if part.more:
            self._drain(self.server)
            self.refused["frame"] += 1
        elif key in self._role_keys:
            self._from_joiner(connection, part.bytes, found)
        elif (node := self._by_key.get(key)) is None:
            self.refused["dead node"] += 1  # Its key was known when it connected.
        else:
            self._from_younger(self.peers[node], connection, part.bytes, now, found)

    def _drain(self, socket: Socket) -> None:
        while socket.getsockopt(zmq.RCVMORE):
            socket.recv(zmq.DONTWAIT)

    def _from_joiner(self, connection: bytes, frame: bytes, found: Received) -> None:
        if len(connection) == _CONNECTION_BYTES:
            self._unnumbered("joiner", JOINER + connection, frame, found)
        else:
            self.refused["frame"] += 1  # It has chosen its connection's name.

    def _unnumbered(self, kind: str, sender: bytes, frame: bytes, found: Received) -> None:
        if len(frame) > JOIN_BYTES_MAX and kind == "joiner":
            self.refused["size"] += 1
            return
        try:
            sequence, _, body = decode(frame)
        except MalformedFrame:
            self.refused["frame"] += 1
            return
        if sequence == 0 and isinstance(body, list):
            self._deliver(kind, sender, body, found)
        else:
            self.refused["frame"] += 1

    def _from_younger(self, peer: PeerNode, connection: bytes, frame: bytes, now: float, found: Received) -> None:
        if peer.dialled is not None:
            self.refused["dialled by the older"] += 1
            return
        if connection == peer.connection and peer.link.open:
            self._from_link(peer, frame, now, found)
            return
        try:
            answer = peer.link.accept(frame, now)
        except HelloRefused as error:
            self.refused[error.reason] += 1
            self._write_server(connection, [DIAL_AGAIN])
            return
        peer.connection = connection
        self._write(peer, [answer, *peer.link.outgoing(now)], now)

    def _from_link(self, peer: PeerNode, frame: bytes, now: float, found: Received) -> None:
        link = peer.link
        unread = link.refused
        try:
            envelopes = link.receive(frame, now)
        except LinkBroken as error:
            self.refused["frame"] += 1
            if peer.dialled is not None:
                self._redial(peer, str(error), now)
            else:
                link.disconnected()
                self._write_server(peer.connection, [DIAL_AGAIN])
            return
        if link.refused != unread:
            self.refused["message"] += 1
        if envelopes:
            self._deliver("node", link.peer, envelopes, found)
        if link.has_outgoing(now):
            self._write(peer, link.outgoing(now), now)
        elif now + ACKNOWLEDGE_AFTER < self._due_at:
            self._due_at = now + ACKNOWLEDGE_AFTER

    def _deliver(self, kind: str, sender: bytes, envelopes: list[Envelope], found: Received) -> None:
        admits = self.admits
        if len(envelopes) == 1 and admits(kind, type(envelopes[0][2])):
            found.append((sender, envelopes))
            return
        admitted = [envelope for envelope in envelopes if admits(kind, type(envelope[2]))]
        if len(admitted) < len(envelopes):
            self.refused["message"] += len(envelopes) - len(admitted)
        if admitted:
            found.append((sender, admitted))

    # -- connections that this node dials --

    def _dial(self, connection: DialledConnection, peer: PeerNode | None, now: float) -> None:
        try:
            connection.dial(self._name())
        except zmq.ZMQError as error:  # No descriptor is left, or the address is invalid.
            connection.retry(now, error.strerror)
            return
        socket, observer = connection.socket, connection.observer
        assert socket is not None
        assert observer is not None
        self._watch(socket, lambda now, found: self._read_dialled(connection, peer, now, found))
        self._watch(observer, lambda now, found: self._read_observer(connection, peer, now))
        if peer is not None:
            connection.due = now + HELLO_SECONDS
            self._write(peer, [peer.link.dial()], now)  # Where nobody listens, the connection may have ended already.
        else:
            connection.due = None

    def _redial(self, peer: PeerNode, reason: str, now: float) -> None:
        peer.link.disconnected()
        assert peer.dialled is not None
        self._retry(peer.dialled, reason, now)

    def _retry(self, connection: DialledConnection, reason: str, now: float) -> None:
        connection.retry(now, reason)
        if connection.due is not None:
            self._due_at = min(self._due_at, connection.due)

    def close_dialled(self, connection: DialledConnection) -> None:
        """Close the sockets of a dialled connection."""
        socket, observer = connection.socket, connection.observer
        connection.socket = connection.observer = None
        if socket is not None:
            self._forget(socket)
            socket.disable_monitor()
            socket.close(0)
        if observer is not None:
            self._forget(observer)
            observer.close(0)

    def _read_observer(self, connection: DialledConnection, peer: PeerNode | None, now: float) -> None:
        observer = connection.observer
        if observer is not None and (reasons := list(curve.failures(observer))):
            if peer is not None:
                peer.link.disconnected()
            self._retry(connection, reasons[0], now)

    def _read_dialled(self, connection: DialledConnection, peer: PeerNode | None, now: float, found: Received) -> None:
        socket = connection.socket
        if socket is None:
            return
        part = _recv(socket, DONTWAIT, False)
        frame = part.bytes
        if part.more:
            self._drain(socket)
            self.refused["frame"] += 1
        elif peer is None:
            connection.established()
            self._unnumbered("head", HEAD, frame, found)
        elif frame == DIAL_AGAIN:
            self._redial(peer, "the other node has ended the connection", now)
        elif peer.link.open:
            self._from_link(peer, frame, now, found)
        else:
            try:
                peer.link.confirm(frame, now)
            except HelloRefused as error:
                self.refused[error.reason] += 1
                self._redial(peer, str(error), now)
            else:
                connection.established()
                self._write(peer, peer.link.outgoing(now), now)

    # -- time --

    def tick(self, now: float) -> None:
        """Dial, and send acknowledgements, where due."""
        if now < self._due_at:
            return
        due = math.inf
        for peer in list(self.peers.values()):
            if peer.dialled is not None:
                self._dial_if_due(peer.dialled, peer, now)
                due = min(due, math.inf if peer.dialled.due is None else peer.dialled.due)
            at = peer.link.next_deadline()
            if at is not None and at <= now:
                self._write(peer, peer.link.outgoing(now), now)
                at = peer.link.next_deadline()
            due = min(due, math.inf if at is None else at)
        if self._join is not None:
            self._dial_if_due(self._join, None, now)
            due = min(due, math.inf if self._join.due is None else self._join.due)
        self._due_at = due
        self.authenticator.expire(now)
        self._look(self.authenticator.socket)
        self._authenticator_due()

    def _dial_if_due(self, connection: DialledConnection, peer: PeerNode | None, now: float) -> None:
        if connection.due is None or connection.due > now:
            return
        if connection.socket is None:
            self._dial(connection, peer, now)
        elif peer is not None:
            self._redial(peer, "the hello was not answered", now)

    def next_deadline(self) -> float | None:
        """When ``tick`` or ``receive`` is due next, if at all."""
        if self._ready:
            return 0.0
        return None if self._due_at == math.inf else self._due_at

    # -- the end --

    def _close_peer(self, peer: PeerNode) -> None:
        peer.link.disconnected()
        if peer.dialled is not None:
            peer.dialled.close()

    def close(self) -> None:
        """Close every socket."""
        for peer in self.peers.values():
            self._close_peer(peer)
        self.peers.clear()
        if self._join is not None:
            self._join.close()
        self.server.disable_monitor()
        self._observer.close(0)
        self.server.close(0)
        self.authenticator.close()
        self._epoll.close()
