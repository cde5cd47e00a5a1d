"""Files of jobs beside a node's control store, read here or by the daemon for another node."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from zfabric.protocol import messages as m
from zfabric.runtime.session import Session

NAMES, FACTS, BYTES, DELETE = "job names", "job facts", "job bytes", "delete job"
"""Questions of other nodes to a daemon's shell, as in ``log_files``."""
QUESTIONS = frozenset({NAMES, FACTS, BYTES, DELETE})
CHUNK_BYTES = 256 * 1024
"""Most bytes per answer, which takes a part of a turn."""
ENDED_MAX = 1000
"""Retained ended jobs; the oldest are deleted first."""
NAME_CHARACTERS_MAX = 100
RUNNING = "RUNNING"


class JobFiles:
    """A node's files of jobs: ``ID.json`` (facts) and ``ID.log`` (output). ``session`` is a directory."""

    def __init__(self, session: str) -> None:
        self._directory = f"{Session(session).describe()['store']}/jobs"
        self._session = session

    def log(self, job: str) -> str:
        """The path of a job's output."""
        return f"{self._directory}/{job}.log"

    def write(self, facts: dict[str, Any]) -> None:
        """Write a job's facts atomically. Raises OSError."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        path = f"{self._directory}/{facts['submission_id']}.json"
        with open(f"{path}.new", "w", opener=private) as file:
            json.dump({**facts, "session": self._session}, file)
        os.replace(f"{path}.new", path)

    def read(self, job: str) -> dict[str, Any] | None:
        """The facts of a job that no actor watches, if any."""
        try:
            with open(f"{self._directory}/{job}.json") as file:
                facts: dict[str, Any] = json.load(file)
        except (OSError, ValueError):
            return None
        facts.pop("session", None)
        if facts["status"] == RUNNING:
            facts |= {"status": "FAILED", "message": "it did not outlive its cluster, or the process that watched it was killed"}
        return facts

    def names(self) -> list[str]:
        """Ids of jobs with files, the oldest first."""
        try:
            with os.scandir(self._directory) as found:
                files = [(each.stat().st_mtime, each.name) for each in found if each.name.endswith(".json")]
        except FileNotFoundError:
            return []
        return [name.removesuffix(".json") for _, name in sorted(files)]

    def delete(self, job: str) -> None:
        """Delete a job's files."""
        for name in (f"{job}.json", f"{job}.log"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._directory}/{name}")

    def delete_oldest(self) -> None:
        """Retain ``ENDED_MAX`` ended jobs."""
        names = self.names()
        ended = [job for job in names if not self._may_run(job)] if len(names) > ENDED_MAX else []
        for job in ended[:-ENDED_MAX]:
            self.delete(job)

    def _may_run(self, job: str) -> bool:
        with contextlib.suppress(OSError, ValueError), open(f"{self._directory}/{job}.json") as file:
            facts = json.load(file)
            return bool(facts["status"] == RUNNING and facts["session"] == self._session)
        return False

    def bytes_of(self, job: str, offset: int) -> tuple[bytes, int]:
        """A job's output from ``offset`` on (negative: from its end), and the offset of its end."""
        try:
            with open(self.log(job), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(0, size + offset) if offset < 0 else min(offset, size)
                file.seek(start)
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:  # It was stopped before it began.
            return b"", max(0, offset)
        return data, start + len(data)


class RemoteJobFiles:
    """Another node's files of jobs. ``client`` is a connection. Raises FabricError if the node does not answer."""

    def __init__(self, client: Any, node: str) -> None:
        self._client = client
        self._node = bytes.fromhex(node)

    def names(self) -> list[str]:
        """As in ``JobFiles``."""
        return list(self._client.query("at", self._node, NAMES))

    def read(self, job: str) -> dict[str, Any] | None:
        """As in ``JobFiles``."""
        found: dict[str, Any] | None = self._client.query("at", self._node, FACTS, job)
        return found

    def bytes_of(self, job: str, offset: int) -> tuple[bytes, int]:
        """As in ``JobFiles``."""
        data, end = self._client.query("at", self._node, BYTES, job, offset)
        return data, end

    def delete(self, job: str) -> None:
        """As in ``JobFiles``."""
        self._client.query("at", self._node, DELETE, job)


def answer(session: str, query: m.Query) -> m.Answer:
    """Answer another node's question."""
    files = JobFiles(session)
    try:
        if query.what == NAMES:
            return m.Answer(query.token, tuple(files.names()), "")
        job, *rest = query.arguments
        if not is_name(job):
            raise ValueError(f"{job!r} is not the id of a job")
        if query.what == FACTS:
            return m.Answer(query.token, files.read(job), "")
        if query.what == BYTES:
            (offset,) = rest
            return m.Answer(query.token, files.bytes_of(job, int(offset)), "")
        files.delete(job)
        return m.Answer(query.token, None, "")
    except (TypeError, ValueError, AttributeError, OSError) as error:
        return m.Answer(query.token, None, f"{query.what}: {error}")


def is_name(job: Any) -> bool:
    """Whether this may be a job's id, and so part of file names.

    >>> is_name("job-1.a_b"), is_name("a/b"), is_name("..")
    (True, False, False)
    """
    return isinstance(job, str) and len(job) <= NAME_CHARACTERS_MAX and job.replace("-", "").replace("_", "").replace(".", "").isalnum()


def private(path: str, flags: int) -> int:
    """Open a file that only its user may read."""
    return os.open(path, flags, 0o600)
