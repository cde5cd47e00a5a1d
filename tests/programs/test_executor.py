"""``zf.Executor`` keeps the contract of ``concurrent.futures``."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import operator
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from faults import PATIENCE, eventually, query
from files import wait_for_file

import zfabric as zf
from zfabric.util import executor as executor_module

pytestmark = pytest.mark.usefixtures("shared_cluster")


def _square(x: int) -> int:
    return x * x


def _fail(x: int) -> int:
    raise KeyError(x)


def test_the_executor_is_a_concurrent_futures_executor() -> None:
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


def test_errors_are_raised_by_the_future() -> None:
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


def test_map_times_out_and_releases_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(executor_module, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: now}))
    with zf.Executor() as executor:
        results = executor.map(lambda x: _pass_when(tmp_path, "it") if x else x, range(6), timeout=PATIENCE)
        assert next(results) == 0
        eventually((tmp_path / "it has begun").exists, "one of the others runs")
        now = PATIENCE
        with pytest.raises(TimeoutError):
            next(results)
        unfinished = [row for row in query("tasks") if row["state"] not in ("finished", "failed")]
        assert all(row["state"] in ("running", "assigned") for row in unfinished), "those that run go on, the others are gone"
        (tmp_path / "it may go").touch()
        assert executor.submit(_square, 3).result(60) == 9


def test_map_retains_no_result() -> None:
    with zf.Executor() as executor:
        for chunksize in (1, 2):
            for value in executor.map(_Plain, range(4), chunksize=chunksize):
                last = weakref.ref(value)
                del value
                eventually(lambda last=last: last() is None, "nobody has it, the thread that set it included")


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


def test_a_running_call_is_not_cancelled(tmp_path: Path) -> None:
    """Two CPUs: two run, two wait in the cluster."""
    with zf.Executor() as executor:
        running = [executor.submit(_pass_when, tmp_path, str(number)) for number in range(2)]
        for number in range(2):
            eventually((tmp_path / f"{number} has begun").exists, "it runs")
        waiting = [executor.submit(_pass_when, tmp_path, str(number)) for number in range(2, 4)]
        assert [future.running() for future in running + waiting] == [True, True, False, False]
        assert not running[0].cancel()
        assert waiting[0].cancel()
        assert waiting[0].cancelled()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting[0].result()
        assert concurrent.futures.wait([waiting[0]], timeout=PATIENCE).done == {waiting[0]}
        executor.shutdown(wait=False, cancel_futures=True)
        assert waiting[1].cancelled()
        for number in range(2):
            (tmp_path / f"{number} may go").touch()
        assert [future.result(PATIENCE) for future in running] == ["0", "1"]
        assert not any(future.running() or future.cancel() for future in running)
    assert not (tmp_path / "2 has begun").exists()
    assert not (tmp_path / "3 has begun").exists()
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(_square, 1)


def test_a_call_that_runs_can_be_stopped_by_its_ref(tmp_path: Path) -> None:
    with zf.Executor() as executor:
        future = executor.submit(_pass_when, tmp_path, "it")
        eventually((tmp_path / "it has begun").exists, "it runs")
        zf.cancel(future.ref)  # type: ignore[attr-defined] # submit gives the standard library's type
        with pytest.raises(zf.TaskCancelledError):
            future.result(PATIENCE)


def test_max_workers_limits_submitted_calls() -> None:
    with pytest.raises(ValueError, match="max_workers must be greater than 0"):
        zf.Executor(max_workers=0)
    with pytest.raises(ValueError, match="not '3'"):
        zf.Executor(max_workers="3")  # type: ignore[arg-type]
    with zf.Executor(max_workers=1) as executor:
        assert list(executor.map(_square, range(5))) == [0, 1, 4, 9, 16]
        assert executor._max_workers == 1
    assert zf.Executor()._max_workers == 2, "the CPUs of the cluster"


def _pass_when(path: Path, name: str) -> str:
    """Says that it has begun, and waits until it may go on."""
    path.joinpath(f"{name} has begun").touch()
    wait_for_file(path / f"{name} may go")
    return name


def test_calls_beyond_max_workers_wait_and_can_be_cancelled(tmp_path: Path) -> None:
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


def test_shutdown_without_waiting_runs_submitted_calls() -> None:
    executor = zf.Executor(max_workers=1)
    futures = [executor.submit(_square, x) for x in range(5)]
    executor.shutdown(wait=False)
    assert [future.result(60) for future in futures] == [0, 1, 4, 9, 16]


def test_shutdown_cancels_calls_beyond_max_workers(tmp_path: Path) -> None:
    executor = zf.Executor(max_workers=1)
    futures = [executor.submit(_pass_when, tmp_path, str(number)) for number in range(5)]
    eventually((tmp_path / "0 has begun").exists, "the first runs")
    executor.shutdown(wait=False, cancel_futures=True)
    assert [future.cancelled() for future in futures] == [False, True, True, True, True]
    (tmp_path / "0 may go").touch()
    executor.shutdown()
    assert futures[0].result() == "0"
    (tmp_path / "0 may go").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["0 has begun"]


def test_options_are_those_of_tasks() -> None:
    with zf.Executor(num_cpus=2, runtime_env={"env_vars": {"COLOUR": "blue"}}) as executor:
        assert executor.submit(lambda: os.environ["COLOUR"]).result(60) == "blue"
    with pytest.raises(zf.OptionError):
        zf.Executor(num_cups=1)


def _numbers() -> Iterator[int]:
    yield 1


def test_functions_with_other_than_one_value_are_refused() -> None:
    with pytest.raises(zf.OptionError, match="a future has one value"):
        zf.Executor(num_returns=2)
    with zf.Executor(max_workers=1) as executor:
        for wrong in (executor.submit(_square, threading.Lock()), executor.submit(_square, 1, 2)):
            with pytest.raises(TypeError, match=r"cannot pickle args\[0\]|too many positional"):
                wrong.result(PATIENCE)
        for wrong, text in ((_numbers, "_numbers yields"), (zf.remote(_square), "remote already")):
            with pytest.raises(TypeError, match=text):
                executor.submit(wrong, 1)
        assert executor.submit(_square, 3).result(PATIENCE) == 9, "and they take no room"


def test_calls_that_wait_when_the_cluster_is_shut_down_start_no_other() -> None:
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


# --- initializers, the end of the program, and the standard library's own tests -----------------------------------------------------------


class _Plain:
    def __init__(self, number: int) -> None:
        self.number = number


_state: list[str] = []


def _prepare(word: str) -> None:
    _state.append(word)


def _prepared(_: int) -> tuple[int, list[str]]:
    return os.getpid(), _state


def _refuse() -> None:
    raise ValueError("error in initializer")


def test_the_initializer_runs_once_in_each_worker() -> None:
    with zf.Executor(initializer=_prepare, initargs=("ready",)) as executor, zf.Executor(1, _prepare, ("other",)) as second:
        seen = dict(executor.map(_prepared, range(20)))
        assert all(words == ["ready"] for words in seen.values())
        pid, words = second.submit(_prepared, 0).result(PATIENCE)
        assert words == [*seen.get(pid, []), "other"]
        assert second.submit(pow, 2, 3).result(PATIENCE) == 8
    with pytest.raises(TypeError, match="initializer must be a callable"):
        zf.Executor(initializer="x")  # type: ignore[arg-type]


def test_an_initializer_that_raises_breaks_its_executor(caplog: pytest.LogCaptureFixture) -> None:
    with zf.Executor(max_workers=1, initializer=_refuse) as executor:
        futures = []
        with contextlib.suppress(concurrent.futures.BrokenExecutor):
            futures += [executor.submit(_square, 1) for _ in range(3)]
        for future in futures:
            with pytest.raises(concurrent.futures.BrokenExecutor, match="error in initializer"):
                future.result(PATIENCE)
        with pytest.raises(concurrent.futures.BrokenExecutor):
            executor.submit(_square, 1)
    assert "ValueError: error in initializer" in caplog.text


def test_the_program_ends_after_its_submitted_calls() -> None:
    script = """
