"""Concurrency in one worker: threaded and async actors, and async tasks. Real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import PATIENCE, eventually, failure, gone
from files import wait_for_file, wait_for_file_in_loop

import zfabric as zf
from zfabric.runtime import interface

pytestmark = pytest.mark.usefixtures("shared_cluster")


def value(ref: Any) -> Any:
    return zf.get(ref, timeout=PATIENCE)


@zf.remote
def plus_one(x: int) -> int:
    return x + 1


def hold_up(path: str) -> None:
    """Keep the event loop from beginning what has come after this, until that is to be stopped."""
    client: Any = interface.current()

    def found(what: Callable[[], Any]) -> Any:
        with client.connection.lock:
            return what()

    Path(path, "held up").touch()
    eventually(lambda: found(lambda: len(client.connection.worker.running_calls) == 2), "another one has come")
    Path(path, "both are here").touch()
    eventually(lambda: found(lambda: bool(client.connection.worker.interrupts)), "it is to be stopped")


# --- async actors -------------------------------------------------------------------------------------------------------------------


@zf.remote
class Meeting:
    """Whoever comes waits until enough have come: none of them would ever return if one ran after the other."""

    def __init__(self, wanted: int = 1) -> None:
        self.wanted = wanted
        self.came = 0
        self.most = 0
        self.all_here = asyncio.Event()

    async def come(self) -> int:
        self.came += 1
        self.most = max(self.most, self.came)
        if self.came == self.wanted:
            self.all_here.set()
        await self.all_here.wait()
        self.came -= 1
        return self.most

    async def ask(self, x: int) -> Any:
        return await plus_one.remote(x)

    async def ask_many(self, count: int) -> list[Any]:
        return await asyncio.gather(*[plus_one.remote(each) for each in range(count)])

    async def fail(self) -> None:
        raise KeyError("said so")

    async def wait_for_ever(self) -> None:
        await asyncio.Event().wait()

    def plain_ref(self) -> Any:
        return plus_one.remote(1)

    async def ref(self) -> Any:
        return plus_one.remote(1)

    def plain(self) -> str:
        return threading.current_thread().name

    async def hold_up(self, path: str) -> None:
        hold_up(path)

    async def who(self) -> str | None:
        return zf.get_runtime_context().get_actor_id()

    async def leave(self) -> None:
        zf.exit_actor()


@zf.remote
class Counting:
    """Counts in an asyncio task that its ``__init__`` starts."""

    def __init__(self, ref: Any, fails: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.count = value(ref[0])
        self.counted = asyncio.Event()
        self.task = asyncio.create_task(self.go())
        if fails:
            raise KeyError("after the task was created")

    async def go(self) -> None:
        self.count += 1
        self.counted.set()

    async def done(self) -> tuple[int, bool]:
        await self.counted.wait()
        return self.count, self.loop is asyncio.get_running_loop()


def test_the_init_of_an_async_actor_may_start_asyncio_tasks() -> None:
    assert value(Counting.remote([plus_one.remote(1)]).done.remote()) == (3, True)


def test_an_async_actor_whose_init_fails_is_dead_and_its_worker_has_no_loop() -> None:
    with pytest.raises(zf.ActorDiedError, match="after the task was created"):
        value(Counting.remote([plus_one.remote(1)], True).done.remote())
    assert value(Counting.remote([plus_one.remote(1)]).done.remote()) == (3, True)


def test_coroutines_of_an_actor_run_at_the_same_time() -> None:
    meeting = Meeting.remote(50)
    assert value([meeting.come.remote() for _ in range(50)]) == [50] * 50


def test_max_concurrency_bounds_them() -> None:
    meeting = Meeting.options(max_concurrency=3).remote(3)
    assert value([meeting.come.remote() for _ in range(30)])[-1] == 3


def test_a_coroutine_awaits_refs_and_many_of_them() -> None:
    meeting = Meeting.remote()
    assert value(meeting.ask.remote(1)) == 2
    assert value(meeting.ask_many.remote(20)) == list(range(1, 21))


def test_a_coroutine_sees_the_context_of_its_own_call() -> None:
    meeting = Meeting.remote()
    assert value(meeting.who.remote()) == meeting._actor_id.hex()
    assert value(meeting.plain.remote()) == "zfabric-loop"


def test_a_ref_that_a_method_of_an_async_actor_returns_stays_a_ref() -> None:
    meeting = Meeting.remote()
    assert value(value([meeting.ref.remote(), meeting.plain_ref.remote()])) == [2, 2]


def test_an_exception_of_a_coroutine_arrives() -> None:
    with pytest.raises(KeyError, match="said so"):
        value(Meeting.remote().fail.remote())


def test_a_coroutine_is_cancelled_and_the_others_go_on() -> None:
    meeting = Meeting.remote(2)
    first, endless = meeting.come.remote(), meeting.wait_for_ever.remote()
    value(meeting.plain.remote())  # both have begun: calls of one caller begin in order
    zf.cancel(endless)
    with pytest.raises(zf.TaskCancelledError):
        value(endless)
    assert value([first, meeting.come.remote()]) == [2, 2]


@zf.remote
def cancel_inside(refs: list[Any]) -> None:
    zf.cancel(refs[0])


def test_a_call_is_cancelled_by_another_process_than_its_caller() -> None:
    meeting = Meeting.remote(2)
    first, endless = meeting.come.remote(), meeting.wait_for_ever.remote()
    value(meeting.plain.remote())  # both have begun
    value(cancel_inside.remote([endless]))
    with pytest.raises(zf.TaskCancelledError):
        value(endless)
    assert value([first, meeting.come.remote()]) == [2, 2]


def test_a_coroutine_that_is_cancelled_before_it_begins_has_ended(tmp_path: Path) -> None:
    meeting = Meeting.options(max_concurrency=2).remote()
    held = meeting.hold_up.remote(str(tmp_path))
    cancel_in_time(meeting.come, tmp_path, held)
    assert value([meeting.come.remote(), meeting.come.remote()]) == [1, 1]  # Both places are free.


def cancel_in_time(function: Any, path: Path, held: Any) -> None:
    """Cancel what is held up."""
    eventually((path / "held up").exists, "the first one runs")
    cancelled = function.remote()
    eventually((path / "both are here").exists, "the other one has come")
    zf.cancel(cancelled)
    with pytest.raises(zf.TaskCancelledError):
        value(cancelled)
    value(held)


def test_an_async_actor_ends_itself() -> None:
    meeting = Meeting.remote()
    with pytest.raises(zf.ActorDiedError):
        value(meeting.leave.remote())
    with pytest.raises(zf.ActorDiedError):
        value(meeting.plain.remote())


@zf.remote
class Background:
    """Goes on after its call has returned, in a coroutine of its own, and in a thread that knows as much as that."""

    def __init__(self) -> None:
        self.returned = asyncio.Event()

    async def begin(self) -> list[Any]:
        self.later = [asyncio.create_task(self.go_on(each)) for each in (True, False)]
        return [zf.put("put by the call"), plus_one.remote(1)]

    async def go_on(self, aside: bool) -> list[Any]:
        await self.returned.wait()
        return await asyncio.to_thread(self.submit) if aside else self.submit()

    def submit(self) -> list[Any]:
        return [zf.put("put afterwards"), plus_one.remote(10)]

    async def end(self) -> list[Any]:
        self.returned.set()
        return [await each for each in self.later]


def test_background_tasks_of_a_call_submit_under_ids_of_their_own() -> None:
    actor = Background.remote()
    begun = value(actor.begin.remote())
    later = value(actor.end.remote())
    assert [value(each) for each in later] == [["put afterwards", 11]] * 2
    assert value(begun) == ["put by the call", 2]
    assert len({*begun, *later[0], *later[1]}) == 6


# --- threaded actors ------------------------------------------------------------------------------------------------------------------


@zf.remote(max_concurrency=4)
class Crowd:
    """The same with threads."""

    def __init__(self, wanted: int = 4) -> None:
        self.barrier = threading.Barrier(wanted)

    def come(self) -> int:
        self.barrier.wait(PATIENCE)
        return threading.get_ident()

    def ask(self, x: int) -> Any:
        return zf.get(plus_one.remote(x))

    def spin(self) -> None:
        while True:
            time.sleep(0.005)  # until it is interrupted

    def ping(self) -> str:
        return "pong"


def test_methods_of_a_threaded_actor_run_at_the_same_time() -> None:
    crowd = Crowd.remote(4)
    threads = value([crowd.come.remote() for _ in range(8)])
    assert len(set(threads)) == 4


def test_each_thread_may_wait_for_tasks() -> None:
    crowd = Crowd.remote()
    assert value([crowd.ask.remote(each) for each in range(20)]) == list(range(1, 21))


def test_a_thread_is_interrupted_and_the_others_go_on() -> None:
    crowd = Crowd.remote()
    endless = crowd.spin.remote()
    assert value(crowd.ping.remote()) == "pong"
    zf.cancel(endless)
    with pytest.raises(zf.TaskCancelledError):
        value(endless)
    assert value(crowd.ping.remote()) == "pong"


def test_a_waiting_thread_is_woken_for_its_own_values_only(tmp_path: Any, monkeypatch: Any) -> None:
    """Also where it is one of many: if each had to look whenever something comes, that would be most of what they do."""
    count = 40

    @zf.remote
    async def when_open(number: int) -> int:
        await wait_for_file_in_loop(tmp_path / str(number))
        return number

    client: Any = interface.current()
    woken: list[Any] = []
    wake = client.connection._wake
    monkeypatch.setattr(client.connection, "_wake", lambda follower: (woken.append(follower), wake(follower)))
    found: dict[int, Any] = {}

    def wait_for(number: int, ref: Any) -> None:
        found[number] = value(ref)

    refs = [when_open.remote(number) for number in range(count)]
    threads = [threading.Thread(target=wait_for, args=each) for each in enumerate(refs)]
    for thread in threads:
        thread.start()
    for number in range(count):
        (tmp_path / str(number)).touch()
        eventually(lambda number=number: number in found, "its thread goes on")
    for thread in threads:
        thread.join(PATIENCE)
    assert found == {number: number for number in range(count)}
    assert len(woken) < 5 * count


@zf.remote
class Host:
    """One calls ``exit_actor``, others run beside it; each writes a file when it is stopped."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    async def stay(self) -> None:
        await _gone_in(self.path, asyncio.Event().wait())

    async def leave(self) -> None:
        zf.exit_actor()

    async def pid(self) -> int:
        return os.getpid()


