"""A cluster of the simulator whose processes are busy while they work.

Every node has its real machines: local and global scheduler, registry, control store, member; so have its workers and drivers. A process
has a core of its own: while one turn of it lasts, nothing else begins there, and what it sends leaves when it has got so far. How long a
turn lasts follows from what it received and sent (``Costs``).

Left out: what the network and the kernel do, connecting (all nodes join at once, and nothing of that is measured), large values, faults.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import lru_cache, partial
from typing import Any, NoReturn

from perf.scaling.costs import Costs
from tests.sim.agenda import Agenda
from tests.sim.bodies import StackFrame
from tests.sim.drivers import Driver
from tests.sim.kinds import ONE_NODE
from tests.sim.network import Faults, Network
from tests.sim.node import Node, SimDaemon
from tests.sim.programs import Program
from tests.sim.surroundings import Clock
from tests.sim.workers import WorkerProcess
from zfabric.config import Config, MiB
from zfabric.protocol import messages as m
from zfabric.protocol.codec import decode_messages, encode_messages
from zfabric.protocol.ids import FIRST_RETURN, Address
from zfabric.protocol.machine import Machine, WrappedMachine
from zfabric.protocol.messages import Envelope, Row
from zfabric.shell.process import FRAME_ROWS

LOCAL_SECONDS = 20e-6
"""From the moment a frame is sent until a process of the same node sees it."""
BETWEEN_SECONDS = 60e-6
"""The same for another node: a network within a rack."""
PIECES = 8
SUBMITTING = 0.6
"""Share of the driver's work for a task that is done before it is submitted."""
CHUNK = 256
"""Tasks that a driver submits before it looks at what has arrived."""


class Core(Clock):
    """The clock of one process, and the core that it has for itself."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, 0.0)
        self._cluster = cluster
        self._free_at = 0.0
        self.busy = 0.0
        """Seconds that it has worked."""

    @property
    def now(self) -> float:
        """The time, for what runs on this core: later within a turn that has lasted for a while."""
        cluster = self._cluster
        return cluster.now + cluster.spent if cluster.running is self else cluster.now

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Run an action at a time, or once the turn before it has ended."""
        self._cluster.at(max(time, self._free_at), partial(self._run, action))

    def _run(self, action: Callable[[], object]) -> None:
        cluster = self._cluster
        if cluster.now < self._free_at:
            cluster.at(self._free_at, partial(self._run, action))
            return
        cluster.running, cluster.spent = self, 0.0
        action()
        cluster.running = None
        self.work(cluster.spent)
        self._free_at = cluster.now + cluster.spent

    def work(self, seconds: float) -> None:
        """Count as busy."""
        if self._cluster.measuring:
            self.busy += seconds


class Nobody:
    """Observers of the simulator that this world does without."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **options: None


class NoGraph(Nobody):
    """What would observe who waits for whom."""

    ended: Any = Nobody()


class BeginTask(Nobody):
    """Charges workers for the tasks that they begin."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def begun(self, worker: Any, item: Any) -> None:
        """Observe the begin of a task."""
        self._cluster.charge(self._cluster.costs.worker)


