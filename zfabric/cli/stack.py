"""``zfabric stack``: the stacks of all threads of the workers, with running times."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from zfabric.cli.options import address_option, json_option
from zfabric.cli.output import echo, print_json
from zfabric.cli.sessions import chosen_session, connected
from zfabric.exceptions import FabricError, GetTimeoutError
from zfabric.protocol.names import brief, counted, is_text, span
from zfabric.runtime.activity import process_report, processes_of, sample_report
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.lines import shown
from zfabric.runtime.sampling import SECONDS_MOST
from zfabric.runtime.timeline import Asker, TimelineNode, nodes_of

NATIVE_SECONDS = 30.0
SAMPLED_MOST = 3600.0
"""Longest time of sampling."""
SHOWN_LEAST = 0.01
"""A frame with a smaller share of the time is not shown."""


@click.command(short_help="Show the stacks of all threads of workers and drivers.")
@click.argument("subject", metavar="[PID|ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="Show the fabric's own frames and threads, too.")
@click.option("--native", is_flag=True, help="Show frames of C code, too; needs py-spy.")
@click.option(
    "--seconds",
    "sampled",
    type=click.FloatRange(0.0, SAMPLED_MOST, min_open=True),
    metavar="N",
    help="Show where the process PID, or that of ID, spends the next N seconds.",
)
@address_option
@json_option
def stack(subject: str | None, everything: bool, native: bool, sampled: float | None, address: str | None, as_json: bool) -> None:
    """Show the stacks of all threads of workers and drivers, with what they run and for how long.

    Show all processes of all nodes, or the process PID, or the one that runs the task or actor ID.

    A worker of this node whose C code lets no Python code run is shown, too, without the names of its tasks.
    """
    if sampled is not None and (subject is None or native or everything):
        raise click.UsageError("--seconds needs the PID or ID of one process, and goes with neither --native nor --all")
    session = chosen_session(address)
    with connected(session) as client:
        chosen = _chosen(client, subject)
        if sampled is not None:
            _show_samples(chosen, sampled, as_json)
            return
        if native:
            _show_native(chosen)
            return
        found = [{"node": each.node.name, **process_report(session, each.node.asker, each.pid, each.worker, everything)} for each in chosen]
    if as_json:
        print_json(found)
    elif not found:
        echo("There are no workers.")
    else:
        echo("\n\n".join(map(_text, found)))


class Chosen(NamedTuple):
    """A process to show. ``worker`` is a worker's row; ``far``: on another node than the queried one."""

    node: TimelineNode
    pid: int
    worker: dict[str, Any] | None
    far: bool


def _chosen(client: DriverClient, subject: str | None) -> list[Chosen]:
    """All processes, or those of a pid or an id."""
    nodes, silent = nodes_of(client), list[str]()
    if subject is None:
        return _processes(nodes, silent)
    if subject.isdecimal() and (named := [each for each in _processes(nodes, silent) if each.pid == int(subject)]):
        return named
    found: Any = client.query("find", subject) if is_text(subject) else ()
    if len(found) > 1:
        raise click.UsageError(f"{subject!r} can mean {len(found)} things; `zfabric explain` lists them")
    chosen = _processes(nodes, silent, bytes.fromhex(found[0]["id"])) if found else []
    if not chosen:
        where = f"but for {', '.join(dict.fromkeys(silent))}, which did not answer, " if silent else ""
        why = f"{where}it runs nowhere now" if found else f"{where}no process, task or actor of this cluster is called so"
        raise click.ClickException(f"there is no stack of {subject!r}: {why}")
    return chosen


def _processes(nodes: list[TimelineNode], silent: list[str], subject: bytes = b"") -> list[Chosen]:
    """The nodes' processes. Silent nodes are printed and added to ``silent``."""
    found = []
    for node in nodes:
        try:
            found += [Chosen(node, pid, worker, node is not nodes[0]) for pid, worker in processes_of(node, subject)]
        except FabricError as error:
            echo(f"{node.name} is left out: {error}", err=True)
            silent.append(node.name)
    return found