async def _gone_in(path: Path, forever: Any) -> None:
    try:
        await forever
    finally:
        path.touch()


@zf.remote(max_concurrency=3)
class Hall:
    """The same with threads."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def stay(self) -> None:
        try:
            while True:
                time.sleep(0.005)  # until it is interrupted
        finally:
            self.path.touch()

    def hang(self) -> None:
        threading.Event().wait()

    def leave(self) -> None:
        zf.exit_actor()

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.parametrize("kind", [Host, Hall])
def test_exit_actor_ends_calls_that_run_beside_it(kind: Any, tmp_path: Path) -> None:
    """And what comes later is not run: it is the end of the actor, and not of one call."""
    mark = tmp_path / "asked"
    actor = kind.remote(str(mark))
    staying = actor.stay.remote()
    pid = value(actor.pid.remote())
    left = failure(actor.leave.remote())
    later = failure(actor.pid.remote())
    stayed = failure(staying)
    for each in (left, later, stayed):
        assert isinstance(each, zf.ActorDiedError)
    assert "ended itself" in str(left)
    assert stayed.outcome == "unknown"
    eventually(lambda: gone(pid), "the process has ended")
    assert mark.exists(), "it was asked to go"


def test_exit_actor_does_not_wait_for_threads_that_do_not_stop(tmp_path: Path) -> None:
    hall = Hall.remote(str(tmp_path / "asked"))
    hanging = hall.hang.remote()
    pid = value(hall.pid.remote())
    assert isinstance(failure(hall.leave.remote()), zf.ActorDiedError)
    assert isinstance(failure(hall.pid.remote()), zf.ActorDiedError), "nothing more begins meanwhile"
    assert isinstance(failure(hanging), zf.ActorDiedError)
    eventually(lambda: gone(pid), "the process has ended")


@zf.remote(max_concurrency=2)
class Stuck:
    """Waits where no interrupt reaches a thread."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def hang(self) -> str:
        self.free.wait()
        return "at last"

    def release(self) -> None:
        self.free.set()

    def ping(self) -> str:
        return "pong"


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_call_in_a_thread_that_does_not_stop_has_an_outcome(how: str) -> None:
    """It goes on, and takes its place until it does end; what it returns then is nobody's."""
    stuck = Stuck.remote()
    value(stuck.ping.remote())
    hanging = stuck.hang.options(timeout=2.0).remote() if how == "timeout" else stuck.hang.remote()
    if how == "cancel":
        value(stuck.ping.remote())  # It has begun: calls of one caller begin in order.
        zf.cancel(hanging)
    error = failure(hanging)
    assert "does not come back to Python" in str(error)
    assert isinstance(error, zf.TaskTimeoutError if how == "timeout" else zf.TaskCancelledError)
    value(stuck.release.remote())
    assert value([stuck.hang.remote() for _ in range(4)]) == ["at last"] * 4


