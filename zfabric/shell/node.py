"""The machines of one daemon: which decides next, how messages pass between them, who may send to them.

A shell passes on what arrives (``receive``, ``step``), lets deadlines pass (``tick``), and ends its turn by ``decide``. Then
``take_outgoing`` has messages for other processes. The shell performs all effects but ``Send``, and reports the end of each ``Store`` by
``committed``; the control store holds back answers until then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, NamedTuple

from zfabric.config import Config
from zfabric.machines.common.tables import Reader
from zfabric.machines.control_store import ControlStore
from zfabric.machines.global_scheduler import GlobalScheduler, LeastWait
from zfabric.machines.local_scheduler import Finder, LocalScheduler, WorkerRecord
from zfabric.machines.member import Member
from zfabric.machines.object_store import ObjectStore
from zfabric.machines.registry import Registry
from zfabric.protocol import messages as m
from zfabric.protocol.access import FROM_NODES, FROM_PROCESSES, READ_TABLES, WRITE_TABLE
from zfabric.protocol.effects import Effect, Send
from zfabric.protocol.ids import (
    CONTROL_STORE,
    DAEMON_ROLES,
    GLOBAL_SCHEDULER,
    HEAD,
    LOCAL_SCHEDULER,
    MEMBER,
    OBJECT_STORE,
    REGISTRY,
    SHELL,
    Address,
    control_of,
)
from zfabric.protocol.machine import Machine, Refusal, WrappedMachine
from zfabric.protocol.messages import Envelope

SWEEP_EVERY = 5.0
"""Seconds between sweeps. Drivers wait less long for their farewell."""
TO_SCHEDULER = FROM_PROCESSES[LOCAL_SCHEDULER]
SendAhead = Callable[[bytes, list[Envelope]], None]
"""Sends to a process, or to a node's scheduler, before the turn goes on."""
ROUNDS_MAX = 1000
"""Most rounds of delivery in a turn. More means that two machines answer each other for ever."""


class ClusterPart(NamedTuple):
    """What makes a node one of a cluster. The ``head`` has the registry.

    ``table`` is the previous daemon's last node table, if any; ``until`` is when its lease ends.
    """

    join: m.Join
    head: bool
    table: m.NodeTable | None = None
    until: float = 0.0


