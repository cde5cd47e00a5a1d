"""The newest output of all nodes' workers, read while somebody follows it."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from zfabric.exceptions import FabricError
from zfabric.runtime.lines import Lines
from zfabric.runtime.log_files import LogFiles

LINES_MOST = 5_000
FIRST_BYTES = 64 * 1024
"""How far back reading begins."""
FOLLOWED_SECONDS = 3.0
"""New lines count as just written if checks are no further apart."""
NAMES_MOST = 500
"""Most functions to choose from."""
PARTIAL_MOST = 64 * 1024
"""Most bytes of an unfinished line."""


class Line(NamedTuple):
    """A line of output. ``number`` counts all lines read.

    ``at`` is when the line was written (seconds since 1970), by its mark or because it was read soon after; else 0. ``job`` is the
    worker's, 0 if unknown.
    """

    number: int
    node: str
    pid: int
    stream: str
    name: str
    text: str
    at: float
    job: int


class _File:
    def __init__(self, size: int) -> None:
        self.offset = max(0, size - FIRST_BYTES)
        self.cut = self.offset > 0
        """Whether reading begins within a line."""
        self.partial = b""
        self.lines = Lines()
        self.looked = 0.0

    def read(self, files: LogFiles, name: str, now: float) -> list[tuple[str, str, float]]:
        """New complete lines as (writer, text, when)."""
        size, looked, self.looked = files.size(name), self.looked, now
        if size == self.offset:
            return []
        if size < self.offset:  # It was rotated.
            self.offset, self.partial = 0, b""
        new = files.read(name, self.offset) or b""
        self.offset += len(new)
        data = self.partial + new
        if self.cut:
            data, self.cut = data.partition(b"\n")[2], False
        end = data.rfind(b"\n") + 1
        self.partial = data[end:][-PARTIAL_MOST:]
        seen = now if now - looked < FOLLOWED_SECONDS else 0.0
        return [(writer, text, self.lines.at or seen) for writer, text in self.lines.read(data[:end])] if end else []


class Output:
    """All workers' lines. ``sources`` returns each node's name and log files."""

    def __init__(self, sources: Callable[[], list[tuple[str, LogFiles]]]) -> None:
        self._sources = sources
        self._files: dict[tuple[str, str], _File] = {}
        self._lines: deque[Line] = deque(maxlen=LINES_MOST)
        self._read = 0

    def read(self) -> None:
        """Read what is new, except of silent nodes."""
        for node, files in self._sources():
            with contextlib.suppress(FabricError):
                self._read_of(node, files)

    def _read_of(self, node: str, files: LogFiles) -> None:
        now = time.time()
        for name, pid, _ in files.names(False):
            file = self._files.get((node, name))
            if file is None:
                file = self._files[node, name] = _File(files.size(name))
            for writer, text, at in file.read(files, name, now):
                self._read += 1
                self._lines.append(Line(self._read, node, pid, name.rpartition(".")[2], writer, text, at, file.lines.job))

    def since(self, number: int, pid: int | None = None, text: str = "", job: int = 0, function: str = "") -> dict[str, object]:
        """Lines after ``number``, of a worker, job or function, or with a text, where given.

        ``dropped`` counts lines that are gone; ``jobs`` and ``functions`` are of all retained lines.
        """
        first = self._lines[0].number if self._lines else self._read + 1
        wanted = text.lower()

        def shown(line: Line) -> bool:
            if pid not in (None, line.pid) or job not in (0, line.job) or function not in ("", line.name):
                return False
            return not wanted or wanted in line.text.lower() or wanted in line.name.lower()

        rows = [line for line in self._lines if line.number > number and shown(line)]
        jobs, functions = ({line.job for line in self._lines} - {0}, {line.name for line in self._lines} - {""})
        return {
            "lines": rows,
            "read": self._read,
            "dropped": max(0, first - 1 - number),
            "jobs": sorted(jobs),
            "functions": sorted(functions)[:NAMES_MOST],
        }
