"""Transfer agents of simulated nodes: the production machine in a minimal shell.

Values are symbols. A chunk is its value's symbol with a position, so a world finds incomplete copies, copies of a wrong value, and bytes
sent after the store had moved them. An agent sends one chunk after the other, at a rate.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import msgpack
from tests.sim.arena import Content, SimArena
from tests.sim.bodies import StackFrame
from tests.sim.network import Network, SimTransport
from tests.sim.surroundings import Clock
from zfabric.config import Config
from zfabric.machines.common.extents import file_number
from zfabric.machines.transfer import TransferAgent
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.access import FROM_AGENTS
from zfabric.protocol.codec import decode_messages, encode_messages
from zfabric.protocol.ids import CLIENT, SHELL, TRANSFER_AGENT, Address, short
from zfabric.protocol.messages import Envelope, Row


def coded(message: m.Message) -> m.Message:
    """The message as its receiver decodes it: no two machines share an object."""
    ((_, _, decoded),) = decode_messages(encode_messages([(CLIENT, CLIENT, message)]))
    return decoded


class AgentWorld(Protocol):
    """What an agent uses of its world."""

    now: float
    config: Config
    network: Network
    rate: float
    """Bytes that each agent sends in a second."""

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """Schedule an action in ``delay`` seconds."""

    def fail(self, text: str) -> NoReturn:
        """Raise what ends the world."""


class AgentNode(Protocol):
    """What an agent uses of its node."""

    number: int
    identifier: bytes
    arena: SimArena
    sent: Counter[bytes]
    """Bytes that agents of this node have sent, by value."""

    def clock(self) -> Clock:
        """The clock of a new process."""

    def agent_receives(self, agent: SimAgent, source: Address, message: m.Message) -> None:
        """Observe a message to the agent."""


class StoppingNode(AgentNode, Protocol):
    """A node whose processes may stop."""

    stopped_until: float
    """When all its processes go on; 0 if they are not stopped."""


class SimAgent:
    """The process of a transfer agent. Subclasses connect it with its daemon (``tell_daemon``)."""

    def __init__(self, world: AgentWorld, node: AgentNode, incarnation: bytes, daemon: bytes, pid: int) -> None:
        self.node = node
        self.world = world
        self.clock = node.clock()
        self.incarnation = incarnation
        self.daemon = daemon
        self.pid = pid
        self.alive = True
        self.stopped = False
        self.machine = TransferAgent(TRANSFER_AGENT + incarnation, world.config, daemon)
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._events: deque[tuple[Address, m.Message]] = deque()
        self._data: dict[tuple[Address, int, int], tuple[bytes, int, int]] = {}
        """Chunks of this turn: (symbol, position, size) by source, token and position."""
        self._written: dict[int, dict[int, tuple[bytes, int]]] = {}
        """Unsealed chunks, by payload offset: (symbol, size) by position."""
        self._outgoing: deque[e.SendChunk] = deque()
        self._awake_at = float("inf")
        world.network.attach(node.identifier, self._receive)
        self.machine.register(m.Register(m.PROTOCOL_VERSION, "agent", pid, 1, b"", b"", b"", "", ""))
        self.wake()

    def die(self) -> None:
        """Die, and lose what was neither sent nor sealed."""
        self.alive = False
        self.world.network.detach(self.node.identifier)

    @property
    def is_stopped(self) -> bool:
        """Whether it does nothing until it is continued."""
        return self.stopped

    def go_on(self) -> None:
        """Let a stopped agent run."""
        self.stopped = False
        self.wake()

    def tell_daemon(self, role: bytes, message: m.Message) -> None:
        """Send a message to a machine of the daemon."""
        raise NotImplementedError

    def end_of_turn(self) -> None:
        """Do what is due after the machine has decided."""

    def _receive(self, sender: bytes, frame: bytes) -> None:
        self._frames.append((sender, frame))
        self.wake()

    def event(self, source: Address, message: m.Message) -> None:
        """Deliver a message of the daemon or the shell in the next turn."""
        if self.alive:
            self._events.append((source, message))
            self.wake()

    def wake(self, at: float | None = None) -> None:
        """Schedule a turn at a time on this process's clock, by default at once."""
        at = max(self.clock.now, at or 0.0)
        if at < self._awake_at:
            self._awake_at = at
            self.clock.at(at, self._turn)

    def _turn(self) -> None:
        if not self.alive or self.clock.now < self._awake_at:
            return
        self._awake_at = float("inf")
        if self.is_stopped:
            return
        now, machine = self.clock.now, self.machine
        while self._events:
            source, message = self._events.popleft()
            self.node.agent_receives(self, source, message)
            machine.step(now, source, message)
        while self._frames:
            sender, frame = self._frames.popleft()
            packed, data = msgpack.unpackb(frame, use_list=False)
            ((_, _, message),) = decode_messages(packed)
            if type(message) not in FROM_AGENTS:
                self.world.fail(f"an agent sends {type(message).__name__}")
            source = TRANSFER_AGENT + sender
            if type(message) is m.Chunk:
                self._data[source, message.token, message.position] = data
            self.node.agent_receives(self, source, message)
            machine.step(now, source, message)
        machine.tick(now)
        for effect in machine.take_effects(now):
            self._perform(effect)
        self._data.clear()
        machine.check_invariants()
        self.end_of_turn()
        due = machine.next_deadline()
        if due is not None:
            self.wake(max(due, now + 1e-6))

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, e.SendChunk):
            self._outgoing.append(effect)
            if len(self._outgoing) == 1:
                self._send_next()
        elif isinstance(effect, e.WriteChunk):
            self._write(effect)
        elif isinstance(effect, e.SealValue):
            self._seal(effect)
        elif effect.to[:1] == TRANSFER_AGENT:
            self._send(effect.to[1:], effect.message, None)
        else:
            self.tell_daemon(effect.to[:1], effect.message)

    def _send(self, target: bytes, message: m.Message, data: Any) -> None:
        frame = msgpack.packb((encode_messages([(TRANSFER_AGENT, TRANSFER_AGENT, message)]), data))
        self.world.network.send(self.node.identifier, target, frame)

    def _send_next(self) -> None:
        chunk = self._outgoing[0]
        self.world.after(chunk.size / self.world.rate, self._sent)

    def _sent(self) -> None:
        """The bytes of a chunk leave: they are read now, not when the machine decided to send them."""
        if not self.alive:
            return
        chunk = self._outgoing.popleft()
        content = self.node.arena.content(f"the agent of node {self.node.number}", chunk.object_id, chunk.offset)
        if chunk.position + chunk.size > content.size:
            self.world.fail(f"{chunk.size} bytes of {short(chunk.object_id)} are sent from {chunk.position}, and it has {content.size}")
        self.node.sent[chunk.object_id] += chunk.size
        self._send(chunk.reader[1:], m.Chunk(chunk.token, chunk.position, chunk.size), (content.payload, chunk.position, chunk.size))
        self.event(SHELL + self.incarnation, m.ChunkSent(chunk.object_id))
        if self._outgoing:
            self._send_next()

    def _write(self, effect: e.WriteChunk) -> None:
        symbol, position, size = self._data[effect.source, effect.token, effect.position]
        if (position, size) != (effect.position, effect.size):
            self.world.fail(f"a chunk at {position} is written at {effect.position}")
        if effect.offset >= 0:
            self.node.arena.overwrite(effect.offset + position, size)
        elif file_number(effect.offset) not in self.node.arena.unfinished:
            self.world.fail(f"{short(effect.object_id)} is written to a file that nobody was given")
        self._written.setdefault(effect.offset, {})[position] = (symbol, size)

    def _seal(self, effect: e.SealValue) -> None:
        parts = self._written.pop(effect.offset, {})
        if effect.size < 0:
            return
        end, symbols = 0, {symbol for symbol, _ in parts.values()}
        for position, (_, size) in sorted(parts.items()):
            if position != end:
                self.world.fail(f"{short(effect.object_id)} is sealed with a part at {position}, and {end} bytes before that")
            end += size
        if end != effect.size or len(symbols) > 1:
            self.world.fail(f"{short(effect.object_id)} is sealed with {end} of {effect.size} bytes, of {len(symbols)} values")
        self.node.arena.write(effect.offset, Content(effect.object_id, effect.size, symbols.pop() if symbols else b""))
        self.event(SHELL + self.incarnation, m.ValueSealed(effect.object_id, ""))

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        statistics = self.machine.statistics()
        return not (self._frames or self._events or self._outgoing or statistics["pulls"] or statistics["supplies"])


