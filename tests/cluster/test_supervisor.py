"""The processes of a node: started, watched, restarted and ended without leftovers, with real processes and stub roles."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgpack
import pytest
from faults import name_of

from zfabric.adapters import processes
from zfabric.adapters.datagrams import SUFFIX
from zfabric.config import Config
from zfabric.exceptions import FabricError
from zfabric.machines.supervisor.restarts import RestartPolicy
from zfabric.protocol.messages import ProcessDied, ProcessTable, WorkerSpawned
from zfabric.runtime.keys import create_server_pair
from zfabric.runtime.launch import Launched, launch, stop
from zfabric.runtime.session import STARTED, Session, find_sessions, kept_sessions, started_session, sweep, user_directory

PATIENCE = 60.0
SLEEP = "import time; time.sleep(1000)"
EVENTS: dict[str, Any] = {kind.__name__: kind for kind in (WorkerSpawned, ProcessDied, ProcessTable)}


def until(condition: Callable[[], Any], launched: Launched | None = None) -> Any:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came"
        assert launched is None or launched.alive(), launched.failure()
        time.sleep(0.002)  # conditions concern other processes, which raise no event here
    return value


def gone(*pids: int) -> bool:
    """Whether these processes have ended and been reaped."""
    return not any(processes.start_ticks(pid) for pid in pids)


def ended(*pids: int) -> bool:
    """Whether these processes have ended; who inherited them may not have reaped them yet."""
    descriptors = [descriptor for pid in pids if (descriptor := processes.open_pidfd(pid)) is not None]
    try:
        return all(processes.wait_pidfd(descriptor, 0) for descriptor in descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


class Fabric:
    """A session with stub roles, seen from the stub daemon's side."""

    def __init__(self, **options: Any) -> None:
        settings = {"arena_size": 0, "daemon": "supervised:daemon", "worker": "supervised:worker", "imports": ("supervised",)}
        self.launched = launch(**{**settings, **options})
        self.session = self.launched.session
        self.tokens = 0
        self.connect(None)

    def connect(self, before: object) -> None:
        _, path = until(lambda: (found := self.session.daemon()) != before and found, self.launched)
        self.daemon_socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.daemon_socket.settimeout(PATIENCE)
        self.daemon_socket.connect(path)
        _, self.daemon, self.daemons_before = msgpack.unpackb(self.daemon_socket.recv(65536))

    def ask(self, what: str, *arguments: Any) -> None:
        self.daemon_socket.send(msgpack.packb((what, *arguments)))

    def event(self) -> Any:
        data = self.daemon_socket.recv(1 << 20)
        assert data, "the daemon ended"
        what, *fields = msgpack.unpackb(data, use_list=False)
        return EVENTS[what](*fields)

    def request(self, source: str, *rest: Any) -> bytes:
        self.tokens += 1
        token = self.tokens.to_bytes(8, "big")
        self.ask("spawn", token, source.encode(), *rest)
        return token

    def spawn(self, source: str, *rest: Any) -> int:
        token = self.request(source, *rest)
        event = self.event()
        assert event == WorkerSpawned(token, event.pid, "")
        assert event.pid > 0
        return int(event.pid)

    def output(self, stream: str = "out", token: int = 0) -> str:
        path = f"{self.session.logs}/worker-{(token or self.tokens).to_bytes(8, 'big').hex()}.{stream}"
        try:
            with open(path) as file:
                return file.read()
        except FileNotFoundError:  # it has not got that far
            return ""

    def template(self) -> int:
        named = lambda: [pid for pid in processes.children(self.launched.pid) if name_of(pid) == "zf-template"]  # noqa: E731
        return int(until(named)[0])

    def close(self) -> None:
        self.daemon_socket.close()
        self.launched.close()


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Fabric]]:
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    with ExitStack() as stack:

        def start(**options: Any) -> Fabric:
            made = Fabric(**options)
            stack.callback(made.close)
            return made

        yield start


# --- workers ------------------------------------------------------------------------------------------------------------------


