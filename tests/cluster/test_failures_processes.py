"""Failures of processes: workers, daemon and driver killed, stopped and out of memory. Real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster
from faults import (
    PATIENCE,
    eventually,
    failure,
    gone,
    kill_daemon,
    processes_named,
    query,
    session,
    session_processes,
    worker_rows,
)
from files import wait_for_file

import zfabric as zf
from zfabric.runtime import interface
from zfabric.runtime.session import Session

shared = one_cluster(config={"restart_backoff_max": 0.05, "worker_idle_seconds": 3600.0})
"""Its daemon is restarted at once however often it dies. No worker ends by itself: tests compare those before and after."""


@zf.remote
def identity(value: Any) -> Any:
    return value


@zf.remote
def sum_of(array: Any) -> int:
    return int(array.sum())


# --- a worker dies --------------------------------------------------------------------------------------------------------------


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_at_once() -> None:
    os._exit(7)


def crash() -> None:
    import faulthandler

    faulthandler._sigsegv()


@pytest.mark.parametrize(("way", "number", "code"), [(kill_itself, 9, 0), (exit_at_once, 0, 7), (crash, 11, 0)])
def test_a_task_whose_worker_dies_is_retried_and_then_fails_with_all_facts(way: Any, number: int, code: int, tmp_path: Path) -> None:
    @zf.remote(max_retries=1)
    def die() -> None:
        with (tmp_path / "attempts").open("a") as attempts:
            attempts.write(f"{os.getpid()} {zf.get_runtime_context().attempt}\n")
        print("these are my last words", file=sys.stderr, flush=True)
        way()

    error = failure(die.remote())
    assert type(error) is zf.WorkerCrashedError
    attempts = [line.split() for line in (tmp_path / "attempts").read_text().splitlines()]
    assert [attempt for _, attempt in attempts] == ["0", "1"]
    assert error.facts["pid"] == int(attempts[-1][0])
    assert (error.facts["signal"], error.facts["exit_code"]) == (number, code)
    assert f"signal {number}" in str(error) if number else f"exit code {code}" in str(error)
    assert all(pid in str(error) for pid, _ in attempts)
    assert ("Segmentation fault" if way is crash else "these are my last words") in str(error)
    assert error.facts["node"] == zf.get_runtime_context().get_node_id()


def test_a_retried_task_that_no_longer_kills_gives_its_value(tmp_path: Path) -> None:
    @zf.remote
    def die_twice() -> str:
        with (tmp_path / "attempts").open("a") as attempts:
            attempts.write("x")
        if len((tmp_path / "attempts").read_text()) <= 2:
            kill_itself()
        return "third time lucky"

    assert zf.get(die_twice.remote(), timeout=PATIENCE) == "third time lucky"


def test_no_retries_means_one_attempt(tmp_path: Path) -> None:
    @zf.remote(max_retries=0)
    def die() -> None:
        with (tmp_path / "attempts").open("a") as attempts:
            attempts.write("x")
        kill_itself()

    assert type(failure(die.remote())) is zf.WorkerCrashedError
    assert (tmp_path / "attempts").read_text() == "x"


def test_neighbours_of_a_task_that_kills_its_worker_are_unharmed() -> None:
    @zf.remote(max_retries=0)
    def step(index: int) -> int:
        if index < 0:
            kill_itself()
        return index

    zf.get([step.remote(index) for index in range(500)], timeout=PATIENCE)  # Quick ones: others are given to a worker along with it.
    refs = [step.remote(-1 if index % 500 == 250 else index) for index in range(2000)]
    values, deaths = [], 0
    for ref in refs:
        try:
            values.append(zf.get(ref, timeout=PATIENCE))
        except zf.WorkerCrashedError:
            deaths += 1
    assert deaths == 4
    assert values == [index for index in range(2000) if index % 500 != 250]


def test_an_actor_whose_constructor_always_kills_its_worker_has_died() -> None:
    @zf.remote(max_restarts=-1)
    class Dying:
        def __init__(self) -> None:
            exit_at_once()

        def look(self) -> None:
            pass

    error = failure(Dying.remote().look.remote())
    assert type(error) is zf.ActorDiedError
    assert "Dying killed every worker it was given" in str(error)


def test_a_task_that_always_kills_its_worker_fails_whatever_its_retries() -> None:
    @zf.remote(max_retries=-1)
    def die() -> None:
        exit_at_once()

    error = failure(die.remote())
    assert type(error) is zf.PoisonedTaskError
    assert str(error).count("exit code 7") >= 3
    assert zf.get([identity.remote(index) for index in range(100)], timeout=PATIENCE) == list(range(100))


def test_a_worker_killed_from_outside_loses_nothing(tmp_path: Path) -> None:
    @zf.remote
    def slow(index: int) -> int:
        time.sleep(0.002)  # so that the tasks last while workers are killed
        return index

    refs = [slow.remote(index) for index in range(400)]
    for _ in range(3):
        done = len(zf.wait(refs, num_returns=len(refs), timeout=0.15)[0])
        if done == len(refs):
            break
        os.kill(eventually(lambda: processes_named("zf-worker"), "a dead worker is replaced")[0], signal.SIGKILL)
    assert zf.get(refs, timeout=PATIENCE) == list(range(400))
    eventually(lambda: len([row for row in worker_rows() if row["state"] != "starting"]) >= 2, "dead workers are replaced")


def test_a_worker_that_is_killed_while_it_waits_for_children_is_retried(tmp_path: Path) -> None:
    @zf.remote
    def child() -> int:
        wait_for_file(tmp_path / "parent killed")
        return 1

    @zf.remote
    def parent() -> int:
        return sum(zf.get([child.remote() for _ in range(4)]))

    refs = [parent.remote() for _ in range(2)]
    eventually(lambda: any(row["depth"] for row in worker_rows()), "a worker waits in get")
    victim = next(row["pid"] for row in worker_rows() if row["depth"])
    os.kill(victim, signal.SIGKILL)
    (tmp_path / "parent killed").touch()
    assert zf.get(refs, timeout=PATIENCE) == [4, 4]


def test_a_stopped_worker_delays_its_tasks_and_loses_none() -> None:
    pid = processes_named("zf-worker")[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        refs = [identity.remote(index) for index in range(2000)]
        zf.wait(refs, num_returns=len(refs), timeout=0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert zf.get(refs, timeout=PATIENCE) == list(range(2000))
    assert not gone(pid)


# --- the daemon dies ------------------------------------------------------------------------------------------------------------


def test_the_daemon_killed_under_ten_thousand_tasks_is_replaced_and_each_finishes_once(tmp_path: Path) -> None:
    workers = set(processes_named("zf-worker"))
    refs = [identity.remote(index) for index in range(5_000)]
    killed = kill_daemon()
    refs += [identity.remote(index) for index in range(5_000, 10_000)]
    seen: list[int] = []
    for ref in zf.as_completed(refs, timeout=PATIENCE):
        seen.append(zf.get(ref))
    assert sorted(seen) == list(range(10_000))
    assert gone(killed)
    assert set(processes_named("zf-worker")) >= workers


def test_the_daemon_killed_again_and_again() -> None:
    for turn in range(6):
        refs = [identity.remote((turn, index)) for index in range(3_000)]
        kill_daemon()
        if turn % 2:
            eventually(lambda: query("status"), "the new daemon answers")
            kill_daemon()
        assert zf.get(refs, timeout=PATIENCE) == [(turn, index) for index in range(3_000)]


@zf.remote
def nested(levels: int) -> Any:
    inner = zf.put(np.full(40_000, levels)) if not levels else nested.remote(levels - 1)
    return [np.full(40_000, levels), inner]


def test_a_large_value_that_nobody_has_read_and_the_refs_inside_survive_the_daemon() -> None:
    """No process has refs to what it contains, since the workers are dead: only the value tells of them."""
    ref = nested.remote(2)
    zf.wait([ref], timeout=PATIENCE, fetch_local=False)
    eventually(
        lambda: not sum(query("status")["tasks"][each] for each in ("running", "assigned", "queued", "waiting")), "all tasks have ended"
    )
    for pid in processes_named("zf-worker"):
        os.kill(pid, signal.SIGKILL)
    killed = kill_daemon()
    eventually(lambda: killed not in processes_named("zf-daemon") and not query("status")["recovering"], "the next daemon has recovered")
    for level in (2, 1, 0):
        array, ref = zf.get(ref, timeout=PATIENCE)
        assert (array == level).all()
    assert (zf.get(ref, timeout=PATIENCE) == 0).all()


def test_a_restarted_daemon_counts_attempts_from_one(tmp_path: Path) -> None:
    @zf.remote(max_retries=1)
    def deadly() -> None:
        with (tmp_path / "attempts").open("a") as attempts:
            attempts.write(f"{zf.get_runtime_context().attempt} ")
        kill_itself()

    kill_daemon()
    with pytest.raises(zf.WorkerCrashedError) as caught:
        zf.get(deadly.remote(), timeout=PATIENCE)
    assert (tmp_path / "attempts").read_text().split() == ["0", "1"]
    assert caught.value.facts["attempt"] == 1
    assert all(f"attempt {number}:" in str(caught.value) for number in (1, 2))


def test_a_daemon_killed_while_its_first_driver_and_workers_register() -> None:
    script = (
        "import zfabric as zf; from faults import *\n"
        "zf.init(num_cpus=2, log_to_driver=False)\n"
        "f = zf.remote(lambda x: x + 1); refs = [f.remote(i) for i in range(1000)]; kill_daemon()\n"
        "assert zf.get(refs, timeout=PATIENCE) == list(range(1, 1001)); zf.shutdown()\n"
    )
    run_script(script)


def test_the_daemon_killed_while_workers_wait_in_nested_gets(tmp_path: Path) -> None:
    over = tmp_path / "over"

    @zf.remote
    def leaf(index: int) -> int:
        wait_for_file(over)
        return index

    @zf.remote
    def parent(index: int) -> int:
        return sum(zf.get([leaf.remote(index) for _ in range(3)]))

    @zf.remote
    def depth(n: int) -> int:
        return leaf._function(0) if n == 0 else 1 + int(zf.get(depth.remote(n - 1)))

    deep = depth.remote(300)
    refs = [parent.remote(index) for index in range(6)]
    eventually(lambda: any(row["depth"] for row in worker_rows()), "a worker waits in get")
    former = session().daemon()
    kill_daemon()
    eventually(lambda: session().daemon() != former, "processes can register with the next one")
    kill_daemon()  # It has hardly begun to receive what the processes hold and run.
    over.touch()
    assert zf.get(refs, timeout=PATIENCE) == [3 * index for index in range(6)]
    assert zf.get(deep, timeout=PATIENCE) == 300


def test_arrays_refs_and_durable_puts_outlive_the_daemon() -> None:
    @zf.remote
    def make(index: int) -> Any:
        return np.full(300_000, index)

    put = zf.put(np.arange(500_000))
    small = zf.put({"a": 1})
    durable = zf.put(["kept"], durable=True)
    durable_array = zf.put(np.ones(100_000), durable=True)
    made = [make.remote(index) for index in range(4)]
    views = zf.get(made, timeout=PATIENCE)
    whole = zf.get(put)
    nested = zf.put({"inside": [put, made[1]]})
    kill_daemon()
    assert zf.get([sum_of.remote(ref) for ref in made], timeout=PATIENCE) == [index * 300_000 for index in range(4)]
    assert zf.get(sum_of.remote(put), timeout=PATIENCE) == sum(range(500_000))
    assert all((view == index).all() for index, view in enumerate(views))
    assert (whole == np.arange(500_000)).all()
    assert zf.get([small, durable], timeout=PATIENCE) == [{"a": 1}, ["kept"]]
    assert zf.get(durable_array, timeout=PATIENCE).sum() == 100_000
    del views, whole, made
    inside = zf.get(nested, timeout=PATIENCE)["inside"]
    assert zf.get(sum_of.remote(inside[1]), timeout=PATIENCE) == 300_000
    kill_daemon()
    more = [zf.put(np.full(300_000, index)) for index in range(10)]
    assert zf.get([sum_of.remote(ref) for ref in more], timeout=PATIENCE) == [index * 300_000 for index in range(10)]


def test_a_durable_put_goes_on_with_the_next_daemon() -> None:
    """Its daemon dies before it has committed the value: the next one does, and ``put`` need not wait until its patience ends."""
    zf.get(identity.remote(1), timeout=PATIENCE)
    client: Any = interface.current()
    refs: list[Any] = []
    kill_daemon(signal.SIGSTOP)
    thread = threading.Thread(target=lambda: refs.append(zf.put(["kept"], durable=True)))
    thread.start()
    eventually(lambda: client.machine.written and not client.machine.has_unsent, "the value is on its way")
    kill_daemon()
    thread.join(client.config.put_patience / 2)
    assert zf.get(refs, timeout=PATIENCE) == [["kept"]]


def test_a_stopped_daemon_is_not_replaced() -> None:
    refs = [identity.remote(index) for index in range(5_000)]
    pid = kill_daemon(signal.SIGSTOP)
    try:
        refs += [identity.remote(index) for index in range(5_000, 10_000)]
        with pytest.raises(zf.GetTimeoutError):
            zf.get(refs, timeout=0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert zf.get(refs, timeout=PATIENCE) == list(range(10_000))
    assert processes_named("zf-daemon") == [pid]


def test_the_template_killed_is_replaced_and_workers_can_be_started_again() -> None:
    template = processes_named("zf-template")[0]
    os.kill(template, signal.SIGKILL)
    for pid in processes_named("zf-worker"):
        os.kill(pid, signal.SIGKILL)
    assert zf.get([identity.remote(index) for index in range(100)], timeout=PATIENCE) == list(range(100))
    assert template not in processes_named("zf-template")


# --- memory -----------------------------------------------------------------------------------------------------------------------


MEMORY = """
import numpy as np, pathlib, tempfile, time, zfabric as zf
from faults import *
zf.init(num_cpus=2, log_to_driver=False, object_store_memory=2**27, config={"memory_limit": 400 * 2**20, "memory_check_every": 0.02})

