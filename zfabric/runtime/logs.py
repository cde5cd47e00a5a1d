"""Logs of daemon and supervisor, and workers' output: how the daemon follows and rotates the files.

Workers append to files (``O_APPEND``): nothing is lost with a worker or the daemon, and printing never waits. The daemon passes complete
lines, parsed by ``lines``, to the driver. A file past a limit is copied, past twice the limit only its last bytes, and truncated; its
writer goes on at the new end. Output faster than can be shown is skipped with a notice; the files have it. On a full disk lines are
missing, and everything else goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from zfabric.runtime.lines import CRASH, Lines, last_written, mark
from zfabric.runtime.stacks import dump_path

STREAMS = ("out", "err")
CHUNK_BYTES = 64 * 1024
"""Most bytes of a file per call, which take well below a millisecond. Longer lines are split."""
BACKLOG_BYTES = 1024 * 1024
"""Most bytes that wait to be passed on; older output is skipped."""
DEAD_KEPT = 64
"""The latest dead workers, whose files remain."""

PROGRESS_EVERY = 1.0
"""Least seconds between shown versions of a progress bar."""

LogRow = tuple[int, str, str, str]
"""(pid, writer's name or "", stream, text): lines without the last newline."""


def log(text: str) -> None:
    """Write a line to this process's log."""
    with contextlib.suppress(OSError):
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", file=sys.stderr, flush=True)


def log_path(directory: str, token: bytes, stream: str) -> str:
    """A worker's file for ``stream`` ("out" or "err")."""
    return f"{directory}/worker-{token.hex()}.{stream}"


def note_worker(directory: str, token: bytes, pid: int) -> None:
    """Record a worker's pid, to find its output later."""
    with contextlib.suppress(OSError), open(f"{directory}/workers", "ab", opener=_private, buffering=0) as file:
        file.write(b"%s %d\n" % (token.hex().encode(), pid))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def worker_pids(directory: str) -> dict[bytes, int]:
    """Workers' pids by token, the dead included, in order of start."""
    try:
        with open(f"{directory}/workers", encoding="ascii") as file:
            whole = [line.split() for line in file if line.endswith("\n")]  # A full disk may have cut a line.
            return {bytes.fromhex(token): int(pid) for token, pid in whole}
    except FileNotFoundError:
        return {}


def tail(path: str, lines: int = 20, size: int = 4096) -> str:
    """A file's last lines, at most ``size`` bytes; its rotated copy's if it is empty.

    After a crash, the first lines of Python's report, which begins with the cause.
    """
    for candidate in (path, f"{path}.1"):
        try:
            with open(candidate, "rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - CHUNK_BYTES))
                data = file.read(CHUNK_BYTES)
        except OSError:
            continue
        crash = data.rfind(CRASH.encode())
        data = data[crash:] if crash >= 0 else data[-size:]
        lines_found = [line for _, line in Lines().read(data.rstrip())]
        if any(lines_found):
            return "\n".join(lines_found[:lines] if crash >= 0 else lines_found[-lines:])[: 2 * size]
    return ""


class _Follower:
    """A file read up to ``offset``. ``partial`` is an unfinished line."""

    __slots__ = ("_progress", "_progress_at", "lines", "offset", "partial", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0
        self.partial = b""
        self.lines = Lines()
        self._progress = b""
        """The last shown version."""
        self._progress_at = 0.0

    def read(self, limit: int) -> bytes:
        """Up to ``limit`` new bytes. Beyond ``BACKLOG_BYTES`` the oldest are skipped, with a notice."""
        try:
            if os.stat(self.path).st_size == self.offset:  # The usual case; opening costs five times as much.
                return b""
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            size = os.fstat(descriptor).st_size
            if size < self.offset:  # Another process truncated it.
                self.offset = 0
            if size == self.offset:
                return b""
            notice = b""
            if size - self.offset > BACKLOG_BYTES:
                skipped = size - self.offset - min(limit, BACKLOG_BYTES // 2)
                notice = b"\n" if self.partial else b""
                notice += b"[%d bytes of output skipped; until the cluster ends they are in %s, and with ZFABRIC_KEEP=1 after that]\n" % (
                    skipped,
                    os.fsencode(self.path),
                )
                self.offset += skipped
            data = os.pread(descriptor, limit, self.offset)
            self.offset += len(data)
            return notice + data
        finally:
            os.close(descriptor)

    def new_lines(self, now: float, limit: int = CHUNK_BYTES) -> bytes:
        """New complete lines; rewritten lines are shown now and then."""
        data = self.partial + self.read(limit)
        end = data.rfind(b"\n") + 1
        if len(data) - end > CHUNK_BYTES:
            end = len(data)
        whole, self.partial = data[:end], data[end:]
        if self._progress and whole:
            if last_written(whole.split(b"\n", 1)[0].decode(errors="replace")) == self._progress.decode(errors="replace"):
                whole = whole.split(b"\n", 1)[1]  # Already shown.
            self._progress = b""
        if b"\r" in self.partial:
            written = self.partial.rstrip(b"\r").rpartition(b"\r")[2]
            self.partial = b"\r" + written  # Overwritten text is dropped.
            if now >= self._progress_at and written not in (b"", self._progress):
                self._progress, self._progress_at = written, now + PROGRESS_EVERY
                whole += written + b"\n"
        return whole

    def rest(self) -> bytes:
        data, self.partial = self.partial, b""
        data += self.read(BACKLOG_BYTES)
        progress, self._progress = self._progress, b""
        return b"" if progress and data.strip(b"\r\n") == progress else data

    def rotate(self, files: int, max_bytes: int, now: float) -> bytes:
        """Copy the file, keep ``files`` copies, and truncate. Return its unread lines.

        Without a descriptor nothing is done.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            for number in range(files - 1, 0, -1):
                if os.path.exists(f"{self.path}.{number}"):
                    os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
            if files > 0:
                with contextlib.suppress(OSError):  # On a full disk there is no copy; truncating makes room.
                    _copy(descriptor, f"{self.path}.1", max_bytes)
            unread = self.new_lines(now, BACKLOG_BYTES)
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
        self.offset = 0
        return unread

    def delete(self, files: int, only_empty: bool = False) -> None:
        names = [self.path, *(f"{self.path}.{number}" for number in range(1, files + 1))]
        for name in names:
            try:
                if not only_empty or os.stat(name).st_size == 0:
                    os.unlink(name)
            except OSError:
                continue


def _copy(source: int, path: str, max_bytes: int) -> None:
    """Copy the last bytes up to the end, so that little is written before the truncation."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(source).st_size
        offset = size - max_bytes if size > 2 * max_bytes else 0
        while copied := os.sendfile(target, source, offset, 16 * 2**20):
            offset += copied
    finally:
        os.close(target)


class _Worker(NamedTuple):
    pid: int
    followers: tuple[tuple[str, _Follower], ...]


class LogTailer:
    """Follows workers' output. Rotates files at ``max_bytes``; ``clock`` (seconds) paces rewritten lines."""

    def __init__(self, directory: str, max_bytes: int, files: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.files = files
        self._clock = clock
        self._workers: dict[bytes, _Worker] = {}
        self._dead: list[bytes] = []

    def poll(self, pids_by_token: Mapping[bytes, int]) -> list[LogRow]:
        """New complete lines of these workers, by worker, stream and writer. Rotates large files."""
        rows = []
        now = self._clock()
        for token, pid in pids_by_token.items():
            for stream, follower in self._worker(token, pid).followers:
                data = follower.new_lines(now)
                if follower.offset >= self.max_bytes:
                    data += follower.rotate(self.files, self.max_bytes, now)
                rows += _rows(pid, stream, follower, data)
        return rows

    def flush(self, token: bytes, pid: int = 0) -> list[LogRow]:
        """An ended worker's unread output. ``pid`` is needed if it was never polled."""
        worker = self._worker(token, pid)
        return [row for stream, follower in worker.followers for row in _rows(worker.pid, stream, follower, follower.rest())]

    def sign(self, token: bytes, name: str, text: str) -> None:
        """Append a line in a task's or actor's name to a dead worker's standard error, unless that is empty."""
        path = log_path(self.directory, token, "err")
        with contextlib.suppress(OSError):
            if os.stat(path).st_size:
                with open(path, "ab", buffering=0) as file:
                    file.write(f"{mark(name)}{text}\n".encode(errors="replace"))

    def forget(self, token: bytes) -> None:
        """Stop following an ended worker. Delete its empty files, and the files of all but the last ``DEAD_KEPT``."""
        with contextlib.suppress(OSError):
            os.unlink(dump_path(self.directory, token))
        for _, follower in self._worker(token, 0).followers:
            follower.delete(self.files, only_empty=True)
            with contextlib.suppress(OSError):
                if os.stat(follower.path).st_size > self.max_bytes:  # Its last output was that long.
                    follower.rotate(self.files, self.max_bytes, self._clock())
        del self._workers[token]
        self._dead.append(token)
        while len(self._dead) > DEAD_KEPT:
            oldest = self._dead.pop(0)
            for stream in STREAMS:
                _Follower(log_path(self.directory, oldest, stream)).delete(self.files)

    def _worker(self, token: bytes, pid: int) -> _Worker:
        worker = self._workers.get(token)
        if worker is None or (pid and worker.pid != pid):
            followers = worker.followers if worker else tuple((s, _Follower(log_path(self.directory, token, s))) for s in STREAMS)
            worker = self._workers[token] = _Worker(pid, followers)
        return worker


def _rows(pid: int, stream: str, follower: _Follower, data: bytes) -> list[LogRow]:
    found = groupby(follower.lines.read(data), itemgetter(0)) if data else ()
    return [(pid, name, stream, "\n".join(line for _, line in lines)) for name, lines in found]
