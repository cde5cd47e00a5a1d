"""Failures of the control store: its disk or its map is full. Tasks go on, and only durable values and jobs are refused."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest
from faults import PATIENCE, eventually, failure, in_own_mounts, kill_daemon, processes_named, query, session

import zfabric as zf

MIB = 2**20
SETTINGS = {"store_retry_every": 0.1, "restart_backoff_max": 0.05}


@zf.remote
def follow(number: int, _: Any) -> int:
    return number + 1


@zf.remote(max_retries=20)
def die_once(mark: str) -> int:
    try:
        os.mkdir(mark)
    except FileExistsError:
        return 7
    os._exit(1)


def chain(links: int) -> list[Any]:
    """Refs whose rows are in the control store as soon as it can write: each names the one before it."""
    refs = [follow.remote(0, b"")]
    for _ in range(links - 1):
        refs.append(follow.remote(refs[-1], b"x" * 500))
    return refs


def outlive(fill: Callable[[], object], free: Callable[[], object], says: str, marks: str, restart: bool) -> None:
    """A program that works before, while and after its control store has no room. ``says`` is in the error for what cannot be stored."""
    daemon = processes_named("zf-daemon")
    kept = zf.put("kept", durable=True)
    before = chain(50)
    fill()
    meanwhile = chain(3000)
    assert zf.get(meanwhile[-1], timeout=PATIENCE) == 3000
    for _ in range(3):
        with pytest.raises(zf.OutOfDiskError, match=says):
            zf.put(os.urandom(3 * MIB), durable=True)
        assert zf.get(die_once.remote(tempfile.mktemp(dir=marks)), timeout=PATIENCE) == 7
        assert zf.get(chain(200)[-1], timeout=PATIENCE) == 200
    assert zf.get(zf.put("not durable"), timeout=PATIENCE) == "not durable"
    assert processes_named("zf-daemon") == daemon, "the daemon has not died of it"
    if restart:
        kill_daemon()
        assert zf.get(chain(200)[-1], timeout=PATIENCE) == 200
    free()
    del meanwhile

    again = []

    def keeps() -> bool:
        with suppress(zf.OutOfDiskError):
            again.append(zf.put(os.urandom(MIB // 4), durable=True))
        return bool(again)

    eventually(keeps, "what is to be kept is kept again")
    after = chain(50)
    kill_daemon()
    assert zf.get([kept, before[-1], after[-1]], timeout=PATIENCE) == ["kept", 50, 50]
    assert len(zf.get(again[0], timeout=PATIENCE)) == MIB // 4
    assert zf.get(chain(200)[-1], timeout=PATIENCE) == 200
    del kept, before, after
    again.clear()
    eventually(lambda: query("status")["statistics"]["objects"] == 0, "nothing is left of what could not be kept")


def test_everything_goes_on_with_a_full_disk(tmp_path: Path) -> None:
    # Logs, sockets and the control store lie on it; a new daemon and new workers come up on it too.
    directory = tempfile.mkdtemp(prefix="d", dir=os.environ["TMPDIR"])
    inside = """
import os, sys
directory, marks = sys.argv[1:]
os.environ["TMPDIR"] = directory
import zfabric as zf
from cluster.test_failures_disk import SETTINGS, outlive

