"""Failures that a program does not read are shown: the first with its traceback, the others as a number at its end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import PATIENCE

from zfabric.api.interruption import of_program
from zfabric.config import Config
from zfabric.machines.client import Client
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import FIRST_RETURN, object_id
from zfabric.runtime.lines import ZFABRIC

PROGRAM = """
import sys, time
import zfabric as zf
zf.init(num_cpus=2, config={"show_unread_failures": "hidden" not in sys.argv}, log_to_driver="quiet" not in sys.argv)

@zf.remote
def bad(number, *needs):
    raise ValueError(f"bad url {number}")

@zf.remote
def good(*needs):
    return 1

@zf.remote
class Actor:
    def __init__(self, fails=False):
        if fails:
            raise KeyError("no model")
    def bad(self):
        raise ValueError("bad call")
    def good(self, *needs):
        return 1
    def leave(self):
        zf.exit_actor()

def done(*refs):
    "Until all have an outcome, which nobody reads."
    zf.wait(list(refs), num_returns=len(refs))

def read(ref, **options):
    try:
        zf.get(ref, **options)
    except zf.FabricError:
        pass
"""


def stderr_of(code: str, *arguments: str) -> str:
    """What a program with these lines writes on standard error."""
    program = [sys.executable, "-c", PROGRAM + code, *arguments]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert ended.stdout == ""
    return ended.stderr


def test_the_first_unread_failure_is_shown_and_others_are_counted() -> None:
    text = stderr_of("refs = [bad.remote(i) for i in range(4)]; done(*refs); del refs; done(bad.remote(4))")
    first, *rest = text.splitlines()
    assert "a task failed whose result nobody asked for" in first
    assert "show_unread_failures" in first
    assert first.split(": ", 2)[-1].startswith("bad url") or "ValueError: bad url" in first
    assert any('raise ValueError(f"bad url {number}")' in line or "in bad" in line for line in rest)
    assert rest[-1] == "zfabric warning: 4 more tasks failed whose results nobody asked for"
    assert text.count("zfabric warning") == 2


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ref = bad.remote(1); done(ref)", "ValueError: bad url 1"),
        ("actor = Actor.remote(); done(actor.bad.remote())", "ValueError: bad call"),
        ("actor = Actor.remote(True); done(actor._ref)", "KeyError: 'no model'"),
        ("actor = Actor.remote(True); done(actor.good.remote())", "KeyError: 'no model'"),
        ("first, second = bad.options(num_returns=2).remote(1); done(first); del first, second", "ValueError: bad url 1"),
        ("zf.progress([bad.remote(1)], fail_fast=False)", "ValueError: bad url 1"),
        ("zf.progress([bad.remote(1)])", "ValueError: bad url 1"),
        ("done(zf.remote(max_retries=0)(lambda: __import__('os')._exit(3)).remote())", "WorkerCrashedError"),
    ],
)
def test_an_unread_failure_is_shown_once(code: str, expected: str) -> None:
    text = stderr_of(code)
    assert expected in text
    assert text.count("zfabric warning: a task failed") == 1
    assert "more task" not in text


READ = """
read([bad.remote(i) for i in range(20)])
read([bad.remote(1), good.remote()], return_exceptions=True)
read(bad.options(num_returns=2).remote(1)[1])
bad.remote(1).future().exception()
for ref in zf.as_completed([bad.remote(i) for i in range(3)]):
    read(ref)
ref = bad.remote(1); done(ref); read(good.remote(ref))
ref = bad.remote(1); needs = good.remote(ref); del ref; read(needs)
actor = Actor.remote()
ref = bad.remote(1); done(ref); read(actor.good.remote(ref))
ref = actor.bad.remote(); read(good.remote(ref))
ref = bad.remote(1); zf.get(actor.good.remote([ref]))
zf.put([bad.remote(1)])
ref = bad.remote(1); zf.cancel(ref)
del ref, needs
never = zf.remote(lambda: time.sleep(3600)).remote(); reader = zf.remote(lambda refs: zf.get(refs)).remote([never])
zf.cancel(never); done(reader); del reader
dead = Actor.remote(True); read(dead.good.remote())
leaving = Actor.remote(); done(leaving.leave.remote(), leaving.good.remote())
killed = Actor.remote(); zf.get(killed.good.remote()); zf.kill(killed); done(killed.good.remote())
with zf.Executor() as executor:
    [executor.submit(int, "x").exception() for _ in range(3)]
stream = zf.remote(num_returns="streaming")(lambda: (1 / each for each in (1, 0))).remote()
for ref in stream:
    read(ref)
