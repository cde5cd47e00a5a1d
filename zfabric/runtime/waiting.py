"""How a worker's tasks and calls wait: the scheduler is notified, and other tasks run on top (by ``execute``), or other actors' calls."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial

from zfabric.exceptions import DeadlockError, FabricError
from zfabric.machines.worker import Invocation, Item, Worker, actor_of
from zfabric.runtime.actor_exits import in_event_loop
from zfabric.runtime.connection import IN_FINALIZER
from zfabric.runtime.contexts import Contexts, current_call
from zfabric.runtime.functions import LoadedFunctions
from zfabric.runtime.interrupts import TaskInterrupt
from zfabric.runtime.shared_process import SharedProcess
from zfabric.runtime.worker_connection import WorkerConnection

Done = Callable[[], bool]
Wanted = tuple[bytes, ...]
"""Ids of objects that a thread waits for."""


class Waiting:
    """Waits of a worker's threads and coroutines."""

    def __init__(
        self,
        connection: WorkerConnection,
        contexts: Contexts,
        functions: LoadedFunctions,
        lending: Lending,
        shared: SharedProcess,
        execute: Callable[[Item | Invocation], object],
    ) -> None:
        self._connection = connection
        self._worker = connection.worker
        self._host = connection.host
        self._contexts = contexts
        self._functions = functions
        self._lending = lending
        self._shared = shared
        self._execute = execute

    def wait_for(self, object_ids: Sequence[bytes], done: Done, deadline: float | None, plain: bool, needed: int) -> bool:
        """Wait until ``done()``; False at the deadline. Arguments are as in ``FabricClient.wait_for``.

        Others run on top of a task in ``get`` (``plain``), unless it runs a loop.
        """
        connection, worker, contexts = self._connection, self._worker, self._contexts
        if connection.leader == threading.get_ident():
            raise FabricError(IN_FINALIZER)  # A thread must not wait twice at once.
        if worker.baton is not None:
            return self._wait_sharing(object_ids, done, deadline, needed)
        if threading.get_ident() != contexts.main or not contexts.stack:
            if threading.get_ident() == contexts.main and not (self._host.instances or self._host.leaving):
                raise FabricError(IN_FINALIZER)
            return self._wait_beside(tuple(object_ids), done, deadline)
        item = contexts.stack[-1]
        if type(item) is Invocation:
            plain = False  # Nothing runs on top of calls.
        inline = plain and ("asyncio" not in sys.modules or not in_event_loop())
        certain = deadline is None and 0 < needed == len(object_ids)
        with connection.lock:
            if done():
                return True
            self._refuse_itself(item, object_ids, needed)
            self._lending.suspend(item.row[0])
            name = self._functions.name_of(item) if type(item) is Invocation else ""
            calls = connection.machine.calls
            certain = certain and not calls.may_end(object_ids)
            worker.block(tuple(object_ids), inline, name, calls.callees(object_ids), certain)

        def news() -> bool:
            return bool(worker.inline) or worker.interrupted(item) != "" or done()

        try:
            while True:
                answered = connection.wait_until(news, deadline)
                with connection.lock:
                    ready = done()
                    next_item = worker.begin() if worker.inline else None
                if next_item is not None:
                    self._execute(next_item)
                elif worker.interrupted(item):
                    raise TaskInterrupt("the task is to be stopped")
                elif ready or not answered:
                    return ready
        finally:
            with connection.lock:
                worker.unblock()
                self._lending.resume(item.row[0])
                if not connection.armed:
                    connection.arm_flusher()  # Sent with what follows, usually an outcome.
            if type(item) is Item:
                self._functions.limit_threads(item.row)  # A task on top may have changed the limit.

    def _wait_beside(self, wanted: tuple[bytes, ...], done: Done, deadline: float | None) -> bool:
        """Wait in a thread of a call or of user code."""
        call = current_call.get()
        if call is None:
            return self._wait_lending(wanted, done, deadline)
        worker = self._worker
        answered = self._connection.wait_until(lambda: worker.interrupted(call) != "" or done(), deadline)
        if worker.interrupted(call):
            raise TaskInterrupt("the call is to be stopped")
        return answered

    def _wait_lending(self, wanted: tuple[bytes, ...], done: Done, deadline: float | None) -> bool:
        with self._connection.lock:
            if done():
                return True
            lender = self._lending.begin(wanted)
        try:
            return self._connection.wait_until(done, deadline)
        finally:
            self._end_lending(lender, wanted)

    def _end_lending(self, lender: bytes, wanted: tuple[bytes, ...]) -> None:
        with self._connection.lock:
            self._lending.end(lender, wanted)
            if not self._connection.armed:
                self._connection.arm_flusher()

    def _wait_sharing(self, object_ids: Sequence[bytes], done: Done, deadline: float | None, needed: int) -> bool:
        """Wait in a shared process: other actors' calls have the baton meanwhile."""
        connection, worker, main = self._connection, self._worker, self._contexts.in_main
        item = self._shared.run_here()
        if item is None:
            return self._wait_aside(tuple(object_ids), done, deadline)
        with connection.lock:
            if done():
                return True
            self._refuse_itself(item, object_ids, needed)
            worker.pass_baton(item, tuple(object_ids), deadline is not None or needed < len(object_ids))

        def news() -> bool:
            return (main and (worker.baton_free or bool(self._host.gone))) or worker.interrupted(item) != "" or done()

        try:
            self._shared.hand_out()
            while True:
                answered = connection.wait_until(news, deadline)
                with connection.lock:
                    ready = done()
                if worker.interrupted(item):
                    raise TaskInterrupt("the call is to be stopped")
                if ready or not answered:
                    return ready
                self._shared.release_gone()
                self._shared.hand_out()
        finally:
            self._shared.await_baton(item)

    def _wait_aside(self, wanted: tuple[bytes, ...], done: Done, deadline: float | None) -> bool:
        """Wait in a shared process's thread for which its call may wait."""
        with self._connection.lock:
            if done():
                return True
            lender = self._shared.lend(wanted)
        try:
            self._shared.hand_out()
            return self._connection.wait_until(done, deadline)
        finally:
            self._shared.end_lending(lender, wanted)

    def lend_until_called(
        self, object_id: bytes, callback: Callable[[bytes], None], add: Callable[[bytes, Callable[[bytes], None]], None]
    ) -> None:
        """``add`` a callback. A task with a loop, or that waits for a future, lends its CPU until the callback is called."""
        shared = self._worker.baton is not None
        if current_call.get() is not None and not shared:
            add(object_id, callback)
            return
        wanted = (object_id,)
        with self._connection.lock:
            if self._connection.machine.objects.at_hand(object_id):
                lender = b""
            else:
                lender = self._shared.lend(wanted) if shared else self._lending.begin(wanted)
        if not lender:
            add(object_id, callback)
            return
        end_lending = self._shared.end_lending if shared else self._end_lending

        def called(identifier: bytes) -> None:
            end_lending(lender, wanted)
            callback(identifier)

        add(object_id, called)
        if shared:
            self._shared.hand_out()

    def _refuse_itself(self, item: Item | Invocation, object_ids: Sequence[bytes], needed: int) -> None:
        """Raise DeadlockError if an actor would wait for itself. The caller holds the lock."""
        lasting = partial(self._connection.machine.calls.lasting, lives=self._worker.mailbox.actors)
        if self._worker.refused(item, object_ids, needed, lasting):
            name, actor = self._functions.name_of(item), type(self._host.instances.get(actor_of(item))).__qualname__
            text = f"{name} waits for a call that can only run once {name} has returned: {name} -> {actor} -> {name}; "
            raise DeadlockError(text + "call the method directly (self.method()), or return the ref")


