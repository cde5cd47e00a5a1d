"""Generators that are ``async def``, as tasks and as methods, and what methods yield all at once. Real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually, failure, kill_daemon

import zfabric as zf

pytestmark = pytest.mark.usefixtures("shared_cluster")

STREAM: dict[str, Any] = {"num_returns": "streaming", "max_buffered": 3}


shared_cluster = one_cluster(autouse=False, config={"restart_backoff_max": 0.1})
"""Its daemon is restarted at once however often it dies."""


@zf.remote
def plus_one(x: int) -> int:
    return x + 1


@zf.remote(num_returns="streaming")
async def successors(n: int) -> AsyncIterator[int]:
    """Waits for another task before each value."""
    for index in range(n):
        yield await plus_one.remote(index)


@zf.remote(num_returns="streaming", max_buffered=3)
async def noted(path: str, n: int) -> AsyncIterator[int]:
    """Writes down what it yields."""
    note = Path(path)
    try:
        for index in range(n):
            with note.open("a") as file:
                file.write(f"{index} ")
            yield index
    except GeneratorExit:
        with note.open("a") as file:
            file.write("closed")
        raise


@zf.remote
class Sources:
    """Generators of both kinds, in one event loop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def numbers(self, n: int) -> AsyncIterator[int]:
        for index in range(n):
            await asyncio.sleep(0)
            yield index

    def plain(self, n: int) -> Iterator[int]:
        yield from range(n)

    async def large(self, n: int) -> AsyncIterator[Any]:
        for index in range(n):
            yield np.full(20_000, index)
            yield [zf.put(index)]

    async def until_asked(self, path: str) -> AsyncIterator[str]:
        try:
            yield "waiting"
            await self.asked.wait()
            yield "asked"
        except (GeneratorExit, asyncio.CancelledError) as error:
            Path(path).write_text(type(error).__name__)
            raise

    async def ask(self) -> None:
        self.asked.set()

    async def failing(self) -> AsyncIterator[int]:
        yield 1
        raise KeyError("said so")

    async def nothing(self) -> int:
        return 5


@zf.remote
class Plain:
    """An actor that runs one call at a time."""

    @zf.method(num_returns="dynamic")
    def halves(self, n: int) -> Iterator[Any]:
        while n:
            yield np.full(20_000, n)
            n //= 2

    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    def nothing(self) -> int:
        return 5


def values(refs: Any) -> list[Any]:
    return [zf.get(ref, timeout=PATIENCE) for ref in refs]