del stream, ref
"""


def test_failures_that_are_read_passed_on_or_intended_are_not_shown() -> None:
    assert stderr_of(READ) == ""


@pytest.mark.parametrize("setting", ["hidden", "quiet"])
def test_a_setting_turns_the_notice_off(setting: str) -> None:
    assert stderr_of("done(bad.remote(1))", setting) == ""


WORKER = """
@zf.remote
class Submitter:
    def passes_on(self):
        actor = Actor.remote()
        ref = actor.bad.remote(); done(ref)
        return ref, [bad.remote(1)]
    def raises(self):
        raise ValueError([bad.remote(2)])
    def streams(self):
        yield [bad.remote(3)]
    def reads(self):
        read([bad.remote(4) for i in range(20)])
        read(good.remote(bad.remote(4)))
        zf.put([bad.remote(4)])
    def reads_none(self, *names):
        done(*[bad.remote(name) for name in names])

submitter = Submitter.remote()
call, (task,) = zf.get(submitter.passes_on.remote())
read(call); read(task)
try: zf.get(submitter.raises.remote())
except ValueError as error: read(error.args[0])
for ref in submitter.streams.options(num_returns="streaming").remote(): read(zf.get(ref))
zf.get(submitter.reads.remote())
for names in ("A",), "BCDE":
    zf.get(submitter.reads_none.remote(*names))
    sys.stdin.readline()
"""


def test_failures_of_what_workers_submit_are_shown_as_their_output() -> None:
    program = [sys.executable, "-c", PROGRAM + WORKER]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None
        assert running.stderr is not None
        patience = threading.Timer(PATIENCE, running.kill)
        patience.start()
        first = running.stderr.readline()
        assert re.match(
            r"\(Submitter pid=\d+\) zfabric warning: a task failed whose result nobody asked for .*: ValueError: bad url A$", first
        )
        while not running.stderr.readline().endswith("ValueError: bad url A\n"):
            assert running.poll() is None
        print(file=running.stdin, flush=True)
        more = running.stderr.readline()
        assert re.match(
            r"\(Submitter pid=\d+\) zfabric warning: (one|[2-4]) more tasks? failed whose results? nobody asked for, so far$", more
        )
        running.stdin.close()
        assert not [line for line in running.stderr if "bad url" in line]
        patience.cancel()


# --- the machine ---------------------------------------------------------------------------------------------------------------

TASK, OTHER = b"t" * 16, b"o" * 16


@pytest.fixture
def client() -> Client:
    made = Client(b"\x02me", Config())
    made.unread.watching = True
    return made


def fails(client: Client, task_id: bytes, status: int = m.ERROR, failure: bytes = b"error") -> None:
    client.step(0.0, b"L", m.Results(((task_id, status, (failure,)),)))


def drop(client: Client, identifier: bytes) -> None:
    client.dropped.append(identifier)
    client.releases.settle()


def test_a_failure_is_lost_with_its_last_ref(client: Client) -> None:
    ref = client.tasks.submit((TASK, b"f" * 16, b"", ()), 1)
    client.references.add(ref)
    fails(client, TASK)
    drop(client, ref)
    assert client.unread.count == 0
    drop(client, ref)
    assert (client.unread.count, client.unread.lost, client.unread.held) == (1, (m.ERROR, b"error"), {})


def test_a_failure_that_arrives_without_refs_is_lost_at_once(client: Client) -> None:
    drop(client, client.tasks.submit((TASK, b"f" * 16, b"", ()), 1))
    fails(client, TASK)
    assert client.unread.count == 1


def test_failures_of_tasks_without_values_are_always_unread(client: Client) -> None:
    client.tasks.submit((TASK, b"f" * 16, b"", ()), 0)
    fails(client, TASK)
    assert client.unread.count == 1


def test_reading_any_value_of_a_failed_task_counts(client: Client) -> None:
    for task_id in (TASK, OTHER):
        client.tasks.submit((task_id, b"f" * 16, b"", ()), 2)
        fails(client, task_id)
        drop(client, task_id + FIRST_RETURN)
    assert client.unread.count == 0
    client.unread.read((object_id(OTHER, 1),))
    for task_id in (TASK, OTHER):
        drop(client, object_id(task_id, 1))
    assert client.unread.count == 1


def test_a_task_with_a_failed_argument_is_reported_with_it(client: Client) -> None:
    ref = client.tasks.submit((TASK, b"f" * 16, b"", ()), 1)
    client.tasks.submit((OTHER, b"f" * 16, b"", (TASK + FIRST_RETURN,)), 1)
    drop(client, ref)
    fails(client, TASK)
    assert client.unread.count == 0
    fails(client, OTHER)
    assert list(client.unread.held) == [OTHER]


def test_nothing_is_retained_of_successful_tasks_or_without_notices(client: Client) -> None:
    client.tasks.submit((TASK, b"f" * 16, b"", ()), 1)
    client.step(0.0, b"L", m.Results(((TASK, m.OK, (b"value",)),)))
    assert client.unread.held == {}
    client.unread.watching = False
    client.tasks.submit((OTHER, b"f" * 16, b"", ()), 1)
    fails(client, OTHER)
    assert (client.unread.held, client.unread.count) == ({}, 0)


def test_failures_that_the_end_of_the_program_causes_do_not_count(client: Client) -> None:
    for task_id in (TASK, OTHER):
        client.tasks.submit((task_id, b"f" * 16, b"", ()), 0)
    fails(client, TASK)
    client.send(m.Goodbye())
    fails(client, OTHER)
    client.unread.lose_all()
    assert client.unread.count == 1


@pytest.mark.parametrize("kind", ["TaskCancelledError", "JobEndedError", "ActorDiedError"])
def test_intended_failures_do_not_count(client: Client, kind: str) -> None:
    client.tasks.submit((TASK, b"f" * 16, b"", ()), 1)
    fails(client, TASK, m.FAILED, pack_failure(kind, "text"))
    assert client.unread.held == {}


def test_early_reads_are_remembered_up_to_a_limit(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zfabric.machines.client.unread.EXPECTED_MAX", 1)
    refs = [client.tasks.submit((task_id, b"f" * 16, b"", ()), 1) for task_id in (TASK, OTHER)]
    client.unread.expected(refs)
    fails(client, TASK)
    fails(client, OTHER)
    assert list(client.unread.held) == [TASK]


INTERRUPTED = """
def interrupt():
    "Press Ctrl-C once the program is at these lines."
    import linecache, signal, threading, traceback
    main = threading.main_thread().ident

    def lines():
        stack = traceback.extract_stack(sys._current_frames()[main])
        return [frame.line for frame in stack if frame.filename == __file__]

    def press():
        while lines() != LINES:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=press).start()

