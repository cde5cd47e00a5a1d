"""The network of a simulated node. It loses, delays, duplicates and reorders frames; the links repair that.

A frame is bytes, encoded and decoded by the production codec, so that processes share no object. Frames of a dead process may still arrive;
frames to one do not.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from zfabric.config import Config
from zfabric.machines.common.link import Link
from zfabric.protocol.codec import decode, encode, encode_body
from zfabric.protocol.messages import Envelope


class NodeFaults(NamedTuple):
    """What goes wrong with nodes and between them. Numbers are per world."""

    kills: int = 0
    """Nodes other than the first, killed with all their processes."""
    late_kills: int = 0
    """The same, once programs have been running for a while."""
    restarts: int = 0
    """How often a node's daemon is killed, and restarted by its supervisor."""
    stops: int = 0
    """How often all processes of a node stop for less or for more than its lease."""
    cuts: int = 0
    """How often links between nodes are cut: of one pair or of a whole node, in one direction or in both, once or repeatedly."""
    clogs: int = 0
    """How often all frames of a node to others are held back for a while, perhaps until after it was declared dead, to arrive at once."""
    delays: int = 0
    """Pairs of nodes whose frames take long, differently in each direction."""
    agent_kills: int = 0
    agent_stops: int = 0
    """How often a transfer agent stops for a while."""
    drains: int = 0
    """Drained nodes, other than the first and the driver's."""
    clocks: bool = False
    """Whether each node has a clock of its own, with an offset, up to 1 % faster or slower."""
    late_joins: bool = False
    """Whether nodes join while the program runs."""
    window: float = 0.0
    """Seconds after which all this ends."""

    @property
    def deaths(self) -> int:
        """How often a node may be killed or lose its lease."""
        return self.kills + self.late_kills + self.stops + self.cuts + self.clogs


class Faults(NamedTuple):
    """Everything that goes wrong in one world. Chances are per frame; counts are per world; times are virtual seconds."""

    loss: float = 0.0
    duplication: float = 0.0
    late: float = 0.0
    """Chance that a frame takes up to a hundred times as long, so that others overtake it."""
    delay: float = 0.0002
    """Mean time that a frame takes."""
    jitter: bool = True
    """Whether that time varies. Scenarios have it fixed."""
    worker_crashes: int = 0
    daemon_crashes: int = 0
    driver_crash: bool = False
    stalls: int = 0
    """How often a process stops for a while."""
    pressure: int = 0
    """How often the node is short of memory."""
    window: float = 0.4
    """Seconds after which processes no longer crash or stall, and links lose no frames."""
    slow_commits: bool = False
    """Whether commits take time, as with ``durability="power"``; a crash loses those under way."""
    full_disk: int = 0
    """How often the disk is full for a while."""
    start_failures: int = 0
    """Workers that die before they register."""
    nodes: NodeFaults = NodeFaults()

    @property
    def daemons_die(self) -> bool:
        """Whether daemons are killed, alone."""
        return self.daemon_crashes > 0 or self.nodes.restarts > 0


class NodeConnection:
    """A connection that one node's daemon has dialled to another's. ``ended`` is called when the dialler notices its end."""

    def __init__(self, dialler: bytes, acceptor: bytes, ended: Callable[[NodeConnection], None]) -> None:
        self.dialler = dialler
        self.acceptor = acceptor
        self.ended = ended
        self.over = False
        """Whether nothing can be written any more."""
        self.lost = False
        """Whether a frame was lost, and with it all later ones."""
        self.under_way: dict[bytes, deque[bytes]] = {dialler: deque(), acceptor: deque()}
        """Frames that have not arrived yet, by sender."""


