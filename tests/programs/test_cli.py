"""The command line: help, wrong input, submit, start and stop, doctor. Real processes, exit codes, output, and leftovers."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from command_line import ZFABRIC, Place, a_place
from faults import PATIENCE, eventually, gone, next_line

from zfabric.adapters.processes import descendants
from zfabric.cli.doctor import satisfies
from zfabric.cli.main import SECTIONS, main, program
from zfabric.config import size_of
from zfabric.protocol.ids import call_value, child_prefix, job_id, object_id
from zfabric.protocol.names import brief, matcher
from zfabric.runtime.session import Session, kept_sessions, sweep

ROOT = Path(__file__).resolve().parents[2]


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


def test_the_package_is_the_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "zfabric", "--version"], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stdout.startswith("zfabric ")
    wrong = subprocess.run([sys.executable, "-m", "zfabric", "sumbit"], capture_output=True, text=True, timeout=PATIENCE)
    assert (wrong.returncode, "Did you mean 'submit'?" in wrong.stderr) == (2, True)


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
    assert words == ["plain,start", "plain,stop", "plain,status", "plain,stack", "plain,state"]
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
        ("submit /tmp", 2, "'/tmp' is a directory; name a file in it, or with -m a package"),
        ("submit --num-cpus -1 x.py", 2, "'--num-cpus': '-1' is not a number of CPUs: write a whole number, 0 or more"),
        ("submit --num-cpus many x.py", 2, "'many' is not a number of CPUs"),
        ("submit --resources 5 x.py", 2, "not a JSON object"),
        ('submit --resources {"a":-1} x.py', 2, "cannot be negative"),
        ("submit --config log_to_driver x.py", 2, "not NAME=VALUE"),
        ("submit --config wrker_idle=3 x.py", 2, "no config called 'wrker_idle'"),
        ("submit --config durability=perhaps x.py", 2, "process, power"),
        ("submit --config log_to_driver=maybe x.py", 2, "true or false"),
        ("submit --config batch_rows=many x.py", 2, "whole number"),
        ("submit --object-store-memory 5XB x.py", 2, "not a size"),
        ("submit --address /no/where x.py", 1, "no session at '/no/where'"),
        ("submit --address auto x.py", 1, "no cluster is running here (looked in "),
        ("status --address head:6790", 1, "'head:6790' is no address: write tcp://head:6790"),
        ("submit --address auto --num-cpus 1 x.py", 2, "has what it was started with"),
        ("start --num-gpus 1.5", 2, "'--num-gpus': '1.5' is not a number of GPUs: write a whole number, 0 or more"),
        ("start --namespace caf\udce9", 2, "not UTF-8"),
        ("start --head --name 2", 2, "'2' could be the number of another node; choose a name such as node-2"),
        ("start --head --name 0123456789abcdef", 2, "could be the id of another node; choose a name such as node-0123"),
        ("start --head --name caf\udce9", 2, "not UTF-8"),
        ("stop", 1, "there is nothing to stop"),
        ("stop --all", 1, "there is nothing to stop"),
        ("stop --all --address x", 2, "exclude each other"),
        ("status", 1, "which TMPDIR decides: a cluster of another TMPDIR is found with that, or by its directory); start one"),
        ("status --address /tmp", 1, "has ended"),
        ("tasks --state lost", 2, "is not one of"),
        ("tasks --limit 0", 2, "'--limit': '0' is not a number of rows: write a whole number, from 1 to 10,000"),
        ("tasks --address nowhere", 1, "no session at 'nowhere': it has ended, or never was"),
        ("debug 4711", 1, "no task waits at a breakpoint in process 4711; `zfabric debug --list` lists those that do"),
        ("sessions", 0, "There are no sessions."),
        ("objects --limit x", 2, "'x' is not a number of rows"),
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
    assert text in printed.err + (printed.out if arguments in ("state", "sessions") else "")
    assert "Traceback" not in printed.err
    assert place.left() == []


def test_values_that_options_take() -> None:
    assert [size_of(text) for text in ("7", "1k", "2KiB", "1.5 MiB", "3GB", "1gib")] == [7, 1000, 2048, 1572864, 3 * 10**9, 2**30]
    assert [size_of(text) for text in ("", "x", "5XB", "-1", "1e3", "MiB")] == [None] * 6
    assert [satisfies("2.1.3", bound) for bound in (">=2", ">=2.1.3", ">=2.2", "<3", "<2.1.3", "<2.1", "!=2")] == [
        True, True, False, True, False, False, True,
    ]  # fmt: skip


def test_short_ids_name_what_they_are_short_for() -> None:
    task = child_prefix(job_id(3), b"p") + (57).to_bytes(4, "big")
    values = [object_id(task), object_id(task, 2), object_id(task, 2**31 + 4), call_value(task, 0)]
    names = [task, *values, task[:-1] + b"\x3a", job_id(4) + task[4:]]
    short = [brief(name) for name in names]
    assert short[0] == f"3-{task[4:6].hex()}-57"
    assert [text.removeprefix(short[0]) for text in short[1:5]] == ["-0", "-2", "-p4", "-c0"]
    for identifier, text in zip(names, short, strict=True):
        matches = matcher(text)
        assert matches is not None
        assert [name for name in names if matches(name)] == [identifier]
    odd = matcher(task.hex()[:31])
    assert odd is not None
    assert [odd(name) for name in names] == [True, True, True, True, True, True, False]
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


def test_submit_sets_the_size_of_the_cluster_unless_the_program_does(place: Place) -> None:
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
    options += ["--config", "prefetch_tasks=9", "--config", "preload=json,csv", "--object-store-memory", "100MiB", "--memory", "1GiB"]
    output = json.loads(place.run("submit", *options, "p.py").stdout)
    own = {"node:127.0.0.1": 1, "node:__internal_head__": 1, "object_store_memory": 100 * 2**20}
    assert output == [{"CPU": 3, "GPU": 1, "memory": 2**30, "tpu": 0.5, **own}, 7, 9, ["json", "csv"]]
    output = json.loads(place.run("submit", *options, "p.py", "own").stdout)
    assert output == [{"CPU": 1, "GPU": 1, "memory": 2**30, "own": 1, **own}, 7, 5, ["json", "csv"]]


BUSY = """
    import os, sys, threading, time, zfabric as zf
    zf.init(num_cpus=2)
    @zf.remote
    def work():
        print(os.getpid(), file=open(sys.argv[1], "a"))
        time.sleep(100)
    refs = [work.remote() for _ in range(4)]
    while not os.path.exists(sys.argv[1]) or len(open(sys.argv[1]).readlines()) < 2:
        time.sleep(0.01)
    def wait_too():
        try:
            zf.get(refs)
        except zf.FabricError:
            pass
    threading.Thread(target=wait_too).start()
    print("busy", flush=True)
    zf.get(refs)
