"""Ctrl-C at every line of the fabric's code in a driver: values of its refs arrive, and no call of an actor runs twice.

And where handlers of signals run: at once while the program waits, at the end of whatever else the fabric does, and nowhere else.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually

import zfabric as zf
from zfabric.runtime import interface

PACKAGE = str(Path(zf.__file__).parent)
FENCED = tuple(f"{PACKAGE}/{part}/" for part in ("runtime", "machines", "protocol"))
REPEAT = 0.2
"""What a frame was lost in the middle of being taken in is repeated by its sender after so many seconds."""


shared = one_cluster(config={"link_repeat": REPEAT})


@zf.remote
def twice(number: int) -> int:
    return 2 * number


@zf.remote
class Notes:
    def __init__(self) -> None:
        self.numbers: list[int] = []

    def add(self, number: int) -> int:
        self.numbers.append(number)
        return 2 * number

    def all(self) -> list[int]:
        return self.numbers


class CtrlC:
    """Sends SIGINT at one line of the fabric: the one that this thread comes to after so many others."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.client: Any = interface.current()
        self.where = ""

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            self.left -= 1
            if not self.left:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self._line


def interrupted_everywhere(act: Callable[[int, list[tuple[int, Any]]], None], every: int, rest: Callable[[], Any] | None) -> set[int]:
    """Do it again and again, each time interrupted a little later; the numbers whose values have come.

    Without a ``rest`` in between, what puts right what was interrupted is interrupted as well.
    """
    arrived: set[int] = set()
    for number in range(1, 10_000):
        refs: list[tuple[int, Any]] = []
        ctrl_c = CtrlC(number * every)
        before = sys.gettrace()
        sys.settrace(ctrl_c)
        try:
            act(number, refs)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        for each, ref in refs:
            assert zf.get(ref, timeout=PATIENCE) == 2 * each, ctrl_c.where
            arrived.add(each)
        if not ctrl_c.where:
            return arrived
        if rest is not None:
            zf.get(rest(), timeout=PATIENCE)
    raise AssertionError("it takes ever more lines")


def one_by_one(submit: Callable[[int], Any]) -> Callable[[int, list[tuple[int, Any]]], None]:
    def act(number: int, refs: list[tuple[int, Any]]) -> None:
        refs.append((number, submit(number)))
        zf.get(refs[-1][1], timeout=PATIENCE)

    return act


def several(submit: Callable[[int], Any]) -> Callable[[int, list[tuple[int, Any]]], None]:
    def act(number: int, refs: list[tuple[int, Any]]) -> None:
        for index in range(5):
            refs.append((number * 10 + index, submit(number * 10 + index)))
        zf.get([ref for _, ref in refs], timeout=PATIENCE)

    return act


WAYS = [
    pytest.param(one_by_one, 1, True, id="one by one"),
    pytest.param(several, 3, True, id="several"),
    pytest.param(one_by_one, 7, False, id="again and again"),
]


