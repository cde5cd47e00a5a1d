"""Logged actors with real processes: their state after a death is that of an uninterrupted run, and callers receive each result once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster, running_cluster
from faults import PATIENCE, damage_what_is_on_disk, eventually, kill_daemon, processes_named, query
from files import wait_for_file

import zfabric as zf
from zfabric.exceptions import ActorDiedError, ObjectTooLargeError, OptionError, SerializationError, TaskCancelledError
from zfabric.runtime import interface

shared = one_cluster(config={"restart_backoff_max": 0.05, "checkpoint_bytes": 100_000})
"""Its daemon is restarted at once however often it dies."""


@zf.remote(max_restarts=-1, checkpoint_every=10)
class Ledger:
    """Everything that was written, in order, and who wrote it."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.begun = 1

    def write(self, entry: Any) -> int:
        self.entries.append(entry)
        return len(self.entries)

    def large(self, entry: Any) -> Any:
        self.entries.append(entry)
        return np.full(50_000, len(self.entries))

    def fail(self, entry: Any) -> None:
        self.entries.append(entry)
        raise ValueError(entry)

    def nap(self, entry: Any) -> None:
        self.entries.append((entry, "begun"))
        while True:
            time.sleep(0.01)  # until it is interrupted

    def begin_again(self) -> int:
        self.begun += 1
        return self.begun

    @zf.method(readonly=True)
    def read(self) -> tuple[int, list[Any]]:
        return os.getpid(), list(self.entries)

    @zf.method(readonly=True)
    def pid(self) -> int:
        return os.getpid()


@zf.remote(max_restarts=-1)
class Growing:
    """Each result contains all earlier entries; each run is recorded in a file with its process."""

    def __init__(self, path: str) -> None:
        self.total = 0
        self.path = path

    def grow(self, amount: int) -> Any:
        self.total += amount
        with open(self.path, "a") as file:
            file.write(f"{os.getpid()} ")
        return np.full(250_000, self.total)

    def sum(self) -> int:
        return self.total


def get(refs: Any) -> Any:
    return zf.get(refs, timeout=PATIENCE)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def rows_of(actor: Any, table: str) -> list[Any]:
    """What the control store keeps of an actor."""
    client = interface.current()
    assert client is not None
    rows, more = client.query("rows", table)
    assert not more
    return [key for key, _ in rows if key.startswith(actor._actor_id)]


@pytest.mark.parametrize("every", [0, 1, 10, 1000])
def test_state_and_results_are_those_of_an_uninterrupted_run(every: int) -> None:
    ledger = Ledger.options(checkpoint_every=every).remote()
    assert get([ledger.write.remote(number) for number in range(25)]) == list(range(1, 26))
    first = get(ledger.pid.remote())
    kill(first)
    assert get(ledger.write.remote(25)) == 26
    pid, entries = get(ledger.read.remote())
    assert pid != first
    assert entries == list(range(26))


@zf.remote(num_cpus=0)
class Caller:
    """Makes calls one after the other, or many at once, and records their outcomes in order."""

    def __init__(self, ledger: Any, name: str) -> None:
        self.ledger = ledger
        self.name = name

    def run(self, count: int, together: int, halfway: str) -> list[tuple[int, int]]:
        """Wait for the file ``halfway`` before the second half of the calls."""
        results_seen = []
        for start in range(0, count, together):
            if start >= count // 2:
                wait_for_file(halfway)
            refs = [self.ledger.write.remote((self.name, number)) for number in range(start, start + together)]
            results_seen += [(start + index, zf.get(ref)) for index, ref in enumerate(refs)]
        return results_seen