def _text(process: dict[str, Any]) -> str:
    lines = [f"{process['kind']} {process['pid']}" + (f" on {process['node']}" if process["node"] else "")]
    if process["kind"] == "worker":
        task = f", {shown(process['task'])}" if process["task"] else f" {shown(process['actor'])}" if process["actor"] else ""
        waiting = process["calls_waiting"]
        task += f", {counted(waiting, 'call')} {'waits' if waiting == 1 else 'wait'}" if waiting is not None else ""
        lines[0] += f": {process['state']}{task}, for {span(process['seconds'])}"
    if not process["answers"] and process["threads"]:
        lines[0] += " (it runs no Python code now; this is what the interpreter was in)"
    elif not process["answers"]:
        lines.append("  does not answer: it has ended, is stopped, or runs code that lets no Python code run")
    for thread in process["threads"]:
        running = ", ".join(map(_run, thread["runs"]))
        lines.append(f"  {thread['name']}" + (f" runs {running}" if running else ""))
        for frame in thread["frames"]:
            lines.append(f'    File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}')
            if frame["source"]:
                lines.append(f"      {frame['source']}")
    return "\n".join(lines)


def _run(run: dict[str, Any]) -> str:
    return f"{shown(run['name'])} ({brief(bytes.fromhex(run['task_id']))}) for {span(run['seconds'])}"


def _show_native(chosen: list[Chosen]) -> None:
    program = shutil.which("py-spy")
    if program is None:
        raise click.ClickException("--native needs py-spy, which is not installed here: pip install py-spy; without it, see Python frames")
    for each in chosen:
        if each.far:
            echo(f"{each.pid}: it is on {each.node.name}; run `zfabric stack --native` there\n")
            continue
        try:
            done = subprocess.run(
                [program, "dump", "--native", "--pid", str(each.pid)], capture_output=True, text=True, timeout=NATIVE_SECONDS
            )
        except subprocess.TimeoutExpired:
            echo(f"{each.pid}: py-spy did not end within {NATIVE_SECONDS:.0f} s\n")
            continue
        echo(done.stdout or f"{each.pid}: py-spy failed: {done.stderr.strip()}\n")


def _show_samples(chosen: list[Chosen], whole: float, as_json: bool) -> None:
    """Show where processes spend the next seconds, one after the other."""
    found = [{"node": each.node.name, **_samples_of(each.node.asker, each.pid, each.worker is not None, whole)} for each in chosen]
    if as_json:
        print_json(found)
        return
    for each in found:
        counts = {(row["thread"], *row["frames"]): row["samples"] for row in each["stacks"]}
        on = f" on {each['node']}" if each["node"] else ""
        echo(f"process {each['pid']}{on}, {each['seconds']:g} s")
        echo("\n".join(_tree(counts, sum(counts.values()), 0)) or "  runs no Python code of the program")


def _samples_of(client: Asker, pid: int, is_worker: bool, whole: float) -> dict[str, Any]:
    """Sample a process in parts."""
    counts: Counter[tuple[Any, ...]] = Counter()
    left, idle = whole, 0
    while left > 0:
        part = min(left, SECONDS_MOST)
        try:
            report = sample_report(client, pid, is_worker, part)
        except GetTimeoutError:
            raise click.ClickException(f"process {pid} does not answer: it is stopped, or runs code that lets no Python code run") from None
        idle += report["idle"]
        counts.update({(row["thread"], *row["frames"]): row["samples"] for row in report["stacks"]})
        left -= part
    rows = [{"thread": key[0], "frames": key[1:], "samples": samples} for key, samples in counts.most_common()]
    return {"pid": pid, "seconds": whole, "idle": idle, "stacks": rows}


def _tree(counts: dict[tuple[Any, ...], int], whole: int, depth: int) -> Iterator[str]:
    """A tree of frames, the longest first, with shares of all threads' time."""
    below: dict[Any, dict[tuple[Any, ...], int]] = {}
    for key, samples in counts.items():
        if key:
            rest = below.setdefault(key[0], {})
            rest[key[1:]] = rest.get(key[1:], 0) + samples
    for frame, rest in sorted(below.items(), key=lambda pair: -sum(pair[1].values())):
        share = sum(rest.values()) / whole
        if share >= SHOWN_LEAST:
            name = frame if isinstance(frame, str) else f"{frame[2]} ({frame[0]}:{frame[1]})"
            yield f"{share:6.1%}  {'  ' * depth}{name}"
            yield from _tree(rest, whole, depth + 1)
