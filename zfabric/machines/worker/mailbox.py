"""The actor's side of calls: their queue, and outcomes on their way back (decision 0011).

Most outcomes go straight to the caller. Those with values in the arena, refs inside, or refs from the arguments go through the scheduler,
behind all earlier messages. Logged actors' outcomes leave once the log is durable (``call_log``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from math import inf

from zfabric.machines.common.deadlines import Deadlines
from zfabric.machines.common.tables import LoggedCall
from zfabric.machines.worker.actor_queues import ActorQueues, CallQueue
from zfabric.machines.worker.call_log import CallLog
from zfabric.machines.worker.queue import Invocation
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.failures import pack_failure, refs_inside
from zfabric.protocol.ids import CLIENT, TASK_BYTES, Address, node_of_caller, short
from zfabric.protocol.messages import FAILED, OK, Row
from zfabric.protocol.messages.rows import CALL_OPTIONS
from zfabric.protocol.options import option

STOPPED_MAX = 1000
"""Stop requests for calls yet to arrive: more than are sent while a message travels."""

_BYTES = {bytes}
Callee = Callable[[bytes], bytes | None]
"""Maps an object id to the actor whose call will make it, or to None."""

GONE_MAX = 1000
"""Remembered exited callers. Their queued calls run soon, or not at all."""


class Mailbox:
    """Calls and outcomes of this process's actors."""

    def __init__(self, own: bytes) -> None:
        self.own = own
        """This process: the caller of calls between its actors."""
        self.actors: dict[bytes, Row] = {}
        """``(task row, attempt)`` of what made each."""
        self.queue: CallQueue = deque()
        self.groups: dict[str, deque[Invocation]] = {}
        """Calls of other concurrency groups, which do not wait for ``queue``."""
        self.held: deque[Invocation] = deque()
        """Calls that do not begin here: the actor moves (``Relocation``)."""
        self.shared: ActorQueues | None = None
        """``queue``, if actors share this process. Calls may then arrive after their actor's end; the scheduler notifies callers."""
        self.stopped: dict[bytes, str] = {}
        self.logs: dict[bytes, CallLog] = {}
        self.written: list[int] = []
        """Arena offsets of held outcomes that leave now: the shell marks them finished."""
        self.dropped: list[int] = []
        """Offsets of held outcomes that never leave: the shell abandons them."""
        self.released: list[bytes] = []
        """Calls whose held outcomes leave now: the shell drops the refs inside."""
        self.retiring = False
        self.timed: dict[bytes, float] = {}
        """When unfinished calls are to be stopped."""
        self.run_until: dict[bytes, float] = {}
        """When a ``run_timeout`` that ends first is to stop running calls."""
        self.deadlines = Deadlines(lambda deadline, call_id: self.timed.get(call_id) == deadline)
        self.gone: dict[bytes, None] = {}
        """Exited callers get no outcomes."""
        self._returned: dict[bytes, list[Row]] = {}
        self._reported: dict[bytes, Row] = {}
        """Outcomes unconfirmed by the scheduler."""
        self._answered: set[bytes] = set()
        """Calls of this process to itself whose outcomes may not have arrived."""
        self.took: list[Row] = []
        """(call id, dependencies) for the timeline."""
        self.relayed: dict[bytes, int] = {}
        """Other nodes' calls without an outcome -> the actor's attempt."""
        self._unsent_reports: list[Row] = []
        """Rows of ``_reported`` for the next frame."""

    def accept(self, now: float, source: Address, message: m.Call) -> None:
        """Queue calls; answer those that cannot run."""
        caller, actor_id = source[1:], message.actor_id
        known = self.actors.get(actor_id)
        if known is None or known[1] != message.attempt:
            if self.shared is not None:
                return
            text = f"actor {short(actor_id)} does not live in this process (any more)"
            for row in message.rows:
                self._answer(caller, row[0], FAILED, (pack_failure("ActorUnavailableError", text, (("outcome", "not run"),)),))
            return
        attempt = known[1]
        log = self.logs.get(actor_id) if self.logs else None
        if log is not None and caller in self.gone:
            return  # It may have run in an earlier life, whose outcomes for a dead caller are gone.
        for row in message.rows:
            if log is not None and log.retained and self._answer_again(log, caller, row):
                continue
            if len(row) == 3:
                call_id, method, arguments = row
                dependencies, values, options = (), (), None
            else:
                call_id, method, arguments, dependencies, values, options = row
                if dependencies:
                    self.took.append((call_id, dependencies))
                if options and option(options, "ask", False) and (log is None or method not in log.readonly):
                    self._answer(caller, call_id, FAILED, (_not_in_checkpoint(actor_id, method),))
                    continue
            item = Invocation((call_id, b"", arguments, dependencies), attempt, values, (), actor_id, method, caller, options)
            (self.groups.get(option(options, "concurrency_group"), self.queue) if self.groups else self.queue).append(item)
            if self.stopped and call_id in self.stopped:
                self.stop(call_id, self.stopped.pop(call_id))
                continue
            timeout = option(options, "timeout") if options else None
            if timeout is not None:
                self.timed[call_id] = now + timeout
                self.deadlines.add(now + timeout, call_id)

    def limit_run(self, call_id: bytes, until: float) -> None:
        """Stop a begun call at ``until``, unless earlier."""
        if until < self.timed.get(call_id, inf):
            self.timed[call_id] = self.run_until[call_id] = until
            self.deadlines.add(until, call_id)

    def accept_relayed(self, now: float, source: Address, message: m.RelayedCalls) -> None:
        """Queue another node's calls, unless repeated; their outcomes go to the local scheduler.

        All get options, since calls without options take shorter paths.
        """
        known, reported = self.relayed, self._reported
        attempt = message.attempt
        rows: list[Row] = []
        for row in message.rows:
            if known.get(row[0]) != attempt and row[0] not in reported:
                known[row[0]] = attempt
                rows.append((*row, (), (), ()) if len(row) == 3 else (*row[:CALL_OPTIONS], row[CALL_OPTIONS] or ()))
        self.accept(now, CLIENT + message.caller, m.Call(message.actor_id, attempt, tuple(rows)))

    def _answer(self, caller: bytes, call_id: bytes, status: int, outputs: Row) -> None:
        """Send an outcome that concerns only the caller."""
        if node_of_caller(caller):
            self._report(call_id, caller, status, outputs, ())
        else:
            self._returned.setdefault(caller, []).append((call_id, status, outputs))

    def ended(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...], whole: bool = True) -> bool:
        """Send an outcome; return whether it waits for the log. ``whole``: the call was not stopped in its middle."""
        log = self.logs.get(item.actor_id) if self.logs else None
        if log is not None and log.ended(item, status, outputs, contained, whole):
            return True
        self._leave(item, status, outputs, contained)
        return False

    def _leave(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...]) -> None:
        plain = not contained and ((len(outputs) == 1 and type(outputs[0]) is bytes) or set(map(type, outputs)) <= _BYTES)
        if plain and refs_inside(status, outputs):
            plain = False
        if plain and item.options is not None:  # The end of a stream goes behind its values, through the scheduler.
            plain = not option(item.options, "contains") and option(item.options, "stream") is None and not node_of_caller(item.caller)
        if plain:
            self._returned.setdefault(item.caller, []).append((item.row[0], status, outputs))
        else:
            self._report(item.row[0], item.caller, status, outputs, contained)

    def _report(self, call_id: bytes, caller: bytes, status: int, outputs: Row, contained: tuple[Row, ...]) -> None:
        self._unsent_reports.append(self.retain(call_id, caller, status, outputs, contained))

    def retain(self, call_id: bytes, caller: bytes, status: int, outputs: Row, contained: tuple[Row, ...]) -> Row:
        """Retain an outcome until the scheduler has it. Return its row."""
        row = self._reported[call_id] = (call_id, caller, status, outputs, contained)
        if node_of_caller(caller):
            self.relayed.pop(call_id, None)
        return row

    def recorded(self, call_ids: Iterable[bytes]) -> None:
        """Send recorded outcomes to callers, too: the scheduler may have died before it did."""
        for log in self.logs.values():
            log.unrecorded.difference_update(call_ids)
        for call_id in call_ids:
            row = self._reported.pop(call_id, None)
            if row is None or node_of_caller(row[1]):
                continue  # The scheduler of another node has recorded it.
            _, caller, status, outputs, contained = row
            if status != OK:
                values = outputs
            elif any(contained):
                named = (*contained, *[()] * len(outputs))
                values = tuple(value if type(value) is bytes and not refs else None for value, refs in zip(outputs, named, strict=False))
            else:
                values = tuple([value if type(value) is bytes else None for value in outputs])
            self._returned.setdefault(caller, []).append((call_id, status, values))

    def unrecorded(self) -> tuple[m.Message, ...]:
        """Unconfirmed outcomes and log rows, for a restarted daemon."""
        self._unsent_reports.clear()
        logged = [message for log in self.logs.values() for message in log.repeated()]
        return (*logged, m.CallOutcomes(tuple(self._reported.values()))) if self._reported else tuple(logged)

    def has_ended(self, call_id: bytes) -> bool:
        """Whether a call to itself has an outcome that has not arrived."""
        if call_id in self._answered or any(row[0] == call_id for row in self._returned.get(self.own, ())):
            return True
        return self.awaits_record(call_id)

    def awaits_record(self, call_id: bytes) -> bool:
        """Whether an outcome goes through the scheduler or waits for the log."""
        return call_id in self._reported or any(log.held(call_id) is not None for log in self.logs.values())

    def refused(self, actor_id: bytes, wanted: Sequence[bytes], needed: int, callee: Callee) -> bool:
        """Whether an actor would wait for itself (``Worker.refused``)."""
        mine = [each for each in wanted if callee(each) == actor_id] if needed else []
        never = sum(1 for each in mine if not self.has_ended(each[:TASK_BYTES]))
        return never > len(wanted) - needed

    def forget_answered(self, pending: Container[bytes]) -> None:
        """Now and then, drop sent outcomes of calls to itself that are not ``pending``."""
        if self._answered:
            self._answered = {call_id for call_id in self._answered if call_id in pending}

    @property
    def waiting(self) -> bool:
        """Whether calls are queued."""
        return bool(self.queue) or any(self.groups.values())

    @property
    def waiting_count(self) -> int:
        """How many calls are queued."""
        return len(self.queue) + sum(map(len, self.groups.values()))

    @property
    def settled(self) -> bool:
        """Whether no outcome would be lost with this process."""
        return not (self._reported or self._returned) and all(log.settled for log in self.logs.values())

    # -- logs --

    def _answer_again(self, log: CallLog, caller: bytes, row: Row) -> bool:
        """Answer a repeated call by a retained outcome. False without one: the call runs."""
        call_id = row[0]
        kept = log.answer(caller, call_id)
        if kept is None:
            return False
        if call_id in self._reported or not log.may_send(kept):
            return True
        if refs_inside(kept.status, kept.outputs) or (len(row) > 3 and option(row[5], "stream") is not None):
            self._report(call_id, caller, kept.status, kept.outputs, ())
        else:
            self._answer(caller, call_id, kept.status, kept.outputs)
        return True

    def durable(self, actor_id: bytes, upto: int) -> None:
        """Send outcomes that waited for a log, now committed up to ``upto``."""
        log = self.logs.get(actor_id)
        for _, item, status, outputs, contained in log.committed(upto) if log is not None else ():
            self.timed.pop(item.row[0], None)
            self.released.append(item.row[0])
            self.written += [value[0] for value in outputs if type(value) is tuple]
            self._leave(item, status, outputs, contained)

    def acknowledged(self, caller: bytes, actor_id: bytes, call_ids: tuple[bytes, ...], others: bool) -> None:
        """Release acknowledged outcomes."""
        log = self.logs.get(actor_id)
        if log is not None:
            log.acknowledged(caller, call_ids, others)

    def report_remade(self, log: CallLog, call: LoggedCall, outputs: Row, contained: tuple[Row, ...]) -> None:
        """Report replayed values to a caller that may lack them."""
        self._report(call.call_id, call.caller, call.status, outputs, contained)
        log.unrecorded.add(call.call_id)

    def stop_later(self, call_id: bytes, reason: str) -> None:
        """Stop a call when it arrives. Most have ended and never come, so few are remembered."""
        self.stopped[call_id] = reason
        if len(self.stopped) > STOPPED_MAX:
            del self.stopped[next(iter(self.stopped))]

    def stop(self, call_id: bytes, reason: str) -> bool:
        """Answer that a queued call was stopped. False if it has begun, or is not here."""
        queues: tuple[CallQueue, ...] = (self.queue, *self.groups.values(), self.held)
        queue, found = next(((queue, item) for queue in queues for item in queue if item.row[0] == call_id), (None, None))
        if queue is None or found is None:
            return False
        ahead = [item.row[0] for item in queue if item.actor_id == found.actor_id]
        queue.remove(found)
        self.timed.pop(call_id, None)
        kind = "TaskTimeoutError" if reason == "timeout" else "TaskCancelledError"
        behind = f", behind {index} other call{'s' * (index > 1)} of its actor" if (index := ahead.index(call_id)) else ""
        outputs = (pack_failure(kind, f"{found.method} was stopped before it ran ({reason}){behind}"),)
        log = self.logs.get(found.actor_id)
        if log is not None:
            log.own.ended(call_id, (FAILED, outputs), False)
        self._leave(found, FAILED, outputs, ())
        return True

    def give_up(self, call_id: bytes) -> None:
        """Fail for its caller a timed-out call that has run but waits for the log, which keeps its effects.

        Its values are dropped: nobody receives another outcome.
        """
        self.timed.pop(call_id, None)
        for log in self.logs.values():
            item = log.held(call_id)
            if item is not None and item.caller != self.own:  # A call's outcome to its own actor is in the log.
                text = f"{item.method} has run, and its result waits: the log of its actor was not written in time (is the disk full?)"
                failure = pack_failure("TaskTimeoutError", text, (("actor", short(item.actor_id)), ("outcome", "unknown")))
                before = log.give_up(call_id, (failure,))
                self.dropped += [value[0] for value in before.outputs if type(value) is tuple]
                self._answer(item.caller, call_id, FAILED, (failure,))

    # -- actors that share this process --

    def share(self) -> ActorQueues:
        """Let actors share this process, before any is made."""
        self.queue = self.shared = ActorQueues()
        return self.shared

    def drop(self, queues: ActorQueues, actor_id: bytes) -> None:
        """Drop an actor's queued calls: the scheduler notifies callers."""
        for item in queues.of(actor_id):
            self.timed.pop(item.row[0], None)
            self.relayed.pop(item.row[0], None)
        queues.drop(actor_id)

    # -- ends of callers, and sending --

    def caller_gone(self, caller: bytes) -> None:
        """Send nothing more to an exited caller. Its queued calls run."""
        self.gone[caller] = None
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]
        for log in self.logs.values():
            log.caller_exited(caller)

    @property
    def unsent(self) -> bool:
        """Whether outcomes or log rows wait."""
        return bool(self._returned or self._unsent_reports) or (bool(self.logs) and any(log.unsent for log in self.logs.values()))

    def take_sends(self, scheduler: Address) -> Iterator[Send]:
        """Take messages with outcomes and log rows."""
        for log in self.logs.values() if self.logs else ():
            for message in log.take_messages():
                yield Send(scheduler, message)
        if self._unsent_reports:
            rows, self._unsent_reports = self._unsent_reports, []
            yield Send(scheduler, m.CallOutcomes(tuple(rows)))
        returned, self._returned = self._returned, {}
        if self.own in returned:
            self._answered.update(row[0] for row in returned[self.own])
        for caller, outcomes in returned.items():
            if caller not in self.gone:
                yield Send(CLIENT + caller, m.Returned(tuple(outcomes)))


