"""The member of a node: joins the cluster, renews the node's lease, passes on the node table (decision 0005).

A lease begins when its renewal is sent, and so never ends later here than at the registry. At 0.8 of an unrenewed lease nothing leaves the
node, at 0.9 its workers are stopped; after two leases it ends. A restarted daemon begins with its predecessor's node table and end of
lease. It is silent until the registry has answered, and stops the workers when its predecessor would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zfabric.config import PROBE_SHARE, probe_seconds
from zfabric.protocol import messages as m
from zfabric.protocol.effects import ConnectNodes, Effect, EndNode, Freeze, Log, RecordLease, Send, Silence
from zfabric.protocol.ids import HEAD, REGISTRY, Address
from zfabric.protocol.machine import Handler, Handlers, InvariantViolation

JOIN_EVERY = 1.0
"""Seconds between requests to join."""
RENEWALS = 4
"""Requests per lease."""
SILENT_SHARE = 0.8
"""Share of an unrenewed lease after which nothing is sent."""
FROZEN_SHARE = 0.9
"""Share after which workers are stopped. Clocks may differ by a few percent."""
ENDS_AFTER = 2
"""Leases after which the node ends."""
JOIN_SECONDS = 6.0
"""Seconds of attempts to join: within 10 s of its start a user knows what is wrong, after a slow connection, too."""
AGENT_PATIENCE = 1.25
"""How long a probe of pairs may take, in units of the agent's own time."""


