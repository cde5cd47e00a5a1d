"""Logs: what daemon and supervisor say of themselves; and the output of workers: where it lies, how the daemon follows it, what is kept.

A worker's standard output and error are files that it appends to (``O_APPEND``), so that nothing it prints is lost with it
or with the daemon, and printing never waits for anybody. The daemon looks in now and then and passes new complete lines on
to the driver. What is in them is read as ``lines`` says. A file that has grown past a limit is copied aside and truncated; its writer
goes on at the new end. Of one that is more than twice as large by then, only its last bytes are copied, as many as the limit.

A worker may print faster than lines can be shown. What is shown then skips ahead and says so; the files have the rest.

Logs are for people, and no work depends on them: where the disk is full, what cannot be written is missing, and all goes on.
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
"""Most bytes of one file passed on per call, so that a call stays well below a millisecond; also the longest line kept whole."""
BACKLOG_BYTES = 1024 * 1024
"""Output that may wait to be passed on; what is older than this is skipped."""
DEAD_KEPT = 64
"""Dead workers whose files are kept for people to read; the oldest go first."""

PROGRESS_EVERY = 1.0
"""How often a line that is rewritten (a progress bar) is shown, in seconds."""

LogRow = tuple[int, str, str, str]
"""(pid, name, stream, text): who wrote it (empty: not known), and one or more lines, without the last one's newline."""


def log(text: str) -> None:
    """One line in the log of this process."""
    with contextlib.suppress(OSError):
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", file=sys.stderr, flush=True)


def log_path(directory: str, token: bytes, stream: str) -> str:
    """The file that the worker with this token writes ``stream`` ("out" or "err") to."""
    return f"{directory}/worker-{token.hex()}.{stream}"


def note_worker(directory: str, token: bytes, pid: int) -> None:
    """Write down, beside the logs, which process the worker with this token is: people look for what a pid printed, also later."""
    with contextlib.suppress(OSError), open(f"{directory}/workers", "ab", opener=_private, buffering=0) as file:
        file.write(b"%s %d\n" % (token.hex().encode(), pid))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def worker_pids(directory: str) -> dict[bytes, int]:
    """The pids of a session's workers by token, dead ones included, in the order of their start."""
    try:
        with open(f"{directory}/workers", encoding="ascii") as file:
            whole = [line.split() for line in file if line.endswith("\n")]  # the disk may have been full in the middle of one
            return {bytes.fromhex(token): int(pid) for token, pid in whole}
    except FileNotFoundError:
        return {}


