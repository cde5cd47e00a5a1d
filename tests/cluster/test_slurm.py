"""``zfabric run`` and ``zfabric start --block`` in jobs of a real Slurm, whose three machines are this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import PATIENCE, ZFABRIC, Place
from faults import descendants, eventually, gone, on_node
from slurm import GRACE_SECONDS, HIGH, LOW, Slurm, running_slurm, why_not

import zfabric as zf

MACHINES = 3
SMALL = ("--object-store-memory", "32MB", "--network", "127.0.0.0/8")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="zs-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def slurm(home: Path) -> Iterator[Slurm]:
    """Slurm with three machines, as a user whose home is ``home``."""
    if reason := why_not():
        pytest.skip(f"THERE IS NO SLURM HERE, AS {reason.upper()}: jobs of `zfabric run` are not tested")
    environment = {**Place(str(home)).environment, "HOME": str(home)}
    with running_slurm(MACHINES, environment) as site:
        yield site


class Step:
    """A running ``srun zfabric run``, with one rank on each machine."""

    def __init__(self, slurm: Slurm, source: str, *options: str) -> None:
        program = slurm.directory / f"program{time.monotonic_ns()}.py"
        program.write_text(source)
        ranks = ("srun", "--kill-on-bad-exit", f"--nodes={MACHINES}", "--ntasks-per-node=1", "--cpus-per-task=2", *options)
        # Within a batch job, sbatch would set the amount of memory.
        self.process = subprocess.Popen(
            [*ranks, ZFABRIC, "run", *SMALL, "--", sys.executable, str(program)], env={**slurm.environment, "SLURM_MEM_PER_NODE": "500"}, cwd=slurm.directory,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def end(self) -> tuple[int, str, str]:
        """(exit code, output, errors)."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output, errors

    def line(self) -> str:
        """The next line of the output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def nothing_left(home: Path) -> bool:
    return not list(home.glob(".cache/zfabric/run/*")) and not list(home.glob("zfabric-*/s-*"))


def test_a_job_of_three_machines_is_one_cluster_and_ends_as_its_program(slurm: Slurm, home: Path) -> None:
    """Another run of the same user, on the same machines at the same time, has a cluster of its own."""
    source = """
import collections, sys, time
import zfabric as zf
zf.init(log_to_driver=False)
here = zf.remote(lambda: time.sleep(0.3) or zf.get_runtime_context().get_node_id())
print(*sorted(collections.Counter(zf.get([here.remote() for _ in range(24)])).values()))
print(*sorted({(node["Resources"]["CPU"], node["Resources"]["memory"] < 500 * 2**20) for node in zf.nodes()}))
sys.exit(7)
"""
    job = Step(slurm, source)
    other = Step(slurm, "import zfabric as zf; zf.init(); print(len(zf.nodes())); import os; os.kill(os.getpid(), 9)")
    code, output, errors = job.end()
    assert (code, output) == (7, "8 8 8\n(2.0, True)\n"), errors
    print(errors)  # With the time in which all have joined.
    code, output, errors = other.end()
    assert (code, output) == (128 + signal.SIGKILL, "3\n"), errors
    assert nothing_left(home)


def test_scancel_leaves_the_program_its_grace_period_and_its_cluster(slurm: Slurm, home: Path) -> None:
    source = """
import signal, sys, time
import zfabric as zf
def end(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    here = zf.remote(scheduling_strategy="SPREAD")(lambda: time.sleep(0.2) or zf.get_runtime_context().get_node_id())
    print(len(set(zf.get([here.remote() for _ in range(3)]))), flush=True)
    sys.exit(3)
zf.init(log_to_driver=False)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(1000)
"""
    job = Step(slurm, source, "--job-name=ends")
    assert job.line() == "ready\n"
    slurm.command("scancel", "--name=ends", "--signal=TERM")
    code, output, errors = job.end()
    assert (code, output) == (3, "3\n"), errors
    assert nothing_left(home)


def test_all_ends_with_the_first_launcher_however_that_ends(slurm: Slurm, home: Path) -> None:
    job = Step(slurm, "import os, time\nprint(os.getppid(), flush=True)\ntime.sleep(1000)")
    launcher = int(job.line())
    everything = descendants(launcher)
    assert len(everything) > 4
    os.kill(launcher, signal.SIGKILL)
    assert job.end()[0] == 128 + signal.SIGKILL
    eventually(lambda: all(map(gone, everything)) and not list(home.glob("zfabric-*/s-*")), "all has ended")
    assert [path.name for path in home.glob(".cache/zfabric/run/*")] != [], "for the next run to sweep"


def test_two_ranks_on_a_machine_are_refused(slurm: Slurm, home: Path) -> None:
    code, _, errors = Step(slurm, "", "--ntasks-per-node=2", "--cpus-per-task=1").end()
    assert (code, "start it with srun --ntasks-per-node=1" in errors) == (2, True), errors


def test_no_task_fails_when_slurm_preempts_a_node(slurm: Slurm, home: Path) -> None:
    """36 tasks that run once only, on a node that leaves while they run."""

    @zf.remote(max_retries=0)
    def short(number: int) -> int:
        time.sleep(0.4)
        return number

    with (
        zf.LocalCluster(nodes=1, cpus_per_node=1, object_store_memory=64 * 2**20) as cluster,
        zf.init(cluster.address),
    ):
        join = f"--address {cluster.address} --key-file {cluster.key_file} --object-store-memory 32MB"
        script = f"exec {ZFABRIC} start --block {join} --grace {GRACE_SECONDS - 2}"
        job = slurm.submit(script, f"--nodes={MACHINES}", "--exclusive", f"--partition={LOW}", "--no-requeue")
        (node,) = eventually(lambda: [each["NodeID"] for each in zf.nodes()[1:]], "the node has joined")
        begin = zf.remote(scheduling_strategy=on_node(node))(lambda: None)
        zf.get(begin.remote(), timeout=PATIENCE)
        tasks = [short.remote(number) for number in range(36)]
        zf.get(tasks[2], timeout=PATIENCE)
        begun = time.monotonic()
        urgent = slurm.submit("date", f"--nodes={MACHINES}", "--exclusive", f"--partition={HIGH}")
        eventually(lambda: "drained" in slurm.output(job), "the node is drained")
        drained = time.monotonic() - begun
        assert zf.get(tasks, timeout=PATIENCE) == list(range(36))
        eventually(lambda: slurm.output(urgent), "the urgent job runs")
        print(f"drained {drained:.1f} s after the urgent job was submitted")
        assert "what was left" not in slurm.output(job)
