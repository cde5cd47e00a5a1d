"""Where an autoscaler gets nodes: processes of this machine, jobs of Slurm, or three commands of the user's.

A provider submits jobs, lists those that have not ended, and cancels those that wait. Each job runs ``zfabric start --block``: job and node
end together. A provider has no state that could be lost: it finds the jobs of an earlier autoscaler of the cluster by their names. Each job
writes its output, with the reason if it fails, into a file of its own in ``directory``.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from zfabric.exceptions import FabricError
from zfabric.launch.policy import JOB_LABEL, KIND_LABEL, PENDING, RUNNING
from zfabric.runtime.logs import tail
from zfabric.runtime.session import user_directory

COMMAND_SECONDS = 30.0
"""Longest run of a command such as ``sbatch``: a job scheduler that does not answer delays all else by at most this."""
POLL_SECONDS = 15.0
"""Seconds between two queries of the states of jobs: sites want few."""
OUTPUTS_MOST = 20
"""Output files of ended jobs that are retained, the latest."""
REASON_MOST = 300
"""Most characters of a reason."""
SHOWN_MOST = 80
"""Most characters that an error shows of a command, or of a word that it prints."""
OUTPUT = ".out"
ERROR = "Error: "
"""Begins the line with which a command of zfabric fails."""


class ProviderError(FabricError):
    """A job scheduler has refused a request, or has not answered."""


class JobInfo(NamedTuple):
    """A job that has not ended."""

    kind: str
    state: str


class KindLaunch(NamedTuple):
    """How nodes of one kind are started."""

    command: tuple[str, ...]
    """``zfabric start --block`` with all options but the label of the job."""
    before: tuple[str, ...] = ()
    """Shell commands that run first."""
    sbatch: tuple[str, ...] = ()
    """Options of ``sbatch``."""
    submit: str = ""
    states: str = ""
    cancel: str = ""
    """Shell commands of the provider ``command``."""

    def words(self, job: str) -> str:
        """The command of a node, as the shell reads it. ``job`` is the job's id, or a shell expression for it."""
        return f"{shlex.join(self.command)} --label {JOB_LABEL}={job}"

    def script(self, job: str) -> str:
        """A shell script that becomes the node, unless an earlier command fails. ``job`` is as above."""
        return "\n".join([*(f"{{ {command}\n}} || exit" for command in self.before), f"exec {self.words(job)}", ""])