# --- async tasks ------------------------------------------------------------------------------------------------------------------------


@zf.remote
async def where(path: str) -> int:
    """Waits until nobody is missing: see ``arrivals``."""
    with open(f"{path}/{os.getpid()}-{id(asyncio.current_task())}", "w"):
        pass
    while len(os.listdir(path)) < 100:
        await asyncio.sleep(0.01)  # the others come in other processes, too
    return os.getpid()


def test_async_tasks_run_many_at_once_in_one_worker(tmp_path: Any) -> None:
    assert len(set(value([where.remote(str(tmp_path)) for _ in range(100)]))) == 1


def test_async_tasks_hold_no_cpu_while_they_wait() -> None:
    @zf.remote
    async def outer(x: int) -> Any:
        return await plus_one.remote(x)

    assert value([outer.remote(each) for each in range(20)]) == list(range(1, 21))


def test_async_tasks_are_retried_timed_out_and_cancelled() -> None:
    @zf.remote(max_retries=2, retry_exceptions=True)
    async def stubborn() -> None:
        raise KeyError(zf.get_runtime_context().attempt)

    @zf.remote
    async def endless() -> None:
        await asyncio.Event().wait()

    with pytest.raises(KeyError, match="2"):
        value(stubborn.remote())
    with pytest.raises(zf.TaskTimeoutError):
        value(endless.options(timeout=0.2).remote())
    waiting = endless.remote()
    zf.cancel(waiting)
    with pytest.raises(zf.TaskCancelledError):
        value(waiting)


