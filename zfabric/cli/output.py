"""Output of commands: tables for people, one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

WIDE = 10_000
"""Width of a table outside a terminal: ``grep`` then sees untruncated cells."""


def print_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(document, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], flexible: str = "") -> None:
    """Print a table without lines. ``>`` before a column's name right-aligns it; the column ``flexible`` shrinks to fit."""
    # Commands with --json start sooner without rich.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDE, no_color=True)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_edge=False, pad_edge=False)
    for column in columns:
        name = column.removeprefix(">")
        justify: Any = "right" if column.startswith(">") else "left"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", ratio=1 if name == flexible else None)
    for row in rows:
        table.add_row(*(Text(str(cell), style=_STYLES.get(str(cell), "")) for cell in row))
    table.expand = False
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


_STYLES = {
    "running": "green",
    "busy": "green",
    "blocked": "yellow",
    "infeasible": "bold red",
    "failed": "red",
    "error": "red",
    "problem": "bold red",
    "note": "yellow",
    "ok": "green",
}


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def amount(count: float) -> str:
    """Format an amount of a resource: without decimals if it is whole."""
    return f"{count:g}"


def amounts(demand: dict[str, float]) -> str:
    """Format a demand."""
    return ", ".join(f"{amount(count)} {name}" for name, count in sorted(demand.items())) or "-"