def written(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


# --- tasks --------------------------------------------------------------------------------------------------------------------------


def test_an_async_task_yields_and_waits_in_between() -> None:
    assert values(successors.remote(50)) == list(range(1, 51))
    assert [values(each) for each in successors.map([2, 0, 1])] == [[1, 2], [], [1]]
    assert values(zf.get(successors.options(num_returns="dynamic").remote(3), timeout=PATIENCE)) == [1, 2, 3]
    assert zf.get(successors.options(num_returns=3).remote(3), timeout=PATIENCE) == [1, 2, 3]


def test_many_producers_wait_for_their_consumers_in_one_worker(tmp_path: Path) -> None:
    """More than any pool has threads: each waits without one."""
    paths = [tmp_path / str(number) for number in range(100)]
    generators = [noted.remote(str(path), 10) for path in paths]
    for path in paths:
        eventually(lambda path=path: len(written(path)) == 3, "it fills what it may")
    for generator in reversed(generators):
        assert values(generator) == list(range(10))
    assert all(len(written(path)) == 10 for path in paths)


def test_an_async_producer_is_not_further_ahead_than_its_credit(tmp_path: Path) -> None:
    generator = noted.remote(str(tmp_path / "note"), 20)
    for taken in range(18):
        eventually(lambda taken=taken: len(written(tmp_path / "note")) == 3 + taken, "it goes on by one")
        assert zf.get(next(generator), timeout=PATIENCE) == taken


@pytest.mark.parametrize("how", ["close", "drop"])
def test_closing_ends_an_async_producer(tmp_path: Path, how: str) -> None:
    generator = noted.remote(str(tmp_path / "note"), 10**6)
    zf.get([next(generator), next(generator)], timeout=PATIENCE)
    if how == "close":
        generator.close()
    else:
        del generator
    eventually(lambda: written(tmp_path / "note")[-1] == "closed", "GeneratorExit is raised in it")


def test_async_producers_go_on_with_a_new_daemon() -> None:
    generator = successors.remote(60)
    kept = [next(generator) for _ in range(5)]
    kill_daemon()
    assert values([*kept, *generator]) == list(range(1, 61))


def test_functions_that_yield_nothing_cannot_stream() -> None:
    async def without_yield() -> None: ...

    with pytest.raises(zf.OptionError, match="without yield"):
        zf.remote(num_returns="streaming")(without_yield)
    with pytest.raises(zf.OptionError, match=r'"streaming".*"dynamic"'):
        successors.options(num_returns=1).remote(1)


def test_async_generator_functions_stream_by_default() -> None:
    def plain(n: int) -> Iterator[int]:
        yield from range(n)

    async def waits(n: int) -> AsyncIterator[int]:
        for index in range(n):
            yield index

    assert values(zf.remote(plain).remote(3)) == [0, 1, 2]
    assert values(zf.remote(max_retries=1)(waits).remote(3)) == [0, 1, 2]
    assert values(Plain.remote().count.remote(3)) == [0, 1, 2]
    assert values(Sources.remote().numbers.options(max_buffered=1).remote(3)) == [0, 1, 2]
    assert zf.get(zf.remote(plain).options(num_returns=3).remote(3), timeout=PATIENCE) == [0, 1, 2]


# --- methods ------------------------------------------------------------------------------------------------------------------------


def test_streams_of_an_async_actor() -> None:
    sources = Sources.remote()
    assert values(sources.numbers.options(**STREAM).remote(50)) == list(range(50))
    assert values(sources.plain.options(**STREAM).remote(50)) == list(range(50))
    assert zf.get(sources.numbers.options(num_returns=3).remote(3), timeout=PATIENCE) == [0, 1, 2]
    refs = list(sources.failing.options(**STREAM).remote())
    assert values(refs[:1]) == [1]
    assert isinstance(failure(refs[1]), KeyError)
    seen = values(sources.large.options(**STREAM).remote(5))
    assert [int(each[0]) for each in seen[::2]] == list(range(5))
    assert [zf.get(each[0]) for each in seen[1::2]] == list(range(5))


def test_other_calls_run_between_the_values(tmp_path: Path) -> None:
    sources = Sources.remote()
    generator = sources.until_asked.options(**STREAM).remote(str(tmp_path / "note"))
    full = sources.plain.options(**STREAM).remote(10)
    assert zf.get(next(generator), timeout=PATIENCE) == "waiting"
    zf.get(sources.ask.remote(), timeout=PATIENCE)
    assert zf.get(next(generator), timeout=PATIENCE) == "asked"
    assert values(full) == list(range(10))


def test_cancelling_reaches_a_producer_that_awaits(tmp_path: Path) -> None:
    sources, note = Sources.remote(), tmp_path / "note"
    generator = sources.until_asked.options(**STREAM).remote(str(note))
    zf.get(next(generator), timeout=PATIENCE)
    zf.cancel(generator)
    assert isinstance(failure(next(generator)), zf.TaskCancelledError)
    eventually(lambda: note.exists() and note.read_text() == "CancelledError", "it was awaiting")
    zf.get(sources.ask.remote(), timeout=PATIENCE)


def test_an_async_stream_is_read_in_another_event_loop() -> None:
    sources = Sources.remote()

    async def read() -> list[int]:
        return [await ref async for ref in sources.numbers.options(**STREAM).remote(20)]

    assert asyncio.run(read()) == list(range(20))


def test_a_coroutine_that_does_not_yield_is_an_error() -> None:
    (ref,) = Sources.remote().nothing.options(**STREAM).remote()
    error = failure(ref)
    assert isinstance(error, TypeError)
    assert "should yield" in str(error)


# --- all at once --------------------------------------------------------------------------------------------------------------------


def test_a_method_returns_all_yielded_values_at_once() -> None:
    plain = Plain.remote()
    refs = zf.get(plain.halves.remote(9), timeout=PATIENCE)
    assert len(refs) == 4
    assert [int(value[0]) for value in values(refs)] == [9, 4, 2, 1]
    assert values(zf.get(plain.count.options(num_returns="dynamic").remote(3), timeout=PATIENCE)) == [0, 1, 2]
    assert len(list(plain.halves.options(num_returns="streaming").remote(9))) == 4
    assert len(zf.get(plain.halves.options(num_returns=4).remote(9), timeout=PATIENCE)) == 4
    error = failure(plain.nothing.options(num_returns="dynamic").remote())
    assert isinstance(error, TypeError)
    assert "should yield" in str(error)


class ComesBack:
    """Raises after it has yielded, a given number of times."""

    def __init__(self) -> None:
        self.fails = 0

    def arm(self, fails: int) -> None:
        self.fails = fails

    @zf.method(retry_exceptions=[OSError], max_task_retries=2)
    def letters(self) -> Iterator[str]:
        yield "a"
        yield "b"
        self.fails -= 1
        if self.fails >= 0:
            raise OSError("not yet")
        yield "c"


class ComesBackInLoop(ComesBack):
    @zf.method(retry_exceptions=[OSError], max_task_retries=2)
    async def letters(self) -> AsyncIterator[str]:  # type: ignore[override]
        for letter in super().letters():
            await asyncio.sleep(0)
            yield letter


@pytest.mark.parametrize(("kind", "options"), [(ComesBack, {}), (ComesBack, {"max_concurrency": 2}), (ComesBackInLoop, {})])
def test_a_generator_method_is_retried(kind: type, options: dict[str, Any]) -> None:
    """What was yielded before is not given twice."""
    actor = zf.remote(**options)(kind).remote() if options else zf.remote(kind).remote()
    for call, read in (
        (actor.letters, values),
        (actor.letters.options(num_returns=3), values),
        (actor.letters.options(num_returns="dynamic"), lambda ref: values(zf.get(ref, timeout=PATIENCE))),
    ):
        zf.get(actor.arm.remote(2), timeout=PATIENCE)  # Calls of an actor with threads may overtake it.
        assert read(call.remote()) == ["a", "b", "c"]
        zf.get(actor.arm.remote(3), timeout=PATIENCE)
        *_, last = zf.get(refs, timeout=PATIENCE) if isinstance(refs := call.remote(), zf.ObjectRef) else refs
        assert isinstance(failure(last), OSError)


@pytest.mark.parametrize("made", [lambda: Sources.remote(), lambda: Plain.options(max_concurrency=2).remote()])
def test_other_processes_read_values_that_a_method_yielded(made: Callable[[], Any]) -> None:
    @zf.remote
    def total(found: Any) -> int:
        return sum(zf.get(list(found)))

    actor = made()
    method = actor.numbers if hasattr(actor, "numbers") else actor.count
    assert zf.get(total.remote(method.options(num_returns="dynamic").remote(10)), timeout=PATIENCE) == 45


class GivesOthers:
    """What it gives are iterators and awaitables that are neither generators nor coroutines."""

    @zf.method(num_returns="streaming", retry_exceptions=True, max_task_retries=1)
    def numbers(self) -> Iterator[int]:
        return iter([1, 2])

    @zf.method(retry_exceptions=True, max_task_retries=1)
    def ref(self) -> zf.ObjectRef[int]:
        return zf.put(3)


def test_retried_methods_return_the_same_kinds_of_values() -> None:
    actor = zf.remote(GivesOthers).remote()
    assert values(actor.numbers.remote()) == [1, 2]
    assert zf.get(zf.get(actor.ref.remote(), timeout=PATIENCE)) == 3
