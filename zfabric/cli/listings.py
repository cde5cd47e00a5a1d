"""``zfabric tasks``, ``objects``, ``actors``, ``workers``, ``nodes`` and ``explain``: the contents and state of a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import click

from zfabric.adapters.processes import resident_bytes
from zfabric.cli.options import WholeNumber, address_option, json_option
from zfabric.cli.output import amounts, echo, node_amounts, print_json, print_table
from zfabric.cli.sessions import chosen_session, connected, session_option, tables_of
from zfabric.protocol.ids import TASK_BYTES
from zfabric.protocol.messages.queries import ENDED_STATES, LIST_LIMIT, PENDING_STATES, TASK_STATES
from zfabric.protocol.names import brief, is_text, size, span
from zfabric.runtime.activity import Activity, activities, activity_of_actor
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.lines import shown
from zfabric.runtime.task_history import forgotten, history_of
from zfabric.runtime.timeline import rows_of, trace_events

LIMIT = 100
"""Rows shown by default."""
_CHECKPOINTS = {">every": "checkpoint_every", ">since": "since_checkpoint", ">lost": "lost_calls"}
"""Columns that are shown if any actor has checkpoints."""


def limit_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for the number of rows."""
    bounds = WholeNumber("number of rows", 1, LIST_LIMIT)
    text = f"Rows at most (up to {LIST_LIMIT:,})."
    return click.option("--limit", type=bounds, default=LIMIT, show_default=True, metavar="N", help=text)(function)