class NodeMachines:
    """One incarnation of a daemon. ``daemons`` counts its predecessors."""

    def __init__(
        self,
        incarnation: bytes,
        node: bytes,
        config: Config,
        resources: tuple[tuple[str, int], ...],
        arena_bytes: int,
        journal: Reader,
        daemons: int,
        part: ClusterPart | None = None,
    ) -> None:
        self.incarnation = incarnation
        self.node = node
        self.shell = SHELL + incarnation
        """The source of the shell's messages."""
        roles = (LOCAL_SCHEDULER, OBJECT_STORE, CONTROL_STORE, GLOBAL_SCHEDULER)
        scheduler, store, control, placer = (role + incarnation for role in roles)
        first_token = int.from_bytes(incarnation[:4], "big") << 32 | 1
        self.scheduler = LocalScheduler(scheduler, node, config, resources, store, control, placer, first_token, daemons)
        # What finds messages to send ahead, restricted to permitted causes.
        self._ahead_of_processes = {kind: find for kind, find in self.scheduler.ahead_of_processes.items() if kind in TO_SCHEDULER}
        self._ahead_of_nodes = {kind: find for kind, find in self.scheduler.ahead_of_nodes.items() if kind in FROM_NODES[LOCAL_SCHEDULER]}
        self.store = ObjectStore(store, scheduler, config, arena_bytes, recovering=daemons > 0)
        self.control = ControlStore(control, config, journal)
        self.placer = GlobalScheduler(placer, config, LeastWait())
        machines = (self.scheduler, self.store, self.control, self.placer)
        self.machines: dict[bytes, Machine] = dict(zip(roles, machines, strict=True))
        self._own_nodes: frozenset[bytes] = frozenset((node,))
        self._lease_clock = LeaseClock()
        self.member: Member | None = None
        self.registry: Registry | None = None
        if part is not None:
            lease, patience = config.node_lease, config.pair_patience
            self.member = Member(MEMBER + incarnation, scheduler, part.join, part.table, part.until, lease, patience)
            self.machines[MEMBER] = OnLeaseClock(self.member, self._lease_clock)
            if part.head:
                self._own_nodes |= {HEAD}
                self.registry = Registry(REGISTRY + incarnation, node, config, control, part.join.versions, daemons)
                self.machines[REGISTRY] = OnLeaseClock(self.registry, self._lease_clock)
            else:  # The head numbers jobs. Messages sent before the way is known are repeated.
                self.scheduler.tables.cluster.head_control_address = CONTROL_STORE + HEAD
        self.refused = 0
        """Messages not permitted, or refused by a machine."""
        self._stirred: set[bytes] = set(self.machines)
        """Roles with a message or passed deadline since their effects were taken."""
        self._due: dict[bytes, float | None] = {}
        """Deadlines as of the last effects."""
        self._soonest = inf
        self._asked: set[bytes] = set()
        """Roles whose deadlines must be found again."""
        self._queue: deque[tuple[bytes, Address, m.Message]] = deque()
        """Messages for machines here: (role, source, message)."""
        self._outgoing: dict[bytes, list[Envelope]] = {}
        self._to_nodes: dict[bytes, list[Envelope]] = {}
        self.sent_to_nodes: Counter[str] = Counter()
        """Messages to other daemons, by type."""
        self._strangers: set[bytes] = set()
        """Peers that the last sweep found unregistered."""

    # -- start --

    def start(self, now: float, former_jobs: bool) -> None:
        """Start as a node's first daemon. ``former_jobs``: the store has a former node's jobs."""
        if former_jobs:
            self.scheduler.former_jobs.ask()
            self.scheduler.key_requests.end_orphaned()
        self.scheduler.workers.prestart(now)

    def recover(self, now: float, found: m.ArenaFound) -> None:
        """Start as a later daemon, with what arena and disk have."""
        self.store.step(now, self.shell, found)
        self.scheduler.step(now, self.shell, found)

    # -- messages that arrive --

    def receive(self, now: float, sender: bytes, to: bytes, role: bytes, message: m.Message) -> None:
        """Pass a message of the process ``sender``, acting as ``role``, to a machine; count it in ``refused`` if not permitted."""
        # The common case is decided here: calling ``may_send`` would cost more than the rest of this function.
        if (to != LOCAL_SCHEDULER or type(message) not in TO_SCHEDULER) and not self.may_send(sender, to, message):
            self.refused += 1
            return
        self._stirred.add(to)
        try:
            self.machines[to].step(now, role + sender, message)
        except Refusal:
            self.refused += 1

    def receive_from_node(self, now: float, node: bytes, to: bytes, role: bytes, message: m.Message, send: SendAhead | None = None) -> None:
        """Pass a message of another daemon, sent as ``role``, to a machine; refuse what is not permitted or does not fit.

        If it causes a message that somebody waits for, that message leaves first, by ``send``.
        """
        if to == LOCAL_SCHEDULER and send is not None and type(message) in FROM_NODES[LOCAL_SCHEDULER]:
            self._step_awaited(now, role + node, message, self._ahead_of_nodes.get(type(message)), send)
            return
        allowed = type(message) in FROM_NODES.get(to, ()) and to in self.machines
        if isinstance(message, m.Heartbeat):
            allowed &= message.node == node  # No node speaks for another.
        elif isinstance(message, m.Read):
            allowed &= message.table in READ_TABLES
        elif isinstance(message, m.Write | m.DeleteRows):
            allowed &= _tables_of(message) <= {WRITE_TABLE}
        if not allowed:
            self.refused += 1
            return
        self._stirred.add(to)
        try:
            self.machines[to].step(now, role + node, message)
        except Refusal:
            self.refused += 1

    def _step_awaited(self, now: float, source: Address, message: m.Message, find: Finder | None, send: SendAhead) -> None:
        """Pass a message to the local scheduler. If it is the first of its turn, the awaited message that it causes leaves at once.

        The awaited message leaves before its cause is handled if ``find`` finds it, and afterwards if nothing else follows from the cause.
        """
        scheduler, alone = self.scheduler, self._overtakes_nothing()
        ahead = find(source, message) if alone and find is not None else None
        if ahead is not None:
            self._send_ahead(ahead.send, send)
        try:
            self.machines[LOCAL_SCHEDULER].step(now, source, message)
        except Refusal:
            self.refused += 1
        if ahead is not None:
            ahead.settle(ahead.send.message, now)
        elif alone and (effect := scheduler.take_lone()) is not None:
            self._send_ahead(effect, send)
            if scheduler.tables.deadlines.any_sooner:
                self._asked.add(LOCAL_SCHEDULER)
            return
        self._stirred.add(LOCAL_SCHEDULER)

    def _overtakes_nothing(self) -> bool:
        """Whether nothing waits to be sent, or for the turn's end."""
        if self._stirred or self._queue or self._outgoing or self._to_nodes:
            return False
        return self.member is not None and not self.member.silent

    def _send_ahead(self, effect: Send, send: SendAhead) -> None:
        to, message = effect
        send(to[1:], [(to[:1], LOCAL_SCHEDULER, message)])
        if to[:1] == LOCAL_SCHEDULER:
            self.sent_to_nodes[f"to_nodes_{type(message).__name__}"] += 1

    def receive_in_cluster(self, now: float, sender: bytes, to: bytes, role: bytes, message: m.Message, send: SendAhead) -> None:
        """``receive`` in a cluster: awaited messages leave first, by ``send``."""
        if to == LOCAL_SCHEDULER and type(message) in TO_SCHEDULER:
            self._step_awaited(now, role + sender, message, self._ahead_of_processes.get(type(message)), send)
        else:
            self.receive(now, sender, to, role, message)

    def may_send(self, sender: bytes, to: bytes, message: m.Message) -> bool:
        """Whether a process may send this to that role. The arena is for registered processes, whose death is noticed."""
        if type(message) not in FROM_PROCESSES.get(to, ()):
            return False
        return to != OBJECT_STORE or sender in self.scheduler.tables.processes or self.scheduler.is_recovering

    def step(self, now: float, role: bytes, message: m.Message) -> None:
        """Pass the shell's message to a machine."""
        self._stirred.add(role)
        self.machines[role].step(now, self.shell, message)

    def stir(self, role: bytes) -> None:
        """Have ``decide`` take the effects of a machine that the shell has changed."""
        self._stirred.add(role)

    def committed(self, sequence: int, error: str) -> None:
        """Report the end of a commit."""
        self._queue.append((CONTROL_STORE, self.shell, m.Committed(sequence, error)))

    def leave(self, reason: str) -> None:
        """Notify other nodes that this one ends in order; the head ends the cluster. Done when not ``leaving``."""
        if self.registry is not None:
            self.registry.end_cluster(reason)
            self._stirred.add(REGISTRY)
        elif self.member is not None:
            self.member.leave(reason)
            self._stirred.add(MEMBER)

    @property
    def leaving(self) -> bool:
        """Whether other nodes have yet to be notified of the end."""
        if self.registry is not None:
            return self.registry.ending
        return self.member is not None and self.member.leaving

    # -- the clock of leases --

    def read_lease_clock(self, now: float, lease_now: float) -> None:
        """Read the clock of leases, first in each turn; else it is the shell's."""
        if self._lease_clock.read(now, lease_now):
            for role in (MEMBER, REGISTRY):
                if role in self.machines:
                    self._due[role] = self._soonest = now

    def lease_age(self, now: float) -> float | None:
        """Seconds since the request that last renewed the lease, or None."""
        return None if self.member is None else self.member.lease_age(now + self._lease_clock.ahead)

    # -- turns --

    def tick(self, now: float) -> None:
        """Apply deadlines that have passed."""
        if self._asked:
            self._find_deadlines()
        if now < self._soonest:
            return
        for role, due in self._due.items():
            if due is not None and due <= now:
                self.machines[role].tick(now)
                self._stirred.add(role)

    def decide(self, now: float, perform: Callable[[Any], None]) -> None:
        """Take effects and deliver messages between machines until nothing is left; ``perform`` all effects but ``Send``."""
        machines, queue = self.machines, self._queue
        if not (self._stirred or queue):
            return
        asked: set[bytes] = set()
        for _ in range(ROUNDS_MAX):
            stirred, self._stirred = self._stirred, set()
            asked |= stirred
            for role in sorted(stirred):
                self._route(role, machines[role].take_effects(now), perform)
            if not queue:
                break
            while queue:
                role, source, message = queue.popleft()
                if role in machines:
                    self._stirred.add(role)
                    machines[role].step(now, source, message)
                else:
                    self.refused += 1
        else:
            raise RuntimeError("the machines of this daemon answer each other without end")
        self._asked |= asked

    def _route(self, role: bytes, effects: Iterable[Effect], perform: Callable[[Any], None]) -> None:
        """Sort messages by receiver; ``perform`` other effects."""
        own, outgoing = self.incarnation, self._outgoing
        for effect in effects:
            if type(effect) is Send:
                to = effect.to
                incarnation = to[1:]
                if incarnation == own:
                    self._queue.append((to[:1], role + own, effect.message))
                elif incarnation in outgoing:
                    outgoing[incarnation].append((to[:1], role, effect.message))
                elif to[:1] in DAEMON_ROLES:
                    self._send_to_node(incarnation, to[:1], role, effect.message)
                else:
                    outgoing[incarnation] = [(to[:1], role, effect.message)]
            else:
                perform(effect)

    def _find_deadlines(self) -> None:
        """Find next deadlines once messages were sent: nobody waits for this."""
        for role in self._asked:
            self._due[role] = self.machines[role].next_deadline()
        self._asked.clear()
        self._soonest = min((due for due in self._due.values() if due is not None), default=inf)

    def _send_to_node(self, node: bytes, to: bytes, role: bytes, message: m.Message) -> None:
        if node in self._own_nodes:
            self._queue.append((to, role + self.node, message))
        else:
            self._to_nodes.setdefault(node, []).append((to, role, message))
            self.sent_to_nodes[f"to_nodes_{type(message).__name__}"] += 1

    def take_outgoing_to_nodes(self) -> dict[bytes, list[Envelope]]:
        """Take messages for other daemons, by node; ``HEAD`` is where this node joins.

        A node whose lease is nearly over sends only requests to renew it.
        """
        outgoing, self._to_nodes = self._to_nodes, {}
        if self.member is None or not self.member.silent:
            return outgoing
        for node, envelopes in outgoing.items():
            held = [each for each in envelopes if each[0] != REGISTRY]
            if held:
                self._to_nodes[node] = held
        requests = ((node, [each for each in envelopes if each[0] == REGISTRY]) for node, envelopes in outgoing.items())
        return {node: envelopes for node, envelopes in requests if envelopes}

    def take_outgoing(self) -> dict[bytes, list[Envelope]]:
        """Take messages for other processes, by incarnation: one frame each."""
        outgoing, self._outgoing = self._outgoing, {}
        return outgoing

    @property
    def pending(self) -> bool:
        """Whether a turn has something to do."""
        return bool(self._queue or self._stirred)

    def rests(self, now: float) -> bool:
        """Whether a turn would do nothing, with the same ``next_deadline``."""
        if self._stirred or self._queue or self._outgoing or self._to_nodes or self._asked:
            return False
        return now < self._soonest

    def next_deadline(self) -> float | None:
        """When to call ``tick``."""
        if self._asked:
            self._find_deadlines()
        return None if self._soonest == inf else self._soonest

    # -- registered processes --

    def registered(self) -> set[bytes]:
        """Incarnations of registered and starting processes, with their control threads'."""
        known: set[bytes] = set()
        for process in self.scheduler.tables.processes.values():
            known.add(process.incarnation)
            known.add(process.control)
        for token in self.scheduler.tables.workers:
            known.add(token)
            known.add(control_of(token))
        return known

    def admits(self, incarnation: bytes) -> bool:
        """Whether a process is registered or may register. All may while the scheduler recovers."""
        return self.scheduler.is_recovering or incarnation in self.registered()

    def incarnations_of(self, pid: int) -> tuple[bytes, ...]:
        """A pid's incarnations, with its control thread's."""
        tables = self.scheduler.tables
        known = tables.by_pid.get(pid)
        if isinstance(known, WorkerRecord):
            return known.token, control_of(known.token)
        found = [process for process in tables.processes.values() if process.pid == pid] + ([known] if known is not None else [])
        named = (incarnation for process in found for incarnation in (process.incarnation, process.control))
        return tuple(dict.fromkeys(incarnation for incarnation in named if incarnation))

    def sweep(self, peers: Iterable[bytes]) -> set[bytes]:
        """Return the ``peers`` unregistered in this sweep and the last, whose links the shell closes.

        So a last message (a driver's farewell) has the time between sweeps to arrive.
        """
        before = self._strangers
        self._strangers = set() if self.scheduler.is_recovering else set(peers) - self.registered()
        return before & self._strangers


