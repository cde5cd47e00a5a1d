"""Interrupts: where one may be raised, and that it is raised in the end. Threads alone first, then real processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain, repeat
from typing import Any

import pytest
from conftest import one_cluster, running_cluster
from faults import PATIENCE, eventually, gone, query
from files import wait_for_file

import zfabric as zf
from zfabric.runtime.interrupts import Fence, Fences, TaskInterrupt, _raise_in


class Ward:
    """A thread that does ``body(fence)``, and what became of it."""

    def __init__(self, body: Callable[[Fence], Any]) -> None:
        self.outcome: Any = None
        self.fence: Fence | None = None
        self.begun = threading.Event()
        self.ended = threading.Event()
        self._body = body
        threading.Thread(target=self._run, daemon=True).start()
        assert self.begun.wait(PATIENCE)

    def _run(self) -> None:
        self.fence = Fence()
        self.begun.set()
        try:
            self.outcome = self._body(self.fence)
        except BaseException as error:  # the interrupt is one
            self.outcome = error
        self.ended.set()

    def interrupt(self) -> bool:
        """Ask for its end."""
        assert self.fence is not None
        return self.fence.interrupt()


def test_user_code_is_interrupted() -> None:
    ward = Ward(lambda fence: spin_until(threading.Event()))
    assert ward.interrupt()
    assert ward.ended.wait(PATIENCE)
    assert isinstance(ward.outcome, TaskInterrupt)


def spin_until(event: threading.Event) -> str:
    """Python code, in which an interrupt can be raised at any time."""
    while not event.is_set():
        pass
    return "whole"


def test_the_fabrics_code_is_not_interrupted_and_no_interrupt_is_late() -> None:
    inside, leave = threading.Event(), threading.Event()

    def body(fence: Fence) -> str:
        fence.depth += 1
        inside.set()
        spin_until(leave)
        fence.depth -= 1
        return "".join(str(number) for number in range(10_000))[:3]

    ward = Ward(body)
    assert inside.wait(PATIENCE)
    assert not ward.interrupt()
    assert ward.fence is not None
    assert ward.fence.missed
    leave.set()
    assert ward.ended.wait(PATIENCE)
    assert ward.outcome == "012"


class Entering(Fence):
    """A fence of a thread that enters the fabric between two looks at ``depth``."""

    def __init__(self) -> None:
        self.looks = [0, 1]
        super().__init__()

    @property
    def depth(self) -> int:  # type: ignore[override]
        """0 at the first look, 1 at the second."""
        return self.looks.pop(0)

    @depth.setter
    def depth(self, value: int) -> None: ...


def test_an_interrupt_for_a_thread_that_enters_the_fabric_is_withdrawn() -> None:
    waits, go_on = threading.Event(), threading.Event()
    entering: list[Fence] = []

    def body(_: Fence) -> str:
        entering.append(Entering())
        waits.set()
        go_on.wait()  # An interrupt that is not withdrawn is raised as this returns.
        entering[0].forget()
        return "whole"

    ward = Ward(body)
    assert waits.wait(PATIENCE)
    assert not entering[0].interrupt()
    assert entering[0].missed
    go_on.set()
    assert ward.ended.wait(PATIENCE)
    assert ward.outcome == "whole"
    assert not entering[0].asked


@pytest.mark.parametrize("withdrawn", [False, True])
def test_functions_of_a_thread_can_be_traced_after_an_interrupt(withdrawn: bool) -> None:
    def body(fence: Fence) -> str:
        fence.depth = 1
        if withdrawn:
            fence.asked = True
            _raise_in(fence.thread, None)
        fence.forget()
        sys.settrace(lambda *_: None)
        spin_until(leave)  # Without the exception that ``forget`` raises, Python 3.11 would not come to its first line.
        sys.settrace(None)
        return "traced"

    leave = threading.Event()
    leave.set()
    ward = Ward(body)
    assert ward.ended.wait(PATIENCE)
    assert ward.outcome == "traced"


def test_fences_count_for_the_calling_thread() -> None:
    fences = Fences()

    def catch_up(fence: Fence) -> None:
        """One was missed."""
        fence.missed = False
        raise TaskInterrupt

    def depth(more: int = 0) -> int:
        return fences.mine.depth + more

    def fail() -> None:
        raise KeyError

    depths: list[int] = []
    other = threading.Thread(target=lambda: depths.append(fences.mine.depth))
    assert fences.closed(depth, catch_up)(more=1) == 2
    with pytest.raises(KeyError):
        fences.closed(fail, catch_up)()
    assert fences.mine.depth == 0
    fences.mine.missed = True
    with pytest.raises(TaskInterrupt):
        fences.closed(fail, catch_up)()
    assert fences.mine.depth == 0
    other.start()
    other.join()
    assert depths == [0]


# --- real processes --------------------------------------------------------------------------------------------------------------------


cluster = one_cluster(autouse=False)


@zf.remote
def never() -> None:
    time.sleep(10**6)


@zf.remote
class Busy:
    """Spends its time where it must not be interrupted."""

    def put_on(self) -> None:
        while True:
            zf.put(b"x")

    def wait(self) -> Any:
        return zf.get(never.remote())  # If it were not stopped with the method, all CPUs were soon taken.

    def ping(self) -> str:
        return "pong"


def stopped(ref: Any) -> bool:
    zf.cancel(ref, recursive=True)
    with pytest.raises(zf.TaskCancelledError):
        zf.get(ref, timeout=PATIENCE)
    return True


@zf.remote
def blocks_signals() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return os.getpid()


@zf.remote
def replaces_handlers() -> int:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    return os.getpid()


@zf.remote
def sleeps(path: Any) -> None:
    path.write_text(str(os.getpid()))
    time.sleep(10**6)


@zf.remote
class Blocker:
    def block(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def blocked(self) -> bool:
        return signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def sleep(self, path: Any) -> None:
        path.touch()
        time.sleep(10**6)


@pytest.mark.parametrize("task", [blocks_signals, replaces_handlers], ids=["blocks", "replaces"])
def test_a_task_that_blocks_signals_does_not_keep_later_ones_from_being_stopped(cluster: None, tmp_path: Any, task: Any) -> None:
    pids = {zf.get(task.remote(), timeout=PATIENCE) for _ in range(3)}
    for name in ("stopped", "after them"):
        place = tmp_path / name
        place.mkdir()
        later = [sleeps.remote(place / str(number)) for number in range(2)]
        eventually(lambda place=place: len(list(place.iterdir())) == 2, "both run: no task before them holds a CPU")
        assert pids & {int(eventually(path.read_text, "it has written")) for path in place.iterdir()}, "in the same process"
        assert all(stopped(ref) for ref in later)
    assert all(zf.get(ref) is None for ref in [zf.remote(os.kill).remote(pid, 0) for pid in pids]), "none was killed for it"


def test_an_actor_that_blocks_signals_keeps_its_mask_and_its_methods_can_be_stopped(cluster: None, tmp_path: Any) -> None:
    blocker = Blocker.remote()
    zf.get(blocker.block.remote(), timeout=PATIENCE)
    assert zf.get(blocker.blocked.remote(), timeout=PATIENCE)
    endless = blocker.sleep.remote(tmp_path / "begun")
    eventually((tmp_path / "begun").exists, "it has begun")
    assert stopped(endless)
    assert zf.get(blocker.blocked.remote(), timeout=PATIENCE)


@pytest.mark.parametrize("threads", [None, 3])
@pytest.mark.parametrize("method", ["put_on", "wait"])
def test_a_method_that_is_in_the_fabric_most_of_the_time_is_stopped(cluster: None, method: str, threads: int | None) -> None:
    busy = Busy.options(max_concurrency=threads).remote()
    for _ in range(5):
        endless = getattr(busy, method).remote()
        if threads:
            assert zf.get(busy.ping.remote(), timeout=PATIENCE) == "pong"
        else:
            assert zf.wait([endless], timeout=0.05)[0] == []
        assert stopped(endless)
    assert zf.get(busy.ping.remote(), timeout=PATIENCE) == "pong"


@pytest.mark.parametrize("method", ["put_on", "wait"])
def test_a_timeout_stops_a_method_that_is_in_the_fabric_most_of_the_time(cluster: None, method: str) -> None:
    busy = Busy.options(max_concurrency=2).remote()
    with pytest.raises(zf.TaskTimeoutError):
        zf.get(getattr(busy, method).options(timeout=0.1).remote(), timeout=PATIENCE)


def test_a_task_with_a_waiting_thread_can_be_stopped(cluster: None, tmp_path: Any) -> None:
    begun = tmp_path / "begun"

    @zf.remote
    def task() -> None:
        waiting = threading.Thread(target=lambda: zf.get(never.remote()), daemon=True)
        waiting.start()
        begun.touch()
        while True:
            time.sleep(0.01)  # until it is interrupted

    ref = task.remote()
    eventually(begun.exists, "it has begun")
    assert stopped(ref)


# --- code of values -----------------------------------------------------------------------------------------------------------------


def spin(mark: Any) -> None:
    mark.touch()
    while True:
        time.sleep(0.005)


def raises(kind: type[BaseException]) -> None:
    raise kind("of a value")


class Value:
    """Its code runs when it is loaded, pickled or iterated over."""

    def __init__(self, when: str, code: Callable[..., Any], *arguments: Any) -> None:
        self.when, self.code, self.arguments = when, code, arguments

    def __reduce__(self) -> Any:
        if self.when == "dumped":
            self.code(*self.arguments)
        return (self.code, self.arguments) if self.when == "loaded" else (Value, (self.when, self.code, *self.arguments))

    def __iter__(self) -> Iterator[int]:
        self.code(*self.arguments)
        return iter((1, 2))


class Described(Exception):
    def __str__(self) -> str:
        return str(self.args[0].code(*self.args[0].arguments))


def accept(value: Any) -> int:
    return os.getpid()


def make(when: str, code: Callable[..., Any], argument: Any) -> Any:
    return Value(when, code, argument)


def fail(code: Callable[..., Any], argument: Any) -> None:
    raise Described(Value("", code, argument))


def produce(code: Callable[..., Any], argument: Any) -> Iterator[Any]:
    yield 1
    yield Value("dumped", code, argument)


@zf.remote(num_cpus=0)
class Host:
    def accept(self, value: Any) -> int:
        return accept(value)

    def make(self, when: str, code: Callable[..., Any], argument: Any) -> Any:
        return make(when, code, argument)

    def fail(self, code: Callable[..., Any], argument: Any) -> None:
        fail(code, argument)

    def produce(self, code: Callable[..., Any], argument: Any) -> Iterator[Any]:
        yield from produce(code, argument)


PLACES = ["argument", "large argument", "object", "large object", "function", "result", "items", "text", "yielded"]


def run_value_code(of: Any, place: str, code: Callable[..., Any], argument: Any, **options: Any) -> Any:
    """Have the code of a value run in this place of a task, or of a call of the actor ``of``. Return the ref that gets its outcome."""

    def called(name: str, **more: Any) -> Any:
        function = getattr(of, name) if of is not None else zf.remote(globals()[name])
        return function.options(**options, **more, **({} if of is not None else {"max_retries": 0}))

    loaded, room = Value("loaded", code, argument), bytearray(2**18)
    if place == "function":
        return zf.remote(lambda: loaded).options(**options).remote()
    if place in ("argument", "large argument"):
        return called("accept").remote(loaded if place == "argument" else [loaded, room])
    if place in ("object", "large object"):
        return called("accept").remote(zf.put(loaded if place == "object" else [loaded, room]))
    if place == "result":
        return called("make").remote("dumped", code, argument)
    if place == "items":
        return called("make", num_returns=2).remote("", code, argument)[0]
    if place == "text":
        return called("fail").remote(code, argument)
    values = iter(called("produce", num_returns="streaming").remote(code, argument))
    assert zf.get(next(values), timeout=PATIENCE) == 1
    return next(values)


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, Any]]:
    """Where code of values runs, in a cluster of these tests alone: what is to stop there and does not has no outcome."""
    with running_cluster(config={"stop_patience": 10 * PATIENCE}):
        yield {"task": None, "call": Host.remote(), "threaded": Host.options(max_concurrency=2).remote()}


@pytest.mark.parametrize("place", PLACES[:-1])  # Who reads a stream has no ref to its task.
@pytest.mark.parametrize("kind", ["task", "call", "threaded"])
def test_code_of_values_is_cancelled_as_code_of_the_task(hosts: dict[str, Any], tmp_path: Any, place: str, kind: str) -> None:
    if kind != "task" and place == "function":
        pytest.skip("a call loads no function")
    ref = run_value_code(hosts[kind], place, spin, tmp_path / "begun")
    eventually((tmp_path / "begun").exists, "it has begun")
    zf.cancel(ref)
    with pytest.raises(zf.TaskCancelledError) as cancelled:
        zf.get(ref, timeout=PATIENCE)
    assert "does not" not in str(cancelled.value), "it was given up, and goes on"


@pytest.mark.parametrize("place", ["argument", "result", "yielded"])
@pytest.mark.parametrize("kind", ["task", "call", "threaded"])
def test_a_timeout_stops_code_of_values(hosts: dict[str, Any], tmp_path: Any, place: str, kind: str) -> None:
    with pytest.raises(zf.TaskTimeoutError) as late:
        zf.get(run_value_code(hosts[kind], place, spin, tmp_path / "begun", timeout=0.3), timeout=PATIENCE)
    assert "does not" not in str(late.value), "it was given up, and goes on"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["task", "call", "threaded"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_code_of_values_raises_is_the_error_of_the_task(
    hosts: dict[str, Any], place: str, kind: str, error: type[BaseException]
) -> None:
    if kind != "task" and place == "function":
        pytest.skip("a call loads no function")
    if error is SystemExit and place == "items" and kind != "task":
        pytest.skip("sys.exit() in a call ends its actor")
    of = hosts[kind]
    before = zf.get(of.accept.remote(0), timeout=PATIENCE) if of is not None else 0
    with pytest.raises(zf.TaskError, match=r"of a value|text"):
        zf.get(run_value_code(of, place, raises, error), timeout=PATIENCE)
    assert of is None or zf.get(of.accept.remote(0), timeout=PATIENCE) == before, "its process lives"


SLOW = """
import pathlib, time
place = pathlib.Path(__file__).parent
(place / "begun").touch()
while not (place / "goes on").exists():
    time.sleep(0.01)
