"""Failures of actors: killed, raising, waiting for themselves; their callers and the daemon killed. Real processes, real signals."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster, running_cluster
from faults import PATIENCE, eventually, failure, gone, kill_daemon, processes_named
from files import wait_for_file

import zfabric as zf
from zfabric.runtime import interface

shared = one_cluster(config={"restart_backoff_max": 0.05})
"""Its daemon is restarted at once however often it dies."""


def value_of(ref: Any) -> Any:
    return zf.get(ref, timeout=PATIENCE)


@zf.remote
class Subject:
    """Something to be hurt: each of its lives has a log of the calls that it began."""

    def __init__(self, log: str = os.devnull) -> None:
        self.log = log
        self.count = 0

    def pid(self) -> int:
        return os.getpid()

    def add(self) -> int:
        self.count += 1
        return self.count

    def note(self, value: Any) -> Any:
        with open(self.log, "a") as file:
            file.write(f"{value}\n")
        return value

    def pass_when(self, path: str) -> str:
        while not os.path.exists(path):
            time.sleep(0.002)
        return path

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def large(self) -> Any:
        return np.ones(500_000)


@zf.remote
def identity(value: Any) -> Any:
    return value


# --- __init__ fails -----------------------------------------------------------------------------------------------------------


@zf.remote
class Stillborn:
    def __init__(self, how: str) -> None:
        if how == "raises":
            raise LookupError("nothing to be had")
        os._exit(3)

    def hello(self) -> str:
        return "hello"


def test_calls_of_an_actor_whose_init_raised_raise_that_error() -> None:
    stillborn = Stillborn.remote("raises")
    for ref in (stillborn.hello.remote(), stillborn.hello.remote()):
        error = failure(ref)
        assert isinstance(error, zf.ActorDiedError)
        assert isinstance(error.cause, LookupError)
        assert "nothing to be had" in str(error)
        assert error.outcome == "not run"
    later = failure(stillborn.hello.remote())
    assert isinstance(later.cause, LookupError)  # type: ignore[attr-defined]


@zf.remote
class Gate:
    """Holds what it is given, and a call until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.kept: list[Any] = []

    def passed(self) -> str:
        assert self.opened.wait(PATIENCE)
        return "passed"

    def keep(self, refs: list[Any]) -> None:
        self.kept = refs

    def take(self) -> list[Any]:
        return self.kept

    def open(self) -> None:
        self.opened.set()


@zf.remote
class Forebear:
    def __init__(self, gate: Any) -> None:
        zf.get(gate.keep.remote([gate.passed.remote()]))
        raise LookupError("nothing to be had")


def test_results_of_calls_by_a_failed_init_still_arrive() -> None:
    gate = Gate.options(max_concurrency=3).remote()
    made = Forebear.remote(gate)
    eventually(lambda: "raised" in str(zf.explain(made)), "it is known that there is no such actor")
    (ref,) = value_of(gate.take.remote())
    gate.open.remote()
    assert value_of(ref) == "passed"


def test_an_init_that_ends_its_process() -> None:
    error = failure(Stillborn.remote("exits").hello.remote())
    assert isinstance(error, zf.ActorDiedError)
    assert "exit code 3" in str(error)
    assert error.outcome == "not run"


# --- killed -------------------------------------------------------------------------------------------------------------------


def test_killed_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """The call that ran may have had its effect; the errors of calls behind it state that they did not run."""
    subject = Subject.remote()
    pid = value_of(subject.pid.remote())
    running = subject.die.remote()
    behind = [subject.add.remote() for _ in range(3)]
    died = failure(running)
    assert isinstance(died, zf.ActorDiedError)
    assert "signal 9" in str(died)
    assert died.outcome == "unknown"
    for ref in behind:
        error = failure(ref)
        assert isinstance(error, zf.ActorDiedError)
        assert error.outcome == "not run"
    later = failure(subject.add.remote())
    assert isinstance(later, zf.ActorDiedError)
    assert later.outcome == "not run"
    assert later.facts["pid"] == pid


def test_calls_that_ran_before_the_death_have_their_results() -> None:
    subject = Subject.remote()
    before, died = [subject.add.remote() for _ in range(50)], subject.die.remote()
    failure(died)
    outcomes = [outcome_of(ref) for ref in before]
    arrived = outcomes.index("unknown") if "unknown" in outcomes else 50
    assert outcomes == [*range(1, arrived + 1), *["unknown"] * (50 - arrived)], "what did not arrive was lost in flight, with the process"