def take(mib):
    held = []
    while True:  # until it is killed: a busy daemon looks late, and finds no more than that
        if 8 * len(held) < mib:
            held.append(np.ones(2**20))
        time.sleep(0.01)  # the fabric is to see the process grow

@zf.remote(max_retries=0)
def hog(mib=600):
    take(mib)

@zf.remote
class Hog:
    def take(self):
        take(600)

@zf.remote(max_retries=0)
def neighbour(marks):
    while not pathlib.Path(marks, "done").exists():
        time.sleep(0.01)
    return "unharmed"
"""


def test_the_worker_that_takes_all_memory_is_blamed() -> None:
    script = """
with tempfile.TemporaryDirectory() as marks:
    other = neighbour.remote(marks)
    error = failure(hog.remote())
    assert type(error) is zf.OutOfMemoryError, repr(error)
    assert error.facts["peak"] > 150 * 2**20, error.facts
    assert "MiB" in str(error) and "hog" in str(error)
    pathlib.Path(marks, "done").touch()
    assert zf.get(other, timeout=PATIENCE) == "unharmed"
zf.shutdown()
"""
    run_script(MEMORY + script)


def test_a_worker_that_has_no_more_than_it_reserved_is_spared() -> None:
    script = """
@zf.remote(max_retries=0, memory=350 * 2**20)
def large(marks):
    held = np.ones(260 * 2**17)
    pathlib.Path(marks, "has it").touch()
    while not pathlib.Path(marks, "done").exists():
        time.sleep(0.01)
    return held.nbytes

