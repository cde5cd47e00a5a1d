"""``zfabric start --block``: a node that lives as long as its command, and is drained at SIGTERM. Real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import PATIENCE, ZFABRIC, Place
from faults import descendants, eventually, gone, on_node

import zfabric as zf
from zfabric.runtime.session import Session

SMALL = ("--num-cpus", "1", "--object-store-memory", "32MB")


class Foreground:
    """A running ``zfabric start --block``, with the facts that it has printed."""

    def __init__(self, place: Place, *arguments: str, prefix: tuple[str, ...] = (), **more: str) -> None:
        command = [*prefix, ZFABRIC, "start", "--block", *SMALL, "--json", *arguments]
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

    def signal_all(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to every process of the node, as Slurm does."""
        for pid in (*descendants(self.process.pid), self.process.pid):
            with_no_error(pid, number)


def with_no_error(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


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
def place(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Place]:
    import tempfile

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
        import multiprocessing
        import subprocess
        import time

        Path(begun).touch()
        while not os.path.exists(signalled):
            time.sleep(0.005)
        # Programs and processes that a task starts still end at SIGTERM.
        program = subprocess.Popen(["sleep", "100"])
        program.terminate()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]
        forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
        forked.start()
        forked.terminate()
        forked.join()
        return f"{program.wait()} {forked.exitcode}"

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


def test_a_head_ends_its_cluster_at_sigterm(place: Place) -> None:
    key = f"{place.directory}/cluster.key"
    with foreground(place, "--head", "--port", "0", "--key-file", key) as head:
        facts = head.await_start()
        with foreground(place, "--address", facts["address"], "--key-file", key) as node:
            node.await_start()
            head.signal_all()
            assert head.end() == (0, "SIGTERM: the cluster ends\n")
            code, errors = node.end()
            print(errors)
            assert code == 1
            assert errors.startswith("Error: the node has ended: ")
            assert nothing_left(place, facts)
