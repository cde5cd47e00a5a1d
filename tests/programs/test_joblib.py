"""``zfabric.util.joblib``: joblib's own tests, what its tests of Dask's backend check, and scikit-learn."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import digits
import joblib
import numpy
import pytest
from conftest import one_cluster, running_cluster
from faults import PATIENCE, eventually
from files import wait_for_file
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.backend import resource_tracker
from joblib.parallel import AutoBatchingMixin

import zfabric as zf
from zfabric.api.lifecycle import connected
from zfabric.util import joblib as backend_module
from zfabric.util.joblib import ZfabricBackend, register, register_ray
from zfabric.util.large_arrays import StoredArrays, pack, unpack

register()

TESTS = Path(__file__).resolve().parent
MILLION = 1_000_000


shared = one_cluster()


@pytest.fixture
def here() -> Iterator[None]:
    """Calls of ``Parallel`` run on the cluster."""
    with parallel_config(backend="zfabric"):
        yield


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the arrays that this process stores for calls."""
    sizes: list[int] = []
    put = zf.put

    def noted(value: Any) -> Any:
        sizes.append(value.nbytes)
        return put(value)

    monkeypatch.setattr("zfabric.util.large_arrays.zf.put", noted)
    return sizes


def increased(number: int) -> int:
    return number + 1


def fail_if(condition: bool) -> None:
    if condition:
        raise ValueError("the condition is true")


# --- joblib's own tests ---------------------------------------------------------------------------------------------------------

OTHERS = {
    "test_nested_loop and multiprocessing-zfabric": "a forked child cannot use its parent's connection to the cluster",
    "test_nested_loop and loky-zfabric": "a process of loky has not called register()",
    "test_backend_nesting_level and zfabric-loky": "the same",
    "test_dispatch_multiprocessing": "a multiprocessing.Manager admits only children of this process, unless it has a key",
    "test_nested_backend_context_manager and not implicit": "nested calls run on the cluster, as with Dask, and not in threads",
    "test_nested_parallelism_limit": "the same, one level deep",
    "test_nested_backend_in_sequential and None": "n_jobs=None is all CPUs of the cluster, as with Dask, and not 1",
    "test_thread_bomb_mitigation": "it takes long; test_recursion_ends checks the same",
}
"""joblib's tests that cannot hold for this backend, and why; they do not hold for Dask's either."""


def test_joblibs_own_tests_pass(tmp_path: Path) -> None:
    """They run in place, in a process of their own, as joblib has installed them."""
    chosen = "(zfabric or Zfabric) and not " + " and not ".join(f"({each})" for each in OTHERS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "joblib_plugin", "-p", "no:cacheprovider", "-c", "/dev/null", "-k", chosen]
    command += ["--rootdir", str(tmp_path), "--pyargs", "joblib.test.test_parallel", "-W", "ignore", "-o", "faulthandler_timeout=100"]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:]
    (passed,) = re.findall(r"(\d+) passed", ran.stdout)
    assert int(passed) > 80


# --- what its tests of Dask's backend check -------------------------------------------------------------------------------------


def test_calls_errors_and_calls_again(here: None) -> None:
    for _ in range(2):
        assert Parallel()(delayed(increased)(number) for number in range(10)) == list(range(1, 11))
        with pytest.raises(ValueError, match="the condition is true") as raised:
            Parallel()(delayed(fail_if)(number == 3) for number in range(10))
        assert isinstance(raised.value, zf.TaskError)


def test_short_calls_are_batched(here: None) -> None:
    assert ZfabricBackend.compute_batch_size is AutoBatchingMixin.compute_batch_size
    with Parallel() as parallel:
        backend = parallel._backend
        assert isinstance(backend, ZfabricBackend)
        assert backend._effective_batch_size == 1
        parallel(delayed(lambda: None)() for _ in range(3_000))
        assert backend._effective_batch_size > 10


def test_calls_are_not_taken_for_pure_functions(here: None) -> None:
    assert len(set(Parallel()(delayed(os.urandom)(8) for _ in range(10)))) == 10