with tempfile.TemporaryDirectory() as marks:
    other = large.remote(marks)
    eventually(pathlib.Path(marks, "has it").exists, "it is the largest")
    error = failure(hog.remote(160))
    assert type(error) is zf.OutOfMemoryError, repr(error)
    assert error.facts["peak"] < 260 * 2**20, error.facts
    pathlib.Path(marks, "done").touch()
    assert zf.get(other, timeout=PATIENCE) == 260 * 2**20
zf.shutdown()
"""
    run_script(MEMORY + script)


def test_an_actor_that_takes_all_memory_is_blamed_instead_of_a_task() -> None:
    script = """
hog = Hog.remote()
error = failure(hog.take.remote())
assert type(error) is zf.ActorDiedError, repr(error)
assert "out of memory" in str(error) and "MiB" in str(error) and "Hog" in str(error), error
with tempfile.TemporaryDirectory() as marks:
    other, hog = neighbour.remote(marks), Hog.remote()
    assert type(failure(hog.take.remote())) is zf.ActorDiedError
    pathlib.Path(marks, "done").touch()
    assert zf.get(other, timeout=PATIENCE) == "unharmed"
zf.shutdown()
"""
    run_script(MEMORY + script)


# --- the driver dies -----------------------------------------------------------------------------------------------------------------


def run_script(script: str) -> str:
    """Run a program of its own, with what these tests may import; its output."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def targets(directory: Path) -> str:
    """What the open files of a process are."""
    found = ""
    for entry in directory.iterdir():
        with suppress(OSError):  # It may just have been closed.
            found += os.readlink(entry) + "\n"
    return found


