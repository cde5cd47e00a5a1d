"""Actors on other nodes that processes here call: this node stands for the actors (decision 0034).

The home, which is that of the handle, reports every change of location; for a weak handle all nodes are asked. A guest on this node is
called directly.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.actor_records import RemoteActorRecord
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.barrier import NODES
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.receipts import Receipts
from zfabric.machines.local_scheduler.nodes.remote_callers import RemoteCallers, names_of
from zfabric.machines.local_scheduler.objects.call_results import CallResults, is_plain_outcome, names_of_outcome
from zfabric.machines.local_scheduler.records import NO_HOME, NodeRecord, ProcessRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.transitions import CallerExited, CallerNotified
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import CLIENT, FIRST_RETURN, JOB_BYTES, Address, call_value, daemons_of, short
from zfabric.protocol.machine import Refusal
from zfabric.protocol.messages import ALIVE, CREATING, DEAD, FAILED, OK
from zfabric.protocol.messages.rows import DEPENDENCIES, VALUES


class RemoteActors:
    """Finds actors, relays calls, and passes on outcomes."""

    def __init__(
        self,
        tables: Tables,
        actors: ActorDirectory,
        call_results: CallResults,
        borrowing: Borrowing,
        callers: RemoteCallers,
        receipts: Receipts,
        node: bytes,
    ) -> None:
        self.tables = tables
        self.actors = actors
        self.call_results = call_results
        self.borrowing = borrowing
        self.callers = callers
        self.receipts = receipts
        self.node = node
        self.records = tables.remote_actors
        self._repeating: set[tuple[bytes, bytes]] = set()
        """(process, actor) whose calls ahead of ``CallsRepeated`` are void."""
        self.later: list[tuple[bytes, bytes]] = []
        """Requests, (actor, process), that wait until all nodes have registered."""
        self.kills: list[tuple[Address, m.KillActor]] = []
        """Requests to end actors that are unknown so far, or may return; the caller asks for the location in the same turn."""

    # -- where they are --

    def on_find_actors(self, now: float, source: Address, message: m.FindActors) -> None:
        """Notify a process of locations, now and on every change."""
        process = self.tables.processes.get(source[1:])
        is_of_node = source[1:] in self.tables.nodes and not self.tables.barrier.awaits(NODES)
        if not self.tables.cluster.rows or process is None or is_of_node:
            self.actors.on_find_actors(now, source, message)
            return
        here = tuple(each for each in message.actor_ids if each in self.tables.actors)
        if here:
            self.actors.on_find_actors(now, source, m.FindActors(here))
        for actor_id in message.actor_ids:
            if actor_id not in self.tables.actors:
                self.later.append((actor_id, process.incarnation))

    def end_of_turn(self) -> None:
        """Find the requested actors, once homes are known."""
        if self.tables.barrier.awaits(NODES):
            return
        later, self.later = self.later, []
        for actor_id, incarnation in later:
            process = self.tables.processes.get(incarnation)
            if process is not None and (actor_id in self.tables.actors or incarnation in self.tables.nodes):
                self.actors.on_find_actors(0.0, CLIENT + incarnation, m.FindActors((actor_id,)))
            elif process is not None:
                self._find(actor_id, process)
        kills, self.kills = self.kills, []
        for source, message in kills:
            self._kill_or_wait(source, message, True)

    def repeat(self, node: bytes) -> None:
        """Repeat what concerns a node's actors. Calls under way are lost, and repeated."""
        for record in self.records.values():
            if node == record.home or node in record.asked:
                self.tables.send_to_node(node, m.FindActors((record.id,)))
                if record.killed is not None:
                    self.tables.send_to_node(node, record.killed)
            if node == record.node:
                self._have_repeated(record.id, record.watchers)
        for actor in self.tables.actors.values():
            if actor.worker is None or actor.worker.token != node:
                continue
            if actor.ending is not None:
                self.tables.send_to_node(node, actor.ending)
            if actor.state == ALIVE:
                self._have_repeated(actor.id, actor.watchers)

    def _have_repeated(self, actor_id: bytes, watchers: set[bytes]) -> None:
        for incarnation in sorted(watchers - self.tables.nodes.keys()):
            process = self.tables.processes.get(incarnation)
            if process is not None:
                self._repeating.add((incarnation, actor_id))
                self.tables.send_to_client(process, m.RepeatCalls(actor_id))

    def _find(self, actor_id: bytes, process: ProcessRecord) -> None:
        record = self.records.get(actor_id)
        if record is None:
            handle, guest = self.tables.find(actor_id + FIRST_RETURN), self.tables.guests.get(actor_id)
            home = handle.home if handle is not None and handle.home != NO_HOME else b""
            home = home or (guest.home if guest is not None else b"")
            if not home and not self.tables.nodes:  # There is nobody to ask.
                self.actors.on_find_actors(0.0, CLIENT + process.incarnation, m.FindActors((actor_id,)))
                return
            record = self.records[actor_id] = RemoteActorRecord(actor_id, home)
            record.watchers.add(process.incarnation)
            if record.home and record.home not in self.tables.nodes:
                self._lost(record)
                return
            record.asked = {record.home} if record.home else set(self.tables.nodes)
            for node in sorted(record.asked):
                self.tables.send_to_node(node, m.FindActors((actor_id,)))
        record.watchers.add(process.incarnation)
        if record.row:
            self._notify(record, process)

    def on_actor_locations(self, now: float, source: Address, message: m.ActorLocations) -> None:
        """Accept a home's report on an actor, or that a node lacks it."""
        if any(row[1] not in (CREATING, ALIVE, DEAD) or (row[1] == ALIVE) != bool(row[2]) for row in message.rows):
            raise Refusal
        for row in message.rows:
            record = self.records.get(row[0])
            if record is None or (record.home and record.home != source[1:]):
                continue
            record.asked.discard(source[1:])
            is_unknown = row[1] == DEAD and not row[3]
            if not is_unknown:
                record.home = source[1:]
                record.asked.clear()
            if not record.asked:
                self._moved(record, row)

    def _moved(self, record: RemoteActorRecord, row: m.Row) -> None:
        actor_id, state, node, attempt, _, executing, failure = row
        was_here = record.node == self.node
        if record.attempt not in (0, attempt):  # 0: the first report.
            record.killed = None
        record.state, record.node, record.attempt, record.failure = state, node, attempt, failure
        place = self.tables.address[1:] if state == ALIVE else b""
        if node == self.node:
            guest = self.tables.guests.get(actor_id)
            process = guest.worker.process if guest is not None and guest.task.attempt == attempt else None
            if process is None:  # It has ended, which its home has yet to report.
                record.state, record.node = CREATING, b""
            place = process.incarnation if process is not None else b""
        # The caller's link is to this daemon, and outlasts every change.
        record.row = (actor_id, record.state, place, attempt, not was_here, executing, failure)
        for incarnation in sorted(record.watchers):
            process = self.tables.processes.get(incarnation)
            if process is not None:
                self._notify(record, process)
        if state == DEAD:
            self.records.pop(record.id, None)

    def _notify(self, record: RemoteActorRecord, process: ProcessRecord) -> None:
        if record.state == ALIVE:
            self.on_caller_notified(CallerNotified(record.id))
        self.tables.send_to_client(process, m.ActorLocations((record.row,)))

    def on_caller_notified(self, notified: CallerNotified) -> None:
        """After this daemon's restart calls come again: notify their streams."""
        if daemons_of(self.tables.first_attempt):
            self.call_results.streams.found_actor(notified.actor_id)

    def on_calls_repeated(self, now: float, source: Address, message: m.CallsRepeated) -> None:
        """Accept calls again: all of the actor's follow."""
        self._repeating.discard((source[1:], message.actor_id))

    def _lost(self, record: RemoteActorRecord) -> None:
        text = f"actor {short(record.id)} is dead: its home, the node where it was made, was drained or has died"
        self._moved(record, (record.id, DEAD, b"", record.attempt, True, b"", pack_failure("ActorDiedError", text)))

    # -- what callers send --

    def on_call(self, now: float, source: Address, message: m.Call) -> None:
        """Relay calls. Those of an ended life are dropped: the caller is notified of its end."""
        tables = self.tables
        process, place = tables.processes.get(source[1:]), self._place_of(message.actor_id, message.attempt)
        if process is None or not place or (source[1:], message.actor_id) in self._repeating:
            return
        rows = message.rows
        homes: m.Rows = ()
        if max(map(len, rows), default=0) > 3:
            tables.end_due = True
            rows = self._ready_to_travel(process, message)
            homes = tables.homes_of(each for row in rows for each in names_of(row))
        if rows:
            tables.send_to_node(place, m.RelayedCalls(message.actor_id, message.attempt, rows, process.incarnation, homes))

    def _ready_to_travel(self, process: ProcessRecord, message: m.Call) -> m.Rows:
        may = self.actors.references.may_travel
        rows: list[m.Row] = []
        for row in message.rows:
            if len(row) > 3 and not all(may(each) for each in names_of(row) if not self._is_private(row, each)):
                name = f"{row[1]} of actor {short(message.actor_id)}"
                text = f"{name} did not run: the actor is on another node, and the home of a ref in the arguments is not known (any more)"
                failure = pack_failure("ActorUnavailableError", text, (("actor", message.actor_id.hex()), ("outcome", "not run")))
                self.tables.send_to_client(process, m.Returned(((row[0], FAILED, (failure,)),)))
            else:
                rows.append(self._without_refs(row))
        return tuple(rows)

    def _is_private(self, row: m.Row, object_id: bytes) -> bool:
        """Whether a result is only the caller's: the row has the value."""
        names = row[DEPENDENCIES]
        return object_id in names and row[VALUES][names.index(object_id)] is not None and self.tables.find(object_id) is None

    def _without_refs(self, row: m.Row) -> m.Row:
        """A call without values that may contain refs: the actor's node fetches these, with homes."""
        if len(row) == 3 or not row[DEPENDENCIES]:
            return row
        found = [self.tables.find(each) for each in row[DEPENDENCIES]]
        plain = [record is None or (record.status == OK and not record.contained) for record in found]
        if all(plain):
            return row
        values = tuple(value if keep else None for value, keep in zip(row[VALUES], plain, strict=True))
        return (*row[:VALUES], values, *row[VALUES + 1 :])

    def _place_of(self, actor_id: bytes, attempt: int | None = None) -> bytes:
        """The other node where it lives; empty if none, or if ``attempt`` is another life."""
        record, actor = self.records.get(actor_id), self.tables.actors.get(actor_id)
        if record is not None:
            lives, life, place = record.state == ALIVE, record.attempt, record.node
        elif actor is not None and actor.worker is not None and actor.worker.remote:
            lives, life, place = actor.state == ALIVE, actor.task.attempt, actor.worker.token
        else:
            return b""
        return place if lives and attempt in (None, life) and place in self.tables.nodes else b""

    def on_outcomes_received(self, now: float, source: Address, message: m.OutcomesReceived) -> None:
        """Relay which outcomes a caller has received."""
        place = self._place_of(message.actor_id)
        if place and source[1:] in self.tables.processes:
            self.tables.send_to_node(place, m.RelayedReceipt(*message, source[1:]))

    def on_stop_relayed(self, now: float, source: Address, message: m.StopRelayed) -> None:
        """Stop a call: of a process here, or of another node's process here."""
        place = self._place_of(message.actor_id)
        if source[1:] in self.tables.nodes:
            self.callers.stop(source, message)
        elif place:
            self.tables.send_to_node(place, message)

    def on_kill_actor(self, now: float, source: Address, message: m.KillActor) -> None:
        """Handle ``zf.kill`` at the actor's home, or once the home is known."""
        self._kill_or_wait(source, message, message.actor_id in self.records or message.actor_id in self.tables.actors)

    def _kill_or_wait(self, source: Address, message: m.KillActor, is_known: bool) -> None:
        actor = self.tables.actors.get(message.actor_id)
        if is_known and not (actor is not None and actor.returning):
            self._kill(source, message)
        else:
            self.kills.append((source, message))

    def _kill(self, source: Address, message: m.KillActor) -> None:
        record = self.records.get(message.actor_id)
        if record is None or source[1:] in self.tables.nodes:
            self.actors.on_kill_actor(0.0, source, message)
            return
        record.killed = message
        for node in (record.home,) if record.home else sorted(record.asked):
            self.tables.send_to_node(node, message)

    # -- what comes back --

    def on_calls_ended(self, now: float, source: Address, message: m.CallsEnded) -> None:
        """Accept outcomes of calls from processes here."""
        node = self.tables.nodes.get(source[1:])
        if node is None:
            self.tables.count("refused")
            return
        rows = message.rows
        if all(map(is_plain_outcome, rows)) and all(map(self._is_wanted, rows)) and not self.call_results.streams.any_here:
            self.call_results.pass_on(rows)
        else:
            self.tables.end_due = True
            rows = self._take_in(node, message)
        for row in rows:
            self.receipts.sent(node, row[1], message.number)
        self.receipts.accepted(node, message.number, now)

    def _take_in(self, node: NodeRecord, message: m.CallsEnded) -> m.Rows:
        """Record outcomes that concern others, too. Return the wanted ones."""
        rows = tuple(row for row in message.rows if self._is_wanted(row))
        for call_id, _, _, outputs, _ in (row for row in message.rows if row not in rows):
            for index, value in enumerate(outputs):
                self.call_results.outcomes.drop_copy(node, call_value(call_id, index), value)
        named = [each for row in rows for each in names_of_outcome(row)]
        self.borrowing.refer(named, message.homes, node.token)
        self.call_results.take(node, rows)
        self.borrowing.settle(named)
        return rows

    def _is_wanted(self, row: m.Row) -> bool:
        job = self.tables.jobs.get(row[0][:JOB_BYTES])
        return job is not None and not job.ended

    # -- ends --

    def on_caller_exited(self, exited: CallerExited) -> None:
        """Notify the nodes of the actors that it has called."""
        incarnation = exited.incarnation
        self.receipts.caller_exited(incarnation)
        self._repeating = {each for each in self._repeating if each[0] != incarnation}
        called = {record.node for record in self.records.values() if incarnation in record.watchers and record.node}
        for record in self.records.values():
            guest = self.tables.guests.get(record.id)
            if incarnation in record.watchers and guest is not None:
                self.tables.send_to_control(guest.worker, m.CallerGone(incarnation))
            record.watchers.discard(incarnation)
        for node in sorted(called & self.tables.nodes.keys()):
            self.tables.send_to_node(node, m.CallerGone(incarnation))

    def node_died(self, node: bytes) -> None:
        """Declare actors dead whose home has died."""
        for record in list(self.records.values()):
            record.asked.discard(node)
            if record.home == node or not (record.home or record.asked):
                self._lost(record)
