"""Calls of actors on other nodes: the caller's node and the actor's node relay them, and their outcomes.

To its callers, the local scheduler of their node stands for the actor: it receives their ``Call``. To the actor, the local scheduler of the
actor's node stands for the callers. ``FindActors``, ``ActorLocations``, ``KillActor`` and ``CallerGone`` pass between nodes, too. Between
nodes, the location of an actor is the node to which calls are to be sent.

An actor may live on another node than its home. A delegated task makes it there (``Delegate``, ``Ended``). The home ends it with
``RetireActor`` or, at once, with ``StopDelegated``. ``ActorExiting`` and ``LifeEnded`` notify the home that it ends. The log of the actor
is at its home: ``RelayedBlock``, ``RelayedCheckpoint`` and ``LogRecorded`` add to it, ``ReadLog`` and ``LogPage`` read it. The home
receives ``CallCounts`` and ``ReplayProgress``, too. Each other node receives ``ReplayProgress`` with its own processes among the callers
for which the actor retains outcomes.
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
    Text,
)
from zfabric.protocol.messages.tasks import OK
from zfabric.protocol.row_checks import is_lone_outcome, is_plain_call


@from_nodes(LOCAL_SCHEDULER)
class RelayedCalls(NamedTuple):
    """local scheduler -> local scheduler of the actor's node -> actor. Calls of one process of another node, in order.

    The first fields are those of ``Call``. ``caller`` is the process; on the way to the actor, the id of its node follows
    (``protocol.ids.remote_caller``). ``homes`` are as in ``Delegate``. Calls for a life that has ended are not run, as with ``Call``.
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
    """local scheduler of the node where an actor lived -> home of the actor. Its process is dead: the home decides whether it lives again.

    ``executing`` is as in ``ActorLocations``. ``facts`` are pid, signal, exit code and peak memory of the process. ``ending`` is empty, or
    says why the actor is not to be made again. ``calls`` is the number of calls that had ended of an actor with checkpoints but no log, -1
    if unknown. If this is lost with a daemon, the actor is missing in the next ``RunningDelegated``.
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
    """node where an actor lives -> home of the actor. ``LogAppended`` of the actor's process; ``homes`` are as in ``Delegate``.

    ``LogRecorded`` is the answer, once it is committed. Until then the sender pins the objects that it names, and repeats it to a restarted
    home. The home refuses a block of any node or life but the present ones, and ends that life (``StopDelegated``).
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
"""Where the home of an actor has its log (``machines/common/log_format.py``)."""
LogTable: TypeAlias = Annotated[str, one_of(LOG_TABLES)]


@from_nodes(LOCAL_SCHEDULER)
class ReadLog(NamedTuple):
    """node where an actor is being made -> home of the actor. Requests rows of ``table`` ("log" or "checkpoint") after the key ``after``.

    ``LogPage`` is the answer. If this life is no longer the present one, there is none.
    """

    actor_id: TaskId
    attempt: Attempt
    table: LogTable
    after: bytes


@from_nodes(LOCAL_SCHEDULER)
class LogPage(NamedTuple):
    """home of an actor -> node where it is being made. Rows ``(key, value)`` of its log; ``more`` says whether others follow.

    ``refs`` are the objects that the rows name: the home retains them as long as it has the rows. ``homes`` is as in ``Delegate``.
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

    They may be lost, so later ones must not be relayed. The client sends ``CallsRepeated``, and behind it all these calls in order. The
    actor ignores those that it has already. Requests to stop some of them (``StopRelayed``) are repeated, too.
    """

    actor_id: bytes


@from_processes(LOCAL_SCHEDULER)
class CallsRepeated(NamedTuple):
    """client -> local scheduler. All calls of an actor that have no outcome follow, after ``RepeatCalls``. What was sent before is void.

    The actor has either each repeated call or its outcome: the client sends a ``Receipt`` for an outcome behind the calls.
    """

    actor_id: bytes


class RequestReceipt(NamedTuple):
    """local scheduler -> client. Answer with ``Receipt``, which confirms that all outcomes sent before have arrived.

    It is sent a while after outcomes of calls of an actor on another node, which the actor retains until then. If either message is lost
    with the daemon, the actor's node repeats the outcomes, and the next daemon requests another receipt.
    """

    token: int


@from_processes(LOCAL_SCHEDULER)
class Receipt(NamedTuple):
    """client -> local scheduler. The client has received this ``RequestReceipt`` and all messages before it."""

    token: int


@from_nodes(LOCAL_SCHEDULER)
class ClaimName(NamedTuple):
    """home of an actor -> head. The actor claims a name. ``NameClaimed`` is the answer."""

    actor_id: TaskId
    namespace: Text
    name: Text


@from_nodes(LOCAL_SCHEDULER)
class NameClaimed(NamedTuple):
    """head -> home of an actor. The answer to ``ClaimName``: ``holder`` is the actor that has the name."""

    actor_id: TaskId
    holder: TaskId


@from_nodes(LOCAL_SCHEDULER)
class FreeName(NamedTuple):
    """home of an actor -> head. The actor does not need its name any more."""

    actor_id: TaskId
    namespace: Text
    name: Text


def _check_outputs(rows: Rows) -> None:
    for _, _, status, outputs, _ in rows:
        check_values(status, outputs)


@from_nodes(LOCAL_SCHEDULER)
class CallsEnded(NamedTuple):
    """local scheduler -> local scheduler of the caller's node. Outcomes of relayed calls of one process: rows as in ``CallOutcomes``.

    A large value is represented by its size, as in ``Ended``. These messages share their numbers with ``Ended``, and are retained and
    acknowledged as those are.
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
