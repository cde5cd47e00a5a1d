"""Arguments and results of calls that are copied from the store's memory, at the place that the other side has named."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from faults import PATIENCE, eventually, failure, kill_daemon, query

import zfabric as zf

KB, MB = 1000, 1_000_000
SIZES = (60 * KB, 100 * KB, MB, 1_900 * KB, 3 * MB)
"""Small, copied, the same, the same, and beyond what is copied."""


@pytest.fixture
def small_store() -> Iterator[None]:
    zf.init(num_cpus=2, object_store_memory=24 * 2**20, log_to_driver=False)
    yield
    zf.shutdown()


@pytest.fixture
def cluster() -> Iterator[None]:
    zf.init(num_cpus=2, log_to_driver=False)
    yield
    zf.shutdown()


class Echo:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def same(self, value: Any) -> Any:
        return value

    def total(self, value: np.ndarray) -> float:
        return float(value.sum())

    def keep(self, value: np.ndarray) -> None:
        self.kept.append(value)

    def sums(self) -> list[float]:
        return [float(each.sum()) for each in self.kept]

    def writeable(self, value: np.ndarray) -> bool:
        return bool(value.flags.writeable)

    @zf.method(readonly=True)
    def several(self, size: int, count: int) -> Iterator[np.ndarray]:
        for number in range(count):
            yield np.full(size // 8, float(number))

    def pid(self) -> int:
        return os.getpid()


class AsyncEcho(Echo):
    async def same(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value


KINDS: dict[str, Callable[[], Any]] = {
    "own process": lambda: zf.remote(Echo).remote(),
    "threads": lambda: zf.remote(Echo).options(max_concurrency=4).remote(),
    "async": lambda: zf.remote(AsyncEcho).remote(),
    "lightweight": lambda: zf.remote(Echo).options(num_cpus=0, lightweight=True).remote(),
    "checkpoints": lambda: zf.remote(Echo).options(max_restarts=-1, checkpoint_every=5).remote(),
}


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_size_come_and_go_whole(kind: str) -> None:
    echo = KINDS[kind]()
    rng = np.random.default_rng(1)
    values = [rng.random(size // 8) for size in SIZES]
    for value in values:  # Directly, then as a ref that several calls take.
        ref = zf.put(value)
        for argument in (value, ref, ref, ref):
            assert np.array_equal(zf.get(echo.same.remote(argument), timeout=PATIENCE), value)
    assert zf.get([echo.total.remote(value) for value in values * 20], timeout=PATIENCE) == [value.sum() for value in values] * 20
    found = zf.get([echo.same.remote(value) for value in values * 5], timeout=PATIENCE)
    assert all(np.array_equal(one, other) for one, other in zip(found, values * 5, strict=True))
    assert not found[1].flags.writeable
    assert not zf.get(echo.writeable.remote(values[1]), timeout=PATIENCE)
    assert [each[0] for each in zf.get(list(echo.several.options(num_returns="streaming").remote(MB, 4)), timeout=PATIENCE)] == [0, 1, 2, 3]


@pytest.mark.usefixtures("cluster")
def test_refs_inside_large_arguments_and_results_are_held() -> None:
    echo = zf.remote(Echo).remote()
    value = {"array": np.ones(20 * KB), "ref": zf.put("inside")}
    assert zf.get(zf.get(echo.same.remote(value), timeout=PATIENCE)["ref"], timeout=PATIENCE) == "inside"
    again = zf.get(echo.same.remote(zf.put(value)), timeout=PATIENCE)
    del value
    assert zf.get(again["ref"], timeout=PATIENCE) == "inside"


@pytest.mark.usefixtures("small_store")
def test_what_an_actor_keeps_of_its_arguments_stays_as_it_was() -> None:
    """Its room in the store goes to others at once."""
    echo = zf.remote(Echo).remote()
    zf.get([echo.keep.remote(np.full(25 * KB, float(number))) for number in range(40)], timeout=PATIENCE)
    results = [zf.get(echo.same.remote(np.full(25 * KB, float(number))), timeout=PATIENCE) for number in range(40)]
    for _ in range(40):
        zf.get(zf.put(np.full(100 * KB, -1.0)), timeout=PATIENCE)
    assert zf.get(echo.sums.remote(), timeout=PATIENCE) == [25 * KB * float(number) for number in range(40)]
    assert [each[0] for each in results] == [float(number) for number in range(40)]


@pytest.mark.usefixtures("small_store")
def test_more_arguments_and_results_than_the_store_has_room_for_are_whole() -> None:
    """They wait in the actor's queue and for the program; by then most are on disk."""
    echo = zf.remote(Echo).remote()
    refs = [echo.same.remote(np.full(MB // 8, float(number))) for number in range(60)]
    assert [(each[0], each[-1]) for each in zf.get(refs, timeout=PATIENCE)] == [(float(number),) * 2 for number in range(60)]
    for number in reversed(range(60)):
        value = zf.get(refs[number], timeout=PATIENCE)
        assert (value[0], value[-1]) == (number, number)


@pytest.mark.usefixtures("cluster")
def test_an_argument_needs_no_message_of_the_daemon() -> None:
    """It stands still here: whoever asks for a place would wait for ever."""
    echo = zf.remote(Echo).remote()
    ref = zf.put(np.ones(100 * KB))
    assert zf.get([echo.total.remote(np.ones(12_500)) for _ in range(5)], timeout=PATIENCE) == [12_500.0] * 5
    zf.get(echo.total.remote(ref), timeout=PATIENCE)
    made = echo.same.remote(np.ones(12_500))
    zf.wait([made], timeout=PATIENCE, fetch_local=False)
    daemon = kill_daemon(signal.SIGSTOP)
    try:
        assert zf.get([echo.total.remote(np.ones(12_500)) for _ in range(5)], timeout=PATIENCE) == [12_500.0] * 5
        assert zf.get(echo.total.remote(ref), timeout=PATIENCE) == 100_000.0
        assert zf.get(made, timeout=PATIENCE).sum() == 12_500.0
    finally:
        os.kill(daemon, signal.SIGCONT)


@pytest.mark.usefixtures("cluster")
def test_calls_with_such_arguments_survive_the_death_of_the_daemon_and_of_the_actor() -> None:
    echo = zf.remote(Echo).options(max_restarts=-1, max_task_retries=-1).remote()
    pid = zf.get(echo.pid.remote(), timeout=PATIENCE)
    refs = [echo.same.remote(np.full(12_500, float(number))) for number in range(100)]
    kill_daemon()
    refs += [echo.same.remote(np.full(12_500, float(number))) for number in range(100, 200)]
    os.kill(pid, signal.SIGKILL)
    refs += [echo.same.remote(np.full(12_500, float(number))) for number in range(200, 300)]
    for number, ref in enumerate(refs):
        assert zf.get(ref, timeout=PATIENCE)[0] == number
    assert zf.get(echo.pid.remote(), timeout=PATIENCE) != pid


@pytest.mark.usefixtures("small_store")
def test_calls_of_a_dead_caller_never_see_what_others_write_in_its_room() -> None:
    """The store frees what the caller has written while the calls still wait in the actor's queue."""

    class Checker:
        def __init__(self) -> None:
            self.seen: list[tuple[float, float]] = []

        def look(self, value: np.ndarray) -> None:
            self.seen.append((float(value.min()), float(value.max())))

        def found(self) -> list[tuple[float, float]]:
            return self.seen

        def wait(self, go_on: Any) -> None:
            zf.get(go_on[0], timeout=PATIENCE)

    class Caller:
        def begin(self, checker: Any) -> int:
            for _ in range(100):
                checker.look.remote(np.full(12_500, 7.0))
            return os.getpid()

    @zf.remote(num_cpus=0)
    class Gate:
        def __init__(self) -> None:
            self.opened = asyncio.Event()

        async def open(self) -> None:
            self.opened.set()

        async def wait(self) -> None:
            await self.opened.wait()

    gate, checker, caller = Gate.remote(), zf.remote(Checker).options(num_cpus=0).remote(), zf.remote(Caller).options(num_cpus=0).remote()
    blocked = checker.wait.remote([gate.wait.remote()])
    pid = zf.get(caller.begin.remote(checker), timeout=PATIENCE)
    os.kill(pid, signal.SIGKILL)
    assert isinstance(failure(caller.begin.remote(checker)), zf.ActorDiedError)
    for _ in range(30):
        zf.put(np.full(125_000, -1.0))
    zf.get([gate.open.remote(), blocked], timeout=PATIENCE)
    found = zf.get(checker.found.remote(), timeout=PATIENCE)
    assert set(found) <= {(7.0, 7.0)}


@pytest.mark.usefixtures("cluster")
def test_nothing_stays_in_the_store() -> None:
    echo = zf.remote(Echo).remote()
    for _ in range(3):
        zf.get([echo.same.remote(np.ones(12_500)) for _ in range(50)], timeout=PATIENCE)
    eventually(lambda: query("status")["store"]["objects"] == 0, "the end of its values")
