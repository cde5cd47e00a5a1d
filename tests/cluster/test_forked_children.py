"""Children that user code forks in a worker: they end as the interpreter would, and the outcome of their parent counts."""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from faults import PATIENCE

import zfabric as zf
from zfabric.runtime import interface
from zfabric.util.multiprocessing import Pool


@pytest.fixture(scope="module", autouse=True)
def shared(shared_cluster: Any) -> Iterator[Any]:
    yield shared_cluster
    actor_of.cache_clear()
    if pool_of_one.cache_info().currsize:
        pool_of_one().terminate()
        pool_of_one.cache_clear()


def leave(how: str) -> str:
    """Leave the code of a child in one of the ways in which code is left."""
    if how == "exit":
        sys.exit(3)
    if how == "text":
        sys.exit("why it ends")
    if how == "raise":
        raise ValueError("of the child")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "_exit":
        os._exit(4)
    return "child"


CODES = {"exit": 3, "text": 1, "raise": 1, "interrupt": -signal.SIGINT, "_exit": 4, "return": 0}


def forked(how: str) -> Any:
    """Fork. In the child, leave; in the parent, return the child's exit code."""
    child = os.fork()
    return leave(how) if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Forks:
    def __init__(self, how: str = "") -> None:
        self.code = forked(how) if how else None

    def made(self) -> Any:
        return self.code

    def call(self, how: str) -> Any:
        return forked(how)

    def plain(self) -> Any:
        return forked("return")

    @zf.method(num_returns="streaming")
    def stream(self, how: str) -> Iterator[Any]:
        yield "first"
        yield forked(how)
        yield "last"


class AsyncForks:
    async def call(self, how: str) -> Any:
        return forked(how)

    async def awaits(self) -> Any:
        child = os.fork()
        await asyncio.sleep(0.001)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else "child"

    def plain(self, how: str) -> Any:
        return forked(how)

    @zf.method(num_returns="streaming")
    async def stream(self, how: str) -> AsyncIterator[Any]:
        yield "first"
        yield forked(how)
        yield "last"


class Unpickled:
    """A value that forks when it is unpickled."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        return forked, (self.how,)


class Pickled:
    """A value that forks when it is pickled."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        return int, (forked(self.how),)


def items(how: str) -> Iterator[Any]:
    yield "first"
    yield forked(how)


def streamed(refs: Any) -> list[Any]:
    return [zf.get(ref, timeout=PATIENCE) for ref in refs]


def as_task(how: str) -> Any:
    return zf.get(zf.remote(forked).options(max_retries=0).remote(how), timeout=PATIENCE)


def as_coroutine(how: str) -> Any:
    async def task() -> Any:
        return forked(how)

    return zf.get(zf.remote(task).options(max_retries=0).remote(), timeout=PATIENCE)


def as_stream(how: str) -> Any:
    first, code = streamed(zf.remote(items).options(num_returns="streaming").remote(how))
    assert first == "first"
    return code


def as_values(how: str) -> Any:
    first, code = zf.get(list(zf.remote(items).options(num_returns=2).remote(how)), timeout=PATIENCE)
    assert first == "first"
    return code


def as_argument(how: str) -> Any:
    return zf.get(zf.remote(lambda value: value).remote(Unpickled(how)), timeout=PATIENCE)


def as_result(how: str) -> Any:
    return zf.get(zf.remote(lambda: Pickled(how)).remote(), timeout=PATIENCE)


@functools.cache
def actor_of(kind: type, **options: Any) -> Any:
    return zf.remote(kind).options(num_cpus=0, **options).remote()


def as_call(how: str) -> Any:
    actor = actor_of(Forks)
    code = zf.get(actor.call.remote(how), timeout=PATIENCE)
    assert zf.get(actor.plain.remote(), timeout=PATIENCE) == 0
    assert streamed(actor.stream.remote(how)) == ["first", code, "last"]
    return code


def as_init(how: str) -> Any:
    return CODES[how] if how not in ("raise", "return") else zf.get(zf.remote(Forks).remote(how).made.remote(), timeout=PATIENCE)


def as_thread(how: str) -> Any:
    actor = actor_of(Forks, max_concurrency=2)
    code = zf.get(actor.call.remote(how), timeout=PATIENCE)
    assert streamed(actor.stream.remote(how)) == ["first", code, "last"]
    return code


def as_async_call(how: str) -> Any:
    actor = actor_of(AsyncForks)
    code = zf.get(actor.call.remote(how), timeout=PATIENCE)
    assert zf.get(actor.plain.remote(how), timeout=PATIENCE) == code
    assert streamed(actor.stream.remote(how)) == ["first", code, "last"]
    assert zf.get(actor.awaits.remote(), timeout=PATIENCE) == 1
    return code


