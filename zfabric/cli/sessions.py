"""A command's session and a connection to it; ``zfabric sessions``; remains of ended sessions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from zfabric.adapters.file_trees import remove_tree
from zfabric.adapters.journal import ReadOnlyJournal
from zfabric.api.lifecycle import ADDRESS_VARIABLE
from zfabric.cli.options import json_option
from zfabric.cli.output import echo, print_json, print_table
from zfabric.exceptions import FabricError, VersionMismatchError
from zfabric.protocol.names import span
from zfabric.runtime.connect import attach, find_session
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.session import EMBEDDED, RUN, Session, find_sessions, kept_sessions, last_failure, started_session, where_looked


def chosen_session(address: str | None) -> Session:
    """The session at ``address``, ``ZFABRIC_ADDRESS``, the started one, or the only one."""
    address = address or os.environ.get(ADDRESS_VARIABLE) or ""
    if address and address != "local":
        return find_session(address)
    started = started_session()
    if started is not None:
        return started
    sessions = find_sessions()
    if not sessions:
        ended = last_failure()
        why = f"\nThe node that was started here ended {span(time.time() - ended[1])} ago: {ended[0]}" if ended is not None else ""
        text = f"no cluster is running here ({where_looked()}); start one with `zfabric start`, or run a program with `zfabric submit`"
        raise click.ClickException(text + why)
    if len(sessions) > 1:
        lines = "\n".join(f"  --address {session.directory}   {about(session)}" for session in sessions)
        raise click.UsageError(f"{len(sessions)} clusters are running here; say which one:\n{lines}")
    return sessions[0]


def about(session: Session) -> str:
    """Describe a session in a few words."""
    try:
        description = session.describe()
    except VersionMismatchError:
        return "of another version of zfabric"
    except FabricError:
        return "just starting or ending"
    age = span(time.time() - description["created"])
    if session.outlives_programs():
        return f"started {age} ago"
    return f"of program {description['launcher']}, {age} old"


def session_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for an ended session."""
    text = 'An ended session listed by `zfabric sessions`; "last" is the latest.'
    return click.option("--session", "ended", metavar="ID", help=text)(function)


def kept_session(identifier: str) -> Session:
    """The ended session whose id begins with this text, or the "last"."""
    sessions = kept_sessions()
    found = sessions[-1:] if identifier == "last" else [each for each in sessions if each.identifier.startswith(identifier)]
    if len(found) != 1:
        known = ", ".join(each.identifier for each in sessions)
        hint = f"there are {known}" if known else "run a program with `zfabric submit --keep` to have one"
        raise click.ClickException(f"{'no' if not found else 'more than one'} session is kept as {identifier!r}; {hint}")
    return found[0]


def looked_at(address: str | None, ended: str | None) -> Session:
    """The ended session of ``--session``, or the chosen one."""
    if address and ended:
        raise click.UsageError("--address and --session exclude each other")
    return kept_session(ended) if ended else chosen_session(address)


class KeptTables:
    """Answers queries of rows from an ended session's control store."""

    def __init__(self, session: Session) -> None:
        self._journal = ReadOnlyJournal.look_into(str(session.describe()["store"]))

    def query(self, what: str, *arguments: Any, timeout: float = 10.0) -> Any:
        """(rows, whether there are more) of ``query("rows", table, after, count)``."""
        assert what == "rows", what
        table, after, count = arguments
        rows = self._journal.scan(table, b"", after, count)
        return rows, len(rows) == count

    def close(self) -> None:
        """Close the store."""
        self._journal.close()


@contextmanager
def tables_of(address: str | None, ended: str | None) -> Iterator[DriverClient | KeptTables]:
    """What answers ``query("rows", …)``: a cluster's daemon, or an ended session's store."""
    session = looked_at(address, ended)
    tables = KeptTables(session) if ended else attach(session, kind="tool")
    try:
        yield tables
    finally:
        tables.close()


@click.command(short_help="List running clusters, and ended ones with retained logs.")
@click.option(
    "--remove",
    "unwanted",
    multiple=True,
    metavar="ID",
    help='Delete the files of an ended session; "all" deletes those of each. May be repeated.',
)
@json_option
def sessions(unwanted: tuple[str, ...], as_json: bool) -> None:
    """List running clusters, and ended ones with retained logs and tables (`zfabric submit --keep`, or ZFABRIC_KEEP=1).

    Read the latter with `zfabric logs`, `timeline`, `tasks`, `actors` and `objects`, each with --session ID. The last 20 are retained.
    """
    gone = kept_sessions() if "all" in unwanted else [kept_session(identifier) for identifier in unwanted]
    for session in gone:
        if (error := remove_tree(session.directory)) is not None:
            raise click.ClickException(f"{session.directory} cannot be removed: {error.strerror}")
    if unwanted:
        removed = [session.identifier for session in gone]
        print_json(removed) if as_json else echo(f"Removed {', '.join(removed) or 'nothing'}.")
        return
    rows = [_facts(session, state) for state, found in (("running", find_sessions()), ("kept", kept_sessions())) for session in found]
    if as_json:
        print_json(rows)
    elif not rows:
        echo("There are no sessions. `zfabric submit --keep PROGRAM` keeps what is left of a program's cluster.")
    else:
        now = time.time()
        cells = [
            (row["session"], row["state"], row["program"] or "-", span(now - row["created"]), row["directory"]) for row in rows
        ]  # fmt: skip
        print_table(("session", "state", ">program", ">age", "directory"), cells, flexible="directory")


def _facts(session: Session, state: str) -> dict[str, Any]:
    try:
        description = session.describe()
    except FabricError:
        description = {}
    return {
        "session": session.identifier,
        "state": state,
        "kind": description.get("kind", ""),
        "program": description.get("launcher") if description.get("kind") in (EMBEDDED, RUN) else None,
        "created": description.get("created", 0.0),
        "ended": description.get("ended"),
        "directory": session.directory,
    }


@contextmanager
def connected(session: Session) -> Iterator[DriverClient]:
    """Yield a tool's connection to the session's daemon."""
    client = attach(session, kind="tool")
    try:
        yield client
    finally:
        client.close()
