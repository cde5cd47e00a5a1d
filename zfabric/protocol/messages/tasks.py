"""Functions and tasks."""

from typing import Annotated, NamedTuple, Self

from zfabric.protocol.access import from_nodes, from_peers, from_processes
from zfabric.protocol.checks import (
    BOOL,
    BYTES,
    INT,
    NUMBER,
    OBJECT,
    SIZE_MAX,
    STR,
    TASK,
    TUPLE,
    MalformedFrame,
    column,
    layout,
    many,
    within,
)
from zfabric.protocol.ids import ACTOR, CLIENT, LOCAL_SCHEDULER, TASK_BYTES, split_ids
from zfabric.protocol.messages.rows import (
    STREAM_INDEX,
    FunctionIds,
    FunctionRows,
    Incarnation,
    ObjectIds,
    ResultRows,
    Row,
    Rows,
    TaskId,
    TaskIds,
    TaskRows,
)
from zfabric.protocol.row_checks import TASK_ROW
from zfabric.protocol.trace import TIME_BYTES

# How an attempt ended, in ``Completed`` and ``Results``.
OK = 0
ERROR = 1
"""The user's code raised. The one output is the serialized error, behind the ids of refs inside, which count as those in a value.

A large error is an object of its own, whose id is the one at the beginning.
"""
RETRY = 2
"""The user's code raised an error that the task's options retry; the one output is the serialized error."""
INTERRUPTED = 3
"""The attempt was stopped on request before it had an outcome; the one output is the reason: "cancelled", "timeout" or "killed"."""
FAILED = 4
"""The fabric could not produce the value. The one output is a packed ``(kind, text, facts)`` (``protocol.failures``).

It begins with ids, as that of ``ERROR`` does, if the facts include an error of user code.
"""


@from_processes(LOCAL_SCHEDULER)
class Export(NamedTuple):
    """client -> local scheduler. Functions this job may run: rows ``(function_id, name, payload, options)``.

    The id is a hash of the content, so repeats are harmless.
    """

    functions: FunctionRows


class Functions(NamedTuple):
    """local scheduler -> worker. The functions of the task rows that follow, once per worker; rows as in ``Export``."""

    functions: FunctionRows


@from_processes(LOCAL_SCHEDULER)
class Submit(NamedTuple):
    """client -> local scheduler. Task rows, in order. A known row is ignored; another row with a known id is refused."""

    rows: TaskRows


class Dispatch(NamedTuple):
    """local scheduler -> worker. Task rows to run, in order.

    Each is attempt ``attempt`` of a task without dependencies and GPUs, unless ``details`` has a row for it: ``(index in rows, attempt,
    values of the dependencies, gpu ids)``.

    With ``waits`` 0, the tasks run when nothing on the worker's stack waits, otherwise now, on top of the task that waits in ``get``.
    ``waits`` is then the number of ``Blocked`` and ``Unblocked`` received: a worker that has sent more returns the rows (``TakenBack``).
    """

    rows: TaskRows
    details: Annotated[Rows, layout(INT, INT, TUPLE, TUPLE)]
    waits: int
    attempt: int = 0


class AllowDirect(NamedTuple):
    """local scheduler -> worker. This client may submit tasks to the worker directly."""

    client: bytes


class DirectAllowed(NamedTuple):
    """local scheduler -> client. The client may submit tasks of these functions to a worker directly, as attempts of this number.

    It must wait for each before it submits the next. Without functions the permission ends: the client confirms with an empty
    ``SubmittedDirect``.
    """

    worker: Incarnation
    functions: FunctionIds
    attempt: int


@from_peers(ACTOR)
class SubmitDirect(NamedTuple):
    """client -> worker. Task rows to run as if this daemon had dispatched them.

    The worker sends plain values to the client, and every outcome to the scheduler. If it has another daemon by then, it drops the rows,
    and the client submits them there.
    """

    daemon: Incarnation
    rows: TaskRows
    attempt: int


@from_processes(LOCAL_SCHEDULER)
class SubmittedDirect(NamedTuple):
    """client -> local scheduler. Task rows that the client has sent to a worker directly."""

    worker: Incarnation
    rows: TaskRows


@from_processes(LOCAL_SCHEDULER)
class DirectCounts(NamedTuple):
    """client, worker -> local scheduler. How many values the worker has sent to the client directly.

    ``peer`` is the other of the two. The client sends this ahead of a message about such values, which the scheduler defers until the
    worker has reported as many.
    """

    peer: Incarnation
    number: int


_LONE_DURATION = frozenset(((bytes, int, float), (bytes, int, int)))


