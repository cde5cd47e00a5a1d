"""Results of calls that concern other processes: a ref was passed on early, or refs are inside. Others pass from process to process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zfabric.machines.local_scheduler.channel import TurnOutbox
from zfabric.machines.local_scheduler.due import CONFIRMING
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import WorkerRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address, call_value, node_of_caller
from zfabric.protocol.inside import refs_in
from zfabric.protocol.messages import OK

CONFIRM_DELAY = 0.005
"""Seconds after which outcomes are confirmed together; only an actor that ends waits."""
_ONE_SMALL = (bytes,)


class CallResults:
    """Recorded results of calls."""

    def __init__(self, tables: Tables, requests: PendingRequests, references: References, outcomes: Outcomes, streams: Streams) -> None:
        self.tables = tables
        self.requests = requests
        self.references = references
        self.outcomes = outcomes
        self.streams = streams
        self.relayed: TurnOutbox[tuple[WorkerRecord, m.Row, m.Ids]] = TurnOutbox()
        """Outcomes for callers on other nodes: (worker, row of ``CallOutcomes``, pinned objects: refs inside, and large values)."""
        self.confirm_at: float | None = None
        self._unconfirmed: dict[bytes, list[bytes]] = {}

    def on_expect_results(self, now: float, source: Address, message: m.ExpectResults) -> None:
        """Record results whose refs were passed on before they exist."""
        process = self.tables.processes.get(source[1:])
        self.expect(source, message, process is not None and process.ready)  # While a process registers, only ``Hold`` makes it a holder.

    def expect(self, source: Address, message: m.ExpectResults, holds: bool) -> None:
        """Record promised results; ``holds``: whether the sender has refs to all of them."""
        process = self.tables.processes.get(source[1:])
        for identifier, actor_id, *ahead in message.rows if process is not None else ():
            if ahead:
                self.streams.begin_call(identifier, actor_id, ahead[0])
            found = self.tables.find(identifier)
            if found is None:
                found = self.tables.new_object(identifier)
            if holds:
                found.add_holder(source[1:])
            if found.status == PENDING:
                self.tables.promises.enter(identifier, source[1:], actor_id)

    def on_call_outcomes(self, now: float, source: Address, message: m.CallOutcomes) -> None:
        """Record outcomes that concern others, and send them to callers."""
        process = self.tables.processes.get(source[1:])
        worker = self.tables.workers.get(process.name) if process is not None else None
        if worker is None:
            self.tables.count("refused")
            return
        rows = message.rows
        remote = [row for row in rows if node_of_caller(row[1])]
        if remote:
            for row in remote:
                self._relay(worker, row)
            rows = tuple(row for row in rows if not node_of_caller(row[1])) if len(remote) < len(rows) else ()
            if not rows:
                return
        self.tables.end_due = True
        self.take(worker, rows)
        if self.confirm_at is None:
            self.confirm_at = now + CONFIRM_DELAY
            self.tables.deadlines.note(CONFIRMING, self.confirm_at)
        self._unconfirmed.setdefault(worker.token, []).extend(row[0] for row in rows)

    def tick(self, now: float) -> None:
        """Confirm outcomes once the store has their values: until then, only the actor can report these again."""
        if self.confirm_at is not None and self.confirm_at <= now:
            recorded, self._unconfirmed, self.confirm_at = self._unconfirmed, {}, None
            if self.tables.store.address is None:
                self._confirm(recorded)
            else:
                self.requests.ask_store("nothing", (), then=self._taken_over, about=recorded)

    def _relay(self, worker: WorkerRecord, row: m.Row) -> None:
        """Queue an outcome for another node. What it names is pinned until it is confirmed, as the actor may release it.

        Large values are retained at once: a restarted scheduler sends outcomes later, and drops found values that nobody retains.
        """
        if is_plain_outcome(row) and row[0] not in self.streams.relayed_calls:
            self.relayed.append((worker, row, ()))
            return
        self.tables.end_due = True
        home = node_of_caller(row[1])
        if home in self.tables.nodes:
            row = self.retain_for(home, worker, row)
        pinned = names_of_outcome(row) + tuple(call_value(row[0], index) for index, value in enumerate(row[3]) if type(value) is int)
        self.references.pin(pinned)
        self.relayed.append((worker, row, pinned))

    def retain_for(self, home: bytes, worker: WorkerRecord, row: m.Row) -> m.Row:
        """Retain an outcome's large values for a node. Return the row with their sizes."""
        call_id, caller, status, outputs, contained = row
        if status == OK:
            refs = (contained[index] if index < len(contained) else () for index, _ in enumerate(outputs))
            outputs = tuple(
                self.outcomes.retain_for_home(call_value(call_id, index), home, worker, value, inside)
                for index, (value, inside) in enumerate(zip(outputs, refs, strict=True))
            )
        return call_id, caller, status, outputs, contained

    def take(self, worker: WorkerRecord, rows: m.Rows) -> None:
        """Record and send outcomes of this node's callers."""
        returned: list[m.Row] = []
        for call_id, caller, status, outputs, contained in rows:
            values = tuple(
                self._take_value(
                    worker, caller, call_value(call_id, index), status, value, contained[index] if index < len(contained) else ()
                )
                for index, value in enumerate(outputs)
            )
            if self.streams.any_here:
                self.streams.call_ended(call_id, status, outputs[0] if outputs else b"")
            returned.append((call_id, caller, status, values, ()))
        self.pass_on(returned)

    def pass_on(self, rows: Iterable[m.Row]) -> None:
        """Send outcomes to their callers."""
        by_caller: dict[bytes, list[m.Row]] = {}
        for call_id, caller, status, outputs, _ in rows:
            by_caller.setdefault(caller, []).append((call_id, status, outputs))
        for caller, returned in by_caller.items():
            receiver = self.tables.processes.get(caller)
            if receiver is not None:
                self.tables.send_to_client(receiver, m.Returned(tuple(returned)))

    def _taken_over(self, now: float, about: dict[bytes, list[bytes]], answer: m.Answer) -> None:
        self._confirm(about)

    def _confirm(self, recorded: dict[bytes, list[bytes]]) -> None:
        for token, call_ids in recorded.items():
            worker = self.tables.workers.get(token)
            if worker is not None:
                self.tables.send_to_control(worker, m.OutcomesRecorded(tuple(call_ids)))

    def _take_value(self, worker: WorkerRecord, caller: bytes, identifier: bytes, status: int, value: Any, refs: tuple[bytes, ...]) -> Any:
        """Record a value. Return what the caller receives instead."""
        if status != OK:
            self._retain(caller, identifier, status, value)
            return value
        if type(value) is bytes and not refs:
            return value
        found = self.tables.find(identifier)
        if found is None:
            holder = caller if caller in self.tables.processes else None
            found = self.tables.new_object(identifier, holder)
        elif caller in self.tables.processes:
            found.add_holder(caller)
        if found.is_here:
            self.outcomes.drop_copy(worker, identifier, value)
            return None
        self.tables.promises.settle(identifier)
        self.outcomes.set_value(found, value, refs, worker.process.incarnation if worker.process else b"", False)
        self.outcomes.announce(found)
        if found.holders is None:
            self.references.collect_later(found)
        # The caller would request it soon. But its pin would prevent a spill while room is short.
        is_small = type(value) is tuple and value[1] <= self.tables.config.copied_bytes and self.tables.store.room is None
        if not is_small or caller not in self.tables.processes:
            return None
        self.outcomes.hand_over(found, caller)
        return value

    def _retain(self, caller: bytes, identifier: bytes, status: int, payload: bytes) -> None:
        """Retain refs inside an error until its caller releases the result."""
        if not refs_in(payload) or caller not in self.tables.processes:
            return
        found = self.tables.find(identifier)
        if found is None:
            found = self.tables.new_object(identifier)
        found.add_holder(caller)
        if found.status == PENDING:
            self.tables.promises.settle(identifier)
            self.outcomes.settle_value(found, status, payload)


def is_plain_outcome(row: m.Row) -> bool:
    """Whether an outcome is one small value without refs."""
    return row[2] == OK and not any(row[4]) and tuple(map(type, row[3])) == _ONE_SMALL


def names_of_outcome(row: m.Row) -> m.Ids:
    """Refs inside the values or the error."""
    _, _, status, outputs, contained = row
    return tuple(each for refs in contained for each in refs) if status == OK else refs_in(outputs[0]) if outputs else ()
