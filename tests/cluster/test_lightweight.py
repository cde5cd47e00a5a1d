"""Lightweight actors: many in few processes, each with a life of its own. Real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from conftest import one_cluster, running_cluster
from faults import PATIENCE, eventually, failure, gone, kill_daemon
from files import wait_for_file

import zfabric as zf
from zfabric.runtime import interface

MANY = 2000


shared = one_cluster(config={"restart_backoff_max": 0.05})
"""Two CPUs, so that there are two processes for actors; a daemon that is restarted at once."""


def value_of(ref: Any) -> Any:
    return zf.get(ref, timeout=PATIENCE)


@zf.remote(lightweight=True)
class Counter:
    """Counts, waits for others, and can be hurt."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def pid(self) -> int:
        return os.getpid()

    def thread(self) -> int:
        return threading.get_native_id()

    def add(self, amount: int = 1) -> int:
        self.count += amount
        return self.count

    def ask(self, other: Any) -> int:
        return zf.get(other.add.remote())

    def slow(self, begun: str, go_on: str) -> str:
        Path(begun).touch()
        wait_for_file(go_on)
        return "slow"

    def ask_slow(self, other: Any, begun: str, go_on: str) -> Any:
        return zf.get(other.slow.remote(begun, go_on))

    def ask_through(self, other: Any, last: Any) -> Any:
        return zf.get(other.ask.remote(last))

    def ask_often(self, other: Any, times: int) -> int:
        return [zf.get(other.add.remote()) for _ in range(times)][-1]

    def ask_until(self, other: Any, path: str) -> int:
        asked = 0
        while not os.path.exists(path):
            asked = zf.get(other.add.remote())
        return asked

    def ask_timed(self, other: Any) -> tuple[int, float, float]:
        begun = time.monotonic()
        return self.ask(other), begun, time.monotonic()

    def wait_for_file(self, path: str) -> str:
        while not os.path.exists(path):
            time.sleep(0.002)
        return path

    def work_until(self, path: str) -> str:
        deadline = time.monotonic() + 0.1
        while not os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.002)
        return path if os.path.exists(path) else ""

    def wait_for_task(self, path: str) -> str:
        return zf.get(file_is_there.remote(path))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def leave(self) -> None:
        zf.exit_actor()

    def exit(self, code: int) -> None:
        sys.exit(code)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def squares(self, count: int) -> Iterator[int]:
        for number in range(count):
            yield number * number


@zf.remote
def file_is_there(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.002)
    return path


def in_one_process(count: int, **options: Any) -> list[Any]:
    """Actors that share one process, whatever else there is."""
    actors = [Counter.options(**options).remote() for _ in range(4 * count)]
    pids = value_of([actor.pid.remote() for actor in actors])
    chosen = Tally(pids).most_common(1)[0][0]
    return [actor for actor, pid in zip(actors, pids, strict=True) if pid == chosen][:count]


def test_many_actors_share_as_many_processes_as_there_are_cpus_evenly() -> None:
    actors = [Counter.remote(number) for number in range(MANY)]
    assert value_of([actor.add.remote() for actor in actors]) == [number + 1 for number in range(MANY)]
    pids = Tally(value_of([actor.pid.remote() for actor in actors]))
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    assert value_of([actor.add.remote(10) for actor in actors]) == [number + 11 for number in range(MANY)]


def test_tasks_do_not_run_in_processes_of_lightweight_actors() -> None:
    actors = [Counter.remote() for _ in range(20)]
    homes = set(value_of([actor.pid.remote() for actor in actors]))

    @zf.remote
    def pid() -> int:
        return os.getpid()

    assert homes.isdisjoint(value_of([pid.remote() for _ in range(50)]))


def test_killing_an_actor_leaves_its_neighbours_alone() -> None:
    victim, neighbour = in_one_process(2)
    home = value_of(neighbour.pid.remote())
    assert value_of(neighbour.add.remote()) == 1
    zf.kill(victim)
    error = failure(victim.add.remote())
    assert isinstance(error, zf.ActorDiedError)
    assert "zf.kill" in str(error)
    assert value_of(neighbour.add.remote()) == 2
    assert value_of(neighbour.pid.remote()) == home