class LinkedAgent(SimAgent):
    """An agent with a link to its daemon, as every process has one."""

    kind = "agent"
    executing = b""
    left: tuple[Row, ...] = ()

    node: StoppingNode

    def __init__(self, world: AgentWorld, node: StoppingNode, incarnation: bytes, daemon: bytes, pid: int) -> None:
        self.stack: list[StackFrame] = []
        self.transport = SimTransport(world.network, incarnation, world.config)
        self._local: deque[tuple[bytes, bytes]] = deque()
        self._envelopes: list[Envelope] = []
        super().__init__(world, node, incarnation, daemon, pid)
        world.network.attach(incarnation, self._receive_local)

    def die(self) -> None:
        """Die."""
        super().die()
        self.world.network.detach(self.incarnation)

    @property
    def is_stopped(self) -> bool:
        """Whether it does nothing until it, or its node, is continued."""
        return self.stopped or bool(self.node.stopped_until)

    def _receive_local(self, sender: bytes, frame: bytes) -> None:
        for _, role, message in self.transport.accept(sender, frame, self.clock.now) if sender == self.daemon else ():
            self.event(role + sender, message)
        self.wake()

    def tell_daemon(self, role: bytes, message: m.Message) -> None:
        """Send a message to a machine of the daemon, at the end of the turn."""
        self._envelopes.append((role, TRANSFER_AGENT, message))

    def end_of_turn(self) -> None:
        """Send what waits for the daemon, and repeat what is due."""
        envelopes, self._envelopes = self._envelopes, []
        if envelopes:
            self.transport.send(self.daemon, envelopes, self.clock.now)
        self.transport.tick(self.clock.now)
        due = self.transport.next_deadline()
        if due is not None:
            self.wake(max(due, self.clock.now + 1e-6))

    @property
    def settled(self) -> bool:
        """Whether it is idle, and its daemon has everything that it sent."""
        return self.idle and self.transport.settled
