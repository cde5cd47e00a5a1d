"""Making a stream: running a generator of the user's, value by value, no further ahead of its consumer than it may be.

Values wait in the generator: it is resumed only when there is room for what comes next. While it is not, the CPU of a task that runs on its
own is lent, since whoever is to consume the stream may need just that; in an event loop the others go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from zfabric.adapters import serialization
from zfabric.machines.worker import Invocation, Item
from zfabric.protocol.ids import object_id
from zfabric.protocol.options import STREAM_VALUES_MAX

if TYPE_CHECKING:
    from zfabric.runtime.running import RunningWorker

_END = object()


class Production:
    """A stream that is being made: how far it is, and how far it may go."""

    def __init__(self, worker: RunningWorker, item: Item | Invocation, ahead: int) -> None:
        self.worker = worker
        self.item = item
        self.yields = worker.worker.yields
        self.count = 0
        """How many values have been said."""
        with worker.lock:
            self.yields.begin(item.row[0], ahead or worker.config.stream_buffered)

    def may_go_on(self) -> bool:
        """Whether there is room for the next value, or nobody wants it."""
        return self.yields.may_go_on(self.item.row[0], self.count)

    @property
    def closed(self) -> bool:
        """Whether nobody wants more."""
        return self.yields.closed(self.item.row[0])

    async def room(self) -> None:
        """Wait, in an event loop, until it may go on."""
        import asyncio

        task_id, news = self.item.row[0], asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
        try:
            while not self.may_go_on():
                news.clear()
                with self.worker.lock:
                    self.yields.waiting[task_id] = tell
                    self.worker.pump_aside()
                if not self.may_go_on():
                    await news.wait()
        finally:
            self.yields.waiting.pop(task_id, None)

    def say(self, value: Any) -> None:
        """The next value."""
        worker, row = self.worker, self.item.row
        name = worker.name_of(self.item)
        if self.count == STREAM_VALUES_MAX:
            raise ValueError(f"{name} has yielded {self.count} values, the most that a stream can have")
        packed = serialization.serialize(value, f"what {name} yielded")
        stored = worker.store(object_id(row[0], self.count + 1), packed)
        worker.yielded((row[0], self.item.attempt, self.count, stored, packed.contained))
        self.count += 1

    def end(self) -> int:
        """There are no more; how many there were."""
        self.worker.yielded((self.item.row[0], self.item.attempt, self.count, None, ()))
        return self.count

    def values(self, produced: Any) -> Iterator[Any]:
        """What a call returned, as an iterator."""
        if not hasattr(produced, "__iter__") or isinstance(produced, (str, bytes, dict)):
            name = self.worker.name_of(self.item)
            raise TypeError(
                f"{name} declares num_returns='streaming' and returned one {type(produced).__name__}: it should yield its values"
            )
        return iter(produced)


def produce(worker: RunningWorker, item: Item | Invocation, produced: Any, ahead: int) -> int:
    """Yield all values; how many there are. Raises what the user's code raises."""
    stream = Production(worker, item, ahead)
    source = stream.values(produced)
    try:
        while True:
            if not stream.may_go_on():
                worker.wait_for((), stream.may_go_on, None, False, 0)
            if stream.closed:
                break
            value = worker.as_user(next, source, _END)
            if value is _END:
                break
            stream.say(value)
            del value
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            worker.as_user(close)  # GeneratorExit, where it has not come to its end
    return stream.end()


async def produce_in_loop(worker: RunningWorker, item: Item | Invocation, produced: Any, ahead: int) -> int:
    """The same in an event loop, of an async generator or a plain one; others run while it waits."""
    stream = Production(worker, item, ahead)
    source = aiter(produced) if hasattr(produced, "__aiter__") else _in_turns(stream.values(produced))
    try:
        while True:
            await stream.room()
            if stream.closed:
                break
            value = await anext(source, _END)
            if value is _END:
                break
            stream.say(value)
            del value
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
    return stream.end()


async def _in_turns(values: Iterator[Any]) -> AsyncIterator[Any]:
    """A plain iterator in an event loop: between its values others have their turn."""
    import asyncio

    try:
        for value in values:
            yield value
            await asyncio.sleep(0)
    finally:
        close = getattr(values, "close", None)
        if close is not None:
            close()
