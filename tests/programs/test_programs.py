"""Ordinary programs, run from files with ``import zfabric as ray``; and the effect of options on tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually, failure, kill_daemon, query, worker_rows
from files import wait_for_file

import zfabric as zf

# --- programs ---------------------------------------------------------------------------------------------------------------------


def run_program(tmp_path: Path, text: str, *arguments: str) -> str:
    """Run a program from a file of its own, as a user does; its output."""
    path = tmp_path / "program.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=2 * PATIENCE, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wait_counts_a_large_value_once_it_is_here(cluster: Any) -> None:
    cluster()

    @zf.remote
    def large(number: int) -> Any:
        return np.full(200_000, number)

    refs = [large.remote(number) for number in range(4)]
    ready, rest = zf.wait(refs, num_returns=4, timeout=60)
    assert (len(ready), rest) == (4, [])
    assert [int(array[0]) for array in zf.get(ready)] == [0, 1, 2, 3]


def test_monte_carlo_pi_with_progress(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        """
import random
import time
import zfabric as ray

ray.init(num_cpus=2)

@ray.remote
def sampling_task(num_samples: int, task_id: int) -> int:
    num_inside = 0
    rng = random.Random(task_id)
    for i in range(num_samples):
        x, y = rng.uniform(-1, 1), rng.uniform(-1, 1)
        if x * x + y * y <= 1:
            num_inside += 1
    return num_inside

NUM_TASKS, SAMPLES = 20, 20_000
results = [sampling_task.remote(SAMPLES, i) for i in range(NUM_TASKS)]
remaining, done = results, 0
while remaining:
    ready, remaining = ray.wait(remaining, num_returns=1)
    done += len(ready)
    print(f"Progress: {done / NUM_TASKS:.0%}")
total = sum(ray.get(results))
print("pi:", round(total * 4 / (NUM_TASKS * SAMPLES), 2))
ray.shutdown()
""",
    )
    assert "Progress: 100%" in output
    assert "pi: 3.14" in output or "pi: 3.13" in output or "pi: 3.15" in output


def test_map_reduce_word_count(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        """
import collections
import zfabric as ray

TEXT = ["the quick brown fox", "jumps over the lazy dog", "the end"] * 50
ray.init()

def mapper_key(word):
    return ord(word[0])

@ray.remote(num_returns=3)
def apply_map(corpus, num_partitions=3):
    parts = [collections.Counter() for _ in range(num_partitions)]
    for document in corpus:
        for word in document.split():
            parts[mapper_key(word) % num_partitions][word] += 1
    return parts

@ray.remote
def apply_reduce(*results):
    total = collections.Counter()
    for result in results:
        total.update(result)
    return total

chunks = [TEXT[i::5] for i in range(5)]
map_results = [apply_map.remote(chunk) for chunk in chunks]
outputs = [apply_reduce.remote(*[partition[i] for partition in map_results]) for i in range(3)]
counts = collections.Counter()
for output in ray.get(outputs):
    counts.update(output)
print(counts.most_common(1)[0], len(counts), sum(counts.values()))
""",
    )
    assert "('the', 150) 9 550" in output


def test_parameter_sweep_with_a_wait_loop_that_keeps_a_bounded_number_in_flight(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        """
import itertools
import cloudpickle
import numpy as np
import zfabric as ray

@ray.remote
def evaluate(data, rate, depth):
    x = np.asarray(data)
    return {"rate": rate, "depth": depth, "loss": float(((x * rate - depth) ** 2).mean())}

if __name__ == "__main__":
    with ray.init(num_cpus=2, include_dashboard=False):
        data = ray.put(np.linspace(0, 1, 200_000))
        grid = itertools.product([0.1, 0.5, 1.0, 2.0], [0, 1, 2, 3, 4])
        in_flight, results = [], []
        for rate, depth in grid:
            if len(in_flight) >= 4:
                done, in_flight = ray.wait(in_flight)
                results.extend(ray.get(done))
            in_flight.append(evaluate.remote(data, rate, depth=depth))
        results.extend(ray.get(in_flight))
        best = min(results, key=lambda result: result["loss"])
        print(len(results), best["rate"], best["depth"])
