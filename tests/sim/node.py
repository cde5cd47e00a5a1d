"""A simulated node.

The daemon hosts the machines of the real one in the same ``zfabric.shell``. Each message that a machine sends passes the codec, so that
machines share no object. The daemon may die between any two effects.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

from tests.sim.agents import LinkedAgent, SimAgent
from tests.sim.arena import SimArena, SimStorage
from tests.sim.drivers import Driver
from tests.sim.network import NodeConnection, SimTransport
from tests.sim.node_links import SimNodeTransport
from tests.sim.processes import Process
from tests.sim.programs import NODE_MEMORY
from tests.sim.surroundings import Clock, Crashed, ProcessView, Surroundings
from tests.sim.workers import WorkerProcess
from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.machines.common.extents import HEADER_BYTES, footprint
from zfabric.machines.local_scheduler import TaskRecord
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.codec import decode_messages, encode_messages
from zfabric.protocol.ids import HEAD, LOCAL_SCHEDULER, MEMBER, OBJECT_STORE, REGISTRY, Address
from zfabric.protocol.machine import InvariantViolation, Machine, WrappedMachine
from zfabric.protocol.messages import Envelope
from zfabric.protocol.options import MEMORY, RESOURCE_UNIT, Demand
from zfabric.shell.node import SWEEP_EVERY, ClusterPart, NodeMachines

LOOP_DELAY = 0.00002
"""Virtual seconds from a wake-up to the turn."""
FRAMES_PER_TURN = 8


def node_identifier(number: int) -> bytes:
    """The id of a node by its number."""
    return bytes((2,)) + number.to_bytes(3, "big") + bytes(4)


class Node:
    """Memory, disk and a supervisor, which outlive daemons, and the current daemon."""

    def __init__(self, world: Surroundings, seed: str, cpus: int, pieces: int, number: int = 0, more: Demand = ()) -> None:
        self.world = world
        self.seed = seed
        self.resources = (("CPU", cpus * RESOURCE_UNIT), (MEMORY, NODE_MEMORY), *more)
        self.number = number
        """The node's number in the cluster, from 1; 0 without a cluster."""
        self.joined_as = 0
        """The number that the registry gave it; 0 before."""
        self.node_table: m.NodeTable | None = None
        self.lease_until = 0.0
        """When its lease ends, on its own clock."""
        self.identifier = node_identifier(number) if number else b"thisnode"
        self.arena = SimArena(world.fail, pieces)
        slow = world.faults.slow_commits
        self.journal = MemoryJournal(slow)
        """The tables of the control store, on a simulated disk."""
        self.workers: dict[bytes, WorkerProcess] = {}
        self.supervisor = SimSupervisor(self, f"{seed}/supervisor")
        self._workers = 0
        self._clock = world.node_clock(number) if number else None
        self.dead = False
        self.doomed = False
        """Whether the node dies with its daemon."""
        self.excused = False
        """Whether something happened to it that may cost its lease."""
        self.stopped_until = 0.0
        self.frozen = False
        self.resuming = False
        """Whether its daemon has had no turn since it went on after a stop."""
        self.restarts = 0
        self.agent: LinkedAgent | None = None
        """The transfer agent, once the daemon has requested one."""
        self.sent: Counter[bytes] = Counter()
        self.daemon = SimDaemon(self, f"{seed}/daemon0", 0)
        world.note("daemon 0 starts")

    @property
    def part(self) -> ClusterPart | None:
        """How it joins its cluster, if it has one."""
        if not self.number:
            return None
        number = self.joined_as
        join = m.Join(
            m.PROTOCOL_VERSION, self.identifier, number, f"node{self.number}", 0, self.identifier * 5, "", "", self.resources, (), ()
        )
        return ClusterPart(join, self.number == 1, self.node_table, self.lease_until)

    @property
    def published(self) -> bytes:
        """The incarnation of the daemon in the session file."""
        return self.daemon.incarnation

    @property
    def up(self) -> bool:
        """Whether the current daemon lives."""
        return self.daemon.alive

    def clock(self) -> Clock:
        """The clock of a new process."""
        return self._clock or self.world.clock()

    def owner(self, object_id: bytes, offset: int, size: int) -> str:
        """Return the owner, as in ``NodeView``. While there is no daemon, no room changes its owner."""
        store = self.daemon.store
        if not self.up or store._claims is not None:
            return "grant"
        entry, grant = store._tables.entries.get(object_id), store._tables.grant_of(offset - HEADER_BYTES)
        if entry is not None and entry.offset == offset:
            return "store"
        return "grant" if grant is not None and grant.open.around(offset - HEADER_BYTES, footprint(size)) is not None else ""

    def end(self, reason: str) -> None:
        """Kill all processes of the node for good, its supervisor and its driver included."""
        if self.dead:
            return
        self.world.note(f"node {self.number} ends: {reason}")
        self.world.states["node ended"] += 1
        if self.daemon.alive:
            self.collect_states()
            self.daemon.die()
        self.dead = True
        self.supervisor.end_agent()
        for process in [each for each in self.world.processes() if each.node is self]:
            process.die("its node has ended")

    def lost_lease(self, reason: str) -> None:
        """End the node because the registry or its own member says so. Fail the world if nothing had happened to it."""
        leaves = reason == e.DRAINED and self.world.config.node_idle_seconds
        self.world.states["node left"] += bool(leaves)
        if not (self.excused or self.world.faults.loss or leaves):
            self.world.fail(f"node {self.number} ends, and nothing was wrong with it: {reason}")
        self.end(reason)

    def stop(self, seconds: float) -> None:
        """Stop all processes of the node."""
        self.stopped_until = max(self.stopped_until, self.world.now + seconds)
        self.world.after(seconds, self._continue)

    def _continue(self) -> None:
        if self.world.now >= self.stopped_until:
            self.go_on()

    def go_on(self) -> None:
        """Let the stopped processes run."""
        if self.stopped_until and not self.dead:
            self.stopped_until = 0.0
            self.resuming = True
            self.world.note(f"node {self.number} goes on")
            self.daemon.wake()
            if self.agent is not None:
                self.agent.wake()
            for process in [each for each in self.world.processes() if each.node is self]:
                process.wake()

    @property
    def acts(self) -> bool:
        """Whether its workers run."""
        return not (self.frozen or self.stopped_until)

    def freeze(self, frozen: bool) -> None:
        """Stop the workers, or let them go on."""
        self.frozen = frozen
        self.world.states["workers frozen"] += frozen
        for worker in self.workers.values():
            worker.wake()

    def restart(self) -> SimDaemon:
        """Start and return the next daemon."""
        if self.daemon.alive:
            raise InvariantViolation("two incarnations of the daemon act at the same time")
        self.restarts += 1
        self.journal = self.journal.crash()
        self.world.states["daemon restarted"] += 1
        self.daemon = SimDaemon(self, f"{self.seed}/daemon{self.restarts}", self.restarts)
        self.world.note(f"daemon {self.restarts} starts")
        return self.daemon

    def kill_daemon(self) -> None:
        """Kill a living daemon; the supervisor starts the next."""
        if self.daemon.alive:
            self.world.note("the daemon dies")
            self.collect_states()
            self.world.invariants.daemon_dies(self)
            self.daemon.die()
            self.supervisor.daemon_died()

    def collect_states(self) -> None:
        """Add the counters of the daemon's machines to the world's states."""
        for machine in (self.daemon.scheduler, self.daemon.store):
            for name, count in machine.statistics().items():
                self.world.states[name] += int(count)

    def make_worker(self, token: bytes, job: bytes, pid: int) -> WorkerProcess:
        """Make the forked worker process."""
        self._workers += 1
        name = f"worker{self._workers}" if self.number < 2 else f"worker{self.number}.{self._workers}"
        worker = self.workers[token] = WorkerProcess(self.world, self, token, job, pid, name)
        return worker

    def agent_receives(self, agent: SimAgent, source: Address, message: m.Message) -> None:
        """Observe a message to the transfer agent."""
        self.world.delivered(agent.machine.address, source, message)

    def process_died(self, process: ProcessView) -> None:
        """Record a process's death."""
        self.world.states[f"{process.kind} died"] += 1
        self.workers.pop(process.incarnation, None)
        for frame in process.stack:
            self.world.wait_graph.resumed(frame)
        self.world.after(0.0002, lambda: self.supervisor.died(process))