def test_a_driver_killed_leaves_nothing_of_its_embedded_cluster() -> None:
    script = """
import numpy as np, time, zfabric as zf
from faults import *
zf.init(num_cpus=2, log_to_driver=False)
held = [zf.put(np.ones(10**6)) for _ in range(5)]
@zf.remote
def run():
    import subprocess
    subprocess.Popen(["sleep", "1000"])
    time.sleep(1000)
refs = [run.remote() for _ in range(4)]
eventually(lambda: "sleep" in session_processes().values(), "tasks run")
print(session().directory, *session_processes(), flush=True)
time.sleep(1000)
"""
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    try:
        assert driver.stdout is not None
        directory, *pids = driver.stdout.readline().split()
        assert len(pids) >= 6
        arena = Path(f"/proc/{Session(directory).describe()['supervisor']}/fd")
        eventually(lambda: "zfabric-arena" in targets(arena), "its supervisor has the arena")
    finally:
        driver.kill()
        driver.communicate()
    eventually(lambda: all(gone(int(pid)) for pid in pids), "all processes have ended")
    eventually(lambda: not Path(directory).exists(), "the session's directory is gone")


def test_a_driver_that_exits_without_shutdown_or_by_an_exception_leaves_nothing() -> None:
    script = """
import zfabric as zf
from faults import *
zf.init(num_cpus=1, log_to_driver=False)
zf.get(zf.remote(lambda: 1).remote())
print(session().directory, *session_processes(), flush=True)
{ending}
"""
    for ending in ("", "raise ValueError('the program failed')", "import os; os._exit(3)"):
        done = subprocess.run(
            [sys.executable, "-c", script.format(ending=ending)],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            cwd=Path(__file__).parents[1],
            check=False,
        )
        directory, *pids = done.stdout.split()
        eventually(lambda pids=pids: all(gone(int(pid)) for pid in pids), "all processes have ended")
        eventually(lambda directory=directory: not Path(directory).exists(), "the session's directory is gone")