class Network:
    """Delivers frames between incarnations, subject to faults."""

    def __init__(
        self,
        after: Callable[[float, Callable[[], object]], None],
        fail: Callable[[str], NoReturn],
        frame_bytes_max: int,
        faults: Faults,
        seed: str,
    ) -> None:
        self._after = after
        self._fail = fail
        self._frame_bytes_max = frame_bytes_max
        self.faults = faults
        self.lossy = True
        self.in_flight = 0
        self.stack = 0
        self.cuts: set[tuple[bytes, bytes]] = set()
        """Pairs (source, target) whose frames are lost."""
        self.clogged: dict[tuple[bytes, bytes], list[Callable[[], None]]] = {}
        """Arrivals of held-back frames, by pair (source, target)."""
        self.slow: dict[tuple[bytes, bytes], float] = {}
        """Additional seconds that frames of a pair (source, target) take."""
        self.cut: Counter[str] = Counter()
        """How often messages were too large for one frame, by name."""
        self._loss = random.Random(seed + "/loss")
        self._delay = random.Random(seed + "/delay")
        self._receivers: dict[bytes, Callable[[bytes, bytes], None]] = {}
        self._endings = random.Random(seed + "/endings")
        self._listeners: dict[bytes, Callable[[NodeConnection, bytes, bytes], None]] = {}
        self._connections: dict[tuple[bytes, bytes], NodeConnection] = {}
        """The newest connection of each pair of nodes, by (dialler, acceptor)."""
        self.ended = 0
        """Connections between nodes that have ended."""

    def attach(self, incarnation: bytes, receive: Callable[[bytes, bytes], None]) -> None:
        """Have ``receive(sender, frame)`` called for each frame to ``incarnation``."""
        self._receivers[incarnation] = receive

    def detach(self, incarnation: bytes) -> None:
        """Lose all further frames to a dead process."""
        self._receivers.pop(incarnation, None)

    def send(self, source: bytes, target: bytes, frame: bytes) -> None:
        """Deliver a frame later, subject to faults. Fail the world if it is larger than receivers accept."""
        self.stack += 1
        if len(frame) > self._frame_bytes_max:
            self._fail(f"a frame of {len(frame)} bytes, where {self._frame_bytes_max} are accepted")
        faults = self.faults
        copies = 1
        if (source, target) in self.cuts:
            copies = 0
        elif (source, target) in self.clogged:
            self.in_flight += 1
            self.clogged[source, target].append(lambda: self._arrive(source, target, frame))
            copies = 0
        elif self.lossy:
            chance = self._loss.random()
            if chance < faults.loss:
                copies = 0
            elif chance < faults.loss + faults.duplication:
                copies = 2
        for _ in range(copies):
            self.in_flight += 1
            self._after(self._duration(source, target), lambda: self._arrive(source, target, frame))

    def _duration(self, source: bytes, target: bytes) -> float:
        faults = self.faults
        delay = faults.delay
        if faults.jitter:
            delay *= 0.5 + self._delay.random()
            if self.lossy and faults.late and self._delay.random() < faults.late:
                delay *= 100 * self._delay.random()
        if self.slow:
            delay += self.slow.get((source, target), 0.0)
        return delay

    def unclog(self, source: bytes, target: bytes) -> None:
        """Deliver what was held back between a pair."""
        for arrive in self.clogged.pop((source, target), ()):
            arrive()

    def _arrive(self, source: bytes, target: bytes, frame: bytes) -> None:
        self.in_flight -= 1
        receive = self._receivers.get(target)
        if receive is not None and (source, target) not in self.cuts:
            receive(source, frame)

    # -- connections between nodes --

    def listen(self, node: bytes, receive: Callable[[NodeConnection, bytes, bytes], None]) -> None:
        """Have ``receive(connection, sender, frame)`` called for each frame to a node."""
        self._listeners[node] = receive

    def leave(self, node: bytes) -> None:
        """End all connections of a dead daemon. What it sent may still arrive."""
        self._listeners.pop(node, None)
        for connection in self._connections.values():
            if node in (connection.dialler, connection.acceptor):
                self.end(connection)

    def dial(self, dialler: bytes, acceptor: bytes, ended: Callable[[NodeConnection], None]) -> NodeConnection:
        """Make a connection. Frames left on the one before may still arrive."""
        connection = self._connections[dialler, acceptor] = NodeConnection(dialler, acceptor, ended)
        return connection

    def write(self, connection: NodeConnection, source: bytes, frame: bytes) -> None:
        """Deliver a frame behind earlier ones, or end the connection."""
        self.stack += 1
        target = connection.acceptor if source == connection.dialler else connection.dialler
        if connection.over:
            return
        if (source, target) in self.cuts or (self.lossy and self._loss.random() < self.faults.loss):
            self._lose(connection)
            return
        self.in_flight += 1
        connection.under_way[source].append(frame)
        if (source, target) in self.clogged:
            self.clogged[source, target].append(lambda: self._deliver(connection, source, target))
        else:
            self._after(self._duration(source, target), lambda: self._deliver(connection, source, target))

    def _deliver(self, connection: NodeConnection, source: bytes, target: bytes) -> None:
        """Deliver the oldest frame under way from ``source``: none overtakes another."""
        self.in_flight -= 1
        frame = connection.under_way[source].popleft()
        receive = self._listeners.get(target)
        if receive is None or (source, target) in self.cuts:
            self._lose(connection)
        elif not connection.lost:
            receive(connection, source, frame)

    def _lose(self, connection: NodeConnection) -> None:
        connection.lost = True
        self.end(connection)

    def end(self, connection: NodeConnection) -> None:
        """End a connection. The node that dialled it notices later."""
        if not connection.over:
            connection.over = True
            self.ended += 1
            self._after(0.3 * self._endings.random(), lambda: connection.ended(connection))