""",
    )
    assert "20 0.1 0" in output


def test_tree_reduce_of_arrays(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        """
import cloudpickle
import numpy as np
import zfabric as ray

ray.init(num_cpus=2, object_store_memory=256 * 1024 * 1024)

@ray.remote
def create_matrix(size, seed):
    return np.random.default_rng(seed).normal(size=size)

@ray.remote
def add(x, y):
    assert not x.flags.writeable
    return x + y

parts = [create_matrix.remote([200, 200], i) for i in range(32)]
expected = sum(ray.get(parts))
while len(parts) > 1:
    parts = parts[2:] + [add.remote(parts[0], parts[1])]
print(np.allclose(ray.get(parts[0]), expected), ray.get(parts[0]).shape)
""",
    )
    assert "True (200, 200)" in output


def test_pipeline_over_one_large_array_and_views_of_it(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        """
import time
import cloudpickle
import numpy as np
import zfabric as ray

ray.init(num_cpus=2)
image = np.arange(4_000_000, dtype=np.float64).reshape(2000, 2000)
image_ref = ray.put(image)

@ray.remote
def rows(image, start, stop):
    return image[start:stop]

@ray.remote
def smooth(block):
    block = block.copy()
    block[1:] += block[:-1]
    return block

@ray.remote
def total(block):
    return block.sum()

stages = [total.remote(smooth.remote(rows.remote(image_ref, i, i + 500))) for i in range(0, 2000, 500)]
got = sum(ray.get(stages))
expected = 0.0
for i in range(0, 2000, 500):
    block = image[i:i + 500].copy()
    block[1:] += block[:-1]
    expected += block.sum()
view = ray.get(image_ref)
first = view[0]
del view, image_ref
print(got == expected, first[5], first.flags.writeable)
""",
    )
    assert "True 5.0 False" in output


def test_nested_parallel_quicksort_and_mergesort(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        """
import random
import zfabric as ray

def partition(collection):
    pivot = collection.pop()
    greater, lesser = [], []
    for element in collection:
        (greater if element > pivot else lesser).append(element)
    return lesser, pivot, greater

def quick_sort(collection):
    if len(collection) <= 200:
        return sorted(collection)
    lesser, pivot, greater = partition(collection)
    return quick_sort(lesser) + [pivot] + quick_sort(greater)

@ray.remote
def quick_sort_distributed(collection):
    if len(collection) <= 200:
        return sorted(collection)
    lesser, pivot, greater = partition(collection)
    lesser = quick_sort_distributed.remote(lesser)
    greater = quick_sort_distributed.remote(greater)
    return ray.get(lesser) + [pivot] + ray.get(greater)

@ray.remote
def merge_sort(items):
    if len(items) <= 300:
        return sorted(items)
    middle = len(items) // 2
    left, right = ray.get([merge_sort.remote(items[:middle]), merge_sort.remote(items[middle:])])
    merged = []
    while left and right:
        merged.append(left.pop() if left[-1] > right[-1] else right.pop())
    return left + right + merged[::-1]

random.seed(1)
numbers = [random.randint(0, 10**6) for _ in range(20_000)]
ray.init(num_cpus=2)
print(ray.get(quick_sort_distributed.remote(numbers[:])) == sorted(numbers), ray.get(merge_sort.remote(numbers)) == sorted(numbers))
""",
    )
    assert "True True" in output


def test_a_flaky_function_with_retries_and_except_clauses(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        """
import os
import random
import sys
import zfabric as ray

class TransientError(Exception):
    pass

@ray.remote(max_retries=10, retry_exceptions=[TransientError])
def flaky(index, directory):
    path = f"{directory}/tries-{index}"
    tries = os.path.getsize(path) if os.path.exists(path) else 0
    with open(path, "a") as file:
        file.write("x")
    if tries < index % 4:
        raise TransientError(f"try {tries}")
    return tries

