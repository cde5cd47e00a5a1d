"""The caller's side of actors: pending calls, in order, and their fate when the actor's process ends.

A call goes to the actor's process over a link that keeps the order, once per incarnation. Before, it may wait for the location, for
arguments, and, with refs or as a stream, for the scheduler to have recorded these. A call that waits for arguments delays later calls of
the same task and concurrency group, unless its actor runs several calls at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from zfabric.config import ROWS_MAX
from zfabric.machines.client.objects import PENDING, ObjectEntry, ObjectTable, Place
from zfabric.machines.client.outbox import Outbox
from zfabric.machines.client.queries import Queries
from zfabric.machines.client.references import ReceivedReferences, RetainedObjects
from zfabric.machines.client.reservations import Arguments
from zfabric.machines.client.shared_results import SharedResults
from zfabric.machines.client.targets import ASKED, RECORDED, UNASKED, PendingCalls, Target
from zfabric.machines.client.unread import UnreadFailures
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.failures import Facts, has_left, pack_failure, unpack_failure
from zfabric.protocol.ids import (
    ACTOR,
    CALL_RETURN,
    CONTROL,
    LOCAL_SCHEDULER,
    PREFIX_BYTES,
    TASK_BYTES,
    Address,
    call_value,
    control_of,
    short,
)
from zfabric.protocol.inside import refs_in
from zfabric.protocol.messages import ALIVE, CREATING, DEAD, FAILED, OK, Row
from zfabric.protocol.messages.rows import CALL_OPTIONS, DEPENDENCIES, METHOD, VALUES
from zfabric.protocol.names import brief
from zfabric.protocol.options import LOGGED, option
from zfabric.protocol.pieces import within_row

ACKNOWLEDGE_EVERY = 64
"""Outcomes of a logged actor acknowledged together: it retains about as many per caller."""
UNKNOWN, NOT_RUN = "unknown", "not run"
"""Whether a failed call may have run."""


class Calls:
    """All calls of this process."""

    def __init__(
        self,
        objects: ObjectTable,
        outbox: Outbox,
        queries: Queries,
        pending: PendingCalls,
        results: SharedResults,
        references: ReceivedReferences,
        retained: RetainedObjects,
        unread: UnreadFailures,
        row_bytes: int,
        place_of: Callable[[bytes], Place | None],
        arguments: Arguments,
    ) -> None:
        self.targets: dict[bytes, Target] = {}
        self.pending = pending.targets
        """Actor of each call without an outcome."""
        self.results = results
        self._objects = objects
        self._entries = objects.entries
        self._outbox = outbox
        self._queries = queries
        self._records = pending
        self._extras = pending.extras
        self._references = references
        self._retained = retained
        self._unread = unread
        self._row_bytes = row_bytes
        """Most bytes of dependencies in a row."""
        self._place_of = place_of
        """From where the actor may copy an object, if known."""
        self._arguments = arguments
        self.gone: list[bytes] = []
        """Incarnations without living actors: the shell closes its links."""
        self._locations: dict[bytes, tuple[bytes, int]] = {}
        """(incarnation, attempt) by actor, with an open link."""
        self.blocked: dict[Target, None] = {}
        """Actors with a first call that waits for arguments."""
        self.awaited: dict[bytes, dict[bytes, None]] = {}
        """Parked calls, by the task or call that makes the argument."""
        self.news: list[bytes] = []
        """Keys of ``awaited`` that have ended, for ``progress``."""
        self.delayed: dict[Target, None] = {}
        """Actors with calls that wait."""
        self._confirmed_by: dict[int, list[bytes]] = {}
        """Calls that wait for each query, whose answer shows that the scheduler has received everything to which they refer."""
        self._to_ask: list[bytes] = []
        """Calls that wait for one query of the next frame."""
        self._ahead: list[Send] = []
        """Messages to send ahead of calls."""
        self._orders: list[Send] = []
        """Messages behind calls, such as requests to stop some."""
        self.killed: dict[bytes, bool] = {}
        """Actors killed here, unconfirmed; True: they may not restart."""
        self.queued = 0
        """Number of calls in all outboxes."""
        self._to_send: dict[Target, None] = {}
        """Actors with calls in their outbox."""
        self._receipts: dict[Target, bool] = {}
        """Actors to acknowledge outcomes to. True: the message names the pending calls, and acknowledges all others."""

    # -- make calls --

    def meet(self, actor_id: bytes) -> Target:
        """An actor's record; on first use, request its location."""
        target = self.targets.get(actor_id)
        if target is None:
            target = self.targets[actor_id] = Target(actor_id)
            self._outbox.add(m.FindActors, actor_id)
        return target

    def count(self, actor_id: bytes) -> int:
        """Pending calls of an actor."""
        target = self.targets.get(actor_id)
        return len(target.sent) + target.waits if target is not None else 0

    def outstanding(self) -> m.Rows:
        """Rows ``(actor id, pending calls)``, without zeros."""
        counts = ((actor_id, self.count(actor_id)) for actor_id in self.targets)
        return tuple(row for row in counts if row[1])

    def call(self, actor_id: bytes, row: Row, returns: int, retries: int, keeps: bool = False, unordered: bool = False) -> bytes:
        """Queue a call whose values this process holds. Return the first value's id.

        ``row`` is as in ``Call``, without values of dependencies. ``retries``, ``keeps`` and ``unordered`` are as in ``Target``, the same
        for all calls of an actor.
        """
        call_id = row[0]
        identifier: bytes = call_id + CALL_RETURN
        if call_id in self.pending:  # Its task ran here before, and runs again since its outcome died with a daemon.
            for index in range(returns):
                self._references.add(call_value(call_id, index))
            return identifier
        target = self.targets.get(actor_id) or self.meet(actor_id)
        target.retries = retries
        target.keeps = keeps or retries == LOGGED
        target.unordered = unordered
        if returns == 1:
            self._entries[identifier] = row
        else:
            self._records.extras_of(call_id).returns = returns
            for index in range(returns):
                self._entries[call_value(call_id, index)] = ObjectEntry(1, PENDING, None, None)
        self.pending[call_id] = target
        if len(row) > 3:
            extras = self._records.extras_of(call_id)
            contained = option(row[CALL_OPTIONS], "contains", ())
            extras.held = row[DEPENDENCIES] + contained
            for needed in extras.held:
                self._references.add(needed)
            self.results.share(contained)
            self._unread.expected(contained)
            if option(row[CALL_OPTIONS], "timeout") is not None or option(row[CALL_OPTIONS], "run_timeout") is not None:
                extras.limited = True
            extras.ahead = option(row[CALL_OPTIONS], "stream")
            if extras.ahead is not None:
                self.results.expect(identifier, target)
        if target.state == ALIVE and len(row) == 3 and not target.lanes:
            self._send(target, row)
        else:
            target.lane(row).append(row)
            self._advance(target)
        return identifier

    def recall(self, call_id: bytes, returns: int, status: int, outputs: Row) -> None:
        """Add refs to an earlier life's call, with its logged outcome."""
        for index in range(returns):
            identifier = call_value(call_id, index)
            entry = self._objects.entry(identifier)
            data: Any = outputs[index if status == OK else 0] if len(outputs) > index or (outputs and status != OK) else None
            if entry is None and data is not None:
                self._entries[identifier] = ObjectEntry(1, status, data, None)
            else:
                self._references.add(identifier)

    def _send(self, target: Target, row: Row) -> None:
        if not target.outbox:
            self._to_send[target] = None
        target.outbox.append(row)
        target.sent[row[0]] = row
        self.queued += 1

    def _advance(self, target: Target) -> None:
        self.blocked.pop(target, None)
        for order, lane in list(target.lanes.items()):
            self._send_lane(target, lane)
            if not lane and target.lanes.get(order) is lane:
                del target.lanes[order]
        self._note_delayed(target)
        if target.leaving:
            self._release_if_done(target)

    def _release_if_done(self, target: Target) -> None:
        if not target.sent and not target.waits:
            target.leaving = False
            self._objects.dropped.append(target.handle)

    def _note_delayed(self, target: Target) -> None:
        if target.lanes or target.parked:
            self.delayed[target] = None
        else:
            self.delayed.pop(target, None)

    def _send_lane(self, target: Target, lane: deque[Row]) -> None:
        """Send a lane as far as possible; fail its calls if the actor is dead."""
        while lane:
            if lane[0][0] not in self.pending:
                lane.popleft()  # The incarnation before this one has returned it after all.
                continue
            if target.state == DEAD:
                row = lane.popleft()
                extras = self._extras.get(row[0])
                self._fail(target, row, NOT_RUN if extras is None or extras.tried is None else UNKNOWN)
                continue
            if target.state != ALIVE:
                return
            row = lane.popleft()
            awaited = self._send_complete(target, row)
            if awaited is None:
                continue
            if target.unordered:
                self._park(target, row, awaited)
                continue
            lane.appendleft(row)
            if awaited:
                self.blocked[target] = None
            return

    def _send_complete(self, target: Target, row: Row) -> bytes | None:
        """Send a call, or fail it with a dependency, and return None. Else return the missing object for which it waits, or empty for the
        scheduler.
        """
        if len(row) == 3:
            self._send(target, row)
            return None
        objects = self._objects
        missing = [identifier for identifier in row[DEPENDENCIES] if not objects.known(identifier)]
        if missing:
            objects.want(missing)
            first: bytes = missing[0]
            return first
        entries = [objects.lookup(identifier) for identifier in row[DEPENDENCIES]]
        broken = next((entry for entry in entries if entry.status != OK), None)
        if broken is not None:
            self.returned(((row[0], broken.status, (broken.data if type(broken.data) is bytes else b"",)),), is_local=True)
            return None
        inline = [entry.data if type(entry.data) is bytes else None for entry in entries]
        values: tuple[Any, ...] = within_row(inline, self._row_bytes)
        if None in values:
            if values.count(None) > inline.count(None):  # The actor may fetch it from the scheduler.
                self.results.share(identifier for identifier, value in zip(row[DEPENDENCIES], values, strict=True) if value is None)
            if target.address[:1] == ACTOR and not target.keeps:  # It is on this node, and no log names what it read.
                values = tuple(
                    self._place_of(identifier) if value is None else value
                    for identifier, value in zip(row[DEPENDENCIES], values, strict=True)
                )
            if None in values and self._arguments.places:
                for identifier, value in zip(row[DEPENDENCIES], values, strict=True):
                    if value is None:
                        self._arguments.report(identifier)
        extras = self._records.extras_of(row[0])
        needs_answer = None in values or option(row[CALL_OPTIONS], "contains") or extras.ahead is not None
        if needs_answer and extras.recorded != RECORDED:
            if extras.recorded == UNASKED:
                extras.recorded = ASKED
                self._to_ask.append(row[0])
            return b""
        extras.recorded = UNASKED
        self._send(target, (*row[:VALUES], values, row[CALL_OPTIONS]))
        return None

    # -- calls without an order --

    def _park(self, target: Target, row: Row, awaited: bytes) -> None:
        key = awaited[:TASK_BYTES]
        target.parked[row[0]] = row, key
        if key:
            self.awaited.setdefault(key, {})[row[0]] = None

    def _unpark(self, target: Target, call_id: bytes) -> Row:
        row, key = target.parked.pop(call_id)
        waiting = self.awaited.get(key, {})
        waiting.pop(call_id, None)
        if not waiting:
            self.awaited.pop(key, None)
        return row

    def _unpark_all(self, target: Target) -> None:
        target.put_first([self._unpark(target, call_id) for call_id in list(target.parked)])

    def _try_parked(self, call_id: bytes) -> None:
        target = self.pending.get(call_id)
        if target is None or call_id not in target.parked:
            return
        row = self._unpark(target, call_id)
        if target.state == ALIVE:
            awaited = self._send_complete(target, row)
            if awaited is not None:
                self._park(target, row, awaited)
        else:
            target.put_first((row,))
        self._note_delayed(target)

    def _take_unsent(self, target: Target, call_id: bytes) -> Row | None:
        """Remove and return a call not sent to the present incarnation."""
        if call_id in target.parked:
            return self._unpark(target, call_id)
        for order, lane in target.lanes.items():
            for row in lane:
                if row[0] == call_id:
                    lane.remove(row)
                    if not lane:
                        del target.lanes[order]
                    return row
        return None

    def confirm(self, token: int) -> bool:
        """Handle an answer. Return whether calls waited for it."""
        calls = self._confirmed_by.pop(token, None)
        if calls is None:
            return False
        for call_id in calls:
            target = self.pending.get(call_id)
            if target is not None:
                self._records.extras_of(call_id).recorded = RECORDED
                if call_id in target.parked:
                    self._try_parked(call_id)
                else:
                    self._advance(target)
        return True

    def ask(self) -> None:
        """Send one query for all calls that wait for the scheduler."""
        if self._to_ask:
            calls, self._to_ask = self._to_ask, []
            token = self._queries.token()
            self._confirmed_by[token] = calls
            self._queries.ask(token, "nothing", ())

    def news_in(self, message: m.Message) -> None:
        """Note ends of ``awaited``."""
        if type(message) is m.Results or type(message) is m.Objects:
            self.news += [key for row in message.rows if (key := row[0][:TASK_BYTES]) in self.awaited]

    def progress(self) -> None:
        """Send calls whose arguments have arrived. Others may wait for one that fails."""
        before = -1
        while self.news or (self.blocked and len(self.pending) != before):
            before = len(self.pending)
            news, self.news = self.news, []
            for key in news:
                for call_id in list(self.awaited.get(key, ())):
                    self._try_parked(call_id)
            for target in list(self.blocked):
                self._advance(target)

    def cancel(self, identifier: bytes, reason: str) -> bool:
        """Stop the call that makes an object; return whether it is pending here."""
        call_id = identifier[:TASK_BYTES]
        target = self.pending.get(call_id)
        if target is None:
            return False
        waiting = self._take_unsent(target, call_id)
        if waiting is not None:
            self.returned(
                ((call_id, FAILED, (pack_failure("TaskCancelledError", f"{waiting[1]} was cancelled before it ran"),)),), is_local=True
            )
            self._advance(target)
            self.progress()
        elif target.incarnation:
            self._records.extras_of(call_id).stopped = reason
            if target.address[:1] == ACTOR:
                self._orders.append(Send(CONTROL + control_of(target.incarnation), m.StopCall(call_id, reason)))
            else:
                self._orders.append(Send(target.address, m.StopRelayed(target.actor_id, call_id, reason)))
        return True

    def kill(self, actor_id: bytes, no_restart: bool) -> None:
        """End an actor. Later calls wait for its next life."""
        target = self.meet(actor_id)
        if target.state == DEAD:
            return
        target.state = CREATING
        self.killed[actor_id] = no_restart or self.killed.get(actor_id, False)
        self._outbox.add_message(m.KillActor(actor_id, no_restart))

    def state_of(self, actor_id: bytes) -> tuple[int, bool] | None:
        """(state, whether it has lived before) as last received; None if not called here."""
        target = self.targets.get(actor_id)
        return None if target is None else (target.state, bool(target.incarnation) or target.attempt > 1)

    def take_lone(self) -> Send | None:
        """Take the only call to send, if no message must precede it."""
        if self.queued != 1 or len(self._to_send) != 1 or self._receipts or self._ahead or self._orders:
            return None
        target = next(iter(self._to_send))
        if target.keeps or len(target.outbox) != 1:
            return None
        send = Send(target.address, m.Call(target.actor_id, target.attempt, tuple(target.outbox)))
        target.outbox = []
        self._to_send.clear()
        self.queued = 0
        return send

    def take_sends(self) -> list[Send]:
        """Take acknowledgements of outcomes, then calls."""
        sends, self._ahead = self._ahead, []
        for target, others in self._receipts.items():
            if target.incarnation:
                calls = (*target.sent, *(row[0] for row in target.unsent())) if others else tuple(target.unacknowledged)
                sends.append(Send(target.address, m.OutcomesReceived(target.actor_id, calls, others)))
        for target in self._to_send:
            rows = target.outbox
            if target.keeps:  # Once acknowledged, an outcome of an earlier life is unknown to the actor.
                rows = [row for row in rows if row[0] in target.sent]
            for start in range(0, len(rows), ROWS_MAX):
                batch = tuple(rows[start : start + ROWS_MAX])
                sends.append(Send(target.address, m.Call(target.actor_id, target.attempt, batch)))
        sends += self._orders
        for target in self._receipts:
            target.unacknowledged = []
        for target in self._to_send:
            target.outbox = []
        self._receipts.clear()
        self._to_send.clear()
        self._orders = []
        self.queued = 0
        return sends

    @property
    def expectant(self) -> bool:
        """Whether calls here, or their readers, depend on messages yet to arrive."""
        return bool(self.delayed or self.results.awaited)

    @property
    def unsent(self) -> bool:
        """Whether anything is to be sent."""
        return bool(self._to_send or self._ahead or self._orders or self._receipts or self._to_ask)

    # -- outcomes --

    def on_returned(self, now: float, source: Address, message: m.Returned) -> None:
        """Store outcomes that an actor sent."""
        self.returned(message.rows)

    def returned(self, rows: Iterable[Row], is_local: bool = False) -> None:
        """Store first outcomes. ``is_local``: this process made them, so the scheduler has recorded none."""
        pending, extras = self.pending, self._extras
        entries, watchers = self._entries, self._objects.watchers
        for call_id, status, outputs in rows:
            target = pending.get(call_id)
            if target is None:
                self._handle_second_outcome(call_id, status, outputs)
                continue
            # A local outcome may be an argument's failure, left behind by an earlier life: this life goes on.
            if status == FAILED and not is_local and target.state == ALIVE and outputs and has_left(outputs[0], target.actor_id):
                self._left(target, call_id)
            target.sent.pop(call_id, None)
            if target.keeps:
                target.unacknowledged.append(call_id)
                if len(target.unacknowledged) >= ACKNOWLEDGE_EVERY:
                    self._receipts.setdefault(target, False)
            identifier: bytes = call_id + CALL_RETURN
            entry = entries.get(identifier)
            if type(entry) is tuple and status == OK and len(outputs) == 1 and type(outputs[0]) is bytes and not watchers:
                entries[identifier] = outputs[0]  # The commonest outcome, in place.
            else:
                self._settle(call_id, status, outputs, is_local)
            if extras and call_id in extras:
                self._objects.dropped.extend(extras.pop(call_id).held)
            del pending[call_id]
            if self.awaited and call_id in self.awaited:
                self.news.append(call_id)
            if target.parked and call_id in target.parked:
                self._unpark(target, call_id)
            if target.lanes and any(lane and lane[0][0] == call_id for lane in target.lanes.values()):
                self._advance(target)  # It was to be sent again, and others wait behind it.
            if target.leaving:
                self._release_if_done(target)

    def _left(self, target: Target, call_id: bytes) -> None:
        """Hold back calls of an actor that ended itself in this call, also sent ones that were to run after it, until the scheduler reports
        the end.
        """
        target.state = CREATING
        last = target.sent.get(call_id)
        if last is None or target.unordered or target.order_of(last) != call_id[:PREFIX_BYTES]:
            return
        rows = list(target.sent.values())
        behind = {row[0]: row for row in rows[rows.index(last) + 1 :] if target.order_of(row) == target.order_of(last)}
        for identifier in behind:
            del target.sent[identifier]
        outbox, target.outbox = target.outbox, [row for row in target.outbox if row[0] not in behind]
        self.queued -= len(outbox) - len(target.outbox)
        if not target.outbox:
            self._to_send.pop(target, None)
        target.put_first(map(_unsent, behind.values()))
        self._note_delayed(target)

    def _handle_second_outcome(self, call_id: bytes, status: int, outputs: Row) -> None:
        for index, value in enumerate(outputs):
            if _is_recorded(status, value):
                identifier = call_value(call_id, index)
                entry = self._objects.entry(identifier)
                if entry is not None and entry.refs > 0:
                    self.results.add(identifier)
                else:
                    self._outbox.add(m.Release, identifier)

    def _settle(self, call_id: bytes, status: int, outputs: Row, is_local: bool) -> None:
        results, references = self.results, self._references
        extras = self._extras.get(call_id)
        count = 1 if extras is None else extras.returns
        if status != OK:
            self._note_failure(call_id, status, outputs)
        if status != OK and outputs:
            for index in range(count):
                identifier = call_value(call_id, index)
                entry = self._objects.entry(identifier)
                if entry is not None and entry.refs > 0:
                    references.contain_failure(identifier, outputs[0])
            if not count and not is_local and _is_recorded(status, outputs[0]):
                self._outbox.add(m.Release, call_value(call_id, 0))
        for index in range(count):
            identifier = call_value(call_id, index)
            results.arrived(identifier)
            data: Any = outputs[index if status == OK else 0] if outputs else None
            entry = self._objects.entry(identifier)
            if type(data) is tuple:
                data = None
                if entry is not None and entry.refs > 0:
                    self._objects.fetching.add(identifier)  # Its place is on its way.
            known = not is_local and index < len(outputs) and _is_recorded(status, outputs[index])
            shared = identifier in results.ids
            if shared:
                self._outbox.add(m.OfferResults, (identifier, status, data, ()))
            if entry is None or entry.refs <= 0:
                self._entries.pop(identifier, None)
                if known or shared:
                    self._outbox.add(m.Release, identifier)
                results.remove(identifier)
                self._retained.retire(identifier, ObjectEntry(0, status, data, None), None)
                continue
            if known:
                results.add(identifier)
            entry.row = None
            self._objects.settle(identifier, entry, status, data)

    def _note_failure(self, call_id: bytes, status: int, outputs: Row) -> None:
        unread, target = self._unread, self.pending[call_id]
        extras = self._extras.get(call_id)
        if extras is not None:
            unread.read(extras.held)  # The call fails with their failures.
        if target.state == DEAD:
            unread.expected((target.handle,))  # The call fails with the failure of the handle.
        names = self._records.values_of(call_id)
        if self.results.ids.isdisjoint(names):  # Otherwise other processes receive the failure, too.
            unread.arrived(
                call_id, status, outputs, [each for each in names if (entry := self._objects.entry(each)) is not None and entry.refs > 0]
            )

    def on_caller_gone(self, now: float, source: Address, message: m.CallerGone) -> None:
        """Close the link to a dead caller or host."""
        self.gone.append(message.incarnation)

    def on_actor_locations(self, now: float, source: Address, message: m.ActorLocations) -> None:
        """Update moved or dead actors."""
        for actor_id, state, incarnation, attempt, lives_on, executing, failure in message.rows:
            target = self.targets.get(actor_id)
            before, life = self._locations.pop(actor_id, (b"", 0))
            if incarnation:
                self._locations[actor_id] = incarnation, attempt
            changed = incarnation != before or (before and attempt != life)
            if before and incarnation != before and not lives_on:
                self.gone.append(before)
            if state == DEAD or (changed and not self.killed.get(actor_id, True)):
                self.killed.pop(actor_id, None)
            if state == DEAD:
                self._retained.release_row(actor_id)  # A restarted scheduler must not make it again.
            if target is None:
                continue
            if state != DEAD and actor_id in self.killed and (self.killed[actor_id] or not changed):
                state = CREATING  # This life is about to end: calls made since the kill are for the next one.
            moved = target.incarnation and (incarnation, attempt) != (target.incarnation, target.attempt)
            relayed = target.address[:1] == source[:1] == LOCAL_SCHEDULER and attempt == target.attempt and incarnation == source[1:]
            life_of_calls = target.attempt
            target.state, target.failure, target.incarnation, target.attempt = state, failure, incarnation, attempt
            target.address = source if incarnation == source[1:] else ACTOR + incarnation
            if moved and relayed:  # The same life, by way of another daemon.
                self._repeat(target)
            elif moved:
                # A life that ended in a drain has begun no pending call. This is about that life only.
                in_order = executing == actor_id and attempt == life_of_calls
                self._interrupted(target, executing, in_order)
            if incarnation and incarnation != before and target.keeps:
                self._receipts[target] = True
            if target.parked:
                self._unpark_all(target)
            self._advance(target)
            if state == DEAD and not target.sent and target.handle not in self._entries:
                self.targets.pop(actor_id, None)  # It was called by a handle that does not count.

    def on_repeat_calls(self, now: float, source: Address, message: m.RepeatCalls) -> None:
        """Repeat calls of an actor on another node."""
        target = self.targets.get(message.actor_id)
        if target is not None and target.address == source:
            self._repeat(target)
        self._ahead.append(Send(source, m.CallsRepeated(message.actor_id)))

    def on_request_receipt(self, now: float, source: Address, message: m.RequestReceipt) -> None:
        """Confirm all outcomes sent earlier."""
        self._orders.append(Send(source, m.Receipt(message.token)))

    def _repeat(self, target: Target) -> None:
        """Repeat calls sent to a remote actor's present life, and those whose outcomes it retains; then requests to stop some."""
        self.queued += len(target.sent) - len(target.outbox)
        if not target.outbox:
            target.repeated.clear()
        target.repeated |= target.sent.keys() - {row[0] for row in target.outbox}
        target.outbox = list(target.sent.values())
        if target.outbox:
            self._to_send[target] = None
        if target.keeps:
            self._receipts[target] = True
        for call_id in target.sent if self._extras else ():
            extras = self._extras.get(call_id)
            if extras is not None and extras.stopped is not None:
                self._orders.append(Send(target.address, m.StopRelayed(target.actor_id, call_id, extras.stopped)))

    def _interrupted(self, target: Target, executing: bytes, in_order: bool) -> None:
        """Repeat, ask about or fail calls sent to a process that is gone. Unless it ended ``in_order``, some may have run."""
        rows = list(target.sent.values())
        self._to_send.pop(target, None)
        unsent = {row[0] for row in target.outbox} - target.repeated
        target.outbox = []
        target.repeated.clear()
        begun = 0 if in_order else next((index + 1 for index, row in enumerate(rows) if row[0] == executing), len(rows))
        again: list[Row] = []
        for index, row in enumerate(rows):
            not_begun = index >= begun or row[0] in unsent
            extras = self._extras.get(row[0])
            if extras is not None and extras.stopped is not None:
                text = f"{row[METHOD]} was cancelled, and its actor's process ended"
                self.returned(((row[0], FAILED, (pack_failure("TaskCancelledError", text),)),), is_local=True)
            elif not_begun or (target.state != DEAD and self._may_retry(target, row)):
                again.append(row)
            elif target.keeps and target.state != DEAD:
                again.append(_outcome_request(row))
                extras = self._records.extras_of(row[0])
                extras.tried = extras.tried or 0
            else:
                self._fail(target, row, UNKNOWN)
        target.sent = {}
        target.put_first(map(_unsent, again))

    def _may_retry(self, target: Target, row: Row) -> bool:
        call_id, retries = row[0], target.retries
        if len(row) > 3 and retries != LOGGED:
            retries = option(row[CALL_OPTIONS], "max_retries", retries)
        extras = self._extras.get(call_id)
        tried = 0 if extras is None else extras.tried or 0
        if 0 <= retries <= tried:
            return False
        self._records.extras_of(call_id).tried = tried + 1
        return True

    def _fail(self, target: Target, row: Row, outcome: str) -> None:
        what = f"{row[METHOD]} of actor {short(target.actor_id)}"
        facts: Facts = (("actor", target.actor_id.hex()), ("outcome", outcome))
        if target.failure:
            kind, text, more = unpack_failure(target.failure)
            facts = more + facts
        else:
            kind, text = "ActorUnavailableError", "its process ended"
        if target.state != DEAD:
            text += "; the actor is made again"
        may = "it may have run, in part or in whole" if outcome == UNKNOWN else "it did not run"
        self.returned(((row[0], FAILED, (pack_failure(kind, f"{what} has no result ({may}): {text}", facts),)),), is_local=True)

    def callees(self, object_ids: Iterable[bytes]) -> m.Rows:
        """Rows ``(object id, actor id)`` of what pending calls here will make."""
        pending = self.pending
        if not pending:
            return ()
        found = ((identifier, pending.get(identifier[:TASK_BYTES])) for identifier in object_ids)
        return tuple((identifier, target.actor_id) for identifier, target in found if target is not None)

    def may_end(self, object_ids: Iterable[bytes]) -> bool:
        """Whether a call of these objects may end without running: by its timeout, or cancelled."""
        found = (self._extras.get(each[:TASK_BYTES]) for each in object_ids) if self._extras else ()
        return any(extras is not None and (extras.limited or extras.stopped is not None) for extras in found)

    def lasting(self, identifier: bytes, lives: Mapping[bytes, Row]) -> bytes | None:
        """The actor of an object's call, if only running the call can end it; else None. ``lives``: this process's actors and their
        attempts.
        """
        call_id = identifier[:TASK_BYTES]
        target = self.pending.get(call_id)
        if target is None or target.actor_id in self.killed or self.may_end((identifier,)):
            return None
        if self._records.ahead_of(call_id) is not None and identifier != call_id + CALL_RETURN:
            return None  # That value may exist, and be on its way, while the call goes on.
        known = lives.get(target.actor_id)
        return None if known is not None and target.incarnation and known[1] != target.attempt else target.actor_id

    def explain(self, identifier: bytes) -> tuple[str, bytes, str] | None:
        """(state, actor, reason) of a pending call here."""
        call_id = identifier[:TASK_BYTES]
        target = self.pending.get(call_id)
        if target is None or (identifier != call_id + CALL_RETURN and self._objects.known(identifier)):
            return None  # A value that a stream has yielded exists, although the call goes on.
        if call_id in target.sent:
            before = list(target.sent).index(call_id)
            ahead = f", behind {before} of this process that have no outcome yet" if before else ""
            return "called", target.actor_id, f"{target.sent[call_id][1]} is with the actor{ahead}"
        method, dependencies = next(
            (row[METHOD], row[DEPENDENCIES] if len(row) > DEPENDENCIES else ()) for row in target.unsent() if row[0] == call_id
        )
        missing = [each for each in dependencies if not self._objects.known(each)]
        if missing:
            return "waiting", target.actor_id, f"{method} waits for {len(missing)} of its arguments, such as {brief(missing[0])}"
        if target.state == CREATING:
            return "waiting", target.actor_id, f"{method} waits until the actor is made"
        extras = self._extras.get(call_id)
        if call_id in target.parked or (extras is not None and extras.recorded == ASKED):
            return "waiting", target.actor_id, f"{method} waits until the scheduler has recorded the refs among its arguments"
        return "waiting", target.actor_id, f"{method} waits behind a call whose arguments are not there yet"

    # -- handles that are dropped, and a restarted daemon --

    def takes_over(self, handle: bytes, entry: ObjectEntry) -> bool:
        """Take over a handle's last ref while calls are pending."""
        target = self.targets.get(handle[:TASK_BYTES])
        if target is None or not (target.sent or target.waits):
            return False
        target.leaving = True
        entry.refs = 1
        return True

    def forget(self, handle: bytes) -> None:
        """Remove an actor without handles. The link stays."""
        target = self.targets.pop(handle[:TASK_BYTES], None)
        if target is not None and target.unacknowledged:
            self._receipts[target] = False

    def holdings(self) -> Iterator[tuple[type[Any], Any]]:
        """(kind of message, item) for a restarted scheduler."""
        for actor_id in {**self.targets, **self.killed, **self._locations}:
            yield m.FindActors, actor_id
        yield from self.results.expected()


def _unsent(row: Row) -> Row:
    """A call without values of dependencies."""
    return row if len(row) == 3 else (*row[:VALUES], (), row[CALL_OPTIONS])


def _is_recorded(status: int, value: Any) -> bool:
    """Whether the scheduler has this output and counts the caller as holder: it is large, or has refs inside."""
    return type(value) is not bytes if status == OK else bool(refs_in(value))


def _outcome_request(row: Row) -> Row:
    """Request the outcome of a call that may have run: a checkpoint may have it."""
    dependencies, options = (row[DEPENDENCIES], row[CALL_OPTIONS] or ()) if len(row) > DEPENDENCIES else ((), ())
    return row if ("ask", True) in options else (*row[:3], dependencies, (), (*options, ("ask", True)))
