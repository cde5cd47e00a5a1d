"""The worker process: its parts, and what the API calls in it.

The main thread runs the task loop (``running``), the control thread receives meanwhile (``control``), and calls that run beside each other
have threads or an event loop (``crew``). ``WorkerRuntime`` constructs these and what they share.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # Beneath ``signal``, whose enumerations cost as much as running a small task.
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from zfabric.exceptions import FabricError
from zfabric.machines.common.naming import Namer
from zfabric.machines.worker import Invocation
from zfabric.protocol.ids import TASK_BYTES, call_value
from zfabric.protocol.messages import Row, Rows
from zfabric.runtime import interface
from zfabric.runtime.actor_exits import ActorExits
from zfabric.runtime.arena_access import UnreportedWrites
from zfabric.runtime.attempts import AttemptRunner
from zfabric.runtime.client import FabricClient
from zfabric.runtime.connection import clock
from zfabric.runtime.contexts import Contexts
from zfabric.runtime.control import ControlThread
from zfabric.runtime.crew import CallRunner, Loop, Threads
from zfabric.runtime.functions import LoadedFunctions
from zfabric.runtime.gpus import AssignedGpus
from zfabric.runtime.interrupter import Interrupter
from zfabric.runtime.interrupts import INTERRUPT, closed_to_interrupts
from zfabric.runtime.introspection import Introspection
from zfabric.runtime.lending import Lending
from zfabric.runtime.printing import name_output
from zfabric.runtime.replay import Replayer
from zfabric.runtime.reporting import Reporter
from zfabric.runtime.running import TaskLoop
from zfabric.runtime.session import Session
from zfabric.runtime.shared_process import SharedProcess
from zfabric.runtime.stacks import dump_on_signal, dump_path
from zfabric.runtime.streaming import StreamProducer
from zfabric.runtime.user_code import UserCode
from zfabric.runtime.waiting import Waiting
from zfabric.runtime.worker_connection import WorkerConnection

RECURSION_PER_TASK = 40
"""Python frames that one task on the stack may take before its own: ``get``, the pump, and running the next one."""
RUNNERS = (TaskLoop.execute.__code__, Threads._run.__code__, Loop._run.__code__)
"""Functions that run tasks and calls (see ``Introspection.threads``)."""


class WorkerRuntime(WorkerConnection):
    """The parts of a worker, wired, and its side of ``ClientInterface``: user code that calls it is not interrupted until it returns."""

    def __init__(self, session: Session, token: bytes, job: bytes) -> None:
        super().__init__(session, token, job, self._start_next, self._stacks)
        worker, host = self.worker, self.host
        self.contexts = contexts = Contexts(self.machine, worker)
        self.interrupter = Interrupter(self, worker, contexts, host)
        self.fences, self.catch_up = self.interrupter.fences, self.interrupter.catch_up
        self._control = ControlThread(self, worker, host, self.interrupter)
        functions, gpus = LoadedFunctions(self, worker, host), AssignedGpus()
        self.introspection = Introspection(self, contexts, functions, gpus)
        self._exits = ActorExits(self, worker, host, contexts, self.interrupter, functions)
        self.writes = writes = UnreportedWrites(self, self.values)
        user_code = UserCode(self, worker, host, functions, writes, self.retained, self._exits)
        reporter = Reporter(self, contexts, writes, name_output(self.introspection.name_of_writer, self.machine))
        streams = StreamProducer(self, worker, functions, writes, self.interrupter, reporter)
        runner = CallRunner(self, self.interrupter, user_code, streams, reporter)
        self.lending = Lending(worker)
        self._shared = SharedProcess(self, contexts, runner)
        self._replayer = Replayer(self, self, contexts, functions, user_code, writes)
        attempts = AttemptRunner(runner, functions, gpus, user_code, streams, self._shared, self._replayer)
        self._loop = TaskLoop(self, contexts, runner, attempts, writes, self.lending, self._shared, self._replayer)
        self._waiting = Waiting(self, contexts, functions, self.lending, self._shared, self._loop.execute)

    def run(self, daemon: bytes) -> None:
        """Register with the daemon, and run what it sends until it says to stop, which raises SystemExit."""
        self.register_with(daemon)
        self._control.start()  # Before the welcome: the daemon that is to send it may be replaced meanwhile.
        self.await_welcome()
        self._loop.run()

    def _start_next(self) -> None:
        self._shared.hand_out()

    def _stacks(self) -> Rows:
        return self.introspection.threads(RUNNERS)

    # -- what the API calls --

    export = closed_to_interrupts(FabricClient.export)
    submit = closed_to_interrupts(FabricClient.submit)
    submit_many = closed_to_interrupts(FabricClient.submit_many)
    kill_actor = closed_to_interrupts(FabricClient.kill_actor)
    put = closed_to_interrupts(FabricClient.put)
    add_reference = closed_to_interrupts(FabricClient.add_reference)
    follow = closed_to_interrupts(FabricClient.follow)
    get = closed_to_interrupts(FabricClient.get)
    wait = closed_to_interrupts(FabricClient.wait)
    cancel = closed_to_interrupts(FabricClient.cancel)
    explain_call = closed_to_interrupts(FabricClient.explain_call)
    pending_calls = closed_to_interrupts(FabricClient.pending_calls)
    query = closed_to_interrupts(FabricClient.query)

    @property
    def namespace(self) -> str:
        """That of the job. A worker has a job with its first task, and asks for its namespace when somebody needs it."""
        if not self._namespace and self.machine.job:
            self._namespace = self.query("namespace", self.machine.job)
        return self._namespace

    def namer(self) -> Namer:
        """The namer of the task or call that runs here."""
        return self.contexts.namer()

    @closed_to_interrupts
    def call(
        self,
        actor_id: bytes,
        method: str,
        arguments: bytes,
        dependencies: tuple[bytes, ...],
        options: tuple[Row, ...] | None,
        num_returns: int,
        terms: interface.Terms,
    ) -> bytes:
        """See ``ClientInterface``. What a logged actor calls of itself is part of its log."""
        logs, replays = self.worker.mailbox.logs, self._replayer.replays
        caller = self._replayer.caller_of(actor_id) if logs or replays else None
        replay = replays.get(actor_id) if caller is not None else None
        known = replay.called(method, num_returns) if replay is not None else None
        if known is not None:
            return call_value(known, 0)
        log = logs.get(actor_id) if caller is not None else None
        if log is None:
            return super().call(actor_id, method, arguments, dependencies, options, num_returns, terms)
        if terms.pending:
            self._await_room(actor_id, terms)
        with self.lock:  # Another thread may run what is called as soon as it has left.
            first = super().call(actor_id, method, arguments, dependencies, options, num_returns, terms._replace(pending=0))
            row: Row = (first[:TASK_BYTES], method, arguments)
            if dependencies or options is not None:
                row = (*row, dependencies, (), options)
            log.own.make(row, type(caller) is not Invocation or caller.method not in log.readonly)
        return first

    def wait_for(self, object_ids: Sequence[bytes], done: Callable[[], bool], deadline: float | None, plain: bool, needed: int) -> bool:
        """Wait as what runs here does (see ``Waiting``)."""
        return self._waiting.wait_for(object_ids, done, deadline, plain, needed)

    @closed_to_interrupts
    def add_done_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """See ``ClientInterface``."""
        self._waiting.lend_until_called(object_id, callback, super().add_done_callback)

    def exit_actor(self) -> NoReturn:
        """See ``ClientInterface``."""
        self._exits.exit_here()


def run(session: Session, token: bytes, job: bytes) -> None:
    """The body of a worker's process: until its job, its daemon's node, or the scheduler's patience ends."""
    found = session.daemon()
    deadline = clock() + 15.0
    while found is None and clock() < deadline:
        time.sleep(0.001)  # the daemon that asked for this worker is about to publish itself: no event says so, and it is soon
        found = session.daemon()
    if found is None:
        raise FabricError("the worker found no daemon")
    runtime = WorkerRuntime(session, token, job)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + RECURSION_PER_TASK * runtime.config.inline_depth))
    _signal.signal(INTERRUPT, runtime.interrupter.handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interface.set_current(runtime)
    interface.current_task = runtime.introspection.context
    with contextlib.suppress(OSError):  # The disk is full: stacks come from the control thread alone.
        dump_on_signal(dump_path(session.logs, token))
    sys.breakpointhook = runtime.introspection.at_breakpoint
    with contextlib.suppress(SystemExit):
        runtime.run(found[0])