def test_an_async_task_that_is_cancelled_before_it_begins_has_ended(tmp_path: Path) -> None:
    @zf.remote
    async def task(path: str = "") -> None:
        if path:
            hold_up(path)
        else:
            await asyncio.Event().wait()

    held = task.remote(str(tmp_path))
    cancel_in_time(task, tmp_path, held)


def test_async_tasks_survive_their_worker(tmp_path: Any) -> None:
    mark = tmp_path / "killed"

    @zf.remote(max_retries=3)
    async def one(number: int) -> int:
        if number == 7 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0.05)  # the others are under way when number 7 dies
        return number

    assert value([one.remote(each) for each in range(20)]) == list(range(20))


def test_max_concurrency_is_for_async_functions() -> None:
    with pytest.raises(zf.OptionError, match="async def"):
        zf.remote(max_concurrency=2)(lambda: None)
    with pytest.raises(zf.OptionError, match="async def"):
        zf.remote(lambda: None).options(max_concurrency=2)


def test_max_concurrency_one_is_accepted_for_plain_functions() -> None:
    def in_main() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert value([zf.remote(max_concurrency=1)(in_main).remote(), zf.remote(in_main).options(max_concurrency=1).remote()]) == [True, True]


@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_async_tasks_one_at_a_time_run_one_after_the_other(pause: float) -> None:
    running = 0

    @zf.remote(max_concurrency=1)
    async def alone() -> int:
        nonlocal running
        running += 1
        seen = running
        await asyncio.sleep(pause)  # in which others would begin
        running -= 1
        return seen

    value(alone.remote())  # It is known to be short now, if it is.
    assert value([alone.remote() for _ in range(100)]) == [1] * 100


