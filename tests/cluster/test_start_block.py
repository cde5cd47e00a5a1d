"""``zfabric start --block``: a node that lives as long as its command, and is drained at SIGTERM. Real processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command_line import ZFABRIC, Place
from faults import PATIENCE, descendants, eventually, failure, gone, name_of, on_node
from files import wait_for_file

import zfabric as zf
from zfabric.adapters.processes import children
from zfabric.cli.main import program
from zfabric.runtime.session import Session

SMALL = ("--num-cpus", "1", "--object-store-memory", "32MB")


class Foreground:
    """A running ``zfabric start --block``, with the facts that it has printed."""

    def __init__(self, place: Place, *arguments: str, prefix: tuple[str, ...] = (), **more: str) -> None:
        command = ["env", "--default-signal=INT", *prefix, ZFABRIC, "start", "--block", *SMALL, "--json", *arguments]
        self.process = subprocess.Popen(
            command, env={**place.environment, **more}, cwd=place.directory, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
        )  # fmt: skip

    def await_start(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        lines = ""
        while not lines.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()
            lines += line
        facts: dict[str, Any] = json.loads(lines)
        return facts

    def end(self) -> tuple[int, str]:
        """The exit code and what it said on standard error."""
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors

    def says(self) -> str:
        """The next line on standard error."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def signal_all(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to every process of the node, as Slurm does."""
        for pid in (*descendants(self.process.pid), self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def foreground(place: Place, *arguments: str, **more: Any) -> Iterator[Foreground]:
    """A node in the foreground, killed at the end if it still runs."""
    node = Foreground(place, *arguments, **more)
    try:
        yield node
    finally:
        node.process.kill()
        node.process.communicate()


def nothing_left(place: Place, facts: dict[str, Any]) -> bool:
    return gone(facts["pid"]) and not os.path.exists(facts["session"])


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="zf-", dir="/tmp") as directory:
        yield Place(directory)


@pytest.fixture
def cluster() -> Iterator[zf.LocalCluster]:
    """A head of one CPU, with this program connected."""
    with (
        zf.LocalCluster(nodes=1, cpus_per_node=1, object_store_memory=64 * 2**20) as made,
        zf.init(made.address),
    ):
        yield made


def joining(cluster: zf.LocalCluster) -> tuple[str, ...]:
    """The options of a node that joins."""
    return "--address", cluster.address, "--key-file", Session(cluster.nodes[0].session_directory).cluster_key, "--name", "joined"


def test_every_process_gets_sigterm_and_a_running_task_ends_first(cluster: zf.LocalCluster, place: Place, tmp_path: Path) -> None:
    begun, signalled = tmp_path / "begun", tmp_path / "signalled"

    @zf.remote(max_retries=0)
    def runs_on(begun: str, signalled: str) -> str:
        Path(begun).touch()
        wait_for_file(signalled)
        # Programs and processes that a task starts still end at SIGTERM.
        started = subprocess.Popen(["sleep", "100"])
        started.terminate()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]
        forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
        forked.start()
        forked.terminate()
        forked.join()
        return f"{started.wait()} {forked.exitcode}"

    with foreground(place, *joining(cluster)) as node:
        facts = node.await_start()
        task = runs_on.options(scheduling_strategy=on_node(facts["node"])).remote(str(begun), str(signalled))
        eventually(begun.exists, "the task runs")
        for _ in range(3):  # Slurm sends it up to three times.
            node.signal_all()
        signalled.touch()
        assert zf.get(task, timeout=PATIENCE) == "-15 -15"
        code, errors = node.end()
        assert (code, errors) == (0, "SIGTERM: draining this node for at most 25 s; Ctrl-C ends it at once\ndrained\n")
        assert nothing_left(place, facts)
    assert [row["Alive"] for row in zf.nodes()] == [True]


def test_a_lone_node_is_found_and_stopped(place: Place) -> None:
    with foreground(place) as node:
        facts = node.await_start()
        status = place.json("status")
        assert (status["kind"], status["session"]) == ("foreground", facts["session"])
        joined = place.run("submit", write(place, "import zfabric as zf; zf.init(); print(zf.get(zf.remote(max).remote(1, 2)))"))
        assert joined.stdout == "2\n"
        assert "a cluster is running already (started" in place.run("start", "--block", code=1).stderr
        assert place.run("stop").stdout.startswith("Stopped the cluster started")
        assert node.end() == (0, "the node has ended: it was stopped\n")
        assert nothing_left(place, facts)


def write(place: Place, source: str) -> str:
    path = f"{place.directory}/program.py"
    Path(path).write_text(source)
    return path


def test_the_node_ends_with_its_command_however_that_ends(place: Place) -> None:
    with foreground(place) as node:
        facts = node.await_start()
        node.process.kill()
        eventually(lambda: nothing_left(place, facts), "the node has ended, too")


