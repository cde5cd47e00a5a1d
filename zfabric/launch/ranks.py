"""Ranks: which process of a run this one is, by the environment variables of the program that started it.

A *run* is one ``zfabric run`` command that a batch system, or ``mpirun``, starts on each of some machines, and numbers from 0. No list of
hosts is parsed, and no command of a batch system is called.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from zfabric.exceptions import ConfigError

RANK, SIZE, RUN_ID = "ZFABRIC_RANK", "ZFABRIC_SIZE", "ZFABRIC_RUN"
"""Variables for where nothing else numbers the processes. The last two may complete what a starter leaves out."""
RANKS_MAX = 10_000
RUN_ID_CHARACTERS_MAX = 80
_MIB = 2**20


class Starter(NamedTuple):
    """What starts a run's processes, with its environment variables; "" where it has none."""

    name: str
    rank: str
    size: str
    run: tuple[str, ...]
    """Together, the values of the variables that are set name the run: no other run of this user has them, nor an earlier attempt of the
    same job.
    """
    local_rank: str
    """The process's number on its machine."""
    command: str
    """How to start one process on each machine."""
    machines: str = ""
    """The number of the run's machines."""
    job_machines: str = ""
    """The number of the job's machines, also outside a run."""
    cpus: str = ""
    """The run's CPUs on this machine."""
    memory: str = ""
    """The run's memory on this machine, in MiB."""
    shell: tuple[str, str] = ("", "set")
    """The variable and the value that mark a shell on one of the job's machines, which is no run."""

    def applies(self, environment: Mapping[str, str]) -> bool:
        """Whether this starter has started this process."""
        return self.rank in environment and (not self.local_rank or self.local_rank in environment)


STARTERS = (
    Starter(f"{RANK} and {SIZE}", RANK, SIZE, (RUN_ID,), "", f"one process with a {RANK} of its own on each machine"),
    # These come before Slurm and PBS, whose variables they inherit there.
    Starter(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "PBS_JOBID"),
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "mpirun --map-by ppr:1:node --bind-to none",
    ),
    Starter(
        "MPICH and Intel MPI",
        "PMI_RANK",
        "PMI_SIZE",
        ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "PBS_JOBID", "LSB_JOBID"),
        "MPI_LOCALRANKID",
        "mpiexec -ppn 1",
    ),
    Starter(
        "Flux",
        "FLUX_TASK_RANK",
        "FLUX_JOB_SIZE",
        ("FLUX_JOB_ID",),
        "FLUX_TASK_LOCAL_ID",
        "flux run --tasks-per-node=1",
        machines="FLUX_JOB_NNODES",
    ),
    Starter(
        "Slurm",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        "SLURM_LOCALID",
        "srun --ntasks-per-node=1",
        machines="SLURM_STEP_NUM_NODES",
        job_machines="SLURM_JOB_NUM_NODES",
        cpus="SLURM_CPUS_ON_NODE",
        memory="SLURM_MEM_PER_NODE",
        shell=("SLURM_STEP_ID", "4294967290"),  # The interactive step of salloc.
    ),
    Starter("PBS", "PBS_NODENUM", "PBS_NUM_NODES", ("PBS_JOBID",), "", "pbsdsh -u"),
    Starter("Kubernetes", "JOB_COMPLETION_INDEX", "", (), "", "a Job with completionMode: Indexed"),
)
"""The first one that applies counts."""


class Rank(NamedTuple):
    """This process in its run. ``cpus`` and ``memory`` (bytes) are the run's on this machine; None where only the kernel limits them."""

    number: int
    size: int
    run: str
    """A name for the run that a file can have, or "" if nothing names the run."""
    cpus: int | None = None
    memory: int | None = None


ALONE = Rank(0, 1, "")
"""Nothing has started several."""


def find_rank(environment: Mapping[str, str]) -> Rank:
    """Return this process's rank. Raises ConfigError for an environment that has none, or two processes of a run on this machine."""
    starter = next((each for each in STARTERS if each.applies(environment)), None)
    given = environment.get(SIZE)
    if starter is None:
        if given and given != "1":
            raise ConfigError(f"{SIZE} is {given}, and the number of this process is unknown: set {RANK}, from 0")
        several = next((each for each in STARTERS if environment.get(each.job_machines, "1") != "1"), None)
        if several is not None and not given:
            raise _started_once(several)
        return ALONE
    variable, value = starter.shell
    if not given and (not environment.get(starter.size) or environment.get(variable) == value):
        if environment.get(starter.job_machines) == "1":
            return _limited(ALONE, starter, environment)
        if starter.job_machines:
            raise _started_once(starter)
        raise ConfigError(
            f"{starter.rank} is set, and the number of ranks is unknown: set {SIZE}, to 1 for a cluster of this machine alone"
        )
    number, size = _whole(starter.rank, environment), _whole(SIZE if given else starter.size, environment)
    if not 0 < size <= RANKS_MAX or number >= size:
        raise ConfigError(f"{starter.name}: there is no rank {number} of {size}; ranks count from 0, and there are at most {RANKS_MAX:,}")
    on_machine = _whole(starter.local_rank, environment) if environment.get(starter.local_rank) else 0
    machines = _whole(starter.machines, environment) if environment.get(starter.machines) else size
    if on_machine or machines < size:
        raise ConfigError(
            f"{size} processes were started on fewer machines, and a run has one on each, which uses all CPUs of the job there: "
            f"start it with {starter.command}"
        )
    return _limited(Rank(number, size, _run_id(starter, environment)), starter, environment)


def _started_once(starter: Starter) -> ConfigError:
    return ConfigError(
        f"this job has several machines, and this command was started once: start it with {starter.command}, or set {SIZE} to 1 "
        "for a cluster of this machine alone"
    )


def _limited(rank: Rank, starter: Starter, environment: Mapping[str, str]) -> Rank:
    cpus = _whole(starter.cpus, environment) if environment.get(starter.cpus) else None
    memory = _whole(starter.memory, environment) * _MIB if environment.get(starter.memory) else None
    return rank._replace(cpus=cpus or None, memory=memory or None)  # Slurm has 0 for all memory.


def _whole(name: str, environment: Mapping[str, str]) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{name} is a whole number, not {text!r}")
    return int(text)


def _run_id(starter: Starter, environment: Mapping[str, str]) -> str:
    values = [environment[RUN_ID]] if environment.get(RUN_ID) else [value for name in starter.run if (value := environment.get(name))]
    text = "-".join(values)
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", text).lstrip(".")[:RUN_ID_CHARACTERS_MAX]
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:8]}"
