"""A driver's client: signals are deferred while it works, and raised at once while it waits.

A signal's handler may raise at any line of the main thread, as Ctrl-C does by ``KeyboardInterrupt``. Half of a delivered message, or half
of a submitted task, would leave tables that contradict each other. So every call of the client is a *fence* in the main thread: it replaces
the program's handlers by its own, which note arriving signals. At its end it restores the program's handlers, and calls them for the noted
signals. While the call waits (for a frame, another thread, its output to be read) the fence is open: signals are handled where they arrive.
Outside such calls the program's handlers are in force, and the program (or asyncio, or a notebook) may read and replace them at any time.

Replacing and restoring a handler takes a tenth of a submission's time. So a plain task or call submitted while others are under way is only
appended to ``Tasks.submitted``: one step, which no signal divides. The next fence, or the flusher's thread, where no handler ever runs,
enters it into the tables.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # Beneath ``signal``, whose enumerations cost as much as the call itself.
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from threading import get_ident
from typing import Any, TypeVar

import zmq

from zfabric.adapters.serialization import Outcome
from zfabric.exceptions import FabricError
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CALL_RETURN, FIRST_RETURN, TASK_BYTES, Namer, call_value, is_call, object_id, root_task
from zfabric.protocol.options import ActorCall, Terms, is_strategy_alone
from zfabric.runtime.client import OPERATIONS, FabricClient, Options
from zfabric.runtime.connection import Connection, Follower, clock
from zfabric.runtime.process_exit import hold_thread
from zfabric.runtime.session import Session

SIGINT, SIGTERM, SIGALRM = int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGALRM)
"""Signals whose handlers often raise: Ctrl-C, a request to end, a time limit. Most programs handle only the first."""
NO_HANDLERS = (int, type(None))
"""Types that ``getsignal`` returns if no handler is in Python."""
DEFAULT = int(signal.SIG_DFL)
"""The value of ``getsignal`` for the default action. Small ints are the same object everywhere, so ``is`` compares them."""

WITHOUT_FENCE = ("get", "submit", "call")
"""A driver's operations that need no fence in the most frequent case, and call a fenced one otherwise."""

_NOTHING = object()
_Function = TypeVar("_Function", bound=Callable[..., Any])
_getsignal: Callable[[int], Any] = _signal.getsignal
_set_handler: Callable[[int, Any], Any] = _signal.signal


class DeferredSignals:
    """The fence of the main thread, which calls all methods."""

    __slots__ = ("_arrived", "_handler", "_others", "_program", "closed", "open", "thread")

    def __init__(self) -> None:
        self.thread = threading.main_thread().ident
        self.closed = False
        """Whether the main thread is in a call of the client: if not, signals are handled where they arrive."""
        self.open = False
        """Whether that call waits."""
        self._program: Any = _NOTHING
        """The program's handler of SIGINT at the last check; ``_NOTHING`` if it had none in Python."""
        self._others: dict[int, Any] = {}
        """Handlers of further signals."""
        self._arrived: list[int] = []
        """Arrived signals, to be handled at the end of the call."""
        self._handler = self._handle

    def close(self) -> None:
        """Defer signals from here on. If the handler of an earlier one raises here, the fence stays open."""
        program = _getsignal(SIGINT)
        if program is self._program or self._has_changed(program):
            _set_handler(SIGINT, self._handler)
        # From here on only handlers of the other signals can raise.
        if _getsignal(SIGTERM) is not DEFAULT or _getsignal(SIGALRM) is not DEFAULT:
            self._close_others()
        self.closed = True

    def _has_changed(self, program: Any) -> bool:
        """Whether the program has replaced its handler of SIGINT. Records the new one."""
        if program is self._handler:
            return False
        self._program = _NOTHING if program.__class__ in NO_HANDLERS else program
        return self._program is not _NOTHING

    def _close_others(self) -> None:
        for number in (SIGTERM, SIGALRM):
            other = _getsignal(number)
            if other.__class__ not in NO_HANDLERS and other is not self._handler:
                self._others[number] = other
                _set_handler(number, self._handler)

    def end(self) -> None:
        """Restore the program's handlers, and call those of arrived signals. They may raise here."""
        self.closed = False
        if self._others:
            for number, handler in list(self._others.items()):
                _set_handler(number, handler)
            self._others.clear()
        if self._program is not _NOTHING:
            _set_handler(SIGINT, self._program)
        if self._arrived:
            self._handle_arrived()

    def pause(self) -> None:
        """Open the fence: the call begins to wait. Arrived signals are handled here."""
        self.open = True
        if self._arrived:
            self.open = False
            self._handle_arrived()
            self.open = True

    def _handle_arrived(self) -> None:
        """Call the handlers of arrived signals: all, even if one raises, as Python does while an error unwinds."""
        frame = sys._getframe(2)
        try:
            while self._arrived:
                number = self._arrived[0]
                handler = self._of_program(number)
                del self._arrived[0]
                if callable(handler):
                    handler(number, frame)
        finally:
            if self._arrived:
                self._handle_arrived()
            elif self.closed:
                self._find_replaced()

    def _find_replaced(self) -> None:
        """Find handlers installed during the call by the program's handlers: from here on those are the program's."""
        program = _getsignal(SIGINT)
        if program is not self._handler and self._has_changed(program):
            _set_handler(SIGINT, self._handler)
        for number in list(self._others):
            if _getsignal(number) is not self._handler:
                del self._others[number]
        self._close_others()

    def _of_program(self, number: int) -> Any:
        return self._program if number == SIGINT else self._others.get(number) or _getsignal(number)

    def _handle(self, number: int, frame: Any) -> None:
        if self.closed and not self.open:
            if number not in self._arrived:
                self._arrived.append(number)
            return
        handler = self._of_program(number)
        if not self.closed:
            # It arrived while handlers were being replaced or restored, or a handler raised meanwhile.
            _set_handler(number, handler)
        self.open = False  # If the handler raises, nothing interrupts the unwinding.
        try:
            handler(number, frame)
        finally:
            if self.closed:
                self._find_replaced()
        self.open = self.closed