def outcome_of(ref: Any) -> Any:
    try:
        return value_of(ref)
    except zf.ActorDiedError as error:
        return error.outcome


def test_a_restart_without_a_checkpoint_runs_init_again() -> None:
    """The call that may have run is not run again; those behind it are run by the next life, in order."""
    subject = Subject.options(max_restarts=1).remote()
    pid = value_of(subject.pid.remote())
    assert value_of([subject.add.remote() for _ in range(3)]) == [1, 2, 3]
    died, behind = subject.die.remote(), [subject.add.remote() for _ in range(5)]
    error = failure(died)
    assert isinstance(error, zf.ActorUnavailableError)
    assert error.outcome == "unknown"
    assert value_of(behind) == [1, 2, 3, 4, 5]
    assert value_of(subject.pid.remote()) != pid
    last = failure(subject.die.remote())
    assert isinstance(last, zf.ActorDiedError)
    assert last.facts["restarts"] == 1


def test_calls_that_may_be_repeated_are_repeated(tmp_path: Path) -> None:
    """``max_task_retries``: what may have run is run again, by the next life, before what was called after it."""
    log = tmp_path / "log"
    subject = Dying.options(max_restarts=-1, max_task_retries=3).remote(str(log), deaths=2)
    refs = [subject.note.remote(index) for index in range(6)]
    assert value_of(refs) == list(range(6))
    lives = [life.split() for life in log.read_text().split("born\n")[1:]]
    assert len(lives) == 3
    assert lives[-1][-4:] == ["2", "3", "4", "5"]
    for life in lives:  # what had no result yet is run again, and nothing is left out
        assert life == [str(number) for number in range(int(life[0]), 3 if life is not lives[-1] else 6)]


@zf.remote
class Dying:
    """Dies in the middle of the call with 2, a given number of times."""

    def __init__(self, log: str, deaths: int) -> None:
        self.log = log
        self.deaths = deaths
        with open(log, "a") as file:
            file.write("born\n")

    def note(self, value: int) -> int:
        with open(self.log, "a") as file:
            file.write(f"{value}\n")
        if value == 2 and Path(self.log).read_text().split().count("2") <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        return value


@zf.remote
class Partner:
    def __init__(self, other: Any) -> None:
        self.other = other

    def ask(self) -> str:
        try:
            zf.get(self.other.die.remote())
        except zf.ActorDiedError as error:
            return error.outcome
        return "lived"


def test_another_actor_is_notified_of_the_death() -> None:
    partner = Partner.remote(Subject.remote())
    assert value_of(partner.ask.remote()) == "unknown"
    assert value_of(partner.ask.remote()) == "not run"


def test_a_task_with_a_dead_actors_result_as_argument_fails_with_its_error() -> None:
    subject = Subject.remote()
    error = failure(identity.remote(subject.die.remote()))
    assert isinstance(error, zf.ActorDiedError)


@zf.remote(max_retries=0)
def hand_on_and_die(subject: Any, path: str, listener: Any) -> None:
    zf.get(listener.listen.remote([subject.pass_when.remote(path)]))
    os.kill(os.getpid(), signal.SIGKILL)


@zf.remote
class Listener:
    def listen(self, refs: list[Any]) -> None:
        self.ref = refs[0]

    def received(self) -> Any:
        return zf.get(self.ref)


def test_a_result_in_flight_to_a_dead_caller_is_lost_to_all(tmp_path: Path) -> None:
    """Others that wait for it get an error."""
    subject, listener = Subject.remote(), Listener.remote()
    caller = hand_on_and_die.remote(subject, str(tmp_path / "go"), listener)
    assert isinstance(failure(caller), zf.WorkerCrashedError)
    waiting = listener.received.remote()
    assert isinstance(failure(waiting), zf.ObjectLostError)
    (tmp_path / "go").touch()


def test_a_large_result_outlives_its_actor() -> None:
    subject = Subject.remote()
    ref = subject.large.remote()
    zf.wait([ref], timeout=PATIENCE)
    failure(subject.die.remote())
    assert value_of(ref).sum() == 500_000
    assert value_of(identity.remote(ref)).sum() == 500_000


# --- callers die --------------------------------------------------------------------------------------------------------------


