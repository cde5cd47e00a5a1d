"""What is done to a system to measure it: written once, with names most of them share, and run on zfabric and on its peers.

A workload takes the system and a size and returns one sample. Nothing heavy is imported here, so that the system's own imports
are its own. Functions that run as tasks stand at module level: every system can pass those on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from perf.peers import System

MB = 10**6
TREE_LEAVES_PER_TASKS = 2
"""A binary tree of n tasks has about half of them as leaves."""
NESTED_PARENTS = 4
PASS_BYTES = 256 * MB
"""What one pass of large puts writes: several times the last-level cache of most machines."""


class Workload(NamedTuple):
    """A workload, its size on zfabric, its size for a run that only shows that it works, and its size on each peer that can do it."""

    run: Callable[[System, int], float]
    size: int
    quick: int
    peers: Mapping[str, int] = {}
    cold: bool = False
    """Whether it needs no warm-up."""
    nodes: bool = False
    """Whether it needs a cluster of two nodes, on the second of which ``System.remote`` runs everything."""


def nothing(*arguments: Any) -> None:
    """The no-op task."""


def successor(value: int) -> int:
    """One more."""
    return value + 1


def total(left: int, right: int) -> int:
    """The sum of two."""
    return left + right


# --- tasks ------------------------------------------------------------------------------------------------------------------


def tasks_async(system: System, count: int) -> float:
    """No-op tasks a second, all submitted before the first value is waited for."""
    remote = system.remote(nothing)
    begin = time.perf_counter()
    system.get([remote.remote() for _ in range(count)])
    return count / (time.perf_counter() - begin)


def tasks_sync(system: System, count: int) -> float:
    """One no-op task after the other, µs each."""
    remote = system.remote(nothing)
    begin = time.perf_counter()
    for _ in range(count):
        system.get(remote.remote())
    return (time.perf_counter() - begin) / count * 1e6


def args_8kb(system: System, count: int) -> float:
    """Tasks a second with 8 kB of bytes as their argument, each its own."""
    remote = system.remote(nothing)
    payload = bytes(8000)
    begin = time.perf_counter()
    system.get([remote.remote(payload) for _ in range(count)])
    return count / (time.perf_counter() - begin)


def args_ref_1mb(system: System, count: int) -> float:
    """Tasks a second with the same stored array of 1 MB as their argument."""
    remote = system.remote(nothing)
    ref = system.put(_array(MB))
    begin = time.perf_counter()
    system.get([remote.remote(ref) for _ in range(count)])
    return count / (time.perf_counter() - begin)


def chain(system: System, count: int) -> float:
    """Tasks a second where each takes the value of the one before."""
    remote = system.remote(successor)
    begin = time.perf_counter()
    ref: Any = 0
    for _ in range(count):
        ref = remote.remote(ref)
    _expect(system.get(ref), count)
    return count / (time.perf_counter() - begin)


def reduce_tree(system: System, count: int) -> float:
    """Tasks a second of a binary tree that adds up its leaves."""
    leaf, node = system.remote(successor), system.remote(total)
    leaves = (count + 1) // TREE_LEAVES_PER_TASKS
    begin = time.perf_counter()
    refs = [leaf.remote(number) for number in range(leaves)]
    while len(refs) > 1:
        odd = refs[len(refs) & ~1 :]
        refs = [node.remote(refs[index], refs[index + 1]) for index in range(0, len(refs) - 1, 2)] + odd
    _expect(system.get(refs[0]), leaves * (leaves + 1) // 2)
    return (2 * leaves - 1) / (time.perf_counter() - begin)


def nested(system: System, count: int) -> float:
    """Tasks a second, counting those that four tasks start and wait for."""
    parent = system.remote(system.nested_parent)
    begin = time.perf_counter()
    system.get([parent.remote(count // NESTED_PARENTS) for _ in range(NESTED_PARENTS)])
    return (count + NESTED_PARENTS) / (time.perf_counter() - begin)


def wait_one_at_a_time(system: System, count: int) -> float:
    """Refs a second, from the submission of their tasks on, where each call of ``wait`` takes one out of the rest."""
    remote = system.remote(nothing)
    begin = time.perf_counter()
    refs = [remote.remote() for _ in range(count)]
    while refs:
        _, refs = system.wait(refs, num_returns=1)
    return count / (time.perf_counter() - begin)


def recursion(system: System, number: int) -> float:
    """fib(number) where every call is a task that waits for the two it starts, in seconds."""
    fib = system.remote(system.fib)
    begin = time.perf_counter()
    _expect(system.get(fib.remote(number)), fibonacci(number))
    return time.perf_counter() - begin


def fibonacci(number: int) -> int:
    """The ``number``-th Fibonacci number."""
    before, value = 1, 0
    for _ in range(number):
        before, value = value, before + value
    return value


def _expect(found: object, expected: object) -> None:
    if found != expected:
        raise RuntimeError(f"the system answered {found!r} where {expected!r} is right: its speed means nothing")


# --- actors -----------------------------------------------------------------------------------------------------------------


class Silent:
    """An actor that does nothing."""

    def nothing(self, *arguments: Any) -> None:
        """The no-op method."""


class Count:
    """A counter."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        """The new value."""
        self.value += amount
        return self.value

    def pid(self) -> int:
        """Where it lives."""
        return os.getpid()


class Caller:
    """An actor that calls another."""

    def __init__(self, other: Any, get: Any) -> None:
        self.other = other
        self.get = get

    def call(self, count: int) -> None:
        """Call it so often, and wait for all of it."""
        self.get([self.other.nothing.remote() for _ in range(count)])


def _actor(system: System) -> Any:
    """An actor that is there."""
    actor = system.remote(Silent).remote()
    system.get(actor.nothing.remote())
    return actor


def actor_sync(system: System, count: int) -> float:
    """One call of an actor after the other, µs each; not the first ones, while another worker starts in place of the one it took."""
    actor = _actor(system)
    for _ in range(count // 10):
        system.get(actor.nothing.remote())
    begin = time.perf_counter()
    for _ in range(count):
        system.get(actor.nothing.remote())
    return (time.perf_counter() - begin) / count * 1e6


def calls_in_turn(system: System, counter: Any, count: int) -> float:
    """Calls of a counter one after the other, µs each."""
    begin = time.perf_counter()
    for _ in range(count):
        system.get(counter.add.remote(1))
    return (time.perf_counter() - begin) / count * 1e6


def calls_at_once(system: System, counter: Any, count: int) -> float:
    """Calls of a counter a second, all made before the first value is waited for."""
    begin = time.perf_counter()
    system.get([counter.add.remote(1) for _ in range(count)])
    return count / (time.perf_counter() - begin)


def actor_async(system: System, count: int) -> float:
    """Calls of one actor a second, all made before the first value is waited for."""
    actor = _actor(system)
    begin = time.perf_counter()
    system.get([actor.nothing.remote() for _ in range(count)])
    return count / (time.perf_counter() - begin)


def actor_args_8kb(system: System, count: int) -> float:
    """The same with 8 kB of bytes as their argument."""
    actor, payload = _actor(system), bytes(8000)
    begin = time.perf_counter()
    system.get([actor.nothing.remote(payload) for _ in range(count)])
    return count / (time.perf_counter() - begin)


def actor_n_n(system: System, count: int) -> float:
    """Calls a second that two actors make of two others, each of one of its own."""
    callers = [system.remote(Caller).remote(_actor(system), system.get) for _ in range(2)]
    system.get([caller.call.remote(1) for caller in callers])
    begin = time.perf_counter()
    system.get([caller.call.remote(count // 2) for caller in callers])
    return count / (time.perf_counter() - begin)


def actor_create(system: System, count: int) -> float:
    """One actor after the other, from its creation to the value of its first call, ms each."""
    kind = system.remote(Silent)
    actors = []
    begin = time.perf_counter()
    for _ in range(count):
        actors.append(kind.remote())
        system.get(actors[-1].nothing.remote())
    return (time.perf_counter() - begin) / count * 1e3


def actor_create_light(system: System, count: int) -> float:
    """Actors that share processes, all made and then called at once, ms each until the last has answered."""
    kind = system.remote(Count).options(lightweight=True)
    begin = time.perf_counter()
    counters = [kind.remote() for _ in range(count)]
    _expect(sum(system.get([counter.add.remote(1) for counter in counters])), count)
    return (time.perf_counter() - begin) / count * 1e3


# --- values -----------------------------------------------------------------------------------------------------------------


def put_small(system: System, count: int) -> float:
    """Puts a second of a small value; all refs are kept."""
    begin = time.perf_counter()
    refs = [system.put(number) for number in range(count)]
    seconds = time.perf_counter() - begin
    _expect(system.get(refs[-1]), count - 1)
    return count / seconds


def get_small(system: System, count: int) -> float:
    """Gets a second of a small value that was got before."""
    ref = system.put(17)
    system.get(ref)
    begin = time.perf_counter()
    for _ in range(count):
        system.get(ref)
    return count / (time.perf_counter() - begin)


def put_large(megabytes: int, system: System, passes: int) -> float:
    """GB/s at which arrays of one size are put, the last pass of several; before each, all that was put is gone again."""
    piece = _array(megabytes * MB)
    rate = 0.0
    for _ in range(passes):
        rate = put_pass(system, piece)
        system.settle()
    return rate


def put_pass(system: System, piece: Any, total_bytes: int = PASS_BYTES) -> float:
    """GB/s of one pass; nothing of it is kept."""
    count = max(1, total_bytes // piece.nbytes)
    refs = []
    begin = time.perf_counter()
    for _ in range(count):
        refs.append(system.put(piece))
    seconds = time.perf_counter() - begin
    del refs[:]
    return float(count * piece.nbytes / seconds / 1e9)


def get_large(megabytes: int, system: System, count: int) -> float:
    """A stored array read again and again, µs each."""
    ref = system.put(_array(megabytes * MB))
    system.get(ref)
    begin = time.perf_counter()
    for _ in range(count):
        system.get(ref)
    return (time.perf_counter() - begin) / count * 1e6


def _array(size: int) -> Any:
    import numpy

    return numpy.ones(size, numpy.uint8)


# --- values of another node ---------------------------------------------------------------------------------------------------


def made(megabytes: int) -> Any:
    """An array, on the node where this runs."""
    return _array(megabytes * MB)


def last_bytes(*arrays: Any) -> int:
    """The sum of the last byte of each array, which all have to be here for that."""
    return sum(int(array[-1]) for array in arrays)


def moved(megabytes: int, system: System, count: int) -> float:
    """MB/s at which arrays of one size get from the second node to a task on the first, several under way."""
    make, there, here = system.remote(made), system.remote(last_bytes), system.here(last_bytes)
    refs = [make.remote(megabytes) for _ in range(count)]
    _expect(system.get(there.remote(*refs)), count)
    begin = time.perf_counter()
    _expect(system.get(here.remote(*refs)), count)
    return count * megabytes / (time.perf_counter() - begin)


# --- a cluster that does nothing ----------------------------------------------------------------------------------------------


def idle_memory(system: System, seconds: int) -> float:
    """Unique memory of the system's processes some seconds after it ran a few tasks, in MiB, the driver not counted."""
    from perf import machine

    tasks_async(system, 100)
    time.sleep(seconds)  # systems may give memory back after a while
    return sum(map(machine.unique_bytes, system.processes())) / machine.MiB


