"""Log files of a session, read from here or by its daemon for another node: which there are, and their bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Protocol

from zfabric.protocol import messages as m
from zfabric.runtime.logs import STREAMS, log_path, worker_pids

FILES, BYTES = "log files", "log bytes"
"""Questions that the shell of a daemon answers to other nodes: its machines know no files."""
CHUNK_BYTES = 256 * 1024
"""Most bytes of one read: a daemon reads them within its turn."""
SYSTEM = ("daemon", "template", "supervisor", "transfer")
"""The fabric's own processes that have logs."""
ROTATED = 9
"""Most parts that were rotated away from a file."""


class LogFiles(Protocol):
    """The log files of one node."""

    def names(self, system: bool) -> list[tuple[str, int, str]]:
        """Names of the files of workers, or of the fabric's own processes, each with the pid (0: none) and the name of its writer."""

    def read(self, name: str, offset: int) -> bytes | None:
        """Up to ``CHUNK_BYTES`` of a file from ``offset`` on; None if there is no such file."""

    def size(self, name: str) -> int:
        """The size of a file in bytes; 0 if there is none."""


class LocalLogFiles:
    """The log files in a directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def names(self, system: bool) -> list[tuple[str, int, str]]:
        """Implement ``LogFiles.names``."""
        found = self._system() if system else self._workers()
        return [row for row in found if os.path.exists(f"{self._directory}/{row[0]}")]

    def _system(self) -> Iterator[tuple[str, int, str]]:
        yield from ((f"{name}.{stream}", 0, name) for name in SYSTEM for stream in STREAMS)

    def _workers(self) -> Iterator[tuple[str, int, str]]:
        for token, pid in worker_pids(self._directory).items():
            yield from ((os.path.basename(log_path("", token, stream)), pid, f"pid={pid}") for stream in STREAMS)

    def read(self, name: str, offset: int) -> bytes | None:
        """Implement ``LogFiles.read``."""
        try:
            with open(f"{self._directory}/{name}", "rb") as file:
                file.seek(offset)
                return file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int:
        """Implement ``LogFiles.size``."""
        try:
            return os.stat(f"{self._directory}/{name}").st_size
        except FileNotFoundError:
            return 0


class RemoteLogFiles:
    """The log files of another node of a cluster, which its daemon reads. ``client`` has the method ``query`` of a connection."""

    def __init__(self, client: Any, node: str) -> None:
        self._client = client
        self._node = bytes.fromhex(node)

    def names(self, system: bool) -> list[tuple[str, int, str]]:
        """Implement ``LogFiles.names``. Raises FabricError if the node does not answer."""
        return [tuple(row) for row in self._client.query("at", self._node, FILES, system)]

    def read(self, name: str, offset: int) -> bytes | None:
        """Implement ``LogFiles.read``. Raises FabricError if the node does not answer."""
        data, _ = self._client.query("at", self._node, BYTES, name, offset)
        return data  # type: ignore[no-any-return]

    def size(self, name: str) -> int:
        """Implement ``LogFiles.size``. Raises FabricError if the node does not answer."""
        _, size = self._client.query("at", self._node, BYTES, name, -1)
        return size  # type: ignore[no-any-return]


def answer(directory: str, query: m.Query) -> m.Answer:
    """Answer one of these questions of another node about the log files in a directory."""
    files = LocalLogFiles(directory)
    try:
        if query.what == FILES:
            (system,) = query.arguments
            return m.Answer(query.token, tuple(files.names(bool(system))), "")
        name, offset = query.arguments
        known = {row[0] for system in (False, True) for row in files.names(system)}
        base, _, number = name.rpartition(".")
        if name not in known and not (base in known and number.isdecimal() and 0 < int(number) <= ROTATED):
            raise ValueError("there is no such log file")
        return m.Answer(query.token, (files.read(name, offset) if offset >= 0 else None, files.size(name)), "")
    except (TypeError, ValueError, AttributeError, OSError) as error:
        return m.Answer(query.token, None, f"{query.what}: {error}")
