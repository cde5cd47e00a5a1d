"""Sessions whose files others delete, as cleaners of /tmp do: which lives, what is made again, what ends one, and what does not get old."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from zfabric.protocol.messages import PROTOCOL_VERSION
from zfabric.runtime.cluster import known_keys
from zfabric.runtime.launch import stop
from zfabric.runtime.session import STARTED, ClusterSettings, JoinedNode, Session, find_sessions, new_incarnation, started_session, sweep
from zfabric.runtime.session_files import FILES_PER_LOOK, YOUNG_SECONDS, SessionFiles

DAEMON = 4711


class Files:
    """A session with a daemon, and who looks after its files."""

    def __init__(self, base: str) -> None:
        self.session, self.lock = Session.create(base)
        directory = self.session.directory
        self.session.write_description({"store": f"{directory}/store", "spill": f"{directory}/spill", "protocol": 1})
        self.incarnation = new_incarnation()
        self.socket = Path(self.session.socket_path(self.incarnation))
        self.socket.touch()
        self.session.publish_daemon(self.incarnation)
        self.files = SessionFiles(self.session, self.lock, self.session._written())
        assert self.look() == ""

    def look(self, daemon: int = DAEMON) -> str:
        return self.files.look(daemon, is_published=False)

    def close(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
        self.lock = -1


@pytest.fixture
def base() -> Iterator[str]:
    """A directory with a short name: the paths of sockets have to fit below it."""
    directory = tempfile.mkdtemp(prefix="t", dir=os.environ["TMPDIR"])
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def here(base: str) -> Iterator[Files]:
    files = Files(base)
    yield files
    files.close()


def test_a_session_lives_as_long_as_its_directory_is_locked_whatever_is_in_it(here: Files, base: str) -> None:
    shutil.rmtree(here.session.sockets)
    for name in ("lock", "daemon"):
        os.unlink(f"{here.session.directory}/{name}")
    assert here.session.alive()
    assert sweep(base) == []
    descriptor = os.open(here.session.directory, os.O_RDONLY)
    with pytest.raises(BlockingIOError):  # As systemd-tmpfiles asks, which then leaves the directory alone.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    assert [each.directory for each in find_sessions(base)] == [here.session.directory]
    here.close()
    assert not here.session.alive()
    assert sweep(base) == [here.session.directory]


def test_a_session_of_an_earlier_version_lives_as_long_as_its_file_is_locked(base: str) -> None:
    session, lock = Session.create(base)
    os.close(lock)
    os.unlink(f"{session.directory}/lock")
    with open(f"{session.directory}/lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert session.alive()
        assert sweep(base) == []
    assert not session.alive()
    assert sweep(base) == [session.directory]


def test_what_can_be_made_again_is_made_again(here: Files) -> None:
    directory = here.session.directory
    described = Path(directory, "session.json").read_bytes()
    for name in ("session.json", "daemon", "lock"):
        os.unlink(f"{directory}/{name}")
    for name in ("logs", "spill"):
        os.rmdir(f"{directory}/{name}")
    assert here.look() == ""
    assert Path(directory, "session.json").read_bytes() == described
    assert here.session.daemon() == (here.incarnation, str(here.socket))
    assert os.path.isdir(f"{directory}/logs")
    assert os.path.isdir(f"{directory}/spill")


@pytest.mark.parametrize("name", ["", "sockets", "store"])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_session_ends_without_its_directory_its_sockets_or_its_store(here: Files, base: str, name: str, made_again: bool) -> None:
    path = os.path.join(here.session.directory, name).rstrip("/")
    os.rename(path, f"{base}/moved")
    if made_again:
        os.mkdir(path)
    assert here.look().startswith(f"{path} was deleted while the session ran")
    here.session.fail("the reason")
    here.close()
    assert sweep(base) == []  # Before all programs have read why it ended.
    assert Session(here.session.directory).failure() == "the reason"
    os.utime(f"{here.session.directory}/failure", (1000, 1000))
    assert sweep(base) == [here.session.directory]


def test_a_session_ends_if_its_daemon_has_no_socket_in_two_looks(here: Files) -> None:
    here.socket.unlink()
    assert [here.look(), here.look(DAEMON + 1), here.look(DAEMON + 1), here.look(0)] == [""] * 4  # A new daemon has yet to be published.
    here.socket.touch()
    assert here.look() == ""
    here.socket.unlink()
    assert here.look() == ""
    assert str(here.socket) in here.look()


def test_nothing_in_a_session_gets_old(here: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Path(here.session.directory)
    (modules := directory / "environments" / "x" / "content").mkdir(parents=True)
    for number in range(FILES_PER_LOOK):
        (modules / f"{number}.py").touch()
    (directory / "spill" / "value").touch()
    everything = [directory, *directory.rglob("*")]
    for path in everything:
        os.utime(path, (1000, 1000), follow_symlinks=False)

    def old(path: Path) -> bool:
        return path.lstat().st_atime < time.time() - 3600

    here.files.keep_young()
    assert all(map(old, everything))
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + YOUNG_SECONDS)
    here.files.keep_young()
    assert any(map(old, everything))  # The rest follows: a look takes some milliseconds.
    here.files.keep_young()
    assert not any(map(old, everything))
    changed = {str(path.relative_to(directory)) for path in everything if path.lstat().st_mtime > 1000}
    assert {"session.json", "daemon", "sockets", f"sockets/{here.socket.name}", "spill/value"} <= changed
    assert not any(name.endswith(".py") for name in changed)  # Python takes a module with another time for a new one.


PROGRAM = """
import os, shutil, subprocess, sys, threading, time
import zfabric as zf
from zfabric.runtime.connect import attach
from zfabric.runtime.session import Session
directory = zf.init(num_cpus=1, object_store_memory=2**25)["session_dir"]
@zf.remote
def task():
    time.sleep(1000)