def idle_cpu(system: System, seconds: int) -> float:
    """CPU time of the system's processes while nothing is asked of it, in percent of a core."""
    from perf import machine

    tasks_async(system, 100)
    time.sleep(min(seconds, 2))  # until what the tasks caused is over
    pids = system.processes()
    before = machine.cpu_seconds_fine(pids)
    time.sleep(seconds)  # what is measured
    return (machine.cpu_seconds_fine(pids) - before) / seconds * 100


# --- scikit-learn, by joblib --------------------------------------------------------------------------------------------------------


def fitted(system: System, estimator: Any) -> float:
    """Seconds that an estimator takes to fit scikit-learn's digits."""
    import joblib
    from sklearn.datasets import load_digits

    data, target = load_digits(return_X_y=True)
    with joblib.parallel_config(**system.joblib):
        begin = time.perf_counter()
        estimator.fit(data, target)
        return time.perf_counter() - begin


def grid_search(system: System, candidates: int) -> float:
    """Seconds for a grid search over so many support vector machines, three times each."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    return fitted(system, GridSearchCV(SVC(gamma=0.001), {"C": [1.0 + number for number in range(candidates)]}, cv=3))


def forest(system: System, trees: int) -> float:
    """Seconds for a random forest of so many trees."""
    from sklearn.ensemble import RandomForestClassifier

    return fitted(system, RandomForestClassifier(trees, random_state=0))


def forest_search(system: System, trees: int) -> float:
    """Seconds for a grid search over six random forests of so many trees, three times each: calls of joblib inside its calls."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV

    grid = {"max_depth": [4, 8, None], "max_features": [4, 8]}
    return fitted(system, GridSearchCV(RandomForestClassifier(trees, random_state=0), grid, cv=3))


