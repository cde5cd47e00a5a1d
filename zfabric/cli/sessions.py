"""Which cluster a command is about, and a connection to it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from zfabric.api.lifecycle import ADDRESS_VARIABLE
from zfabric.exceptions import FabricError
from zfabric.runtime.client import FabricClient
from zfabric.runtime.connect import attach, find_session
from zfabric.runtime.session import Session, find_sessions, started_session


def chosen_session(address: str | None) -> Session:
    """The session at ``address``, else at ``ZFABRIC_ADDRESS``, else the started one, else the only one that runs."""
    address = address or os.environ.get(ADDRESS_VARIABLE) or ""
    if address and address != "local":
        return find_session(address)
    started = started_session()
    if started is not None:
        return started
    sessions = find_sessions()
    if not sessions:
        raise click.ClickException("no cluster is running here; start one with `zfabric start`, or run a program with `zfabric submit`")
    if len(sessions) > 1:
        lines = "\n".join(f"  --address {session.directory}   {about(session)}" for session in sessions)
        raise click.UsageError(f"{len(sessions)} clusters are running here; say which one:\n{lines}")
    return sessions[0]


def about(session: Session) -> str:
    """A session in a few words."""
    try:
        description = session.describe()
    except FabricError:
        return "just starting or ending"
    age = seconds(time.time() - description["created"])
    if description["kind"] == "started":
        return f"started {age} ago"
    return f"of program {description['launcher']}, {age} old"


@contextmanager
def connected(session: Session) -> Iterator[FabricClient]:
    """A connection to the session's daemon, as a tool."""
    client = attach(session, kind="tool")
    try:
        yield client
    finally:
        client.close()


def seconds(span: float) -> str:
    """A time span as people read it."""
    if span < 1:
        return f"{span * 1000:.0f} ms"
    if span < 60:
        return f"{span:.1f} s"
    minutes = int(span) // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"
