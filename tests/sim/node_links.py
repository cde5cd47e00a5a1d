"""Connections between the daemons of simulated nodes, and the links over them (``NodeLink``).

A connection delivers what one side writes in order until a frame is lost or a daemon dies. Everything under way is then lost, and the side
that dialled notices some time later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tests.sim.network import Network, NodeConnection
from zfabric.machines.common.node_link import HelloRefused, NodeLink
from zfabric.protocol.messages import Envelope, Row

FRAME_BYTES_MAX = 2**20
REDIAL_SECONDS = 0.01
"""Pause before a connection is dialled again, doubled by each attempt."""
REDIAL_SECONDS_MAX = 0.6
HARMLESS = frozenset({"no hello", "replayed", "former daemon"})
"""Why frames are refused that an ended connection left behind."""


class Now(Protocol):
    """The clock of a daemon."""

    @property
    def now(self) -> float:
        """The time on this clock."""


class LinkedNode:
    """Another node: the link, the connection, and when to dial the next one."""

    def __init__(self, link: NodeLink, dials: bool, now: float) -> None:
        self.link = link
        self.connection: NodeConnection | None = None
        self.dial_at: float | None = now if dials else None
        self.pause = REDIAL_SECONDS


class SimNodeTransport:
    """The links of one daemon incarnation to other nodes' daemons. Of a pair, the node with the higher id dials.

    A node declared dead is still dialled and answered here, so that machines see what arrives late. The real transport refuses its key.
    """

    def __init__(self, network: Network, node: bytes, daemon: bytes, daemons: int, clock: Now, wake: Callable[[], None]) -> None:
        self.network = network
        self.node = node
        self.daemon = daemon
        self.daemons = daemons
        self.clock = clock
        self.wake = wake
        self.peers: dict[bytes, LinkedNode] = {}
        self._members: set[bytes] = set()

    def connect(self, rows: tuple[Row, ...], now: float) -> None:
        """Dial the nodes of a ``NodeTable`` that are new."""
        self._members = {row[0] for row in rows}
        for row in rows:
            if row[0] != self.node:
                self._peer(row[0], now)

    def _peer(self, node: bytes, now: float) -> LinkedNode:
        peer = self.peers.get(node)
        if peer is None:
            link = NodeLink(self.node, self.daemon, self.daemons, node, FRAME_BYTES_MAX)
            peer = self.peers[node] = LinkedNode(link, self.node > node, now)
        return peer

    def send(self, node: bytes, envelopes: list[Envelope], now: float) -> None:
        """Send messages to a node, in order, once there is a connection."""
        peer = self._peer(node, now)
        self._write(peer, peer.link.send(envelopes, now))

    def _write(self, peer: LinkedNode, frames: list[bytes]) -> None:
        if peer.connection is not None:
            for frame in frames:
                self.network.write(peer.connection, self.node, frame)

    def accept(self, connection: NodeConnection, sender: bytes, frame: bytes, now: float) -> list[Envelope]:
        """Process a frame; return its messages."""
        peer = self._peer(sender, now)
        link = peer.link
        current = connection is peer.connection
        envelopes: list[Envelope] = []
        try:
            if current and link.open:
                envelopes = link.receive(frame, now)
            elif self.node < sender:
                answer = link.accept(frame, now)
                peer.connection = connection
                self._write(peer, [answer])
            elif current:
                link.confirm(frame, now)
                peer.pause = REDIAL_SECONDS
        except HelloRefused as error:
            if error.reason not in HARMLESS:
                raise
            self.network.end(connection)
        self._write(peer, link.outgoing(now))
        return envelopes

    def ended(self, connection: NodeConnection) -> None:
        """Note the end of a connection that this node dialled."""
        peer = self.peers[connection.acceptor]
        if peer.connection is connection:
            peer.link.disconnected()
            peer.connection = None
            peer.dial_at = self.clock.now + peer.pause
            peer.pause = min(2 * peer.pause, REDIAL_SECONDS_MAX)
            self.wake()

    def tick(self, now: float) -> None:
        """Dial and acknowledge what is due."""
        for node, peer in self.peers.items():
            if peer.dial_at is not None and peer.dial_at <= now:
                peer.dial_at = None
                peer.connection = self.network.dial(self.node, node, self.ended)
                self._write(peer, [peer.link.dial()])
            due = peer.link.next_deadline()
            if due is not None and due <= now:
                self._write(peer, peer.link.outgoing(now))

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next, if at all."""
        dials = [peer.dial_at for peer in self.peers.values() if peer.dial_at is not None]
        links = [due for peer in self.peers.values() if (due := peer.link.next_deadline()) is not None]
        return min(dials + links, default=None)

    def unreachable(self) -> tuple[bytes, ...]:
        """Nodes that this one dials, without an open connection."""
        return tuple(node for node, peer in self.peers.items() if node in self._members and self.node > node and not peer.link.open)

    @property
    def unsettled(self) -> set[bytes]:
        """Nodes that have not acknowledged every frame."""
        return {node for node, peer in self.peers.items() if peer.link.unacknowledged()}
