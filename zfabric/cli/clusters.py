"""``zfabric start``, ``stop`` and ``status``: clusters that outlive programs."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from zfabric.cli.options import address_option, cluster_options, json_option
from zfabric.cli.output import amount, print_json, print_table, size
from zfabric.cli.sessions import about, chosen_session, connected, seconds
from zfabric.config import Config
from zfabric.exceptions import ConnectionLostError, NodeDiedError
from zfabric.protocol.names import is_text
from zfabric.runtime.connect import node_resources
from zfabric.runtime.launch import Launched, launch
from zfabric.runtime.launch import stop as end_session
from zfabric.runtime.session import STARTED, Session, find_sessions, started_session, user_directory


@click.command(short_help="Start a cluster that outlives programs.")
@cluster_options
@click.option("--store", metavar="DIR", help="Directory of the control store, which remains when the cluster is stopped.")
@click.option("--namespace", metavar="NAME", default="", help="Default namespace of programs.")
@json_option
def start(
    num_cpus: int | None,
    num_gpus: int | None,
    resources: dict[str, float] | None,
    object_store_memory: int | None,
    config: dict[str, Any],
    store: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Start a cluster in the background. It runs until `zfabric stop`.

    Your programs join it, unless they start their own (zf.init(address="local"), `zfabric submit --address local`).
    """
    if not is_text(namespace):
        raise click.BadParameter(f"{namespace!r} is not UTF-8", param_hint="--namespace")
    with _alone(), _spinner("starting a cluster"):
        running = started_session()
        if running is not None:
            raise click.ClickException(f"a cluster is running already ({about(running)}, {running.directory}); end it with `zfabric stop`")
        settings = Config.of(config)
        if store:
            store = os.path.abspath(store)
            _check_store(store, settings)
        launched = launch(
            kind=STARTED,
            config=settings,
            resources=node_resources(num_cpus, num_gpus, resources),
            namespace=namespace,
            store=store or "",
            arena_size=-1 if object_store_memory is None else object_store_memory,
        )
        facts = _await(launched, bool(settings.preload))
    if as_json:
        print_json(facts)
        return
    has = ", ".join(f"{amount(count)} {name}" for name, count in facts["resources"].items())
    click.echo(f"A cluster is running, with {has} and an object store of {size(facts['object_store_memory'])}.\n")
    click.echo("  join it in a program     zf.init()")
    click.echo("  run a program on it      zfabric submit SCRIPT")
    click.echo("  see what it does         zfabric status")
    click.echo("  end it                   zfabric stop")
    click.echo(f"\nIts session is {facts['session']}")


def _check_store(path: str, settings: Config) -> None:
    """Open the store as the daemon will, so that the caller sees an error in it at once."""
    from zfabric.adapters.journal import Journal  # LMDB is only loaded for --store.

    try:
        journal = Journal.open(path, settings.control_store_bytes, settings.durability, thorough=True)
        journal.close()
        if journal.report:
            click.echo(f"Warning: {journal.report}", err=True)
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be used: {error.strerror or error}", param_hint="--store") from None


def _await(launched: Launched, preloads: bool) -> dict[str, Any]:
    """Wait until the daemon answers and a worker is ready; end the session if that fails or the user interrupts."""
    from zfabric.runtime.connect import PRELOAD_SECONDS, REGISTER_SECONDS, attach  # ZeroMQ loads while the node starts.

    try:
        client = attach(launched.session, kind="tool", failure=launched.failure, seconds=PRELOAD_SECONDS if preloads else REGISTER_SECONDS)
        try:
            status = client.query("status")
            until = time.monotonic() + client.config.worker_start_seconds
            while all(row["state"] == "starting" for row in client.query("workers")) and time.monotonic() < until:
                time.sleep(0.01)  # A tool polls: the daemon does not notify it.
        finally:
            client.close()
        description = launched.session.describe()
    except (ConnectionLostError, NodeDiedError) as error:
        # The session records the reason before it ends, and its processes may take a moment to exit.
        reason = (launched.session.failure() or launched.failure() or str(error)).strip()
        launched.close()
        if re.match(r"the \w+ (cannot be started|failed).*\n", reason):
            *_, reason = reason.splitlines()  # The reason is below the traceback of our own process.
        reason = re.sub(r"^the \w+ cannot be started \([^)]*\): ", "", reason)
        reason = re.sub(r"^zfabric\.exceptions\.\w+: ", "", reason)
        raise click.ClickException(f"the cluster did not start: {reason}") from None
    except BaseException:  # Ctrl-C too: end a cluster that was not announced.
        launched.close()
        raise
    launched.detach()
    return {
        "session": launched.session.directory,
        "pid": launched.pid,
        "node": status["node"],
        "resources": status["resources"],
        "object_store_memory": description["arena_size"],
        "store": description["store"],
    }


