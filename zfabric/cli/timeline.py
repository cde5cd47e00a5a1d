"""``zfabric timeline``: what ran when and where."""

from __future__ import annotations

import os
from typing import IO

import click

from zfabric.cli.options import address_option
from zfabric.cli.sessions import chosen_session, connected
from zfabric.runtime.timeline import rows_of, trace_events, write_trace


@click.command(short_help="What ran when and where, for Perfetto.")
@address_option
@click.option("-o", "--output", required=True, metavar="FILE", help='Where it goes; "-" is standard output.')
def timeline(address: str | None, output: str) -> None:
    """Write what ran when and where as a Chrome trace.

    Open it at https://ui.perfetto.dev or in chrome://tracing: each node is a process, each worker a thread, each attempt of a task a bar
    with the function's name. The cluster keeps the last events_bytes of it, also of jobs that have ended.
    """
    with connected(chosen_session(address)) as client:
        events = trace_events(rows_of(client, "event"))
        if output == "-":
            write_trace(events, click.get_text_stream("stdout"))
            return
        partial = f"{output}.{os.getpid()}.part"
        try:
            with _create(partial, output) as file:
                attempts = write_trace(events, file)
            os.replace(partial, output)
        except BaseException:
            if os.path.exists(partial):
                os.unlink(partial)
            raise
    click.echo(f"{output}: {attempts:,} attempts. Open it at https://ui.perfetto.dev")


def _create(path: str, meant: str) -> IO[str]:
    if os.path.isdir(meant):
        raise click.BadParameter(f"{meant!r} is a directory", param_hint="-o")
    try:
        return open(path, "w", encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{meant!r} cannot be written: {error.strerror}", param_hint="-o") from None
