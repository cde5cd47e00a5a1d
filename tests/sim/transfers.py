"""Worlds of transfer agents: each node has an agent, an object store, an arena, and a few lines for a scheduler.

``TransferWorld(seed).run()`` chooses values, pulls and faults; tests build worlds of their own from the same parts.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn

from tests.sim.agents import SimAgent, coded
from tests.sim.arena import Content, SimArena, SimStorage
from tests.sim.network import Faults, Network
from tests.sim.surroundings import Clock
from zfabric.config import CHUNK_BYTES, Config, MiB
from zfabric.machines.common.extents import HEADER_BYTES
from zfabric.machines.object_store import ObjectStore
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER, OBJECT_STORE, SHELL, Address, object_id, short
from zfabric.protocol.machine import InvariantViolation
from zfabric.protocol.messages import FAILED, OK

LOCAL_DELAY = 0.0001
"""Mean seconds that a message takes within a node."""
LIMIT = 600.0
EVENTS_MAX = 200_000
WRITER = b"\x01writer\x00"
"""The process of each node that puts values."""


class TransferFailure(Exception):
    """Raised where something that must be true is not."""


class TransferResult(NamedTuple):
    """The result of a world. ``failure`` is empty if nothing failed."""

    seed: int
    failure: str
    events: int
    states: Counter[str]


class NodeAgent(SimAgent):
    """An agent whose daemon is a few lines in its node."""

    node: TransferNode

    def tell_daemon(self, role: bytes, message: m.Message) -> None:
        """Send a message to a machine of the daemon."""
        self.node.from_agent(self, role, message)


class TransferNode:
    """One node: store, arena, agent, and what a local scheduler would do about them."""

    def __init__(self, world: TransferWorld, number: int, pieces: int) -> None:
        self.world = world
        self.number = number
        self.identifier = bytes((2,)) + number.to_bytes(3, "big") + bytes(4)
        self.daemon = bytes((1,)) + number.to_bytes(3, "big") + bytes(4)
        self.arena = SimArena(world.fail, pieces)
        seed = f"{world.seed}/node{number}"
        self._random = random.Random(seed)
        self.storage = SimStorage(self.arena, f"{seed}/storage", world.after, self._from_storage, lambda: "")
        scheduler = LOCAL_SCHEDULER + self.daemon
        self.store = ObjectStore(OBJECT_STORE + self.daemon, scheduler, world.config, self.arena.capacity)
        self.sizes: dict[bytes, int] = {}
        """Values that are here, whole, by id."""
        self.pulls: dict[bytes, int] = {}
        """Pulls without an answer, with the size of the value."""
        self.failed: dict[bytes, tuple[str, str]] = {}
        """Failed pulls: (kind, text)."""
        self.sent: Counter[bytes] = Counter()
        self._writing: dict[int, tuple[bytes, int]] = {}
        self._store_at = float("inf")
        self._arrival = 0.0
        self.agent = self._new_agent()

    # -- the agent --

    def _new_agent(self) -> SimAgent:
        return NodeAgent(self.world, self, self.world.incarnation(), self.daemon, 1)

    def clock(self) -> Clock:
        """The world's clock."""
        return Clock(self.world, 0.0)

    def agent_receives(self, agent: SimAgent, source: Address, message: m.Message) -> None:
        """Observe a message to the agent."""
        self.world.delivered(self, source, message)

    def kill_agent(self) -> None:
        """Kill the agent. The supervisor starts another one, which receives requests for what is missing."""
        dead = self.agent
        dead.die()
        self.world.states["agent killed"] += 1
        self.world.after(0.01, partial(self._restart_agent, dead.incarnation))

    def _restart_agent(self, dead: bytes) -> None:
        self.to_store(LOCAL_SCHEDULER + self.daemon, m.ProcessGone(dead))
        self.agent = self._new_agent()

    def pull(self, identifier: bytes, size: int, *sources: TransferNode) -> None:
        """Have the agent copy a value."""
        self.pulls[identifier] = size
        self.failed.pop(identifier, None)
        self.tell_agent(m.Pull(identifier, size, tuple(node.identifier for node in sources)))

    def stop_pull(self, identifier: bytes) -> None:
        """Have the agent copy a value no longer."""
        if self.pulls.pop(identifier, None) is not None:
            self.tell_agent(m.StopPull(identifier))

    def tell_agent(self, message: m.Message, source: bytes = LOCAL_SCHEDULER) -> None:
        """Send the agent a message of the daemon. Such messages arrive in order."""
        agent = self.agent
        self._arrival = max(self._arrival, self.world.now + 2 * LOCAL_DELAY * self._random.random())
        self.world.at(self._arrival, lambda: agent.event(source + self.daemon, coded(message)))

    def from_agent(self, agent: SimAgent, role: bytes, message: m.Message) -> None:
        """Deliver a message of a living agent to the daemon, in order."""
        self._arrival = max(self._arrival, self.world.now + 2 * LOCAL_DELAY * self._random.random())
        handle = self._scheduler_step if role == LOCAL_SCHEDULER else self.to_store
        self.world.at(self._arrival, lambda: handle(agent.machine.address, coded(message)) if agent is self.agent else None)

    # -- in place of a local scheduler --

    def _scheduler_step(self, source: Address, message: m.Message) -> None:
        self.world.delivered(self, source, message)
        scheduler = LOCAL_SCHEDULER + self.daemon
        if isinstance(message, m.Register):
            self.tell_agent(m.Welcome(m.PROTOCOL_VERSION, b"", self.identifier, "", 0, ()))
            self.tell_agent(m.NodeTable(1, tuple((node.identifier, node.number, "", "", "", b"", (), (), 0) for node in self.world.nodes)))
            for identifier, size in self.pulls.items():
                self.tell_agent(m.Pull(identifier, size, tuple(node.identifier for node in self.world.holders(identifier))))
        elif isinstance(message, m.Fetch):
            for identifier in message.object_ids:
                if identifier in self.sizes:
                    self.to_store(scheduler, m.Locate(((identifier, source[1:]),)))
                else:
                    self._unknown(identifier)
        elif isinstance(message, m.Pulled):
            self.pulls.pop(message.object_id, None)
            self.to_store(scheduler, m.Sealed(((message.object_id, message.offset, message.size, source[1:], False),)))
            self.sizes[message.object_id] = message.size
            self.world.states["pulled"] += 1
            self.world.copied(self, message.object_id)
        elif isinstance(message, m.PullFailed):
            if self.pulls.pop(message.object_id, None) is not None:
                self.failed[message.object_id] = (message.kind, message.text)
                self.world.states[f"failed: {message.kind}"] += 1
                self.world.pull_failed(self, message.object_id, message.kind)
        elif not isinstance(message, m.Ready):
            self.world.fail(f"an agent sends its scheduler {type(message).__name__}")

    def _unknown(self, identifier: bytes) -> None:
        self.tell_agent(m.Objects(((identifier, FAILED, pack_failure("ObjectFreedError", "it is not known here"), ()),)))

    def free(self, identifier: bytes) -> None:
        """Remove a value to which nobody refers here any more."""
        if self.sizes.pop(identifier, None) is not None:
            self.to_store(LOCAL_SCHEDULER + self.daemon, m.Free((identifier,)))

    # -- the store --

    def put(self, identifier: bytes, size: int) -> None:
        """Write a value once there is room for it."""
        token = len(self._writing) + 1
        self._writing[token] = (identifier, size)
        self.to_store(CLIENT + WRITER, m.Reserve(token, size, 0, 60.0))

    def _granted(self, message: m.Granted) -> None:
        identifier, size = self._writing[message.token]
        offset = message.offset + HEADER_BYTES
        self.arena.write(offset, Content(identifier, size, identifier))
        self.sizes[identifier] = size
        self.to_store(LOCAL_SCHEDULER + self.daemon, m.Sealed(((identifier, offset, size, WRITER, False),)))

    def _from_storage(self, message: m.Message) -> None:
        self.to_store(SHELL + self.daemon, message)

    def to_store(self, source: Address, message: m.Message) -> None:
        """Deliver a message to the store, and perform its effects in the next turn."""
        self.store.step(self.world.now, source, message)
        self._wake_store(self.world.now)

    def _wake_store(self, at: float) -> None:
        if at < self._store_at:
            self._store_at = at
            self.world.at(at, self._turn_store)

    def _turn_store(self) -> None:
        now = self.world.now
        if now < self._store_at:
            return
        self._store_at = float("inf")
        self.store.tick(now)
        for effect in self.store.take_effects(now):
            if not isinstance(effect, e.Send):
                self.storage.perform(effect)
            elif effect.to[1:] == WRITER:
                if isinstance(effect.message, m.Granted):
                    self._granted(effect.message)
            elif effect.to[:1] == LOCAL_SCHEDULER:
                self._from_store(effect.message)
            elif effect.to[1:] == self.agent.incarnation:
                self.tell_agent(effect.message, OBJECT_STORE)
        self.store.check_invariants()
        due = self.store.next_deadline()
        if due is not None:
            self._wake_store(max(due, now + 1e-4))

    def _from_store(self, message: m.Message) -> None:
        if isinstance(message, m.Located):
            for identifier, process, offset, size in message.rows:
                if process == self.agent.incarnation:
                    self.tell_agent(m.Objects(((identifier, OK, (offset, size), ()),)))
        elif isinstance(message, m.ObjectsLost):
            for identifier, _ in message.rows:
                self.sizes.pop(identifier, None)
                self._unknown(identifier)

    def left(self) -> list[str]:
        """What an agent that has nothing to do still has."""
        found = [] if self.agent.idle else [f"node {self.number}: its agent is not idle: {dict(self.agent.machine.statistics())}"]
        entries, tables = self.store._tables.entries, self.store._tables
        holders = [each.holder for each in tables.grants.values()] + [each.holder for each in tables.files.values()]
        found += [f"node {self.number}: {short(each)} is pinned" for each, entry in entries.items() if entry.pins]
        return found + [f"node {self.number}: a grant is left" for each in holders if each != WRITER]