@contextmanager
def _alone() -> Iterator[None]:
    """Allow one ``start`` at a time: the second of two finds the cluster of the first. Removes the lock's file at the end."""
    path = f"{user_directory()}/starting"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                break
        except FileNotFoundError:
            pass
        os.close(descriptor)  # The previous holder has removed the file that this process locked.
    try:
        yield
    finally:
        os.unlink(path)
        os.close(descriptor)


@contextmanager
def _spinner(text: str) -> Iterator[None]:
    """Show a spinner in a terminal while the body runs."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # Only needed in a terminal.

    with Console(stderr=True).status(text):
        yield


@click.command(short_help="Stop a cluster, with all its processes and files.")
@address_option
@click.option("--all", "everything", is_flag=True, help="Stop all your clusters on this machine, also those of running programs.")
@json_option
def stop(address: str | None, everything: bool, as_json: bool) -> None:
    """Stop the started cluster, or the one at --address: its processes, shared memory and files.

    A control store at `zfabric start --store` remains.
    """
    if everything and address:
        raise click.UsageError("--all and --address exclude each other")
    if everything:
        sessions = find_sessions()
    else:
        running = chosen_session(address) if address or os.environ.get("ZFABRIC_ADDRESS") else started_session()
        sessions = [] if running is None else [running]
    stopped = []
    for session in sessions:
        text = about(session)
        with _spinner("stopping"):
            if end_session(session):
                stopped.append((session, text))
    if as_json:
        print_json([session.directory for session, _ in stopped])
    else:
        for session, text in stopped:
            click.echo(f"Stopped the cluster {text} ({session.directory}).")
    if not stopped:
        raise click.ClickException(_nothing_to_stop(everything))


def _nothing_to_stop(everything: bool) -> str:
    others = [] if everything else find_sessions()
    if not others:
        return "there is nothing to stop: no cluster is running here"
    listed = "; ".join(f"{session.directory} ({about(session)})" for session in others)
    return f"no started cluster is running. Clusters of programs end with them; to end one now, name it with --address: {listed}"


@click.command(short_help="Show resources, tasks, object store and jobs.")
@address_option
@json_option
def status(address: str | None, as_json: bool) -> None:
    """Show the cluster's resources and their use, its tasks, object store and jobs."""
    session = chosen_session(address)
    with connected(session) as client:
        found = client.query("status")
    description = session.describe()
    if as_json:
        print_json(_document(session, description, found))
    else:
        _print_status(session, description, found)


def _document(session: Session, description: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    return {
        "session": session.directory,
        "kind": description["kind"],
        "created": description["created"],
        "supervisor": description["supervisor"],
        "durability": description["config"]["durability"],
        **found,
    }


def _print_status(session: Session, description: dict[str, Any], found: dict[str, Any]) -> None:
    age = seconds(time.time() - description["created"])
    kind = "started cluster" if description["kind"] == STARTED else f"cluster of program {description['launcher']}"
    click.echo(f"{kind}, up {age}, node {found['node']}, session {session.directory}")
    if found["recovering"]:
        click.echo("its daemon was restarted and waits for every process to register again")
    click.echo()
    total, free = found["resources"], found["available"]
    rows: list[tuple[object, ...]] = [
        (name, amount(count - free.get(name, 0.0)), amount(count), _bar(count - free.get(name, 0.0), count))
        for name, count in total.items()
    ]
    store = found["store"]
    if store:
        used = store["used"] + store["granted"]
        rows.append(("object store", size(used), size(store["capacity"]), _bar(used, store["capacity"])))
    print_table(("resource", ">in use", ">of", ""), rows)
    click.echo()
    tasks = {name: count for name, count in found["tasks"].items() if count}
    finished = int(found["statistics"].get("tasks_finished", 0))
    click.echo(
        "tasks         " + (", ".join(f"{count:,} {name}" for name, count in tasks.items()) or "none") + f"; {finished:,} finished so far"
    )
    if tasks.get("infeasible"):
        click.echo("              infeasible ones ask for what no node has: zfabric tasks --state infeasible")
    click.echo(f"workers       {found['workers']}")
    if found["actors"]:
        click.echo("actors        " + ", ".join(f"{count:,} {state}" for state, count in found["actors"].items()))
    if store:
        line = f"objects       {int(store['objects']):,} in the store, {size(store['pinned'])} of them in use"
        click.echo(line + (f", {size(store['spilled'])} on disk" if store["spilled"] else ""))
    for job in found["jobs"]:
        name = f" in namespace {job['namespace']}" if job["namespace"] else ""
        program = f"program {job['pid']}" if job["pid"] else "detached actors, without a program"
        click.echo(f"job {job['number']:<9} {program}{name}, {job['submitted']:,} tasks submitted in {seconds(job['seconds'])}")
    if not found["jobs"]:
        click.echo("jobs          none")


def _bar(used: float, total: float, width: int = 20) -> str:
    filled = round(width * min(1.0, used / total)) if total else 0
    return "█" * filled + "·" * (width - filled)