def _tables_of(message: m.Write | m.DeleteRows) -> set[str]:
    return {row[0] for row in (*message.puts, *message.deletes)} if isinstance(message, m.Write) else {message.table}


NOTICED_SECONDS = 0.05
"""Least change of the clocks' difference that counts. Clocks are read one after the other, so it is never quite the same."""


class LeaseClock:
    """How far the clock of leases is ahead of the shell's, in seconds. Two clocks that run alike are as good as one.

    The clock of leases runs on while the machine is suspended, where the shell's other clock stands still. A node suspended for longer than
    its lease is dead for the others, and must not act before it knows. So the machines that decide on leases read this clock, and all
    others the shell's.
    """

    def __init__(self) -> None:
        self.ahead = 0.0

    def read(self, now: float, lease_now: float) -> bool:
        """Compare the clocks. Return whether the difference has changed: what was due earlier may be due now."""
        changed = abs(lease_now - now - self.ahead) > NOTICED_SECONDS
        if changed:
            self.ahead = lease_now - now
        return changed


class OnLeaseClock(WrappedMachine):
    """A machine that is given the time on the clock of leases."""

    def __init__(self, machine: Machine, clock: LeaseClock) -> None:
        super().__init__(machine)
        self.clock = clock

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """As ``Machine.step``."""
        self.machine.step(now + self.clock.ahead, source, message)

    def tick(self, now: float) -> None:
        """As ``Machine.tick``."""
        self.machine.tick(now + self.clock.ahead)

    def next_deadline(self) -> float | None:
        """As ``Machine.next_deadline``, on the shell's clock."""
        due = self.machine.next_deadline()
        return None if due is None else due - self.clock.ahead

    def take_effects(self, now: float) -> Iterable[Effect]:
        """As ``Machine.take_effects``."""
        return self.machine.take_effects(now + self.clock.ahead)