def test_a_worker_runs_its_job_and_its_exit_is_reported(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    pid = f.spawn("import sys; print('hello'); print('to stderr', file=sys.stderr); sys.exit(7)")
    died = f.event()
    assert died[:3] == (pid, 7, 0)
    assert died.stderr == "to stderr"
    assert died.peak > 2**20
    assert f.output() == "hello\n"
    assert gone(pid)


def test_a_signal_the_peak_memory_and_the_last_lines_are_reported(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    pid = f.spawn(
        "import os, sys\n"
        "for i in range(100): print('line', i, file=sys.stderr)\n"
        "x = bytearray(200 << 20); x[::4096] = b'x' * len(x[::4096])\n"
        "os.kill(os.getpid(), 9)"
    )
    died = f.event()
    assert died[:3] == (pid, 0, signal.SIGKILL)
    assert died.peak > 200 << 20
    assert died.stderr.splitlines() == [f"line {i}" for i in range(80, 100)]


def test_a_crash_leaves_its_traceback(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    f.spawn("import ctypes; ctypes.string_at(0)")
    died = f.event()
    assert died.signal == signal.SIGSEGV
    assert "Segmentation fault" in died.stderr


def test_a_worker_gets_the_environment_of_its_request_and_the_limits_of_workers(
    fabric: Callable[..., Fabric], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    f = fabric()
    f.spawn(
        "import os, resource, signal, sys\n"
        "print(os.environ['FRUIT'], os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'])\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE), os.getpgid(0) == os.getpid(), sys.stdin.read() == '')\n"
        "print(resource.getrlimit(resource.RLIMIT_STACK)[0], sorted(os.listdir('/proc/self/fd')))",
        (("FRUIT", "apple"),),
        3,
    )
    assert f.event().exit_code == 0
    first, second, third = f.output().splitlines()
    assert first == "apple 3 5"
    assert second == "(0, 0) True True"
    stack, _, descriptors = third.partition(" ")
    assert int(stack) >= 8 << 20
    assert descriptors == "['0', '1', '2', '3']"  # the fourth lists the directory


def test_deep_recursion_fits_on_a_workers_stack(fabric: Callable[..., Fabric]) -> None:
    levels = {11: 50_000, 12: 400}.get(sys.version_info[1], 2_000)  # From 3.12 on, recursion through C has a limit of its own.
    f = fabric()
    f.spawn(
        "import sys; sys.setrecursionlimit(10**6)\n"
        "def deep(n): return n and max((n,), key=lambda _: deep(n - 1))\n"  # each level goes through C
        f"deep({levels}); print('back')"
    )
    assert f.event()[1:3] == (0, 0)
    assert f.output() == "back\n"


@pytest.mark.parametrize(
    ("handler", "code"),
    [("import time; atexit.register(time.sleep, 1000)", 0), ("import ctypes; atexit.register(ctypes.PyDLL(None).sleep, 1000)", 1)],
    ids=["in Python", "in C, with Python's lock"],
)
def test_exit_handlers_have_a_time_limit(fabric: Callable[..., Fabric], handler: str, code: int) -> None:
    f = fabric(config=Config(exit_seconds=1.0))  # In which the others have run, also on a busy machine.
    f.spawn(f"import atexit; {handler}; atexit.register(print, 'registered last')")
    assert f.event()[1:3] == (code, 0)
    assert f.output() == "registered last\n"
    errors = f.output("err")
    assert "sleep" in errors or "_run_exit_handlers" in errors
    assert ("(the setting exit_seconds)" in errors) == (code == 0)


def test_workers_do_not_share_random_numbers(fabric: Callable[..., Fabric]) -> None:
    f = fabric(config=Config(preload=("numpy",)))
    for _ in range(2):
        f.spawn("import numpy, random; print(numpy.random.random(), random.random())")
        f.event()
    assert len({*f.output(token=1).split(), *f.output(token=2).split()}) == 4


def test_a_preloaded_module_is_there_and_starts_no_threads(fabric: Callable[..., Fabric]) -> None:
    f = fabric(config=Config(preload=("numpy",)))
    f.spawn("import os, sys; print('numpy' in sys.modules, os.listdir('/proc/self/task').__len__())")
    f.event()
    assert f.output() == "True 1\n"


def test_kill_takes_the_process_group(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    pid = f.spawn("import subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); p.wait()")
    child = int(until(f.output))
    f.ask("kill", pid, "the test says so")
    assert f.event()[:3] == (pid, 0, signal.SIGKILL)
    until(lambda: gone(child, pid))


def test_processes_left_in_a_dead_workers_group_are_killed(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    f.spawn("import subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True)")
    assert f.event().exit_code == 0
    child = int(f.output())
    until(lambda: gone(child))


def test_only_workers_are_killed(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        f.ask("kill", stranger.pid, "by mistake")
        f.spawn(SLEEP)  # the kill was handled before this
        assert stranger.poll() is None
        stranger.kill()


def test_a_spawn_that_is_too_large_to_ask_for_fails(fabric: Callable[..., Fabric]) -> None:
    from zfabric.runtime.supervision import Channel, Supervision

    supervisor, daemon = Channel.pair()
    supervision = Supervision(os.dup(daemon.fileno()))
    supervision.spawn(b"t", b"", (("HUGE", "x" * (64 << 20)),))
    (event,) = supervision.receive()
    assert event[:2] == (b"t", 0)
    assert "cannot be sent" in event.error
    for end in (supervisor, daemon, supervision):
        end.close()


# --- the arena ----------------------------------------------------------------------------------------------------------------


def test_the_arena_is_opened_through_the_supervisor_and_ends_with_it(fabric: Callable[..., Fabric]) -> None:
    f = fabric(arena_size=(4 << 20) - 1)
    description = f.session.describe()
    assert description["arena_size"] == os.stat(description["arena"]).st_size == 4 << 20
    f.spawn("import os; d = session.describe(); print(os.stat(d['arena']).st_size, len(os.listdir('/proc/self/fd')))")
    f.event()
    assert f.output() == f"{4 << 20} 4\n"  # no worker inherits it
    f.close()
    assert not os.path.exists(description["arena"])


def test_a_directory_that_cannot_hold_the_arena_ends_the_session_with_the_reason() -> None:
    launched = launch(arena_size=2 << 20, config=Config(object_store_directory="/proc"), imports=())
    try:
        until(lambda: not launched.alive())
        assert "shared memory cannot be made" in launched.failure()
    finally:
        launched.close()


def test_the_size_of_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    from zfabric.runtime.launch import STORE_BYTES_MIN
    from zfabric.runtime.supervisor import arena_bytes

    monkeypatch.setattr(processes, "memory_total", lambda: 10 << 30)
    monkeypatch.setattr(processes, "memory_available", lambda: 9 << 30)
    assert arena_bytes(Config()) == 3 << 30
    monkeypatch.setattr(processes, "memory_available", lambda: 1 << 30)
    assert 0.7 * 2**30 < arena_bytes(Config()) < 0.9 * 2**30
    assert arena_bytes(Config(object_store_memory=100 << 20)) == 100 << 20
    assert arena_bytes(Config(object_store_memory=1)) == 2 << 20 == STORE_BYTES_MIN


# --- watching -----------------------------------------------------------------------------------------------------------------


def test_the_end_of_a_watched_process_is_reported(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        f.ask("watch", stranger.pid, processes.start_ticks(stranger.pid))
        f.spawn(SLEEP)  # nothing was reported before
        stranger.kill()
        assert f.event() == ProcessDied(stranger.pid, 0, 0, 0, "")


def test_a_watched_process_that_is_gone_or_another_is_reported_at_once(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    with subprocess.Popen(["true"]) as stranger:
        stranger.wait()
    f.ask("watch", stranger.pid, 1)
    assert f.event() == ProcessDied(stranger.pid, 0, 0, 0, "")
    f.ask("watch", os.getpid(), processes.start_ticks(os.getpid()) - 1)
    assert f.event().pid == os.getpid()


# --- restarts -----------------------------------------------------------------------------------------------------------------


def test_a_killed_daemon_is_restarted_with_the_list_of_living_workers(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    assert f.daemons_before == 0
    workers = {f.spawn(SLEEP), f.spawn(SLEEP)}
    for number in range(3):
        before, killed = f.session.daemon(), f.daemon
        os.kill(f.daemon, signal.SIGKILL)
        f.connect(before)
        assert f.daemons_before == number + 1
        assert f.daemon != killed
        table = f.event()
        assert type(table) is ProcessTable
        assert {pid for _, pid in table.workers} == workers
        assert {token for token, _ in table.workers} == {(i + 1).to_bytes(8, "big") for i in range(2)}
    victim = workers.pop()
    f.ask("kill", victim, "to see that the new daemon hears of it")
    assert f.event()[:3] == (victim, 0, signal.SIGKILL)


def test_watches_end_with_the_daemon_that_asked_for_them(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        f.ask("watch", stranger.pid, 0)
        f.spawn(SLEEP)
        before = f.session.daemon()
        os.kill(f.daemon, signal.SIGKILL)
        f.connect(before)
        assert type(f.event()) is ProcessTable
        stranger.kill()
        stranger.wait()
        f.spawn(SLEEP)


def test_a_killed_template_is_restarted_and_its_pending_spawns_fail(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    worker = f.spawn(SLEEP)
    template = f.template()
    os.kill(template, signal.SIGSTOP)
    token = f.request(SLEEP)
    f.ask("kill", worker, "so that the answer shows the request has been handled")
    assert f.event().pid == worker
    os.kill(template, signal.SIGKILL)
    failed = f.event()
    assert failed[:2] == (token, 0)
    assert "template" in failed.error
    assert f.spawn(SLEEP) > 0


def test_a_spawn_asked_for_by_a_dead_daemon_leaves_no_worker(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    template = f.template()
    os.kill(template, signal.SIGSTOP)
    f.request(SLEEP)
    f.ask("watch", os.getpid(), 1)  # answered at once, so the spawn has been handled
    f.event()
    before = f.session.daemon()
    os.kill(f.daemon, signal.SIGKILL)
    f.connect(before)
    os.kill(template, signal.SIGCONT)
    assert f.event() == ProcessTable(())
    died = f.event()
    assert died[1:3] == (0, signal.SIGKILL)
    assert f.spawn(SLEEP) != died.pid


def test_a_daemon_that_cannot_start_ends_the_session_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    launched = launch(arena_size=0, daemon="supervised:broken_daemon", imports=("supervised",), config=Config(restart_backoff_max=0.001))
    try:
        with open(f"{launched.session.logs}/supervisor.err") as log:
            until(lambda: not launched.alive())
            assert log.read().count("next start in") == 9
        assert "born broken" in launched.failure()
        assert "exit code 1" in launched.failure()
    finally:
        launched.close()
    assert not os.path.exists(launched.session.directory)


def test_a_module_that_cannot_be_loaded_ends_the_session_at_once() -> None:
    launched = launch(arena_size=0, imports=("zfabric.no_such_module",))
    try:
        until(lambda: not launched.alive())
        assert "zfabric.no_such_module" in launched.failure()
    finally:
        launched.close()


def test_a_preload_that_fails_ends_the_session_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    config = Config(preload=("no_such_module",), restart_backoff_max=0.001)
    launched = launch(arena_size=0, daemon="supervised:daemon", imports=("supervised",), config=config)
    try:
        until(lambda: not launched.alive())
        assert "No module named 'no_such_module'" in launched.failure()
    finally:
        launched.close()


@pytest.mark.parametrize(
    ("source", "says", "do"),
    [
        ("def prepare():\n    {}['key']\nprepare()\n", 'mine.py", line 2, in prepare\n', "leave it out"),
        ("import sys\nsys.exit('not without a licence')\n", "not without a licence\n", "leave it out"),
        ("def broken(:\n", "SyntaxError: invalid syntax\n", "leave it out"),
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n", "starts threads", "in a function"),
    ],
    ids=["raises", "exits", "syntax", "threads"],
)
def test_a_preload_that_fails_shows_the_users_lines_and_what_to_do(
    source: str, says: str, do: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    paths = (str(tmp_path), *sys.path)
    launched = launch(
        arena_size=0, daemon="supervised:daemon", imports=("supervised",), config=Config(preload=("json", "mine")), paths=paths
    )
    try:
        until(lambda: not launched.alive())
        output = launched.failure()
    finally:
        launched.close()
    assert output.startswith("config 'preload' names 'mine', which ")
    assert says in output
    assert do in output.splitlines()[-1]
    assert not any(part in output for part in ("template.py", "supervisor.py", "importlib", "exit code"))


def test_restarts_are_immediate_then_slower_and_given_up_only_if_it_never_came_up() -> None:
    policy = RestartPolicy(backoff_max=0.1, failures_max=3, settled=10.0)
    now, pauses = 0.0, []
    for _ in range(6):
        policy.on_start(now)
        pauses.append(policy.on_death(now + 1, came_up=True))
    assert pauses == [0.0, 0.02, 0.04, 0.08, 0.1, 0.1]
    policy.on_start(20)
    assert policy.on_death(31, came_up=True) == 0.0
    outcomes = []
    for _ in range(3):
        policy.on_start(40)
        outcomes.append(policy.on_death(41, came_up=False))
    assert outcomes[-1] is None
    assert None not in outcomes[:-1]


# --- the end ------------------------------------------------------------------------------------------------------------------


def test_closing_ends_the_daemon_in_order_and_leaves_nothing(
    fabric: Callable[..., Fabric], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("SUPERVISED_MARK", str(mark))
    f = fabric()
    f.spawn("import subprocess, time; p = subprocess.Popen(['setsid', 'sleep', '1000']); print(p.pid, flush=True); time.sleep(1000)")
    escaped = int(until(f.output))
    everything = [f.launched.pid, *processes.children(f.launched.pid), escaped]
    assert len(everything) >= 5
    f.launched.close()
    assert mark.read_text() == "ended in order"
    assert gone(*everything)
    assert not os.path.exists(f.session.directory)
    f.launched.close()  # again, to no effect


def test_a_daemon_that_does_not_end_is_killed(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    os.kill(f.daemon, signal.SIGSTOP)
    everything = [f.launched.pid, *processes.children(f.launched.pid)]
    f.launched.close()
    assert gone(*everything)


def test_a_killed_supervisor_ends_its_processes_and_a_sweep_removes_the_rest(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    f.spawn(SLEEP)
    everything = until(lambda: len(found := processes.children(f.launched.pid)) == 3 and found)
    os.kill(f.launched.pid, signal.SIGKILL)
    until(lambda: ended(*everything))
    assert "killed" in f.launched.failure()
    assert not f.session.alive()
    assert sweep() == [f.session.directory]
    assert not os.path.exists(f.session.directory)


def test_a_living_session_is_not_swept(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    assert sweep() == []
    assert f.session.alive()
    assert [s.directory for s in find_sessions()] == [f.session.directory]
    assert f.spawn(SLEEP)


DRIVER = """
import os, sys, time
from zfabric.runtime.launch import launch
launched = launch(arena_size=0, daemon="supervised:daemon", worker="supervised:worker", imports=("supervised",))
forked = os.fork()
if forked == 0:
    launched.close()  # the parent's, so this does nothing
    time.sleep(1000)
while not launched.session.daemon(): time.sleep(0.001)
print(launched.pid, forked, launched.session.directory, flush=True)
time.sleep(1000)
"""


def test_a_killed_driver_ends_its_session_even_if_a_child_has_the_lifeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            supervisor, forked, directory = driver.stdout.readline().split()
            pidfd = os.pidfd_open(int(supervisor))
            everything = processes.children(int(supervisor))
        finally:
            driver.kill()
        assert processes.wait_pidfd(pidfd, PATIENCE)
        os.close(pidfd)
        assert gone(*everything)
        assert not os.path.exists(directory)
        os.kill(int(forked), signal.SIGKILL)


def test_ctrl_c_in_the_terminal_does_not_reach_the_session(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    worker = f.spawn(SLEEP)
    for pid in (f.launched.pid, f.daemon, f.template(), worker):
        assert os.getsid(pid) == f.launched.pid != os.getsid(0)
    for pid in (f.launched.pid, f.daemon, f.template()):
        os.kill(pid, signal.SIGINT)
    assert f.spawn(SLEEP)


def test_the_latest_session_is_the_latest_though_the_clock_was_set_back(fabric: Callable[..., Fabric]) -> None:
    before, after = fabric(), fabric()
    assert before.session.describe()["started"] < after.session.describe()["started"]
    os.utime(f"{after.session.directory}/session.json", (0, 0))
    assert [each.directory for each in find_sessions()] == [before.session.directory, after.session.directory]


def test_a_started_session_outlives_its_launcher_and_is_found_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    program = (
        "from zfabric.runtime.launch import launch\n"
        "resources = {'CPU': 2.0, 'memory': 1.0}\n"
        "launch(kind='started', arena_size=0, daemon='supervised:daemon', imports=('supervised',), resources=resources).detach()"
    )
    assert started_session() is None
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)  # EOF shows that nothing holds the pipe
    session = until(started_session)
    try:
        until(session.daemon)
        description = session.describe()
        assert description["kind"] == STARTED
        assert description["resources"] == {"CPU": 2.0, "memory": 1.0}
        assert description["started"] == processes.start_ticks(description["supervisor"])
        assert session.config() == Config()
    finally:
        assert stop(session)
    assert ended(description["supervisor"])
    assert started_session() is None
    assert not os.path.exists(session.directory)
    # Beside it there may be the reasons of nodes that ended by themselves in tests of other files.
    assert [name for name in os.listdir(user_directory()) if session.identifier in name] == []


def test_ten_sessions_leave_files_and_descriptors_as_they_were(fabric: Callable[..., Fabric]) -> None:
    descriptors, files = os.listdir("/proc/self/fd"), os.listdir(user_directory())
    for _ in range(10):
        f = fabric()
        worker = f.spawn(SLEEP)
        pids = [f.launched.pid, f.daemon, worker]
        f.close()
        assert gone(*pids)
    assert os.listdir("/proc/self/fd") == descriptors
    assert os.listdir(user_directory()) == files


def test_a_supervisor_that_released_its_lock_is_awaited_and_its_reason_shown(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    launched = Launched(Session(str(tmp_path)), STARTED, child.pid, -1)
    wait = processes.wait_pidfd

    def ends(pidfd: int, seconds: float) -> bool:
        if seconds:
            child.communicate()
        return wait(pidfd, seconds)

    monkeypatch.setattr(processes, "wait_pidfd", ends)
    try:
        assert launched.alive()
        assert launched.failure() == "the supervisor was killed"
    finally:
        child.communicate()
        launched.detach()


# --- directories --------------------------------------------------------------------------------------------------------------


def test_a_directory_that_others_could_enter_or_own_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base = "/tmp/" + os.urandom(3).hex()
    os.mkdir(base)
    try:
        parent = user_directory(base)
        os.chmod(parent, 0o750)
        with pytest.raises(FabricError, match="chmod 700"):
            Session.create(base)
        os.chmod(parent, 0o700)
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        os.rename(parent, f"{base}/zfabric-{owner + 1}")
        with pytest.raises(FabricError, match="belongs to user"):
            launch(base=base)
        os.rmdir(f"{base}/zfabric-{owner + 1}")
        os.symlink("/tmp", f"{base}/zfabric-{owner + 1}")
        with pytest.raises(FabricError, match="not a directory"):
            launch(base=base)
        os.unlink(f"{base}/zfabric-{owner + 1}")
    finally:
        os.rmdir(base)


def test_paths_of_sockets_stay_short_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    assert user_directory() == f"/tmp/zfabric-{os.geteuid()}"
    with pytest.raises(FabricError, match="too long"):
        user_directory(str(long))
    monkeypatch.undo()
    session, lock = Session.create()
    try:
        assert len(session.socket_path(bytes(8)) + SUFFIX) <= 100
        assert os.stat(session.directory).st_mode & 0o777 == 0o700
        assert session.alive()
        assert session.daemon() is None
        session.publish_daemon(bytes(range(8)))
        assert session.daemon() == (bytes(range(8)), session.socket_path(bytes(range(8))))
    finally:
        os.close(lock)
        assert sweep() == [session.directory]


@pytest.mark.parametrize("killed_after", ["rename", "replace"])
def test_a_session_that_is_to_be_kept_is_whole_whenever_who_keeps_it_is_killed(killed_after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory has its last name, or the description its last content: the next process does the rest."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as base:
        session, lock = Session.create(base)
        facts = {"keep": True, "directory": session.directory, "store": f"{session.directory}/store", "spill": "", "created": 1.0}
        session.write_description(facts)
        os.close(lock)
        usual = getattr(os, killed_after)

        def last(source: str, target: str) -> None:
            usual(source, target)
            raise KeyboardInterrupt

        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr(os, killed_after, last)
            session.remove()
        sweep(base)
        (kept,) = kept_sessions(base)
        assert kept.identifier == session.identifier
        found = kept._written()
        assert (found["directory"], found["store"]) == (kept.directory, f"{kept.directory}/store")
        assert found["ended"] > 1.0


def test_a_supervisor_never_waits_for_a_daemon_that_does_not_read() -> None:
    from zfabric.runtime.supervision import Channel, Supervision

    supervisor, daemon = Channel.pair()
    for number in range(20_000):
        supervisor.post("ProcessDied", number, 0, 0, 0, "x" * 100)
    assert supervisor.waiting
    supervision = Supervision(os.dup(daemon.fileno()))
    events: list[Any] = []
    while len(events) < 20_000:
        assert select.select([supervision], [], [], PATIENCE)[0]
        events += supervision.receive()
        supervisor.flush()
    assert [event.pid for event in events] == list(range(20_000))
    assert not supervisor.waiting
    for end in (supervisor, daemon, supervision):
        end.close()


# --- the transfer agent -------------------------------------------------------------------------------------------------------


def agents(fabric: Fabric) -> list[int]:
    return [pid for pid in processes.children(fabric.launched.pid) if name_of(pid) == "zf-transfer"]


def test_a_transfer_agent_is_restarted_ends_with_its_daemon_and_its_port_outlives_both(fabric: Callable[..., Fabric]) -> None:
    f = fabric(transfer="127.0.0.1:0", arena_size=8 * 2**20)
    keys = f"{f.session.directory}/key"
    create_server_pair(keys)
    endpoint = f.session.describe()["transfer"]
    assert agents(f) == []
    f.ask("start_agent", b"\x01daemon0", keys)
    f.ask("start_agent", b"\x01daemon0", keys)
    (first,) = until(lambda: agents(f), f.launched)
    port = int(endpoint.rpartition(":")[2])
    with open(f"/proc/{first}/cmdline") as file:
        assert "key" not in file.read()
    os.kill(first, signal.SIGKILL)
    (second,) = until(lambda: [pid for pid in agents(f) if pid != first], f.launched)
    socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    before = f.session.daemon()
    os.kill(f.daemon, signal.SIGKILL)
    f.connect(before)
    assert gone(second)
    assert agents(f) == []
    socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    f.ask("start_agent", b"\x01daemon1", keys)
    assert until(lambda: agents(f), f.launched)


def test_without_a_transfer_port_there_is_no_agent_and_no_tcp_socket(fabric: Callable[..., Fabric]) -> None:
    f = fabric()
    assert f.session.describe()["transfer"] == ""
    f.ask("start_agent", b"\x01daemon0", "nowhere")
    f.spawn(SLEEP)
    assert agents(f) == []