# --- graphs of Dask ---------------------------------------------------------------------------------------------------------------


def split(value: int, parts: int) -> dict[int, int]:
    """So many parts of a value, each the value itself."""
    return dict.fromkeys(range(parts), value)


def part_of(parts: dict[int, int], number: int) -> int:
    """One of them."""
    return parts[number]


def graph_of_a_tree(leaves: int) -> tuple[dict[Any, Any], Any]:
    """A graph that adds numbers in pairs, and the key of their sum."""
    graph: dict[Any, Any] = {("sum", 0, place): (successor, place) for place in range(leaves)}
    level, width = 0, leaves
    while width > 1:
        pairs = [[("sum", level, place) for place in (2 * pair, 2 * pair + 1) if place < width] for pair in range((width + 1) // 2)]
        graph.update({("sum", level + 1, place): (sum, pair) for place, pair in enumerate(pairs)})
        level, width = level + 1, len(pairs)
    return graph, ("sum", level, 0)


def graph_of_a_shuffle(branches: int) -> tuple[dict[Any, Any], Any]:
    """A graph of the shape of a data frame's shuffle by tasks, with ``branches`` ** 2 partitions in two stages, and the key of the end."""
    places = [(left, right) for left in range(branches) for right in range(branches)]
    graph: dict[Any, Any] = {("made", *place): (successor, 1) for place in places}
    before = "made"
    for stage in range(2):
        for place in places:
            graph["split", stage, *place] = (split, (before, *place), branches)
            for number in range(branches):
                graph["part", stage, number, *place] = (part_of, ("split", stage, *place), number)
            sources = [(each, place[1]) if stage == 0 else (place[0], each) for each in range(branches)]
            graph[f"joined-{stage}", *place] = (max, [("part", stage, place[stage], *source) for source in sources])
        before = f"joined-{stage}"
    graph["end"] = (len, [(before, *place) for place in places])
    return graph, "end"


def graph_tasks(make: Callable[[int], tuple[dict[Any, Any], Any]], system: System, size: int) -> float:
    """Tasks of a graph a second, from the materialised graph to its one value."""
    from dask._task_spec import convert_legacy_graph

    graph, key = make(size)
    graph = convert_legacy_graph(graph)
    begin = time.perf_counter()
    system.graph(graph, key)
    return len(graph) / (time.perf_counter() - begin)


LARGE_MEGABYTES = (1, 16, 100)

WORKLOADS: dict[str, Workload] = {
    "tasks_async": Workload(tasks_async, 100_000, 1_000, {"ray": 5_000, "pool": 10_000, "dask": 1_000}),
    "tasks_sync": Workload(tasks_sync, 3_000, 50, {"ray": 500, "pool": 1_000, "dask": 100}),
    "args_8kb": Workload(args_8kb, 20_000, 200, {"ray": 2_000, "pool": 5_000, "dask": 500}),
    "args_ref_1mb": Workload(args_ref_1mb, 20_000, 200, {"ray": 2_000}),
    "chain": Workload(chain, 5_000, 50, {"ray": 1_000, "dask": 300}),
    "reduce_tree": Workload(reduce_tree, 2_047, 31, {"ray": 2_047, "dask": 511}),
    "nested": Workload(nested, 800, 40, {"ray": 800}),
    "wait_one_at_a_time": Workload(wait_one_at_a_time, 1_000, 50, {"ray": 1_000}),
    "put_small": Workload(put_small, 50_000, 200, {"ray": 2_000}),
    "get_small": Workload(get_small, 100_000, 500, {"ray": 10_000}),
    "recursion": Workload(recursion, 18, 6),
    "actor_sync": Workload(actor_sync, 3_000, 50, {"ray": 500}),
    "actor_async": Workload(actor_async, 100_000, 500, {"ray": 5_000}),
    "actor_args_8kb": Workload(actor_args_8kb, 20_000, 200, {"ray": 2_000}),
    "actor_n_n": Workload(actor_n_n, 40_000, 200, {"ray": 5_000}),
    "actor_create": Workload(actor_create, 20, 2, {"ray": 5}),
    "actor_create_light": Workload(actor_create_light, 5_000, 20),
    "idle_memory": Workload(idle_memory, 2, 1, {"ray": 2, "dask": 2, "pool": 2}, True),
    "idle_cpu": Workload(idle_cpu, 10, 1, {"ray": 10, "dask": 10, "pool": 10}, True),
    "grid_search": Workload(grid_search, 20, 2, {"dask": 20}),
    "forest": Workload(forest, 400, 10, {"dask": 400}),
    "forest_search": Workload(forest_search, 10, 2, {"dask": 10}),
    "graph_tree": Workload(partial(graph_tasks, graph_of_a_tree), 50_000, 100, {"dask": 50_000}),
    "graph_shuffle": Workload(partial(graph_tasks, graph_of_a_shuffle), 36, 4, {"dask": 36}),
    "elsewhere_async": Workload(tasks_async, 50_000, 200, {"ray": 5_000, "dask": 1_000}, nodes=True),
    "elsewhere_sync": Workload(tasks_sync, 2_000, 20, {"ray": 500, "dask": 100}, nodes=True),
    "elsewhere_actor_async": Workload(actor_async, 50_000, 200, {"ray": 5_000}, nodes=True),
    "elsewhere_actor_sync": Workload(actor_sync, 2_000, 20, {"ray": 500}, nodes=True),
    "moved_1mb": Workload(partial(moved, 1), 64, 2, {"ray": 64, "dask": 64}, nodes=True),
    "moved_16mb": Workload(partial(moved, 16), 16, 1, {"ray": 16, "dask": 16}, nodes=True),
    **{f"put_{size}mb": Workload(partial(put_large, size), 3, 1, {"ray": 3}) for size in LARGE_MEGABYTES},
    **{f"get_{size}mb": Workload(partial(get_large, size), 1_000, 20, {"ray": 1_000}) for size in LARGE_MEGABYTES},
}
"""By name. The sizes keep a sample between a tenth of a second and a few seconds on every system."""
