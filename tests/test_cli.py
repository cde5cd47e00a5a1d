"""The command line, as people and scripts use it: real processes, exit codes, what is printed, what is left."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from zfabric.adapters.processes import children
from zfabric.cli.doctor import satisfies
from zfabric.cli.main import SECTIONS, main, program
from zfabric.cli.options import parse_size
from zfabric.protocol.ids import child_prefix, job_id, object_id
from zfabric.protocol.names import brief, matcher
from zfabric.runtime.client import attach
from zfabric.runtime.session import Session

ROOT = Path(__file__).resolve().parent.parent
ZFABRIC = str(Path(sys.executable).with_name("zfabric"))
PATIENCE = 60.0


class Place:
    """A directory of its own for sessions, so that commands see what the test made and nothing else."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.sessions = f"{directory}/zfabric-{os.geteuid()}"
        kept = [name for name in os.environ if not name.startswith("ZFABRIC_") or name == "ZFABRIC_TEST_RUN"]
        self.environment = {name: os.environ[name] for name in kept}
        self.environment.update(TMPDIR=directory, COLUMNS="80", PYTHONUNBUFFERED="1")

    def run(self, *arguments: object, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it must exit with ``code`` and never show a traceback."""
        ended = subprocess.run(
            [ZFABRIC, *map(str, arguments)], env={**self.environment, **more}, cwd=self.directory,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert ended.returncode == code, (ended.args, ended.returncode, ended.stdout, ended.stderr)
        return ended

    def json(self, *arguments: object) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    @contextmanager
    def program(self, source: str, *arguments: str, command: tuple[str, ...] = ("submit",), **more: str) -> Iterator[subprocess.Popen[str]]:
        """A program that runs meanwhile, in a process group of its own as in a terminal."""
        path = tempfile.mkstemp(suffix=".py", dir=self.directory)[1]
        Path(path).write_text(textwrap.dedent(source))
        running = subprocess.Popen(
            [ZFABRIC, *command, path, *arguments], env={**self.environment, **more}, process_group=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield running
        finally:
            running.kill()
            running.communicate()

    def left(self) -> list[str]:
        """What is in the sessions' directory."""
        return sorted(os.listdir(self.sessions)) if os.path.exists(self.sessions) else []


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Wait until ``condition()`` is true; its value."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)
    return value


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@contextmanager
def a_place() -> Iterator[Place]:
    directory = tempfile.mkdtemp(prefix="c", dir=os.environ["TMPDIR"])
    place = Place(directory)
    try:
        yield place
        eventually(lambda: not [name for name in place.left() if Session(f"{place.sessions}/{name}").alive()], "the sessions' end")
    finally:
        for name in place.left():
            if Session(f"{place.sessions}/{name}").alive():
                subprocess.run([ZFABRIC, "stop", "--all"], env=place.environment, capture_output=True, timeout=PATIENCE)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def place() -> Iterator[Place]:
    """Nothing runs here but what the test starts, and all of it has ended afterwards."""
    with a_place() as one:
        yield one


# --- help ------------------------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(program)
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {each}", inner) for each, inner in command.commands.items())
        else:
            yield name, command


def test_help_lists_every_command_on_a_line_of_its_own(place: Place) -> None:
    printed = place.run("--help").stdout
    for title, entries in SECTIONS:
        assert f"\n{title}:\n" in printed
        for entry in entries:
            assert re.search(rf"^  {entry.name} +\S.*\.$", printed, flags=re.MULTILINE), entry
    assert max(map(len, printed.splitlines())) <= 80
    assert place.run("--version").stdout == "zfabric 0.1.0\n"


def test_help_imports_no_command() -> None:
    code = (
        "import sys\nfrom zfabric.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'rich', 'zmq', 'lmdb', 'psutil', 'numpy', 'asyncio'}\n"
        "print(sorted(name for name in sys.modules if name.startswith('zfabric.cli.') or name in heavy), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stderr == "['zfabric.cli.main']\n"


def test_the_documentation_has_every_command_and_option() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    sections = dict(re.findall(r"^### zfabric ([a-z ]+)\n(.*?)(?=^##|\Z)", page, flags=re.MULTILINE | re.DOTALL))
    assert list(sections) == [name for name, _ in commands()]
    for name, command in commands():
        options = {option for each in command.params if isinstance(each, click.Option) for option in each.opts if option.startswith("--")}
        described = set(re.findall(r"`(--[a-z-]+)`", sections[name]))
        assert described == options, name
        assert command.help


def test_completion(place: Place) -> None:
    assert "complete -o nosort" in place.run(_ZFABRIC_COMPLETE="bash_source").stdout
    words = place.run(COMP_WORDS="zfabric st", COMP_CWORD="1", _ZFABRIC_COMPLETE="bash_complete").stdout.split()
    assert words == ["plain,start", "plain,stop", "plain,status", "plain,state"]
    states = place.run(COMP_WORDS="zfabric tasks --state inf", COMP_CWORD="3", _ZFABRIC_COMPLETE="bash_complete").stdout
    assert states.split() == ["plain,infeasible"]


# --- wrong input -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("statsu", 2, "Did you mean 'status'?"),
        ("train.py", 2, "To run a program: zfabric submit train.py"),
        ("--nonsense", 2, "No such option"),
        ("submit", 2, "Missing argument 'SCRIPT'"),
        ("submit /no/such.py", 2, "there is no file '/no/such.py'"),
        ("submit /tmp", 2, "'/tmp' is a directory"),
        ("submit --num-cpus -1 x.py", 2, "not in the range"),
        ("submit --num-cpus many x.py", 2, "not a valid integer"),
        ("submit --resources 5 x.py", 2, "not a JSON object"),
        ('submit --resources {"a":-1} x.py', 2, "cannot be negative"),
        ("submit --config log_to_driver x.py", 2, "not NAME=VALUE"),
        ("submit --config wrker_idle=3 x.py", 2, "no config called 'wrker_idle'"),
        ("submit --config durability=perhaps x.py", 2, "process, power"),
        ("submit --config log_to_driver=maybe x.py", 2, "true or false"),
        ("submit --config batch_rows=many x.py", 2, "whole number"),
        ("submit --object-store-memory 5XB x.py", 2, "not a size"),
        ("submit --address /no/where x.py", 1, "no session at '/no/where'"),
        ("submit --address auto x.py", 1, "no cluster is running here"),
        ("submit --address auto --num-cpus 1 x.py", 2, "has what it was started with"),
        ("start --num-cpus 1.5", 2, "not a valid integer"),
        ("stop", 1, "there is nothing to stop"),
        ("stop --all", 1, "there is nothing to stop"),
        ("stop --all --address x", 2, "exclude each other"),
        ("status", 1, "no cluster is running here; start one with `zfabric start`"),
        ("status --address /tmp", 1, "has ended"),
        ("tasks --state lost", 2, "is not one of"),
        ("tasks --limit 0", 2, "not in the range"),
        ("tasks --address nowhere", 1, "no session at 'nowhere'"),
        ("objects --limit x", 2, "not a valid integer"),
        ("workers extra", 2, "unexpected extra argument"),
        ("explain", 2, "Missing argument 'ID'"),
        ("logs --daemon --worker 3", 2, "exclude each other"),
        ("timeline", 2, "Missing option '-o'"),
        ("state", 2, "Usage"),
        ("state dump --table tasks", 2, "is not one of"),
        ("state dump /no/such", 2, "there is no directory"),
        ("state dump /tmp --address x", 2, "exclude each other"),
        ("state dump /usr", 2, "no control store in /usr"),
    ],
)
def test_wrong_input_is_one_clear_message(arguments: str, code: int, text: str, place: Place, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("TMPDIR", place.directory)
    monkeypatch.delenv("ZFABRIC_ADDRESS", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    printed = capsys.readouterr()
    assert ended.value.code == code, printed
    assert text in printed.err + (printed.out if arguments == "state" else "")
    assert "Traceback" not in printed.err
    assert place.left() == []


def test_values_that_options_take() -> None:
    assert [parse_size(text) for text in ("7", "1k", "2KiB", "1.5 MiB", "3GB", "1gib")] == [7, 1000, 2048, 1572864, 3 * 10**9, 2**30]
    assert [parse_size(text) for text in ("", "x", "5XB", "-1", "1e3", "MiB")] == [None] * 6
    assert [satisfies("2.1.3", bound) for bound in (">=2", ">=2.1.3", ">=2.2", "<3", "<2.1.3", "<2.1", "!=2")] == [
        True, True, False, True, False, False, True,
    ]  # fmt: skip


def test_short_ids_name_what_they_are_short_for() -> None:
    task = child_prefix(job_id(3), b"p") + (57).to_bytes(4, "big")
    names = [task, object_id(task), object_id(task, 2), object_id(task, 2**31 + 4), task[:-1] + b"\x3a", job_id(4) + task[4:]]
    short = [brief(name) for name in names]
    assert short[0] == f"3-{task[4:6].hex()}-57"
    assert [text.removeprefix(short[0]) for text in short[1:4]] == ["-0", "-2", "-p4"]
    for identifier, text in zip(names, short, strict=True):
        matches = matcher(text)
        assert matches is not None
        assert [name for name in names if matches(name)] == [identifier]
    odd = matcher(task.hex()[:31])
    assert odd is not None
    assert [odd(name) for name in names] == [True, True, True, True, True, False]
    assert matcher("xyz") is None
    assert matcher("") is None
    none = matcher(f"3-{task[4:6].hex()}-99999999999")
    assert none is not None
    assert not any(map(none, names))


# --- submit ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "code", "errors"),
    [
        ("print('fine')", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('too bad')", 1, "too bad\n"),
        ("import os; os._exit(9)", 9, ""),
        ("def f(): return 1 / 0\nf()", 1, "ZeroDivisionError: division by zero\n"),
        ("def f(:\n  pass", 1, "SyntaxError: invalid syntax\n"),
        ("import signal, os; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
    ],
)
def test_submit_exits_as_the_program_does(source: str, code: int, errors: str, place: Place) -> None:
    script = Path(place.directory, "p.py")
    script.write_text(source)
    ended = place.run("submit", "p.py", code=code)
    assert ended.stderr.endswith(errors) if errors else ended.stderr == ""
    assert "zfabric" not in ended.stderr
    if "def f()" in source:
        expected = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE)
        assert ended.stderr == expected.stderr


def test_submit_runs_the_program_as_python_would(place: Place) -> None:
    Path(place.directory, "sub").mkdir()
    Path(place.directory, "sub", "beside.py").write_text("def tenfold(x): return 10 * x")
    Path(place.directory, "sub", "p.py").write_text(
        textwrap.dedent("""
        import atexit, beside, json, sys, threading
        import zfabric as zf
        class Own:
            def __init__(self, x): self.x = x
        @zf.remote
        def work(own): return Own(beside.tenfold(own.x))
        if __name__ == "__main__":
            print(json.dumps([sys.argv, sys.path[0], __file__, zf.get(work.remote(Own(4))).x, sys.modules["__main__"].Own is Own]))
            def late(): threading.main_thread().join(); print("late", sys.modules["__main__"].Own is Own)
            threading.Thread(target=late).start()
            atexit.register(lambda: print("last", Own is sys.modules["__main__"].Own))
        """)
    )
    printed = place.run("submit", "--num-cpus", "1", "sub/p.py", "--help", "-x", "--", "a b").stdout.splitlines()
    folder = os.path.realpath(f"{place.directory}/sub")
    assert json.loads(printed[0]) == [["sub/p.py", "--help", "-x", "--", "a b"], folder, f"{folder}/p.py", 40, True]
    assert printed[1:] == ["late True", "last True"]
    assert place.left() == []


def test_submit_says_what_the_cluster_is_made_of_unless_the_program_does(place: Place) -> None:
    Path(place.directory, "p.py").write_text(
        textwrap.dedent("""
        import json, sys, zfabric as zf
        from zfabric.runtime import interface
        if sys.argv[1:]:
            zf.init(num_cpus=1, config={"prefetch_tasks": 5}, resources={"own": 1})
        zf.put(1)
        config = interface.current().config
        print(json.dumps([zf.cluster_resources(), config.worker_idle_seconds, config.prefetch_tasks, config.preload]))
        """)
    )
    options = ["--num-cpus", 3, "--num-gpus", 1, "--resources", '{"tpu": 0.5}', "--config", "worker-idle-seconds=7"]
    options += ["--config", "prefetch_tasks=9", "--config", "preload=json,csv", "--object-store-memory", "100MiB"]
    said = json.loads(place.run("submit", *options, "p.py").stdout)
    assert said == [{"CPU": 3, "GPU": 1, "tpu": 0.5}, 7, 9, ["json", "csv"]]
    said = json.loads(place.run("submit", *options, "p.py", "own").stdout)
    assert said == [{"CPU": 1, "GPU": 1, "own": 1}, 7, 5, ["json", "csv"]]


BUSY = """
    import os, sys, time, zfabric as zf
    zf.init(num_cpus=2)
    @zf.remote
    def work():
        print(os.getpid(), file=open(sys.argv[1], "a"))
        time.sleep(100)
    refs = [work.remote() for _ in range(4)]
    while not os.path.exists(sys.argv[1]) or len(open(sys.argv[1]).readlines()) < 2:
        time.sleep(0.01)
    print("busy", flush=True)
    zf.get(refs)
"""


@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c_ends_the_job_and_leaves_nothing(times: int, place: Place) -> None:
    pids = f"{place.directory}/pids"
    source = BUSY.replace("sys.argv[1]", repr(pids))
    with place.program(source) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "busy\n"
        session = Session(f"{place.sessions}/{place.left()[0]}")
        supervisor = session.describe()["supervisor"]
        for _ in range(times):
            os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=PATIENCE)
        assert running.returncode == 130 if times == 1 else running.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in errors or times > 1
        if times == 1:
            assert errors == "interrupted\n"
            assert place.left() == []
    workers = [int(line) for line in Path(pids).read_text().split()]
    assert len(workers) == 2
    eventually(lambda: all(map(gone, [supervisor, *workers])), "the end of every process")
    eventually(lambda: place.left() == [], "the end of the session's files")


# --- start and stop ---------------------------------------------------------------------------------------------------------------


def test_start_and_stop_twice(place: Place) -> None:
    for _ in range(2):
        facts = place.json("start", "--num-cpus", 1, "--resources", '{"disk": 2}', "--object-store-memory", "64MiB")
        assert facts["resources"] == {"CPU": 1, "disk": 2}
        assert not gone(facts["pid"])
        status = place.json("status")
        assert (status["kind"], status["session"], status["resources"]) == ("started", facts["session"], {"CPU": 1, "disk": 2})
        assert status["store"]["capacity"] <= 64 * 2**20
        refused = place.run("start", code=1)
        assert "is running already" in refused.stderr
        assert place.json("status")["session"] == facts["session"]
        assert facts["session"] in place.run("stop").stdout
        assert gone(facts["pid"])
        assert place.left() == []
        assert "nothing to stop" in place.run("stop", code=1).stderr


def test_of_two_starts_at_once_one_starts(place: Place) -> None:
    command = [ZFABRIC, "start", "--num-cpus", "1", "--object-store-memory", "64MiB"]
    both = [
        subprocess.Popen(command, env=place.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outcomes = sorted((*one.communicate(timeout=PATIENCE), one.returncode)[1:] for one in both)
    assert [code for _, code in outcomes] == [0, 1]
    assert "is running already" in outcomes[1][0]
    assert len(place.left()) == 2  # a session, and the pointer to it
    place.run("stop")
    assert place.left() == []


def test_start_that_cannot_leaves_nothing(place: Place) -> None:
    Path(place.directory, "mine").mkdir()
    Path(place.directory, "mine", "letter").write_text("not a store")
    refused = place.run("start", "--num-cpus", 1, "--store", "mine", code=2)
    assert refused.stderr == f"Error: {place.directory}/mine is not a control store of zfabric, and not empty\n"
    assert "cannot be used: Not a directory" in place.run("start", "--num-cpus", 1, "--store", "mine/letter/store", code=2).stderr
    assert os.listdir(f"{place.directory}/mine") == ["letter"]
    refused = place.run("start", "--num-cpus", 1, "--config", "object_store_directory=/no/such", code=1)
    assert refused.stderr.startswith("Error: the cluster did not start: ")
    assert "/no/such" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert place.left() == []


def test_programs_find_the_started_cluster_and_their_modules(place: Place) -> None:
    session = place.json("start", "--num-cpus", 1, "--object-store-memory", "64MiB")["session"]
    Path(place.directory, "sub").mkdir()
    Path(place.directory, "sub", "beside.py").write_text("def tenfold(x): return 10 * x")
    Path(place.directory, "sub", "p.py").write_text(
        textwrap.dedent("""
        import sys, zfabric as zf, beside
        @zf.remote
        def inner(x): return beside.tenfold(x)
        @zf.remote
        def outer(x): return zf.get(inner.remote(x))
        print(zf.get(outer.remote(1)), zf.get(zf.remote(beside.tenfold).remote(2)), zf.init(ignore_reinit_error=True)["session_dir"])
        """)
    )
    assert place.run("submit", "--address", "auto", "sub/p.py").stdout.split() == ["10", "20", session]
    assert place.run("submit", "sub/p.py", ZFABRIC_ADDRESS=session).stdout.split() == ["10", "20", session]
    own = place.run("submit", "--address", "local", "--num-cpus", 1, "sub/p.py", ZFABRIC_ADDRESS=session).stdout.split()
    assert own[:2] == ["10", "20"]
    assert own[2] != session
    status = place.json("status")
    assert (status["jobs"], status["statistics"]["tasks_finished"]) == ([], 6)
    place.run("stop")
    assert f"there is no session at '{session}'" in place.run("status", "--address", session, code=1).stderr


# --- a live cluster ---------------------------------------------------------------------------------------------------------------


LIVE = """
    import sys, time, numpy as np, zfabric as zf
    zf.init(num_cpus=2, object_store_memory=100 * 2**20, config={"register_seconds": 1.0})

    @zf.remote
    def slow(seconds):
        print("slow begins", flush=True)
        print("slow has doubts", file=sys.stderr, flush=True)
        time.sleep(seconds)

    @zf.remote
    def quick(x): return x

    @zf.remote
    def parent(): return zf.get(quick.remote(9))

    @zf.remote
    def wrong(): raise ValueError("wrong")

    @zf.remote(num_gpus=4)
    def needs_gpus(): pass

    @zf.remote
    def dependent(x): return x

    done = [quick.remote(i) for i in range(3)]
    assert zf.get(done) == [0, 1, 2] and zf.get(parent.remote()) == 9
    failed = wrong.remote()
    zf.wait([failed])
    running = [slow.remote(1000) for _ in range(2)]
    queued = [slow.remote(1000) for _ in range(3)]
    impossible = needs_gpus.remote()
    waiting = dependent.remote(running[0])
    large, small = zf.put(np.zeros(10**6)), zf.put("small")
    array = zf.get(large)
    print("ready", flush=True)
    sys.stdin.readline()
"""


class Live:
    """A cluster whose tasks are known, and its program."""

    def __init__(self, place: Place, running: subprocess.Popen[str]) -> None:
        self.place = place
        self.running = running
        self.session = Session(f"{place.sessions}/{place.left()[0]}")
        self.json = place.json
        self.run = place.run


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with a_place() as place, place.program(LIVE, command=("submit",)) as running:
        assert running.stdout is not None
        lines = iter(running.stdout.readline, "")
        assert "ready\n" in lines
        one = Live(place, running)
        eventually(lambda: [row["state"] for row in place.json("tasks", "--state", "running")] == ["running"] * 2, "two running tasks")
        yield one
        running.communicate("\n", timeout=PATIENCE)
        assert running.returncode == 0


def by_state(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    states: dict[str, list[str]] = {}
    for row in rows:
        states.setdefault(row["state"], []).append(row["name"])
    return states


def test_status(live: Live) -> None:
    status = live.json("status")
    counts = {name: count for name, count in status["tasks"].items() if count}
    assert counts == {"running": 2, "ready": 3, "infeasible": 1, "waiting": 1, "finished": 3, "failed": 1}
    assert (status["resources"], status["available"]) == ({"CPU": 2}, {"CPU": 0})
    assert status["kind"] == "embedded"
    assert status["store"]["objects"] == 1
    assert 8 * 10**6 <= status["store"]["pinned"] < 9 * 10**6
    (job,) = status["jobs"]
    assert (job["number"], job["pid"], job["submitted"], job["ended"]) == (1, live.running.pid, 13, False)
    printed = live.run("status").stdout
    assert re.search(r"^CPU +2 +2 ", printed, flags=re.MULTILINE)
    assert "2 running, 3 ready, 1 infeasible, 1 waiting, 3 finished, 1 failed" in printed
    assert f"program {live.running.pid}" in printed


def test_tasks(live: Live) -> None:
    rows = live.json("tasks")
    assert by_state(rows) == {
        "running": ["slow"] * 2,
        "ready": ["slow"] * 3,
        "infeasible": ["needs_gpus"],
        "waiting": ["dependent"],
        "finished": ["quick"] * 3,
        "failed": ["wrong"],
    }
    assert all(re.fullmatch("[0-9a-f]{32}", row["task_id"]) for row in rows)
    assert [row["demand"] for row in rows if row["state"] == "infeasible"] == [{"CPU": 1, "GPU": 4}]
    assert [row["waits_for"] for row in rows if row["state"] == "waiting"] == [1]
    assert {row["pid"] for row in rows[:2]} == {row["pid"] for row in live.json("workers") if row["state"] == "busy"}
    assert set(by_state(live.json("tasks", "--state", "pending"))) == {"ready", "infeasible", "waiting"}
    assert by_state(live.json("tasks", "--state", "failed", "--state", "waiting")) == {"waiting": ["dependent"], "failed": ["wrong"]}
    assert live.json("tasks", "--state", "blocked") == []
    few = live.run("tasks", "--limit", 2)
    assert len(few.stdout.splitlines()) == 3
    assert "only the first 2 are shown" in few.stderr
    printed = live.run("tasks").stdout.splitlines()
    assert printed[0].split() == ["task", "name", "state", "attempt", "pid", "demand"]
    assert len(printed) == 1 + len(rows)
    assert max(map(len, printed)) <= 80
    assert "\x1b" not in "".join(printed)


def test_objects(live: Live) -> None:
    rows = {row["object_id"]: row for row in live.json("objects")}
    assert all(re.fullmatch("[0-9a-f]{40}", name) for name in rows)
    puts = {row["size"]: row for row in rows.values() if row["made_by"] == "put"}
    large = puts.pop(max(puts))
    assert (large["where"], large["state"], large["in_use_by"], large["on_disk"]) == ("memory", "ready", 1, False)
    (small,) = puts.values()
    assert (small["where"], small["holders"]) == ("inline", 1)
    states = {(row["made_by"], row["state"]) for row in rows.values()}
    assert {("quick", "ready"), ("wrong", "error"), ("slow", "pending"), ("dependent", "pending")} <= states
    assert {row["pins"] for row in rows.values() if row["made_by"] == "slow"} == {0, 1}
    printed = live.run("objects").stdout
    assert "7.6 MiB" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_workers(live: Live) -> None:
    rows = live.json("workers")
    assert [(row["state"], row["task"], row["demand"]) for row in rows if row["task"]] == [("busy", "slow", {"CPU": 1})] * 2
    assert all(row["memory_bytes"] > 0 and row["seconds"] >= 0 and not gone(row["pid"]) for row in rows)
    printed = live.run("workers").stdout
    assert str(rows[0]["pid"]) in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_explain(live: Live) -> None:
    tasks = {row["name"]: bytes.fromhex(row["task_id"]) for row in live.json("tasks")}
    found = live.json("explain", tasks["needs_gpus"].hex())
    assert (found["kind"], found["state"], found["id"]) == ("task", "infeasible", tasks["needs_gpus"].hex())
    assert "no node has or will ever have 1 CPU, 4 GPU" in found["reason"]
    assert found["facts"]["function"] == "needs_gpus"
    dependent = brief(tasks["dependent"])
    assert live.json("explain", dependent)["state"] == "waiting"
    printed = live.run("explain", dependent).stdout
    assert printed.startswith(f"task {dependent} (dependent): waiting\nwaits for 1 of its arguments: ")
    assert "(slow, running)" in printed
    assert live.json("explain", brief(object_id(tasks["wrong"])))["state"] == "failed"
    (large,) = (row["object_id"] for row in live.json("objects") if row["where"] == "memory")
    assert live.json("explain", large.upper())["kind"] == "object"
    worker = live.json("workers")[0]
    for name in (worker["pid"], worker["token"]):
        assert (live.json("explain", name)["kind"], live.json("explain", name)["id"]) == ("worker", worker["token"])
    several = live.run("explain", tasks["dependent"].hex()[:9], code=2).stderr
    assert "can mean" in several
    assert f"{dependent}   task dependent" in several
    for nothing in ("ffff", "9-0000-1", "no-such-id", ""):
        assert "nothing is known of" in live.run("explain", nothing, code=1).stderr


def test_timeline(live: Live) -> None:
    path = f"{live.place.directory}/trace.json"
    assert "6 attempts" in live.run("timeline", "-o", path).stdout
    events = json.loads(Path(path).read_text())
    assert isinstance(events, list)
    spans = [event for event in events if event["ph"] == "X"]
    assert sorted(span["name"] for span in spans) == ["parent", "quick", "quick", "quick", "quick", "wrong"]
    named = {(event["name"], event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    for span in spans:
        assert {type(span["ts"]), type(span["dur"])} <= {int, float}
        assert span["dur"] >= 0
        assert re.fullmatch("[0-9a-f]{32}", span["args"]["task_id"])
        assert named["process_name", span["pid"], 0].startswith("node ")
        assert named["thread_name", span["pid"], span["tid"]] == f"worker {span['tid']}"
    (parent,) = (span for span in spans if span["name"] == "parent")
    within = [span for span in spans if span["tid"] == parent["tid"] and parent["ts"] <= span["ts"] < parent["ts"] + parent["dur"]]
    assert all(span["ts"] + span["dur"] <= parent["ts"] + parent["dur"] for span in within)
    assert {span["tid"] for span in spans} <= {row["pid"] for row in live.json("workers")}
    assert json.loads(live.run("timeline", "-o", "-").stdout) == events
    assert live.run("timeline", "-o", "/dev/null").stdout.startswith("/dev/null: 6")
    assert not Path("/dev/null").is_file()
    assert "cannot be written" in live.run("timeline", "-o", "/no/such/file", code=2).stderr
    assert "is a directory" in live.run("timeline", "-o", live.place.directory, code=2).stderr
    assert [name for name in os.listdir(live.place.directory) if "part" in name] == []


def test_logs(live: Live) -> None:
    busy = [row["pid"] for row in live.json("workers") if row["state"] == "busy"]
    printed = live.run("logs").stdout.splitlines()
    assert {f"(pid={pid}) slow begins" for pid in busy} <= set(printed)
    assert printed.count(f"(pid={busy[0]}) slow has doubts") == 1
    assert live.run("logs", "--worker", busy[0]).stdout == f"(pid={busy[0]}) slow begins\n(pid={busy[0]}) slow has doubts\n"
    assert live.run("logs", "-n", 0).stdout == ""
    assert "nothing of a worker 999999" in live.run("logs", "--worker", 999999, code=1).stderr
    with open(f"{live.session.logs}/daemon.err", "a") as file:
        file.write("one\ntwo\nthree\n")
    assert live.run("logs", "--daemon", "-n", 2).stdout == "(daemon) two\n(daemon) three\n"


def test_state_of_a_running_cluster(live: Live) -> None:
    rows = live.json("state", "dump")
    tables = {row["table"] for row in rows}
    assert {"meta", "job", "function", "event", "task"} <= tables
    assert {row["value"][0] for row in rows if row["table"] == "function"} >= {"slow", "quick", "needs_gpus"}
    (job,) = live.json("state", "dump", "--table", "job")
    assert (job["key"], job["value"]["status"], job["value"]["pid"]) == ("00000001", "running", live.running.pid)
    assert len(live.json("state", "dump", "--table", "function", "--limit", 2)) == 2
    assert live.json("state", "dump", "--limit", 0) == []
    lines = live.run("state", "dump", "--table", "job").stdout.splitlines()
    assert lines[0].startswith("job      00000001  {")
    assert live.json("state", "dump", live.session.directory, "--table", "job") == [job]
    assert "in use by process" in live.run("state", "dump", f"{live.session.directory}/store", code=1).stderr


def test_a_reader_that_has_seen_enough_is_no_error(live: Live) -> None:
    command = f"{ZFABRIC} state dump | head -1"
    ran = subprocess.run(["bash", "-c", command], env=live.place.environment, capture_output=True, text=True, timeout=PATIENCE)
    assert (ran.stdout.count("\n"), ran.stderr) == (1, "")


def test_tools_do_not_stay_registered_even_if_killed(live: Live) -> None:
    def processes() -> int:
        return int(live.json("status")["statistics"]["processes"])

    before = processes()
    code = (
        "import os, sys\nfrom zfabric.runtime.client import attach\nfrom zfabric.runtime.session import Session\n"
        "attach(Session(sys.argv[1]), kind='tool')\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, live.session.directory], env=live.place.environment, timeout=PATIENCE)
    eventually(lambda: processes() == before, "the killed tool is forgotten")


def test_questions_that_are_none(live: Live) -> None:
    client = attach(live.session, kind="tool")
    try:
        wrong = (("nonsense",), ("rows", "tasks"), ("rows", "task", 5), ("rows", "task", b"", -1), ("tasks", 5, ("lost",)), ("find",))
        for question in wrong:
            with pytest.raises(Exception, match=f"^{question[0]}: "):
                client.query(*question)
        assert client.query("rows", "meta")[1] is False
    finally:
        client.close()


# --- which cluster? ---------------------------------------------------------------------------------------------------------------


IDLE = "import sys, zfabric as zf; zf.init(num_cpus=1, object_store_memory=2**26); print('ready', flush=True); sys.stdin.readline()"


def test_tools_choose_a_cluster_or_ask(place: Place) -> None:
    with place.program(IDLE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        only = place.json("status")["session"]
        with place.program(IDLE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            asked = place.run("status", code=2).stderr
            assert "2 clusters are running here" in asked
            listed = re.findall(r"--address (\S+) ", asked)
            assert only in listed
            assert len(listed) == 2
            assert {place.json("status", "--address", each)["session"] for each in listed} == set(listed)
            assert "has what it was started with" in place.run("submit", "--num-cpus", 1, "x.py", code=2, ZFABRIC_ADDRESS=only).stderr
            assert json.loads(place.run("status", "--json", ZFABRIC_ADDRESS=only).stdout)["session"] == only
            started = place.json("start", "--num-cpus", 1, "--object-store-memory", "64MiB")["session"]
            assert place.json("status")["session"] == started
            assert place.json("status", "--address", "auto")["session"] == started
            assert place.json("stop") == [started]
            assert only in place.run("stop", code=1).stderr
            assert sorted(place.json("stop", "--all")) == sorted(listed)
            assert place.left() == []


# --- a started cluster with two programs ------------------------------------------------------------------------------------------


TWO = """
    import json, os, sys, time, numpy as np, zfabric as zf
    zf.init(address="auto")
    @zf.remote(name="work")
    def work(x): time.sleep(0.001); return os.getpid(), x
    @zf.remote(num_cpus=0.5)
    def forever(): time.sleep(1000)
    stuck = forever.remote()
    refs = [work.remote(i) for i in range(20)]
    kept = zf.put(np.full(10**6, os.getpid()))
    durable = zf.put("durable", durable=True)
    values = zf.get(refs)
    assert [x for _, x in values] == list(range(20))
    pids = sorted({pid for pid, _ in values})
    print(json.dumps([zf.get_runtime_context().get_job_id(), pids, [ref.hex() for ref in refs], kept.hex()]), flush=True)
    while sys.stdin.readline():
        assert zf.get(kept)[0] == os.getpid() and zf.get(durable) == "durable"
        print(sum(x for _, x in zf.get([work.remote(i) for i in range(50)])), flush=True)
"""


def rows_of_job(rows: list[dict[str, Any]], job: str) -> list[tuple[str, str]]:
    return [(row["table"], row["key"]) for row in rows if row["table"] not in ("event", "meta") and row["key"].startswith(job)]


def test_two_programs_on_one_cluster_know_nothing_of_each_other(place: Place) -> None:
    place.run("start", "--num-cpus", 2, "--object-store-memory", "100MiB")
    with place.program(TWO) as one, place.program(TWO) as other:
        assert one.stdout is not None
        assert other.stdout is not None
        assert other.stdin is not None
        first, second = json.loads(one.stdout.readline()), json.loads(other.stdout.readline())
        assert first[0] != second[0]
        assert not set(first[1]) & set(second[1])  # no worker served both
        assert not set(first[2]) & set(second[2])
        assert first[3] != second[3]
        assert {job["pid"] for job in place.json("status")["jobs"]} == {one.pid, other.pid}
        workers = {row["pid"] for row in place.json("workers") if row["job"] == first[0]}
        assert workers
        eventually(lambda: ("task" in {table for table, _ in rows_of_job(place.json("state", "dump"), first[0])}), "rows of the first")

        began = time.monotonic()
        one.kill()

        def only_the_tombstone() -> bool:
            return rows_of_job(place.json("state", "dump"), first[0]) == [("job", first[0])]

        eventually(lambda: all(map(gone, workers)), "the end of its workers")
        eventually(only_the_tombstone, "the end of its rows")
        eventually(lambda: place.json("status")["store"]["objects"] == 1, "the end of its objects")
        assert time.monotonic() - began < 30  # ten seconds are promised; this machine may be busy
        assert [row["object_id"] for row in place.json("objects") if row["object_id"].startswith(first[0])] == []
        assert {row["job"] for row in place.json("tasks")} == {second[0]}
        ended = {row["key"]: row["value"]["status"] for row in place.json("state", "dump", "--table", "job")}
        assert ended == {first[0]: "ended", second[0]: "running"}

        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == f"{sum(range(50))}\n"
        other.communicate(timeout=PATIENCE)
        assert other.returncode == 0
    assert place.json("status")["jobs"] == []
    assert rows_of_job(place.json("state", "dump"), second[0]) == [("job", second[0])]
    place.run("stop")


def test_state_of_a_store_that_no_daemon_has_open(place: Place) -> None:
    place.run("start", "--num-cpus", 1, "--object-store-memory", "64MiB", "--store", "kept")
    Path(place.directory, "p.py").write_text("import zfabric as zf\nprint(zf.get(zf.remote(abs).remote(-1)))")
    assert place.run("submit", "--address", "auto", "p.py").stdout == "1\n"
    place.run("stop")
    (job,) = place.json("state", "dump", "kept", "--table", "job")
    assert (job["key"], job["value"]["status"]) == ("00000001", "ended")
    tables = [row["table"] for row in place.json("state", "dump", "kept", "--limit", 1)]
    assert {"meta", "job", "event"} <= set(tables) <= {"meta", "job", "event", "node"}
    assert len(tables) == len(set(tables))
    place.run("start", "--num-cpus", 1, "--object-store-memory", "64MiB", "--store", "kept")
    assert place.run("submit", "--address", "auto", "p.py").stdout == "1\n"
    assert {row["key"] for row in place.json("state", "dump", "--table", "job")} == {"00000001", "00000002"}
    place.run("stop")


# --- logs that are followed, clusters that do not answer ---------------------------------------------------------------------------


TALK = """
    import os, sys, zfabric as zf
    zf.init(num_cpus=1, object_store_memory=2**26, log_to_driver=False)
    @zf.remote(max_retries=0)
    def say(text, die=False):
        print(text, flush=True)
        if die: os._exit(3)
        return os.getpid()
    print(zf.get(say.remote("first")), flush=True)
    sys.stdin.readline()
    zf.wait([say.remote("last words", True)])
    print(zf.get(say.remote("reborn")), flush=True)
    sys.stdin.readline()
"""


def test_following_logs_until_the_cluster_ends(place: Place) -> None:
    with place.program(TALK) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        first = int(running.stdout.readline())
        follower, interrupted = (
            subprocess.Popen([ZFABRIC, "logs", "-f"], env=place.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        )
        try:
            assert follower.stdout is not None
            assert interrupted.stdout is not None
            assert follower.stdout.readline() == interrupted.stdout.readline() == f"(pid={first}) first\n"
            interrupted.send_signal(signal.SIGINT)
            assert interrupted.communicate(timeout=PATIENCE)[1].strip() == "interrupted"
            assert interrupted.returncode == 130
            running.stdin.write("\n")
            running.stdin.flush()
            second = int(running.stdout.readline())
            assert {follower.stdout.readline() for _ in range(2)} == {f"(pid={first}) last words\n", f"(pid={second}) reborn\n"}
            assert place.run("logs", "--worker", first).stdout == f"(pid={first}) first\n(pid={first}) last words\n"
            running.communicate("\n", timeout=PATIENCE)
            follower.wait(PATIENCE)
            assert follower.returncode == 0
        finally:
            for one in (follower, interrupted):
                one.kill()
                one.communicate()


def test_a_daemon_that_is_stopped_gives_a_clear_error(place: Place) -> None:
    source = IDLE.replace("2**26", "2**26, config={'register_seconds': 0.5}")
    with place.program(source) as running:
        assert running.stdout is not None
        running.stdout.readline()
        supervisor = Session(f"{place.sessions}/{place.left()[0]}").describe()["supervisor"]
        (daemon,) = (pid for pid in children(supervisor) if Path(f"/proc/{pid}/comm").read_text() == "zf-daemon\n")
        os.kill(daemon, signal.SIGSTOP)
        try:
            assert "did not answer within 0.5 s" in place.run("status", code=1).stderr
            found = place.run("doctor", "--no-try", code=1).stdout
            assert re.search(r"^clusters +problem +\S+, of program \d+, .* does not answer", found, flags=re.MULTILINE)
            assert "zfabric stop --address" in found
        finally:
            os.kill(daemon, signal.SIGCONT)
        assert place.json("status")["jobs"][0]["pid"] == running.pid


# --- doctor ------------------------------------------------------------------------------------------------------------------------


def levels(report: Any) -> dict[str, str]:
    return {finding["check"]: finding["level"] for finding in report["findings"]}


def test_doctor_finds_a_fit_machine_fit(place: Place) -> None:
    report = place.json("doctor")
    assert report["ok"] is True
    checks = {"python", "system", "libraries", "zeromq", "lmdb", "memory", "limits", "directory", "disk", "clusters", "a cluster"}
    assert checks <= set(levels(report))
    assert "problem" not in levels(report).values()
    printed = place.run("doctor", "--no-try").stdout
    assert printed.endswith("\nThis machine is fit.\n")
    assert "a cluster" not in printed
    assert place.left() == []


def test_doctor_finds_what_is_wrong(place: Place) -> None:
    os.makedirs(place.sessions, mode=0o700)
    os.chmod(place.sessions, 0o755)
    ended = place.run("doctor", code=1)
    assert f"run: chmod 700 {place.sessions}" in ended.stdout
    assert "a cluster" not in ended.stdout  # nothing is tried where it cannot work
    assert f"chmod 700 {place.sessions}" in place.run("start", code=1).stderr
    os.chmod(place.sessions, 0o700)

    os.makedirs(f"{place.sessions}/s-00000000")
    report = place.json("doctor", "--no-try")
    assert (report["ok"], levels(report)["leftovers"]) == (True, "note")

    long = f"{place.directory}/{'x' * 80}"
    os.mkdir(long)
    ended = place.run("doctor", "--no-try", "--json", TMPDIR=long)
    assert levels(json.loads(ended.stdout))["directory"] == "note"

    few = subprocess.run(
        [ZFABRIC, "doctor", "--no-try"], env=place.environment, capture_output=True, text=True, timeout=PATIENCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)),
    )  # fmt: skip
    assert few.returncode == 1
    assert "open files: 200 is too few" in few.stdout
    assert "limits.conf" in few.stdout


@pytest.mark.parametrize(
    ("change", "check", "text"),
    [
        ("import lmdb; lmdb.version = lambda: (1, 0, 0)", "lmdb", "another file format"),
        ("import zmq; zmq.has = lambda what: False", "zeromq", "without ipc"),
        ("from zfabric.adapters import processes; processes.memory_available = lambda: 10**6", "memory", "available"),
        ("import importlib.metadata as md; md.version = lambda name: '0.1'", "libraries", "0.1 is not >="),
        ("import os; os.pidfd_open = lambda pid: 1 / 0", "python", "ZeroDivisionError"),
        ("import os; os.statvfs = lambda path: os.statvfs_result((4096, 4096, 9, 1, 1, 9, 9, 9, 0, 255))", "disk", "4.0 KiB free"),
        ("import zfabric; zfabric.init = lambda **options: 1 / 0", "a cluster", "could not be run"),
    ],
)
def test_doctor_names_each_problem(change: str, check: str, text: str, place: Place) -> None:
    code = f"{change}\nfrom zfabric.cli.main import main\nmain(['doctor', '--json'])"
    ran = subprocess.run([sys.executable, "-c", code], env=place.environment, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 1, ran.stderr
    problems = [finding for finding in json.loads(ran.stdout)["findings"] if finding["level"] == "problem"]
    assert {finding["check"] for finding in problems} == {check}
    assert any(text in finding["text"] for finding in problems)
