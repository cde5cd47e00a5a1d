"""Rebuilding lost values: their tasks run again, after the tasks of lost inputs (paper, section 4.2.3).

A value without a task is read from the control store if it is durable, made again by its logged actor, or fails with the reason.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.barrier import NODES
from zfabric.machines.local_scheduler.channel import TurnOutbox
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere, Stored, copies_of
from zfabric.machines.local_scheduler.records import DONE, FORMER, AnyObject, ObjectRecord, TaskRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.transitions import RemakeWanted, StreamWanted
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import TASK_BYTES, index_of, is_call, is_put, short
from zfabric.protocol.messages import FAILED, OK

NOT_KEPT = ", not made by a task: nothing can make it again (put(x, durable=True) would have kept it)"

NO_COPY = "no copy of it is left"
"""Why a value is rebuilt: it was dropped for room, or its node died."""


class Rebuilding:
    """Rebuilds lost values."""

    def __init__(self, tables: Tables, references: References, outcomes: Outcomes) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.durable_wanted: TurnOutbox[tuple[bytes, str]] = TurnOutbox()
        """Durable values to read from the head, and why."""

    def rebuild(self, record: AnyObject, reason: str) -> str:
        """Run a lost value's task again, after its inputs' tasks, without recursion: chains are long. Return why that is impossible, or
        empty.
        """
        agenda = [record]
        begun: set[TaskRecord] = set()  # Their lost inputs are above them on the agenda.
        while agenda:
            wanted = agenda[-1]
            task = wanted.task
            found = wanted is not record and not wanted.is_lost
            if found or (task is None and self._begin_without_task(wanted, reason)) or (task is not None and task.state != DONE):
                agenda.pop()
                continue
            if wanted.home:  # Its home has it, or decides what follows.
                self.make_available(wanted, reason)
                agenda.pop()
                continue
            if task is None and is_call(wanted.object_id):
                return f"{reason}, and it was returned by an actor: only a logged actor (checkpoint_every) makes a result again"
            if task is None and not is_put(wanted.object_id):
                return f"{reason}, and {self._why_not_yielded(wanted)}"
            if task is None:
                return f"{reason}, and it was put{NOT_KEPT}"
            if self.tables.runs_once(task):
                return f"{reason}, and max_retries=0 forbids that its task, {task.name}, runs again"
            inputs: list[AnyObject] = []
            for object_id_ in task.row[3]:
                needed = self.tables.find(object_id_)
                if needed is None and is_put(object_id_):
                    return f"{reason}, and its input {short(object_id_)}, which was put, was freed with its last ref"
                if needed is None:
                    gone = f"its input {short(object_id_)} is not retained any more"
                    return f"{reason}, and {gone} (what an actor or a task with max_retries=0 yields is not; a row goes at the lineage cap)"
                inputs.append(needed)
            missing = [needed for needed in inputs if needed.is_lost and (needed.task is None or needed.task.state == DONE)]
            if missing:
                begun.add(task)
                if any(needed.task in begun for needed in missing):  # Only rows from another node can form a circle.
                    return f"{reason}, and the task that makes it needs a value that is made of it"
                agenda.extend(reversed(missing))
            else:
                agenda.pop()
                self._run_again(task, inputs)
        return ""

    def _begin_without_task(self, record: AnyObject, reason: str) -> bool:
        return self._read(record, reason) or self._remake(record, reason) or self._yield_again(record, reason)

    def _read(self, record: AnyObject, reason: str) -> bool:
        """Request a durable value's copy. False if there is none."""
        if isinstance(record, TaskRecord) or not record.durable:
            return False
        record.expect(self.tables.inline)
        self.durable_wanted.append((record.object_id, reason))
        return True

    def _remake(self, record: AnyObject, reason: str) -> bool:
        """Request a replay of an actor's calls. False if no log has the value."""
        if self.tables.maker_of(record.object_id) is None:
            return False
        record.expect(self.tables.inline)
        self.tables.report(RemakeWanted(record, reason))
        return True

    def _run_again(self, task: TaskRecord, inputs: list[AnyObject]) -> None:
        self.references.revive(task)
        self.tables.forget_failure(task)
        unresolved = 0
        for needed in inputs:
            needed.pin()
            self.tables.ledger.hold(needed)
            if needed.status == PENDING:
                unresolved += 1
                self.tables.transfers.want(needed)
                needed.add_dependent(task)
        self.references.pin(task.contains())
        for value in task.values():
            if not value.is_here:
                value.expect(self.tables.inline)
        self.outcomes.renumber(task)
        task.facts().rebuilt = True
        if self.tables.barrier.awaits(NODES):  # Another node may have the value, and is yet to register.
            self.tables.unsettled[task] = None
            unresolved += 1
        self.tables.count("rebuilds")
        if unresolved:
            task.wait(unresolved)
        else:
            self.outcomes.make_ready(task)

    def lost(self, identifier: bytes, reason: str) -> None:
        """Handle a value without a copy in the store, or (``full:``) without room."""
        askers = self.tables.store.take_waiting(identifier)
        record = self.tables.find(identifier)
        if record is None or type(record.value) is not Stored:
            return
        if reason.startswith("full:"):
            text = f"object {short(identifier)} cannot be brought back from disk: {reason[5:].strip()}"
            payload = pack_failure("ObjectStoreFullError", text)
            for incarnation in askers:
                if incarnation in self.tables.nodes:
                    self.tables.send_to_node(incarnation, m.FetchedValues(((identifier, FAILED, payload, ()),), ()))
                    continue
                process = self.tables.processes.get(incarnation)
                if process is not None:
                    self.tables.send_to_client(process, m.Objects(((identifier, FAILED, payload, ()),)))
            return
        if askers:
            record.add_fetchers(*askers)
        if not record.home and self._take_copy(record):
            return
        if not record.home:
            record.lose(self.tables.inline)
        else:
            record.drop_copy(self.tables.inline)
            if record.home in record.all_holders:  # It was all that the home had.
                record.drop_holder(record.home)
                self.tables.send_to_node(record.home, m.CopyLost(identifier, reason))
        if record.task is not None and record.task.state != DONE:
            return
        if reason == "evicted" and not record.fetchers and not record.dependents:
            return  # Memory is short: it is rebuilt only on request.
        if record.holders is None and record.pins <= 0 and not record.fetchers:
            return
        self.make_available(record, reason)

    def copy_lost(self, record: AnyObject, reason: str) -> None:
        """Handle the loss of a value at another node; it is rebuilt if something waits."""
        if self._take_copy(record):
            return
        self.tables.transfers.unwanted.append(record.object_id)  # The rebuilt value may differ.
        record.lose(self.tables.inline)
        stream = self.tables.streams.get(record.object_id[:TASK_BYTES])
        if record.fetchers or record.dependents or (stream is not None and not stream.closed):
            self.make_available(record, reason)

    def _take_copy(self, record: AnyObject) -> bool:
        """Have another node retain its copy. False if none has one."""
        value = record.value
        assert isinstance(value, Stored | Elsewhere)
        lost_at = value.place if isinstance(value, Elsewhere) else b""
        copies = [each for each in copies_of(value) if each in self.tables.nodes and each != lost_at]
        if not copies:
            return False
        place = copies.pop(0)
        found = Elsewhere(value.size, place)
        found.copies = tuple(copies)
        record.arrive(found, self.tables.inline)
        self.tables.send_to_node(place, m.ClaimValues(((record.object_id, record.contained),), self.tables.homes_of(record.contained)))
        if record.fetchers or record.dependents:
            self.tables.transfers.want(record)
        return True

    def durable_found(self, now: float, about: tuple[bytes, str], answer: m.Found) -> None:
        """Enter a durable value's copy, or fail the value."""
        identifier, reason = about
        record = self.tables.find(identifier)
        if record is None or record.status != PENDING:  # It was freed, or put again.
            return
        for key, value in answer.rows:
            if key == identifier:
                record.arrive(value, self.tables.inline)
        if record.status != OK:
            kind, text = "ObjectLostError", f"is lost: {reason}, and it was put{NOT_KEPT}"
            if isinstance(record, ObjectRecord) and record.durable == FORMER:
                kind, text = "ObjectFreedError", "is not known here: its job has ended, or it was not put as durable"
            elif isinstance(record, ObjectRecord):
                record.forget_durable()
            record.fail(FAILED, pack_failure(kind, f"object {short(identifier)} {text}"), self.tables.inline)
        self.outcomes.announce(record)
        if record.holders is None:
            self.references.collect_later(record)

    def _yield_again(self, record: AnyObject, reason: str) -> bool:
        """Have a stream yield a value again. False if it cannot.

        By a transition and not by recursion: inputs of the task may be yielded, too.
        """
        stream = self.tables.streams.get(record.object_id[:TASK_BYTES])
        if stream is None or isinstance(record, TaskRecord) or not isinstance(stream.owner, TaskRecord):
            return False
        if self._why_not_yielded(record):
            return False
        record.expect(self.tables.inline)
        stream.pending[index_of(record.object_id) - 1] = record
        self.tables.report(StreamWanted(stream, reason))
        return True

    def _why_not_yielded(self, record: AnyObject) -> str:
        task = self.tables.makes(record)
        if task is None and index_of(record.object_id):
            return "no task is left that makes it: an actor's stream yielded it, or its task's row went at the lineage cap"
        if task is None:
            return "nothing is left here of the task that makes it"
        if self.tables.runs_once(task):
            return f"max_retries=0 forbids that its task, {task.name}, runs again"
        return f"its task, {task.name}, was stopped" if task.rare is not None and task.rare.stopped else ""

    def make_available(self, record: AnyObject, reason: str = NO_COPY) -> None:
        """Rebuild a value, or record why not."""
        if record.home:  # Its home has the value, or decides what follows.
            record.expect(self.tables.inline)
            self.tables.transfers.want(record)
            return
        if self._read(record, reason):
            return
        why = self.rebuild(record, reason)
        if why:
            kind = "LineageEvictedError" if "lineage cap" in why else "ObjectLostError"
            record.fail(FAILED, pack_failure(kind, f"object {short(record.object_id)} is lost: {why}"), self.tables.inline)
            self.tables.note_failure(record)
            self.outcomes.announce(record)

    def hold_back(self, task: TaskRecord, here: bool) -> bool:
        """Have a task wait for inputs lost since it became ready, or fail. False if none are missing.

        To run ``here``, it also waits for inputs on other nodes.
        """
        inputs: list[AnyObject] = []
        for object_id in dict.fromkeys(task.row[3]):
            record = self.tables.find(object_id)
            if record is None:
                self.outcomes.fail(task, "LineageEvictedError", f"its argument {short(object_id)} is not known any more", ())
                return True
            if record.status not in (OK, PENDING):  # It could not be rebuilt.
                self.outcomes.end_with(task, record.status, record.value if type(record.value) is bytes else b"")
                return True
            inputs.append(record)
        absent = [each for each in inputs if each.value is None or (here and isinstance(each.value, Elsewhere))]
        if not absent:
            return False
        self.outcomes.wait_again(task, absent)
        for record in absent:
            if record.is_lost:
                self.make_available(record)
            else:
                self.tables.transfers.want(record)
        return True
