"""The client of this process: what ``zfabric.api`` calls, by ids and bytes. Drivers and workers derive theirs from it.

Each operation is written once, here, and marked by ``operation``: during a marked call a driver defers signals (``runtime.driver``) and a
worker defers interrupts (``runtime.worker_client``).

``submit`` and ``call`` append a row to a batch under the lock. The row is sent at once if nothing else is in flight, otherwise soon by the
flusher.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from typing import Any, NoReturn, Protocol, TypeVar

import zmq

from zfabric.adapters.serialization import Outcome, SerializedValue
from zfabric.exceptions import (
    CallbackLimitExceededError,
    FabricError,
    GetTimeoutError,
    ObjectTooLargeError,
    OutOfDiskError,
    PendingCallsLimitExceededError,
)
from zfabric.machines.client import ObjectEntry
from zfabric.protocol.ids import FIRST_RETURN, LOCAL_SCHEDULER, Namer
from zfabric.protocol.messages import OK, Row
from zfabric.protocol.messages.queries import LIST_LIMIT
from zfabric.protocol.names import brief
from zfabric.protocol.options import ActorCall, Terms, option
from zfabric.runtime.arena_access import ArenaAccess
from zfabric.runtime.connection import Connection, clock

ONLY_ROWS = {tuple}
"""The types of a client's entries while none has an outcome (``machines.client.objects``): one comparison checks all."""
ONLY_SMALL = {bytes}
"""The types of outcomes if all are small values."""
EXPLAIN_SECONDS = 0.25
"""Most seconds that a ``get`` past its timeout waits for its error's explanation."""
OUTPUT_SECONDS = 1.0
"""Most seconds that ``get`` waits for the output of tasks with outcomes here."""
FAR_CALLS = 64
"""Most pending calls of an actor on another node with arguments of up to ``FAR_BYTES_MAX``."""
FEW = 32
"""Up to this many entries are checked one by one."""


_Function = TypeVar("_Function", bound=Callable[..., Any])
Options = tuple[Row, ...] | None
"""The options of a task or call; None if it has none."""

OPERATIONS: list[str] = []
OPTIONS_AT = {"submit": 3, "create_detached": 3, "call": 4}
"""Operations that submit one task or call, and the index of the options among their arguments."""
OPTIONS_OF_EACH_AT = {"submit_many": (1, 2), "call_all": (3, 1)}
"""Operations that submit several: the index of these among the arguments, and of the options in each."""


def operation(function: _Function) -> _Function:
    """Mark a method of ``FabricClient`` as an operation: the method takes the lock, so a process must not be stopped inside."""
    OPERATIONS.append(function.__name__)
    return function


NO_ACTOR = "exit_actor() is for methods of actors, and for threads and asyncio tasks that actors have started; this is none"


class View:
    """One view of a value in the arena. A call ends the view; so does this object's end, if an exception prevented the call."""

    __slots__ = ("_end", "_identifier")

    def __init__(self, end: Callable[[bytes], None], identifier: bytes) -> None:
        self._end = end
        self._identifier: bytes | None = identifier

    def __call__(self) -> None:
        """End the view: nothing reads the value through it any more."""
        identifier, self._identifier = self._identifier, None
        if identifier is not None:
            self._end(identifier)

    __del__ = __call__


class WaitFor(Protocol):
    """Waits for objects until ``done()`` is true; returns False if the deadline passed first."""

    def __call__(self, object_ids: Sequence[bytes], done: Callable[[], bool], deadline: float | None, plain: bool, needed: int) -> bool:
        """``plain``: a ``get`` without a timeout. ``needed``: how many outcomes must come; 0 if the caller can go on without any."""


