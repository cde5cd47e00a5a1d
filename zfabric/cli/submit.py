"""``zfabric submit``: run a program as ``python`` would, on a cluster that the command line describes.

Options reach ``zf.init()`` through the environment (``ZFABRIC_ADDRESS``, ``ZFABRIC_SUBMIT``), even if the program never calls it; the
program's own arguments override them. A program without tasks starts no cluster.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

import click

from zfabric.api.lifecycle import ADDRESS_VARIABLE, PAGE_VARIABLE, SUBMIT_VARIABLE, shutdown
from zfabric.cli.main import INTERRUPTED
from zfabric.cli.options import cluster_options
from zfabric.cli.output import echo
from zfabric.cli.sessions import chosen_session
from zfabric.runtime.connect import LOCAL, session_to_join
from zfabric.runtime.session import KEEP_VARIABLE


@click.command(context_settings={"allow_interspersed_args": False}, short_help="Run a program on a cluster.")
@click.option(
    "--address", metavar="ADDRESS", help='The cluster to join: a session directory, tcp://HOST:PORT, or "auto" for the started one.'
)
@cluster_options
@click.option(
    "--keep", is_flag=True, help="Retain the cluster's logs and tables when it ends; `zfabric sessions` lists them. [env: ZFABRIC_KEEP]"
)
@click.option("--page", is_flag=True, help="Show the cluster in a browser while the program runs; prints the address.")
@click.option("--as-ray", is_flag=True, help="The program is written for Ray: `import ray` is zfabric (docs/as-ray.md).")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in `python -m`.")
@click.option("--detach", is_flag=True, help="Hand the program to a started cluster, print the job's id, and do not wait.")
@click.option("--id", "identifier", metavar="ID", help="The id of the job, with --detach.")
@click.option(
    "--working-dir",
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Send this directory to the nodes: the program, whose SCRIPT is in it, and its tasks run there.",
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def submit(
    address: str | None,
    num_cpus: int | None,
    num_gpus: int | None,
    resources: dict[str, float] | None,
    memory: int | None,
    object_store_memory: int | None,
    config: dict[str, Any],
    keep: bool,
    page: bool,
    as_ray: bool,
    module: bool,
    detach: bool,
    identifier: str | None,
    directory: str | None,
    script: str,
    arguments: tuple[str, ...],
) -> Callable[[], NoReturn]:
    """Run the program SCRIPT with ARGS on the cluster at --address (or ZFABRIC_ADDRESS), else on your started cluster, else on a new
    cluster, which ends with the program.

    zfabric exits with the program's exit code. Options come before SCRIPT; arguments after it go to the program. The program's own
    arguments of zf.init() have precedence. With "--address local", the program always gets a new cluster.
    """
    defaults = {
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "resources": resources,
        "memory": memory,
        "object_store_memory": object_store_memory,
        "config": config or None,
    }
    given = {name: value for name, value in defaults.items() if value is not None}
    where = address or os.environ.get(ADDRESS_VARIABLE)
    named = bool(where) and where != LOCAL
    session = None if (given or keep) and named else session_to_join(where)  # Raises its error before the program begins.
    if (given or keep) and (named or session is not None):
        options = ", ".join("--" + name.replace("_", "-") for name in (*given, *["keep"] * keep))
        which = where if session is None else f"that you have started, {session.directory},"
        raise click.UsageError(f"{options}: the cluster {which} has what it was started with (--address local starts another)")
    if identifier is not None and not detach:
        raise click.UsageError("--id needs --detach")
    if directory is not None:
        directory = os.path.abspath(directory)
        script = script if module else _inside(script, directory)
        os.chdir(directory)
    runtime_env = {"working_dir": directory} if directory else {}
    if detach:
        if session is None:
            session = chosen_session(where) if named else None
        if session is None:
            raise click.UsageError("--detach needs a cluster that outlives this command: start one with `zfabric start`")
        _module(script) if module else _compiled(script)
        from zfabric.cli.jobs import detach as hand_over

        program = ("-m", script) if module else (script if directory else os.path.abspath(script),)
        if as_ray:
            program = ("-m", "zfabric.as_ray", *program)
        job = hand_over(session, program, arguments, identifier, runtime_env)
        echo(job)
        return lambda: sys.exit(0)
    if module:
        code, script, spec = _module(script)
    else:
        code, spec = _compiled(script), None
    if where:
        os.environ[ADDRESS_VARIABLE] = where
    if keep:
        os.environ[KEEP_VARIABLE] = "1"
    if page:
        os.environ[PAGE_VARIABLE] = "1"
    os.environ.pop(SUBMIT_VARIABLE, None)
    if given or runtime_env:
        os.environ[SUBMIT_VARIABLE] = json.dumps({**given, "runtime_env": runtime_env})
    if as_ray:
        import zfabric.as_ray  # noqa: F401 - Only programs of Ray need it.
    return lambda: run(code, script, arguments, spec, bool(directory))


def _inside(script: str, directory: str) -> str:
    """The program's path in its working directory, which is searched first."""
    paths = [os.path.join(directory, script), os.path.abspath(script)]
    found = next((path for path in paths if os.path.exists(path)), paths[0])
    relative = os.path.relpath(found, directory)
    if relative.startswith("../"):
        raise click.BadParameter(f"{script!r} is not in the working directory {directory!r}, which is sent without it", param_hint="SCRIPT")
    return relative


