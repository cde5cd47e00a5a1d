"""``zfabric start``, ``stop`` and ``status``: clusters that outlive programs."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from zfabric.adapters.journal import Journal
from zfabric.api.cluster import demand_of
from zfabric.cli.options import Seconds, WholeNumber, address_option, cluster_options, json_option
from zfabric.cli.output import amount, console, echo, node_amounts, print_json, print_table
from zfabric.cli.sessions import about, chosen_session, connected
from zfabric.config import Config
from zfabric.exceptions import ConnectionLostError, FabricError, NodeDiedError
from zfabric.protocol.messages.queries import PENDING_STATES
from zfabric.protocol.names import amount_text, counted, is_text, size, span
from zfabric.protocol.options import MEMORY, is_shared
from zfabric.runtime.connect import PRELOAD_SECONDS, REGISTER_SECONDS, attach, await_registered, drain_node, node_resources
from zfabric.runtime.foreground import GRACE_SECONDS, Notified, notified, plain, run_until_end
from zfabric.runtime.launch import Launched, launch
from zfabric.runtime.launch import stop as end_session
from zfabric.runtime.session import (
    FOREGROUND,
    STARTED,
    ClusterSettings,
    JoinedNode,
    Session,
    find_sessions,
    forget_failure,
    started_session,
    user_directory,
    where_looked,
)

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 1.0
"""Shortest and longest seconds between attempts to join (``--wait``), which grow."""
_NODE_ID = re.compile("[0-9a-fA-F]{16}")


class NotStartedError(click.ClickException):
    """The node has ended before it was ready."""


def _labels(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name or not is_text(value):
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", ctx, param)
        found[name] = text
    return tuple(sorted(found.items()))


def _node_name(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not is_text(value):
        raise click.BadParameter(f"{value!r} is not UTF-8", ctx, param)
    if value.isdecimal() or _NODE_ID.fullmatch(value):
        what = "number" if value.isdecimal() else "id"
        raise click.BadParameter(f"{value!r} could be the {what} of another node; choose a name such as node-{value[:4]}", ctx, param)
    return value


@click.command(short_help="Start a cluster that outlives programs, or one of its nodes.")
@click.option("--head", is_flag=True, help="Start the head of a cluster of several nodes, to which others connect.")
@click.option("--address", metavar="ADDRESS", help="Start one more node of the cluster whose head is at tcp://HOST:PORT.")
@click.option("--key-file", metavar="FILE", help="Keys of the cluster, by default ~/.config/zfabric/cluster.key; --head makes them.")
@click.option("--host", metavar="HOST", default="", help="Where other nodes reach this one; by default loopback, if the head is there.")
@click.option(
    "--port", type=WholeNumber("port", 0, 65535), metavar="N", help="Port for other nodes; by default 6790 at the head, else any."
)
@click.option("--transfer-port", type=WholeNumber("port", 0, 65535), metavar="N", help="Port for large values; by default any.")
@click.option(
    "--name",
    metavar="NAME",
    default="",
    callback=_node_name,
    help="Name of the node in listings and output; by default that of the machine.",
)
@click.option("--label", "labels", callback=_labels, multiple=True, metavar="NAME=VALUE", help="A label of the node; may be repeated.")
@cluster_options
@click.option("--store", metavar="DIR", help="Directory of the control store, which remains when the cluster is stopped.")
@click.option("--namespace", metavar="NAME", default="", help="Default namespace of programs.")
@click.option("--wait", type=Seconds(), metavar="SECONDS", help="With --address: try for so long to reach the head and to join.")
@click.option(
    "--idle-timeout",
    type=Seconds(),
    metavar="SECONDS",
    help="With --address: the node drains itself after so long without work; 0: never.",
)
@click.option("--block", is_flag=True, help="Stay in the foreground: the node ends with this command. SIGTERM drains it.")
@click.option(
    "--grace",
    type=Seconds(),
    metavar="SECONDS",
    help=f"With --block: drain for at most this long after SIGTERM; by default {GRACE_SECONDS:g}.",
)
@json_option
def start(
    head: bool,
    address: str | None,
    key_file: str | None,
    host: str,
    port: int | None,
    transfer_port: int | None,
    name: str,
    labels: tuple[tuple[str, str], ...],
    num_cpus: int | None,
    num_gpus: int | None,
    resources: dict[str, float] | None,
    memory: int | None,
    object_store_memory: int | None,
    config: dict[str, Any],
    store: str | None,
    namespace: str,
    wait: float | None,
    idle_timeout: float | None,
    block: bool,
    grace: float | None,
    as_json: bool,
) -> None:
    """Start a cluster in the background. It runs until `zfabric stop`, or with --block as long as this command.

    Your programs join it, unless they start their own (zf.init(address="local"), `zfabric submit --address local`).

    With --head, other nodes can join it, here or on machines that have its key file: `zfabric start --address ADDRESS --key-file FILE`.
    """
    if grace is not None and not block:
        raise click.UsageError("--grace: only a node in the foreground waits after SIGTERM; add --block")
    if wait is not None and not address:
        raise click.UsageError("--wait: only a node that joins a cluster waits for its head; add --address")
    if idle_timeout is not None and not address:
        raise click.UsageError("--idle-timeout: only a node that joins a cluster leaves it; add --address")
    cluster = _cluster_settings(head, address, key_file, host, (port, transfer_port), name, labels)
    if not is_text(namespace):
        raise click.BadParameter(f"{namespace!r} is not UTF-8", param_hint="--namespace")
    settings = Config.of(config if idle_timeout is None else {**config, "node_idle_seconds": idle_timeout})

    def begin() -> Launched:
        with _alone(), _spinner("starting a cluster"):
            running = started_session()
            if running is not None and not address:
                what = f"{about(running)}, {running.directory}"
                raise click.ClickException(f"a cluster is running already ({what}); end it with `zfabric stop`")
            if store:
                _check_store(os.path.abspath(store), settings)
            launched = launch(
                kind=FOREGROUND if block else STARTED,
                config=settings,
                resources=node_resources(num_cpus, num_gpus, resources, memory),
                namespace=namespace,
                store=os.path.abspath(store) if store else "",
                arena_size=-1 if object_store_memory is None else object_store_memory,
                cluster=cluster,
            )
            facts = _await(launched, bool(settings.preload))
            forget_failure()
        print_json(facts) if as_json else _announce(facts, cluster, block)
        return launched

    def begin_in_time() -> Launched:
        return begin() if wait is None else _repeat(begin, str(address), wait)

    if block:
        advice = "\nIt can join again once the head runs; --wait has it wait for that." if address else ""
        _stay(begin_in_time, GRACE_SECONDS if grace is None else grace, advice)
    else:
        begin_in_time().detach()


def _repeat(begin: Callable[[], Launched], address: str, seconds: float) -> Launched:
    """Call ``begin`` until the node has joined, for ``seconds``, and print why it has not. Then raise the last error."""
    from zfabric.runtime.cluster import reach  # Only nodes of several need it.

    until = time.monotonic() + seconds
    shown, pause = "", RETRY_SECONDS_MIN
    while True:
        try:
            reach(address)  # Outside of ``begin``, which holds up other starts of this user.
            return begin()
        except (ConnectionLostError, NotStartedError) as error:
            if time.monotonic() + pause > until:
                raise
            if str(error) != shown:
                shown = str(error)
                _say(f"{shown}\nwaiting for the head, at most {seconds:g} s")
        time.sleep(pause)  # Nobody notifies a node of a head that begins.
        pause = min(2 * pause, RETRY_SECONDS_MAX)


def _stay(begin: Callable[[], Launched], grace: float, advice: str) -> None:
    """Begin a node and wait for its end. Raises ClickException, with ``advice``, if it did not end on request."""
    launched = None
    try:
        with notified():
            launched = begin()
            reason = run_until_end(launched, grace, _say)
    except Notified:
        _say("SIGTERM: the node ends before it has begun")
        reason = ""
        if launched is not None:
            launched.close()
    if reason:
        raise click.ClickException(f"the node has ended: {plain(reason)}{advice}")


def _say(text: str) -> None:
    with suppress(OSError):  # Who read this may have ended; the node ends in order all the same.
        echo(text, err=True)


def _announce(facts: dict[str, Any], cluster: ClusterSettings | None, block: bool) -> None:
    """Print where the node is, and what to do next."""
    has = node_amounts(facts["resources"])
    if cluster is not None and not cluster.head:
        echo(f"This node has joined the cluster at {cluster.address} as {facts['name']}, with {has}. It is at {facts['address']}.")
        return
    where = f" at {facts['address']}" if cluster is not None else ""
    echo(f"A cluster is running{where}, with {has} and an object store of {size(facts['object_store_memory'])}.\n")
    if cluster is not None:
        seed = f"PYTHONHASHSEED={os.environ['PYTHONHASHSEED']} " if os.environ.get("PYTHONHASHSEED", "").isdecimal() else ""
        echo(f"  add a node to it         {seed}zfabric start --address {facts['address']} --key-file {cluster.key_file}")
    echo("  join it in a program     zf.init()")
    echo("  run a program on it      zfabric submit SCRIPT")
    echo("  see what it does         zfabric status")
    echo(f"  end it                   {'Ctrl-C, or ' if block else ''}zfabric stop")
    echo(f"\nIts session is {facts['session']}")


def _cluster_settings(
    head: bool,
    address: str | None,
    key_file: str | None,
    host: str,
    ports: tuple[int | None, int | None],
    name: str,
    labels: tuple[tuple[str, str], ...],
) -> ClusterSettings | None:
    """The settings of a node in a cluster of several; None without --head and --address. Makes a new head's keys."""
    if not head and not address:
        given = {
            "--key-file": key_file,
            "--host": host,
            "--port": ports[0],
            "--transfer-port": ports[1],
            "--name": name,
            "--label": labels,
        }
        alone = [option for option, value in given.items() if value]
        if alone:
            raise click.UsageError(f"{', '.join(alone)}: only the nodes of a cluster of several have that; add --head or --address")
        return None
    if head and address:
        raise click.UsageError("--head and --address exclude each other: a node begins a cluster or joins one")
    from zfabric.runtime.cluster import HEAD_PORT, default_key_file, make_keys, parse_address  # Only nodes of several need it.

    if address:
        parse_address(address)
    path = os.path.abspath(os.path.expanduser(key_file or default_key_file()))
    if head and not os.path.exists(path):
        make_keys(path)
    port = ports[0] if ports[0] is not None else HEAD_PORT if head else 0
    return ClusterSettings(head, host.strip("[]"), port, address or "", path, name, labels, "", ports[1] or 0)