def test_batches_are_listed_under_the_name_of_their_function(here: None, tmp_path: Path) -> None:
    names: list[str] = []

    def listed() -> bool:
        rows = connected().query("tasks", 100, ("running",))
        names[:] = [row["name"] for row in rows]
        return bool(names)

    def watch() -> None:
        try:
            eventually(listed, "the task is listed")
        finally:
            (tmp_path / "go").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    Parallel(n_jobs=2)(delayed(wait_for_file)(str(tmp_path / "go")) for _ in range(1))
    watcher.join()
    assert names == ["wait_for_file"]


def test_an_array_that_has_changed_between_calls_is_stored_again(here: None) -> None:
    array = numpy.zeros(MILLION)
    for number in range(3):
        array[:] = number
        assert Parallel()(delayed(numpy.max)(array) for _ in range(3)) == [number] * 3


def test_a_large_array_is_stored_once_for_all_calls(here: None, stored: list[int]) -> None:
    array, small = numpy.arange(float(MILLION)), numpy.arange(100)
    with Parallel(batch_size=1) as parallel:
        assert parallel(delayed(lambda parts, number: parts["of"][0][number])({"of": [array, small]}, n) for n in range(20)) == [*range(20)]
        assert stored == [array.nbytes]
        parallel(delayed(numpy.sum)(array) for _ in range(4))
    assert stored == [array.nbytes] * 2  # It could have changed between the two.


def test_arrays_of_calls_are_released_with_their_calls(here: None) -> None:
    before = large_objects()
    results = Parallel(return_as="generator")(delayed(numpy.sum)(numpy.ones(MILLION)) for _ in range(6))
    assert list(results) == [MILLION] * 6
    del results
    gc.collect()
    eventually(lambda: large_objects() <= before, "nothing is retained")


def test_large_arrays_are_read_only_and_results_are_not(here: None) -> None:
    array, middle = numpy.zeros(MILLION), numpy.zeros((300, 100), order="F")

    def flags(*arrays: Any) -> list[bool]:
        return [each.flags.writeable for each in arrays]

    assert Parallel(n_jobs=2)(delayed(flags)(array, array[:10], middle) for _ in range(2)) == [[False, True, True]] * 2
    assert Parallel(n_jobs=2, max_nbytes=None)(delayed(flags)(array) for _ in range(2)) == [[True]] * 2
    assert Parallel(n_jobs=2, mmap_mode=None)(delayed(flags)(array) for _ in range(2)) == [[True]] * 2
    assert Parallel(n_jobs=2, mmap_mode="c")(delayed(flags)(array) for _ in range(2)) == [[True]] * 2
    for made in Parallel(n_jobs=2)(delayed(numpy.ones)(shape) for shape in (3, MILLION)):
        made += 1
    with pytest.raises(zf.OptionError, match=r"zfabric shares none.*use 'r'"):
        Parallel(n_jobs=2, mmap_mode="r+")(delayed(flags)(array) for _ in range(2))


def test_an_array_of_a_file_is_opened_again_and_writes_to_it_are_shared(here: None, tmp_path: Path, stored: list[int]) -> None:
    path = tmp_path / "array"
    shared = numpy.memmap(path, float, "w+", shape=(4, MILLION))

    def fill(row: Any, number: int) -> None:
        row[:] = number

    Parallel(n_jobs=2)(delayed(fill)(shared[number, ::-2], number) for number in range(4))
    assert [shared[number, 1::2].sum() for number in range(4)] == [number * MILLION / 2 for number in range(4)]
    assert shared[:, ::2].sum() == 0
    assert stored == []
    private = numpy.memmap(path, float, "c", shape=(4, MILLION))
    private[3] = 7  # In this process only.
    assert Parallel(n_jobs=2)(delayed(numpy.max)(each) for each in (private, shared)) == [7, 3]


def large_objects() -> int:
    """How many large values the cluster has."""
    return len([row for row in connected().query("objects", 1000) if row["size"] >= MILLION])