class SimSupervisor:
    """The parent of all workers: it starts and kills them, reports deaths, and restarts the daemon."""

    def __init__(self, node: Node, seed: str) -> None:
        self.node = node
        self.world = world = node.world
        self.workers: dict[int, Process] = {}
        self.watched: set[int] = set()
        self._slots: dict[int, tuple[m.Row, ...]] = {}
        """Rows in dead workers' slots that no daemon has read yet, by pid."""
        self.start_failures = world.faults.start_failures
        self._next_pid = 1000 + 1_000_000 * node.number
        self._random = random.Random(seed)

    def pid(self) -> int:
        """A pid that no process had before."""
        self._next_pid += 1
        return self._next_pid

    def spawn(self, effect: e.SpawnWorker) -> None:
        """Fork a worker within a few milliseconds."""
        self.world.after(0.001 + 0.004 * self._random.random(), lambda: self._spawned(effect.token, effect.job))

    def _spawned(self, token: bytes, job: bytes) -> None:
        if self.node.dead:
            return
        pid = self.pid()
        self.notify(m.WorkerSpawned(token, pid, ""))
        worker = self.node.make_worker(token, job, pid)
        self.workers[pid] = worker
        if self.start_failures > 0:
            self.start_failures -= 1
            self.world.after(0.0005, lambda: worker.die("it could not start"))
            return
        self.world.after(0.002 * self._random.random(), worker.start)

    def kill(self, pid: int) -> None:
        """Send SIGKILL to a worker."""
        worker = self.workers.get(pid)
        if worker is not None:
            self.world.after(0.0005 * self._random.random(), lambda: worker.die("killed"))

    def start_agent(self) -> None:
        """Start the daemon's transfer agent within some milliseconds."""
        daemon = self.node.daemon

        def start() -> None:
            if daemon.alive and not self.node.dead:
                self.node.agent = LinkedAgent(self.world, self.node, self.world.incarnation(), daemon.incarnation, self.pid())

        self.world.after(0.005, start)

    def kill_agent(self) -> None:
        """Kill the transfer agent; another one is started."""
        agent = self.node.agent
        if agent is not None and agent.alive and not self.node.dead:
            self.world.note(f"the agent of node {self.node.number} dies")
            self.end_agent()
            self.world.after(0.0002, lambda: self.died(agent))
            self.start_agent()

    def end_agent(self) -> None:
        """Kill the transfer agent: its daemon or its node has ended."""
        if self.node.agent is not None:
            self.node.agent.die()
            self.node.agent = None

    def executing(self, pid: int) -> bytes:
        """The task that a worker's slot names."""
        worker = self.workers.get(pid)
        return worker.executing if worker is not None else b""

    def watch(self, pid: int) -> None:
        """Report the end of a process that is no worker, at once if it has ended."""
        if not self.world.lives(pid):
            self.notify(m.ProcessDied(pid, 0, 0, 0, ""))
        else:
            self.watched.add(pid)

    def died(self, process: ProcessView) -> None:
        """Report the death of a worker or of a watched process."""
        if self.workers.pop(process.pid, None) is not None:
            self._slots[process.pid] = process.left
            self.notify(m.ProcessDied(process.pid, 0, 9, 1000, "", process.executing))
        elif process.pid in self.watched:
            self.watched.discard(process.pid)
            self.notify(m.ProcessDied(process.pid, 0, 0, 0, ""))

    def notify(self, message: m.Message) -> None:
        """Send a message to the current daemon, unless it dies first."""
        daemon = self.node.daemon

        def arrive() -> None:
            if daemon.alive:
                left = message._replace(ended=self._slots.pop(message.pid, ())) if isinstance(message, m.ProcessDied) else message
                daemon.event(LOCAL_SCHEDULER, left)

        self.world.after(0.0001, arrive)

    def daemon_died(self) -> None:
        """Start the next daemon within some milliseconds."""
        self.watched.clear()
        self.end_agent()
        self.world.after(0.005 + 0.03 * self._random.random(), self._restart)

    def _restart(self) -> None:
        if self.node.dead:
            return
        daemon = self.node.restart()
        left = tuple(row for rows in self._slots.values() for row in rows)
        self._slots.clear()
        daemon.event(LOCAL_SCHEDULER, m.ProcessTable(tuple((worker.incarnation, pid) for pid, worker in self.workers.items()), left))


