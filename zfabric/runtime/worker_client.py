"""The client of a worker's user code, which is not interrupted inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from zfabric.machines.worker import Invocation
from zfabric.protocol.ids import TASK_BYTES, call_value
from zfabric.protocol.messages import Row
from zfabric.protocol.options import ANY_BUNDLE, ActorCall, Terms, group_of, group_strategy
from zfabric.runtime import interface
from zfabric.runtime.client import OPERATIONS, FabricClient, Options, WaitFor
from zfabric.runtime.contexts import Contexts
from zfabric.runtime.interrupts import Interrupter
from zfabric.runtime.replay import Replay
from zfabric.runtime.worker_connection import WorkerConnection

AddCallback = Callable[[bytes, Callable[[bytes], None]], None]
"""``add(object_id, callback)``"""
CAPTURED = ("submit", "create_detached", "submit_many")
"""Operations that submit what a placement group may capture."""


class WorkerClient(FabricClient):
    """The client of a worker. Each of its operations is closed to interrupts.

    ``replays`` are those that run now, by actor. ``lend_until_called`` adds a callback by a given function, and lends a CPU meanwhile;
    ``exit_here`` ends the actor that runs here.
    """

    def __init__(
        self,
        connection: WorkerConnection,
        contexts: Contexts,
        interrupter: Interrupter,
        replays: Mapping[bytes, Replay],
        wait_for: WaitFor,
        lend_until_called: Callable[[bytes, Callable[[bytes], None], AddCallback], None],
        exit_here: Callable[[], NoReturn],
    ) -> None:
        super().__init__(connection, contexts.namer, wait_for)
        self._mailbox = connection.worker.mailbox
        self._contexts = contexts
        self._replays = replays
        self._lend_until_called = lend_until_called
        self._exit_here = exit_here
        self._captures = False
        """Whether tasks mark their children."""
        for name in OPERATIONS:
            setattr(self, name, interrupter.closed(getattr(self, name)))

    @property
    def namespace(self) -> str:
        """The job's namespace. A worker gets its job with its first task, and queries the namespace on first use."""
        connection = self.connection
        if not connection.namespace and self.machine.job:
            connection.namespace = self.query("namespace", self.machine.job)
        return connection.namespace

    def begin_capturing(self) -> None:
        """From now on, have tasks mark the children that they capture. Other processes do not look for such tasks."""
        if not self._captures:
            self._captures = True
            self.alter_options(CAPTURED, self._captured)

    def _captured(self, options: Options) -> Options:
        """Add to a task's options the placement group with which the task here captures its children."""
        task = interface.current_task()
        term = group_of(task.strategy) if task is not None else None
        if term is None or not term.captures:
            return options
        return (*(options or ()), ("captured", group_strategy(term._replace(bundle=ANY_BUNDLE))))

    def call(
        self,
        actor_id: bytes,
        method: str,
        arguments: bytes,
        dependencies: tuple[bytes, ...],
        options: Options,
        num_returns: int,
        terms: Terms,
    ) -> bytes:
        """Do as ``FabricClient.call``. A logged actor's calls of itself are part of its log."""
        logs, replays = self._mailbox.logs, self._replays
        caller = self._contexts.caller_of(actor_id) if logs or replays else None
        replay = replays.get(actor_id) if caller is not None else None
        known = replay.called(method, num_returns) if replay is not None else None
        if known is not None:
            return call_value(known, 0)
        log = logs.get(actor_id) if caller is not None else None
        if log is None:
            return FabricClient.call(self, actor_id, method, arguments, dependencies, options, num_returns, terms)
        if terms.pending:
            self._await_room(actor_id, terms)
        with self.connection.lock:  # Another thread may run what is called as soon as it has left.
            first = FabricClient.call(self, actor_id, method, arguments, dependencies, options, num_returns, terms._replace(pending=0))
            row: Row = (first[:TASK_BYTES], method, arguments)
            if dependencies or options is not None:
                row = (*row, dependencies, (), options)
            log.own.make(row, type(caller) is not Invocation or caller.method not in log.readonly)
        return first

    def call_all(self, method: str, arguments: bytes, dependencies: tuple[bytes, ...], calls: Sequence[ActorCall]) -> list[bytes]:
        """Do as ``FabricClient.call_all``. A logged actor may be among its own callees."""
        if not (self._mailbox.logs or self._replays):
            return FabricClient.call_all(self, method, arguments, dependencies, calls)
        return [
            WorkerClient.call(self, actor_id, method, arguments, dependencies, options, num_returns, terms)
            for actor_id, options, num_returns, terms in calls
        ]

    def add_done_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """Do as ``FabricClient.add_done_callback``, and lend a CPU meanwhile."""
        self._lend_until_called(object_id, callback, super().add_done_callback)

    def exit_actor(self) -> NoReturn:
        """Do as ``FabricClient.exit_actor``."""
        self._exit_here()

    def close(self) -> None:
        """Do nothing: the connection is the worker's, and ends with its process."""