def test_refs_in_arguments_live_as_long_as_their_calls(here: None) -> None:
    def lengths(refs: list[Any]) -> list[int]:
        gc.collect()
        return [len(each) for each in zf.get(refs)]

    def calls() -> Iterator[Any]:
        for number in range(4):
            yield delayed(lengths)([zf.put(bytes(MILLION + number)), zf.put(b"")])

    before = large_objects()
    assert Parallel(n_jobs=2)(calls()) == [[MILLION + number, 0] for number in range(4)]
    eventually(lambda: large_objects() <= before, "they are released")


def nested(array: Any, jobs: int | None) -> tuple[float, str, int | None]:
    """A call that makes calls of its own."""
    with Parallel(n_jobs=jobs) as parallel:
        sums = parallel(delayed(numpy.sum)(array) for _ in range(3))
        return sum(sums), type(parallel._backend).__name__, parallel.n_jobs


def test_an_initializer_runs_once_in_each_worker(tmp_path: Path) -> None:
    """Before the first call there, and again only for other arguments; calls have the globals that it sets."""
    log = tmp_path / "log"

    def begin(value: int) -> None:
        global _begun
        _begun = value
        with log.open("a") as file:
            file.write(f"{os.getpid()} {value}\n")

    def value_of(_: int) -> tuple[int, int]:
        return _begun, os.getpid()

    def calls(value: int) -> set[tuple[int, int]]:
        with parallel_config(backend="zfabric", n_jobs=2, initializer=begin, initargs=(value,)):
            return set(Parallel(batch_size=1)(delayed(value_of)(number) for number in range(8)))

    def inner(number: int) -> list[tuple[int, int]]:
        return Parallel(2)(delayed(value_of)(number) for number in range(4))

    found = calls(1) | calls(1)
    with parallel_config(backend="zfabric", n_jobs=2, initializer=begin, initargs=(1,)):
        found.update(*Parallel()(delayed(inner)(number) for number in range(4)))
    found |= set(Parallel(2, "zfabric", initializer=begin, initargs=(2,))(delayed(value_of)(number) for number in range(8)))
    assert {value for value, _ in found} == {1, 2}
    lines = log.read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert {f"{pid} {value}" for value, pid in found} <= set(lines)


def test_an_initializer_that_fails_fails_the_calls(here: None) -> None:
    with pytest.raises(BrokenExecutor, match="the initializer raised ValueError: the condition is true"):
        Parallel(2, initializer=fail_if, initargs=(True,))(delayed(abs)(number) for number in range(4))
    with pytest.raises(TypeError, match="must be a callable"):
        Parallel(2, initializer="begin")(delayed(abs)(number) for number in range(4))
    assert Parallel(2)(delayed(abs)(number) for number in range(-2, 1)) == [2, 1, 0]


@pytest.mark.parametrize(("jobs", "expected"), [(2, 2), (-1, -1), (1, 1)])
def test_calls_inside_calls_run_on_the_cluster(here: None, jobs: int, expected: int) -> None:
    kind = "SequentialBackend" if jobs == 1 else "ZfabricBackend"
    found = Parallel()(delayed(nested)(numpy.ones(MILLION), jobs) for _ in range(3))
    assert found == [(3.0 * MILLION, kind, expected)] * 3


def test_calls_inside_calls_that_do_not_say_take_what_the_outer_ones_leave() -> None:
    """As with loky, they are sequential where the outer calls fill the CPUs."""
    with running_cluster(num_cpus=3):
        for outer, expected in ((-1, ("SequentialBackend", 1)), (3, ("SequentialBackend", 1)), (2, ("ZfabricBackend", -1))):
            with parallel_config(backend="zfabric", n_jobs=outer):
                found = Parallel()(delayed(nested)(numpy.ones(MILLION), None) for _ in range(3))
            assert [(kind, jobs or 1) for _, kind, jobs in found] == [expected] * 3
    running_cluster_again()


def levels(depth: int) -> list[tuple[str, int]]:
    """The kinds and levels of the backends of calls inside calls."""
    with Parallel(n_jobs=2) as parallel:
        here = (type(parallel._backend).__name__, parallel._backend.nesting_level)
        return [here, *(parallel(delayed(levels)(depth - 1) for _ in range(2))[0] if depth else [])]