(place / "imported").touch()
"""


def import_from(directory: str, name: str) -> Any:
    sys.path.insert(0, directory)
    return import_module(name)


def test_a_module_that_a_function_needs_is_imported_whole_before_its_task_is_stopped(hosts: Any, tmp_path: Any) -> None:
    """One of C code that is interrupted in its import cannot be imported again."""
    (tmp_path / "slow_module.py").write_text(SLOW)
    ref = zf.remote(accept).remote(Value("loaded", import_from, str(tmp_path), "slow_module"))
    eventually((tmp_path / "begun").exists, "the import has begun")
    zf.cancel(ref)
    assert zf.wait([ref], timeout=0.2)[0] == []
    (tmp_path / "goes on").touch()
    with pytest.raises(zf.TaskCancelledError):
        zf.get(ref, timeout=PATIENCE)
    assert (tmp_path / "imported").exists()


# --- what does not stop -------------------------------------------------------------------------------------------------------------


@zf.remote
def never_returns_to_python(path: Any) -> None:
    """One call of C code, which holds the interpreter, too. Once the file has the pid, it has begun."""
    file, pid = os.open(path, os.O_WRONLY | os.O_CREAT), str(os.getpid()).encode()
    sum(chain(map(os.write, [file], [pid]), map(ctypes.PyDLL(None).sleep, repeat(10))))


@zf.remote
def one() -> int:
    return 1


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_a_task_in_c_code_has_an_outcome_and_holds_its_cpu_until_killed(how: str, tmp_path: Any) -> None:
    path = tmp_path / "pid"
    with running_cluster(num_cpus=1):
        assert zf.get(one.remote(), timeout=PATIENCE) == 1, "a worker has started, and loaded this module"
        if how == "cancelled":
            ref = never_returns_to_python.remote(path)
            eventually(lambda: path.exists() and path.read_text(), "it runs")
            zf.cancel(ref)
            expected: type[Exception] = zf.TaskCancelledError
        else:
            ref = never_returns_to_python.options(timeout=3.0).remote(path)  # A busy machine needs some time to begin it.
            expected = zf.TaskTimeoutError
        behind = one.remote()
        with pytest.raises(expected, match="goes on in worker"):
            zf.get(ref, timeout=PATIENCE)
        pid = int(path.read_text())
        assert not gone(pid)
        assert zf.available_resources().get("CPU", 0) == 0
        assert f"goes on in worker {pid}" in str(zf.explain(ref))
        assert zf.wait([behind], timeout=0)[0] == []
        zf.cancel(ref, force=True)
        assert zf.get(behind, timeout=PATIENCE) == 1
        assert gone(pid)
        with pytest.raises(expected):
            zf.get(ref, timeout=PATIENCE)


def test_the_worker_of_a_task_in_c_code_is_killed_after_the_grace_period(tmp_path: Any) -> None:
    with running_cluster(num_cpus=1, config={"stop_grace_seconds": 0.2}):
        ref = never_returns_to_python.options(timeout=0.3).remote(tmp_path / "pid")
        with pytest.raises(zf.TaskTimeoutError):
            zf.get(ref, timeout=PATIENCE)
        assert zf.get(one.remote(), timeout=PATIENCE) == 1


@zf.remote
def cleans_up(path: Any) -> None:
    try:  # From the start: whoever sees the file may stop it at once.
        (path / "begun").write_text(str(os.getpid()))
        time.sleep(600.0)
    except KeyboardInterrupt:
        (path / "stopping").touch()
        wait_for_file(path / "go on")
        (path / "clean").touch()
        raise


def test_a_task_that_cleans_up_is_not_interrupted_by_further_requests(tmp_path: Any) -> None:
    """On several nodes one cancel may be several requests at once: of the task's home, and of that of its parent."""
    with running_cluster(num_cpus=1, config={"interrupt_every": 30.0}):
        ref, begun = cleans_up.remote(tmp_path), tmp_path / "begun"
        pid = int(eventually(lambda: begun.exists() and begun.read_text(), "it runs"))
        zf.cancel(ref)
        eventually((tmp_path / "stopping").exists, "it is interrupted")
        zf.cancel(ref)
        query("stacks", pid, 0.0)  # Answered by its process, behind the second request.
        (tmp_path / "go on").touch()
        eventually((tmp_path / "clean").exists, "it cleans up")