@zf.remote
def slow():
    time.sleep(100)

failed = [bad.remote(number) for number in range(3)]
done(*failed)
refs = [slow.remote() for _ in range(3)]
interrupt()
"""


@pytest.mark.parametrize(
    ("wait", "shown"),
    [
        ("zf.get(refs)", ["zf.get(refs)"]),
        ("with cluster:\n    zf.wait(refs)", ["zf.wait(refs)"]),
        ("try:\n    zf.get(refs[0])\nfinally:\n    zf.shutdown()", ["zf.get(refs[0])"]),
        ("def mine():\n    for ref in zf.as_completed(refs): pass\nmine()", ["mine()", "for ref in zf.as_completed(refs): pass"]),
        ("while True: pass", ["while True: pass"]),
    ],
)
def test_ctrl_c_shows_the_lines_of_the_program_and_nothing_else(wait: str, shown: list[str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("zf.init(", "cluster = zf.init(") + INTERRUPTED.replace("LINES", repr(shown)) + wait)
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout) == (-signal.SIGINT, "")
    lines = [line for line in ended.stderr.splitlines() if set(line) - set(" ^~")]
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyboardInterrupt"
    assert [line.strip() for line in lines[2:-1:2]] == shown
    assert all(str(program) in line for line in lines[1:-1:2])


def test_frames_that_the_fabric_calls_are_left_out_but_those_of_the_program() -> None:
    def calls(path: str, code: str, **names: Any) -> Callable[[], None]:
        exec(compile(f"def function():\n    {code}", path, "exec"), names)
        return names["function"]  # type: ignore[no-any-return]

    interrupted = calls(f"{ZFABRIC}runtime/here.py", "raise KeyboardInterrupt")
    handler = calls("/home/me/handler.py", "f()", f=interrupted)
    poll = calls("zmq/backend/poll.pyx", "f()", f=handler)
    library = calls(threading.__file__, "f()", f=poll)
    fabric = calls(f"{ZFABRIC}api/core.py", "f()", f=library)
    program = calls("/home/me/program.py", "f()", f=calls(threading.__file__, "f()", f=fabric))
    with pytest.raises(KeyboardInterrupt) as caught:
        program()
    left = of_program(caught.value.__traceback__)
    files = [frame.filename for frame in traceback.extract_tb(left)][1:]
    assert files == ["/home/me/program.py", threading.__file__, "/home/me/handler.py"]
