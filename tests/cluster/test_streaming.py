"""Streams: values that are consumed while the task that yields them runs. Real processes; the machines alone are in ``test_streams.py``."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually, failure, kill_daemon, query, taken

import zfabric as zf
from zfabric.runtime.arena_access import UnreportedWrites

pytestmark = pytest.mark.usefixtures("shared_cluster")

streaming: Callable[..., Any] = zf.remote(num_returns="streaming")


shared_cluster = one_cluster(autouse=False, config={"restart_backoff_max": 0.1})
"""Its daemon is restarted at once however often it dies."""


@streaming
def count(n: int) -> Iterator[int]:
    yield from range(n)


@zf.remote
def total(generator: Any) -> int:
    return sum(zf.get(ref) for ref in generator)


@zf.remote(num_returns="streaming", max_buffered=3)
def noted(path: str, n: int, kill_at: int = -1) -> Iterator[int]:
    """Writes down what it yields; dies once before the value ``kill_at``."""
    note = Path(path)
    try:
        for index in range(n):
            with note.open("a") as file:
                file.write(f"{index} ")
            marker = Path(f"{path}.died")
            if index == kill_at and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield index
    except (GeneratorExit, KeyboardInterrupt):  # the second if it is cancelled while this runs
        with note.open("a") as file:
            file.write("closed")
        raise


def values(refs: Any) -> list[Any]:
    return [zf.get(ref, timeout=PATIENCE) for ref in taken(refs)]


def written(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def released() -> bool:
    """Whether every CPU is free again."""
    return bool(zf.available_resources().get("CPU") == zf.cluster_resources()["CPU"])


# --- consumed while it runs ---------------------------------------------------------------------------------------------------------


def test_values_arrive_in_order_and_the_stream_ends() -> None:
    generator = count.remote(100)
    assert isinstance(generator, zf.ObjectRefGenerator)
    assert values(generator) == list(range(100))
    assert values(generator) == []
    assert zf.get(generator.completed(), timeout=PATIENCE) == 100
    assert values(count.remote(0)) == []


def test_values_are_available_before_the_task_has_ended(tmp_path: Path) -> None:
    @streaming
    def lockstep() -> Iterator[int]:
        for index in range(3):
            yield index
            eventually((tmp_path / str(index)).exists, "the consumer has seen the value")

    for index, ref in enumerate(lockstep.remote()):
        assert zf.get(ref, timeout=PATIENCE) == index
        (tmp_path / str(index)).touch()


def test_large_values_and_refs_inside_values() -> None:
    @streaming
    def mixed() -> Iterator[Any]:
        for index in range(40):
            yield np.full(100_000, index)
            yield [zf.put(index)]

    seen = []
    for position, ref in enumerate(mixed.remote()):
        value = zf.get(ref, timeout=PATIENCE)
        seen.append(int(value[0]) if position % 2 == 0 else zf.get(value[0], timeout=PATIENCE))
    assert seen == [index for index in range(40) for _ in range(2)]


def test_a_stream_is_iterated_in_an_event_loop() -> None:
    async def both() -> list[list[int]]:
        async def one() -> list[int]:
            return [await ref async for ref in count.remote(50)]

        return await asyncio.gather(one(), one())

    assert asyncio.run(both()) == [list(range(50)), list(range(50))]


def test_a_consumer_can_poll(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @streaming
    def gated() -> Iterator[int]:
        eventually(gate.exists, "the gate opens")
        yield 1

    generator = gated.remote()
    assert not generator.next_ready()
    with pytest.raises(zf.GetTimeoutError):
        generator.next(timeout=0)
    for bad, kind in ((-1, ValueError), ("1", TypeError)):
        with pytest.raises(kind, match="timeout"):
            generator.next(timeout=bad)  # type: ignore[arg-type]
    gate.touch()
    eventually(generator.next_ready, "the value comes")
    assert zf.get(generator.next(timeout=PATIENCE)) == 1
    assert generator.task_id() == generator.completed().task_id()


def test_options_of_calls_and_map() -> None:
    one = zf.remote(lambda n: iter(range(n)))
    assert values(one.options(num_returns="streaming", name="letters").remote(3)) == [0, 1, 2]
    assert [values(each) for each in count.options(max_buffered=1).map([1, 3])] == [[0], [0, 1, 2]]
    assert zf.get(count.options(num_returns=3).remote(3), timeout=PATIENCE) == [0, 1, 2]
    with pytest.raises(zf.OptionError, match="streaming"):
        zf.remote(num_returns=2, max_buffered=3)(lambda: None)
    assert values(count.options(num_returns=None).remote(2)) == [0, 1]
    with pytest.raises(zf.OptionError, match=r'"streaming".*"dynamic"'):
        count.options(num_returns=1).remote(1)
    with pytest.raises(zf.OptionError, match="max_buffered"):
        count.options(max_buffered=0)

    async def not_a_generator() -> None: ...

    with pytest.raises(zf.OptionError, match="without yield"):
        streaming(not_a_generator)


def test_a_streaming_function_that_yields_nothing_is_an_error() -> None:
    generator = zf.remote(num_returns="streaming")(lambda: 5).remote()
    error = failure(next(generator))
    assert isinstance(error, TypeError)
    assert "should yield" in str(error)
    with pytest.raises(StopIteration):
        next(generator)


# --- how far ahead ------------------------------------------------------------------------------------------------------------------


def test_the_producer_is_not_further_ahead_than_its_credit(tmp_path: Path) -> None:
    note = tmp_path / "note"
    generator = noted.remote(str(note), 100)

    def has_yielded(number: int) -> None:
        eventually(lambda: len(written(note)) >= number, f"it yields {number}")
        assert len(written(note)) == number

    has_yielded(3)
    for number in range(1, 20):
        assert zf.get(next(generator), timeout=PATIENCE) == number - 1
        has_yielded(number + 3)
    # Its CPU is lent meanwhile: more tasks than CPUs can run, though producers wait.
    others = [noted.remote(str(tmp_path / f"other {index}"), 10) for index in range(3)]
    assert zf.get([total.remote(each) for each in others], timeout=PATIENCE) == [45] * 3
    assert len(written(note)) == 22


# --- passed on ----------------------------------------------------------------------------------------------------------------------


def test_a_stream_passed_to_a_task_continues_at_its_position() -> None:
    generator = count.remote(200)
    first = [zf.get(next(generator), timeout=PATIENCE) for _ in range(5)]
    ref = total.remote(generator)
    del generator
    assert first == [0, 1, 2, 3, 4]
    assert zf.get(ref, timeout=PATIENCE) == sum(range(5, 200))
    assert zf.get(total.remote(count.remote(200)), timeout=PATIENCE) == sum(range(200))


def test_copies_of_a_stream_share_its_position(tmp_path: Path) -> None:
    generator = noted.remote(str(tmp_path / "note"), 6)
    assert zf.get(total.remote(generator), timeout=PATIENCE) == 15
    error = failure(next(generator))
    assert isinstance(error, zf.ObjectFreedError)
    assert "was taken by another copy of its generator, or by an attempt of a task that has died, and dropped" in str(error)


# --- closed -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "drop"])
@pytest.mark.parametrize("taken", [0, 2])
def test_closing_a_stream_ends_the_producer(tmp_path: Path, how: str, taken: int) -> None:
    note = tmp_path / "note"
    generator = noted.remote(str(note), 10**6)
    for _ in range(taken):
        zf.get(next(generator), timeout=PATIENCE)
    eventually(lambda: len(written(note)) == taken + 3, "it runs")
    if how == "close":
        generator.close()
        assert values(generator) == []
        with pytest.raises(ValueError, match="closed"):
            generator.completed()
    else:
        del generator
    eventually(lambda: written(note)[-1] == "closed", "GeneratorExit is raised in it")
    eventually(released, "its CPU is free")


def test_a_stream_released_before_it_begins_does_not_begin(tmp_path: Path) -> None:
    @zf.remote
    def hold() -> None:
        eventually((tmp_path / "gate").exists, "the gate opens")

    holders = [hold.remote() for _ in range(2)]
    note = tmp_path / "note"
    noted.remote(str(note), 10).close()
    (tmp_path / "gate").touch()
    zf.get(holders, timeout=PATIENCE)
    eventually(released, "nothing runs")
    assert not note.exists()


def test_a_stream_leaves_nothing_behind() -> None:
    def objects() -> int:
        return int(query("status")["statistics"]["objects"])

    gc.collect()
    eventually(lambda: objects() == 0, "what other tests had has gone")
    for _ in range(3):
        generator = count.remote(30)
        zf.get([next(generator) for _ in range(10)], timeout=PATIENCE)
        del generator
    assert values(count.remote(30))[-1] == 29
    eventually(lambda: objects() == 0, "every value has gone")


def test_a_stream_is_cancelled_like_a_task(tmp_path: Path) -> None:
    note = tmp_path / "note"
    generator = noted.remote(str(note), 10**6)
    assert zf.get(next(generator), timeout=PATIENCE) == 0
    eventually(lambda: len(written(note)) == 4, "it waits for room")
    zf.cancel(generator)
    *rest, last = generator
    assert values(rest) == list(range(1, 1 + len(rest)))
    assert isinstance(failure(last), zf.TaskCancelledError)


# --- bad days -----------------------------------------------------------------------------------------------------------------------


def test_an_error_is_the_last_ref() -> None:
    @streaming
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("broken")

    generator = failing.remote()
    refs = list(generator)
    assert values(refs[:2]) == [1, 2]
    assert len(refs) == 3
    assert isinstance(failure(refs[2]), KeyError)
    assert isinstance(failure(generator.completed()), KeyError)


def test_a_retried_stream_continues_at_its_position(tmp_path: Path) -> None:
    @zf.remote(num_returns="streaming", retry_exceptions=[OSError])
    def flaky() -> Iterator[int]:
        for index in range(20):
            if index == 10 and not (tmp_path / "once").exists():
                (tmp_path / "once").touch()
                raise OSError("once")
            yield index

    assert values(flaky.remote()) == list(range(20))


def test_a_killed_producer_is_retried_and_no_value_is_delivered_twice(tmp_path: Path) -> None:
    note = tmp_path / "note"
    generator = noted.remote(str(note), 20, 8)
    assert values(generator) == list(range(20))
    assert written(note)[:-1].count("0") == 2  # It did begin again.


def test_a_dead_producer_without_retries_ends_its_stream_with_the_reason(tmp_path: Path) -> None:
    *refs, last = noted.options(max_retries=0).remote(str(tmp_path / "note"), 20, 4)
    assert values(refs) == [0, 1, 2, 3][: len(refs)]  # What it yielded last may have died with it.
    assert isinstance(failure(last), zf.WorkerCrashedError)


@pytest.mark.parametrize("size", [1, 20_000])
def test_streams_outlive_the_daemon(size: int) -> None:
    @zf.remote(num_returns="streaming", max_buffered=5)
    def arrays(n: int) -> Iterator[Any]:
        for index in range(n):
            yield np.full(size, index)

    generator, untouched, handed = arrays.remote(60), arrays.remote(60), arrays.remote(4)
    seen = [int(zf.get(next(generator), timeout=PATIENCE)[0]) for _ in range(10)]
    kill_daemon()
    for _ in range(20):
        seen.append(int(zf.get(next(generator), timeout=PATIENCE)[0]))
    kill_daemon()
    seen += [int(value[0]) for value in values(generator)]
    assert seen == list(range(60))
    assert [int(value[0]) for value in values(untouched)] == list(range(60))
    assert [int(value[0]) for value in values(handed)] == list(range(4))


def test_a_stream_that_had_ended_outlives_the_daemon() -> None:
    generator = count.remote(12)
    assert zf.get(next(generator), timeout=PATIENCE) == 0
    assert zf.get(generator.completed(), timeout=PATIENCE) == 12
    other = count.remote(12)
    assert zf.get(other.completed(), timeout=PATIENCE) == 12
    kill_daemon()
    assert values(generator) == list(range(1, 12))
    assert values(other) == list(range(12))


def test_a_stream_closed_while_the_daemon_is_dead_ends(tmp_path: Path) -> None:
    note = tmp_path / "note"
    generator = noted.remote(str(note), 10**6)
    assert zf.get(next(generator), timeout=PATIENCE) == 0
    kill_daemon()
    generator.close()
    eventually(lambda: written(note)[-1] == "closed", "GeneratorExit is raised in it")


# --- methods of actors --------------------------------------------------------------------------------------------------------------


@zf.remote
class Source:
    """Counts on from call to call."""

    def __init__(self) -> None:
        self.next = 0

    @zf.method(num_returns="streaming", max_buffered=3)
    def count(self, n: int) -> Iterator[int]:
        """The next ``n`` numbers."""
        for _ in range(n):
            self.next += 1
            yield self.next - 1

    def noted(self, path: str, n: int, kill_at: int = -1) -> Iterator[int]:
        """As the function of this name."""
        note: Callable[..., Iterator[int]] = noted._function
        return note(path, n, kill_at)

    def failing(self) -> Iterator[int]:
        """Two values and an error."""
        yield 1
        yield 2
        raise KeyError("broken")

    def pid(self) -> int:
        """Where it lives."""
        return os.getpid()


STREAM: dict[str, Any] = {"num_returns": "streaming", "max_buffered": 3}


@pytest.mark.parametrize("threads", [None, 4])
def test_a_method_streams_while_it_runs(threads: int | None) -> None:
    source = Source.options(max_concurrency=threads).remote()
    first = source.count.remote(20)
    assert isinstance(first, zf.ObjectRefGenerator)
    assert values(first) == list(range(20))
    assert zf.get(first.completed(), timeout=PATIENCE) == 20
    assert values(source.count.options(max_buffered=1).remote(5)) == list(range(20, 25))
    assert zf.get(source.count.options(num_returns=2).remote(2), timeout=PATIENCE) == [25, 26]
    assert zf.get(total.remote(source.count.remote(3)), timeout=PATIENCE) == 27 + 28 + 29
    refs = list(source.failing.options(**STREAM).remote())
    assert values(refs[:2]) == [1, 2]
    assert isinstance(failure(refs[2]), KeyError)
    assert len(refs) == 3
    assert zf.get(source.pid.remote(), timeout=PATIENCE) > 0


@zf.remote(max_concurrency=3)
class Beside:
    """A stream of large values, one of which is written but not reported while other calls end."""

    def __init__(self) -> None:
        self.written = threading.Event()
        self.others_ended = threading.Event()

    def stream(self) -> Iterator[bytes]:
        """One value."""
        store = UnreportedWrites.store

        def store_slowly(*arguments: Any) -> Any:
            place = store(*arguments)
            self.written.set()
            self.others_ended.wait(PATIENCE)
            return place

        UnreportedWrites.store = store_slowly  # type: ignore[method-assign]
        yield bytes(200_000)

    def wait_for_it(self) -> None:
        """Until it is written."""
        self.written.wait(PATIENCE)

    def let_it_go_on(self) -> None:
        """It may be reported."""
        self.others_ended.set()


def test_calls_that_end_beside_a_stream_leave_its_values_alone() -> None:
    actor = Beside.remote()
    generator = actor.stream.remote()
    zf.get(actor.wait_for_it.remote(), timeout=PATIENCE)
    zf.get(actor.let_it_go_on.remote(), timeout=PATIENCE)
    assert [len(each) for each in values(generator)] == [200_000]


def test_a_call_waits_for_the_stream_before_it(tmp_path: Path) -> None:
    source, note = Source.remote(), tmp_path / "note"
    generator = source.noted.options(**STREAM).remote(str(note), 10)
    eventually(lambda: len(written(note)) == 3, "it fills what it may")
    pid = source.pid.remote()
    assert zf.wait([pid], timeout=0)[0] == []
    assert values(generator) == list(range(10))
    assert zf.get(pid, timeout=PATIENCE) > 0


@pytest.mark.parametrize("threads", [None, 4])
@pytest.mark.parametrize("how", ["close", "drop", "cancel"])
def test_closing_the_stream_of_a_method_ends_it(tmp_path: Path, how: str, threads: int | None) -> None:
    source, note = Source.options(max_concurrency=threads).remote(), tmp_path / "note"
    generator = source.noted.options(**STREAM).remote(str(note), 10**6)
    zf.get([next(generator), next(generator)], timeout=PATIENCE)
    if how == "close":
        generator.close()
    elif how == "drop":
        del generator
    else:
        zf.cancel(generator)
        *rest, last = generator
        assert values(rest) == list(range(2, 2 + len(rest)))
        assert isinstance(failure(last), zf.TaskCancelledError)
    eventually(lambda: written(note)[-1] == "closed", "its generator is ended")
    assert zf.get(source.pid.remote(), timeout=PATIENCE) > 0
    source.noted.options(**STREAM).remote(str(note), 10**6).close()
    assert zf.get(source.pid.remote(), timeout=PATIENCE) > 0


def test_an_actor_that_dies_ends_its_streams(tmp_path: Path) -> None:
    source = Source.remote()
    *refs, last = source.noted.options(**STREAM).remote(str(tmp_path / "note"), 20, 4)
    assert values(refs) == [0, 1, 2, 3][: len(refs)]
    assert isinstance(failure(last), zf.ActorDiedError)


def test_a_stream_of_a_restarted_actor_continues_at_its_position(tmp_path: Path) -> None:
    source = Source.options(max_restarts=1, max_task_retries=1).remote()
    assert values(source.noted.options(**STREAM).remote(str(tmp_path / "note"), 20, 8)) == list(range(20))
    assert written(tmp_path / "note").count("0") == 2


def test_streams_of_actors_outlive_the_daemon(tmp_path: Path) -> None:
    source, other = Source.remote(), Source.remote()
    generator, untouched = source.count.remote(30), other.count.remote(30)
    kept = [next(generator) for _ in range(5)]
    for _ in range(2):
        kill_daemon()
        kept += [next(generator) for _ in range(5)]
    assert values(kept) == list(range(15))
    assert values(generator) == list(range(15, 30))
    assert zf.get(total.remote(untouched), timeout=PATIENCE) == sum(range(30))


def test_a_caller_that_dies_with_a_stream_leaves_the_actor_unharmed(tmp_path: Path) -> None:
    source, note = Source.remote(), tmp_path / "note"

    @zf.remote(max_retries=0)
    def die() -> None:
        generator = source.noted.options(**STREAM).remote(str(note), 10**6)
        zf.get([next(generator), next(generator)])
        os.kill(os.getpid(), signal.SIGKILL)

    assert isinstance(failure(die.remote()), zf.WorkerCrashedError)
    eventually(lambda: written(note)[-1] == "closed", "nobody reads it any more")
    assert zf.get(source.pid.remote(), timeout=PATIENCE) > 0


# --- all at once --------------------------------------------------------------------------------------------------------------------


def test_dynamic_returns_are_available_once_the_task_has_ended() -> None:
    @zf.remote(num_returns="dynamic")
    def halves(n: int) -> Iterator[Any]:
        while n:
            yield np.full(20_000, n)
            n //= 2

    refs = zf.get(halves.remote(9), timeout=PATIENCE)
    assert len(refs) == 4
    assert [int(value[0]) for value in values(refs)] == [9, 4, 2, 1]
    assert [int(value[0]) for value in values(refs)] == [9, 4, 2, 1]

    @zf.remote
    def again(found: Any) -> list[int]:
        return [int(zf.get(ref)[0]) for ref in found]

    assert zf.get(again.remote(halves.remote(5)), timeout=PATIENCE) == [5, 2, 1]


def test_get_of_a_generator_is_the_generator() -> None:
    for mode in ("streaming", "dynamic"):
        made = zf.remote(num_returns=mode)(lambda: (yield 1)).remote()
        generator = zf.get(made, timeout=PATIENCE)
        assert zf.get(generator) is generator
        assert values(generator) == [1]


@zf.remote(num_returns="dynamic")
def break_off(n: int) -> Iterator[int]:
    yield from range(n)
    raise KeyError("broken off")


@zf.remote(num_returns="dynamic")
async def break_off_in_loop(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number
    raise KeyError("broken off")


class BreaksOff:
    """Its methods raise after they have yielded."""

    def plain(self, n: int) -> Iterator[int]:
        yield from range(n)
        raise KeyError("broken off")


class BreaksOffInLoop:
    async def plain(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number
        raise KeyError("broken off")


@pytest.mark.parametrize("made", ["task", "async task", "actor", "async actor", "threads"])
def test_values_yielded_before_an_error_are_retained(made: str) -> None:
    actors = {"actor": (BreaksOff, {}), "async actor": (BreaksOffInLoop, {}), "threads": (BreaksOff, {"max_concurrency": 2})}
    if made in actors:
        kind, options = actors[made]
        actor: Any = zf.remote(kind).options(**options).remote()
        call: Any = actor.plain
    else:
        call = break_off if made == "task" else break_off_in_loop
    *whole, broken = zf.get(call.options(num_returns="dynamic").remote(2), timeout=PATIENCE)
    assert values(whole) == [0, 1]
    assert isinstance(failure(broken), KeyError)
    (broken,) = zf.get(call.options(num_returns="dynamic").remote(0), timeout=PATIENCE)
    assert isinstance(failure(broken), KeyError)
    first, *rest = call.options(num_returns=3).remote(1)
    assert values([first]) == [0]
    assert [type(failure(ref)) for ref in rest] == [type(failure(broken))] * 2
    with pytest.raises(KeyError, match="broken off"):
        zf.get([first, *rest], timeout=PATIENCE)

    @zf.remote
    def use(value: int) -> int:
        return value

    assert zf.get(use.remote(first), timeout=PATIENCE) == 0
    assert isinstance(failure(use.remote(rest[0])), KeyError)


def test_a_function_that_may_be_retried_yields_all_or_fails_again(tmp_path: Path) -> None:
    @zf.remote(retry_exceptions=[OSError], max_retries=2)
    def comes_back(note: str) -> Iterator[int]:
        with open(note, "a") as file:
            file.write("begun ")
        yield 1
        if written(Path(note)).count("begun") < 3:
            raise OSError("not yet")
        yield 2

    note = tmp_path / "note"
    assert zf.get(comes_back.options(num_returns=2).remote(str(note)), timeout=PATIENCE) == [1, 2]
    note.unlink()
    assert values(zf.get(comes_back.options(num_returns="dynamic").remote(str(note)), timeout=PATIENCE)) == [1, 2]


def test_a_function_that_does_not_yield_cannot_be_dynamic() -> None:
    with pytest.raises(zf.OptionError, match="does not yield"):
        zf.remote(num_returns="dynamic")(lambda: [1, 2])
    error = failure(zf.remote(num_returns="dynamic")(partial(sorted, [1, 2])).remote())
    assert isinstance(error, TypeError)
    assert "returned a list: it should yield its values" in str(error)


def test_a_generator_that_yields_less_than_declared_retains_its_values() -> None:
    *whole, missing = count.options(num_returns=3).remote(2)
    assert values(whole) == [0, 1]
    assert "declares num_returns=3 and returned 2 values" in str(failure(missing))
    assert all("returned 4 values" in str(failure(ref)) for ref in count.options(num_returns=3).remote(4))


def test_a_generator_is_its_own_value() -> None:
    generator = count.remote(2)
    assert zf.get(generator) is generator
    assert values(generator) == [0, 1]


def test_nothing_is_ready_at_the_end() -> None:
    generator = count.remote(1)
    assert values([next(generator)]) == [0]
    zf.get(generator.completed(), timeout=PATIENCE)
    assert not generator.next_ready()
    assert not generator.next_ready()
    assert list(generator) == []


def test_a_waiting_producer_lends_its_cpu_to_its_consumer(cluster: Callable[..., Any]) -> None:
    """The last test of this file: it has a cluster of its own, which ends the one of the file."""
    cluster(num_cpus=1)
    assert zf.get(total.remote(count.remote(1000)), timeout=PATIENCE) == sum(range(1000))
