"""The client of a program: what the API calls, by ids and bytes, on a connection. A driver has one; a worker's is built on it.

``remote()`` appends to a batch under the lock, and sends at once when nothing is in flight; otherwise the flusher does, soon.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

import zmq

from zfabric.adapters import task_errors
from zfabric.exceptions import (
    FabricError,
    GetTimeoutError,
    ObjectTooLargeError,
    OutOfDiskError,
    PendingCallsLimitExceededError,
)
from zfabric.machines.client import ObjectEntry
from zfabric.machines.common.naming import Namer
from zfabric.protocol import messages as m
from zfabric.protocol.ids import root_task
from zfabric.protocol.messages import ERROR, OK, Row
from zfabric.protocol.names import brief
from zfabric.runtime.arena_access import ArenaAccess
from zfabric.runtime.connection import Connection, clock
from zfabric.runtime.interface import Outcome, Serialized, Terms
from zfabric.runtime.session import Session

ONLY_ROWS = {tuple}
"""The types of a client's entries where nothing has an outcome (``machines.client.entries``): seen at a glance, without a look at each."""
ONLY_SMALL = {bytes}
"""The types of outcomes where all are small values."""
EXPLAIN_SECONDS = 0.25
"""How long a ``get`` whose time is up waits to be told what it has waited for, at most."""
OUTPUT_SECONDS = 1.0
"""How long ``get`` waits for the output of what it has the outcome of, at most."""
UNREAD_HINT = "zf.get(ref) raises its error; config={'show_unread_failures': False} hides this"
FEW = 32
"""So few are looked at one by one."""


NO_ACTOR = "exit_actor() is for methods of actors, and for threads and asyncio tasks that actors have started; this is none"


class View:
    """One view of a value in the arena. It ends when this is called, or, where an exception kept that from happening, with this object."""

    __slots__ = ("_end", "_identifier")

    def __init__(self, end: Callable[[bytes], None], identifier: bytes) -> None:
        self._end = end
        self._identifier: bytes | None = identifier

    def __call__(self) -> None:
        """Nothing looks at the value through this view any more."""
        identifier, self._identifier = self._identifier, None
        if identifier is not None:
            self._end(identifier)

    __del__ = __call__


