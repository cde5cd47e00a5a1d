"""Failures of tasks: raising, unpicklable, cancelled, late, deeply nested, wrong. Real workers, one cluster for the file."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually, failure, patient_queries, query, worker_pids, worker_rows
from files import wait_for_file

import zfabric as zf
from zfabric.protocol.names import brief
from zfabric.runtime import interface

shared = one_cluster(config={"worker_idle_seconds": 3600.0})
"""No worker ends by itself, however many tasks have waited for others: tests compare the processes before and after."""


@pytest.fixture
def started(tmp_path: Path) -> Callable[[str], None]:
    """Wait until a task has made a file, which shows that it runs."""

    def wait(name: str) -> None:
        eventually((tmp_path / name).exists, f"a task has started ({name})")

    return wait


class Refusal(Exception):
    """An exception with state of its own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


class Stubborn(Exception):
    """One that cannot be pickled, by way of a lock, and cannot be made without its arguments."""

    def __init__(self, text: str, *, lock: Any) -> None:
        super().__init__(text)
        self.lock = lock


@zf.remote
def identity(value: Any) -> Any:
    return value


@zf.remote
def sleeper(marks: str, name: str) -> int:
    Path(marks, name).touch()
    time.sleep(1000)
    return 1


@zf.remote
def spinner(marks: str, name: str) -> int:
    Path(marks, name).touch()
    while True:
        pass


# --- a task raises ----------------------------------------------------------------------------------------------------------


@zf.remote
def refuse(code: int) -> None:
    raise Refusal(code, "no")


def test_an_error_is_an_instance_of_the_raised_class_and_shows_where() -> None:
    error = failure(refuse.remote(7))
    assert isinstance(error, Refusal)
    assert isinstance(error, zf.TaskError)
    assert error.code == 7
    assert "raise Refusal(code" in error.traceback_text
    assert "in refuse" in error.traceback_text
    pids = worker_pids()
    assert error.facts["pid"] in pids
    assert error.facts["node"] == zf.get_runtime_context().get_node_id() == zf.nodes()[0]["NodeID"] == query("status")["node"]
    assert error.facts["attempt"] == 0
    assert str(error) == str(Refusal(7, "no"))
    assert all(f"{name} {str(error.facts[name])[:8]}" in error.__notes__[-1] for name in ("pid", "node"))
    assert "attempt 1" in error.__notes__[-1]


def test_an_exception_that_cannot_be_pickled_still_arrives() -> None:
    @zf.remote
    def bad() -> None:
        raise Stubborn("cannot travel", lock=threading.Lock())

    error = failure(bad.remote())
    assert isinstance(error, zf.TaskError)
    assert str(error) == "cannot travel"
    assert "raise Stubborn" in error.traceback_text


def test_an_exception_passes_through_dependents_and_nested_gets() -> None:
    @zf.remote
    def outer(refs: list[Any]) -> Any:
        return zf.get(refs[0])

    bad = refuse.remote(1)
    passed = identity.remote(identity.remote(bad))
    for ref in (passed, outer.remote([bad]), outer.remote([passed])):
        error = failure(ref)
        assert isinstance(error, Refusal)
        assert error.code == 1
        assert "raise Refusal(code" in error.traceback_text


def test_system_exit_and_keyboard_interrupt_in_a_task_are_its_error_and_no_end_of_its_worker() -> None:
    @zf.remote
    def leave(kind: type[BaseException]) -> None:
        raise kind(3)

    before = worker_pids()
    for kind in (SystemExit, KeyboardInterrupt):
        error = failure(leave.remote(kind))
        assert isinstance(error, zf.TaskError)
        assert kind.__name__ in error.traceback_text
    assert worker_pids() >= before