class Member:
    """One node's member. ``join`` describes the node; ``scheduler`` is its local scheduler.

    ``former`` is the previous daemon's last table, if any, and ``until`` the end of its lease. In seconds, ``lease`` is a lease's length,
    ``pair_patience`` how long another node may be out of reach.
    """

    def __init__(
        self,
        address: Address,
        scheduler: Address,
        join: m.Join,
        former: m.NodeTable | None = None,
        until: float = 0.0,
        lease: float = 0.0,
        pair_patience: float = 30.0,
    ) -> None:
        self.address = address
        self._scheduler = scheduler
        self._join = join
        self._registry = REGISTRY + HEAD
        self._head = "the head"
        """For people, with name and address once known."""
        self._former = former
        self._patience = JOIN_SECONDS if former is None else ENDS_AFTER * lease
        """Seconds of asking to join."""
        self._freeze_at = None if former is None else until - (1 - FROZEN_SHARE) * lease
        """When a restarted daemon without an answer stops the workers; None if it need not, or has."""
        self._lease: float | None = None
        """Seconds, once the node has joined."""
        self._until = 0.0
        """The end of the lease, unless renewed."""
        self._began: float | None = None
        self._ask_at = 0.0
        self._asked: dict[int, float] = {}
        self._number = 0
        self._version = 0
        self.silent = False
        """Only requests for the lease may leave."""
        self.frozen = False
        self._ended = False
        self.leaving = False
        """The registry has yet to acknowledge the end in order."""
        self._effects: list[Effect] = []
        self._counts = {"renewals": 0, "refused": 0}
        self.number = join.number
        """0 until it has joined."""
        self._pairs = Pairs(pair_patience, self._tell_registry, self._tell_scheduler)
        self.handlers = Handlers(self._counts, self._accepted())

    # -- the contract --

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Process a message. Once joined, only the head decides, and only this daemon reports."""
        if self._lease is not None and source[1:] not in (self._registry[1:], self._join.node, HEAD, self.address[1:]):
            self._counts["refused"] += 1
            return
        self.handlers[type(message)](now, source, message)

    def tick(self, now: float) -> None:
        """Do what is due: join, renew, be silent, end."""
        if self._lease is None:
            self._try_to_join(now)
        else:
            self._watch_lease(now, self._lease)
            if not self._ended:
                self._pairs.tick(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        if self._ended:
            return None
        if self._lease is None:
            ends_at = None if self._began is None else self._began + self._patience
            return min(each for each in (self._ask_at, ends_at, self._freeze_at) if each is not None)
        share = ENDS_AFTER if self.frozen else FROZEN_SHARE if self.silent else SILENT_SHARE
        due = min(self._ask_at, self._until - self._lease + share * self._lease)
        pairs = self._pairs.next_deadline()
        return due if pairs is None else min(due, pairs)

    def take_effects(self, now: float) -> list[Effect]:
        """Return what was decided."""
        if self._began is None:
            self._began = now
            if self._former is not None:
                self._begin_with(self._former)
            self._try_to_join(now)
        effects, self._effects = self._effects, []
        return effects

    def lease_age(self, now: float) -> float | None:
        """Seconds since the last renewing request."""
        return None if self._lease is None else now - (self._until - self._lease)

    def statistics(self) -> Mapping[str, float]:
        """Counters, and the node's number."""
        return {**self._counts, "number": self.number}

    def check_invariants(self) -> None:
        """Raise InvariantViolation for a lease without a number."""
        if self._lease is not None and not self.number:
            raise InvariantViolation("the node has a lease and no number")

    # -- joining --

    def _begin_with(self, table: m.NodeTable) -> None:
        """Begin as the next daemon of a node perhaps declared dead."""
        self._registry = REGISTRY + table.head
        self._version = table.version
        self._name_head(table)
        self.silent = True
        self._effects += [Silence(True), ConnectNodes(*table), Send(self._scheduler, table)]

    def _try_to_join(self, now: float) -> None:
        if self._ended:
            return
        if self._began is not None and now >= self._began + self._patience:
            self._end(f"{self._head} did not answer within {self._patience:g} s")
            return
        if self._freeze_at is not None and now >= self._freeze_at:
            self._freeze_at = None
            self._freeze()
        if now >= self._ask_at:
            self._ask_at = now + JOIN_EVERY
            self._asked[0] = self._asked.get(0, now)
            self._effects.append(Send(self._registry, self._join))

    def on_joined(self, now: float, source: Address, message: m.Joined) -> None:
        """The lease counts from the first request: the registry began it no earlier."""
        if self._lease is None:
            asked = self._asked.pop(0, now)
            self._registry = REGISTRY + message.head
            self._lease = message.lease
            self.number = message.number
            self._set_until(asked + message.lease)
            self._ask_at = now
            self.frozen |= self._former is not None  # The daemon before may have stopped the workers.
            self._go_on(now, message.lease)

    def on_refused(self, now: float, source: Address, message: m.Refused) -> None:
        """The node cannot join."""
        if self._lease is None:
            self._end(f"{message.kind}: {message.text}")

    def on_node_table(self, now: float, source: Address, message: m.NodeTable) -> None:
        """Pass the table to the shell, which connects, and to the local scheduler.

        Not before the node has a lease: a table follows ``Joined``.
        """
        if message.version > self._version and (self._lease is not None or self._former is not None):
            self._version = message.version
            self._name_head(message)
            self._effects.append(ConnectNodes(*message))
            self._effects.append(Send(self._scheduler, message))

    def _name_head(self, table: m.NodeTable) -> None:
        for row in table.rows:
            if row[0] == table.head:
                self._head = f"the head ({row[2]}, {row[3]})"

    # -- the lease --

    def _watch_lease(self, now: float, lease: float) -> None:
        passed = now - (self._until - lease)
        if passed >= ENDS_AFTER * lease:
            self._end(f"it could not renew its lease for {ENDS_AFTER * lease:g} s: {self._head} did not answer")
            return
        if passed >= FROZEN_SHARE * lease:
            self._freeze()
        if passed >= SILENT_SHARE * lease and not self.silent:
            self.silent = True
            self._effects.append(Silence(True))
            self._effects.append(Log("warning", "the node's lease could not be renewed: nothing is sent to other nodes until it is"))
        if now >= self._ask_at:
            self._ask_at = now + lease / RENEWALS
            self._number += 1
            self._asked[self._number] = now
            self._effects.append(Send(self._registry, m.RenewLease(self._join.node, self._number)))

    def on_lease_renewed(self, now: float, source: Address, message: m.LeaseRenewed) -> None:
        """The lease begins anew, when the request was sent."""
        asked = self._asked.get(message.number)
        if asked is None or self._lease is None or self._ended:
            return
        self._asked = {number: sent for number, sent in self._asked.items() if number > message.number}
        self._counts["renewals"] += 1
        self._set_until(asked + self._lease)
        self._go_on(now, self._lease)

    def _set_until(self, until: float) -> None:
        self._until = until
        self._effects.append(RecordLease(until))

    def _go_on(self, now: float, lease: float) -> None:
        """Act again, if the lease lasts long enough."""
        if now - (self._until - lease) >= SILENT_SHARE * lease:
            return
        if self.frozen:
            self.frozen = False
            self._effects.append(Freeze(False))
        if self.silent:
            self.silent = False
            self._effects.append(Silence(False))

    def _freeze(self) -> None:
        if not self.frozen:
            self._stop_workers()
            self._effects.append(Log("warning", "the node's lease could not be renewed: its workers are stopped until it is"))

    def _stop_workers(self) -> None:
        self.frozen = True
        self._effects.append(Freeze(True))

    def on_expelled(self, now: float, source: Address, message: m.Expelled) -> None:
        """The node is dead for the cluster."""
        self.leaving = False
        self._end(message.reason)

    def leave(self, reason: str) -> None:
        """Notify the registry of an end in order."""
        if self._lease is not None and not self._ended:
            self._ended = self.leaving = True
            self._effects.append(Send(self._registry, m.Leave(self._join.node, reason)))

    def _end(self, reason: str) -> None:
        """End the node. Workers are stopped at once: their tasks may run elsewhere already, and the end takes a moment."""
        if not self._ended:
            self._ended = self.silent = True
            if self.number and not self.frozen:
                self._stop_workers()
            self._effects.append(Silence(True))
            self._effects.append(EndNode(reason))

    # -- pairs of nodes --

    def on_unreachable(self, now: float, source: Address, message: m.Unreachable) -> None:
        """The shell has no connection to these."""
        self._pairs.on_unreachable(now, message.nodes)

    def on_peers_silent(self, now: float, source: Address, message: m.PeersSilent) -> None:
        """Some nodes do not answer the transfer agent."""
        self._pairs.on_peers_silent(now, message.nodes)

    def on_probe_pairs(self, now: float, source: Address, message: m.ProbePairs) -> None:
        """The registry has all pairs probed."""
        self._pairs.on_probe(now, message)

    def on_pairs_probed(self, now: float, source: Address, message: m.PairsProbed) -> None:
        """The agent has probed its pairs."""
        self._pairs.on_probed(now, message.number, message.nodes)

    def _tell_registry(self, message: m.Message) -> None:
        self._effects.append(Send(self._registry, message))

    def _tell_scheduler(self, message: m.Message) -> None:
        self._effects.append(Send(self._scheduler, message))

    def _accepted(self) -> dict[type[Any], Handler]:
        return {
            m.Joined: self.on_joined,
            m.Refused: self.on_refused,
            m.NodeTable: self.on_node_table,
            m.LeaseRenewed: self.on_lease_renewed,
            m.Expelled: self.on_expelled,
            m.Unreachable: self.on_unreachable,
            m.PeersSilent: self.on_peers_silent,
            m.ProbePairs: self.on_probe_pairs,
            m.PairsProbed: self.on_pairs_probed,
        }