class TransferWorld:
    """Several nodes with agents, without programs. ``observer`` is called with (time, from, to, message) for each message to or from an
    agent. Each node sends ``rate`` bytes a second.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        nodes: int = 2,
        faults: Faults | None = None,
        pieces: int = 12,
        rate: float = 1000 * MiB,
        settings: dict[str, Any] | None = None,
        observer: Callable[[float, str, str, m.Message], None] | None = None,
    ) -> None:
        self.seed = seed
        self.now = 100.0
        self.rate = rate
        self.observer = observer
        self.states: Counter[str] = Counter()
        self.events = 0
        self.config = Config.of({"put_patience": 60.0, **(settings or {})})
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = self._names = 0
        self.faults = faults if faults is not None else Faults(jitter=False)
        self.network = Network(self.after, self.fail, self.config.frame_bytes_max, self.faults, str(seed))
        self.copies: list[tuple[float, int, bytes]] = []
        """(time, node's number, value) of each copy that was completed."""
        self.nodes: list[TransferNode] = []
        self.nodes += [TransferNode(self, number, pieces) for number in range(1, nodes + 1)]

    # -- time --

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Schedule an action at a time."""
        self._order += 1
        heapq.heappush(self._queue, (time, self._order, action))

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """Schedule an action in ``delay`` seconds."""
        self.at(self.now + delay, action)

    def until(self, done: Callable[[], bool], seconds: float = LIMIT) -> None:
        """Run until ``done``. Fail the world if that never comes."""
        limit = self.now + seconds
        while not done():
            if not self._queue or self.now > limit or self.events > EVENTS_MAX:
                self.fail(f"it does not come: {self.explain()}")
            time, _, action = heapq.heappop(self._queue)
            self.now = max(self.now, time)
            self.events += 1
            action()

    def settle(self) -> None:
        """Run until no agent has anything to do, and check that none has anything."""
        self.until(lambda: not self.network.in_flight and not any(node.left() or node.pulls for node in self.nodes))

    def explain(self) -> str:
        """Say what is left."""
        waiting = [f"node {node.number} waits for {short(each)}" for node in self.nodes for each in node.pulls]
        return "; ".join([*waiting, *(each for node in self.nodes for each in node.left())][:8])

    def incarnation(self) -> bytes:
        """A new incarnation."""
        self._names += 1
        return bytes((1, 255)) + self._names.to_bytes(2, "big") + bytes(4)

    def fail(self, text: str) -> NoReturn:
        """Raise ``TransferFailure``, which ends the world."""
        raise TransferFailure(text)

    def delivered(self, node: TransferNode, source: Address, message: m.Message) -> None:
        """Observe a message to an agent, or to its scheduler."""
        self.states[type(message).__name__] += 1
        if self.observer is not None:
            self.observer(self.now, self.who(source), f"node{node.number}", message)

    def who(self, address: Address) -> str:
        """A sender's readable name."""
        for node in self.nodes:
            if address[1:] == node.identifier:
                return f"node{node.number}"
            if address[1:] in (node.daemon, node.agent.incarnation):
                return f"daemon{node.number}" if address[1:] == node.daemon else f"node{node.number}"
        return address.hex()

    # -- values --

    def value(self, number: int) -> bytes:
        """The id of a value."""
        return object_id(bytes((0, 0, 0, 1)) + bytes(8) + number.to_bytes(4, "big"))

    def holders(self, identifier: bytes) -> list[TransferNode]:
        """Nodes that have a value, by number."""
        return [node for node in self.nodes if identifier in node.sizes]

    def copied(self, node: TransferNode, identifier: bytes) -> None:
        """Observe that a node has a value now."""
        self.copies.append((self.now, node.number, identifier))
        entry = node.store._tables.entries.get(identifier)
        if entry is not None and entry.offset is not None:
            node.arena.read(f"the test of node {node.number}", identifier, entry.offset, entry.size)

    def pull_failed(self, node: TransferNode, identifier: bytes, kind: str) -> None:
        """Ask again for a copy that was freed unfinished, as a scheduler does. Tests look at other failures."""
        holders = self.holders(identifier)
        if kind == "lost" and holders:
            self.after(0.01, lambda: node.pull(identifier, holders[0].sizes[identifier], *holders))

    def cut(self, one: TransferNode, other: TransferNode, both: bool = True) -> None:
        """Lose all frames from one agent to another from now on, and back if ``both``."""
        self.network.cuts.add((one.identifier, other.identifier))
        if both:
            self.network.cuts.add((other.identifier, one.identifier))

    def heal(self) -> None:
        """End all cuts and losses."""
        self.network.cuts.clear()
        self.network.lossy = False

    # -- a random world --

    def run(self) -> TransferResult:
        """Run random values, pulls and faults to the end."""
        failure = ""
        try:
            self._run(random.Random(f"{self.seed}/program"))
        except TransferFailure as error:
            failure = str(error)
        except InvariantViolation as error:
            failure = f"an invariant does not hold: {error}"
        for node in self.nodes:
            self.states.update({name: int(count) for name, count in node.agent.machine.statistics().items()})
            self.states.update({name: int(node.store.statistics()[name]) for name in ("spills", "restores", "written_on_disk")})
        return TransferResult(self.seed, failure, self.events, self.states)

    def _run(self, rng: random.Random) -> None:
        values = {
            self.value(number): rng.choice((100_000, CHUNK_BYTES, 3 * MiB + 5, 7 * MiB, 9 * MiB)) for number in range(rng.randrange(1, 7))
        }
        for identifier, size in values.items():
            rng.choice(self.nodes).put(identifier, size)
        self.until(lambda: all(self.holders(each) for each in values))
        window = rng.choice((0.02, 0.2, 2.0))
        for identifier, size in values.items():
            for node in self.nodes:
                if rng.random() < 0.8:
                    self.after(rng.random() * window / 2, partial(self._begin, node, identifier, size))
                if rng.random() < 0.1:
                    self.after(rng.random() * window, partial(node.stop_pull, identifier))
        self._disturb(rng, window)
        self.after(window, self.heal)
        self.until(lambda: not self.network.lossy)
        self.settle()
        for node in self.nodes:
            for kind, text in node.failed.values():
                self.fail(f"a pull failed: {kind}: {text}")

    def _begin(self, node: TransferNode, identifier: bytes, size: int) -> None:
        if identifier not in node.sizes:
            node.pull(identifier, size, *self.holders(identifier))

    def _disturb(self, rng: random.Random, window: float) -> None:
        """Plan cuts, kills, stops, and writes that fill the stores."""
        filler = 100
        for node in self.nodes:
            if rng.random() < 0.3:
                self.after(rng.random() * window, node.kill_agent)
            if rng.random() < 0.2:
                self.after(rng.random() * window, partial(self._pause, node, rng.random() * window))
            if rng.random() < 0.3:
                for _ in range(rng.randrange(1, 8)):
                    filler += 1
                    self.after(rng.random() * window, partial(node.put, self.value(filler), rng.choice((2 * MiB, 5 * MiB))))
        for one in self.nodes:
            for other in self.nodes:
                if one is not other and rng.random() < 0.15:
                    self.after(rng.random() * window, partial(self.cut, one, other, rng.random() < 0.5))

    def _pause(self, node: TransferNode, seconds: float) -> None:
        agent = node.agent
        agent.stopped = True
        self.states["agent paused"] += 1

        self.after(seconds, agent.go_on)


def transfer_world(seed: int) -> TransferWorld:
    """The random world of a seed."""
    rng = random.Random(f"{seed}/transfers")
    lossy = rng.random() < 0.5
    faults = Faults(
        loss=rng.choice((0.0, 0.02, 0.2)) if lossy else 0.0,
        duplication=rng.choice((0.0, 0.1)) if lossy else 0.0,
        late=rng.choice((0.0, 0.1)) if lossy else 0.0,
    )
    settings: dict[str, Any] = {
        "transfer_credit": rng.choice((1, 2, 8)),
        "transfer_readers": rng.choice((1, 3)),
        "transfer_pulls": rng.choice((1, 3, 16)),
    }
    settings["transfer_patience"] = rng.choice((0.05, 1.0))
    return TransferWorld(
        seed,
        nodes=rng.randrange(2, 8),
        faults=faults,
        pieces=rng.choice((5, 8, 24)),
        rate=rng.choice((100, 1000)) * MiB,
        settings=settings,
    )
