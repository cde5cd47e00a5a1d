"""``zfabric debug``: attach this terminal to a task that waits at its ``breakpoint()``."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from socket import SHUT_WR, socket
from typing import Any

import click

from zfabric.api.lifecycle import ADDRESS_VARIABLE
from zfabric.cli.options import PID, json_option
from zfabric.cli.output import echo, echo_output, print_json, print_table
from zfabric.protocol.names import brief, span
from zfabric.runtime.connect import find_session
from zfabric.runtime.debugger import ASK, attach, waiting
from zfabric.runtime.lines import visible
from zfabric.runtime.session import Session, find_sessions


@click.command(short_help="Attach to a task that waits at its breakpoint().")
@click.argument("pid", type=PID, metavar="[PID]", required=False)
@click.option("--list", "only_list", is_flag=True, help="Only list the waiting breakpoints.")
@click.option(
    "--address", envvar=ADDRESS_VARIABLE, metavar="ADDRESS", help="Only search the node at this address, not all nodes that run here."
)
@json_option
def debug(pid: int | None, only_list: bool, address: str | None, as_json: bool) -> None:
    """Attach to the task that waits at its breakpoint() in the process PID. Without PID, attach to the only waiting one, or list several.

    The debugger is Python's pdb. "continue" without breakpoints, or the end of input, lets the task go on; "quit" ends it by an exception.
    """
    sessions = [find_session(address)] if address else find_sessions()
    found = [(session, row) for session in sessions for row in waiting(session.directory) if pid in (None, row["pid"])]
    if as_json:
        print_json([{**row, "session": session.directory} for session, row in found])
        return
    if only_list or len(found) > 1:
        _show_list(found)
        return
    if not found:
        where = (
            f"in process {pid}; `zfabric debug --list` lists those that do" if pid is not None else "here; one does that calls breakpoint()"
        )
        raise click.ClickException(f"no task waits at a breakpoint {where}")
    ((session, row),) = found
    try:
        connection = attach(session.directory, row["name"])
    except OSError as error:
        raise click.ClickException(f"the breakpoint in process {row['pid']} waits no longer ({error})") from None
    with connection:
        _talk(connection)


def _show_list(found: list[tuple[Session, dict[str, Any]]]) -> None:
    if not found:
        echo("No task waits at a breakpoint.")
        return
    cells = [
        (
            row["pid"],
            row["task"] or "-",
            brief(bytes.fromhex(row["task_id"])) if row["task_id"] else "-",
            f"{row['file']}:{row['line']}",
            span(max(0.0, time.time() - row["since"])),
        )
        for _, row in found
    ]
    print_table((">pid", "task", "id", "where", ">for"), cells, flexible="where")
    echo("`zfabric debug PID` attaches to one.")


def _talk(connection: socket) -> None:
    """Show output and send requested lines, until either end closes."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # Enables editing and history of lines.
    pieces: SimpleQueue[tuple[str, bool] | None] = SimpleQueue()
    left = threading.Event()
    threading.Thread(target=_receive, args=(connection, pieces, left, threading.get_ident()), daemon=True).start()
    try:
        while (piece := pieces.get()) is not None:
            _answer(connection, *piece)
    except KeyboardInterrupt:
        if not left.is_set():
            raise
    echo("the debugger has left the task")


def _answer(connection: socket, text: str, asked: bool) -> None:
    if not asked:
        echo_output(text, nl=False)
        return
    before, newline, prompt = text.rpartition("\n")
    echo_output(before + newline, nl=False)
    with contextlib.suppress(OSError):  # The process has ended meanwhile.
        try:
            line = input(visible(prompt))
        except EOFError:
            echo("\nthe task goes on")
            connection.shutdown(SHUT_WR)
        else:
            connection.sendall(line.encode() + b"\n")


def _receive(connection: socket, pieces: SimpleQueue[tuple[str, bool] | None], left: threading.Event, reader: int) -> None:
    """In a thread: put received text into ``pieces``; at the end, interrupt the wait for a line."""
    asking = False
    for piece in _received(connection):
        asking = piece[1]
        pieces.put(piece)
    left.set()
    pieces.put(None)
    if asking:
        signal.pthread_kill(reader, signal.SIGINT)


def _received(connection: socket) -> Iterator[tuple[str, bool]]:
    """(text, whether a line is requested after it)."""
    rest = b""
    while True:
        try:
            received = connection.recv(65536)
        except OSError:
            received = b""
        *asked, rest = (rest + received).split(ASK)
        for piece in asked:
            yield piece.decode(errors="replace"), True
        whole = rest.rpartition(b"\n")
        if whole[1]:
            yield (whole[0] + whole[1]).decode(errors="replace"), False
            rest = whole[2]
        if not received:
            if rest:
                yield rest.decode(errors="replace"), False
            return
