"""A deterministic world: a node of production machines, a driver, a program, faults, and a clock that only moves from event to event.

All randomness comes from generators named after what they decide (delays, losses, crashes, the program), so that a change of one leaves the
others as they are. ``World(seed).run()`` returns the result, with the failure if there is one. The same seed always fails in the same way.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, NoReturn

from tests.sim.actors import ActorAuthor, TravellingActorAuthor, with_stopped_calls
from tests.sim.agenda import Agenda
from tests.sim.bare import LATE, BareAuthor, Layout, layout, with_restarts
from tests.sim.bodies import Ancestry, StackFrame
from tests.sim.call_invariants import CallInvariants
from tests.sim.circles import CircleAuthor, WaitGraph
from tests.sim.detached import NEXT, Detached, DetachedAuthor, with_dying_drivers
from tests.sim.drains import DrainAuthor, with_drains
from tests.sim.drivers import Driver
from tests.sim.durables import with_deaths as with_deaths_of_nodes
from tests.sim.durables import with_durable_puts
from tests.sim.elastic import Elastic, ElasticAuthor
from tests.sim.elastic import layout as elastic_layout
from tests.sim.elastic import with_restarts as with_restarts_alone
from tests.sim.elsewhere import ElsewhereAuthor
from tests.sim.grouped import SHARE, grouped, with_grouped_actors
from tests.sim.hoards import Hoarder, hoards
from tests.sim.invariants import Invariants
from tests.sim.kinds import ONE_NODE, Kind
from tests.sim.ledgers import LedgerAuthor, has_ledgers, with_deaths
from tests.sim.network import Faults, Network
from tests.sim.node import Node, SimDaemon, node_identifier
from tests.sim.node_faults import (
    CLOCKS_APART,
    RATES_APART,
    ClusterFaults,
    choose_node_faults,
    choose_restarts,
    enlarged,
    slowed_down,
    spread_out,
)
from tests.sim.object_stories import watched
from tests.sim.outliving import OutlivingAuthor
from tests.sim.processes import Process
from tests.sim.programs import FOREVER, LONG, Author, Program
from tests.sim.streams import with_fed_tasks, with_streaming_methods, with_streams
from tests.sim.surroundings import Clock
from tests.sim.workers import WorkerProcess
from zfabric.config import Config, MiB
from zfabric.machines.local_scheduler import ALONE_AFTER, ASSIGNED, LEASED, TaskRecord
from zfabric.machines.worker import Invocation, Worker
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FIRST_RETURN, INCARNATION_BYTES, TASK_BYTES, Address, control_of, is_control, is_put, short
from zfabric.protocol.machine import InvariantViolation
from zfabric.protocol.messages import Envelope
from zfabric.shell.process import FRAME_ROWS

LIMIT = 400.0
"""Virtual seconds within which each phase of a world must end."""
EVENTS_MAX = 40_000
FOREVER_EVENTS_MAX = 200_000
"""Further events while tasks whose cancel was lost run to their end. If others wait behind one, a daemon has a hundred turns a second."""
CHECK_EVERY = 0.05
OUTLIVING = 0.4
"""Share of the worlds of several nodes in which children outlive their parents."""


class Failure(Exception):
    """Raised where something that must be true is not."""


class WorldResult(NamedTuple):
    """The result of a world. ``failure`` is empty if nothing failed."""

    seed: int
    failure: str
    events: int
    states: Counter[str]


class World(Agenda):
    """One world. ``observer`` is called with (time, from, to, message) for every delivered message.

    ``kind`` chooses among programs and faults. ``faults`` and ``program`` replace those of the seed, as a test needs them; ``reduced``
    replaces both by fewer (``shrinking``). All else remains the seed's.
    """

    def __init__(
        self,
        seed: int = 0,
        kind: Kind = ONE_NODE,
        *,
        faults: Faults | None = None,
        program: Program | None = None,
        observer: Callable[[float, str, str, m.Message], None] | None = None,
        pieces: int = 0,
        cpus: int = 0,
        settings: dict[str, Any] | None = None,
        reduced: tuple[Faults, Program] | None = None,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.kind = kind
        self._clocks = random.Random(f"{seed}/clocks") if kind.clocks else None
        self.shape = random.Random(f"{seed}/shape")
        self.faults = faults if faults is not None else choose_faults(random.Random(f"{seed}/faults"), seed, kind.actors)
        few = kind.circles or kind.nodes > 1
        self.cpus = cpus or (random.Random(f"{seed}/cpus").choice((1, 1, 2)) if few else self.shape.choice((1, 2, 2, 3)))
        quiesce = random.Random(f"{seed}/quiesce").choice((0.0, 0.01, 0.1))
        apart = {"quiesce_seconds": quiesce, **_direct_submission(random.Random(f"{seed}/introductions"))}
        may_outlive = kind.nodes > 1 and not (kind.actors or kind.elsewhere) and program is None
        outlives = may_outlive and random.Random(f"{seed}/do children outlive").random() < OUTLIVING
        if kind.nodes > 1:
            apart["spill_after"] = random.Random(f"{seed}/spilling").choice((0.001, 0.004, 0.02) if not outlives else (0.02,))
            self.faults = self.faults._replace(daemon_crashes=0, full_disk=0)  # No node can join then.
            if faults is None:
                apart["node_lease"] = random.Random(f"{seed}/leases").choice((2.0, 3.0))
                self.faults = self.faults._replace(nodes=(choose_restarts if kind.restarts else choose_node_faults)(seed))
                if kind.drains:
                    self.faults = with_drains(self.faults, seed)
                elif kind.detached:
                    self.faults = with_dying_drivers(self.faults, seed)
                elif kind.bare:
                    self.faults = with_restarts(self.faults, seed)
                    apart["placers"] = random.Random(f"{seed}/global schedulers").choice((1, 2, 3))
                elif kind.elastic:
                    self.faults = with_restarts_alone(self.faults, seed)
                    apart["node_idle_seconds"] = random.Random(f"{seed}/idle nodes").choice((0.3, 1.0, 4.0))
                elif kind.durable:
                    self.faults = with_deaths_of_nodes(self.faults, seed)
        self.more = SHARE if kind.groups and kind.actors else ()
        """Resources of each node, besides the usual ones."""
        self.layout: Layout | None = None
        """Its nodes, where the driver's has no CPUs."""
        self.settings = {**_settings(self.shape), **apart, **(settings or {})}
        self.config = Config.of(self.settings)
        self.observer = observer
        self.notes: list[str] = []
        self.states: Counter[str] = Counter()
        self._crashes = random.Random(f"{seed}/crashes")
        self._losses = random.Random(f"{seed}/losses")
        self.orders = random.Random(f"{seed}/orders")
        self.frame_rows = random.Random(f"{seed}/frame rows").choice((1, 4, FRAME_ROWS)) if self.faults.jitter else FRAME_ROWS
        self._names = 0
        self.rate = random.Random(f"{seed}/rate of agents").choice((50, 1000)) * MiB if self.faults.jitter else 1000.0 * MiB
        self._events_max = EVENTS_MAX
        self.cancel_forgotten = False
        self.cancellers: dict[bytes, set[bytes]] = {}
        self.hoarding = kind.actors and program is None and hoards(seed)
        usual = TravellingActorAuthor if kind.nodes > 1 else ActorAuthor
        author = CircleAuthor if kind.circles else Hoarder if self.hoarding else usual if kind.actors else Author
        self.program = program if program is not None else author(f"{seed}/program", self.faults, self.cpus, True).write()
        if kind.bare:
            self.layout = layout(seed, kind.nodes, self.faults, self.config.node_lease)
        elif kind.elastic:
            self.layout = elastic_layout(seed)
        if kind.nodes > 1 and program is None:
            if kind.elastic:
                self.program = ElasticAuthor(str(seed), self.config.node_idle_seconds).write()
            elif self.layout is not None:
                self.program = BareAuthor(str(seed), self.faults, self.layout).write()
            elif kind.elsewhere:
                self.program = ElsewhereAuthor(f"{seed}/elsewhere", kind.nodes).write()
            elif kind.detached:
                self.program = DetachedAuthor(str(seed), self.faults, kind.nodes).write()
            elif kind.drains:
                self.program = DrainAuthor(str(seed), self.faults, kind.nodes).write()
            elif kind.actors and not self.hoarding and has_ledgers(seed):
                self.faults = with_deaths(self.faults, seed)
                self.program = LedgerAuthor(str(seed), self.faults, kind.nodes).write()
            elif kind.actors:
                self.program = with_stopped_calls(spread_out(slowed_down(self.program, seed), seed), seed)
            elif outlives:
                self.program = OutlivingAuthor(f"{seed}/outliving", kind.nodes).write()
                if not kind.restarts:  # A restart together with the death of a node may lose the row of a task (``docs/limits.md``).
                    self.faults = self.faults._replace(
                        nodes=self.faults.nodes._replace(kills=max(1, self.faults.nodes.kills), late_kills=1, restarts=0)
                    )
            else:
                self.program = enlarged(slowed_down(self.program, seed), seed)
        if kind.groups and program is None:
            if kind.actors:
                self.program = with_grouped_actors(self.program, seed, self.faults)
            else:
                self.program = grouped(self.program, seed, kind.nodes)
        if kind.streams and program is None:
            self.program = with_fed_tasks(with_streams(self.program, seed, self.faults), seed, self.faults)
            if kind.actors:
                self.program = with_streaming_methods(self.program, seed, self.faults)
        if kind.durable and program is None:
            self.program = with_durable_puts(self.program, seed)
        if reduced is not None:
            self.faults, self.program = reduced
        self.network = Network(self.after, self.fail, self.config.frame_bytes_max, self.faults, str(seed))
        self.pieces = pieces or self._pieces()
        self.ancestry = Ancestry()
        self.invariants = Invariants(self)
        self.calls = CallInvariants(self)
        self.wait_graph = WaitGraph(self)
        self.detached = Detached()
        self.former_job = b""
        """The job of the first driver, once another one has begun."""
        self._node_clocks = random.Random(f"{seed}/clocks of nodes")
        self.nodes: list[Node] = []
        """The first node is the head."""
        self.node_faults = ClusterFaults(self, self.faults.nodes)
        if kind.nodes == 1:
            self.nodes.append(Node(self, str(seed), self.cpus, self.pieces))
        else:
            self._begin_cluster(kind.nodes)
        home = self.nodes[-1] if faults is None and random.Random(f"{seed}/node of the driver").random() < 0.2 else self.nodes[0]
        if self.layout is not None:
            home = self.nodes[self.layout.home - 1]
        elif kind.detached:  # The head outlives all other nodes.
            home = self.nodes[random.Random(f"{seed}/node of the first driver").randrange(min(2, len(self.nodes)))]
        self.driver = Driver(self, home, self.incarnation(), home.supervisor.pid(), self.program)
        self.after(0.001, self._start_driver)
        self._plan_faults()
        self.node_faults.plan()
        self.elastic = Elastic(self, kind.nodes, self.start_node) if kind.elastic else None

    def _pieces(self) -> int:
        """Choose the size of the arena in pieces. Every other arena is so small that values are written and read on disk.

        Hoarding programs have no small one: retained rows of a log may need values that only these rows rebuild (docs/limits.md).
        """
        usual = self.shape.choice((12, 16, 24))
        small = random.Random(f"{self.seed}/small store").choice((0, 0, 0, 2, 3, 4))
        return small if small and not self.hoarding else usual

    def _begin_cluster(self, count: int) -> None:
        """Start several nodes; the first is the head. Some join later, where the faults say so."""
        if self.layout is not None:
            self._begin_bare(self.layout)
            return
        rng = random.Random(f"{self.seed}/joins")
        for number in range(1, count + 1):
            start = partial(self.start_node, number)
            if number > 1 and self.faults.nodes.late_joins and rng.random() < 0.5:
                self.states["node joins late"] += 1
                self.after(rng.random() * rng.choice((0.1, 1.0, 8.0)), start)
            else:
                start()

    def _begin_bare(self, nodes: Layout) -> None:
        """Start the head and the driver's node, and the others later. Some nodes receive the news of one that joins sooner than others."""
        rng = random.Random(f"{self.seed}/bare joins")
        for number, delay in enumerate(nodes.begins, 1):
            start = partial(self.start_node, number)
            if number <= nodes.home:
                start()
                continue
            self.states["node joins late"] += 1
            self.after(delay, start)
            if delay < self.faults.nodes.window and rng.random() < 0.6:
                other = nodes.home if rng.random() < 0.7 else rng.randrange(1, number)
                pair = node_identifier(number), node_identifier(other)
                for each in (pair, pair[::-1]):
                    self.network.slow[each] = rng.choice((0.001, 0.05, 0.2))

    def start_node(self, number: int) -> None:
        """Start a node, which joins the cluster."""
        cpus = self.layout.cpus if self.layout is not None else (self.cpus,) * number
        more = LATE if self.layout is not None and number == len(cpus) else self.more
        self.nodes.append(Node(self, f"{self.seed}/node{number}", cpus[number - 1], self.pieces, number, more))

    def _start_driver(self) -> None:
        node = self.driver.node
        if isinstance(node, Node) and node.number and not node.joined_as:
            self.after(0.001, self._start_driver)
        else:
            self.driver.start()

    @property
    def living(self) -> list[Node]:
        """Nodes that are not dead."""
        return [node for node in self.nodes if not node.dead]

    @property
    def head(self) -> bytes:
        """The node id of the head."""
        return self.nodes[0].identifier

    # -- time --

    def clock(self) -> Clock:
        """Make the clock of a new process."""
        return Clock(self, self._clocks.random() * CLOCKS_APART if self._clocks is not None else 0.0)

    def node_clock(self, number: int) -> Clock | None:
        """Make a node's clock; None if each of its processes has its own."""
        if not self.faults.nodes.clocks or self._clocks is not None:
            return None
        rate = 1.0 + (2.0 * self._node_clocks.random() - 1.0) * RATES_APART
        return Clock(self, (1.0 + self._node_clocks.random()) * CLOCKS_APART, rate)

    # -- processes --

    def incarnation(self) -> bytes:
        """A new incarnation, numbered for traces."""
        self._names += 1
        return bytes((1,)) + self._names.to_bytes(3, "big") + bytes(4)

    @property
    def daemon(self) -> SimDaemon:
        """The daemon of the first node, which may have died."""
        return self.nodes[0].daemon

    @property
    def workers(self) -> dict[bytes, WorkerProcess]:
        """Living workers of all nodes, by incarnation."""
        if len(self.nodes) == 1:
            return self.nodes[0].workers
        return {token: worker for node in self.nodes for token, worker in node.workers.items()}

    def task_record(self, task_id: bytes) -> TaskRecord | None:
        """A task's record at its home."""
        found = (node.daemon.scheduler.tables.tasks.get(task_id) for node in self.living)
        return next((task for task in found if task is not None and not task.function.delegated), None)

    def processes(self) -> list[Process]:
        """All living processes but daemons."""
        everyone: list[Process] = [self.driver, *(worker for node in self.nodes for worker in node.workers.values())]
        return [process for process in everyone if process.alive]

    def lives(self, pid: int) -> bool:
        """Whether a process with this pid lives."""
        agents = (node.agent for node in self.nodes)
        return any(process.pid == pid for process in self.processes()) or any(each is not None and each.pid == pid for each in agents)

    def condemned(self, frame: StackFrame) -> bool:
        """Whether a body is to be stopped, or its job has ended."""
        if not self.driver.alive:
            return True  # The job has ended, or is about to end.
        item = frame.item
        if item is not None and len(self.nodes) > 1 and (self.ancestry.is_void(item.row[0]) or self.invariants.is_being_killed(frame)):
            return True  # What it reads may be lost with the node of that ancestor, or stopped with its own attempt.
        if type(item) is Invocation:
            return not self.caller_lives(frame)  # Its arguments were released with its caller.
        if item is None:
            return False
        if self.former_job and item.row[0].startswith(self.former_job):
            return True
        record = self.task_record(item.row[0])
        if record is None or (record.rare is not None and bool(record.rare.stopped)):
            return True
        return len(self.nodes) > 1 and record.attempt != item.attempt  # It runs elsewhere, since the node of this one is dead.

    def caller_lives(self, frame: StackFrame) -> bool:
        """Whether the caller of this body's call lives."""
        caller = frame.item.caller[:INCARNATION_BYTES] if type(frame.item) is Invocation else b""
        return any(each.incarnation == caller for each in self.processes())

    def who(self, incarnation: bytes) -> str:
        """A process's readable name."""
        plain = control_of(incarnation) if is_control(incarnation) else incarnation
        for node in self.nodes:
            if plain in (node.daemon.incarnation, node.identifier):
                return f"daemon{node.number}" if len(self.nodes) > 1 else "daemon"
            if node.agent is not None and plain == node.agent.incarnation:
                return f"agent{node.number}"
        if plain == self.driver.incarnation:
            return "driver"
        worker = self.workers.get(plain)
        return worker.name if worker is not None else plain.hex()

    # -- observing --

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        if self.observer is not None:
            self.observer(self.now, "", "", (text,))

    def delivered(self, to: Address, source: Address, message: m.Message) -> None:
        """Observe the delivery of a message."""
        self.states[type(message).__name__] += 1
        if type(message) is m.LogAppended:
            self.calls.logged(message)
        elif type(message) is m.UpdateLedger:
            self.states.update(f"{kind} entered" for kind, _ in message.added)
        elif type(message) is m.LedgerUpdated:
            self.states.update(f"{kind} reported" for kind, _ in message.entries)
        elif type(message) is m.Delegate:
            self.node_faults.delegated(to[1:])
        elif type(message) is m.Pull:
            self.node_faults.pulling(to[1:])
        elif type(message) is m.Holdings:
            (receiver,) = (node for node in self.nodes if to[1:] in (node.identifier, node.daemon.incarnation))
            if message.node:
                self.invariants.remains(receiver.daemon, source[1:], message)
            else:
                self.states["values repeated" if message.objects else "attempts repeated"] += 1
        elif isinstance(message, m.Ended | m.Reclaimed):
            self.invariants.came_to_nothing(message)
        if self.observer is not None:
            self.observer(self.now, _place(self, source), _place(self, to), message)

    def last_dropped(self, identifier: bytes) -> None:
        """Fail if a process was notified that no ref to an object is left, and another living process has one.

        One reader of a stream may free a yielded value while another one requests it.
        """
        self.states["last ref dropped"] += 1
        is_over = self.driver.machine.farewell is not None or not self.driver.alive
        may_be_yielded = self.states["Yielded"] and identifier[TASK_BYTES:] != FIRST_RETURN and not is_put(identifier)
        for process in self.processes() if not (is_over or may_be_yielded) else ():
            entry = process.machine.objects.entry(identifier)
            if entry is not None and entry.refs > process.machine.dropped.count(identifier):
                self.fail(f"no ref to {short(identifier)} is left, and {process.name} has {entry.refs}")

    def refused(self, sender: bytes, to: bytes, message: m.Message) -> None:
        """Fail if the daemon refuses a message of a living process. Frames of a dead process may arrive later."""
        self.states["refused"] += 1
        if any(process.incarnation == sender for process in self.processes()):
            self.fail(f"the daemon refuses {type(message).__name__}, which {self.who(sender)} has sent to {to!r}")

    def refused_by(self, name: str, sender: bytes, message: m.Message) -> None:
        """Fail if a process refuses a message of a living one.

        Only directly submitted tasks and their results may arrive after their permission has ended.
        """
        self.states["refused by a process"] += 1
        lives = any(process.incarnation == sender for process in self.processes())
        if lives and not isinstance(message, m.Results | m.SubmitDirect):
            self.fail(f"{name} refuses {type(message).__name__}, which {self.who(sender)} has sent")

    def fail(self, text: str) -> NoReturn:
        """Raise ``Failure``, which ends the world."""
        self.note(f"FAILURE: {text}")
        raise Failure(text)

    def after_turn(self, daemon: SimDaemon) -> None:
        """Check the daemon after a turn."""
        self.invariants.after_turn(daemon)
        if self.elastic is not None:
            self.elastic.after_turn(daemon)

    def between_nodes(self, daemon: SimDaemon, node: bytes, envelopes: list[Envelope]) -> None:
        """Observe messages to another node's daemon."""
        self.invariants.between_nodes(daemon, node, envelopes)
        if self.elastic is not None:
            self.elastic.between_nodes(daemon, envelopes)

    # -- faults --

    def _plan_faults(self) -> None:
        faults, rng = self.faults, self._crashes
        for _ in range(faults.worker_crashes):
            self.after(rng.random() * faults.window, partial(self._crash_worker, rng, lambda worker: True))
        logged = random.Random(f"{self.seed}/crashes of logged actors")
        # Four crashes in a row while an actor is being created would end it, and hoarding actors take long to be restored.
        crashes = 8 * faults.worker_crashes
        if self.hoarding:
            crashes = min(crashes, 3 - faults.worker_crashes - faults.pressure)
        for _ in range(crashes):
            self.after(logged.random() * faults.window, partial(self._crash_worker, logged, lambda worker: bool(worker.mailbox.logs)))
        direct = random.Random(f"{self.seed}/crashes of workers with drivers")
        for _ in range(4 * faults.worker_crashes if not self.hoarding else 0):
            self.after(direct.random() * faults.window, partial(self._crash_worker, direct, lambda worker: bool(worker.drivers.sent)))
        for _ in range(faults.daemon_crashes):
            self.after(rng.random() * faults.window, self._crash_daemon)
        for _ in range(faults.stalls):
            self.after(rng.random() * faults.window, self._stall)
        for _ in range(faults.pressure):
            self.after(rng.random() * faults.window, self._press)
        disk = random.Random(f"{self.seed}/full disk")
        for _ in range(faults.full_disk):
            self.after(disk.random() * faults.window, partial(self._fill, 0.3 * disk.random()))
        if faults.driver_crash:
            self.after(rng.random() * faults.window, lambda: self.driver.die("killed"))
        self.after(faults.window, self._heal)

    def _heal(self) -> None:
        self.network.lossy = False

    def _crash_worker(self, rng: random.Random, chosen: Callable[[Worker], bool]) -> None:
        workers = [worker for worker in self.workers.values() if chosen(worker.worker) and not self._would_be_condemned(worker)]
        if workers:
            worker = rng.choice(workers)
            worker.effects_left = rng.randrange(0, 4)
            self.after(0.02, lambda: worker.die("killed") if worker.effects_left is not None else None)

    def _would_be_condemned(self, worker: WorkerProcess) -> bool:
        """Whether one more death would have the scheduler fail this worker's task as one that kills its workers."""
        found = (self.task_record(frame.item.row[0]) for frame in worker.stack if frame.item is not None)
        crashes = max((task.rare.crashes for task in found if task is not None and task.rare is not None), default=0)
        return crashes + 1 >= ALONE_AFTER + self.config.poison_kills

    def daemon_died(self, daemon: SimDaemon) -> None:
        """Kill a daemon, if it lives."""
        if daemon.alive:
            daemon.node.kill_daemon()

    def _crash_daemon(self) -> None:
        daemon = self.daemon
        if not daemon.alive:
            return
        daemon.effects_left = self._crashes.randrange(0, 12)
        self.after(0.02, lambda: self.daemon_died(daemon))

    def _fill(self, seconds: float) -> None:
        """Fill the disk for some seconds, once the driver has a job: a full disk refuses jobs."""
        journal = self.nodes[0].journal
        if self.driver.machine.welcomed and not journal.full:
            journal.full = "no space left on device"
            self.states["disk full"] += 1
            self.after(seconds, lambda: setattr(journal, "full", ""))

    def _stall(self) -> None:
        process = self._crashes.choice(self.processes() or [self.driver])
        process.stalled_until = process.now + 0.2 * self._crashes.random()

    def _press(self) -> None:
        daemon = self.daemon
        if not daemon.alive:
            return
        # About as much as some have reserved (``NODE_MEMORY``).
        usage = tuple((worker.pid, worker.pid * 2**30) for worker in self.workers.values() if not self._would_be_condemned(worker))
        busy = [worker for worker in daemon.scheduler.tables.workers.values() if worker.state == LEASED]
        if usage and busy:
            daemon.event(b"L", m.MemoryPressure(10, 1000, usage))

    def lose(self, share: float) -> None:
        """Delete a share of the files that actors' logs can rebuild."""
        daemon = self.daemon
        if not daemon.alive or daemon.scheduler.is_recovering:
            return
        made = [number for number, each in daemon.node.arena.disk.items() if daemon.scheduler.tables.maker_of(each.object_id) is not None]
        read = {entry.file for entry in daemon.store._tables.pinned.values()}
        for number in made:
            if self._losses.random() < share and number not in read:
                del daemon.node.arena.disk[number]
                self.states["file lost"] += 1

    # -- a whole run --

    def run(self) -> WorldResult:
        """Run the world to its end."""
        failure = ""
        try:
            with watched():
                self._to_the_end()
        except Failure as error:
            failure = str(error)
        except InvariantViolation as error:
            failure = f"an invariant does not hold: {error}"
            self.note(f"FAILURE: {failure}")
        for node in self.living:
            node.collect_states()
        self.states["connection ended"] += self.network.ended
        return WorldResult(self.seed, failure, self.events, self.states)

    def _to_the_end(self) -> None:
        if self.kind.detached:
            self._to_the_next_driver()
        if self.faults.driver_crash and not self.kind.detached:
            self._until(lambda: not self.driver.alive, "the driver's death")
            self.states["driver crashed"] += 1
        else:
            self._until(lambda: self.driver.finished or not self.driver.alive, "the end of the program")
            self._empty(self.invariants.nothing_left, "every ref was released")
            if self.driver.alive:
                self.driver.send_goodbye()
            self._until(lambda: self.driver.machine.farewell is not None or not self.driver.alive, "the farewell")
            self.after(0.0, lambda: self.driver.die("its program has ended"))
        if self.driver.machine.job:
            self._empty(lambda: self.invariants.job_gone(self.driver.machine.job), "the job has ended")
        if self.former_job:
            self._empty(lambda: self.invariants.job_gone(self.former_job), "the former job has ended")

    def _to_the_next_driver(self) -> None:
        """Run until all faults are over and the first driver has died, or its program ended. Then start the next driver, on the head."""
        first = self.driver
        if self.faults.driver_crash:
            self._until(lambda: not first.alive, "the driver's death")
            self.states["driver crashed"] += 1
        else:
            self._until(lambda: first.finished or not first.alive, "the end of the program")
            if first.alive:
                first.send_goodbye()
            self._until(lambda: first.machine.farewell is not None or not first.alive, "the farewell")
            first.die("its program has ended")
        self.after(max(self.faults.window, self.faults.nodes.window) + 3 * self.config.node_lease, self._begin_next_driver)
        self._until(lambda: self.driver is not first, "the next driver")

    def _begin_next_driver(self) -> None:
        first = self.driver
        self.former_job = first.machine.job
        head = self.nodes[0]
        self.driver = Driver(self, head, self.incarnation(), head.supervisor.pid(), NEXT)
        self.driver.start()

    def _until(self, done: Callable[[], bool], what: str) -> None:
        limit = self.now + LIMIT
        while not done():
            if not self.step() or self.now > limit or self.events > self._events_max:
                raise Failure(f"{what} does not come: {self.explain()}")

    def _empty(self, left: Callable[[], list[str]], when: str) -> None:
        """Run until ``left`` finds nothing. Fail the world if that takes too long."""
        limit = self.now + LIMIT / 4
        check_at, every = self.now, CHECK_EVERY
        while True:
            if self.now >= check_at and all(node.up for node in self.living) and self.network.in_flight == 0:
                check_at = self.now + every
                if not left():
                    return
            if not self.step() or self.now > limit or self.events > self._events_max:
                if every == CHECK_EVERY and self._runs_to_its_end():
                    limit, every = self.now + 2 * FOREVER, 100 * CHECK_EVERY
                    self._events_max += FOREVER_EVENTS_MAX
                    self.states["forgotten cancel"] += 1
                    continue
                found = left()
                if found:
                    raise Failure(f"{when}, and this is left: {'; '.join(found[:8])}")
                return

    def _runs_to_its_end(self) -> bool:
        """Whether a task runs whose cancel a restarted daemon has lost (``docs/limits.md``)."""
        tasks = self.daemon.scheduler.tables.tasks.values()
        return any(task.state == ASSIGNED and self._cancel_lost(task) for task in tasks)

    def _cancel_lost(self, task: TaskRecord) -> bool:
        """Whether a task runs again for its value, or all who cancelled it died, and the daemon that they notified, too."""
        if task.rare is not None and (task.rare.rebuilt or task.rare.stopped):
            return task.rare.rebuilt
        cancellers = self.cancellers.get(task.id, set())
        alive = {process.incarnation for process in self.processes()}
        return bool(cancellers and self.states["daemon restarted"]) and cancellers.isdisjoint(alive)

    def ran_to_its_end(self, frame: StackFrame) -> None:
        """Observe that a body computed to the end. If only an interrupt should have ended it, its dependents have uncertain values."""
        item, daemon = frame.item, self.daemon
        if self.now - frame.busy_since >= LONG and item is not None:
            task = daemon.scheduler.tables.tasks.get(item.row[0])
            self.cancel_forgotten |= task is not None and self._cancel_lost(task)

    def before_release(self) -> Generator[tuple[Any, ...], Any, None]:
        """Wait for calm, then compare refs of processes with the daemons' holders."""
        for _ in range(200):
            if self.is_calm():
                self.invariants.calm()
                self.calls.calm()
                self.states["calm checked"] += 1
                return
            yield ("sleep", 0.3)

    def is_calm(self) -> bool:
        """Whether no message is under way and every process waits."""
        return (
            all(node.daemon.settled and not node.stopped_until for node in self.living)
            and all(node.agent is None or node.agent.settled for node in self.living)
            and self.network.in_flight == 0
            and all(
                process.transport.settled
                and process.daemon == process.node.published
                and not process.inbox
                and not process.machine.has_unsent
                for process in self.processes()
            )
            and all(not worker.worker.unreported for worker in self.workers.values())
        )

    def explain(self) -> str:
        """Say why nothing happens any more."""
        return "; ".join(part for node in self.living for part in self._explain(node.daemon))

    def _explain(self, daemon: SimDaemon) -> list[str]:
        parts: list[str] = []
        if not daemon.alive:
            return ["there is no daemon"]
        if daemon.scheduler.is_recovering:
            parts.append(f"the daemon recovers and waits for {[self.who(each) for each in daemon.scheduler.tables.barrier.awaited]}")
        for task in list(daemon.scheduler.tables.tasks.values())[:6]:
            explanation = daemon.scheduler.explain(task.id)
            if explanation is not None and explanation.state != "finished":
                parts.append(f"{explanation.subject.hex()} {explanation.state}: {explanation.reason}")
        for process in self.processes() if daemon is self.daemon else ():
            top = process.stack[-1] if process.stack else None
            state = "idle" if top is None else "computes" if top.busy_until is not None else "waits" if top.wait is not None else "runs"
            parts.append(f"{process.name} {state}, {process.machine.unfinished} rows unfinished")
        for worker in daemon.scheduler.tables.workers.values():
            counts = f"inflight {len(worker.inflight)} blocked {len(worker.blocked_tasks)}"
            parts.append(f"record {self.who(worker.token)} state {worker.state} {counts}")
        return parts


