"""Detached actors: they outlive the program that made them, its end and the deaths of others. Real processes, two programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import running_cluster
from faults import PATIENCE, eventually, gone, kill_daemon, processes_named, query, session, worker_rows

import zfabric as zf
from zfabric.cli.state import _of_cluster

PROGRAM = """
    import json, os, sys, time, zfabric as zf
    zf.init(address=sys.argv[1], namespace="shared")

    @zf.remote
    def double(x): return 2 * x

    @zf.remote
    def forever(path):
        open(path, "w").write(str(os.getpid()))
        time.sleep(10**6)

    @zf.remote
    class Counter:
        def __init__(self, start=0): self.n, self.kept = start, zf.put("kept by the actor")
        def add(self): self.n += 1; return self.n
        def pid(self): return os.getpid()
        def doubled(self): return zf.get(double.remote(self.n))
        def big(self): return bytes(10**6)
        def value(self): return zf.get(self.kept)
        def have(self, other): self.other = other
        def ask(self): return zf.get(self.other.add.remote())

    detached = Counter.options(name="stays", lifetime="detached", max_restarts=1).remote(5)
    own, held = Counter.options(name="own").remote(), Counter.remote()
    zf.get(detached.have.remote(held))
    zf.get([detached.add.remote(), own.add.remote(), held.add.remote()])
    forever.remote(sys.argv[2])
    while not os.path.exists(sys.argv[2]) or not open(sys.argv[2]).read():
        time.sleep(0.01)
    print(json.dumps([zf.get_runtime_context().get_job_id(), *zf.get([each.pid.remote() for each in (detached, own, held)])]), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster whose daemon is restarted at once."""
    with running_cluster(num_cpus=3, namespace="shared", config={"restart_backoff_max": 0.1}) as context:
        yield context


class Left:
    """What a program left behind."""

    def __init__(self, tmp_path: Path, killed: bool) -> None:
        note = tmp_path / "forever"
        program = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), str(session().directory), str(note)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        self.job, self.pid, self.own, self.held = json.loads(program.stdout.readline())
        self.task = int(note.read_text())
        if killed:
            program.kill()
        else:
            program.communicate("\n", timeout=PATIENCE)
        assert program.wait(PATIENCE) == (-signal.SIGKILL if killed else 0)
        program.stdout.close()
        eventually(lambda: gone(self.own) and gone(self.task), "what nobody else needs ends with its program")


def jobs() -> list[str]:
    return [job["job"] for job in query("status")["jobs"]]


def is_named(name: str) -> bool:
    """Whether an actor has this name."""
    try:
        zf.get_actor(name)
    except zf.ActorNotFoundError:
        return False
    return True


def value(ref: Any) -> Any:
    return zf.get(ref, timeout=PATIENCE)


@pytest.mark.parametrize("killed", [False, True])
def test_a_detached_actor_outlives_its_program(cluster: Any, tmp_path: Path, killed: bool) -> None:
    left = Left(tmp_path, killed)
    actor = zf.get_actor("stays")
    assert value(actor.pid.remote()) == left.pid
    assert value([actor.add.remote() for _ in range(3)]) == [7, 8, 9]
    assert value(actor.doubled.remote()) == 18, "it can still submit tasks"
    assert value(actor.value.remote()) == "kept by the actor", "and has what it held"
    assert value(actor.ask.remote()) == 2, "an actor that it has a handle of lives on with it"
    assert len(value(actor.big.remote())) == 10**6
    eventually(lambda: not is_named("own"), "the daemon learns of the end of its process")
    assert [(job["job"], job["pid"]) for job in query("status")["jobs"]][1:] == [(left.job, 0)]
    zf.kill(actor)
    eventually(lambda: left.job not in jobs(), "the job ends with its last detached actor")
    eventually(lambda: gone(left.pid) and gone(left.held), "and so do its processes")
    eventually(lambda: all(row["job"] != left.job for row in worker_rows()), "and so do its idle workers")


def test_a_detached_actor_survives_a_restart_of_the_daemon(cluster: Any, tmp_path: Path) -> None:
    left = Left(tmp_path, False)
    for expected in (7, 8):
        old = kill_daemon()
        eventually(lambda old=old: set(processes_named("zf-daemon")) - {old}, "there is another daemon")
        actor = zf.get_actor("stays")
        assert value(actor.pid.remote()) == left.pid
        assert value(actor.add.remote()) == expected
        assert value(actor.doubled.remote()) == 2 * expected
    zf.kill(actor)
    eventually(lambda: left.job not in jobs(), "the job ends with it")


def test_a_detached_actor_is_restarted_by_its_policy(cluster: Any, tmp_path: Path) -> None:
    left = Left(tmp_path, False)
    os.kill(left.pid, signal.SIGKILL)
    actor = zf.get_actor("stays")
    assert eventually(lambda: alive(actor), "it has been made again") != left.pid
    assert value(actor.add.remote()) == 6
    os.kill(value(actor.pid.remote()), signal.SIGKILL)
    eventually(lambda: left.job not in jobs(), "no restart is left")
    with pytest.raises(zf.ActorNotFoundError):
        zf.get_actor("stays")


def alive(actor: Any) -> int:
    try:
        return int(value(actor.pid.remote()))
    except zf.ActorUnavailableError:
        return 0


def test_a_detached_actor_survives_the_death_of_daemon_and_process(cluster: Any, tmp_path: Path) -> None:
    left = Left(tmp_path, False)
    daemon = processes_named("zf-daemon")[0]
    os.kill(daemon, signal.SIGSTOP)
    os.kill(left.pid, signal.SIGKILL)
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: set(processes_named("zf-daemon")) - {daemon}, "there is another daemon")
    actor = zf.get_actor("stays")
    assert eventually(lambda: alive(actor), "it has been made again") != left.pid
    assert value(actor.add.remote()) == 6


SHARED = """
    import os, sys, time, zfabric as zf
    zf.init(address=sys.argv[1], namespace="shared")

    @zf.remote(lightweight=True)
    class Small:
        def __init__(self, note=""):
            self.n = 0
            if note:
                open(note, "w").close()
                while True: time.sleep(0.01)
        def add(self): self.n += 1; return self.n
        def pid(self): return os.getpid()

    detached = Small.options(name="small", lifetime="detached").remote()
    own = Small.remote()
    assert zf.get(detached.pid.remote()) == zf.get(own.pid.remote())
    zf.get(detached.add.remote())
    half_made = Small.remote(sys.argv[2])
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
"""


def test_a_detached_lightweight_actor_outlives_its_neighbours(tmp_path: Path) -> None:
    with running_cluster(num_cpus=1, namespace="shared"):
        command = [sys.executable, "-c", textwrap.dedent(SHARED), str(session().directory), str(tmp_path / "note")]
        subprocess.run(command, check=True, timeout=PATIENCE)
        actor = zf.get_actor("small")
        assert value([actor.add.remote(), actor.add.remote()]) == [2, 3]
        eventually(lambda: [row["class"] for row in query("actors") if row["state"] == "alive"] == ["Small"], "the others have ended")


SUBMITTING = """
    import os, sys, time, zfabric as zf

    @zf.remote
    def after(path):
        while not os.path.exists(path):
            time.sleep(0.01)
        return "ended"

    @zf.remote(num_cpus=0)
    class Submitter:
        def begin(self, path): self.refs = [after.remote(path), zf.put("put")]
        def end(self): return zf.get(self.refs)

    with zf.init(address=sys.argv[1], namespace="shared"):
        if sys.argv[2] == "make":
            zf.get(Submitter.options(name="submits", lifetime="detached").remote().__ray_ready__.remote())
        else:
            zf.get(zf.get_actor("submits").begin.remote(sys.argv[2]))
"""


def test_what_a_detached_actor_submits_for_another_program_outlives_that(cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "path"
    for what in ("make", str(path)):
        program = [sys.executable, "-c", textwrap.dedent(SUBMITTING), str(session().directory), what]
        subprocess.run(program, timeout=PATIENCE, check=True)
    eventually(lambda: len(jobs()) == 2, "the job of the caller has ended")
    path.touch()
    assert value(zf.get_actor("submits").end.remote()) == ["ended", "put"]


def test_a_dead_detached_actor_stays_dead(cluster: Any) -> None:
    """Also if a program has a handle of it, and the daemon forgets all that is not durable."""

    @zf.remote(max_restarts=-1, lifetime="detached", name="dead")
    class Actor:
        def ping(self) -> str:
            return "pong"

    actor = Actor.remote()
    value(actor.ping.remote())
    zf.kill(actor)
    eventually(lambda: dead(actor), "it has been killed")
    eventually(lambda: not list(_of_cluster(session(), "task", None)), "its row is dropped")
    old = kill_daemon()
    eventually(lambda: set(processes_named("zf-daemon")) - {old}, "there is another daemon")
    with pytest.raises(zf.ActorNotFoundError):
        zf.get_actor("dead")
    assert dead(actor)


def dead(actor: Any) -> bool:
    try:
        return value(actor.ping.remote()) != "pong"
    except zf.ActorDiedError:
        return True
