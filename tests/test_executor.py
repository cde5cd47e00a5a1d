"""``zf.Executor`` keeps the contract of ``concurrent.futures``."""

from __future__ import annotations

import concurrent.futures
import functools
import operator
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_days import PATIENCE, eventually, query

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
        # Both CPUs are free again only if those that ran were stopped, the one that was waited for among them.
        assert executor.submit(_square, 3).result(60) == 9
        eventually(lambda: not [row for row in query("tasks") if row["state"] in ("running", "ready", "assigned")], "nothing is left of it")


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
    with pytest.raises(ValueError, match="not '3'"):
        zf.Executor(max_workers="3")  # type: ignore[arg-type]
    with zf.Executor(max_workers=1) as executor:
        assert list(executor.map(_square, range(5))) == [0, 1, 4, 9, 16]


def _pass_when(path: Path, name: str) -> str:
    """Says that it has begun, and waits until it may go on."""
    path.joinpath(f"{name} has begun").touch()
    while not path.joinpath(f"{name} may go").exists():
        time.sleep(0.005)
    return name


def test_what_there_is_no_room_for_waits_its_turn_and_can_be_cancelled(tmp_path: Path) -> None:
    """As with the executors of the standard library: ``submit`` does not wait."""
    with zf.Executor(max_workers=1) as executor:
        first, second, third, fourth = (executor.submit(_pass_when, tmp_path, name) for name in ("first", "second", "third", "fourth"))
        unpicklable = executor.submit(_square, threading.Lock())  # type: ignore[arg-type]
        eventually((tmp_path / "first has begun").exists, "the first runs")
        assert second.cancel()
        assert concurrent.futures.wait([second], timeout=60).done == {second}
        assert not (tmp_path / "third has begun").exists()
        (tmp_path / "third may go").touch()
        (tmp_path / "first may go").touch()
        assert concurrent.futures.wait([first, third], timeout=60).not_done == set()
        eventually((tmp_path / "fourth has begun").exists, "the last runs")
        assert not (tmp_path / "second has begun").exists()
        chained: list[concurrent.futures.Future[int]] = []
        fourth.add_done_callback(lambda _: chained.append(executor.submit(_square, 5)))
        (tmp_path / "fourth may go").touch()
        assert [first.result(), third.result(), fourth.result(60)] == ["first", "third", "fourth"]
        assert isinstance(unpicklable.exception(60), zf.SerializationError)
        eventually(lambda: chained, "the callback has run")
        assert chained[0].result(60) == 25, "a callback may submit"


def test_shutdown_without_waiting_does_what_was_submitted() -> None:
    executor = zf.Executor(max_workers=1)
    futures = [executor.submit(_square, x) for x in range(5)]
    executor.shutdown(wait=False)
    assert [future.result(60) for future in futures] == [0, 1, 4, 9, 16]


def test_shutdown_cancels_what_waits_for_room_before_it_can_begin(tmp_path: Path) -> None:
    executor = zf.Executor(max_workers=1)
    futures = [executor.submit(_pass_when, tmp_path, str(number)) for number in range(5)]
    eventually((tmp_path / "0 has begun").exists, "the first runs")
    executor.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in futures)
    assert [path.name for path in tmp_path.iterdir()] == ["0 has begun"]


def test_options_are_those_of_tasks() -> None:
    with zf.Executor(num_cpus=2, runtime_env={"env_vars": {"COLOUR": "blue"}}) as executor:
        import os

        assert executor.submit(lambda: os.environ["COLOUR"]).result(60) == "blue"
    with pytest.raises(zf.OptionError):
        zf.Executor(num_cups=1)


def _numbers() -> Iterator[int]:
    yield 1


def test_what_has_not_one_value_is_refused() -> None:
    with pytest.raises(zf.OptionError, match="a future has one value"):
        zf.Executor(num_returns=2)
    with zf.Executor(max_workers=1) as executor:
        for wrong, text in ((_numbers, "_numbers yields"), (zf.remote(_square), "remote already")):
            with pytest.raises(TypeError, match=text):
                executor.submit(wrong, 1)
        assert executor.submit(_square, 3).result(PATIENCE) == 9, "and they take no room"


def test_what_waits_when_the_cluster_is_shut_down_starts_no_other() -> None:
    script = """
import time, zfabric as zf
from zfabric.util.multiprocessing import Pool
zf.init(num_cpus=2, log_to_driver=False)
executor, pool = zf.Executor(max_workers=1), Pool(1, maxtasksperchild=1)
waiting = [executor.submit(time.sleep, 600), executor.submit(time.sleep, 600)]
asked = pool.map_async(time.sleep, [600, 600], chunksize=1)
zf.shutdown()
for future in waiting:
    assert isinstance(future.exception(60), zf.NotInitializedError), future
executor.shutdown()
try:
    asked.get(60)
except zf.NotInitializedError:
    pool.close()
    pool.join()
    print("started again" if zf.is_initialized() else "nothing was started")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "nothing was started\n", done.stdout + done.stderr