def _check_store(path: str, settings: Config) -> None:
    """Open the store as the daemon will, so that an error is shown at once."""
    try:
        journal = Journal.open(path, settings.control_store_bytes, settings.durability, thorough=True)
        journal.close()
        if journal.report:
            echo(f"Warning: {journal.report}", err=True)
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be used: {error.strerror or error}", param_hint="--store") from None


def _await(launched: Launched, preloads: bool) -> dict[str, Any]:
    """Wait for daemon and worker; end the session if that fails or the user interrupts."""
    try:
        client = attach(launched.session, kind="tool", failure=launched.failure, seconds=PRELOAD_SECONDS if preloads else REGISTER_SECONDS)
        try:
            status = client.query("status")
            until = time.monotonic() + client.config.worker_start_seconds
            while all(row["state"] == "starting" for row in client.query("workers")) and time.monotonic() < until:
                time.sleep(0.01)  # A tool polls: the daemon does not notify it.
            if launched.session.membership() is not None:
                await_registered(client, [row["node"] for row in client.query("nodes")])
        finally:
            client.close()
        description = launched.session.describe()
    except (ConnectionLostError, NodeDiedError) as error:
        # The session records the reason before it ends; its processes may take a moment to exit.
        reason = (launched.session.failure() or launched.failure() or str(error)).strip()
        launched.close()
        forget_failure()  # The user sees it now.
        raise NotStartedError(f"the cluster did not start: {plain(reason)}") from None
    except BaseException:  # Ctrl-C too: end a cluster that was not announced.
        launched.close()
        raise
    membership = launched.session.membership()
    return {
        **({"address": membership.address, "number": membership.number, "name": _name_of(membership)} if membership is not None else {}),
        "session": launched.session.directory,
        "pid": launched.pid,
        "node": status["node"],
        "resources": status["resources"],
        "object_store_memory": description["arena_size"],
        "store": description["store"],
    }


