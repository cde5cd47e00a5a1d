"""``breakpoint()`` in tasks: attaching, what ends the wait, and that nothing is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from command_line import a_place
from conftest import running_cluster
from faults import PATIENCE, eventually, gone, next_line

import zfabric as zf
from zfabric.cli.listings import explain
from zfabric.exceptions import ConfigError, TaskCancelledError, TaskError, TaskTimeoutError
from zfabric.protocol.names import brief
from zfabric.runtime.debugger import ASK, attach, waiting

PROMPT = b"(Pdb) " + ASK


@pytest.fixture(scope="module")
def directory() -> Iterator[str]:
    with running_cluster(log_to_driver=True) as context:
        yield context["session_dir"]


@zf.remote(max_retries=0)
def add(x: int) -> list[int]:
    y = x + 1
    breakpoint()
    y = 2 * y
    return [x, y]


@zf.remote
class Async:
    async def add(self, x: int) -> list[int]:
        y = x + 1
        breakpoint()
        y = 2 * y
        return [x, y]


@zf.remote(max_concurrency=2)
class Threaded:
    def add(self, x: int) -> list[int]:
        y = x + 1
        breakpoint()
        y = 2 * y
        return [x, y]


class Debugged:
    """A terminal that is attached to a breakpoint."""

    def __init__(self, directory: str, name: str) -> None:
        self.connection = attach(directory, name)
        self.connection.settimeout(PATIENCE)
        self.shown = self.read()

    def read(self) -> str:
        """What is printed until a line is asked for, or the debugger has left."""
        text = b""
        while not text.endswith(ASK) and (piece := self.connection.recv(4096)):
            text += piece
        return text.decode()

    def type(self, line: str) -> str:
        self.connection.sendall(line.encode() + b"\n")
        return self.read()


def the_only(directory: str) -> dict[str, Any]:
    (row,) = eventually(lambda: waiting(directory), "a breakpoint waits")
    return row  # type: ignore[no-any-return]


def test_a_task_is_debugged_and_goes_on(directory: str, capfd: pytest.CaptureFixture[str]) -> None:
    ref = add.remote(3)
    row = the_only(directory)
    line = add._function.__code__.co_firstlineno + 3
    assert (row["file"], row["line"], row["function"], row["task"], row["task_id"]) == (
        __file__,
        line,
        "add",
        "add",
        ref.binary()[:16].hex(),
    )
    output = ""

    def told() -> bool:
        nonlocal output
        zf.wait([ref], timeout=0.1)
        output += capfd.readouterr().err
        return "attach with" in output

    eventually(told, "the driver has said how to attach")
    assert f"(add pid={row['pid']}) breakpoint in add ({__file__}:{line}): attach with `zfabric debug {row['pid']}`\n" in output
    where = f"it stands at a breakpoint() ({__file__}:{line}): attach with `zfabric debug {row['pid']}`"
    assert zf.explain(ref).reason == f"runs on worker {row['pid']}; {where}"
    for subject in (brief(ref.binary()[:16]), str(row["pid"])):
        printed = CliRunner().invoke(explain, [subject, "--address", directory]).output
        assert where.removeprefix("it stands") in printed, printed
    terminal = Debugged(directory, row["name"])
    assert waiting(directory) == []
    assert "breakpoint" not in zf.explain(ref).reason
    stands = line if sys.version_info >= (3, 13) else line + 1  # From 3.13 on ``breakpoint()`` stops where it is called.
    assert f"test_debugger.py({stands})add()" in terminal.shown
    assert terminal.type("p x, y").startswith("(3, 4)\n")
    where = terminal.type("where")
    assert "add()" in where
    assert "zfabric/" not in where
    assert terminal.type("interact").endswith(">>> \x05")
    assert terminal.type("print(x * y, 'in', __name__)").startswith("12 in ")
    terminal.connection.shutdown(socket.SHUT_WR)
    assert zf.get(ref, timeout=PATIENCE) == [3, 8]
    assert waiting(directory) == []


def test_steps_and_breakpoints_end_with_the_task(directory: str) -> None:
    ref = add.remote(3)
    terminal = Debugged(directory, the_only(directory)["name"])
    line = add._function.__code__.co_firstlineno + 5
    assert f"Breakpoint 1 at {__file__}:{line}" in terminal.type(f"b {line}")
    assert f"({line})add()" in terminal.type("c")
    assert terminal.type("!y = 7").endswith("(Pdb) \x05")
    assert "--Return--" in terminal.type("n")
    assert terminal.type("n") == "add has ended; the debugger leaves it\n"
    assert zf.get(ref, timeout=PATIENCE) == [3, 7]
    assert zf.get(zf.remote(lambda: sys.gettrace() is None).remote(), timeout=PATIENCE)


def test_quit_ends_the_task_by_an_exception(directory: str) -> None:
    ref = add.remote(3)
    assert Debugged(directory, the_only(directory)["name"]).type("q") == ""
    with pytest.raises(TaskError, match="BdbQuit"):
        zf.get(ref, timeout=PATIENCE)


@pytest.mark.parametrize("attached", [False, True])
def test_a_task_at_a_breakpoint_is_cancelled_and_its_time_passes(directory: str, attached: bool) -> None:
    threaded, coroutine = Threaded.remote(), Async.remote()
    for function in (add, threaded.add, coroutine.add):
        ref = function.remote(1)
        name = the_only(directory)["name"]
        terminal = Debugged(directory, name) if attached else None
        zf.cancel(ref)
        with pytest.raises(TaskCancelledError):
            zf.get(ref, timeout=PATIENCE)
        assert terminal is None or terminal.read() == ""
        eventually(lambda: not waiting(directory), "the breakpoint has gone")
    zf.get(zf.remote(lambda: None).remote(), timeout=PATIENCE)  # There is a worker again: its start is not part of the task's time.
    ref = add.options(timeout=4.0).remote(1)  # A busy machine needs some time to come to the breakpoint.
    terminal = Debugged(directory, the_only(directory)["name"]) if attached else None
    with pytest.raises(TaskTimeoutError):
        zf.get(ref, timeout=PATIENCE)
    eventually(lambda: not waiting(directory), "the breakpoint has gone")


def test_actors_with_threads_and_coroutines(directory: str) -> None:
    for actor in (Threaded.remote(), Async.remote()):
        ref = actor.add.remote(3)
        terminal = Debugged(directory, the_only(directory)["name"])
        assert terminal.type("p y").startswith("4\n")
        assert terminal.type("!y = 10").endswith("(Pdb) \x05")
        assert terminal.type("c") == ""
        assert zf.get(ref, timeout=PATIENCE) == [3, 20]


def test_one_terminal_attaches_and_dead_tasks_are_not_listed(directory: str) -> None:
    ref = add.remote(3)
    row = the_only(directory)
    terminal = Debugged(directory, row["name"])
    with pytest.raises(OSError):
        attach(directory, row["name"])
    zf.cancel(ref)
    assert terminal.read() == ""
    eventually(lambda: not waiting(directory), "the breakpoint has gone")
    ref = add.remote(4)
    row = the_only(directory)
    os.kill(row["pid"], 9)
    with pytest.raises(zf.exceptions.WorkerCrashedError):
        zf.get(ref, timeout=PATIENCE)
    assert waiting(directory) == []


def test_the_environment_decides_as_in_any_program(directory: str) -> None:
    @zf.remote(runtime_env={"env_vars": {"PYTHONBREAKPOINT": "0"}})
    def ignore() -> str:
        breakpoint()
        return "ignored"

    assert zf.get(ignore.remote(), timeout=PATIENCE) == "ignored"


def test_local_mode_is_refused_with_what_there_is_instead() -> None:
    with pytest.raises(ConfigError, match=r"breakpoint\(\).*zfabric debug"):
        zf.init(local_mode=True)


PROGRAM = """
    import zfabric as zf
    zf.init(num_cpus=2, log_to_driver=False)
    @zf.remote
    def stop(x):
        breakpoint()
        return x
    refs = [stop.remote(1), stop.remote(2)]
    print(zf.get(refs[0]), flush=True)
    zf.get(refs[1])
