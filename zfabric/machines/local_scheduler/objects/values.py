"""What processes and the object store report of values: put, held, released, fetched; pinned or lost.

What a value *is* to the tasks that make it or wait for it is decided in ``outcomes``, and how long it stays in ``references``; here
is what each message about values does to both. A value of which only its place is known (``Stored``) is never sent from here: the
store is asked to pin it for the process that wants it, and its answer is passed on.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import DONE, PENDING, ObjectRecord, ProcessRecord, Stored
from zfabric.machines.local_scheduler.references import References, add_holder, holders_of
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES, Address, is_call, short
from zfabric.protocol.messages import FAILED, OK


class Values:
    """Receives what processes and the object store report of values."""

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

    # -- processes have values --

    def on_put(self, now: float, source: Address, message: m.Put) -> None:
        """Values that exist."""
        process = self.tables.processes.get(source[1:])
        if process is None:
            return
        for object_id, value, contained, durable in message.rows:
            if self.tables.find(object_id) is None:
                record = ObjectRecord(object_id, None, process.incarnation)
                record.durable = durable
                self.tables.objects[object_id] = record
                self.outcomes.set_value(record, value, contained, process.incarnation, durable)
                if type(value) is tuple:
                    self.tables.locates.append((object_id, process.incarnation))
            else:
                self.references.hold((object_id,), process.incarnation)
            if durable and type(value) is bytes:
                self.requests.ask(m.Write, (("object", object_id, value),), (), then=self._kept, about=(process.incarnation, object_id))

    def on_offer_results(self, now: float, source: Address, message: m.OfferResults) -> None:
        """Values that a process has which registers again with the same daemon: what is not known any more is taken over."""
        known = source[1:] in self.tables.processes
        for identifier, status, value, contained in message.rows if known else ():
            found = self.tables.find(identifier)
            self.tables.promises.keep(identifier)
            if found is not None and found.status == PENDING and is_call(identifier):
                if value is None:  # The daemon before this one knew it, and nothing that survived tells of it.
                    text = f"the result {short(identifier)} of a call is lost: only its node's daemon knew it, and that died"
                    status, value = FAILED, pack_failure("ObjectLostError", text)
                self.streams.call_ended(identifier[:TASK_BYTES], status, value)
                self.outcomes.settle_value(found, status, value)  # The result of a call that others were told to expect.
            elif found is None and type(value) is bytes and self._job_lives(identifier):
                record = ObjectRecord(identifier, None, None)
                self.tables.objects[identifier] = record
                if status == OK:
                    self.outcomes.set_value(record, value, contained, source[1:], False)
                else:
                    self.outcomes.set_failure(record, status, value)

    def _job_lives(self, identifier: bytes) -> bool:
        """Whether anybody would release a value: a job's values go with it, and its processes report for a while what they have."""
        job = self.tables.jobs.get(identifier[:JOB_BYTES])
        return job is not None and not job.ended

    def on_hold(self, now: float, source: Address, message: m.Hold) -> None:
        """A process has refs. One that is not registered has none: its message arrived after its death."""
        if source[1:] not in self.tables.processes:
            return
        if self.tables.streams:
            self.streams.claim(message.object_ids)
        unknown = self.references.hold(message.object_ids, source[1:])
        if unknown:
            self.tables.counts["holds_of_unknown"] += len(unknown)

    def on_release(self, now: float, source: Address, message: m.Release) -> None:
        """A process's last refs are gone."""
        self.references.release(message.object_ids, source[1:])

    # -- processes want values --

    def on_fetch(self, now: float, source: Address, message: m.Fetch) -> None:
        """A process wants values."""
        process = self.tables.processes.get(source[1:])
        if process is None:
            return
        rows: list[m.Row] = []
        for object_id in message.object_ids:
            record = self.tables.find(object_id)
            if record is None:
                text = f"object {short(object_id)} is not known here (any more): its last reference was dropped, or its job has ended"
                rows.append((object_id, FAILED, pack_failure("ObjectFreedError", text), ()))
                continue
            if record.status == OK and record.value is None:
                self.rebuilding.make_available(record, "evicted")
            if record.status == PENDING:
                if record.fetchers is None:
                    record.fetchers = set()
                record.fetchers.add(process.incarnation)
            elif type(record.value) is Stored:
                self.outcomes.hand_over(record, process.incarnation)
            else:
                value = record.value if type(record.value) is bytes else b""
                rows.append((object_id, record.status, value, record.contained))
        if rows:
            self.tables.tell(process, m.Objects(tuple(rows)))

    def on_located(self, now: float, source: Address, message: m.Located) -> None:
        """The store has pinned values for processes."""
        by_process: dict[bytes, list[m.Row]] = {}
        for object_id, incarnation, offset, size in message.rows:
            if not self.dispatcher.located(object_id, incarnation, offset, size):
                askers = self.tables.locating.get(object_id)
                if askers is not None and incarnation in askers:
                    askers.remove(incarnation)
                    if not askers:
                        del self.tables.locating[object_id]
                record = self.tables.find(object_id)
                row: m.Row = (object_id, OK, (offset, size), record.contained if record is not None else ())
                by_process.setdefault(incarnation, []).append(row)
        for incarnation, rows in by_process.items():
            process = self.tables.processes.get(incarnation)
            if process is not None:
                self.tables.tell(process, m.Objects(tuple(rows)))

    def on_objects_lost(self, now: float, source: Address, message: m.ObjectsLost) -> None:
        """The store has no copy left."""
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
                    self.outcomes.wait_again(task, record)
            self.rebuilding.lost(object_id, reason)

    # -- durable values --

    def _kept(self, now: float, about: tuple[bytes, bytes], answer: m.Written) -> None:
        """A durable value is committed, or could not be: the process that put it receives which."""
        incarnation, object_id = about
        process = self.tables.processes.get(incarnation)
        if process is None:
            return
        self.tables.tell(process, m.PutCommitted((object_id,), "" if answer.ok else answer.text))

    def read_durable(self) -> None:
        """Ask the control store for its copies of durable values whose other copies are lost."""
        wanted, self.tables.durable_wanted = self.tables.durable_wanted, []
        for object_id in wanted:
            self.requests.ask(m.Read, "object", (object_id,), then=self.rebuilding.durable_found, about=object_id)

    # -- values whose rows had been lost with a daemon --

    def take_orphans(self, rows: m.Rows) -> list[tuple[ObjectRecord, bool]]:
        """Take out the records of values whose rows had been lost with a daemon, and come again."""
        found = [pair for row in rows for pair in self.tables.orphans.pop(row[0], {}).items()]
        return [(record, lost) for each, lost in found if (record := self.tables.objects.pop(each, None)) is not None]

    def reunite(self, orphan: ObjectRecord, lost: bool, process: ProcessRecord) -> None:
        """A value and its row are together again: a value that exists is not made again, one that does not now is."""
        record = self.tables.find(orphan.object_id)
        if record is None or record.task is None:
            return
        for holder in holders_of(orphan):
            add_holder(record, holder)
        record.pins += orphan.pins
        record.named += orphan.named
        record.fetchers = (record.fetchers or set()) | (orphan.fetchers or set()) or None
        if lost or record.status != PENDING:
            self.tables.inline.replace(orphan, None)
            return
        record.status, record.contained = orphan.status, orphan.contained
        self.tables.inline.replace(record, orphan.value)
        self.tables.inline.replace(orphan, None)
        task = record.task
        if task.state != DONE and all(value.status != PENDING for value in task.values()):
            self.outcomes.adopt(task)
            self.outcomes.report_to(process, task)
