"""The worker: received tasks and calls, what it has begun, what it has to report.

The shell runs user code. Tasks are claimed (``begin``) and taken back (``on_take_back``, in the control thread) under the shell's lock:
never both. Tasks in ``get`` form a stack; those that the scheduler puts on top (``inline``) begin first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from zfabric.config import Config
from zfabric.machines.worker.actor_queues import CallQueue
from zfabric.machines.worker.baton import FAREWELL, Baton
from zfabric.machines.worker.mailbox import Callee, Mailbox, Relocation
from zfabric.machines.worker.queue import Invocation, Item, TaskQueue, actor_of
from zfabric.machines.worker.quiescence import QUIET, TAKING, Gate
from zfabric.machines.worker.reports import BlockedStack, CallTrace, CompletionBatch, Drivers, MeasuredCallTrace, Yields, lone_report
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, Send
from zfabric.protocol.failures import pack_failure, unpack_failure
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER, Address, node_of_caller
from zfabric.protocol.machine import Handler, Handlers, InvariantViolation
from zfabric.protocol.messages import FAILED, INTERRUPTED, OK, Row
from zfabric.protocol.options import option
from zfabric.protocol.trace import marked

TIMES_UP = ("timeout", "run_timeout")
"""Reasons that are a TaskTimeoutError for the caller."""
LEFT = "its actor ended itself"
"""Why calls beside the actor's end are stopped."""
REPORTS = (m.Completed, m.Yielded)
"""Repeated to a restarted daemon."""
FROM_PEERS = (m.Call, m.SubmitDirect, m.OutcomesReceived, m.RelayedCalls, m.RelayedReceipt)
"""Messages of other processes, for which no checkpoint waits."""