class FabricClient(ABC):
    """The client of this process. All methods are thread-safe. Object ids have 20 bytes, task ids 16. The process holds one ref to each
    value that it puts, and to each value of what it submits or calls.

    ``namer`` returns the ``Namer`` of the calling thread; ``wait_for`` waits for objects.
    """

    def __init__(self, connection: Connection, namer: Callable[[], Namer], wait_for: WaitFor) -> None:
        self.connection = connection
        self.session = connection.session
        self.machine = connection.machine
        self.config = connection.config
        self.paths: tuple[str, ...] = ()
        """The program's import paths, for workers of its functions, if the program did not start the node."""
        self.directory = ""
        """The program's working directory, if the program did not start the node: its functions run there if the node has that directory.
        """
        description = connection.session.describe()
        self.values = ArenaAccess(connection, str(description["arena"]), int(description["arena_size"]), str(description["spill"]))
        self.machine.arguments.void = self.values.void
        self.drop_reference = self.machine.dropped.append
        """Count one ref less. Safe in finalizers: takes no lock, never raises."""
        self.unview = self.machine.unviewed.append
        self._lock = connection.lock
        self._namer = namer
        self._wait_for = wait_for
        self._batch_rows = self.config.batch_rows
        self._detached_elsewhere = False
        """Whether detached actors have their home on another node."""

    # -- identity --

    @property
    def job(self) -> bytes:
        """The job of this process (4 bytes)."""
        return self.machine.job

    @property
    def namespace(self) -> str:
        """The default namespace of actors' names."""
        return self.connection.namespace

    @property
    def node(self) -> bytes:
        """The incarnation of its node."""
        return self.machine.node

    # -- what the API calls --

    @operation
    def new_id(self) -> bytes:
        """Return a new id (16 bytes), which begins with the job's."""
        with self._lock:
            return self._namer().child()

    @operation
    def export(self, function_id: bytes, name: str, payload: bytes, options: tuple[Row, ...]) -> None:
        """Export a function, whose id is a 16-byte hash of its content, to the job. Repeated exports are cheap."""
        if self.paths:
            options = (*options, ("paths", self.paths))
        if self.directory:
            options = (*options, ("directory", self.directory))
        with self._lock:
            self.machine.tasks.export(function_id, name, payload, options)

    @operation
    def submit(self, function_id: bytes, arguments: bytes, dependencies: tuple[bytes, ...], options: Options, num_returns: int) -> bytes:
        """Queue one task and return the id of its first value, even if it will have none.

        The returned bytes object is also the key in the tables, which makes look-ups faster.
        """
        machine, connection = self.machine, self.connection
        with self._lock:
            if connection.closed or machine.farewell or machine.refused:
                connection.check_usable()
            task_id, tasks = self._namer().child(), machine.tasks
            if options is None:
                first = tasks.submit((task_id, function_id, arguments, dependencies), num_returns)
            else:
                first = tasks.submit((task_id, function_id, arguments, dependencies, options), num_returns)
            if tasks.unfinished == 1 and not machine.calls.pending:
                connection.flush_first()
            elif len(machine.outbox.tail) >= self._batch_rows:
                connection.flush()
            elif not connection.armed:
                connection.arm_flusher()
        return first

    @operation
    def create_detached(self, function_id: bytes, arguments: bytes, dependencies: tuple[bytes, ...], options: Options) -> bytes:
        """Have a detached actor made; return its handle's id, to which the process holds one ref, once the actor's home node has it."""
        self._detached_elsewhere = self._detached_elsewhere or self.query("detached elsewhere")
        if not self._detached_elsewhere:
            return FabricClient.submit(self, function_id, arguments, dependencies, options, 1)
        machine = self.machine
        with self._lock:
            self.connection.check_usable()
            row: Row = (self._namer().child(), function_id, arguments, dependencies, options or ())
            machine.calls.results.share((*dependencies, *option(options, "contains", ())))
            token = machine.queries.token()
            machine.queries.ask(token, "create actor", (row,))
            self.connection.flush()
        try:
            self.connection.wait_until(lambda: token in machine.queries.answers, None)
        finally:
            with self._lock:
                machine.queries.forget(token)
                answer = machine.queries.answers.pop(token, None)
        with self._lock:
            if answer is None or answer.error:
                raise FabricError(f"the actor was not made: {answer.error if answer is not None else 'no answer'}")
            if not answer.payload:
                first: bytes = machine.tasks.submit(row, 1)
            else:
                first = row[0] + FIRST_RETURN
                machine.references.add(first)
            self.connection.flush()
        return first

    @operation
    def submit_many(
        self, function_id: bytes, calls: Iterable[tuple[bytes, tuple[bytes, ...], tuple[Row, ...] | None]], num_returns: int
    ) -> list[bytes]:
        """Queue many tasks of one function, each (arguments, dependencies, options). Return the ids of their first values."""
        firsts = []
        machine = self.machine
        with self._lock:
            self.connection.check_usable()
            namer, submit = self._namer(), machine.tasks.submit
            for arguments, dependencies, options in calls:
                row: Row = (namer.child(), function_id, arguments, dependencies)
                firsts.append(submit(row if options is None else (*row, options), num_returns))
                if machine.unsent >= self.config.batch_rows:
                    self.connection.flush()
            self.connection.flush()
        return firsts

    @operation
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
        """Queue one call of an actor and return the id of its first value.

        If the terms allow no more calls, raise PendingCallsLimitExceededError or wait, as configured.
        """
        machine, connection = self.machine, self.connection
        if terms.pending:
            self._await_room(actor_id, terms)
        with self._lock:
            if connection.closed or machine.farewell or machine.refused:
                connection.check_usable()
            row: Row = (self._namer().child(), method, arguments)
            if dependencies or options is not None:
                row = (*row, dependencies, (), options)
            calls = machine.calls
            first = calls.call(actor_id, row, num_returns, terms.retries, terms.keeps, terms.unordered)
            if (len(calls.pending) == 1 and not machine.tasks.unfinished) or calls.queued >= self._batch_rows:
                connection.flush_first()
                if calls.delayed and not connection.armed:
                    connection.arm_flusher()
            elif not connection.armed:
                connection.arm_flusher()
        return first

    @operation
    def call_all(self, method: str, arguments: bytes, dependencies: tuple[bytes, ...], calls: Sequence[ActorCall]) -> list[bytes]:
        """Call a method of several actors with the same arguments, in one message to each process. Return ids as ``call`` does."""
        for actor_id, _, _, terms in calls:
            if terms.pending:
                self._await_room(actor_id, terms)
        machine, connection = self.machine, self.connection
        firsts = []
        with self._lock:
            connection.check_usable()
            namer, call = self._namer(), machine.calls.call
            for actor_id, options, num_returns, terms in calls:
                row: Row = (namer.child(), method, arguments)
                if dependencies or options is not None:
                    row = (*row, dependencies, (), options)
                firsts.append(call(actor_id, row, num_returns, terms.retries, terms.keeps, terms.unordered))
            connection.flush()
            if machine.calls.delayed and not connection.armed:
                connection.arm_flusher()
        return firsts

    def takes_far(self, actor_id: bytes) -> bool:
        """Whether a call takes along arguments that would otherwise be stored: its actor lives on another node.

        Only for a few pending calls, since all processes on the way have the arguments in memory.
        """
        target = self.machine.calls.targets.get(actor_id)
        if target is None or target.address[:1] != LOCAL_SCHEDULER or target.keeps:
            return False
        return len(target.sent) + target.waits + len(self.machine.submitted) < FAR_CALLS

    @operation
    def actor_state(self, actor_id: bytes) -> tuple[int, bool] | None:
        """An actor's state (``CREATING``, ``ALIVE``, ``DEAD``) as last received here, and whether the actor had lived before that.

        None if this process has not called the actor. Asks nobody.
        """
        with self._lock:
            return self.machine.calls.state_of(actor_id)

    @operation
    def reference_counts(self) -> dict[bytes, tuple[int, int]]:
        """The objects that this process refers to, each with its refs, and with the pending tasks and calls that take it."""
        with self._lock:
            return self.machine.reference_counts()

    @operation
    def inline_bytes(self) -> int:
        """Bytes of the values that this process has and the object store has not. Looks at each object of the process."""
        with self._lock:
            self.connection.settle()
            return self.machine.objects.inline_bytes()

    def _await_room(self, actor_id: bytes, terms: Terms) -> None:
        calls = self.machine.calls
        with self._lock:
            count = calls.count(actor_id)
        if count < terms.pending:
            return
        if self.config.calls_over_limit != "wait":
            raise PendingCallsLimitExceededError(
                f"{count} calls of this actor have no outcome yet, which is its max_pending_calls; get some of them first, or "
                "start with config={'calls_over_limit': 'wait'}"
            )
        self.connection.wait_until(lambda: calls.count(actor_id) < terms.pending, None)

    @operation
    def kill_actor(self, actor_id: bytes, no_restart: bool) -> None:
        """End an actor's process at once."""
        with self._lock:
            self.connection.check_usable()
            self.machine.calls.kill(actor_id, no_restart)
            self.connection.flush()

    @operation
    def put(self, value: SerializedValue, durable: bool, argument: bool = False) -> bytes:
        """Store a value; return its object id. Raises ObjectStoreFullError or ObjectTooLargeError."""
        connection = self.connection
        if durable and value.size > self.config.durable_bytes:
            raise ObjectTooLargeError(
                f"a durable value is kept in the control store, {self.config.durable_bytes} bytes at most; this one has {value.size}"
            )
        if value.size <= self.config.inline_bytes or durable:
            with self._lock:
                connection.check_usable()
                identifier = self._namer().put()
                self.machine.put(identifier, value.to_bytes(), value.contained, durable)
                if self.machine.unsent >= self.config.batch_rows:
                    connection.flush()
                elif not connection.armed:
                    connection.arm_flusher()
        else:
            with self._lock:
                connection.check_usable()
                identifier = self._namer().put()
            place = self.values.write(identifier, value)
            if argument and not value.contained and place[0] >= 0 and place[1] <= self.config.copied_bytes:
                with self._lock:
                    self.machine.add_argument(identifier, place)
                return identifier
            with self._lock:
                self.machine.put(identifier, place, value.contained, durable)
                self.machine.reservations.finished(place[0])
                if not self.machine.reservations.shares(place[1]) or self.machine.unsent >= self.config.batch_rows:
                    connection.flush()
                elif not connection.armed:
                    connection.arm_flusher()
        if durable:
            try:
                self._wait_committed(identifier)
            except BaseException:  # Ctrl-C, too: the caller gets no ref to it.
                self.drop_reference(identifier)
                raise
        return identifier

    def _wait_committed(self, identifier: bytes) -> None:
        with self._lock:
            self.connection.flush()
        if not self.connection.wait_until(lambda: identifier in self.machine.committed, clock() + self.config.put_patience):
            raise OutOfDiskError("the control store did not commit the value in time")
        with self._lock:
            reason = self.machine.committed.pop(identifier)
        if reason:
            raise OutOfDiskError(reason)

    @operation
    def add_reference(self, object_id: bytes) -> None:
        """Count one more ref in this process: a ref was unpickled or copied."""
        with self._lock:
            self.machine.references.add(object_id)
            if not self.connection.armed:
                self.connection.arm_flusher()

    @operation
    def follow(self, object_ids: Sequence[bytes]) -> None:
        """Count one more ref to each object, and request values once they exist: the next ones of a stream."""
        with self._lock:
            self.connection.check_usable()
            for object_id in object_ids:
                self.machine.references.add(object_id)
            self.machine.objects.want(object_ids)
            if not self.connection.armed:
                self.connection.arm_flusher()

    @operation
    def get(self, object_ids: Sequence[bytes], timeout: float | None, fail_fast: bool = True) -> list[bytes | Outcome]:
        """Wait for all objects, each listed once. A small value is returned as bytes. Raises GetTimeoutError after ``timeout`` seconds.

        With ``fail_fast`` the first failure ends the wait; the list then has only its outcome.
        """
        machine = self.machine
        count = len(object_ids)
        deadline = None if timeout is None else clock() + timeout
        if count == 1 and not self.connection.closed:
            known = machine.entries.get(object_ids[0])
            if type(known) is tuple:  # Most often a task that this process has just submitted.
                self._await_one(object_ids, deadline, int(timeout != 0))
                known = machine.entries.get(object_ids[0])
            if type(known) is bytes:
                if machine.printed or machine.notices:
                    self._show_output()
                return [known]
        objects = machine.objects
        found: list[bytes | None] = []
        """Small values in the order of ``object_ids``; None for others."""
        failures = 0
        """How many failures had arrived when the rest of the list was last searched for one."""
        failed: tuple[bytes, ...] = ()

        def ready() -> bool:
            nonlocal failures, failed
            entries = objects.entries
            at = len(found)
            while at < count:
                entry = entries.get(object_ids[at])
                if type(entry) is bytes:
                    found.append(entry)
                else:
                    if type(entry) is not ObjectEntry or entry.data is None:
                        if type(entry) is not tuple:
                            objects.want(object_ids[at : at + 1])
                        if fail_fast and objects.failures != failures:
                            failures = objects.failures
                            failed = objects.first_failure(object_ids)
                        return bool(failed)
                    found.append(None)
                at += 1
            return True

        try:
            with self._lock:
                self.connection.check_usable()
                self.connection.settle()
                objects.gets[id(found)] = object_ids
                if not ready():
                    objects.want(object_ids[len(found) :])
            needed = 0 if timeout == 0 else count
            if len(found) < count and not failed and not self._wait_for(object_ids, ready, deadline, plain=timeout is None, needed=needed):
                with self._lock:
                    missing = sum(1 for each in object_ids if not objects.known(each))
                if not missing:
                    raise GetTimeoutError(f"not all of the {count} values, which exist, were brought here within {timeout} s")
                text = f"{missing} of {count} object(s) had no value within {timeout} s; their tasks go on"
                raise GetTimeoutError(text + (self._why_missing(object_ids, min(EXPLAIN_SECONDS, timeout)) if timeout else ""))
            with self._lock:
                outcomes = self._outcomes(failed, [None]) if failed else self._outcomes(object_ids, found)
                if failed:
                    machine.unread.expected(object_ids)
        finally:
            with self._lock:  # Another thread may iterate over them.
                objects.gets.pop(id(found), None)
        if machine.printed or machine.notices:
            self._show_output()
        return outcomes

    def _why_missing(self, object_ids: Sequence[bytes], seconds: float) -> str:
        """Explain why the first object without a value has none; empty if the daemon does not answer within ``seconds``."""
        missing = next((each for each in object_ids if not self.machine.objects.known(each)), None)
        if missing is None:
            return ""
        try:
            call = self.explain_call(missing)
            found = self.query("explain", call[1] if call else missing, timeout=seconds)
        except (FabricError, zmq.ZMQError):
            return ""
        answer, actor = ((call[0], call[2], ()), found) if call else (found, None)
        if answer is None:
            return ""
        facts = dict(answer[2])
        name = f" ({facts['function']})" if "function" in facts else ""
        elapsed = f" (submitted {facts['submitted']})" if "submitted" in facts else f" {facts[answer[0]]}" if answer[0] in facts else ""
        on = f"; its actor is {actor[0]}: {actor[1]}" if actor else ""
        return f". {brief(missing)}{name} is {answer[0]}{elapsed}: {answer[1]}{on}"

    def _show_output(self) -> None:
        """In a driver, show the output of tasks with outcomes here. The daemon reads and sends the output before its answer."""
        if self.connection.kind == "driver":
            printed, self.machine.printed = self.machine.printed, False
            if printed and self.connection.shows_output:
                with contextlib.suppress(FabricError, zmq.ZMQError):
                    self.query("output", timeout=OUTPUT_SECONDS)
            if self.machine.notices:
                self.connection.show_notices()

    def _await_one(self, object_ids: Sequence[bytes], deadline: float | None, needed: int) -> None:
        """Wait for the outcome of this one object's task, wherever the value is, or until the deadline."""
        entries, (identifier,) = self.machine.entries, object_ids

        def done() -> bool:
            return type(entries.get(identifier)) is not tuple

        with self._lock:
            self.connection.settle()
        self._wait_for(object_ids, done, deadline, plain=deadline is None, needed=needed)

    def _outcomes(self, object_ids: Sequence[bytes], found: list[bytes | None]) -> list[bytes | Outcome]:
        """Return all outcomes that have arrived; ``found`` has the small values. The caller holds the lock."""
        if set(map(type, found)) == ONLY_SMALL:
            return found  # type: ignore[return-value]  # there is no None
        outcomes: list[bytes | Outcome] = []
        try:
            for identifier, value in zip(object_ids, found, strict=True):
                if value is not None:
                    outcomes.append(value)
                    continue
                entry = self.machine.objects.lookup(identifier)
                if entry.status != OK:
                    self.machine.unread.read((identifier,))
                if type(entry.data) is tuple:
                    outcomes.append(self._view(identifier, entry.data))
                else:
                    outcomes.append(Outcome(entry.status, entry.data, None))  # type: ignore[arg-type]  # at hand: it is not None
        except BaseException:  # Ctrl-C too: nobody else would release the pins.
            for outcome in outcomes:
                if isinstance(outcome, Outcome) and outcome.release is not None:
                    outcome.release()
            raise
        return outcomes

    def _view(self, identifier: bytes, place: tuple[int, int]) -> Outcome:
        view = self.values.view(place)
        self.machine.pins.view(identifier)
        return Outcome(OK, view, View(self.unview, identifier))

    @operation
    def ignore_unread(self) -> None:
        """Show no unread failures from now on: the user has interrupted the program, and knows that its tasks are lost."""
        with self._lock:
            self.machine.unread.ignore()

    @operation
    def has_failed(self, object_id: bytes) -> bool:
        """Whether an object's outcome has arrived and is an error. The error still counts as unread."""
        with self._lock:
            return self.machine.objects.has_failed(object_id)

    @operation
    def wait(self, object_ids: Sequence[bytes], num_returns: int, timeout: float | None, fetch_local: bool) -> set[bytes]:
        """Wait for ``num_returns`` outcomes; return the first objects that have one, or after ``timeout`` all that do."""
        machine = self.machine
        known = machine.objects.at_hand if fetch_local else machine.objects.known
        ready: set[bytes] = set()
        pending = list(object_ids)
        may_lack = len(pending) - num_returns

        def scan() -> bool:
            """Stop as early as possible: each message calls this again, and programs wait for many objects, one at a time."""
            nonlocal pending
            if len(ready) >= num_returns:
                return True
            if may_lack > FEW and not known(pending[0]) and set(map(type, map(machine.entries.get, pending))) == ONLY_ROWS:
                return False
            left: list[bytes] = []
            lacking = 0
            for place, identifier in enumerate(pending):
                if known(identifier):
                    ready.add(identifier)
                    if len(ready) == num_returns:
                        return True
                    continue
                left.append(identifier)
                if fetch_local and machine.objects.known(identifier):
                    machine.objects.want((identifier,))  # Its outcome has come; its value is large and must be requested.
                    continue
                lacking += 1
                if lacking > may_lack:
                    left += pending[place + 1 :]
                    break
            pending = left
            return False

        with self._lock:
            self.connection.check_usable()
            if scan():
                return ready
            machine.objects.want(pending)
            self.connection.flush()
        deadline, needed = (None, num_returns) if timeout is None else (clock() + timeout, 0)
        if not self._wait_for(object_ids, scan, deadline, plain=False, needed=needed):
            may_lack = len(pending)
            with self._lock:
                scan()
        return ready

    @operation
    def watch(self, object_ids: Iterable[bytes], callback: Callable[[bytes], None]) -> None:
        """Call ``callback`` with each object once it has an outcome: at once, or while this process waits for anything."""
        machine = self.machine
        with self._lock:
            self.connection.check_usable()
            for identifier in object_ids:
                if machine.objects.at_hand(identifier):
                    callback(identifier)
                else:
                    machine.objects.watch(identifier, callback)

    @operation
    def await_watched(self, object_ids: Collection[bytes], done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for ``object_ids`` until a ``callback`` of ``watch`` has made ``done`` true. Return False after ``timeout``."""
        # A worker reports what it waits for. A driver does not; it may wait very often for one of very many.
        wanted: Any = object_ids if self.connection.kind == "driver" else tuple(object_ids)
        deadline, needed = (None, 1) if timeout is None else (clock() + timeout, 0)
        return self._wait_for(wanted, done, deadline, plain=False, needed=needed)

    @operation
    def add_done_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """Call ``callback(object_id)`` once the object has an outcome: at once, or from a thread of the fabric."""
        with self._lock:
            self.connection.check_usable()
            if not self.machine.objects.at_hand(object_id):
                self.machine.objects.watch(object_id, callback)
                self.connection.flush()
                self.connection.pump_aside()
                return
        callback(object_id)

    @operation
    def add_outcome_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """Do as ``add_done_callback``, but bring no value here whose outcome comes without it."""
        with self._lock:
            self.connection.check_usable()
            if not self.machine.objects.known(object_id):
                self.machine.objects.watch_outcome(object_id, callback)
                self.connection.flush()
                self.connection.pump_aside()
                return
        callback(object_id)

    @operation
    def add_last_callback(self, object_id: bytes, callback: Callable[[bytes], None], everywhere: bool) -> None:
        """Call ``callback(object_id)`` in a thread of the fabric once no ref is left: in this process, or anywhere in the cluster.

        Raises CallbackLimitExceededError if ``last_callbacks_max`` of them are pending.
        """
        last = self.machine.last
        with self._lock:
            self.connection.check_usable()
            if last.count >= self.config.last_callbacks_max:
                raise CallbackLimitExceededError(
                    f"{last.count} call backs of on_freed wait in this process, which is config 'last_callbacks_max'; drop refs first, or "
                    "register one for many values: a value that contains their refs"
                )
            last.add(object_id, callback, everywhere)
            self.connection.arm_flusher()  # From now on it looks often whether the last ref is dropped.

    @operation
    def locate(self, object_ids: Sequence[bytes]) -> dict[bytes, Row]:
        """Return of each object: (size or None, hex ids of the nodes with the value, only on disk, has an outcome)."""
        with self._lock:
            self.connection.check_usable()
            found = self.machine.located(object_ids)
        missing = [each for each in object_ids if each not in found]
        for start in range(0, len(missing), LIST_LIMIT):
            found.update(self.query("locate", tuple(missing[start : start + LIST_LIMIT])))
        return found

    @operation
    def cancel(self, object_ids: Sequence[bytes], force: bool, recursive: bool) -> None:
        """Request the cancellation of the tasks that make these objects."""
        with self._lock:
            self.connection.check_usable()
            self.machine.cancel(tuple(object_ids), force, recursive)
            self.connection.flush()
            self.connection.wake_followers()  # A call that was not sent yet has its outcome now.

    @operation
    def explain_call(self, object_id: bytes) -> tuple[str, bytes, str] | None:
        """Explain the call that makes this object: (state, actor, reason). None if this process made no such call."""
        with self._lock:
            return self.machine.calls.explain(object_id)

    @operation
    def pending_calls(self, matches: Callable[[bytes], bool]) -> list[bytes]:
        """Return the ids of this process's pending calls that match."""
        with self._lock:
            return list(filter(matches, self.machine.calls.pending))

    def breakpoint_of(self, task_id: bytes, pid: str) -> str:
        """Describe the ``breakpoint()`` at which this task or call, or else this process, waits; empty if there is none."""
        from zfabric.runtime.debugger import where_waiting  # Only `zfabric debug` needs it.

        return where_waiting(self.connection.session.directory, task_id, pid)

    @operation
    def query(self, what: str, *arguments: Any, timeout: float = 10.0) -> Any:
        """Query the node's daemon; return the payload of its ``Answer``. Raises FabricError with its error text."""
        with self._lock:
            self.connection.check_usable()
            token = self.machine.queries.token()
            self.machine.queries.ask(token, what, arguments)
            self.connection.flush()
        if not self.connection.wait_until(lambda: token in self.machine.queries.answers, clock() + timeout):
            with self._lock:
                self.machine.queries.forget(token)
            raise GetTimeoutError(f"the node's daemon did not answer {what!r} within {timeout} s")
        with self._lock:
            answer = self.machine.queries.answers.pop(token)
        if answer.error:
            raise FabricError(answer.error)
        return answer.payload

    def exit_actor(self) -> NoReturn:
        """End this process's actor for good. Raises TypeError if it has none, or has several and none of them runs here."""
        raise TypeError(NO_ACTOR)

    @operation
    @abstractmethod
    def close(self) -> None:
        """Send everything, disconnect and release all refs."""

    # -- what else changes operations --

    def alter_options(self, names: Iterable[str], alter: Callable[[Options], Options]) -> Callable[[], None]:
        """Have ``alter`` return the options of what these operations submit from now on. Return a function that ends this.

        The operations are replaced on this object, so that unaltered ones take no longer.
        """
        own = vars(self)
        before = {name: own[name] for name in names if name in own}
        altered = {name: _altered(getattr(self, name), name, alter) for name in names}
        own.update(altered)

        def end() -> None:
            for name in altered:
                del own[name]
            own.update(before)

        return end


def _altered(submit: Callable[..., Any], name: str, alter: Callable[[Options], Options]) -> Callable[..., Any]:
    if name in OPTIONS_AT:
        place, change = OPTIONS_AT[name], alter
    else:
        place, field = OPTIONS_OF_EACH_AT[name]

        def change(calls: Any) -> Any:
            return [(*call[:field], alter(call[field]), *call[field + 1 :]) for call in calls]

    @wraps(submit)
    def submit_altered(*args: Any) -> Any:
        return submit(*args[:place], change(args[place]), *args[place + 1 :])

    return submit_altered
