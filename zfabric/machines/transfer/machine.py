"""The machine of a transfer agent: reserves room and pins values as a client, and exchanges messages with other agents.

It ends with its daemon and repeats nothing: who wants a value asks again. Its shell copies bytes between sockets and the arena
(``SendChunk``, ``WriteChunk``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from zfabric.config import Config, probe_seconds
from zfabric.machines.transfer.pulls import Pulls
from zfabric.machines.transfer.supplies import Supplies
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import LOCAL_SCHEDULER, OBJECT_STORE, TRANSFER_AGENT, Address
from zfabric.protocol.machine import Handler, Handlers

NUMBERS_OF_A_RUN = 2**32
"""Tokens of one incarnation."""
REPEATS = 10
"""Pings to a silent agent, which may be restarting."""
TRANSFER = 4
"""In a row of ``NodeTable``."""


class TransferAgent:
    """A node's transfer agent, under one daemon."""

    def __init__(self, address: Address, config: Config, daemon: bytes) -> None:
        self.address = address
        self.scheduler, self.store = LOCAL_SCHEDULER + daemon, OBJECT_STORE + daemon
        self.counts: Counter[str] = Counter()
        self.node = b""
        """Empty until ``Welcome``."""
        self.peers: dict[bytes, m.Row] = {}
        """The newest ``NodeTable``, with addresses and keys for the shell."""
        self.refused = ""
        self._version = 0
        self._effects: list[e.Effect] = []
        first_token = int.from_bytes(address[1:5], "big") * NUMBERS_OF_A_RUN >> 1
        self.pulls = Pulls(config, first_token, self.counts, self._is_member, self._tell_scheduler, self._tell_store, self._effects.append)
        self.supplies = Supplies(config, self.counts, self._tell_scheduler, self._tell_store, self._effects.append)
        self.probing = Probing(config.pair_patience, lambda: self.peers, lambda: self.node, self._tell_scheduler, self._effects.append)
        self.handlers = Handlers(self.counts, self._accepted())

    def register(self, register: m.Register) -> None:
        """Register, before anything else."""
        self._tell_scheduler(register)
        self._tell_scheduler(m.Ready())

    def _is_member(self, node: bytes) -> bool:
        return node in self.peers

    def _tell_scheduler(self, message: m.Message) -> None:
        self._effects.append(e.Send(self.scheduler, message))

    def _tell_store(self, message: m.Message) -> None:
        self._effects.append(e.Send(self.store, message))

    # -- the machine --

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Process one message."""
        self.handlers[type(message)](now, source, message)

    def tick(self, now: float) -> None:
        """Repeat unanswered requests, and drop silent readers."""
        self.pulls.tick(now)
        self.supplies.tick(now)
        self.probing.tick(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next."""
        due = [
            each for each in (self.pulls.next_deadline(), self.supplies.next_deadline(), self.probing.next_deadline()) if each is not None
        ]
        return min(due, default=None)

    def take_effects(self, now: float) -> list[e.Effect]:
        """Begin pulls, admit readers, send chunks as credit allows."""
        self.pulls.end_of_turn(now)
        self.supplies.end_of_turn(now)
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def statistics(self) -> Mapping[str, float]:
        """Return counters and sizes."""
        return {**self.counts, "pulls": len(self.pulls), "supplies": len(self.supplies)}

    def check_invariants(self) -> None:
        """Check credit, slots and pins."""
        self.pulls.check_invariants()
        self.supplies.check_invariants()

    # -- the daemon --

    def on_welcome(self, now: float, source: Address, message: m.Welcome) -> None:
        """Record the node id: the scheduler has registered this process."""
        self.node = message.node

    def on_refused(self, now: float, source: Address, message: m.Refused) -> None:
        """Record that the scheduler has refused this process."""
        self.refused = message.text

    def on_node_table(self, now: float, source: Address, message: m.NodeTable) -> None:
        """Take the living nodes: dead ones send and receive nothing."""
        if message.version <= self._version:
            return
        self._version = message.version
        dead = self.peers.keys() - {row[0] for row in message.rows}
        self.peers = {row[0]: row for row in message.rows}
        for node in dead:
            self.pulls.node_died(node, now)
            self.supplies.node_died(node)

    def on_recall(self, now: float, source: Address, message: m.RecallPins | m.RecallGrant) -> None:
        """Do nothing: pinned values are being sent, grants written."""

    def _accepted(self) -> dict[type[Any], Handler]:
        return {
            m.Welcome: self.on_welcome,
            m.Refused: self.on_refused,
            m.NodeTable: self.on_node_table,
            m.RecallPins: self.on_recall,
            m.RecallGrant: self.on_recall,
            m.ProbePairs: self.probing.on_probe_pairs,
            m.Ping: self.probing.on_ping,
            m.Pong: self.probing.on_pong,
            m.Pull: self.pulls.on_pull,
            m.StopPull: self.pulls.on_stop_pull,
            m.Granted: self.pulls.on_granted,
            m.NoSpace: self.pulls.on_no_space,
            m.Chunk: self.pulls.on_chunk,
            m.Queued: self.pulls.on_queued,
            m.Redirect: self.pulls.on_redirect,
            m.Unavailable: self.pulls.on_unavailable,
            m.ValueSealed: self.pulls.on_value_sealed,
            m.Objects: self.supplies.on_objects,
            m.Want: self.supplies.on_want,
            m.Credit: self.supplies.on_credit,
            m.StopWant: self.supplies.on_stop_want,
            m.ChunkSent: self.supplies.on_chunk_sent,
            m.ChunkFailed: self.supplies.on_chunk_failed,
        }