def test_recursion_ends() -> None:
    """Also with one CPU: a call that waits for calls lends its own. Calls inside calls inside calls make no tasks."""
    kinds = [("ZfabricBackend", 0), ("ZfabricBackend", 1), ("SequentialBackend", 2), ("SequentialBackend", 2)]
    with running_cluster(num_cpus=1), parallel_config(backend="zfabric", n_jobs=2):
        assert levels(3) == kinds
    running_cluster_again()


def running_cluster_again() -> None:
    """Start the file's cluster again after a test that needed another one."""
    zf.init(num_cpus=2, log_to_driver=False)


def test_options_reach_the_tasks(shared: Any) -> None:
    with parallel_config(backend="zfabric", num_cpus=2, runtime_env={"env_vars": {"GIVEN": "yes"}}):
        assert joblib.effective_n_jobs(-1) == 1
        assert Parallel(n_jobs=2)(delayed(os.getenv)("GIVEN") for _ in range(3)) == ["yes"] * 3
        assert Parallel(n_jobs=2)(delayed(held)() for _ in range(2)) == [2.0] * 2
    for wrong in ({"num_cpus": -1}, {"scatter": []}, {"num_returns": 2}):
        with pytest.raises(zf.OptionError):
            parallel_config(backend="zfabric", **wrong)


def held() -> float:
    return zf.get_runtime_context().get_assigned_resources()["CPU"]


def test_the_number_of_jobs(here: None) -> None:
    assert [joblib.effective_n_jobs(number) for number in (-1, -2, -9, 1, 7)] == [2, 1, 1, 1, 7]
    with pytest.raises(ValueError, match="n_jobs == 0"):
        Parallel(n_jobs=0)(delayed(increased)(1) for _ in range(2))
    with zf.LocalCluster(nodes=2, cpus_per_node=2, object_store_memory=64 * 2**20) as cluster:
        zf.shutdown()
        with zf.init(cluster.address):
            assert joblib.effective_n_jobs(-1) == 4
            assert Parallel()(delayed(increased)(number) for number in range(10)) == list(range(1, 11))
    running_cluster_again()


