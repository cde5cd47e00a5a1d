"""``wait`` and ``as_completed`` for many refs: what they return, and how many refs they look at. Steps are counted, not timed."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually
from files import wait_for_file

import zfabric as zf
from zfabric.runtime import interface

MANY = 600


shared = one_cluster()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often this process has looked whether an object is here."""
    counts: Counter[str] = Counter()
    objects: Any = interface.current().machine.objects  # type: ignore[union-attr]
    for name in ("at_hand", "known", "watch"):
        original = getattr(objects, name)

        def counted(*args: Any, name: str = name, original: Any = original) -> Any:
            counts[name] += 1
            return original(*args)

        monkeypatch.setattr(objects, name, counted)
    return counts


@zf.remote
def late(number: int, path: str = "", seconds: float = 0.0) -> int:
    time.sleep(seconds)
    if path:
        wait_for_file(path)
    return number


@zf.remote
def large(number: int) -> Any:
    return np.full(50_000, number)


def test_waiting_for_one_at_a_time_looks_at_each_ref_once(looks: Counter[str]) -> None:
    left = late.map(range(MANY))
    assert len(zf.wait(left, num_returns=MANY, timeout=PATIENCE)[0]) == MANY
    looks.clear()
    taken = []
    while left:
        (ready,), left = zf.wait(left)
        taken.append(ready)
    assert zf.get(taken) == list(range(MANY))
    assert looks["at_hand"] <= 2 * MANY, looks


def test_waiting_for_all_looks_at_new_values_only(looks: Counter[str]) -> None:
    """They come a few at a time: what comes is no reason to look at all the others."""
    refs = [late.remote(number, seconds=0.001) for number in range(MANY)]
    assert zf.wait(refs, num_returns=MANY, timeout=PATIENCE) == (refs, [])
    assert looks["at_hand"] <= 6 * MANY, looks


def test_as_completed_looks_at_each_ref_once(looks: Counter[str]) -> None:
    refs = [late.remote(number, seconds=0.001) for number in range(MANY)]
    assert sorted(zf.get(ref) for ref in zf.as_completed(refs, timeout=PATIENCE)) == list(range(MANY))
    assert looks["at_hand"] + looks["watch"] <= 2 * MANY, looks


def test_values_that_are_ready_at_the_timeout_are_returned(tmp_path: Path) -> None:
    go = tmp_path / "go"
    first, *others = [late.remote(0, str(go)), *(late.remote(number) for number in range(1, 50))]
    zf.wait(others, num_returns=len(others), timeout=PATIENCE)
    for timeout in (0, 0.01):
        assert zf.wait([first, *others], num_returns=50, timeout=timeout) == (others, [first])
    assert zf.wait([first, *others], num_returns=3) == (others[:3], [first, *others[3:]])
    go.touch()
    assert zf.wait([first, *others], num_returns=50, timeout=PATIENCE) == ([first, *others], [])


def test_a_look_without_waiting_sees_what_has_arrived() -> None:
    """Programs poll: nothing else receives for them, but for a look once a second."""
    ref = late.remote(1)
    transport = interface.current().connection.transport  # type: ignore[union-attr]
    looks = 0
    while not zf.wait([ref], timeout=0)[0]:
        assert looks < 100, "frames have arrived, and are not received"
        looks += transport.poll(PATIENCE)


def test_a_ref_listed_twice_is_refused_also_among_those_left_by_wait() -> None:
    refs = late.map(range(5))
    _, left = zf.wait(refs)
    with pytest.raises(ValueError, match=r"wait\(\[...\]\)\[4\] was listed before"):
        zf.wait([*left, left[0]])
    left[1] = left[2]
    with pytest.raises(ValueError, match=r"wait\(\[...\]\)\[2\] was listed before"):
        zf.wait(left)


def test_large_values_are_fetched_by_waiting_processes() -> None:
    refs = [large.remote(number) for number in range(40)]
    assert zf.wait(refs, num_returns=40, timeout=PATIENCE) == (refs, [])
    again = [large.remote(number) for number in range(40)]
    assert sorted(int(zf.get(ref)[0]) for ref in zf.as_completed(again, timeout=PATIENCE)) == list(range(40))


def test_an_abandoned_as_completed_leaves_no_watcher(tmp_path: Path) -> None:
    go = tmp_path / "go"
    refs = [late.remote(3), late.remote(0, str(go))]  # The second CPU is the others'.
    assert zf.get(next(zf.as_completed(refs, timeout=PATIENCE))) == 3
    machine: Any = interface.current().machine  # type: ignore[union-attr]
    assert machine.objects.watchers
    del refs
    go.touch()
    eventually(lambda: not machine.objects.watchers, "what was watched has come")