def _compiled(script: str) -> Callable[[], types.CodeType]:
    """Read the program now, so that an error is shown at once; compile it when it runs."""
    try:
        path = os.path.abspath(script)
        with io.open_code(path) as file:
            source = file.read()
    except FileNotFoundError:
        raise click.BadParameter(f"there is no file {script!r}", param_hint="SCRIPT") from None
    except IsADirectoryError:
        raise click.BadParameter(f"{script!r} is a directory; name a file in it, or with -m a package", param_hint="SCRIPT") from None
    except OSError as error:
        raise click.BadParameter(f"{script!r} cannot be read: {error.strerror}", param_hint="SCRIPT") from None
    return lambda: compile(source, path, "exec", dont_inherit=True)


def _module(name: str) -> tuple[Callable[[], types.CodeType], str, Any]:
    """Find the module NAME, or NAME.__main__, as `python -m` does: (code, file, spec)."""
    import importlib.util

    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise click.BadParameter(f"{name!r} cannot be imported: {error}", param_hint="-m") from None
    loader: Any = spec.loader if spec is not None else None
    if spec is None or not hasattr(loader, "get_code") or spec.origin is None:
        raise click.BadParameter(f"there is no module {name!r} that could be run", param_hint="-m")
    found = spec

    def code() -> types.CodeType:
        compiled: types.CodeType = loader.get_code(found.name)
        return compiled

    return code, spec.origin, spec


def run(
    code: Callable[[], types.CodeType], script: str, arguments: tuple[str, ...], spec: Any = None, in_directory: bool = False
) -> NoReturn:
    """Run the program as ``__main__`` and exit as it does.

    The program stays ``__main__`` to the end (``runpy`` would restore the old module earlier): threads, exit handlers and pickled objects
    look it up.
    """
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:  # The first entry is this command's directory.
        del sys.path[0]
    if in_directory:
        sys.path.insert(0, os.getcwd())
    sys.path.insert(0, os.getcwd() if spec is not None else os.path.dirname(os.path.abspath(script)))
    module = types.ModuleType("__main__")
    if spec is not None:
        module.__dict__.update(__spec__=spec, __package__=spec.parent)
    module.__dict__.update(__file__=os.path.abspath(script), __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = module
    try:
        exec(code(), module.__dict__)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        _interrupted()
    except BaseException as error:  # As the interpreter does, but without our frames.
        frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
        if isinstance(error, SyntaxError) and frames is not None and frames.tb_frame.f_code.co_name == "<lambda>":
            frames = None
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(1)
    sys.exit(0)


def _interrupted() -> NoReturn:
    """End the job in order, uninterrupted by a second Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shutdown()
    echo("interrupted", err=True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # The program's threads that do not end can be interrupted.
    sys.exit(INTERRUPTED)
