"""Programs as users write them, each with its right result: what ``bad_days`` runs while nodes die, pause, and are cut off.

Each takes a size and returns when it has checked every value. Its tasks note each execution (``ran``), in a file that all nodes share.
A ``sleep`` stands for work, so that a fault finds tasks running.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import zfabric as zf

PATIENCE = 60.0
"""Seconds after which a value is taken for lost: a node may be paused past its lease, and then others have its work to do."""
LOG = "ZFABRIC_BAD_DAYS_LOG"
"""The environment variable with the file of executions; inherited by all nodes."""


class Execution(NamedTuple):
    """That a task began somewhere; ``attempt`` is its attempt as the runtime context says it."""

    task: str
    node: str
    pid: int
    attempt: str
    time: float


def ran(task: str) -> None:
    """Note that a task begins here."""
    here = zf.get_runtime_context()
    line = f"{task} {here.get_node_id()} {os.getpid()} {here.get_task_id()}:{here.attempt} {time.monotonic()}\n"
    descriptor = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())  # One write, so lines of two processes do not mix.
    finally:
        os.close(descriptor)


def executions() -> list[Execution]:
    """All that was noted, in order."""
    with open(os.environ[LOG]) as file:
        return [Execution(task, node, int(pid), attempt, float(at)) for task, node, pid, attempt, at in map(str.split, file)]


def get(refs: Any) -> Any:
    """Values, or an error: never for ever."""
    return zf.get(refs, timeout=PATIENCE)


def expect(found: Any, wanted: Any) -> None:
    """Raise AssertionError if a result is wrong."""
    if found != wanted:
        raise AssertionError(f"a wrong result: {found!r}, not {wanted!r}")


# --- flat: each task is submitted by the program ------------------------------------------------------------------------------------


@zf.remote
def square(number: int, seconds: float) -> int:
    ran(f"square{number}")
    time.sleep(seconds)
    return number * number


def squares(size: int) -> None:
    """Independent tasks with small values."""
    chance = random.Random(size)
    refs = [square.remote(number, chance.uniform(0.0, 0.04)) for number in range(40 * size)]
    expect(get(refs), [number * number for number in range(40 * size)])


@zf.remote
def make(number: int, count: int) -> Any:
    ran(f"make{number}")
    time.sleep(0.02)
    return np.full(count, number, np.int64)


@zf.remote
def add(number: int, *arrays: Any) -> Any:
    ran(f"add{number}")
    time.sleep(0.02)
    return sum(arrays)


def arrays(size: int) -> None:
    """Large values that are read on other nodes: sums of pairs of pairs."""
    level = [make.remote(number, 40_000) for number in range(8 * size)]
    total, name = sum(range(8 * size)), 0
    while len(level) > 1:
        level = [add.remote(name := name + 1, *level[place : place + 2]) for place in range(0, len(level), 2)]
    found = get(level[0])
    expect((int(found.min()), int(found.max()), len(found)), (total, total, 40_000))


@zf.remote
def step(number: int, value: Any) -> Any:
    ran(f"step{number}")
    time.sleep(0.01)
    return value + 1


def chain(size: int) -> None:
    """Tasks that each need the one before, small and large values in turns; the last value only is kept."""
    small: Any = 0
    large: Any = np.zeros(20_000, np.int64)
    for number in range(50 * size):
        small = step.options(scheduling_strategy="SPREAD").remote(2 * number, small)
        if number % 4 == 0:
            large = step.options(scheduling_strategy="SPREAD").remote(2 * number + 1, large)
    expect(get(small), 50 * size)
    expect(int(get(large).sum()), 20_000 * -(-50 * size // 4))


PARTS = 4


@zf.remote(num_returns=PARTS)
def map_words(number: int, count: int) -> Any:
    ran(f"map{number}")
    chance = random.Random(number)
    words = [f"word{chance.randrange(200)}" for _ in range(count)]
    time.sleep(0.02)
    return [Counter(word for word in words if hash(word) % PARTS == part) for part in range(PARTS)]


@zf.remote
def reduce_words(part: int, *counters: Any) -> Any:
    ran(f"reduce{part}")
    time.sleep(0.02)
    return sum(counters, Counter())


def shuffle(size: int) -> None:
    """Map and reduce with partitions by hash: a word is in one partition, whichever node has counted it."""
    maps, count = 12 * size, 400
    rows = [map_words.remote(number, count) for number in range(maps)]
    found = get([reduce_words.remote(part, *(row[part] for row in rows)) for part in range(PARTS)])
    wanted: Counter[str] = Counter()
    for number in range(maps):
        chance = random.Random(number)
        wanted.update(f"word{chance.randrange(200)}" for _ in range(count))
    total: Counter[str] = Counter()
    for counter in found:
        expect(set(total) & set(counter), set())
        total.update(counter)
    expect(total, wanted)


def wait_loop(size: int) -> None:
    """A bounded number of tasks under way, each followed by another as soon as it has ended."""
    chance = random.Random(size)
    begun, left, found = 0, {}, []
    while len(found) < 60 * size:
        while len(left) < 8 and begun < 60 * size:
            left[square.remote(begun, chance.uniform(0.0, 0.05))] = begun
            begun += 1
        ready, _ = zf.wait(list(left), num_returns=1, timeout=PATIENCE)
        if not ready:
            raise zf.GetTimeoutError(f"none of {len(left)} tasks has ended")
        for ref in ready:
            number = left.pop(ref)
            expect(get(ref), number * number)
            found.append(number)
    expect(sorted(found), list(range(60 * size)))


@zf.remote
def rollout(number: int, policy: Any, seed: int) -> Any:
    ran(f"rollout{number}")
    time.sleep(0.02)
    chance = np.random.default_rng(seed)
    return policy[: chance.integers(1, 50)].sum() + chance.integers(0, 10)


def training(size: int) -> None:
    """Simulation and training in turns: each round's tasks read the same large policy, which the program puts anew."""
    policy = np.arange(30_000)
    for turn in range(4 * size):
        ref = zf.put(policy)
        rewards = get([rollout.remote(20 * turn + number, ref, 20 * turn + number) for number in range(20)])
        wanted = []
        for number in range(20):
            chance = np.random.default_rng(20 * turn + number)
            wanted.append(policy[: chance.integers(1, 50)].sum() + chance.integers(0, 10))
        expect(rewards, wanted)
        policy = (policy + int(sum(rewards))) % 1009