@zf.remote(max_retries=0)
def call_and_die(subject: Any, path: str) -> None:
    refs = [subject.pass_when.remote(path), *(subject.note.remote(number) for number in range(10))]
    zf.wait(refs, timeout=0.2)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_caller_dies_with_calls_in_flight(tmp_path: Path) -> None:
    """The actor lives, others are served, and what the dead one had called is run or not, in order and once."""
    go, log = tmp_path / "go", tmp_path / "log"
    subject = Subject.remote(str(log))
    pid = value_of(subject.pid.remote())
    mine = value_of(subject.add.remote())
    dead = call_and_die.remote(subject, str(go))
    assert isinstance(failure(dead), zf.WorkerCrashedError)
    go.touch()
    assert value_of(subject.add.remote()) == mine + 1
    noted = log.read_text().split() if log.exists() else []
    assert noted == [str(number) for number in range(len(noted))], "the actor may learn of the death between two of them"
    assert value_of(subject.pid.remote()) == pid


@zf.remote(max_retries=0)
def hold_and_die(subject: Any) -> None:
    zf.get(subject.pid.remote())
    os.kill(os.getpid(), signal.SIGKILL)


def test_handles_of_a_dead_caller_do_not_count() -> None:
    subject = Subject.remote()
    pid = value_of(subject.pid.remote())
    dead = hold_and_die.remote(subject)
    del subject
    failure(dead)
    eventually(lambda: gone(pid), "nobody has a handle, and the actor has ended")


@zf.remote(max_restarts=-1)
class Quitter:
    """Ends itself."""

    def pid(self) -> int:
        return os.getpid()

    def quit(self) -> None:
        zf.exit_actor()


def test_an_actor_that_has_ended_itself_is_not_restarted_by_the_next_daemon() -> None:
    """The daemon dies before it has received that."""
    quitter = Quitter.remote()
    pid = value_of(quitter.pid.remote())
    kill_daemon(signal.SIGSTOP)
    last = quitter.quit.remote()
    assert isinstance(failure(last), zf.ActorDiedError)
    kill_daemon()
    assert isinstance(failure(quitter.pid.remote()), zf.ActorDiedError)
    eventually(lambda: gone(pid), "its process has ended")


def links() -> int:
    """To how many processes this one has a link."""
    return len(interface.current().connection.transport.peers)  # type: ignore[union-attr]


class Linked:
    """Says so."""

    def links(self) -> int:
        return links()

    def pass_when(self, path: str) -> None:
        eventually(lambda: os.path.exists(path), "the gate opens")