@pytest.mark.parametrize(("every", "together", "seed"), [(7, 1, 1), (50, 20, 2), (0, 20, 3), (13, 100, 4)])
def test_four_callers_see_each_result_once_and_in_order_however_often_the_actor_is_killed(
    every: int, together: int, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    ledger = Ledger.options(checkpoint_every=every).remote()
    callers = [Caller.remote(ledger, name) for name in "abcd"]
    count = 300
    halfway = tmp_path / "halfway"
    results = [caller.run.remote(count, together, str(halfway)) for caller in callers]
    deaths = 0

    def all_have_ended() -> bool:
        return len(zf.wait(results, num_returns=4, timeout=0.01)[0]) == 4

    while deaths < 6 and not all_have_ended():
        seen = get(ledger.read.remote())
        wanted = min(len(seen[1]) + rng.randrange(150), 4 * count if halfway.exists() else 2 * count)

        def far_enough(wanted: int = wanted) -> bool:
            return len(get(ledger.read.remote())[1]) >= wanted

        eventually(lambda: all_have_ended() or far_enough(), "some more has been written")
        kill(get(ledger.pid.remote()))
        deaths += 1
        if deaths == 2:
            halfway.touch()
    results_seen = dict(zip("abcd", get(results), strict=True))
    _, entries = get(ledger.read.remote())
    assert sorted(entries) == [(name, number) for name in "abcd" for number in range(count)], "each has had its effect once"
    for name, outcomes in results_seen.items():
        assert [number for number, _ in outcomes] == list(range(count))
        assert [entries[place - 1] for _, place in outcomes] == [(name, number) for number in range(count)], "and its own result"
        assert [place for _, place in outcomes] == sorted(place for _, place in outcomes), "in order"


def test_a_restart_loads_the_checkpoint_and_does_not_run_init() -> None:
    ledger = Ledger.options(checkpoint_every=3).remote()
    assert get(ledger.begin_again.remote()) == 2
    for expected in (3, 4):
        kill(get(ledger.pid.remote()))
        assert get(ledger.begin_again.remote()) == expected


def test_errors_are_replayed_and_answered_like_values() -> None:
    ledger = Ledger.options(checkpoint_every=0).remote()
    with pytest.raises(ValueError, match="first"):
        get(ledger.fail.remote("first"))
    kill(get(ledger.pid.remote()))
    assert get(ledger.write.remote("second")) == 2
    assert get(ledger.read.remote())[1] == ["first", "second"]


def test_refs_inside_results_and_errors_of_logged_calls_live_until_their_caller_has_them() -> None:
    class Found(Exception):
        pass

    @zf.remote(max_restarts=-1, checkpoint_every=10)
    class Logged:
        def box(self) -> list[Any]:
            return [zf.put("inside")]

        def found(self) -> None:
            raise Found(zf.put("inside"))

        def large(self) -> None:
            raise ValueError("x" * 3_000_000)

    actor = Logged.remote()
    for _ in range(3):
        (inside,) = zf.get(actor.box.remote(), timeout=60)
        assert zf.get(inside, timeout=60) == "inside"
        with pytest.raises(zf.TaskError) as caught:
            zf.get(actor.found.remote(), timeout=60)
        assert zf.get(caught.value.args[0], timeout=60) == "inside"
        with pytest.raises(ValueError, match="xxx") as large:
            zf.get(actor.large.remote(), timeout=60)
        assert len(large.value.args[0]) == 3_000_000


def test_large_results_survive_a_death_at_any_moment() -> None:
    ledger = Ledger.options(checkpoint_every=4).remote()
    results = []
    for round_ in range(3):
        results += [ledger.large.remote((round_, number)) for number in range(10)]
        zf.wait(results, num_returns=len(results) - 5, timeout=PATIENCE)
        kill(get(ledger.pid.remote()))
    assert [int(value[0]) for value in get(results)] == list(range(1, 31))
    assert len(get(ledger.read.remote())[1]) == 30


def test_a_daemon_that_dies_with_the_actor_or_before_it() -> None:
    ledger = Ledger.remote()
    refs = [ledger.write.remote(number) for number in range(20)]
    get(refs[0])
    kill_daemon()
    refs += [ledger.write.remote(number) for number in range(20, 40)]
    assert get(refs) == list(range(1, 41))
    pid = get(ledger.pid.remote())
    refs = [ledger.write.remote(number) for number in range(40, 60)]
    kill(pid)
    kill_daemon()
    assert get(refs) == list(range(41, 61))
    assert get(ledger.read.remote())[1] == list(range(60))


def test_arguments_of_logged_calls_stay_as_long_as_a_replay_may_need_them() -> None:
    @zf.remote(max_restarts=-1, checkpoint_every=0)
    class Sums:
        def __init__(self) -> None:
            self.total = 0

        def add(self, array: Any, box: Any) -> int:
            self.total += int(array.sum()) + int(zf.get(box[0]).sum())
            return self.total

        @zf.method(readonly=True)
        def pid(self) -> int:
            return os.getpid()

    sums = Sums.remote()
    for number in range(3):
        large, inside = zf.put(np.full(50_000, number)), zf.put(np.full(50_000, 1))
        total = get(sums.add.remote(large, [inside]))
        del large, inside
    kill(get(sums.pid.remote()))
    assert get(sums.add.remote(zf.put(np.zeros(50_000)), [zf.put(np.zeros(50_000))])) == total == 50_000 * 6


def test_save_and_load_methods_replace_pickling() -> None:
    @zf.remote(max_restarts=-1, checkpoint_every=1)
    class Guarded:
        def __init__(self, start: int) -> None:
            self.lock = threading.Lock()
            self.value = start

        def __zf_save__(self) -> Any:
            return {"value": self.value}

        def __zf_load__(self, state: Any) -> None:
            self.lock = threading.Lock()
            self.value = state["value"]

        def add(self, amount: int) -> tuple[int, int]:
            with self.lock:
                self.value += amount
            return self.value, os.getpid()

    guarded = Guarded.remote(100)
    value, pid = get(guarded.add.remote(1))
    kill(pid)
    assert get(guarded.add.remote(1))[0] == value + 1 == 102


def test_an_unpicklable_instance_is_an_error_that_names_the_attribute() -> None:
    @zf.remote(max_restarts=1, checkpoint_every=5)
    class Locked:
        def __init__(self) -> None:
            self.inner = {"lock": threading.Lock()}

        def ping(self) -> None: ...

    with pytest.raises(ActorDiedError) as raised:
        get(Locked.remote().ping.remote())
    assert isinstance(raised.value.__cause__, SerializationError)
    assert "Locked.inner['lock']" in str(raised.value.__cause__)
    assert get(Ledger.options(checkpoint_every=0).remote().write.remote(1)) == 1


def test_a_checkpoint_past_the_limit_is_refused_when_the_actor_is_made() -> None:
    @zf.remote(max_restarts=1, checkpoint_every=2)
    class Large:
        def __init__(self, size: int) -> None:
            self.data = bytes(size)

        def grow(self, size: int) -> int:
            self.data += bytes(size)
            return len(self.data)

        @zf.method(readonly=True)
        def pid(self) -> int:
            return os.getpid()

    with pytest.raises(ActorDiedError) as raised:
        get(Large.remote(200_000).grow.remote(1))
    assert isinstance(raised.value.__cause__, ObjectTooLargeError)
    large = Large.remote(1000)
    assert get([large.grow.remote(50_000) for _ in range(5)])[-1] == 251_000, "later there is a warning, and the log goes on"
    kill(get(large.pid.remote()))
    assert get(large.grow.remote(1)) == 251_001


def test_effects_of_a_stopped_call_are_in_the_restored_state() -> None:
    ledger = Ledger.remote()
    get(ledger.write.remote(0))
    nap = ledger.nap.remote(1)
    behind = ledger.write.remote(2)
    zf.wait([nap], timeout=0.2)
    zf.cancel(nap)
    with pytest.raises(TaskCancelledError):
        get(nap)
    get(behind)
    before = get(ledger.read.remote())
    kill(before[0])
    assert get(ledger.read.remote())[1] == before[1]


def test_listings_show_logged_calls() -> None:
    ledger = Ledger.options(checkpoint_every=4).remote()
    get([ledger.write.remote(number) for number in range(10)])
    eventually(lambda: "last checkpoint after call 8" in str(zf.explain(ledger)), "the checkpoint is committed")
    assert "10 calls" in str(zf.explain(ledger))
    row = next(row for row in query("actors") if row["actor_id"] == ledger._actor_id.hex())
    assert (row["logged_calls"], row["checkpoint"], row["replaying"]) == (10, 8, "")


def test_listings_show_the_progress_of_a_replay(tmp_path: Path) -> None:
    @zf.remote(max_restarts=-1, checkpoint_every=0)
    class Steps:
        def step(self, gate: str) -> int:
            eventually(lambda: os.path.exists(gate), "the gate opens")
            return os.getpid()

    steps, gate = Steps.remote(), tmp_path / "gate"
    gate.touch()
    pid = get([steps.step.remote(str(gate)) for _ in range(7)])[0]
    gate.unlink()
    kill(pid)
    eventually(lambda: "0 of 7 logged calls have run again" in str(zf.explain(steps)), "its replay waits at the first call")
    row = next(row for row in query("actors") if row["actor_id"] == steps._actor_id.hex())
    assert (row["state"], row["replaying"]) == ("creating", "0 of 7")
    gate.touch()
    assert get(steps.step.remote(str(gate))) != pid
    eventually(lambda: "run again" not in str(zf.explain(steps)), "the daemon has heard of its end")


def test_a_log_is_cut_by_checkpoints_and_deleted_with_its_actor() -> None:
    ledger = Ledger.options(checkpoint_every=4).remote()
    get([ledger.write.remote(number) for number in range(100)])
    eventually(lambda: len(rows_of(ledger, "log")) <= 4, "the log is cut")
    assert len(rows_of(ledger, "checkpoint")) >= 1
    zf.kill(ledger)
    eventually(lambda: not rows_of(ledger, "log") and not rows_of(ledger, "checkpoint"), "nothing is kept of it")


def test_an_exiting_actor_sends_its_last_results_first() -> None:
    @zf.remote(max_restarts=-1, checkpoint_every=0)
    class Last:
        def work(self, number: int) -> int:
            return number

        def leave(self) -> None:
            zf.exit_actor()

    last = Last.remote()
    refs = [last.work.remote(number) for number in range(50)]
    gone = last.leave.remote()
    assert get(refs) == list(range(50))
    with pytest.raises(ActorDiedError, match="ended itself"):
        get(gone)
    eventually(lambda: not rows_of(last, "log"), "nothing is kept of it")


def test_conflicting_options_are_refused() -> None:
    class Plain:
        def one(self) -> None: ...

    class Stream:
        @zf.method(num_returns="streaming")
        def values(self) -> Any:
            yield 1

    class Half:
        def __zf_save__(self) -> Any: ...

    for kind, options, text in (
        (Plain, {}, "nothing to restart: set max_restarts"),
        (Stream, {"max_restarts": 1}, "values makes a stream.*readonly=True"),
        (Half, {"max_restarts": 1}, "one of __zf_save__ and __zf_load__"),
    ):
        with pytest.raises(OptionError, match=text):
            zf.remote(checkpoint_every=5, **options)(kind)
    for value in (-1, 1.5, True):
        with pytest.raises(OptionError, match="checkpoint_every"):
            zf.remote(checkpoint_every=value, max_restarts=1)(Plain)


def test_a_stream_of_a_logged_actor_must_be_readonly_at_the_call_too() -> None:
    @zf.remote(max_restarts=1, checkpoint_every=5)
    class Both:
        def plain(self) -> Any:
            return iter((1, 2))

        @zf.method(readonly=True, num_returns="streaming")
        def values(self) -> Any:
            yield from (1, 2)

    both = Both.remote()
    assert [get(ref) for ref in both.values.remote()] == [1, 2]
    with pytest.raises(OptionError, match="readonly=True"):
        both.plain.options(num_returns="streaming")


# --- results that are lost later ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0, 1, 7])
@pytest.mark.parametrize("restarted", [False, True], ids=["", "by a restarted daemon"])
def test_a_large_result_that_is_lost_is_made_again_beside_the_actor(tmp_path: Any, every: int, restarted: bool) -> None:
    """However many checkpoints have followed; the actor itself goes on undisturbed."""
    with running_cluster(object_store_memory=32 * 2**20, config={"put_patience": PATIENCE, "restart_backoff_max": 0.05}):
        note = tmp_path / "note"
        actor = Growing.options(checkpoint_every=every).remote(str(note))
        refs = [actor.grow.remote(number) for number in range(1, 41)]
        assert get(actor.sum.remote()) == 820
        lost = damage_what_is_on_disk({ref.hex() for ref in refs})
        assert lost
        if restarted:
            old = kill_daemon()
            eventually(lambda: set(processes_named("zf-daemon")) - {old}, "there is another daemon")
        ran = len(note.read_text().split())
        assert ran == 40
        for number, ref in enumerate(refs, 1):
            if ref.hex() in lost:
                assert get(ref)[0] == number * (number + 1) // 2
        pids = note.read_text().split()
        assert len(pids) > ran
        assert pids[0] not in pids[ran:]
        assert every != 1 or len(pids) - ran == len(lost), "one call each, if the state before it was kept"
        assert get(actor.sum.remote()) == 820


def test_tasks_that_a_replay_for_a_lost_result_submits_have_new_ids() -> None:
    """The actor lives, and holds what the first run of its calls has submitted."""

    @zf.remote
    def echo(value: Any) -> Any:
        return value

    @zf.remote(max_restarts=-1, checkpoint_every=0)
    class Asking:
        def __init__(self) -> None:
            self.asked: list[Any] = []

        def ask(self, number: int) -> Any:
            word = os.urandom(8)
            self.asked.append(echo.remote(word))
            assert zf.get(self.asked[-1], timeout=PATIENCE) == word
            return np.full(200_000, number)

    with running_cluster(object_store_memory=32 * 2**20, config={"put_patience": PATIENCE}):
        actor = Asking.remote()
        refs = [actor.ask.remote(number) for number in range(40)]
        zf.wait(refs, num_returns=40, timeout=PATIENCE, fetch_local=False)  # Else some are mapped here, and their files not checked again.
        lost = damage_what_is_on_disk({ref.hex() for ref in refs})
        for number, ref in enumerate(refs):
            if ref.hex() in lost:
                assert get(ref)[0] == number


def test_a_lost_large_result_of_unlogged_calls_names_the_options_that_retain_it() -> None:
    with running_cluster(object_store_memory=32 * 2**20, config={"put_patience": PATIENCE}):
        actor = Growing.remote(os.devnull)
        refs = [actor.grow.remote(number) for number in range(40)]
        get(actor.sum.remote())
        lost = damage_what_is_on_disk({ref.hex() for ref in refs})
        with pytest.raises(zf.ObjectLostError, match="checkpoint_every"):
            get(next(ref for ref in refs if ref.hex() in lost))