def _name_of(node: JoinedNode) -> str:
    """The node's name in its cluster, which may differ from the requested one."""
    return next(str(row[2]) for row in node.node_table().rows if row[1] == node.number)


@contextmanager
def _alone() -> Iterator[None]:
    """Let one ``start`` run at a time: the second finds the first one's cluster."""
    path = f"{user_directory()}/starting"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                break
        except FileNotFoundError:
            pass
        os.close(descriptor)  # The previous holder has removed the locked file.
    try:
        yield
    finally:
        os.unlink(path)
        os.close(descriptor)


@contextmanager
def _spinner(text: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    with console(stderr=True).status(text):
        yield


@click.command(short_help="Stop a cluster, with all its processes and files.")
@address_option
@click.option("--all", "everything", is_flag=True, help="Stop all your clusters on this machine, also those of running programs.")
@click.option("--cluster", "whole", is_flag=True, help="Stop all nodes of the cluster here; with the head, all there are.")
@json_option
def stop(address: str | None, everything: bool, whole: bool, as_json: bool) -> None:
    """Stop the started cluster, or the one at --address: its processes, shared memory and files.

    A control store at `zfabric start --store` remains. A cluster of several nodes ends with its head. Any other node can be stopped by
    its address (tcp://HOST:PORT).
    """
    if everything and (address or whole):
        raise click.UsageError(f"--all and {'--address' if address else '--cluster'} exclude each other")
    if everything:
        sessions = find_sessions()
    else:
        running = chosen_session(address) if address or os.environ.get("ZFABRIC_ADDRESS") else started_session()
        sessions = [] if running is None else _of_cluster(running, whole, bool(address))
    stopped = []
    for session in sessions:
        text = f"{_what(session)} {about(session)}"
        with _spinner("stopping"):
            if end_session(session):
                stopped.append((session, text))
    if as_json:
        print_json([session.directory for session, _ in stopped])
    else:
        for session, text in stopped:
            echo(f"Stopped {text} ({session.directory}).")
    if not stopped:
        raise click.ClickException(_nothing_to_stop(everything))


@click.command(short_help="Have a node leave its cluster once nothing is left there.")
@click.argument("node")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="End the node after this time with what is left. Default: wait."
)
@click.option("--force", is_flag=True, help="Drain a node on which programs run: they end with it.")
@address_option
def drain(node: str, timeout: float | None, force: bool, address: str | None) -> None:
    """Drain a node: by its name, its number or its id, as `zfabric nodes` lists them.

    Nothing new is placed there. Running tasks and calls end, values that only it has are copied to other nodes, and then it leaves. The
    head cannot be drained. Actors that may restart are made again elsewhere, if another node is their home; others end last.
    """
    session = chosen_session(address)
    with connected(session) as client:
        rows = client.query("nodes")
    chosen = [row for row in rows if node in (row["node"], str(row.get("number")))] or [row for row in rows if node == row.get("name")]
    if not chosen:
        raise click.UsageError(f"this cluster has no node {node!r}: zfabric nodes lists them")
    shown: set[str] = set()

    def show(left: dict[str, Any]) -> None:
        for each in set(left["actors"]) - shown:
            shown.add(each)
            echo(f"waiting for calls of the actor {each}", err=True)

    try:
        in_time = drain_node(session, chosen[0]["node"], timeout, force, show)
    except FabricError as error:
        raise click.ClickException(str(error).removeprefix("drain: ")) from None
    echo(f"Drained node {node}." if in_time else f"Ended node {node} after {timeout:g} s, with what was left there.")