class SimTransport:
    """The links of one incarnation."""

    def __init__(self, network: Network, incarnation: bytes, config: Config) -> None:
        self.network = network
        self.incarnation = incarnation
        self.config = config
        self.peers: dict[bytes, Link] = {}

    def link(self, incarnation: bytes) -> Link:
        """The link to a peer, made on first use."""
        link = self.peers.get(incarnation)
        if link is None:
            link = self.peers[incarnation] = Link(self.config.link_window, self.config.link_repeat)
        return link

    def send(self, incarnation: bytes, envelopes: list[Envelope], now: float) -> None:
        """Send envelopes to a peer, in as few frames as possible."""
        link = self.link(incarnation)
        frames = link.pack(envelopes, now, self.config.frame_bytes_max)
        if len(frames) > 1:
            cut = [each[2] for each in envelopes if len(encode(0, 0, [each])) > self.config.frame_bytes_max]
            self.network.cut.update({type(message).__name__ for message in cut})
        for frame in frames:
            self.network.send(self.incarnation, incarnation, frame)

    def accept(self, sender: bytes, frame: bytes, now: float) -> list[Envelope]:
        """Pass a frame through its link. Return the envelopes to deliver now."""
        sequence, acknowledged, body = decode(frame)
        ready = self.link(sender).receive(sequence, acknowledged, body, now)
        return [envelope for batch in ready for envelope in batch]

    def tick(self, now: float) -> None:
        """Repeat and acknowledge what is due."""
        for incarnation, link in list(self.peers.items()):
            for sequence, body in link.due(now):
                self.network.send(self.incarnation, incarnation, encode_body(sequence, link.received, body))

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next, if at all."""
        return min((due for link in self.peers.values() if (due := link.next_deadline()) is not None), default=None)

    @property
    def settled(self) -> bool:
        """Whether every frame was acknowledged."""
        return not self.unsettled

    @property
    def unsettled(self) -> set[bytes]:
        """Peers that have not acknowledged every frame."""
        return {incarnation for incarnation, link in self.peers.items() if link.unacknowledged()}

    def forget(self, incarnation: bytes) -> list[Envelope]:
        """Drop the link to a dead peer. Return its unacknowledged envelopes."""
        link = self.peers.pop(incarnation, None)
        return link.unacknowledged() if link is not None else []