def fill():
    with open(f"{directory}/ballast", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

zf.init(num_cpus=2, log_to_driver=False, object_store_memory=2**26, config={**SETTINGS, "spill_directory": marks})
outlive(fill, lambda: os.unlink(f"{directory}/ballast"), "disk of .* is full", marks, restart=True)
zf.shutdown()
"""
    in_own_mounts(f"mount -t tmpfs -o size=4m tmpfs {directory}", inside, directory, str(tmp_path))


FULL = """
import errno, os, subprocess, sys, zfabric as zf
from zfabric.runtime import launch
directory, kind = sys.argv[1:]

def fill(room=0):
    with open(f"{directory}/ballast", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC
    os.truncate(f"{directory}/ballast", os.path.getsize(f"{directory}/ballast") - room)

def says(text, kind=zf.FabricError):
    try:
        zf.init(address="local", num_cpus=1, object_store_memory=2**22)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError("it started")
    found = f"{directory}/zfabric-{os.geteuid()}"
    assert not os.path.exists(found) or not os.listdir(found), os.listdir(found)

if kind == "nothing":
    fill()
    says("is full: a cluster needs 256 KiB", zf.OutOfDiskError)
    done = subprocess.run([sys.executable, "-m", "zfabric", "start"], capture_output=True, text=True)
    assert (done.returncode, "is full: a cluster needs 256 KiB" in done.stderr) == (1, True), done
elif kind == "little":
    fill(2**14)
    says("is full: a cluster needs 256 KiB", zf.OutOfDiskError)
elif kind == "later":  # Others take the room while the cluster starts: what its processes cannot write down is found out.
    check = launch._check_room
    launch._check_room = lambda path: (check(path), fill(), setattr(launch, "_check_room", check))
    says("is full: a cluster needs 256 KiB")
else:
    for number in range(60):
        open(f"{directory}/{number}", "w").close()
    says("is full: a cluster needs 256 KiB and 64 new files", zf.OutOfDiskError)
    while True:
        try:
            open(f"{directory}/{os.urandom(8).hex()}", "w").close()
        except OSError:
            break
    os.path.exists(f"{directory}/zfabric-{os.geteuid()}") and os.rmdir(f"{directory}/zfabric-{os.geteuid()}")
    open(f"{directory}/last", "w").close()
    says("No space left on device")
"""


@pytest.mark.parametrize(("kind", "options"), [("nothing", ""), ("little", ""), ("later", ""), ("files", ",nr_inodes=120")])
def test_a_cluster_that_a_full_disk_keeps_from_starting_says_so(kind: str, options: str) -> None:
    directory = tempfile.mkdtemp(prefix="d", dir=os.environ["TMPDIR"])
    in_own_mounts(f"mount -t tmpfs -o size=4m{options} tmpfs {directory} && export TMPDIR={directory}", FULL, directory, kind)


def test_everything_goes_on_with_a_full_control_store(cluster: Callable[..., Any], tmp_path: Path) -> None:
    cluster(config={**SETTINGS, "control_store_bytes": 2 * MIB})
    outlive(lambda: None, lambda: None, "limit of 2097152 bytes .control_store_bytes.", str(tmp_path), restart=True)


def test_everything_goes_on_with_a_limit_on_file_size(cluster: Callable[..., Any], tmp_path: Path) -> None:
    cluster(config=SETTINGS)
    (daemon,) = processes_named("zf-daemon")
    _, hard = resource.prlimit(daemon, resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.prlimit(daemon, resource.RLIMIT_FSIZE, (size, hard))

    outlive(lambda: limit(MIB), lambda: limit(hard), "cannot be written", str(tmp_path), restart=False)


@zf.remote(max_restarts=-1, checkpoint_every=100)
class Adder:
    """Its calls are logged."""

    def __init__(self) -> None:
        self.value = 0

    def add(self) -> int:
        self.value += 1
        return self.value


def test_an_actor_log_that_cannot_be_written_is_reported(cluster: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    cluster(config=SETTINGS)
    adder = Adder.remote()
    assert zf.get(adder.add.remote(), timeout=PATIENCE) == 1
    (daemon,) = processes_named("zf-daemon")
    _, hard = resource.prlimit(daemon, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon, resource.RLIMIT_FSIZE, (4096, hard))
    waits, late = adder.add.remote(), adder.add.options(timeout=2.0).remote()
    error = failure(late)
    assert isinstance(error, zf.TaskTimeoutError)
    assert "add has run, and its result waits" in str(error)
    for subject in (adder, waits):
        eventually(lambda subject=subject: "cannot be written" in str(zf.explain(subject)), "it says what it waits for")
    output: list[str] = []
    eventually(lambda: output.append(capfd.readouterr().err) or "the log of actor Adder" in "".join(output), "the driver is warned")
    resource.prlimit(daemon, resource.RLIMIT_FSIZE, (hard, hard))
    assert zf.get([waits, adder.add.remote()], timeout=PATIENCE) == [2, 4]
    eventually(lambda: "cannot be written" not in str(zf.explain(adder)), "it goes on")
    assert "".join(output).count("the log of actor Adder") == 1, "the warning is shown once"


@pytest.mark.parametrize("damage", ["foreign", "cut"])
def test_a_store_damaged_in_use_ends_its_session_with_the_reason(cluster: Callable[..., Any], damage: str) -> None:
    cluster(config=SETTINGS)
    assert zf.get(follow.remote(1, b""), timeout=PATIENCE) == 2
    path = session().describe()["store"]
    (daemon,) = processes_named("zf-daemon")
    os.kill(daemon, signal.SIGSTOP)
    if damage == "cut":
        os.truncate(f"{path}/data.mdb", 9000)
    else:
        environment = lmdb.open(path, max_dbs=32, lock=False, lib_version=0)
        with environment.begin(write=True) as transaction:
            transaction.put(b"foreign", b"\xc1 foreign", db=environment.open_db(b"job", txn=transaction))
        environment.close()
    kill_daemon()
    with pytest.raises(zf.NodeDiedError, match=r"the control store in .* is damaged \(data.mdb: "):
        zf.get(follow.remote(2, b""), timeout=PATIENCE)
