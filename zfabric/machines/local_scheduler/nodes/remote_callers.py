"""Calls from other nodes to actors here: to the actors, this node stands for the callers (decision 0034).

An outcome passes through here (``CallOutcomes``), and the actor retains it until the caller has received it. Objects in the arguments are
pinned until the outcome is sent, behind all holds (``Ledger.holds``): so the actor's hold is registered before the caller drops a ref.
"""

from __future__ import annotations

from collections import defaultdict

from zfabric.machines.local_scheduler.actor_records import ActorRecord, GuestRecord
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.barrier import NODES
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.executions import Executions
from zfabric.machines.local_scheduler.objects.call_results import CallResults, names_of_outcome
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import RelayedStream, WorkerRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.transitions import ActorLifeEnded, CallsEndReceived
from zfabric.protocol import messages as m
from zfabric.protocol.ids import ACTOR, INCARNATION_BYTES, JOB_BYTES, WORKER, Address, call_value, daemons_of, node_of_caller, remote_caller
from zfabric.protocol.messages.rows import CALL_OPTIONS, DEPENDENCIES
from zfabric.protocol.options import option


class RemoteCallers:
    """Passes calls to actors here, and outcomes back."""

    def __init__(
        self,
        tables: Tables,
        references: References,
        outcomes: Outcomes,
        streams: Streams,
        call_results: CallResults,
        actors: ActorDirectory,
        borrowing: Borrowing,
        executions: Executions,
    ) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.streams = streams
        self.call_results = call_results
        self.actors = actors
        self.borrowing = borrowing
        self.executions = executions
        self._pinned: dict[bytes, tuple[bytes, m.Ids]] = {}
        """Pinned objects of open calls, (actor, objects) by call."""
        self._callers: defaultdict[bytes, set[bytes]] = defaultdict(set)
        """Callers with retained outcomes, by node."""

    # -- calls arrive --

    def on_relayed_calls(self, now: float, source: Address, message: m.RelayedCalls) -> None:
        """Pass calls on. Those of an ended life are dropped: the caller is notified of its end."""
        actor = self._actor_of(source, message.actor_id)
        worker = actor.worker if actor is not None else None
        if actor is None or worker is None or worker.process is None or actor.task.attempt != message.attempt:
            return
        node = source[1:]
        for row in message.rows:
            if len(row) == 3:
                continue
            self.tables.end_due = True
            named = names_of(row)
            if named and row[0] not in self._pinned and not self._is_reported(row[0]):
                self.borrowing.refer(named, message.homes, node)
                self.references.pin(named)
                self._pinned[row[0]] = message.actor_id, named
            ahead = option(row[CALL_OPTIONS], "stream")
            if ahead is not None and row[0] not in self.streams.relayed_calls and not self._is_reported(row[0]):
                self.streams.begin_relayed(row[0], RelayedStream(node, message.actor_id, ahead))
                if daemons_of(self.tables.first_attempt):  # It may have begun: the caller's node finds out what is missing.
                    self.streams.relay_dropped(node, row[0])
        caller = remote_caller(message.caller, node)
        self._callers[node].add(caller)
        relayed = m.RelayedCalls(message.actor_id, message.attempt, message.rows, caller, ())
        self.tables.send(ACTOR + worker.process.incarnation, relayed)

    def expect(self, caller: bytes) -> None:
        """Expect the end of a caller with retained outcomes."""
        self._callers[node_of_caller(caller)].add(caller)

    def _is_reported(self, call_id: bytes) -> bool:
        retained = (calls for node in self.tables.nodes.values() for *_, calls in node.ends.retained)
        return any(call_id in each for calls in retained for each in calls.values())

    def on_relayed_receipt(self, now: float, source: Address, message: m.RelayedReceipt) -> None:
        """Pass on a caller's receipt."""
        worker = self._worker_of(source, message.actor_id)
        if worker is not None and worker.process is not None:
            caller = remote_caller(message.caller, source[1:])
            self.tables.send(ACTOR + worker.process.incarnation, message._replace(caller=caller))

    def stop(self, source: Address, message: m.StopRelayed) -> None:
        """Stop a call of an actor here."""
        worker = self._worker_of(source, message.actor_id)
        if worker is not None:
            self.tables.send_to_control(worker, m.StopCall(message.call_id, message.reason))

    def _worker_of(self, source: Address, actor_id: bytes) -> WorkerRecord | None:
        actor = self._actor_of(source, actor_id)
        return actor.worker if actor is not None else None

    def _actor_of(self, source: Address, actor_id: bytes) -> GuestRecord | ActorRecord | None:
        """An actor here, if the sender is a known node."""
        if source[1:] not in self.tables.nodes:
            self.tables.count("refused")
            return None
        actor = self.tables.guests.get(actor_id) or self.tables.actors.get(actor_id)
        return actor if actor is not None and actor.worker is not None and not actor.worker.remote else None

    # -- outcomes leave --

    def end_of_turn(self) -> None:
        """Send outcomes, and what goes behind them."""
        if self.tables.barrier.awaits(NODES):
            return  # Callers' nodes have yet to register after a restart.
        ended = self.call_results.relayed.take()
        if len(ended) == 1:
            self._send_ends(ended[0][1][1], ended)
        else:
            by_caller: dict[bytes, list[tuple[WorkerRecord, m.Row, m.Ids]]] = {}
            for each in ended:
                by_caller.setdefault(each[1][1], []).append(each)
            for remote, reports in by_caller.items():
                self._send_ends(remote, reports)
        for token, message in self.actors.behind_ends.take():
            if token in self.tables.nodes:
                self.tables.ledger.holds.send(token, message)

    def _send_ends(self, remote: bytes, reports: list[tuple[WorkerRecord, m.Row, m.Ids]]) -> None:
        token = node_of_caller(remote)
        node = self.tables.nodes.get(token)
        rows: list[m.Row] = []
        held: list[bytes] = []
        reporters: dict[bytes, list[bytes]] = {}
        for worker, row, pinned in reports:
            call_id, caller, status, outputs, contained = row
            self._ended(call_id)
            job = self.tables.jobs.get(call_id[:JOB_BYTES])
            is_unknown = tuple in map(type, outputs)  # No such node was known on arrival.
            if node is None or is_unknown or (job is not None and job.ended):
                self.tables.end_due = True
                self._drop(worker, token, call_id, outputs)
                self.references.unpin(pinned)
                continue
            held += pinned
            rows.append((call_id, caller[:INCARNATION_BYTES], status, outputs, contained))
            reporters.setdefault(worker.token, []).append(call_id)
        if rows and node is not None:
            named = [each for row in rows for each in names_of_outcome(row)] if held else []
            homes = self.tables.homes_of(named) if named else ()
            message = m.CallsEnded(node.ends.next, tuple(rows), homes)
            self.executions.report(node, message, named, held, reporters)

    def _ended(self, call_id: bytes) -> None:
        if call_id in self._pinned:
            self.tables.end_due = True
            self.references.unpin(self._pinned.pop(call_id)[1])
        self.streams.relayed_ended(call_id)

    def _drop(self, worker: WorkerRecord, node: bytes, call_id: bytes, outputs: m.Row) -> None:
        for index, value in enumerate(outputs):
            self.outcomes.drop_copy(worker, call_value(call_id, index), value)
        self.references.release([call_value(call_id, index) for index, _ in enumerate(outputs)], node)
        self._confirm(worker, (call_id,))

    def on_end_received(self, received: CallsEndReceived) -> None:
        """Confirm outcomes to their actors: the callers have them, or are dead."""
        for token, calls in received.calls.items():
            worker = self.tables.workers.get(token)
            if worker is not None:
                self._confirm(worker, tuple(calls))

    def _confirm(self, worker: WorkerRecord, call_ids: m.Ids) -> None:
        """Have a worker release outcomes, in order with repeated calls and so not by its control thread."""
        if worker.process is not None:
            self.tables.send(WORKER + worker.process.incarnation, m.OutcomesRecorded(call_ids))

    # -- ends --

    def on_life_ended(self, ended: ActorLifeEnded) -> None:
        """Unpin the arguments of an ended life's calls: callers repeat or fail them."""
        for call_id in [each for each, (actor_id, _) in self._pinned.items() if actor_id == ended.actor_id]:
            self.references.unpin(self._pinned.pop(call_id)[1])
        self.streams.end_relayed(actor=ended.actor_id)

    def on_caller_gone(self, now: float, source: Address, message: m.CallerGone) -> None:
        """Notify actors of a caller's exit."""
        caller = remote_caller(message.incarnation, source[1:])
        self._callers[source[1:]].discard(caller)
        self._notify(caller)

    def node_died(self, node: bytes) -> None:
        """Notify actors of the end of its callers."""
        for caller in sorted(self._callers.pop(node, ())):
            self._notify(caller)
        self.streams.end_relayed(home=node)

    def _notify(self, caller: bytes) -> None:
        for worker in self.tables.workers.values():
            if worker.actors:
                self.tables.send_to_control(worker, m.CallerGone(caller))


def names_of(row: m.Row) -> m.Ids:
    """Dependencies, and refs inside the arguments."""
    if len(row) == 3:
        return ()
    dependencies: m.Ids = row[DEPENDENCIES]
    return dependencies + tuple(option(row[CALL_OPTIONS], "contains", ()))
