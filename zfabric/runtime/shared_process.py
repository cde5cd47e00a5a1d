"""The threads of actors that share a process: one call runs at a time, others while it waits."""

from __future__ import annotations

import threading
from typing import Any

from zfabric.machines.worker import Invocation, Item, actor_of
from zfabric.runtime.contexts import Contexts, current_call
from zfabric.runtime.crew import CallRunner, StandIns
from zfabric.runtime.interrupts import TaskInterrupt
from zfabric.runtime.worker_connection import WorkerConnection

Wanted = tuple[bytes, ...]


class SharedProcess:
    """Passes the baton that ``worker.baton`` assigns between threads."""

    def __init__(self, connection: WorkerConnection, contexts: Contexts, runner: CallRunner) -> None:
        self._connection = connection
        self._worker = connection.worker
        self._host = connection.host
        self._contexts = contexts
        self._runner = runner
        self._waiting: dict[bytes, threading.Semaphore] = {}

    def add_actor(self, item: Item, instance: Any) -> None:
        """Add the instance of a new actor."""
        if self._host.crew is None:
            self._begin()
        self._host.begin_shared(item, instance)

    def _begin(self) -> None:
        baton = self._worker.baton
        assert baton is not None
        with self._connection.lock:
            self._connection.transport.enable_wake()
            self._host.crew = StandIns(self._runner, self.release_gone)
            self._host.gone = baton.gone
            baton.instances = True
            baton.on_free = self._wake_for_baton

    def release_gone(self) -> None:
        """Release ended actors, and notify the daemon."""
        if self._host.release_gone():
            with self._connection.lock:
                self._connection.flush()

    def hand_out(self) -> None:
        """Start the next call if the baton is free, in the main thread if that is idle."""
        with self._connection.lock:
            if not self._worker.baton_free:
                return
            if self._host.crew is None:
                self._begin()
            crew = self._host.crew if self._worker.stack else None
        if crew is not None:
            crew.hand_out()
        else:
            self._connection.transport.wake()

    # -- the baton --

    def run_here(self) -> Item | Invocation | None:
        """What this thread runs; None in user code's threads."""
        if self._contexts.in_main:
            return self._contexts.top
        item, crew = current_call.get(), self._host.crew
        return item if item is not None and crew is not None and crew.runs_here(item) else None

    def lend(self, wanted: Wanted) -> bytes:
        """Lend the baton of this waiting thread's call. Return its actor, or empty. The caller holds the lock."""
        baton = self._worker.baton
        assert baton is not None
        item = self.run_here() or current_call.get()
        call_id = item.row[0] if item is not None else baton.running
        lender = next((actor_id for actor_id, begun in baton.busy.items() if begun == call_id), b"")
        if lender:
            baton.lend(lender, wanted)
        return lender

    def end_lending(self, lender: bytes, wanted: Wanted) -> None:
        """End ``lend``: the thread no longer waits."""
        with self._connection.lock:
            if self._worker.baton is not None:
                self._worker.baton.lend_no_more(lender, wanted)

    def await_baton(self, item: Item | Invocation) -> None:
        """Wait until the call that runs meanwhile has ended or waits.

        Interrupts are raised only with the baton.
        """
        actor_id = actor_of(item)
        interrupt: BaseException | None = None
        while True:
            try:
                with self._connection.lock:
                    if self._worker.take_baton(item):
                        self._waiting.pop(actor_id, None)
                        break
                    semaphore = self._waiting.setdefault(actor_id, threading.Semaphore(0))
                semaphore.acquire()
            except TaskInterrupt as error:
                interrupt = error
        self._runner.reporter.mark(item)
        if interrupt is not None:
            raise interrupt

    def _wake_for_baton(self, actor_id: bytes) -> None:
        """Wake the call that now has the baton. The caller holds the lock."""
        semaphore = self._waiting.get(actor_id)
        if semaphore is not None:
            semaphore.release()
