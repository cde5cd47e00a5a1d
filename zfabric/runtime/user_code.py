"""User code, from its bytes to its outcome: functions and arguments are loaded, what is returned or raised is packed.

Here is what of a worker deals with the user's objects; which code runs when, and where its outcome goes, is in ``worker`` and ``crew``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from zfabric.adapters import numeric_threads, serialization
from zfabric.adapters.processes import visible_gpus
from zfabric.config import NUMBER_MAX, SMALL_BYTES
from zfabric.exceptions import FabricError, SerializationError
from zfabric.machines.common.naming import Namer
from zfabric.machines.worker import KILL, LEAVE, Invocation, Item, actor_of
from zfabric.protocol import messages as m
from zfabric.protocol.failures import left_for_good, pack_failure
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES, call_value, object_id, tries_of
from zfabric.protocol.messages import ERROR, FAILED, INTERRUPTED, OK, RETRY, Row
from zfabric.protocol.options import NO_ENVIRONMENT, ONE_CPU, RESOURCE_UNIT, Demand, option
from zfabric.runtime import interface
from zfabric.runtime.connection import clock
from zfabric.runtime.crew import current_call
from zfabric.runtime.hosting import ActorExit
from zfabric.runtime.interrupts import closed_to_interrupts
from zfabric.runtime.session import Session
from zfabric.runtime.worker_connection import WorkerConnection

if TYPE_CHECKING:
    from zfabric.runtime.replay import Replay

Ending = tuple[int, Row, tuple[Row, Row] | None]
"""How user code ended: (status, outputs, refs inside them)."""
Loaded = tuple[Callable[..., Any], Callable[[BaseException], bool]]
"""A function, and whether an error of its is to be retried."""
Prepared = tuple[Callable[..., Any], Callable[[BaseException], bool], tuple[Any, ...], dict[str, Any]]
"""What is to be called: (function, whether an error is to be retried, args, kwargs)."""
NODE_GPUS = visible_gpus()
"""The names of the node's GPUs, where it was started with some of the machine's: this module is loaded before any worker is forked."""


class UserCode(WorkerConnection):
    """What a worker knows of the functions it runs."""

    def __init__(self, session: Session, token: bytes, job: bytes) -> None:
        super().__init__(session, token, job)
        self._functions: dict[bytes, Loaded] = {}
        self._plain: dict[bytes, Loaded] = {}
        """Those of them that return one value, ask for one CPU at most, and make neither streams nor actors."""
        self._options: dict[bytes, tuple[str, int]] = {}
        self._streams: dict[bytes, int] = {}
        """Functions whose calls make streams, and how many values those may be ahead (0: as configured)."""
        self._cpus: dict[bytes, int] = {}
        """How many threads numeric libraries have in functions, where their calls do not say otherwise."""
        self.thread_limit = 1
        """How many they have now."""
        self._classes: set[bytes] = set()
        """Functions whose calls make actors."""
        self._namers: list[Namer | None] = []
        """Who names what each of the contexts submits."""
        self._thread_names = threading.local()
        self._call_names: dict[bytes, Namer] = {}
        """Who names what calls submit that run beside each other."""
        self.replays: dict[bytes, Replay] = {}
        """Actors whose calls are run again just now."""
        self._gpus: tuple[int, ...] = ()
        """Those in the environment: a process that is given some has them until it ends (see ``Dispatcher``)."""
        self._unfinished_writes: dict[bytes, list[int]] = {}
        """Where objects were written that no message tells of yet, by task or call: others may run beside it."""

    # -- actors that call themselves --

    @closed_to_interrupts
    def call(
        self,
        actor_id: bytes,
        method: str,
        arguments: bytes,
        dependencies: tuple[bytes, ...],
        options: tuple[Row, ...] | None,
        num_returns: int,
        terms: interface.Terms,
    ) -> bytes:
        """See ``ClientInterface``. What a logged actor calls of itself is part of its log."""
        caller = self._called_by(actor_id) if self.worker.mailbox.logs or self.replays else None
        replay = self.replays.get(actor_id) if caller is not None else None
        known = replay.called(method, num_returns) if replay is not None else None
        if known is not None:
            return call_value(known, 0)
        log = self.worker.mailbox.logs.get(actor_id) if caller is not None else None
        if log is None:
            return super().call(actor_id, method, arguments, dependencies, options, num_returns, terms)
        if terms.pending:
            self._await_room(actor_id, terms)
        with self.lock:  # Another thread may run what is called as soon as it has left.
            first = super().call(actor_id, method, arguments, dependencies, options, num_returns, terms._replace(pending=0))
            row: Row = (first[:TASK_BYTES], method, arguments)
            if dependencies or options is not None:
                row = (*row, dependencies, (), options)
            log.own.make(row, type(caller) is not Invocation or caller.method not in log.readonly)
        return first

    def _called_by(self, actor_id: bytes) -> Item | Invocation | None:
        """What calls, if that is of this very actor."""
        main = threading.get_ident() == self._main
        item = current_call.get() or (self._contexts[-1] if self._contexts and main else None)
        return item if item is not None and actor_of(item) == actor_id else None

    # -- who it is, and what it is called --

    def namer(self) -> Namer:
        """The namer of the task on top, or of this call; threads of their own, and what outlives its call, name under a random salt."""
        if threading.get_ident() == self._main and self._contexts:
            depth = len(self._contexts) - 1
            namer = self._namers[depth]
            if namer is None:
                item = self._contexts[depth]
                made = Namer(item.row[0][:JOB_BYTES], item.row[0], attempt=item.attempt)
                namer = self._namers[depth] = self._namers[depth] or made  # A finalizer, which may run at any moment, has used it already.
            return namer
        call = current_call.get()
        if call is not None and call.row[0] in self.worker.running_calls:  # A coroutine that it has started may outlive it.
            named = self._call_names.get(call.row[0])
            if named is None:
                made = Namer(call.row[0][:JOB_BYTES], call.row[0], attempt=call.attempt)
                named = self._call_names.setdefault(call.row[0], made)  # As above.
            return named
        found: Namer | None = getattr(self._thread_names, "namer", None)
        if found is None:
            parent = self._contexts[-1].row[0] if self._contexts else bytes(TASK_BYTES)
            found = self._thread_names.namer = Namer(self.machine.job or parent[:JOB_BYTES], parent, salt=os.urandom(8))
        return found

    def _terms(self, item: Item | Invocation) -> tuple[str, int]:
        """What is called, for people, and how many values it is to return."""
        if type(item) is Invocation:
            return f"{self.host.class_of(item)}.{item.method}", option(item.options, "num_returns", 1)
        name, count = self._options.get(item.row[1], ("?", 1))
        return name, option(item.row[4], "num_returns", count) if len(item.row) > 4 else count

    def name_of(self, item: Item | Invocation) -> str:
        """What is called, for people."""
        return self._terms(item)[0]

    def context(self) -> interface.TaskContext | None:
        """The attempt on top, or the call that this thread or coroutine runs."""
        item = current_call.get() or (self._contexts[-1] if self._contexts else None)
        if item is None:
            return None
        function, stopped = self._terms(item)[0], self.worker.interrupted(item) != ""
        if type(item) is Invocation:
            made_by = self.worker.mailbox.actors[item.actor_id][0] if item.actor_id in self.worker.mailbox.actors else None
            gpus, demand = _gpu_ids(self._gpus), () if made_by is None else self._option_of(made_by, "demand", ())
            return interface.TaskContext(item.row[0], tries_of(item.attempt), function, gpus, item.actor_id, demand, "", stopped)
        makes_actor = item.row[1] in self._classes
        actor_id, default = (item.row[0], ()) if makes_actor else (b"", ONE_CPU)
        gpus, demand, name = _gpu_ids(item.gpus), self._option_of(item.row, "demand", default), self._option_of(item.row, "name", "")
        name = "" if makes_actor else name
        return interface.TaskContext(item.row[0], tries_of(item.attempt), function, gpus, actor_id, demand, name, stopped)

    def _option_of(self, row: Row, name: str, default: Any) -> Any:
        """An option of a task, whether its call says it or its function."""
        usual = option(self.worker.functions[row[1]][3], name, default)
        return option(row[4], name, usual) if len(row) > 4 else usual

    # -- before it runs --

    def prepare(self, item: Item | Invocation) -> Prepared:
        """What is to be called, and with what: (function, whether an error is to be retried, args, kwargs). Raises what user code does."""
        row = item.row
        retryable: Callable[[BaseException], bool] = never
        if type(item) is Invocation:
            function = self.host.method(item)
            if item.options is not None and (kinds := option(item.options, "retry_on")):
                again = _Again(function, kinds, option(item.options, "max_retries", 0), partial(self._arguments, item))
                function = again.call if option(item.options, "stream") is None else again.stream
        else:
            function, retryable = self._load(row)
        if row[2] or item.values:
            return function, retryable, *serialization.load_arguments(row[2], self._values(item))
        return function, retryable, (), {}

    def limit_threads(self, task: Row) -> None:
        """Give numeric libraries a thread for each whole CPU of a task, or one: before it is loaded, and with it those it imports."""
        count = self._cpus_of(task[1])
        if len(task) > 4 and (demand := option(task[4], "demand")):
            count = _whole_cpus(demand)
        if count != self.thread_limit:
            self.thread_limit = count
            numeric_threads.limit(count)

    def _cpus_of(self, function_id: bytes) -> int:
        count = self._cpus.get(function_id)
        if count is None:
            count = self._cpus[function_id] = _whole_cpus(option(self.worker.functions[function_id][3], "demand", ONE_CPU))
        return count

    def _arguments(self, item: Item | Invocation) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return serialization.load_arguments(item.row[2], self._values(item))

    def _load(self, task: Row) -> Loaded:
        """The function of a task, from what its exporter sent."""
        function_id = task[1]
        found = self._functions.get(function_id)
        if found is None:
            row = self.worker.functions[function_id]
            self._look_in(option(row[3], "paths", ()))
            self._go_to(option(row[3], "directory", ""), task)
            ahead = option(row[3], "stream")
            self._options[function_id] = (row[1], option(row[3], "num_returns", 1))
            found = self._functions[function_id] = serialization.load_function(row[2], function_id, whole=ahead is None)
            if ahead is not None:
                self._streams[function_id] = ahead
            if option(row[3], "actor") is not None:
                self._classes.add(function_id)
            elif ahead is None and option(row[3], "num_returns", 1) == 1 and self._cpus_of(function_id) == 1:
                self._plain[function_id] = found
        return found

    def _look_in(self, paths: tuple[str, ...]) -> None:
        """Find modules where the job's program does; functions that this worker exports say the same."""
        if paths != self.paths:
            self.paths = paths
            sys.path[:0] = [path for path in paths if path not in sys.path]

    def _go_to(self, directory: str, task: Row) -> None:
        """Run where the job's program runs, if that directory is here, and the task's environment names no other."""
        if directory != self.directory:
            self.directory = directory
            if not self._option_of(task, "env", NO_ENVIRONMENT)[1]:
                with contextlib.suppress(OSError):
                    os.chdir(directory)

    def _values(self, item: Item | Invocation) -> list[Any]:
        if item.values.count(None) < 2:
            return self._loaded(item)
        missing = [identifier for identifier, value in zip(item.row[3], item.values, strict=True) if value is None]
        with self.lock:  # Asked for together: one at a time each would wait for its own way there and back.
            for identifier in missing:
                self.machine.references.add(identifier)
            self.machine.objects.want(missing)
        try:
            return self._loaded(item)
        finally:
            self.machine.dropped.extend(missing)

    def _loaded(self, item: Item | Invocation) -> list[Any]:
        values = []
        for identifier, value in zip(item.row[3], item.values, strict=True):
            if value is None:
                values.append(self._fetched(identifier))
            elif type(value) is tuple:
                with self.lock:
                    self.machine.pins.told(identifier, value)
                    self.machine.pins.view(identifier)
                try:
                    data = self.values.view(value)
                except BaseException:
                    self._unview(identifier)
                    raise
                values.append(serialization.deserialize(data, partial(self._unview, identifier)))
            else:
                values.append(serialization.deserialize(value))
        return values

    def _fetched(self, identifier: bytes) -> Any:
        """An argument that did not come with the row of a task or a call: who submitted that holds it."""
        with self.lock:
            self.machine.references.add(identifier)
        try:
            outcome = super().get((identifier,), None)[0]
            if isinstance(outcome, bytes):
                return serialization.deserialize(outcome)
            status, data, release = outcome
            if status != OK:
                raise serialization.load_error(data) if status == ERROR else serialization.load_failure(data)
            return serialization.deserialize(data, release)
        finally:
            self.machine.dropped.append(identifier)

    def _assign_gpus(self, gpus: tuple[int, ...]) -> None:
        if gpus != self._gpus:
            self._gpus = gpus
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(_gpu_name, gpus))

    # -- while it runs --

    def as_user(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run user code of the task on top, or of this thread's call: an interrupt may end it."""
        fence = self.fences.mine
        fence.depth = 0
        try:
            return function(*args, **kwargs)
        finally:
            fence.depth = 1
            if fence is not self._fence:
                fence.forget()

    def store(self, identifier: bytes, packed: serialization.SerializedValue, room: int = NUMBER_MAX) -> Any:
        """A value as it is reported: inline bytes, ``room`` at most, or the place in the arena that it was written to."""
        if packed.size <= self.config.inline_bytes and packed.size <= max(room, SMALL_BYTES):
            return packed.to_bytes()
        place = self.values.write(identifier, packed)
        self._unfinished_writes.setdefault(identifier[:TASK_BYTES], []).append(place[0])
        return place

    def finish_writes(self, identifier: bytes) -> None:
        """What a task or a call has written is in a message on its way. The caller holds the lock."""
        for offset in self._unfinished_writes.pop(identifier, ()):
            self.machine.reservations.finished(offset)

    def abandon_writes(self, identifier: bytes) -> None:
        """Nobody will be told of what a task or a call has written. The caller holds the lock."""
        for offset in self._unfinished_writes.pop(identifier, ()):
            self.machine.reservations.abandon(offset)

    # -- after it ran --

    def packed(self, item: Item | Invocation, value: Any) -> Ending:
        """The outcome of user code that returned."""
        if item.row[0] in self.worker.abandoned:
            return FAILED, (), None
        try:
            return self._pack(item, value)
        except Exception as error:  # what was returned is the user's, and so is what its __reduce__, or an iterator, raises
            with self.lock:
                self.abandon_writes(item.row[0])  # Values before the one that failed may be written already.
            if isinstance(error, FabricError) and not isinstance(error, SerializationError):
                facts = tuple(self._facts(item).items())
                return (
                    FAILED,
                    (pack_failure(type(error).__name__, f"what {self.name_of(item)} returned has no place: {error}", facts),),
                    None,
                )
            return ERROR, (self._error(error, item),), None

    def _pack(self, item: Item | Invocation, value: Any) -> Ending:
        """Serialize what the function returned."""
        row = item.row
        if type(item) is Invocation:
            name, count = ("", 1) if item.options is None else self._terms(item)
        else:
            name, count = self._options[row[1]] if len(row) == 4 else self._terms(item)
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
                wrong = ValueError(f"{name} declares num_returns={count} and returned {got}")
                if type(value) is not serialization.YieldedItems or len(value) > count:
                    raise wrong
                value = serialization.and_failures(value, serialization.Raises(self._error(wrong, item)), count)
            values = value
        name_value = call_value if type(item) is Invocation else object_id
        outputs: list[Any] = []
        contained: list[tuple[bytes, ...]] = []
        room = self.config.row_bytes
        for index, each in enumerate(values):
            packed = serialization.serialize(each, f"what {name or self.name_of(item)} returned")
            contained.append(packed.contained)
            outputs.append(self.store(name_value(row[0], index), packed, room))
            room -= packed.size if type(outputs[-1]) is bytes else 0
        extra = (tuple(contained), ()) if any(contained) else None
        if extra is not None:
            with self.lock:
                self.machine.calls.results.share([identifier for refs in contained for identifier in refs])
        return OK, tuple(outputs), extra

    def failed(self, item: Item | Invocation, error: BaseException, retryable: Callable[[BaseException], bool] | None) -> Ending:
        """The outcome of user code that raised."""
        if isinstance(error, ActorExit):
            return self._leave_for_good(item, "exit_actor")
        finish = None
        if type(error) is serialization.Unfinished:
            finish, error = error.finish, error.error
        if self.worker.interrupted(item):
            return INTERRUPTED, (), None
        if type(item) is Invocation and isinstance(error, SystemExit):
            return self._exit(item, error)
        status = RETRY if retryable is not None and not isinstance(error, SystemExit) and _asks(retryable, error) else ERROR
        if finish is not None and status == ERROR:
            return self.packed(item, finish(serialization.Raises(self._error(error, item)), self._terms(item)[1]))
        return status, (self._error(error, item),), None

    def _leave_for_good(self, item: Item | Invocation, how: str) -> Ending:
        """The actor ends itself: calls that wait are not run, and it is not restarted."""
        with self.lock:
            self._end_own(item, LEAVE, "")
            self.machine.say(m.ActorExiting(actor_of(item)))  # its __init__ may leave, too
        return FAILED, (left_for_good(actor_of(item), how),), None

    def _end_own(self, item: Item | Invocation, how: str, reason: str) -> None:
        """The actor that runs ends: with its process, unless others live there."""
        if self.worker.turns is None:
            self._end_with_process(item)
        elif type(item) is Invocation:
            self.worker.turns.leave(item.actor_id, how, reason)

    def _end_with_process(self, item: Item | Invocation | None) -> None:
        """The actor ends, and its process with it; ``item`` has ended it. The caller holds the lock."""
        if not self.host.leaving:
            self.host.leaving, self.host.leaves_at = True, clock() + self.config.leave_seconds
        for each in self.worker.leave(item):
            self.stop_soon(each)
        self.post.ring()

    def _exit(self, item: Invocation, error: SystemExit) -> Ending:
        """``sys.exit`` in a method ends the process: as wanted, or, with an exit code, as a death that restarts may follow."""
        if not error.code:
            return self._leave_for_good(item, "sys.exit")
        if self.worker.turns is not None:
            with self.lock:
                self._end_own(item, KILL, f"it called sys.exit({error.code!r})")
            return FAILED, (), None
        self._say_the_last()
        os._exit(error.code if isinstance(error.code, int) and 0 < error.code < 256 else 1)

    def _error(self, error: BaseException, item: Item | Invocation) -> bytes:
        return serialization.dump_error(error, self._facts(item))

    def _facts(self, item: Item | Invocation) -> dict[str, Any]:
        """Where it ran, for errors."""
        return {"function": self.name_of(item), "node": self.node.hex(), "pid": os.getpid(), "attempt": tries_of(item.attempt)}


class _Again:
    """A method that is called again with fresh ``arguments`` after errors of these kinds, at most ``limit`` times (-1: without end)."""

    def __init__(
        self,
        function: Callable[..., Any],
        kinds: tuple[str, ...],
        limit: int,
        arguments: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]],
    ) -> None:
        self.function = function
        self.kinds = kinds
        self.left = limit
        self.arguments = arguments

    def _asks(self, error: Exception) -> bool:
        if type(error) is serialization.Unfinished:
            error = error.error
        if not self.left or not any(f"{kind.__module__}.{kind.__qualname__}" in self.kinds for kind in type(error).__mro__):
            return False
        self.left -= 1
        return True

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What the method returns, or a coroutine that does so."""
        while True:
            try:
                value = self.function(*args, **kwargs)
            except Exception as error:
                if not self._asks(error):
                    raise
            else:
                return self._awaited(value) if isinstance(value, Coroutine) else value  # Not a ref: that is a value.
            args, kwargs = self.arguments()

    async def _awaited(self, value: Coroutine[Any, Any, Any]) -> Any:
        while True:
            try:
                return await value
            except Exception as error:
                if not self._asks(error):
                    raise
            args, kwargs = self.arguments()
            value = self.function(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """What the method yields. One that is called again is to yield the same again: what was yielded before is passed over."""
        values = self.function(*args, **kwargs)
        if hasattr(values, "__aiter__"):
            return self._stream_in_loop(values)
        return self._stream(values) if hasattr(values, "__next__") else values

    def _stream(self, values: Iterator[Any]) -> Iterator[Any]:
        yielded = 0
        while True:
            try:
                with contextlib.ExitStack() as stack:
                    if hasattr(values, "close"):
                        stack.callback(values.close)
                    for index, value in enumerate(values):
                        if index == yielded:
                            yielded += 1
                            yield value
                return
            except Exception as error:
                if not self._asks(error):
                    raise
            args, kwargs = self.arguments()
            values = self.function(*args, **kwargs)

    async def _stream_in_loop(self, values: AsyncIterator[Any]) -> AsyncIterator[Any]:
        yielded = 0
        while True:
            index = 0
            try:
                async with contextlib.AsyncExitStack() as stack:
                    if hasattr(values, "aclose"):
                        stack.push_async_callback(values.aclose)
                    async for value in values:
                        if index == yielded:
                            yielded += 1
                            yield value
                        index += 1
                return
            except Exception as error:
                if not self._asks(error):
                    raise
            args, kwargs = self.arguments()
            values = self.function(*args, **kwargs)


def _whole_cpus(demand: Demand) -> int:
    return max(1, dict(demand).get("CPU", 0) // RESOURCE_UNIT)


def _gpu_name(place: int) -> str:
    """What CUDA calls one of the node's GPUs."""
    return NODE_GPUS[place] if NODE_GPUS is not None and place < len(NODE_GPUS) else str(place)


def _gpu_ids(places: tuple[int, ...]) -> tuple[int | str, ...]:
    """The same for people: CUDA's numbers as numbers."""
    return tuple(int(name) if name.isdigit() else name for name in map(_gpu_name, places))


def never(error: BaseException) -> bool:
    """Whether an error is to be retried where nothing was asked for: it is not."""
    return False


def _asks(retryable: Callable[[BaseException], bool], error: BaseException) -> bool:
    try:
        return bool(retryable(error))
    except Exception:  # the user's own function; the error that it was asked about is the one to report
        return False