class Provider(Protocol):
    """What an autoscaler needs of a job scheduler. Each method raises ProviderError if that refuses or does not answer."""

    directory: str

    def submit(self, kind: str, count: int) -> list[str]:
        """Submit jobs of a kind; return their ids."""

    def states(self) -> dict[str, JobInfo]:
        """The states of this cluster's jobs that have not ended, by id. After an error they are unknown."""

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs. A job that has ended meanwhile is no error."""


class LocalProvider:
    """Nodes as processes of this machine, for tests and for shared machines."""

    def __init__(self, cluster: str, kinds: Mapping[str, KindLaunch]) -> None:
        self.directory = f"{user_directory()}/autoscale-{cluster}"
        self._kinds = kinds
        self._children: list[subprocess.Popen[bytes]] = []
        _make(self.directory)

    def submit(self, kind: str, count: int) -> list[str]:
        """Start processes. Each holds a lock on its output file while it runs, whoever started it."""
        return [self._start(kind) for _ in range(count)]

    def _start(self, kind: str) -> str:
        job = f"{kind}.{os.urandom(4).hex()}"
        _make(self.directory)
        # The pid is the first line of the output.
        command = ["/bin/sh", "-c", f"echo $$\n{self._kinds[kind].script(job)}"]
        try:
            with open(os.open(f"{self.directory}/{job}{OUTPUT}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
        except OSError as error:
            raise ProviderError(f"no process can be started: {error.strerror}") from None
        self._children.append(child)
        return job

    def states(self) -> dict[str, JobInfo]:
        """The running jobs."""
        _make(self.directory)
        self._children = [child for child in self._children if child.poll() is None]
        names = [name for name in os.listdir(self.directory) if name.endswith(OUTPUT)]
        running = [name for name in names if _is_locked(f"{self.directory}/{name}")]
        _sweep(self.directory, set(running))
        jobs = [name.removesuffix(OUTPUT) for name in running]
        return {job: JobInfo(kind, RUNNING) for job in jobs if (kind := job.rpartition(".")[0]) in self._kinds}

    def cancel(self, jobs: Sequence[str]) -> None:
        """Send SIGTERM to processes: their nodes are drained."""
        for job in jobs:
            path = f"{self.directory}/{job}{OUTPUT}"
            with suppress(OSError, ValueError), open(path, "rb") as file:
                pid = int(file.readline())
                if _is_locked(path):
                    os.kill(pid, signal.SIGTERM)


def _is_locked(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


class PolledJobs:
    """States of jobs, queried at most every ``POLL_SECONDS``. For so long a new job counts as pending even if it is not listed."""

    def __init__(self, ask: Callable[[], dict[str, JobInfo]]) -> None:
        self._ask = ask
        self._asked = -POLL_SECONDS
        self._states: dict[str, JobInfo] | ProviderError = {}
        self._new: dict[str, tuple[float, JobInfo]] = {}
        """When each new job was submitted."""

    def states(self) -> dict[str, JobInfo]:
        """The last known states. Raises ProviderError if the last query failed."""
        now = time.monotonic()
        if now >= self._asked + POLL_SECONDS:
            self._asked = now  # Also if this is interrupted: whoever asks at the end does not wait again.
            try:
                self._states = self._ask()
            except ProviderError as error:
                self._states = error
        if isinstance(self._states, ProviderError):
            raise self._states
        self._new = {job: (at, info) for job, (at, info) in self._new.items() if now < at + POLL_SECONDS}
        return {**{job: info for job, (_, info) in self._new.items()}, **self._states}

    def add(self, kind: str, jobs: Sequence[str]) -> None:
        """Add jobs that were just submitted."""
        self._new.update((job, (time.monotonic(), JobInfo(kind, PENDING))) for job in jobs)


class SlurmProvider:
    """Nodes as jobs of Slurm: one array per decision, named ``zfabric:CLUSTER:KIND``."""

    def __init__(self, cluster: str, kinds: Mapping[str, KindLaunch]) -> None:
        self._cluster = cluster
        self._kinds = kinds
        self._polled = PolledJobs(self._ask)
        self.directory = _shared_directory(cluster)

    def submit(self, kind: str, count: int) -> list[str]:
        """Submit an array. Its jobs are not requeued: the autoscaler submits others if nodes are still needed."""
        launch = self._kinds[kind]
        _make(self.directory)
        command = [
            "sbatch",
            "--parsable",
            f"--job-name={self._name(kind)}",
            f"--array=0-{count - 1}",
            f"--output={self.directory}/%A_%a{OUTPUT}",
            "--no-requeue",
            "--nodes=1",
            "--ntasks=1",
            *launch.sbatch,
        ]
        script = "#!/bin/sh\n" + launch.script('"${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"')
        answer = _run(command, script)
        number = answer.strip().partition(";")[0]
        if not number.isdecimal():
            raise ProviderError(f"sbatch has answered {answer.strip()!r}, which is no number of a job")
        jobs = [f"{number}_{index}" for index in range(count)]
        self._polled.add(kind, jobs)
        return jobs

    def states(self) -> dict[str, JobInfo]:
        """What ``squeue --me`` lists of this cluster."""
        return self._polled.states()

    def _ask(self) -> dict[str, JobInfo]:
        found = {}
        for line in _run(["squeue", "--me", "--noheader", "--array", "--format=%i|%t|%j"]).splitlines():
            job, _, rest = line.strip().partition("|")
            state, _, name = rest.partition("|")
            kind = name.removeprefix(self._name(""))
            if kind in self._kinds and name == self._name(kind):
                found[job] = JobInfo(kind, PENDING if state in ("PD", "CF") else RUNNING)
        _sweep(self.directory, {f"{job}{OUTPUT}" for job in found})
        return found

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs that have not begun."""
        _run(["scancel", "--quiet", "--state=PENDING", *jobs])

    def _name(self, kind: str) -> str:
        return f"zfabric:{self._cluster}:{kind}"


