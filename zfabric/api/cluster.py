"""Questions about the cluster: why something is as it is, what there is, and what ran when."""

from __future__ import annotations

import os
from collections.abc import Mapping
from string import hexdigits
from typing import Any

from zfabric.api.actor import ActorHandle
from zfabric.api.errors import a
from zfabric.api.lifecycle import connected
from zfabric.api.refs import ObjectRef, owner_of
from zfabric.protocol.ids import FIRST_INDEX, OBJECT_BYTES, TASK_BYTES, object_id, short
from zfabric.protocol.names import check_length, is_text, matcher
from zfabric.runtime.interface import ClientInterface


class Explanation:
    """Why a task or value is as it is: ``state`` in one word, ``reason`` in a sentence, ``facts`` by name; reads well printed."""

    def __init__(self, subject: str, state: str, reason: str, facts: Mapping[str, str]) -> None:
        self.subject = subject
        self.state = state
        self.reason = reason
        self.facts = dict(facts)

    def __str__(self) -> str:
        width = max(map(len, self.facts), default=0)
        lines = [f"{self.subject}: {self.state}", f"  {self.reason}"]
        return "\n".join([*lines, *(f"  {name + ':':<{width + 1}} {value}" for name, value in self.facts.items())])

    def __repr__(self) -> str:
        return f"Explanation({self.subject!r}, {self.state!r}, {self.reason!r}, {self.facts!r})"


def explain(ref: ObjectRef | ActorHandle | str | bytes) -> Explanation:
    """Why the task or call of ``ref`` is as it is: what it waits for, where it runs. Likewise of an actor, by its handle.

    Ids, as the command line shows them, and names of actors will do as well.

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
    name = short(subject) or str(ref)
    called = client.explain_call(subject)
    if called is not None:
        return _of_call(client, name, subject, *called)
    answer = client.query("explain", subject)
    if answer is None:
        return Explanation(name, "unknown", "nothing is known of it: it ended and was forgotten, or never was", {})
    state, reason, facts = answer
    return Explanation(name, state, _with_breakpoint(client, subject, reason, dict(facts)), dict(facts))


def _with_breakpoint(client: ClientInterface, subject: bytes, reason: str, facts: dict[str, str]) -> str:
    """What is said of a task, a call or an actor, and, if it stands at a breakpoint, where."""
    where = client.breakpoint_of(subject[:TASK_BYTES], facts.get("pid", ""))
    return f"{reason}; {where}" if where else reason


def _of_call(client: ClientInterface, name: str, subject: bytes, state: str, actor_id: bytes, reason: str) -> Explanation:
    """Where a call stands, and what keeps its actor."""
    actor = client.query("explain", actor_id)
    if actor is None:
        return Explanation(name, state, reason, {"actor": short(actor_id)})
    actor_state, why, facts = actor
    reason = _with_breakpoint(client, subject, reason, dict(facts))
    return Explanation(name, state, reason, {**dict(facts), f"the actor is {actor_state}": why})


def _identified(client: ClientInterface, text: str) -> bytes:
    """The id that a person means: in hex, as the command line shows it, or an actor's name. Empty if nothing is known by it."""
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
    # A call may be known to its caller alone, and its result with it.
    task, _, index = text.strip().lower().rpartition("-c")
    calls = client.pending_calls(matcher(task) or matches)
    if len(calls) != 1:
        return b""
    of_value = task and index.isdecimal() and int(index) < FIRST_INDEX["p"] - FIRST_INDEX["c"]
    return object_id(calls[0], FIRST_INDEX["c"] + int(index)) if of_value else calls[0]


def nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster, a dict each with Ray's keys: NodeID, Alive, NodeManagerHostname, Resources, Labels.

    >>> import zfabric as zf
    >>> [node["Alive"] for node in zf.nodes()]
    [True]
    """
    found = []
    for row in connected().query("nodes"):
        row = dict(row)
        alive, host = bool(row.pop("alive", True)), str(row.pop("host", "") or os.uname().nodename)  # So far, all is on this machine.
        found.append(
            {
                "NodeID": str(row.pop("node")),
                "Alive": alive,
                "alive": alive,
                "NodeManagerAddress": str(row.pop("address", "") or node_ip_address()),
                "NodeManagerHostname": host,
                "NodeName": host,
                "Resources": dict(row.pop("resources", {})),
                "Labels": dict(row.pop("labels", {})),
                **row,
            }
        )
    return found


def node_ip_address() -> str:
    """Where programs on the nodes of this cluster reach a socket of this process: on one machine, the loopback address.

    >>> import zfabric as zf
    >>> zf.util.get_node_ip_address()
    '127.0.0.1'
    """
    return "127.0.0.1"


def named_actors(all_namespaces: bool = False) -> list[Any]:
    """The names of living actors: those in this process's namespace, or all, as dicts with "name" and "namespace".

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
    """What the living nodes have, by resource.

    >>> import zfabric as zf
    >>> zf.cluster_resources()["CPU"] >= 1
    True
    """
    return {name: float(amount) for name, amount in dict(connected().query("cluster_resources")).items()}


def available_resources() -> dict[str, float]:
    """What of ``cluster_resources()`` is free now; what is used up is left out.

    >>> import zfabric as zf
    >>> zf.available_resources()["CPU"] <= zf.cluster_resources()["CPU"]
    True
    """
    return {name: float(amount) for name, amount in dict(connected().query("available_resources")).items() if amount > 0}


def timeline(filename: str | None = None) -> list[dict[str, Any]] | None:
    """What ran when and where, as a Chrome trace (for Perfetto or chrome://tracing): returned, or written to ``filename``.

    Bars are tasks and calls of actors; arrows lead from one to another: of the category "control" from what submitted it, "data" from what
    made an argument of it, "state" from the actor's call before it. An argument that nobody needs any more has none. Times are
    microseconds of the machine's monotonic clock.

    >>> import zfabric as zf
    >>> isinstance(zf.timeline(), list)
    True
    """
    if filename is not None and not isinstance(filename, (str, os.PathLike)):
        raise TypeError(f"timeline() takes the path of the file to write, not {a(filename)}")
    from zfabric.runtime.timeline import trace_events, write_trace

    events = trace_events(connected())
    if filename is None:
        return sorted(events, key=lambda event: float(event["ts"]))
    with open(filename, "w", encoding="utf-8") as file:
        write_trace(events, file)
    return None
