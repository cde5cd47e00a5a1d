"""``zfabric top``: the overview, progress and workers in the terminal, drawn anew every second."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zfabric.cli.options import WholeNumber, address_option
from zfabric.cli.output import console, echo, node_amounts
from zfabric.cli.sessions import chosen_session, connected
from zfabric.exceptions import FabricError
from zfabric.page.views import Views
from zfabric.protocol.names import size, span
from zfabric.runtime.lines import shown
from zfabric.runtime.session import Session

EVERY_SECONDS = 1.0
LEFT_FOR_OTHERS = 14
"""Terminal lines that the tables leave free."""


@click.command(short_help="Show the cluster in the terminal, drawn anew every second.")
@address_option
@click.option("-n", "--times", type=WholeNumber("number of drawings", 1), metavar="N", help="Draw N times, then end.")
def top(address: str | None, times: int | None) -> None:
    """Show resources, progress by function, and workers, drawn anew every second until Ctrl-C or the end of the cluster.

    Outside a terminal, it is printed once.
    """
    session = chosen_session(address)
    screen = console()
    with connected(session) as client:
        views = Views(session, client)
        if not screen.is_terminal:
            screen = console(width=120, no_color=True)
            for _ in range(times or 1):
                screen.print(_drawing(views, 1_000))
            return
        with Live(console=screen, screen=times is None, auto_refresh=False) as live:
            drawn = 0
            while True:
                try:
                    live.update(_drawing(views, max(4, screen.height - LEFT_FOR_OTHERS)), refresh=True)
                except FabricError as error:
                    if not _goes_on(session, live, error):
                        break
                drawn += 1
                if drawn == times:
                    return
                time.sleep(EVERY_SECONDS)  # The pace at which people read; nothing is waited for.
    echo("the cluster has ended")


def _goes_on(session: Session, live: Live, error: FabricError) -> bool:
    """Show why there is no answer; return False if there will be none."""
    live.update(Text(f"no answer: {shown(str(error))}", style="yellow"), refresh=True)
    return session.alive()


def _drawing(views: Views, height: int) -> RenderableType:
    now, workers = views.overview(), views.workers()
    rows = now["progress"]
    half = max(2, height // 2)
    return Group(
        _head(now),
        *(Text(f"! {each['what']}: {each['advice']}", style="yellow") for each in now["problems"]),
        Text(""),
        _functions(rows[:half]),
        *_more(len(rows) - half, "functions"),
        Text(""),
        _workers(workers[: height - half]),
        *_more(len(workers) - (height - half), "workers"),
    )


def _more(count: int, what: str) -> list[Text]:
    return [Text(f"… {count} more {what}", style="dim")] if count > 0 else []


def _head(now: dict[str, Any]) -> Panel:
    tasks, store, machine = now["tasks"], now["store"], now["machine"]
    used = {name: total - now["available"].get(name, 0.0) for name, total in now["resources"].items()}
    waiting = tasks["waiting"]
    failed = sum(row["failed"] for row in now["progress"])
    lines = [
        f"tasks     {now['rate']:,.0f}/s, {tasks['running']:,} running, {tasks['blocked']:,} blocked, {waiting:,} waiting, "
        f"{now['ended']:,} ended, {failed:,} of them without success",
        f"in use    {node_amounts(used)} of {node_amounts(now['resources'])}",
        f"machine   {machine['cpu']:.0%} of its CPUs, {size(machine['memory'])} of {size(machine['memory_total'])} memory",
        f"store     {size(store.get('used', 0))} of {size(store.get('capacity', 0))}, {size(store.get('spilled', 0))} on disk",
        f"actors    {', '.join(f'{count} {state}' for state, count in now['actors'].items()) or 'none'}",
    ]
    if len(now["nodes"]) > 1:
        lines.append("nodes     " + ", ".join(f"{shown(node['name'])} ({node_amounts(node['resources'])})" for node in now["nodes"]))
    return Panel(Text("\n".join(lines)), title=f"zfabric {now['session']}", title_align="left")


def _functions(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("function", no_wrap=True, overflow="ellipsis", min_width=12, ratio=1)
    table.add_column("job", no_wrap=True)
    table.add_column("", no_wrap=True, width=8)
    numbers = [
        (
            *(f"{row[name]:,}" for name in ("waiting", "running", "finished", "failed")),
            "-" if row["rate"] is None else f"{row['rate']:,.1f}",
            _span(row["mean_seconds"]),
            _span(row["seconds_left"]),
        )
        for row in rows
    ]
    for place, name in enumerate(("wait", "run", "done", "failed", "/s", "mean", "left")):
        widest = max((len(cells[place]) for cells in numbers), default=0)  # Names are cut, numbers are not.
        table.add_column(name, justify="right", no_wrap=True, min_width=max(widest, len(name)))
    for row, cells in zip(rows, numbers, strict=True):
        ended = row["finished"] + row["failed"]
        bar = ProgressBar(total=max(1, ended + row["waiting"] + row["running"]), completed=ended, width=8)
        styled = [Text(cell, style="red" if place == 3 and row["failed"] else "") for place, cell in enumerate(cells)]
        table.add_row(Text(shown(row["name"])), str(int(row["job"], 16)), bar, *styled)
    return table


def _workers(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    nodes = any("node" in row for row in rows)
    for name in (*(["node"] if nodes else []), "pid", "state", "runs"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=2 if name == "runs" else None)
    for name in ("for", "queued", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row["pid"] or "-"), row["state"], Text(shown(row["task"] or "-"))]
        cells += [_span(row["seconds"]), str(row["queued"]), size(row["memory"]) if row["memory"] else "-"]
        table.add_row(*([Text(shown(row.get("node", "")))] if nodes else []), *cells)
    return table


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else span(seconds) if seconds >= 0.0005 else f"{seconds * 1e6:.0f} µs"
