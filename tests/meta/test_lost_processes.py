"""Runs in which tests hang or end their process: each such test fails by name, and all other tests run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import lost_processes
import pytest
from lost_processes import LoadEachFileOnce

# The files are assigned in this order, two to each of two processes: test_dying.py to a process that has ended another file before.
FILES = {
    "test_alone.py": """
def test_alone(): pass
""",
    "test_between.py": """
import threading, pytest

@pytest.fixture
def hangs_at_its_end():
    yield
    threading.Event().wait()

def test_fails_and_hangs(hangs_at_its_end): assert False
""",
    "test_dying.py": """
import os, signal

def test_is_killed(): os.kill(os.getpid(), signal.SIGKILL)
def test_after_the_killed_one(): pass
""",
    "test_hanging.py": """
import os, subprocess, threading

def wait_in_a_thread(): threading.Event().wait()

def test_hangs():
    open("directory", "w").write(os.environ["TMPDIR"])
    open("child", "w").write(str(subprocess.Popen(["sleep", "1000"]).pid))
    threading.Thread(target=wait_in_a_thread, daemon=True).start()
    lock = threading.Lock()
    with lock: lock.acquire()

def test_after_the_hanging_one(): pass
""",
}


def begin(directory: Path, *options: str) -> subprocess.Popen[str]:
    """Begin a run of the tests in a directory, with this project's settings and ``conftest.py``.

    Its limit is four seconds: on a busy machine a test that does nothing may take one.
    """
    here = Path(__file__).parents[1]
    path = os.pathsep.join(filter(None, (str(here), os.environ.get("PYTHONPATH"))))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"PYTHONPATH": path}
    command = [sys.executable, "-m", "pytest", "-c", str(here.parent / "setup.cfg"), "-p", "conftest", "--rootdir", ".", "-rA"]
    command += ["-p", "no:cacheprovider", "-o", "faulthandler_timeout=4", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def test_tests_that_lose_their_process_fail_by_name_and_all_others_run(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    with begin(tmp_path, "-n", "2", "--dist", "loadfile", "--max-worker-restart", "3", ".") as run:
        output, _ = run.communicate(timeout=100)
    outcomes = re.findall(r"^(PASSED|FAILED) \S+::(\w+)(?: - (worker)?)?", output, re.MULTILINE)
    assert sorted(outcomes) == [
        ("FAILED", "test_fails_and_hangs", ""),
        ("FAILED", "test_fails_and_hangs", "worker"),
        ("FAILED", "test_hangs", "worker"),
        ("FAILED", "test_is_killed", "worker"),
        ("PASSED", "test_after_the_hanging_one", ""),
        ("PASSED", "test_after_the_killed_one", ""),
        ("PASSED", "test_alone", ""),
    ], output
    for line in ("in test_hangs", "in wait_in_a_thread", "in hangs_at_its_end", "It wrote no stacks"):
        assert line in output, output
    # What the lost process had started is gone: a new one, with a directory of its own, would not find it.
    child, directory = (tmp_path / "child").read_text(), Path((tmp_path / "directory").read_text())
    assert not Path(f"/proc/{child}").exists()
    assert not directory.parent.exists()


def test_in_a_run_of_one_process_a_hanging_test_ends_the_run_with_its_stacks(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(FILES["test_hanging.py"])
    with begin(tmp_path, "-n", "0", "test_hanging.py") as run:
        _, errors = run.communicate(timeout=100)
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    shutil.rmtree((tmp_path / "directory").read_text())
    assert run.returncode == 1
    assert "in test_hangs" in errors, errors
    assert "in wait_in_a_thread" in errors


class Process:
    """A process of the run, as xdist's: it begins a test when it knows the next one, or that there is none."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.assigned: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, tests: list[int]) -> None:
        self.assigned += tests

    def shutdown(self) -> None:
        self.shutting_down = True

    def run(self, scheduler: LoadEachFileOnce, until: int | None = None) -> list[int]:
        """Run the tests that can begin, but for ``until`` and those after it; return what has run."""
        ran = []
        while len(self.assigned) > (0 if self.shutting_down else 1) and self.assigned[0] != until:
            ran.append(self.assigned.pop(0))
            scheduler.mark_test_complete(self, ran[-1])
        return ran


@pytest.mark.parametrize("left", [0, 1, 2], ids=lambda left: f"{left} more in the file of the lost test")
def test_a_new_process_runs_what_a_lost_one_leaves(left: int) -> None:
    options = {"tx": ["2*popen"]}
    scheduler = LoadEachFileOnce(SimpleNamespace(getvalue=options.__getitem__, option=SimpleNamespace(loadscopereorder=False)))
    files = {"before": 2, "beside": 2, "lost": 1 + left, "alone": 1, "later": 3, "last": 1}
    tests = [f"{file}.py::{number}" for file, count in files.items() for number in range(count)]
    lost = tests.index("lost.py::0")

    first, second, new = Process(), Process(), Process()
    for process in (first, second):
        scheduler.add_node(process)
        scheduler.add_node_collection(process, tests)
    scheduler.schedule()
    ran = first.run(scheduler, until=lost)
    assert ran == [0, 1]
    assert first.assigned[0] == lost
    assert scheduler.remove_node(first) == tests[lost]
    scheduler.add_node(new)
    scheduler.add_node_collection(new, tests)
    scheduler.schedule()
    ran += new.run(scheduler)  # Alone: the other one is in the midst of a long test.
    ran += second.run(scheduler)
    ran += new.run(scheduler)
    assert sorted([*ran, lost]) == list(range(len(tests)))
    assert second.shutting_down
    assert new.shutting_down


@pytest.mark.parametrize(
    ("load", "processes", "expected"),
    [(0.0, "1", 1.0), (3.0, "1", 1.5), (3.0, "4", 2.0), (100.0, "1", lost_processes.SLOWDOWN_MAX)],
)
def test_limits_grow_with_what_wants_a_cpu(load: float, processes: str, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", processes)
    assert lost_processes.slowdown() == expected
