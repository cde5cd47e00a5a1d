"""The newest output of workers, read from the files of this node's session while somebody follows it."""

from __future__ import annotations

import os
from collections import deque
from typing import NamedTuple

from zfabric.runtime.lines import Lines
from zfabric.runtime.logs import STREAMS, log_path, worker_pids

LINES_MOST = 5_000
"""Most lines that are retained and shown."""
FIRST_BYTES = 64 * 1024
"""How far back the reading of a file begins."""
CHUNK_BYTES = 1 << 20
"""Most bytes of one file per reading."""


class Line(NamedTuple):
    """A line of output. ``number`` counts the lines that were read."""

    number: int
    pid: int
    stream: str
    name: str
    text: str


class _File:
    def __init__(self, path: str) -> None:
        self.path = path
        size = os.stat(path).st_size
        self.offset = max(0, size - FIRST_BYTES)
        self.cut = self.offset > 0
        """Whether the first line is only the end of one."""
        self.partial = b""
        self.lines = Lines()

    def read(self) -> list[tuple[str, str]]:
        """New complete lines, with who wrote them."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:  # It was rotated.
                    self.offset, self.partial = 0, b""
                file.seek(self.offset)
                data = self.partial + file.read(CHUNK_BYTES)
                self.offset = file.tell()
        except OSError:
            return []
        if self.cut:
            data, self.cut = data.partition(b"\n")[2], False
        end = data.rfind(b"\n") + 1
        self.partial = data[end:][-CHUNK_BYTES:]
        return list(self.lines.read(data[:end])) if end else []


class Output:
    """The lines of all workers whose files are in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._files: dict[str, _File] = {}
        self._lines: deque[Line] = deque(maxlen=LINES_MOST)
        self._read = 0

    def read(self) -> None:
        """Read what is new."""
        for token, pid in worker_pids(self._directory).items():
            for stream in STREAMS:
                path = log_path(self._directory, token, stream)
                if path not in self._files:
                    try:
                        self._files[path] = _File(path)
                    except OSError:
                        continue
                for name, text in self._files[path].read():
                    self._read += 1
                    self._lines.append(Line(self._read, pid, stream, name, text))

    def since(self, number: int, pid: int | None = None, text: str = "") -> dict[str, object]:
        """Lines after ``number``, of one worker and with a text inside where these are given. ``dropped`` counts those that are gone."""
        first = self._lines[0].number if self._lines else self._read + 1
        wanted = text.lower()
        rows = [
            line
            for line in self._lines
            if line.number > number
            and pid in (None, line.pid)
            and (not wanted or wanted in line.text.lower() or wanted in line.name.lower())
        ]
        return {"lines": rows, "read": self._read, "dropped": max(0, first - 1 - number)}
