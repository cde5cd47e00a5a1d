"""``zfabric.util.dask``: Dask's programs on the cluster give what its synchronous scheduler gives."""

from __future__ import annotations

import gc
import io
import operator
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy
import pandas
import pytest
from conftest import one_cluster
from dask.callbacks import Callback
from dask.diagnostics import Profiler, ProgressBar
from dask.utils_test import GetFunctionTestMixin
from faults import PATIENCE, eventually
from files import wait_for_file
from packaging.version import Version

import zfabric as zf
from zfabric.api.lifecycle import connected
from zfabric.util.dask import (
    disable_dask_on_zfabric,
    enable_dask_on_ray,
    enable_dask_on_zfabric,
    get,
    persist,
    ray_dask_get,
)
from zfabric.util.dask.batches import TASKS_MAX, Planner
from zfabric.util.dask.graphs import Graph, StoredValue

TESTS = Path(__file__).resolve().parent


shared = one_cluster(config={"preload": ("pytest", "dask.array", "dask.bag", "dask.dataframe")})
"""Its workers are forked with what each would take a second to import."""


@pytest.fixture
def here() -> Iterator[None]:
    """Dask's programs run on the cluster."""
    with enable_dask_on_zfabric():
        yield


def increased(number: int) -> int:
    return number + 1


def divided(number: int) -> float:
    return 1 / number


def ones(size: int) -> Any:
    return numpy.ones(size)


class TestGet(GetFunctionTestMixin):  # type: ignore[misc]
    """What Dask expects of each scheduler."""

    get = staticmethod(get)


SUITES = os.environ.get("DASK_SUITES", "dask.tests.test_delayed").split()
"""Modules of Dask's tests. ``scripts/nightly`` runs more."""
OTHERS = {
    "test_traverse_false": "a value that has travelled is another object",
    "test_bag_with_single_callable": "the same",
    "test_repartition_partition_size_complex_dtypes": "the same: it compares arrays in lists, which are equal only if they are the same",
    "test_to_delayed_optimize_graph": "it counts in this process what tasks do",
    "test_take_npartitions_warn": "a warning of a task is shown by its worker",
    "test_array_cumreduction_axis": "the same",
    "test_nanquantile_all_nan": "the same",
    "test_reductions_are_lazy": "a generator cannot travel",
    "test_compute_array_bag": "it wants two schedulers to differ, which the plugin makes one",
    "test_persist_array_bag": "the same",
    "test_get_scheduler": "it names schedulers, which the plugin replaces",
    "test_num_workers_config": "num_workers has no effect",
    "test_compute_no_opt": "it counts aliases, which are no tasks here",
}
"""Dask's tests that cannot hold for this scheduler, and why."""


GRAPHS = {"dask.tests.test_delayed": 70, "dask.array.tests.test_overlap": 230}
"""At least so many graphs are computed by the cluster in these."""