def run_seed(seed: int, kind: Kind = ONE_NODE, **more: Any) -> WorldResult:
    """Run one world; ``more`` are further arguments of ``World``. An exception of a machine is the result's failure."""
    try:
        return World(seed, kind, **more).run()
    except Exception as error:  # The simulator searches for every exception that a machine can raise.
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
        return WorldResult(seed, text, 0, Counter())


def _place(world: World, address: Address) -> str:
    role, incarnation = address[:1], address[1:]
    who = world.who(incarnation)
    if who.startswith("daemon"):
        names = {b"L": "scheduler", b"O": "store", b"S": "control", b"G": "placer", b"X": "shell", b"R": "registry", b"N": "member"}
        return names.get(role, "daemon") + who.removeprefix("daemon")
    return f"{who}.control" if role == b"K" or is_control(incarnation) else who


def _settings(rng: random.Random) -> dict[str, Any]:
    return {
        "link_repeat": 0.6,
        "put_patience": 60.0,
        "grant_bytes": 4 * 2**20,
        "recovery_seconds": 5.0,
        "stop_patience": 0.2,
        "worker_start_seconds": 3.0,
        "worker_idle_seconds": rng.choice((0.5, 60.0)),
        "workers_max": rng.choice((4, 64)),
        "workers_blocked_max": 32,
        "inline_depth": rng.choice((2, 1500)),
        "prefetch_tasks": rng.choice((4, 64)),
        "max_retries": 3,
    }