def test_tasks_and_async_tasks_wait_for_each_other_in_turns() -> None:
    @zf.remote
    def plain(depth: int) -> int:
        return zf.get(loop.remote(depth - 1)) + 1 if depth else 0

    @zf.remote
    async def loop(depth: int) -> int:
        return await plain.remote(depth - 1) + 1 if depth else 0

    assert value([plain.remote(11), plain.remote(10)]) == [11, 10]


@pytest.mark.parametrize("where", ["decorator", "options"])
def test_a_worker_runs_no_more_of_them_than_max_concurrency(where: str) -> None:
    running = 0

    async def most(path: str) -> tuple[int, int]:
        nonlocal running
        running += 1
        seen = running
        await asyncio.sleep(0.02)  # in which others begin
        running -= 1
        return os.getpid(), seen

    limited = zf.remote(max_concurrency=3)(most) if where == "decorator" else zf.remote(most).options(max_concurrency=3)
    assert max(seen for _, seen in value([limited.remote("") for _ in range(40)])) == 3


# --- time and number ------------------------------------------------------------------------------------------------------------------


@zf.remote
class Slow:
    """Blocks until it is stopped, or until a file exists."""

    @zf.method(timeout=1.0)  # In which it begins, also on a busy machine.
    def impatient(self) -> None:
        time.sleep(PATIENCE)  # until its time is up

    def hold(self, path: str) -> None:
        wait_for_file(path)

    def ping(self) -> str:
        return "pong"


def test_a_method_that_takes_too_long_is_stopped() -> None:
    slow = Slow.remote()
    assert value(slow.ping.remote()) == "pong", "it is there"
    with pytest.raises(zf.TaskTimeoutError, match="while it ran"):
        value(slow.impatient.remote())
    assert value(slow.ping.remote()) == "pong"


def test_a_call_whose_time_is_up_before_its_turn_does_not_run(tmp_path: Any) -> None:
    slow, gate = Slow.remote(), tmp_path / "gate"
    held = slow.hold.remote(str(gate))
    with pytest.raises(zf.TaskTimeoutError, match="before it ran"):
        value(slow.ping.options(timeout=0.2).remote())
    gate.touch()
    value(held)


def test_max_pending_calls_limits_calls_without_an_outcome(tmp_path: Any) -> None:
    slow, gate = Slow.options(max_pending_calls=2).remote(), tmp_path / "gate"
    held = [slow.hold.remote(str(gate)), slow.ping.remote()]
    with pytest.raises(zf.PendingCallsLimitExceededError, match="2 calls"):
        slow.ping.remote()
    gate.touch()
    value(held)
    assert value(slow.ping.remote()) == "pong"


# --- results of calls that compute ----------------------------------------------------------------------------------------------


CALLS = 40


