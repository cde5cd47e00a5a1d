"""One task or call at a time: from its claim to the report of what came of it.

What begins next, and how what runs waits, is in ``worker``; what becomes of the user's functions, arguments and values in ``user_code``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # Beneath ``signal``, whose enumerations cost as much as running a small task.
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from zfabric.adapters.serialization import NONE, SCALARS, serialize_fast
from zfabric.machines.common.naming import Namer
from zfabric.machines.worker import LEFT, Gate, Invocation, Item
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import CLIENT, JOB_BYTES, TASK_BYTES, WORKER
from zfabric.protocol.messages import ERROR, FAILED, INTERRUPTED, OK, Row
from zfabric.protocol.options import option
from zfabric.runtime import replay
from zfabric.runtime.connection import clock
from zfabric.runtime.crew import Group, StandIns, crew_for, current_call
from zfabric.runtime.hosting import leaves
from zfabric.runtime.interrupts import INTERRUPT, TaskInterrupt
from zfabric.runtime.lending import Lending
from zfabric.runtime.session import Session
from zfabric.runtime.slots import COUNT, open_slot
from zfabric.runtime.streaming import produce, produce_in_loop
from zfabric.runtime.user_code import Ending, Loaded, UserCode, never

_NOTHING = bytes(TASK_BYTES)
"""What a worker's slot says while it runs nothing."""
_TASK = slice(0, TASK_BYTES)
"""Where in the slot the task is that runs."""
_RETURNED_NONE: Ending = (OK, (NONE,), None)
SHORT = 1000
"""Characters of a text that is packed at once: a longer one may be too large to be sent with the end of its task."""
REPORT_ROWS = 512
"""Completions that are reported without waiting for more."""


