"""The worker process: runs user code in its main thread, and reports what came of it.

The main thread takes tasks from its queue under the lock, runs them, reports in batches, and waits for more. A task that waits in ``get``
says so and pumps; what the scheduler puts on top of it runs right there. What it says and hears, and how it is interrupted, is in
``worker_connection``; what becomes of the user's functions, arguments and values in ``user_code``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # Beneath ``signal``, whose enumerations cost as much as running a small task.
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from zfabric.adapters.processes import flush_output
from zfabric.exceptions import DeadlockError, FabricError
from zfabric.machines.parts.mailbox import Invocation
from zfabric.machines.parts.naming import Namer
from zfabric.machines.parts.quiescence import Gate
from zfabric.machines.worker import LEFT, Item, actor_of
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import CLIENT, CONTROL, JOB_BYTES, TASK_BYTES, WORKER
from zfabric.protocol.messages import ERROR, FAILED, INTERRUPTED, Row
from zfabric.protocol.options import option
from zfabric.runtime import interface, replay
from zfabric.runtime.connection import clock
from zfabric.runtime.crew import Group, Loop, StandIns, crew_for, current_call
from zfabric.runtime.hosting import leaves
from zfabric.runtime.interrupts import INTERRUPT, TaskInterrupt, closed_to_interrupts
from zfabric.runtime.lending import Lending
from zfabric.runtime.session import Session
from zfabric.runtime.slots import COUNT, open_slot
from zfabric.runtime.streaming import produce, produce_in_loop
from zfabric.runtime.user_code import Ending, UserCode

RECURSION_PER_TASK = 40
"""Python frames that one task on the stack may take before its own: ``get``, the pump, and running the next one."""
LAST_WORD_SECONDS = 2.0
"""How long an actor that ends itself waits until the daemon has heard so (which may just be restarted)."""
_NOTHING = bytes(TASK_BYTES)
"""What a worker's slot says while it runs nothing."""
REPORT_ROWS = 256
"""Completions that are reported without waiting for more."""