class Worker:
    """One worker process's side."""

    def __init__(self, address: Address, config: Config) -> None:
        self.address = address
        self.config = config
        self.scheduler: Address = b""
        self.task_queue = TaskQueue()
        self.queue, self.inline = self.task_queue.queue, self.task_queue.inline
        self.mailbox = Mailbox(address[1:])
        self.call_trace = CallTrace()
        self.yields = Yields()
        self.baton: Baton | None = None
        """If actors share this process."""
        self.beside = False
        """Whether calls run concurrently, not on the stack."""
        self.gate: Gate | None = None
        """The gate of a concurrent actor with checkpoints."""
        self.relocation: Relocation | None = None
        self.running_calls: dict[bytes, Item | Invocation] = {}
        """Concurrent calls and async tasks."""
        self.stack: list[Item | Invocation] = []
        self.functions: dict[bytes, Row] = {}
        self.async_functions: set[bytes] = set()
        """Functions whose tasks run concurrently."""
        self.interrupts: dict[bytes, tuple[int, str]] = {}
        """Task id -> (attempt, reason)."""
        self.abandoned: set[bytes] = set()
        """Calls that did not stop, and failed for their callers."""
        self.stopping = False
        self.unconfirmed: list[m.Message] = []
        """Reports that the previous daemon may not have received."""
        self.counts: Counter[str] = Counter()
        self.unreturned = 0
        self.drivers = Drivers()
        self._ended = CompletionBatch()
        self._effects: list[Effect] = []
        self.waits = BlockedStack()
        self.handlers = Handlers(self.counts, self._accepted())

    # -- running --

    def begin(self, spare: Item | None = None) -> Item | Invocation | None:
        """Claim the next item, which cannot be taken back then. ``spare`` is as in ``TaskQueue.claim``."""
        item: Item | Invocation | None
        if self.baton is not None:
            item = self._begin_next(self.baton)
            if item is None:
                return None
        elif self.mailbox.queue and not self.waits.blocked and not self.beside:
            item = self.mailbox.queue.popleft()
        elif self.inline:
            item = self.task_queue.claim(self.inline, spare)
        elif self.queue and not self.waits.blocked:
            item = self.task_queue.claim(self.queue, spare)
        else:
            return None
        self.stack.append(item)
        return item

    def move_beside(self, item: Item) -> None:
        """Run the last claimed task concurrently, not on the stack."""
        self.stack.pop()
        self.running_calls[item.row[0]] = item

    def answer(self, item: Item | Invocation, status: int, outputs: Row) -> Send | None:
        """Take the message that answers a call or direct task at once, ahead of all else. No refs are inside.

        None if others must have the outcome, or other messages precede it.
        """
        mailbox = self.mailbox
        if status != OK or len(outputs) != 1 or type(outputs[0]) is not bytes or self.interrupts:
            return None
        if self._ended.rows or self._effects or self.baton is not None or self.yields.unsent or mailbox.logs or mailbox.unsent:
            return None
        if not isinstance(item, Invocation):
            is_expected = item.driver in self.drivers and not self.queue
            return self.drivers.count_value(item.driver, item.row[0], outputs) if is_expected else None
        if mailbox.queue or self.gate is not None or item.row[0] in self.abandoned:
            return None
        if item.caller in mailbox.gone or item.caller == mailbox.own:
            return None
        if item.options is None:
            return Send(CLIENT + item.caller, m.Returned(((item.row[0], status, outputs),)))
        if item.options or item.row[3] or not node_of_caller(item.caller):
            return None
        return Send(self.scheduler, m.CallOutcomes((mailbox.retain(item.row[0], item.caller, status, outputs, ()),)))

    def report_alone(self, item: Item, status: int, outputs: Row, started: float, seconds: float) -> m.Completed | None:
        """Record an attempt's outcome, and return its report, to be sent at once and alone. No refs are inside.

        Return None, with nothing recorded, unless it is one small value and nothing else has ended, runs or follows: then call ``finish``.
        """
        if status != OK or len(outputs) != 1 or type(outputs[0]) is not bytes or self._ended.rows or self._effects or self.interrupts:
            return None
        if self.queue or self.inline or self.running_calls or self.mailbox.actors or self.yields.open or self.yields.unsent:
            return None
        if self.baton is not None:
            return None
        self.stack.pop()
        return lone_report(item, outputs, started, seconds)

    def finish(
        self,
        item: Item,
        status: int,
        outputs: Row,
        extra: tuple[Row, Row] | None,
        started: float,
        seconds: float,
        answered: bool = False,
    ) -> int:
        """Record an attempt's outcome; return how many are unsent. ``answered``: its driver has it."""
        row = item.row
        if self.interrupts or status == INTERRUPTED:
            _, reason = self.interrupts.pop(row[0], (0, "cancelled"))
            if status == INTERRUPTED:
                outputs = (reason.encode(),)
        if not self.running_calls or self.running_calls.pop(row[0], None) is None:
            self.stack.pop()
        if self.yields.open:
            self.yields.end(row[0])
        ended = self._ended
        if extra is not None:
            ended.extras.append((len(ended.rows), *extra))
        ended.attempts.append(item.attempt)
        ended.statuses.append(status)
        ended.outputs.append(outputs)
        is_expected = item.driver and not answered and item.driver in self.drivers
        if is_expected and status == OK and extra is None and len(outputs) == 1 and type(outputs[0]) is bytes:
            self.drivers.queue_value(item.driver, row[0], outputs)
        ended.rows.append(row)
        ended.times += (started, seconds)
        if self.baton is not None and row[0] in self.mailbox.actors:
            self.baton.end(row[0])
        elif self.baton is not None:
            self.baton.not_made(row[0])
        return len(ended.rows)

    @property
    def may_begin(self) -> bool:
        """Whether no checkpoint holds concurrent calls back."""
        return self.gate is None or self.gate.open

    def begin_beside(self, queue: CallQueue) -> Invocation | None:
        """Claim a queue's next call, to run concurrently."""
        if not queue or not self.may_begin:
            return None
        item = queue.popleft()
        self.running_calls[item.row[0]] = item
        if self.gate is not None:
            self.gate.began(item)
        return item

    # -- actors that share this process --

    def stand_in(self) -> Item | Invocation | None:
        """Claim the next item while the top one waits."""
        item = self._begin_next(self.baton) if self.baton is not None and self.stack else None
        if item is not None:
            self.running_calls[item.row[0]] = item
        return item

    @property
    def baton_free(self) -> bool:
        """Whether the baton is free and something is queued."""
        return self.baton is not None and self.baton.free and bool(self.queue or self.mailbox.queue)

    def _begin_next(self, baton: Baton) -> Item | Invocation | None:
        """Claim the next item, tasks that make actors first: they are few, and others wait for them."""
        if not self.baton_free:
            return None
        item: Item | Invocation = self.task_queue.claim(self.queue) if self.queue else self.mailbox.queue.popleft()
        baton.begin(actor_of(item), item.row[0])
        return item

    def pass_baton(self, item: Item | Invocation, wanted: tuple[bytes, ...], may_end: bool = False) -> None:
        """Pass the baton on during a wait. ``may_end``: the item may go on without all objects."""
        assert self.baton is not None
        self.baton.wait(actor_of(item), wanted, may_end)

    def take_baton(self, item: Item | Invocation) -> bool:
        """Take the baton after a wait; False if it is not free: ask again."""
        assert self.baton is not None
        return self.baton.take(actor_of(item))

    def refused(self, item: Item | Invocation, wanted: Sequence[bytes], needed: int, callee: Callee) -> bool:
        """Whether the item's actor would wait for itself, with ``needed`` of these objects.

        ``callee`` maps an object id to the actor whose call will make it, for calls that must run (``Calls.lasting``).
        """
        return (self.baton is not None or type(item) is Invocation) and self.mailbox.refused(actor_of(item), wanted, needed, callee)

    def finish_call(
        self,
        item: Invocation,
        status: int,
        outputs: Row,
        contained: tuple[Row, ...],
        started: float,
        seconds: float,
        whole: bool = True,
        answered: bool = False,
    ) -> bool:
        """Record a call's outcome; return whether it is held back (``Mailbox.ended``). ``answered``: its caller has it."""
        baton = self.baton
        if baton is not None and item.method == FAREWELL:
            if self.running_calls.pop(item.row[0], None) is None:
                self.stack.pop()
            baton.farewell_done(item.actor_id)
            return False
        row, _ = self.mailbox.actors[item.actor_id]
        deadline = self.mailbox.timed.pop(item.row[0], None)
        if deadline is not None:
            self.mailbox.run_until.pop(item.row[0], None)
        method = item.method
        if status != OK:
            stopped = not whole or item.row[0] in self.abandoned
            late = not whole and unpack_failure(outputs[0])[0] == "TaskTimeoutError"
            method = marked(method, "timed out" if late else "cancelled" if stopped else "failed")
        self.call_trace.add(item.row[0], item.actor_id, self.functions[row[1]][1], method, started, seconds)
        if self.call_trace.full:
            self.report_trace()
        if self.running_calls.pop(item.row[0], None) is None:
            self.stack.pop()
        if self.yields.open:
            self.yields.end(item.row[0])
        if baton is not None and baton.is_killed(item.actor_id):
            baton.ended_with(item.actor_id, item.row[0])
            self.mailbox.relayed.pop(item.row[0], None)
            self.yields.release(item.row[:1])
            return False
        if item.row[0] in self.abandoned:
            self.abandoned.remove(item.row[0])
            self.yields.release(item.row[:1])
            return False
        held = False
        if not answered:
            self.unreturned += 1
            held = self.mailbox.ended(item, status, outputs, contained, whole)
        if held and deadline is not None:
            self.mailbox.timed[item.row[0]] = deadline
        if self.gate is not None:
            self.gate.ended(started + seconds, item)
        if baton is not None:
            baton.end(item.actor_id)
        return held

    def abandon(self, call_id: bytes) -> bool:
        """Fail for its caller a call that does not stop; what it returns later is dropped.

        False if its end must be awaited: a log or checkpoints record it, or actors share the process.
        """
        item = self._running(call_id)
        asked = self.interrupts.get(call_id)
        if type(item) is not Invocation or asked is None or item.actor_id in self.mailbox.logs:
            return False
        if self.baton is not None or self.gate is not None:
            return False
        if asked[1] == LEFT:
            return False  # The actor's end is about to reach its caller.
        if call_id not in self.abandoned:
            kind = "TaskTimeoutError" if asked[1] in TIMES_UP else "TaskCancelledError"
            text = f"{item.method} was to be stopped ({asked[1]}) and does not: it runs code that does not come back to Python, and goes on"
            self.abandoned.add(call_id)
            self.unreturned += 1
            self.mailbox.ended(item, FAILED, (pack_failure(kind, text),), (), False)
        return True

    def report_output(self) -> None:
        """Report written output: ahead of the next outcome, behind earlier ones."""
        self._report()
        self._effects.append(Send(self.scheduler, m.OutputWritten()))

    def report_counts(self) -> None:
        """Report when calls ran and how many have ended, where nothing else does."""
        if self.gate is not None:
            self.gate.log.report_count(self.gate.waits_for)
        self.report_trace()

    def report_trace(self) -> None:
        """Report when calls ran."""
        traced = self.call_trace.take(self.mailbox.took)
        if traced is not None:
            self._effects.append(Send(self.scheduler, traced))

    def report_delays(self, callee: Callee) -> None:
        """Once a second: report calls that last in a shared process. ``callee`` as in ``Baton.delays``."""
        news = self.baton.delays(callee) if self.baton is not None else None
        if news is not None:
            self._effects.append(Send(self.scheduler, news))

    @property
    def unreported(self) -> int:
        """Unsent outcomes."""
        return len(self._ended.rows) + self.unreturned + len(self.yields.unsent)

    @property
    def has_unsent(self) -> bool:
        """Whether anything waits to be sent."""
        ended = self.baton is not None and self.baton.has_reports
        return bool(self._ended.rows or self._effects or self.yields.unsent or self.mailbox.unsent or ended)

    def block(self, wanted: tuple[bytes, ...], inline: bool, name: str = "", callees: m.Rows = (), certain: bool = False) -> None:
        """Have the top task wait. Unbegun tasks are returned, with those for on top of lower waits.

        For a call with a ``name``, or a wait for calls, ``callees`` and ``certain`` are as in ``WaitDetails``.
        """
        blocked = m.Blocked(self.stack[-1].row[0], wanted, self.task_queue.clear_inline() + self.task_queue.clear_queue(), inline)
        certain = certain and blocked.task_id not in self.mailbox.timed
        self._report()
        self._effects.extend(Send(self.scheduler, message) for message in self.waits.begin(blocked, name, callees, certain))

    def unblock(self) -> None:
        """Have the top task go on. Unbegun tasks for on top of it are returned."""
        if self.inline:
            self._report_taken_back(self.task_queue.clear_inline())
        self._effects.append(Send(self.scheduler, self.waits.end()))

    def _report(self) -> None:
        if self.yields.unsent:
            self._effects.append(Send(self.scheduler, self.yields.take()))
        completed = self._ended.take()
        if completed is not None:
            self._effects.append(Send(self.scheduler, completed))

    # -- the contract --

    def step(self, now: float, source: Address, message: m.Message) -> None:
        """Handle a message. A checkpoint may have waited only for the scheduler's confirmation."""
        self.handlers[type(message)](now, source, message)
        if self.gate is not None and type(message) not in FROM_PEERS:
            self.gate.look(now)

    def on_functions(self, now: float, source: Address, message: m.Functions) -> None:
        """Store functions of the rows that follow."""
        for row in message.functions:
            self.functions[row[0]] = row
            if option(row[3], "lightweight", False) and self.baton is None:
                self.baton = Baton(self.mailbox, self.interrupts)
            if option(row[3], "max_concurrency") is not None and option(row[3], "actor") is None:
                self.async_functions.add(row[0])

    def on_dispatch(self, now: float, source: Address, message: m.Dispatch) -> None:
        """Queue tasks; return those sent for another state of the waits."""
        self.task_queue.add_dispatched(message)
        if message.waits:
            if message.waits != self.waits.changes:
                self._report_taken_back(self.task_queue.clear_inline())
        elif self.waits and self.queue:
            self._report_taken_back(self.task_queue.clear_queue())

    def on_allow_direct(self, now: float, source: Address, message: m.AllowDirect) -> None:
        """Accept tasks that a driver submits directly."""
        self._effects.append(Send(self.scheduler, self.drivers.accept(message.client)))

    def on_submit_direct(self, now: float, source: Address, message: m.SubmitDirect) -> None:
        """Queue a driver's tasks, if it has the same daemon."""
        if message.daemon == self.scheduler[1:]:
            self.task_queue.add_direct(message.rows, message.attempt, source[1:])
            if self.waits:
                self._report_taken_back(self.task_queue.clear_queue())

    def on_take_back(self, now: float, source: Address, message: m.TakeBack) -> None:
        """Return tasks that have not begun."""
        self._report_taken_back(self.task_queue.give_back(set(message.task_ids)))

    def _report_taken_back(self, taken: Iterable[bytes]) -> None:
        running = self.stack[-1].row[0] if self.stack else b""
        self._report()
        self._effects.append(Send(self.scheduler, m.TakenBack(tuple(taken), running)))

    def on_interrupt(self, now: float, source: Address, message: m.Interrupt) -> None:
        """Return an attempt that has not begun, else interrupt it once it is on top in user code."""
        if any(row[0] == message.task_id for row, _ in self.task_queue.waiting()):
            self.on_take_back(now, source, m.TakeBack((message.task_id,)))
        else:
            item = self._running(message.task_id)
            if item is not None and item.attempt == message.attempt:
                self.interrupts[message.task_id] = (message.attempt, message.reason)

    def _running(self, identifier: bytes) -> Item | Invocation | None:
        return next((item for item in (*self.stack, *self.running_calls.values()) if item.row[0] == identifier), None)

    def on_stop_call(self, now: float, source: Address, message: m.StopCall) -> None:
        """Stop a call, even one yet to arrive."""
        if not self._stop(message.call_id, message.reason):
            self.mailbox.stop_later(message.call_id, message.reason)

    def _stop(self, call_id: bytes, reason: str) -> bool:
        if self.mailbox.stop(call_id, reason):
            return True
        item = self._running(call_id)
        if item is not None:
            self.interrupts[call_id] = (item.attempt, reason)
        return item is not None

    def on_caller_gone(self, now: float, source: Address, message: m.CallerGone) -> None:
        """Send nothing more to an exited process; return its queued direct tasks."""
        self.mailbox.caller_gone(message.incarnation)
        if self.drivers.forget(message.incarnation):
            handed = self.task_queue.submitted_by(message.incarnation)
            if handed:
                self.on_take_back(now, source, m.TakeBack(handed))

    def on_outcomes_recorded(self, now: float, source: Address, message: m.OutcomesRecorded) -> None:
        """The scheduler has outcomes of calls, or of tasks that made streams."""
        self.mailbox.recorded(message.call_ids)
        self.yields.release(message.call_ids)

    def on_log_committed(self, now: float, source: Address, message: m.LogCommitted) -> None:
        """An actor's log is committed."""
        self.mailbox.durable(message.actor_id, message.upto)

    def on_outcomes_received(self, now: float, source: Address, message: m.OutcomesReceived) -> None:
        """A caller has acknowledged outcomes."""
        self.mailbox.acknowledged(source[1:], *message)

    def on_relayed_receipt(self, now: float, source: Address, message: m.RelayedReceipt) -> None:
        """Another node's caller has outcomes."""
        self.mailbox.acknowledged(message.caller, message.actor_id, message.call_ids, message.others)

    def on_retire_actor(self, now: float, source: Address, message: m.RetireActor) -> None:
        """End an actor that has no handle, or was killed."""
        if self.baton is None:
            self.mailbox.retiring = True
            return
        item = self._running(message.actor_id)
        if item is not None and item.attempt != message.attempt:
            return
        self.task_queue.drop(message.actor_id, message.attempt)
        running = self.baton.retire(message.actor_id, message.attempt, message.at_once)
        if running:
            self.interrupts[running] = (message.attempt, "killed")

    def on_drain_actor(self, now: float, source: Address, message: m.DrainActor) -> None:
        """Hold calls: once running ones have ended, the actor moves. May come again."""
        known = self.mailbox.actors.get(message.actor_id)
        if self.baton is None and self.relocation is None and known is not None and known[1] == message.attempt:
            self.relocation = Relocation(self.mailbox, now, self.config.quiesce_seconds if self.beside else 0.0)
            self._route_calls()

    def on_measure_calls(self, now: float, source: Address, message: m.MeasureCalls) -> None:
        """Report for a time how long calls wait."""
        if isinstance(self.call_trace, MeasuredCallTrace):
            self.call_trace.until = now + message.seconds
        else:
            self.report_trace()
            self.call_trace = MeasuredCallTrace(now + message.seconds, self._present_calls)
            self._route_calls()

    def _present_calls(self) -> Iterator[bytes]:
        for queue in (self.mailbox.queue, *self.mailbox.groups.values(), self.mailbox.held):
            yield from (item.row[0] for item in queue)
        yield from (item.row[0] for item in (*self.stack, *self.running_calls.values()))

    @property
    def measures(self) -> bool:
        """Whether somebody measures waits."""
        return isinstance(self.call_trace, MeasuredCallTrace)

    def _route_calls(self) -> None:
        """Choose handlers for calls: the usual one pays nothing for the others."""
        for kind, handler in ((m.Call, self.mailbox.accept), (m.RelayedCalls, self.mailbox.accept_relayed)):
            accept: Handler = handler
            accept = accept if self.relocation is None else self._held(accept)
            self.handlers[kind] = self._measured(accept) if self.measures else accept

    def _held(self, accept: Handler) -> Handler:
        def handle(now: float, source: Address, message: m.Message) -> None:
            accept(now, source, message)
            assert self.relocation is not None
            self.relocation.hold()

        return handle

    def _measured(self, accept: Handler) -> Handler:
        def handle(now: float, source: Address, message: m.Call | m.RelayedCalls) -> None:
            accept(now, source, message)
            trace = self.call_trace
            assert isinstance(trace, MeasuredCallTrace)
            if now < trace.until:
                trace.arrived(now, message.rows)
            else:
                self.report_trace()
                self.call_trace = CallTrace()
                self._route_calls()

        return handle

    def may_relocate(self, called: Iterable[bytes]) -> bool:
        """Whether the actor can leave: nothing runs, or will run here.

        ``called`` actors have calls of this process without an outcome.
        """
        mailbox = self.mailbox
        if self.relocation is None or self.stack or self.running_calls or mailbox.waiting or not mailbox.settled:
            return False
        return mailbox.actors.keys().isdisjoint(called)

    def relocate(self) -> m.ActorDrained:
        """Let no call begin, once ``may_relocate``; return the message."""
        assert self.relocation is not None
        self.relocation.end()
        ((actor_id, (_, attempt)),) = self.mailbox.actors.items()
        return m.ActorDrained(actor_id, attempt)

    def interrupted(self, item: Item | Invocation) -> str:
        """Why this attempt is to be stopped, or ""."""
        found = self.interrupts.get(item.row[0])
        return found[1] if found is not None and found[0] == item.attempt else ""

    def leave(self, item: Item | Invocation | None) -> list[bytes]:
        """Stop the calls of an actor that ends itself, except ``item``, which ends it. Return their ids."""
        running = (*self.stack, *self.running_calls.values()) if item is None else self.running_calls.values()
        others = [each for each in running if type(each) is Invocation and (item is None or each.row[0] != item.row[0])]
        for each in others:
            self.interrupts[each.row[0]] = (each.attempt, LEFT)
        return [each.row[0] for each in others]

    def on_allow_yields(self, now: float, source: Address, message: m.AllowYields) -> None:
        """Let a stream yield further values."""
        if message.task_id in self.yields.open:
            self.yields.allow(message.task_id, message.upto)

    def on_stop_worker(self, now: float, source: Address, message: m.StopWorker) -> None:
        """Exit after what runs now."""
        self.stopping = True

    def running(self) -> tuple[m.Message, ...]:
        """What a restarted scheduler must receive: tasks, unconfirmed reports, waits."""
        begun = (*self.stack, *self.running_calls.values())
        rows = tuple((item.row, item.attempt, True, self.interrupted(item)) for item in begun if type(item) is Item)
        rows += tuple((row, attempt, False, "") for row, attempt in self.task_queue.waiting())
        self._report()
        unconfirmed, self.unconfirmed = self.unconfirmed, []
        unconfirmed += [effect.message for effect in self._effects if isinstance(effect, Send) and type(effect.message) in REPORTS]
        self._effects = []
        if self.baton is not None:
            self.baton.start_over()
        hosted = (m.HostedActors(tuple(self.mailbox.actors.values())),) if self.mailbox.actors or self.baton is not None else ()
        ended = self._ended_meanwhile(unconfirmed) if self.baton is not None else ()
        return (
            *hosted,
            m.RunningTasks(rows, self.task_queue.gpus),
            *self.yields.repeated(unconfirmed, self.mailbox.awaits_record),
            *self.waits.repeated(),
            *self.mailbox.unrecorded(),
            *ended,
        )

    def _ended_meanwhile(self, unconfirmed: Iterable[m.Message]) -> tuple[m.Message, ...]:
        """Ends of actors that are gone, and whose making ``unconfirmed`` repeats."""
        made = [row for message in unconfirmed if type(message) is m.Completed for row in message.rows]
        gone = [row for row in made if row[2] == OK and row[0] not in self.mailbox.actors]
        return tuple(m.ActorEnded(row[0], row[1], b"", "it ended as its node's daemon did") for row in gone)

    def unread(self) -> tuple[Row, ...]:
        """Places that came with queued tasks, as in ``Pinned``."""
        return self.task_queue.unread()

    def tick(self, now: float) -> None:
        """Stop calls and open a gate whose time is up."""
        for call_id in self.mailbox.deadlines.due(now):
            reason = "run_timeout" if self.mailbox.run_until.pop(call_id, None) is not None else "timeout"
            if not self._stop(call_id, reason):
                self.mailbox.give_up(call_id)
        if self.gate is not None:
            self.gate.tick(now)
        if self.relocation is not None:
            self.relocation.tick(now, bool(self.running_calls))

    def next_deadline(self) -> float | None:
        """When ``tick`` is due, or held calls may begin."""
        due = self.mailbox.deadlines.next()
        opens_at = self.gate.opens_at if self.gate is not None else None
        due = due if opens_at is None else opens_at if due is None else min(due, opens_at)
        changes_at = self.relocation.changes_at if self.relocation is not None else None
        return due if changes_at is None else changes_at if due is None else min(due, changes_at)

    def take_effects(self, now: float) -> list[Effect]:
        """Take completions, and what was queued between them, in order."""
        self._report()
        effects, self._effects = self._effects, []
        if self.drivers.unsent:
            effects = [*self.drivers.take_results(), *effects, *self.drivers.take_counts(self.scheduler)]
        self.unreturned = 0
        if self.mailbox.unsent:
            effects.extend(self.mailbox.take_sends(self.scheduler))
        elif self.baton is not None and self.baton.has_reports:
            # Behind everything that those actors queued.
            effects.extend(Send(self.scheduler, ended) for ended in self.baton.take_ended())
        return effects

    def connect(self, daemon: bytes) -> None:
        """Send everything to this incarnation."""
        self.scheduler = LOCAL_SCHEDULER + daemon

    def statistics(self) -> Mapping[str, float]:
        """Return counters and sizes."""
        return {**self.counts, "queued": len(self.queue), "depth": len(self.stack)}

    def check_invariants(self) -> None:
        """Check that waits, concurrent calls and the baton agree with the stack."""
        if len(self.waits) > len(self.stack):
            raise InvariantViolation("more items wait than are on the stack")
        gate = self.gate
        if gate is not None and gate.state in (QUIET, TAKING) and any(gate.counts(item) for item in self.running_calls.values()):
            raise InvariantViolation("a moment is taken for a quiet one in which a call runs")
        baton = self.baton
        if baton is not None:
            begun = sorted(item.row[0] for item in (*self.stack, *self.running_calls.values()))
            if begun != sorted(baton.busy.values()):
                raise InvariantViolation("an actor runs two calls, or what has begun is not known")
            if len(begun) > len(baton.wanted) + bool(baton.running):
                raise InvariantViolation("two calls run at the same time")

    def _accepted(self) -> dict[type[Any], Handler]:
        return {
            m.Functions: self.on_functions,
            m.Dispatch: self.on_dispatch,
            m.AllowDirect: self.on_allow_direct,
            m.SubmitDirect: self.on_submit_direct,
            m.TakeBack: self.on_take_back,
            m.Interrupt: self.on_interrupt,
            m.StopWorker: self.on_stop_worker,
            m.AllowYields: self.on_allow_yields,
            m.Call: self.mailbox.accept,
            m.RelayedCalls: self.mailbox.accept_relayed,
            m.RelayedReceipt: self.on_relayed_receipt,
            m.StopCall: self.on_stop_call,
            m.CallerGone: self.on_caller_gone,
            m.OutcomesRecorded: self.on_outcomes_recorded,
            m.LogCommitted: self.on_log_committed,
            m.OutcomesReceived: self.on_outcomes_received,
            m.RetireActor: self.on_retire_actor,
            m.DrainActor: self.on_drain_actor,
            m.MeasureCalls: self.on_measure_calls,
        }
