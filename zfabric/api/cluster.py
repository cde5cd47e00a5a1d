"""Queries about the cluster: the state of a task, nodes, resources, names and the timeline."""

from __future__ import annotations

import json
import os
from string import hexdigits
from typing import Any

from zfabric.api.actor import ActorHandle
from zfabric.api.errors import a
from zfabric.api.explanations import Explanation, explained
from zfabric.api.lifecycle import connected
from zfabric.api.refs import ObjectRef, owner_of
from zfabric.protocol.ids import FIRST_INDEX, OBJECT_BYTES, TASK_BYTES, object_id
from zfabric.protocol.names import check_length, is_text, matcher
from zfabric.protocol.options import NODE_ID, accepts
from zfabric.runtime import interface
from zfabric.runtime.interface import ClientInterface

LOOPBACK = "127.0.0.1"


def explain(ref: ObjectRef | ActorHandle | str | bytes) -> Explanation:
    """Explain the state of a task, call, value or actor: what it waits for and where it runs.

    ``ref`` is a ref, a handle, an id as bytes or as the command line shows it, or an actor's name. Raises TypeError for anything else.

    >>> import zfabric as zf
    >>> print(zf.explain(zf.put(1)).state)
    ready
    """
    if isinstance(ref, (str, bytes)):
        check_length("explain(): an id or a name", ref)
    if isinstance(ref, ObjectRef):
        client, subject = owner_of(ref), ref.binary()
    elif isinstance(ref, ActorHandle):
        client, subject = ref._connect(), ref._actor_id
    elif isinstance(ref, bytes):
        client, subject = connected(), ref
    elif isinstance(ref, str):
        client = connected()
        subject = _identified(client, ref)
    else:
        raise TypeError(f"explain() takes a ref or an id, not {a(ref)}")
    return explained(client, subject, str(ref))


def _identified(client: ClientInterface, text: str) -> bytes:
    """Resolve an id in hex or the command line's form, or an actor's name; empty if none matches."""
    found: Any = client.query("find", text) if is_text(text) else ()
    if len(found) > 1:
        raise ValueError(f"{text!r} can mean {len(found)} things; give more of the id, such as {found[0]['id']!r}")
    if found:
        return bytes.fromhex(found[0]["id"])
    matches = matcher(text)
    if matches is None:
        raise ValueError(f"explain() takes a ref, a handle, an actor's name or an id as `zfabric tasks` shows it, not {text!r}")
    if len(text) in (2 * TASK_BYTES, 2 * OBJECT_BYTES) and not text.strip(hexdigits):
        return bytes.fromhex(text)
    # Only the caller of a call, not the daemon, may know the call and its result.
    task, _, index = text.strip().lower().rpartition("-c")
    calls = client.pending_calls(matcher(task) or matches)
    if len(calls) != 1:
        return b""
    of_value = task and index.isdecimal() and int(index) < FIRST_INDEX["p"] - FIRST_INDEX["c"]
    return object_id(calls[0], FIRST_INDEX["c"] + int(index)) if of_value else calls[0]