@click.command(short_help="List tasks, the running ones first.")
@address_option
@session_option
@click.option(
    "--state", "states", type=click.Choice(["pending", *TASK_STATES]), multiple=True, help="Only tasks in this state; may be repeated."
)
@limit_option
@json_option
def tasks(address: str | None, ended: str | None, states: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List the tasks, the running ones first.

    \b
    running     on a worker                infeasible  needs resources that no node has
    blocked     waits in get()             waiting     for its arguments
    assigned    next on a worker           finished    its value is still referred to
    queued      for a worker, or for CPUs  failed      its error is still referred to

    "pending" stands for all states before "running". "for" is how long a task has been running or blocked, or before that, how long ago it
    was submitted.

    With --session, list the attempts that ran in an ended session, in the order in which they began.
    """
    if ended:
        if states:
            raise click.UsageError("--state and --session exclude each other: of a session that has ended there are the tasks that ran")
        _show_ran("task", address, ended, limit, as_json)
        return
    wanted = tuple(dict.fromkeys(each for state in states for each in (PENDING_STATES if state == "pending" else (state,))))
    with connected(chosen_session(address)) as client:
        rows = client.query("tasks", limit + 1, wanted)
    shown = rows[:limit]
    if as_json:
        print_json(shown)
    elif not shown:
        echo("There are no such tasks." if wanted else "There are no tasks.")
    else:
        cells = [
            (
                brief(bytes.fromhex(row["task_id"])),
                row["name"],
                row["state"],
                _for(row["seconds"]),
                row["attempt"] + 1,
                row["pid"] or "-",
                amounts(row["demand"]),
            )
            for row in shown
        ]
        print_table(*_with_nodes(("task", "name", "state", ">for", ">attempt", ">pid", "demand"), cells, shown), flexible="name")
    _say_more(len(rows) > limit, limit)


def _with_memory(client: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add processes' memory in bytes; 0 on other nodes, which may be other machines."""
    here = {row["name"] for row in client.query("nodes") if row.get("here")} if any("node" in row for row in rows) else set()
    ours = [not row.get("node") or row["node"] in here for row in rows]
    return [{**row, "memory_bytes": resident_bytes(row["pid"]) if row["pid"] and own else 0} for row, own in zip(rows, ours, strict=True)]


def _with_nodes(
    headings: tuple[str, ...], cells: list[tuple[Any, ...]], rows: list[dict[str, Any]]
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    if not any("node" in row for row in rows):
        return headings, cells
    return ("node", *headings), [(row.get("node", ""), *each) for row, each in zip(rows, cells, strict=True)]


@click.command(short_help="List the nodes of a cluster, with their addresses and resources.")
@address_option
@click.option("--file", metavar="FILE", help="Ask the hosts of this file of `zfabric up`, by ssh.")
@json_option
def nodes(address: str | None, file: str | None, as_json: bool) -> None:
    """List the nodes of a cluster, the oldest first, with their addresses and resources.

    The pid is that of a node's supervisor, with which all its processes end. A cluster that was started without --head is one node.
    """
    if file is not None:
        if address:
            raise click.UsageError("--address and --file exclude each other")
        from zfabric.cli.remote import show_hosts  # Listings of a cluster here need no ssh.

        show_hosts(file, as_json)
        return
    with connected(chosen_session(address)) as client:
        rows = client.query("nodes")
    if as_json:
        print_json(rows)
        return
    cells = [
        (
            row.get("number") or "-",
            row["node"],
            row.get("name") or "-",
            "head" if row.get("head") else "",
            row.get("address") or "-",
            row.get("pid") or "-",
            node_amounts(row["resources"]),
            ", ".join(f"{name}={value}" for name, value in row.get("labels", {}).items()) or "-",
        )
        for row in rows
    ]
    print_table((">number", "node", "name", "", "address", ">pid", "resources", "labels"), cells)


@click.command(short_help="List values, with the processes that hold refs to them.")
@address_option
@session_option
@limit_option
@json_option
def objects(address: str | None, ended: str | None, limit: int, as_json: bool) -> None:
    """List the values that exist or will exist, with their places.

    "refs" counts the processes that hold refs to a value, "pins" the unfinished tasks and other values that need it, "in use" the
    processes that read it in shared memory.

    With --session, list the durable values of programs that were killed in an ended session.
    """
    if ended:
        _show_left(address, ended, limit, as_json)
        return
    with connected(chosen_session(address)) as client:
        rows = client.query("objects", limit + 1)
    shown = rows[:limit]
    if as_json:
        print_json(shown)
    elif not shown:
        echo("There are no objects.")
    else:
        cells = [
            (
                brief(bytes.fromhex(row["object_id"])),
                row["made_by"],
                row["state"],
                row["where"] if row["where"] != "nowhere" else "-",
                size(row["size"]) if row["state"] != "pending" else "-",
                row["holders"],
                row["pins"],
                row["in_use_by"],
            )
            for row in shown
        ]
        headings = ("object", "made by", "state", "where", ">size", ">refs", ">pins", ">in use")
        print_table(*_with_nodes(headings, cells, shown), flexible="made by")
    _say_more(len(rows) > limit, limit)


def _show_left(address: str | None, ended: str, limit: int, as_json: bool) -> None:
    """Show values in an ended session's control store; others are lost."""
    with tables_of(address, ended) as tables:
        rows: list[dict[str, Any]] = [
            {"object_id": key.hex(), "size": len(value)} for key, value in islice(rows_of(tables, "object"), limit + 1)
        ]
    shown = rows[:limit]
    if as_json:
        print_json(shown)
    elif not shown:
        echo("No durable values are left there.")
    else:
        print_table(("object", ">size"), [(brief(bytes.fromhex(row["object_id"])), size(row["size"])) for row in shown])
    _say_more(len(rows) > limit, limit)


def _show_ran(kind: str, address: str | None, ended: str, limit: int, as_json: bool) -> None:
    """Show tasks or calls from an ended session's events, since rows in its tables end with their job."""
    with tables_of(address, ended) as tables:
        found = [event for event in trace_events(tables) if event["ph"] == "X" and event["cat"].split(",")[0] == kind]
    rows = [
        {
            f"{kind}_id": event["args"]["task_id"],
            "name": event["name"],
            "began": event["ts"] / 1e6,
            "seconds": event["dur"] / 1e6,
            "worker": event["tid"],
        }
        for event in sorted(found, key=lambda event: float(event["ts"]))
    ]
    shown = rows[:limit]
    if as_json:
        print_json(shown)
    elif not shown:
        echo(f"No {kind} ran there.")
    else:
        first = rows[0]["began"]
        cells = [
            (brief(bytes.fromhex(row[f"{kind}_id"])), row["name"], span(row["began"] - first), span(row["seconds"]), row["worker"])
            for row in shown
        ]
        print_table((kind, "name", ">began after", ">ran for", ">worker"), cells, flexible="name")
    _say_more(len(rows) > limit, limit)


def _say_more(more: bool, limit: int) -> None:
    if more:
        echo(f"only the first {limit:,} are shown; --limit shows more", err=True)


@click.command(short_help="List actors, with the number of their callers.")
@address_option
@session_option
@limit_option
@json_option
def actors(address: str | None, ended: str | None, limit: int, as_json: bool) -> None:
    """List the actors, with how many processes have handles and call them.

    \b
    creating    its __init__ has not ended        ending    it has no handles left; queued calls run
    alive       it runs calls                     dead      it has ended; `explain` shows why
    blocked     its call waits in get()

    If some actors have a namespace, it is shown. If some have checkpoints, "every" is the number of calls between two, "since" the number
    of calls after the last one, and "lost" the number of unlogged calls that restarts have lost.

    With --session, list the calls that ran in an ended session, in the order in which they began.
    """
    if ended:
        _show_ran("call", address, ended, limit, as_json)
        return
    with connected(chosen_session(address)) as client:
        rows = _with_memory(client, client.query("actors", limit + 1))
    shown = rows[:limit]
    if as_json:
        print_json(shown)
    elif not shown:
        echo("There are no actors.")
    else:
        saved = any(row["checkpoint_every"] is not None for row in shown)
        spaces = any(row["namespace"] for row in shown)
        cells = [
            (
                brief(bytes.fromhex(row["actor_id"])),
                row["class"],
                row["name"] or "-",
                *((row["namespace"] or "-",) if spaces else ()),
                row["state"],
                row["pid"] or "-",
                row["restarts"],
                len(row["handles"]),
                len(row["callers"]),
                *(("-" if row[name] is None else row[name] for name in _CHECKPOINTS.values()) if saved else ()),
                size(row["memory_bytes"]) if row["memory_bytes"] else "-",
            )
            for row in shown
        ]
        where, more = ("namespace",) if spaces else (), _CHECKPOINTS if saved else ()
        headings = ("actor", "class", "name", *where, "state", ">pid", ">restarts", ">handles", ">callers", *more, ">memory")
        print_table(*_with_nodes(headings, cells, shown), flexible="class")
    _say_more(len(rows) > limit, limit)


@click.command(short_help="List worker processes, with what they run.")
@address_option
@json_option
def workers(address: str | None, as_json: bool) -> None:
    """List the worker processes, with what they run and for how long.

    The process of an actor is named after it: its class, its name, the calls that it runs, and how many wait there.
    """
    with connected(chosen_session(address)) as client:
        rows = [{**row, "memory_bytes": row.pop("memory")} for row in map(dict, client.query("workers", True))]
        running = activities(client, rows)
    for row in rows:
        activity = running.get((row.get("node", ""), row["pid"]))
        row["runs"] = [] if activity is None else [{"name": name, "id": each.hex(), "seconds": took} for name, each, took in activity.runs]
        row["calls_waiting"] = None if activity is None else activity.waiting
    if as_json:
        print_json(rows)
        return
    cells = [
        (
            row["pid"] or "-",
            row["state"],
            span(row["seconds"]),
            _runs(row, running),
            row["queued"],
            row["depth"],
            size(row["memory_bytes"]),
            amounts(row["demand"]) + (f" (GPU {', '.join(map(str, row['gpus']))})" if row["gpus"] else "") + _lent(row["lent"]),
        )
        for row in rows
    ]
    if cells:
        print_table(*_with_nodes((">pid", "state", ">for", "task", ">queued", ">below", ">memory", "holds"), cells, rows), flexible="task")
    else:
        echo("There are no workers.")


def _runs(row: dict[str, Any], running: dict[tuple[str, int], Activity]) -> str:
    if not row["actor"] or row["task"]:
        return row["task"] or "-"
    activity = running.get((row.get("node", ""), row["pid"]))
    return f"{row['actor']}: {activity}" if activity is not None else str(row["actor"])


@click.command(short_help="Explain the state of a task, object, actor or worker.")
@click.argument("subject", metavar="ID")
@address_option
@json_option
def explain(subject: str, address: str | None, as_json: bool) -> None:
    """Explain the state of the task, object, actor or worker ID: what it waits for, where it runs, how earlier attempts ended.

    ID is an id as in tables (1-3fa2-57), or in hex or its first digits, or an actor's name, or the pid of a worker.
    """
    with connected(chosen_session(address)) as client:
        found, (state, reason, facts) = _explained(client, subject)
    identifier = bytes.fromhex(found["id"])
    if as_json:
        print_json({"id": identifier.hex(), "kind": found["kind"], "state": state, "reason": reason, "facts": dict(facts)})
        return
    named = str(int(found["id"], 16)) if found["kind"] == "job" else readable(found["id"])
    echo(f"{found['kind']} {named} ({shown(found['name'])}): {state}\n{reason}")
    if facts:
        echo()
        width = max(len(name) for name, _ in facts)
        indent = "\n" + " " * (width + 4)
        for name, value in facts:
            echo(f"  {name + ':':<{width + 1}} {value.replace(chr(10), indent)}")


def _explained(client: DriverClient, subject: str) -> tuple[dict[str, str], tuple[str, str, tuple[tuple[str, str], ...]]]:
    """What ``subject`` names, and (state, reason, facts), with an ended task's remains."""
    try:
        found = find_one(client, subject)
    except UnknownSubject:
        if job := next((job for job in client.query("status")["jobs"] if subject and job["submission_id"] == subject), None):
            facts = {"script": job["script"], "command": job["command"], "pid": str(job["pid"]), "namespace": job["namespace"]}
            reason = f"its program runs, for {span(job['seconds'])} so far; `zfabric job` shows, follows or stops it"
            told = tuple((name, text) for name, text in facts.items() if text)
            return {"id": job["job"], "kind": "job", "name": job["script"]}, ("running", reason, told)
        left = forgotten(client, subject) if is_text(subject) else None
        if left is None:
            raise
        task, ran = left
        reason = "has ended, and the cluster has forgotten it: nobody has a ref to its value, or it was a call"
        return {"id": task.hex(), "kind": ran.kind, "name": ran.name}, (ran.mark or "finished", reason, _history(client, task))
    identifier = bytes.fromhex(found["id"])
    answer = client.query("explain", identifier)
    if answer is None:
        raise UnknownSubject(subject)
    state, reason, facts = answer
    if where := client.breakpoint_of(identifier[:TASK_BYTES], dict(facts).get("pid", "")):
        reason += f"; {where}"
    more = _history(client, identifier[:TASK_BYTES]) if state in ENDED_STATES and found["kind"] != "actor" else ()
    if found["kind"] == "actor":
        more = tuple(activity_of_actor(client, identifier).items())
    return found, (state, reason, (*facts, *more))


def _history(client: DriverClient, task: bytes) -> tuple[tuple[str, str], ...]:
    return tuple(history_of(client, task).items())


def find_one(client: DriverClient, subject: str, kinds: tuple[str, ...] = ()) -> dict[str, str]:
    """The one thing that ``subject`` names: "id" (hex), "kind", "name"; preferably of ``kinds``, then an actor of that name.

    Raises ClickException if there is none, UsageError if there are several.
    """
    found: list[dict[str, str]] = [dict(row) for row in client.query("find", subject)] if is_text(subject) else []
    for preferred in (
        [row for row in found if row["kind"] in kinds],
        [row for row in found if row.get("called") == subject],
    ):
        found = preferred or found
    if len(found) > 1:
        lines = "\n".join(f"  {readable(row['id'])}   {row['kind']} {shown(row['name'])}" for row in found)
        raise click.UsageError(f"{subject!r} can mean {'at least ' if len(found) >= 20 else ''}{len(found)} things:\n{lines}")
    if not found:
        raise UnknownSubject(subject)
    return found[0]


class UnknownSubject(click.ClickException):
    """The user has named something unknown."""

    def __init__(self, subject: str) -> None:
        super().__init__(_why_unknown(subject))


def _why_unknown(subject: str) -> str:
    why = "it has ended and was forgotten, or never was"
    if re.fullmatch(r"\d+-[0-9a-f]+-\d+(-c\d+)?", subject):
        why += (
            ", or it is a call of an actor without an outcome yet: of those only the caller knows (zf.explain(ref), zf.cancel(ref) there)"
        )
    hint = "`zfabric tasks`, `objects`, `actors` and `workers` list what there is"
    return f"nothing is known of {subject!r}: {why}; {hint}"


def _lent(lent: dict[str, float]) -> str:
    return f" ({amounts(lent)} lent)" if lent else ""


def _for(seconds: float | None) -> str:
    return "-" if seconds is None else span(seconds)


def readable(identifier: str) -> str:
    """The short form of an id in hex."""
    return brief(bytes.fromhex(identifier))
