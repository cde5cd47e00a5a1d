"""A worker's reports: outcomes of calls, streams, output, and the slot. ``running`` reports the main thread's."""

from __future__ import annotations

from collections.abc import Callable

from zfabric.machines.worker import LEFT, TIMES_UP, Gate, Invocation, Item
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import CLIENT, TASK_BYTES, WORKER, node_of_caller
from zfabric.protocol.messages import FAILED, INTERRUPTED, Row
from zfabric.runtime.arena_access import UnreportedWrites
from zfabric.runtime.call_groups import Group
from zfabric.runtime.connection import clock
from zfabric.runtime.contexts import Contexts
from zfabric.runtime.slots import COUNT, open_slot
from zfabric.runtime.user_code import Ending
from zfabric.runtime.worker_connection import WorkerConnection

REPORT_ROWS = 512
"""Outcomes sent without waiting for more."""
TASK = slice(0, TASK_BYTES)
"""The running id's part of the slot."""
NOTHING = bytes(TASK_BYTES)


class Reporter:
    """Sends one worker's reports. ``close_output`` ends a task's or call's output."""

    def __init__(
        self, connection: WorkerConnection, contexts: Contexts, writes: UnreportedWrites, close_output: Callable[[], None]
    ) -> None:
        self.slot = open_slot(connection.session.sockets, connection.name)
        self._connection = connection
        self._worker = connection.worker
        self._host = connection.host
        self._machine = connection.machine
        self._contexts = contexts
        self._writes = writes
        self._close_output = close_output
        self._log_to_driver = connection.config.log_to_driver
        self._delay = connection.config.completion_delay

    # -- the slot, which outlives this process --

    def mark(self, item: Item | Invocation | None) -> None:
        """Write what runs into the slot; None: what the main thread runs."""
        if item is None:
            item = self._contexts.top
        self.slot[TASK] = item.row[0] if item is not None else NOTHING

    def count(self, gate: Gate) -> None:
        """Write into the slot how many calls of an unlogged actor with checkpoints have ended."""
        COUNT.pack_into(self.slot, TASK_BYTES, gate.log.number, gate.log.attempt, gate.log.actor_id)
        if gate.wants_shell:
            self._connection.transport.wake()
        elif gate.opens_at is not None:
            self._connection.control_transport.wake()

    # -- output --

    def send_printed(self, receiver: bytes) -> None:
        """Send ``OutputWritten`` to the daemon, and to ``receiver``, who may get an outcome directly. The caller holds the lock."""
        worker, connection = self._worker, self._connection
        self._machine.printed = False
        self._close_output()
        if not self._log_to_driver:
            return
        worker.report_output()
        known = receiver in worker.drivers or (receiver != connection.incarnation and receiver not in worker.mailbox.gone)
        if receiver and known:
            connection.transport.send_envelopes(receiver, [(CLIENT, WORKER, m.OutputWritten())], clock())

    # -- outcomes --

    def end_beside(
        self, item: Item | Invocation, group: Group | None, outcome: Ending, started: float, flush: bool = True
    ) -> Item | Invocation | None:
        """Report what ran beside others. Claim and return its group's next call.

        Without ``flush`` the caller sends soon; after ``completion_delay`` the outcome leaves here.
        """
        status, outputs, extra = outcome
        connection, worker = self._connection, self._worker
        with connection.lock:
            if self._machine.printed:
                self.send_printed(receiver_of(item))
            self._contexts.forget_call(item.row[0])
            if type(item) is Invocation:
                self.end_call(item, status, outputs, extra, started, clock() - started)
            else:
                worker.finish(item, status, outputs, extra, started, clock() - started)  # type: ignore[arg-type]
            connection.retained.pop(item.row[0], None)
            self._writes.finish(item.row[0])
            if worker.gate is not None:
                self.count(worker.gate)
            following = None if group is None else self._next_of(group)
            if connection.closed:
                pass  # The process exits. Others have sent what it had.
            elif (flush and following is None) or worker.unreported >= REPORT_ROWS or clock() - connection.sent_at > self._delay:
                connection.flush()  # After a long call at once: the next one may be as long, and let no other thread run.
            elif (flush or worker.running_calls) and not connection.armed:
                connection.arm_flusher()
            if (self._host.done and not worker.running_calls) or (following is None and worker.baton is not None):
                connection.transport.wake()
        return following

    def _next_of(self, group: Group) -> Item | Invocation | None:
        following = None if self._host.leaving else group.claim(self._worker)
        if following is None:
            group.running -= 1
        return following

    def end_call(
        self,
        item: Invocation,
        status: int,
        outputs: Row,
        extra: tuple[Row, Row] | None,
        started: float,
        seconds: float,
        answered: bool = False,
    ) -> bool:
        """Fix a call's outcome. Return whether it waits for a commit (``Worker.finish_call``). The caller holds the lock.

        ``answered``: the caller has received it.
        """
        worker = self._worker
        reason = worker.interrupts.pop(item.row[0], (0, "cancelled"))[1]
        whole = status != INTERRUPTED
        if not whole and reason == LEFT:
            text = f"{item.method} was stopped while it ran: the actor ended itself (exit_actor)"
            status, outputs = FAILED, (pack_failure("ActorDiedError", text, (("outcome", "unknown"),)),)
        elif not whole:
            kind = "TaskTimeoutError" if reason in TIMES_UP else "TaskCancelledError"
            status, outputs = FAILED, (pack_failure(kind, f"{item.method} was stopped while it ran ({reason})"),)
        contained = extra[0] if extra is not None else ()
        if worker.baton is not None and worker.baton.is_killed(item.actor_id):
            self._writes.abandon(item.row[0])  # It has no outcome.
        held = worker.finish_call(item, status, outputs, contained, started, seconds, whole, answered)
        if held:
            self._writes.hold(item.row[0])
        return held

    # -- streams --

    def send_yield(self, row: Row) -> None:
        """Report a stream's next value in batches, and receive its permission."""
        connection, worker = self._connection, self._worker
        with connection.lock:
            if self._machine.printed:
                self.send_printed(b"")
            self._machine.pass_on(row[4])
            worker.yields.add(row)
            self._writes.finish(row[0])
            due = clock() - connection.sent_at > connection.config.completion_delay or worker.unreported >= REPORT_ROWS
            if due:
                connection.flush()
            elif not connection.armed:
                connection.arm_flusher()
        if due:
            connection.look()


def receiver_of(item: Item | Invocation) -> bytes:
    """Who may get the outcome directly: a caller on this node, or a driver of direct submission."""
    if isinstance(item, Invocation):
        return b"" if node_of_caller(item.caller) else item.caller
    return item.driver