@pytest.mark.parametrize("lightweight", [False, True])
def test_links_to_callers_that_have_gone_are_closed(tmp_path: Path, lightweight: bool) -> None:
    """Those whose calls have run, those that wait for one, and those that called what has ended since in the same process."""
    kind = zf.remote(lightweight=True)(Linked) if lightweight else zf.remote(Linked)

    @zf.remote(max_retries=0)
    def call_and_die(actors: list[Any], path: str) -> None:
        others = [kind.remote() for _ in range(4)] if lightweight else []
        zf.get([each.links.remote() for each in actors + others])
        held = [each.pass_when.remote(path) for each in actors]
        zf.wait(held, timeout=0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    actors = [kind.remote() for _ in range(4)]
    before = value_of([each.links.remote() for each in actors])
    for number in range(4):
        gate = tmp_path / str(number)
        assert isinstance(failure(call_and_die.remote(actors, str(gate))), zf.WorkerCrashedError)
        gate.touch()
    for each, count in zip(actors, before, strict=True):
        eventually(lambda each=each, count=count: value_of(each.links.remote()) <= count, "links to the dead are closed")


def test_the_link_by_which_a_call_was_cancelled_is_closed_with_its_actor(tmp_path: Path) -> None:
    """It is another one than that of the calls: their process has a thread of its own for such requests."""
    peers: dict[bytes, Any] = interface.current().connection.transport.peers  # type: ignore[union-attr]
    before = set(peers)
    patient = Patient.remote()
    mark = tmp_path / "begun"
    running = patient.loop.remote(str(mark))
    eventually(mark.exists, "the call runs")
    zf.cancel(running)
    assert isinstance(failure(running), zf.TaskCancelledError)
    own = peers.keys() - before
    assert len(own) == 2
    zf.kill(patient)
    eventually(lambda: peers.keys().isdisjoint(own), "links to the dead are closed")


@zf.remote
class Holder:
    """Keeps what it was made with."""

    def __init__(self, refs: list[Any], value: Any) -> None:
        self.sums = [int(zf.get(ref).sum()) for ref in refs] + [int(value.sum())]

    def tell(self) -> tuple[int, list[int]]:
        return os.getpid(), self.sums


class Brittle:
    """Writes down that it begins, and dies in ``__init__`` unless it is the ``good``-th to do so."""

    def __init__(self, log: str, good: int) -> None:
        begun = len(os.listdir(log))
        Path(log, str(begun)).touch()
        if begun != good:
            os._exit(3)

    def die(self) -> None:
        os._exit(4)

    def ping(self) -> str:
        return "pong"


@pytest.mark.parametrize(("restarts", "good"), [(0, 0), (1, 9), (1, 0), (2, 0), (2, 1)])
def test_deaths_in_init_and_later_count_against_the_same_restarts(restarts: int, good: int, tmp_path: Path) -> None:
    """So often does it begin, whenever it died."""
    actor = zf.remote(Brittle).options(max_restarts=restarts).remote(str(tmp_path), good)
    if good <= restarts:
        assert zf.get(actor.ping.remote(), timeout=PATIENCE) == "pong"
        failure(actor.die.remote())
    assert isinstance(failure(actor.ping.remote()), zf.ActorDiedError)
    assert len(os.listdir(tmp_path)) == restarts + 1


def test_a_call_made_while_the_actor_restarts_waits_for_it(tmp_path: Path) -> None:
    actor = zf.remote(Brittle).options(max_restarts=2).remote(str(tmp_path), 0)
    assert zf.get(actor.ping.remote(), timeout=PATIENCE) == "pong"
    os.rename(tmp_path / "0", tmp_path.parent / f"{tmp_path.name}-0")  # The next one is good, too.
    assert isinstance(failure(actor.die.remote()), zf.ActorUnavailableError)
    assert zf.get(actor.ping.remote(), timeout=PATIENCE) == "pong"


def test_a_restart_has_the_arguments_of_the_first_start() -> None:
    """Nobody else needs them: put values, which no task could make again, alone and inside a list."""
    holder = Holder.options(max_restarts=3).remote([zf.put(np.ones(10)), zf.put(np.ones(300_000))], zf.put(np.ones(200_000)))
    for daemon_too in (False, True):
        pid, sums = value_of(holder.tell.remote())
        assert sums == [10, 300_000, 200_000]
        gc.collect()
        if daemon_too:
            old = kill_daemon()
            eventually(lambda old=old: set(processes_named("zf-daemon")) - {old}, "there is another daemon")
            assert value_of(holder.tell.remote()) == (pid, sums)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: answers(holder) not in (0, pid), "it has been made again")
    assert value_of(holder.tell.remote())[1] == [10, 300_000, 200_000]


def answers(holder: Any) -> int:
    """The pid of the process it lives in; 0 while it has none."""
    try:
        return int(value_of(holder.tell.remote())[0])
    except zf.ActorUnavailableError:
        return 0


def test_a_task_does_not_wait_for_calls_that_another_task_of_its_process_has_made() -> None:
    """The first call waits for a task that itself calls the actor, from the same worker, and waits for the outcome."""
    counter = Subject.remote()

    @zf.remote(num_cpus=0.5)
    def second(counter: Any) -> int:
        return int(zf.get(counter.add.remote()))

    @zf.remote(num_cpus=0.5)
    def first(counter: Any) -> Any:
        later = second.remote(counter)
        return zf.get([counter.note.remote(later), later])

    for _ in range(5):
        noted, counted = value_of(first.remote(counter))
        assert noted == counted


# --- the daemon dies ----------------------------------------------------------------------------------------------------------


