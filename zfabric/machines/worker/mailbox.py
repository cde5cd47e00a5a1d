"""The actor's side of calls: a queue in which they wait their turn, and what goes back to whom.

Most outcomes go straight to the caller. Those that concern others (values in the arena, refs inside results, refs that came with the
arguments) go through the scheduler, behind all that this process has said to it: so whoever hears of the outcome finds what it names.
Those of logged actors leave once the log says so (``call_log``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from zfabric.machines.common.deadlines import Deadlines
from zfabric.machines.common.log_format import LoggedCall
from zfabric.machines.worker.actor_queues import ActorQueues, CallQueue
from zfabric.machines.worker.call_log import CallLog
from zfabric.machines.worker.items import Invocation
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.failures import pack_failure, refs_inside
from zfabric.protocol.ids import CLIENT, TASK_BYTES, Address, short
from zfabric.protocol.messages import FAILED, OK, Row
from zfabric.protocol.options import option

STOPPED_MAX = 1000
"""Calls to be stopped that have not come: more than anyone cancels in the time that a message takes."""

_BYTES = {bytes}
Callee = Callable[[bytes], bytes | None]
"""The actor whose call is to make an object, if there is one."""

GONE_MAX = 1000
"""Callers that are gone which are remembered: what they called is run within a while, or not at all."""


class Mailbox:
    """Calls that wait, and outcomes on their way, of all actors of this process."""

    def __init__(self, own: bytes) -> None:
        self.own = own
        """The incarnation of this process, under which its actors call each other, and themselves."""
        self.actors: dict[bytes, Row] = {}
        """The actors of this process, with the rows that made them and the attempts: ``(task row, attempt)``."""
        self.queue: CallQueue = deque()
        self.groups: dict[str, deque[Invocation]] = {}
        """Calls of other concurrency groups, which do not wait for those in ``queue``."""
        self.shared: ActorQueues | None = None
        """The queue, if actors come and go: what is called of one that has gone is its scheduler's to tell."""
        self.stopped: dict[bytes, str] = {}
        """Calls that were to be stopped before they came, and why: the news of it overtakes them while this process computes."""
        self.logs: dict[bytes, CallLog] = {}
        """The logs of those actors that have one."""
        self.written: list[int] = []
        """Where values are in the arena whose outcomes were held back, and leave now: the shell says that they are finished."""
        self.dropped: list[int] = []
        """Where values are whose outcomes were held back, and never leave: the shell abandons them."""
        self.left: list[bytes] = []
        """Calls whose outcomes were held back, and leave now: the shell lets go of refs inside."""
        self.retiring = False
        self.timed: dict[bytes, float] = {}
        """Calls with a timeout that have not ended, and when they are to be stopped."""
        self.deadlines = Deadlines(lambda deadline, call_id: self.timed.get(call_id) == deadline)
        self.gone: dict[bytes, None] = {}
        """Processes that called and have ended: what is run for them, or was, has an outcome for nobody."""
        self._returned: dict[bytes, list[Row]] = {}
        self._reported: dict[bytes, Row] = {}
        """Outcomes that the scheduler has not taken in yet, as far as is known here: by call."""
        self._answered: set[bytes] = set()
        """Calls that this process has made itself whose outcomes have left, and may not have come."""
        self.took: list[Row] = []
        """Calls with values among their arguments, and which: for the timeline."""
        self._unsaid: list[Row] = []
        """Those of them that leave with the next frame."""

    def accept(self, now: float, source: Address, message: m.Call) -> None:
        """Calls have come."""
        caller, actor_id = source[1:], message.actor_id
        known = self.actors.get(actor_id)
        if known is None or known[1] != message.attempt:
            if self.shared is not None:
                return
            text = f"actor {short(actor_id)} does not live in this process (any more)"
            outcome = (FAILED, (pack_failure("ActorUnavailableError", text, (("outcome", "not run"),)),))
            self._returned.setdefault(caller, []).extend((row[0], *outcome) for row in message.rows)
            return
        attempt = known[1]
        log = self.logs.get(actor_id) if self.logs else None
        if log is not None and caller in self.gone:
            return  # It may have run before, in an earlier life: nothing is kept of the outcomes of a dead caller that would tell.
        for row in message.rows:
            if log is not None and log.kept and self._answer_again(log, caller, row):
                continue
            if len(row) == 3:
                call_id, method, arguments = row
                dependencies, values, options = (), (), None
            else:
                call_id, method, arguments, dependencies, values, options = row
                if dependencies:
                    self.took.append((call_id, dependencies))
                if options is not None and option(options, "ask", False) and (log is None or method not in log.readonly):
                    self._returned.setdefault(caller, []).append((call_id, FAILED, (_not_kept(actor_id, method),)))
                    continue
            item = Invocation((call_id, b"", arguments, dependencies), attempt, values, (), actor_id, method, caller, options)
            (self.groups.get(option(options, "concurrency_group"), self.queue) if self.groups else self.queue).append(item)
            if self.stopped and call_id in self.stopped:
                self.stop(call_id, self.stopped.pop(call_id))
                continue
            timeout = option(options, "timeout") if options is not None else None
            if timeout is not None:
                self.timed[call_id] = now + timeout
                self.deadlines.add(now + timeout, call_id)

    def ended(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...], whole: bool = True) -> bool:
        """A call that ran has an outcome. Whether it is held back until the log of its actor is durable so far.

        ``whole`` is False if it was stopped in its middle.
        """
        log = self.logs.get(item.actor_id) if self.logs else None
        if log is not None and log.ended(item, status, outputs, contained, whole):
            return True
        self._leave(item, status, outputs, contained)
        return False

    def _leave(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...]) -> None:
        plain = not contained and ((len(outputs) == 1 and type(outputs[0]) is bytes) or set(map(type, outputs)) <= _BYTES)
        if plain and refs_inside(status, outputs):
            plain = False
        if plain and item.options is not None:  # The end of a stream goes behind its values.
            plain = not option(item.options, "contains") and option(item.options, "stream") is None
        if plain:
            self._returned.setdefault(item.caller, []).append((item.row[0], status, outputs))
        else:
            self._report(item.row[0], item.caller, status, outputs, contained)

    def _report(self, call_id: bytes, caller: bytes, status: int, outputs: Row, contained: tuple[Row, ...]) -> None:
        row = self._reported[call_id] = (call_id, caller, status, outputs, contained)
        self._unsaid.append(row)

    def recorded(self, call_ids: Iterable[bytes]) -> None:
        """The scheduler has taken in outcomes. It has told the callers; should it have died before that left, they hear it from here."""
        for log in self.logs.values():
            log.unrecorded.difference_update(call_ids)
        for call_id in call_ids:
            row = self._reported.pop(call_id, None)
            if row is not None:
                _, caller, status, outputs, contained = row
                named = (*contained, *[()] * len(outputs))
                told = tuple(
                    value if status != OK or (type(value) is bytes and not refs) else None
                    for value, refs in zip(outputs, named, strict=False)
                )
                self._returned.setdefault(caller, []).append((call_id, status, told))

    def unrecorded(self) -> tuple[m.Message, ...]:
        """What is to be said again to a restarted daemon."""
        self._unsaid.clear()
        logged = [message for log in self.logs.values() for message in log.again()]
        return (*logged, m.CallOutcomes(tuple(self._reported.values()))) if self._reported else tuple(logged)

    def has_ended(self, call_id: bytes) -> bool:
        """Whether a call that this process has made itself has an outcome, of which it may not have heard: that has a way to go."""
        if call_id in self._answered or call_id in self._reported or any(row[0] == call_id for row in self._returned.get(self.own, ())):
            return True
        return any(log.held(call_id) is not None for log in self.logs.values())

    def refused(self, actor_id: bytes, wanted: Sequence[bytes], needed: int, callee: Callee) -> bool:
        """Whether an actor would wait for itself. See ``Worker.refused``."""
        mine = [each for each in wanted if callee(each) == actor_id] if needed else []
        never = sum(1 for each in mine if not self.has_ended(each[:TASK_BYTES]))
        return never > len(wanted) - needed

    def have_come(self, pending: Container[bytes]) -> None:
        """Of these calls alone the outcomes have not come. Said now and then."""
        if self._answered:
            self._answered = {call_id for call_id in self._answered if call_id in pending}

    @property
    def waiting(self) -> bool:
        """Whether calls wait that have not begun."""
        return bool(self.queue) or any(self.groups.values())

    @property
    def settled(self) -> bool:
        """Whether nothing of what was called here has an outcome that may be lost with this process."""
        return not (self._reported or self._returned) and all(log.settled for log in self.logs.values())

    # -- logs --

    def _answer_again(self, log: CallLog, caller: bytes, row: Row) -> bool:
        """A call comes again, whose outcome an incarnation before this one had: it is not run."""
        call_id = row[0]
        kept = log.answer(caller, call_id)
        if kept is None:
            return False
        if call_id in self._reported or not log.may_tell(kept):
            return True
        if refs_inside(kept.status, kept.outputs) or (len(row) > 3 and option(row[5], "stream") is not None):
            self._report(call_id, caller, kept.status, kept.outputs, ())
        else:
            self._returned.setdefault(caller, []).append((call_id, kept.status, kept.outputs))
        return True

    def durable(self, actor_id: bytes, upto: int) -> None:
        """What was said of an actor's log is committed: outcomes that waited for it leave."""
        log = self.logs.get(actor_id)
        for _, item, status, outputs, contained in log.committed(upto) if log is not None else ():
            self.timed.pop(item.row[0], None)
            self.left.append(item.row[0])
            self.written += [value[0] for value in outputs if type(value) is tuple]
            self._leave(item, status, outputs, contained)

    def taken(self, source: Address, actor_id: bytes, call_ids: tuple[bytes, ...], others: bool) -> None:
        """A caller has outcomes."""
        log = self.logs.get(actor_id)
        if log is not None:
            log.taken(source[1:], call_ids, others)

    def made_again(self, log: CallLog, call: LoggedCall, outputs: Row, contained: tuple[Row, ...]) -> None:
        """A replay has made values of a call anew that its caller may not have. If somebody has them, these are dropped."""
        self._report(call.call_id, call.caller, call.status, outputs, contained)
        log.unrecorded.add(call.call_id)

    def stop_later(self, call_id: bytes, reason: str) -> None:
        """A call that is not here is to be stopped when it comes. Most often it will not, since it has ended: few are remembered."""
        self.stopped[call_id] = reason
        if len(self.stopped) > STOPPED_MAX:
            del self.stopped[next(iter(self.stopped))]

    def stop(self, call_id: bytes, reason: str) -> bool:
        """Do not run a call. False if it has begun, or is not here."""
        queues: tuple[CallQueue, ...] = (self.queue, *self.groups.values())
        queue, found = next(((queue, item) for queue in queues for item in queue if item.row[0] == call_id), (None, None))
        if queue is None or found is None:
            return False
        queue.remove(found)
        self.timed.pop(call_id, None)
        kind = "TaskTimeoutError" if reason == "timeout" else "TaskCancelledError"
        outputs = (pack_failure(kind, f"{found.method} was stopped before it ran ({reason})"),)
        log = self.logs.get(found.actor_id)
        if log is not None:
            log.own.ended(call_id, (FAILED, outputs), False)
        self._leave(found, FAILED, outputs, ())
        return True

    def give_up(self, call_id: bytes) -> None:
        """The time of a call is up that has run, and whose outcome waits for the log. It still counts; its caller waits no longer.

        Nobody else hears of another outcome either: its values are dropped.
        """
        self.timed.pop(call_id, None)
        for log in self.logs.values():
            item = log.held(call_id)
            if item is not None and item.caller != self.own:  # What an actor hears of itself is in its log.
                text = f"{item.method} has run, and its result waits: the log of its actor was not written in time (is the disk full?)"
                failure = pack_failure("TaskTimeoutError", text, (("actor", short(item.actor_id)), ("outcome", "unknown")))
                before = log.give_up(call_id, (failure,))
                self.dropped += [value[0] for value in before.outputs if type(value) is tuple]
                self._returned.setdefault(item.caller, []).append((call_id, FAILED, (failure,)))

    # -- actors that share this process --

    def share(self) -> ActorQueues:
        """Actors may share this process: before any lives here."""
        self.queue = self.shared = ActorQueues()
        return self.shared

    def drop(self, queues: ActorQueues, actor_id: bytes) -> None:
        """Calls of an actor are not run, and have no outcome: their callers hear of its end."""
        for item in queues.of(actor_id):
            self.timed.pop(item.row[0], None)
        queues.drop(actor_id)

    # -- the ends of callers, and sending --

    def caller_gone(self, caller: bytes) -> None:
        """Nobody waits for these outcomes any more. What was called is run all the same."""
        self.gone[caller] = None
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]
        for log in self.logs.values():
            log.gone(caller)

    @property
    def unsent(self) -> bool:
        """Whether outcomes, or rows of logs, wait to be sent."""
        return bool(self._returned or self._unsaid) or (bool(self.logs) and any(log.unsent for log in self.logs.values()))

    def take_sends(self, scheduler: Address) -> Iterator[Send]:
        """Outcomes and rows of logs that wait to be sent."""
        for log in self.logs.values() if self.logs else ():
            for message in log.take_messages():
                yield Send(scheduler, message)
        if self._unsaid:
            rows, self._unsaid = self._unsaid, []
            yield Send(scheduler, m.CallOutcomes(tuple(rows)))
        returned, self._returned = self._returned, {}
        if self.own in returned:
            self._answered.update(row[0] for row in returned[self.own])
        for caller, outcomes in returned.items():
            if caller not in self.gone:
                yield Send(CLIENT + caller, m.Returned(tuple(outcomes)))


def _not_kept(actor_id: bytes, method: str) -> bytes:
    """What becomes of a call that its caller only asks for: no checkpoint has its outcome."""
    text = (
        f"{method} of actor {short(actor_id)} has no result (it may have run, in part or in whole): the actor's process ended, and it goes "
        "on from a checkpoint that does not contain this call"
    )
    return pack_failure("ActorUnavailableError", text, (("actor", actor_id.hex()), ("outcome", "unknown")))
