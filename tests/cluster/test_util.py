"""``zfabric.util``: pools of actors, and a queue that processes share."""

from __future__ import annotations

import asyncio
import os
import queue
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually, failure

import zfabric as zf
from zfabric import api
from zfabric.util import ActorPool
from zfabric.util.queue import Empty, Full, Queue

shared = one_cluster()


@zf.remote
class Doubler:
    def double(self, value: int) -> int:
        if value == 13:
            raise ValueError("unlucky")
        return 2 * value

    def when(self, path: str, value: int) -> int:
        while path and not os.path.exists(path):
            time.sleep(0.002)
        return value

    def pid(self) -> int:
        return os.getpid()


def double(actor: Any, value: int) -> Any:
    return actor.double.remote(value)


def when(actor: Any, work: tuple[str, int]) -> Any:
    return actor.when.remote(*work)


@pytest.fixture
def pool() -> ActorPool:
    return ActorPool([Doubler.remote(), Doubler.remote()])


# --- pools --------------------------------------------------------------------------------------------------------------------


def test_map_keeps_the_order_and_uses_every_actor(pool: ActorPool) -> None:
    assert list(pool.map(double, range(20, 70))) == [2 * value for value in range(20, 70)]
    assert len(set(pool.map(lambda actor, _: actor.pid.remote(), range(50)))) == 2
    assert list(pool.map(double, [])) == []


def test_map_unordered_returns_results_as_they_come(pool: ActorPool, tmp_path: Path) -> None:
    """One actor is held up; the other does all of the rest, and nothing waits for the first."""
    go = tmp_path / "go"
    results = pool.map_unordered(when, [(str(go), 0), *(("", value) for value in range(1, 20))])
    assert [next(results) for _ in range(19)] == list(range(1, 20))
    go.touch()
    assert list(results) == [0]


def test_an_idle_actor_gets_work_although_its_result_is_not_the_next(pool: ActorPool, tmp_path: Path) -> None:
    go, mark = tmp_path / "go", tmp_path / "mark"
    results = pool.map(mark_or_wait, [(str(go), ""), ("", ""), ("", ""), ("", str(mark))])
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0.1)
    eventually(lambda: (pool.has_free(), mark.exists())[1], "the last piece of work was done")
    go.touch()
    assert len(list(results)) == 4


def mark_or_wait(actor: Any, work: tuple[str, str]) -> Any:
    if work[1]:
        Path(work[1]).touch()
    return actor.when.remote(work[0], 0)


def test_submit_and_get_next(pool: ActorPool) -> None:
    assert not pool.has_next()
    with pytest.raises(StopIteration):
        pool.get_next()
    with pytest.raises(StopIteration):
        pool.get_next_unordered()
    for value in (1, 13, 3):
        pool.submit(double, value)
    assert pool.has_next()
    assert pool.get_next() == 2
    with pytest.raises(ValueError, match="unlucky"):
        pool.get_next()
    assert pool.get_next() == 6
    assert not pool.has_next()


def test_calls_with_several_values() -> None:
    @zf.remote
    class Splits:
        @zf.method(num_returns=2)
        def split(self, number: int) -> tuple[int, int]:
            return divmod(number, 3)

    pool = ActorPool([Splits.remote(), Splits.remote()])
    split = lambda actor, number: actor.split.remote(number)  # noqa: E731 - as it is written where pools are used
    assert list(pool.map(split, range(5))) == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    assert sorted(pool.map_unordered(split, [7, 8])) == [[2, 1], [2, 2]]


def test_ordered_and_unordered_results_do_not_mix(pool: ActorPool) -> None:
    for value in range(3):
        pool.submit(double, value)
    assert pool.get_next_unordered() in (0, 2)
    with pytest.raises(ValueError, match="cannot follow get_next_unordered"):
        pool.get_next()
    while pool.has_next():
        pool.get_next_unordered()
    pool.submit(double, 7)
    assert pool.get_next() == 14


def test_a_result_that_takes_too_long_may_be_skipped(pool: ActorPool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    pool.submit(when, (str(go), 1))
    pool.submit(when, ("", 2))
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0, ignore_if_timedout=True)
    assert pool.get_next() == 2
    assert not pool.has_next()
    with pytest.raises(StopIteration):
        pool.get_next()
    go.touch()
    eventually(lambda: pool.pop_idle() is not None, "one actor is free")
    eventually(lambda: pool.pop_idle() is not None, "so is the other")


def test_actors_are_added_and_removed(pool: ActorPool) -> None:
    first = pool.pop_idle()
    assert first is not None
    assert pool.has_free()
    second = pool.pop_idle()
    assert not pool.has_free()
    assert pool.pop_idle() is None
    pool.submit(double, 4)
    pool.push(second)
    assert pool.get_next() == 8
    with pytest.raises(ValueError, match="in this pool already"):
        pool.push(second)
    pool.push(first)
    assert list(pool.map(double, [1, 2])) == [2, 4]