def test_actors_survive_the_daemon(tmp_path: Path) -> None:
    """Calls that wait are answered, handles go on working, names are found, and counting goes on."""
    go = tmp_path / "go"
    subject = Subject.options(name="survivor").remote()
    detached = Subject.options(name="detached survivor", lifetime="detached").remote()
    pids = value_of([subject.pid.remote(), detached.pid.remote()])
    pending = [subject.pass_when.remote(str(go)), *(subject.add.remote() for _ in range(20))]
    handed_on = identity.remote(pending[0])
    del detached
    old = kill_daemon()
    eventually(lambda: set(processes_named("zf-daemon")) - {old}, "there is another daemon")
    found = zf.get_actor("survivor")
    assert found == subject
    go.touch()
    assert value_of(pending) == [str(go), *range(1, 21)]
    assert value_of(handed_on) == str(go)
    assert value_of(found.add.remote()) == 21
    assert value_of(identity.remote(subject.add.remote())) == 22, "its results go on to tasks as before"
    still = zf.get_actor("detached survivor")
    assert value_of([subject.pid.remote(), still.pid.remote()]) == pids
    zf.kill(still)
    del subject, found
    eventually(lambda: all(map(gone, pids)), "they end as they would have")


def test_an_actor_that_exits_while_the_daemon_is_busy_is_not_reported_as_crashed(tmp_path: Path) -> None:
    """Else it would be made again."""

    @zf.remote(max_restarts=-1)
    class Leaver:
        def __init__(self) -> None:
            with open(tmp_path / "lives", "a") as file:
                file.write("one more\n")

        def pid(self) -> int:
            return os.getpid()

        def leave(self) -> None:
            zf.exit_actor()

    leaver = Leaver.remote()
    pid = value_of(leaver.pid.remote())
    (daemon,) = processes_named("zf-daemon")
    os.kill(daemon, signal.SIGSTOP)
    try:
        assert isinstance(failure(leaver.leave.remote()), zf.ActorDiedError)
        time.sleep(0.3)  # in which it would end, if it did not wait until the daemon has received that
        assert not gone(pid)
    finally:
        os.kill(daemon, signal.SIGCONT)
    eventually(lambda: gone(pid), "it ends once the daemon has been notified")
    assert isinstance(failure(leaver.pid.remote()), zf.ActorDiedError)
    assert (tmp_path / "lives").read_text() == "one more\n"


def test_calls_are_answered_while_the_daemon_is_dead() -> None:
    """They need it for nothing."""
    subject = Subject.remote()
    value_of(subject.pid.remote())
    results = []
    for _ in range(3):
        kill_daemon()
        results += value_of([subject.add.remote() for _ in range(50)])
        assert value_of(identity.remote(0)) == 0
    assert results == list(range(1, 151))


def test_an_actor_is_made_although_the_daemon_was_dead() -> None:
    kill_daemon()
    subject = Subject.remote()
    assert value_of([subject.add.remote() for _ in range(3)]) == [1, 2, 3]


def test_an_actor_that_dies_while_the_daemon_is_dead_is_noticed() -> None:
    plain, again = Subject.remote(), Subject.options(max_restarts=1).remote()
    pids = value_of([plain.pid.remote(), again.pid.remote()])
    kill_daemon(signal.SIGSTOP)  # So that they die before the next one begins, and this one does not see it.
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the supervisor has found them dead")
    kill_daemon()
    error = failure(plain.add.remote())
    assert isinstance(error, zf.ActorDiedError)
    assert "daemon was restarted" in str(error)
    assert value_of(again.add.remote()) == 1


# --- waiting for ever ---------------------------------------------------------------------------------------------------------


@zf.remote
class Narcissus:
    def me(self, mine: Any) -> int:
        return int(zf.get(mine.other.remote()))

    def other(self) -> int:
        return 1

    def indirectly(self, mine: Any) -> int:
        ready, _ = zf.wait([mine.other.remote()], timeout=None)
        return len(ready)

    def in_time(self, mine: Any) -> int:
        return int(zf.get(mine.other.remote(), timeout=PATIENCE))

    def all_of_two(self, mine: Any) -> int:
        ready, _ = zf.wait([mine.other.remote(), identity.remote(1)], num_returns=2)
        return len(ready)

    def any_of_two(self, mine: Any) -> Any:
        own, other = mine.other.remote(), identity.remote("of a task")
        ready, late = zf.wait([own, other], num_returns=1)
        return late == [own], zf.get(ready)

    def for_a_while(self, mine: Any) -> list[int]:
        own = mine.other.remote()
        return [len(zf.wait([own], timeout=seconds)[0]) for seconds in (0, 0.01)]

    def look(self, mine: Any) -> str:
        with pytest.raises(zf.GetTimeoutError):
            zf.get(mine.other.remote(), timeout=0)
        return "not there"