def test_no_more_batches_are_submitted_than_jobs(tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    with running_cluster(num_cpus=4), Parallel(n_jobs=2, backend="zfabric", pre_dispatch="all", batch_size=1) as parallel:
        caller = threading.Thread(target=lambda: parallel(delayed(wait_for_file)(go) for _ in range(8)))
        caller.start()
        try:
            eventually(lambda: len(parallel._backend._open) == 8, "all are handed to the backend")
            eventually(lambda: connected().query("tasks", 100, ("running",)), "some run")
            assert len(connected().query("tasks", 100)) == 2
        finally:
            Path(go).touch()
            caller.join()
        assert parallel.n_completed_tasks == 8
    running_cluster_again()


def test_a_timeout_and_an_error_cancel_what_runs(here: None, tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    with pytest.raises(multiprocessing.TimeoutError):
        Parallel(n_jobs=2, timeout=0.5)(delayed(wait_for_file)(never) for _ in range(4))
    with pytest.raises(ValueError, match="the condition"):
        Parallel(n_jobs=2)(delayed(fail_if)(True) if number == 1 else delayed(wait_for_file)(never) for number in range(2))
    assert Parallel(n_jobs=2)(delayed(increased)(number) for number in range(4)) == [1, 2, 3, 4]


def test_failures_that_joblib_reads_no_more_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads none after the first error; here, none at all."""
    client: Any = connected()
    unread, called = client.machine.unread, threading.Event()
    monkeypatch.setattr(unread, "watching", True)
    before = unread.count
    backend = ZfabricBackend()
    for number in range(2):
        backend.submit(lambda: fail_if(True), lambda _, number=number: called.set() if number else None)  # type: ignore[misc]
    assert called.wait(PATIENCE)
    eventually(lambda: not backend._open and not unread.held, "both have ended and are gone")
    backend.terminate()
    assert unread.count == before


def test_what_cannot_be_pickled_fails_its_call_wherever_it_was_submitted(here: None) -> None:
    lock = threading.Lock()
    for ahead in ("all", 2):  # With 2, the thread that calls joblib back submits it.
        with pytest.raises(TypeError, match="pickle"):
            Parallel(n_jobs=2, pre_dispatch=ahead, batch_size=1)(delayed(id)(lock if number == 9 else number) for number in range(12))


def test_a_worker_that_dies_is_retried_and_then_reported(here: None, tmp_path: Path) -> None:
    def once(path: str) -> int:
        if not os.path.exists(path):
            Path(path).touch()
            os._exit(1)
        return os.getpid()

    assert len(Parallel(n_jobs=2)(delayed(once)(str(tmp_path / "died")) for _ in range(2))) == 2
    with parallel_config(backend="zfabric", max_retries=0), pytest.raises(zf.WorkerCrashedError):
        Parallel(n_jobs=2)(delayed(os._exit)(3) for _ in range(2))


@pytest.mark.parametrize("other", ["loky", "multiprocessing", "threading"])
def test_other_backends_work_inside_calls(here: None, other: str) -> None:
    def inner() -> list[int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = Parallel(n_jobs=2, backend=other)(delayed(increased)(number) for number in range(3))
            if other == "loky":  # Its processes would outlive this one's job.
                get_reusable_executor().shutdown(wait=True, kill_workers=True)
                resource_tracker._resource_tracker._stop()
            return found

    assert Parallel(n_jobs=2)(delayed(inner)() for _ in range(2)) == [[1, 2, 3]] * 2


def test_a_call_may_name_the_backend_again(here: None) -> None:
    def inner() -> list[int]:
        return Parallel(n_jobs=2, backend="zfabric")(delayed(increased)(number) for number in range(3))

    assert Parallel(n_jobs=2)(delayed(inner)() for _ in range(2)) == [[1, 2, 3]] * 2


def test_the_cluster_starts_by_itself_and_rays_name() -> None:
    zf.shutdown()
    register_ray()
    with parallel_config(backend="ray", n_jobs=2, ray_remote_args={"num_cpus": 0.5}):
        assert Parallel()(delayed(held)() for _ in range(3)) == [0.5] * 3
    zf.shutdown()
    running_cluster_again()


def test_without_joblib_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['joblib'] = None; import zfabric.util.joblib"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert "ImportError: zfabric.util.joblib needs joblib 1.5 or newer: pip install 'zfabric[joblib]'" in ran.stderr


def test_arrays_are_forgotten_with_their_owner_and_never_confused() -> None:
    stored = StoredArrays()
    array = numpy.ones(10)
    first = stored.ref(array)
    assert stored.ref(array) == first
    assert len(stored) == 1
    del array
    gc.collect()
    assert len(stored) == 0
    gone: Any = first
    other = numpy.ones(10)
    stored._refs[id(other)] = (lambda: None, gone)  # As if the address had been another array's.
    assert stored.ref(other) != gone


def test_a_call_is_packed_with_its_arrays_beside_it() -> None:
    array = numpy.arange(10_000.0)
    packed = pack(lambda: (array.sum(), array is array), StoredArrays(), 8000)
    assert len(packed.arrays) == 1
    assert len(packed.payload) < 8000
    assert unpack(packed.payload, packed.references, tuple(zf.get(packed.arrays)))() == (49995000.0, True)
    objects = numpy.array([object()] * 20_000)
    assert pack(lambda: objects, StoredArrays(), 8000).arrays == []


# --- scikit-learn ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_scikit_learn() -> Iterator[None]:
    """A cluster whose workers are forked with scikit-learn: each would take more than a second of CPU time to import it."""
    with running_cluster(config={"preload": ("sklearn.ensemble", "sklearn.model_selection", "sklearn.svm")}):
        yield


@pytest.mark.parametrize("program", digits.PROGRAMS, ids=lambda each: each.__name__)
@pytest.mark.usefixtures("with_scikit_learn")
def test_scikit_learn_gets_the_results_of_one_process(program: Callable[[], Any]) -> None:
    with parallel_config(backend="zfabric"):
        found = program()
    assert found == program()


def test_the_module_is_named_in_the_package() -> None:
    assert zf.util.joblib is backend_module
    assert PATIENCE
