"""Tasks that run on another node than their home. Home and executor are the local schedulers of two nodes.

To a home, another node is a worker of many tasks; to an executor, a home is a process that submits tasks. The executor neither retries a
task nor passes it on: it reports how the attempt ended, and the home decides.
"""

from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgpack

from zfabric.protocol.access import from_nodes
from zfabric.protocol.checks import (
    ATTEMPT,
    COUNT,
    INCARNATION,
    INT,
    JOB,
    NODE,
    OBJECT,
    SECONDS,
    SIZE_MAX,
    STR,
    TASK,
    Column,
    MalformedFrame,
    check_fields,
    column,
    entries,
    ids_of,
    layout,
    many,
    one_of,
    optional,
    row,
    within,
)
from zfabric.protocol.ids import ATTEMPT_MAX, JOB_BYTES, LOCAL_SCHEDULER, NODE_BYTES, PREFIX_BYTES, TASK_BYTES
from zfabric.protocol.messages.rows import (
    STOP_REASONS,
    STREAM_INDEX,
    TASK_ID,
    Attempt,
    Count,
    FunctionRows,
    Homes,
    Ids,
    Incarnation,
    JobId,
    ObjectId,
    ObjectIds,
    Row,
    Rows,
    StopReason,
    TaskId,
    TaskIds,
    TaskRows,
)
from zfabric.protocol.messages.tasks import OK, Completed
from zfabric.protocol.row_checks import check_task_rows

LOST = 5
"""A status of ``Ended``: the worker died. The one output is a packed row ``(suspect, pid, exit code, signal, peak, stderr, memory)``.

``suspect``: the worker was running the task. ``memory``: it was killed for the memory it used.
"""

STAYS = 6
"""A status of ``Ended``: the executor's restarted daemon does not know the homes of refs inside. The task runs again at home."""


RETIRED = "retired"
"""A reason of ``StopDelegated``, of actors alone."""
RETURN_REASONS = ("", "blocked", "full")
LEVELS = ("info", "warning", "error", "again")
"""Levels of notices. "again": something runs again; a driver receives a limited number of these."""
OFFER_MAX = 64
"""Most fields of an offer of a large value: its size, and nodes that have it."""

STATUS = within(0, STAYS)


def check_sizes(values: tuple[Any, ...]) -> None:
    """Check the sizes of large values, which stand in their places."""
    COUNT.check(tuple(value for value in values if type(value) is int))


def check_values(status: int, values: tuple[Any, ...]) -> None:
    """Check the outputs of an attempt or a call that ended with this status."""
    STATUS.check((status,))
    if not set(map(type, values)) <= ({bytes, int} if status == OK else {bytes}):
        raise MalformedFrame("a value is bytes or its size, an error is bytes")
    check_sizes(values)


_CRASH = (bool, int, int, int, int, str, bool)


def _check_crash(values: tuple[bytes, ...]) -> None:
    """Check the outputs of an attempt that was lost: how its worker died."""
    try:
        types = [tuple(map(type, msgpack.unpackb(value, use_list=False, raw=False))) for value in values]
    except Exception:  # msgpack raises many kinds for bytes that are not its own; all mean the same here
        types = [()]
    if types not in ([], [_CRASH]):
        raise MalformedFrame("a lost attempt says how its worker died")


_COMPLETED = (tuple, tuple, tuple, bytes, tuple, tuple, bytes)
_INSIDE = many(OBJECT)


def _check_completed(columns: Row) -> None:
    """Check the columns of attempts that ended."""
    if tuple(map(type, columns)) != _COMPLETED:
        raise MalformedFrame("attempts that ended are seven columns")
    completed = Completed(*columns)
    check_fields(completed)
    ATTEMPT.check(completed.attempts)
    # Most are small values: one look at all of them.
    if any(completed.statuses) or not set(map(type, chain.from_iterable(completed.outputs))) <= {bytes}:
        for status, values in zip(completed.statuses, completed.outputs, strict=True):
            check_values(status, values)
            if status == LOST:
                _check_crash(values)
    for index, contained, kept in completed.extras:
        if not 0 <= index < len(completed.attempts):
            raise MalformedFrame("refs inside values are named by index")
        _check_contained(contained)
        OBJECT.check(kept)
    for _, count, seconds in completed.durations:
        COUNT.check((count,))
        SECONDS.check((seconds,))


_check_contained = entries(_INSIDE)
_ENDED_PLAINLY = ((OK,), (), (), b"")
"""The other columns of one attempt that ended with small values: its status, refs, durations and times."""