@pytest.mark.parametrize("options", [{}, {"lightweight": True}])
def test_an_actor_that_waits_for_itself_gets_a_deadlock_error(options: dict[str, Any]) -> None:
    narcissus = Narcissus.options(**options).remote()
    for method in (narcissus.me, narcissus.indirectly, narcissus.in_time, narcissus.all_of_two):
        error = failure(method.remote(narcissus))
        assert isinstance(error, zf.DeadlockError)
        name = f"Narcissus.{method._method.name}"
        assert f"{name} -> Narcissus -> {name}" in str(error)
    assert value_of(narcissus.other.remote()) == 1


@zf.remote
class Patience:
    """Has a call of its own made, and waits for it in a later one."""

    def begin(self, own: Any, begun: str, go_on: str) -> None:
        self.result = own.until.remote(begun, go_on)

    def until(self, begun: str, go_on: str) -> str:
        Path(begun).touch()
        wait_for_file(go_on)
        return "done"

    def result_of_it(self) -> Any:
        return zf.get(self.result)


@pytest.mark.parametrize("options", [{}, {"lightweight": True}])
def test_an_actor_may_wait_for_its_own_call_that_has_ended(options: dict[str, Any], tmp_path: Path) -> None:
    """The next call begins before the news of its outcome has come."""
    for number in range(5):
        begun, go_on = tmp_path / f"{number} has begun", tmp_path / f"{number} goes on"
        actor = Patience.options(**options).remote()
        value_of(actor.begin.remote(actor, str(begun), str(go_on)))
        eventually(begun.exists, "its own call runs")
        later = actor.result_of_it.remote()
        zf.wait([later], timeout=0.05)  # It is behind that one now, most often.
        go_on.touch()
        assert value_of(later) == "done"


@pytest.mark.parametrize("options", [{}, {"lightweight": True}])
def test_an_actor_may_poll_its_own_calls_and_wait_for_others_beside_them(options: dict[str, Any]) -> None:
    narcissus = Narcissus.options(**options).remote()
    assert value_of(narcissus.any_of_two.remote(narcissus)) == (True, ["of a task"])
    assert value_of(narcissus.for_a_while.remote(narcissus)) == [0, 0]
    assert value_of(narcissus.look.remote(narcissus)) == "not there"


@zf.remote
class Asker:
    """Calls others, and waits for their results."""

    def end(self) -> str:
        return "the end"

    def ask(self, *others: Any) -> str:
        first, *rest = others
        return str(zf.get(first.ask.remote(*rest) if rest else first.end.remote()))

    def by_a_task(self, mine: Any) -> str:
        return str(zf.get(asks.remote(mine)))

    def by_an_argument(self, mine: Any) -> str:
        return str(zf.get(identity.remote(mine.end.remote())))


@zf.remote
def asks(other: Any) -> str:
    return str(zf.get(other.end.remote()))


def test_the_driver_is_warned_of_a_circle_of_actors_and_can_break_it(capfd: pytest.CaptureFixture[str]) -> None:
    """By a kill, a cancel, or a timeout that the call has had: whoever waits goes on with that."""
    a, b, c, d, e = (Asker.options(name=name).remote() for name in "abcde")
    shared = [Asker.options(name=f"light {name}", lightweight=True).remote() for name in "fg"]
    assert value_of(a.ask.remote(b, c)) == "the end", "waiting in a row is no circle"
    two, three = a.ask.remote(b, a), c.ask.remote(d, e, c)
    light = shared[0].ask.remote(shared[1], shared[0])
    by_argument = (own := Asker.options(name="own").remote()).by_an_argument.remote(own)
    by_task = (other := Asker.options(name="other").remote()).by_a_task.options(timeout=600).remote(other)
    output = ""

    def shown(*circles: str) -> bool:
        nonlocal output
        zf.wait([two], timeout=0.01)
        output += capfd.readouterr().err
        return all(circle in output for circle in circles)

    end = "nothing but a timeout, a cancel or a kill will end it: "
    eventually(lambda: shown("Asker.ask (a)", "Asker.ask (b)", "Asker.ask (e)", "Asker (light", "identity"), "the driver is warned of each")
    assert output.count(end) == 4, "once"
    assert "Asker.by_a_task" not in output, "that ends by itself"
    assert "it waits for itself: Asker.ask (a) -> Asker.ask (b) -> Asker.ask (a)" in str(zf.explain(a))
    zf.kill(b)
    assert isinstance(failure(two), zf.ActorDiedError)
    zf.kill(shared[1])
    assert isinstance(failure(light), zf.ActorDiedError)
    for ref in (three, by_argument, by_task):
        zf.cancel(ref)
        assert isinstance(failure(ref), zf.TaskCancelledError)
    assert value_of([each.end.remote() for each in (a, c, d, e, shared[0], own, other)]) == ["the end"] * 7


