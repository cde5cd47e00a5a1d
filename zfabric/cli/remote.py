"""``zfabric up``, ``down``, ``exec`` and ``nodes --file``: clusters on machines that are reached by ssh."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from zfabric.cli.options import WholeNumber, json_option
from zfabric.cli.output import echo, node_amounts, print_json, print_table
from zfabric.launch import up as launching
from zfabric.launch.cluster_file import read_cluster_file
from zfabric.launch.ssh import SSH_FAILED, Ssh
from zfabric.launch.up import FAILED, HostReport
from zfabric.runtime.foreground import Notified, notified

Function = TypeVar("Function", bound=Callable[..., Any])
_FILE = click.argument("file", type=click.Path())


def verbose_option(function: Function) -> Function:
    """Add the option to print each command that ssh gets."""
    return click.option("--verbose", is_flag=True, help="Print each command of ssh on standard error.")(function)


class SshError(click.ClickException):
    """ssh has failed; the command exits with ssh's exit code."""

    exit_code = SSH_FAILED


@click.command(short_help="Start a cluster on machines that you reach by ssh.")
@_FILE
@verbose_option
@json_option
def up(file: str, verbose: bool, as_json: bool) -> None:
    """Start the cluster of FILE: a node on each of its hosts, the head first. Nodes that run already go on.

    All hosts are checked before the first node starts. If a node fails, the others stay, and the exit code is 1; once the reason is
    removed, the same command starts what is missing. Ctrl-C ends what this command has started.
    """
    ssh = _ssh(file, verbose)
    reports = launching.up(ssh, _say)
    _show(reports, as_json)
    _fail(reports, f"`zfabric up {file}` starts them again, once that is mended")
    if not as_json:
        echo(f"\n  run a program on it      zfabric exec {shlex.quote(file)} -- python PROGRAM")
        echo(f"  end it                   zfabric down {shlex.quote(file)}")


@click.command(short_help="Stop a cluster that `zfabric up` has started.")
@_FILE
@verbose_option
@json_option
def down(file: str, verbose: bool, as_json: bool) -> None:
    """Stop the cluster of FILE: the nodes of its hosts, the head last. Its keys are removed from the hosts. Other clusters go on."""
    reports = launching.down(_ssh(file, verbose), _say)
    _show(reports, as_json)
    _fail(reports, "nodes end by themselves within 20 s of their head")


@click.command(short_help="Run a command on the head of a cluster, by ssh.")
@_FILE
@click.option(
    "--forward", "ports", type=WholeNumber("port", 1, 65535), metavar="PORT", multiple=True,
    help="Make this port of the head reachable here, by the same number, such as that of the page or a notebook; may be repeated.",
)  # fmt: skip
@verbose_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
def exec(file: str, ports: tuple[int, ...], verbose: bool, command: tuple[str, ...]) -> int:
    """Run COMMAND on the head of the cluster of FILE: zfabric exec FILE -- python train.py --epochs 3

    Its arguments, input, output and exit code are unchanged, and zf.init() joins the cluster. Programs of the file's Python environment are
    found first. COMMAND has a terminal if you have one. It receives SIGHUP if the connection ends, or this command by SIGTERM.
    """
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    ssh = _ssh(file, verbose)
    try:
        with notified():
            code, error = launching.execute(ssh, command, ports, terminal)
    except Notified:
        return 128 + signal.SIGTERM
    if error:
        raise SshError(f"{ssh.cluster.head.host}: {error}")
    return code


def show_hosts(file: str, as_json: bool) -> None:
    """Print what the hosts of a cluster file say of their nodes."""
    reports = launching.look(_ssh(file, False))
    _show(reports, as_json)
    _fail(reports, "")


def _ssh(file: str, verbose: bool) -> Ssh:
    cluster = read_cluster_file(file)
    return Ssh(cluster, trace=_say, say=_say) if verbose else Ssh(cluster, say=_say)


def _say(text: str) -> None:
    echo(text, err=True)


def _show(reports: list[HostReport], as_json: bool) -> None:
    if as_json:
        print_json([_document(report) for report in reports])
        return
    cells = [
        (
            report.host,
            "head" if report.head else "",
            report.state,
            report.facts.get("address") or "-",
            node_amounts(report.facts.get("resources", {})),
        )
        for report in reports
    ]
    print_table(("host", "", "state", "address", "resources"), cells)


def _document(report: HostReport) -> dict[str, Any]:
    facts = {name: report.facts.get(name) for name in ("node", "address", "resources", "session")}
    return {"host": report.host, "head": report.head, "state": report.state, "reason": report.reason or None, **facts}


def _fail(reports: list[HostReport], advice: str) -> None:
    failed = [report for report in reports if report.state == FAILED]
    if failed:
        lines = [f"{len(failed)} of {len(reports)} hosts failed", *(f"  {report.host}: {report.reason}" for report in failed)]
        raise click.ClickException("\n".join([*lines, advice] if advice else lines))