class Lending:
    """Waits outside the main thread, in a task's own threads or event loop. The task on top lends its CPU. The caller holds the lock.

    To the scheduler the task is blocked on the objects of these waits, and nothing can run on top. One report covers all waiting threads. A
    main thread that computes meanwhile uses a lent CPU: the worker cannot detect whether it joins the threads.

    Nor can it detect a thread's task: each thread counts for the task on top, and at that task's end for the one below, which may join the
    thread. That CPU must be lent, or the thread might wait for something that needs it.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.waits: dict[bytes, list[Wanted]] = {}
        """Object ids per waiting thread, by task."""
        self._heirs: dict[bytes, bytes] = {}
        """Ended task -> the task below, which inherits its waiting threads."""
        self._reported: set[bytes] = set()
        """Tasks whose wait the scheduler has."""

    def begin(self, wanted: Wanted) -> bytes:
        """Begin a thread's wait. Return the task that it counts for, or empty."""
        if not self.worker.stack or self.worker.baton is not None:
            return b""
        task_id: bytes = self.worker.stack[-1].row[0]
        self.waits.setdefault(task_id, []).append(wanted)
        self.resume(task_id)
        return task_id

    def end(self, task_id: bytes, wanted: Wanted) -> None:
        """End a thread's wait."""
        while task_id in self._heirs:
            task_id = self._heirs[task_id]
        waits = self.waits.get(task_id)
        if waits is None or wanted not in waits:
            return  # The task has ended meanwhile.
        waits.remove(wanted)
        if not waits:
            self._forget(task_id)

    def resume(self, task_id: bytes) -> None:
        """The main thread goes on: report other threads' waits."""
        waits = self.waits.get(task_id)
        if waits and task_id not in self._reported and task_id not in self.worker.waits:
            self._reported.add(task_id)
            self.worker.block(waits[0], False)

    def suspend(self, task_id: bytes) -> None:
        """The main thread reports its own wait: withdraw this one."""
        if task_id in self._reported:
            self._reported.discard(task_id)
            self.worker.unblock()

    def close(self, task_id: bytes) -> None:
        """The task on top has ended."""
        stack: list[bytes] = [each.row[0] for each in self.worker.stack]
        if (waits := self.waits.get(task_id)) and task_id in stack[1:]:
            below = stack[stack.index(task_id) - 1]  # Their wait is reported when its main thread goes on.
            self.waits.setdefault(below, []).extend(waits)
            self._heirs = {before: below if heir == task_id else heir for before, heir in self._heirs.items()} | {task_id: below}
        self._forget(task_id)

    def _forget(self, task_id: bytes) -> None:
        self.suspend(task_id)
        self.waits.pop(task_id, None)
        self._heirs = {before: heir for before, heir in self._heirs.items() if heir != task_id}