def test_killing_an_actor_stops_its_running_call(tmp_path: Path) -> None:
    victim, neighbour = in_one_process(2)
    running = victim.wait_for_file.remote(str(tmp_path / "never"))
    waiting = victim.add.remote()
    zf.kill(victim)
    assert isinstance(failure(running), zf.ActorDiedError)
    assert isinstance(failure(waiting), zf.ActorDiedError)
    assert value_of(neighbour.add.remote()) == 1


@pytest.mark.parametrize(
    ("method", "arguments", "reason"), [("leave", (), "exit_actor"), ("exit", (0,), "exit"), ("exit", (3,), r"sys.exit\(3\)")]
)
def test_an_exiting_actor_leaves_its_neighbours_alone(method: str, arguments: tuple[Any, ...], reason: str) -> None:
    leaver, neighbour = in_one_process(2)
    home = value_of(neighbour.pid.remote())
    before = leaver.add.remote()
    last = getattr(leaver, method).remote(*arguments)
    with pytest.raises(zf.ActorDiedError, match=reason):
        value_of(last)
    assert value_of(before) == 1
    with pytest.raises(zf.ActorDiedError, match=reason):
        value_of(leaver.add.remote())
    assert value_of(neighbour.pid.remote()) == home


def test_the_last_handle_ends_one_actor_cleanly(tmp_path: Path) -> None:
    @zf.remote(lightweight=True)
    class Careful:
        def __exit__(self, *_: Any) -> None:
            (tmp_path / "closed").touch()

        def pid(self) -> int:
            return os.getpid()

    careful = Careful.remote()
    value_of(careful.pid.remote())
    del careful
    eventually(lambda: (tmp_path / "closed").exists(), "the actor to end")
    assert value_of(Counter.remote().add.remote()) == 1


@zf.remote(lightweight=True)
class Polite:
    """Says goodbye, to a file or to another actor, and waits for the answer."""

    def __init__(self, note: str, other: Any = None) -> None:
        self.note = note
        self.other = other

    def pid(self) -> int:
        return os.getpid()

    def __exit__(self, *_: Any) -> None:
        answer = zf.get(self.other.add.remote()) if self.other is not None else "closed"
        Path(self.note).write_text(f"{answer}")


def polite_beside(other: Any, note: Path, *arguments: Any) -> Any:
    """One that shares the process of another actor."""
    home = value_of(other.pid.remote())
    actors = [Polite.remote(str(note), *arguments) for _ in range(4)]
    pids = value_of([actor.pid.remote() for actor in actors])
    chosen = actors[pids.index(home)]
    for actor in actors:
        if actor is not chosen:
            zf.kill(actor)
    return chosen


def test_an_exit_handler_may_wait_for_another_actor_of_its_process(tmp_path: Path) -> None:
    other = Counter.remote()
    note = tmp_path / "note"
    actor = polite_beside(other, note, other)
    del actor
    eventually(lambda: note.exists() and note.read_text() == "1", "the other one has heard of it")
    assert value_of(other.add.remote()) == 2


@pytest.mark.parametrize("method", ["work_until", "wait_for_task"])
def test_an_actor_ends_while_another_of_its_process_runs_or_waits(tmp_path: Path, method: str) -> None:
    other = Counter.remote()
    note = tmp_path / "note"
    actor = polite_beside(other, note)
    # The one that works ends one call and begins the next at once, for a minute at most: its process has no idle moment.
    calls = [getattr(other, method).remote(str(note)) for _ in range(1 if method == "wait_for_task" else 600)]
    del actor
    assert value_of(calls)[-1] == str(note)


def test_all_actors_of_a_process_die_with_it() -> None:
    first, second = in_one_process(2)
    error = failure(first.die.remote())
    assert isinstance(error, zf.ActorDiedError)
    assert error.outcome == "unknown"
    assert isinstance(failure(second.add.remote()), zf.ActorDiedError)


def test_actors_of_a_dead_process_are_restarted_if_they_may_be() -> None:
    first, second = in_one_process(2, max_restarts=1, max_task_retries=1)
    home = value_of(second.pid.remote())
    assert value_of(second.add.remote()) == 1
    os.kill(home, signal.SIGKILL)
    assert value_of([first.add.remote(), second.add.remote()]) == [1, 1]
    assert value_of(second.pid.remote()) != home