class DriverConnection(Connection):
    """The connection of a program: the fence is open while it waits."""

    def __init__(
        self, session: Session, incarnation: bytes, kind: str, name: bytes, job: bytes, namespace: str, signals: DeferredSignals
    ) -> None:
        super().__init__(session, incarnation, kind, name, job, namespace)
        self._signals = signals

    def take_up(self) -> None:
        """Enter appended rows into the tables."""
        with self.lock:
            self.machine.tasks.take_up()

    def arm_again(self) -> None:
        """Arm the flusher, which may have looked just before a row was appended."""
        with self.lock:
            if not self.armed:
                self.arm_flusher()

    # -- where a call of the client waits --

    def _wait_readable(self, timeout: float) -> bool:
        signals = self._signals
        if not signals.closed or get_ident() != signals.thread:
            return self.transport.poll(timeout)
        try:
            signals.pause()
            return self.transport.poll(timeout)
        finally:
            signals.open = False

    def _await_wake(self, follower: Follower, timeout: float) -> None:
        signals = self._signals
        if not signals.closed or get_ident() != signals.thread:
            super()._await_wake(follower, timeout)
            return
        try:
            signals.pause()
            super()._await_wake(follower, timeout)
        finally:
            signals.open = False

    def show_notices(self) -> None:
        """Show notices as ``Connection`` does, but handle signals at once: a full pipe may take long."""
        signals = self._signals
        if not signals.closed or get_ident() != signals.thread:
            super().show_notices()
            return
        try:
            signals.pause()
            super().show_notices()
        finally:
            signals.open = False


