"""``zfabric state``: the control store's tables, from disk or from a daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from zfabric.adapters import dump as store
from zfabric.cli.options import WholeNumber, address_option
from zfabric.cli.output import echo, json_text
from zfabric.cli.sessions import chosen_session, connected
from zfabric.machines.common.tables import TABLES
from zfabric.runtime.session import Session
from zfabric.runtime.timeline import rows_of

PAGE = 100
"""Rows per query: a row may be a function with all that it captures."""


@click.group(short_help="Read the control store's tables.")
def state() -> None:
    """Read the control store's tables."""


@state.command(short_help="Print the tables' rows.")
@click.argument("path", required=False, metavar="[PATH]")
@address_option
@click.option("--table", type=click.Choice(TABLES), help="Only this table.")
@click.option("--limit", type=WholeNumber("number of rows", 0), metavar="N", help="Most rows of each table.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of lines.")
def dump(path: str | None, address: str | None, table: str | None, limit: int | None, as_json: bool) -> None:
    """Print the rows of the control store of a running cluster, or of the store directory PATH.

    Pickled data is shown as its length; nothing is ever unpickled.
    """
    if path and address:
        raise click.UsageError("PATH and --address exclude each other")
    rows = _of_directory(path, table, limit) if path else _of_cluster(chosen_session(address), table, limit)
    if not as_json:
        for row in rows:
            echo(_line(row))
        return
    separator = "["
    for row in rows:
        echo(f"{separator}\n{json_text(row)}", nl=False)
        separator = ","
    echo("[]" if separator == "[" else "\n]")


def _of_directory(path: str, table: str | None, limit: int | None) -> Iterator[dict[str, Any]]:
    if not os.path.isdir(path):
        raise click.BadParameter(f"there is no directory {path!r}", param_hint="PATH")
    session = Session(os.path.abspath(path))
    if os.path.exists(f"{path}/session.json"):  # A session's directory, not a store's.
        if session.alive():
            return _of_cluster(session, table, limit)
        path = str(session.describe()["store"])
    return store.dump(path, table, limit)


def _of_cluster(session: Session, table: str | None, limit: int | None) -> Iterator[dict[str, Any]]:
    with connected(session) as client:
        for name in (table,) if table else TABLES:
            rows = rows_of(client, name, PAGE if limit is None else max(1, min(limit, PAGE)))
            yield from islice(store.describe_rows(name, rows), limit)


def _line(row: dict[str, Any]) -> str:
    rest = {name: value for name, value in row.items() if name not in ("table", "key", "value")}
    return f"{row['table']:<8} {row['key']}  {json_text(row.get('value', rest))}"