@zf.remote
def touches(path: Any, waits: bool) -> None:
    path.touch()
    if waits:
        time.sleep(600.0)


def test_a_task_cancelled_behind_one_that_runs_never_starts(tmp_path: Any) -> None:
    """It is in the socket of a process whose only thread for tasks is busy: the request to stop it is read first."""
    with running_cluster(num_cpus=1, config={"take_back_after": 60.0, "prefetch_seconds": 60.0}):
        # The next ones are expected to be short, also on a busy machine.
        zf.get([touches.remote(tmp_path / "short", False) for _ in range(50)], timeout=PATIENCE)
        running = touches.remote(tmp_path / "running", True)
        eventually((tmp_path / "running").exists, "it runs")
        queued = touches.remote(tmp_path / "queued", False)
        eventually(lambda: zf.explain(queued).state == "assigned", "it is behind the running one")
        zf.cancel(queued)
        with pytest.raises(zf.TaskCancelledError, match=r"touches was cancelled$"):
            zf.get(queued, timeout=PATIENCE)
        zf.cancel(running)
        zf.get(touches.remote(tmp_path / "last", False), timeout=PATIENCE)
        assert not (tmp_path / "queued").exists()


@zf.remote
def runs_until(path: Any, fifo: Any = None) -> None:
    """Longer than what is prefetched. With ``fifo`` no thread of its process runs until somebody writes there."""
    if fifo is not None:
        os.close(ctypes.PyDLL(None).open(os.fsencode(fifo), os.O_RDONLY))
    time.sleep(0.006)
    while not path.exists():
        time.sleep(0.006)