class CommandProvider:
    """Nodes from any job scheduler, by three shell commands of the user's.

    ``submit`` runs once per job. ``states`` prints a line ``ID pending`` or ``ID running`` for each job that has not ended. ``cancel`` gets
    all ids at once. Ids are names that the provider gives: ``zf-CLUSTER.KIND-`` and six hexadecimal digits. ``submit`` may have ``{id}``,
    ``{kind}``, ``{start}`` (the node's command, as shell words), ``{script}`` (the same as one word) and ``{output}`` (the file from which
    a reason is read); ``cancel`` has ``{ids}``.
    """

    def __init__(self, cluster: str, kinds: Mapping[str, KindLaunch]) -> None:
        self._prefix = f"zf-{cluster}."
        self._kinds = kinds
        self._polled = PolledJobs(self._ask)
        self.directory = _shared_directory(cluster)

    def submit(self, kind: str, count: int) -> list[str]:
        """Run the command for each job. If one fails, the earlier jobs are found by their names."""
        launch, jobs = self._kinds[kind], []
        _make(self.directory)
        for _ in range(count):
            job = f"{self._prefix}{kind}-{os.urandom(3).hex()}"
            script = launch.script(job)
            words = {
                "id": job,
                "kind": kind,
                "start": shlex.join(["/bin/sh", "-c", script]) if launch.before else launch.words(job),
                "script": shlex.quote(script),
                "output": shlex.quote(f"{self.directory}/{job}{OUTPUT}"),
            }
            _run(_filled(launch.submit, words))
            jobs.append(job)
            self._polled.add(kind, [job])
        return jobs

    def states(self) -> dict[str, JobInfo]:
        """What the commands of all kinds list."""
        return self._polled.states()

    def _ask(self) -> dict[str, JobInfo]:
        found = {}
        for command in dict.fromkeys(launch.states for launch in self._kinds.values()):
            for line in _run(command).splitlines():
                job, _, state = line.strip().partition(" ")
                kind = job.removeprefix(self._prefix).rpartition("-")[0]
                if kind not in self._kinds or not re.fullmatch(f"{re.escape(self._prefix + kind)}-[0-9a-f]{{6}}", job):
                    continue
                if state.strip() not in (PENDING, RUNNING):
                    what = f"the state {_shown(state.strip())!r} of {job}"
                    raise ProviderError(f"`{_shown(command)}` prints {what}: it is to print pending or running")
                found[job] = JobInfo(kind, state.strip())
        _sweep(self.directory, {f"{job}{OUTPUT}" for job in found})
        return found

    def cancel(self, jobs: Sequence[str]) -> None:
        """Run the command of each kind that has some of the jobs."""
        for kind, launch in self._kinds.items():
            ours = [job for job in jobs if job.removeprefix(self._prefix).rpartition("-")[0] == kind]
            if ours:
                _run(_filled(launch.cancel, {"ids": shlex.join(ours)}))


PROVIDERS: dict[str, Callable[[str, Mapping[str, KindLaunch]], Provider]] = {
    "local": LocalProvider,
    "slurm": SlurmProvider,
    "command": CommandProvider,
}


def start_command(python: str, address: str, key_file: str, kind: str, options: Sequence[str]) -> tuple[str, ...]:
    """The command of a node of a kind. ``options`` are further ones of ``zfabric start``."""
    joining = (f"--address={address}", f"--key-file={key_file}", f"--label={KIND_LABEL}={kind}")
    return (python, "-m", "zfabric", "start", "--block", *joining, *options)


def reason_of(provider: Provider, job: str) -> str:
    """Why a job failed: the last error in its output, else its last line, if any."""
    lines = [line.strip() for line in tail(f"{provider.directory}/{job}{OUTPUT}").splitlines() if line.strip()]
    errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    others = [line for line in lines if not line.isdecimal()]  # Without the pid of a process.
    return next(iter(errors[-1:] or others[-1:]), f"job {job} has ended without output")[:REASON_MOST]


def _shared_directory(cluster: str) -> str:
    """The directory of jobs' output, made if needed: below the home directory, which machines of a site often share."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = f"{base}/zfabric/autoscale/{cluster}"
    _make(path)
    return path


def _make(directory: str) -> None:
    """Make a directory of output, if needed: it is below ~/.cache or /tmp, which people and cleaners empty."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ProviderError(f"the directory of jobs' output, {directory}, cannot be made: {error.strerror}") from None


def _sweep(directory: str, living: set[str]) -> None:
    with suppress(FileNotFoundError):  # Another autoscaler sweeps, too.
        ended = [entry for entry in os.scandir(directory) if entry.name.endswith(OUTPUT) and entry.name not in living]
        for entry in sorted(ended, key=lambda entry: entry.stat().st_mtime)[:-OUTPUTS_MOST]:
            os.unlink(entry.path)


def _filled(command: str, words: Mapping[str, str]) -> str:
    """A shell command with its placeholders replaced as they stand; other braces are the shell's."""
    return re.sub(r"\{(\w+)\}", lambda found: words.get(found[1], found[0]), command)


def _run(command: str | Sequence[str], script: str = "") -> str:
    """Run a command; return its output. Raises ProviderError with its last line if it fails."""
    shown = _shown(command if isinstance(command, str) else command[0])
    arguments = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise ProviderError(f"`{shown}` cannot be run: {error.strerror}") from None
    with process:
        try:
            output, errors = process.communicate(script.encode(), timeout=COMMAND_SECONDS)
        except BaseException as error:  # Ctrl-C, too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # With what the command has started.
            if isinstance(error, subprocess.TimeoutExpired):
                raise ProviderError(f"`{shown}` has not answered within {COMMAND_SECONDS:g} s") from None
            raise
    if process.returncode:
        lines = (errors or output).decode(errors="replace").strip().splitlines()
        raise ProviderError(f"`{shown}` has failed with exit code {process.returncode}" + (f": {lines[-1][:REASON_MOST]}" if lines else ""))
    return output.decode(errors="replace")


def _shown(text: str) -> str:
    """A text for an error, on one line and cut, since reports to nodes have a bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_MOST else f"{line[:SHOWN_MOST]}…"