class BusyMachine(WrappedMachine):
    """A machine of a daemon whose work takes time."""

    def __init__(self, cluster: Cluster, node: Node, machine: Machine) -> None:
        super().__init__(machine)
        self._cluster = cluster
        self._node = node

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Take the time for one message, and pass it on."""
        if source[1:] not in (self.address[1:], self._node.identifier):
            self._cluster.received(message)
        elif type(message) is m.Place:
            self._cluster.placing(message)
        self.machine.step(now, source, message)


class Wires:
    """What stands for the connections of one daemon with those of other nodes: frames arrive in order, and none is lost."""

    unsettled: frozenset[bytes] = frozenset()

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self._cluster = cluster
        self._node = node

    def connect(self, rows: tuple[Row, ...], now: float) -> None:
        """Do nothing: there is a wire to every node."""

    def send(self, target: bytes, envelopes: list[Envelope], now: float) -> None:
        """Send messages to a node. Requests to join arrive together: a table for each of them would take the simulator hours."""
        cluster = self._cluster
        receiver = cluster.by_identifier[target]
        rest = [each for each in envelopes if type(each[2]) is not m.Join]
        for to, role, message in envelopes:
            if type(message) is m.Join:
                receiver.daemon.core.receive_from_node(now, self._node.identifier, to, role, message)
                receiver.daemon.wake()
        tables = [each for each in rest if type(each[2]) is m.NodeTable]
        others = [each for each in rest if type(each[2]) is not m.NodeTable]
        for part in (others, tables):
            if part:
                arrive = partial(receiver.daemon._receive_from_node, None, self._node.identifier, encode_messages(part))  # type: ignore[arg-type]
                cluster.after(cluster.spent + BETWEEN_SECONDS, arrive)

    def accept(self, connection: Any, sender: bytes, frame: bytes, now: float) -> list[Envelope]:
        """Take in a frame."""
        self._cluster.charge(self._cluster.costs.node_frame)
        return _large(frame) if len(frame) > MiB // 64 and b"NodeTable" in frame[:64] else decode_messages(frame)

    def tick(self, now: float) -> None:
        """Do nothing."""

    def next_deadline(self) -> float | None:
        """None: nothing is repeated."""
        return None

    def unreachable(self) -> tuple[bytes, ...]:
        """Empty: there is a wire to every node."""
        return ()


@lru_cache(maxsize=2)
def _large(frame: bytes) -> list[Envelope]:
    """A table of nodes, decoded once for all that receive it: a thousand copies of a thousand rows would fill the memory."""
    return decode_messages(frame)


class Jobs(Driver):
    """A driver whose program is written in Python: a generator that yields what a body may request."""

    def __init__(self, cluster: Cluster, node: Node, work: Callable[[Jobs], Iterator[Any]]) -> None:
        super().__init__(cluster, node, cluster.incarnation(), node.supervisor.pid(), Program((), 0))
        self._work = work
        self._cluster = cluster
        self.home = node
        self.began_at = 0.0
        self.ended_at: float | None = None
        self._before: dict[str, float] = {}
        self.busy: dict[str, float] = {}
        """The share of its time, from ``begin`` to the end, for which each process of its node was busy; of workers, the mean."""

    def next_item(self) -> StackFrame | None:
        """Return the program, once the job has its number."""
        frame = super().next_item()
        if frame is not None:
            frame.body = self._body()
        return frame

    def _body(self) -> Generator[Any, Any, Any]:
        yield from self._work(self)
        self.ended_at = self.now
        took = self.ended_at - self.began_at
        self.busy = {role: (busy - self._before[role]) / took for role, busy in self._taken().items()}

    def begin(self) -> None:
        """Count from now on how busy the processes of its node are."""
        self.began_at = self.now
        self._before = self._taken()

    def _taken(self) -> dict[str, float]:
        workers = self.home.workers.values()
        taken = {"driver": self, "daemon": self.home.daemon}
        of_workers = sum(Cluster.busy(worker) for worker in workers) / max(1, len(workers))
        return {**{role: Cluster.busy(process) for role, process in taken.items()}, "workers": of_workers}

    @property
    def machines(self) -> tuple[Machine, ...]:
        """None to be checked after each turn: that takes time for each ref that it holds."""
        return ()

    def values(self, refs: tuple[bytes, ...]) -> Generator[Any, Any, None]:
        """Wait for values, and release them."""
        for begin in range(0, len(refs), CHUNK):
            some = refs[begin : begin + CHUNK]
            yield ("get", some, None)
            for ref in some:
                self.drop(ref)

    def submit_tasks(self, count: int, function: bytes, arguments: bytes) -> Generator[Any, Any, tuple[bytes, ...]]:
        """Submit tasks, and take the time for it; return the ids of their values."""
        refs = []
        seconds = self._cluster.costs.driver * SUBMITTING * 1e-6
        for begin in range(0, count, CHUNK):
            some = min(CHUNK, count - begin)
            refs += [self.submit(function, arguments, (), None, 1) + FIRST_RETURN for _ in range(some)]
            self.clock.work(some * seconds)  # type: ignore[attr-defined]
            yield ("sleep", some * seconds)
        return tuple(refs)


class Cluster(Agenda):
    """Some nodes of ``cpus`` CPUs that have joined, and the drivers on them."""

    def __init__(self, nodes: int, costs: Costs, cpus: int = 2) -> None:
        super().__init__()
        self.costs = costs
        self.cpus = cpus
        self.running: Core | None = None
        self.spent = 0.0
        """Seconds that the turn under way has lasted."""
        self.measuring = False
        self.config = Config.of({"link_repeat": 1000.0, "worker_start_seconds": 60.0})
        self.faults = Faults(jitter=False, delay=LOCAL_SECONDS, window=0.0)
        self.states: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        """Messages that have arrived from other nodes since costs count, by type."""
        self.shape = random.Random("shape")
        self.orders = random.Random("orders")
        self.frame_rows = FRAME_ROWS
        self.kind = ONE_NODE
        self.cancel_forgotten = False
        self.cancellers: dict[bytes, set[bytes]] = {}
        self.calls: Any = Nobody()
        self.ancestry: Any = Nobody()
        self.wait_graph: Any = NoGraph()
        self.invariants: Any = BeginTask(self)
        self.rate = 1000.0 * MiB
        self._names = 0
        self.network = Network(self._after_turn, self.fail, self.config.frame_bytes_max, self.faults, "network")
        self.network.lossy = False
        self.nodes: list[Node] = []
        self.by_identifier: dict[bytes, Node] = {}
        self.drivers: list[Jobs] = []
        self._cores: list[Core] = []
        for number in range(1, nodes + 1):
            self._add(number)
        self.until(lambda: all(len(node.daemon.scheduler.tables.nodes) == nodes - 1 for node in self.nodes), "all nodes join")

    def _add(self, number: int) -> None:
        node = Node(self, f"node{number}", self.cpus, PIECES, number if self.nodes or number > 1 else 1)
        node.supervisor.start_agent = lambda: None  # type: ignore[method-assign]
        daemon = node.daemon
        daemon.node_transport = Wires(self, node)  # type: ignore[assignment]
        core = daemon.core
        for role, machine in core.machines.items():
            core.machines[role] = BusyMachine(self, node, machine.machine)  # type: ignore[attr-defined]
        self.nodes.append(node)
        self.by_identifier[node.identifier] = node

    def rest(self) -> None:
        """Begin anew: nobody was busy yet. Earlier drivers stay, and do nothing."""
        self.drivers.clear()
        self.messages.clear()
        for core in self._cores:
            core.busy = 0.0

    def run(self, place: int, work: Callable[[Jobs], Iterator[Any]]) -> Jobs:
        """Start a driver on a node, counted from 0."""
        driver = Jobs(self, self.nodes[place], work)
        self.drivers.append(driver)
        driver.start()
        return driver

    def measure(self) -> None:
        """Count costs from now on."""
        self.measuring = True

    @staticmethod
    def busy(process: Driver | SimDaemon | WorkerProcess) -> float:
        """Seconds that a process has worked since costs count."""
        assert isinstance(process.clock, Core)
        return process.clock.busy

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Run until a condition holds."""
        steps = 0
        while not (steps % 64 == 0 and done()):
            if not self.step():
                if done():
                    return
                self.fail(f"nothing happens any more, and this has not: {what}")
            steps += 1

    # -- costs --

    def charge(self, microseconds: float) -> None:
        """Have the turn under way last longer."""
        if self.measuring:
            self.spent += microseconds * 1e-6

    def received(self, message: m.Message) -> None:
        """Charge a daemon for a message of another process or node."""
        costs = self.costs
        kind = type(message)
        if kind is m.Submit or kind is m.Completed:
            self.charge(costs.frame + len(message[0]) * costs.daemon / 2)
        elif kind is m.Delegate:
            self.charge(len(message[2]) * (costs.executor - costs.daemon / 2))  # type: ignore[misc]
        elif kind is m.Ended:
            self.charge(len(message[1][0]) * (costs.home - costs.daemon / 2) / 2)  # type: ignore[misc]
        elif kind is m.Heartbeat:
            self.charge(costs.heartbeat)
        elif kind is m.RenewLease:
            self.charge(costs.lease)
        elif kind is m.Place:
            self.placing(message)  # type: ignore[arg-type]
        if self.measuring:
            self.messages[kind.__name__] += 1

    def placing(self, message: m.Place) -> None:
        """Charge a global scheduler for a question."""
        self.charge(len(message.rows) * len(self.nodes) * self.costs.placing)

    def between_nodes(self, daemon: SimDaemon, node: bytes, envelopes: list[Envelope]) -> None:
        """Charge a daemon for what it sends to another node."""
        rows = sum(len(message[2]) for _, _, message in envelopes if type(message) is m.Delegate)
        self.charge(self.costs.node_frame + rows * (self.costs.home - self.costs.daemon / 2) / 2)

    def delivered(self, to: Address, source: Address, message: m.Message) -> None:
        """Charge a driver or worker for a message."""
        rows = len(message.rows) if type(message) is m.Results else 0
        self.charge(self.costs.frame + rows * self.costs.driver * (1 - SUBMITTING))

    # -- what the simulator's nodes and processes use of their world --

    @property
    def head(self) -> bytes:
        """The node id of the head."""
        return self.nodes[0].identifier

    def _after_turn(self, delay: float, action: Callable[[], object]) -> None:
        """Schedule what follows from something that the turn under way does now."""
        self.at(self.now + self.spent + delay, action)

    def clock(self) -> Clock:
        """Make the clock of a new process."""
        core = Core(self)
        self._cores.append(core)
        return core

    def node_clock(self, number: int) -> Clock | None:
        """None: each process has a core of its own."""
        return None

    def processes(self) -> list[Any]:
        """All living processes but daemons."""
        return [*self.drivers, *(worker for node in self.nodes for worker in node.workers.values())]

    def incarnation(self) -> bytes:
        """Return a new incarnation."""
        self._names += 1
        return bytes((1,)) + self._names.to_bytes(3, "big") + bytes(4)

    def after_turn(self, daemon: SimDaemon) -> None:
        """Charge a daemon for a turn."""
        self.charge(self.costs.turn)

    def note(self, text: str) -> None:
        """Trace nothing."""

    def fail(self, text: str) -> NoReturn:
        """End the run."""
        raise RuntimeError(text)

    def refused(self, sender: bytes, to: bytes, message: m.Message) -> None:
        """Fail: nothing is refused here."""
        self.fail(f"a daemon refuses {type(message).__name__}")

    def refused_by(self, name: str, sender: bytes, message: m.Message) -> None:
        """Observe nothing: a task that was submitted directly may come late."""

    def lives(self, pid: int) -> bool:
        """Whether a process lives: all do."""
        return True

    def ran_to_its_end(self, frame: StackFrame) -> None:
        """Observe nothing."""

    def condemned(self, frame: StackFrame) -> bool:
        """Nobody is to be stopped."""
        return False

    def caller_lives(self, frame: StackFrame) -> bool:
        """Nobody dies."""
        return True

    def before_release(self) -> Generator[tuple[Any, ...], Any, None]:
        """Check nothing."""
        yield from ()

    def lose(self, share: float) -> None:
        """Lose nothing."""