def test_nothing_waits_behind_a_long_task_while_another_worker_is_idle(tmp_path: Any) -> None:
    """Each worker has a task ahead; one of them runs for as long as the test has it."""
    with running_cluster(num_cpus=2, config={"take_back_after": 60.0}):
        zf.get([runs_until.remote(tmp_path) for _ in range(10)], timeout=PATIENCE)
        both = [runs_until.remote(tmp_path / name) for name in ("long", "short")]
        eventually(lambda: [zf.explain(ref).state for ref in both] == ["running"] * 2, "both run")
        ahead = [runs_until.remote(tmp_path) for _ in range(2)]
        eventually(lambda: [zf.explain(ref).state for ref in ahead] == ["assigned"] * 2, "there is one behind either")
        (tmp_path / "short").touch()
        zf.get([both[1], *ahead], timeout=PATIENCE)
        assert zf.explain(both[0]).state == "running"
        (tmp_path / "long").touch()
        zf.get(both[0], timeout=PATIENCE)


def test_an_outcome_leaves_before_the_task_that_was_sent_ahead_begins(tmp_path: Any) -> None:
    os.mkfifo(tmp_path / "fifo")
    with running_cluster(num_cpus=1, config={"take_back_after": 60.0}):
        zf.get([runs_until.remote(tmp_path) for _ in range(10)], timeout=PATIENCE)
        first, second = runs_until.map([tmp_path / "first", tmp_path], [None, tmp_path / "fifo"])
        eventually(lambda: zf.explain(first).state == "running", "it runs")
        eventually(lambda: zf.explain(second).state == "assigned", "the second one is behind it")
        (tmp_path / "first").touch()
        zf.get(first, timeout=PATIENCE)
        (tmp_path / "fifo").open("wb").close()
        zf.get(second, timeout=PATIENCE)


