"""The machines of one daemon: which is asked next, what passes between them, and who may send them what.

A shell passes on what has arrived (``receive``, ``step``), lets deadlines pass (``tick``), and ends its turn with ``decide``. That asks
each machine that took something in for its effects, delivers between machines in memory, and repeats both until nothing is left. What is
for other processes is then in ``take_outgoing``, one list per process. The shell performs all other effects, and reports the end of each
``Store`` by ``committed``; the control store itself holds back answers until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from zfabric.config import Config
from zfabric.machines.common.tables import Reader
from zfabric.machines.control_store import ControlStore
from zfabric.machines.global_scheduler import GlobalScheduler, LeastWait
from zfabric.machines.local_scheduler import LocalScheduler, WorkerRecord
from zfabric.machines.object_store import ObjectStore
from zfabric.protocol import messages as m
from zfabric.protocol.access import FROM_PROCESSES
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import CONTROL_STORE, GLOBAL_SCHEDULER, LOCAL_SCHEDULER, OBJECT_STORE, SHELL, Address, control_of
from zfabric.protocol.machine import Machine, Refusal
from zfabric.protocol.messages import Envelope

SWEEP_EVERY = 5.0
"""Seconds between two sweeps for peers that are no longer registered. Links of those found twice are closed: a driver waits less long for
its farewell."""
TO_SCHEDULER = FROM_PROCESSES[LOCAL_SCHEDULER]
"""Messages that a process may send to the local scheduler."""
ROUNDS_MAX = 1000
"""Rounds of delivery between machines in one turn; more would be two machines answering each other for ever."""


class NodeMachines:
    """The machines of one daemon incarnation. ``daemons`` is the number of daemons the node had before."""

    def __init__(
        self,
        incarnation: bytes,
        node: bytes,
        config: Config,
        resources: tuple[tuple[str, int], ...],
        arena_bytes: int,
        journal: Reader,
        daemons: int,
    ) -> None:
        self.incarnation = incarnation
        self.shell = SHELL + incarnation
        """The address that messages of the shell come from."""
        roles = (LOCAL_SCHEDULER, OBJECT_STORE, CONTROL_STORE, GLOBAL_SCHEDULER)
        scheduler, store, control, placer = (role + incarnation for role in roles)
        first_token = int.from_bytes(incarnation[:4], "big") << 32 | 1
        self.scheduler = LocalScheduler(scheduler, node, config, resources, store, control, placer, first_token, daemons)
        self.store = ObjectStore(store, scheduler, config, arena_bytes, recovering=daemons > 0)
        self.control = ControlStore(control, config, journal)
        self.placer = GlobalScheduler(placer, config, LeastWait())
        machines = (self.scheduler, self.store, self.control, self.placer)
        self.machines: dict[bytes, Machine] = dict(zip(roles, machines, strict=True))
        """Machines by role."""
        self.refused = 0
        """Messages that their senders may not send, or that a machine refused."""
        self._stirred: set[bytes] = set(self.machines)
        """Roles that took something in, or whose deadline passed, since they were last asked for effects."""
        self._due: dict[bytes, float | None] = {}
        """Next deadline of each role, as of its last effects."""
        self._queue: deque[tuple[bytes, Address, m.Message]] = deque()
        """Messages for machines of this daemon, in order: (role, source, message)."""
        self._outgoing: dict[bytes, list[Envelope]] = {}
        self._strangers: set[bytes] = set()
        """Peers that were not registered at the last sweep."""

    # -- the beginning --

    def start(self, now: float, former_jobs: bool) -> None:
        """Start as a node's first daemon. ``former_jobs`` says whether the store has jobs of a former node."""
        if former_jobs:
            self.scheduler.former_jobs.ask()
        self.scheduler.workers.prestart(now)

    def recover(self, now: float, found: m.ArenaFound) -> None:
        """Start as a later daemon of the node, with what arena and disk have."""
        self.store.step(now, self.shell, found)
        self.scheduler.step(now, self.shell, found)

    # -- what has arrived --

    def receive(self, now: float, sender: bytes, to: bytes, role: bytes, message: m.Message) -> None:
        """Take in a message that the process ``sender`` sent as ``role``; refuse and count it if it may not, or if it does not fit."""
        # The common case is decided here: a call of ``may_send`` for each message would cost more than all else in this function.
        if (to != LOCAL_SCHEDULER or type(message) not in TO_SCHEDULER) and not self.may_send(sender, to, message):
            self.refused += 1
            return
        self._stirred.add(to)
        try:
            self.machines[to].step(now, role + sender, message)
        except Refusal:
            self.refused += 1

    def may_send(self, sender: bytes, to: bytes, message: m.Message) -> bool:
        """Whether a process may send this to that role; arena room is only for processes whose death will be noticed."""
        if type(message) not in FROM_PROCESSES.get(to, ()):
            return False
        return to != OBJECT_STORE or sender in self.scheduler.tables.processes or self.scheduler.tables.recovering

    def step(self, now: float, role: bytes, message: m.Message) -> None:
        """Pass a message of the shell to the machine that plays ``role``; ``decide`` then asks it for effects."""
        self._stirred.add(role)
        self.machines[role].step(now, self.shell, message)

    def stir(self, role: bytes) -> None:
        """Have ``decide`` ask this machine for effects: the shell has changed it itself."""
        self._stirred.add(role)

    def committed(self, sequence: int, error: str) -> None:
        """Report the end of a commit; the control store takes it in with the next ``decide``, or with the one under way."""
        self._queue.append((CONTROL_STORE, self.shell, m.Committed(sequence, error)))

    # -- a turn --

    def tick(self, now: float) -> None:
        """Let deadlines that have passed take effect."""
        for role, due in self._due.items():
            if due is not None and due <= now:
                self.machines[role].tick(now)
                self._stirred.add(role)

    def decide(self, now: float, perform: Callable[[Any], None]) -> None:
        """Ask for effects and deliver between machines until nothing is left; ``perform`` every effect but sends."""
        own, machines, queue, outgoing = self.incarnation, self.machines, self._queue, self._outgoing
        asked: set[bytes] = set()
        for _ in range(ROUNDS_MAX):
            stirred, self._stirred = self._stirred, set()
            asked |= stirred
            for role in sorted(stirred):
                for effect in machines[role].take_effects(now):
                    if type(effect) is Send:
                        to = effect.to
                        incarnation = to[1:]
                        if incarnation == own:
                            queue.append((to[:1], role + own, effect.message))
                        elif incarnation in outgoing:
                            outgoing[incarnation].append((to[:1], role, effect.message))
                        else:
                            outgoing[incarnation] = [(to[:1], role, effect.message)]
                    else:
                        perform(effect)
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
        for role in asked:
            self._due[role] = machines[role].next_deadline()

    def take_outgoing(self) -> dict[bytes, list[Envelope]]:
        """What the last turns have for other processes, by incarnation. All of it is for one frame per process."""
        outgoing, self._outgoing = self._outgoing, {}
        return outgoing

    @property
    def pending(self) -> bool:
        """Whether a turn has something to do now."""
        return bool(self._queue or self._stirred)

    def next_deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        soonest = None
        for due in self._due.values():
            if due is not None and (soonest is None or due < soonest):
                soonest = due
        return soonest

    # -- who is known --

    def registered(self) -> set[bytes]:
        """Incarnations of processes that are registered or that are about to be, those of control threads included."""
        known: set[bytes] = set()
        for process in self.scheduler.tables.processes.values():
            known.add(process.incarnation)
            known.add(process.control)
        for token in self.scheduler.tables.workers:
            known.add(token)
            known.add(control_of(token))
        return known

    def admits(self, incarnation: bytes) -> bool:
        """Whether a process is registered, or may be: as long as the scheduler recovers, each may."""
        return self.scheduler.tables.recovering or incarnation in self.registered()

    def incarnations_of(self, pid: int) -> tuple[bytes, ...]:
        """Incarnations under which the process with this pid receives, its control thread's included."""
        tables = self.scheduler.tables
        known = tables.by_pid.get(pid)
        if isinstance(known, WorkerRecord):
            return known.token, control_of(known.token)
        found = [process for process in tables.processes.values() if process.pid == pid] + ([known] if known is not None else [])
        named = (incarnation for process in found for incarnation in (process.incarnation, process.control))
        return tuple(dict.fromkeys(incarnation for incarnation in named if incarnation))

    def sweep(self, peers: Iterable[bytes]) -> set[bytes]:
        """Return the ``peers`` that are registered neither now nor were at the sweep before: links to them are to be closed.

        What a process is sent last (a driver its farewell) so has at least the time between two sweeps to arrive.
        """
        before = self._strangers
        self._strangers = set() if self.scheduler.tables.recovering else set(peers) - self.registered()
        return before & self._strangers
