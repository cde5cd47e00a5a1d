"""The worker process: its parts, and its body.

The main thread runs the task loop (``running``), the control thread receives meanwhile (``control``), concurrent calls have threads or a
loop (``crew``). User code calls the ``WorkerClient``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # Beneath ``signal``, whose enumerations cost as much as running a small task.
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from zfabric.adapters import namespaces, processes, serialization
from zfabric.exceptions import FabricError
from zfabric.protocol.messages import Rows
from zfabric.runtime import interface
from zfabric.runtime.actor_exits import ActorExits
from zfabric.runtime.arena_access import UnreportedWrites
from zfabric.runtime.attempts import AssignedGpus, AttemptRunner
from zfabric.runtime.connection import clock
from zfabric.runtime.contexts import Contexts
from zfabric.runtime.control import ControlThread
from zfabric.runtime.crew import CallRunner, Loop, Threads
from zfabric.runtime.forked_children import end_forked_children
from zfabric.runtime.functions import LoadedFunctions
from zfabric.runtime.interrupts import INTERRUPT, Interrupter
from zfabric.runtime.introspection import Introspection
from zfabric.runtime.printing import name_output
from zfabric.runtime.replay import Replay, Replayer
from zfabric.runtime.reporting import Reporter
from zfabric.runtime.running import TaskLoop
from zfabric.runtime.sent_packages import SentPackages
from zfabric.runtime.session import Session
from zfabric.runtime.shared_process import SharedProcess
from zfabric.runtime.stacks import dump_on_signal, dump_path
from zfabric.runtime.streaming import StreamProducer
from zfabric.runtime.user_code import UserCode
from zfabric.runtime.waiting import Lending, Waiting
from zfabric.runtime.worker_client import AddCallback, WorkerClient
from zfabric.runtime.worker_connection import WorkerConnection

RECURSION_PER_TASK = 40
"""Python frames below a task: ``get``, the pump, and running it."""
RUNNERS = (TaskLoop.execute.__code__, Threads._run.__code__, Loop._run.__code__)
"""Code that runs tasks and calls (see ``Introspection.threads``)."""


class WorkerRuntime:
    """Makes a worker's parts. Its methods let earlier parts call later ones."""

    def __init__(self, session: Session, token: bytes, job: bytes) -> None:
        connection = self._connection = WorkerConnection(session, token, job, self._start_next, self._stacks)
        worker, host, machine = connection.worker, connection.host, connection.machine
        self.config = connection.config
        contexts = Contexts(machine, worker)
        self.interrupter = Interrupter(connection, worker, contexts, host)
        replays: dict[bytes, Replay] = {}
        client = self.client = WorkerClient(
            connection, contexts, self.interrupter, replays, self._wait_for, self._lend_until_called, self._exit_here
        )
        serialization.as_user = self.interrupter.run_value_code
        self._control = ControlThread(connection, worker, host, self.interrupter)
        packages = SentPackages(connection, client.get)
        functions, gpus = LoadedFunctions(client, worker, host, packages), AssignedGpus()
        self.introspection = Introspection(connection, contexts, functions, gpus)
        exits = self._exits = ActorExits(connection, worker, host, contexts, self.interrupter, functions)
        writes = UnreportedWrites(connection, client.values)
        user_code = UserCode(connection, client, functions, writes, exits, self.interrupter)
        reporter = Reporter(connection, contexts, writes, name_output(self.introspection.name_of_writer, machine))
        streams = StreamProducer(connection, functions, writes, self.interrupter, reporter, self._wait_for)
        runner = CallRunner(connection, self.interrupter, user_code, streams, reporter)
        lending = Lending(worker)
        self._shared = SharedProcess(connection, contexts, runner)
        replayer = Replayer(connection, client, replays, contexts, functions, user_code, writes)
        attempts = AttemptRunner(runner, functions, gpus, user_code, streams, self._shared, replayer)
        self._loop = TaskLoop(client, contexts, runner, attempts, writes, lending, self._shared, replayer)
        self._waiting = Waiting(connection, contexts, functions, lending, self._shared, self._loop.execute)
        functions.on_capturing = client.begin_capturing
        namespaces.may_renew = lambda: not host.instances and len(worker.stack) + len(worker.running_calls) < 2
        namespaces.on_renewed = functions.load_again
        end_forked_children(host, self.interrupter.fences, user_code, attempts, RUNNERS)

    def run(self, daemon: bytes) -> None:
        """Register and run tasks. Raises SystemExit at the end."""
        self._connection.register_with(daemon)
        self._control.start()  # A restart of the daemon may delay the welcome.
        self._connection.await_welcome()
        self._loop.run()

    def _start_next(self) -> None:
        self._shared.hand_out()

    def _stacks(self) -> Rows:
        return self.introspection.threads(RUNNERS)

    def _wait_for(self, object_ids: Sequence[bytes], done: Callable[[], bool], deadline: float | None, plain: bool, needed: int) -> bool:
        return self._waiting.wait_for(object_ids, done, deadline, plain, needed)

    def _lend_until_called(self, object_id: bytes, callback: Callable[[bytes], None], add: AddCallback) -> None:
        self._waiting.lend_until_called(object_id, callback, add)

    def _exit_here(self) -> NoReturn:
        self._exits.exit_here()


def _allow_recursion(levels: int) -> None:
    """Set the recursion limit and threads' stacks, to less where stacks cannot be that deep.

    One limit holds for all threads, and overflow in C ends the process. No thread runs yet.
    """
    stack = processes.deepen_thread_stacks(levels * processes.LEVEL_BYTES)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), min(levels, stack // processes.LEVEL_BYTES)))


def run(session: Session, token: bytes, job: bytes) -> None:
    """Run until the job or node ends, or after ``worker_idle_seconds``."""
    found = session.daemon()
    deadline = clock() + 15.0
    while found is None and clock() < deadline:
        time.sleep(0.001)  # The daemon is about to publish itself; no event reports that.
        found = session.daemon()
    if found is None:
        raise FabricError("the worker found no daemon")
    _allow_recursion(1000 + RECURSION_PER_TASK * session.config().inline_depth)
    runtime = WorkerRuntime(session, token, job)
    _signal.signal(INTERRUPT, runtime.interrupter.handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interface.set_current(runtime.client)
    interface.current_task = runtime.introspection.context
    with contextlib.suppress(OSError):  # The disk is full: stacks come from the control thread alone.
        dump_on_signal(dump_path(session.logs, token))
    sys.breakpointhook = runtime.introspection.at_breakpoint
    with contextlib.suppress(SystemExit):
        runtime.run(found[0])