"""


@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c_ends_the_job_and_leaves_nothing(times: int, place: Place) -> None:
    pids = f"{place.directory}/pids"
    source = BUSY.replace("sys.argv[1]", repr(pids))
    with place.program(source) as running:
        assert next_line(running.stdout) == "busy\n"
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


@pytest.mark.parametrize("module", ["msgpack", "click"])
def test_ctrl_c_while_the_command_is_being_loaded_shows_no_traceback(module: str, place: Place) -> None:
    """It comes when one of the first modules that it needs is imported, or the last before it reads what was typed."""
    modules = Path(place.directory, "modules")
    modules.mkdir()
    (modules / f"{module}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise ImportError('late')\n")
    path = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert place.run("submit", "none.py", code=-signal.SIGINT, PYTHONPATH=path).stderr == ""


def test_ctrl_c_ends_the_job_on_a_cluster_that_goes_on(place: Place) -> None:
    place.run("start", "--num-cpus", 2, "--object-store-memory", "64MiB", "--namespace", "shared")
    source = BUSY.replace("sys.argv[1]", repr(f"{place.directory}/pids")).replace("num_cpus=2", "")
    with place.program(source, command=("submit", "--address", "auto")) as running:
        assert next_line(running.stdout) == "busy\n"
        assert [(job["pid"], job["namespace"]) for job in place.json("status")["jobs"]] == [(running.pid, "shared")]
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=PATIENCE)
        assert (running.returncode, errors) == (130, "interrupted\n")
    workers = [int(line) for line in Path(place.directory, "pids").read_text().split()]
    eventually(lambda: all(map(gone, workers)), "the end of the workers")
    assert place.json("status")["jobs"] == []
    assert place.json("tasks") == []
    place.run("stop")


# --- start and stop ---------------------------------------------------------------------------------------------------------------


def test_start_and_stop_twice(place: Place) -> None:
    for _ in range(2):
        facts = place.json("start", "--num-cpus", 1, "--resources", '{"disk": 2}', "--object-store-memory", "64MiB", "--memory", "1GiB")
        own = {"node:127.0.0.1": 1, "node:__internal_head__": 1, "object_store_memory": 64 * 2**20}
        assert facts["resources"] == {"CPU": 1, "disk": 2, "memory": 2**30, **own}
        assert not gone(facts["pid"])
        status = place.json("status")
        assert (status["kind"], status["session"], status["resources"]) == ("started", facts["session"], facts["resources"])
        assert status["store"]["capacity"] <= 64 * 2**20
        refused = place.run("start", code=1)
        assert "is running already" in refused.stderr
        assert place.json("status")["session"] == facts["session"]
        assert facts["session"] in place.run("stop").stdout
        assert gone(facts["pid"])
        assert place.left() == []
        assert "nothing to stop" in place.run("stop", code=1).stderr


def test_two_concurrent_starts_start_one_cluster(place: Place) -> None:
    command = [ZFABRIC, "start", "--num-cpus", "1", "--object-store-memory", "64MiB"]
    both = [subprocess.Popen(command, env=place.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outcomes = sorted((*one.communicate(timeout=PATIENCE), one.returncode)[1:] for one in both)
    assert [code for _, code in outcomes] == [0, 1]
    assert "is running already" in outcomes[1][0]
    assert len(place.left()) == 1
    place.run("stop")
    assert place.left() == []


def test_a_failed_start_leaves_nothing(place: Place) -> None:
    Path(place.directory, "mine").mkdir()
    Path(place.directory, "mine", "letter").write_text("not a store")
    refused = place.run("start", "--num-cpus", 1, "--store", "mine", code=2)
    assert refused.stderr == f"Error: {place.directory}/mine is not a control store of zfabric, and not empty\n"
    assert "cannot be used: Not a directory" in place.run("start", "--num-cpus", 1, "--store", "mine/letter/store", code=2).stderr
    assert os.listdir(f"{place.directory}/mine") == ["letter"]
    refused = place.run("start", "--num-cpus", 1, "--config", "object_store_directory=/proc", code=1)
    assert refused.stderr.startswith("Error: the cluster did not start: the object store's ")
    assert refused.stderr.count("\n") == 1
    assert place.left() == []


def test_start_names_the_error_of_a_preloaded_module(place: Place) -> None:
    Path(place.directory, "mine.py").write_text("def prepare():\n    {}['key']\nprepare()\n")
    refused = place.run("start", "--num-cpus", 1, "--config", "preload=mine", code=1, PYTHONPATH=place.directory)
    first, *lines, last = refused.stderr.splitlines()
    assert first == "Error: the cluster did not start: config 'preload' names 'mine', which cannot be imported:"
    assert lines[-1] == "KeyError: 'key'"
    assert "leave it out" in last
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
    ended = place.run("submit", "--address", "auto", "sub/p.py")
    assert (ended.stdout.split(), ended.stderr) == (["10", "20", session], "")
    assert place.run("submit", "sub/p.py", ZFABRIC_ADDRESS=session).stdout.split() == ["10", "20", session]
    own = place.run("submit", "--address", "local", "--num-cpus", 1, "sub/p.py", ZFABRIC_ADDRESS=session).stdout.split()
    assert own[:2] == ["10", "20"]
    assert own[2] != session
    ended = place.run("submit", "sub/p.py")
    assert (ended.stdout.split(), ended.stderr.count("\n")) == (["10", "20", session], 1)
    assert f'joined the cluster that you have started; zf.init(address="local") starts another ({session})' in ended.stderr
    assert "--address local starts another" in place.run("submit", "--num-cpus", 1, "sub/p.py", code=2).stderr
    status = place.json("status")
    assert (status["jobs"], status["statistics"]["tasks_finished"]) == ([], 9)
    place.run("stop")
    assert f"there is no session at '{session}'" in place.run("status", "--address", session, code=1).stderr
    assert "is an address of a Ray client" in place.run("status", "--address", "ray://127.0.0.1:10001", code=1).stderr


def test_tasks_of_a_program_that_joined_run_where_it_runs(place: Place) -> None:
    for name in ("one", "other", "sent"):
        os.mkdir(f"{place.directory}/{name}")
    Path(place.directory, "p.py").write_text(
        textwrap.dedent("""
        import os, sys, zfabric as zf
        @zf.remote
        def where(): return os.getcwd()
        @zf.remote
        def inner(): return zf.get(where.remote())
        @zf.remote
        class Actor:
            def where(self): return os.getcwd()
        os.chdir(sys.argv[1])
        zf.init()
        if len(sys.argv) > 2: os.rmdir(os.getcwd())
        there = where.options(runtime_env={"working_dir": os.path.dirname(__file__) + "/sent"}).remote()
        print(*zf.get([where.remote(), inner.remote(), Actor.remote().where.remote(), there]))
        """)
    )
    place.run("start", "--num-cpus", 2, "--object-store-memory", "64MiB")
    for name, printed in (("one", "one"), ("other", "other"), ("removed", "")):
        arguments = ("other", "removed") if name == "removed" else (name,)
        *theirs, sent = place.run("submit", "p.py", *arguments).stdout.split()
        assert theirs == [f"{place.directory}/{printed}".rstrip("/")] * 3
        assert (os.path.basename(sent), sent.startswith(place.directory + "/sent")) == ("sent", False)
    place.run("stop")


KEPT = """
    import sys, zfabric as zf
    @zf.remote
    def double(x): print(f"doubled {x}"); return 2 * x
    @zf.remote
    class Sum:
        value = 0
        def add(self, x): self.value += x; return self.value
        def leave(self): zf.exit_actor()
    total, kept = Sum.remote(), zf.put("kept", durable=True)
    calls = [total.add.remote(double.remote(x)) for x in range(5)]
    print(zf.get(calls[-1]))
    try: zf.get(total.leave.remote())
    except zf.ActorDiedError: pass
    zf.wait([total.add.remote(1)])
    if len(sys.argv) > 1: print("ready", flush=True); sys.stdin.readline()
