"""Calls of actors on other nodes: the caller's node and the actor's node relay them, and their outcomes.

To its callers, the local scheduler of their node stands for the actor: it receives their ``Call``. To the actor, the local scheduler of the
actor's node stands for the callers. ``FindActors``, ``ActorLocations``, ``KillActor`` and ``CallerGone`` pass between nodes, too: the actor
is then "in" the node to which calls are to be sent.

An actor may live on another node than its home: it is made there by a delegated task (``Delegate``, ``Ended``). The home ends it with
``RetireActor`` or, at once, with ``StopDelegated``; ``ActorExiting`` and ``LifeEnded`` are what the home receives. The home has its log,
too: ``RelayedBlock``, ``RelayedCheckpoint`` and ``LogRecorded`` add to it, ``ReadLog`` and ``LogPage`` read it. ``CallCounts`` and
``ReplayProgress`` are passed on to it. Each node receives the latter with its processes for which the actor retains outcomes, too.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Row, Rows


class RelayedCalls(NamedTuple):
    """local scheduler -> local scheduler of the actor's node -> actor. Calls of one process of another node, in order.

    The first fields are those of ``Call``. ``caller`` is the process; on the way to the actor, the id of its node follows
    (``protocol.ids.remote_caller``). ``homes`` are as in ``Delegate``. Calls for a life that has ended are not run, as with ``Call``.
    """

    actor_id: bytes
    attempt: int
    rows: Rows
    caller: bytes
    homes: Rows


class RelayedReceipt(NamedTuple):
    """local scheduler -> local scheduler of the actor's node -> actor. ``OutcomesReceived`` of a process of another node."""

    actor_id: bytes
    call_ids: Ids
    others: bool
    caller: bytes


class StopRelayed(NamedTuple):
    """client -> local scheduler -> local scheduler of the actor's node. ``StopCall`` for a call of an actor on another node."""

    actor_id: bytes
    call_id: bytes
    reason: str


class LifeEnded(NamedTuple):
    """local scheduler of the node where an actor lived -> home of the actor. Its process is dead: the home decides whether it lives again.

    ``executing`` is the call that was running, empty if none or not known, and the actor's id as in ``ActorLocations``. ``facts`` are pid,
    signal, exit code and peak memory of the process. ``ending`` says why it is not to be made again, if that is so. ``calls`` is how many
    calls had ended of an actor with checkpoints but no log, -1 if that is not known. If this is lost with a daemon, the actor is not in the
    next ``RunningDelegated``.
    """

    actor_id: bytes
    attempt: int
    executing: bytes
    cause: str
    stderr: str
    facts: Row
    ending: str
    calls: int = -1


class RelayedBlock(NamedTuple):
    """node where an actor lives -> home of the actor. ``LogAppended`` of the actor's process; ``homes`` are as in ``Delegate``.

    ``LogRecorded`` is the answer, once it is committed. The sender pins what it names until then, and repeats it to a restarted home. From
    any node and for any life but the present one it is refused, and that life is ended (``StopDelegated``).
    """

    actor_id: bytes
    attempt: int
    number: int
    last: int
    rows: bytes
    made: Ids
    refs: Ids
    homes: Rows


class RelayedCheckpoint(NamedTuple):
    """node where an actor lives -> home of the actor. ``Checkpoint`` of the actor's process, as ``RelayedBlock``."""

    actor_id: bytes
    attempt: int
    number: int
    last: int
    part: int
    parts: int
    data: bytes
    refs: Ids
    homes: Rows


class LogRecorded(NamedTuple):
    """home of an actor -> node where it lives. Messages about the log of this life are committed up to this number, as ``LogCommitted``."""

    actor_id: bytes
    attempt: int
    upto: int


class ReadLog(NamedTuple):
    """node where an actor is being made -> home of the actor. Requests rows of ``table`` ("log" or "checkpoint") after the key ``after``.

    ``LogPage`` is the answer, but for a life that is not the present one.
    """

    actor_id: bytes
    attempt: int
    table: str
    after: bytes


class LogPage(NamedTuple):
    """home of an actor -> node where it is being made. Rows ``(key, value)`` of its log; ``more`` says whether others follow.

    ``refs`` are what the rows name, with ``homes`` as in ``Delegate``: the home retains it as long as it has the rows.
    """

    actor_id: bytes
    attempt: int
    table: str
    after: bytes
    rows: Rows
    more: bool
    refs: Ids
    homes: Rows


class RepeatCalls(NamedTuple):
    """local scheduler -> client. Calls of this actor on another node that have no outcome may be lost, since a daemon was restarted.

    The client sends them again, in order. The actor does not run those again that it has. ``CallsRepeated`` follows them.
    """

    actor_id: bytes


class CallsRepeated(NamedTuple):
    """client -> local scheduler. Behind what the client repeats after ``RepeatCalls``, or after a location of an actor on another node.

    Until then the scheduler acknowledges no outcomes to the actor's node: the actor has each repeated call, or its outcome.
    """

    actor_id: bytes


class RequestReceipt(NamedTuple):
    """local scheduler -> client. Answer with ``Receipt``: so the client has received all outcomes of calls that were sent before.

    It is sent a while after outcomes of calls of an actor on another node, which the actor retains until then. Either message is lost
    with the daemon: then the actor's node repeats the outcomes, and the next daemon requests another receipt.
    """

    token: int


class Receipt(NamedTuple):
    """client -> local scheduler. The client has received this ``RequestReceipt``, and all that was sent before it."""

    token: int


class ClaimName(NamedTuple):
    """home of an actor -> head. The actor claims a name. ``NameClaimed`` is the answer."""

    actor_id: bytes
    namespace: str
    name: str


class NameClaimed(NamedTuple):
    """head -> home of an actor. ``holder`` is the actor that has the name which this one has claimed."""

    actor_id: bytes
    holder: bytes


class FreeName(NamedTuple):
    """home of an actor -> head. The actor does not need its name any more."""

    actor_id: bytes
    namespace: str
    name: str


class CallsEnded(NamedTuple):
    """local scheduler -> local scheduler of the caller's node. Outcomes of relayed calls of one process: rows as in ``CallOutcomes``.

    Of a large value only the size is there, as in ``Ended``, with which these messages share their numbers and ``EndsReceived``.
    """

    number: int
    rows: Rows
    homes: Rows