def demand_of(parts: list[dict[str, Any]], statuses: list[dict[str, Any]], labels: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Combine what each home waits for, as a program reads it that adds nodes.

    ``parts`` answer the query "demand", ``statuses`` "statuses"; ``labels`` are of nodes, by id. A row of "demand" has "resources",
    "labels", "ready" (tasks that lack nothing but resources), "oldest_seconds" since the submission of the oldest, "mean_seconds" (None
    if none has ended) and "placeable": "yes" if a node has room, "busy" if one has as much, else "never". "pending_groups" have the
    bundles that are not reserved.

    >>> row = {"resources": {"CPU": 2.0}, "labels": {}, "ready": 3, "oldest_seconds": 1.5, "mean_seconds": None}
    >>> status = {"node": "01", "resources": {"CPU": 2.0}, "available": {"CPU": 1.0}}
    >>> demand_of([{"demand": [row], "pending_groups": []}], [status], {})["demand"][0]["placeable"]
    'busy'
    """
    shapes: dict[str, dict[str, Any]] = {}
    for row in [row for part in parts for row in part["demand"]]:
        known = shapes.setdefault(json.dumps((row["resources"], row["labels"]), sort_keys=True), row)
        if known is not row:
            known["ready"] += row["ready"]
            known["oldest_seconds"] = max(known["oldest_seconds"], row["oldest_seconds"])
            known["mean_seconds"] = row["mean_seconds"] if known["mean_seconds"] is None else known["mean_seconds"]
    for row in shapes.values():
        row["placeable"] = _placeable(row["resources"], row["labels"], statuses, labels)
    return {"demand": list(shapes.values()), "pending_groups": [group for part in parts for group in part["pending_groups"]]}


def _placeable(
    demand: dict[str, float],
    required: dict[str, dict[str, list[str]]],
    statuses: list[dict[str, Any]],
    labels: dict[str, dict[str, str]],
) -> str:
    """Whether a node has room for a task ("yes"), could run it if it were idle ("busy"), or none could ("never")."""
    terms = [("hard", label, operator, tuple(values)) for label, each in required.items() for operator, values in each.items()]
    able = [each for each in statuses if accepts({**labels.get(each["node"], {}), NODE_ID: each["node"]}, terms)]
    if any(all(each["available"].get(name, 0.0) >= amount for name, amount in demand.items()) for each in able):
        return "yes"
    return "busy" if any(all(each["resources"].get(name, 0.0) >= amount for name, amount in demand.items()) for each in able) else "never"


def cancel_by_id(client: ClientInterface, task_id: bytes, force: bool = False, recursive: bool = True) -> dict[str, str] | None:
    """Cancel a task of any program and node, as ``zf.cancel`` does; for tools, which have no ref.

    Return "name", "state" (until now) and "goes_on", why the task is not stopped (empty if it is); None for an unknown task. Raises
    ValueError for what is no task's id.
    """
    return _acted(client.query("cancel", task_id, force, recursive))


def kill_by_id(client: ClientInterface, actor_id: bytes, no_restart: bool = True) -> dict[str, str] | None:
    """End an actor of any program and node, as ``zf.kill`` does; for tools, which have no handle.

    Return "class", "name" and "state" (until now; "dead" if it had ended); None for an unknown actor. Raises ValueError for what is no
    actor's id.
    """
    return _acted(client.query("kill", actor_id, no_restart))


def _acted(answer: Any) -> dict[str, str] | None:
    return None if answer is None else dict(answer)


def nodes() -> list[dict[str, Any]]:
    """Return a dict for each living node, the oldest first, with Ray's keys: NodeID, Alive, NodeManagerAddress, NodeManagerPort, NodeName,
    Resources, Labels.

    >>> import zfabric as zf
    >>> [node["Alive"] for node in zf.nodes()]
    [True]
    """
    found = []
    for row in connected().query("nodes"):
        row = dict(row)
        alive, name = bool(row.pop("alive", True)), str(row.pop("name", "") or os.uname().nodename)
        host, port = _host_and_port(row)
        row.pop("address", None)
        found.append(
            {
                "NodeID": str(row.pop("node")),
                "Alive": alive,
                "alive": alive,
                "NodeManagerAddress": host,
                "NodeManagerPort": port,
                "NodeManagerHostname": name,
                "NodeName": name,
                "Resources": dict(row.pop("resources", {})),
                "Labels": dict(row.pop("labels", {})),
                **row,
            }
        )
    return found


def node_ip_address() -> str:
    """Return the address at which other nodes reach this one: the loopback address on one machine.

    >>> import zfabric as zf
    >>> zf.util.get_node_ip_address()
    '127.0.0.1'
    """
    client = interface.current()
    if client is None:
        return LOOPBACK
    own = client.node.hex()
    return next((_host_and_port(row)[0] for row in map(dict, client.query("nodes")) if row["node"] == own), LOOPBACK)


def _host_and_port(row: dict[str, Any]) -> tuple[str, int]:
    """Where other nodes reach a node; a cluster of one has no port."""
    host, _, port = str(row.get("address", "")).removeprefix("tcp://").rpartition(":")
    return host.strip("[]") or LOOPBACK, int(port or 0)


def session_directory() -> str:
    """Return the directory of this process's session; empty without one."""
    client: Any = interface.current()
    return str(getattr(getattr(getattr(client, "connection", None), "session", None), "directory", ""))


def named_actors(all_namespaces: bool = False) -> list[Any]:
    """Return the names of living actors in this namespace; with ``all_namespaces``, dicts with "name" and "namespace".

    >>> import zfabric as zf
    >>> @zf.remote
    ... class Listed:
    ...     pass
    >>> listed = Listed.options(name="for the list").remote()
    >>> "for the list" in zf.util.list_named_actors()
    True
    """
    client = connected()
    found = client.query("named actors")
    if all_namespaces:
        return [{"name": name, "namespace": namespace} for namespace, name in found]
    return [name for namespace, name in found if namespace == client.namespace]


def cluster_resources() -> dict[str, float]:
    """Return the total resources of the living nodes, by name.

    >>> import zfabric as zf
    >>> zf.cluster_resources()["CPU"] >= 1
    True
    """
    return {name: float(amount) for name, amount in dict(connected().query("cluster_resources")).items()}


def available_resources() -> dict[str, float]:
    """Return the free part of ``cluster_resources()``. A resource with nothing free is omitted.

    >>> import zfabric as zf
    >>> zf.available_resources()["CPU"] <= zf.cluster_resources()["CPU"]
    True
    """
    return {name: float(amount) for name, amount in dict(connected().query("available_resources")).items() if amount > 0}


def timeline(filename: str | None = None) -> list[dict[str, Any]] | None:
    """Return a Chrome trace of what ran (for Perfetto or chrome://tracing), or write it to ``filename``.

    Tasks and calls are bars. Arrows lead from the submitter ("control"), from the task that made an argument, unless released ("data"), and
    from the actor's previous call ("state"). Times are microseconds of the monotonic clock. Raises OSError if the file cannot be written.

    >>> import zfabric as zf
    >>> isinstance(zf.timeline(), list)
    True
    """
    if filename is not None and not isinstance(filename, (str, os.PathLike)):
        raise TypeError(f"timeline() takes the path of the file to write, not {a(filename)}")
    from zfabric.runtime.timeline import members, trace_events, write_trace  # Only needed here.

    client = connected()
    events = trace_events(client, members(client))
    if filename is None:
        return sorted(events, key=lambda event: float(event["ts"]))
    with open(filename, "w", encoding="utf-8") as file:
        write_trace(events, file)
    return None
