"""Output of tasks: on the driver's terminal before ``get`` returns, with the name of its task."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from command_line import ZFABRIC
from conftest import one_cluster
from faults import PATIENCE, eventually, session

import zfabric as zf
from zfabric.protocol.names import brief

TIMES = 20


loud_cluster = one_cluster(log_to_driver=True, config={"log_repeat_seconds": 0.0})


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``get`` wait for output however busy the daemon is that reads it."""
    monkeypatch.setattr("zfabric.runtime.client.OUTPUT_SECONDS", PATIENCE)


Read = Callable[[], tuple[list[str], list[str]]]


@pytest.fixture
def read(capfd: pytest.CaptureFixture[str]) -> Read:
    """The lines of standard output and error that have come since it was called last."""

    def lines() -> tuple[list[str], list[str]]:
        found = capfd.readouterr()
        return found.out.splitlines(), found.err.splitlines()

    return lines


@zf.remote
def speak(number: int) -> int:
    print("spoke", number)
    print("complained", number, file=sys.stderr)
    return os.getpid()


@zf.remote
def quiet() -> int:
    return os.getpid()


@zf.remote
class Speaker:
    def speak(self, number: int) -> int:
        print("spoke", number, end="")
        return os.getpid()

    def ask(self, number: int) -> int:
        return zf.get(speak.remote(number))


def test_output_of_a_task_is_shown_before_its_result(read: Read) -> None:
    for number in range(TIMES):
        pid = zf.get(speak.remote(number), timeout=PATIENCE)
        assert read() == ([f"(speak pid={pid}) spoke {number}"], [f"(speak pid={pid}) complained {number}"])
    pids = zf.get([speak.remote(number) for number in range(TIMES)], timeout=PATIENCE)
    assert sorted(read()[0]) == sorted(f"(speak pid={pid}) spoke {number}" for number, pid in enumerate(pids))
    zf.get([quiet.remote() for _ in range(TIMES)], timeout=PATIENCE)
    assert read() == ([], [])


def test_output_of_actors_and_their_callees_is_shown_before_results(read: Read) -> None:
    speaker = Speaker.options(name="the speaker").remote()
    for number in range(TIMES):
        pid = zf.get(speaker.speak.remote(number), timeout=PATIENCE)
        assert read()[0] == [f"(Speaker, the speaker pid={pid}) spoke {number}"]
    for number in range(TIMES):
        pid = zf.get(speaker.ask.remote(number), timeout=PATIENCE)
        assert read()[0] == [f"(speak pid={pid}) spoke {number}"]


def test_output_of_streams_threads_coroutines_and_errors_is_shown_before_results(read: Read) -> None:
    @zf.remote(num_returns="streaming")
    def stream() -> Iterator[int]:
        for number in range(3):
            print("yields", number)
            yield os.getpid()

    lines: list[str] = []
    for number, ref in enumerate(stream.remote()):
        pid = zf.get(ref, timeout=PATIENCE)
        lines += read()[0]
        assert f"(stream pid={pid}) yields {number}" in lines

    @zf.remote
    class Async:
        async def speak(self) -> int:
            print("from a loop")
            return os.getpid()

    @zf.remote(max_concurrency=2)
    class Threaded:
        def speak(self) -> int:
            print("from a thread")
            return os.getpid()

    for kind, text in ((Async, "(Async pid={}) from a loop"), (Threaded, "(Threaded pid={}) from a thread")):
        actor = kind.remote()
        for _ in range(3):
            assert read()[0] == []
            pid = zf.get(actor.speak.remote(), timeout=PATIENCE)
            assert read()[0] == [text.format(pid)]

    @zf.remote
    def fails() -> None:
        sys.stdout.buffer.write(b"bytes\n")
        sys.stdout.flush()
        raise ValueError

    with pytest.raises(ValueError):
        zf.get(fails.options(name="by another name").remote(), timeout=PATIENCE)
    (line,) = read()[0]
    assert line.startswith("(by another name pid=")
    assert line.endswith(") bytes")


def test_records_of_logging_have_their_level_and_logger_and_a_task_may_configure_it(read: Read) -> None:
    @zf.remote(runtime_env={"env_vars": {"A_PROCESS": "of its own"}})
    def log(configure: bool) -> int:
        if configure:
            logging.basicConfig(level=logging.INFO, format="%(levelname)s from %(name)s, %(message)s", force=False)
        logging.getLogger("my.library").warning("careful")
        logging.getLogger("my.library").info("by the way")
        return os.getpid()

    pid = zf.get(log.remote(False), timeout=PATIENCE)
    assert read()[1] == [f"(log pid={pid}) WARNING:my.library:careful"]
    pid = zf.get(log.remote(True), timeout=PATIENCE)
    assert read()[1] == [
        f"(log pid={pid}) {text} from my.library, {word}" for text, word in (("WARNING", "careful"), ("INFO", "by the way"))
    ]


def test_output_of_child_processes_is_shown_and_escapes_are_text(read: Read) -> None:
    @zf.remote
    def child() -> None:
        subprocess.run([sys.executable, "-c", r"print('\033]0;title\007 \033[31mred')"], check=True)

    seen: list[str] = []

    def come() -> bool:
        seen.extend(read()[0])
        return bool(seen)

    zf.get(child.remote(), timeout=PATIENCE)
    eventually(come, "what the child printed")
    assert seen[0].endswith(") \\x1b]0;title\\x07 \x1b[31mred\x1b[0m")


def test_a_crash_shows_where_the_program_was(read: Read) -> None:
    @zf.remote(max_retries=0)
    def crash() -> None:
        import ctypes

        ctypes.string_at(0)

    with pytest.raises(zf.exceptions.WorkerCrashedError) as caught:
        zf.get(crash.remote(), timeout=PATIENCE)
    lines = read()[1]
    assert [line for line in lines if "Fatal Python error" in line and line.startswith("(crash pid=")], lines
    logs = subprocess.run([ZFABRIC, "logs", "--address", session().directory], capture_output=True, text=True, check=True).stdout
    signed = [line for line in logs.splitlines() if line.startswith("(crash pid=")]
    task_id = brief(bytes.fromhex(caught.value.facts["task"]))
    assert signed[-1].endswith(f") this worker died of signal 11 while it ran crash ({task_id})"), logs
    printed = "\n".join(lines)
    for text in (printed, str(caught.value)):
        assert "Fatal Python error: Segmentation fault" in text
        assert f'{__file__}", line {crash._function.__code__.co_firstlineno + 4} in crash' in text
        assert "/zfabric/" not in text
        assert "Extension modules" not in text