def test_retry_exceptions_run_again_what_they_name_and_nothing_else(tmp_path: Path) -> None:
    @zf.remote(max_retries=5, retry_exceptions=[ConnectionError])
    def flaky(kind: type[Exception], times: int, name: str) -> int:
        path = Path(tmp_path, name)
        count = len(path.read_text()) if path.exists() else 0
        path.write_text("x" * (count + 1))
        if count < times:
            raise kind("again")
        return count

    assert zf.get(flaky.remote(ConnectionResetError, 3, "a"), timeout=PATIENCE) == 3
    assert isinstance(failure(flaky.remote(ValueError, 3, "b")), ValueError)
    assert (tmp_path / "b").read_text() == "x"
    error = failure(flaky.options(max_retries=2).remote(ConnectionError, 99, "c"))
    assert isinstance(error, ConnectionError)
    assert (tmp_path / "c").read_text() == "xxx"


# --- what cannot be pickled ---------------------------------------------------------------------------------------------------


class Session:
    def __init__(self) -> None:
        self.state = {"connections": [1, threading.Lock()]}


def test_an_argument_that_cannot_be_pickled_is_an_error_at_the_call_that_names_the_path() -> None:
    with pytest.raises(zf.SerializationError, match=r"args\[0\].*state.*connections.*\[1\]"):
        identity.remote(Session())
    with pytest.raises(zf.SerializationError, match=r"value.*state.*connections.*\[1\]"):
        identity.remote(value=Session())


def test_a_result_that_cannot_be_pickled_is_an_error_from_get_that_names_the_path() -> None:
    @zf.remote
    def bad() -> Any:
        return {"session": Session()}

    error = failure(bad.remote())
    assert isinstance(error, zf.SerializationError)
    assert all(part in str(error) for part in ("bad", "session", "state", "connections", "[1]"))


def test_a_function_that_captures_what_cannot_be_pickled_is_an_error_at_the_call() -> None:
    lock = threading.Lock()

    @zf.remote
    def captures() -> Any:
        return lock

    with pytest.raises(zf.SerializationError, match="lock"):
        captures.remote()


# --- time and cancellation ----------------------------------------------------------------------------------------------------


@zf.remote
def five_once_there(path: Path) -> int:
    wait_for_file(path)
    return 5


def test_get_past_its_timeout_raises_and_the_task_goes_on(tmp_path: Path) -> None:
    ref = five_once_there.remote(tmp_path / "go")
    with pytest.raises(zf.GetTimeoutError, match=r"1 of 1 object\(s\) had no value within 0\.05 s"):
        zf.get(ref, timeout=0.05)
    with pytest.raises(TimeoutError):
        zf.get(ref, timeout=0)
    dependent = five_once_there.remote(ref)
    eventually(lambda: zf.explain(ref).state == "running", "it runs")
    for waited, text in (
        ([ref], r"\(five_once_there\) is running for \d+(\.\d)? m?s: runs on worker \d+$"),
        ([dependent, ref], r"\(five_once_there\) is waiting \(submitted \d+(\.\d)? m?s ago\): waits for 1 of its arguments"),
    ):
        with patient_queries(), pytest.raises(zf.GetTimeoutError, match=rf"; their tasks go on\. {brief(waited[0].binary())} {text}"):
            zf.get(waited, timeout=0.1)
    zf.cancel(dependent)
    (tmp_path / "go").touch()
    assert zf.get(ref, timeout=PATIENCE) == 5