def _check_offers(values: tuple[Any, ...]) -> None:
    """Check the tuples among values, each of which says where a large value is to be copied from."""
    for offer in values:
        if type(offer) is tuple:
            if not 1 <= len(offer) <= OFFER_MAX:
                raise MalformedFrame(f"a large value is its size and up to {OFFER_MAX - 1} nodes")
            _check_size(offer[:1])
            NODE.check(offer[1:])


_check_size = entries(COUNT)


def _check_fetched(rows: Rows) -> None:
    for _, status, value, _ in rows:
        if type(value) is tuple:
            if status != OK:
                raise MalformedFrame("a failure is bytes")
            if value:
                _check_offers((value,))


def check_job(job: bytes, rows: Rows) -> None:
    """Check that all tasks are of one job."""
    if not {task[TASK_ID][:JOB_BYTES] for task in rows} <= {job}:
        raise MalformedFrame("all tasks are of one job")


ANY_DAEMON = bytes(8)
"""``RegisterNode.peer`` from a restarted daemon that does not know the receiver yet: the receiver is to register."""


@from_nodes(LOCAL_SCHEDULER)
class RegisterNode(NamedTuple):
    """local scheduler -> local scheduler of another node. The first message on every link between two nodes.

    ``daemon`` is the incarnation of the sender's daemon. ``peer`` depends on what went before:

    - Empty: the two nodes are new to each other, and have nothing to repeat.
    - The incarnation of the receiver's daemon: one of the two was restarted. Earlier messages are void. Until ``Ready`` the sender repeats
      what it has of the receiver's.
    - ``ANY_DAEMON``: the restarted sender does not know the receiver yet, which registers again.
    """

    protocol: int
    daemon: Incarnation
    peer: Annotated[bytes, optional(INCARNATION)] = b""


@from_nodes(LOCAL_SCHEDULER)
class ClaimValues(NamedTuple):
    """home -> node that has values, or copies. Retain these for the home until it ends its holds: rows ``(object_id, refs contained)``.

    Sent when either daemon is new, and when the home has lost its own value. ``CopyLost`` answers for each that is absent.
    """

    rows: Annotated[Rows, layout(OBJECT, many(OBJECT))]
    homes: Homes


@from_nodes(LOCAL_SCHEDULER)
class Delegate(NamedTuple):
    """home -> executor. Task rows of one job to run, in order.

    ``job`` is ``(job id, namespace, home of the job)``. ``functions`` are new to the executor. Each row is attempt ``attempt``, unless
    ``attempts`` has ``(index in rows, attempt)``. ``values`` has the rows' dependencies: ``(object_id, inline bytes or an offer, refs
    contained)``, with offers as in ``FetchedValues``.
    """

    job: Annotated[Row, row(JOB, STR, NODE)]
    functions: FunctionRows
    rows: TaskRows
    attempts: Annotated[Rows, layout(INT, ATTEMPT)]
    values: Annotated[Rows, layout(OBJECT, Column(frozenset((bytes, tuple)), _check_offers), many(OBJECT))]
    homes: Homes
    attempt: Attempt

    @staticmethod
    def is_plain(fields: Row) -> bool:
        """Whether there are plain attempts alone, as of most tasks. Raises MalformedFrame for rows that are none."""
        job, functions, rows, attempts, values, homes, attempt = fields
        if not functions == attempts == values == homes == () or tuple(map(type, job)) != (bytes, str, bytes):
            return False
        check_task_rows(rows)
        return (
            0 <= attempt <= ATTEMPT_MAX
            and len(job[2]) == NODE_BYTES
            and len(job[0]) == JOB_BYTES
            and {task[0][:JOB_BYTES] for task in rows} <= {job[0]}
        )

    def check(self) -> None:
        """Check that all tasks are of the job."""
        check_job(self.job[0], self.rows)


@from_nodes(LOCAL_SCHEDULER)
class Reclaim(NamedTuple):
    """home -> executor. Return these tasks unless they have begun: the home has room, or places tasks anew. ``Reclaimed`` answers."""

    task_ids: TaskIds


@from_nodes(LOCAL_SCHEDULER)
class Reclaimed(NamedTuple):
    """executor -> home. Tasks that the executor has not begun and returns: the home has them again, as the same attempts.

    Without a ``reason`` it answers ``Reclaim``, and may be empty. Otherwise the executor returns them by itself:

    - "blocked": it may not start more workers beside its blocked ones. At home, the tasks can run on top of what waits for them.
    - "full": actors, or bundles of placement groups, leave no room for them.
    """

    task_ids: TaskIds
    reason: Annotated[str, one_of(RETURN_REASONS)]


