"""Names of actors in a cluster: the head gives each name to one actor.

A new named actor waits until the head has answered its claim (``ClaimName``). The home has the record of the name; the head has, in memory,
only the actor and its home. After a restart of either daemon the home repeats its claims: before ``Ready`` those of actors that have their
names, after it the unanswered ones, which a restarted head answers once all nodes have registered. In a cluster of one nobody is asked.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.records import WAITING, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.transitions import ActorNameFreed, ActorReturned
from zfabric.protocol import messages as m
from zfabric.protocol.ids import LOCAL_SCHEDULER, Address


class _Holder(NamedTuple):
    """Who has a name; the home's daemon claimed it."""

    actor_id: bytes
    home: bytes
    daemon: bytes


class ActorNames:
    """Claims names; on the head, decides all claims."""

    def __init__(self, tables: Tables, actors: ActorDirectory, outcomes: Outcomes, node: bytes) -> None:
        self.tables = tables
        self.actors = actors
        self.outcomes = outcomes
        self.node = node
        self._holders: dict[tuple[str, str], _Holder] = {}
        """On the head: holders elsewhere (its own: ``ActorDirectory.named``)."""
        self._waiting: dict[bytes, TaskRecord] = {}
        self._own_claims: list[m.ClaimName] = []
        """On a restarted head: its own claims, until all nodes have registered."""
        self.held: list[tuple[Address, m.Query]] = []
        """Queries for names that such actors wait for."""

    # -- at an actor's home --

    def claim(self, task: TaskRecord) -> bool:
        """Claim an actor's name. Return whether it must wait."""
        record = self.tables.actors.get(task.id)
        if record is None or not record.name or not self.tables.nodes:
            return False
        self._waiting[task.id] = task
        message = m.ClaimName(record.id, record.namespace, record.name)
        if self.tables.cluster.head == self.node and self.tables.unsettled is not None:
            self._own_claims.append(message)
        elif self.tables.cluster.head == self.node:
            self.on_claim_name(0.0, LOCAL_SCHEDULER + self.node, message)
        else:
            self.tables.send_to_node(self.tables.cluster.head, message)
        return True

    def on_name_claimed(self, now: float, source: Address, message: m.NameClaimed) -> None:
        """Make or refuse an actor, as decided."""
        if source[1:] != self.tables.cluster.head:
            self.tables.count("refused")
            return
        task = self._waiting.pop(message.actor_id, None)
        if task is None or task.state != WAITING:
            return
        if message.holder != message.actor_id:
            self.actors.refuse_name(task)
            return
        self.outcomes.resolved(task)

    def on_freed(self, freed: ActorNameFreed) -> None:
        """Report a free name to the head."""
        self._waiting.pop(freed.actor_id, None)
        if self.tables.nodes:
            self.tables.send_to_node(self.tables.cluster.head, m.FreeName(*freed))

    def on_returned(self, returned: ActorReturned) -> None:
        """Claim the name of an actor that returned after the claims were repeated."""
        record = self.tables.actors.get(returned.actor_id)
        if record is not None and record.name and self.tables.cluster.head in self.tables.nodes:
            self.tables.send_to_node(self.tables.cluster.head, m.ClaimName(record.id, record.namespace, record.name))

    def repeat(self, node: bytes, answered: bool) -> None:
        """Repeat to the head the ``answered`` claims, or all others."""
        for record in self.actors.named.values() if node == self.tables.cluster.head else ():
            if (record.id not in self._waiting) == answered:
                self.tables.send_to_node(node, m.ClaimName(record.id, record.namespace, record.name))

    def holds_back(self, source: Address, message: m.Query) -> bool:
        """Retain a query for a name that an actor waits for. Return whether it is retained."""
        if message.what == "actor" and self.tables.unsettled is not None:  # An actor of this home may live on another node.
            self.held.append((source, message))
            return True
        if message.what != "actor" or not self._waiting:
            return False
        name, namespace = message.arguments if len(message.arguments) == 2 else ("", "")
        record = self.actors.named.get((namespace, name)) if type(name) is str and type(namespace) is str else None
        if record is None or record.id not in self._waiting:
            return False
        self.held.append((source, message))
        return True

    def take_held(self) -> list[tuple[Address, m.Query]]:
        """Take the retained queries."""
        held, self.held = self.held, []
        return held

    # -- at the head --

    @property
    def is_due(self) -> bool:
        """Whether own claims can be answered: all nodes have registered."""
        return bool(self._own_claims) and self.tables.unsettled is None

    def answer_own(self) -> None:
        """Answer the head's own claims."""
        claims, self._own_claims = self._own_claims, []
        for claim in claims:
            self.on_claim_name(0.0, LOCAL_SCHEDULER + self.node, claim)

    def on_claim_name(self, now: float, source: Address, message: m.ClaimName) -> None:
        """Give a name to its first claimant."""
        home = source[1:]
        node = self.tables.nodes.get(home)
        if self.node != self.tables.cluster.head or (node is None and home != self.node):
            self.tables.count("refused")
            return
        key = message.namespace, message.name
        own = self.actors.named.get(key)
        holder = self._holders.get(key)
        if holder is not None and self._is_stale(holder):
            holder = None
        has = holder.actor_id if holder is not None else message.actor_id
        if own is not None and home != self.node and all(own.id != claim.actor_id for claim in self._own_claims):
            has = own.id
        if has == message.actor_id and node is not None:
            self._holders[key] = _Holder(message.actor_id, home, node.daemon)
        self.tables.send_to_node(home, m.NameClaimed(message.actor_id, has))

    def _is_stale(self, holder: _Holder) -> bool:
        """Whether the holder's home has a newer daemon, which has not repeated the claim."""
        node = self.tables.nodes.get(holder.home)
        return node is None or (node.daemon != holder.daemon and node.is_ready)

    def on_free_name(self, now: float, source: Address, message: m.FreeName) -> None:
        """Free a name."""
        holder = self._holders.get((message.namespace, message.name))
        if holder is not None and holder.actor_id == message.actor_id and holder.home == source[1:]:
            del self._holders[message.namespace, message.name]

    def node_died(self, node: bytes) -> None:
        """Free the names of a dead home."""
        self._holders = {key: holder for key, holder in self._holders.items() if holder.home != node}