@zf.remote
def waits_inside(count: int) -> list[int]:
    refs = [late.remote(number) for number in range(count)]
    left, taken = refs, []
    while left:
        (ready,), left = zf.wait(left)
        taken.append(zf.get(ready))
    return sorted(taken) + [zf.get(ref) for ref in zf.as_completed(refs)]


def test_tasks_wait_in_both_ways() -> None:
    answer = zf.get(waits_inside.remote(20), timeout=PATIENCE)
    assert (answer[:20], sorted(answer[20:])) == (list(range(20)), list(range(20)))


# --- a failure among many ---------------------------------------------------------------------------------------------------------------


@zf.remote
def fails(text: str) -> None:
    raise ValueError(text)


@zf.remote
class Barrier:
    """Lets callers go once ``parties`` of them have come: the others wait for one that fails before it comes."""

    def __init__(self, parties: int) -> None:
        self.parties = parties
        self.here = 0

    async def wait(self) -> None:
        import asyncio

        self.here += 1
        while self.here < self.parties:
            await asyncio.sleep(0.01)  # the others are calls in this event loop

    def fail(self) -> None:
        raise ValueError("an actor's")


@zf.remote(num_cpus=0)
def get_both(path: str) -> str:
    try:
        zf.get([late.options(inline=False).remote(1, path), fails.options(inline=False).remote("below")])
    except ValueError as error:
        return str(error.args[0])
    return "nothing was raised"


@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_a_failure_is_raised_although_others_never_end(tmp_path: Path, timeout: float | None) -> None:
    never = late.remote(0, str(tmp_path / "opened at the end"))
    barrier = Barrier.remote(2)
    try:
        for refs in ([fails.remote("first"), never], [never, fails.remote("first")], [barrier.wait.remote(), fails.remote("first")]):
            with pytest.raises(ValueError, match="first"):
                zf.get(refs, timeout=timeout)
        failed = fails.remote("known before")
        zf.wait([failed], timeout=PATIENCE)
        for refs in ([never, [zf.put(1), failed]], [never, failed, failed], (never, failed)):
            with pytest.raises(ValueError, match="known before"):
                zf.get(refs, timeout=timeout)
        with pytest.raises(ValueError, match="an actor's"):
            zf.get([barrier.wait.remote(), barrier.fail.remote()], timeout=timeout)
        pair = fails.options(num_returns=2).remote("two values")
        with pytest.raises(ValueError, match="two values"):
            zf.get([never, pair[1]], timeout=timeout)
    finally:
        (tmp_path / "opened at the end").touch()
    assert zf.get(never) == 0


def test_a_failure_that_has_arrived_is_raised_without_waiting(tmp_path: Path) -> None:
    never = late.remote(0, str(tmp_path / "opened at the end"))
    failed = fails.remote("now")
    zf.wait([failed], timeout=PATIENCE)
    with pytest.raises(ValueError, match="now"):
        zf.get([never, failed], timeout=0)
    (tmp_path / "opened at the end").touch()


def test_a_task_gets_a_failure_of_its_children_at_once(tmp_path: Path) -> None:
    assert zf.get(get_both.remote(str(tmp_path / "opened at the end")), timeout=PATIENCE) == "below"
    (tmp_path / "opened at the end").touch()


def test_failures_of_others_do_not_end_a_wait() -> None:
    others = [fails.remote("of nobody's concern") for _ in range(20)]
    assert zf.get([late.remote(number, seconds=0.01) for number in range(20)]) == list(range(20))
    assert [str(error.args[0]) for error in zf.get(others, return_exceptions=True)] == ["of nobody's concern"] * 20


def test_all_outcomes_at_once_values_and_exceptions(tmp_path: Path) -> None:
    refs = [late.remote(1, seconds=0.1), fails.remote("two"), [large.remote(3), fails.remote("four")]]
    first, second, (third, fourth) = zf.get(refs, return_exceptions=True)
    assert (first, third[0]) == (1, 3)
    assert isinstance(second, ValueError)
    assert isinstance(fourth, zf.TaskError)
    single = zf.get(fails.remote("alone"), return_exceptions=True)
    assert single.args == ("alone",)
    with pytest.raises(zf.GetTimeoutError):
        zf.get([late.remote(0, str(tmp_path / "opened")), fails.remote("in time")], timeout=0, return_exceptions=True)
    (tmp_path / "opened").touch()
    with pytest.raises(TypeError, match="return_exceptions is True or False"):
        zf.get(refs[:2], return_exceptions="yes")


