"""Files of jobs beside the control store of a node: what became of each, and its output; read here, or by the daemon for another node."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from zfabric.protocol import messages as m
from zfabric.runtime.session import Session

NAMES, FACTS, BYTES, DELETE = "job names", "job facts", "job bytes", "delete job"
"""Questions that the shell of a daemon answers to other nodes: its machines know no files."""
QUESTIONS = frozenset({NAMES, FACTS, BYTES, DELETE})
CHUNK_BYTES = 256 * 1024
"""Most bytes of a log in one answer: a daemon reads them within its turn."""
ENDED_MAX = 1000
"""Jobs that have ended whose files are retained on a node; of more, the oldest are deleted."""
NAME_CHARACTERS_MAX = 100
"""Longest id of a job."""
RUNNING = "RUNNING"
"""The status, in its file, of a job that has not ended."""


class JobFiles:
    """The files of a node's jobs: ``ID.json`` with the facts, and ``ID.log`` with the output. ``session`` is its directory."""

    def __init__(self, session: str) -> None:
        self._directory = f"{Session(session).describe()['store']}/jobs"
        self._session = session

    def log(self, job: str) -> str:
        """The path of a job's output."""
        return f"{self._directory}/{job}.log"

    def write(self, facts: dict[str, Any]) -> None:
        """Write the facts about a job, all or none. Raises OSError if the disk is full."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        path = f"{self._directory}/{facts['submission_id']}.json"
        with open(f"{path}.new", "w", opener=private) as file:
            json.dump({**facts, "session": self._session}, file)
        os.replace(f"{path}.new", path)

    def read(self, job: str) -> dict[str, Any] | None:
        """The facts about a job that no actor watches any more; None if there is none."""
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
        """Ids of the jobs that have files, the oldest first."""
        try:
            with os.scandir(self._directory) as found:
                files = [(each.stat().st_mtime, each.name) for each in found if each.name.endswith(".json")]
        except FileNotFoundError:
            return []
        return [name.removesuffix(".json") for _, name in sorted(files)]

    def delete(self, job: str) -> None:
        """Delete the files of a job."""
        for name in (f"{job}.json", f"{job}.log"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._directory}/{name}")

    def delete_oldest(self) -> None:
        """Delete what is more than ``ENDED_MAX`` jobs that have ended."""
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
        """Bytes of a job's output from ``offset`` on (negative: before its end), and where they end; none if there is no file."""
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
    """The files of jobs on another node of a cluster, which its daemon reads. ``client`` has the method ``query`` of a connection.

    Its methods raise FabricError if the node does not answer.
    """

    def __init__(self, client: Any, node: str) -> None:
        self._client = client
        self._node = bytes.fromhex(node)

    def names(self) -> list[str]:
        """As that of ``JobFiles``."""
        return list(self._client.query("at", self._node, NAMES))

    def read(self, job: str) -> dict[str, Any] | None:
        """As that of ``JobFiles``."""
        found: dict[str, Any] | None = self._client.query("at", self._node, FACTS, job)
        return found

    def bytes_of(self, job: str, offset: int) -> tuple[bytes, int]:
        """As that of ``JobFiles``."""
        data, end = self._client.query("at", self._node, BYTES, job, offset)
        return data, end

    def delete(self, job: str) -> None:
        """As that of ``JobFiles``."""
        self._client.query("at", self._node, DELETE, job)


def answer(session: str, query: m.Query) -> m.Answer:
    """Answer one of these questions of another node about the jobs of this one."""
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
    """Whether this may be the id of a job, which is a part of the names of its files.

    >>> is_name("job-1.a_b"), is_name("a/b"), is_name("..")
    (True, False, False)
    """
    return isinstance(job, str) and len(job) <= NAME_CHARACTERS_MAX and job.replace("-", "").replace("_", "").replace(".", "").isalnum()


def private(path: str, flags: int) -> int:
    """Open a file that only its user may read."""
    return os.open(path, flags, 0o600)