def test_a_program_ends_though_its_actors_wait_for_each_other() -> None:
    program = """if True:
        import zfabric as zf

        @zf.remote
        class Asker:
            def ask(self, *others):
                print("asks", flush=True)
                return zf.get(others[0].ask.remote(*others[1:])) if others else None

        zf.init(num_cpus=2)
        for options in ({}, {"lightweight": True}):
            a, b = (Asker.options(**options).remote() for _ in range(2))
            circle = a.ask.remote(b, a)
            try:
                zf.get(circle, timeout=1.0)
            except zf.GetTimeoutError:
                print("and waits", flush=True)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.count("and waits") == 2


def test_a_circle_is_found_by_the_next_daemon(capfd: pytest.CaptureFixture[str]) -> None:
    """One waits when the daemon dies, the other closes the circle for the next one."""
    a = Asker.remote()
    value_of(a.end.remote())
    kill_daemon()
    waits = a.ask.remote(Asker.remote(), a)

    def warned() -> bool:
        zf.wait([waits], timeout=0.01)
        return "wait for each other" in capfd.readouterr().err

    eventually(warned, "the driver is warned")
    zf.kill(a)
    assert isinstance(failure(waits), zf.ActorDiedError)


@zf.remote
class Patient:
    """Blocks for ever, in Python and in the fabric."""

    def loop(self, path: str) -> None:
        Path(path).touch()
        while True:
            time.sleep(0.002)

    def wait(self, path: str, ref: list[Any]) -> None:
        Path(path).touch()
        zf.get(ref[0])

    def hello(self) -> str:
        return "hello"


@zf.remote
def never() -> None:
    while True:
        time.sleep(0.002)


def test_cancel_stops_a_method_that_runs(tmp_path: Path) -> None:
    """The actor lives on: the next call is served by the same process."""
    patient = Patient.remote()
    mark = tmp_path / "begun"
    running = patient.loop.remote(str(mark))
    waiting = patient.hello.remote()
    eventually(mark.exists, "the call runs")
    cancelled = patient.hello.remote()
    zf.cancel(cancelled)
    zf.cancel(running)
    assert isinstance(failure(running), zf.TaskCancelledError)
    assert isinstance(failure(cancelled), zf.TaskCancelledError)
    assert value_of(waiting) == "hello"


def test_cancel_stops_a_method_that_waits(tmp_path: Path) -> None:
    patient = Patient.remote()
    mark = tmp_path / "begun"
    endless = never.remote()
    running = patient.wait.remote(str(mark), [endless])
    eventually(mark.exists, "the call runs")
    zf.cancel(running)
    assert isinstance(failure(running), zf.TaskCancelledError)
    zf.cancel(endless)
    assert value_of(patient.hello.remote()) == "hello"


def test_results_of_calls_by_an_exited_actor_still_arrive() -> None:
    """The last test of this file: it has a cluster of its own, which ends the one of the file."""

    @zf.remote(max_concurrency=2)
    class Gate:
        def __init__(self) -> None:
            self.opened = threading.Event()

        def open(self) -> None:
            self.opened.set()

        def passed(self) -> str:
            self.opened.wait()
            return "passed"

    @zf.remote
    class Caller:
        def call(self, gate: Any) -> list[Any]:
            return [gate.passed.remote()]

        def leave(self) -> None:
            zf.exit_actor()

    with running_cluster(config={"leave_seconds": PATIENCE}):
        gate, caller = Gate.remote(), Caller.remote()
        (promised,) = value_of(caller.call.remote(gate))
        assert isinstance(failure(caller.leave.remote()), zf.ActorDiedError)
        # Any other process would be gone by then: it is a round trip from its end, and there is time for several.
        for _ in range(20):
            value_of(gate.__ray_ready__.remote())
        gate.open.remote()
        assert value_of(promised) == "passed"
