"""``zfabric logs``: output of the workers, read from the session's files without a query to the daemon."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import click

from zfabric.cli.options import PID, WholeNumber, address_option
from zfabric.cli.sessions import looked_at, session_option
from zfabric.runtime.lines import Lines
from zfabric.runtime.logs import STREAMS, log_path, worker_pids
from zfabric.runtime.session import Session

LOOK_EVERY = 0.2
"""Pause between two reads of the files, in seconds."""
CHUNK_BYTES = 1 << 20
SYSTEM = ("daemon", "template", "supervisor")
"""The fabric's own processes that have logs."""


class Source(NamedTuple):
    """A log file, the process that writes it, and its lines as they are read."""

    path: str
    who: str
    lines: Lines


@click.command(short_help="Show the output of workers.")
@address_option
@session_option
@click.option("-f", "--follow", is_flag=True, help="Follow the output until Ctrl-C or the end of the cluster.")
@click.option("--worker", "pid", type=PID, metavar="PID", help="Only the output of this worker, which may have ended.")
@click.option("--daemon", is_flag=True, help="Logs of the fabric's own processes instead of workers.")
@click.option("-n", "--tail", "lines", type=WholeNumber("number of lines", 0), metavar="N", help="Only the last N lines of each file.")
def logs(address: str | None, ended: str | None, follow: bool, pid: int | None, daemon: bool, lines: int | None) -> None:
    """Show the output of workers, standard output before standard error.

    Each line has the worker's pid, and the name of the task or actor that wrote it, if it is known.

    The output of the workers that ended last is retained.
    """
    if daemon and pid is not None:
        raise click.UsageError("--daemon and --worker exclude each other")
    session = looked_at(address, ended)
    known: dict[str, Lines] = {}
    found = list(_sources(session, pid, daemon, known))
    if pid is not None and not found:
        raise click.ClickException(f"there are no logs of a worker {pid}; `zfabric workers` lists those that run")
    offsets: dict[str, int] = {}
    for source in found:
        offsets[source.path] = _show(source, lines)
    if follow:
        _follow(session, pid, daemon, known, offsets)


def _sources(session: Session, pid: int | None, daemon: bool, known: dict[str, Lines]) -> Iterator[Source]:
    if daemon:
        for name in SYSTEM:
            for stream in STREAMS:
                if os.path.exists(path := f"{session.logs}/{name}.{stream}"):
                    yield Source(path, name, known.setdefault(path, Lines()))
        return
    for token, number in worker_pids(session.logs).items():
        for stream in STREAMS:
            if pid in (None, number) and os.path.exists(path := log_path(session.logs, token, stream)):
                yield Source(path, f"pid={number}", known.setdefault(path, Lines()))


def _show(source: Source, lines: int | None) -> int:
    """Print a file, after the parts rotated away from it, or its last lines; return the offset of its end."""
    kept: deque[tuple[str, str]] = deque(maxlen=lines)
    rotated = [f"{source.path}.{number}" for number in range(9, 0, -1)]
    end = 0
    for path in (*filter(os.path.exists, rotated), source.path):
        try:
            with open(path, "rb") as file:
                for line in file:
                    for shown in source.lines.read(line):
                        if lines is None:
                            _print(source, *shown)
                        else:
                            kept.append(shown)
                end = file.tell()
        except FileNotFoundError:  # Its worker ended, and the file was empty.
            continue
    for shown in kept:
        _print(source, *shown)
    return end


def _print(source: Source, name: str, line: str) -> None:
    click.echo(f"({name} {source.who}) {line}" if name else f"({source.who}) {line}")


def _follow(session: Session, pid: int | None, daemon: bool, known: dict[str, Lines], offsets: dict[str, int]) -> None:
    """Print what is appended, also to new files, until the session ends."""
    partial: dict[str, bytes] = {}
    while True:
        alive = session.alive()
        for source in _sources(session, pid, daemon, known):
            _show_new(source, offsets, partial)
        if not alive:
            return
        time.sleep(LOOK_EVERY)  # Polls as `tail -f` does: files are created, rotated and removed, and a short delay does not matter.


def _show_new(source: Source, offsets: dict[str, int], partial: dict[str, bytes]) -> None:
    path = source.path
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < offsets.get(path, 0):  # The file was rotated.
                offsets[path] = 0
            file.seek(offsets.get(path, 0))
            data = file.read(CHUNK_BYTES)
            offsets[path] = file.tell()
    except FileNotFoundError:
        return
    data = partial.pop(path, b"") + data
    end = data.rfind(b"\n") + 1
    if data[end:]:
        partial[path] = data[end:]
    for shown in source.lines.read(data[:end]) if end else ():
        _print(source, *shown)
