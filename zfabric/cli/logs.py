"""``zfabric logs``: workers' output, from files here and from other nodes' daemons."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import click

from zfabric.cli.options import PID, WholeNumber, address_option
from zfabric.cli.output import echo, echo_output
from zfabric.cli.sessions import connected, looked_at, session_option
from zfabric.exceptions import FabricError
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.lines import Lines
from zfabric.runtime.log_files import ROTATED, LocalLogFiles, LogFiles, RemoteLogFiles
from zfabric.runtime.session import Session

LOOK_EVERY = 0.2
"""Seconds between reads."""


class Node(NamedTuple):
    """A node and its log files. The name is "" in a cluster of one."""

    name: str
    files: LogFiles


class Source(NamedTuple):
    """A log file, its writer, and the lines read."""

    node: Node
    name: str
    who: str
    lines: Lines
    names_job: bool
    """Lines name their job, because several programs share the cluster."""


class Reading(NamedTuple):
    """What was read so far, by (node, file)."""

    lines: dict[tuple[str, str], Lines]
    offsets: dict[tuple[str, str], int]
    partial: dict[tuple[str, str], bytes]
    job: int | None
    """Only this job is shown; None: all jobs."""
    names_job: bool


@click.command(short_help="Show the output of workers.")
@address_option
@session_option
@click.option("-f", "--follow", is_flag=True, help="Follow the output until Ctrl-C or the end of the cluster.")
@click.option("--worker", "pid", type=PID, metavar="PID", help="Only the output of this worker, which may have ended.")
@click.option("--job", type=WholeNumber("number of a job", 1), metavar="N", help="Only what tasks and actors of this job wrote.")
@click.option("--daemon", is_flag=True, help="Logs of the fabric's own processes instead of workers.")
@click.option("-n", "--tail", "lines", type=WholeNumber("number of lines", 0), metavar="N", help="Only the last N lines of each file.")
def logs(address: str | None, ended: str | None, follow: bool, pid: int | None, job: int | None, daemon: bool, lines: int | None) -> None:
    """Show the output of workers, standard output before standard error.

    Each line has the worker's pid, its node in a cluster of several, the job in a cluster that programs share, and the name of the task or
    actor that wrote it, if it is known.

    The output of the workers that ended last is retained.
    """
    if daemon and (pid is not None or job is not None):
        raise click.UsageError(f"--daemon and --{'worker' if pid is not None else 'job'} exclude each other")
    session = looked_at(address, ended)
    reading = Reading({}, {}, {}, job, session.outlives_programs())
    with contextlib.ExitStack() as stack:
        nodes = _nodes(session, ended, stack)
        shown = 0
        for node in nodes:
            with _named_if_silent(node):
                for source in _sources(node, pid, daemon, reading):
                    shown += 1
                    reading.offsets[node.name, source.name] = _show(source, lines, job)
        if pid is not None and not shown:
            raise click.ClickException(f"there are no logs of a worker {pid}; `zfabric workers` lists those that run")
        if follow:
            _follow(session, nodes, pid, daemon, reading)


def _nodes(session: Session, ended: str | None, stack: contextlib.ExitStack) -> list[Node]:
    """The nodes to show, the session's first. A lone node is not asked: its daemon may be dead."""
    here = LocalLogFiles(session.logs)
    membership = None if ended else session.membership()
    if membership is None or len(membership.addresses) < 2:
        return [Node("", here)]
    client: DriverClient = stack.enter_context(connected(session))
    rows = sorted(client.query("nodes"), key=lambda row: not row["here"])
    return [Node(row["name"], here if row["here"] else RemoteLogFiles(client, row["node"])) for row in rows]


@contextlib.contextmanager
def _named_if_silent(node: Node) -> Iterator[None]:
    try:
        yield
    except FabricError as error:
        echo(f"node {node.name}: {error}", err=True)


def _sources(node: Node, pid: int | None, daemon: bool, reading: Reading) -> Iterator[Source]:
    on = f"on {node.name} " if node.name else ""
    for name, number, who in node.files.names(daemon):
        if pid in (None, number):
            yield Source(node, name, on + who, reading.lines.setdefault((node.name, name), Lines()), reading.names_job)


def _show(source: Source, lines: int | None, job: int | None) -> int:
    """Print a file with rotated parts, or its last lines, of ``job`` alone if given. Return the offset of its end."""
    kept: deque[tuple[int, str, str]] = deque(maxlen=lines)
    end = 0
    for name in (*(f"{source.name}.{number}" for number in range(ROTATED, 0, -1)), source.name):
        for line in _lines(source.node.files, name):
            end += len(line) if name == source.name else 0
            for shown in source.lines.read(line):
                if job not in (None, source.lines.job):
                    continue
                if lines is None:
                    _print(source, source.lines.job, *shown)
                else:
                    kept.append((source.lines.job, *shown))
    for each in kept:
        _print(source, *each)
    return end


def _lines(files: LogFiles, name: str) -> Iterator[bytes]:
    """A file's lines, if it still exists; the last may be unfinished."""
    offset, rest = 0, b""
    if not files.size(name):
        return
    while data := files.read(name, offset):
        offset += len(data)
        *whole, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _print(source: Source, job: int, name: str, line: str) -> None:
    who = f"{source.who} job={job}" if job and source.names_job else source.who
    echo_output(f"({name} {who}) {line}" if name else f"({who}) {line}")


def _follow(session: Session, nodes: list[Node], pid: int | None, daemon: bool, reading: Reading) -> None:
    """Print what is appended until the session ends. Silent nodes are dropped."""
    while True:
        alive = session.alive()
        for node in list(nodes):
            try:
                for source in _sources(node, pid, daemon, reading):
                    _show_new(source, reading)
            except FabricError as error:
                if alive:
                    echo(f"node {node.name}: {error}", err=True)
                nodes.remove(node)
        if not alive:
            return
        time.sleep(LOOK_EVERY)  # Polls as `tail -f` does.


def _show_new(source: Source, reading: Reading) -> None:
    key, files = (source.node.name, source.name), source.node.files
    offset = reading.offsets.get(key, 0)
    size = files.size(source.name)
    if size < offset:  # The file was rotated.
        offset = reading.offsets[key] = 0
    data = files.read(source.name, offset) if size > offset else b""
    if data is None:
        return
    reading.offsets[key] = offset + len(data)
    data = reading.partial.pop(key, b"") + data
    end = data.rfind(b"\n") + 1
    if data[end:]:
        reading.partial[key] = data[end:]
    for shown in source.lines.read(data[:end]) if end else ():
        if reading.job in (None, source.lines.job):
            _print(source, source.lines.job, *shown)
