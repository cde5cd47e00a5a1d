"""``zf.Executor`` keeps the contract of ``concurrent.futures``."""

from __future__ import annotations

import concurrent.futures
import functools
import operator
import threading

import pytest

import zfabric as zf

pytestmark = pytest.mark.usefixtures("shared_cluster")


def _square(x: int) -> int:
    return x * x


def _fail(x: int) -> int:
    raise KeyError(x)


def _wait_for_ever() -> None:
    threading.Event().wait()


def test_it_is_an_executor() -> None:
    with zf.Executor() as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        assert executor.submit(_square, 7).result(60) == 49


def test_anything_that_can_be_called_can_be_submitted() -> None:
    with zf.Executor() as executor:
        futures = [
            executor.submit(operator.add, 1, 2),
            executor.submit(functools.partial(_square, 4)),
            executor.submit(lambda a, *, b: a - b, 5, b=3),
            executor.submit("abc".upper),
        ]
        assert [future.result(60) for future in futures] == [3, 16, 2, "ABC"]


def test_errors_are_the_futures_own() -> None:
    with zf.Executor() as executor:
        future = executor.submit(_fail, 3)
        assert isinstance(future.exception(60), KeyError)
        with pytest.raises(KeyError):
            future.result()


@pytest.mark.parametrize("chunksize", [1, 4, 100])
def test_map_is_in_order(chunksize: int) -> None:
    with zf.Executor() as executor:
        assert list(executor.map(_square, range(10), chunksize=chunksize)) == [x * x for x in range(10)]
        assert list(executor.map(operator.add, [1, 2, 3], [10, 20], chunksize=chunksize)) == [11, 22]


def test_map_raises_where_the_call_failed() -> None:
    with zf.Executor() as executor:
        results = executor.map(lambda x: 10 // x, [5, 0, 1])
        assert next(results) == 2
        with pytest.raises(ZeroDivisionError):
            next(results)


def test_map_times_out_and_lets_go_of_the_rest() -> None:
    with zf.Executor() as executor:
        results = executor.map(lambda x: threading.Event().wait() if x else x, range(6), timeout=2)
        assert next(results) == 0
        with pytest.raises(TimeoutError):
            next(results)
        executor.shutdown(cancel_futures=True, wait=False)


def test_callbacks_wait_and_as_completed() -> None:
    seen: list[int] = []
    with zf.Executor() as executor:
        futures = [executor.submit(_square, x) for x in range(20)]
        futures[3].add_done_callback(lambda future: seen.append(future.result()))
        done, pending = concurrent.futures.wait(futures, timeout=60)
        assert len(done) == 20
        assert not pending
        assert sorted(future.result() for future in concurrent.futures.as_completed(futures)) == sorted(x * x for x in range(20))
    assert seen == [9]


def test_cancelling_a_future_stops_its_task() -> None:
    with zf.Executor() as executor:
        future = executor.submit(_wait_for_ever)
        assert future.cancel()
        assert future.cancelled()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
        # Both CPUs are free again only if the task was stopped.
        assert list(executor.map(_square, range(4), timeout=60)) == [0, 1, 4, 9]


def test_shutdown_cancels_what_it_is_told_to() -> None:
    executor = zf.Executor()
    futures = [executor.submit(_wait_for_ever) for _ in range(8)]
    executor.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in futures)
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(_square, 1)


def test_max_workers_limits_what_is_out() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        zf.Executor(max_workers=0)
    with zf.Executor(max_workers=1) as executor:
        assert [executor.submit(_square, x).result(60) for x in range(3)] == [0, 1, 4]


def test_options_are_those_of_tasks() -> None:
    with zf.Executor(num_cpus=2, runtime_env={"env_vars": {"COLOUR": "blue"}}) as executor:
        import os

        assert executor.submit(lambda: os.environ["COLOUR"]).result(60) == "blue"
    with pytest.raises(zf.OptionError):
        zf.Executor(num_cups=1)
