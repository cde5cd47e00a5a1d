"""Jobs: programs that run on a started cluster after their submitter has gone, under Ray's names.

A job is a shell command in its own process, which a detached actor starts, watches and stops. The actor ends with the job. The outcome and
the output are files beside the control store of its node (``runtime/job_files.py``), so the next cluster with that store lists the job,
too.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from zfabric import api as zf
from zfabric.api.cluster import named_actors, session_directory
from zfabric.api.environments import NO_RUNTIME_ENV, RuntimeEnv, environment_of, pip_of
from zfabric.api.lifecycle import ADDRESS_VARIABLE, AUTO, SUBMIT_VARIABLE, connected
from zfabric.exceptions import (
    ActorError,
    ActorNameTakenError,
    ActorNotFoundError,
    AlreadyInitializedError,
    FabricError,
    GetTimeoutError,
    JobError,
    OptionError,
)
from zfabric.protocol.names import JOBS_NAMESPACE
from zfabric.runtime.connect import JOB_VARIABLE, find_session
from zfabric.runtime.job_files import RUNNING, JobFiles, RemoteJobFiles, is_name, private
from zfabric.runtime.session import Session

STOP_SECONDS = 3.0
"""Seconds from SIGTERM to SIGKILL."""
LOG_MOST = 16 * 2**20
"""Most bytes, from the end, that ``get_job_logs`` returns."""
POLL_SECONDS = 0.2
"""Interval at which a log is followed and an end is waited for."""
ANSWER_SECONDS = 30.0


class JobStatus(enum.StrEnum):
    """The state of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    def is_terminal(self) -> bool:
        """Whether the job has ended."""
        return self in (JobStatus.STOPPED, JobStatus.SUCCEEDED, JobStatus.FAILED)


class JobDetails(dict[str, Any]):
    """Facts about a job: ``details["status"]`` and ``details.status`` are the same."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a job has no {name!r}; it has {', '.join(self)}") from None


class JobRunner:
    """Runs one job. Methods run in threads, so that it answers meanwhile."""

    def __init__(self, job: str, entrypoint: str, environment: RuntimeEnv, directory: str, metadata: dict[str, str]) -> None:
        session = session_directory()
        self._files = JobFiles(session)
        self._facts = {"submission_id": job, "entrypoint": entrypoint, "metadata": metadata, "start_time": int(time.time() * 1000)}
        self._stopped = False
        self._end: tuple[int, int] | None = None
        """(exit status, milliseconds since the epoch), once the process has ended."""
        self._files.delete_oldest()
        self._files.write({**self._facts, **_RUNNING, "pid": None})
        variables = {**os.environ, **_passed_on(environment), ADDRESS_VARIABLE: session, JOB_VARIABLE: job}
        try:
            with open(self._files.log(job), "wb", opener=private) as log:
                self._process = subprocess.Popen(
                    entrypoint,
                    shell=True,
                    cwd=None if environment.directory else directory,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError:  # The submitter receives the error: there is no job.
            self._files.delete(job)
            raise
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        end = self._process.wait(), int(time.time() * 1000)
        try:
            self._files.write(self._ended(*end))
        except OSError:  # The disk is full: this process stays with the result.
            self._end = end
            return
        with contextlib.suppress(ActorNotFoundError):  # The cluster ends.
            zf.kill(zf.get_actor(str(self._facts["submission_id"]), namespace=JOBS_NAMESPACE))

    def info(self) -> dict[str, Any]:
        """Return facts about the job, with its status as text."""
        return {**self._facts, **_RUNNING, "pid": self._process.pid} if self._end is None else self._ended(*self._end)

    def _ended(self, code: int, ended: int) -> dict[str, Any]:
        status = "STOPPED" if self._stopped else "SUCCEEDED" if code == 0 else "FAILED"
        message = "" if code == 0 else f"it ended with exit code {code}" if code > 0 else f"it was ended by signal {-code}"
        return {**self._facts, "status": status, "message": message, "end_time": ended, "driver_exit_code": code, "pid": self._process.pid}

    def read(self, offset: int) -> tuple[bytes, int]:
        """Return bytes of the log from ``offset`` (negative: before its end), and where they end."""
        return self._files.bytes_of(str(self._facts["submission_id"]), offset)

    def stop(self) -> bool:
        """Send all its processes SIGTERM, later SIGKILL. Return False if the job had ended."""
        if self._end is not None:
            return False
        self._stopped = True
        self._signal(signal.SIGTERM)
        threading.Timer(STOP_SECONDS, self._kill).start()
        return True

    def _kill(self) -> None:
        if self._end is None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


_RUNNING: dict[str, Any] = {"status": RUNNING, "message": "", "end_time": None, "driver_exit_code": None}


def _passed_on(environment: RuntimeEnv) -> dict[str, str]:
    """Variables that give the job's programs and tasks the environment that was sent here."""
    if environment == NO_RUNTIME_ENV:
        return {}
    sent = sys.path[: len(environment.modules) + bool(environment.directory)]  # It comes first, the directory last.
    same: dict[str, Any] = {"env_vars": dict(environment.variables), "py_modules": sent[: len(environment.modules)]}
    same["pip"] = pip_of(environment)
    if environment.directory:
        same["working_dir"] = os.getcwd()
    found = {SUBMIT_VARIABLE: json.dumps({"runtime_env": same})}
    if sent:
        found["PYTHONPATH"] = os.pathsep.join([*sent, *filter(None, [os.environ.get("PYTHONPATH")])])
    return found


