"""A session's log files, read here or by its daemon for another node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Protocol

from zfabric.protocol import messages as m
from zfabric.runtime.logs import STREAMS, log_path, worker_pids

FILES, BYTES = "log files", "log bytes"
"""Questions of other nodes to a daemon's shell: machines know no files."""
CHUNK_BYTES = 256 * 1024
"""Most bytes per read, which takes a part of a turn."""
SYSTEM = ("daemon", "template", "supervisor", "transfer")
ROTATED = 9
"""Most rotated parts."""


class LogFiles(Protocol):
    """One node's log files."""

    def names(self, system: bool) -> list[tuple[str, int, str]]:
        """(file, its writer's pid or 0, name) of workers, or of the fabric's own processes."""

    def read(self, name: str, offset: int) -> bytes | None:
        """Up to ``CHUNK_BYTES`` from ``offset`` on; None without such a file."""

    def size(self, name: str) -> int:
        """Bytes; 0 without a file."""


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
    """Another node's log files. ``client`` is a connection. Raises FabricError if the node does not answer."""

    def __init__(self, client: Any, node: str) -> None:
        self._client = client
        self._node = bytes.fromhex(node)

    def names(self, system: bool) -> list[tuple[str, int, str]]:
        """Implement ``LogFiles.names``."""
        return [tuple(row) for row in self._client.query("at", self._node, FILES, system)]

    def read(self, name: str, offset: int) -> bytes | None:
        """Implement ``LogFiles.read``."""
        data, _ = self._client.query("at", self._node, BYTES, name, offset)
        return data  # type: ignore[no-any-return]

    def size(self, name: str) -> int:
        """Implement ``LogFiles.size``."""
        _, size = self._client.query("at", self._node, BYTES, name, -1)
        return size  # type: ignore[no-any-return]


def answer(directory: str, query: m.Query) -> m.Answer:
    """Answer another node's question."""
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