class FabricClient(Connection):
    """The fabric inside one process (``runtime.interface.ClientInterface``)."""

    def __init__(self, session: Session, incarnation: bytes, kind: str, name: bytes, job: bytes, namespace: str) -> None:
        super().__init__(session, incarnation, kind, name, job, namespace)
        self.paths: tuple[str, ...] = ()
        """Where this program finds its modules, if the node was not started by it: its functions say so to workers."""
        self.directory = ""
        """The program's working directory, if the node was not started by it: its functions run there, where the node has it."""
        self.on_close: Callable[[], None] | None = None
        self._watcher: threading.Thread | None = None
        self._namer: Namer | None = None
        description = session.describe()
        self.values = ArenaAccess(self, str(description["arena"]), int(description["arena_size"]), str(description["spill"]))
        self._batch_rows = self.config.batch_rows
        self.drop_reference = self.machine.dropped.append
        self.unview = self.machine.unviewed.append
        self.machine.unread.watching = kind != "tool" and self.config.log_to_driver and self.config.show_unread_failures
        self._unread_told = 0
        """How many failures that nobody asked for were shown."""

    # -- identity --

    @property
    def job(self) -> bytes:
        """This process's job (4 bytes)."""
        return self.machine.job

    @property
    def namespace(self) -> str:
        """Where this process looks for names of actors, unless it is told otherwise."""
        return self._namespace

    @property
    def node(self) -> bytes:
        """The node's incarnation."""
        return self.machine.node

    def namer(self) -> Namer:
        """Who names what this thread submits: here, the driver itself."""
        namer = self._namer
        if namer is None:
            namer = self._namer = Namer(self.job, root_task(self.job), salt=b"")
        return namer

    # -- what the API calls --

    def export(self, function_id: bytes, name: str, payload: bytes, options: tuple[Row, ...]) -> None:
        """See ``ClientInterface``."""
        if self.paths:
            options = (*options, ("paths", self.paths))
        if self.directory:
            options = (*options, ("directory", self.directory))
        with self.lock:
            self.machine.tasks.export(function_id, name, payload, options)

    def submit(
        self, function_id: bytes, arguments: bytes, dependencies: tuple[bytes, ...], options: tuple[Row, ...] | None, num_returns: int
    ) -> bytes:
        """See ``ClientInterface``."""
        machine = self.machine
        with self.lock:
            if self.closed or machine.farewell or machine.refused:
                self.check_usable()
            task_id, tasks = self.namer().child(), machine.tasks
            if options is None:
                first = tasks.submit((task_id, function_id, arguments, dependencies), num_returns)
            else:
                first = tasks.submit((task_id, function_id, arguments, dependencies, options), num_returns)
            if tasks.unfinished == 1 and not machine.calls.pending:
                self._flush_first()
            elif len(machine.outbox.tail) >= self._batch_rows:
                self.flush()
            elif not self.armed:
                self.arm_flusher()
        return first

    def submit_many(
        self, function_id: bytes, calls: Iterable[tuple[bytes, tuple[bytes, ...], tuple[Row, ...] | None]], num_returns: int
    ) -> list[bytes]:
        """See ``ClientInterface``."""
        firsts = []
        machine = self.machine
        with self.lock:
            self.check_usable()
            namer, submit = self.namer(), machine.tasks.submit
            for arguments, dependencies, options in calls:
                row: Row = (namer.child(), function_id, arguments, dependencies)
                firsts.append(submit(row if options is None else (*row, options), num_returns))
                if machine.unsent >= self.config.batch_rows:
                    self.flush()
            self.flush()
        return firsts

    def call(
        self,
        actor_id: bytes,
        method: str,
        arguments: bytes,
        dependencies: tuple[bytes, ...],
        options: tuple[Row, ...] | None,
        num_returns: int,
        terms: Terms,
    ) -> bytes:
        """See ``ClientInterface``."""
        machine = self.machine
        if terms.pending:
            self._await_room(actor_id, terms)
        with self.lock:
            if self.closed or machine.farewell or machine.refused:
                self.check_usable()
            row: Row = (self.namer().child(), method, arguments)
            if dependencies or options is not None:
                row = (*row, dependencies, (), options)
            calls = machine.calls
            first = calls.call(actor_id, row, num_returns, terms.retries, terms.keeps, terms.unordered)
            if (len(calls.pending) == 1 and not machine.tasks.unfinished) or calls.queued >= self._batch_rows:
                self._flush_first()
                if calls.delayed and not self.armed:
                    self.arm_flusher()
            elif not self.armed:
                self.arm_flusher()
        return first

    def _await_room(self, actor_id: bytes, terms: Terms) -> None:
        """Until fewer calls than allowed have no outcome."""
        calls = self.machine.calls
        with self.lock:
            count = calls.count(actor_id)
        if count < terms.pending:
            return
        if self.config.calls_over_limit != "wait":
            raise PendingCallsLimitExceededError(
                f"{count} calls of this actor have no outcome yet, which is its max_pending_calls; get some of them first, or "
                "start with config={'calls_over_limit': 'wait'}"
            )
        self.wait_until(lambda: calls.count(actor_id) < terms.pending, None)

    def kill_actor(self, actor_id: bytes, no_restart: bool) -> None:
        """See ``ClientInterface``."""
        with self.lock:
            self.check_usable()
            self.machine.calls.kill(actor_id, no_restart)
            self.flush()

    def put(self, value: Serialized, durable: bool) -> bytes:
        """See ``ClientInterface``."""
        if durable and value.size > self.config.durable_bytes:
            raise ObjectTooLargeError(
                f"a durable value is kept in the control store, {self.config.durable_bytes} bytes at most; this one has {value.size}"
            )
        if value.size <= self.config.inline_bytes or durable:
            with self.lock:
                self.check_usable()
                identifier = self.namer().put()
                self.machine.put(identifier, value.to_bytes(), value.contained, durable)
                if self.machine.unsent >= self.config.batch_rows:
                    self.flush()
                elif not self.armed:
                    self.arm_flusher()
        else:
            with self.lock:
                self.check_usable()
                identifier = self.namer().put()
            place = self.values.write(identifier, value)
            with self.lock:
                self.machine.put(identifier, place, value.contained, durable)
                self.machine.reservations.finished(place[0])
                if not self.machine.reservations.shares(place[1]) or self.machine.unsent >= self.config.batch_rows:
                    self.flush()
                elif not self.armed:
                    self.arm_flusher()
        if durable:
            try:
                self._wait_kept(identifier)
            except BaseException:  # Ctrl-C too: nobody gets a ref to it
                self.drop_reference(identifier)
                raise
        return identifier

    def _wait_kept(self, identifier: bytes) -> None:
        with self.lock:
            self.flush()
        if not self.wait_until(lambda: identifier in self.machine.committed, clock() + self.config.put_patience):
            raise OutOfDiskError("the control store did not commit the value in time")
        with self.lock:
            reason = self.machine.committed.pop(identifier)
        if reason:
            raise OutOfDiskError(reason)

    def add_reference(self, object_id: bytes) -> None:
        """See ``ClientInterface``."""
        with self.lock:
            self.machine.references.add(object_id)
            if not self.armed:
                self.arm_flusher()

    def follow(self, object_ids: Sequence[bytes]) -> None:
        """See ``ClientInterface``."""
        with self.lock:
            self.check_usable()
            for object_id in object_ids:
                self.machine.references.add(object_id)
            self.machine.objects.want(object_ids)
            if not self.armed:
                self.arm_flusher()

    def get(self, object_ids: Sequence[bytes], timeout: float | None, fail_fast: bool = True) -> list[bytes | Outcome]:
        """See ``ClientInterface``."""
        machine = self.machine
        count = len(object_ids)
        deadline = None if timeout is None else clock() + timeout
        if count == 1 and not self.closed:
            known = machine.entries.get(object_ids[0])
            if type(known) is tuple:  # What this process has just asked for, most often, and waits for at once.
                self._await_one(object_ids, deadline, int(timeout != 0))
                known = machine.entries.get(object_ids[0])
            if type(known) is bytes:
                if machine.printed or machine.notices:
                    self._show_output()
                return [known]
        objects = machine.objects
        found: list[bytes | None] = []
        """Small values as they come; None for others."""
        failures = 0
        """How many failures this process had received when the rest of the list was last searched for one."""
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
            with self.lock:
                self.check_usable()
                self._settle()
                objects.gets[id(found)] = object_ids
                if not ready():
                    objects.want(object_ids[len(found) :])
            needed = 0 if timeout == 0 else count
            if len(found) < count and not failed and not self.wait_for(object_ids, ready, deadline, plain=timeout is None, needed=needed):
                with self.lock:
                    missing = sum(1 for each in object_ids if not objects.known(each))
                if not missing:
                    raise GetTimeoutError(f"not all of the {count} values, which exist, were brought here within {timeout} s")
                text = f"{missing} of {count} object(s) had no value within {timeout} s; their tasks go on"
                raise GetTimeoutError(text + (self._why_missing(object_ids, min(EXPLAIN_SECONDS, timeout)) if timeout else ""))
            with self.lock:
                outcomes = self._outcomes(failed, [None]) if failed else self._outcomes(object_ids, found)
                if failed:
                    machine.unread.expected(object_ids)
        finally:
            with self.lock:  # Another thread may be looking through them.
                objects.gets.pop(id(found), None)
        if machine.printed or machine.notices:
            self._show_output()
        return outcomes

    def _keep_house(self) -> None:
        super()._keep_house()
        self._tell_unread()

    def _tell_unread(self, ending: bool = False) -> None:
        """Show the first failure that nobody asked for; at the end, how many more there were.

        A worker prints both, so that drivers show them. It may be ended at any moment: it prints the number when that has doubled.
        """
        unread = self.machine.unread
        with self.lock:
            if self.machine.dropped:
                self._settle()
            if ending:
                unread.lose_all()
            first = unread.lost if unread.count and not self._unread_told else None
            due = ending or (self.kind == "worker" and unread.count >= 2 * self._unread_told > 0)
            more = unread.count - 1 if due else 0
            if more or first is not None:
                self._unread_told = unread.count if more else 1
        if first is not None:
            text = task_errors.told(first[1], first[0] == ERROR)
            self.terminal.show([m.Notice("warning", f"a task failed whose result nobody asked for ({UNREAD_HINT}): {text}")])
        if more > 0:
            text = f"{more} more tasks failed whose results" if more > 1 else "one more task failed whose result"
            self.terminal.show([m.Notice("warning", f"{text} nobody asked for{'' if ending else ', so far'}")])

    def _why_missing(self, object_ids: Sequence[bytes], seconds: float) -> str:
        """What ``explain`` says of the first of these that has no value; empty if no answer comes within so many seconds."""
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
        """In a driver, show what those wrote whose outcomes are here. The daemon reads it; it has come when the daemon has answered."""
        if self.kind == "driver":
            printed, self.machine.printed = self.machine.printed, False
            if printed and self.shows_output:
                with contextlib.suppress(FabricError, zmq.ZMQError):
                    self.query("output", timeout=OUTPUT_SECONDS)
            if self.machine.notices:
                self._show_notices()

    def _await_one(self, object_ids: Sequence[bytes], deadline: float | None, needed: int) -> None:
        """Wait for the outcome of the one task that makes this, wherever its value is then, or until the time is up."""
        entries, (identifier,) = self.machine.entries, object_ids

        def done() -> bool:
            return type(entries.get(identifier)) is not tuple

        with self.lock:
            self._settle()
        self.wait_for(object_ids, done, deadline, plain=deadline is None, needed=needed)

    def wait_for(self, object_ids: Sequence[bytes], done: Callable[[], bool], deadline: float | None, plain: bool, needed: int) -> bool:
        """Wait for objects. (A worker says meanwhile that it is blocked, and may run tasks.)

        ``needed`` is how many of them must come; 0 if whoever asks has an answer without.
        """
        return self.wait_until(done, deadline)

    def _outcomes(self, object_ids: Sequence[bytes], found: list[bytes | None]) -> list[bytes | Outcome]:
        """The outcomes of all, which are at hand; ``found`` has those that are small. The caller holds the lock."""
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
        except BaseException:
            for outcome in outcomes:
                if isinstance(outcome, Outcome) and outcome.release is not None:
                    outcome.release()
            raise
        return outcomes

    def _view(self, identifier: bytes, place: tuple[int, int]) -> Outcome:
        view = self.values.view(place)
        self.machine.pins.view(identifier)
        return Outcome(OK, view, View(self.unview, identifier))

    def has_failed(self, object_id: bytes) -> bool:
        """See ``ClientInterface``."""
        with self.lock:
            return self.machine.objects.has_failed(object_id)

    def wait(self, object_ids: Sequence[bytes], num_returns: int, timeout: float | None, fetch_local: bool) -> set[bytes]:
        """See ``ClientInterface``."""
        machine = self.machine
        known = machine.objects.at_hand if fetch_local else machine.objects.known
        ready: set[bytes] = set()
        pending = list(object_ids)
        may_lack = len(pending) - num_returns

        def scan() -> bool:
            """Look no further than there is a reason to: programs wait for many, one at a time, and are asked again at all news."""
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
                    machine.objects.want((identifier,))  # It is large, and has come since: only the news of it comes by itself.
                    continue
                lacking += 1
                if lacking > may_lack:
                    left += pending[place + 1 :]
                    break
            pending = left
            return False

        with self.lock:
            self.check_usable()
            if scan():
                return ready
            machine.objects.want(pending)
            self.flush()
        deadline, needed = (None, num_returns) if timeout is None else (clock() + timeout, 0)
        if not self.wait_for(object_ids, scan, deadline, plain=False, needed=needed):
            may_lack = len(pending)
            with self.lock:
                scan()
        return ready

    def watch(self, object_ids: Iterable[bytes], callback: Callable[[bytes], None]) -> None:
        """See ``ClientInterface``."""
        machine = self.machine
        with self.lock:
            self.check_usable()
            for identifier in object_ids:
                if machine.objects.at_hand(identifier):
                    callback(identifier)
                else:
                    machine.objects.watch(identifier, callback)

    def await_watched(self, object_ids: Collection[bytes], done: Callable[[], bool], timeout: float | None) -> bool:
        """See ``ClientInterface``."""
        # A worker says what it waits for. Nobody asks a driver, which may wait very often for one of very many.
        wanted: Any = object_ids if self.kind == "driver" else tuple(object_ids)
        deadline, needed = (None, 1) if timeout is None else (clock() + timeout, 0)
        return self.wait_for(wanted, done, deadline, plain=False, needed=needed)

    def add_done_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """See ``ClientInterface``."""
        with self.lock:
            self.check_usable()
            if not self.machine.objects.at_hand(object_id):
                self.machine.objects.watch(object_id, callback)
                self.flush()
                self.pump_aside()
                return
        callback(object_id)

    def pump_aside(self) -> None:
        """Pump for those who wait without a thread of their own (asyncio, futures), for as long as there are any.

        The caller holds the lock.
        """
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="zfabric-watcher", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        try:
            self.wait_until(self._unwatched, None)
        except (FabricError, zmq.ZMQError):  # Nothing comes any more. Whoever waits is told, and finds out why where it looks.
            with self.lock:
                self._watcher = None
                self.machine.objects.give_up_watching()

    def _unwatched(self) -> bool:
        """Whether nobody waits so any more: then the watcher ends, and the next who does has another."""
        if self._watched():
            return False
        self._watcher = None
        return True

    def _watched(self) -> bool:
        return bool(self.machine.objects.watchers)

    def cancel(self, object_ids: Sequence[bytes], force: bool, recursive: bool) -> None:
        """See ``ClientInterface``."""
        with self.lock:
            self.check_usable()
            self.machine.cancel(tuple(object_ids), force, recursive)
            self.flush()
            self.wake_followers()  # A call that had not left has its outcome.

    def explain_call(self, object_id: bytes) -> tuple[str, bytes, str] | None:
        """See ``ClientInterface``."""
        with self.lock:
            return self.machine.calls.explain(object_id)

    def pending_calls(self, matches: Callable[[bytes], bool]) -> list[bytes]:
        """See ``ClientInterface``."""
        with self.lock:
            return list(filter(matches, self.machine.calls.pending))

    def breakpoint_of(self, task_id: bytes, pid: str) -> str:
        """See ``ClientInterface``."""
        from zfabric.runtime.debugger import where_waiting

        return where_waiting(self.session.directory, task_id, pid)

    def query(self, what: str, *arguments: Any, timeout: float = 10.0) -> Any:
        """See ``ClientInterface``."""
        with self.lock:
            self.check_usable()
            token = self.machine.queries.token()
            self.machine.queries.ask(token, what, arguments)
            self.flush()
        if not self.wait_until(lambda: token in self.machine.queries.answers, clock() + timeout):
            with self.lock:
                self.machine.queries.forget(token)
            raise GetTimeoutError(f"the node's daemon did not answer {what!r} within {timeout} s")
        with self.lock:
            answer = self.machine.queries.answers.pop(token)
        if answer.error:
            raise FabricError(answer.error)
        return answer.payload

    def exit_actor(self) -> NoReturn:
        """See ``ClientInterface``."""
        raise TypeError(NO_ACTOR)

    def close(self) -> None:
        """Say goodbye, wait for the last log lines, and let go of everything. Idempotent."""
        if self.closed or self.forked:
            self.closed = True
            return
        try:
            with self.lock:
                self.machine.send(m.Goodbye())
                self.flush()
            if self.kind == "driver" and self.alive():
                self.wait_until(lambda: self.machine.farewell is not None, clock() + 4.5)
                self._tell_unread(ending=True)
        except (FabricError, zmq.ZMQError, OSError):
            pass  # The node is gone; there is nothing left to say goodbye to.
        finally:
            self.disconnect()
            with self.lock:
                if self._watcher is None:  # It would tell all that they wait in vain, and let go of them.
                    self.machine.objects.watchers.clear()
            self.values.close()
            if self.on_close is not None:
                self.on_close()
