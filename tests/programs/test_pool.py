"""``zfabric.util.multiprocessing``: the pool of the standard library, over the cluster."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually

import zfabric as zf
from zfabric.util.multiprocessing import Pool, TimeoutError

shared = one_cluster()


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


def square(number: int) -> int:
    if number == 13:
        raise ValueError("unlucky")
    return number * number


def when(path: str) -> str:
    while path and not os.path.exists(path):
        time.sleep(0.002)
    return path


def leave() -> None:
    os._exit(1)


def test_calls_and_maps(pool: Pool) -> None:
    assert pool.map(square, range(2, 12)) == [number * number for number in range(2, 12)]
    assert pool.map(square, []) == []
    assert pool.starmap(pow, [(2, 3), (3, 2)], chunksize=1) == [8, 9]
    assert pool.apply(int, ("ff",), {"base": 16}) == 255
    assert pool.apply(lambda: 5) == 5


def test_results_that_are_pending(pool: Pool, tmp_path: Path) -> None:
    go, notified = tmp_path / "go", threading.Event()
    later = pool.apply_async(when, (str(go),), callback=lambda _: notified.set())
    assert not later.ready()
    with pytest.raises(ValueError, match="not here yet"):
        later.successful()
    with pytest.raises(TimeoutError):
        later.get(timeout=0.01)
    go.touch()
    assert later.get(PATIENCE) == str(go)
    assert later.successful()
    assert notified.is_set()


def test_errors(pool: Pool) -> None:
    notified: list[BaseException] = []
    later = pool.map_async(square, range(20), error_callback=notified.append)
    with pytest.raises(ValueError, match="unlucky"):
        later.get(PATIENCE)
    assert not later.successful()
    assert len(notified) == 1
    with pytest.raises(zf.SerializationError):
        pool.apply(square, (threading.Lock(),))
    with pytest.raises(zf.ActorDiedError):
        pool.apply(leave)
    assert pool.map(square, range(6)) == [0, 1, 4, 9, 16, 25], "another process has taken its place"


def test_imap_reads_its_iterable_as_results_are_taken(pool: Pool) -> None:
    results = pool.imap(square, itertools.count(), chunksize=2)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    assert list(pool.imap(square, range(3))) == [0, 1, 4]


def test_imap_goes_on_after_close_and_not_after_terminate(pool: Pool, tmp_path: Path) -> None:
    results, others = pool.imap(abs, range(50)), pool.imap_unordered(abs, range(50), chunksize=3)
    pool.close()
    assert list(results) == list(range(50))
    pool.join()
    assert sorted(others) == list(range(50))
    with pytest.raises(ValueError, match="closed"):
        pool.imap(square, [1])
    ended = Pool(1)
    results = ended.imap(when, [str(tmp_path / "never")] * 5)
    ended.terminate()
    for kind in (zf.ActorDiedError, zf.TaskCancelledError, ValueError):
        with pytest.raises(kind):
            next(results)


def test_imap_begins_at_once_and_returns_results_before_its_iterable_failed(pool: Pool, tmp_path: Path) -> None:
    def numbers() -> Iterator[int]:
        yield from range(3)
        raise LookupError("no more numbers")

    begun = pool.imap(Path.touch, [tmp_path / "begun"])
    eventually((tmp_path / "begun").exists, "nobody has asked for a result yet")
    assert list(begun) == [None]
    results = pool.imap(square, numbers())
    assert [next(results) for _ in range(3)] == [0, 1, 4]
    with pytest.raises(LookupError, match="no more numbers"):
        next(results)
    assert list(results) == []


def test_processes_that_have_ended_are_replaced_also_in_a_pool_that_was_closed() -> None:
    with Pool(1, maxtasksperchild=1) as pool:
        results = pool.imap(lambda _: os.getpid(), range(6))
        pool.close()
        assert len(set(results)) == 6


def test_callbacks_are_called_one_after_the_other_and_may_use_the_pool(pool: Pool) -> None:
    notified: list[Any] = []

    def tell(value: int) -> None:
        notified.append(pool.apply(square, (value,)) if value < 10 else value)

    with pytest.raises(ZeroDivisionError):
        pool.apply_async(lambda: 1 / 0, error_callback=lambda error: notified.append(isinstance(error, ZeroDivisionError))).get(PATIENCE)
    pool.apply_async(square, (3,), callback=tell).get(PATIENCE)
    assert notified == [True, 81]
    for number in range(10, 20):
        pool.apply_async(square, (number if number != 13 else 2,), callback=notified.append)
    pool.close()
    pool.join()
    assert len(notified) == 12, "join has waited for all of them"


def test_imap_unordered_returns_results_as_they_come(pool: Pool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    results = pool.imap_unordered(when, [str(go), "", "", ""])
    assert [next(results) for _ in range(3)] == ["", "", ""]
    with pytest.raises(TimeoutError):
        results.next(timeout=0.01)
    go.touch()
    assert list(results) == [str(go)]


def test_imap_raises_in_the_place_of_each_failure(pool: Pool) -> None:
    def check(number: int) -> int:
        if number in (2, 7):
            raise KeyError(number)
        return number

    results = pool.imap(check, range(10), chunksize=4)
    for number in range(10):
        if number in (2, 7):
            with pytest.raises(KeyError, match=str(number)):
                next(results)
        else:
            assert next(results) == number
    with pytest.raises(StopIteration):
        next(results)


def test_join_waits_for_what_imap_has_yet_to_read(tmp_path: Path) -> None:
    """Also where nobody takes the results."""
    pool = Pool(2)
    pool.imap_unordered(lambda number: (tmp_path / str(number)).touch(), range(40))
    results = pool.imap(abs, range(40))
    pool.close()
    pool.join()
    assert len(list(tmp_path.iterdir())) == 40
    assert list(results) == list(range(40))


def test_a_pool_is_made_once_its_initializers_have_run(tmp_path: Path) -> None:
    with Pool(2, lambda place: Path(place, str(os.getpid())).touch(), (str(tmp_path),)):
        assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(zf.ActorDiedError, match="no such place"):
        Pool(1, lambda: (_ for _ in ()).throw(OSError("no such place")))


def test_processes_run_initializers_and_end() -> None:
    with Pool(1, initializer=os.putenv, initargs=("A", "B"), maxtasksperchild=2) as pool:
        assert len(set(pool.map(lambda _: os.getpid(), range(6), chunksize=1))) == 3


def test_close_and_terminate(tmp_path: Path) -> None:
    pool = Pool(1)
    with pytest.raises(ValueError, match="comes before join"):
        pool.join()
    under_way, behind = pool.apply_async(when, (str(tmp_path / "go"),)), pool.map_async(square, range(3), chunksize=3)
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.map(square, [1])
    (tmp_path / "go").touch()
    pool.join()
    assert (under_way.ready(), behind.get()) == (True, [0, 1, 4])
    pool = Pool(1)
    under_way, behind = pool.apply_async(when, (str(tmp_path / "never"),)), pool.apply_async(square, (1,))
    pool.terminate()
    pool.join()
    for ended in (under_way, behind):
        with pytest.raises(zf.FabricError):
            ended.get(PATIENCE)
    with pytest.raises(NotImplementedError):
        pickle.dumps(pool)


def test_wrong_arguments_are_refused() -> None:
    wrong_counts: list[Any] = [0, 1.5, "12"]
    most = [partial(Pool, 1, maxtasksperchild=count) for count in wrong_counts]
    chunks = [
        partial(method, square, [1], chunksize=size) for pool in (Pool(1),) for method in (pool.map, pool.imap) for size in wrong_counts
    ]
    for wrong in (*map(partial(partial, Pool), wrong_counts), *most, *chunks):
        with pytest.raises(ValueError, match="at least 1"):
            wrong()
    with pytest.raises(TypeError):
        Pool(1, initializer=5)  # type: ignore[arg-type]


def raises_much(number: int) -> None:
    raise ValueError("x" * (3_000_000 + number))


def test_large_errors_of_a_pool_arrive_whole() -> None:
    with Pool(1) as pool:
        errors = pool.imap(raises_much, range(2))
        for number in range(2):
            with pytest.raises(ValueError, match="xxx") as caught:
                next(errors)
            assert len(caught.value.args[0]) == 3_000_000 + number
