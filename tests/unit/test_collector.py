"""The cyclic garbage collector of a daemon."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from zfabric.adapters.collector import WHOLE_SHARE, IdleCollector


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def turned_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_full_passes_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    passes = []

    def collect(generation: int = 2) -> int:
        nonlocal now
        passes.append((round(now, 3), generation))
        now += 0.5 if generation == 2 else 0.001
        return 0

    monkeypatch.setattr(gc, "collect", collect)
    collector = IdleCollector(lambda: now)
    for _ in range(40):
        collector.run()
        now += 30.0
    full = [when for when, generation in passes if generation == 2]
    assert full[:2] == [100.0, next(when for when, _ in passes if when >= 100.5 + 0.5 * WHOLE_SHARE)]
    assert len(full) == 3


def test_each_pass_finds_new_garbage_and_a_full_one_finds_all() -> None:
    now = 0.0
    collector = IdleCollector(lambda: now)
    old = Cycle()
    collector.run()
    now = -1.0  # No full pass is due for now.
    new = Cycle()
    gone = [weakref.ref(old), weakref.ref(new)]
    del old, new
    collector.run()
    assert gone[1]() is None
    assert gone[0]() is not None
    now = 1.0
    collector.run()
    assert gone[0]() is None