def as_lightweight(how: str) -> Any:
    return zf.get(actor_of(Forks, lightweight=True).call.remote(how), timeout=PATIENCE)


def as_pool(how: str) -> Any:
    return CODES[how] if how not in ("raise", "return") else pool_of_one().apply(forked, (how,))


@functools.cache
def pool_of_one() -> Pool:
    return Pool(1)


WAYS = [
    as_task, as_coroutine, as_stream, as_values, as_argument, as_result, as_call, as_init, as_thread, as_async_call, as_lightweight, as_pool
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_forked_child_ends_as_the_interpreter_would(way: Callable[[str], Any]) -> None:
    assert {how: way(how) for how in CODES} == CODES
    assert zf.get(zf.remote(abs).remote(-1), timeout=PATIENCE) == 1


def test_a_forked_child_shows_its_own_frames_and_runs_its_exit_handlers() -> None:
    def task() -> str:
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.dup2(writing, 2)
            atexit.register(os.write, writing, b"at exit")
            threading.Thread(target=lambda: (time.sleep(0.05), os.write(writing, b"thread\n"))).start()
            raise ValueError("of the child")
        os.close(writing)
        with open(reading) as output:
            return output.read()

    shown = zf.get(zf.remote(task).remote(), timeout=PATIENCE)
    assert "in task\n" in shown
    assert f"{os.sep}zfabric{os.sep}" not in shown
    assert shown.endswith("ValueError: of the child\nthread\nat exit")


@zf.remote
def identity(value: Any) -> Any:
    return value


def test_a_forked_child_cannot_use_the_cluster_and_hurts_nobody() -> None:
    def task() -> tuple[int, str, int, int]:
        large, small = zf.put(bytes(3_000_000)), identity.remote(4)
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            uses = [lambda: zf.get(small), lambda: zf.put(1), lambda: identity.remote(1), lambda: zf.wait([small]), lambda: zf.get(large)]
            for use in uses:
                try:
                    use()
                except zf.NotInitializedError as error:
                    os.write(writing, b"." if "forked" in str(error) else b"?")
            del large, small
            gc.collect()
            return 0, "of the child", 0, 0
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(writing)
        with open(reading) as output:
            return code, output.read(), zf.get(small), len(zf.get(large))

    assert zf.get(zf.remote(task).remote(), timeout=PATIENCE) == (0, ".....", 4, 3_000_000)


def test_children_that_nobody_waits_for_change_no_outcome() -> None:
    def task(number: int) -> Any:
        if os.fork() == 0:
            if number % 3 == 0 and os.fork() == 0:
                sys.exit(2)
            if number % 3 == 1:
                raise RuntimeError("of the child")
            return bytes(3_000_000)
        return number

    class Beside:
        def call(self, number: int) -> Any:
            return task(number)

        def threads(self) -> list[int]:
            returned = []
            thread = threading.Thread(target=lambda: os.fork() and returned.append(1))
            thread.start()
            thread.join()
            return returned

    class Loop:
        async def call(self, number: int) -> Any:
            return task(number)

    numbers = list(range(30))
    beside, loop = zf.remote(Beside).options(max_concurrency=3).remote(), zf.remote(Loop).remote()
    refs = [make(number) for make in (zf.remote(task).remote, beside.call.remote, loop.call.remote) for number in numbers]
    assert zf.get(refs, timeout=PATIENCE) == numbers * 3
    assert zf.get(beside.threads.remote(), timeout=PATIENCE) == [1]


def test_a_child_forked_where_an_error_is_handled_has_returned() -> None:
    def outer() -> Any:
        try:
            raise ValueError("is handled while the inner task runs on top of this one")
        except ValueError:
            return zf.get(zf.remote(forked).remote("return"), timeout=PATIENCE)

    assert zf.get(zf.remote(outer).remote(), timeout=PATIENCE) == 0


def test_processes_and_pools_of_multiprocessing_work_in_tasks() -> None:
    def task() -> tuple[int, int | None, list[int]]:
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=lambda: (queue.put(7), sys.exit(3)))
        process.start()
        found = queue.get()
        process.join()
        with context.Pool(2) as pool:
            return found, process.exitcode, pool.map(abs, [-1, 2])

    assert zf.get(zf.remote(task).remote(), timeout=PATIENCE) == (7, 3, [1, 2])


def test_a_child_of_the_driver_does_not_wait_for_a_lock_that_another_thread_held() -> None:
    client: Any = interface.current()
    ref = identity.remote(1)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with client.connection.lock:
            held.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        try:
            client.connection.lock.acquire()
        except zf.NotInitializedError:
            os._exit(5)
        finally:
            os._exit(6)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert zf.get(ref, timeout=PATIENCE) == 1