def test_a_killed_actor_is_restarted_alone() -> None:
    victim, neighbour = in_one_process(2, max_restarts=1)
    assert value_of([victim.add.remote(), neighbour.add.remote()]) == [1, 1]
    zf.kill(victim, no_restart=False)
    eventually(lambda: _count(victim) == 1, "the actor to be made again")
    assert value_of(neighbour.add.remote()) == 2
    zf.kill(victim, no_restart=False)
    eventually(lambda: isinstance(failure(victim.add.remote()), zf.ActorDiedError), "no restart to be left")


def _count(actor: Any) -> int | None:
    try:
        return value_of(actor.add.remote())  # type: ignore[no-any-return]
    except zf.ActorUnavailableError:
        return None


def test_an_actor_that_waits_for_another_of_its_process_is_served() -> None:
    first, second, third = in_one_process(3)
    assert value_of(first.ask.remote(second)) == 1
    assert value_of(first.ask_through.remote(second, third)) == 1
    assert value_of(second.add.remote()) == 2


def test_a_waiting_call_goes_on_while_another_of_its_process_waits_longer(tmp_path: Path) -> None:
    """Nothing is buried under what was run while it waited."""
    first, second = in_one_process(2)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    early, late = first.wait_for_task.remote(one), second.wait_for_task.remote(two)
    Path(one).touch()
    assert value_of(early) == one
    assert value_of(first.add.remote()) == 1
    Path(two).touch()
    assert value_of(late) == two


def test_one_call_of_a_process_runs_at_a_time(tmp_path: Path) -> None:
    first, second = in_one_process(2)
    path = str(tmp_path / "file")
    running = first.wait_for_file.remote(path)
    behind = second.add.remote()
    ready, _ = zf.wait([behind], timeout=0.2)
    assert not ready
    Path(path).touch()
    assert value_of([running, behind]) == [path, 1]


@zf.remote(lightweight=True)
class Roundabout:
    """Waits for others otherwise than in its own thread."""

    def threads(self, *others: Any) -> list[int]:
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda other: zf.get(other.add.remote()), others))

    def loop(self, *others: Any) -> list[int]:
        async def ask_all() -> list[int]:
            return await asyncio.gather(*[other.add.remote() for other in others])

        return asyncio.run(ask_all())

    def threads_of_a_loop(self, *others: Any) -> list[int]:
        async def ask_all() -> list[int]:
            return await asyncio.gather(*[asyncio.to_thread(zf.get, other.add.remote()) for other in others])

        return asyncio.run(ask_all())

    def futures(self, *others: Any) -> list[int]:
        return [future.result() for future in [other.add.remote().future() for other in others]]

    def through(self, other: Any, how: str, *others: Any) -> list[int]:
        return zf.get(getattr(other, how).remote(*others))  # type: ignore[no-any-return]


def test_calls_of_an_actor_that_waits_keep_their_order() -> None:
    first, second = in_one_process(2)
    assert value_of([first.ask.remote(second), *[first.add.remote() for _ in range(20)]]) == [1, *range(1, 21)]


def test_an_actor_that_waits_for_itself_is_refused() -> None:
    first, second = in_one_process(2)
    with pytest.raises(zf.DeadlockError, match=r"Counter.ask -> Counter -> Counter.ask"):
        value_of(first.ask.remote(first))
    assert value_of(first.ask.remote(second)) == 1


def test_waiting_for_a_result_in_flight_is_not_refused(tmp_path: Path) -> None:
    """The first actor waits for a call of the second. That call has ended when the next call of the second begins, and asks the first."""
    for number in range(5):
        first, second = in_one_process(2)
        begun, go_on = tmp_path / f"{number} has begun", tmp_path / f"{number} goes on"
        waits = first.ask_slow.remote(second, str(begun), str(go_on))
        eventually(begun.exists, "what is asked for runs")
        asks = second.ask.remote(first)
        zf.wait([asks], timeout=0.05)  # It comes while what is waited for runs, most often, and is behind that.
        go_on.touch()
        assert value_of([waits, asks]) == ["slow", 1]


def test_an_actor_may_make_and_call_others_in_its_init() -> None:
    @zf.remote(lightweight=True)
    class Parent:
        def __init__(self) -> None:
            self.children = [Counter.remote() for _ in range(4)]
            self.sum = sum(zf.get([child.add.remote() for child in self.children]))

        def total(self) -> int:
            return self.sum

    assert value_of([Parent.remote().total.remote() for _ in range(8)]) == [4] * 8


