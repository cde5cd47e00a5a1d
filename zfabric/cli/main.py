"""``zfabric``: the command line. ``--help`` imports this module only; each command's module is imported on use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import click

from zfabric import _beginning
from zfabric._version import __version__
from zfabric.exceptions import ConfigError, FabricError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells set it."""


class CommandEntry(NamedTuple):
    """A command: its module and its line in the help."""

    name: str
    module: str
    summary: str


SECTIONS: tuple[tuple[str, tuple[CommandEntry, ...]], ...] = (
    ("Programs", (CommandEntry("submit", "submit", "Run a program on a cluster; exits as the program does."),)),
    (
        "Clusters",
        (
            CommandEntry("start", "clusters", "Start a cluster that outlives programs."),
            CommandEntry("stop", "clusters", "Stop it, with all its processes and files."),
            CommandEntry("status", "clusters", "Resources, tasks, object store, jobs."),
            CommandEntry("sessions", "sessions", "Clusters that run, and what was kept of those that have ended."),
        ),
    ),
    (
        "What is going on",
        (
            CommandEntry("tasks", "listings", "The tasks, those that run first."),
            CommandEntry("objects", "listings", "The values, and who keeps them."),
            CommandEntry("actors", "listings", "The actors, and who has them."),
            CommandEntry("workers", "listings", "The worker processes, and what they do."),
            CommandEntry("explain", "listings", "Why a task, object, actor or worker is as it is."),
            CommandEntry("stack", "stack", "What every thread of the workers runs, and for how long."),
            CommandEntry("debug", "debug", "Attach to a task that waits at its breakpoint()."),
            CommandEntry("logs", "logs", "What the workers printed."),
            CommandEntry("timeline", "timeline", "What ran when and where, for Perfetto."),
        ),
    ),
    (
        "Care",
        (
            CommandEntry("state", "state", "The control store's tables."),
            CommandEntry("doctor", "doctor", "Whether this machine is fit, and what to do where it is not."),
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
        """Resolve a command as click does, and suggest a name for an unknown one."""
        name = args[0]
        if name not in _ENTRIES and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, _ENTRIES, 1)
            hint = f"Did you mean {near[0]!r}?" if near else "`zfabric --help` lists them."
            if name.endswith(".py"):
                hint = f"To run a program: zfabric submit {name}"
            raise click.UsageError(f"There is no command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of the help without importing the commands."""
        width = max(map(len, _ENTRIES))
        for title, entries in SECTIONS:
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(width), entry.summary) for entry in entries])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Tools find the cluster by --address, ZFABRIC_ADDRESS, or what runs here. `zfabric COMMAND --help` has the rest.",
)
@click.version_option(__version__, prog_name="zfabric", message="%(prog)s %(version)s")
def program() -> None:
    """Run programs on zfabric, and see what they do."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. Every error is one clear line: exit code 2 for invalid arguments, 1 for all else."""
    try:
        _beginning.over()
        result: Any = program.main(arguments, prog_name="zfabric", standalone_mode=False)
        if callable(result):  # A user's program, run outside of click.
            result()
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except ConfigError as error:
        click.echo(f"Error: {error}", err=True)
        code = 2
    except FabricError as error:
        click.echo(f"Error: {error}", err=True)
        code = 1
    except BrokenPipeError:  # The reader (``head``, a pager) has closed the pipe.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