def _own_addresses() -> tuple[str, ...]:
    """Addresses of the cluster's nodes; empty for a cluster of one node."""
    membership = Session(session_directory()).membership()
    return () if membership is None else (membership.address, *membership.addresses)


def _without_process(job: str) -> dict[str, Any]:
    return {**dict.fromkeys(("start_time", "end_time", "driver_exit_code", "pid")), "submission_id": job, "entrypoint": "", "metadata": {}}


def _details(job: str, facts: dict[str, Any]) -> JobDetails:
    return JobDetails({**facts, "status": JobStatus(facts["status"]), "job_id": job, "type": "SUBMISSION"})


class JobSubmissionClient:
    """Submits jobs to a cluster and asks about them: to the one that this process has joined, else it joins the one at ``address``.

    ``address`` is as in ``zf.init``, and "auto" by default. Raises ConnectionLostError if there is no cluster, and AlreadyInitializedError
    if this process has joined another one than that at ``address``.

    >>> import zfabric as zf
    >>> cluster = zf.init(ignore_reinit_error=True)
    >>> from zfabric.job_submission import JobSubmissionClient
    >>> client = JobSubmissionClient()
    >>> job = client.submit_job(entrypoint="echo hello")
    >>> str(client.wait_for_job(job, timeout=60))
    'SUCCEEDED'
    >>> client.get_job_logs(job)
    'hello\\n'
    >>> client.delete_job(job)
    True
    """

    def __init__(self, address: str | None = None, **ignored: Any) -> None:
        unknown = ignored.keys() - {"create_cluster_if_needed", "cookies", "metadata", "headers", "verify"}
        if unknown:
            raise TypeError(f"JobSubmissionClient() has no argument {sorted(unknown)[0]!r}")
        if not zf.is_initialized():
            zf.init(AUTO if address is None and not ignored.get("create_cluster_if_needed") else address)
        elif address not in (None, AUTO, *_own_addresses()) and find_session(str(address)).directory != session_directory():
            raise AlreadyInitializedError(
                f"JobSubmissionClient: this process is connected to the cluster in {session_directory()}, not to the one at {address!r}; "
                "call zf.shutdown() first, or leave the address out"
            )

    @property
    def _files(self) -> JobFiles:
        return JobFiles(session_directory())

    def _all_files(self) -> Iterator[JobFiles | RemoteJobFiles]:
        """Yield the files of this node, then those of others."""
        yield self._files
        client = connected()
        for row in client.query("nodes"):
            if not row.get("here", True):
                yield RemoteJobFiles(client, row["node"])

    def _files_of(self, job: str) -> JobFiles | RemoteJobFiles | None:
        """Return the files that have a job; None if no node that answers has it."""
        for files in self._all_files():
            with contextlib.suppress(FabricError):
                if files.read(job) is not None:
                    return files
        return None

    def _left(self, job: str) -> dict[str, Any] | None:
        """Return facts about a job that no actor watches any more; None if there is none."""
        files = self._files_of(job)
        return None if files is None else files.read(job)

    def submit_job(
        self,
        *,
        entrypoint: str,
        submission_id: str | None = None,
        job_id: str | None = None,
        runtime_env: dict[str, Any] | None = None,
        metadata: dict[str, str] | None = None,
        entrypoint_num_cpus: float = 0,
        entrypoint_num_gpus: float = 0,
        entrypoint_memory: float = 0,
        entrypoint_resources: dict[str, float] | None = None,
    ) -> str:
        """Run the shell command ``entrypoint`` on the cluster; return the job's id (``submission_id``, or a new one).

        ``runtime_env`` is as for tasks: the command runs in its "working_dir", which is sent, and a program there submits with the same
        ``runtime_env``. Without one the command runs in this process's directory. The process holds the ``entrypoint_`` resources
        (``entrypoint_memory`` in bytes) while it runs. Raises ValueError for a wrong argument, JobError for an id that is taken, and
        RuntimeEnvSetupError if the environment cannot be sent or made.
        """
        if not isinstance(entrypoint, str) or not entrypoint.strip():
            raise ValueError("submit_job: entrypoint is a shell command, such as 'python train.py'")
        job = submission_id or job_id or f"job-{secrets.token_hex(4)}"
        if not is_name(job):
            raise ValueError(f"submit_job: an id has letters, digits, '-', '_' and '.', at most 100; not {job!r}")
        if self._files_of(job) is not None:
            raise JobError(f"submit_job: there is a job {job!r} already; delete it, or choose another id")
        try:
            environment = environment_of(runtime_env or {})
            runner = zf.remote(JobRunner).options(
                name=job,
                namespace=JOBS_NAMESPACE,
                lifetime="detached",
                max_concurrency=8,
                num_cpus=entrypoint_num_cpus,
                num_gpus=entrypoint_num_gpus,
                memory=entrypoint_memory,
                resources=entrypoint_resources or {},
                runtime_env=runtime_env or {},
            )
            handle = runner.remote(job, entrypoint, environment, os.getcwd(), dict(metadata or {}))
        except ActorNameTakenError:
            raise JobError(f"submit_job: there is a job {job!r} already; delete it, or choose another id") from None
        except OptionError as error:
            raise ValueError(f"submit_job: {error}") from None
        if not (entrypoint_num_cpus or entrypoint_num_gpus or entrypoint_memory or entrypoint_resources):
            try:
                zf.get(handle.info.remote(), timeout=ANSWER_SECONDS)  # Raises errors of its start.
            except ActorError:  # It has ended already, if it has left a result.
                if self._left(job) is None:
                    raise
        return job

    def get_job_info(self, job_id: str) -> JobDetails:
        """Return the facts about a job. Raises JobError for an unknown id."""
        try:
            handle = self._runner(job_id)
        except JobError:
            former = self._left(job_id)
            if former is None:
                raise
            return _details(job_id, former)
        try:
            facts = self._ask(handle, "info", timeout=POLL_SECONDS * 10)
        except GetTimeoutError:  # It waits for its resources.
            facts = {**_without_process(job_id), "status": "PENDING", "message": "waits for resources"}
        except ActorError as error:  # It has just ended, or its process was killed.
            failed = {**_without_process(job_id), "status": "FAILED", "message": str(error)}
            facts = self._left(job_id) or failed
        return _details(job_id, facts)

    def get_job_status(self, job_id: str) -> JobStatus:
        """Return a job's state. Raises JobError for an unknown id."""
        status: JobStatus = self.get_job_info(job_id).status
        return status

    def list_jobs(self) -> list[JobDetails]:
        """Return the facts about all jobs that were not deleted, the oldest first; with a store, those of earlier clusters, too."""
        names = [row["name"] for row in named_actors(all_namespaces=True) if row["namespace"] == JOBS_NAMESPACE]
        for files in self._all_files():
            with contextlib.suppress(FabricError):  # That node's jobs are missing.
                names += files.names()
        found = []
        for name in dict.fromkeys(names):
            try:
                found.append(self.get_job_info(name))
            except JobError:  # It was deleted meanwhile.
                continue
        return sorted(found, key=lambda job: job["start_time"] or 0)

    def get_job_logs(self, job_id: str) -> str:
        """Return a job's output, at most its last 16 MiB."""
        if self.get_job_status(job_id) == JobStatus.PENDING:
            return ""
        return b"".join(self._chunks(job_id, -LOG_MOST)).decode(errors="replace")

    def _chunks(self, job_id: str, offset: int) -> Iterator[bytes]:
        while True:
            data, offset = self._read(job_id, offset)
            if not data:
                return
            yield data

    def _read(self, job_id: str, offset: int) -> tuple[bytes, int]:
        """Return bytes of a job's output from ``offset``, and where they end. Raises JobError for an unknown id."""
        try:
            found: tuple[bytes, int] = self._ask(self._runner(job_id), "read", offset)
            return found
        except (JobError, ActorError):
            files = self._files_of(job_id)
            if files is None:
                raise
        return files.bytes_of(job_id, offset)

    def follow_job_logs(self, job_id: str) -> Iterator[str]:
        """Yield a job's output as it is written, until the job ends."""
        offset = 0
        while True:
            status = self.get_job_status(job_id)
            data, offset = (b"", offset) if status == JobStatus.PENDING else self._read(job_id, offset)
            if data:
                yield data.decode(errors="replace")
            elif status.is_terminal():
                return
            else:
                time.sleep(POLL_SECONDS)  # The log's writer knows of no reader.

    async def tail_job_logs(self, job_id: str) -> Any:
        """Yield a job's output as it is written, as an asynchronous iterator."""
        import asyncio  # Only needed here.

        following = self.follow_job_logs(job_id)
        while (text := await asyncio.to_thread(next, following, None)) is not None:
            yield text

    def wait_for_job(self, job_id: str, timeout: float | None = None) -> JobStatus:
        """Wait until a job has ended. Raises GetTimeoutError after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (status := self.get_job_status(job_id)).is_terminal():
            if deadline is not None and time.monotonic() > deadline:
                raise GetTimeoutError(f"job {job_id} is {status} after {timeout} s")
            time.sleep(POLL_SECONDS)  # A tool polls: the daemon does not notify it.
        return status

    def stop_job(self, job_id: str) -> bool:
        """Stop a job: SIGTERM, and SIGKILL three seconds later. One that waits for resources does not begin.

        Return False if it had ended. Raises JobError for an unknown id.
        """
        status = self.get_job_status(job_id)
        if status.is_terminal():
            return False
        try:
            runner = self._runner(job_id)
        except JobError:  # It ended meanwhile.
            return False
        if status == JobStatus.PENDING and zf.explain(runner).state == "creating":
            self._files.write({**_without_process(job_id), "status": "STOPPED", "message": "it was stopped before it began"})
            zf.kill(runner)
            return True
        try:
            return bool(self._ask(runner, "stop"))
        except ActorError:  # It has ended, by this or by itself.
            return bool(self.get_job_status(job_id) == JobStatus.STOPPED)

    def delete_job(self, job_id: str) -> bool:
        """Forget a job that has ended. Raises JobError for an unknown id, and for a job that runs."""
        status = self.get_job_status(job_id)
        if not status.is_terminal():
            raise JobError(f"job {job_id} is {status.lower()}; stop it first")
        with contextlib.suppress(JobError):  # Its actor has ended, as a rule.
            zf.kill(self._runner(job_id))
        files = self._files_of(job_id)
        if files is not None:
            files.delete(job_id)
        return True

    def _runner(self, job_id: str) -> Any:
        """Return the actor that watches a job. Raises JobError if there is none (any more)."""
        try:
            return zf.get_actor(job_id, namespace=JOBS_NAMESPACE)
        except ActorNotFoundError:
            raise JobError(f"there is no job {job_id!r} (any more); list_jobs() has those that there are") from None

    def _ask(self, runner: Any, method: str, *arguments: Any, timeout: float = ANSWER_SECONDS) -> Any:
        return zf.get(getattr(runner, method).remote(*arguments), timeout=timeout)
