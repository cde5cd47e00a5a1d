"""``zfabric run`` and ``zfabric start --block`` in jobs of a real Slurm, whose three machines are this one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import ZFABRIC, Place
from faults import PATIENCE, descendants, eventually, gone, on_node
from slurm import GRACE_SECONDS, HIGH, LOW, Slurm, running_slurm, why_not

import zfabric as zf

MACHINES = 3
nightly = pytest.mark.skipif(not os.environ.get("SLURM_JOBS"), reason="takes long: scripts/nightly runs it")
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
            [*ranks, ZFABRIC, "run", *SMALL, "--", sys.executable, str(program)],
            env={**slurm.environment, "SLURM_MEM_PER_NODE": "500"}, cwd=slurm.directory,
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def nothing_left(home: Path) -> bool:
    return not list(home.glob(".cache/zfabric/run/*")) and not list(home.glob("zfabric-*/s-*"))


def test_a_job_of_three_machines_is_one_cluster_and_ends_as_its_program(slurm: Slurm, home: Path) -> None:
    """Another run of the same user, on the same machines at the same time, has a cluster of its own."""
    source = """
import collections, os, sys, tempfile, time
import zfabric as zf
zf.init(log_to_driver=False)
@zf.remote
def here(directory):  # All CPUs of the cluster have one of them before any ends.
    open(f"{directory}/{os.urandom(8).hex()}", "w").close()
    while len(os.listdir(directory)) < 6:
        time.sleep(0.01)
    return zf.get_runtime_context().get_node_id()
with tempfile.TemporaryDirectory() as directory:
    print(*sorted(collections.Counter(zf.get([here.remote(directory) for _ in range(6)])).values()))
print(*sorted({(node["Resources"]["CPU"], node["Resources"]["memory"] < 500 * 2**20) for node in zf.nodes()}))
sys.exit(7)
"""
    job = Step(slurm, source)
    other = Step(slurm, "import zfabric as zf; zf.init(); print(len(zf.nodes())); import os; os.kill(os.getpid(), 9)")
    code, output, errors = job.end()
    assert (code, output) == (7, "2 2 2\n(2.0, True)\n"), errors
    print(errors)  # With the time in which all have joined.
    code, output, errors = other.end()
    assert (code, output) == (128 + signal.SIGKILL, "3\n"), errors
    assert nothing_left(home)


@nightly
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


@nightly
def test_two_ranks_on_a_machine_are_refused(slurm: Slurm, home: Path) -> None:
    code, _, errors = Step(slurm, "", "--ntasks-per-node=2", "--cpus-per-task=1").end()
    assert code in (2, 128 + signal.SIGTERM)  # The first rank that fails has others ended, perhaps before they have.
    assert "start it with srun --ntasks-per-node=1" in errors


@nightly
def test_batch_scripts_as_documented(slurm: Slurm, home: Path) -> None:
    """With the job's amount of memory and CPUs; with a key in a file, sent by Slurm; requeued while it runs."""
    program = slurm.directory / "train.py"
    program.write_text(
        "import zfabric as zf; zf.init(); print(*sorted((n['Resources']['CPU'], n['Resources']['memory'] < 2**29) for n in zf.nodes()))"
    )
    run, command = f"{ZFABRIC} run {' '.join(SMALL)}", f"-- {sys.executable} train.py"
    lines = f"""
srun -c $SLURM_CPUS_PER_TASK -K {run} {command}
echo $?
K={slurm.directory}/$SLURM_JOB_ID.key
{ZFABRIC} keys create $K >/dev/null
srun --ntasks-per-node=1 true && sbcast -fp $K $K
srun -c $SLURM_CPUS_PER_TASK -K {run} --rendezvous tcp://127.0.0.1:{free_port()} --key-file $K {command}
echo $?
srun rm -f $K $K.head
echo done
"""
    job = slurm.submit(lines, f"--nodes={MACHINES}", "--ntasks-per-node=1", "--cpus-per-task=2", "--mem=500")
    eventually(lambda: "done" in slurm.output(job), "the job has ended")
    output = [line for line in slurm.output(job).splitlines() if not line.startswith("zfabric: 3 nodes with 6 CPUs joined in ")]
    assert output == ["(2.0, True) (2.0, True) (2.0, True)", "0"] * 2 + ["done"]
    assert nothing_left(home)
    assert not list(slurm.directory.glob("*.key*"))


@nightly
def test_a_requeued_job_meets_elsewhere(slurm: Slurm, home: Path) -> None:
    job = slurm.submit(f"srun {ZFABRIC} run {' '.join(SMALL)} -- sleep 1000", f"--nodes={MACHINES}", "--ntasks-per-node=1", "--requeue")
    eventually(lambda: "joined in" in slurm.output(job), "the run has begun")
    (first,) = os.listdir(home / ".cache/zfabric/run")
    slurm.command("scontrol", "requeue", job)

    def has_begun_again() -> bool:
        if slurm.jobs() == ["PENDING"]:  # Slurm would have it wait for two minutes.
            with suppress(subprocess.CalledProcessError):
                slurm.command("scontrol", "update", f"JobId={job}", "StartTime=now")
        return os.listdir(home / ".cache/zfabric/run") == [f"{first}-1"]

    eventually(has_begun_again, "the run has begun again")
    eventually(lambda: "joined in" in slurm.output(job), "the ranks have joined again")
    slurm.command("scancel", job)
    eventually(lambda: nothing_left(home), "nothing is left")


@nightly
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
        # Slurm signals steps, not the script.
        script = f"srun --nodes=1 --ntasks=1 --cpus-per-task=2 {ZFABRIC} start --block {join} --grace {GRACE_SECONDS - 2}"
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