def _direct_submission(rng: random.Random) -> dict[str, Any]:
    return {
        "direct_lease_after": rng.choice((1, 2, 3)),
        "direct_lease_seconds": rng.choice((0.01, 0.05, 2.0)),
        "prefetch_seconds": rng.choice((0.005, 0.1)),
    }


def choose_faults(rng: random.Random, seed: int = 0, actors: bool = False) -> Faults:
    """Choose the faults of a seed: often one kind alone, sometimes all of them.

    The disk fills only where there are logs to write and no daemon dies: the next one would lack the unwritten rows.
    """
    chosen = _choose_faults(rng)
    disk = random.Random(f"{seed}/does the disk fill")
    return chosen._replace(full_disk=disk.choice((0, 0, 1, 3)) if actors and not chosen.daemon_crashes else 0)


def _choose_faults(rng: random.Random) -> Faults:
    everything = rng.random() < 0.25
    chosen = rng.choice(("none", "network", "worker", "daemon", "driver", "pressure"))

    def has(kind: str) -> bool:
        return everything or chosen == kind

    lossy = has("network") or rng.random() < 0.3
    return Faults(
        loss=rng.choice((0.0, 0.02, 0.1)) if lossy else 0.0,
        duplication=rng.choice((0.0, 0.05, 0.2)) if lossy else 0.0,
        late=rng.choice((0.0, 0.05, 0.2)) if lossy else 0.0,
        worker_crashes=rng.randrange(1, 3) if has("worker") else 0,
        daemon_crashes=rng.randrange(1, 4) if has("daemon") else 0,
        driver_crash=has("driver") and (chosen == "driver" or rng.random() < 0.3),
        stalls=rng.randrange(0, 3),
        pressure=1 if has("pressure") and rng.random() < 0.5 else 0,
        start_failures=rng.randrange(0, 2) if has("pressure") else 0,
        window=rng.choice((0.1, 0.4, 1.0)),
        slow_commits=rng.random() < 0.3,
    )


__all__ = ["Failure", "Faults", "World", "WorldResult", "choose_faults", "run_seed"]