@from_nodes(LOCAL_SCHEDULER)
class StopDelegated(NamedTuple):
    """home -> executor. Stop an attempt, with ``recursive`` also what it submitted.

    If the attempt has made an actor, the actor's process ends at once; or after its calls, if the reason is ``RETIRED``: no handle is left.
    """

    task_id: TaskId
    attempt: Attempt
    reason: Annotated[str, one_of((*STOP_REASONS, RETIRED))]
    recursive: bool


@from_nodes(LOCAL_SCHEDULER)
class StopChildren(NamedTuple):
    """home -> every other node. Stop the children of these cancelled tasks and calls that were submitted there.

    ``parents`` are the ids of the cancelled tasks and calls, ``prefixes`` those of their children's ids. ``reason`` is "cancelled" or
    "force".
    """

    prefixes: Annotated[Ids, ids_of(PREFIX_BYTES)]
    parents: TaskIds
    reason: StopReason


@from_nodes(LOCAL_SCHEDULER)
class Ended(NamedTuple):
    """executor -> home. Attempts that ended.

    ``completed`` has the fields of ``Completed``; the id of each function in ``durations`` follows its job's. A status may also be ``LOST``
    or ``STAYS``. A large value is represented by its size: the executor retains the value until the home ends its hold. It retains the
    message, and pins its objects, until ``EndsReceived``.
    """

    number: Count
    completed: Annotated[Row, _check_completed]
    homes: Homes

    @staticmethod
    def is_plain(fields: Row) -> bool:
        """Whether this is one attempt that ended with one small value, as of a program that waits for each task."""
        number, completed, homes = fields
        if homes != () or completed[1:2] + completed[4:] != _ENDED_PLAINLY:
            return False
        attempts, statuses, outputs, task_id = completed[:4]
        return (
            0 <= number <= SIZE_MAX
            and type(attempts) is type(outputs) is tuple
            and len(attempts) == len(outputs) == 1
            and type(attempts[0]) is type(statuses[0]) is int
            and 0 <= attempts[0] <= ATTEMPT_MAX
            and type(outputs[0]) is tuple
            and tuple(map(type, outputs[0])) == (bytes,)
            and type(task_id) is bytes
            and len(task_id) == TASK_BYTES
        )


@from_nodes(LOCAL_SCHEDULER)
class RelayedYields(NamedTuple):
    """executor -> home. Values of streams, in order: rows as in ``Yielded``, large values as in ``Ended``.

    ``number``, retention and acknowledgement are shared with ``Ended``.
    """

    number: Count
    rows: Annotated[Rows, layout(TASK, ATTEMPT, STREAM_INDEX, Column(frozenset((bytes, int, type(None))), check_sizes), many(OBJECT))]
    homes: Homes


@from_nodes(LOCAL_SCHEDULER)
class EndsReceived(NamedTuple):
    """home -> executor. The home has processed all ``Ended`` up to this number, and holds the objects they name.

    Nobody waits for it: one acknowledges many. ``callers`` are rows ``(caller, number)``: that process may lack outcomes of its calls above
    ``number``. The executor retains those until it receives their number again without the caller.
    """

    number: Count
    callers: Annotated[Rows, layout(INCARNATION, COUNT)] = ()


@from_nodes(LOCAL_SCHEDULER)
class FetchValues(NamedTuple):
    """any node -> home of objects. Request values; ``FetchedValues`` answers as soon as they exist."""

    object_ids: ObjectIds


@from_nodes(LOCAL_SCHEDULER)
class FetchedValues(NamedTuple):
    """home of objects -> any node. Requested values: rows ``(object_id, status, value, refs contained)``.

    A small value is bytes. A large one is an offer, ``(size, node, …)``: the nodes to copy it from, in order of preference. ``()``: the
    object is unknown here.
    """

    rows: Annotated[Rows, layout(OBJECT, STATUS, column(bytes, tuple), many(OBJECT)), _check_fetched]
    homes: Homes


@from_nodes(LOCAL_SCHEDULER)
class CopyLost(NamedTuple):
    """any node -> home of an object. The sender has lost the value that it retained for the home."""

    object_id: ObjectId
    reason: str


@from_nodes(LOCAL_SCHEDULER)
class EndJob(NamedTuple):
    """home of a job -> every other node. The job has ended. ``JobGone`` is the answer."""

    job: JobId


@from_nodes(LOCAL_SCHEDULER)
class JobGone(NamedTuple):
    """any node -> home of a job. No process works for this job here any more, and none of its values is here."""

    job: JobId


@from_nodes(LOCAL_SCHEDULER)
class JobOutput(NamedTuple):
    """executor -> home of a job. Output for the job's driver: ``lines`` as in ``LogLines``, ``notices`` rows ``(level, text)``."""

    job: JobId
    lines: Annotated[Rows, layout(INT, STR, STR, STR)]
    notices: Annotated[Rows, layout(one_of(LEVELS), STR)]
