"""The worker process: runs user code in its main thread, and listens to the scheduler in one control thread.

The main thread takes tasks from its queue under the lock, runs them, reports in batches, and waits for more. A task that waits in ``get``
says so and pumps; what the scheduler puts on top of it runs right there. The control thread, asleep on a socket of its own, gives
back tasks that were not begun, passes on interrupts, and rejoins a restarted daemon while user code runs.

An interrupt is a real-time signal to the main thread. Its handler raises only if the attempt on top is to be stopped *and* user
code runs (or the thread waits in ``poll``): never in the middle of the fabric's own bookkeeping. The scheduler repeats it until the
attempt has ended.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # Beneath ``signal``, whose enumerations cost as much as running a small task.
import contextlib
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import zmq

from zfabric.adapters import serialization
from zfabric.adapters.sockets import Post
from zfabric.exceptions import DeadlockError, FabricError, SerializationError
from zfabric.machines.parts.mailbox import Invocation
from zfabric.machines.parts.naming import Namer
from zfabric.machines.worker import REPORTS, Item, Worker
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import CLIENT, CONTROL, JOB_BYTES, TASK_BYTES, WORKER, call_value, object_id
from zfabric.protocol.messages import ERROR, FAILED, INTERRUPTED, OK, RETRY, Row
from zfabric.protocol.options import option
from zfabric.runtime import interface
from zfabric.runtime.client import FabricClient
from zfabric.runtime.connection import CHECK_EVERY, PEERS, clock
from zfabric.runtime.crew import Loop, crew_for, current_call
from zfabric.runtime.hosting import ActorExit, Host
from zfabric.runtime.session import Session
from zfabric.runtime.streaming import produce

INTERRUPT = int(signal.SIGRTMIN) + 7
RECURSION_PER_TASK = 40
"""Python frames that one task on the stack may take before its own: ``get``, the pump, and running the next one."""
REPORT_ROWS = 64
"""Completions that are reported without waiting for more."""


Ending = tuple[int, Row, tuple[Row, Row] | None]
"""How user code ended: (status, outputs, refs inside them)."""
Prepared = tuple[Callable[..., Any], Callable[[BaseException], bool], tuple[Any, ...], dict[str, Any]]
"""What is to be called: (function, whether an error is to be retried, args, kwargs)."""


class TaskInterrupt(KeyboardInterrupt):
    """Raised in user code to stop its attempt. Like Ctrl-C it passes ``except Exception``."""


class WorkerRuntime(FabricClient):
    """A worker: a client that also runs tasks."""

    def __init__(self, session: Session, token: bytes, job: bytes) -> None:
        super().__init__(session, token, "worker", token, job, "")
        self.control = bytes((token[0] ^ 0x80,)) + token[1:]
        self.worker = Worker(WORKER + token, self.config)
        self.host = Host(self.worker.mailbox, self.machine.calls)
        self.control_post = Post(self._context, session.sockets, self.control, self.config)
        self.control_post.hang_bell()
        self._main = threading.get_ident()
        self._handler = self._interrupted
        self._listener: threading.Thread | None = None
        self._in_fabric = 1
        self._waiting = False
        self._functions: dict[bytes, tuple[Callable[..., Any], Callable[[BaseException], bool]]] = {}
        self._options: dict[bytes, tuple[str, int]] = {}
        self._loop: Loop | None = None
        """Runs async tasks."""
        self._async: dict[bytes, bool] = {}
        self._streams: dict[bytes, int] = {}
        """Functions whose calls make streams, and how many values those may be ahead (0: as configured)."""
        self._classes: set[bytes] = set()
        """Functions whose calls make actors."""
        self._namers: list[Namer | None] = []
        self._contexts: list[Item | Invocation] = []
        self._thread_names = threading.local()
        self._call_names: dict[bytes, Namer] = {}
        """Who names what calls submit that run beside each other."""
        self._first_unreported = 0.0
        self._returned: Any = None
        self._slot = _slot(f"{session.sockets}/{token.hex()}.slot")
        self._gpus: tuple[int, ...] | None = None
        self._unfinished_writes: list[int] = []
        """Objects written into grants whose completion is not in a message yet."""

    # -- naming what tasks submit --

    def namer(self) -> Namer:
        """The namer of the task on top; threads of their own name under a random salt."""
        if threading.get_ident() == self._main and self._contexts:
            namer = self._namers[-1]
            if namer is None:
                item = self._contexts[-1]
                namer = self._namers[-1] = Namer(item.row[0][:JOB_BYTES], item.row[0], attempt=item.attempt)
            return namer
        call = current_call.get()
        if call is not None:
            named = self._call_names.get(call.row[0])
            if named is None:
                named = self._call_names[call.row[0]] = Namer(call.row[0][:JOB_BYTES], call.row[0], attempt=call.attempt)
            return named
        found: Namer | None = getattr(self._thread_names, "namer", None)
        if found is None:
            parent = self._contexts[-1].row[0] if self._contexts else bytes(TASK_BYTES)
            found = self._thread_names.namer = Namer(self.machine.job or parent[:JOB_BYTES], parent, salt=os.urandom(8))
        return found

    # -- the API's entry points, closed to interrupts --

    def submit(self, *arguments: Any) -> bytes:
        """See ``ClientInterface``."""
        self._in_fabric += 1
        try:
            return super().submit(*arguments)
        finally:
            self._in_fabric -= 1

    def submit_many(self, *arguments: Any) -> list[bytes]:
        """See ``ClientInterface``."""
        self._in_fabric += 1
        try:
            return super().submit_many(*arguments)
        finally:
            self._in_fabric -= 1

    def put(self, *arguments: Any) -> bytes:
        """See ``ClientInterface``."""
        self._in_fabric += 1
        try:
            return super().put(*arguments)
        finally:
            self._in_fabric -= 1

    def call(self, *arguments: Any) -> bytes:
        """See ``ClientInterface``."""
        self._in_fabric += 1
        try:
            return super().call(*arguments)
        finally:
            self._in_fabric -= 1

    def get(self, *arguments: Any) -> Any:
        """See ``ClientInterface``."""
        self._in_fabric += 1
        try:
            return super().get(*arguments)
        finally:
            self._in_fabric -= 1

    def wait(self, *arguments: Any) -> set[bytes]:
        """See ``ClientInterface``."""
        self._in_fabric += 1
        try:
            return super().wait(*arguments)
        finally:
            self._in_fabric -= 1

    # -- the daemon --

    def running(self) -> tuple[m.Message, ...]:
        """What this worker adds to its registration."""
        return self.worker.running()

    def unread(self) -> tuple[Row, ...]:
        """Places that came with tasks it has not begun."""
        return self.worker.unread()

    def _join(self, daemon: bytes) -> None:
        self.worker.connect(daemon)
        super()._join(daemon)
        if self._listener is None:  # From the first registration on: the daemon that is to hear of it may be replaced meanwhile.
            self._listener = threading.Thread(target=self._listen, name="zfabric-control", daemon=True)
            self._listener.start()

    def _is_peer(self, sender: bytes) -> bool:
        """Whoever is not the node's daemon may call the actor that lives here."""
        if not super()._is_peer(sender) and self.host.instances:
            self._follow_daemon()
            if sender != self.daemon:
                self._peers.add(sender)
        return sender in self._peers

    def _deliver_from_peer(self, now: float, to: bytes, source: bytes, message: Any) -> None:
        if type(message) is m.Call:
            before = self.worker.next_deadline()
            self.worker.step(now, source, message)
            if self.worker.next_deadline() != before:
                self.control_post.ring()
        else:
            super()._deliver_from_peer(now, to, source, message)

    def _leave(self, daemon: bytes) -> None:
        for to, role, message in self.post.forget(daemon):
            if role == WORKER and type(message) in REPORTS:
                self.worker.unheard.append(message)
            del to
        self.control_post.forget(daemon)

    def _sends(self) -> list[tuple[bytes, Send]]:
        """What was said while tasks ran, then their ends, then what they let go of: a ref inside a result is never let go of first."""
        daemon = self.daemon
        for identifier, place in self.worker.given_up:
            self.machine.pins.told(identifier, place)
            self.machine.pins.let_go(identifier)
        self.worker.given_up.clear()
        said, ends = self.machine.take_said(), self.worker.take_effects(0.0)
        sends = [(CLIENT, effect) for effect in said if type(effect) is Send and (effect.to[1:] == daemon or effect.to[:1] in PEERS)]
        sends += [(WORKER, effect) for effect in ends if type(effect) is Send and (effect.to[1:] == daemon or effect.to[:1] == CLIENT)]
        machine = self.machine
        return sends + super()._sends() if machine.dropped or machine.unviewed or machine.has_unsent or machine.calls.gone else sends

    def _settle(self) -> None:
        if self.worker.unreported:
            self.flush()
        else:
            super()._settle()

    def _has_unsent(self) -> bool:
        return self.machine.has_unsent or self.worker.has_unsent

    def _deliver(self, now: float, to: bytes, source: bytes, message: Any) -> None:
        if to == WORKER:
            self.worker.step(now, source, message)
        else:
            super()._deliver(now, to, source, message)

    def _wait_readable(self, timeout: float) -> bool:
        if threading.get_ident() != self._main:
            return super()._wait_readable(timeout)
        self._waiting = True
        try:
            return super()._wait_readable(timeout)
        finally:
            self._waiting = False

    # -- the control thread --

    def _listen(self) -> None:
        try:
            self._obey()
        except zmq.ZMQError:
            if not self.closed:
                raise

    def _obey(self) -> None:
        post = self.control_post
        while not self.closed:
            dues = [due for due in (post.next_deadline(), self.worker.next_deadline()) if due is not None]
            post.poll(max(0.0, min(dues) - clock()) if dues else CHECK_EVERY * 10)
            for sender, frame in post.receive():
                with self.lock:
                    now = clock()
                    from_peer = sender != self.daemon and self._is_peer(sender)
                    if sender == self.daemon or from_peer or self._is_new_daemon(sender):
                        for _, role, message in post.accept(sender, frame, now):
                            if not from_peer or type(message) is m.Stopped:
                                self._controlled(now, role + sender, message)
            with self.lock:
                post.tick(clock())
                self._enforce_timeouts()

    def _enforce_timeouts(self) -> None:
        """Stop calls whose time is up. The caller holds the lock."""
        before = set(self.worker.interrupts)
        due = self.worker.next_deadline()
        if due is not None and due <= clock():
            self.worker.tick(clock())
            for call_id in set(self.worker.interrupts) - before:
                self._interrupt(call_id)
            self.flush()

    def _interrupt(self, stopped: bytes) -> None:
        """Stop what runs under this id, if it is to be stopped."""
        beside = self.worker.running_calls.get(stopped)
        crew = self.host.crew or self._loop
        if beside is not None and crew is not None:
            crew.interrupt(beside)
        elif stopped in self.worker.interrupts:
            signal.pthread_kill(self._main, INTERRUPT)

    def _controlled(self, now: float, source: bytes, message: Any) -> None:
        if type(message) is m.Rejoin:
            return
        if type(message) is m.Recall or type(message) is m.RecallGrant:
            self.machine.step(now, source, message)
        else:
            self.worker.step(now, source, message)
        if self.worker.stopping:
            os._exit(0)
        self.flush()
        if type(message) is m.Interrupt:
            self._interrupt(message.task_id)
        elif type(message) is m.Stopped:
            self._interrupt(message.call_id)
        elif type(message) is m.Retire:
            self.post.ring()

    def _interrupted(self, number: int, frame: Any) -> None:
        if self._in_fabric and not self._waiting:
            return
        if self._contexts and self.worker.interrupted(self._contexts[-1]):
            raise TaskInterrupt("the task is to be stopped")

    # -- running tasks --

    def run(self) -> None:
        """Until told to stop."""
        try:
            while True:
                item = self._next()
                if item is not None and self._is_async(item):
                    self._start_beside(item)  # type: ignore[arg-type]
                elif item is not None:
                    self._execute(item)
                elif self.host.done and not self.worker.running_calls:
                    self._retire()
                else:
                    if self.host.crew is not None:
                        self.host.crew.hand_out()
                    self._idle()
        except KeyboardInterrupt:
            raise SystemExit(0) from None

    def _retire(self) -> None:
        """The end of an actor's process, with all that it has to say said."""
        self.host.end()
        self._returned = None
        self._say_the_last()
        raise SystemExit(0)

    def _say_the_last(self) -> None:
        """Send what is unsent, and let go of all sockets."""
        with self.lock:
            self.worker.say_trace()
            self.flush()
            self.closed = True
            self.control_post.close()
        self.disconnect()

    def _is_async(self, item: Item | Invocation) -> bool:
        """Whether it is a task of an ``async def`` function."""
        found = self._async.get(item.row[1])
        if found is None:
            function = self.worker.functions.get(item.row[1])
            pairs = function[3] if function is not None else ()
            found = self._async[item.row[1]] = option(pairs, "max_concurrency") is not None and option(pairs, "actor") is None
        return found

    def _start_beside(self, item: Item) -> None:
        if self._loop is None:
            self._loop = Loop(self, 0)
        with self.lock:
            self.worker.move_beside(item)
        self._loop.start((item,))

    def _next(self) -> Item | Invocation | None:
        with self.lock:
            item = self.worker.begin()
            if item is None or self.worker.unreported >= REPORT_ROWS:
                self.flush()
            return item

    def _idle(self) -> None:
        worker, host = self.worker, self.host

        def wanted() -> bool:
            calls = host.crew.wanted() if host.crew is not None else worker.mailbox.queue
            return bool(calls or worker.queue or worker.inline or (host.done and not worker.running_calls))

        self.wait_until(wanted, None)

    def _execute(self, item: Item | Invocation) -> None:
        row = item.row
        self._slot[0:TASK_BYTES] = row[0]
        if not self.machine.job:
            self.machine.job = row[0][:JOB_BYTES]
        if _signal.getsignal(INTERRUPT) is not self._handler:
            _signal.signal(INTERRUPT, self._handler)  # A library of the program's has replaced it.
        self._contexts.append(item)
        self._namers.append(None)
        started = clock()
        try:
            status, outputs, extra = self._run_user_code(item)
        finally:
            self._contexts.pop()
            self._namers.pop()
        ended = clock()
        self._slot[0:TASK_BYTES] = self._contexts[-1].row[0] if self._contexts else bytes(TASK_BYTES)
        worker = self.worker
        with self.lock:
            if type(item) is Invocation:
                self._end_call(item, status, outputs, extra, started, ended - started)
            else:
                worker.interrupts.pop(row[0], None)
                worker.finish(item, status, outputs, extra, started, ended - started)  # type: ignore[arg-type]
            self._returned = None
            while self._unfinished_writes:
                self.machine.room.finished(self._unfinished_writes.pop())
            if worker.unreported == 1:
                self._first_unreported = ended
            if not self._armed and (worker.queue or worker.inline or worker.mailbox.queue):
                self._arm_flusher()
            if worker.unreported >= REPORT_ROWS or ended - self._first_unreported > self.config.completion_delay:
                self.flush()
                self.look()  # so that the queue does not run dry

    def _keep_house(self) -> None:
        with self.lock:
            self.worker.say_trace()
        super()._keep_house()

    def streamed(self, item: Item | Invocation, value: Any) -> Any:
        """What a task or a call returned; of one that makes a stream, how many values it has yielded."""
        if type(item) is Invocation:
            ahead = None if item.options is None else option(item.options, "stream")
        else:
            ahead = self._streams.get(item.row[1])
            if ahead is not None and len(item.row) > 4:
                ahead = option(item.row[4], "stream", ahead)
        return value if ahead is None else produce(self, item, value, ahead)

    def name_of(self, item: Item | Invocation) -> str:
        """What is called, for people."""
        return self._terms(item)[0]

    def as_user(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run more user code of the task on top: an interrupt may end it."""
        if threading.get_ident() != self._main:
            return function(*args)
        self._in_fabric = 0
        try:
            return function(*args)
        finally:
            self._in_fabric = 1

    def store(self, identifier: bytes, packed: serialization.SerializedValue) -> Any:
        """A value as it is reported: inline bytes, or the place in the arena that it was written to."""
        if packed.size <= self.config.inline_bytes:
            return packed.to_bytes()
        place = self.values.write(identifier, packed)
        self._unfinished_writes.append(place[0])
        return place

    def yielded(self, row: Row) -> None:
        """Say the next value of a stream, as soon as that is worth a message, and hear how far the stream may go."""
        with self.lock:
            self.machine.calls.share(row[4])
            self.worker.yields.say(row)
            if type(row[3]) is tuple:
                self._unfinished_writes.remove(row[3][0])
                self.machine.room.finished(row[3][0])
            due = clock() - self._sent_at > self.config.completion_delay or self.worker.unreported >= REPORT_ROWS
            if due:
                self.flush()
            elif not self._armed:
                self._arm_flusher()
        if due:
            self.look()

    def end_beside(self, item: Item | Invocation, outcome: Ending, started: float, flush: bool = True) -> Invocation | None:
        """What ran beside others has ended; the next call, if there is one that may run now."""
        status, outputs, extra = outcome
        with self.lock:
            self._call_names.pop(item.row[0], None)
            if type(item) is Invocation:
                self._end_call(item, status, outputs, extra, started, clock() - started)
            else:
                self.worker.interrupts.pop(item.row[0], None)
                self.worker.finish(item, status, outputs, extra, started, clock() - started)  # type: ignore[arg-type]
            while self._unfinished_writes:
                self.machine.room.finished(self._unfinished_writes.pop())
            following = None if self.host.leaving else self.worker.begin_beside()
            if not flush:
                pass
            elif following is None or self.worker.unreported >= REPORT_ROWS:
                self.flush()
            elif not self._armed:
                self._arm_flusher()
            if self.host.done and not self.worker.running_calls:
                self.post.ring()
        return following

    def _end_call(self, item: Invocation, status: int, outputs: Row, extra: tuple[Row, Row] | None, started: float, seconds: float) -> None:
        reason = self.worker.interrupts.pop(item.row[0], (0, "cancelled"))[1]
        if status == INTERRUPTED:
            kind = "TaskTimeoutError" if reason == "timeout" else "TaskCancelledError"
            status, outputs = FAILED, (pack_failure(kind, f"{item.method} was stopped while it ran ({reason})"),)
        self.worker.finish_call(item, status, outputs, extra[0] if extra is not None else (), started, seconds)

    def prepare(
        self, item: Item | Invocation
    ) -> tuple[Callable[..., Any], Callable[[BaseException], bool], tuple[Any, ...], dict[str, Any]]:
        """What is to be called, and with what: (function, whether an error is to be retried, args, kwargs). Raises what user code does."""
        row = item.row
        function, retryable = (self.host.method(item), _never) if type(item) is Invocation else self._load(row[1])
        if row[2] or item.values:
            return function, retryable, *serialization.load_arguments(row[2], self._values(item))
        return function, retryable, (), {}

    def failed(self, item: Item | Invocation, error: BaseException, retryable: Callable[[BaseException], bool] | None) -> Ending:
        """The outcome of user code that raised."""
        if isinstance(error, ActorExit):
            return self._leave_for_good("exit_actor")
        if self.worker.interrupted(item):
            return INTERRUPTED, (), None
        if type(item) is Invocation and isinstance(error, SystemExit):
            return self._exit(item, error)
        status = RETRY if retryable is not None and not isinstance(error, SystemExit) and _asks(retryable, error) else ERROR
        return status, (self._error(error, item),), None

    def _leave_for_good(self, how: str) -> Ending:
        """The actor ends itself: calls that wait are not run, and it is not restarted."""
        self.host.leaving = True
        with self.lock:
            self.machine.say(m.Leaving(next(iter(self.host.instances))))
        return FAILED, (pack_failure("ActorDiedError", f"it ended itself ({how})", (("outcome", "unknown"),)),), None

    def _exit(self, item: Invocation, error: SystemExit) -> Ending:
        """``sys.exit`` in a method ends the process: as wanted, or, with an exit code, as a death that restarts may follow."""
        if not error.code:
            return self._leave_for_good("sys.exit")
        self._say_the_last()
        os._exit(error.code if isinstance(error.code, int) and 0 < error.code < 256 else 1)

    def _run_user_code(self, item: Item | Invocation) -> Ending:
        row = item.row
        try:
            function, retryable, args, kwargs = self.prepare(item)
        except TaskInterrupt:
            return INTERRUPTED, (), None
        except Exception as error:  # the user's modules are imported and values unpickled here: what they raise is the task's error
            return ERROR, (self._error(error, item),), None
        if item.gpus or self._gpus:
            self._assign_gpus(item.gpus)
        try:
            if self.worker.interrupts and self.worker.interrupted(item):
                return INTERRUPTED, (), None
            self._in_fabric = 0
            try:
                value = function(*args, **kwargs)
            finally:
                self._in_fabric = 1
            value = self.streamed(item, value)
        except BaseException as error:  # whatever the user's code raises, SystemExit and our own interrupt among it
            self._in_fabric = 1  # An interrupt may have come before the line above was reached.
            return self.failed(item, error, retryable)
        del args, kwargs
        if row[1] in self._classes:
            self._become_actor(item, value)  # type: ignore[arg-type]
            value = None
        self._returned = value  # The refs in it live until its end is told: they would be let go of first otherwise.
        return self.packed(item, value)

    def _become_actor(self, item: Item, instance: Any) -> None:
        crew = crew_for(self, instance, option(self.worker.functions[item.row[1]][3], "max_concurrency"))
        with self.lock:
            self.post.hang_bell()
            self.worker.beside = crew is not None
            self.host.begin(item, instance, crew)

    def packed(self, item: Item | Invocation, value: Any) -> Ending:
        """The outcome of user code that returned."""
        try:
            return self._pack(item, value)
        except FabricError as error:
            if isinstance(error, SerializationError):
                return ERROR, (self._error(error, item),), None
            return FAILED, (pack_failure(type(error).__name__, str(error)),), None
        except Exception as error:  # what was returned is the user's, and so is what its __reduce__, or an iterator, raises
            return ERROR, (self._error(error, item),), None

    def _load(self, function_id: bytes) -> tuple[Callable[..., Any], Callable[[BaseException], bool]]:
        found = self._functions.get(function_id)
        if found is None:
            row = self.worker.functions[function_id]
            self._look_in(option(row[3], "paths", ()))
            ahead = option(row[3], "stream")
            found = self._functions[function_id] = serialization.load_function(row[2], function_id, whole=ahead is None)
            self._options[function_id] = (row[1], option(row[3], "num_returns", 1))
            if ahead is not None:
                self._streams[function_id] = ahead
            if option(row[3], "actor") is not None:
                self._classes.add(function_id)
        return found

    def _look_in(self, paths: tuple[str, ...]) -> None:
        """Find modules where the job's program does; functions that this worker exports say the same."""
        if paths != self.paths:
            self.paths = paths
            sys.path[:0] = [path for path in paths if path not in sys.path]

    def _values(self, item: Item | Invocation) -> list[Any]:
        values = []
        for identifier, value in zip(item.row[3], item.values, strict=True):
            if value is None:
                values.append(self._fetched(identifier))
            elif type(value) is tuple:
                with self.lock:
                    self.machine.pins.told(identifier, value)
                    self.machine.pins.view(identifier)
                values.append(serialization.deserialize(self.values.arena().view(*value), partial(self._unview, identifier)))
            else:
                values.append(serialization.deserialize(value))
        return values

    def _fetched(self, identifier: bytes) -> Any:
        """A large argument of a call: its caller holds it."""
        with self.lock:
            self.machine.add_reference(identifier)
        try:
            outcome = super().get((identifier,), None)[0]
            if outcome.status != OK:
                raise FabricError("an argument of the call was lost")
            return serialization.deserialize(outcome.data, outcome.release)
        finally:
            self.machine.dropped.append(identifier)

    def _terms(self, item: Item | Invocation) -> tuple[str, int]:
        """What is called, for people, and how many values it is to return."""
        if type(item) is Invocation:
            return f"{self.host.class_of(item)}.{item.method}", option(item.options, "num_returns", 1)
        name, count = self._options.get(item.row[1], ("?", 1))
        return name, option(item.row[4], "num_returns", count) if len(item.row) > 4 else count

    def _pack(self, item: Item | Invocation, value: Any) -> Ending:
        """Serialize what the function returned."""
        row = item.row
        name, count = self._terms(item)
        name_value = call_value if type(item) is Invocation else object_id
        if count == 1:
            fast = serialization.serialize_fast(value)
            if fast is not None and len(fast) <= self.config.inline_bytes:
                return OK, (fast,), None
            values: Sequence[Any] = (value,)
        elif count == 0:
            return OK, (), None
        else:
            if not isinstance(value, (tuple, list)) and hasattr(value, "__iter__") and not isinstance(value, (str, bytes, dict)):
                value = tuple(value)
            if not isinstance(value, (tuple, list)) or len(value) != count:
                got = f"{len(value)} values" if isinstance(value, (tuple, list)) else f"one {type(value).__name__}"
                raise ValueError(f"{name} declares num_returns={count} and returned {got}")
            values = value
        outputs: list[Any] = []
        contained: list[tuple[bytes, ...]] = []
        for index, each in enumerate(values):
            packed = serialization.serialize(each, f"what {name} returned")
            contained.append(packed.contained)
            outputs.append(self.store(name_value(row[0], index), packed))
        extra = (tuple(contained), ()) if any(contained) else None
        if extra is not None:
            with self.lock:
                self.machine.calls.share([identifier for refs in contained for identifier in refs])
        return OK, tuple(outputs), extra

    def _error(self, error: BaseException, item: Item | Invocation) -> bytes:
        name = self._terms(item)[0]
        facts = {"function": name, "node": self.node.hex(), "pid": os.getpid(), "attempt": item.attempt}
        return serialization.dump_error(error, facts)

    def context(self) -> interface.TaskContext | None:
        """The attempt on top, or the call that this thread or coroutine runs."""
        item = self._contexts[-1] if self._contexts else current_call.get()
        if item is None:
            return None
        actor_id = item.actor_id if type(item) is Invocation else item.row[0] if item.row[1] in self._classes else b""
        return interface.TaskContext(item.row[0], item.attempt, self._terms(item)[0], item.gpus, actor_id)

    def _assign_gpus(self, gpus: tuple[int, ...]) -> None:
        if gpus != self._gpus:
            self._gpus = gpus
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))

    # -- waiting inside a task --

    def wait_for(self, object_ids: Sequence[bytes], done: Callable[[], bool], deadline: float | None, plain: bool) -> bool:
        """Say that the task on top waits, run what is put on top of it, and say when it goes on."""
        if threading.get_ident() != self._main or not self._contexts:
            return self.wait_until(done, deadline)
        item = self._contexts[-1]
        if type(item) is Invocation:
            self._refuse_deadlock(item, object_ids)
            plain = False  # Nothing but its own calls runs in an actor's process.
        inline = plain and ("asyncio" not in sys.modules or not _in_event_loop())
        with self.lock:
            if done():
                return True
            self.worker.block(tuple(object_ids), inline)
        try:
            while True:
                answered = self.wait_until(lambda: bool(self.worker.inline) or self.worker.interrupted(item) != "" or done(), deadline)
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
                if not self._armed:
                    self._arm_flusher()  # What follows, a completion most often, takes the news along.

    def _refuse_deadlock(self, item: Invocation, object_ids: Sequence[bytes]) -> None:
        """DeadlockError if an actor waits for a call that it would have to run itself, after the one that waits."""
        for identifier in object_ids:
            target = self.machine.calls.pending.get(identifier[:TASK_BYTES])
            if target is not None and target.actor_id == item.actor_id:
                name = self._terms(item)[0]
                raise DeadlockError(
                    f"{name} waits for a call of its own actor, which can only run once {name} has returned: "
                    f"{name} -> {self.host.class_of(item)} -> {name}; call the method directly (self.method()), or return the ref"
                )


def _never(error: BaseException) -> bool:
    return False


def _in_event_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _asks(retryable: Callable[[BaseException], bool], error: BaseException) -> bool:
    try:
        return bool(retryable(error))
    except Exception:  # the user's own function; the error that it was asked about is the one to report
        return False


def _slot(path: str) -> mmap.mmap:
    """Sixteen bytes that outlive this process for as long as the daemon needs them: the task on top of the stack.

    Where the disk is full they do not outlive it, and the daemon suspects the first of the tasks that the worker had.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)  # An error now, rather than a SIGBUS when it is first written to.
        return mmap.mmap(descriptor, mmap.PAGESIZE)
    except OSError:
        return mmap.mmap(-1, mmap.PAGESIZE)
    finally:
        os.close(descriptor)


def run(session_directory: str, token: bytes, job: bytes) -> None:
    """The worker child's body: until its job, its daemon's node, or the scheduler's patience ends."""
    session = Session(session_directory)
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
    runtime.connect(found[0])
    with contextlib.suppress(SystemExit):
        runtime.run()


__all__ = ["CONTROL", "TaskInterrupt", "WorkerRuntime", "run"]