class WorkerRuntime(UserCode):
    """A worker: a client that also runs tasks."""

    def __init__(self, session: Session, token: bytes, job: bytes) -> None:
        super().__init__(session, token, job)
        self._handler = self._interrupted
        self._first_unreported = 0.0
        self._returned: Any = None
        self._turn_bells: dict[bytes, threading.Semaphore] = {}
        """What wakes calls that wait for their turn, by actor."""
        self.lending = Lending(self.worker)
        self._slot = open_slot(session.sockets, token)

    # -- running tasks --

    def run(self) -> None:
        """Until told to stop."""
        asyncs = self.worker.async_functions
        try:
            while True:
                if self.host.gone:
                    self.let_go()
                item = self._next()
                if item is not None:
                    if item.row[1] in asyncs:
                        self._start_beside(item)  # type: ignore[arg-type]
                    else:
                        self._execute(item)
                elif self.worker.turns is not None:
                    self._idle()
                elif self._may_retire():
                    self._retire()
                else:
                    if self.host.crew is not None:
                        replay.look_after(self)
                        self.host.crew.hand_out()
                    self._idle()
        except KeyboardInterrupt:
            raise SystemExit(0) from None

    def let_go(self) -> None:
        """Let go of actors that have ended, of those that share this process; then the daemon is told so."""
        self.host.let_go()
        if self.worker.turns is not None and self.worker.turns.sayable:
            with self.lock:
                self.flush()

    def _may_retire(self) -> bool:
        """Whether there is nothing more to do as an actor. One that has ended itself does not wait for threads that do not come back."""
        return self.host.done and (not self.worker.running_calls or (self.host.leaving and clock() >= self.host.leaves_at))

    def _retire(self) -> None:
        """The end of an actor's process, with all that it has to say said, and heard: else it would be taken for a death."""
        self.host.end()
        self._returned = None
        if self.host.leaving:
            # That it ends for good must be heard before its death is noticed, or it would be made again: the answer says that it was.
            with contextlib.suppress(FabricError):
                self.query("nothing", timeout=LAST_WORD_SECONDS)
        self._say_the_last()
        raise SystemExit(0)

    def _start_beside(self, item: Item) -> None:
        if self._loop is None:
            self._loop = Loop(self, ())
        with self.lock:
            self.worker.move_beside(item)
        self._loop.start(((item, None),))

    def _next(self) -> Item | Invocation | None:
        with self.lock:
            item = self.worker.begin() if not self.host.leaving else None
            if item is None:
                self.flush()
            return item

    def _idle(self) -> None:
        worker, host = self.worker, self.host

        def wanted() -> bool:
            if worker.turns is not None:
                return worker.turn_free or bool(host.gone)
            calls = not host.leaving and (host.crew.wanted() if host.crew is not None else worker.mailbox.queue)
            gate = worker.gate is not None and worker.gate.wants_shell
            return bool(calls or gate or worker.queue or worker.inline or self._may_retire())

        flush_output()  # Lines that are not at their end: they may be the last ones.
        self.wait_until(wanted, host.leaves_at if host.leaving and host.leaves_at > clock() else None)

    def mark(self, item: Item | Invocation) -> None:
        """It is this that runs now, should the process die."""
        self._slot[0:TASK_BYTES] = item.row[0]

    def _execute(self, item: Item | Invocation) -> None:
        row = item.row
        self.mark(item)
        if not self.machine.job:
            self.machine.job = row[0][:JOB_BYTES]
        if _signal.getsignal(INTERRUPT) is not self._handler:
            _signal.signal(INTERRUPT, self._handler)  # A library of the program's has replaced it.
        self._contexts.append(item)
        self._namers.append(None)
        started = clock()
        try:
            status, outputs, extra = self._run_user_code(item)
        finally:
            self._contexts.pop()
            self._namers.pop()
        ended = clock()
        worker = self.worker
        with self.lock:
            waited_for = not worker.mailbox.queue if isinstance(item, Invocation) else item.driver != b""
            answered = waited_for and extra is None and self._answer(item, status, outputs, ended)
            self._slot[0:TASK_BYTES] = self._contexts[-1].row[0] if self._contexts else _NOTHING
            if self.lending.waits:
                self.lending.close(row[0])
            if type(item) is Invocation:
                self._end_call(item, status, outputs, extra, started, ended - started, answered)
            else:
                worker.finish(item, status, outputs, extra, started, ended - started, answered)  # type: ignore[arg-type]
            self._returned = None
            if self._unfinished_writes:
                self.finish_writes(row[0])
            unreported = worker.unreported
            if unreported == 1:
                self._first_unreported = ended
            if not self._armed and (worker.queue or worker.inline or worker.mailbox.queue):
                self._arm_flusher()
            if unreported >= REPORT_ROWS or ended - self._first_unreported > self.config.completion_delay:
                self.flush()
                self.look()  # so that the queue does not run dry
        if worker.mailbox.logs and type(item) is Invocation:
            replay.checkpoint_if_due(self, item)

    def _answer(self, item: Item | Invocation, status: int, outputs: Row, now: float) -> bool:
        """Send what came of it to the one that waits, ahead of all else, if that may be. The caller holds the lock."""
        answer = self.worker.answer(item, status, outputs) if not self.machine.has_unsent else None
        if answer is None:
            return False
        self.post.send_envelopes(answer.to[1:], [(CLIENT, WORKER, answer.message)], now)
        return True

    def end_beside(
        self, item: Item | Invocation, group: Group | None, outcome: Ending, started: float, flush: bool = True
    ) -> Item | Invocation | None:
        """What ran beside others has ended; the next call of its group, if there is one, takes its place."""
        status, outputs, extra = outcome
        with self.lock:
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
        try:
            function, retryable, args, kwargs = self.prepare(item)
        except TaskInterrupt:
            return INTERRUPTED, (), None
        except Exception as error:  # the user's modules are imported and values unpickled here: what they raise is the task's error
            return ERROR, (self._error(error, item),), None
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
            if self._streams or type(item) is Invocation:
                value = self.streamed(item, value)
        except BaseException as error:  # whatever the user's code raises, SystemExit and our own interrupt among it
            self._fence.depth = 1  # An interrupt may have come before the line above was reached.
            return self.failed(item, error, retryable)
        del args, kwargs
        if row[1] in self._classes:
            self.become_actor(item, value)  # type: ignore[arg-type]
            value = None
        self._returned = value  # The refs in it live until its end is told: they would be let go of first otherwise.
        return self.packed(item, value)

    @contextlib.contextmanager
    def running_as(self, item: Invocation, namer: Namer | None) -> Iterator[None]:
        """What the main thread does meanwhile belongs to a replayed call; ``namer`` names what it submits, if not the call itself."""
        self._contexts.append(item)
        self._namers.append(namer)
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
        if ahead is not None:
            return await produce_in_loop(self, item, value, ahead)
        return [each async for each in value] if inspect.isasyncgen(value) and self._terms(item)[1] > 1 else value

    def _ahead(self, item: Item | Invocation) -> int | None:
        """How many values a task or a call may be ahead that makes a stream (0: as configured); None if it makes none."""
        if type(item) is Invocation:
            return None if item.options is None else option(item.options, "stream")
        ahead = self._streams.get(item.row[1])
        return option(item.row[4], "stream", ahead) if ahead is not None and len(item.row) > 4 else ahead

    def yielded(self, row: Row) -> None:
        """Say the next value of a stream, as soon as that is worth a message, and hear how far the stream may go."""
        with self.lock:
            self.machine.calls.share(row[4])
            self.worker.yields.say(row)
            self.finish_writes(row[0])
            due = clock() - self._sent_at > self.config.completion_delay or self.worker.unreported >= REPORT_ROWS
            if due:
                self.flush()
            elif not self._armed:
                self._arm_flusher()
        if due:
            self.look()

    # -- waiting inside a task --

    def wait_for(self, object_ids: Sequence[bytes], done: Callable[[], bool], deadline: float | None, plain: bool, needed: int) -> bool:
        """Say that the task on top waits, run what is put on top of it, and say when it goes on."""
        if self.worker.turns is not None:
            return self._wait_turn(object_ids, done, deadline, needed)
        if threading.get_ident() != self._main or not self._contexts:
            return self._wait_beside(tuple(object_ids), done, deadline)
        item = self._contexts[-1]
        if type(item) is Invocation:
            self._refuse_deadlock(item, object_ids, needed)
            plain = False  # Nothing but its own calls runs in an actor's process.
        inline = plain and ("asyncio" not in sys.modules or not _in_event_loop())
        worker = self.worker
        certain = deadline is None and 0 < needed == len(object_ids)
        with self.lock:
            if done():
                return True
            self.lending.suspend(item.row[0])
            name = self._terms(item)[0] if type(item) is Invocation else ""
            calls = self.machine.calls
            certain = certain and not calls.may_end(object_ids)
            worker.block(tuple(object_ids), inline, name, calls.callees(object_ids), certain)

        def news() -> bool:
            return bool(worker.inline or worker.deadlocks) or worker.interrupted(item) != "" or done()

        try:
            while True:
                answered = self.wait_until(news, deadline)
                with self.lock:
                    ready = done()
                    next_item = self.worker.begin() if self.worker.inline else None
                if next_item is not None:
                    self._execute(next_item)
                elif self.worker.interrupted(item):
                    raise TaskInterrupt("the task is to be stopped")
                elif ready or not answered:
                    return ready
                elif item.row[0] in worker.deadlocks:
                    raise self._deadlock(item, worker.deadlocks[item.row[0]], "wait elsewhere, or return the ref")
        finally:
            with self.lock:
                self.worker.unblock()
                self.lending.resume(item.row[0])
                if not self._armed:
                    self._arm_flusher()  # What follows, a completion most often, takes the news along.

    def _wait_beside(self, wanted: tuple[bytes, ...], done: Callable[[], bool], deadline: float | None) -> bool:
        """A thread that runs a call waits, or one of the program's own."""
        call = current_call.get()
        if call is None:
            return self._wait_lending(wanted, done, deadline)
        answered = self.wait_until(lambda: self.worker.interrupted(call) != "" or done(), deadline)
        if self.worker.interrupted(call):
            raise TaskInterrupt("the call is to be stopped")
        return answered

    def _wait_lending(self, wanted: tuple[bytes, ...], done: Callable[[], bool], deadline: float | None) -> bool:
        with self.lock:
            if done():
                return True
            lender = self.lending.begin(wanted)
        try:
            return self.wait_until(done, deadline)
        finally:
            self._go_on(lender, wanted)

    def _go_on(self, lender: bytes, wanted: tuple[bytes, ...]) -> None:
        with self.lock:
            self.lending.end(lender, wanted)
            if not self._armed:
                self._arm_flusher()

    @closed_to_interrupts
    def add_done_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """See ``ClientInterface``. A task that runs an event loop, or waits for a future, lends its CPU until then."""
        shared = self.worker.turns is not None
        if current_call.get() is not None and not shared:
            super().add_done_callback(object_id, callback)
            return
        with self.lock:
            if self.machine.at_hand(object_id):
                lender = b""
            else:
                lender = self._lend_turn((object_id,)) if shared else self.lending.begin((object_id,))
        if not lender:
            super().add_done_callback(object_id, callback)
            return

        def told(identifier: bytes) -> None:
            (self._lend_turn_no_more if shared else self._go_on)(lender, (object_id,))
            callback(identifier)

        super().add_done_callback(object_id, told)
        if shared:
            self._hand_out()

    def _wait_turn(self, object_ids: Sequence[bytes], done: Callable[[], bool], deadline: float | None, needed: int) -> bool:
        """A call of an actor that shares this process waits: others have their turn meanwhile. They run in other threads."""
        worker, main = self.worker, threading.get_ident() == self._main
        item = self._run_here()
        if item is None:
            return self._wait_aside(tuple(object_ids), done, deadline)
        with self.lock:
            if done():
                return True
            self._refuse_cycle(item, object_ids, needed)
            worker.give_up_turn(item, tuple(object_ids), deadline is not None or needed < len(object_ids))

        def news() -> bool:
            return (main and (worker.turn_free or bool(self.host.gone))) or worker.interrupted(item) != "" or done()

        try:
            self._hand_out()
            while True:
                answered = self.wait_until(news, deadline)
                with self.lock:
                    ready = done()
                if worker.interrupted(item):
                    raise TaskInterrupt("the call is to be stopped")
                if ready or not answered:
                    return ready
                self.let_go()
                self._hand_out()
        finally:
            self._wait_for_turn(item)

    def _run_here(self) -> Item | Invocation | None:
        """What this thread runs, in a process that actors share; None of a thread that such a call has started, or of the program's own."""
        if threading.get_ident() == self._main:
            return self._contexts[-1] if self._contexts else None
        item, crew = current_call.get(), self.host.crew
        return item if item is not None and isinstance(crew, StandIns) and crew.runs_here(item) else None

    def _hand_out(self) -> None:
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

    def _pump(self, timeout: float) -> bool:
        found = super()._pump(timeout)
        if self.worker.turns is not None and self.worker.stack:
            self._hand_out()  # The main thread may wait for something else than what comes here.
        return found

    def _wait_aside(self, wanted: tuple[bytes, ...], done: Callable[[], bool], deadline: float | None) -> bool:
        """A thread waits that a call has started, in a process that actors share: it may be all that the call waits for."""
        with self.lock:
            if done():
                return True
            lender = self._lend_turn(wanted)
        try:
            self._hand_out()
            return self.wait_until(done, deadline)
        finally:
            self._lend_turn_no_more(lender, wanted)

    def _lend_turn(self, wanted: tuple[bytes, ...]) -> bytes:
        """The actor whose call lends its turn; empty if none runs. The caller holds the lock."""
        turns = self.worker.turns
        assert turns is not None
        item = self._run_here() or current_call.get()
        call_id = item.row[0] if item is not None else turns.running
        lender = next((actor_id for actor_id, begun in turns.busy.items() if begun == call_id), b"")
        if lender:
            turns.lend(lender, wanted)
        return lender

    def _lend_turn_no_more(self, lender: bytes, wanted: tuple[bytes, ...]) -> None:
        with self.lock:
            if self.worker.turns is not None:
                self.worker.turns.lend_no_more(lender, wanted)

    def _wait_for_turn(self, item: Item | Invocation) -> None:
        """Until what runs meanwhile has ended, or waits. Nothing else ends this wait: what goes on without its turn would run beside it."""
        actor_id = actor_of(item)
        interrupt: BaseException | None = None
        while True:
            try:
                with self.lock:
                    if self.worker.take_turn(item):
                        self._turn_bells.pop(actor_id, None)
                        break
                    bell = self._turn_bells.setdefault(actor_id, threading.Semaphore(0))
                bell.acquire()
            except TaskInterrupt as error:
                interrupt = error
        self.mark(item)
        if interrupt is not None:
            raise interrupt

    def _ring_for_turn(self, actor_id: bytes) -> None:
        """It is the turn of a call that has waited. The caller holds the lock."""
        bell = self._turn_bells.get(actor_id)
        if bell is not None:
            bell.release()

    def _refuse_cycle(self, item: Item | Invocation, object_ids: Sequence[bytes], needed: int) -> None:
        """DeadlockError if actors of this process would wait for each other, and the last of them for the first."""
        assert self.worker.turns is not None
        lasting = partial(self.machine.calls.lasting, lives=self.worker.mailbox.actors)
        cycle = self.worker.turns.refused(actor_of(item), object_ids, needed, lasting)
        if cycle:
            name = self._terms(item)[0]
            path = " -> ".join([name, *(type(self.host.instances.get(each)).__qualname__ for each in cycle), name])
            raise self._deadlock(item, path, "call the method directly (self.method()), or return the ref")

    def _deadlock(self, item: Item | Invocation, circle: str, advice: str) -> DeadlockError:
        name = self._terms(item)[0]
        return DeadlockError(f"{name} waits for a call that can only run once {name} has returned: {circle}; {advice}")

    def _refuse_deadlock(self, item: Invocation, object_ids: Sequence[bytes], needed: int) -> None:
        """DeadlockError if an actor waits for a call that it would have to run itself, after the one that waits."""
        calls, lives = self.machine.calls, self.worker.mailbox.actors
        own = sum(1 for each in object_ids if calls.lasting(each, lives) == item.actor_id) if needed else 0
        if own > len(object_ids) - needed:
            name = self._terms(item)[0]
            raise DeadlockError(
                f"{name} waits for a call of its own actor, which can only run once {name} has returned: "
                f"{name} -> {self.host.class_of(item)} -> {name}; call the method directly (self.method()), or return the ref"
            )


def _in_event_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run(session: Session, token: bytes, job: bytes) -> None:
    """The worker child's body: until its job, its daemon's node, or the scheduler's patience ends."""
    found = session.daemon()
    deadline = clock() + 15.0
    while found is None and clock() < deadline:
        time.sleep(0.001)  # the daemon that asked for this worker is about to publish itself: no event says so, and it is soon
        found = session.daemon()
    if found is None:
        raise FabricError("the worker found no daemon")
    runtime = WorkerRuntime(session, token, job)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + RECURSION_PER_TASK * runtime.config.inline_depth))
    _signal.signal(INTERRUPT, runtime._handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interface.set_current(runtime)
    interface.current_task = runtime.context
    runtime.connect(found[0])
    with contextlib.suppress(SystemExit):
        runtime.run()


__all__ = ["CONTROL", "TaskInterrupt", "WorkerRuntime", "run"]
