"""How processes end: programs with threads that still wait, and workers with handlers, children and threads. Real processes."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import one_cluster, running_cluster
from faults import PATIENCE, eventually, failure, gone

import zfabric as zf
from zfabric.runtime import interface

cluster = one_cluster(autouse=False, config={"exit_seconds": 2.0, "leave_seconds": 0.1})
"""Exit handlers have little time here, and enough for those that end: what they write down is looked at."""


def errors_of(cluster: Any, pid: int) -> str:
    """What the worker with this pid has written to its standard error, but for its pid, and marks of what has written it."""
    found = [path.read_text() for path in Path(cluster["session_dir"], "logs").glob("*.err")]
    whole = next(text for text in found if f"pid {pid}\n" in text)
    return "\n".join(line for line in whole.split("\n") if not line.startswith("\x1e") and line not in ("", f"pid {pid}"))


class Exiting:
    def pid(self) -> int:
        print(f"pid {os.getpid()}", file=sys.stderr, flush=True)
        return os.getpid()

    def leave(self) -> None:
        zf.exit_actor()


def cpus_free() -> bool:
    return zf.available_resources().get("CPU") == 2


# --- programs -----------------------------------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, threading, time
import zfabric as zf
from zfabric.util.actor_pool import ActorPool
from zfabric.util.queue import Queue

zf.init(num_cpus=2)

@zf.remote
class Sleeper:
    def sleep(self):
        time.sleep(1000)

@zf.remote
def nothing():
    pass

sleeper = Sleeper.options(max_concurrency=9, num_cpus=0).remote()
never = sleeper.sleep.remote()
pool = ActorPool([sleeper])
pool.submit(lambda actor, _: actor.sleep.remote(), None)
queue = Queue(maxsize=1)
queue.put(1)

def tasks():
    while True:
        zf.get(nothing.remote())

def puts():
    while True:
        zf.get(zf.put(1))

async def awaits():
    await never

waits = {
    "get": lambda: zf.get(never),
    "timeout": lambda: [zf.wait([never], timeout=0.01) for _ in iter(int, 1)],
    "wait": lambda: zf.wait([never]),
    "as_completed": lambda: next(iter(zf.as_completed([never]))),
    "Queue.get": Queue().get,
    "Queue.put": lambda: queue.put(2),
    "ActorPool": pool.get_next,
    "tasks": tasks,
    "puts": puts,
    "await": lambda: asyncio.run(awaits()),
    "future": lambda: never.future().result(),
}
begun = threading.Barrier(len(waits) + 1)

def run(wait):
    begun.wait()
    wait()

for wait in waits.values():
    threading.Thread(target=run, args=(wait,), daemon=True).start()
begun.wait()
zf.get([nothing.remote() for _ in range(100)])
print("end")
"""


def test_threads_that_wait_at_the_end_of_a_program_are_silent() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_thread_that_waits_is_told_of_a_shutdown() -> None:
    """The program goes on: its thread must not wait for ever."""
    raised: list[BaseException] = []
    begun = threading.Event()

    def wait(queue: Any) -> None:
        begun.set()
        try:
            queue.get()
        except zf.NotInitializedError as error:
            raised.append(error)

    with running_cluster():
        thread = threading.Thread(target=wait, args=(zf.util.queue.Queue(),), daemon=True)
        thread.start()
        begun.wait()
    thread.join(PATIENCE)
    assert raised


# --- processes of actors ------------------------------------------------------------------------------------------------------------


class WithChild(Exiting):
    def begin(self) -> int:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        child.start()
        return int(child.pid or 0)


class WithPool(Exiting):
    def begin(self) -> int:
        self.pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        child = self.pool.submit(os.getpid).result()
        self.pool.submit(time.sleep, 1000)
        return child


class WithThread(Exiting):
    def begin(self) -> int:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        return 0


class WithHandler(Exiting):
    def begin(self) -> int:
        atexit.register(threading.Event().wait)
        return 0


@pytest.mark.parametrize("ended", ["dropped", "by itself"])
def test_actors_that_have_ended_release_their_cpus(cluster: Any, ended: str) -> None:
    kinds = (WithChild, WithPool, WithThread, WithHandler)
    actors = [zf.remote(num_cpus=0.5)(kind).remote() for kind in kinds]
    pids = zf.get([actor.pid.remote() for actor in actors], timeout=PATIENCE)
    children = zf.get([actor.begin.remote() for actor in actors], timeout=PATIENCE)
    assert not cpus_free()
    if ended == "by itself":
        assert all(isinstance(failure(actor.leave.remote()), zf.ActorDiedError) for actor in actors)
    del actors
    eventually(cpus_free, "their CPUs are free")
    eventually(lambda: all(gone(pid) for pid in (*pids, *children) if pid), "their processes have ended")
    for kind, pid in zip(kinds, pids, strict=True):
        assert ("(the setting exit_seconds)" in errors_of(cluster, pid)) == (kind is not WithThread)


class Racing(Exiting):
    """Has the control thread receive after the main thread has closed the connection."""

    def prepare(self) -> None:
        client: Any = interface.current()
        connection = client.connection
        transport = connection.control_transport
        poll = transport.poll

        def late(timeout: float) -> bool:
            poll(min(timeout, 0.01))
            if self.leaving.is_set():
                self.held.set()
                while not connection.closed:
                    time.sleep(0.001)  # The main thread closes it.
                with connection.lock:
                    transport._has_datagram = True
            return True

        self.leaving, self.held = threading.Event(), threading.Event()
        (control,) = [each for each in threading.enumerate() if each.name == "zfabric-control"]
        atexit.register(control.join)  # Else the process might exit before it has printed anything.
        transport.poll = late
        transport.wake()

    def leave(self) -> None:
        self.leaving.set()
        self.held.wait()
        zf.exit_actor()


def test_the_control_thread_reads_no_closed_socket(cluster: Any) -> None:
    actor = zf.remote(Racing).remote()
    pid, _ = zf.get([actor.pid.remote(), actor.prepare.remote()], timeout=PATIENCE)
    assert isinstance(failure(actor.leave.remote()), zf.ActorDiedError)
    eventually(lambda: gone(pid), "its process has ended")
    assert errors_of(cluster, pid) == ""


class Waiting(Exiting):
    def begin(self, refs: list[Any]) -> None:
        begun = threading.Barrier(4)

        def run(wait: Any) -> None:
            begun.wait()
            wait()

        for wait in (lambda: zf.get(refs[0]), lambda: zf.wait(refs), lambda: next(iter(zf.as_completed(refs)))):
            threading.Thread(target=run, args=(wait,), daemon=True).start()
        begun.wait()


@zf.remote(num_cpus=0)
class Silent:
    def answer(self) -> None:
        threading.Event().wait()


@pytest.mark.parametrize("ended", ["dropped", "by itself"])
def test_threads_that_wait_at_the_end_of_an_actor_are_silent(cluster: Any, ended: str) -> None:
    silent = Silent.remote()
    actor = zf.remote(Waiting).remote()
    pid, _ = zf.get([actor.pid.remote(), actor.begin.remote([silent.answer.remote()])], timeout=PATIENCE)
    if ended == "by itself":
        assert isinstance(failure(actor.leave.remote()), zf.ActorDiedError)
    del actor
    eventually(lambda: gone(pid), "its process has ended")
    assert errors_of(cluster, pid) == ""
    zf.kill(silent)