def test_a_killed_supervisor_ends_the_node_and_the_driver_gets_an_error() -> None:
    script = """
import os, zfabric as zf
from faults import *
zf.init(num_cpus=2, log_to_driver=False)
@zf.remote
def run(): time.sleep(1000)
ref = run.remote()
eventually(lambda: any(row["state"] == "busy" for row in worker_rows()), "the task runs")
pids = list(session_processes())
os.kill(pids[0], 9)
error = failure(ref)
assert type(error) is zf.NodeDiedError, repr(error)
eventually(lambda: all(gone(pid) for pid in pids[1:]), "all have ended")
zf.shutdown()
zf.init(num_cpus=1, log_to_driver=False)
assert zf.get(zf.remote(lambda: 5).remote(), timeout=PATIENCE) == 5
zf.shutdown()
"""
    run_script(script)


def test_awaiting_raises_when_the_node_or_the_connection_ends() -> None:
    script = """
import asyncio, os, zfabric as zf
from faults import *

@zf.remote
def run(): time.sleep(1000)

async def main(end, expected):
    zf.init(num_cpus=2, log_to_driver=False)
    refs = [run.remote() for _ in range(50)]
    futures = [ref.future() for ref in refs]
    async def value(ref): return await ref
    waiting = [asyncio.ensure_future(value(ref)) for ref in refs] + list(map(asyncio.wrap_future, futures))
    await asyncio.sleep(0)
    end()
    errors = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE)
    assert {type(error) for error in errors} == {expected}, set(map(repr, errors))

asyncio.run(main(lambda: os.kill(next(iter(session_processes())), 9), zf.NodeDiedError))
zf.shutdown()
asyncio.run(main(zf.shutdown, zf.NotInitializedError))
"""
    run_script(script)


def test_output_of_tasks_is_no_error_where_stdout_is_closed() -> None:
    """Closed, a pipe whose reader has gone, or one that cannot show it: the program goes on, its threads too."""
    script = """
import io, os, sys, threading, zfabric as zf
from faults import *
zf.init(num_cpus=1)

@zf.remote
def shout(): print("caf\\u00e9", flush=True)

def all_shown():
    zf.get(shout.remote(), timeout=PATIENCE)
    eventually(lambda: shown() and zf.get(shout.remote(), timeout=PATIENCE) is None, "its lines have come")

client = zf.runtime.interface.current()
seen = []
show = client.connection.show_notices
client.connection.show_notices = lambda: (seen.append(len(client.machine.notices)), show())
def shown():
    found, seen[:] = list(seen), []
    return found

raw = io.BytesIO()
sys.stdout = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
all_shown()
assert b"caf\\\\xe9" in raw.getvalue(), raw.getvalue()
reader, writer = os.pipe()
os.close(reader)
sys.stdout = os.fdopen(writer, "w", buffering=1)
all_shown()
sys.stdout = io.StringIO()
sys.stdout.close()
all_shown()
assert "zfabric-flusher" in [thread.name for thread in threading.enumerate()]
sys.stdout = sys.__stdout__
"""
    run_script(script)


def test_the_session_has_no_leftovers_of_these_tests() -> None:
    eventually(lambda: all(row["state"] == "idle" for row in worker_rows()), "all tasks have ended")
    assert Path(session().directory).exists()
    names = {"zf-daemon", "zf-supervisor", "zf-template", "zf-worker"}
    eventually(lambda: set(session_processes().values()) == names, "there are these processes, and no others")