def test_init_may_fail_alone() -> None:
    @zf.remote(lightweight=True)
    class Broken:
        def __init__(self) -> None:
            raise ValueError("no")

        def method(self) -> None:
            """Is never run."""

    neighbours = [Counter.remote() for _ in range(4)]
    homes = value_of([each.pid.remote() for each in neighbours])
    with pytest.raises(zf.ActorDiedError) as caught:
        value_of(Broken.remote().method.remote())
    assert isinstance(caught.value.__cause__, ValueError)
    assert value_of([each.pid.remote() for each in neighbours]) == homes


def test_a_method_that_blocks_is_stopped() -> None:
    first, second = in_one_process(2)
    with pytest.raises(zf.TaskTimeoutError):
        value_of(first.sleep.options(timeout=0.2).remote(3600))
    cancelled = first.sleep.remote(3600)
    behind = second.add.remote()
    zf.cancel(cancelled)
    with pytest.raises(zf.TaskCancelledError):
        value_of(cancelled)
    assert value_of(behind) == 1


def test_names_and_streams() -> None:
    named = Counter.options(name="light", get_if_exists=True).remote(5)
    assert value_of(named.add.remote()) == 6
    assert value_of(zf.get_actor("light").add.remote()) == 7
    assert Counter.options(name="light", get_if_exists=True).remote() == named
    with pytest.raises(zf.ActorNameTakenError):
        Counter.options(name="light").remote()
    assert [value_of(ref) for ref in named.squares.options(num_returns="streaming").remote(50)] == [n * n for n in range(50)]


def test_lightweight_actors_survive_a_restart_of_the_daemon() -> None:
    actors = [Counter.remote() for _ in range(50)]
    assert value_of([actor.add.remote() for actor in actors]) == [1] * 50
    homes = value_of([actor.pid.remote() for actor in actors])
    kill_daemon()
    assert value_of([actor.add.remote() for actor in actors]) == [2] * 50
    assert value_of([actor.pid.remote() for actor in actors]) == homes
    zf.kill(actors[0])
    assert isinstance(failure(actors[0].add.remote()), zf.ActorDiedError)
    assert value_of([actor.add.remote() for actor in actors[1:]]) == [3] * 49


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_cpus": 1}, "resources"),
        ({"max_concurrency": 2}, "max_concurrency"),
        ({"resources": {"disk": 1}}, "resources"),
        ({"checkpoint_every": 5, "max_restarts": 1}, "checkpoints"),
        ({"checkpoint_every": 0, "max_restarts": 1}, "checkpoints"),
        ({"concurrency_groups": {"io": 2}}, "concurrency groups"),
    ],
)
def test_options_that_lightweight_actors_cannot_have_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(zf.OptionError, match=text):
        Counter.options(**options)


def test_methods_that_are_async_are_refused() -> None:
    with pytest.raises(zf.OptionError, match="async def"):

        @zf.remote(lightweight=True)
        class Async:
            async def method(self) -> None:
                """Is never run."""


def test_explain_names_why_a_lightweight_actor_waits(tmp_path: Path) -> None:
    first, second, third = in_one_process(3)
    path = str(tmp_path / "file")
    waits = second.wait_for_task.remote(path)
    asks = first.ask_through.remote(second, third)
    eventually(lambda: zf.explain(second).state == "blocked", "it waits for a task")
    assert "(file_is_there, " in zf.explain(second).reason
    assert "the actor is blocked" in zf.explain(waits).facts
    eventually(lambda: "(call of Counter " in zf.explain(first).reason, "it waits for the other one")
    runs = third.wait_for_file.remote(path)
    eventually(lambda: "runs its call" in zf.explain(third).reason, "it runs")
    Path(path).touch()
    assert value_of([waits, asks, runs]) == [path, 1, path]
    eventually(
        lambda: {zf.explain(each).reason.partition(", and ")[2] for each in (first, second, third)} == {"runs what it is called for"},
        "all go on",
    )