class Probing:
    """The probe of pairs under way, if any: whether other agents answer. ``peers`` are all rows of the table."""

    def __init__(
        self,
        patience: float,
        peers: Callable[[], Mapping[bytes, m.Row]],
        own: Callable[[], bytes],
        tell_scheduler: Callable[[m.Message], None],
        perform: Callable[[e.Effect], None],
    ) -> None:
        self._seconds = probe_seconds(patience)
        self._peers = peers
        self._own = own
        self._tell_scheduler = tell_scheduler
        self._perform = perform
        self._number = 0
        self._waiting: set[bytes] | None = None
        """Agents that have not answered; None without a probe."""
        self._until = 0.0
        self._ping_at = 0.0

    def on_probe_pairs(self, now: float, source: Address, message: m.ProbePairs) -> None:
        """Ask all nodes with an agent."""
        self._number = message.number
        self._waiting = {node for node, row in self._peers().items() if row[TRANSFER] and node != self._own()}
        self._until, self._ping_at = now + self._seconds, now
        self.tick(now)

    def on_ping(self, now: float, source: Address, message: m.Ping) -> None:
        """Answer another node's agent."""
        self._perform(e.Send(source, m.Pong(message.number)))

    def on_pong(self, now: float, source: Address, message: m.Pong) -> None:
        """Record another agent's answer."""
        if self._waiting is not None and message.number == self._number:
            self._waiting.discard(source[1:])
            self.tick(now)

    def tick(self, now: float) -> None:
        """Ping silent agents; report once all have answered, or time is up."""
        if self._waiting is None:
            return
        self._waiting &= self._peers().keys()
        if not self._waiting or now >= self._until:
            unreached, self._waiting = tuple(sorted(self._waiting)), None
            self._tell_scheduler(m.PairsProbed(self._number, unreached))
        elif now >= self._ping_at:
            self._ping_at = now + self._seconds / REPEATS
            for node in sorted(self._waiting):
                self._perform(e.Send(TRANSFER_AGENT + node, m.Ping(self._number)))

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next."""
        return None if self._waiting is None else min(self._ping_at, self._until)