import atexit, sys, zfabric as zf
def late():
    try:
        executor.submit(pow, 2, 2)
    except RuntimeError as error:
        print(error, file=sys.stderr)
def work():
    import time
    time.sleep(0.3)  # The program comes to its end first.
    print("worked", flush=True)
executor = zf.Executor(1)
atexit.register(lambda: print("before", file=sys.stderr))
executor.submit(work), executor.submit(work)
import zfabric.util.executor as module
atexit.unregister(module._at_exit)
atexit.register(late)
atexit.register(module._at_exit)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout.count("worked")) == (0, 2), ran
    assert ran.stderr.splitlines() == ["cannot schedule new futures after interpreter shutdown", "before"]


def test_tqdm_maps_over_it() -> None:
    concurrent_tqdm = pytest.importorskip("tqdm.contrib.concurrent", reason="tqdm is not installed (the extra 'test' has it)")
    found = concurrent_tqdm._executor_map(zf.Executor, _square, range(8), max_workers=2, chunksize=3, lock_name="mp_lock", disable=True)
    assert found == [x * x for x in range(8)]


def test_the_tests_of_the_standard_library_pass(tmp_path: Path) -> None:
    """They lie where they are installed; an interpreter without them has a package of that name, which the link stands before."""
    version = f"python3.{sys.version_info.minor}"
    places = [Path(concurrent.__path__[0]).parent / "test", Path("/usr/lib", version, "test")]
    found = next((each for each in places if (each / "test_concurrent_futures.py").exists()), None)
    if found is None:
        pytest.skip(f"NO TESTS OF CPYTHON HERE: apt-get install lib{version}-testsuite (3.12 and newer have them in another form)")
    (tmp_path / "test").symlink_to(found)
    script = Path(__file__).with_name("executor_cases.py")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{script.parent}:{os.environ.get('PYTHONPATH', '')}"}
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[-1]) >= 35