def test_a_limited_number_of_calls_of_a_process_waits_at_once() -> None:
    """Each that waits takes a thread. What it waits for is a message to its own process, which a busy machine delays now and then."""
    most = []
    while len(most) < 4 and min(most, default=120) >= 30:
        one, *others = in_one_process(120)
        found = value_of([each.ask_timed.remote(one) for each in others])
        assert sorted(value for value, _, _ in found) == list(range(1, 120))
        edges = sorted((when, step) for _, begun, ended in found for when, step in ((begun, 1), (ended, -1)))
        most.append(max(accumulate(step for _, step in edges)))
    assert min(most) < 30, most


def test_a_call_that_waits_repeatedly_does_not_starve_others(tmp_path: Path) -> None:
    first, second, third = in_one_process(3)
    path = str(tmp_path / "file")
    endless = first.ask_until.remote(second, path)
    eventually(lambda: value_of(second.add.remote(0)) > 0, "it asks")
    for expected in range(1, 20):
        assert value_of(third.add.remote()) == expected
    Path(path).touch()
    assert value_of(endless) > 0


def test_calls_that_arrive_during_repeated_waits_are_not_lost() -> None:
    first, second = in_one_process(2)

    @zf.remote
    def call(actor: Any) -> int:
        return zf.get(actor.add.remote())  # type: ignore[no-any-return]

    waiting = first.ask_often.remote(second, 50)
    calls = [call.remote(first) for _ in range(4)]
    assert value_of(waiting) == 50
    assert sorted(value_of(calls)) == [1, 2, 3, 4]


def test_a_loop_waits_for_the_next_of_a_thousand_actors() -> None:
    """As Tune's loop does: one result at a time, whose actor then takes its next step."""
    trials = [Counter.remote() for _ in range(1000)]
    pending = {trial.add.remote(): trial for trial in trials}
    totals = Tally[int]()
    while pending:
        (ready,), _ = zf.wait(list(pending), num_returns=1, timeout=PATIENCE)
        trial, count = pending.pop(ready), value_of(ready)
        totals[count] += 1
        if count < 3:
            pending[trial.add.remote()] = trial
    assert totals == {1: 1000, 2: 1000, 3: 1000}


# --- clusters of their own: they end the one of the file -----------------------------------------------------------------------------


def test_links_to_a_process_are_closed_with_it_though_its_actors_had_ended_before() -> None:
    with running_cluster(num_cpus=1, config={"worker_idle_seconds": 0.1}):
        client: Any = interface.current()
        homes = set()
        for _ in range(3):
            actor = Counter.remote()
            home = value_of(actor.pid.remote())
            homes.add(home)
            assert len(client.connection.transport.peers) == 2, "the daemon and that process"
            del actor
            eventually(lambda home=home: gone(home), "its process has ended")
            eventually(lambda: client.query("nothing") is None and len(client.connection.transport.peers) == 1, "the link to it has ended")
        assert len(homes) == 3


@pytest.mark.parametrize("how", ["threads", "loop", "threads_of_a_loop", "futures"])
def test_an_actor_may_wait_in_threads_and_event_loops_for_others_of_its_process(how: str) -> None:
    with running_cluster(num_cpus=1):
        others = [Counter.remote() for _ in range(3)]
        first, second = Roundabout.remote(), Roundabout.remote()
        assert value_of(getattr(first, how).remote(*others)) == [1] * 3
        assert value_of(first.through.remote(second, how, *others)) == [2] * 3, "also one that runs while another waits"
        both = value_of([getattr(each, how).remote(*others) for each in (first, second)])
        assert sorted(both[0] + both[1]) == [3] * 3 + [4] * 3
        assert value_of([other.add.remote() for other in others]) == [5] * 3


@pytest.mark.parametrize("lightweight", [False, True])
def test_exceptions_of_exit_handlers_are_reported(capfd: Any, lightweight: bool) -> None:
    """It is nobody's result: who does not see it here sees it nowhere."""

    class Clumsy:
        def ping(self) -> str:
            return "pong"

        def __exit__(self, *how: object) -> None:
            raise LookupError("where was it?")

    shown = ""

    def told() -> bool:
        nonlocal shown
        shown += capfd.readouterr().err
        return "LookupError: where was it?" in shown

    with running_cluster(num_cpus=1, log_to_driver=True):
        clumsy: Any = zf.remote(lightweight=lightweight)(Clumsy).remote()
        assert value_of(clumsy.ping.remote()) == "pong"
        del clumsy
        eventually(told, "its error is shown")
    assert "Clumsy.__exit__ raised" in shown
