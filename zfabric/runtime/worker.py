"""The worker process: what it runs next, in its main thread, and how what runs waits.

The main thread takes tasks from its queue under the lock, runs them, reports in batches, and waits for more. A task that waits in ``get``
says so and pumps; what the scheduler puts on top of it runs right there. How one is run is in ``running``, what a worker says and hears,
and how it is interrupted, in ``worker_connection``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # Beneath ``signal``, whose enumerations cost as much as running a small task.
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from zfabric.adapters.processes import flush_output
from zfabric.exceptions import DeadlockError, FabricError
from zfabric.machines.worker import Invocation, Item, actor_of
from zfabric.protocol import messages as m
from zfabric.protocol.messages import Rows
from zfabric.runtime import interface, replay
from zfabric.runtime.client import NO_ACTOR
from zfabric.runtime.connection import IN_FINALIZER, clock
from zfabric.runtime.crew import Loop, StandIns, Threads, current_call
from zfabric.runtime.hosting import ActorExit
from zfabric.runtime.interrupts import INTERRUPT, TaskInterrupt, closed_to_interrupts
from zfabric.runtime.printing import name_output
from zfabric.runtime.running import RunningWorker
from zfabric.runtime.session import Session
from zfabric.runtime.stacks import Run, dump_on_signal, dump_path, own_threads

RECURSION_PER_TASK = 40
"""Python frames that one task on the stack may take before its own: ``get``, the pump, and running the next one."""
LAST_WORD_SECONDS = 2.0
"""How long an actor that ends itself waits until the daemon has heard so (which may just be restarted)."""


RUNNERS = (RunningWorker._execute.__code__, Threads._run.__code__, Loop._run.__code__)
"""Functions whose variables ``item`` and ``started`` say what runs in the frames above theirs, and since when."""


class WorkerRuntime(RunningWorker):
    """A worker: a client that also runs tasks."""

    def threads(self) -> Rows:
        """What the threads of this worker run, and the coroutines of its event loop."""
        loops = [each for each in (self.host.crew, self._loop) if isinstance(each, Loop)]
        coroutines = [task.get_coro() for loop in loops for task in list(loop.running.values()) if task is not None]
        return own_threads(dict.fromkeys(RUNNERS, self._run_by), coroutines)

    def _run_by(self, variables: dict[str, Any]) -> Run | None:
        """What one of ``RUNNERS`` runs."""
        item, started = variables.get("item"), variables.get("started")
        return None if item is None or started is None else (self.name_of(item), item.row[0], clock() - started)

    def at_breakpoint(self, *args: Any, **kwargs: Any) -> Any:
        """``breakpoint()`` in user code: wait for ``zfabric debug``, unless the environment variable PYTHONBREAKPOINT says otherwise."""
        if os.environ.get("PYTHONBREAKPOINT"):
            return sys.__breakpointhook__(*args, **kwargs)
        from zfabric.runtime.debugger import wait_at_breakpoint

        item = current_call.get() or (self._contexts[-1] if self._contexts else None)

        def check() -> None:
            if item is not None and self.worker.interrupted(item):
                raise TaskInterrupt("the task is to be stopped")

        about = {"task": self.name_of(item) if item is not None else "", "task_id": item.row[0].hex() if item is not None else ""}
        wait_at_breakpoint(self.session.directory, sys._getframe(1), about, check)
        return None

    def exit_actor(self) -> NoReturn:
        """See ``ClientInterface``. Raises what ends a call as a whole, or ends a thread or an asyncio task of the actor's own quietly."""
        crew, call = self.host.crew or self._loop, current_call.get()
        if threading.get_ident() == self._main:
            here = self._contexts[-1] if self._contexts else None
        else:
            here = call if call is not None and crew is not None and crew.runs_here(call) else None
        if type(here) is Invocation or (here is not None and here.row[1] in self._classes):
            raise ActorExit
        creating = [item for item in self._contexts if item.row[1] in self._classes]
        actor_id = next(iter((*self.host.instances, *(item.row[0] for item in creating))), None)
        if here is not None or actor_id is None or self.worker.turns is not None:
            raise TypeError(NO_ACTOR)
        with self.lock:
            self._end_with_process(None)
            self.machine.say(m.ActorExiting(actor_id))
            self.flush()
        if "asyncio" in sys.modules and _in_event_loop():
            from asyncio import CancelledError

            raise CancelledError
        raise SystemExit(0)

    # -- running tasks --

    def run(self) -> None:
        """Until told to stop."""
        asyncs = self.worker.async_functions
        try:
            while True:
                if self.host.gone:
                    self.let_go()
                item = self._next()
                if item is not None:
                    following = self._execute(item, claim=True) if item.row[1] not in asyncs else item
                    if following is not None:
                        self._start_beside(following)  # type: ignore[arg-type]
                elif self.worker.turns is not None:
                    self._idle()
                elif self._may_retire():
                    self._retire()
                else:
                    if self.host.crew is not None:
                        replay.look_after(self)
                        self.host.crew.hand_out()
                    self._idle()
        except KeyboardInterrupt:
            raise SystemExit(0) from None

    def _may_retire(self) -> bool:
        """Whether there is nothing more to do as an actor. One that has ended itself waits only so long for threads, and for promises."""
        if not self.host.done:
            return False
        stays = self.worker.running_calls or (self.host.leaving and self.machine.calls.results.awaited)
        return not stays or (self.host.leaving and clock() >= self.host.leaves_at)

    def _retire(self) -> None:
        """The end of an actor's process, with all that it has to say said, and heard: else it would be taken for a death."""
        self.host.end()
        self._returned = None
        if self.host.leaving:
            # That it ends for good must be heard before its death is noticed, or it would be made again: the answer says that it was.
            with contextlib.suppress(FabricError):
                self.query("nothing", timeout=LAST_WORD_SECONDS)
        self._say_the_last()
        raise SystemExit(0)

    def _start_beside(self, item: Item) -> None:
        if self._loop is None:
            self._loop = Loop(self, ())
        with self.lock:
            self.worker.move_beside(item)
        self._loop.start(((item, None),))

    def _next(self) -> Item | Invocation | None:
        with self.lock:
            item = self.worker.begin() if not self.host.leaving else None
            if item is None:
                self.flush()
            return item

    def _idle(self) -> None:
        worker, host = self.worker, self.host
        leaving = host.leaving

        def wanted() -> bool:
            if host.leaving and not leaving:
                return True  # Said in another thread: this one waits until then, and no longer.
            if worker.mailbox.queue and host.crew is None and worker.turns is None and not host.leaving:
                return True  # As most often in an actor's process.
            if worker.turns is not None:
                return worker.turn_free or bool(host.gone)
            calls = not host.leaving and (host.crew.wanted() if host.crew is not None else worker.mailbox.queue)
            gate = worker.gate is not None and worker.gate.wants_shell
            return bool(calls or gate or worker.queue or worker.inline or self._may_retire())

        self.restore_signals()
        flush_output()  # Lines that are not at their end: they may be the last ones.
        self.wait_until(wanted, host.leaves_at if leaving and host.leaves_at > clock() else None)

    # -- waiting inside a task --

    def wait_for(self, object_ids: Sequence[bytes], done: Callable[[], bool], deadline: float | None, plain: bool, needed: int) -> bool:
        """Say that the task on top waits, run what is put on top of it, and say when it goes on."""
        if self._leader == threading.get_ident():
            raise FabricError(IN_FINALIZER)  # What waits already is on the stack of what runs, and is not to be there twice.
        if self.worker.turns is not None:
            return self._wait_turn(object_ids, done, deadline, needed)
        if threading.get_ident() != self._main or not self._contexts:
            if threading.get_ident() == self._main and not (self.host.instances or self.host.leaving):
                raise FabricError(IN_FINALIZER)
            return self._wait_beside(tuple(object_ids), done, deadline)
        item = self._contexts[-1]
        if type(item) is Invocation:
            plain = False  # Nothing but its own calls runs in an actor's process.
        inline = plain and ("asyncio" not in sys.modules or not _in_event_loop())
        worker = self.worker
        certain = deadline is None and 0 < needed == len(object_ids)
        with self.lock:
            if done():
                return True
            self._refuse_itself(item, object_ids, needed)
            self.lending.suspend(item.row[0])
            name = self._terms(item)[0] if type(item) is Invocation else ""
            calls = self.machine.calls
            certain = certain and not calls.may_end(object_ids)
            worker.block(tuple(object_ids), inline, name, calls.callees(object_ids), certain)

        def news() -> bool:
            return bool(worker.inline) or worker.interrupted(item) != "" or done()

        try:
            while True:
                answered = self.wait_until(news, deadline)
                with self.lock:
                    ready = done()
                    next_item = self.worker.begin() if self.worker.inline else None
                if next_item is not None:
                    self._execute(next_item)
                elif self.worker.interrupted(item):
                    raise TaskInterrupt("the task is to be stopped")
                elif ready or not answered:
                    return ready
        finally:
            with self.lock:
                self.worker.unblock()
                self.lending.resume(item.row[0])
                if not self._armed:
                    self._arm_flusher()  # What follows, a completion most often, takes the news along.
            if type(item) is Item:
                self.limit_threads(item.row)  # What ran on top may have changed it.

    def _wait_beside(self, wanted: tuple[bytes, ...], done: Callable[[], bool], deadline: float | None) -> bool:
        """A thread that runs a call waits, or one of the program's own."""
        call = current_call.get()
        if call is None:
            return self._wait_lending(wanted, done, deadline)
        answered = self.wait_until(lambda: self.worker.interrupted(call) != "" or done(), deadline)
        if self.worker.interrupted(call):
            raise TaskInterrupt("the call is to be stopped")
        return answered

    def _wait_lending(self, wanted: tuple[bytes, ...], done: Callable[[], bool], deadline: float | None) -> bool:
        with self.lock:
            if done():
                return True
            lender = self.lending.begin(wanted)
        try:
            return self.wait_until(done, deadline)
        finally:
            self._go_on(lender, wanted)

    def _go_on(self, lender: bytes, wanted: tuple[bytes, ...]) -> None:
        with self.lock:
            self.lending.end(lender, wanted)
            if not self._armed:
                self._arm_flusher()

    @closed_to_interrupts
    def add_done_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """See ``ClientInterface``. A task that runs an event loop, or waits for a future, lends its CPU until then."""
        shared = self.worker.turns is not None
        if current_call.get() is not None and not shared:
            super().add_done_callback(object_id, callback)
            return
        with self.lock:
            if self.machine.objects.at_hand(object_id):
                lender = b""
            else:
                lender = self._lend_turn((object_id,)) if shared else self.lending.begin((object_id,))
        if not lender:
            super().add_done_callback(object_id, callback)
            return

        def told(identifier: bytes) -> None:
            (self._lend_turn_no_more if shared else self._go_on)(lender, (object_id,))
            callback(identifier)

        super().add_done_callback(object_id, told)
        if shared:
            self.hand_out()

    def _wait_turn(self, object_ids: Sequence[bytes], done: Callable[[], bool], deadline: float | None, needed: int) -> bool:
        """A call of an actor that shares this process waits: others have their turn meanwhile. They run in other threads."""
        worker, main = self.worker, threading.get_ident() == self._main
        item = self._run_here()
        if item is None:
            return self._wait_aside(tuple(object_ids), done, deadline)
        with self.lock:
            if done():
                return True
            self._refuse_itself(item, object_ids, needed)
            worker.give_up_turn(item, tuple(object_ids), deadline is not None or needed < len(object_ids))

        def news() -> bool:
            return (main and (worker.turn_free or bool(self.host.gone))) or worker.interrupted(item) != "" or done()

        try:
            self.hand_out()
            while True:
                answered = self.wait_until(news, deadline)
                with self.lock:
                    ready = done()
                if worker.interrupted(item):
                    raise TaskInterrupt("the call is to be stopped")
                if ready or not answered:
                    return ready
                self.let_go()
                self.hand_out()
        finally:
            self._wait_for_turn(item)

    def _run_here(self) -> Item | Invocation | None:
        """What this thread runs, in a process that actors share; None of a thread that such a call has started, or of the program's own."""
        if threading.get_ident() == self._main:
            return self._contexts[-1] if self._contexts else None
        item, crew = current_call.get(), self.host.crew
        return item if item is not None and isinstance(crew, StandIns) and crew.runs_here(item) else None

    def _wait_aside(self, wanted: tuple[bytes, ...], done: Callable[[], bool], deadline: float | None) -> bool:
        """A thread waits that a call has started, in a process that actors share: it may be all that the call waits for."""
        with self.lock:
            if done():
                return True
            lender = self._lend_turn(wanted)
        try:
            self.hand_out()
            return self.wait_until(done, deadline)
        finally:
            self._lend_turn_no_more(lender, wanted)

    def _lend_turn(self, wanted: tuple[bytes, ...]) -> bytes:
        """The actor whose call lends its turn; empty if none runs. The caller holds the lock."""
        turns = self.worker.turns
        assert turns is not None
        item = self._run_here() or current_call.get()
        call_id = item.row[0] if item is not None else turns.running
        lender = next((actor_id for actor_id, begun in turns.busy.items() if begun == call_id), b"")
        if lender:
            turns.lend(lender, wanted)
        return lender

    def _lend_turn_no_more(self, lender: bytes, wanted: tuple[bytes, ...]) -> None:
        with self.lock:
            if self.worker.turns is not None:
                self.worker.turns.lend_no_more(lender, wanted)

    def _wait_for_turn(self, item: Item | Invocation) -> None:
        """Until what runs meanwhile has ended, or waits. Nothing else ends this wait: what goes on without its turn would run beside it."""
        actor_id = actor_of(item)
        interrupt: BaseException | None = None
        while True:
            try:
                with self.lock:
                    if self.worker.take_turn(item):
                        self._turn_bells.pop(actor_id, None)
                        break
                    bell = self._turn_bells.setdefault(actor_id, threading.Semaphore(0))
                bell.acquire()
            except TaskInterrupt as error:
                interrupt = error
        self.mark(item)
        if interrupt is not None:
            raise interrupt

    def _refuse_itself(self, item: Item | Invocation, object_ids: Sequence[bytes], needed: int) -> None:
        """DeadlockError if an actor would wait for a call of itself. The caller holds the lock."""
        lasting = partial(self.machine.calls.lasting, lives=self.worker.mailbox.actors)
        if self.worker.refused(item, object_ids, needed, lasting):
            name, actor = self._terms(item)[0], type(self.host.instances.get(actor_of(item))).__qualname__
            text = f"{name} waits for a call that can only run once {name} has returned: {name} -> {actor} -> {name}; "
            raise DeadlockError(text + "call the method directly (self.method()), or return the ref")


def _in_event_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run(session: Session, token: bytes, job: bytes) -> None:
    """The worker child's body: until its job, its daemon's node, or the scheduler's patience ends."""
    found = session.daemon()
    deadline = clock() + 15.0
    while found is None and clock() < deadline:
        time.sleep(0.001)  # the daemon that asked for this worker is about to publish itself: no event says so, and it is soon
        found = session.daemon()
    if found is None:
        raise FabricError("the worker found no daemon")
    runtime = WorkerRuntime(session, token, job)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + RECURSION_PER_TASK * runtime.config.inline_depth))
    _signal.signal(INTERRUPT, runtime._handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interface.set_current(runtime)
    interface.current_task = runtime.context
    with contextlib.suppress(OSError):  # The disk is full: stacks come from the control thread alone.
        dump_on_signal(dump_path(session.logs, token))
    sys.breakpointhook = runtime.at_breakpoint
    runtime._close_output = name_output(runtime.name_of_writer, runtime.machine)
    runtime.connect(found[0])
    with contextlib.suppress(SystemExit):
        runtime.run()
