"""``zfabric``: the command line. ``--help`` imports only this module; commands are imported on use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import click

from zfabric import _beginning
from zfabric._version import __version__
from zfabric.exceptions import ConfigError, FabricError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as of shells."""


class CommandEntry(NamedTuple):
    """A command: its module and its line in the help."""

    name: str
    module: str
    summary: str


SECTIONS: tuple[tuple[str, tuple[CommandEntry, ...]], ...] = (
    (
        "Programs",
        (
            CommandEntry("submit", "submit", "Run a program on a cluster; exits with its exit code."),
            CommandEntry("run", "run", "Run a program on a cluster of all machines of a batch job."),
        ),
    ),
    (
        "Clusters",
        (
            CommandEntry("start", "clusters", "Start a cluster that outlives programs, or one of its nodes."),
            CommandEntry("stop", "clusters", "Stop a cluster, with all its processes and files."),
            CommandEntry("status", "clusters", "Show resources, tasks, object store and jobs."),
            CommandEntry("nodes", "listings", "List the nodes of a cluster, with their addresses and resources."),
            CommandEntry("drain", "clusters", "Have a node leave its cluster once nothing is left there."),
            CommandEntry("up", "remote", "Start a cluster on machines that you reach by ssh."),
            CommandEntry("down", "remote", "Stop a cluster that `zfabric up` has started."),
            CommandEntry("exec", "remote", "Run a command on the head of a cluster, by ssh."),
            CommandEntry("autoscale", "autoscale", "Add nodes while tasks wait for room."),
            CommandEntry("keys", "keys", "Make, show and revoke the keys with which nodes join a cluster."),
            CommandEntry("sessions", "sessions", "List running clusters, and ended ones with retained logs."),
        ),
    ),
    (
        "Jobs",
        (
            CommandEntry("jobs", "jobs", "List jobs that run on a cluster on their own."),
            CommandEntry("job", "jobs", "Show, follow, stop or delete a job."),
        ),
    ),
    (
        "Inspection",
        (
            CommandEntry("tasks", "listings", "List tasks, the running ones first."),
            CommandEntry("objects", "listings", "List values, with the processes that hold refs to them."),
            CommandEntry("actors", "listings", "List actors, with the number of their callers."),
            CommandEntry("workers", "listings", "List worker processes, with what they run."),
            CommandEntry("explain", "listings", "Explain the state of a task, object, actor or worker."),
            CommandEntry("stack", "stack", "Show the stacks of all threads of workers and drivers."),
            CommandEntry("debug", "debug", "Attach to a task that waits at its breakpoint()."),
            CommandEntry("logs", "logs", "Show the output of workers."),
            CommandEntry("top", "top", "Show the cluster in the terminal, drawn anew every second."),
            CommandEntry("page", "page", "Show the cluster in a browser."),
            CommandEntry("metrics", "metrics", "Serve metrics of the cluster to Prometheus."),
            CommandEntry("timeline", "timeline", "Write when and where tasks ran, for Perfetto."),
        ),
    ),
    (
        "Steering",
        (
            CommandEntry("cancel", "steering", "Cancel tasks, of any program and on any node."),
            CommandEntry("kill", "steering", "End actors, of any program and on any node."),
        ),
    ),
    (
        "Maintenance",
        (
            CommandEntry("state", "state", "Read the control store's tables."),
            CommandEntry("doctor", "doctor", "Check this machine, and advise on problems."),
        ),
    ),
)

_ENTRIES = {entry.name: entry for _, entries in SECTIONS for entry in entries}


class Commands(click.Group):
    """The commands of ``SECTIONS``, each imported when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names, in the order of the help."""
        return list(_ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command and return it."""
        entry = _ENTRIES.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(f"zfabric.cli.{entry.module}"), cmd_name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; suggest a name for an unknown one."""
        name = args[0]
        if name not in _ENTRIES and not name.startswith("-"):
            import difflib  # Only errors need it.

            near = difflib.get_close_matches(name, _ENTRIES, 1)
            hint = f"Did you mean {near[0]!r}?" if near else "`zfabric --help` lists them."
            if name.endswith(".py"):
                hint = f"To run a program: zfabric submit {name}"
            raise click.UsageError(f"There is no command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help's sections without importing commands."""
        width = max(map(len, _ENTRIES))
        for title, entries in SECTIONS:
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(width), entry.summary) for entry in entries])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Commands find the cluster by --address, ZFABRIC_ADDRESS, or what runs here. `zfabric COMMAND --help` describes a command.",
)
@click.version_option(__version__, prog_name="zfabric", message="%(prog)s %(version)s")
def program() -> None:
    """Run programs on zfabric clusters, and inspect clusters."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line. An error is one line, and exits with 2 for invalid arguments, else with 1."""
    try:
        _beginning.over()
        result: Any = program.main(arguments, prog_name="zfabric", standalone_mode=False)
        if callable(result):  # A user's program, run outside of click.
            result()
        code = result if isinstance(result, int) else 0
        with suppress(AttributeError):  # It is None if who started this has closed it.
            sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        _print_error("interrupted")
        code = INTERRUPTED
    except click.ClickException as error:
        _print_error(error)
        code = error.exit_code
    except ConfigError as error:
        _print_error(f"Error: {error}")
        code = 2
    except FabricError as error:
        _print_error(f"Error: {error}")
        code = 1
    except BrokenPipeError:  # The reader (``head``, a pager) has closed the pipe.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _print_error(error: str | click.ClickException) -> None:
    from zfabric.cli.output import echo, print_error

    echo(error, err=True) if isinstance(error, str) else print_error(error)


if __name__ == "__main__":
    main()
