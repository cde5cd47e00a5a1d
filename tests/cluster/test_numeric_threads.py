"""Numeric libraries have a thread for each whole CPU of a task or an actor, unless the user sets another number."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import zfabric as zf
from zfabric.adapters import numeric_threads


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOTO_NUM_THREADS", *numeric_threads.VARIABLES):
        monkeypatch.delenv(name, raising=False)


def threads() -> tuple[set[int], set[int]]:
    """The threads of OpenBLAS in this process, and the number that a library loaded now would read from the environment (0: none)."""
    import numpy  # noqa: F401  # ICN001: loads OpenBLAS
    import threadpoolctl

    found = {each["num_threads"] for each in threadpoolctl.threadpool_info() if each["internal_api"] == "openblas"}
    return found, {int(value) for name in numeric_threads.VARIABLES if (value := os.environ.get(name, "0")).isdecimal()}


def openblas() -> set[int]:
    return threads()[0]


@zf.remote
def plain() -> Any:
    return threads()


@zf.remote
def openmp() -> Any:
    """How many OpenMP would start."""
    import sklearn.cluster  # noqa: F401  # brings it along
    import threadpoolctl

    return {each["num_threads"] for each in threadpoolctl.threadpool_info() if each["internal_api"] == "openmp"}


@zf.remote
def waits(depth: int) -> list[Any]:
    """What was so before a task that it waits for, and afterwards; and the same of that one."""
    before = threads()
    inner = zf.get(waits.options(num_cpus=1 + depth % 3).remote(depth - 1)) if depth else []
    return [(before, threads()), *inner]


@zf.remote
class Actor:
    def threads(self) -> Any:
        return threads()


@pytest.mark.parametrize("preload", [(), ("numpy",)])
def test_a_task_or_an_actor_has_a_numeric_thread_per_whole_cpu(cluster: Callable[..., Any], preload: tuple[str, ...]) -> None:
    cluster(num_cpus=4, config={"preload": preload})
    if preload:
        assert zf.get(openmp.options(num_cpus=3).remote()) == {3}
    for count, seen in ((None, 1), (3, 3), (0.5, 1), (2.9, 2), (1, 1), (4, 4)):
        assert zf.get(plain.options(num_cpus=count).remote()) == ({seen}, {seen}), count
    two = zf.remote(num_cpus=2)(threads)
    assert zf.get([two.remote(), plain.remote(), two.remote()]) == [({2}, {2}), ({1}, {1}), ({2}, {2})]
    assert zf.get([Actor.options(num_cpus=count).remote().threads.remote() for count in (None, 2.5)]) == [({1}, {1}), ({2}, {2})]


def test_a_task_on_top_does_not_change_the_threads_of_the_blocked_one(cluster: Callable[..., Any]) -> None:
    """The scheduler decides which of these run on top of others; most often some do."""
    cluster(num_cpus=3, config={"preload": ("numpy",)})
    rows = zf.get(waits.options(num_cpus=2).remote(8))
    counts = [2, *(1 + depth % 3 for depth in range(8, 0, -1))]
    assert rows == [(({count}, {count}),) * 2 for count in counts]


def test_settings_of_the_user_have_precedence(cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """``OMP_NUM_THREADS`` counts for all; what is no number is left to the library."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    cluster(num_cpus=4, config={"preload": ("numpy",)})
    three = plain.options(num_cpus=3)
    assert zf.get(three.remote()) == ({2}, {2, 3})
    runtime_env = {"env_vars": {"OMP_NUM_THREADS": "4,1"}}
    omp = zf.remote(num_cpus=3, runtime_env=runtime_env)(lambda: (os.environ["OMP_NUM_THREADS"], os.environ.get("MKL_NUM_THREADS")))
    assert zf.get(omp.remote()) == ("4,1", None)
    assert zf.get(Actor.options(num_cpus=3, runtime_env={"env_vars": {"OPENBLAS_NUM_THREADS": "3"}}).remote().threads.remote())[0] == {3}
    assert zf.get(zf.remote(num_cpus=3)(openblas).options(runtime_env={"env_vars": {"OPENBLAS_NUM_THREADS": "many"}}).remote()) == {1}


def test_torch_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a pool of its own. (A stand-in: the tests do not install torch.)"""
    import sys
    import types

    told: list[int] = []
    torch = types.ModuleType("torch")
    torch.set_num_threads = told.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(numeric_threads, "_loaded", set)
    for name in numeric_threads.VARIABLES:
        monkeypatch.setenv(name, "7")  # so that it is as it was, afterwards
        monkeypatch.delenv(name)
    try:
        numeric_threads.begin(3)
        numeric_threads.limit(3)
        numeric_threads.limit(2)
        monkeypatch.setenv("OMP_NUM_THREADS", "5")
        numeric_threads.begin(2)
    finally:
        numeric_threads._user_variables.clear()
        numeric_threads._count = 1
    assert told == [3, 2, 5]
