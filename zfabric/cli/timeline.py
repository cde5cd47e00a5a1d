"""``zfabric timeline``: what ran, when and where."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import click

from zfabric.cli.options import address_option
from zfabric.cli.output import echo
from zfabric.cli.sessions import session_option, tables_of
from zfabric.runtime.timeline import members, trace_events, write_trace


@click.command(short_help="Write when and where tasks ran, for Perfetto.")
@address_option
@session_option
@click.option("-o", "--output", required=True, metavar="FILE", help='The file to write; "-" is standard output.')
def timeline(address: str | None, ended: str | None, output: str) -> None:
    """Write a Chrome trace that shows when and where tasks and calls ran.

    Open it at https://ui.perfetto.dev or in chrome://tracing. Each node is a process, each worker a thread, each attempt of a task a bar
    with the function's name. Arrows lead to it from its submitter, from the tasks that made its arguments, and from the actor's previous
    call. The cluster retains the newest events_bytes bytes of events, also of ended jobs, and arguments as long as they may be needed.
    """
    missing: list[str] = []
    with tables_of(address, ended) as tables:
        nodes = None if ended else members(tables)
        events = trace_events(tables, nodes, missing)
        if output == "-":
            write_trace(events, sys.stdout)
            return
        with _file(output) as file:
            attempts = write_trace(events, file)
    for name in missing:
        echo(f"node {name} stopped answering: not all that ran there is shown", err=True)
    echo(f"{output}: {attempts:,} attempts. Open it at https://ui.perfetto.dev")


@contextmanager
def _file(path: str) -> Iterator[IO[str]]:
    """A file that appears when it is complete; devices and pipes are written directly."""
    if os.path.isdir(path):
        raise click.BadParameter(f"{path!r} is a directory", param_hint="-o")
    special = os.path.exists(path) and not os.path.isfile(path)
    partial = path if special else f"{path}.{os.getpid()}.part"
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise click.BadParameter(f"{path!r} cannot be written: {error.strerror}", param_hint="-o") from None
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            yield file
        if not special:
            os.replace(partial, path)
    except BaseException:  # Ctrl-C too: remove the incomplete file.
        if not special:
            os.unlink(partial)
        raise