@pytest.mark.parametrize(("how", "every", "rests"), WAYS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tasks(how: Any, every: int, rests: bool) -> None:
    zf.get([twice.remote(number) for number in range(10)])
    for number in range(10):
        zf.get(twice.remote(number))
    arrived = interrupted_everywhere(how(twice.remote), every, (lambda: twice.remote(0)) if rests else None)
    assert len(arrived) > 100 or not rests
    client: Any = interface.current()
    assert client.connection.wait_until(lambda: client.machine.unfinished == 0, time.monotonic() + PATIENCE)


@pytest.mark.parametrize(("how", "every", "rests"), WAYS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_calls_of_an_actor(how: Any, every: int, rests: bool) -> None:
    notes = Notes.remote()
    zf.get(notes.all.remote())
    arrived = interrupted_everywhere(how(notes.add.remote), every, notes.all.remote if rests else None)
    assert len(arrived) > 100 or not rests
    ran = Counter(zf.get(notes.all.remote(), timeout=PATIENCE))
    assert max(ran.values()) == 1
    assert arrived <= ran.keys()
    client: Any = interface.current()
    assert client.connection.wait_until(lambda: client.machine.unfinished == 0, time.monotonic() + PATIENCE)


# --- handlers of signals ------------------------------------------------------------------------------------------------------------


class Alarm(BaseException):
    """What a program's handler raises."""


@zf.remote
def first_of(array: Any) -> int:
    return int(array[0])


@zf.remote
def when(path: Path) -> int:
    while not path.exists():
        pass
    return 5


@pytest.fixture
def raising(request: pytest.FixtureRequest) -> Iterator[int]:
    """A signal that a handler of the program's raises ``Alarm`` at."""

    def raise_alarm(*_: Any) -> None:
        raise Alarm

    number = request.param
    before = signal.signal(number, raise_alarm)
    yield number
    signal.signal(number, before)


def storm(number: int, times: int, act: Callable[[], None], error: type[BaseException]) -> int:
    """Do it again and again while signals arrive, each some lines later than the one before. How many were raised."""
    raised = 0
    client: Any = interface.current()
    for after in range(1, times + 1):
        left = after

        def line(frame: Any, event: str, _: Any) -> Any:
            nonlocal left
            # Between the end of a call and the ref that is made of what it returns there is nobody yet who would release the value.
            making_a_ref = frame.f_code.co_name in ("guarded", "__init__", "submit", "call") and not client.signals.closed
            if event != "line" or making_a_ref:
                return line
            left -= 1
            if not left:
                signal.raise_signal(number)
            return line

        def calls(frame: Any, event: str, _: Any) -> Any:
            return line if frame.f_code.co_filename.startswith(FENCED) else None

        before = sys.gettrace()
        sys.settrace(calls)
        try:
            act()
        except error:
            raised += 1
        finally:
            sys.settrace(before)
    return raised


def stored() -> tuple[int, int]:
    """Objects in the store, and those of them that somebody reads."""
    client: Any = interface.current()
    with client.connection.lock:
        client.connection.flush()  # What finalizers have dropped leaves ahead of the question.
    store = client.query("status")["store"]
    return store["objects"], store["objects_pinned"]


@pytest.mark.parametrize("raising", [signal.SIGINT, signal.SIGALRM], indirect=True)
def test_arrays_in_a_storm_of_signals_are_put_and_read_and_leave_nothing(raising: int) -> None:
    def act() -> None:
        ref = zf.put(np.full(20_000, 7))
        array = zf.get(ref, timeout=PATIENCE)
        assert array[0] == 7
        assert zf.get(first_of.remote(ref), timeout=PATIENCE) == 7

    assert storm(raising, 400, act, Alarm) > 200
    act()
    gc.collect()  # Tracebacks of what was raised refer to frames, and those to arrays.
    eventually(lambda: stored() == (0, 0), "nothing is in the store")


def test_handlers_of_the_program_are_in_force_outside_of_the_fabric(tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ref = when.remote(tmp_path / "go")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    seen: list[Any] = []

    def mine(number: int, frame: Any) -> None:
        seen.append(frame.f_code.co_filename)
        (tmp_path / "go").touch()

    signal.signal(signal.SIGINT, mine)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    try:
        timer.start()
        assert zf.get(ref, timeout=PATIENCE) == 5, "a handler that does not raise lets what waits go on"
        assert signal.getsignal(signal.SIGINT) is mine
        assert len(seen) == 1
    finally:
        timer.join()
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_program_may_ignore_ctrl_c_and_accept_it_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        for how in (signal.SIG_IGN, signal.SIG_DFL, before):
            zf.get(zf.put(1))
            signal.signal(signal.SIGINT, how)
            assert zf.get(twice.remote(3)) == 6
            assert signal.getsignal(signal.SIGINT) is how
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_is_handled_at_the_end_of_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = interface.current()
    whole: list[str] = []
    query = client.machine.queries.ask

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        query(*arguments)
        whole.append("asked")

    monkeypatch.setattr(client.machine.queries, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.query("nothing")
    assert whole == ["asked"]


@pytest.mark.parametrize("raising", [signal.SIGTERM], indirect=True)
@pytest.mark.parametrize("waits", [False, True], ids=["at its end", "where it waits"])
def test_two_signals_that_arrive_in_one_call_are_both_handled(raising: int, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = interface.current()
    query = client.machine.queries.ask

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(raising)
        if waits:
            query(*arguments)
        else:
            raise ValueError("the call ends before it waits")

    monkeypatch.setattr(client.machine.queries, "ask", interrupted)
    with pytest.raises(Alarm) as caught:
        client.query("nothing")
    assert isinstance(caught.value.__context__, KeyboardInterrupt)
    assert zf.get(twice.remote(4)) == 8
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_may_wait_where_the_program_waits_already(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = interface.current()
    poll, found = client.connection.transport.poll, []

    def polled(timeout: float) -> Any:
        if not found:
            found.append(0)
            signal.raise_signal(signal.SIGINT)
        return poll(timeout)

    monkeypatch.setattr(client.connection.transport, "poll", polled)
    signal.signal(signal.SIGINT, lambda number, frame: found.append(zf.get(twice.remote(3), timeout=PATIENCE)))
    try:
        assert zf.get(twice.remote(2), timeout=PATIENCE) == 4
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert found == [0, 6]


@pytest.mark.parametrize("waits", [True, False], ids=["where it waits", "before it waits"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
@pytest.mark.parametrize("second", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler])
def test_a_handler_that_installs_another_is_replaced_by_it(number: int, second: Any, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first Ctrl-C ends the program gently, and the second one kills it."""
    client: Any = interface.current()
    where = client.connection.transport if waits else client.machine.queries
    name = "poll" if waits else "ask"
    interrupted, first = getattr(where, name), []

    def arrive(*arguments: Any) -> Any:
        if not first and in_main_thread():
            signal.raise_signal(number)
        return interrupted(*arguments)

    def gently(*_: Any) -> None:
        first.append(number)
        signal.signal(number, second)

    monkeypatch.setattr(where, name, arrive)
    before = signal.signal(number, gently)
    try:
        eventually(lambda: client.query("status") and first, "the signal: some answers are received by another thread")
        assert first == [number]
        assert signal.getsignal(number) is second
        assert zf.get(twice.remote(3)) == 6
        assert signal.getsignal(number) is second
    finally:
        signal.signal(number, before)


def test_a_handler_that_another_installed_is_deferred_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = interface.current()
    poll, step, order = client.connection.transport.poll, client.machine.step, []

    def first(*_: Any) -> None:
        order.append("first")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def polled(timeout: float) -> Any:
        if not order and in_main_thread():
            signal.raise_signal(signal.SIGINT)
        return poll(timeout)

    def stepped(*arguments: Any) -> None:
        here = order == ["first"] and in_main_thread()
        if here:
            order.append("second")
            signal.raise_signal(signal.SIGINT)
        step(*arguments)
        if here:
            order.append("whole")

    monkeypatch.setattr(client.connection.transport, "poll", polled)
    monkeypatch.setattr(client.machine, "step", stepped)
    before = signal.signal(signal.SIGINT, first)
    try:
        with pytest.raises(KeyboardInterrupt):
            eventually(lambda: not client.query("status"), "the second signal: some answers are received by another thread")
        assert order == ["first", "second", "whole"]
    finally:
        signal.signal(signal.SIGINT, before)


def in_main_thread() -> bool:
    """Whether this is the thread that handles signals; another one receives frames now and then."""
    return threading.current_thread() is threading.main_thread()


ENDS_IN_A_HANDLER = """
import os, signal, sys
import zfabric as zf

@zf.remote
def ends(pid):
    import threading
    os.kill(pid, signal.SIGTERM)
    threading.Event().wait()

def end(number, frame):
    zf.shutdown()
    print("ended", flush=True)
    {then}

signal.signal(signal.SIGTERM, end)
zf.init(address="local", num_cpus=1)
try:
    zf.get(ends.remote(os.getpid()))
except zf.NotInitializedError:
    sys.exit(5)
"""


@pytest.mark.parametrize("then", ["sys.exit(5)", "pass"])
def test_a_handler_may_end_the_cluster_where_the_program_waits(then: str) -> None:
    program = [sys.executable, "-c", ENDS_IN_A_HANDLER.format(then=then)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (5, "ended\n"), done.stderr


def test_ctrl_c_cancels_the_main_task_of_asyncio(tmp_path: Path) -> None:
    cancelled: list[bool] = []

    async def main() -> None:
        ref = when.remote(tmp_path / "go")
        asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGINT)
        try:
            await ref
        except asyncio.CancelledError:
            cancelled.append(True)
            (tmp_path / "go").touch()
            assert await ref == 5
            raise

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert cancelled == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
