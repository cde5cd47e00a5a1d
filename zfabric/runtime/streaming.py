"""Produces streams: runs a user's generator, at most an allowed number of values ahead of the consumer.

Without room for a value, a task waits and lends its CPU; in a loop, other coroutines run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from functools import partial
from typing import Any

from zfabric.adapters import serialization
from zfabric.adapters.generated_values import END, YieldStatistics, resumed
from zfabric.machines.worker import Invocation, Item
from zfabric.protocol.ids import object_id
from zfabric.protocol.options import STREAM_VALUES_MAX, option
from zfabric.runtime.arena_access import UnreportedWrites
from zfabric.runtime.client import WaitFor
from zfabric.runtime.connection import clock
from zfabric.runtime.functions import LoadedFunctions
from zfabric.runtime.interrupts import Interrupter
from zfabric.runtime.reporting import Reporter
from zfabric.runtime.worker_connection import WorkerConnection


class StreamProducer:
    """Runs what a task or call returned, if it is a stream."""

    def __init__(
        self,
        connection: WorkerConnection,
        functions: LoadedFunctions,
        writes: UnreportedWrites,
        interrupter: Interrupter,
        reporter: Reporter,
        wait_for: WaitFor,
    ) -> None:
        self.connection = connection
        self.worker = connection.worker
        self.functions = functions
        self.writes = writes
        self.reporter = reporter
        self._interrupter = interrupter
        self._wait_for = wait_for

    def streamed(self, item: Item | Invocation, value: Any) -> Any:
        """Return ``value``, or produce it as a stream and return its number of values."""
        ahead = self._ahead(item)
        return value if ahead is None else self._produce(item, value, ahead)

    async def streamed_in_loop(self, item: Item | Invocation, value: Any) -> Any:
        """Do as ``streamed``, in a loop, also of a coroutine or async generator."""
        import asyncio  # Workers without an event loop start sooner without it.

        if isinstance(value, Coroutine) or asyncio.isfuture(value):
            value = await value
        ahead = self._ahead(item)
        return value if ahead is None else await self._produce_in_loop(item, value, ahead)

    def _ahead(self, item: Item | Invocation) -> int | None:
        """How far a stream may be ahead (0: as configured); None without a stream."""
        if type(item) is Invocation:
            return option(item.options, "stream") if item.options else None
        ahead = self.functions.streams.get(item.row[1])
        return option(item.row[4], "stream", ahead) if ahead is not None and len(item.row) > 4 else ahead

    def _produce(self, item: Item | Invocation, produced: Any, ahead: int) -> int:
        """Send all values; return their number. Raises what user code raises."""
        stream = Production(self, item, ahead)
        source = stream.values(produced)
        statistics = None
        run_as_user = self._interrupter.run_as_user
        try:
            while True:
                if not stream.may_go_on():
                    self._wait_for((), stream.may_go_on, None, False, 0)
                if stream.closed:
                    break
                value = run_as_user(resumed, source, statistics)
                if value is END:
                    break
                statistics = stream.send(value)
                del value
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                run_as_user(close)  # It raises GeneratorExit in an unfinished generator.
        return stream.end()

    async def _produce_in_loop(self, item: Item | Invocation, produced: Any, ahead: int) -> int:
        stream = Production(self, item, ahead)
        source = aiter(produced) if hasattr(produced, "__aiter__") else _in_turns(stream.values(produced))
        resume, statistics = source.asend if isinstance(source, AsyncGenerator) else None, None
        try:
            while True:
                await stream.room()
                if stream.closed:
                    break
                try:
                    value = await (anext(source) if resume is None else resume(statistics))
                except StopAsyncIteration:
                    break
                statistics = stream.send(value)
                del value
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()
        return stream.end()


class Production:
    """A stream's progress and permission."""

    def __init__(self, producer: StreamProducer, item: Item | Invocation, ahead: int) -> None:
        self.producer = producer
        self.connection = producer.connection
        self.item = item
        self.yields = producer.worker.yields
        self.count = 0
        with self.connection.lock:
            self.yields.begin(item.row[0], ahead or self.connection.config.stream_buffered)

    def may_go_on(self) -> bool:
        """Whether there is room, or no consumer."""
        return self.yields.may_go_on(self.item.row[0], self.count)

    @property
    def closed(self) -> bool:
        """Whether no consumer is left."""
        return self.yields.closed(self.item.row[0])

    async def room(self) -> None:
        """Wait in a loop for room."""
        import asyncio

        task_id, news = self.item.row[0], asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
        try:
            while not self.may_go_on():
                news.clear()
                with self.connection.lock:
                    self.yields.waiting[task_id] = tell
                    self.connection.pump_aside()
                if not self.may_go_on():
                    await news.wait()
        finally:
            self.yields.waiting.pop(task_id, None)

    def send(self, value: Any) -> YieldStatistics:
        """Send the next value."""
        began = clock()
        producer, row = self.producer, self.item.row
        name = producer.functions.name_of(self.item)
        if self.count == STREAM_VALUES_MAX:
            raise ValueError(f"{name} has yielded {self.count} values, the most that a stream can have")
        packed = serialization.serialize(value, f"what {name} yielded")
        stored = producer.writes.store(object_id(row[0], self.count + 1), packed)
        producer.reporter.send_yield((row[0], self.item.attempt, self.count, stored, packed.contained))
        self.count += 1
        return YieldStatistics(clock() - began, packed.size)

    def end(self) -> int:
        """End the stream; return its number of values."""
        self.producer.reporter.send_yield((self.item.row[0], self.item.attempt, self.count, None, ()))
        return self.count

    def values(self, produced: Any) -> Iterator[Any]:
        """The result as an iterator. Raises TypeError."""
        if not hasattr(produced, "__iter__") or isinstance(produced, (str, bytes, dict)):
            name = self.producer.functions.name_of(self.item)
            raise TypeError(
                f"{name} declares num_returns='streaming' and returned one {type(produced).__name__}: it should yield its values"
            )
        return iter(produced)


async def _in_turns(values: Iterator[Any]) -> AsyncIterator[Any]:
    """Let other coroutines run between values."""
    import asyncio

    statistics = None
    try:
        while (value := resumed(values, statistics)) is not END:
            statistics = yield value
            await asyncio.sleep(0)  # Other coroutines run.
    finally:
        close = getattr(values, "close", None)
        if close is not None:
            close()