# --- tasks that submit tasks --------------------------------------------------------------------------------------------------------


@zf.remote(scheduling_strategy="SPREAD")
def fib(number: int) -> int:
    ran(f"fib{number}")
    if number < 2:
        return number
    return sum(zf.get([fib.remote(number - 1), fib.remote(number - 2)]))


def recursion(size: int) -> None:
    """Tasks that wait for tasks, across nodes of one CPU each."""
    expect(get(fib.remote(8)), 21)


@zf.remote(scheduling_strategy="SPREAD")
def family(number: int, depth: int) -> Any:
    ran(f"family{number}")
    time.sleep(0.01)
    if not depth:
        return number
    return [family.remote(3 * number + child, depth - 1) for child in range(3)]


def nested(size: int) -> None:
    """Refs inside values, three levels deep, of tasks that have ended long before their children are read."""
    leaves = [family.remote(number, 3) for number in range(2 * size)]
    for _ in range(3):
        leaves = [ref for refs in get(leaves) for ref in refs]
        time.sleep(0.1)
    expect(get(leaves), list(range(27 * 2 * size)))


@zf.remote
def put_there(number: int) -> Any:
    ran(f"put{number}")
    return [zf.put(np.full(20_000, number))]


def puts(size: int) -> None:
    """Values that tasks have put where they ran. They are lost with their node, which ``get`` must say, and nothing else."""
    lost = 0
    rows = [put_there.options(scheduling_strategy="SPREAD").remote(number) for number in range(12 * size)]
    time.sleep(0.5)
    for number, row in enumerate(rows):
        try:
            (ref,) = get(row)
            expect(int(get(ref).sum()), 20_000 * number)
        except zf.ObjectLostError:
            lost += 1
    print(f"puts: {lost} of {12 * size} lost", flush=True)


# --- actors -------------------------------------------------------------------------------------------------------------------------


@zf.remote(max_restarts=-1, max_task_retries=-1, checkpoint_every=10)
class Shard:
    """A part of a parameter server. Its log makes each gradient count once, however often its process dies."""

    def __init__(self, size: int) -> None:
        self.weights = np.zeros(size, np.int64)
        self.count = 0

    def push(self, gradient: Any) -> int:
        self.weights += gradient
        self.count += 1
        return self.count

    def pull(self) -> Any:
        return self.weights