class ObservedMachine(WrappedMachine):
    """A daemon's machine whose messages are observed, and whose daemon may crash between two effects."""

    def __init__(self, daemon: SimDaemon, machine: Machine) -> None:
        super().__init__(machine)
        self._daemon = daemon

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Pass one message on, observed."""
        world = self._daemon.world
        world.delivered(self.address, source, message)
        if type(message) not in self.handlers:
            world.fail(f"a daemon's {self.address[:1]!r} does not accept {type(message).__name__}")
        late: Any = ()
        if type(message) is m.Completed:
            late = world.invariants.late_attempts(self._daemon, source, message)
        elif type(message) is m.EndsReceived:
            world.invariants.ends_received(self._daemon, source[1:], message.number)
        elif type(message) is m.Ended:
            late = world.invariants.late_attempts(self._daemon, source, m.Completed(*message.completed))
        self.machine.step(now, source, message)
        if late:
            world.invariants.not_accepted(late)

    def take_effects(self, now: float) -> Iterator[e.Effect]:
        """Yield effects; the daemon may crash before each."""
        daemon = self._daemon
        for effect in self.machine.take_effects(now):
            daemon.crash_point()
            if type(effect) is e.Send:
                ((to, _, message),) = decode_messages(encode_messages([(effect.to[:1], self.address[:1], effect.message)]))
                daemon.world.invariants.sent(daemon, message)
                if type(message) is m.NodeTable and self.address[:1] == REGISTRY:
                    daemon.world.invariants.table_sent(daemon, message)
                if type(message) is m.Notice:
                    daemon.world.wait_graph.warned(message.text, daemon.scheduler.deadlocks)
                effect = e.Send(to + effect.to[1:], message)
            yield effect


class SimDaemon:
    """One incarnation of the node's daemon."""

    def __init__(self, node: Node, seed: str, daemons: int) -> None:
        self.node = node
        self.world = world = node.world
        self.incarnation = incarnation = world.incarnation()
        self.clock = node.clock()
        self.config = world.config
        self.journal = journal = node.journal
        self.alive = True
        self.effects_left: int | None = None
        self.transport = SimTransport(world.network, incarnation, self.config)
        self.storage = SimStorage(node.arena, seed, world.after, self._from_storage, lambda: node.journal.full)
        self._random = random.Random(seed + "/commits")
        self._events: deque[tuple[bytes, m.Message]] = deque()
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._node_frames: deque[tuple[NodeConnection, bytes, bytes]] = deque()
        self._awake_at = float("inf")
        self._sweep_at = self.now + SWEEP_EVERY
        self._unreachable: tuple[bytes, ...] = ()
        self.core = NodeMachines(
            incarnation, node.identifier, self.config, node.resources, node.arena.capacity, journal, daemons, node.part
        )
        self.scheduler, self.store = self.core.scheduler, self.core.store
        for role, machine in self.core.machines.items():
            self.core.machines[role] = ObservedMachine(self, machine)
        self.node_transport = SimNodeTransport(world.network, node.identifier, incarnation, daemons, self.clock, self.wake)
        world.network.attach(incarnation, self._receive)
        world.network.listen(node.identifier, self._receive_from_node)
        if daemons:
            self.core.recover(self.now, node.arena.found())
        else:
            self.core.start(self.now, former_jobs=False)
        self.wake()

    # -- waking up --

    @property
    def now(self) -> float:
        """The time on the daemon's clock."""
        return self.clock.now

    def event(self, role: bytes, message: m.Message) -> None:
        """Deliver a message of the shell to a machine, in the next turn."""
        if self.alive:
            self._events.append((role, message))
            self.wake()

    def _from_storage(self, message: m.Message) -> None:
        self.event(LOCAL_SCHEDULER if type(message) is m.ValueRead else OBJECT_STORE, message)

    def _receive(self, sender: bytes, frame: bytes) -> None:
        self._frames.append((sender, frame))
        self.wake()

    def _receive_from_node(self, connection: NodeConnection, sender: bytes, frame: bytes) -> None:
        self._node_frames.append((connection, sender, frame))
        self.wake()

    def wake(self, at: float | None = None) -> None:
        """Schedule a turn at a time on the daemon's clock, by default at once."""
        at = max(self.now + LOOP_DELAY, at or 0.0)
        if at < self._awake_at:
            self._awake_at = at
            self.clock.at(at, self._loop)

    def _loop(self) -> None:
        if not self.alive or self.now < self._awake_at:
            return
        self._awake_at = float("inf")
        if self.node.stopped_until:
            return
        try:
            self._turn()
        except Crashed:
            if self.node.doomed:
                self.node.end("it was killed between two effects")
            else:
                self.node.kill_daemon()
            return
        if self._events or self._frames or self._node_frames or self.core.pending:
            self.wake()
        transports = (self.transport.next_deadline(), self.node_transport.next_deadline())
        deadlines = (self.core.next_deadline(), *transports, self._sweep_at)
        self.wake(min(due for due in deadlines if due is not None))

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do until something arrives or is due."""
        return not (self._events or self._frames or self._node_frames or self.core.pending) and self.storage.idle

    @property
    def settled(self) -> bool:
        """Whether it has nothing to do, and all that it sent is acknowledged."""
        dead = {node.identifier for node in self.world.nodes if node.dead and node.identifier not in self.scheduler.tables.nodes}
        settled = self.transport.settled and self.node_transport.unsettled <= dead
        return self.alive and self.idle and not self.scheduler.is_recovering and settled

    # -- one turn --

    def _turn(self) -> None:
        now = self.now
        while self._events:
            role, message = self._events.popleft()
            dead = self.core.incarnations_of(message.pid) if type(message) is m.ProcessDied else ()
            self.core.step(now, role, message)
            for incarnation in dead:
                self.transport.forget(incarnation)
        for _ in range(min(len(self._frames), FRAMES_PER_TURN)):
            sender, frame = self._frames.popleft()
            for to, role, message in self.transport.accept(sender, frame, now):
                refused = self.core.refused
                self._receive_one(now, sender, to, role, message)
                if self.core.refused > refused:
                    self.world.refused(sender, to, message)
        for _ in range(min(len(self._node_frames), FRAMES_PER_TURN)):
            connection, sender, frame = self._node_frames.popleft()
            for to, role, message in self.node_transport.accept(connection, sender, frame, now):
                refused = self.core.refused
                self.core.receive_from_node(now, sender, to, role, message, self._send_ahead)
                if self.core.refused > refused:
                    self.world.fail(f"a daemon refuses {type(message).__name__} of another node")
        if self.core.member is not None and (unreachable := self.node_transport.unreachable()) != self._unreachable:
            self._unreachable = unreachable
            self.core.member.step(now, self.core.shell, m.Unreachable(unreachable))
            self.core.stir(MEMBER)
        self.core.tick(now)
        self.core.decide(now, self._perform)
        for incarnation, envelopes in self.core.take_outgoing().items():
            self.crash_point()
            self.transport.send(incarnation, envelopes, now)
        for node, envelopes in self.core.take_outgoing_to_nodes().items():
            self.crash_point()
            self.world.between_nodes(self, node, envelopes)
            self.node_transport.send(self.world.head if node == HEAD else node, envelopes, now)
        self.transport.tick(now)
        self.node_transport.tick(now)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_EVERY
            for incarnation in self.core.sweep(self.transport.peers):
                self.transport.forget(incarnation)
        self.node.resuming = False
        self.world.after_turn(self)

    def _receive_one(self, now: float, sender: bytes, to: bytes, role: bytes, message: m.Message) -> None:
        if self.node.number:
            self.core.receive_in_cluster(now, sender, to, role, message, self._send_ahead)
        else:
            self.core.receive(now, sender, to, role, message)

    def _send_ahead(self, receiver: bytes, envelopes: list[Envelope]) -> None:
        """Send a message in the middle of a turn; the daemon may crash before and after."""
        self.crash_point()
        envelopes = decode_messages(encode_messages(envelopes))
        ((to, _, message),) = envelopes
        self.world.invariants.sent(self, message)
        self.world.states[f"{type(message).__name__} sent ahead"] += 1
        if to == LOCAL_SCHEDULER:
            self.world.between_nodes(self, receiver, envelopes)
            self.node_transport.send(receiver, envelopes, self.now)
        else:
            self.transport.send(receiver, envelopes, self.now)
        self.crash_point()

    def crash_point(self) -> None:
        """Crash here, if this effect was chosen."""
        if self.effects_left is not None:
            self.effects_left -= 1
            if self.effects_left < 0:
                raise Crashed

    def _perform(self, effect: Any) -> None:
        world = self.world
        if isinstance(effect, e.Store):
            self._store(effect)
        elif isinstance(effect, e.SpawnWorker):
            self.node.supervisor.spawn(effect)
        elif isinstance(effect, e.KillProcess):
            if not effect.executing or self.node.supervisor.executing(effect.pid) == effect.executing:
                world.calls.killing(effect.pid, effect.reason)
                self.node.supervisor.kill(effect.pid)
        elif isinstance(effect, e.WatchProcess):
            self.node.supervisor.watch(effect.pid)
        elif isinstance(effect, e.StartAgent):
            self.node.supervisor.start_agent()
        elif isinstance(effect, e.ConnectNodes):
            self.node.joined_as = next((row[1] for row in effect.rows if row[0] == self.node.identifier), 0)
            self.node.node_table = m.NodeTable(*effect)
            self.node_transport.connect(effect.rows, self.now)
        elif isinstance(effect, e.Silence):
            world.states["node silent"] += effect.silent
        elif isinstance(effect, e.Freeze):
            self.node.freeze(effect.frozen)
        elif isinstance(effect, e.RecordLease):
            self.node.lease_until = effect.until
        elif isinstance(effect, e.EndNode):
            world.after(0.001, partial(self.node.lost_lease, effect.reason))
        elif isinstance(effect, e.Log):
            world.note(f"daemon logs {effect.level}: {effect.text}")
        else:
            self.storage.perform(effect)

    def _store(self, effect: e.Store) -> None:
        def done(error: str) -> None:
            self.core.committed(effect.sequence, error)
            if not error:
                self.world.calls.committed(effect.puts)

        self.journal.commit([effect], done)
        if self.world.faults.slow_commits:
            self.world.after(0.001 + 0.004 * self._random.random(), self._complete)

    def _complete(self) -> None:
        if self.alive and self.journal.complete():
            self.wake()

    def die(self) -> None:
        """Die, and lose what was neither sent nor committed."""
        self.alive = False
        self.storage.stop()
        self.world.network.detach(self.incarnation)
        self.world.network.leave(self.node.identifier)


class Overview(Surroundings, Protocol):
    """What observers see of their world: everything in it."""

    seed: int
    driver: Driver

    @property
    def living(self) -> list[Node]:
        """Nodes that are not dead."""

    @property
    def daemon(self) -> SimDaemon:
        """The daemon of the first node."""

    @property
    def workers(self) -> dict[bytes, WorkerProcess]:
        """Living workers of all nodes, by incarnation."""

    def task_record(self, task_id: bytes) -> TaskRecord | None:
        """A task's record at its home."""

    def processes(self) -> list[Process]:
        """All living processes but daemons."""

    def who(self, incarnation: bytes) -> str:
        """A process's readable name."""