def _of_cluster(session: Session, whole: bool, named: bool) -> list[Session]:
    """The sessions to stop: the chosen one, or with --cluster all nodes here, the head last."""
    membership = session.membership()
    if membership is None:
        return [session]
    from zfabric.runtime.cluster import nodes_here

    here = nodes_here(membership.address)
    if whole:
        return sorted(here, key=_is_head)
    if len(here) > 1 and not named:
        listed = "\n".join(f"  --address {other.address}" for node in here if (other := node.membership()) is not None)
        raise click.UsageError(f"{len(here)} nodes of this cluster run here; stop all of them with --cluster, or one of them:\n{listed}")
    return [session]


def _is_head(session: Session) -> bool:
    cluster = session.cluster()
    return cluster is not None and cluster.head


def _what(session: Session) -> str:
    cluster = None
    with suppress(FabricError):  # Of another version, or just ending.
        cluster = session.cluster()
    return "the cluster" if cluster is None or cluster.head else "a node of the cluster"


def _nothing_to_stop(everything: bool) -> str:
    others = [] if everything else find_sessions()
    if not others:
        return f"there is nothing to stop: no cluster is running here ({where_looked()})"
    listed = "; ".join(f"{session.directory} ({about(session)})" for session in others)
    return f"no started cluster is running. Clusters of programs end with them; to end one now, name it with --address: {listed}"