"""


def test_a_retained_session_can_be_inspected(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("TMPDIR", place.directory)
    Path(place.directory, "p.py").write_text(textwrap.dedent(KEPT))

    def look(*arguments: str, code: int = 0) -> str:
        """What a command prints, run in this process."""
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        assert ended.value.code == code, printed
        return str(printed.out or printed.err)

    def rows(*arguments: str) -> Any:
        return json.loads(look(*arguments, "--json"))

    ended = place.run("submit", "--keep", "p.py")
    (kept,) = rows("sessions")
    last = ("--session", "last")
    assert (kept["state"], kept["session"] in ended.stderr, place.left()) == ("kept", True, [f"kept-{kept['session']}"])
    assert sorted(row["name"] for row in rows("tasks", "--session", kept["session"])) == ["Sum", *["double"] * 5]
    assert [row["name"] for row in rows("actors", *last)][:5] == ["Sum.add"] * 5
    assert look("tasks", *last).count("double") == look("logs", *last).count("doubled") == 5
    assert rows("objects", *last) == []
    look("timeline", *last, "-o", f"{place.directory}/t.json")
    assert len([event for event in json.loads(Path(place.directory, "t.json").read_text()) if event["ph"] == "X"]) >= 11
    assert {"event", "job"} <= {row["table"] for row in rows("state", "dump", kept["directory"])}
    with place.program(KEPT, "stays", command=("submit",), ZFABRIC_KEEP="1") as running:
        assert "ready\n" in iter(lambda: next_line(running.stdout), "")
        now, before = rows("sessions")
        assert (now["state"], before["state"]) == ("running", "kept")
        supervisor = Session(now["directory"]).describe()["supervisor"]
        everything = descendants(supervisor)
        os.kill(supervisor, signal.SIGKILL)  # It keeps nothing itself then: who next looks after dead sessions does.
        eventually(lambda: all(map(gone, everything)), "its end, and that of its daemon, which has the store")
        running.kill()
    sweep()
    assert [row["state"] for row in rows("sessions")] == ["kept"] * 2
    assert (len(rows("objects", *last)), look("logs", *last).count("doubled")) == (1, 5)
    assert "exclude each other" in look("logs", *last, "--address", "x", code=2)
    assert look("sessions", "--remove", kept["session"][:4]) == f"Removed {kept['session']}.\n"
    look("sessions", "--remove", "all")
    assert place.left() == []
    assert "--keep" in look("logs", *last, code=1)


def test_a_limited_number_of_sessions_is_retained(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zfabric.runtime.session.KEPT_MAX", 2)
    made = []
    for number in range(4):
        session, lock = Session.create(place.directory)
        description = {"keep": True, "created": 100 + number, "directory": session.directory, "store": f"{session.directory}/store"}
        session.write_description({**description, "spill": ""})
        os.close(lock)
        session.remove()
        session.remove()
        (kept,) = (each.directory for each in kept_sessions(place.directory) if each.identifier == session.identifier)
        os.utime(f"{kept}/session.json", (100 - number, 100 - number))  # Whose files were written last is not the latest.
        made.append(session.identifier)
    assert [session.identifier for session in kept_sessions(place.directory)] == made[2:]
    Path(kept_sessions(place.directory)[1].directory, "session.json").write_text("no description")
    assert [session.identifier for session in kept_sessions(place.directory)] == [made[3], made[2]], "still listed"


# --- doctor ------------------------------------------------------------------------------------------------------------------------


def levels(report: Any) -> dict[str, str]:
    return {finding["check"]: finding["level"] for finding in report["findings"]}


def test_doctor_finds_no_problem_on_a_good_machine(place: Place) -> None:
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
        ("import zfabric.api; zfabric.api.init = lambda **options: 1 / 0", "a cluster", "could not be run"),
    ],
)
def test_doctor_names_each_problem(change: str, check: str, text: str, place: Place) -> None:
    code = f"{change}\nfrom zfabric.cli.main import main\nmain(['doctor', '--json'])"
    ran = subprocess.run([sys.executable, "-c", code], env=place.environment, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 1, ran.stderr
    problems = [finding for finding in json.loads(ran.stdout)["findings"] if finding["level"] == "problem"]
    assert {finding["check"] for finding in problems} == {check}
    assert any(text in finding["text"] for finding in problems)


def test_a_node_that_ended_by_itself_leaves_the_reason_and_no_keys(place: Place) -> None:
    """The head dies, and the node loses its lease."""
    keys = f"{place.directory}/cluster.key"
    head = place.json("start", "--head", "--port", "0", "--key-file", keys, "--num-cpus", "1", "--config", "node_lease=3")
    node = place.json("start", "--address", head["address"], "--key-file", keys, "--num-cpus", "1", "--config", "node_lease=3")
    session = Session(node["session"])
    assert [path for path in (session.key, session.cluster_key) if os.path.exists(path)]
    os.kill(head["pid"], signal.SIGKILL)
    eventually(lambda: not session.alive(), "the node has ended")
    assert not [name for name in os.listdir(session.directory) if "key" in name]
    said = place.run("status", code=1).stderr
    assert re.search(r"The node that was started here ended [\d.]+ m?s ago: .*lease", said), said
    place.run("start", "--num-cpus", "1")
    place.run("stop")
    assert "ended" not in place.run("status", code=1).stderr
