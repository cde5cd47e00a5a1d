"""Stacks of threads: of workers and drivers that answer, of those that cannot, and of unknown ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conftest import one_cluster
from faults import PATIENCE, eventually

import zfabric as zf
from zfabric.cli.stack import stack
from zfabric.exceptions import GetTimeoutError
from zfabric.protocol.names import brief
from zfabric.runtime import sampling
from zfabric.runtime.activity import sample_report
from zfabric.runtime.connect import attach
from zfabric.runtime.session import Session
from zfabric.runtime.timeline import TimelineNode

wide_cluster = one_cluster(num_cpus=8)


def touch(path: Path) -> None:
    """Say that this code is running: what is looked at afterwards is in it, or in what it calls."""
    path.touch()


def here(path: Path) -> bool:
    return eventually(path.exists, f"{path.name} has begun")  # type: ignore[no-any-return]


def session_directory() -> str:
    import zfabric.api.lifecycle as lifecycle

    return lifecycle._started.session.directory  # type: ignore[union-attr]


def looked(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(stack, [*arguments, "--address", session_directory()])
    assert result.exit_code == code, result.output
    return result.output


@zf.remote(max_retries=0)
def inner(path: Path) -> None:
    touch(path)
    time.sleep(1000)


@zf.remote
def outer(path: Path) -> None:
    threading.Thread(target=wait_aside, name="aside", daemon=True).start()
    zf.get(inner.remote(path))


def wait_aside() -> None:
    time.sleep(1000)


@zf.remote(max_retries=0)
def hold(path: Path) -> int:
    touch(path)
    return 3 ** (10**9) % 7  # One operation of the interpreter, which does nothing else meanwhile.


@zf.remote
class Async:
    async def begin(self, path: Path) -> None:
        touch(path)
        await self.wait()

    async def wait(self) -> None:
        await asyncio.sleep(1000)

    async def pid(self) -> int:
        return os.getpid()


@zf.remote(max_concurrency=2)
class Threaded:
    def begin(self, path: Path) -> None:
        touch(path)
        time.sleep(1000)


def test_every_thread_and_coroutine_of_the_workers_and_the_driver(tmp_path: Path) -> None:
    # The other CPUs are taken, so what the task waits for runs on top of it.
    coroutines, threaded = Async.options(num_cpus=7).remote(), Threaded.options(num_cpus=0).remote()
    refs = [coroutines.begin.remote(tmp_path / "async"), threaded.begin.remote(tmp_path / "threaded")]
    assert all(here(tmp_path / name) for name in ("async", "threaded"))
    refs.insert(0, outer.remote(tmp_path / "inner"))
    assert here(tmp_path / "inner")
    text = looked()
    blocks = text.split("\n\n")
    assert blocks[0].startswith(f"driver {os.getpid()}\n")
    assert "in test_every_thread_and_coroutine_of_the_workers_and_the_driver" in blocks[0]

    def block(*parts: str) -> str:
        (found,) = [each for each in blocks[1:] if all(part in each for part in parts)]
        return found

    nested = block("in outer", "in inner")
    task_id = brief(refs[0].binary()[:16])
    assert f"MainThread runs outer ({task_id}) for " in nested
    assert ", inner (" in nested
    assert nested.index("in outer\n      zf.get(inner.remote(path))") < nested.index("in inner\n      time.sleep(1000)")
    assert "  aside\n" in nested
    assert "in wait_aside\n      time.sleep(1000)" in nested
    assert block(
        "coroutine runs Async.begin (", "in Async.begin\n      await self.wait()", "in Async.wait\n      await asyncio.sleep(1000)"
    )
    assert block("runs Threaded.begin (", "in Threaded.begin\n      time.sleep(1000)")
    assert "/zfabric/" not in text
    one = looked(task_id)
    assert one.split(":")[0] == nested.split(":")[0]
    assert "in inner" in one
    assert "/zfabric/runtime/" in looked(task_id, "--all")
    for ref in refs:
        zf.cancel(ref, force=True)


def test_an_event_loop_that_has_nothing_to_do_is_left_out() -> None:
    actor = Async.options(num_cpus=0).remote()
    assert zf.get(actor.pid.remote(), timeout=PATIENCE)
    pid = str(zf.get(actor.pid.remote(), timeout=PATIENCE))
    eventually(lambda: "asyncio" not in looked(pid), "its loop waits")
    assert "zfabric-loop" not in looked(pid)
    everything = looked(pid, "--all")
    assert "zfabric-loop" in everything
    assert "/asyncio/" in everything


def test_the_stack_of_a_waiting_driver_is_shown(tmp_path: Path) -> None:
    """The thread that waits serves the fabric meanwhile, so it is the one that answers."""
    ref = inner.remote(tmp_path / "inner")

    def wait_for_it() -> None:
        with suppress(zf.FabricError):
            zf.get(ref)

    waiting = threading.Thread(target=wait_for_it)
    waiting.start()
    assert here(tmp_path / "inner")
    eventually(lambda: ".wait_for_it\n      zf.get(ref)" in looked().split("\n\n")[0], "the driver's frames are shown")
    zf.cancel(ref, force=True)
    waiting.join()


def test_a_worker_whose_interpreter_is_held_is_dumped_from_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zfabric.runtime.activity.STACKS_SECONDS", 0.3)  # It never answers.
    monkeypatch.setattr("zfabric.runtime.activity.DUMP_SECONDS", PATIENCE)
    ref = hold.remote(tmp_path / "held")
    here(tmp_path / "held")
    task_id = brief(ref.binary()[:16])
    text = eventually(
        lambda: "runs no Python code now" in (found := looked(task_id)) and found, "it has gone on from the file to its operation"
    )
    assert "busy, hold, for" in text
    assert "in hold\n      return 3 ** (10**9) % 7" in text
    pid = int(text.split()[1].rstrip(":"))
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("zfabric.runtime.activity.DUMP_SECONDS", 0.1)
    try:
        assert "does not answer" in looked(str(pid))
    finally:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(zf.exceptions.WorkerCrashedError):
        zf.get(ref, timeout=PATIENCE)


@zf.remote
def busy(begun: Path, end: Path) -> None:
    touch(begun)
    while not end.exists():
        for _ in range(1000):
            deeper(3)


def deeper(times: int) -> int:
    return deeper(times - 1) if times else sum(range(1000))


def test_where_a_process_spends_its_time(tmp_path: Path) -> None:
    ref = busy.remote(tmp_path / "begun", tmp_path / "end")
    here(tmp_path / "begun")
    with closing(attach(Session(session_directory()), kind="tool")) as client:
        (pid,) = client.query("processes", ref.binary()[:16])

        def several() -> Any:  # A busy machine may look once in that time.
            rows = client.query("stacks", pid, 0.2)
            return rows if max(samples for _, _, samples in rows) > 1 else None

        first, second = eventually(several, "several samples"), sample_report(client, pid, True, 0.2)
        with pytest.raises(zf.exceptions.FabricError, match=r"0 to 1.5 seconds, not 10.0; ask again"):
            client.query("stacks", pid, 10.0)
    printed = looked(str(pid), "--seconds", "0.3").splitlines()
    assert [line.split()[1] for line in printed if " busy (" in line or " deeper (" in line][:3] == ["busy", "deeper", "deeper"]
    assert json.loads(looked(str(pid), "--seconds", "0.1", "--json"))[0]["stacks"][0]["samples"] > 0
    assert "needs the PID or ID of one process" in looked("--seconds", "1", code=2)
    (tmp_path / "end").touch()
    zf.get(ref, timeout=PATIENCE)
    stacks = ["/".join(function for _, _, function in frames) for _, frames, _ in first]
    assert any(stack.endswith("/busy/deeper/deeper/deeper/deeper") for stack in stacks), stacks
    assert second["idle"] > 0  # The thread that answers is the fabric's.
    most = max(second["stacks"], key=lambda row: row["samples"])  # One of the fabric's threads may have been at work now and then.
    assert most["frames"][0][2] == "busy"


def test_samples_are_bounded_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "FRAMES_MOST", 3)
    rows = sampling.sampled_threads(0.05)
    assert sum(len(frames) for _, frames, _ in rows) <= 3
    assert any(frames == () and samples > 0 for _, frames, samples in rows), "those without room are counted"
    answers: list[Any] = []
    answered = threading.Event()
    sampler = sampling.Sampler()
    for token in range(3):
        sampler.ask(b"asker", token, 0.5, lambda asked, rows: (answers.append((asked, rows)), answered.set()))
    assert answered.wait(PATIENCE)
    assert [asked for asked, _ in answers] == [[(b"asker", 0), (b"asker", 1), (b"asker", 2)]]


def test_stacks_of_unknown_or_pending_tasks_are_errors() -> None:
    assert "no process, task or actor of this cluster is called so" in looked("999999999", code=1)
    ref = zf.put("a value")
    done = zf.remote(lambda: 1).remote()
    zf.get(done, timeout=PATIENCE)
    assert "it runs nowhere now" in looked(brief(done.binary()[:16]), code=1)
    assert "it runs nowhere now" in looked(brief(ref.binary()), code=1)


def test_a_process_that_was_not_found_may_be_on_a_node_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(node: TimelineNode, subject: bytes) -> Any:
        raise GetTimeoutError("far did not answer within 2 s")

    monkeypatch.setattr("zfabric.cli.stack.nodes_of", lambda client: [TimelineNode(client, "far")])
    monkeypatch.setattr("zfabric.cli.stack.processes_of", silent)
    text = looked("999999999", code=1)
    assert "far is left out: far did not answer within 2 s\n" in text
    assert "there is no stack of '999999999': but for far, which did not answer, no process, task or actor" in text


def test_native_frames_need_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "pip install py-spy" in looked("--native", code=1)
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\necho "native frames of: $*"\n')
    program.chmod(0o755)
    assert f"native frames of: dump --native --pid {os.getpid()}\n" in looked("--native")
