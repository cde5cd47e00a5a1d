"""The loop of a worker's main thread: claims tasks and calls under the lock, runs them, reports outcomes in batches.

Others may run on top of a task that waits in ``get`` (``waiting``).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # The enumerations of ``signal`` cost as much as running a small task.
import contextlib
from time import sleep

from zfabric.adapters.processes import flush_output
from zfabric.exceptions import FabricError, NotInitializedError
from zfabric.machines.worker import Invocation, Item
from zfabric.protocol.ids import JOB_BYTES, LOCAL_SCHEDULER, WORKER
from zfabric.protocol.messages import Row
from zfabric.runtime import interface
from zfabric.runtime.arena_access import UnreportedWrites
from zfabric.runtime.attempts import AttemptRunner
from zfabric.runtime.client import FabricClient
from zfabric.runtime.connection import clock
from zfabric.runtime.contexts import Contexts
from zfabric.runtime.crew import CallRunner, Loop
from zfabric.runtime.interrupts import INTERRUPT
from zfabric.runtime.replay import Replayer
from zfabric.runtime.reporting import NOTHING, REPORT_ROWS, TASK, receiver_of
from zfabric.runtime.shared_process import SharedProcess
from zfabric.runtime.user_code import Ending
from zfabric.runtime.waiting import Lending

END_REPORT_SECONDS = 10.0
"""Seconds for the daemon to receive an actor's end. The daemon may be restarting."""