class Pairs:
    """Nodes that this one cannot reach: complaints, and its part in a probe of all pairs.

    The shell reports missing connections, the transfer agent silent agents. After ``patience`` seconds (``pair_patience``) a node is
    complained of; the registry has all pairs probed, and decides.
    """

    def __init__(self, patience: float, tell_registry: Callable[[m.Message], None], tell_scheduler: Callable[[m.Message], None]) -> None:
        self._patience = patience
        self._tell_registry = tell_registry
        self._tell_scheduler = tell_scheduler
        self._since: dict[bytes, float] = {}
        """Since when there is no connection."""
        self._complained_at = -patience
        self._probe = 0
        """The agent's unanswered probe, or 0."""
        self._probe_until = 0.0

    def on_unreachable(self, now: float, nodes: m.Ids) -> None:
        """Record missing connections."""
        self._since = {node: self._since.get(node, now) for node in nodes}

    def on_peers_silent(self, now: float, nodes: m.Ids) -> None:
        """The transfer agent's patience has expired."""
        self._complain(now, nodes)

    def on_probe(self, now: float, message: m.ProbePairs) -> None:
        """Have the agent ask all nodes."""
        self._probe = message.number
        self._probe_until = now + AGENT_PATIENCE * probe_seconds(self._patience)
        self._tell_scheduler(message)

    def on_probed(self, now: float, number: int, nodes: m.Ids) -> None:
        """Report nodes not reached, by the agent or for a while by this daemon."""
        if number == self._probe:
            self._probe = 0
            own = {node for node, since in self._since.items() if now >= since + PROBE_SHARE * self._patience}
            self._tell_registry(m.PairsProbed(number, tuple(sorted(own.union(nodes)))))

    def tick(self, now: float) -> None:
        """Complain of nodes; answer for a silent agent."""
        self._complain(now, tuple(sorted(node for node, since in self._since.items() if now >= since + self._patience)))
        if self._probe and now >= self._probe_until:
            self.on_probed(now, self._probe, ())

    def _complain(self, now: float, nodes: m.Ids) -> None:
        if nodes and now >= self._complained_at + self._patience:
            self._complained_at = now
            self._tell_registry(m.Complain(nodes))

    def next_deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        due = [max(since, self._complained_at) + self._patience for since in self._since.values()]
        return min([*due, self._probe_until] if self._probe else due, default=None)
