"""Globals that an initializer sets are seen by functions in the same process, as in the standard library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import one_cluster
from faults import PATIENCE

import zfabric as zf
from zfabric.util import initializers
from zfabric.util.multiprocessing import Pool

SCRIPT = """
import functools

model = None
table = {}
calls = 0

def initialize(scale):
    global model
    model = scale
    table["offset"] = 1
    further()

def further():
    global predict
    predict = lambda x: model * x + table["offset"]

def helper(x):
    return predict(x)

def work(x):
    return helper(x)

def two(x, y):
    return helper(x) + y

def counted(x):
    global model
    model += 1
    return model

def decorator(function):
    @functools.wraps(function)
    def around(x):
        return function(x)
    return around

@decorator
def decorated(x):
    return helper(x)

@functools.cache
def cached(x):
    return helper(x)

class Model:
    def __init__(self, x=0):
        self.value = helper(x) if x else 0
    def __call__(self, x):
        return helper(x)
    def method(self, x):
        return helper(x)

def value(x):
    return Model(x).value
"""


shared = one_cluster()


@pytest.fixture
def script() -> dict[str, Any]:
    """The names of a program: its functions travel by value, as those of ``__main__`` do."""
    names: dict[str, Any] = {"__name__": "a_script"}
    exec(SCRIPT, names)
    return names


Run = Callable[[Any, int], Any]


@pytest.fixture(params=["pool", "executor"])
def run(request: pytest.FixtureRequest, script: dict[str, Any]) -> Iterator[Run]:
    """Calls functions in the one process of a pool, or of an executor, whose initializer has run there."""
    if request.param == "pool":
        with Pool(1, script["initialize"], (10,)) as pool:
            yield lambda function, x: pool.apply_async(function, (x,)).get(PATIENCE)
    else:
        with zf.Executor(1, initializer=script["initialize"], initargs=(10,)) as executor:
            yield lambda function, x: executor.submit(function, x).result(PATIENCE)


def test_functions_of_a_script_see_what_its_initializer_has_set(run: Run, script: dict[str, Any]) -> None:
    instance = script["Model"]()
    twice = functools.partial(script["two"], 2)
    functions = [
        *(script[name] for name in ("work", "decorated", "cached", "value")),
        instance,
        instance.method,
        eval("lambda x: work(x)", script),
    ]
    assert [run(function, 2) for function in functions] == [21] * len(functions)
    assert run(twice, 3) == 24


def test_globals_that_a_function_sets_are_seen_by_the_next_call(script: dict[str, Any]) -> None:
    with Pool(1, script["initialize"], (10,)) as pool:
        assert pool.map(script["counted"], range(3), chunksize=1) == [11, 12, 13]
        assert pool.apply(script["work"], (1,)) == 14
    with Pool(1, script["initialize"], (20,)) as pool:
        assert pool.apply(script["work"], (1,)) == 21


def test_a_map_in_chunks_sees_what_the_initializer_set(script: dict[str, Any]) -> None:
    with zf.Executor(1, initializer=script["initialize"], initargs=(10,)) as executor:
        assert executor.submit(abs, -1).result(PATIENCE) == 1
        assert list(executor.map(script["work"], range(3), chunksize=2)) == [1, 11, 21]


LAZY = """
import functools

model = None
loads = 0

def predict(x):
    global model, loads
    if model is None:
        model, loads = 10, loads + 1
    return loads, model * x

@functools.cache
def cached(x):
    return x

def looked_up(x):
    cached(x)
    return cached.cache_info().misses

class Counter:
    count = 0
    def next(self, _):
        self.count += 1
        return self.count
"""


def test_a_process_of_a_pool_loads_a_function_once_so_that_its_globals_and_caches_stay() -> None:
    names: dict[str, Any] = {"__name__": "a_script"}
    exec(LAZY, names)
    with Pool(1) as pool:
        assert pool.map(names["predict"], range(3), chunksize=1) == [(1, 0), (1, 10), (1, 20)]
        assert pool.map(functools.partial(names["predict"]), [3]) == [(1, 30)]
        assert pool.map(names["looked_up"], [1, 1, 2], chunksize=1) == [1, 1, 2]
        assert pool.map(names["Counter"]().next, range(3), chunksize=1) == [1, 1, 1]
        names["model"] = 7
        assert pool.apply(names["predict"], (1,)) == (0, 7)


def test_refs_in_a_function_of_a_pool_are_counted_while_it_is_on_its_way() -> None:
    ref = zf.put("kept")
    with Pool(1) as pool:
        result = (
            pool.apply_async(lambda held: zf.get(held), (ref,)),
            pool.apply_async(eval("lambda ref: lambda: zf.get(ref)", {"zf": zf})(ref)),
        )
        del ref
        assert [each.get(PATIENCE) for each in result] == ["kept", "kept"]


def test_names_missing_from_the_pool_module_are_located() -> None:
    from zfabric.util import multiprocessing

    with pytest.raises(AttributeError, match="take Manager from multiprocessing"):
        _ = multiprocessing.Manager
    with pytest.raises(AttributeError, match=r"no attribute 'Poll'$"):
        _ = multiprocessing.Poll


def test_functions_of_importable_modules_are_left_alone() -> None:
    assert initializers.namespaces(functools.partial(functools.wraps, pytest.fixture)) == {}
    assert initializers.run(functools.wraps, (abs,)).names == {}


def test_a_variable_of_a_closure_without_a_value_is_passed_over() -> None:
    def closed() -> Any:
        return later

    assert initializers.namespaces(closed) == {}
    later = 1
    assert closed() == 1
