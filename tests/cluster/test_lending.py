"""A task lends its CPU however it waits: in threads of its own, in an event loop that it runs, for futures. There is one CPU."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually
from files import wait_for_file

import zfabric as zf
from zfabric.machines.worker.machine import Worker
from zfabric.protocol import messages as m
from zfabric.protocol.ids import LOCAL_SCHEDULER, WORKER
from zfabric.runtime import interface
from zfabric.runtime.waiting import Lending

shared = one_cluster(num_cpus=1)


@zf.remote
def echo(value: int) -> int:
    return value


def in_threads(count: int) -> list[int]:
    with ThreadPoolExecutor(3) as threads:
        return list(threads.map(lambda value: zf.get(echo.remote(value)), range(count)))


def in_a_loop(count: int) -> list[int]:
    async def all_of_them() -> list[int]:
        return await asyncio.gather(*[echo.remote(value) for value in range(count)])

    return asyncio.run(all_of_them())


def as_futures(count: int) -> list[int]:
    return [future.result() for future in [echo.remote(value).future() for value in range(count)]]


def both(count: int) -> list[int]:
    """The main thread waits too, in the middle and at the end."""
    other = threading.Thread(target=in_threads, args=(count,))
    other.start()
    values = zf.get([echo.remote(value) for value in range(count)])
    other.join()
    return zf.get(echo.map(values))  # type: ignore[no-any-return]


WAYS: list[Callable[[int], list[int]]] = [in_threads, in_a_loop, as_futures, both]


@pytest.mark.parametrize("way", WAYS)
def test_a_waiting_task_lends_its_cpu_to_what_it_waits_for(way: Callable[[int], list[int]]) -> None:
    tasks = [zf.remote(way).remote(10) for _ in range(2)]
    assert zf.get(tasks, timeout=PATIENCE) == [list(range(10))] * 2
    eventually(lambda: zf.available_resources().get("CPU") == 1, "the CPU is free again, once")


@pytest.mark.parametrize("way", WAYS)
def test_a_waiting_actor_lends_its_cpu_to_what_it_waits_for(way: Callable[[int], list[int]]) -> None:
    @zf.remote(num_cpus=1)
    class Actor:
        def run(self) -> list[int]:
            return way(10)

    assert zf.get(Actor.remote().run.remote(), timeout=PATIENCE) == list(range(10))
    eventually(lambda: zf.available_resources().get("CPU") == 1, "the CPU is free again, once")


def test_a_thread_that_outlives_its_task_lends_nothing(tmp_path: Path) -> None:
    @zf.remote(num_cpus=0)
    def held() -> None:
        wait_for_file(tmp_path / "go")

    @zf.remote
    def leaves_a_thread(refs: list[Any]) -> int:
        threading.Thread(target=zf.get, args=(refs,), daemon=True).start()
        return 1

    ref = held.remote()
    assert zf.get([leaves_a_thread.remote([ref]) for _ in range(5)], timeout=PATIENCE) == [1] * 5
    eventually(lambda: zf.available_resources().get("CPU") == 1, "the CPU is free")
    (tmp_path / "go").touch()
    assert zf.get(ref, timeout=PATIENCE) is None


def test_a_thread_that_began_to_wait_under_a_task_on_top_lends_afterwards(tmp_path: Path) -> None:
    """What it waits for needs the CPU of the task that started it, and that joins it."""

    @zf.remote(num_cpus=0)
    def gate() -> None:
        eventually((tmp_path / "go").exists, "the first task on top has ended")

    @zf.remote
    def on_top() -> int:
        (tmp_path / "runs").touch()
        client: Any = interface.current()
        eventually(lambda: interface.context.task_id in client.connection.worker.waits, "the thread waits")
        return os.getpid()

    @zf.remote
    def last(_: None) -> int:
        return 7

    @zf.remote
    def outer() -> list[int]:
        found: list[int] = []

        def wait() -> None:
            ref = last.remote(gate.remote())
            eventually((tmp_path / "runs").exists, "something runs on top")
            found.append(zf.get(ref))

        thread = threading.Thread(target=wait)
        thread.start()
        found.append(zf.get(on_top.remote()) == os.getpid())
        (tmp_path / "go").touch()
        thread.join()
        return found

    assert zf.get(outer.remote(), timeout=PATIENCE) == [True, 7]
    eventually(lambda: zf.available_resources().get("CPU") == 1, "the CPU is free again, once")


def test_reports_of_lent_cpus() -> None:
    """A task is reported as waiting once, however many of its threads wait, and not while its main thread reports it itself."""
    worker = Worker(WORKER + b"\x02worker0", zf.config.Config.of({}))
    worker.connect(b"\x01daemon0")
    lending = Lending(worker)
    assert lending.begin((b"value",)) == b"", "nothing runs"
    row = (b"t" * 16, b"f" * 16, b"", ())
    worker.step(0.0, LOCAL_SCHEDULER + b"\x01daemon0", m.Dispatch((row,), (), False))
    assert worker.begin() is not None

    def sent() -> list[str]:
        return [type(effect.message).__name__ for effect in worker.take_effects(0.0)]  # type: ignore[attr-defined]

    assert lending.begin((b"one",)) == lending.begin((b"two",)) == row[0]
    assert sent() == ["Blocked"]
    lending.end(row[0], (b"one",))
    lending.suspend(row[0])
    worker.block((b"three",), True)
    assert sent() == ["Unblocked", "Blocked"]
    lending.begin((b"four",))
    worker.unblock()
    lending.resume(row[0])
    assert sent() == ["Unblocked", "Blocked"]
    lending.end(row[0], (b"two",))
    lending.end(row[0], (b"four",))
    assert sent() == ["Unblocked"]
    lending.begin((b"five",))
    lending.close(row[0])
    lending.end(row[0], (b"five",))
    assert sent() == ["Blocked", "Unblocked"]
