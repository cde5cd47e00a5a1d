"""Actors that run several calls at once and have checkpoints, with real processes: what a death loses, and what it does not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import printed
from conftest import one_cluster
from faults import PATIENCE, eventually, kill_daemon, processes_named, query, session
from files import wait_for_file_in_loop

import zfabric as zf
from zfabric.exceptions import ActorDiedError, ActorUnavailableError, OptionError, SerializationError

EVERY = 10
HELD = 0.5
"""How long calls are held back here."""


shared = one_cluster(config={"restart_backoff_max": 0.05, "quiesce_seconds": HELD})
"""Its daemon is restarted at once however often it dies."""


class Book:
    """What was written, and where all of it that ran is noted. Its lock cannot be pickled; ``busy`` are calls that are under way."""

    def __init__(self, note: str) -> None:
        self.note = note
        self.entries: list[Any] = []
        self.busy = 0
        self.torn = False
        self.lock = threading.Lock()

    def __zf_save__(self) -> Any:
        return self.note, list(self.entries), self.busy, self.torn

    def __zf_load__(self, state: Any) -> None:
        self.note, self.entries, busy, torn = state
        self.busy = 0
        self.torn = torn or busy > 0
        self.lock = threading.Lock()

    def _begin(self) -> None:
        with self.lock:
            self.busy += 1

    def _began(self, entry: Any) -> None:
        self._begin()
        with open(f"{self.note}.begun", "a") as file:
            file.write(f"{entry}\n")

    def _end(self, entry: Any) -> int:
        with self.lock:
            self.entries.append(entry)
            with open(self.note, "a") as file:
                file.write(f"{entry}\n")
            self.busy -= 1
            return len(self.entries)


@zf.remote(max_restarts=-1, checkpoint_every=EVERY, max_concurrency=4, num_cpus=0)
class Threaded(Book):
    """In threads."""

    def write(self, entry: Any) -> int:
        self._begin()
        os.sched_yield()
        return self._end(entry)

    def large(self, entry: Any) -> Any:
        self._begin()
        self._end(entry)
        return np.full(50_000, entry[1])

    def bulky(self, path: str, entry: Any) -> bytes:
        self._began(entry)
        eventually(lambda: os.path.exists(path), "the gate opens")
        self._end(entry)
        return bytes(60_000)

    def until(self, path: str, entry: Any) -> int:
        self._begin()
        eventually(lambda: os.path.exists(path), "the gate opens")
        return self._end(entry)

    @zf.method(readonly=True)
    def look(self, path: str = "") -> tuple[int, list[Any], bool]:
        eventually(lambda: not path or os.path.exists(path), "the gate opens")
        return os.getpid(), list(self.entries), self.torn


@zf.remote(max_restarts=-1, checkpoint_every=EVERY, num_cpus=0)
class Looped(Book):
    """In an event loop."""

    async def write(self, entry: Any) -> int:
        self._begin()
        await asyncio.sleep(0.0001)  # other calls run in the middle of this one
        return self._end(entry)

    async def large(self, entry: Any) -> Any:
        self._begin()
        await asyncio.sleep(0)
        self._end(entry)
        return np.full(50_000, entry[1])

    async def bulky(self, path: str, entry: Any) -> bytes:
        self._began(entry)
        await wait_for_file_in_loop(path)
        self._end(entry)
        return bytes(60_000)

    async def until(self, path: str, entry: Any) -> int:
        self._begin()
        await wait_for_file_in_loop(path)
        return self._end(entry)

    @zf.method(readonly=True)
    async def look(self, path: str = "") -> tuple[int, list[Any], bool]:
        if path:
            await wait_for_file_in_loop(path)
        return os.getpid(), list(self.entries), self.torn


BOTH = pytest.mark.parametrize("kind", [Threaded, Looped], ids=["threads", "loop"])


@zf.remote(num_cpus=0)
class Caller:
    """Calls many at once, and notes of each what came of it: its result, or that nobody knows."""

    def __init__(self, book: Any, name: str) -> None:
        self.book = book
        self.name = name

    def run(self, count: int, together: int, large: bool) -> list[bool]:
        outcomes_seen = []
        for start in range(0, count, together):
            method = self.book.large if large else self.book.write
            refs = [method.remote((self.name, number)) for number in range(start, start + together)]
            outcomes_seen += [self._outcome(ref, start + index, large) for index, ref in enumerate(refs)]
        return outcomes_seen

    def pid(self) -> int:
        return os.getpid()

    def wait_for(self, count: int, gate: str) -> int:
        """How many of so many results have come, each too large to lie in a socket beside the others."""
        refs = [self.book.bulky.remote(gate, number) for number in range(count)]
        return sum(self._outcome(ref, 0, False) for ref in refs)

    def _outcome(self, ref: Any, number: int, large: bool) -> bool:
        try:
            value = zf.get(ref)
        except ActorUnavailableError as error:
            if error.outcome != "unknown":
                raise
            return False
        assert not large or (value == number).all()
        return True


def get(refs: Any) -> Any:
    return zf.get(refs, timeout=PATIENCE)


def kill(book: Any) -> int:
    pid: int = get(book.look.remote())[0]
    os.kill(pid, signal.SIGKILL)
    return pid


def row_of(book: Any) -> dict[str, Any]:
    """The actor as a query describes it."""
    found = eventually(
        lambda: [row for row in query("actors") if row["actor_id"] == book._actor_id.hex()], "the daemon, perhaps a new one, knows of it"
    )
    return found[0]  # type: ignore[no-any-return]


def restarted(book: Any, times: int) -> dict[str, Any]:
    """Once it lives again."""
    eventually(lambda: (row := row_of(book))["restarts"] == times and row["state"] == "alive", "it lives again")
    return row_of(book)


def counted(book: Any, since: int) -> None:
    eventually(lambda: row_of(book)["since_checkpoint"] == since, f"{since} calls have ended since the checkpoint")


@BOTH
def test_a_restart_begins_with_the_last_checkpoint_and_reports_lost_calls(
    kind: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    book = kind.remote(str(tmp_path / "note"))
    for number in range(EVERY):
        assert get(book.write.remote(number)) == number + 1
    eventually(lambda: row_of(book)["checkpoint"] == EVERY, "the checkpoint is committed")
    assert [get(book.write.remote(number)) for number in range(EVERY, EVERY + 3)] == [11, 12, 13], "callers keep their results"
    counted(book, 3)
    assert "every 10 calls, the last after 10; 3 ended since, which a restart would lose" in str(zf.explain(book))
    kill(book)
    row = restarted(book, 1)
    assert (row["lost_calls"], row["since_checkpoint"]) == (3, 0)
    _, entries, torn = get(book.look.remote())
    assert (entries, torn) == (list(range(EVERY)), False)
    assert "what 3 calls did that had ended after a checkpoint" in str(zf.explain(book))
    eventually(
        lambda: (
            "goes on from its checkpoint after 10 calls: what 3 calls did to it that ended after that is lost" in capfd.readouterr().err
        ),
        "the driver is told",
    )


@BOTH
@pytest.mark.parametrize(("large", "seed"), [(False, 1), (True, 3)])
def test_repeated_calls_take_effect_once_however_often_the_actor_is_killed(kind: Any, large: bool, seed: int, tmp_path: Path) -> None:
    rng, note = random.Random(seed), tmp_path / "note"
    book = kind.options(max_task_retries=-1).remote(str(note))
    callers = [Caller.remote(book, name) for name in "abcd"]
    count = 40 if large else 200
    results = [caller.run.remote(count, 20, large) for caller in callers]
    deaths = kill_at_random(book, results, rng, 4)
    assert get(results) == [[True] * count] * 4, "each has its result"
    row = restarted(book, deaths)
    _, entries, torn = get(book.look.remote())
    assert not torn, "no checkpoint was taken while a call was under way"
    assert len(set(entries)) == len(entries), "no call had its effect twice"
    missing = 4 * count - len(entries)
    ran = len(note.read_text().splitlines())
    assert missing <= row["lost_calls"] <= ran - len(entries), "what is missing was said to be lost"


@BOTH
def test_calls_with_an_unknown_outcome_are_not_in_the_restored_state(kind: Any, tmp_path: Path) -> None:
    """A call whose outcome is in a checkpoint has it, though it is not made again."""
    rng = random.Random(4)
    book = kind.remote(str(tmp_path / "note"))
    callers = [Caller.remote(book, name) for name in "abcd"]
    results = [caller.run.remote(200, 20, False) for caller in callers]
    kill_at_random(book, results, rng, 4)
    outcomes_seen = dict(zip("abcd", get(results), strict=True))
    _, entries, torn = get(book.look.remote())
    assert not torn
    assert len(set(entries)) == len(entries)
    for name, outcomes in outcomes_seen.items():
        assert len(outcomes) == 200
        unknown = {(name, number) for number, known in enumerate(outcomes) if not known}
        assert unknown.isdisjoint(entries)


@BOTH
@pytest.mark.parametrize("retries", [0, -1])
def test_outcomes_that_have_not_reached_their_caller_are_in_the_checkpoint(kind: Any, retries: int, tmp_path: Path) -> None:
    """The caller is stopped, so that they cannot: most are still in the actor's process when it dies."""
    note, gate, count = tmp_path / "note", tmp_path / "gate", 40
    book = kind.options(checkpoint_every=count, max_concurrency=count, max_task_retries=retries).remote(str(note))
    caller = Caller.remote(book, "a")
    pid = get(caller.pid.remote())
    known = caller.wait_for.remote(count, str(gate))
    begun = tmp_path / "note.begun"
    eventually(lambda: begun.exists() and len(begun.read_text().splitlines()) == count, "all have begun")
    os.kill(pid, signal.SIGSTOP)
    try:
        gate.touch()
        eventually(lambda: row_of(book)["checkpoint"] == count, "the checkpoint is committed")
        kill(book)
        restarted(book, 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert get(known) == count
    assert sorted(get(book.look.remote())[1]) == list(range(count))
    assert len(note.read_text().splitlines()) == count, "none ran twice"


def kill_at_random(book: Any, results: list[Any], rng: random.Random, most: int) -> int:
    """Kill the actor, when some more has been written; how often."""
    deaths = 0
    while deaths < most:
        wanted = len(get(book.look.remote())[1]) + rng.randrange(60)

        def all_have_ended() -> bool:
            return len(zf.wait(results, num_returns=len(results), timeout=0.01)[0]) == len(results)

        def far_enough(wanted: int = wanted) -> bool:
            return len(get(book.look.remote())[1]) >= wanted

        eventually(lambda: all_have_ended() or far_enough(), "some more has been written")
        if all_have_ended() and deaths:
            break
        kill(book)
        deaths += 1
    return deaths


@BOTH
def test_no_call_takes_effect_twice_whichever_process_is_killed(kind: Any, tmp_path: Path) -> None:
    """The actor, the daemon, or one right after the other."""
    rng = random.Random(7)
    book = kind.options(max_task_retries=-1).remote(str(tmp_path / "note"))
    callers = [Caller.remote(book, name) for name in "abcd"]
    results = [caller.run.remote(160, 20, False) for caller in callers]
    for victims in ("actor", "daemon", "both", "actor", "both"):
        zf.wait(results, num_returns=len(results), timeout=0.2 * rng.random())
        pid = get(book.look.remote())[0]
        if victims != "daemon":
            os.kill(pid, signal.SIGKILL)
        if victims != "actor":
            old = kill_daemon()
            eventually(lambda: set(processes_named("zf-daemon")) - {old}, "there is another daemon")  # noqa: B023 - it is asked now
    assert get(results) == [[True] * 160] * 4
    _, entries, torn = get(book.look.remote())
    assert not torn
    assert len(set(entries)) == len(entries)


@BOTH
@pytest.mark.parametrize("both", [False, True], ids=["daemon", "daemon and actor"])
def test_checkpoints_survive_the_daemon(kind: Any, both: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    book = kind.options(max_task_retries=-1).remote(str(tmp_path / "note"))
    for number in range(EVERY):
        get(book.write.remote(number))
    eventually(lambda: row_of(book)["checkpoint"] == EVERY, "the checkpoint is committed")
    get([book.write.remote(number) for number in range(EVERY, EVERY + 4)])
    pid = get(book.look.remote())[0]
    (old,) = processes_named("zf-daemon")
    if both:
        os.kill(pid, signal.SIGKILL)
    os.kill(old, signal.SIGKILL)
    eventually(lambda: set(processes_named("zf-daemon")) - {old}, "there is another daemon")
    if not both:
        os.kill(pid, signal.SIGKILL)
    row = restarted(book, 1)
    assert row["lost_calls"] == 4
    assert get(book.look.remote())[1] == list(range(EVERY))
    assert "daemon knows, which was restarted" in str(zf.explain(book))
    get([book.write.remote(number) for number in range(50)])
    eventually(lambda: row_of(book)["checkpoint"] > EVERY, "checkpoints go on")
    eventually(lambda: "what 4 calls did" in capfd.readouterr().err, "the driver is told")


def test_counts_of_an_earlier_life_are_not_counted_twice(tmp_path: Path) -> None:
    book = Looped.options(max_task_retries=-1).remote(str(tmp_path / "note"))
    for number in range(EVERY):
        get(book.write.remote(number))
    eventually(lambda: row_of(book)["checkpoint"] == EVERY, "the checkpoint is committed")
    get([book.write.remote(number) for number in range(EVERY, EVERY + 5)])
    kill(book)
    assert restarted(book, 1)["lost_calls"] == 5
    old = kill_daemon()
    eventually(lambda: set(processes_named("zf-daemon")) - {old}, "there is another daemon")
    assert [get(book.write.remote(number)) for number in range(2)] == [EVERY + 1, EVERY + 2]
    restarted(book, 1)  # The new daemon knows it.
    kill(book)
    assert restarted(book, 2)["lost_calls"] == 2


def test_pages_of_a_dead_actor_are_removed(tmp_path: Path) -> None:
    """What its process has left is of use only for its next life."""
    book = Looped.options(max_task_retries=-1).remote(str(tmp_path / "note"))
    name = book._actor_id

    def pages() -> int:
        count = 0
        for path in Path(session().sockets).glob("*.slot"):
            with suppress(FileNotFoundError):  # That of another test's actor, which has just ended.
                count += name in path.read_bytes()[:100]
        return count

    get(book.write.remote(1))
    assert pages() == 1
    kill(book)
    get(book.look.remote())
    eventually(lambda: pages() == 2, "that of the dead stays")
    zf.kill(book)
    eventually(lambda: pages() == 0, "they go")


@BOTH
def test_an_endless_call_holds_others_back_once_and_not_for_ever(kind: Any, tmp_path: Path) -> None:
    """A signal that is waited for, and sent: what is held back is what would end what runs."""
    book, gate = kind.options(checkpoint_every=2).remote(str(tmp_path / "note")), tmp_path / "gate"
    waiting = book.until.remote(str(gate), "waited")
    get([book.write.remote(number) for number in range(2)])
    behind = [book.write.remote(number) for number in range(2, 30)]
    assert len(get(behind)) == 28, "they go on although the checkpoint could not be taken"
    eventually(lambda: row_of(book)["checkpoint_waits_for"] == 1, "people are told")
    assert "one is due, and waits for 1 that run" in str(zf.explain(book))
    assert row_of(book)["checkpoint"] == 0
    name = f"a checkpoint is due, and waits: {kind._kind.__qualname__}.until would not end"
    logs = Path(session().logs)
    eventually(lambda: sum(path.read_text().count(name) for path in logs.glob("*.err")) == 1, "and warned, once")
    gate.touch()
    get(waiting)
    eventually(lambda: row_of(book)["checkpoint"] == 31, "it is taken as soon as nothing runs")


@BOTH
def test_readonly_calls_run_beside_checkpoints_and_are_repeated(kind: Any, tmp_path: Path) -> None:
    book, gate = kind.options(checkpoint_every=2).remote(str(tmp_path / "note")), tmp_path / "gate"
    watching = book.look.remote(str(gate))
    for calls in (2, 4):
        get([book.write.remote(number) for number in range(calls - 2, calls)])
        eventually(lambda calls=calls: row_of(book)["checkpoint"] == calls, "it is not waited for")
    kill(book)
    restarted(book, 1)
    gate.touch()
    pid, entries, _ = get(watching)
    assert sorted(entries) == list(range(4)), "two at a time, in any order"
    assert pid == get(book.look.remote())[0], "it was made again by itself"


@zf.remote(max_restarts=-1, checkpoint_every=3, concurrency_groups={"io": 2}, num_cpus=0)
class Grouped:
    """Its calls are of groups, none of which begins a call while a checkpoint waits."""

    def __init__(self) -> None:
        self.entries: list[int] = []

    @zf.method(concurrency_group="io")
    def write(self, number: int) -> int:
        self.entries.append(number)
        return number

    def other(self, number: int) -> int:
        self.entries.append(number)
        return os.getpid()

    @zf.method(readonly=True)
    def look(self) -> tuple[int, list[int]]:
        return os.getpid(), list(self.entries)


def test_concurrency_groups_and_detached_actors_have_quiet_checkpoints() -> None:
    actor = Grouped.options(name="of groups", lifetime="detached").remote()
    get([(actor.write if number % 2 else actor.other).remote(number) for number in range(40)])
    eventually(lambda: (row := row_of(actor))["checkpoint"] and row["since_checkpoint"] < 3, "it has a checkpoint")
    kill(actor)
    row = restarted(actor, 1)
    entries = get(zf.get_actor("of groups").look.remote())[1]
    assert len(entries) == 40 - row["lost_calls"] == row["checkpoint"]
    zf.kill(actor)
    eventually(lambda: not rows_of(actor), "nothing is kept of it")


def rows_of(actor: Any) -> list[Any]:
    """What the control store keeps of an actor."""
    from zfabric.runtime import interface

    client = interface.current()
    assert client is not None
    return [key for table in ("log", "checkpoint") for key, _ in client.query("rows", table)[0] if key.startswith(actor._actor_id)]


def test_one_checkpoint_is_retained_and_no_call_is_logged(tmp_path: Path) -> None:
    book = Looped.remote(str(tmp_path / "note"))
    get([book.write.remote(number) for number in range(200)])
    eventually(lambda: row_of(book)["checkpoint"] > 0 and len(rows_of(book)) == 1, "the others are dropped")
    assert row_of(book)["logged_calls"] is None
    zf.kill(book)
    eventually(lambda: not rows_of(book), "nothing is kept of it")


def test_streams_are_in_no_checkpoint(tmp_path: Path) -> None:
    @zf.remote(max_restarts=-1, checkpoint_every=1, num_cpus=0)
    class Source:
        def __init__(self) -> None:
            self.made = 0

        async def values(self, count: int) -> Any:
            for number in range(count):
                self.made += 1
                yield number

        @zf.method(readonly=True)
        async def look(self) -> tuple[int, int]:
            return os.getpid(), self.made

    source = Source.remote()
    assert [get(ref) for ref in source.values.remote(5)] == list(range(5))
    eventually(lambda: row_of(source)["checkpoint"] == 1, "it is a call like others")
    kill(source)
    assert get(source.look.remote())[1] == 5


def test_an_unpicklable_state_is_an_error_when_the_actor_is_made() -> None:
    @zf.remote(max_restarts=1, checkpoint_every=5)
    class Waits:
        def __init__(self) -> None:
            self.inner = {"lock": threading.Lock()}

        async def ping(self) -> None: ...

    with pytest.raises(ActorDiedError) as raised:
        get(Waits.remote().ping.remote())
    assert isinstance(raised.value.__cause__, SerializationError)
    assert "Waits.inner['lock']" in str(raised.value.__cause__)


def test_a_checkpoint_that_cannot_be_taken_later_costs_calls_and_not_the_actor(tmp_path: Path) -> None:
    @zf.remote(max_restarts=-1, checkpoint_every=1, max_concurrency=2, num_cpus=0)
    class Fragile:
        def __init__(self) -> None:
            self.held: Any = None
            self.count = 0

        def hold(self, lock: bool) -> int:
            self.held = threading.Lock() if lock else None
            self.count += 1
            return self.count

        @zf.method(readonly=True)
        def look(self) -> tuple[int, int]:
            return os.getpid(), self.count

    fragile = Fragile.remote()
    get(fragile.hold.remote(False))
    eventually(lambda: row_of(fragile)["checkpoint"] == 1, "that can be pickled")
    assert [get(fragile.hold.remote(True)) for _ in range(3)] == [2, 3, 4]
    kill(fragile)
    assert restarted(fragile, 1)["lost_calls"] == 3
    assert get(fragile.look.remote())[1] == 1


def test_a_save_that_exits_ends_neither_the_actor_nor_its_event_loop() -> None:
    @zf.remote(max_restarts=-1, checkpoint_every=1, num_cpus=0)
    class Quits:
        def __init__(self) -> None:
            self.count = 0

        def __zf_save__(self) -> int:
            if self.count:
                raise SystemExit(1)
            return self.count

        def __zf_load__(self, state: int) -> None:
            self.count = state

        async def add(self) -> tuple[int, int]:
            self.count += 1
            return self.count, os.getpid()

    quits = Quits.remote()
    outcomes_seen = [get(quits.add.remote()) for _ in range(3)]
    assert [count for count, _ in outcomes_seen] == [1, 2, 3]
    assert len({pid for _, pid in outcomes_seen}) == 1


def test_the_actor_table_shows_checkpoints(tmp_path: Path) -> None:
    @zf.remote(num_cpus=0)
    class Plain:
        def ping(self) -> None: ...

    book, plain = Threaded.options(name="a book").remote(str(tmp_path / "note")), Plain.options(name="plain").remote()
    get(plain.ping.remote())
    get([book.write.remote(number) for number in range(3)])
    counted(book, 3)
    lines = printed("actors").splitlines()
    assert lines[0].split()[-4:] == ["every", "since", "lost", "memory"]
    (shown,) = (line.split() for line in lines if "a book" in line)
    (other,) = (line.split() for line in lines if "plain" in line)
    assert shown[-5:-2] == ["10", "3", "0"]
    assert other[-5:-2] == ["-", "-", "-"]


def test_conflicting_options_are_refused() -> None:
    class Plain:
        def one(self) -> None: ...

    class Saves:
        async def one(self) -> None: ...

        async def __zf_save__(self) -> Any: ...

        def __zf_load__(self, state: Any) -> None: ...

    for kind, options, text in (
        (Plain, {"checkpoint_every": 5, "max_concurrency": 2}, "nothing to restart: set max_restarts"),
        (Plain, {"checkpoint_every": 0, "max_restarts": 1, "max_concurrency": 2}, "checkpoint_every=0.*several calls at once"),
        (Plain, {"checkpoint_every": 0, "max_restarts": 1, "concurrency_groups": {"io": 1}}, "checkpoint_every=0.*several calls at once"),
        (Saves, {"checkpoint_every": 1, "max_restarts": 1}, "Saves.__zf_save__ is 'async def'"),
        (Plain, {"checkpoint_every": 0, "max_restarts": 1, "lightweight": True}, "neither checkpoints nor concurrency groups"),
    ):
        with pytest.raises(OptionError, match=text):
            zf.remote(**options)(kind)