class RunningWorker(UserCode):
    """A client that runs what it is given."""

    def __init__(self, session: Session, token: bytes, job: bytes) -> None:
        super().__init__(session, token, job)
        self._handler = self._interrupted
        self._mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        """The signals that the main thread has blocked when no user code has run."""
        self._first_unreported = 0.0
        self._returned: Any = None
        """What the task or call on top has returned, until it is packed."""
        self._returned_refs: set[bytes] = set()
        """Refs inside of it: retained until its end is reported, or they would be released first."""
        self._turn_bells: dict[bytes, threading.Semaphore] = {}
        """What wakes calls that wait for their turn, by actor."""
        self.lending = Lending(self.worker)
        self._slot = open_slot(session.sockets, token)
        self._close_output: Callable[[], None] = lambda: None
        """Ends the output of a task or a call that has printed something."""
        self._printing: tuple[bytes, str] = (b"", "")
        """What has printed last, and what that is called."""

    def mark(self, item: Item | Invocation | None) -> None:
        """It is this that runs now, should the process die; None: what waits, or nothing."""
        if item is None and self._contexts:
            item = self._contexts[-1]
        self._slot[_TASK] = item.row[0] if item is not None else _NOTHING

    def restore_signals(self) -> None:
        """Unblock what tasks have blocked, or those after them could not be interrupted. Not for each: it is a call of the system.

        An actor may block signals on purpose, in order to wait for them.
        """
        if self.host.instances:
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (INTERRUPT,))
        else:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self._mask)

    def _execute(self, item: Item | Invocation, claim: bool = False) -> Item | Invocation | None:
        """Run it, and with ``claim`` what comes next, and so on. What was claimed and is to run beside others is returned."""
        if not self.machine.job:
            self.machine.job = item.row[0][:JOB_BYTES]
        lock, handler, contexts, namers, asyncs = self.lock, self._handler, self._contexts, self._namers, self.worker.async_functions
        self._slot[_TASK] = item.row[0]
        namers.append(None)
        try:
            while True:
                contexts.append(item)
                if _signal.getsignal(INTERRUPT) is not handler:
                    _signal.signal(INTERRUPT, handler)  # A library of the program's has replaced it.
                started = clock()
                try:
                    ending = self._run_user_code(item)
                    if self._returned is not None:
                        self._drop_returned(ending)
                finally:
                    contexts.pop()
                ended = clock()
                lock.acquire()  # ``with`` takes twice as long, which shows in a small task.
                try:
                    following = self._end(item, ending, started, ended, claim)
                finally:
                    lock.release()
                if following is None:
                    break
                if following.row[1] in asyncs:
                    self.mark(None)
                    break
                item = following
                namers[-1] = None  # While nothing runs: finalizers submit at any moment, and would take the names of what is next.
        finally:
            namers.pop()
        if self.worker.mailbox.logs and type(item) is Invocation:
            replay.checkpoint_if_due(self, item)
        return following

    def _end(self, item: Item | Invocation, ending: Ending, started: float, ended: float, claim: bool) -> Item | Invocation | None:
        """See to it that its outcome is told. What comes next, if that is claimed. The caller holds the lock."""
        status, outputs, extra = ending
        worker = self.worker
        if self.machine.printed:
            self._say_printed(_receiver(item))
        if self.lending.waits:
            self.lending.close(item.row[0])
        if type(item) is Invocation:
            answered = not worker.mailbox.queue and extra is None and self._answer(item, status, outputs, ended)
            self._end_call(item, status, outputs, extra, started, ended - started, answered)
            unreported = worker.unreported
        else:
            answered = bool(item.driver) and extra is None and self._answer(item, status, outputs, ended)  # type: ignore[union-attr]
            unreported = worker.finish(item, status, outputs, extra, started, ended - started, answered)  # type: ignore[arg-type]
        if self._returned_refs:
            self.machine.dropped.extend(self._returned_refs)
            self._returned_refs = set()
        if self._unfinished_writes:
            self.finish_writes(item.row[0])
        if unreported == 1:
            self._first_unreported = ended
        if unreported >= REPORT_ROWS or ended - self._first_unreported > self.config.completion_delay:
            self.mark(None)
            self.restore_signals()
            self.flush()
            self.look()  # so that the queue does not run dry
        following = None
        if claim and worker.turns is None and not (self.host.leaving or worker.mailbox.logs):
            following = worker.begin(item if type(item) is Item and not self.host.instances else None)
        if following is not None:
            self._slot[_TASK] = following.row[0]
        else:
            self.mark(None)
        if not self._armed and (following is not None or worker.queue or worker.inline or worker.mailbox.queue):
            self._arm_flusher()
        return following

    def _drop_returned(self, ending: Ending) -> None:
        """Drop what was returned while the task still runs: its finalizers are user code, and may wait for other tasks."""
        refs: set[bytes] = set()
        if ending[2] is not None:
            refs.update(*ending[2][0])
            with self.lock:
                for each in refs:
                    self.machine.references.add(each)
        self._returned = None
        self._returned_refs = refs

    def _answer(self, item: Item | Invocation, status: int, outputs: Row, now: float) -> bool:
        """Send what came of it to the one that waits, ahead of all else, if that may be. The caller holds the lock."""
        answer = self.worker.answer(item, status, outputs) if not self.machine.has_unsent else None
        if answer is None:
            return False
        self.post.send_envelopes(answer.to[1:], [(CLIENT, WORKER, answer.message)], now)
        return True

    def name_of_writer(self) -> str:
        """What stands in front of the lines that this thread or coroutine prints: the task's name, or the actor's; empty if none runs."""
        item = current_call.get() or (self._contexts[-1] if self._contexts else None)
        if item is None:
            return ""
        identifier, name = self._printing
        if identifier != item.row[0]:
            name = self._writer(item)
            self._printing = item.row[0], name
        return name

    def _writer(self, item: Item | Invocation) -> str:
        if isinstance(item, Invocation):
            made_by = self.worker.mailbox.actors.get(item.actor_id)
            row, kind = None if made_by is None else made_by[0], self.host.class_of(item)
        else:
            row, kind = item.row, self._terms(item)[0]
        kind = kind.rpartition("<locals>.")[2]
        named = "" if row is None else self._option_of(row, "name", "")
        is_task = isinstance(item, Item) and item.row[1] not in self._classes
        return (named or kind) if is_task else f"{kind}, {named}" if named else kind

    def _say_printed(self, receiver: bytes) -> None:
        """Send ``OutputWritten`` to the daemon, and to ``receiver``, which may get an outcome past it. The caller holds the lock."""
        self.machine.printed = False
        self._close_output()
        if not self.config.log_to_driver:
            return
        self.worker.say_printed()
        known = receiver in self.worker.drivers or (receiver != self.incarnation and receiver not in self.worker.mailbox.gone)
        if receiver and known:
            self.post.send_envelopes(receiver, [(CLIENT, WORKER, m.OutputWritten())], clock())

    def end_beside(
        self, item: Item | Invocation, group: Group | None, outcome: Ending, started: float, flush: bool = True
    ) -> Item | Invocation | None:
        """What ran beside others has ended; the next call of its group, if there is one, takes its place."""
        status, outputs, extra = outcome
        with self.lock:
            if self.machine.printed:
                self._say_printed(_receiver(item))
            self._call_names.pop(item.row[0], None)
            if type(item) is Invocation:
                self._end_call(item, status, outputs, extra, started, clock() - started)
            else:
                self.worker.finish(item, status, outputs, extra, started, clock() - started)  # type: ignore[arg-type]
            self.finish_writes(item.row[0])
            if self.worker.gate is not None:
                self._count(self.worker.gate)
            following = None if group is None else self._next_beside(group)
            if not flush:
                pass
            elif following is None or self.worker.unreported >= REPORT_ROWS:
                self.flush()
            elif not self._armed:
                self._arm_flusher()
            if (self.host.done and not self.worker.running_calls) or (following is None and self.worker.turns is not None):
                self.post.ring()
        return following

    def _count(self, gate: Gate) -> None:
        """A call has ended of an actor that has checkpoints and no log: should this process die now, that is how many have."""
        COUNT.pack_into(self._slot, TASK_BYTES, gate.log.number, gate.log.attempt, gate.log.actor_id)
        if gate.wants_shell:
            self.post.ring()
        elif gate.opens_at is not None:
            self.control_post.ring()

    def _next_beside(self, group: Group) -> Item | Invocation | None:
        following = None if self.host.leaving else group.claim(self.worker)
        if following is None:
            group.running -= 1
        return following

    def _end_call(
        self,
        item: Invocation,
        status: int,
        outputs: Row,
        extra: tuple[Row, Row] | None,
        started: float,
        seconds: float,
        answered: bool = False,
    ) -> None:
        reason = self.worker.interrupts.pop(item.row[0], (0, "cancelled"))[1]
        whole = status != INTERRUPTED
        if not whole and reason == LEFT:
            text = f"{item.method} was stopped while it ran: the actor ended itself"
            status, outputs = FAILED, (pack_failure("ActorDiedError", text, (("outcome", "unknown"),)),)
        elif not whole:
            kind = "TaskTimeoutError" if reason == "timeout" else "TaskCancelledError"
            status, outputs = FAILED, (pack_failure(kind, f"{item.method} was stopped while it ran ({reason})"),)
        contained = extra[0] if extra is not None else ()
        if self.worker.turns is not None and self.worker.turns.is_killed(item.actor_id):
            self.abandon_writes(item.row[0])  # It has no outcome.
        if self.worker.finish_call(item, status, outputs, contained, started, seconds, whole, answered):
            self._unfinished_writes.pop(item.row[0], None)  # They are finished when the outcome leaves.

    def _run_user_code(self, item: Item | Invocation) -> Ending:
        row = item.row
        plain: Loaded | None = None
        try:
            if row[2] or item.values or item.gpus:
                pass
            elif type(item) is Invocation:
                plain = (self.host.method(item), never) if item.options is None else None
            elif len(row) == 4:
                plain = self._plain.get(row[1]) if self.thread_limit == 1 else None
            if plain is None:
                if type(item) is Item:
                    self.limit_threads(row)
                prepared = self.prepare(item)
        except TaskInterrupt:
            return INTERRUPTED, (), None
        except Exception as error:  # the user's modules are imported and values unpickled here: what they raise is the task's error
            return ERROR, (self._error(error, item),), None
        if plain is not None:
            function, retryable = plain
            return self._run_plain(item, function, retryable)
        function, retryable, args, kwargs = prepared
        del prepared  # The arguments go before what is returned is stored: both may have no room together.
        if row[1] in self._classes:
            function = replay.logged(function, item, self)  # type: ignore[arg-type]
        if item.gpus:
            self._assign_gpus(item.gpus)
        try:
            if self.worker.interrupts and self.worker.interrupted(item):
                return INTERRUPTED, (), None
            self._fence.depth = 0
            try:
                value = function(*args, **kwargs)
            finally:
                self._fence.depth = 1
            if item.options is not None if isinstance(item, Invocation) else self._streams:
                value = self.streamed(item, value)
        except BaseException as error:  # whatever the user's code raises, SystemExit and our own interrupt among it
            self._fence.depth = 1  # An interrupt may have come before the line above was reached.
            return self.failed(item, error, retryable)
        args, kwargs = (), {}
        if row[1] in self._classes:
            self.become_actor(item, value)  # type: ignore[arg-type]
            value = None
        self._returned = value
        return self.packed(item, value)

    def _run_plain(self, item: Item | Invocation, function: Callable[[], Any], retryable: Callable[[BaseException], bool]) -> Ending:
        """The same without arguments, and with nothing else that was asked for."""
        fence, worker = self._fence, self.worker
        try:
            if worker.interrupts and worker.interrupted(item):
                return INTERRUPTED, (), None
            fence.depth = 0
            try:
                value = function()
            finally:
                fence.depth = 1
        except BaseException as error:  # as above
            fence.depth = 1
            return self.failed(item, error, retryable)
        if value is None and not worker.abandoned:
            return _RETURNED_NONE
        if type(value) in SCALARS and (type(value) is not str or len(value) < SHORT) and not worker.abandoned:
            data = serialize_fast(value)
            if data is not None and len(data) <= self.config.inline_bytes:
                return OK, (data,), None
        self._returned = value
        return self.packed(item, value)

    @contextlib.contextmanager
    def running_as(self, item: Invocation, namer: Namer | None) -> Iterator[None]:
        """What the main thread does meanwhile belongs to a replayed call; ``namer`` names what it submits, if not the call itself."""
        self._namers.append(namer)
        self._contexts.append(item)
        try:
            yield
        finally:
            self._contexts.pop()
            self._namers.pop()

    def wait_quietly(self, done: Callable[[], bool]) -> None:
        """Wait for what the control thread hears, between two calls."""
        self._quiet = True
        try:
            self.wait_until(done, None)
        finally:
            self._quiet = False

    def let_go(self) -> None:
        """Let go of actors that have ended, of those that share this process; then the daemon is told so."""
        self.host.let_go()
        if self.worker.turns is not None and self.worker.turns.sayable:
            with self.lock:
                self.flush()

    def become_actor(self, item: Item, instance: Any) -> None:
        """An actor was made."""
        if self.worker.turns is not None:
            if self.host.crew is None:
                self._share_process()
            with self.lock:
                before = self.host.begin(item, instance, self.host.crew)
                if leaves(instance):
                    self.worker.turns.polite.add(item.row[0])
            del before
            return
        options = self.worker.functions[item.row[1]][3]
        crew = crew_for(self, instance, option(options, "max_concurrency"), option(options, "concurrency_groups", ()))
        with self.lock:
            self.post.hang_bell()
            self.worker.beside = crew is not None
            self.host.begin(item, instance, crew)
            if self.worker.gate is not None:
                self._count(self.worker.gate)

    def _share_process(self) -> None:
        assert self.worker.turns is not None
        with self.lock:
            self.post.hang_bell()
            self.host.crew = StandIns(self)
            self.host.gone = self.worker.turns.gone
            self.worker.turns.instances = True
            self.worker.turns.on_free = self._ring_for_turn

    def _pumped(self) -> None:
        if self._callers_gone:
            self._forget_callers()
        if self.worker.turns is not None and self.worker.stack:
            self.hand_out()  # The main thread may wait for something else than what has come.

    def hand_out(self) -> None:
        """Have what comes next begin, if nothing runs: in another thread, or in the main thread if that is idle."""
        with self.lock:
            if not self.worker.turn_free:
                return
            if self.host.crew is None:
                self._share_process()
            crew = self.host.crew if self.worker.stack else None
        if crew is not None:
            crew.hand_out()
        else:
            self.post.ring()

    def streamed(self, item: Item | Invocation, value: Any) -> Any:
        """What a task or a call returned; of one that makes a stream, how many values it has yielded."""
        ahead = self._ahead(item)
        return value if ahead is None else produce(self, item, value, ahead)

    async def streamed_in_loop(self, item: Item | Invocation, value: Any) -> Any:
        """The same of what ran in an event loop: a coroutine, or an async generator, may be what was called."""
        import inspect

        if inspect.isawaitable(value):
            value = await value
        ahead = self._ahead(item)
        return value if ahead is None else await produce_in_loop(self, item, value, ahead)

    def _ahead(self, item: Item | Invocation) -> int | None:
        """How many values a task or a call may be ahead that makes a stream (0: as configured); None if it makes none."""
        if type(item) is Invocation:
            return None if item.options is None else option(item.options, "stream")
        ahead = self._streams.get(item.row[1])
        return option(item.row[4], "stream", ahead) if ahead is not None and len(item.row) > 4 else ahead

    def yielded(self, row: Row) -> None:
        """Say the next value of a stream, as soon as that is worth a message, and hear how far the stream may go."""
        with self.lock:
            if self.machine.printed:
                self._say_printed(b"")
            self.machine.calls.results.share(row[4])
            self.worker.yields.say(row)
            self.finish_writes(row[0])
            due = clock() - self._sent_at > self.config.completion_delay or self.worker.unreported >= REPORT_ROWS
            if due:
                self.flush()
            elif not self._armed:
                self._arm_flusher()
        if due:
            self.look()

    def _ring_for_turn(self, actor_id: bytes) -> None:
        """It is the turn of a call that has waited. The caller holds the lock."""
        bell = self._turn_bells.get(actor_id)
        if bell is not None:
            bell.release()


def _receiver(item: Item | Invocation) -> bytes:
    """The process that may get the outcome of this straight from here: who calls, or who has handed the task over."""
    return item.caller if isinstance(item, Invocation) else item.driver
