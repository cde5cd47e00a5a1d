"""Removal of trees that programs leave behind, and what such leftovers do to the next session."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zfabric.adapters import file_trees
from zfabric.adapters.file_trees import OPEN_MAX, remove_tree
from zfabric.runtime.session import Session, find_sessions, kept_sessions, started_session, sweep, user_directory

DEEP = 1200
"""Levels of a deep tree: more than Python's recursion limit. Its path is also longer than the kernel accepts."""


@pytest.fixture
def base() -> Iterator[str]:
    """A directory with a short name for sessions: the paths of sockets have to fit below it."""
    directory = tempfile.mkdtemp(prefix="t", dir=os.environ["TMPDIR"])
    yield directory
    shutil.rmtree(directory)


def make_deep(place: Path, levels: int = DEEP) -> None:
    """Make directories inside each other, each with a file."""
    here = os.open(place, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("a name", dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        below = os.open("a name", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def open_directories() -> int:
    """How many directories this process has open. Other threads open files at any moment."""
    count = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # It is closed by now, such as the directory that was just listed.
            count += stat.S_ISDIR(os.fstat(number).st_mode)
    return count


def test_a_deep_tree_is_removed_with_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree" / "beside").mkdir(parents=True)
    make_deep(tmp_path / "tree")
    before, most = open_directories(), 0
    rmdir = os.rmdir

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal most
        most = max(most, open_directories())
        rmdir(*args, **kwargs)

    monkeypatch.setattr(file_trees.os, "rmdir", counted)
    assert remove_tree(str(tmp_path / "tree")) is None
    assert os.listdir(tmp_path) == []
    assert most <= before + OPEN_MAX + 1
    assert open_directories() == before


def test_links_are_removed_and_not_followed_and_names_may_be_any_bytes(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(tmp_path / "precious")
    os.mkfifo(tree / "pipe")
    os.close(os.open(os.fsencode(tree) + b"/\xff\n", os.O_CREAT))
    (tmp_path / "to").symlink_to(tmp_path / "precious")
    assert remove_tree(str(tree)) is None
    assert remove_tree(str(tmp_path / "to")) is None
    assert remove_tree(str(tmp_path / "missing")) is None
    assert remove_tree(str(tmp_path / "missing" / "too")) is None
    assert [each.name for each in tmp_path.rglob("*")] == ["precious", "file"]


CLOSED = """
import os, sys
from zfabric.adapters.file_trees import remove_tree
tree = sys.argv[1]
if os.geteuid() == 0:
    os.setuid(12345)
os.makedirs(f"{tree}/a/b/c/d")
for path, mode in (("a/b/c", 0), ("a/b", 0o500), ("a", 0o100)):
    os.chmod(f"{tree}/{path}", mode)
print(remove_tree(tree), os.path.exists(tree))
"""


def test_directories_that_their_owner_has_closed_are_removed(tmp_path: Path) -> None:
    for each in (tmp_path, *tmp_path.parents):  # The program gives up root's rights, which would open any directory.
        if each.stat().st_uid == os.geteuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o755)
    tmp_path.chmod(0o777)
    ran = subprocess.run([sys.executable, "-c", CLOSED, str(tmp_path / "tree")], check=False, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "None False\n", ran.stderr


def stick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no directory with the name "stuck" be removed, as if it were a mount point."""
    rmdir = os.rmdir

    def refuses(name: str, **kwargs: Any) -> None:
        if name == "stuck":
            raise OSError(errno.EBUSY, "Device or resource busy")
        rmdir(name, **kwargs)

    monkeypatch.setattr(file_trees.os, "rmdir", refuses)


def test_what_cannot_be_removed_stays_and_all_else_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stick(monkeypatch)
    for name in ("a", "stuck", "z"):
        (tmp_path / "tree" / name / "below").mkdir(parents=True)
        (tmp_path / "tree" / name / "file").touch()
    error = remove_tree(str(tmp_path / "tree"))
    assert error is not None
    assert (error.errno, error.filename) == (errno.EBUSY, str(tmp_path / "tree"))
    assert [each.name for each in (tmp_path / "tree").rglob("*")] == ["stuck"]


def test_a_tree_that_is_moved_while_it_is_removed_takes_nothing_else_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    make_deep(tmp_path / "tree", OPEN_MAX + 5)
    (tmp_path / "elsewhere" / "precious").mkdir(parents=True)
    third = tmp_path / "tree" / "a name" / "a name"
    rmdir = os.rmdir

    def moves(name: str, **kwargs: Any) -> None:
        if third.exists():
            third.rename(tmp_path / "elsewhere" / "moved")
        rmdir(name, **kwargs)

    monkeypatch.setattr(file_trees.os, "rmdir", moves)
    assert "moved" in str(remove_tree(str(tmp_path / "tree")))
    assert (tmp_path / "elsewhere" / "precious").exists()


def leave_behind(parent: Path) -> None:
    """Leave in a directory of sessions what may be there: deep, damaged, and of the wrong kind."""
    for number, description in enumerate(("[]", "[" * 100_000, "{", '{"created": "x", "keep": 1, "spill": 3}', "null", '"\\ud800"')):
        for prefix in ("s-", "dead-s-", "kept-"):
            (place := parent / f"{prefix}0000000{number}").mkdir()
            (place / "session.json").write_text(description)
    (parent / "s-deep0000" / "environments" / "content").mkdir(parents=True)
    make_deep(parent / "s-deep0000" / "environments" / "content")
    for name in ("s-pipe0000", "kept-pipe0000"):
        (parent / name / "lock").mkdir(parents=True)
        os.mkfifo(parent / name / "session.json")
        os.mkfifo(parent / name / "membership")
    (parent / "s-file0000").touch()
    (parent / "s-link0000").symlink_to(parent)
    (parent / "s-loop0000").symlink_to(parent / "s-loop0000")
    os.mkfifo(parent / "s-fifo0000")
    os.mkdir(os.fsencode(parent) + b"/s-\xff")


def test_no_leftover_stops_a_sweep_and_one_that_stays_is_reported(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = Path(user_directory(base))
    leave_behind(parent)
    (parent / "s-00000099" / "stuck").mkdir(parents=True)
    (parent / "dead-s-00000000" / "in the way").mkdir()
    stick(monkeypatch)
    reported: list[tuple[str, int | None]] = []
    for _ in range(2):
        reported.clear()
        sweep(base, lambda path, error: reported.append((path, error.errno)))
    assert reported == [(f"{parent}/dead-s-00000099", errno.EBUSY)]
    assert [each.name for each in parent.iterdir() if not each.name.startswith("kept-")] == ["dead-s-00000099"]
    assert find_sessions(base) == []
    assert started_session(base) is None
    for session in kept_sessions(base):
        assert session.remove() is None
    assert [each.name for each in parent.iterdir()] == ["dead-s-00000099"]
    monkeypatch.undo()


PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import zfabric as zf
from pathlib import Path
from test_file_trees import leave_behind, make_deep
from zfabric.runtime.session import user_directory
leave_behind(Path(user_directory()))
@zf.remote(runtime_env={"working_dir": sys.argv[2]})
def task():
    make_deep(Path.cwd())
    return Path("file").read_text()
for _ in range(2):
    zf.init(num_cpus=1, object_store_memory=2**25)
    print(zf.get(task.remote(), timeout=60))
    zf.shutdown()
print(sorted(name for name in os.listdir(user_directory()) if not name.startswith("kept-")))
"""


def test_a_session_with_a_deep_tree_ends_and_the_next_one_begins(tmp_path: Path, base: str) -> None:
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "module.py").touch()
    arguments = [sys.executable, "-c", PROGRAM, os.path.dirname(__file__), str(tmp_path / "sent")]
    ran = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=120, env={**os.environ, "TMPDIR": base})
    assert ran.stdout == "\n\n[]\n", ran.stderr
    assert ran.stderr == ""


def test_a_session_is_removed_whatever_its_tasks_have_left(base: str) -> None:
    session, lock = Session.create(base)
    os.close(lock)
    make_deep(Path(session.directory, "spill"))
    assert session.remove() is None
    assert not os.path.exists(session.directory)
