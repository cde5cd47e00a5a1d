"""Calls of actors on other nodes: the caller's node and the actor's node relay them, and their outcomes back.

To its callers, the local scheduler of their node stands for the actor. To the actor, that of its node stands for the callers.
``FindActors``, ``ActorLocations``, ``KillActor`` and ``CallerGone`` pass between nodes, too; there, an actor's location is the node to
which calls are to be sent.

A delegated task may make an actor on another node than its home (``Delegate``, ``Ended``). The home ends it with ``StopDelegated``.
``ActorExiting`` and ``LifeEnded`` notify the home of its end. Its log is at its home: ``RelayedBlock``,
``RelayedCheckpoint`` and ``LogRecorded`` add to it, ``ReadLog`` and ``LogPage`` read it. The home receives ``CallCounts`` and
``ReplayProgress``; each other node receives ``ReplayProgress`` with its own processes as ``callers``.
"""

from typing import Annotated, NamedTuple, TypeAlias

from zfabric.protocol.access import from_nodes, from_processes
from zfabric.protocol.checks import BYTES, CALLER_BYTES, INT, SIZE_MAX, TASK, layout, one_of, optional, row
from zfabric.protocol.ids import ATTEMPT_MAX, LOCAL_SCHEDULER
from zfabric.protocol.messages.actors import check_part
from zfabric.protocol.messages.delegation import check_values
from zfabric.protocol.messages.rows import (
    Attempt,
    Caller,
    CallRows,
    Count,
    Homes,
    LogNumber,
    ObjectIds,
    OutcomeRows,
    Row,
    Rows,
    StopReason,
    TaskId,
    TaskIds,
)
from zfabric.protocol.messages.tasks import OK
from zfabric.protocol.row_checks import is_lone_outcome, is_plain_call


@from_nodes(LOCAL_SCHEDULER)
class RelayedCalls(NamedTuple):
    """local scheduler -> local scheduler of the actor's node -> actor. Calls of one process of another node, in order.

    The first fields are those of ``Call``. ``caller`` is the process; on the way to the actor, the id of its node follows
    (``protocol.ids.remote_caller``).
    """

    actor_id: TaskId
    attempt: Attempt
    rows: CallRows
    caller: Caller
    homes: Homes

    @staticmethod
    def is_plain(fields: Row) -> bool:
        """Whether this is one call that needs no other check."""
        _, attempt, _, caller, homes = fields
        return homes == () and len(caller) in CALLER_BYTES and 0 <= attempt <= ATTEMPT_MAX and is_plain_call(fields)


@from_nodes(LOCAL_SCHEDULER)
class RelayedReceipt(NamedTuple):
    """local scheduler -> local scheduler of the actor's node -> actor. ``OutcomesReceived`` of a process of another node."""

    actor_id: TaskId
    call_ids: TaskIds
    others: bool
    caller: Caller


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class StopRelayed(NamedTuple):
    """client -> local scheduler -> local scheduler of the actor's node. ``StopCall`` for a call of an actor on another node."""

    actor_id: TaskId
    call_id: TaskId
    reason: StopReason


@from_nodes(LOCAL_SCHEDULER)
class LifeEnded(NamedTuple):
    """node where an actor lived -> home of the actor. Its process is dead: the home decides whether it lives again.

    ``executing`` is as in ``ActorLocations``. ``facts`` are pid, signal, exit code and peak memory. ``ending`` is the reason not to make
    the actor again, or empty. ``calls`` is as in ``CallCounts``, -1 if unknown. If this is lost, the actor is missing in the next
    ``Holdings``.
    """

    actor_id: TaskId
    attempt: Attempt
    executing: Annotated[bytes, optional(TASK)]
    cause: str
    stderr: str
    facts: Annotated[Row, row(INT, INT, INT, INT)]
    ending: str
    calls: int = -1


@from_nodes(LOCAL_SCHEDULER)
class RelayedBlock(NamedTuple):
    """node where an actor lives -> home of the actor. ``LogAppended`` of the actor's process.

    ``LogRecorded`` answers after the commit. Until then the sender pins the objects named, and repeats the message to a restarted home. The
    home refuses a block of any node or life but the present ones, and ends that life (``StopDelegated``).
    """

    actor_id: TaskId
    attempt: LogNumber
    number: LogNumber
    last: LogNumber
    rows: bytes
    made: ObjectIds
    refs: ObjectIds
    homes: Homes