"""


def test_the_command_attaches_and_a_killed_driver_leaves_nothing() -> None:
    with a_place() as place, place.program(PROGRAM) as running:
        rows = eventually(lambda: len(found := place.json("debug")) == 2 and found, "two tasks wait")
        listed = place.run("debug").stdout
        assert all(str(row["pid"]) in listed for row in rows)
        first = min(rows, key=lambda row: str(row["task_id"]))
        typed = _typed(place, first["pid"], "p x\nprint('\\033[2J')\nc\n")
        assert "(Pdb) 1\n" in typed
        assert "\\x1b[2J" in typed
        assert typed.endswith("the debugger has left the task\n")
        assert next_line(running.stdout) == "1\n"
        (second,) = place.json("debug")
        held = threading.Thread(target=_typed, args=(place, second["pid"], None), daemon=True)
        held.start()
        eventually(lambda: not place.json("debug"), "a terminal is attached")
        running.kill()
        eventually(lambda: gone(second["pid"]), "the task has ended with its driver")
        held.join(PATIENCE)
        assert not held.is_alive()
        assert "no task waits at a breakpoint" in place.run("debug", code=1).stderr


def _typed(place: Any, pid: int, lines: str | None) -> str:
    """What ``zfabric debug`` prints when these lines are typed; None: nothing is, and the terminal stays."""
    from command_line import ZFABRIC

    command = [ZFABRIC, "debug", str(pid)]
    if lines is None:
        with subprocess.Popen(command, env=place.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            return process.stdout.read()
    ended = subprocess.run(command, env=place.environment, input=lines, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return ended.stdout
