"""Slurm on this machine: a controller and some ``slurmd``, each a machine of its own to Slurm, for programs that batch systems start.

It needs root and Debian's packages slurm-wlm and munge, which ``.ci/run`` installs; no systemd, no control groups, no other network than
loopback. Low jobs are preempted by high ones: SIGTERM, ``GRACE_SECONDS`` later SIGKILL.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from faults import PATIENCE
from relay import free_port

CPUS = 4
MEMORY_MIB = 2000
GRACE_SECONDS = 10
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "squeue")
LOW, HIGH = "low", "high"
"""Partitions, with all machines each."""


def why_not() -> str:
    """Return why there can be no Slurm here; empty if there can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"there is no {', '.join(missing)} (Debian: slurm-wlm and munge)"
    return "" if os.geteuid() == 0 else "its daemons need root"


class Slurm:
    """A running Slurm. ``environment`` has what its commands need; ``directory`` its files and logs."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = environment

    def command(self, *words: str) -> str:
        """Run one of its commands, and return the output."""
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout

    def jobs(self) -> list[str]:
        """The states of all jobs that have not ended."""
        return self.command("squeue", "--noheader", "--format=%T").split()

    def submit(self, script: str, *options: str) -> str:
        """Submit a script of bash as a batch job. Return the job's id; its output is in ``directory/ID.out``."""
        path = self.directory / f"job{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        output = f"--output={self.directory}/%j.out"
        return self.command("sbatch", "--parsable", output, f"--chdir={self.directory}", *options, str(path)).strip()

    def output(self, job: str) -> str:
        """What a batch job has printed."""
        path = self.directory / f"{job}.out"
        return path.read_text() if path.exists() else ""


@contextmanager
def running_slurm(machines: int, environment: dict[str, str]) -> Iterator[Slurm]:
    """Start Slurm with so many machines. At the end all jobs are cancelled, all daemons end, and its files are removed."""
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)  # All users may go to munged's socket, or munged does not start.
        with _started(Path(directory), machines, environment) as slurm:
            yield slurm


@contextmanager
def _started(directory: Path, machines: int, environment: dict[str, str]) -> Iterator[Slurm]:
    logs, keys = directory / "logs", directory / "keys"
    for each in (logs, keys, directory / "state", *(directory / f"spool-n{number}" for number in range(machines))):
        each.mkdir(mode=0o755)
    (keys / "munge.key").write_bytes(os.urandom(128))
    (keys / "munge.key").chmod(0o600)
    settings = directory / "slurm.conf"
    settings.write_text(_settings(directory, machines))
    slurm = Slurm(directory, {**environment, "SLURM_CONF": str(settings)})
    with ExitStack() as stack:

        def start(name: str, *command: str) -> None:
            with (logs / f"{name}.out").open("wb") as output:
                daemon = subprocess.Popen(command, env=slurm.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            stack.callback(_end, daemon)

        files = (f"--{what}-file={keys}/munge.{what}" for what in ("key", "pid", "log", "seed"))
        start("munged", "munged", "--foreground", f"--socket={keys}/munge.socket", *files)
        _await((keys / "munge.socket").exists, "munged's socket", PATIENCE)
        start("slurmctld", "slurmctld", "-D", "-i")
        for number in range(machines):
            start(f"slurmd{number}", "slurmd", "-D", "-N", f"n{number}")
        _await(lambda: _idle(slurm) == machines, f"{machines} idle machines; logs are in {logs}", PATIENCE)
        stack.callback(_cancel_all, slurm)
        yield slurm


def _settings(directory: Path, machines: int) -> str:
    controller, *ports = (free_port() for _ in range(1 + machines))
    common = {
        "ClusterName": "test",
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": controller,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={directory}/keys/munge.socket",
        "CredType": "cred/munge",
        "SlurmctldPidFile": f"{directory}/slurmctld.pid",
        "SlurmdPidFile": f"{directory}/slurmd-%n.pid",
        "StateSaveLocation": f"{directory}/state",
        "SlurmdSpoolDir": f"{directory}/spool-%n",
        "SlurmctldLogFile": f"{directory}/logs/slurmctld.log",
        "SlurmdLogFile": f"{directory}/logs/%n.log",
        # What needs neither control groups, nor a database, nor MPI.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "SlurmdParameters": "config_overrides",
        # Jobs begin at once.
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=1,sched_interval=1,sched_min_interval=0",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "ReturnToService": 2,
        "KillWait": 5,
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
    }
    lines = [f"{name}={value}" for name, value in common.items()]
    lines += [
        f"NodeName=n{number} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory={MEMORY_MIB} State=UNKNOWN"
        for number, port in enumerate(ports)
    ]
    every = f"Nodes=n[0-{machines - 1}] MaxTime=INFINITE State=UP"
    lines.append(f"PartitionName={LOW} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={GRACE_SECONDS} {every}")
    lines.append(f"PartitionName={HIGH} Default=NO PriorityTier=10 {every}")
    return "\n".join(lines) + "\n"


def _idle(slurm: Slurm) -> int:
    asked = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--states=idle", f"--partition={LOW}"], env=slurm.environment, capture_output=True, check=False
    )
    return len(asked.stdout.splitlines())


def _cancel_all(slurm: Slurm) -> None:
    """Cancel all jobs and wait for their end: their processes would outlive ``slurmd``."""
    for options in (("--state=PENDING",), ("--full", "--signal=KILL")):
        subprocess.run(["scancel", *options, "--me"], env=slurm.environment, capture_output=True, check=False)
    _await(lambda: not slurm.jobs(), "the end of all jobs", PATIENCE)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _await(condition: Callable[[], object], what: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"in vain: {what}"
        time.sleep(0.05)