@from_processes(LOCAL_SCHEDULER)
class Completed(NamedTuple):
    """worker -> local scheduler. Attempts that ended, as columns, since there are many small ones. ``task_ids`` are concatenated.

    ``extras`` are ``(index, refs contained per output, argument refs retained)`` of outputs with refs. ``durations`` are ``(function_id,
    count, total seconds)``. ``times``, behind ``task_ids``, is a trace for the timeline (``protocol.trace``).
    """

    attempts: Annotated[Row, INT]
    statuses: Annotated[Row, INT]
    outputs: Annotated[Rows, TUPLE]
    task_ids: bytes
    extras: Annotated[Rows, layout(INT, TUPLE, TUPLE)]
    durations: Annotated[Rows, layout(BYTES, INT, NUMBER)]
    times: bytes

    @staticmethod
    def is_plain(fields: Row) -> bool:
        """Whether this is the end of one attempt, as of a program that waits for each task: a third of the other checks."""
        attempts, statuses, outputs, task_ids, extras, durations, times = fields
        return (
            not extras
            and len(attempts) == len(statuses) == len(outputs) == len(durations) == 1
            and len(times) == TIME_BYTES
            and len(task_ids) == TASK_BYTES
            and type(attempts[0]) is type(statuses[0]) is int
            and type(outputs[0]) is type(durations[0]) is tuple
            and tuple(map(type, durations[0])) in _LONE_DURATION
        )

    def check(self) -> None:
        """Check that the columns are of one length."""
        count = len(self.attempts)
        if not count == len(self.statuses) == len(self.outputs) == len(self.task_ids) / TASK_BYTES:
            raise MalformedFrame("columns are of one length")
        if self.times and len(self.times) != count * TIME_BYTES:
            raise MalformedFrame(f"times are {TIME_BYTES} bytes for each attempt")

    @classmethod
    def of(cls, rows: Rows, extras: Rows = (), durations: Rows = (), times: bytes = b"") -> Self:
        """Make one from rows ``(task_id, attempt, status, outputs)``."""
        task_ids, attempts, statuses, outputs = zip(*rows, strict=True) if rows else ((), (), (), ())
        return cls(attempts, statuses, outputs, b"".join(task_ids), extras, durations, times)

    @property
    def rows(self) -> Rows:
        """Rows ``(task_id, attempt, status, outputs)``."""
        return tuple(zip(split_ids(self.task_ids, TASK_BYTES), self.attempts, self.statuses, self.outputs, strict=True))


@from_processes(LOCAL_SCHEDULER)
class Yielded(NamedTuple):
    """worker -> local scheduler. Values of streams, in order: rows ``(task_id, attempt, index, value, contained)``.

    ``value`` is True if an earlier daemon took over the place, None if the stream ends with ``index`` values. Restarts and later attempts
    repeat rows: an index always names the same value.
    """

    rows: Annotated[Rows, layout(TASK, INT, STREAM_INDEX, column(bytes, tuple, bool, type(None)), many(OBJECT))]


CLOSE = -1
"""``AllowYields.upto`` of a stream that nobody reads any more: its generator is closed."""


@from_nodes(LOCAL_SCHEDULER)
class AllowYields(NamedTuple):
    """local scheduler -> worker, local scheduler of another node. Consumers have requested all values of the stream below ``upto``.

    With CLOSE, the stream ends.
    """

    task_id: TaskId
    upto: Annotated[int, within(CLOSE, SIZE_MAX)]


@from_processes(LOCAL_SCHEDULER)
class RunningTasks(NamedTuple):
    """worker -> local scheduler. On registration: the worker's tasks, rows ``(task row, attempt, begun, stopped)``.

    No other living process may have the same attempt. ``stopped`` is the reason of an ``Interrupt``, else empty. ``gpus`` stay with the
    worker while it lives.
    """

    rows: Annotated[Rows, layout(TASK_ROW, INT, BOOL, STR)]
    gpus: Annotated[Row, INT] = ()


class TakeBack(NamedTuple):
    """local scheduler -> worker control. Return these tasks, except those that have begun. Answered by ``TakenBack``."""

    task_ids: TaskIds


@from_processes(LOCAL_SCHEDULER)
class TakenBack(NamedTuple):
    """worker control -> local scheduler. Tasks that this worker returns; none of them has begun.

    ``running`` is the task on top of its stack, or empty.
    """

    task_ids: TaskIds
    running: bytes


@from_processes(LOCAL_SCHEDULER)
class Blocked(NamedTuple):
    """worker -> local scheduler. ``task_id`` waits for the objects ``wanted``. The tasks ``returned`` have not begun and go back.

    With ``inline`` (plain ``get``, no timeout), tasks may run on top of it meanwhile. ``returned`` includes those that were to run on top
    of a task below: a task runs only on top of one that waits for it.
    """

    task_id: bytes
    wanted: ObjectIds
    returned: TaskIds
    inline: bool


@from_processes(LOCAL_SCHEDULER)
class WaitDetails(NamedTuple):
    """worker -> local scheduler. Behind ``Blocked``: more about a wait for results of calls.

    ``name`` is the name of the call that waits. ``callees`` are rows ``(object, actor that makes it)``. With ``certain``, only all of
    ``wanted`` end the wait, and neither the wait nor the calls have a timeout: the driver is warned of a circle of such waits.
    """

    task_id: TaskId
    name: str
    callees: Annotated[Rows, layout(OBJECT, TASK)]
    certain: bool


@from_processes(LOCAL_SCHEDULER)
class Unblocked(NamedTuple):
    """worker -> local scheduler. ``task_id`` no longer waits."""

    task_id: bytes


@from_peers(CLIENT)
class Results(NamedTuple):
    """local scheduler, worker -> client. Outcomes of the client's tasks: rows ``(task_id, status, outputs)``, exactly one for each task.

    None is a large value, or one with refs inside: the client fetches it when needed. A worker sends those of ``SubmitDirect``.
    """

    rows: ResultRows


class InheritTasks(NamedTuple):
    """local scheduler -> driver. Task rows whose submitter has died, and their functions.

    The driver holds none of their values. It repeats the rows to a restarted daemon until they have outcomes.
    """

    rows: TaskRows
    functions: FunctionRows


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class Cancel(NamedTuple):
    """client -> local scheduler -> home of the objects, client. Cancel what makes these objects.

    The receiving client is the one that made the call. ``force`` kills the workers of tasks, ``recursive`` includes children. It is
    repeated to a new daemon until the objects have outcomes there.
    """

    object_ids: ObjectIds
    force: bool
    recursive: bool


class Interrupt(NamedTuple):
    """local scheduler -> worker control. Stop this attempt. ``reason`` is "cancelled" or "timeout"."""

    task_id: bytes
    attempt: int
    reason: str


class StopWorker(NamedTuple):
    """local scheduler -> worker control. Exit, and begin no further task. It also answers a worker that this node did not start."""
