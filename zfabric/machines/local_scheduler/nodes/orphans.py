"""Objects whose home has died: their next home is that of their job.

After a death, a node reports to the homes of the jobs what it has of the dead one: objects, then attempts, then one ``Remains`` that is
``complete``. Rows go on to name the dead node, so refs may arrive later; such an object is registered at the home of its job when it is
needed (``rehome``).
"""

from __future__ import annotations

from collections import defaultdict

from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.object_places import PENDING, ObjectPlace, Stored
from zfabric.machines.local_scheduler.records import AnyObject, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure, unpack_failure
from zfabric.protocol.ids import is_put, short
from zfabric.protocol.messages import FAILED, OK

OF_READERS = frozenset({"ObjectLostError", "ObjectFreedError", "LineageEvictedError", "ObjectTooLargeError", "ObjectStoreFullError"})
"""Failures of readers, which are no outcomes."""


class Orphans:
    """Moves objects and attempts of dead nodes."""

    def __init__(self, tables: Tables, outcomes: Outcomes) -> None:
        self.tables = tables
        self.outcomes = outcomes

    def report(self, dead: bytes) -> list[bytes]:
        """Report what this node has. Return the homes that are to register objects.

        Where this node is the home of the job, records stay until it takes over.
        """
        objects: defaultdict[bytes, list[m.Row]] = defaultdict(list)
        for record in self.tables.values():
            if record.home == dead:
                home = self.tables.job_home(record.object_id)
                if home == b"":
                    if dead in record.all_holders:
                        record.drop_holder(dead)
                        record.add_holder(self.tables.node)
                elif home in self.tables.nodes:
                    objects[home].append(self._move(record, home))
        attempts: defaultdict[bytes, list[m.Row]] = defaultdict(list)
        for task in self.tables.tasks.values():
            if task.function.delegated and task.submitter == dead:
                self._move_attempt(task, attempts)
        for home in self.tables.nodes:
            self._send(home, dead, objects[home], attempts[home])
        return [home for home, rows in objects.items() if rows]

    def _move(self, record: AnyObject, home: bytes) -> m.Row:
        """Set the home of the job as its home. Return the row for ``Remains``."""
        is_asked = record.place is ObjectPlace.ASKED
        record.move_home(home)
        if record.is_here:
            self.tables.protect(record)
            if type(record.value) is bytes:  # Agents copy only from the arena.
                self.outcomes.references.move_to_arena(record)
        if is_asked:
            record.expect(self.tables.inline)
            self.tables.want(record)
        hold = record.hold
        assert hold is not None
        return (record.object_id, hold.registered, hold.row_retained, *_outcome(record))

    def _move_attempt(self, task: TaskRecord, attempts: defaultdict[bytes, list[m.Row]]) -> None:
        home = self.tables.job_home(task.id)
        if home in self.tables.nodes:
            attempts[home].append((task.id, task.attempt))
            task.submitter = home

    def _send(self, home: bytes, dead: bytes, objects: list[m.Row], attempts: list[m.Row]) -> None:
        for rows in batches(objects):
            named = [each for row in rows for each in row[5]]
            self.tables.send_to_node(home, m.Remains(dead, rows, self.tables.homes_of(named), (), False))
        for rows in batches(attempts):
            self.tables.send_to_node(home, m.Remains(dead, (), (), rows, False))
        if self.tables.dead[dead]:
            return  # The dead node was never known here, and nobody waits for a report.
        if self.tables.nodes[home].daemon:  # Others may not know this node: they receive it when they register.
            self.tables.send_to_node(home, m.Remains(dead, (), (), (), True))

    def rehome(self, record: AnyObject) -> bool:
        """Register an object of a dead home at the home of its job. Return whether that is another node.

        If it is this one, which has taken over, the value is lost.
        """
        home = self.tables.job_home(record.object_id)
        if home in self.tables.nodes:
            dead = record.home
            object_id, held, named, *_ = self._move(record, home)
            self.tables.send_to_node(home, m.Remains(dead, ((object_id, held, named, PENDING, b"", ()),), (), (), False))
            return True
        if home != b"" or self.tables.dead[record.home]:
            self.fail(record)
        return False

    def fail(self, record: AnyObject) -> None:
        """Fail a value that nothing can make. If it was put, the head may have it."""
        if record.status == PENDING and is_put(record.object_id):
            self.tables.durable_wanted.append((record.object_id, "the node where it was made is dead"))
        elif record.status == PENDING:
            why = "the node where it was made is dead, and no other node had the task that makes it"
            text = f"object {short(record.object_id)} is lost: {why}"
            self.outcomes.set_failure(record, FAILED, pack_failure("ObjectLostError", text))
            self.outcomes.announce(record)


def _outcome(record: AnyObject) -> m.Row:
    """For ``Remains``: ``(status, value, refs inside)``."""
    value = record.value
    if record.status == OK and isinstance(value, bytes | Stored):
        return (OK, len(value) if isinstance(value, bytes) else value.size, record.contained)
    if isinstance(value, bytes) and (record.status != FAILED or unpack_failure(value)[0] not in OF_READERS):
        return (record.status, value, record.contained)
    return (PENDING, b"", ())