def tail(path: str, lines: int = 20, size: int = 4096) -> str:
    """The last lines of a file, of what was rotated away if it is empty; at most ``size`` bytes.

    After a crash they are the first lines of Python's account of it instead, which begins with what matters.
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
        kept = [line for _, line in Lines().read(data.rstrip())]
        if any(kept):
            return "\n".join(kept[:lines] if crash >= 0 else kept[-lines:])[: 2 * size]
    return ""


class _Follower:
    """One file, read up to ``offset``; ``partial`` is a line whose end has not been written yet."""

    __slots__ = ("_progress", "_progress_at", "lines", "offset", "partial", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0
        self.partial = b""
        self.lines = Lines()
        self._progress = b""
        """What was last shown of a line that is rewritten."""
        self._progress_at = 0.0
        """When it is shown next, at the earliest."""

    def read(self, limit: int) -> bytes:
        """New bytes, up to ``limit``, after skipping what is too old to be shown."""
        try:
            if os.stat(self.path).st_size == self.offset:  # as most often; opening it costs five times as much
                return b""
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            size = os.fstat(descriptor).st_size
            if size < self.offset:  # somebody else truncated it
                self.offset = 0
            if size == self.offset:
                return b""
            notice = b""
            if size - self.offset > BACKLOG_BYTES:
                skipped = size - self.offset - min(limit, BACKLOG_BYTES // 2)
                notice = b"\n" if self.partial else b""
                notice += b"[%d bytes of output skipped; they are in %s]\n" % (skipped, os.fsencode(self.path))
                self.offset += skipped
            data = os.pread(descriptor, limit, self.offset)
            self.offset += len(data)
            return notice + data
        finally:
            os.close(descriptor)

    def new_lines(self, now: float, limit: int = CHUNK_BYTES) -> bytes:
        """New complete lines; a line longer than a chunk comes in pieces, and of one that is rewritten the last of it, now and then."""
        data = self.partial + self.read(limit)
        end = data.rfind(b"\n") + 1
        if len(data) - end > CHUNK_BYTES:
            end = len(data)
        whole, self.partial = data[:end], data[end:]
        if self._progress and whole:
            if last_written(whole.split(b"\n", 1)[0].decode(errors="replace")) == self._progress.decode(errors="replace"):
                whole = whole.split(b"\n", 1)[1]  # It ended as it was last shown.
            self._progress = b""
        if b"\r" in self.partial:
            written = self.partial.rstrip(b"\r").rpartition(b"\r")[2]
            self.partial = b"\r" + written  # The rest was overwritten: it is neither shown nor kept.
            if now >= self._progress_at and written not in (b"", self._progress):
                self._progress, self._progress_at = written, now + PROGRESS_EVERY
                whole += written + b"\n"
        return whole

    def rest(self) -> bytes:
        """All that is left, an unfinished line included."""
        data, self.partial = self.partial, b""
        data += self.read(BACKLOG_BYTES)
        progress, self._progress = self._progress, b""
        return b"" if progress and data.strip(b"\r\n") == progress else data

    def rotate(self, files: int, max_bytes: int, now: float) -> bytes:
        """Copy the file aside, keeping ``files`` copies, and truncate it; return the lines that were still unread.

        Of a file of more than twice ``max_bytes`` only the last so many are copied.
        """
        for number in range(files - 1, 0, -1):
            if os.path.exists(f"{self.path}.{number}"):
                os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if files > 0:
                with contextlib.suppress(OSError):  # Where there is no room for a copy, there is some after this.
                    _copy(descriptor, f"{self.path}.1", max_bytes)
            unread = self.new_lines(now, BACKLOG_BYTES)
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
        self.offset = 0
        return unread

    def delete(self, files: int, only_empty: bool = False) -> None:
        """Delete the file and its rotated copies."""
        names = [self.path, *(f"{self.path}.{number}" for number in range(1, files + 1))]
        for name in names:
            try:
                if not only_empty or os.stat(name).st_size == 0:
                    os.unlink(name)
            except OSError:
                continue


def _copy(source: int, path: str, max_bytes: int) -> None:
    """Copy the last bytes until the end is reached, so that as little as possible is written between copying and truncating."""
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
    """Follows the output of a node's workers. ``max_bytes`` per file before rotation, ``files`` rotated copies kept.

    ``clock`` gives seconds: a line that is rewritten all the time is shown once in a while.
    """

    def __init__(self, directory: str, max_bytes: int, files: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.files = files
        self._clock = clock
        self._workers: dict[bytes, _Worker] = {}
        self._dead: list[bytes] = []

    def poll(self, pids_by_token: Mapping[bytes, int]) -> list[LogRow]:
        """New complete lines of these workers, a row for each that wrote some to a stream; rotates what has grown too large."""
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
        """What is left of a worker that ended, its last line even if unfinished. ``pid`` is needed if it was never polled."""
        worker = self._worker(token, pid)
        return [row for stream, follower in worker.followers for row in _rows(worker.pid, stream, follower, follower.rest())]

    def sign(self, token: bytes, name: str, text: str) -> None:
        """Add a line, in the name of a task or an actor, to what a worker that has ended wrote to its standard error, if it did."""
        path = log_path(self.directory, token, "err")
        with contextlib.suppress(OSError):
            if os.stat(path).st_size:
                with open(path, "ab", buffering=0) as file:
                    file.write(f"{mark(name)}{text}\n".encode(errors="replace"))

    def forget(self, token: bytes) -> None:
        """The worker has ended. Empty files go at once; of the others those of the last ``DEAD_KEPT`` workers are kept."""
        with contextlib.suppress(OSError):
            os.unlink(dump_path(self.directory, token))
        for _, follower in self._worker(token, 0).followers:
            follower.delete(self.files, only_empty=True)
            with contextlib.suppress(OSError):
                if os.stat(follower.path).st_size > self.max_bytes:  # Its last words were that many.
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
    """New lines of a file, those together that one task or actor wrote."""
    found = groupby(follower.lines.read(data), itemgetter(0)) if data else ()
    return [(pid, name, stream, "\n".join(line for _, line in lines)) for name, lines in found]