def test_a_node_waits_for_its_head_and_ends_with_it(place: Place) -> None:
    key = f"{place.directory}/cluster.key"
    place.run("keys", "create", key)
    address = f"tcp://127.0.0.1:{free_port()}"
    join = "--address", address, "--key-file", key
    assert f"Error: no cluster is at {address}: " in place.run("start", "--block", *join, "--wait", "0", code=1).stderr
    with foreground(place, *join, "--wait", str(PATIENCE)) as node:
        assert node.says().startswith(f"no cluster is at {address}: ")
        node.process.terminate()
        code, errors = node.end()
        assert (code, errors.endswith("SIGTERM: the node ends before it has begun\n")) == (0, True), errors
    with foreground(place, *join, "--wait", str(PATIENCE)) as node:
        assert node.says().startswith(f"no cluster is at {address}: ")
        assert node.says() == f"waiting for the head, at most {PATIENCE:g} s\n"
        with foreground(place, "--head", "--port", address.rpartition(":")[2], "--key-file", key) as head:
            facts = head.await_start()
            node.await_start()
            head.signal_all()
            assert head.end() == (0, "SIGTERM: the cluster ends\n")
            code, errors = node.end()
            assert code == 1
            assert errors.endswith(  # It may have waited for more.
                "Error: the node has ended: the head of the cluster ended with its command, `zfabric start --block`\n"
                "It can join again once the head runs; --wait has it wait for that.\n"
            )
            assert nothing_left(place, facts)


def test_a_drain_ends_after_the_grace_period_or_at_a_second_interrupt(cluster: zf.LocalCluster, place: Place, tmp_path: Path) -> None:
    @zf.remote(max_retries=0)
    def endless(path: str) -> None:
        Path(path).touch()
        wait_for_file(path + ".never")

    for number, grace, expected in (
        (signal.SIGTERM, 0.2, "the node ends after 0.2 s with what was left on it: 1 task\n"),
        (signal.SIGINT, PATIENCE, "interrupted: the node ends without waiting for its tasks\n"),
    ):
        with foreground(place, *joining(cluster), "--grace", str(grace)) as node:
            begun = tmp_path / str(number)
            lost = endless.options(scheduling_strategy=on_node(node.await_start()["node"])).remote(str(begun))
            eventually(begun.exists, "the task runs")
            node.process.send_signal(number)
            assert node.says() == f"{signal.Signals(number).name}: draining this node for at most {grace:g} s; Ctrl-C ends it at once\n"
            if number == signal.SIGINT:
                node.process.send_signal(number)
            assert node.end() == (0, expected)
            assert isinstance(failure(lost), zf.FabricError)


def test_an_idle_node_drains_itself(cluster: zf.LocalCluster, place: Place) -> None:
    task = zf.remote(max_retries=0, resources={"special": 1})(time.sleep).remote(2.5)  # It waits for the node: else that may leave first.
    with foreground(place, *joining(cluster), "--resources", '{"special": 1}', "--idle-timeout", "2") as node:
        facts = node.await_start()
        assert zf.get(task, timeout=PATIENCE) is None
        assert node.end() == (0, "the node has ended: it was drained\n")
        assert nothing_left(place, facts)


def test_as_the_first_process_of_a_container_it_collects_orphans(place: Place) -> None:
    unshare = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child")
    if os.geteuid() or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("PID NAMESPACES CANNOT BE MADE HERE: `zfabric start --block` as PID 1 is not tested")
    with foreground(place, prefix=unshare) as node:
        facts = node.await_start()
        assert facts["pid"] < 100, "a number of the namespace"
        (first,) = descendants(node.process.pid)[:1]
        enter = ("nsenter", "--target", str(first), "--pid", "--mount")
        subprocess.run([*enter, "sh", "-c", "sleep 1000 >/dev/null 2>&1 &"], check=True)
        (orphan,) = eventually(lambda: [pid for pid in children(first) if name_of(pid) == "sleep"], "it has the orphan")
        os.kill(orphan, signal.SIGKILL)
        eventually(lambda: len(children(first)) == 1, "the orphan is collected")
        os.kill(first, signal.SIGTERM)
        assert node.end() == (0, "SIGTERM: the cluster ends\n")
        assert not os.path.exists(facts["session"])


def test_a_notice_is_not_missed_by_a_process_that_becomes_another_program() -> None:
    """As workers with packages of their own do."""
    after = "from zfabric.adapters import termination; termination.disregard(); print('alive')"
    before = (
        "import os, signal, sys; from zfabric.adapters import termination; termination.disregard(); termination.hold(); "
        "os.kill(os.getpid(), signal.SIGTERM); os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    )
    assert subprocess.run([sys.executable, "-c", before, after], capture_output=True, text=True, check=True).stdout == "alive\n"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--grace=nan", "'nan' is not a time in seconds: write a number from 0 to 10,000,000"),
        ("--grace=5", "--grace: only a node in the foreground waits after SIGTERM; add --block"),
        ("--wait=5", "--wait: only a node that joins a cluster waits for its head; add --address"),
        ("--idle-timeout=5", "--idle-timeout: only a node that joins a cluster leaves it; add --address"),
    ],
)
def test_options_that_do_nothing_are_refused(option: str, text: str) -> None:
    refused = CliRunner().invoke(program, ["start", option])
    assert (refused.exit_code, text in refused.output) == (2, True), refused.output


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