# --- values with their refs, all at once, and how far it is -----------------------------------------------------------------------------


def test_as_completed_with_values(tmp_path: Path) -> None:
    last = late.remote(2, str(tmp_path / "opened"))
    pairs = zf.as_completed([last, one := late.remote(1)], with_values=True)
    assert next(pairs) == (one, 1)
    (tmp_path / "opened").touch()
    assert list(pairs) == [(last, 2)]
    with pytest.raises(ValueError, match="raised here"):
        list(zf.as_completed([fails.remote("raised here")], with_values=True))
    pairs = zf.as_completed([failed := fails.remote("given"), last], with_values=True, return_exceptions=True)
    found = dict(pairs)
    assert found[last] == 2
    assert isinstance(found[failed], ValueError)
    with pytest.raises(ValueError, match="add with_values=True"):
        zf.as_completed([last], return_exceptions=True)  # type: ignore[call-overload] # refused by types, too


def test_a_stream_for_each_item_of_several_iterables() -> None:
    streams = zf.remote(lambda n, m: (yield n * m)).map([2, 3], [5, 7])
    assert [list(map(zf.get, each)) for each in streams] == [[10], [21]]


def test_wait_for_all() -> None:
    refs = [late.remote(number, seconds=0.01) for number in range(5)]
    assert zf.wait(refs, num_returns="all", timeout=PATIENCE) == (refs, [])
    assert zf.wait([], num_returns="all") == ([], [])
    with pytest.raises(TypeError, match='num_returns is an int or "all"'):
        zf.wait(refs, num_returns="every")  # type: ignore[arg-type] # what people try


def test_progress_waits_and_returns_the_refs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refs = late.map(range(20))
    assert zf.get(zf.progress(refs)) == list(range(20))
    never = late.remote(0, str(tmp_path / "opened"))
    with pytest.raises(ValueError, match="at once"):
        zf.get(zf.progress([never, fails.remote("at once")]))
    with pytest.raises(zf.GetTimeoutError):
        zf.progress([never], timeout=0)
    (tmp_path / "opened").touch()
    both = [fails.remote("waited for"), never]
    assert zf.progress(iter(both), fail_fast=False) == both
    assert zf.wait(both, num_returns=2, timeout=0)[0] == both
    assert zf.progress([]) == []
    with pytest.raises(TypeError, match=r"progress\(\[\.\.\.\]\)\[0\] is an int"):
        zf.progress([1], "counting")  # type: ignore[list-item] # what people try
    with pytest.raises(TypeError, match="not an ObjectRef"):
        zf.progress([1])  # type: ignore[list-item] # what people try
    captured = capsys.readouterr()
    assert captured.out == ""
    said = "a task has failed, so that this waits no longer: 1 task has no outcome yet and goes on"
    assert captured.err == f"zfabric: {said}; progress(refs, fail_fast=False) waits for all\n"


def test_progress_in_a_log_is_a_line_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zfabric.util.progress.LOG_SECONDS", 0.01)
    written = io.StringIO()
    printed = threading.Event()

    class Log(io.StringIO):
        def write(self, text: str) -> int:
            if "1 of 3 done, 1 failed" in text:
                (tmp_path / "opened").touch()
                printed.set()
            return written.write(text)

    monkeypatch.setattr("sys.stderr", Log())
    refs = [fails.remote("at once"), *(late.remote(number, str(tmp_path / "opened")) for number in range(2))]
    zf.progress(refs, "in a log", fail_fast=False, timeout=PATIENCE)
    lines = written.getvalue().splitlines()
    assert printed.is_set()
    assert re.fullmatch(r"zfabric: in a log: 3 of 3 done, 1 failed, [\d.]+ m?s passed", lines[-1])
    assert all(line.startswith("zfabric: in a log: ") for line in lines)


def test_progress_in_a_notebook_without_widgets_is_a_text_that_replaces_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data["text/plain"])

    class ZMQInteractiveShell:
        """As in a notebook's process."""

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.append(data["text/plain"])
        return Handle()

    import IPython.display

    monkeypatch.setattr(IPython, "get_ipython", ZMQInteractiveShell)
    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("zfabric.util.progress.NOTEBOOK_SECONDS", 0.0)
    zf.progress(late.map(range(3)), "counted")
    assert shown[0].startswith("counted: 0 of 3 done")
    assert shown[-1].startswith("counted: 3 of 3 done")
    assert len(shown) == 5


BAR = """
import sys, zfabric as zf
zf.init(num_cpus=1, log_to_driver=False)
@zf.remote
def fails(): raise ValueError
refs = [zf.put(number) for number in range(3)]
zf.progress(refs, description="[counting]")
zf.progress([*refs, fails.remote()], fail_fast=False)
print("rich" in sys.modules)
"""