@zf.remote
def may_hold_the_interpreter(number: int, path: Any) -> int:
    if number == 50:
        path.touch()
        sum(range(10**13))
    return number


def test_force_kills_a_task_that_holds_the_interpreter_and_earlier_tasks_have_their_values(tmp_path: Any) -> None:
    with running_cluster(num_cpus=1):
        zf.get([may_hold_the_interpreter.remote(0, tmp_path) for _ in range(500)])  # It is known to be short: many are given out at once.
        refs = [may_hold_the_interpreter.remote(number, tmp_path / "begun") for number in range(100)]
        eventually((tmp_path / "begun").exists, "it runs")
        zf.cancel(refs[50], force=True)
        with pytest.raises(zf.TaskCancelledError):
            zf.get(refs[50], timeout=PATIENCE)
        assert zf.get([*refs[:50], *refs[51:]], timeout=PATIENCE) == [*range(50), *range(51, 100)]


def test_force_kills_a_process_that_does_not_answer(tmp_path: Any) -> None:
    with running_cluster(num_cpus=1):
        ref = never_returns_to_python.remote(tmp_path / "pid")
        eventually((tmp_path / "pid").exists, "it runs")
        zf.cancel(ref, force=True)
        with pytest.raises(zf.TaskCancelledError):
            zf.get(ref, timeout=PATIENCE)
        assert zf.get(one.remote(), timeout=PATIENCE) == 1