@click.command(short_help="Show resources, tasks, object store and jobs.")
@address_option
@json_option
def status(address: str | None, as_json: bool) -> None:
    """Show the cluster's resources and their use, its tasks, object store and jobs.

    In a cluster of several nodes, each has a row. What follows is of the node at --address, or of the one that was started here.
    """
    session = chosen_session(address)
    with connected(session) as client:
        found = client.query("status")
        nodes = client.query("statuses") if session.membership() is not None else []
        kinds = client.query("autoscaler") if nodes else []
        labels = {each["node"]: each["labels"] for each in client.query("nodes")} if as_json else {}
        demand = demand_of(client.query("demand"), nodes or [found], labels) if as_json else {}
    description = session.describe()
    if as_json:
        print_json(_document(session, description, {**found, **demand}, nodes, kinds))
    else:
        _print_status(session, description, found, nodes)
        for kind in kinds:
            echo(f"autoscaler    {counted(kind['nodes'], 'node')} of kind {kind['name']!r} joined; {kind['summary']}")


def _document(
    session: Session, description: dict[str, Any], found: dict[str, Any], nodes: list[dict[str, Any]], kinds: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        **({"nodes": nodes} if nodes else {}),
        **({"autoscaler": kinds} if kinds else {}),
        "session": session.directory,
        "kind": description["kind"],
        "created": description["created"],
        "supervisor": description["supervisor"],
        "durability": description["config"]["durability"],
        **found,
    }