IPYTHON = """
class ZMQInteractiveShell: pass
shell = ZMQInteractiveShell()
def get_ipython(): return shell
"""
DISPLAY = """
import sys
def display(shown): print(type(shown).__name__, getattr(shown, "text", ""), file=sys.__stdout__, flush=True)
"""
WIDGETS = """
import sys
class Output:
    def clear_output(self, wait=False): pass
    def __enter__(self): print("in the widget", file=sys.__stdout__, flush=True)
    def __exit__(self, *error): print("out of it", file=sys.__stdout__, flush=True)
"""
NOTEBOOK = """
import builtins, IPython
builtins.get_ipython = IPython.get_ipython
import zfabric as zf
zf.init(num_cpus=1, log_to_driver=False)
zf.progress(zf.remote(abs).map(range(5)), description="counted")
"""


def test_progress_is_a_widget_in_a_notebook_which_ends_with_the_last_state(tmp_path: Path) -> None:
    """IPython and ipywidgets as rich sees them: what is drawn inside of the widget replaces what was there."""
    for name, text in (("IPython/__init__", IPYTHON), ("IPython/display", DISPLAY), ("ipywidgets", WIDGETS)):
        (tmp_path / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    ran = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, env=environment, text=True, timeout=PATIENCE)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("Output ") == 1, "the widget is shown once"
    inside = ran.stdout.rpartition("in the widget")[2].partition("out of it")[0]
    assert "counted" in inside
    assert "5/5" in inside


def test_progress_is_drawn_in_a_terminal_and_rich_is_loaded_for_that_alone() -> None:
    terminal, its_end = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    try:
        ran = subprocess.run(
            [sys.executable, "-c", BAR], stdout=subprocess.PIPE, stderr=its_end, env=environment, text=True, timeout=PATIENCE
        )
        os.close(its_end)
        drawn = b""
        while chunk := _read(terminal):
            drawn += chunk
    finally:
        os.close(terminal)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), drawn.decode()
    text = drawn.decode()
    assert "[counting]" in text
    assert "3/3" in text
    assert "4/4" in text
    assert "1 failed" in text
    silent = subprocess.run([sys.executable, "-c", BAR], capture_output=True, text=True, timeout=PATIENCE)
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "False\n", "")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 2**16)
    except OSError:  # nobody has its other end any more
        return b""


@zf.remote
def waits_for_another_kind(depth: int, kinds: list[dict[str, Any]]) -> int:
    """A task that waits for one with other options, and so on."""
    if not depth:
        return 1
    return 1 + int(zf.get(waits_for_another_kind.options(**kinds[depth % len(kinds)]).remote(depth - 1, kinds)))


OTHER_KINDS: list[list[dict[str, Any]]] = [
    [{"num_cpus": 2}, {"num_cpus": 1}],
    [{"runtime_env": {"env_vars": {"KIND": "0"}}}, {"runtime_env": {"env_vars": {"KIND": "1"}}}, {}],
    [{"inline": False}, {}],
]


@pytest.mark.parametrize("kinds", OTHER_KINDS, ids=["demands", "environments", "not on top"])
def test_a_task_that_may_not_run_on_top_gets_a_worker(kinds: list[dict[str, Any]]) -> None:
    """However many others wait."""
    assert zf.get(waits_for_another_kind.remote(15, kinds), timeout=PATIENCE) == 16


def test_the_waits_of_a_get_are_removed_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may be looking through it, where the store asks for room."""
    client: Any = interface.current()
    owned: list[bool] = []

    class Gets(dict[int, Any]):
        def pop(self, *args: Any) -> Any:
            owned.append(client.connection.lock._is_owned())
            return super().pop(*args)

    monkeypatch.setattr(client.machine.objects, "gets", Gets())
    assert zf.get([late.remote(1), late.remote(2)], timeout=PATIENCE) == [1, 2]
    assert owned == [True]
    assert not client.machine.objects.gets


def test_a_ref_used_as_a_future_raises_an_error_with_advice() -> None:
    ref: Any = zf.put(1.5)
    for name, wanted in (
        ("add_done_callback", r"for asyncio write ref\.as_future\(\)"),
        ("result", r"for concurrent\.futures write ref\.future\(\)"),
    ):
        with pytest.raises(AttributeError, match=wanted):
            getattr(ref, name)
    assert f"{ref}" == str(ref)
    with pytest.raises(TypeError, match=r"call zf\.get\(ref\) for the value"):
        f"{ref:.2f}"
