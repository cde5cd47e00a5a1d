"""Objects whose home has died: their next home is that of their job.

After a death, a node reports to the homes of the jobs what it has of the dead one: objects, its ledger's entries for them, attempts, then
one ``Holdings`` that is ``complete``. Rows go on to name the dead node, so refs may arrive later; such an object is registered at the home
of its job when it is needed (``rehome``).
"""

from __future__ import annotations

from collections import defaultdict

from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.object_places import PENDING, ObjectPlace, Stored
from zfabric.machines.local_scheduler.records import AnyObject, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure, unpack_failure
from zfabric.protocol.ids import is_put, short
from zfabric.protocol.messages import FAILED, OK

OF_READERS = frozenset({"ObjectLostError", "ObjectFreedError", "LineageEvictedError", "ObjectTooLargeError", "ObjectStoreFullError"})
"""Failures of readers, which are no outcomes."""


class Orphans:
    """Moves objects and attempts of dead nodes."""

    def __init__(self, tables: Tables, outcomes: Outcomes, rebuilding: Rebuilding) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.rebuilding = rebuilding

    def report(self, dead: bytes) -> None:
        """Report what this node has. Where it is the home of the job, records stay until it takes over."""
        objects: defaultdict[bytes, list[m.Row]] = defaultdict(list)
        for record in self.tables.values():
            if record.home == dead:
                home = self.tables.job_home(record.object_id)
                if home == b"":
                    if dead in record.all_holders:
                        record.drop_holder(dead)
                        record.add_holder(self.tables.cluster.node)
                elif home in self.tables.nodes:
                    self._move(record, home)
                    if self.tables.ledger.enter_again(record) or record.is_here:
                        objects[home].append((record.object_id, *_outcome(record)))
        attempts: defaultdict[bytes, list[m.Row]] = defaultdict(list)
        for task in self.tables.tasks.values():
            if task.function.delegated and task.submitter == dead:
                self._move_attempt(task, attempts)
        for home in self.tables.nodes:
            self._send_objects(home, dead, objects[home])
            for rows in batches(attempts[home]):
                self.tables.send_to_node(home, m.Holdings(dead, (), (), rows, False))
            is_awaited = not self.tables.dead[dead]  # The dead node was known here.
            if is_awaited and self.tables.nodes[home].daemon:  # Others may not know this node: they receive it when they register.
                self.tables.send_to_node(home, m.Holdings(dead, (), (), (), True))

    def _move(self, record: AnyObject, home: bytes) -> None:
        """Set the home of the job as its home."""
        is_asked = record.place is ObjectPlace.ASKED
        record.move_home(home)
        if record.is_here:
            self.tables.protect(record)
            if type(record.value) is bytes:  # Agents copy only from the arena.
                self.outcomes.references.move_to_arena(record)
        if is_asked:
            record.expect(self.tables.inline)
            self.tables.transfers.want(record)

    def _move_attempt(self, task: TaskRecord, attempts: defaultdict[bytes, list[m.Row]]) -> None:
        home = self.tables.job_home(task.id)
        if home in self.tables.nodes:
            attempts[home].append((task.id, task.attempt))
            task.submitter = home

    def _send_objects(self, home: bytes, dead: bytes, objects: list[m.Row]) -> None:
        for rows in batches(objects):
            named = [each for row in rows for each in row[3]]
            self.tables.send_to_node(home, m.Holdings(dead, rows, self.tables.homes_of(named), (), False))
        self.tables.ledger.send_added(home)

    def rehome(self, record: AnyObject) -> bool:
        """Register an object of a dead home at the home of its job. Return whether that is another node.

        If it is this one, which has taken over, the value is lost.
        """
        home = self.tables.job_home(record.object_id)
        if home in self.tables.nodes:
            dead = record.home
            self._move(record, home)
            self.tables.ledger.enter_again(record)
            self._send_objects(home, dead, [(record.object_id, PENDING, b"", ())])
            return True
        if home != b"" or self.tables.dead[record.home]:
            self.fail(record)
        return False

    def fail(self, record: AnyObject) -> None:
        """Fail a value that nothing can make. If it was put, the head may have it."""
        if record.status == PENDING and is_put(record.object_id):
            self.rebuilding.durable_wanted.append((record.object_id, "the node where it was made is dead"))
        elif record.status == PENDING:
            why = "the node where it was made is dead, and no other node had the task that makes it"
            text = f"object {short(record.object_id)} is lost: {why}"
            self.outcomes.set_failure(record, FAILED, pack_failure("ObjectLostError", text))
            self.outcomes.announce(record)


def _outcome(record: AnyObject) -> m.Row:
    """For ``Holdings``: ``(status, value, refs inside)``."""
    value = record.value
    if record.status == OK and isinstance(value, bytes | Stored):
        return (OK, len(value) if isinstance(value, bytes) else value.size, record.contained)
    if isinstance(value, bytes) and (record.status != FAILED or unpack_failure(value)[0] not in OF_READERS):
        return (record.status, value, record.contained)
    return (PENDING, b"", ())
