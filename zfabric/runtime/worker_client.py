"""The client of a worker: user code calls it while tasks and calls run, and is not interrupted until it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from zfabric.machines.worker import Invocation
from zfabric.protocol.ids import TASK_BYTES, call_value
from zfabric.protocol.messages import Row
from zfabric.protocol.options import ANY_BUNDLE, group_of, group_strategy
from zfabric.runtime import interface
from zfabric.runtime.actor_exits import ActorExits
from zfabric.runtime.client import FabricClient
from zfabric.runtime.interface import ActorCall, Terms
from zfabric.runtime.interrupter import Interrupter
from zfabric.runtime.process_exit import holding
from zfabric.runtime.replay import Replayer
from zfabric.runtime.waiting import Waiting
from zfabric.runtime.worker_connection import WorkerConnection


class WorkerClient:
    """``runtime.interface.ClientInterface`` in a worker."""

    def __init__(
        self,
        connection: WorkerConnection,
        fabric: FabricClient,
        interrupter: Interrupter,
        replayer: Replayer,
        waiting: Waiting,
        exits: ActorExits,
    ) -> None:
        self.connection = connection
        self.session = connection.session
        self.machine = connection.machine
        self.config = connection.config
        self._fabric = fabric
        self._mailbox = connection.worker.mailbox
        self._replayer = replayer
        self._waiting = waiting
        self._exits = exits
        closed = interrupter.closed
        self.export = closed(fabric.export)
        self.submit = closed(fabric.submit)
        self.create_detached = closed(fabric.create_detached)
        self.submit_many = closed(fabric.submit_many)
        self.call = closed(self._call)
        self.takes_far = fabric.takes_far
        self.actor_state = fabric.actor_state
        self.reference_counts = fabric.reference_counts
        self.inline_bytes = fabric.inline_bytes
        self.call_all = closed(self._call_all)
        self.kill_actor = closed(fabric.kill_actor)
        self.put = closed(fabric.put)
        self.add_reference = closed(fabric.add_reference)
        self.follow = closed(fabric.follow)
        self.drop_reference = fabric.drop_reference
        self.get = closed(fabric.get)
        self.has_failed = closed(fabric.has_failed)
        self.ignore_unread = closed(fabric.ignore_unread)
        self.wait = closed(fabric.wait)
        self.watch = holding(fabric.watch)
        self.await_watched = holding(fabric.await_watched)
        self.add_done_callback = closed(self._add_done_callback)
        self.add_outcome_callback = closed(fabric.add_outcome_callback)
        self.add_last_callback = closed(fabric.add_last_callback)
        self.locate = closed(fabric.locate)
        self.cancel = closed(fabric.cancel)
        self.explain_call = closed(fabric.explain_call)
        self.pending_calls = closed(fabric.pending_calls)
        self.breakpoint_of = fabric.breakpoint_of
        self.query = closed(fabric.query)
        self.new_id = closed(fabric.new_id)
        self._closed = closed

    @property
    def job(self) -> bytes:
        """This process's job (4 bytes)."""
        return self.machine.job

    @property
    def namespace(self) -> str:
        """The namespace of the job. A worker gets its job with its first task, and queries the namespace on first use."""
        connection = self.connection
        if not connection.namespace and self.machine.job:
            connection.namespace = self.query("namespace", self.machine.job)
        return connection.namespace

    @property
    def node(self) -> bytes:
        """The node's incarnation."""
        return self.machine.node

    def begin_capturing(self) -> None:
        """Have tasks that capture their children mark these, from now on. Other processes do not look for such tasks."""
        self.submit = self._closed(self._submit_captured)
        self.create_detached = self._closed(self._create_captured)
        self.submit_many = self._closed(self._submit_many_captured)

    def _captured(self, options: tuple[Row, ...] | None) -> tuple[Row, ...] | None:
        """Add to the options of a task that the one here has it run in its placement group."""
        task = interface.current_task()
        term = group_of(task.strategy) if task is not None else None
        if term is None or not term.captures:
            return options
        return (*(options or ()), ("captured", group_strategy(term._replace(bundle=ANY_BUNDLE))))

    def _submit_captured(
        self, function_id: bytes, arguments: bytes, dependencies: tuple[bytes, ...], options: tuple[Row, ...] | None, num_returns: int
    ) -> bytes:
        return self._fabric.submit(function_id, arguments, dependencies, self._captured(options), num_returns)

    def _create_captured(
        self, function_id: bytes, arguments: bytes, dependencies: tuple[bytes, ...], options: tuple[Row, ...] | None
    ) -> bytes:
        return self._fabric.create_detached(function_id, arguments, dependencies, self._captured(options))

    def _submit_many_captured(
        self, function_id: bytes, calls: Iterable[tuple[bytes, tuple[bytes, ...], tuple[Row, ...] | None]], num_returns: int
    ) -> list[bytes]:
        marked = [(arguments, dependencies, self._captured(options)) for arguments, dependencies, options in calls]
        return self._fabric.submit_many(function_id, marked, num_returns)

    def _call(
        self,
        actor_id: bytes,
        method: str,
        arguments: bytes,
        dependencies: tuple[bytes, ...],
        options: tuple[Row, ...] | None,
        num_returns: int,
        terms: Terms,
    ) -> bytes:
        """Implement ``ClientInterface.call``. A logged actor's calls of itself are part of its log."""
        logs, replays = self._mailbox.logs, self._replayer.replays
        caller = self._replayer.caller_of(actor_id) if logs or replays else None
        replay = replays.get(actor_id) if caller is not None else None
        known = replay.called(method, num_returns) if replay is not None else None
        if known is not None:
            return call_value(known, 0)
        log = logs.get(actor_id) if caller is not None else None
        if log is None:
            return self._fabric.call(actor_id, method, arguments, dependencies, options, num_returns, terms)
        if terms.pending:
            self._fabric.await_room(actor_id, terms)
        with self.connection.lock:  # Another thread may run what is called as soon as it has left.
            first = self._fabric.call(actor_id, method, arguments, dependencies, options, num_returns, terms._replace(pending=0))
            row: Row = (first[:TASK_BYTES], method, arguments)
            if dependencies or options is not None:
                row = (*row, dependencies, (), options)
            log.own.make(row, type(caller) is not Invocation or caller.method not in log.readonly)
        return first

    def _call_all(self, method: str, arguments: bytes, dependencies: tuple[bytes, ...], calls: Sequence[ActorCall]) -> list[bytes]:
        """Implement ``ClientInterface.call_all``. A logged actor may be among those that it calls."""
        if not (self._mailbox.logs or self._replayer.replays):
            return self._fabric.call_all(method, arguments, dependencies, calls)
        return [
            self._call(actor_id, method, arguments, dependencies, options, num_returns, terms)
            for actor_id, options, num_returns, terms in calls
        ]

    def _add_done_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """Implement ``ClientInterface.add_done_callback``."""
        self._waiting.lend_until_called(object_id, callback, self._fabric.add_done_callback)

    def exit_actor(self) -> NoReturn:
        """Implement ``ClientInterface.exit_actor``."""
        self._exits.exit_here()

    def close(self) -> None:
        """Do nothing: the connection is the worker's, and ends with its process."""
