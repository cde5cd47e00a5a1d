"""Output of commands: tables for people, one JSON document for programs.

All output passes here, where anything that a terminal would obey is removed: names, labels and errors are other programs' texts. A test
looks for other ways to print.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING, Any

import click

from zfabric.protocol.names import quantity
from zfabric.protocol.options import is_shared
from zfabric.runtime.lines import shown, visible

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 10_000
"""Columns outside a terminal, so that ``grep`` sees whole cells."""


def echo(text: str = "", err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print on standard output or error (``err``), in the ``style`` of ``click.style``."""
    text = "\n".join(map(shown, text.split("\n")))
    _write(click.style(text, **style) if style else text, err, nl)


def echo_output(text: str, nl: bool = True) -> None:
    """Print a program's output: colours and carriage returns remain."""
    _write("\n".join("\r".join(map(visible, line.split("\r"))) for line in text.split("\n")), False, nl)


def _write(text: str, err: bool, nl: bool) -> None:
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err, nl=nl)


def print_error(error: click.ClickException) -> None:
    """Print an error as click does."""
    text = StringIO()
    error.show(text)
    echo(text.getvalue(), err=True, nl=False)


def print_json(document: Any) -> None:
    """Print one JSON document."""
    echo(json_text(document, indent=2))


def json_text(document: Any, indent: int | None = None) -> str:
    """Return JSON in printable ASCII."""
    return json.dumps(document, indent=indent).replace("\x7f", "\\u007f")


def console(**options: Any) -> Console:
    """Rich's console, without anything that a terminal would obey."""
    return _console_class()(highlight=False, **options)


@cache
def _console_class() -> type[Console]:
    # Commands with --json start sooner without rich.
    from rich.console import Console
    from rich.segment import Segment

    class _Plain(Console):
        """All text passes ``render``; colours and cursor movements come later."""

        def render(self, *arguments: Any, **options: Any) -> Any:
            for segment in super().render(*arguments, **options):
                if segment.control or segment.text.isprintable():
                    yield segment
                else:
                    yield Segment("\n".join(map(shown, segment.text.split("\n"))), segment.style)

    return _Plain


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], flexible: str = "") -> None:
    """Print a table. ``>`` right-aligns a column; ``flexible`` shrinks to fit."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    if not screen.is_terminal:
        screen = console(width=WIDE, no_color=True)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_edge=False, pad_edge=False)
    for column in columns:
        name = column.removeprefix(">")
        justify: Any = "right" if column.startswith(">") else "left"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", ratio=1 if name == flexible else None)
    for row in rows:
        table.add_row(*(Text(shown(str(cell)), style=_STYLES.get(str(cell), "")) for cell in row))
    table.expand = False
    if screen.is_terminal:
        screen.print(table)
        return
    with screen.capture() as captured:
        screen.print(table)
    echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


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


def amount(count: float) -> str:
    """Format an amount, without decimals if whole."""
    return f"{count:g}"


def amounts(demand: dict[str, float]) -> str:
    """Format a demand."""
    return ", ".join(quantity(name, count) for name, count in sorted(demand.items())) or "-"


def node_amounts(resources: dict[str, float]) -> str:
    """A node's resources without its address and object store."""
    return amounts({name: count for name, count in resources.items() if is_shared(name)})
