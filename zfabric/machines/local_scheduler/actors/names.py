"""Names of actors in a cluster: the head gives each name to one actor.

A new named actor waits until the head has answered its claim, an entry of the home's ledger (``NAME``). The home has the record of the
name; the head has, in memory, only the actor and its home. After a restart of either daemon the home repeats its claims: before ``Ready``
those of actors that have their names, after it the unanswered ones, which a restarted head answers once all nodes have registered. In a
cluster of one nobody is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.barrier import NODES
from zfabric.machines.local_scheduler.records import WAITING, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.transitions import ActorNameFreed, ActorReturned
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import GRANTED, NAME, TAKEN


class ActorNames:
    """Claims names; on the head, decides all claims."""

    def __init__(self, tables: Tables, actors: ActorDirectory, outcomes: Outcomes, node: bytes) -> None:
        self.tables = tables
        self.actors = actors
        self.outcomes = outcomes
        self.node = node
        self._holders: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        """On the head: holders elsewhere, (home, actor) by namespace and name (its own: ``ActorDirectory.named``)."""
        self._waiting: dict[bytes, TaskRecord] = {}
        self.early: list[tuple[bytes, m.Row]] = []
        """On the head: claims, (home, entry), of its own actors, and of new ones while nodes have yet to register."""
        self.held: list[tuple[Address, m.Query]] = []
        """Queries for names that such actors wait for."""

    # -- at an actor's home --

    def claim(self, task: TaskRecord) -> bool:
        """Claim an actor's name. Return whether it must wait."""
        record = self.tables.actors.get(task.id)
        if record is None or not record.name or not self.tables.nodes:
            return False
        self._waiting[task.id] = task
        entry = record.id, record.namespace, record.name
        if self.tables.cluster.head == self.node:
            self.early.append((self.node, entry))
        else:
            self.tables.ledger.add(self.tables.cluster.head, NAME, entry)
        return True

    def granted(self, head: bytes, actor_ids: m.Ids) -> None:
        """Make actors that have their names."""
        for task in self._decided(head, actor_ids):
            self.outcomes.resolved(task)

    def taken(self, head: bytes, actor_ids: m.Ids) -> None:
        """Refuse actors whose names others have."""
        for task in self._decided(head, actor_ids):
            self.actors.refuse_name(task)

    def _decided(self, head: bytes, actor_ids: m.Ids) -> list[TaskRecord]:
        if head != self.tables.cluster.head:
            self.tables.count("refused")
            return []
        tasks = [self._waiting.pop(each, None) for each in actor_ids]
        return [task for task in tasks if task is not None and task.state == WAITING]

    def on_freed(self, freed: ActorNameFreed) -> None:
        """Report a free name to the head."""
        self._waiting.pop(freed.actor_id, None)
        if self.tables.cluster.head in self.tables.nodes:
            self.tables.ledger.end(self.tables.cluster.head, NAME, tuple(freed))

    def on_returned(self, returned: ActorReturned) -> None:
        """Claim the name of an actor that returned after the claims were repeated."""
        record = self.tables.actors.get(returned.actor_id)
        if record is not None and record.name and self.tables.cluster.head in self.tables.nodes:
            self.tables.ledger.add(self.tables.cluster.head, NAME, (record.id, record.namespace, record.name))

    def repeat(self, node: bytes, answered: bool) -> None:
        """Repeat to the head the ``answered`` claims, or all others."""
        for record in self.actors.named.values() if node == self.tables.cluster.head else ():
            if (record.id not in self._waiting) == answered:
                self.tables.ledger.add(node, NAME, (record.id, record.namespace, record.name))

    def holds_back(self, source: Address, message: m.Query) -> bool:
        """Retain a query for a name that an actor waits for. Return whether it is retained."""
        if message.what == "actor" and self.tables.barrier.awaits(NODES):  # An actor of this home may live on another node.
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

    def claimed(self, home: bytes, claims: m.Rows) -> None:
        """Give names to their first claimants. A restarted head decides on new actors once all nodes have repeated their claims."""
        node = self.tables.nodes[home]
        if self.node != self.tables.cluster.head:
            self.tables.count("refused")
        elif node.is_ready and self.tables.barrier.awaits(NODES):
            self.early += [(home, each) for each in claims]
        else:
            self._decide(home, claims)

    def answer_early(self) -> None:
        """Decide on claims that have waited, once all nodes have registered."""
        if self.tables.barrier.awaits(NODES):
            return
        early, self.early = self.early, []
        for home, claim in early:
            self._decide(home, (claim,))

    def _decide(self, home: bytes, claims: m.Rows) -> None:
        has: list[bytes] = []
        has_not: list[bytes] = []
        for claim in claims:
            (has if self._takes(home, *claim) else has_not).append(claim[0])
        if home == self.node:
            self.granted(home, tuple(has))
            self.taken(home, tuple(has_not))
        elif home in self.tables.nodes:
            entries = tuple((kind, tuple(ids)) for kind, ids in ((GRANTED, has), (TAKEN, has_not)) if ids)
            self.tables.send_to_node(home, m.LedgerUpdated(0, entries))

    def _takes(self, home: bytes, actor_id: bytes, namespace: str, name: str) -> bool:
        """Give a name to an actor, or decline."""
        own, (_, holder) = self.actors.named.get((namespace, name)), self._holders.get((namespace, name), (b"", actor_id))
        if own is not None and home != self.node and all(own.id != claim[0] for _, claim in self.early):
            holder = own.id
        if holder == actor_id and home != self.node:
            self._holders[namespace, name] = home, actor_id
        return holder == actor_id

    def freed(self, home: bytes, claims: m.Rows) -> None:
        """Free names."""
        self._free(home, lambda claim: claim in claims)

    def free_all(self, home: bytes, repeated: Container[tuple[str, Any]] = ()) -> None:
        """Free the names of a dead home, or those that its next daemon has not repeated."""
        self._free(home, lambda claim: (NAME, claim) not in repeated)

    def _free(self, home: bytes, is_over: Callable[[m.Row], bool]) -> None:
        self.early = [(of, claim) for of, claim in self.early if of != home or not is_over(claim)]
        for key, (holder, actor_id) in list(self._holders.items()):
            if holder == home and is_over((actor_id, *key)):
                del self._holders[key]
