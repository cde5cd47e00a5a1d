"""Loads user code's functions and arguments, and packs what it returns or raises."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from functools import partial
from typing import Any

from zfabric.adapters import generated_values, serialization, task_errors
from zfabric.adapters.generated_values import END, YieldStatistics, resumed
from zfabric.exceptions import FabricError, SerializationError
from zfabric.machines.worker import Invocation, Item
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import call_value, object_id, tries_of
from zfabric.protocol.inside import refs_in
from zfabric.protocol.messages import ERROR, FAILED, INTERRUPTED, OK, RETRY, Row
from zfabric.protocol.options import option
from zfabric.runtime import interface
from zfabric.runtime.actor_exits import ActorExits
from zfabric.runtime.arena_access import KeptCopies, UnreportedWrites
from zfabric.runtime.client import FabricClient
from zfabric.runtime.functions import LoadedFunctions
from zfabric.runtime.hosting import ActorExit
from zfabric.runtime.interrupts import Interrupter, TaskInterrupt
from zfabric.runtime.worker_connection import WorkerConnection

Ending = tuple[int, Row, tuple[Row, Row] | None]
"""(status, outputs, refs inside them)."""
Prepared = tuple[Callable[..., Any], Callable[[BaseException], bool], tuple[Any, ...], dict[str, Any]]
"""(function, whether to retry an error, args, kwargs)."""


class UserCode:
    """Prepares calls of user code, and packs their outcomes."""

    def __init__(
        self,
        connection: WorkerConnection,
        fabric: FabricClient,
        functions: LoadedFunctions,
        writes: UnreportedWrites,
        exits: ActorExits,
        interrupter: Interrupter,
    ) -> None:
        self._connection = connection
        self._lock = connection.lock
        self._machine = connection.machine
        self._inline_bytes = connection.config.inline_bytes
        self._worker = connection.worker
        self._host = connection.host
        self._view, self._unview = fabric.values.view, fabric.unview
        self._copies = KeptCopies(connection, fabric.values)
        self._fences = interrupter.fences
        self._get = fabric.get
        """User code may be under it: what is called again loads its arguments anew."""
        self._functions = functions
        self._load = functions.load
        self._usual_terms = functions.usual_terms
        self._writes = writes
        self._retained = connection.retained
        self._exits = exits

    # -- before it runs --

    def prepare(self, item: Item | Invocation) -> Prepared:
        """Load function and arguments. Raises what user code raises."""
        row = item.row
        retryable: Callable[[BaseException], bool] = never
        copy = False
        if type(item) is Invocation:
            function = self._host.method(item)
            if item.options:
                copy = option(item.options, "copy", False)
                limit = option(item.options, "run_timeout")
                if limit is not None:
                    self._connection.limit_run(item.row[0], limit)
                if kinds := option(item.options, "retry_on"):
                    again = _Again(function, kinds, option(item.options, "max_retries", 0), partial(self._arguments, item, copy))
                    function = again.call if option(item.options, "stream") is None else again.stream
                function = self._wrapped(item, function, item.options)
        elif len(row) == 4:
            function, retryable = self._load(row)
        else:
            function, retryable = self._load(row)
            copy = option(row[4], "copy", False)
            if row[1] not in self._functions.classes:
                function = self._wrapped(item, function, row[4])
        if row[2] or item.values:
            return function, retryable, *self._arguments(item, copy)
        return function, retryable, (), {}

    def _wrapped(self, item: Item | Invocation, function: Callable[..., Any], options: tuple[Row, ...]) -> Callable[..., Any]:
        """What the caller wants run in the function's place."""
        named = option(options, "wrapper")
        if named is None:
            return function
        module, name, *texts = named
        made: Callable[..., Any] = getattr(importlib.import_module(module), name)(function, self._facts(item), *texts)
        return made

    def _arguments(self, item: Item | Invocation, copy: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return serialization.load_arguments(item.row[2], self._values(item, copy) if item.values else (), copy)

    def _values(self, item: Item | Invocation, copy: bool) -> list[Any]:
        if item.values.count(None) < 2:
            return self._loaded(item, copy)
        missing = [identifier for identifier, value in zip(item.row[3], item.values, strict=True) if value is None]
        with self._lock:  # Requested together: one at a time, each would cost a round trip.
            for identifier in missing:
                self._machine.references.add(identifier)
            self._machine.objects.want(missing)
        try:
            return self._loaded(item, copy)
        finally:
            self._machine.dropped.extend(missing)

    def _loaded(self, item: Item | Invocation, copy: bool) -> list[Any]:
        values = []
        for identifier, value in zip(item.row[3], item.values, strict=True):
            if value is None:
                values.append(self._fetched(identifier, copy))
            elif type(value) is tuple and type(item) is Invocation:
                copied = self._copies.take(identifier, value)
                values.append(self._fetched(identifier, copy) if copied is None else serialization.deserialize(copied, None, copy))
            elif type(value) is tuple:
                with self._lock:
                    self._machine.pins.add(identifier, value)
                    self._machine.pins.view(identifier)
                try:
                    data = self._view(value)
                except BaseException:  # Interrupts too: nobody else would release the view.
                    self._unview(identifier)
                    raise
                values.append(serialization.deserialize(data, partial(self._unview, identifier), copy))
            else:
                values.append(serialization.deserialize(value, None, copy))
        return values

    def _fetched(self, identifier: bytes, copy: bool) -> Any:
        """Fetch an argument that did not come with the row. The submitter holds it."""
        with self._lock:
            self._machine.references.add(identifier)
        try:
            outcome = self._get((identifier,), None)[0]
            if isinstance(outcome, bytes):
                return serialization.deserialize(outcome, None, copy)
            status, data, release = outcome
            if status != OK:
                raise task_errors.load_error(data) if status == ERROR else task_errors.load_failure(data)
            return serialization.deserialize(data, release, copy)
        finally:
            self._machine.dropped.append(identifier)

    # -- after it ran --

    def packed(self, item: Item | Invocation, value: Any) -> Ending:
        """Pack a result."""
        if item.row[0] in self._worker.abandoned:
            return FAILED, (), None
        try:
            return self._pack(item, value)
        except BaseException as error:  # The result's __reduce__ and iterators are user code, and may be interrupted.
            if isinstance(error, TaskInterrupt):
                self._shut()
            with self._lock:
                self._writes.abandon(item.row[0])  # Values before the failing one may be written already.
            if isinstance(error, FabricError) and not isinstance(error, SerializationError):
                facts = tuple(self._facts(item).items())
                text = f"what {self._functions.name_of(item)} returned has no place: {error}"
                return FAILED, (pack_failure(type(error).__name__, text, facts),), None
            return self.failed(item, error, None)

    def _pack(self, item: Item | Invocation, value: Any) -> Ending:
        row = item.row
        if type(item) is Invocation:
            name, count = self._functions.terms(item) if item.options else ("", 1)
        else:
            name, count = self._usual_terms[row[1]] if len(row) == 4 else self._functions.terms(item)
        if count == 1:
            fast = serialization.serialize_fast(value)
            if fast is not None and len(fast) <= self._inline_bytes:
                return OK, (fast,), None
            values: Sequence[Any] = (value,)
        elif count == 0:
            return OK, (), None
        else:
            if not isinstance(value, (tuple, list)) and hasattr(value, "__iter__") and not isinstance(value, (str, bytes, dict)):
                value = serialization.as_user(tuple, value)
            if not isinstance(value, (tuple, list)) or len(value) != count:
                got = f"{len(value)} values" if isinstance(value, (tuple, list)) else f"one {type(value).__name__}"
                wrong = ValueError(f"{name} declares num_returns={count} and returned {got}")
                if type(value) is not generated_values.YieldedItems or len(value) > count:
                    raise wrong
                value = generated_values.and_failures(value, self._raises(wrong, item), count)
            values = value
        name_value = call_value if type(item) is Invocation else object_id
        outputs: list[Any] = []
        contained: list[tuple[bytes, ...]] = []
        room = self._connection.config.row_bytes
        for index, each in enumerate(values):
            packed = serialization.serialize(each, f"what {name or self._functions.name_of(item)} returned")
            contained.append(packed.contained)
            outputs.append(self._writes.store(name_value(row[0], index), packed, room))
            room -= packed.size if type(outputs[-1]) is bytes else 0
        extra = (tuple(contained), ()) if any(contained) else None
        if extra is not None:
            with self._lock:
                self._machine.pass_on([identifier for refs in contained for identifier in refs])
        return OK, tuple(outputs), extra

    def failed(self, item: Item | Invocation, error: BaseException, retryable: Callable[[BaseException], bool] | None) -> Ending:
        """Pack a failure."""
        try:
            return self._failed(item, error, retryable)
        except TaskInterrupt:  # An error's text and pickle are user code, too.
            self._shut()
            return INTERRUPTED, (), None

    def _failed(self, item: Item | Invocation, error: BaseException, retryable: Callable[[BaseException], bool] | None) -> Ending:
        if isinstance(error, ActorExit):
            return self._exits.leave_for_good(item, "exit_actor")
        finish = None
        if type(error) is generated_values.Unfinished:
            finish, error = error.finish, error.error
        if self._worker.interrupted(item):
            return INTERRUPTED, (), None
        if type(item) is Invocation and isinstance(error, SystemExit):
            return self._exits.exit_process(item, error)
        status = RETRY if retryable is not None and not isinstance(error, SystemExit) and _asks(retryable, error) else ERROR
        if finish is not None and status == ERROR:
            return self.packed(item, finish(self._raises(error, item), self._functions.terms(item)[1]))
        return status, (self.error(error, item),), None

    def error(self, error: BaseException, item: Item | Invocation) -> bytes:
        """Pack an error with facts about the attempt."""
        facts = self._facts(item)
        try:
            payload, held = task_errors.pack_error(error, facts)
        except TaskInterrupt:
            raise
        except BaseException as other:  # The error's text or pickle raised what ends a program, such as KeyboardInterrupt.
            text = f"{facts['function']} raised {type(error).__name__}, whose text or pickle raised {type(other).__name__}"
            payload, held = task_errors.pack_error(SerializationError(text), facts)
        refs = refs_in(payload)
        if refs:
            with self._lock:
                self._machine.pass_on(refs)
            self._retained[item.row[0]] = held
        return payload

    def _shut(self) -> None:
        """Allow no interrupts: one may have preceded the line that does so."""
        fence = self._fences.mine
        fence.depth = fence.depth or 1

    def _raises(self, error: BaseException, item: Item | Invocation) -> generated_values.Raises:
        return generated_values.Raises(*task_errors.pack_error(error, self._facts(item)))

    def _facts(self, item: Item | Invocation) -> dict[str, Any]:
        name, node = self._functions.name_of(item), self._machine.node.hex()
        return {"function": name, "node": node, "pid": os.getpid(), "attempt": tries_of(item.attempt)}


class _Again:
    """Repeats a method with fresh ``arguments`` after such errors, at most ``limit`` times (-1: no limit)."""

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
        interface.check_process(error)
        if type(error) is generated_values.Unfinished:
            error = error.error
        if not self.left or not any(f"{kind.__module__}.{kind.__qualname__}" in self.kinds for kind in type(error).__mro__):
            return False
        self.left -= 1
        return True

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The method's result, or a coroutine for it."""
        while True:
            try:
                value = self.function(*args, **kwargs)
            except Exception as error:  # The method's options say which errors call it again.
                if not self._asks(error):
                    raise
            else:
                return self._awaited(value) if isinstance(value, Coroutine) else value  # A ref is a value, too.
            args, kwargs = self.arguments()

    async def _awaited(self, value: Coroutine[Any, Any, Any]) -> Any:
        while True:
            try:
                return await value
            except Exception as error:  # As above.
                if not self._asks(error):
                    raise
            args, kwargs = self.arguments()
            value = self.function(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Yield the method's values; a repeat skips those already yielded."""
        values = self.function(*args, **kwargs)
        if hasattr(values, "__aiter__"):
            return self._stream_in_loop(values)
        return self._stream(values) if hasattr(values, "__next__") else values

    def _stream(self, values: Iterator[Any]) -> Generator[Any, YieldStatistics]:
        known: list[YieldStatistics] = []
        """Statistics of each value yielded so far, in all attempts."""
        while True:
            try:
                with contextlib.ExitStack() as stack:
                    if hasattr(values, "close"):
                        stack.callback(values.close)
                    index, statistics = 0, None
                    while (value := resumed(values, statistics)) is not END:
                        if index == len(known):
                            known.append((yield value))
                        statistics = known[index]
                        index += 1
                return
            except Exception as error:  # As above.
                if not self._asks(error):
                    raise
            args, kwargs = self.arguments()
            values = self.function(*args, **kwargs)

    async def _stream_in_loop(self, values: AsyncIterator[Any]) -> AsyncGenerator[Any, YieldStatistics]:
        known: list[YieldStatistics] = []
        while True:
            index = 0
            try:
                async with contextlib.AsyncExitStack() as stack:
                    if hasattr(values, "aclose"):
                        stack.push_async_callback(values.aclose)
                    resume, statistics = values.asend if isinstance(values, AsyncGenerator) else None, None
                    while True:
                        try:
                            value = await (anext(values) if resume is None else resume(statistics))
                        except StopAsyncIteration:
                            return
                        if index == len(known):
                            known.append((yield value))
                        statistics = known[index]
                        index += 1
            except Exception as error:  # As above.
                if not self._asks(error):
                    raise
            args, kwargs = self.arguments()
            values = self.function(*args, **kwargs)


def never(error: BaseException) -> bool:
    """By default no error is retried."""
    return False


def _asks(retryable: Callable[[BaseException], bool], error: BaseException) -> bool:
    try:
        return bool(retryable(error))
    except Exception:  # The user's predicate failed. The task's own error is reported.
        return False