def test_a_function_without_a_call_and_an_empty_pool_are_errors(pool: ActorPool) -> None:
    with pytest.raises(TypeError, match="is to return the ref of a call"):
        list(pool.map(lambda actor, value: value, [1, 2]))
    assert list(pool.map(double, [1, 2])) == [2, 4], "and the actors are as free as before"
    nobody = ActorPool([])
    nobody.submit(double, 1)
    with pytest.raises(ValueError, match="no actor"):
        nobody.get_next()
    with pytest.raises(ValueError, match="no actor"):
        nobody.get_next_unordered(timeout=1)


# --- queues -------------------------------------------------------------------------------------------------------------------


def test_first_in_first_out() -> None:
    items = Queue()
    for number in range(100):
        items.put(number)
    assert len(items) == items.size() == items.qsize() == 100
    assert [items.get(timeout=PATIENCE) for _ in range(100)] == list(range(100))
    assert items.empty()
    assert not items.full()


def test_a_queue_that_is_empty_or_full() -> None:
    items = Queue(maxsize=2)
    with pytest.raises(Empty):
        items.get_nowait()
    with pytest.raises(queue.Empty):
        items.get(timeout=0.01)
    items.put_nowait(1)
    items.put(2)
    assert items.full()
    with pytest.raises(Full):
        items.put_nowait(3)
    with pytest.raises(queue.Full):
        items.put(3, timeout=0.01)
    assert [items.get(), items.get()] == [1, 2], "what was not put in time is not there"
    with pytest.raises(ValueError, match="non-negative"):
        items.get(timeout=-1)


def test_a_queue_with_a_wrong_maxsize_is_refused() -> None:
    for wrong in ("10", None, 1.5, True):
        with pytest.raises(TypeError, match="maxsize is a number of items"):
            Queue(wrong)  # type: ignore[arg-type]


def test_batches_are_all_or_nothing() -> None:
    items = Queue(maxsize=4)
    items.put_nowait_batch([1, 2, 3])
    with pytest.raises(Full, match="cannot add 2 items to a queue with 3, of at most 4"):
        items.put_nowait_batch((4, 5))
    with pytest.raises(Empty, match="cannot take 4 items from a queue with 3"):
        items.get_nowait_batch(4)
    assert items.get_nowait_batch(2) == [1, 2]
    assert items.get_nowait_batch(1) == [3]
    with pytest.raises(TypeError):
        items.put_nowait_batch(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        items.get_nowait_batch("two")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        items.get_nowait_batch(-1)


@zf.remote
def produce(items: Queue, name: int, count: int) -> None:
    for index in range(count):
        items.put((name, index))


@zf.remote
def consume(items: Queue, count: int) -> list[Any]:
    return [items.get() for _ in range(count)]


def test_processes_share_a_queue_with_little_room() -> None:
    """Producers wait for room, consumers for items, and none of them for ever."""
    items = Queue(maxsize=3)
    producers = [produce.remote(items, name, 40) for name in range(2)]
    consumers = [consume.remote(items, 40) for _ in range(2)]
    got = [pair for taken in zf.get(consumers, timeout=PATIENCE) for pair in taken]
    zf.get(producers, timeout=PATIENCE)
    assert sorted(got) == [(name, index) for name in range(2) for index in range(40)]
    for taken in zf.get(consumers):
        for name in range(2):
            mine = [index for producer, index in taken if producer == name]
            assert mine == sorted(mine)


def test_large_items() -> None:
    items = Queue()
    items.put(np.arange(500_000))
    assert items.get(timeout=PATIENCE).sum() == sum(range(500_000))


def test_a_queue_in_an_event_loop() -> None:
    items = Queue(maxsize=1)

    async def both() -> list[int]:
        async def put() -> None:
            for number in range(20):
                await items.put_async(number)

        putting = asyncio.ensure_future(put())
        got = [await items.get_async() for _ in range(20)]
        await putting
        with pytest.raises(Empty):
            await items.get_async(block=False)
        await items.put_async(1)
        with pytest.raises(Full):
            await items.put_async(2, timeout=0.01)
        return got

    assert asyncio.run(asyncio.wait_for(both(), PATIENCE)) == list(range(20))


def test_a_cancelled_get_takes_no_item(monkeypatch: pytest.MonkeyPatch) -> None:
    items = Queue()
    called_off = []
    cancel = zf.cancel
    monkeypatch.setattr(api, "cancel", lambda ref: (called_off.append(ref), cancel(ref)))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(items.get_async(), 0.1)

    asyncio.run(give_up())
    assert isinstance(failure(called_off[0]), zf.TaskCancelledError)
    items.put("still there")
    assert items.get(timeout=PATIENCE) == "still there"


def test_shutdown_ends_the_actor() -> None:
    items = Queue(actor_options={"name": "the queue's actor"})
    items.put(1)
    items.shutdown()
    items.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        items.get()
    eventually(lambda: not exists("the queue's actor"), "the actor has ended")


def exists(name: str) -> bool:
    try:
        return zf.get_actor(name) is not None
    except zf.ActorNotFoundError:
        return False


def test_rays_names_of_the_utilities() -> None:
    assert zf.util.ActorPool is ActorPool
    assert zf.util.queue.Queue is Queue
    with pytest.raises(AttributeError):
        zf.util.nothing  # noqa: B018
