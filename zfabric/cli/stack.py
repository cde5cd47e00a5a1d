"""``zfabric stack``: the stacks of all threads of the workers, with running times."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import click

from zfabric.cli.options import address_option, json_option
from zfabric.cli.output import print_json
from zfabric.cli.sessions import chosen_session, connected, seconds
from zfabric.protocol.names import brief, is_text
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.stack_report import process_report

NATIVE_SECONDS = 30.0


@click.command(short_help="Show the stacks of all threads of workers and drivers.")
@click.argument("subject", metavar="[PID|ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="Show the fabric's own frames and threads, too.")
@click.option("--native", is_flag=True, help="Show frames of C code, too; needs py-spy.")
@address_option
@json_option
def stack(subject: str | None, everything: bool, native: bool, address: str | None, as_json: bool) -> None:
    """Show the stacks of all threads of workers and drivers, with what they run and for how long.

    Show all processes, or the process PID, or the one that runs the task or actor ID.

    A worker whose C code lets no Python code run is shown, too, without the names of its tasks.
    """
    session = chosen_session(address)
    with connected(session) as client:
        pids = _pids(client, subject)
        if native:
            _show_native(pids)
            return
        workers = {row["pid"]: row for row in client.query("workers")}
        found = [process_report(session, client, pid, workers.get(pid), everything) for pid in pids]
    if as_json:
        print_json(found)
    elif not found:
        click.echo("There are no workers.")
    else:
        click.echo("\n\n".join(map(_text, found)))


def _pids(client: DriverClient, subject: str | None) -> list[int]:
    if subject is None:
        return list(client.query("processes", b""))
    if subject.isdecimal() and int(subject) in client.query("processes", b""):
        return [int(subject)]
    found: Any = client.query("find", subject) if is_text(subject) else ()
    if len(found) > 1:
        raise click.UsageError(f"{subject!r} can mean {len(found)} things; `zfabric explain` lists them")
    pids = list(client.query("processes", bytes.fromhex(found[0]["id"]))) if found else []
    if not pids:
        why = "it runs nowhere now" if found else "no process, task or actor here is called so"
        raise click.ClickException(f"there is no stack of {subject!r}: {why}")
    return pids


def _text(process: dict[str, Any]) -> str:
    lines = [f"{process['kind']} {process['pid']}"]
    if process["kind"] == "worker":
        task = f", {process['task']}" if process["task"] else ""
        lines[0] += f": {process['state']}{task}, for {seconds(process['seconds'])}"
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
    return f"{run['name']} ({brief(bytes.fromhex(run['task_id']))}) for {seconds(run['seconds'])}"


def _show_native(pids: list[int]) -> None:
    program = shutil.which("py-spy")
    if program is None:
        raise click.ClickException("--native needs py-spy, which is not installed here: pip install py-spy; without it, see Python frames")
    for pid in pids:
        try:
            done = subprocess.run([program, "dump", "--native", "--pid", str(pid)], capture_output=True, text=True, timeout=NATIVE_SECONDS)
        except subprocess.TimeoutExpired:
            click.echo(f"{pid}: py-spy did not end within {NATIVE_SECONDS:.0f} s\n")
            continue
        click.echo(done.stdout or f"{pid}: py-spy failed: {done.stderr.strip()}\n")