@ray.remote(max_retries=2)
def crash():
    sys.exit(0) if False else os._exit(1)

@ray.remote
def divide(x, y):
    return x / y

ray.init(num_cpus=2)
print(ray.get([flaky.remote(i, sys.argv[1]) for i in range(12)]))
try:
    ray.get(crash.remote())
except ray.exceptions.WorkerCrashedError as error:
    print("crashed")
try:
    ray.get(divide.remote(1, 0))
except ZeroDivisionError as error:
    print("divided", isinstance(error, ray.exceptions.RayTaskError))
try:
    ray.get(divide.remote(1, 0))
except ray.exceptions.RayTaskError as error:
    print("cause", type(error.cause).__name__)
""",
        str(tmp_path),
    )
    assert "[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]" in output
    assert "crashed" in output
    assert "divided True" in output
    assert "cause ZeroDivisionError" in output


def test_batch_prediction_with_a_model_from_main_and_no_main_guard(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        """
import dataclasses
import cloudpickle
import numpy as np
import zfabric as ray

@dataclasses.dataclass
class Batch:
    number: int
    rows: np.ndarray

class Model:
    def __init__(self, weights):
        self.weights = weights
    def __call__(self, batch: Batch) -> "Prediction":
        return Prediction(batch.number, batch.rows @ self.weights)

@dataclasses.dataclass
class Prediction:
    number: int
    values: np.ndarray

@ray.remote
def predict(model: Model, batch: Batch) -> Prediction:
    return model(batch)

model = ray.put(Model(np.arange(8.0)))
batches = [Batch(i, np.full((1000, 8), i)) for i in range(20)]
predictions = ray.get([predict.remote(model, batch) for batch in batches])
print(all(isinstance(p, Prediction) and (p.values == p.number * 28.0).all() for p in predictions), len(predictions))
square = ray.remote(lambda x: x * x)
offset = 10
def shifted(x):
    return x + offset
print(sum(ray.get([square.remote(x) for x in range(10)])), ray.get(ray.remote(shifted).remote(5)))
print(ray.is_initialized())
""",
    )
    assert "True 20" in output
    assert "285 15" in output


def test_an_awaiting_program_and_a_future(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        """
import asyncio
import concurrent.futures
import zfabric as ray

@ray.remote
def work(x):
    return x + 1

async def main():
    first = await work.remote(1)
    rest = await asyncio.gather(*[work.remote(x) for x in range(50)])
    done, _ = await asyncio.wait([asyncio.ensure_future(asyncio.wrap_future(work.remote(5).future()))])
    return first, sum(rest), done.pop().result()

ray.init(num_cpus=2)
print(asyncio.run(main()))
print(sorted(future.result() for future in concurrent.futures.as_completed([work.remote(i).future() for i in range(5)])))
""",
    )
    assert "(2, 1275, 6)" in output
    assert "[1, 2, 3, 4, 5]" in output


# --- output -------------------------------------------------------------------------------------------------------------------------


NOTEBOOK = """
import ast, asyncio, inspect, sys