class TaskLoop:
    """Runs tasks and calls in the main thread. Attributes have copies of what a plain task needs of other parts."""

    def __init__(
        self,
        client: FabricClient,
        contexts: Contexts,
        runner: CallRunner,
        attempts: AttemptRunner,
        writes: UnreportedWrites,
        lending: Lending,
        shared: SharedProcess,
        replayer: Replayer,
    ) -> None:
        connection, reporter = runner.connection, runner.reporter
        self._connection = connection
        self._worker = connection.worker
        self._host = connection.host
        self._machine = connection.machine
        self._transport = connection.transport
        self._lock = connection.lock
        self._completion_delay = connection.config.completion_delay
        self._client = client
        self._stack, self._namers = contexts.stack, contexts.namers
        self._handler = runner.interrupter.handler
        self._runner = runner
        self._reporter = reporter
        self._end_call = reporter.end_call
        self._slot = reporter.slot
        self._attempts = attempts
        self._retained = connection.retained
        self._writes = writes
        self._unreported_writes = writes.offsets
        self._lending = lending
        self._shared = shared
        self._replayer = replayer
        self._mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        """The signal mask before user code runs."""
        self._first_unreported = 0.0

    # -- choosing --

    def run(self) -> None:
        """Run until the process must exit, then raise SystemExit."""
        worker, host = self._worker, self._host
        asyncs = worker.async_functions
        try:
            while True:
                if host.gone:
                    self._shared.release_gone()
                item = self._next()
                if item is not None:
                    following = self.execute(item, claim=True) if item.row[1] not in asyncs else item
                    if following is not None:
                        self._start_beside(following)  # type: ignore[arg-type]
                elif worker.baton is not None:
                    self._idle()
                elif host.may_retire():
                    self._retire()
                else:
                    if host.crew is not None:
                        self._replayer.checkpoint_when_quiet()
                        host.crew.hand_out()
                    self._idle()
        except (KeyboardInterrupt, SystemExit) as error:
            interface.check_process(error)
            raise SystemExit(0) from None
        except NotInitializedError:
            if host.exit_code is None:
                raise
            sleep(self._connection.config.leave_seconds)  # The thread that has closed the connection exits before that.
            raise SystemExit(host.exit_code) from None

    def _next(self) -> Item | Invocation | None:
        with self._lock:
            item = self._worker.begin() if not self._host.leaving else None
            if item is None:
                self._connection.flush()
            return item

    def _start_beside(self, item: Item) -> None:
        loop = self._host.loop
        if not isinstance(loop, Loop):
            loop = self._host.loop = Loop(self._runner, ())
        with self._lock:
            self._worker.move_beside(item)
        loop.start(((item, None),))

    def _idle(self) -> None:
        worker, host = self._worker, self._host
        leaving = host.leaving

        def wanted() -> bool:
            if host.leaving and not leaving:
                return True  # Another thread has set it; the deadline is new.
            if worker.mailbox.queue and host.crew is None and worker.baton is None and not host.leaving:
                return True  # The usual case in an actor's process.
            if worker.baton is not None:
                return worker.baton_free or bool(host.gone)
            calls = not host.leaving and (host.crew.wanted() if host.crew is not None else worker.mailbox.queue)
            gate = worker.gate is not None and worker.gate.wants_shell
            return bool(calls or gate or worker.queue or worker.inline or host.may_retire())

        self._restore_signals()
        flush_output()  # An unfinished line may be the last one.
        self._connection.wait_until(wanted, host.leaves_at if leaving and host.leaves_at > clock() else None)

    def _retire(self) -> None:
        """Exit once the daemon has this process's messages: else the exit would count as a crash."""
        relocates = not self._host.leaving and self._host.relocates
        if relocates:
            with self._lock:
                self._machine.send(self._worker.relocate())
        self._host.end()
        self._attempts.returned = None
        if self._host.leaving or relocates:
            # How the actor ended must arrive before the exit is detected.
            with contextlib.suppress(FabricError):
                self._client.query("nothing", timeout=END_REPORT_SECONDS)
        self._connection.close_at_end()
        raise SystemExit(0)

    def _restore_signals(self) -> None:
        """Unblock signals for later tasks: a system call, so not for each task.

        An actor may block signals on purpose.
        """
        if self._host.instances:
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (INTERRUPT,))
        else:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self._mask)

    # -- running --

    def execute(self, item: Item | Invocation, claim: bool = False) -> Item | Invocation | None:
        """Run a task or call; with ``claim``, also the next. Return a claimed async task."""
        if not self._machine.job:
            self._machine.job = item.row[0][:JOB_BYTES]
        lock, handler, stack, namers, asyncs = self._lock, self._handler, self._stack, self._namers, self._worker.async_functions
        attempts, end = self._attempts, self._end
        run = attempts.run
        self._slot[TASK] = item.row[0]
        namers.append(None)
        try:
            while True:
                stack.append(item)
                if _signal.getsignal(INTERRUPT) is not handler:
                    _signal.signal(INTERRUPT, handler)  # A library has replaced it.
                started = clock()
                try:
                    ending = run(item)
                    if attempts.returned is not None:
                        attempts.release_returned(item, ending)
                finally:
                    stack.pop()
                ended = clock()
                lock.acquire()  # ``with`` takes twice as long, which shows in a small task.
                try:
                    following = end(item, ending, started, ended, claim)
                finally:
                    lock.release()
                if following is None:
                    break
                if following.row[1] in asyncs:
                    self._reporter.mark(None)
                    break
                item = following
                namers[-1] = None  # Finalizers may submit at any moment, and must not use the ended task's names.
        finally:
            namers.pop()
        if self._worker.mailbox.logs and type(item) is Invocation:
            self._replayer.checkpoint_if_due(item)
        return following

    def _end(self, item: Item | Invocation, ending: Ending, started: float, ended: float, claim: bool) -> Item | Invocation | None:
        """Report an outcome; with ``claim``, return the next item. The caller holds the lock."""
        status, outputs, extra = ending
        worker = self._worker
        held = False
        if self._machine.printed:
            self._reporter.send_printed(receiver_of(item))
        if self._lending.waits:
            self._lending.close(item.row[0])
        if type(item) is Invocation:
            answered = not worker.mailbox.queue and extra is None and self._answer(item, status, outputs, ended)
            held = self._end_call(item, status, outputs, extra, started, ended - started, answered)
            unreported = worker.unreported
        else:
            answered, unreported = False, -1
            if extra is None and not worker.queue:  # Somebody may wait for the last outcome.
                if item.driver:  # type: ignore[union-attr]
                    answered = self._answer(item, status, outputs, ended)
                elif self._report_alone(item, status, outputs, started, ended):  # type: ignore[arg-type]
                    answered, unreported = True, 0
            if unreported < 0:
                unreported = worker.finish(item, status, outputs, extra, started, ended - started, answered)  # type: ignore[arg-type]
        if self._retained and not held:
            self._retained.pop(item.row[0], None)
        if self._unreported_writes:
            self._writes.finish(item.row[0])
        if unreported == 1:
            self._first_unreported = started  # After a long one it leaves at once: the next may let no other thread run.
        if not answered and (unreported >= REPORT_ROWS or ended - self._first_unreported > self._completion_delay):
            self._reporter.mark(None)
            self._restore_signals()
            self._connection.flush()
            self._connection.look()  # New tasks may have arrived.
        following = None
        if claim and worker.baton is None and not (self._host.leaving or worker.mailbox.logs):
            following = worker.begin(item if type(item) is Item and not self._host.instances else None)
        if following is not None:
            self._slot[TASK] = following.row[0]
        else:
            self._slot[TASK] = self._stack[-1].row[0] if self._stack else NOTHING
        if not self._connection.armed and (following is not None or worker.queue or worker.inline or worker.mailbox.queue):
            self._connection.arm_flusher()
        return following

    def _report_alone(self, item: Item, status: int, outputs: Row, started: float, ended: float) -> bool:
        """Send a task's outcome if nothing else is unsent; return whether it was sent. The caller holds the lock."""
        if self._machine.has_unsent:
            return False
        report = self._worker.report_alone(item, status, outputs, started, ended - started)
        if report is None:
            return False
        self._transport.send_envelopes(self._connection.daemon, [(LOCAL_SCHEDULER, WORKER, report)], ended)
        return True

    def _answer(self, item: Item | Invocation, status: int, outputs: Row, now: float) -> bool:
        """Send an outcome straight to who waits, if permitted; return whether it was sent. The caller holds the lock."""
        answer = self._worker.answer(item, status, outputs) if not self._machine.has_unsent else None
        if answer is None:
            return False
        self._transport.send_envelopes(answer.to[1:], [(answer.to[:1], WORKER, answer.message)], now)
        return True