ref = task.remote()
tool = attach(Session(directory), kind="tool")
if sys.argv[1] == "lock":
    os.unlink(f"{directory}/lock")
    code = "import zfabric as zf; zf.init(num_cpus=1, object_store_memory=2**25); zf.shutdown()"
    subprocess.run([sys.executable, "-c", code], check=True)
    print(zf.get(zf.remote(abs).options(num_cpus=0).remote(-1), timeout=60))
    sys.exit()
shutil.rmtree(os.path.join(directory, sys.argv[1]))
def wait():
    try:
        tool.connection.wait_until(lambda: False, time.monotonic() + 60)
    except zf.NodeDiedError as error:
        print("the tool:", error)
thread = threading.Thread(target=wait)
thread.start()
try:
    zf.get(ref, timeout=60)
except zf.NodeDiedError as error:
    thread.join()
    print("the program:", error)
zf.shutdown()
print(os.path.exists(directory))
"""


def test_all_who_wait_get_the_reason_when_a_cleaner_has_deleted_a_session(base: str) -> None:
    names = ("", "sockets", "lock")
    environment = {**os.environ, "TMPDIR": base}
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, name], stdout=subprocess.PIPE, text=True, env=environment) for name in names
    ]
    printed = {name: program.communicate(timeout=120)[0].splitlines() for name, program in zip(names, programs, strict=True)}
    assert printed["lock"] == ["1"]
    for name in ("", "sockets"):
        tool, program, is_left = printed[name]
        assert tool.startswith("the tool: ")
        assert program.startswith("the program: ")
        assert f"{name} was deleted while the session ran" in tool
        assert f"{name} was deleted while the session ran" in program
        assert is_left == "False"


@pytest.mark.parametrize("left", [(), ("session.json",)])
def test_a_node_that_ends_while_sessions_are_looked_at_is_not_taken_for_the_clusters(
    base: str, left: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    locks = []
    for number, address in enumerate(addresses):
        session, lock = Session.create(base)
        locks.append(lock)
        cluster = ClusterSettings(number == 0, "127.0.0.1", number, addresses[0], "", "", (), "")
        session.write_description({"protocol": PROTOCOL_VERSION, "kind": STARTED, "started": number, "cluster": cluster._asdict()})
        session.write_membership(JoinedNode(number, address, addresses, ""))
    head, node = find_sessions(base)
    outlives = Session.outlives_programs

    def ends(session: Session) -> bool:
        found = outlives(session)
        for name in {"session.json", "membership"}.difference(left) if session.directory == node.directory else ():
            os.unlink(f"{session.directory}/{name}")
        return found

    monkeypatch.setattr(Session, "outlives_programs", ends)
    found = started_session(base)
    assert found is not None
    assert found.directory == head.directory
    for lock in locks:
        os.close(lock)


def test_a_session_that_ends_after_it_was_found_is_an_error_nowhere(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that look at all sessions would end in the middle: ``stop --all`` would leave the others."""
    monkeypatch.setenv("TMPDIR", base)
    monkeypatch.setenv("XDG_CONFIG_HOME", base)
    cluster = ClusterSettings(True, "127.0.0.1", 0, "", f"{base}/lab.key", "", (), "")
    session, lock = Session.create(base)
    session.write_description({"protocol": PROTOCOL_VERSION, "kind": STARTED, "supervisor": 1, "started": 1, "cluster": cluster._asdict()})
    (found,) = find_sessions(base)
    os.unlink(f"{session.directory}/session.json")
    assert not stop(found)
    assert found.outlives_programs()
    session.write_description({"protocol": PROTOCOL_VERSION, "kind": STARTED, "cluster": cluster._asdict()})
    monkeypatch.setattr("zfabric.runtime.cluster.find_sessions", lambda: [_without_files(each) for each in find_sessions(base)])
    assert [each.path for each in known_keys()] == [cluster.key_file]
    os.close(lock)


def _without_files(session: Session) -> Session:
    os.unlink(f"{session.directory}/session.json")
    return session


def test_who_looks_whether_a_session_lives_is_not_taken_for_its_supervisor(base: str) -> None:
    session, lock = Session.create(base)
    other = os.open(session.directory, os.O_RDONLY)
    assert session.alive()
    os.close(lock)
    fcntl.flock(other, fcntl.LOCK_SH)  # As ``alive`` of another process, at this moment.
    assert not session.alive()
    os.close(other)