def test_dasks_own_tests_pass(tmp_path: Path) -> None:
    """They run in place, in one process of their own, as Dask has installed them."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "dask_plugin", "-p", "no:cacheprovider", "-c", "/dev/null", "-W", "ignore"]
    command += ["-k", " and ".join(f"not {each}" for each in OTHERS), "--rootdir", str(tmp_path), "--pyargs", *SUITES]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-1000:]
    (graphs,) = re.findall(r"(\d+) graphs were computed by the cluster", ran.stdout)
    assert int(graphs) >= sum(GRAPHS.get(suite, 1) for suite in SUITES)


# --- collections ----------------------------------------------------------------------------------------------------------------


def mean_of_a_sum() -> Any:
    x = da.random.RandomState(1).random_sample((300, 300), chunks=(100, 100))
    return (x + x.T).mean(axis=0)


def decomposition() -> Any:
    return da.linalg.svd(da.random.RandomState(2).random_sample((400, 10), chunks=(100, 10)))[1]


def stencil() -> Any:
    return da.from_array(numpy.arange(200.0).reshape(20, 10), chunks=5).map_overlap(lambda x: x - x.mean(), depth=1, boundary="none")


def frame() -> Any:
    return dd.from_pandas(
        pandas.DataFrame({"a": numpy.arange(1000) % 17, "b": numpy.arange(1000.0), "c": ["x", "yy"] * 500}), npartitions=7
    )


def grouped() -> Any:
    return frame().groupby("a").agg({"b": ["sum", "mean"], "c": "max"})


def merged() -> Any:
    return frame().merge(frame(), on="b").sort_values("b")


def shuffled() -> Any:
    return frame().shuffle("a", npartitions=5).map_partitions(lambda part: part.sort_values("b"))


def words() -> Any:
    return db.from_sequence(["a b", "b c", "c d e"] * 10, npartitions=6).map(str.split).flatten().frequencies().map(tuple)


def groups() -> Any:
    return db.from_sequence(range(60), npartitions=6).groupby(lambda n: n % 5, shuffle="tasks").map(lambda pair: (pair[0], sorted(pair[1])))


@pytest.mark.parametrize(
    "program", [mean_of_a_sum, decomposition, stencil, grouped, merged, shuffled, words, groups], ids=lambda each: each.__name__
)
def test_collections_are_as_by_the_synchronous_scheduler(here: None, program: Callable[[], Any]) -> None:
    expected, found = program().compute(scheduler="sync"), program().compute()
    if isinstance(expected, (pandas.DataFrame, pandas.Series)):
        assert found.equals(expected)
    elif isinstance(expected, numpy.ndarray):
        assert (found == expected).all()
    else:
        assert sorted(found) == sorted(expected)


def test_several_collections_are_computed_together(here: None) -> None:
    x = da.arange(100, chunks=10)
    assert dask.compute(x.sum(), {"all": [x.max(), 3]}, dask.delayed(increased)(4)) == (4950, {"all": [99, 3]}, 5)


def test_the_results_may_be_written_to(here: None) -> None:
    for size in (3, 100_000):
        made = dask.delayed(ones)(size).compute()
        made += 1
        assert made.sum() == 2 * size


def test_large_values_are_read_in_place(here: None) -> None:
    made = dask.delayed(ones)(100_000)
    flags = dask.delayed(lambda *arrays: [each.flags.writeable for each in arrays])(made, dask.delayed(ones)(100_001))
    assert flags.compute() == [False, False]


# --- errors ---------------------------------------------------------------------------------------------------------------------


def test_what_a_task_raises_is_raised_with_its_place(here: None) -> None:
    with pytest.raises(ZeroDivisionError, match="division by zero") as raised:
        dask.delayed(increased)(dask.delayed(divided)(0)).compute()
    assert type(raised.value) is ZeroDivisionError
    notes = "\n".join(raised.value.__notes__)
    assert re.search(r"in the Dask task 'divided-[\w-]+'", notes)
    assert "return 1 / number" in notes


def test_after_an_error_nothing_runs_any_more(here: None, tmp_path: Path) -> None:
    never = dask.delayed(wait_for_file)(str(tmp_path / "never"))
    with pytest.raises(ZeroDivisionError):
        dask.compute(never, dask.delayed(divided)(0))
    eventually(lambda: not connected().query("tasks", 100, ("running",)), "they are cancelled")


def test_ctrl_c_cancels(here: None, tmp_path: Path) -> None:
    ran = threading.Event()

    def interrupt() -> None:
        try:
            eventually(lambda: connected().query("tasks", 100, ("running",)), "it runs")
            ran.set()
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        sender.start()
        dask.delayed(wait_for_file)(str(tmp_path / "never")).compute()
    sender.join()
    assert ran.is_set()
    eventually(lambda: not connected().query("tasks", 100, ("running",)), "it is cancelled")


def test_graphs_that_are_wrong() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        get({"a": 1}, ["a", "nowhere"])
    with pytest.raises(RuntimeError, match=r"cycle: 'b' -> 'a' -> 'b'|cycle: 'a' -> 'b' -> 'a'"):
        get({"a": (increased, "b"), "b": (increased, "a"), "c": (increased, "a")}, "c")
    with pytest.raises(TypeError, match="pickle"):
        get({"a": (id, threading.Lock())}, "a")
    for wrong in ({"num_cpus": -1}, {"num_returns": 2}, {"colour": "blue"}):
        with pytest.raises(zf.OptionError):
            get({"a": (increased, 1)}, "a", options=wrong)


def test_a_batch_whose_worker_dies_runs_again(here: None, tmp_path: Path) -> None:
    def dies_once(number: int) -> int:
        if number == 5 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(1)
        return number

    assert sum(dask.compute(*[dask.delayed(dies_once)(number) for number in range(200)])) == 19900
    assert (tmp_path / "died").exists()
    with pytest.raises(zf.WorkerCrashedError):
        dask.delayed(os._exit)(3).compute(options={"max_retries": 0})


# --- values in the store --------------------------------------------------------------------------------------------------------


def test_persisted_values_stay_in_the_store_and_are_used_from_there(here: None) -> None:
    (x,) = persist(da.ones(400_000, chunks=100_000))
    assert [type(each) for each in x.__dask_graph__().values()] == [StoredValue] * 4
    assert x.sum().compute() == 400_000
    assert (x + 1).compute().sum() == 800_000
    assert x.compute().shape == (400_000,)
    table, bag, number = persist(frame(), words(), dask.delayed(increased)(4))
    assert table.b.sum().compute() == 999 * 500
    assert bag.count().compute() == 5
    assert number.compute() == 5
    made = ray_dask_get({"a": (increased, 1), "b": 3}, ["a", "b"], ray_persist=True)
    assert [zf.get(each.ref) for each in made] == [2, 3]
    assert get({"c": (operator.add, *pickle.loads(pickle.dumps(made)))}, "c") == 5


def test_refs_in_a_graph_stand_for_their_values(here: None) -> None:
    ref = zf.put(5)
    assert get({"a": ref, "b": (increased, "a")}, ["a", "b"]) == (5, 6)
    assert dask.delayed(operator.add)(ref, dask.delayed(increased)(1)).compute() == 7
    array = zf.put(numpy.ones(100))
    for made in (dask.delayed(array), dask.delayed(increased)(array)):
        x = da.from_delayed(made, (100,), float)
        assert (x + 1).sum().compute() in (200, 300)  # Dask fuses it all.


def test_refs_inside_small_values_live_as_long_as_those(here: None) -> None:
    made = [dask.delayed(lambda number: [zf.put(number)])(number) for number in range(200)]
    total = dask.delayed(lambda *refs: sum(zf.get(ref) for (ref,) in refs))
    assert dask.delayed(sum)([total(*made[start : start + 20]) for start in range(0, 200, 20)]).compute() == 19900


def test_values_are_released_when_nothing_needs_them(here: None) -> None:
    def large() -> set[str]:
        return {row["object_id"] for row in connected().query("objects", 1000) if row["size"] >= 800_000}

    before = large()  # Of other tests, which may release them meanwhile.
    (x,) = persist(da.ones(800_000, chunks=100_000))
    stored = {each.ref.hex() for each in x.__dask_graph__().values()}
    assert (len(stored), large() - before) == (8, stored)
    assert x[::-1].rechunk(130_000).sum().compute() == 800_000
    eventually(lambda: large() - before == stored, "what lies between is released")
    del x
    gc.collect()
    eventually(lambda: not large() - before, "and so is the rest")


def test_dasks_own_persist_leaves_values_in_the_store(here: None) -> None:
    """Since Dask 2026.1; older versions fetch them."""
    under_rays_name = da.ones(10).persist(scheduler=ray_dask_get, ray_remote_args={"num_cpus": 1})
    for x in (dask.persist(da.ones(10))[0], da.ones(10).persist(scheduler=get), under_rays_name):
        kinds = {type(each) for each in x.__dask_graph__().values()}
        assert kinds == ({StoredValue} if Version(dask.__version__) >= Version("2026.1") else {numpy.ndarray})
        assert x.sum().compute() == 10


# --- settings -------------------------------------------------------------------------------------------------------------------


def pid(*_: Any) -> int:
    return os.getpid()


def test_how_it_becomes_dasks_scheduler() -> None:
    task = dask.delayed(pid)()
    with dask.config.set(scheduler=get):
        assert task.compute() != os.getpid()
    with enable_dask_on_ray():
        assert dask.config.get("dataframe.shuffle.method") == "tasks"
        assert task.compute() != os.getpid()
    enable_dask_on_zfabric()
    disable_dask_on_zfabric()
    assert task.compute() == os.getpid()
    assert task.compute(scheduler=ray_dask_get, ray_remote_args={"num_cpus": 2}) != os.getpid()


def test_options_are_those_of_the_tasks() -> None:
    held = dask.delayed(lambda: zf.get_runtime_context().get_assigned_resources()["CPU"])()
    assert held.compute(scheduler=get, options={"num_cpus": 2}) == 2


def test_graphs_inside_tasks(here: None) -> None:
    def inner(number: int) -> int:
        found: int = dask.delayed(sum)([dask.delayed(increased)(number) for _ in range(3)]).compute(scheduler=get)
        return found

    assert dask.compute(*[dask.delayed(inner)(number) for number in range(2)]) == (3, 6)


def test_callbacks(here: None) -> None:
    calls: list[Any] = []

    class Noted(Callback):  # type: ignore[misc]
        def _start(self, dsk: Any) -> None:
            calls.append("start")

        def _start_state(self, dsk: Any, state: Any) -> None:
            calls.append(len(state["ready"]) + len(state["waiting"]))

        def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
            calls.append(key)

        def _finish(self, dsk: Any, state: Any, errored: bool) -> None:
            calls.append((len(state["finished"]), errored))

    graph = {"a": 1, "b": (increased, "a"), "c": (increased, "b"), "unused": (increased, "a")}
    with Noted():
        assert get(graph, "c") == 3
    assert calls == ["start", 2, "b", "c", (2, False)]
    with Profiler() as profiler, ProgressBar(out=io.StringIO()):
        assert da.ones(10, chunks=5).sum().compute() == 10
    assert len(profiler.results) > 1
    calls.clear()
    with Noted(), pytest.raises(ZeroDivisionError):
        get({"a": (divided, 0)}, "a")
    assert calls[-1] == (0, True)


def test_on_several_nodes() -> None:
    with zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64 * 2**20) as cluster:
        zf.shutdown()
        with zf.init(cluster.address), enable_dask_on_zfabric():
            for program in (mean_of_a_sum, shuffled):
                assert (program().compute() == program().compute(scheduler="sync")).all(axis=None)
    zf.init(num_cpus=2, log_to_driver=False)


def test_without_dask_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['dask'] = None; import zfabric.util.dask"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert "ImportError: zfabric.util.dask needs Dask 2025.1 or newer: pip install 'zfabric[dask]'" in ran.stderr


# --- which tasks run together ---------------------------------------------------------------------------------------------------


def planned(dsk: dict[str, Any], asked: list[str], seconds: float, size: int = 10, slots: int = 2) -> list[list[str]]:
    """The batches of a graph whose tasks take ``seconds`` and make ``size`` bytes each, one after the other."""
    graph = Graph(dsk, asked)
    planner = Planner(graph, [graph.number(key) for key in asked], slots)
    found = []
    while planner.left:
        batch = planner.next()
        assert batch is not None
        found.append([graph.key(number) for number in batch.tasks])
        kinds = [planner.kind(number) for number in batch.tasks]
        planner.ended(batch, [(kind, 1, seconds, 1, size) for kind in kinds])
    assert planner.next() is None
    assert sorted(key for keys in found for key in keys) == sorted(key for key in dsk if not isinstance(dsk[key], int))
    return found


def test_short_tasks_run_together_and_long_ones_do_not() -> None:
    dsk = {f"x-{number}": (increased, number) for number in range(400)}
    short, long = planned(dsk, [*dsk], 1e-5), planned(dsk, [*dsk], 1.0)
    assert len(short[0]) == 1
    assert len(short[1]) == 100
    assert len(short) < 30
    assert {len(keys) for keys in long} == {1}


def test_what_makes_much_data_runs_alone() -> None:
    dsk = {f"x-{number}": (increased, number) for number in range(50)}
    assert {len(keys) for keys in planned(dsk, [*dsk], 1e-5, 2**30)} == {1}


def test_chains_run_together_however_long_their_tasks_take() -> None:
    dsk = {"x-0": (increased, 1), **{f"x-{number}": (increased, f"x-{number - 1}") for number in range(1, 50)}}
    assert planned(dsk, ["x-49"], 1.0) == [[f"x-{number}" for number in range(50)]]


def test_batches_go_depth_first() -> None:
    """A tree is reduced while it grows, so that few values exist at a time."""
    dsk: dict[str, Any] = {f"leaf-{number}": (increased, number) for number in range(64)}
    dsk.update({f"sum-{number}": (sum, [f"leaf-{number * 4 + each}" for each in range(4)]) for number in range(16)})
    order = [key for keys in planned(dsk, [f"sum-{number}" for number in range(16)], 0.004, slots=1) for key in keys]
    made = 0
    for key in order:
        made += 1 if key.startswith("leaf") else -4
        assert made <= 8


def test_parts_of_a_value_are_taken_where_it_is_made() -> None:
    dsk = {"split-0": (increased, 1), **{f"part-{number}": (operator.getitem, "split-0", number) for number in range(20)}}
    assert [len(keys) for keys in planned(dsk, [key for key in dsk if key != "split-0"], 1.0)] == [21]


def test_values_that_the_same_tasks_need_are_stored_together() -> None:
    dsk: dict[str, Any] = {f"x-{number}": (increased, number) for number in range(90)}
    dsk.update({f"sum-{number}": (sum, [f"x-{each}" for each in range(number, 90, 3)]) for number in range(3)})
    graph = Graph(dsk, ["sum-0", "sum-1", "sum-2"])
    planner = Planner(graph, [], 1)
    first = planner.next()
    assert first is not None
    planner.ended(first, [(planner.kind(first.tasks[0]), 1, 1e-5, 1, 10)])
    second = planner.next()
    assert second is not None
    users = [{int(graph.key(number)[2:]) % 3 for number in group} for group in second.groups]
    assert sum(map(len, users)) <= len(users) + 2


def test_a_batch_has_an_end() -> None:
    dsk = {"x-0": (increased, 1), **{f"x-{number}": (increased, f"x-{number - 1}") for number in range(1, 5000)}}
    assert max(len(keys) for keys in planned(dsk, ["x-4999"], 0.0)) <= TASKS_MAX