@zf.remote
def gradient(number: int, *weights: Any) -> Any:
    ran(f"gradient{number}")
    time.sleep(0.01)
    return np.full(100, number, np.int64)


def parameter_server(size: int) -> None:
    """Shards of weights in actors, gradients by tasks that read them; each gradient is counted once."""
    shards = [Shard.remote(100) for _ in range(2)]
    number = 0
    for _ in range(5 * size):
        weights = [shard.pull.remote() for shard in shards]
        gradients = [gradient.remote(number + place, *weights) for place in range(4)]
        number += 4
        get([shard.push.remote(each) for shard in shards for each in gradients])
    for shard in shards:
        expect(set(get(shard.pull.remote())), {sum(range(number))})


@zf.remote(max_restarts=-1, max_task_retries=-1, checkpoint_every=7)
class Tally:
    """A logged actor: each call counts once, wherever it comes from, however often its process dies."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, caller: str, number: int) -> int:
        if number != self.counts[caller]:
            raise AssertionError(f"call {number} of {caller} came after {self.counts[caller]} others")
        self.counts[caller] += 1
        return sum(self.counts.values())

    def all(self) -> dict[str, int]:
        return dict(self.counts)


@zf.remote(scheduling_strategy="SPREAD", num_cpus=0.1)
def make_tally() -> Any:
    return Tally.options(num_cpus=0).remote()


@zf.remote(scheduling_strategy="SPREAD", num_cpus=0.1)
def call_tally(tally: Any, caller: str, count: int) -> int:
    found = zf.get([tally.add.remote(caller, number) for number in range(count)])
    return len(set(found))


def actors_elsewhere(size: int) -> None:
    """Logged actors on all nodes, called from all nodes. An actor dies with its node, as its callers are told."""
    tallies, lost = [make_tally.remote() for _ in range(3)], 0
    for number, made in enumerate(tallies):
        try:
            tally = get(made)
            # Callers run once: their own calls come again with them, and nobody could tell.
            callers = [call_tally.options(max_retries=0).remote(tally, f"caller{number}{each}", 20 * size) for each in range(3)]
            expect(get([tally.add.remote("driver", each) for each in range(20 * size)])[-1] >= 20 * size, True)
            done = []
            for caller in callers:
                try:
                    done.append(get(caller))
                except (zf.WorkerCrashedError, zf.NodeDiedError):
                    lost += 1
            expect(set(done) <= {20 * size}, True)
            counts = get(tally.all.remote())
            expect(counts["driver"], 20 * size)
            if len(done) == 3:
                expect(counts, {"driver": 20 * size, **{f"caller{number}{each}": 20 * size for each in range(3)}})
        except (zf.ActorError, zf.ObjectLostError, zf.TaskUnschedulableError):
            lost += 1
    print(f"actors_elsewhere: {lost} lost", flush=True)


@zf.remote
def produce(number: int) -> Iterator[Any]:
    for place in range(10):
        time.sleep(0.005)
        yield 10 * number + place


def streams(size: int) -> None:
    """Values as they are yielded."""
    made = [produce.options(num_returns="streaming").remote(number) for number in range(4 * size)]
    for number, stream in enumerate(made):
        expect([get(ref) for ref in stream], list(range(10 * number, 10 * number + 10)))


class Program(NamedTuple):
    """A program. In ``flat`` ones each task is submitted once, so only what a dead process had run may run again.

    With ``lineage``, values that are lost with a node may need those that were freed: each task may run once more for each lost one.
    """

    run: Callable[[int], None]
    flat: bool = True
    lineage: bool = False


PROGRAMS = {
    "squares": Program(squares),
    "arrays": Program(arrays, lineage=True),
    "chain": Program(chain, lineage=True),
    "shuffle": Program(shuffle, lineage=True),
    "wait_loop": Program(wait_loop),
    "training": Program(training),
    "recursion": Program(recursion, flat=False),
    "nested": Program(nested, flat=False),
    "puts": Program(puts, flat=False),
    "parameter_server": Program(parameter_server, lineage=True),
    "actors_elsewhere": Program(actors_elsewhere, flat=False),
    "streams": Program(streams),
}
