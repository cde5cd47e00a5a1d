"""Handlers of messages about values: put, held, released, fetched, located, lost (decision 0004).

``outcomes`` decides what a value means to tasks, ``references`` how long it is retained.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere, Stored
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import (
    DONE,
    DURABLE,
    FORMER,
    NOT_DURABLE,
    ObjectRecord,
    ProcessRecord,
)
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.protocol import messages as m
from zfabric.protocol.effects import ReadValue
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES, Address, is_call, is_put, short
from zfabric.protocol.messages import FAILED, OK


class Values:
    """Messages about values, of processes and of the object store."""

    def __init__(
        self,
        tables: Tables,
        requests: PendingRequests,
        references: References,
        outcomes: Outcomes,
        rebuilding: Rebuilding,
        dispatcher: Dispatcher,
        streams: Streams,
    ) -> None:
        self.tables = tables
        self.requests = requests
        self.references = references
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.dispatcher = dispatcher
        self.streams = streams

    # -- values of processes --

    def on_put(self, now: float, source: Address, message: m.Put) -> None:
        """Record put values."""
        process = self.tables.processes.get(source[1:])
        if process is None:
            return
        for object_id, value, contained, durable in message.rows:
            if self.tables.find(object_id) is None:
                record = self.tables.new_object(object_id, process.incarnation, DURABLE if durable else NOT_DURABLE)
                self.outcomes.set_value(record, value, contained, process.incarnation, durable)
                if type(value) is tuple:
                    self.tables.store.locate(object_id, process.incarnation)
            else:
                self.references.hold((object_id,), process.incarnation)
        self.keep_durable(process.incarnation, message.rows)

    def on_offer_results(self, now: float, source: Address, message: m.OfferResults) -> None:
        """Record values of a process: promised ones, or ones that a restarted scheduler lacks."""
        known = source[1:] in self.tables.processes
        for identifier, status, value, contained in message.rows if known else ():
            found = self.tables.find(identifier)
            self.tables.promises.settle(identifier)
            if found is not None and found.status == PENDING and is_call(identifier):
                if value is None:  # An earlier daemon had it in the arena, and its record is lost.
                    text = f"the result {short(identifier)} of a call is lost: only its node's daemon knew it, and that died"
                    status, value = FAILED, pack_failure("ObjectLostError", text)
                self.streams.call_ended(identifier[:TASK_BYTES], status, value)
                self.outcomes.settle_value(found, status, value)  # It was promised: other processes wait.
            elif found is None and type(value) is bytes and self._job_lives(identifier):
                record = self.tables.new_object(identifier)
                if status == OK:
                    self.outcomes.set_value(record, value, contained, source[1:], False)
                else:
                    self.outcomes.set_failure(record, status, value)

    def _job_lives(self, identifier: bytes) -> bool:
        """Whether a value's job lives: else nobody would release the value."""
        job = self.tables.jobs.get(identifier[:JOB_BYTES])
        return job is not None and not job.ended

    def on_hold(self, now: float, source: Address, message: m.Hold) -> None:
        """Record a process's holds."""
        process = self.tables.processes.get(source[1:])
        if process is None:
            return
        if self.tables.streams:
            self.streams.claim(message.object_ids)
        unknown = self.references.hold(message.object_ids, source[1:])
        if unknown and self.tables.nodes:
            unknown = self.references.hold(self._expect_elsewhere(unknown), source[1:])
        if unknown:
            unknown = self.references.hold(self._expect_durable(unknown, process), source[1:])
        if unknown:
            self.tables.count("holds_of_unknown", len(unknown))

    def _expect_elsewhere(self, object_ids: list[bytes]) -> list[bytes]:
        """Record requested values of other homes' streams, which may not exist yet."""
        for object_id in object_ids:
            end = self.tables.end_of(object_id)
            if end is not None and end.hold is not None:
                self.tables.refer(object_id, end.hold.home, end.hold.former)
        return object_ids

    def on_release(self, now: float, source: Address, message: m.Release) -> None:
        """Release a process's last refs."""
        self.references.release(message.object_ids, source[1:])

    # -- requests for values --

    def on_fetch(self, now: float, source: Address, message: m.Fetch) -> None:
        """Send requested values, or note the requests."""
        process = self.tables.processes.get(source[1:])
        if process is None:
            return
        if process.kind == "agent":
            self._supply(process, message.object_ids)
            return
        rows: list[m.Row] = []
        for object_id in message.object_ids:
            record = self.tables.find(object_id)
            if record is None:
                text = f"object {short(object_id)} is not known here (any more): its last reference was dropped, or its job has ended"
                rows.append((object_id, FAILED, pack_failure("ObjectFreedError", text), ()))
                continue
            if record.is_lost:
                self.rebuilding.make_available(record)
            if record.status == PENDING or isinstance(record.value, Elsewhere):
                record.add_fetchers(process.incarnation)
                self.tables.transfers.want(record)
            elif type(record.value) is Stored:
                self.outcomes.hand_over(record, process.incarnation)
            else:
                value = record.value if type(record.value) is bytes else b""
                rows.append((object_id, record.status, value, record.contained))
        if rows:
            self.tables.send_to_client(process, m.Objects(tuple(rows)))

    def _supply(self, agent: ProcessRecord, object_ids: m.Ids) -> None:
        missing = []
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None and type(record.value) is Stored:
                self.outcomes.hand_over(record, agent.incarnation)
            else:
                missing.append((object_id, FAILED, pack_failure("ObjectLostError", "it is not here"), ()))
        if missing:
            self.tables.send_to_client(agent, m.Objects(tuple(missing)))

    def on_located(self, now: float, source: Address, message: m.Located) -> None:
        """Pass on places that the store has pinned."""
        by_process: dict[bytes, list[m.Row]] = {}
        for object_id, incarnation, offset, size in message.rows:
            if incarnation == self.tables.address[1:]:
                self.tables.emit(ReadValue(object_id, offset, size))  # Another node has requested it.
            elif not self.dispatcher.located(object_id, incarnation, offset, size):
                self.tables.store.located(object_id, incarnation)
                record = self.tables.find(object_id)
                row: m.Row = (object_id, OK, (offset, size), record.contained if record is not None else ())
                by_process.setdefault(incarnation, []).append(row)
        for incarnation, rows in by_process.items():
            process = self.tables.processes.get(incarnation)
            if process is not None:
                self.tables.send_to_client(process, m.Objects(tuple(rows)))

    def on_store_room(self, now: float, source: Address, message: m.StoreRoom) -> None:
        """Record the object store's room."""
        self.tables.store.room = message.free if message.free >= 0 else None

    def on_objects_lost(self, now: float, source: Address, message: m.ObjectsLost) -> None:
        """Rebuild or fail lost values."""
        for object_id, reason in message.rows:
            record = self.tables.find(object_id)
            if record is None:
                continue
            waiting = [
                task
                for worker in self.tables.workers.values()
                for task in worker.inflight.values()
                if task.rare is not None and task.rare.wait_locations and object_id in task.rare.wait_locations
            ]
            full = reason.startswith("full:")
            for task in waiting:
                if full:
                    text = f"its argument {short(object_id)} is on disk: {reason[5:].strip()}"
                    self.outcomes.fail(task, "ObjectStoreFullError", text, ())
                else:
                    self.outcomes.wait_again(task, (record,))
            self.rebuilding.lost(object_id, reason)

    # -- durable values --

    def keep_durable(self, incarnation: bytes, rows: m.Rows) -> None:
        """Have the head write durable values, rows as in ``Put``. Their processes are notified."""
        for object_id, value, _, durable in rows:
            if durable and type(value) is bytes:
                self.requests.ask_head(m.Write, (("object", object_id, value),), (), then=self._kept, about=(incarnation, object_id))

    def _kept(self, now: float, about: tuple[bytes, bytes], answer: m.Written) -> None:
        incarnation, object_id = about
        process = self.tables.processes.get(incarnation)
        if process is None:
            return
        self.tables.send_to_client(process, m.PutCommitted((object_id,), "" if answer.ok else answer.text))

    def read_durable(self) -> None:
        """Read durable values without other copies; delete unneeded ones."""
        for about in self.rebuilding.durable_wanted.take():
            self.requests.ask_head(m.Read, "object", (about[0],), then=self.rebuilding.durable_found, about=about)
        for deletes in batches(("object", object_id) for object_id in self.references.unneeded_durable.take()):
            self.tables.send(self.tables.cluster.head_control_address, m.Write(0, (), deletes))

    def _expect_durable(self, object_ids: list[bytes], process: ProcessRecord) -> list[bytes]:
        """Record durable values that the head may have: of former jobs, or inside a dead node's values."""
        own = process.job
        if own is None:
            return object_ids
        for object_id in filter(is_put, object_ids):
            job = object_id[:JOB_BYTES]
            if self.tables.dead if job == own.id else job not in self.tables.jobs:
                durable = DURABLE if job == own.id and not own.home else FORMER
                record = self.tables.new_object(object_id, durable=durable)
                record.lose(self.tables.inline)
        return object_ids

    # -- values whose rows were lost with a daemon --

    def take_orphans(self, rows: m.Rows) -> list[tuple[ObjectRecord, bool]]:
        """Take records whose rows were lost with a daemon and are submitted again."""
        found = [pair for row in rows for pair in self.tables.orphans.take(row[0])]
        return [(record, lost) for each, lost in found if (record := self.tables.drop_object(each)) is not None]

    def reunite(self, orphan: ObjectRecord, lost: bool, process: ProcessRecord) -> None:
        """Join a record with its row: an existing value is not made again, a lost one is."""
        record = self.tables.find(orphan.object_id)
        if record is None or record.task is None:
            return
        if lost:
            orphan.expect(self.tables.inline)
        is_new = record.join(orphan, self.tables.inline)
        task = record.task
        if is_new and task.state != DONE and all(value.status != PENDING for value in task.values()):
            self.outcomes.adopt(task)
            self.outcomes.report_to(process, task)
