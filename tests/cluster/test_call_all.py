"""One call to many actors, as one message to each process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from faults import PATIENCE, failure, kill_daemon

import zfabric as zf
from zfabric.protocol import messages as m
from zfabric.runtime import interface

pytestmark = pytest.mark.usefixtures("shared_cluster")


class Shard:
    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.seen: list[Any] = []

    def add(self, value: Any, *, times: int = 1) -> Any:
        self.seen.append(value)
        return self.number + value * times

    def total(self, array: np.ndarray) -> float:
        return float(array.sum()) + self.number

    def look(self) -> list[Any]:
        return self.seen

    @zf.method(num_returns=2)
    def pair(self, value: int) -> tuple[int, int]:
        return self.number, value

    @zf.method(readonly=True)
    def several(self, count: int) -> Iterator[int]:
        yield from range(self.number, self.number + count)

    def pid(self) -> int:
        return os.getpid()

    def held(self, refs: list[Any]) -> Any:
        return zf.get(refs[0], timeout=PATIENCE) + self.number


def shards(count: int, **options: Any) -> list[Any]:
    made = zf.remote(Shard).options(num_cpus=0, **options)
    return [made.remote(number) for number in range(count)]


@pytest.mark.parametrize("options", [{"lightweight": True}, {}, {"max_concurrency": 2}, {"max_restarts": -1, "checkpoint_every": 0}])
def test_each_actor_answers_and_the_refs_are_in_order(options: dict[str, Any]) -> None:
    found = shards(4, **options)
    assert zf.get(zf.util.call_all(found, "add", 10, times=2), timeout=PATIENCE) == [20, 21, 22, 23]
    assert zf.get(zf.util.call_all(found, "look"), timeout=PATIENCE) == [[10]] * 4
    for array in (np.ones(10), np.ones(50_000), np.ones(500_000)):
        totals = [array.sum() + number for number in range(4)]
        assert zf.get(zf.util.call_all(found, "total", array), timeout=PATIENCE) == totals
        assert zf.get(zf.util.call_all(found, "total", zf.put(array)), timeout=PATIENCE) == totals
    assert zf.get(zf.util.call_all(found, "held", [zf.put(5)]), timeout=PATIENCE) == [5, 6, 7, 8]
    pairs = zf.util.call_all(found, "pair", 7)
    assert [zf.get(pair, timeout=PATIENCE) for pair in pairs] == [[number, 7] for number in range(4)]
    streams = zf.util.call_all(found, "several", 2)
    assert [[zf.get(ref, timeout=PATIENCE) for ref in stream] for stream in streams] == [[0, 1], [1, 2], [2, 3], [3, 4]]


def test_calls_keep_their_order_and_are_one_frame_for_each_process() -> None:
    found = shards(50, lightweight=True)
    processes = len(set(zf.get(zf.util.call_all(found, "pid"), timeout=PATIENCE)))
    assert processes < 50
    zf.get([each.add.remote(1) for each in found], timeout=PATIENCE)
    client = interface.current()
    assert client is not None
    sent: list[list[Any]] = []
    transport = client.connection.transport  # type: ignore[attr-defined]
    right = transport.send_envelopes

    def noted(receiver: bytes, envelopes: Any, now: float) -> None:
        sent.append([message for _, _, message in envelopes if type(message) is m.Call])
        right(receiver, envelopes, now)

    transport.send_envelopes = noted
    try:
        refs = zf.util.call_all(found, "add", 2)
    finally:
        del transport.send_envelopes
    frames = [calls for calls in sent if calls]
    assert sum(map(len, frames)) == 50
    assert len(frames) <= processes
    refs += [each.add.remote(3) for each in found]
    zf.get(refs, timeout=PATIENCE)
    assert zf.get(zf.util.call_all(found, "look"), timeout=PATIENCE) == [[1, 2, 3]] * 50


def test_a_dead_actor_fails_its_own_ref_alone() -> None:
    found = shards(3)
    pids = zf.get(zf.util.call_all(found, "pid"), timeout=PATIENCE)
    os.kill(pids[1], signal.SIGKILL)
    assert isinstance(failure(found[1].add.remote(1)), zf.ActorError)
    refs = zf.util.call_all(found, "add", np.ones(20_000))
    assert [zf.get(refs[place], timeout=PATIENCE)[0] for place in (0, 2)] == [1.0, 3.0]
    assert isinstance(failure(refs[1]), zf.ActorDiedError)


def test_tasks_and_actors_call_all_too_and_a_new_daemon_changes_nothing() -> None:
    @zf.remote(num_cpus=0)
    def call(found: list[Any]) -> list[Any]:
        return zf.get(zf.util.call_all(found, "add", np.ones(20_000)), timeout=PATIENCE)  # type: ignore[no-any-return]

    found = shards(3)
    assert [each[0] for each in zf.get(call.remote(found), timeout=PATIENCE)] == [1, 2, 3]
    refs = zf.util.call_all(found, "add", 1)
    kill_daemon()
    refs += zf.util.call_all(found, "add", 2)
    assert zf.get(refs, timeout=PATIENCE) == [1, 2, 3, 2, 3, 4]


def test_nothing_is_called_if_anything_is_wrong() -> None:
    found = shards(2)
    with pytest.raises(AttributeError, match="no method 'ad'; did you mean 'add'"):
        zf.util.call_all(found, "ad", 1)
    with pytest.raises(TypeError, match="takes"):
        zf.util.call_all(found, "add")
    with pytest.raises(TypeError, match="handles of actors, not int"):
        zf.util.call_all([*found, 1], "add", 1)
    limited = [found[0], zf.remote(Shard).options(num_cpus=0, max_pending_calls=1).remote()]
    gate = limited[1].several.options(num_returns="streaming", max_buffered=1).remote(100)
    with pytest.raises(zf.PendingCallsLimitExceededError):
        zf.util.call_all(limited, "add", 1)
    gate.close()
    assert zf.util.call_all([], "add", 1) == []
    assert zf.get(zf.util.call_all(found, "look"), timeout=PATIENCE) == [[], []]
