"""A worker's control thread: beside user code it receives on its own socket, returns tasks, interrupts, enforces timeouts."""

from __future__ import annotations

import os
import threading
from typing import Any

from zfabric.machines.worker import Worker
from zfabric.protocol import messages as m
from zfabric.protocol.access import FROM_PEERS
from zfabric.protocol.ids import CONTROL
from zfabric.runtime.connection import CHECK_EVERY, clock
from zfabric.runtime.hosting import Host
from zfabric.runtime.interrupts import Interrupter
from zfabric.runtime.worker_connection import WorkerConnection
from zfabric.shell.process import control_step


class ControlThread:
    """Receives until the connection is closed."""

    def __init__(self, connection: WorkerConnection, worker: Worker, host: Host, interrupter: Interrupter) -> None:
        self._connection = connection
        self._worker = worker
        self._host = host
        self._interrupter = interrupter

    def start(self) -> None:
        """Start before the worker registers: the daemon may be replaced meanwhile."""
        threading.Thread(target=self._listen, name="zfabric-control", daemon=True).start()

    def _listen(self) -> None:
        connection = self._connection
        try:
            self._receive()
        finally:
            with connection.lock:  # Others wake this thread under the lock.
                connection.control_transport.close()
            connection.control_ended.set()

    def _receive(self) -> None:
        connection, worker = self._connection, self._worker
        transport = connection.control_transport
        while not connection.closed:
            found = (transport.next_deadline(), worker.next_deadline(), *self._interrupter.deadlines())
            dues = [due for due in found if due is not None]
            transport.poll(max(0.0, min(dues) - clock()) if dues else CHECK_EVERY * 10)
            frames = transport.receive()
            if frames:
                connection.look()  # A request to stop or return a task may have overtaken the task itself.
            for sender, frame in frames:
                with connection.lock:
                    now = clock()
                    from_peer, from_daemon = connection.classify(sender)
                    if from_daemon or from_peer:
                        for _, role, message in transport.accept(sender, frame, now):
                            if not from_peer or type(message) in FROM_PEERS[CONTROL]:
                                self._obey(now, role + sender, message)
            with connection.lock:
                transport.tick(clock())
                self._enforce_timeouts()
                self._interrupter.stop_due()

    def _enforce_timeouts(self) -> None:
        """Stop calls whose timeout has expired. The caller holds the lock."""
        worker = self._worker
        before = set(worker.interrupts)
        due = worker.next_deadline()
        if due is not None and due <= clock():
            worker.tick(clock())
            for call_id in set(worker.interrupts) - before:
                self._interrupter.stop(call_id)
            self._connection.flush()
            if worker.gate is not None or worker.relocation is not None:
                self._connection.transport.wake()  # Calls that were held back may begin.

    def _obey(self, now: float, source: bytes, message: Any) -> None:
        connection, worker, interrupter = self._connection, self._worker, self._interrupter
        if type(message) is m.RegisterAgain:
            return
        if type(message) is m.Inspect:
            connection.inspect(message)
        elif type(message) is m.CollectGarbage:
            connection.collect_garbage()
        else:
            control_step(connection.machine, worker, now, source, message)
        if worker.stopping:
            os._exit(0)
        connection.flush()
        if type(message) is m.Interrupt:
            interrupter.begin(message.task_id)
        elif type(message) is m.StopCall:
            interrupter.begin(message.call_id)
        elif type(message) is m.RetireActor:
            if worker.baton is not None:
                interrupter.stop(worker.baton.busy.get(message.actor_id, b""))
            connection.transport.wake()
        elif type(message) is m.DrainActor:
            connection.transport.wake()
        elif type(message) is m.MeasureCalls:
            connection.measure_calls()
        elif type(message) is m.CallerGone:
            connection.control_transport.forget(message.incarnation)
            connection.forget_caller(message.incarnation)
        elif type(message) in (m.LogCommitted, m.OutcomesRecorded) and (connection.quiet or self._host.done or worker.gate is not None):
            connection.transport.wake()
