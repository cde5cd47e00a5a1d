"""Actors whose ``__init__`` is ``async def``, and what errors and streams say about actors and values."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from faults import PATIENCE, failure

import zfabric as zf

pytestmark = pytest.mark.usefixtures("shared_cluster")


class Opened:
    """Has what its ``__init__`` awaited, and a task that goes on beside its methods."""

    async def __init__(self, name: str, *, fails: bool = False) -> None:  # type: ignore[misc]
        self.name = name
        self.beats = 0
        self.loop = asyncio.get_running_loop()
        self.woken = asyncio.Event()
        self.beating = asyncio.create_task(self._beat())
        await asyncio.sleep(0)
        if fails:
            raise OSError(f"{name} cannot be opened")
        self.context = zf.get_runtime_context().get_actor_id()

    async def _beat(self) -> None:
        while True:
            self.beats += 1
            self.woken.set()
            await asyncio.sleep(0.001)

    async def look(self) -> tuple[str, bool, bool]:
        self.woken.clear()
        await self.woken.wait()
        return self.name, asyncio.get_running_loop() is self.loop, self.context == zf.get_runtime_context().get_actor_id()

    def plain(self) -> str:
        return self.name


class OnlyInit:
    async def __init__(self) -> None:  # type: ignore[misc]
        await asyncio.sleep(0)
        self.thread = threading.current_thread().name

    def where(self) -> str:
        return self.thread


class Child(Opened):
    async def __init__(self, name: str) -> None:  # type: ignore[misc]
        await super().__init__(name + "'s child")  # type: ignore[misc]

    def __new__(cls, name: str) -> Child:
        made = super().__new__(cls)
        made.newly = name
        return made

    newly: str

    def made_of(self) -> str:
        return self.newly


@pytest.mark.parametrize(
    "options", [{}, {"max_concurrency": 2}, {"max_concurrency": 1_000_000}, {"checkpoint_every": 2, "max_restarts": 1}]
)
def test_an_async_init_runs_before_the_first_call_in_the_loop_of_the_actor(options: dict[str, Any]) -> None:
    if "checkpoint_every" in options:
        actor = zf.remote(OnlyInit).options(**options).remote()
        assert zf.get(actor.where.remote(), timeout=PATIENCE) == "MainThread"
        return
    actor = zf.remote(Opened).options(**options).remote("file") if options else zf.remote(Opened).remote("file")
    assert zf.get([actor.look.remote(), actor.plain.remote()], timeout=PATIENCE) == [("file", True, True), "file"]
    child = zf.remote(Child).remote("file")
    assert zf.get([child.plain.remote(), child.made_of.remote()], timeout=PATIENCE) == ["file's child", "file"]
    assert zf.get(child.look.remote(), timeout=PATIENCE)[1:] == (True, True)


def test_an_async_init_that_raises_or_is_stopped_ends_the_actor() -> None:
    error = failure(zf.remote(Opened).remote("file", fails=True).plain.remote())
    assert isinstance(error, zf.ActorDiedError)
    assert isinstance(error.cause, OSError)
    assert (error.actor_init_failed, error.preempted) == (True, False)

    class Endless:
        async def __init__(self, entered: Any) -> None:  # type: ignore[misc]
            await entered.set.remote()
            await asyncio.Event().wait()

        def method(self) -> None:
            pass

    class Entered:
        def __init__(self) -> None:
            self.event = asyncio.Event()

        async def set(self) -> None:
            self.event.set()

        async def wait(self) -> None:
            await self.event.wait()

    entered = zf.remote(Entered).options(num_cpus=0).remote()
    actor = zf.remote(Endless).remote(entered)
    call = actor.method.remote()
    zf.get(entered.wait.remote(), timeout=PATIENCE)
    zf.kill(actor)
    error = failure(call)
    assert isinstance(error, zf.ActorDiedError)
    assert (error.actor_init_failed, error.preempted) == (False, False)


def test_lightweight_actors_have_no_async_init() -> None:
    with pytest.raises(zf.OptionError, match="async def"):
        zf.remote(Opened).options(lightweight=True)


class Source:
    def __init__(self) -> None:
        self.fails = 1

    @zf.method(retry_exceptions=[OSError], max_task_retries=1)
    def values(self, count: int) -> Iterator[Any]:
        sizes = []
        for number in range(count):
            statistics = yield bytes(number * 1000)
            sizes.append((statistics.size_bytes > number * 1000, statistics.object_creation_dur_s >= 0))
            if number == 1 and self.fails:
                self.fails -= 1
                raise OSError("once")
        yield sizes


class AsyncSource(Source):
    @zf.method(retry_exceptions=[OSError], max_task_retries=1)
    async def values(self, count: int) -> AsyncIterator[Any]:  # type: ignore[override]
        sizes = []
        for number in range(count):
            statistics = yield bytes(number * 1000)
            sizes.append((statistics.size_bytes > number * 1000, statistics.object_creation_dur_s >= 0))
            if number == 1 and self.fails:
                self.fails -= 1
                raise OSError("once")
        yield sizes


def test_yield_returns_how_the_value_became_an_object() -> None:
    """In tasks, methods and event loops; a repeated method gets those of the first time."""

    @zf.remote
    def blocks(count: int) -> Iterator[Any]:
        sizes = []
        for number in range(count):
            statistics = yield bytes(number * 100_000)
            sizes.append((statistics.size_bytes > number * 100_000, statistics.object_creation_dur_s > 0))
        yield sizes

    @zf.remote
    async def in_loop(count: int) -> AsyncIterator[Any]:
        sizes = []
        for number in range(count):
            statistics = yield number
            sizes.append((statistics.size_bytes > 0, statistics.object_creation_dur_s >= 0))
        yield sizes

    for stream in (blocks.remote(3), in_loop.remote(3)):
        *_, last = stream
        assert zf.get(last, timeout=PATIENCE) == [(True, True)] * 3
    for kind in (Source, AsyncSource):
        *_, last = zf.remote(kind).remote().values.remote(3)
        assert zf.get(last, timeout=PATIENCE) == [(True, True)] * 3
    *_, last = zf.remote(Source).options(max_concurrency=2).remote().values.remote(3)
    assert zf.get(last, timeout=PATIENCE) == [(True, True)] * 3


def test_iterators_that_are_no_generators_stream_as_before() -> None:
    class Sends:
        """Has a ``send`` of its own, which is not a generator's."""

        def __init__(self) -> None:
            self.left = 3

        def __iter__(self) -> Sends:
            return self

        def __next__(self) -> int:
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

        def send(self) -> None:
            raise AssertionError("nobody calls this")

    def within(count: int) -> Iterator[Any]:
        yield from range(count)
        statistics = yield "own"
        yield statistics.size_bytes > 0
        yield from deeper()

    def deeper() -> Iterator[Any]:
        yield from Sends()

    nested = zf.remote(within).remote(2)
    assert [zf.get(ref, timeout=PATIENCE) for ref in nested] == [0, 1, "own", True, 2, 1, 0]
    stream = zf.remote(lambda: Sends()).options(num_returns="streaming").remote()
    assert [zf.get(ref, timeout=PATIENCE) for ref in stream] == [2, 1, 0]