@pytest.mark.parametrize("kind", ["actor", "tasks"])
def test_results_of_an_event_loop_arrive_while_the_next_call_computes(tmp_path: Path, kind: str) -> None:
    def compute(number: int) -> int:
        """Hold the loop until the program has the result before this one."""
        time.sleep(0.003)
        if number:
            wait_for_file(str(tmp_path / str(number - 1)))
        return number

    class Server:
        async def infer(self, number: int) -> int:
            return compute(number)

    async def infer(number: int) -> int:
        return compute(number)

    method = zf.remote(Server).remote().infer if kind == "actor" else zf.remote(num_cpus=0.1)(infer)
    value(method.remote(0))
    took = []
    for number, ref in enumerate([method.remote(number) for number in range(CALLS)]):
        begun = time.monotonic()
        assert zf.get(ref, timeout=PATIENCE) == number
        (tmp_path / str(number)).touch()
        took.append(time.monotonic() - begun)
    # A busy machine may hold up some of them.
    assert statistics.median(took) < 0.2, "each takes a few milliseconds, and half a second where it waits for a chance"


# --- recursion without an end -------------------------------------------------------------------------------------------------------


def through_sorting(_: int = 0) -> list[int]:
    return sorted([1], key=through_sorting)  # type: ignore[arg-type]


class Endless:
    def __getattr__(self, name: str) -> Any:
        return getattr(self, name)


def recursion_errors() -> int:
    """How many kinds of recursion through C end with RecursionError where this is called. The first one takes most stack per level."""
    found = 0
    for endless in (through_sorting, lambda: Endless().name):
        try:
            endless()
        except RecursionError:
            found += 1
    return found


class Recursive:
    def plain(self) -> list[int]:
        beside: list[int] = []
        thread = threading.Thread(target=lambda: beside.append(recursion_errors()))
        thread.start()
        thread.join()
        return [recursion_errors(), *beside]


class RecursiveInLoop(Recursive):
    async def come(self) -> list[int]:
        return [recursion_errors(), await asyncio.get_running_loop().run_in_executor(None, recursion_errors)]


def test_recursion_without_an_end_is_a_recursion_error_wherever_it_runs() -> None:
    threaded = zf.remote(Recursive).options(max_concurrency=2).remote()
    in_loop = zf.remote(RecursiveInLoop).remote()

    @zf.remote
    async def task_in_loop() -> list[int]:
        return [recursion_errors()]

    calls = [threaded.plain.remote(), in_loop.plain.remote(), in_loop.come.remote()]
    refs = [zf.remote(Recursive.plain).remote(None), task_in_loop.remote(), *calls]
    assert zf.get(refs, timeout=PATIENCE) == [[2, 2], [2], *[[2, 2]] * 3]


def test_the_recursion_limit_that_a_task_sets_counts() -> None:
    @zf.remote
    class Deep:
        async def deepest(self) -> int:
            import sys

            limit = sys.getrecursionlimit()
            sys.setrecursionlimit(limit + 20_000)

            def deep(n: int) -> int:
                return n and 1 + deep(n - 1)

            try:
                return deep(limit + 10_000) - limit
            finally:
                sys.setrecursionlimit(limit)

    actor = Deep.remote()
    assert value(actor.deepest.remote()) == 10_000


def test_a_caller_waits_at_max_pending_calls_if_configured(cluster: Callable[..., Any], tmp_path: Path) -> None:
    """The last test of this file: it has a cluster of its own, which ends the one of the file."""
    cluster(config={"calls_over_limit": "wait"})
    slow = Slow.options(max_pending_calls=2).remote()
    assert value([slow.ping.remote() for _ in range(50)]) == ["pong"] * 50
    gate, calling, opened = tmp_path / "gate", threading.Event(), []

    def call_once_more() -> None:
        calling.set()
        ref = slow.ping.remote()
        opened.append(gate.exists())
        value(ref)

    held = [slow.hold.remote(str(gate)), slow.ping.remote()]
    caller = threading.Thread(target=call_once_more)
    caller.start()
    assert calling.wait(PATIENCE)
    zf.wait(held, timeout=0.1)  # If the third call did not wait, it would be made now.
    gate.touch()
    caller.join(PATIENCE)
    value(held)
    assert opened == [True]