def _not_in_checkpoint(actor_id: bytes, method: str) -> bytes:
    """The failure of a call that is asked for (``ask``) and that no checkpoint has."""
    text = (
        f"{method} of actor {short(actor_id)} has no result (it may have run, in part or in whole): the actor's process ended, and it goes "
        "on from a checkpoint that does not contain this call"
    )
    return pack_failure("ActorUnavailableError", text, (("actor", actor_id.hex()), ("outcome", "unknown")))


class Relocation:
    """Holds calls of an actor that moves, since its node is drained: running calls end here, all others run there (decision 0034).

    The process ends once nothing runs and callers have all outcomes. A concurrent call may wait for a held one. So calls are held for a
    while, let through for as long, then held for twice as long: waiting calls end in the pauses, and some hold outlasts any other call.
    ``patience`` is the first hold's seconds, 0 if calls run one at a time.
    """

    def __init__(self, mailbox: Mailbox, now: float, patience: float) -> None:
        self.mailbox = mailbox
        self.open = False
        """Whether calls are let through."""
        self.changes_at: float | None = None
        self._window = self._patience = patience
        self._close(now)

    def _close(self, now: float) -> None:
        self.open = False
        self.changes_at = now + self._patience if self._patience > 0 else None
        self._patience *= 2
        self.hold()

    def hold(self) -> None:
        """Hold what is queued, unless calls are let through."""
        if self.open:
            return
        mailbox = self.mailbox
        for queue in (mailbox.queue, *mailbox.groups.values()):
            for item in [queue.popleft() for _ in range(len(queue))]:
                (queue if item.caller == mailbox.own else mailbox.held).append(item)

    def tick(self, now: float, is_running: bool) -> None:
        """Let calls through or hold them, when due. If none runs, none waits for a held one."""
        if self.changes_at is None or now < self.changes_at:
            return
        if self.open:
            self._close(now)
            return
        if not is_running:
            self.changes_at = now + self._window
            return
        self.open, self.changes_at = True, now + self._window
        mailbox = self.mailbox
        while mailbox.held:
            item = mailbox.held.popleft()
            mailbox.groups.get(option(item.options or (), "concurrency_group"), mailbox.queue).append(item)

    def end(self) -> None:
        """Let no more through: the process ends."""
        self.changes_at = None