def _node_rows(nodes: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """CPUs, reserved and used memory, object store, waiting and running tasks, by node."""
    rows: list[tuple[object, ...]] = []
    for each in nodes:
        cpus, memory = (each["resources"].get(name, 0.0) for name in ("CPU", MEMORY))
        free, unreserved = (each["available"].get(name, 0.0) for name in ("CPU", MEMORY))
        store, tasks = each["store"], each["tasks"]
        rows.append(
            (
                each.get("name") or each["node"],
                f"{amount(cpus - free)} of {amount(cpus)}",
                f"{size(memory - unreserved)} of {size(memory)}",
                size(int(each["statistics"].get("memory_used", 0))),
                f"{size(store['used'] + store['granted'])} of {size(store['capacity'])}" if store else "-",
                sum(tasks[state] for state in PENDING_STATES) - each["elsewhere"],
                tasks["running"] + tasks["blocked"],
                each["workers"],
            )
        )
    return rows


def _print_status(session: Session, description: dict[str, Any], found: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    age = span(time.time() - description["created"])
    kind = "started cluster" if session.outlives_programs() else f"cluster of program {description['launcher']}"
    echo(f"{kind}, up {age}, node {found['node']}, session {session.directory}")
    membership = session.membership()
    if membership is not None:
        head = "the head" if _is_head(session) else "a node"
        count = len(membership.addresses)
        echo(f"{head} of a cluster of {count} node{'s' * (count != 1)}, at {membership.address}; zfabric nodes lists them")
    if found["recovering"]:
        echo("its daemon was restarted and waits for every process to register again")
    echo()
    if len(nodes) > 1:
        columns = ">CPUs in use", ">memory reserved", ">memory of workers", ">object store", ">pending", ">running", ">workers"
        print_table(("node", *columns), _node_rows(nodes))
        echo("\nof this node:")
    total, free = found["resources"], found["available"]
    rows: list[tuple[object, ...]] = [
        (name, amount_text(name, count - free.get(name, 0.0)), amount_text(name, count), _bar(count - free.get(name, 0.0), count))
        for name, count in total.items()
        if is_shared(name)
    ]
    store = found["store"]
    if store:
        used = store["used"] + store["granted"]
        rows.append(("object store", size(used), size(store["capacity"]), _bar(used, store["capacity"])))
    print_table(("resource", ">in use", ">of", ""), rows)
    echo()
    elsewhere = found["elsewhere"]
    states = {**found["tasks"], "assigned": found["tasks"]["assigned"] - elsewhere, "on other nodes": elsewhere}
    tasks = {name: count for name, count in states.items() if count}
    finished = int(found["statistics"].get("tasks_finished", 0))
    echo("tasks         " + (", ".join(f"{count:,} {name}" for name, count in tasks.items()) or "none") + f"; {finished:,} finished so far")
    if tasks.get("infeasible"):
        echo("              infeasible ones ask for what no node has: zfabric tasks --state infeasible")
    echo(f"workers       {found['workers']}")
    if found["actors"]:
        echo("actors        " + ", ".join(f"{count:,} {state}" for state, count in found["actors"].items()))
    if store:
        line = f"objects       {int(store['objects']):,} in the store, {size(store['pinned'])} of them in use"
        echo(line + (f", {size(store['spilled'])} on disk" if store["spilled"] else ""))
    homes = {job["job"]: job for each in nodes for job in each["jobs"] if not job["home"]}
    for job in found["jobs"]:
        name = f" in namespace {job['namespace']}" if job["namespace"] else ""
        if job["home"]:
            there = homes.get(job["job"], job)
            echo(f"job {job['number']:<9} {_program_of(there)}of {job['home']}, at work here for {span(job['seconds'])}")
            continue
        program = f"{_program_of(job)}program {job['pid']}" if job["pid"] else "detached actors, whose program has ended"
        tasks_submitted = f"{job['submitted']:,} task{'s' if job['submitted'] != 1 else ''} submitted"
        echo(f"job {job['number']:<9} {program}{name}, {tasks_submitted} in {span(job['seconds'])}")
        if job.get("command"):
            echo(f"              {job['command']}")
    if not found["jobs"]:
        echo("jobs          none")


def _program_of(job: dict[str, Any]) -> str:
    known = ", ".join(text for text in (job.get("script"), job.get("submission_id")) if text)
    return f"{known}, " if known else ""


def _bar(used: float, total: float, width: int = 20) -> str:
    filled = round(width * min(1.0, used / total)) if total else 0
    return "█" * filled + "·" * (width - filled)