def test_a_get_asks_for_a_reason_within_its_own_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is stopped makes it no slower than that."""
    limits: list[float] = []
    monkeypatch.setattr("zfabric.runtime.client.EXPLAIN_SECONDS", 0.02)
    monkeypatch.setattr(interface.current(), "query", lambda *_, timeout: limits.append(timeout))
    ref = five_once_there.remote(tmp_path / "go")
    for seconds in (0.01, 0.05):
        with pytest.raises(zf.GetTimeoutError, match=r"their tasks go on$"):
            zf.get(ref, timeout=seconds)
    assert limits == [0.01, 0.02]
    (tmp_path / "go").touch()
    assert zf.get(ref, timeout=PATIENCE) == 5


@pytest.mark.parametrize("function", [sleeper, spinner], ids=["asleep", "in a loop"])
def test_cancel_interrupts_a_running_task_and_its_worker_lives_on(function: Any, tmp_path: Path, started: Any) -> None:
    ref = function.remote(str(tmp_path), "running")
    started("running")
    before = worker_pids()
    zf.cancel(ref)
    error = failure(ref)
    assert type(error) is zf.TaskCancelledError
    assert error.facts["pid"] in before
    assert worker_pids() >= before


def test_cancel_of_a_queued_task_means_that_it_never_starts(tmp_path: Path, started: Any) -> None:
    blockers = [sleeper.remote(str(tmp_path), f"blocker{index}") for index in range(2)]
    started("blocker0"), started("blocker1")
    queued = [sleeper.remote(str(tmp_path), f"queued{index}") for index in range(3)]
    for ref in queued:
        zf.cancel(ref)
    assert all(type(failure(ref)) is zf.TaskCancelledError for ref in queued)
    for ref in blockers:
        zf.cancel(ref)
        failure(ref)
    assert zf.get(identity.remote(1), timeout=PATIENCE) == 1
    assert not list(tmp_path.glob("queued*"))


def test_cancel_of_a_finished_task_changes_nothing() -> None:
    ref = identity.remote("done")
    assert zf.get(ref, timeout=PATIENCE) == "done"
    zf.cancel(ref)
    zf.cancel(ref, force=True)
    assert zf.get(ref) == "done"
    assert zf.get(identity.remote(ref), timeout=PATIENCE) == "done"


def test_cancel_reaches_dependents_and_children(tmp_path: Path, started: Any) -> None:
    @zf.remote
    def parent() -> Any:
        return zf.get(sleeper.remote(str(tmp_path), "child"))

    ref = parent.remote()
    dependent = identity.remote(ref)
    started("child")
    zf.cancel(ref)
    for error in (failure(ref), failure(dependent)):  # The parent's own, or the child's if its `get` has raised that before the interrupt.
        assert isinstance(error, zf.TaskCancelledError)
        assert type(error) is zf.TaskCancelledError or str(error) == "sleeper was cancelled", repr(error)
    eventually(lambda: all(row["state"] == "idle" for row in worker_rows()), "the child has been stopped as well")


def test_cancel_without_recursive_leaves_children_alone(tmp_path: Path, started: Any) -> None:
    @zf.remote
    def child() -> str:
        (tmp_path / "child").touch()
        wait_for_file(tmp_path / "go")
        return "alive"

    @zf.remote
    def parent() -> Any:
        ref = child.remote()
        time.sleep(1000)
        return ref

    ref = parent.remote()
    started("child")
    zf.cancel(ref, recursive=False)
    assert type(failure(ref)) is zf.TaskCancelledError
    assert any(row["state"] == "busy" and row["task"].endswith("child") for row in worker_rows())
    (tmp_path / "go").touch()
    eventually(lambda: all(row["state"] == "idle" for row in worker_rows()), "the child has ended")


def test_a_task_that_swallows_its_interrupt_is_killed_by_force(tmp_path: Path, started: Any) -> None:
    @zf.remote
    def stubborn() -> None:
        while True:
            try:
                (tmp_path / "running").touch()
                time.sleep(1000)
            except BaseException:  # its interrupt
                (tmp_path / "swallowed").touch()

    ref = stubborn.remote()
    started("running")
    zf.cancel(ref)
    started("swallowed")
    with pytest.raises(zf.GetTimeoutError):
        zf.get(ref, timeout=0.1)
    zf.cancel(ref, force=True)
    assert type(failure(ref)) is zf.TaskCancelledError
    assert zf.get([identity.remote(index) for index in range(100)], timeout=PATIENCE) == list(range(100))


def test_force_kills_the_task_and_not_the_tasks_behind_it(tmp_path: Path, started: Any) -> None:
    zf.get([identity.remote(index) for index in range(50)], timeout=PATIENCE)
    ref = sleeper.remote(str(tmp_path), "running")
    started("running")
    others = [identity.remote(index) for index in range(500)]
    zf.cancel(ref, force=True)
    assert zf.get(others, timeout=PATIENCE) == list(range(500))
    assert type(failure(ref)) is zf.TaskCancelledError


def test_timeout_of_a_call_ends_it_running_or_queued(tmp_path: Path, started: Any) -> None:
    running = sleeper.options(timeout=0.2).remote(str(tmp_path), "running")
    error = failure(running)
    assert type(error) is zf.TaskTimeoutError
    assert isinstance(error, TimeoutError)
    blockers = [sleeper.remote(str(tmp_path), f"blocker{index}") for index in range(2)]
    started("blocker0"), started("blocker1")
    queued = sleeper.options(timeout=0.2).remote(str(tmp_path), "queued")
    assert type(failure(queued)) is zf.TaskTimeoutError
    for ref in blockers:
        zf.cancel(ref)
        failure(ref)
    assert not (tmp_path / "queued").exists()


def test_timeout_of_a_call_does_not_touch_one_that_is_in_time() -> None:
    assert zf.get(identity.options(timeout=PATIENCE).remote(3), timeout=PATIENCE) == 3


# --- deep, wide, many -----------------------------------------------------------------------------------------------------------


def test_recursion_a_thousand_deep_and_fib_with_the_workers_there_are() -> None:
    @zf.remote
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + int(zf.get(depth.remote(n - 1)))

    @zf.remote
    def fib(n: int) -> int:
        if n < 2:
            return n
        return sum(zf.get([fib.remote(n - 1), fib.remote(n - 2)]))

    assert zf.get(depth.remote(1000), timeout=PATIENCE) == 1000
    assert zf.get(fib.remote(18), timeout=PATIENCE) == 2584
    assert len(worker_rows()) <= 8


LAYERS = 30
"""Of a thousand tasks each."""


def test_tens_of_thousands_of_tasks_that_each_wait_for_two_others() -> None:
    @zf.remote
    def add(one: int, other: int) -> int:
        return one + other

    @zf.remote
    def add_refs(refs: list[Any]) -> int:
        return sum(zf.get(refs))

    layer = [identity.remote(1) for _ in range(1000)]
    for _ in range(LAYERS):
        layer = [add.remote(layer[index - 1], layer[index]) for index in range(1000)]
    assert zf.get(layer, timeout=PATIENCE) == [2**LAYERS] * 1000

    leaves = [identity.remote(index) for index in range(2_001)]
    waiting = [add_refs.remote([leaves[index], leaves[index + 1]]) for index in range(2_000)]
    assert zf.get(waiting, timeout=PATIENCE) == [2 * index + 1 for index in range(2_000)]
    assert len(worker_rows()) <= 8


# --- wrong at the call ------------------------------------------------------------------------------------------------------------


def test_wrong_options_are_refused_at_the_call_with_advice() -> None:
    with pytest.raises(zf.OptionError, match="num_cpus"):
        zf.remote(num_cpu=2)
    with pytest.raises(zf.OptionError, match="num_cpus"):
        identity.options(num_cpus=-1)
    with pytest.raises(zf.OptionError, match="resources"):
        zf.remote(resources={"disk": -1})(len)
    with pytest.raises(zf.OptionError, match="num_returns"):
        identity.options(num_returns=-1)
    with pytest.raises(zf.OptionError, match="max_retries"):
        identity.options(max_retries="many")
    with pytest.raises(TypeError, match=r"identity\.remote"):
        identity(1)
    with pytest.raises(TypeError, match=r"identity\.remote\(\).*argument"):
        identity.remote(1, 2)


NO_TEXT = "caf\udce9"
"""How Python reads a file name, or a variable, that is not UTF-8."""


@zf.remote
class Idle:
    def ping(self) -> str:
        return "pong"


@pytest.mark.parametrize(
    "call",
    [
        lambda: zf.put(1, durable="yes"),  # type: ignore[arg-type]
        lambda: zf.put(1, durable=np.bool_(True)),  # type: ignore[arg-type]
        lambda: zf.cancel(identity.remote(1), force="yes"),  # type: ignore[arg-type]
        lambda: zf.cancel(identity.remote(1), recursive=None),  # type: ignore[arg-type]
        lambda: zf.wait([identity.remote(1)], fetch_local="yes"),  # type: ignore[arg-type]
        lambda: zf.kill(Idle.remote(), no_restart="yes"),
        lambda: identity.options(timeout=10**30),
        lambda: identity.options(name=NO_TEXT),
        lambda: identity.options(resources={NO_TEXT: 1}),
        lambda: identity.options(runtime_env={"env_vars": {"NAME": NO_TEXT}}),
        lambda: Idle.options(name=NO_TEXT),
        lambda: Idle.options(namespace=NO_TEXT, name="idle"),
        lambda: Idle.remote().ping.options(name=NO_TEXT),
        lambda: zf.get_actor(NO_TEXT),
        lambda: zf.get_actor("idle", NO_TEXT),
        lambda: zf.explain(NO_TEXT),
        lambda: zf.explain("z" * 32),
    ],
)
def test_an_unsendable_argument_is_refused_at_the_call(call: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert not isinstance(caught.value, UnicodeError)
    assert zf.get(identity.remote(1), timeout=PATIENCE) == 1


def test_a_function_whose_name_is_no_text_runs(tmp_path: Path) -> None:
    def function() -> str:
        return "here"

    function.__qualname__ = NO_TEXT
    assert zf.get(zf.remote(function).remote(), timeout=PATIENCE) == "here"
    directory = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(directory)
    with open(directory + b"/program.py", "w") as file:
        file.write("import zfabric as zf\nprint(zf.get(zf.remote(max).remote(1, 2)))\n")
    ran = subprocess.run([sys.executable, b"program.py"], cwd=directory, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.returncode, ran.stdout) == (0, "2\n"), ran.stderr


def test_numbers_of_numpy_are_numbers_of_seconds() -> None:
    for kind in (np.int64, np.float32):
        assert zf.get(identity.options(timeout=kind(60)).remote(1), timeout=kind(60)) == 1
        ref = identity.remote(1)
        assert zf.wait([ref], timeout=kind(60)) == ([ref], [])


def test_num_returns_that_does_not_fit_what_was_returned_is_an_error_of_the_task() -> None:
    @zf.remote(num_returns=2)
    def three() -> Any:
        return 1, 2, 3

    for ref in three.remote():
        error = failure(ref)
        assert isinstance(error, ValueError)
        assert "num_returns=2" in str(error)
        assert "3 values" in str(error)


def test_get_of_something_other_than_a_ref_names_the_item() -> None:
    with pytest.raises(TypeError, match="ObjectRef"):
        zf.get(5)
    with pytest.raises(TypeError, match=r"\[1\].*ObjectRef"):
        zf.get([identity.remote(1), 5])
    with pytest.raises(TypeError, match=r"zf.wait\(\[ref\]\)"):
        zf.wait(identity.remote(1))


def test_nested_init_is_refused_in_the_driver_and_in_tasks() -> None:
    with pytest.raises(zf.AlreadyInitializedError, match="ignore_reinit_error"):
        zf.init()
    assert zf.get(identity.remote(1), timeout=PATIENCE) == 1

    @zf.remote
    def nested() -> str:
        try:
            zf.init()
        except zf.AlreadyInitializedError as error:
            return str(error)
        return ""

    assert "ignore_reinit_error" in zf.get(nested.remote(), timeout=PATIENCE)


# --- threads, loops, forks, signals -----------------------------------------------------------------------------------------------


def test_many_threads_submit_and_get_at_once() -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for turn in range(10):
            wanted = [(seed, turn, index) for index in range(40)]
            if zf.get([identity.remote(each) for each in wanted], timeout=PATIENCE) != wanted:
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_a_task_may_submit_and_get_from_threads_of_its_own() -> None:
    @zf.remote
    def threaded() -> list[int]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda index: int(zf.get(identity.remote(index))), range(40)))

    assert zf.get(threaded.remote(), timeout=PATIENCE) == list(range(40))


def test_a_thousand_refs_awaited_and_an_error_among_them() -> None:
    async def main() -> tuple[list[int], BaseException]:
        values = await asyncio.gather(*[identity.remote(index) for index in range(1000)])
        try:
            await refuse.remote(9)
        except Refusal as error:
            return values, error
        raise AssertionError("no error came")

    values, error = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert values == list(range(1000))
    assert isinstance(error, Refusal)


def test_a_forked_child_of_the_driver_gets_a_clear_error_and_the_driver_goes_on() -> None:
    pending = [identity.remote(index) for index in range(100)]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        text = "nothing was raised"
        try:
            zf.get(pending[0], timeout=1)
        except zf.NotInitializedError as error:
            text = str(error)
        except BaseException as error:  # the parent is shown whatever it was
            text = repr(error)
        finally:
            os.write(writing, text.encode())
            pending.clear()
            os._exit(0)
    os.close(writing)
    _, status = eventually(lambda: (ended := os.waitpid(child, os.WNOHANG))[0] and ended, "the child has ended")
    assert os.waitstatus_to_exitcode(status) == 0
    with open(reading) as output:
        assert "forked" in output.read()
    assert zf.get(pending, timeout=PATIENCE) == list(range(100))


def test_user_code_may_fork_and_start_processes() -> None:
    @zf.remote
    def forks() -> tuple[bytes, list[int], int]:
        output = subprocess.run(["echo", "hello"], capture_output=True, check=True).stdout
        with multiprocessing.get_context("fork").Pool(2) as pool:
            values = pool.map(abs, [-1, -2, 3])
        child = os.fork()
        if child == 0:
            os._exit(3)
        return output, values, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert zf.get(forks.remote(), timeout=PATIENCE) == (b"hello\n", [1, 2, 3], 3)
    assert zf.get(identity.remote(1), timeout=PATIENCE) == 1


def test_ctrl_c_in_get_raises_and_loses_nothing(tmp_path: Path) -> None:
    ref = five_once_there.remote(tmp_path / "go")
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # Wherever a busy machine has it arrive.
        timer.start()
        zf.get(ref, timeout=PATIENCE)
    timer.join()
    (tmp_path / "go").touch()
    assert zf.get(ref, timeout=PATIENCE) == 5


def test_a_thread_that_begins_to_wait_takes_over_receiving(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = interface.current()
    receives, woken = [True], []

    class Leaving:
        """A lock of one who leaves in the moment in which somebody looks whether it is there."""

        def locked(self) -> bool:
            if not receives:
                return False
            receives.pop()
            client.connection._hand_over()
            return True

        def acquire(self, *_: Any, **__: Any) -> bool:
            return False

    monkeypatch.setattr(client.connection, "_pump_lock", Leaving())
    monkeypatch.setattr(client.connection, "_wake", woken.append)
    client.connection._follow(lambda: False, 0.0)
    monkeypatch.undo()
    assert len(woken) == 1, "else it would sleep on, and nobody would receive"


def test_fifty_ctrl_c_in_quick_succession_lose_nothing() -> None:
    """Each raised somewhere in the fabric, and none in what this test does besides."""
    ready = [False]
    interrupted = 0
    deadline = time.monotonic() + PATIENCE

    def pressed(*_: Any) -> None:
        if ready[0]:
            ready[0] = False
            raise KeyboardInterrupt

    def fire() -> None:
        while interrupted < 50 and time.monotonic() < deadline:  # On a busy machine several may arrive as one.
            time.sleep(0.004)  # they are to arrive at any line
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, pressed)
    thread = threading.Thread(target=fire)
    thread.start()
    held: list[tuple[int, Any]] = []
    number = 0
    try:
        while thread.is_alive():
            try:
                ready[0] = True
                number += 1
                ref = identity.remote(number)
                held.append((number, ref))
                assert zf.get(ref, timeout=PATIENCE) == held[-1][0]
                ready[0] = False
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        ready[0] = False
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert interrupted >= 50
    numbers = [number for number, _ in held]
    assert zf.get([ref for _, ref in held], timeout=PATIENCE) == numbers


def _chained(array: Any) -> None:
    try:
        array[0] = 1
    except ValueError as error:
        raise RuntimeError("pandas says something else") from error


@pytest.mark.usefixtures("shared")
def test_writing_to_what_is_read_only_raises_an_error_with_advice() -> None:
    def adds(array: Any) -> None:
        array += 1

    writes: list[tuple[Callable[[Any], Any], type[Exception]]] = [
        (adds, ValueError),
        (lambda array: array.__setitem__(0, 1), ValueError),
        (lambda array: array.sort(), ValueError),
        (lambda array: np.random.default_rng().shuffle(array), ValueError),
        (lambda array: np.place(array, array > 3, 0), ValueError),
        (lambda array: array.flat.__setitem__(0, 1), ValueError),
        (lambda array: array.setflags(write=True), ValueError),
        (lambda array: array.resize(3), ValueError),
        (lambda array: memoryview(array).__setitem__(0, 1.0), TypeError),
        (lambda array: pd.DataFrame({"a": array}, copy=False).iloc.__setitem__((0, 0), 1.0), ValueError),
        (lambda array: pd.Series(array, copy=False).mask(array > 1, 0.0, inplace=True), ValueError),
        (_chained, RuntimeError),
    ]
    for write, kind in writes:
        error = failure(zf.remote(write).remote(np.arange(10.0)[::-1].copy()))
        assert isinstance(error, kind), error
        assert "take x = x.copy()" in "".join(error.__notes__[:1])
    plain = failure(zf.remote(lambda: [].remove(1)).remote())
    assert "x.copy()" not in "".join(plain.__notes__)


@pytest.mark.usefixtures("shared")
def test_arguments_arrive_as_writable_copies_where_that_is_asked_for() -> None:
    def write(*args: Any, **kwargs: Any) -> float:
        total = 0.0
        for each in (*args, *kwargs.values()):
            for array in each if isinstance(each, list) else [each]:
                if isinstance(array, pd.DataFrame):
                    array.iloc[0, 0] = 7.0
                    total += array.iloc[0, 0]
                else:
                    array[0] = 7.0
                    total += array[0]
        return total

    small, large = np.zeros(10), np.zeros(200_000)
    ref, frame = zf.put(large), pd.DataFrame({"a": np.zeros(10)})

    @zf.remote(copy=True)
    class Writer:
        def __init__(self, array: Any) -> None:
            array[0] = 7.0

        def write(self, *args: Any, **kwargs: Any) -> float:
            return write(*args, **kwargs)

        async def waits(self, array: Any) -> float:
            return write(array)

    @zf.remote(max_restarts=1, checkpoint_every=100)
    class Logged:
        def __init__(self) -> None:
            self.total = 0.0

        @zf.method(copy=True)
        def write(self, array: Any) -> float:
            self.total += write(array)
            return self.total

        def reads(self, array: Any) -> float:
            return write(array)

    task, writer, logged = zf.remote(copy=True)(write), Writer.remote(ref), Logged.remote()
    assert zf.get(task.remote(small, ref, [small, large], frame, more=ref), timeout=PATIENCE) == 42.0
    assert zf.get(zf.remote(write).options(copy=True).remote(ref), timeout=PATIENCE) == 7.0
    assert zf.get(task.map([small, large]), timeout=PATIENCE) == [7.0, 7.0]
    assert zf.get([writer.write.remote(small, ref, more=[large]), writer.waits.remote(ref)], timeout=PATIENCE) == [21.0, 7.0]
    assert zf.get([logged.write.remote(ref), logged.write.remote(small)], timeout=PATIENCE) == [7.0, 14.0]
    zf.kill(logged, no_restart=False)
    assert zf.get(logged.write.remote(small), timeout=PATIENCE) == 21.0, "the calls that run again get copies, too"
    assert zf.get(logged.reads.options(copy=True).remote(ref), timeout=PATIENCE) == 7.0
    assert not zf.get(ref).any(), "what is in the store is unchanged"
    for ref_of in (task.options(copy=False).remote(small), writer.write.options(copy=False).remote(small), logged.reads.remote(small)):
        assert isinstance(failure(ref_of), ValueError)
    with pytest.raises(zf.OptionError, match="copy is True or False"):
        zf.remote(copy=1)(write)
