"""A simulated node: its supervisor, which outlives daemons, and the daemon, which hosts the production machines.

The daemon performs effects as the real one does (``zfabric.runtime.daemon``): one turn takes in what came, then asks every machine for
its effects until none has any, delivering between them in memory (here through the codec, so that nothing is shared). It may die
between any two effects.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Any

from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.machines.common.link import Link
from zfabric.machines.control_store import ControlStore
from zfabric.machines.global_scheduler import GlobalScheduler, LeastWait
from zfabric.machines.local_scheduler import LocalScheduler
from zfabric.machines.object_store import ObjectStore
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.codec import decode_messages, encode_messages
from zfabric.protocol.ids import CONTROL_STORE, GLOBAL_SCHEDULER, LOCAL_SCHEDULER, OBJECT_STORE, SHELL, Address, control_of
from zfabric.protocol.machine import Machine
from zfabric.protocol.messages import Envelope
from zfabric.protocol.options import RESOURCE_UNIT
from zfabric.sim.arena import Storage
from zfabric.sim.network import Transport

if TYPE_CHECKING:
    from zfabric.sim.processes import Process
    from zfabric.sim.world import World

LOOP_DELAY = 0.00002
"""Virtual seconds from a wake-up to the turn."""
FRAMES_PER_TURN = 8
ROUNDS_MAX = 200


class Crashed(Exception):
    """Raised between two effects: the process is no more."""


class Supervisor:
    """The parent of all workers: starts, kills, reports; and restarts the daemon."""

    def __init__(self, world: World, seed: str) -> None:
        self.world = world
        self.workers: dict[int, Process] = {}
        self.watched: set[int] = set()
        self._slots: dict[int, tuple[m.Row, ...]] = {}
        """What is in the slots of dead workers, until a daemon reads it."""
        self.start_failures = world.faults.start_failures
        self._next_pid = 1000
        self._random = random.Random(seed)

    def pid(self) -> int:
        """A pid that no process had before."""
        self._next_pid += 1
        return self._next_pid

    def spawn(self, effect: e.SpawnWorker) -> None:
        """Fork a worker, in a while."""
        self.world.after(0.001 + 0.004 * self._random.random(), lambda: self._spawned(effect.token, effect.job))

    def _spawned(self, token: bytes, job: bytes) -> None:
        pid = self.pid()
        self.tell(m.WorkerSpawned(token, pid, ""))
        worker = self.world.make_worker(token, job, pid)
        self.workers[pid] = worker
        if self.start_failures > 0:
            self.start_failures -= 1
            self.world.after(0.0005, lambda: worker.die("it could not start"))
            return
        self.world.after(0.002 * self._random.random(), worker.start)

    def kill(self, pid: int) -> None:
        """SIGKILL to a worker."""
        worker = self.workers.get(pid)
        if worker is not None:
            self.world.after(0.0005 * self._random.random(), lambda: worker.die("killed"))

    def executing(self, pid: int) -> bytes:
        """The task that a worker has in its slot."""
        worker = self.workers.get(pid)
        return worker.executing if worker is not None else b""

    def watch(self, pid: int) -> None:
        """Report when a process that is no worker has ended."""
        if self.world.process_with(pid) is None:
            self.tell(m.ProcessDied(pid, 0, 0, 0, ""))
        else:
            self.watched.add(pid)

    def died(self, process: Process) -> None:
        """A process is gone."""
        if self.workers.pop(process.pid, None) is not None:
            self._slots[process.pid] = process.left
            self.tell(m.ProcessDied(process.pid, 0, 9, 1000, "", process.executing))
        elif process.pid in self.watched:
            self.watched.discard(process.pid)
            self.tell(m.ProcessDied(process.pid, 0, 0, 0, ""))

    def tell(self, message: m.Message) -> None:
        """Tell the daemon of now, soon; what is for one that dies meanwhile is lost."""
        daemon = self.world.daemon

        def arrive() -> None:
            if daemon is not None and daemon.alive:
                left = message._replace(ended=self._slots.pop(message.pid, ())) if isinstance(message, m.ProcessDied) else message
                daemon.event(LOCAL_SCHEDULER, left)

        self.world.after(0.0001, arrive)

    def daemon_died(self) -> None:
        """Start the next one."""
        self.watched.clear()
        self.world.after(0.005 + 0.03 * self._random.random(), self._restart)

    def _restart(self) -> None:
        daemon = self.world.start_daemon(restarted=True)
        left = tuple(row for rows in self._slots.values() for row in rows)
        self._slots.clear()
        daemon.event(LOCAL_SCHEDULER, m.ProcessTable(tuple((worker.incarnation, pid) for pid, worker in self.workers.items()), left))


class Daemon:
    """One incarnation of the node's daemon."""

    def __init__(self, world: World, incarnation: bytes, journal: MemoryJournal, daemons: int, seed: str) -> None:
        self.world = world
        self.clock = world.clock()
        self.incarnation = incarnation
        self.config = world.config
        self.journal = journal
        self.alive = True
        self.effects_left: int | None = None
        self.post = Transport(world.network, incarnation, self.config)
        self.storage = Storage(self, world.arena, seed)
        self._random = random.Random(seed + "/commits")
        self._events: deque[tuple[bytes, m.Message]] = deque()
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._local: deque[tuple[bytes, Address, m.Message]] = deque()
        self._outgoing: dict[bytes, list[Envelope]] = {}
        self._held: dict[bytes, deque[tuple[int, Envelope]]] = {}
        self._committed = 0
        self._awake_at = float("inf")
        roles = (LOCAL_SCHEDULER, OBJECT_STORE, CONTROL_STORE, GLOBAL_SCHEDULER)
        scheduler, store, control, placer = (role + incarnation for role in roles)
        total = (("CPU", world.cpus * RESOURCE_UNIT), ("slot", RESOURCE_UNIT))
        first = int.from_bytes(incarnation[:4], "big") << 32 | 1
        self.scheduler = LocalScheduler(scheduler, b"node", self.config, total, store, control, placer, first, daemons)
        self.store = ObjectStore(store, scheduler, self.config, world.arena.capacity, recovering=daemons > 0)
        self.control = ControlStore(control, self.config, journal)
        self.placer = GlobalScheduler(placer, self.config, LeastWait())
        machines: tuple[Machine, ...] = (self.scheduler, self.store, self.control, self.placer)
        self.machines = dict(zip(roles, machines, strict=True))
        self._shell = SHELL + incarnation
        world.network.attach(incarnation, self._receive)
        if daemons:
            found = world.arena.found()
            self.store.step(self.now, self._shell, found)
            self.scheduler.step(self.now, self._shell, found)
        else:
            self.scheduler.membership.prestart(self.now)
        self.wake()

    # -- waking up --

    @property
    def now(self) -> float:
        """What its clock shows."""
        return self.clock.now

    def event(self, role: bytes, message: m.Message) -> None:
        """Something the shell has to say to a machine, in the next turn."""
        if self.alive:
            self._events.append((role, message))
            self.wake()

    def _receive(self, sender: bytes, frame: bytes) -> None:
        self._frames.append((sender, frame))
        self.wake()

    def wake(self, at: float | None = None) -> None:
        """Have a turn at a time, by default as soon as possible."""
        at = max(self.now + LOOP_DELAY, at or 0.0)
        if at < self._awake_at:
            self._awake_at = at
            self.clock.at(at, self._loop)

    def _loop(self) -> None:
        if not self.alive or self.now < self._awake_at:
            return
        self._awake_at = float("inf")
        try:
            self._turn()
        except Crashed:
            self.world.daemon_died(self)
            return
        if self._events or self._frames or self._local:
            self.wake()
        deadlines = [due for machine in self.machines.values() if (due := machine.next_deadline()) is not None]
        due = self.post.next_deadline()
        if due is not None:
            deadlines.append(due)
        if deadlines:
            self.wake(min(deadlines))

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do but wait."""
        return not (self._events or self._frames or self._local or self._held) and self.storage.idle

    # -- one turn --

    def _turn(self) -> None:
        now = self.now
        while self._events:
            role, message = self._events.popleft()
            self._step(role, self._shell, message)
            if type(message) is m.ProcessDied:
                self._forget_dead()
        for _ in range(min(len(self._frames), FRAMES_PER_TURN)):
            sender, frame = self._frames.popleft()
            for to, role, message in self.post.accept(sender, frame, now):
                self._step(to, role + sender, message)
        for machine in self.machines.values():
            due = machine.next_deadline()
            if due is not None and due <= now:
                machine.tick(now)
        self._decide(now)
        outgoing, self._outgoing = self._outgoing, {}
        for incarnation, envelopes in outgoing.items():
            self._crash_point()
            self.post.send(incarnation, envelopes, now)
        self.post.tick(now)
        self.world.after_turn(self)

    def _step(self, role: bytes, source: Address, message: m.Message) -> None:
        self.world.heard(role + self.incarnation, source, message)
        late = self.world.invariants.late_attempts(self, source, message) if type(message) is m.Completed else ()
        machine = self.machines[role]
        if type(message) not in machine.handlers:
            self.world.fail(f"a daemon's {role!r} does not accept {type(message).__name__}")
        machine.step(self.now, source, message)
        if late:
            self.world.invariants.not_accepted(late)

    def _decide(self, now: float) -> None:
        for _ in range(ROUNDS_MAX):
            for role, machine in self.machines.items():
                for effect in machine.take_effects(now):
                    self._crash_point()
                    self._perform(role, effect)
            if not self._local:
                return
            while self._local:
                role, source, message = self._local.popleft()
                self._step(role, source, message)
        self.world.fail("the machines of the daemon answer each other without end")

    def _crash_point(self) -> None:
        if self.effects_left is not None:
            self.effects_left -= 1
            if self.effects_left < 0:
                raise Crashed

    def _perform(self, role: bytes, effect: Any) -> None:
        world = self.world
        if isinstance(effect, e.Send):
            if type(effect.message) is m.Notice:
                world.truth.warned(effect.message.text, self.scheduler.deadlocks)
            self._send(role, effect)
        elif isinstance(effect, e.Store):
            self._store(effect)
        elif isinstance(effect, e.SpawnWorker):
            world.supervisor.spawn(effect)
        elif isinstance(effect, e.KillProcess):
            if not effect.executing or world.supervisor.executing(effect.pid) == effect.executing:
                world.calls.killing(effect.pid, effect.reason)
                world.supervisor.kill(effect.pid)
        elif isinstance(effect, e.WatchProcess):
            world.supervisor.watch(effect.pid)
        elif isinstance(effect, e.Say):
            world.note(f"daemon says {effect.level}: {effect.text}")
        else:
            self.storage.perform(effect)

    def _send(self, role: bytes, effect: e.Send) -> None:
        envelope = decode_messages(encode_messages([(effect.to[:1], role, effect.message)]))[0]
        self.world.invariants.told(self, envelope[2])
        incarnation = effect.to[1:]
        held = self._held.get(incarnation)
        if held or effect.sequence > self._committed:
            self._held.setdefault(incarnation, deque()).append((effect.sequence, envelope))
        else:
            self._pass_on(incarnation, envelope)

    def _pass_on(self, incarnation: bytes, envelope: Envelope) -> None:
        to, role, message = envelope
        if incarnation == self.incarnation:
            self._local.append((to, role + incarnation, message))
        else:
            self._outgoing.setdefault(incarnation, []).append(envelope)

    def _store(self, effect: e.Store) -> None:
        def done(error: str) -> None:
            self._local.append((CONTROL_STORE, self._shell, m.Committed(effect.sequence, error)))
            if not error:
                self.world.calls.committed(effect.puts)
            self._committed = max(self._committed, effect.sequence)
            for incarnation, held in list(self._held.items()):
                while held and held[0][0] <= self._committed:
                    self._pass_on(incarnation, held.popleft()[1])
                if not held:
                    del self._held[incarnation]

        self.journal.commit([effect], done)
        if self.world.faults.slow_commits:
            self.world.after(0.001 + 0.004 * self._random.random(), self._complete)

    def _complete(self) -> None:
        if self.alive and self.journal.complete():
            self.wake()

    def _forget_dead(self) -> None:
        known: set[bytes] = set()
        for process in self.scheduler.tables.processes.values():
            known |= {process.incarnation, process.control}
        for token in self.scheduler.tables.workers:
            known |= {token, control_of(token)}
        gone = [each for each, link in self.post.peers.items() if each not in known and not self._awaited(each, link)]
        for incarnation in gone:
            self.post.forget(incarnation)
            self._held.pop(incarnation, None)

    def _awaited(self, incarnation: bytes, link: Link) -> bool:
        """Whether a process that is no longer registered lives and is yet to hear its farewell."""
        return bool(link.unacknowledged()) and any(process.incarnation == incarnation for process in self.world.processes())

    def die(self) -> None:
        """Killed. What it had not sent and not committed is gone."""
        self.alive = False
        self.world.network.detach(self.incarnation)
