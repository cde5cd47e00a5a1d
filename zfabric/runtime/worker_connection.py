"""A worker's connections: the order in which it sends, and who may send to it.

The waiting thread reads one socket for tasks, calls and values; ``control`` reads the other for control messages.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, get_ident
from typing import Any

from zfabric.adapters.sockets import Transport
from zfabric.adapters.task_errors import HeldRefs
from zfabric.machines.worker import Worker
from zfabric.protocol import messages as m
from zfabric.protocol.ids import ACTOR, TASK_BYTES, WORKER, control_of
from zfabric.protocol.messages import Row, Rows
from zfabric.runtime import process_exit
from zfabric.runtime.connection import Connection, clock
from zfabric.runtime.hosting import Host
from zfabric.runtime.session import Session
from zfabric.shell.process import Outgoing, admits_caller, unacknowledged_reports, worker_sends, worker_takes

CONTROL_SECONDS = 1.0
"""Seconds for the control thread to end with the process."""


class WorkerConnection(Connection):
    """A worker's connection, with its machine.

    ``hand_out`` starts what comes next in a shared process; ``threads`` returns this process's stacks.
    """

    def __init__(self, session: Session, token: bytes, job: bytes, hand_out: Callable[[], None], threads: Callable[[], Rows]) -> None:
        super().__init__(session, token, "worker", token, job, "")
        self.control = control_of(token)
        self.worker = Worker(WORKER + token, self.config)
        self.host = Host(self.worker, self.machine.calls, self.lock)
        self.host.received = lambda: self.transport.received_by_all(self.daemon)
        self.control_transport = Transport(self._context, session.sockets, self.control, self.config)
        self.control_transport.enable_wake()
        self.polling = False
        """Whether the main thread is in ``poll``, where an interrupt may be raised."""
        self.quiet = False
        """Whether the main thread waits for what the control thread receives."""
        self.control_ended = Event()
        """Set when the control thread has closed its socket: no other may, since it may be receiving."""
        self._main = get_ident()
        self._hand_out = hand_out
        self._threads = threads
        self.retained: dict[bytes, HeldRefs] = {}
        """Refs inside unreported results and errors, by id."""
        self._take_calls: Callable[[float, bytes, Any], None] = self._take_unmeasured
        self._callers_gone: list[bytes] = []
        """Ended callers, whose links close once what they sent is read."""

    # -- the daemon, and peers --

    def calls_waiting(self) -> int:
        """As ``Connection.calls_waiting``."""
        return self.worker.mailbox.waiting_count

    def running(self) -> tuple[m.Message, ...]:
        """As ``Connection.running``."""
        return self.worker.running()

    def unread(self) -> tuple[Row, ...]:
        """As ``Connection.unread``."""
        return self.worker.unread()

    def threads(self) -> Rows:
        """As ``Connection.threads``."""
        return self._threads()

    def _join(self, daemon: bytes) -> None:
        self.worker.connect(daemon)
        super()._join(daemon)

    def _leave(self, daemon: bytes) -> None:
        self.worker.unconfirmed += unacknowledged_reports(self.transport.forget(daemon))
        self.control_transport.forget(daemon)

    def classify(self, sender: bytes) -> tuple[bool, bool]:
        """Whether a control message's sender is a peer, and whether it is the daemon. The caller holds the lock."""
        from_peer = sender != self.daemon and self._is_peer(sender)
        return from_peer, sender == self.daemon or (not from_peer and self._is_new_daemon(sender))

    def _is_peer(self, sender: bytes) -> bool:
        """Whether a sender may send here: any process may call an actor of this worker."""
        if not super()._is_peer(sender) and admits_caller(self.worker, sender, bool(self.host.instances)):
            self._follow_daemon()
            if sender != self.daemon:
                self._peers.add(sender)
        return sender in self._peers

    def forget_caller(self, caller: bytes) -> None:
        """Close an ended caller's link once what it sent is read. The caller holds the lock."""
        self._callers_gone.append(caller)

    def _forget_callers(self) -> None:
        while self._callers_gone and not self.transport.readable:
            with self.lock:
                caller = self._callers_gone.pop()
                self._peers.discard(caller)
                self.transport.forget(caller)

    def _deliver(self, now: float, to: bytes, source: bytes, message: Any) -> None:
        if to == WORKER:
            self.worker.step(now, source, message)
        elif to == ACTOR:
            self._take_calls(now, source, message)
        else:
            super()._deliver(now, to, source, message)

    def _deliver_from_peer(self, now: float, to: bytes, source: bytes, message: Any) -> None:
        if not worker_takes(self.worker, source[1:], message):
            super()._deliver_from_peer(now, to, source, message)
        elif type(message) is m.Call:
            self._take_calls(now, source, message)
        else:
            self.worker.step(now, source, message)

    def measure_calls(self) -> None:
        """Receive also while a call runs, to measure how long calls wait. The caller holds the lock."""
        self._take_calls = self._take_measured

    def _take_measured(self, now: float, source: bytes, message: Any) -> None:
        self._take_unmeasured(now, source, message)
        if self.worker.measures:
            self._wake_flusher()
        else:
            self._take_calls = self._take_unmeasured

    def _take_unmeasured(self, now: float, source: bytes, message: Any) -> None:
        """Queue calls; wake the control thread, which enforces timeouts, if the next one has changed."""
        timed = self.worker.mailbox.timed
        before = self.worker.next_deadline() if timed else None
        self.worker.step(now, source, message)
        if timed and self.worker.next_deadline() != before:
            self.control_transport.wake()

    def limit_run(self, call_id: bytes, seconds: float) -> None:
        """Have a call that begins now stopped after so many seconds."""
        with self.lock:
            self.worker.mailbox.limit_run(call_id, clock() + seconds)
            self.control_transport.wake()

    # -- sending --

    def _sends(self) -> list[Outgoing]:
        self._forget_ended_actors()
        return worker_sends(self.machine, self.worker, self.daemon, self._release_retained)

    def _release_retained(self, call_id: bytes) -> None:
        self.retained.pop(call_id, None)

    def settle(self) -> None:
        """Release what finalizers dropped, after outcomes are sent. The caller holds the lock."""
        if self.worker.unreported:
            self.flush()
        else:
            super().settle()

    def _has_unsent(self) -> bool:
        return self.machine.has_unsent or self.worker.has_unsent

    def _is_urgent(self) -> bool:
        return self.machine.urgent or self.worker.has_unsent

    def _watched(self) -> bool:
        return bool(self.machine.objects.watchers or self.worker.yields.waiting)

    # -- waiting --

    def _wait_readable(self, timeout: float) -> bool:
        if get_ident() != self._main:
            return self.transport.poll(timeout)
        self.polling = True
        try:
            return self.transport.poll(timeout)
        finally:
            self.polling = False

    def _pumped(self) -> None:
        if self._callers_gone:
            self._forget_callers()
        if self.worker.baton is not None and self.worker.stack:
            self._hand_out()  # Messages may have freed the baton meanwhile.

    def _maintain(self) -> None:
        with self.lock:
            self.worker.report_counts()
            self.worker.report_delays(self._callee)
            self.worker.mailbox.forget_answered(self.machine.calls.pending)
        super()._maintain()

    def _reads_aside(self) -> bool:
        """Whether the flusher receives, also while calls are measured: arrivals must be seen."""
        worker = self.worker
        return super()._reads_aside() or (worker.measures and bool(worker.stack or worker.mailbox.queue))

    def _callee(self, identifier: bytes) -> bytes | None:
        """The actor whose pending call makes an object. The caller holds the lock."""
        target = self.machine.calls.pending.get(identifier[:TASK_BYTES])
        return target.actor_id if target is not None else None

    def wait_quietly(self, done: Callable[[], bool]) -> None:
        """Wait between calls for what the control thread receives."""
        self.quiet = True
        try:
            self.wait_until(done, None)
        finally:
            self.quiet = False

    # -- the end --

    def close_at_end(self) -> None:
        """Send the rest, and close all sockets."""
        process_exit.begin()
        with self.lock:
            self.worker.report_trace()
            self.flush()
            self.closed = True
            self.control_transport.wake()
        self.control_ended.wait(CONTROL_SECONDS)
        self.disconnect()

    def _end_context(self) -> None:
        if self.control_ended.is_set():  # Else the process exits with the control thread's socket.
            super()._end_context()
