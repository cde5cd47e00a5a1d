"""Actors that end themselves: ``exit_actor``, ``sys.exit`` in a method, and the exit of their process."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

from zfabric.machines.worker import KILL, LEAVE, Invocation, Item, Worker, actor_of
from zfabric.protocol import messages as m
from zfabric.protocol.failures import left_for_good
from zfabric.protocol.messages import FAILED, Row
from zfabric.runtime.client import NO_ACTOR
from zfabric.runtime.connection import clock
from zfabric.runtime.contexts import Contexts, current_call
from zfabric.runtime.functions import LoadedFunctions
from zfabric.runtime.hosting import ActorExit, Host
from zfabric.runtime.interrupts import Interrupter
from zfabric.runtime.worker_connection import WorkerConnection


class ActorExits:
    """Ends the running actor, and its process unless other actors share it."""

    def __init__(
        self,
        connection: WorkerConnection,
        worker: Worker,
        host: Host,
        contexts: Contexts,
        interrupter: Interrupter,
        functions: LoadedFunctions,
    ) -> None:
        self._connection = connection
        self._worker = worker
        self._host = host
        self._contexts = contexts
        self._interrupter = interrupter
        self._functions = functions

    def exit_here(self) -> NoReturn:
        """End the actor that runs here by raising: through its call, or silently in a thread or asyncio task that the actor started.

        Raises TypeError as ``FabricClient.exit_actor`` does.
        """
        contexts, host, makes_actor = self._contexts, self._host, self._functions.makes_actor
        crew, call = host.crew or host.loop, current_call.get()
        if threading.get_ident() == contexts.main:
            here = contexts.top
        else:
            here = call if call is not None and crew is not None and crew.runs_here(call) else None
        if type(here) is Invocation or (here is not None and makes_actor(here)):
            raise ActorExit
        creating = [item for item in contexts.stack if makes_actor(item)]
        actor_id = next(iter((*host.instances, *(item.row[0] for item in creating))), None)
        if here is not None or actor_id is None or self._worker.baton is not None:
            raise TypeError(NO_ACTOR)
        with self._connection.lock:
            self._end_with_process(None)
            self._connection.machine.send(m.ActorExiting(actor_id))
            self._connection.flush()
        if "asyncio" in sys.modules and in_event_loop():
            from asyncio import CancelledError  # The program has imported asyncio.

            raise CancelledError
        raise SystemExit(0)

    def leave_for_good(self, item: Item | Invocation, how: str) -> tuple[int, Row, None]:
        """End the actor for good, without its queued calls. Return the ending call's outcome."""
        with self._connection.lock:
            self._end(item, LEAVE, "")
            self._connection.machine.send(m.ActorExiting(actor_of(item)))  # Its __init__ may end it, too.
        return FAILED, (left_for_good(actor_of(item), how),), None

    def exit_process(self, item: Invocation, error: SystemExit) -> tuple[int, Row, None]:
        """Handle ``sys.exit`` in a method: without an exit code the actor ends for good."""
        if not error.code:
            return self.leave_for_good(item, "sys.exit")
        if self._worker.baton is not None:
            with self._connection.lock:
                self._end(item, KILL, f"it called sys.exit({error.code!r})")
            return FAILED, (), None
        self._host.exit_code = code = error.code if isinstance(error.code, int) and 0 < error.code < 256 else 1
        self._connection.close_at_end()
        os._exit(code)

    def _end(self, item: Item | Invocation, how: str, reason: str) -> None:
        if self._worker.baton is None:
            self._end_with_process(item)
        elif type(item) is Invocation:
            self._worker.baton.leave(item.actor_id, how, reason)

    def _end_with_process(self, item: Item | Invocation | None) -> None:
        """``item`` is the call that ends the actor, if any. The caller holds the lock."""
        host = self._host
        self._worker.report_trace()  # Sent before others learn of the actor's end: then the job may end, and its processes with it.
        if not host.leaving:
            host.leaving, host.leaves_at = True, clock() + self._connection.config.leave_seconds
        for each in self._worker.leave(item):
            self._interrupter.stop_soon(each)
        self._connection.transport.wake()


def in_event_loop() -> bool:
    """Whether this thread runs an event loop."""
    import asyncio  # Most processes never need it.

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