def kernel(cells):
    main = sys.modules["__main__"]
    del main.__file__

    async def run():
        for number, cell in enumerate(cells):
            running = eval(compile(cell, f"<cell {number}>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), main.__dict__)
            if inspect.iscoroutine(running):
                await running

    asyncio.run(run())

kernel([
'import zfabric as zf; zf.init(num_cpus=2)',
'''
class Point:
    scale = 1
    def __init__(self, x): self.x = x * self.scale

@zf.remote
def move(point, by): return Point(point.x + by)
''',
'print(type(zf.get(move.remote(Point(1), 2))) is Point, zf.get(move.remote(Point(1), 2)).x)',
'''
class Point:
    scale = 10
    def __init__(self, x): self.x = x * self.scale
''',
'print((await zf.remote(lambda point: Point(point.x)).remote(Point(1))).x)',
'offset = 5',
'''
@zf.remote
def move(point, by): return point.x + by + offset
''',
'print(await asyncio.gather(*[move.remote(Point(1), by) for by in range(3)]))',
'''
@zf.remote
def fails(): raise KeyError("cell")
try:
    zf.get(fails.remote())
except KeyError as error:
    print("<cell 8>" in error.traceback_text)
''',
])
"""


def test_cells_of_a_notebook(tmp_path: Path) -> None:
    assert run_program(tmp_path, NOTEBOOK).splitlines() == ["True 3", "100", "[15, 16, 17]", "True"]


def test_output_of_tasks_reaches_the_driver_with_a_prefix_to_the_last_line(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        """
import os, sys
import zfabric as zf

@zf.remote
def early():
    print("early words from", os.getpid())
    print("complaint", file=sys.stderr)

@zf.remote
def late(number):
    print("last words", number)
    return number

zf.init(num_cpus=2)
zf.get(early.remote())
zf.get([late.remote(n) for n in range(5)])
""",
    )
    lines = output.splitlines()
    words = [line for line in lines if "early words from" in line]
    assert len(words) == 1
    pid = words[0].split()[-1]
    assert words[0].startswith("(")
    assert words[0].startswith(f"(early pid={pid})")
    assert all(any(f"last words {number}" in line for line in lines) for number in range(5))


def test_output_is_shown_although_no_task_runs_any_more(cluster: Callable[..., Any], capfd: Any) -> None:
    cluster(log_to_driver=True)
    output = ""

    def shown(text: str) -> bool:
        nonlocal output
        output += capfd.readouterr().out
        return text in output

    @zf.remote
    def short() -> None:
        print("words of a short task")

    @zf.remote
    class Speaker:
        def speak(self) -> None:
            print("words of a method")
            threading.Timer(0.3, print, ["words of a thread"]).start()

    zf.get(short.remote(), timeout=PATIENCE)
    eventually(lambda: shown("words of a short task"), "the task's words")
    speaker = Speaker.remote()
    zf.get(speaker.speak.remote(), timeout=PATIENCE)
    eventually(lambda: shown("words of a method"), "the method's words")
    eventually(lambda: shown("words of a thread"), "the thread's words")


def test_a_line_without_an_end_is_shown_at_the_end(tmp_path: Path) -> None:
    program = "import zfabric as zf\nzf.init(num_cpus=1)\nzf.get(zf.remote(lambda: print('and so on', end='')).remote())\n"
    assert run_program(tmp_path, program).rstrip().endswith("and so on")


def test_log_to_driver_can_be_switched_off(tmp_path: Path) -> None:
    output = run_program(
        tmp_path,
        "import zfabric as zf\nzf.init(num_cpus=1, log_to_driver=False)\nzf.get(zf.remote(lambda: print('loud words')).remote())\n",
    )
    assert "loud words" not in output


# --- environments -------------------------------------------------------------------------------------------------------------------


shared = one_cluster(autouse=False)


def test_runtime_env_sets_variables_directory_and_modules(shared: Any, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "data.txt").write_text("found")
    (tmp_path / "here" / "a_module_beside_the_data.py").write_text("VALUE = 8\n")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "a_module_of_a_task.py").write_text("VALUE = 42\n")

    @zf.remote
    def look() -> Any:
        import importlib

        values = [importlib.import_module(name).VALUE for name in ("a_module_of_a_task", "a_module_beside_the_data")]
        return os.environ.get("COLOUR"), Path("data.txt").read_text(), values

    @zf.remote
    def plain() -> Any:
        return os.environ.get("COLOUR"), os.getcwd()

    where = zf.get(plain.remote(), timeout=PATIENCE)
    env = {"env_vars": {"COLOUR": "red"}, "working_dir": str(tmp_path / "here"), "py_modules": [str(tmp_path / "modules")]}
    assert zf.get(look.options(runtime_env=env).remote(), timeout=PATIENCE) == ("red", "found", [42, 8])
    blue = plain.options(runtime_env={"env_vars": {"COLOUR": "blue"}})
    assert [colour for colour, _ in zf.get([blue.remote() for _ in range(20)], timeout=PATIENCE)] == ["blue"] * 20
    assert zf.get([plain.remote() for _ in range(20)], timeout=PATIENCE) == [where] * 20
    assert where[0] is None


def test_children_inherit_the_runtime_env_unless_they_set_their_own(shared: Any, tmp_path: Path) -> None:
    """As in Ray: variables are added to the parent's, other fields take the place of the parent's."""
    for name in ("one", "other", "package"):
        (tmp_path / name).mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")

    @zf.remote
    def seen() -> Any:
        output = zf.get_runtime_context().runtime_env
        found = [os.path.basename(path) for path in sys.path if "/environments/" in path and "site-packages" not in path]
        return os.environ.get("COLOUR"), os.environ.get("SIZE"), os.path.basename(os.getcwd()), found, output["env_vars"]

    @zf.remote
    def parent(depth: int, **options: Any) -> Any:
        call = parent if depth else seen
        return zf.get(call.options(**options).remote(*[depth - 1] * bool(depth)))

    @zf.remote
    class Parent:
        def ask(self) -> Any:
            return zf.get([seen.remote(), Child.remote().ask.remote()])

    @zf.remote
    class Child:
        def ask(self) -> Any:
            return zf.get(seen.remote())

    one, other, parents = str(tmp_path / "one"), str(tmp_path / "other"), ["content"]
    env = {"env_vars": {"COLOUR": "red", "SIZE": "1"}, "working_dir": one, "py_modules": [str(tmp_path / "package")]}
    inherited = ("red", "1", "one", [*parents, "one"], {"COLOUR": "red", "SIZE": "1"})
    assert zf.get(parent.options(runtime_env=env).remote(2), timeout=PATIENCE) == inherited
    changed = {"runtime_env": {"env_vars": {"SIZE": "2"}, "working_dir": other}}
    last = ("red", "2", "other", [*parents, "other"], {"COLOUR": "red", "SIZE": "2"})
    assert zf.get(parent.options(runtime_env=env).remote(0, **changed), timeout=PATIENCE) == last
    assert zf.get(Parent.options(runtime_env=env).remote().ask.remote(), timeout=PATIENCE) == [inherited] * 2
    assert zf.get(zf.remote(os.getenv).remote("COLOUR"), timeout=PATIENCE) is None


def test_a_module_that_workers_do_not_find_is_named_with_the_function_and_what_to_do(shared: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "a_module_of_the_driver.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    module = importlib.import_module("a_module_of_the_driver")

    def calls_it(x: int) -> int:
        return int(module.double(x))

    error = failure(zf.remote(calls_it).remote(2))
    assert isinstance(error, zf.SerializationError)
    assert error.facts["function"].endswith("calls_it")
    for word in ("'a_module_of_the_driver'", "py_modules", "register_pickle_by_value"):
        assert word in str(error)
    env = {"py_modules": [module]}
    assert zf.get(zf.remote(calls_it).options(runtime_env=env).remote(2), timeout=PATIENCE) == 4
    cloudpickle.register_pickle_by_value(module)
    try:
        assert zf.get(zf.remote(calls_it).remote(2), timeout=PATIENCE) == 4
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_a_runtime_env_that_cannot_be_made_is_an_error_and_no_endless_wait(shared: Any, tmp_path: Path) -> None:
    @zf.remote
    def plain() -> int:
        return 1

    with pytest.raises((zf.RuntimeEnvSetupError, zf.OptionError)):
        zf.get(plain.options(runtime_env={"working_dir": str(tmp_path / "nowhere")}).remote(), timeout=PATIENCE)
    assert zf.get(plain.remote(), timeout=PATIENCE) == 1


# --- resources ----------------------------------------------------------------------------------------------------------------------


def test_gpus_are_assigned_and_shown_in_cuda_visible_devices(cluster: Callable[..., Any]) -> None:
    cluster(num_cpus=4, num_gpus=4)
    output = os.environ.get("CUDA_VISIBLE_DEVICES")

    @zf.remote(num_gpus=1)
    def one(marks: str) -> Any:
        Path(marks, str(os.getpid())).touch()
        while len(list(Path(marks).iterdir())) < 2:
            time.sleep(0.01)  # the other one is in another process
        return os.environ["CUDA_VISIBLE_DEVICES"], zf.get_gpu_ids()

    @zf.remote(num_gpus=2)
    def two() -> Any:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    @zf.remote
    def none() -> Any:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    import tempfile

    with tempfile.TemporaryDirectory() as marks:
        seen = zf.get([one.remote(marks) for _ in range(2)], timeout=PATIENCE)
    assert len({visible for visible, _ in seen}) == 2
    assert all(visible in {"0", "1", "2", "3"} and [int(visible)] == [int(each) for each in ids] for visible, ids in seen)
    visible = zf.get(two.remote(), timeout=PATIENCE).split(",")
    assert len(set(visible)) == 2
    assert set(visible) <= {"0", "1", "2", "3"}
    assert zf.get([none.remote() for _ in range(8)], timeout=PATIENCE) == [output] * 8

    @zf.remote(num_cpus=1 / 3, num_gpus=1 / 3)
    class Third:
        def gpu_ids(self) -> list[int]:
            return zf.get_gpu_ids()

    thirds = [Third.remote() for _ in range(3)]
    assert len({tuple(ids) for ids in zf.get([each.gpu_ids.remote() for each in thirds], timeout=PATIENCE)}) == 1
    bundles = zf.util.placement_group([{"CPU": 1 / 3, "GPU": 2 / 3}, {"CPU": 2 / 3, "GPU": 1 / 3}])
    assert bundles.wait(PATIENCE)


@zf.remote(num_gpus=1)
def on_a_gpu(marks: str, number: int) -> Any:
    """Say which GPU this is, and go on until it is to end."""
    Path(marks, f"began {number}").touch()
    wait_for_file(Path(marks, f"end {number}"))
    return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], zf.get_gpu_ids()


def test_only_gpus_that_the_cluster_was_started_with_are_assigned(cluster: Callable[..., Any], monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,GPU-8932f937")
    with pytest.raises(zf.ConfigError, match="CUDA_VISIBLE_DEVICES names 2"):
        zf.init(num_gpus=3)
    cluster()
    assert zf.cluster_resources()["GPU"] == 2

    @zf.remote
    def plain() -> Any:
        return os.environ.get("CUDA_VISIBLE_DEVICES"), zf.get_gpu_ids()

    assert zf.get([plain.remote() for _ in range(8)], timeout=PATIENCE) == [("6,GPU-8932f937", [])] * 8

    @zf.remote(num_gpus=1)
    class Trainer:
        def where(self) -> Any:
            return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], zf.get_gpu_ids()

    trainer, ref = Trainer.remote(), on_a_gpu.remote(str(tmp_path), 0)
    trained = zf.get(trainer.where.remote(), timeout=PATIENCE)  # While the task has its GPU, or it would get that one.
    (tmp_path / "end 0").touch()
    seen = [zf.get(ref, timeout=PATIENCE), trained]
    assert sorted(row[1:] for row in seen) == [("6", [6]), ("GPU-8932f937", ["GPU-8932f937"])]
    (tmp_path / "end 1").touch()
    again = zf.get(on_a_gpu.remote(str(tmp_path), 1), timeout=PATIENCE)
    assert again[1:] == seen[0][1:]
    assert again[0] not in (seen[0][0], seen[1][0]), "what CUDA was shown first, it would be shown for ever"


def test_a_gpu_in_use_is_not_assigned_twice_after_a_daemons_death(cluster: Callable[..., Any], tmp_path: Path) -> None:
    cluster(num_cpus=4, num_gpus=2)
    refs = []
    for number in range(2):
        refs.append(on_a_gpu.remote(str(tmp_path), number))
        eventually((tmp_path / f"began {number}").exists, "it runs")
    (tmp_path / "end 0").touch()
    _, free, _ = zf.get(refs[0], timeout=PATIENCE)
    kill_daemon()
    refs.append(on_a_gpu.remote(str(tmp_path), 2))
    eventually((tmp_path / "began 2").exists, "it runs beside the other")
    for number in (1, 2):
        (tmp_path / f"end {number}").touch()
    assert {zf.get(ref, timeout=PATIENCE)[1] for ref in refs} == {"0", "1"}
    assert zf.get(refs[2])[1] == free


def test_fractions_of_resources_add_up(cluster: Callable[..., Any]) -> None:
    cluster(num_cpus=1, resources={"seat": 1})

    @zf.remote(num_cpus=0.25, resources={"seat": 0.25})
    def meet(marks: str, number: int) -> int:
        Path(marks, f"in{number}").touch()
        wait_for_file(Path(marks, "go"))
        return len(list(Path(marks).glob("in*")))

    import tempfile

    with tempfile.TemporaryDirectory() as marks:
        refs = [meet.remote(marks, number) for number in range(6)]
        eventually(lambda: len(list(Path(marks).glob("in*"))) >= 4, "four quarters run at once")
        assert len(list(Path(marks).glob("in*"))) == 4
        assert zf.available_resources().get("seat", 0) == 0
        Path(marks, "go").touch()
        zf.get(refs, timeout=PATIENCE)
    eventually(lambda: zf.available_resources() == zf.cluster_resources(), "all is given back")


def test_a_custom_resource_limits_how_many_run_at_once(cluster: Callable[..., Any]) -> None:
    cluster(num_cpus=4, resources={"licence": 1})

    @zf.remote(resources={"licence": 1})
    def exclusive(path: str) -> bool:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL)
        time.sleep(0.01)  # in which another one would begin
        os.close(descriptor)
        os.unlink(path)
        return True

    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        assert all(zf.get([exclusive.remote(f"{directory}/lock") for _ in range(20)], timeout=PATIENCE))


def test_an_infeasible_task_stays_pending_warns_and_explains_itself(cluster: Callable[..., Any], capfd: Any) -> None:
    cluster(num_cpus=2)

    @zf.remote(num_gpus=4)
    def wishful() -> int:
        return 1

    ref = wishful.remote()
    seen = []

    def warned() -> bool:
        zf.wait([ref], timeout=0.05)
        seen.append(capfd.readouterr().err)
        return "wishful" in "".join(seen)

    eventually(warned, "the driver is warned")
    text = "".join(seen)
    assert "GPU" in text
    assert "pending" in text
    told = str(zf.explain(ref))
    assert "GPU" in told
    assert "4" in told
    others = [wishful.remote() for _ in range(3)]
    zf.wait(others, num_returns=3, timeout=1.5)
    assert "wishful" not in capfd.readouterr().err, "the warning is said once"
    zf.cancel(ref)
    assert type(failure(ref)) is zf.TaskCancelledError


def test_a_program_that_submits_without_waiting_sees_warnings(cluster: Callable[..., Any], capfd: Any) -> None:
    cluster(num_cpus=2)
    refs = [zf.remote(num_gpus=4)(lambda: 1).remote()]
    seen = []

    def warned() -> bool:
        refs.append(zf.remote(lambda: 2).remote())
        seen.append(capfd.readouterr().err)
        return "GPU" in "".join(seen)

    eventually(warned, "the warning is read although no call waits")


def test_an_infeasible_task_is_an_error_where_that_was_asked_for(cluster: Callable[..., Any]) -> None:
    cluster(num_cpus=2, config={"infeasible": "raise"})
    error = failure(zf.remote(num_gpus=4)(lambda: 1).remote())
    assert type(error) is zf.TaskUnschedulableError
    assert "GPU" in str(error)
    assert zf.get(zf.remote(lambda: 1).remote(), timeout=PATIENCE) == 1


# --- values and references ------------------------------------------------------------------------------------------------------------


def test_refs_inside_values_and_closures_retain_their_objects(cluster: Callable[..., Any]) -> None:
    cluster()

    @zf.remote
    def open_box(box: Any) -> Any:
        return zf.get(box["ref"]), zf.get(box["list"][0])

    @zf.remote
    def make_box() -> Any:
        return [zf.put("from a task")]

    def send() -> tuple[Any, Any]:
        inner = zf.put("treasure")

        @zf.remote
        def captured() -> Any:
            return zf.get(inner)

        return zf.put({"ref": inner, "list": [inner]}), captured.remote()

    box, result = send()
    assert zf.get(open_box.remote(box), timeout=PATIENCE) == ("treasure", "treasure")
    assert zf.get(result, timeout=PATIENCE) == "treasure"
    assert zf.get(zf.get(make_box.remote(), timeout=PATIENCE)[0], timeout=PATIENCE) == "from a task"


def test_generators_of_work_finish_and_leave_no_tasks_behind(cluster: Callable[..., Any]) -> None:
    cluster()

    @zf.remote
    def step(x: int) -> int:
        return x + 1

    for turn in range(20):
        assert sum(zf.get([step.remote(index) for index in range(500)], timeout=PATIENCE)) == sum(range(1, 501)), turn
    eventually(lambda: len(query("tasks")) == 0, "finished tasks that nobody refers to are forgotten")
    assert len(worker_rows()) <= 4
    assert threading.active_count() < 20


def test_tasks_submitted_by_a_finalizer_of_a_returned_object_are_children_of_its_task(cluster: Any, tmp_path: Path) -> None:
    """It runs before the task ends, and takes no name that another object has."""
    cluster(num_cpus=1)
    path = str(tmp_path / "said")

    class Parting:
        """Runs a task as it goes, in the worker; the copy that arrives elsewhere does nothing."""

        def __init__(self) -> None:
            self.here = os.getpid()

        def __del__(self) -> None:
            if self.here == os.getpid():
                with open(path, "a") as file:
                    print(zf.get_runtime_context().get_task_id(), echo.remote("of a finalizer").hex(), file=file)

    @zf.remote(num_cpus=0)
    def echo(text: str) -> str:
        return text

    @zf.remote
    def parting() -> Any:
        return Parting()

    @zf.remote
    def after() -> Any:
        return zf.get(ref := echo.remote("mine"), timeout=PATIENCE), ref.hex()

    refs = [each for _ in range(20) for each in (parting.remote(), after.remote())]
    partings = [ref.binary()[:16].hex() for ref in refs[::2]]
    texts, names = zip(*zf.get(refs[1::2], timeout=PATIENCE), strict=True)
    eventually(lambda: len(Path(path).read_text().splitlines()) == 20, "all have gone")
    output = [line.split() for line in Path(path).read_text().splitlines()]
    assert sorted(task for task, _ in output) == sorted(partings)
    assert set(texts) == {"mine"}
    assert len({*names, *(name for _, name in output)}) == 40, "each has a name of its own"


def test_a_finalizer_that_submits_at_any_moment_takes_no_id_of_its_task(cluster: Any) -> None:
    """The collector runs at whatever allocation, also within the first submission of a task."""
    cluster(num_cpus=2)

    @zf.remote
    def echo(text: str) -> str:
        return text

    @zf.remote
    def parent(allocations: int) -> tuple[str, list[str]]:
        import gc

        parted: list[Any] = []

        class Cycle:
            def __init__(self) -> None:
                self.me = self

            def __del__(self) -> None:
                parted.append(echo.remote("finalizer"))

        thresholds = gc.get_threshold()
        gc.collect()
        gc.set_threshold(100_000)
        Cycle()
        gc.set_threshold(gc.get_count()[0] + allocations)
        mine = echo.remote("task")
        gc.set_threshold(*thresholds)
        gc.collect()
        return zf.get(mine), zf.get(parted)

    for allocations in range(50):
        assert zf.get(parent.remote(allocations), timeout=PATIENCE) == ("task", ["finalizer"]), allocations