class DriverClient(FabricClient):
    """The client of a program. Each of its operations is a fence."""

    connection: DriverConnection

    def __init__(self, session: Session, incarnation: bytes, kind: str, name: bytes, job: bytes, namespace: str) -> None:
        self.signals = DeferredSignals()
        connection = DriverConnection(session, incarnation, kind, name, job, namespace, self.signals)
        super().__init__(connection, self.namer, self._wait_here)
        self.on_close: Callable[[], None] | None = None
        self._program_namer: Namer | None = None
        fenced, drop = self._fenced, self.drop_reference
        self.connect = fenced(connection.connect)
        self._arm_again = fenced(connection.arm_again)
        self._get = fenced(super().get)
        self._submit = fenced(super().submit, lambda first, *args: self._drop_values([first], args[4]))
        self._call = fenced(super().call, lambda first, *args: self._drop_values([first], args[5]))
        undo: dict[str, Callable[..., None]] = {
            "submit_many": lambda firsts, *args: self._drop_values(firsts, args[2]),
            "create_detached": lambda first, *_: drop(first),
            "call_all": self._drop_all,
            "put": lambda identifier, *_: drop(identifier),
            "add_reference": lambda _, identifier: drop(identifier),
            "follow": lambda _, identifiers: self.machine.dropped.extend(identifiers),
        }
        for each in OPERATIONS:
            if each not in WITHOUT_FENCE:
                setattr(self, each, fenced(getattr(self, each), undo.get(each)))

    def _fenced(self, function: _Function, undo: Callable[..., None] | None = None) -> _Function:
        """Defer signals to the end of ``function``. ``undo(result, *args)`` is called if a handler raises there."""
        signals, machine, take_up = self.signals, self.machine, self.connection.take_up

        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if signals.closed or get_ident() != signals.thread:
                try:
                    if machine.submitted:
                        take_up()
                    return function(*args, **kwargs)
                except (FabricError, zmq.ZMQError, OSError):
                    hold_thread()
                    raise
            result: Any = _NOTHING
            signals.close()
            try:
                try:
                    if machine.submitted:
                        take_up()
                    result = function(*args, **kwargs)
                finally:
                    signals.end()
            except BaseException:  # Handlers of deferred signals run in `end`, and may raise anything.
                if undo is not None and result is not _NOTHING:
                    undo(result, *args)
                raise
            return result

        return guarded  # type: ignore[return-value]

    def _drop_all(self, firsts: Sequence[bytes], *arguments: Any) -> None:
        """Do as ``_drop_values`` for ``call_all``."""
        calls: Sequence[ActorCall] = arguments[-1]
        for first, (_, _, num_returns, _) in zip(firsts, calls, strict=True):
            self._drop_values([first], num_returns)

    def _drop_values(self, firsts: Sequence[bytes], count: int) -> None:
        """Drop the refs to all values of tasks or calls, by their first values' ids: the program has not received them."""
        for first in firsts:
            name = call_value if is_call(first) else object_id
            for index in range(count):
                self.drop_reference(name(first[:TASK_BYTES], index))

    def namer(self) -> Namer:
        """Return the ``Namer`` of what the program submits: one for all threads."""
        namer = self._program_namer
        if namer is None:
            namer = self._program_namer = Namer(self.job, root_task(self.job), salt=b"")
        return namer

    # -- what the API calls --

    def get(self, object_ids: Sequence[bytes], timeout: float | None, fail_fast: bool = True) -> list[bytes | Outcome]:
        """Do as ``FabricClient.get``, but read an arrived small value without a lock."""
        if len(object_ids) == 1:
            machine = self.machine
            known = machine.entries.get(object_ids[0])
            if type(known) is bytes and not (self.connection.closed or machine.printed or machine.notices):
                return [known]
        return self._get(object_ids, timeout, fail_fast)

    def submit(self, function_id: bytes, arguments: bytes, dependencies: tuple[bytes, ...], options: Options, num_returns: int) -> bytes:
        """Do as ``FabricClient.submit``. If another task is unfinished, a row that names no object is appended for the flusher,
        without a lock."""
        machine, connection, namer = self.machine, self.connection, self._program_namer
        is_simple = connection.armed and (options is None or is_strategy_alone(options)) and not dependencies
        if is_simple and num_returns == 1 and namer is not None:
            submitted, others = machine.submitted, machine.tasks.unfinished or machine.calls.pending
            if others and len(submitted) < self._batch_rows and not (connection.closed or machine.farewell or machine.refused):
                task_id = namer.child()
                if options is None:
                    submitted.append(((task_id, function_id, arguments, dependencies), None))
                else:
                    submitted.append(((task_id, function_id, arguments, dependencies, options), None))
                if not connection.armed:
                    self._arm_again()
                return task_id + FIRST_RETURN
        return self._submit(function_id, arguments, dependencies, options, num_returns)

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
        """Do as ``FabricClient.call``. A row may be appended as in ``submit``."""
        machine, connection, namer = self.machine, self.connection, self._program_namer
        if connection.armed and options is None and not dependencies and num_returns == 1 and namer is not None:
            submitted, others = machine.submitted, machine.calls.pending or machine.tasks.unfinished
            usable = not (connection.closed or machine.farewell or machine.refused)
            if others and len(submitted) < self._batch_rows and usable and not terms.pending:
                call_id = namer.child()
                submitted.append(((call_id, method, arguments), (actor_id, terms.retries, terms.keeps, terms.unordered)))
                if not connection.armed:
                    self._arm_again()
                return call_id + CALL_RETURN
        return self._call(actor_id, method, arguments, dependencies, options, num_returns, terms)

    def _wait_here(self, object_ids: Sequence[bytes], done: Callable[[], bool], deadline: float | None, plain: bool, needed: int) -> bool:
        """Wait for objects. A driver reports its waits to nobody."""
        return self.connection.wait_until(done, deadline)

    def close(self) -> None:
        """Send ``Goodbye``, wait for the last log lines, and release everything. Idempotent."""
        connection = self.connection
        if connection.closed or connection.forked:
            connection.closed = True
            return
        try:
            connection.look()  # Failures that have arrived count as the program's.
            with connection.lock:
                self.machine.send(m.Goodbye())
                connection.flush()
            if connection.kind == "driver" and connection.alive():
                connection.wait_until(lambda: self.machine.farewell is not None, clock() + 4.5)
                connection.show_unread(ending=True)
        except (FabricError, zmq.ZMQError, OSError):
            pass  # The node is gone, and nothing is left to close there.
        finally:
            connection.disconnect()
            self.values.close()
            if self.on_close is not None:
                self.on_close()