@from_nodes(LOCAL_SCHEDULER)
class RelayedCheckpoint(NamedTuple):
    """node where an actor lives -> home of the actor. ``Checkpoint`` of the actor's process, as ``RelayedBlock``."""

    actor_id: TaskId
    attempt: LogNumber
    number: LogNumber
    last: LogNumber
    part: int
    parts: int
    data: bytes
    refs: ObjectIds
    homes: Homes

    def check(self) -> None:
        """Check that the part is one of the parts."""
        check_part(self.part, self.parts)


@from_nodes(LOCAL_SCHEDULER)
class LogRecorded(NamedTuple):
    """home of an actor -> node where it lives. As ``LogCommitted``: messages about the log of this life are committed up to ``upto``."""

    actor_id: TaskId
    attempt: Attempt
    upto: Count


LOG_TABLES = ("log", "checkpoint")
"""Where the home of an actor has its log (``machines/common/tables.py``)."""
LogTable: TypeAlias = Annotated[str, one_of(LOG_TABLES)]


@from_nodes(LOCAL_SCHEDULER)
class ReadLog(NamedTuple):
    """node where an actor is being made -> home of the actor. Request rows of ``table`` after the key ``after``.

    ``LogPage`` answers, unless this life is no longer the present one.
    """

    actor_id: TaskId
    attempt: Attempt
    table: LogTable
    after: bytes


@from_nodes(LOCAL_SCHEDULER)
class LogPage(NamedTuple):
    """home of an actor -> node where it is being made. Rows ``(key, value)`` of its log; ``more``: others follow.

    ``refs`` are the objects that the rows name: the home retains them as long as the rows.
    """

    actor_id: TaskId
    attempt: Attempt
    table: LogTable
    after: bytes
    rows: Annotated[Rows, layout(BYTES, BYTES)]
    more: bool
    refs: ObjectIds
    homes: Homes


class RepeatCalls(NamedTuple):
    """local scheduler -> client. A daemon was restarted: repeat your calls of this actor on another node that have no outcome.

    Later calls wait. The client sends ``CallsRepeated`` and then all these calls, in order, and ``StopRelayed``; the actor ignores calls
    that it has.
    """

    actor_id: bytes


@from_processes(LOCAL_SCHEDULER)
class CallsRepeated(NamedTuple):
    """client -> local scheduler. The answer to ``RepeatCalls``: all calls of an actor without an outcome follow. Earlier ones are void.

    The actor has each repeated call, or its outcome. The client sends ``Receipt`` for outcomes behind the calls.
    """

    actor_id: bytes


class RequestReceipt(NamedTuple):
    """local scheduler -> client. Answer with ``Receipt``: all outcomes sent before have arrived.

    Sent a while after outcomes of calls of an actor on another node, which retains them until then, and repeats them to the next daemon.
    """

    token: int


@from_processes(LOCAL_SCHEDULER)
class Receipt(NamedTuple):
    """client -> local scheduler. The client has received this ``RequestReceipt`` and all messages before it."""

    token: int


def _check_outputs(rows: Rows) -> None:
    for _, _, status, outputs, _ in rows:
        check_values(status, outputs)


@from_nodes(LOCAL_SCHEDULER)
class CallsEnded(NamedTuple):
    """local scheduler -> local scheduler of the caller's node. Outcomes of relayed calls of one process.

    The rows are as in ``CallOutcomes``, large values as in ``Ended``. ``number``, retention and acknowledgement are shared with ``Ended``.
    """

    number: Count
    rows: Annotated[OutcomeRows, _check_outputs]
    homes: Homes

    @staticmethod
    def is_plain(fields: Row) -> bool:
        """Whether this is one call that ended with one small value, as of a program that waits for each call."""
        number, rows, homes = fields
        if homes != () or not 0 <= number <= SIZE_MAX or not is_lone_outcome(rows):
            return False
        return rows[0][2] == OK and tuple(map(type, rows[0][3])) == (bytes,)
