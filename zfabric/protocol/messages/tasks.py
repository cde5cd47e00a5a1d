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
"""The user's code raised. The one output is the serialized error, which begins with the ids of the objects that it contains refs to. They
count as refs inside a value do. A large error is an object of its own: then the id at the beginning is that object's."""
RETRY = 2
"""The user's code raised an error that the task's options retry; the one output is the serialized error."""
INTERRUPTED = 3
"""The attempt was stopped on request before it had an outcome; the one output is the reason: "cancelled", "timeout" or "killed"."""
FAILED = 4
"""The fabric could not produce the value. The one output is a packed ``(kind, text, facts)`` (``protocol.failures``). If the facts include
an error of user code, the output begins with ids as that of ``ERROR`` does."""


@from_processes(LOCAL_SCHEDULER)
class Export(NamedTuple):
    """client -> local scheduler. Functions this job may run: rows ``(function_id, name, payload, options)``.

    ``options`` is a tuple of (name, value) pairs (``protocol.options``). The id is a hash of the content, so repeats are harmless.
    """

    functions: FunctionRows


class Functions(NamedTuple):
    """local scheduler -> worker. The functions of the task rows that follow, once per worker; rows as in ``Export``."""

    functions: FunctionRows


@from_processes(LOCAL_SCHEDULER)
class Submit(NamedTuple):
    """client -> local scheduler. Task rows, in order. A row that is known already is ignored; another row with its id is refused."""

    rows: TaskRows


class Dispatch(NamedTuple):
    """local scheduler -> worker. Task rows to run, in order.

    A row is attempt number ``attempt`` of a task without dependencies and GPUs, unless ``details`` says otherwise: rows ``(index in rows,
    attempt, values of the dependencies, gpu ids)``.

    If ``waits`` is 0, the tasks run when nothing on the worker's stack waits. Otherwise they run at once, on top of the task that waits in
    ``get``. ``waits`` is then the number of ``Blocked`` and ``Unblocked`` that the scheduler has received from this worker. If the worker
    has sent more, its stack has changed, and it returns the rows (``TakenBack``).
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

    It may do so as long as it waits for each task before it submits the next. A message without functions ends the permission: the client
    stops submitting to this worker, and confirms that with an empty ``SubmittedDirect``.
    """

    worker: Incarnation
    functions: FunctionIds
    attempt: int


@from_peers(ACTOR)
class SubmitDirect(NamedTuple):
    """client -> worker. Task rows to run as if this incarnation of the daemon had dispatched them.

    The worker sends plain values to the client, and every outcome to the scheduler. A worker that has registered with another daemon by
    then drops the rows, and the client submits them to that daemon.
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

    ``peer`` is the worker in a message from the client, and the client in one from the worker. The client sends it ahead of a message
    about such values. The scheduler processes that message once the worker has reported as many values.
    """

    peer: Incarnation
    number: int


_LONE_DURATION = frozenset(((bytes, int, float), (bytes, int, int)))


@from_processes(LOCAL_SCHEDULER)
class Completed(NamedTuple):
    """worker -> local scheduler. Attempts that ended, as columns, since there are many small ones. ``task_ids`` are concatenated.

    ``extras`` are ``(index, refs contained per output, argument refs retained)`` for outputs that have such refs. ``durations`` are
    ``(function_id, count, total seconds)``. ``times``, behind ``task_ids``, is a trace for the timeline (``protocol.trace``).
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

    ``value`` is inline bytes or a place in the arena. It is True if an earlier daemon took over the place, and None if the stream ends with
    ``index`` values. Rows are repeated after a restart of the daemon, and by a later attempt: an index always names the same value.
    """

    rows: Annotated[Rows, layout(TASK, INT, STREAM_INDEX, column(bytes, tuple, bool, type(None)), many(OBJECT))]


CLOSE = -1
"""``AllowYields.upto`` of a stream that nobody reads any more: its generator is closed."""


@from_nodes(LOCAL_SCHEDULER)
class AllowYields(NamedTuple):
    """local scheduler -> worker. The stream may yield the values below ``upto``; with CLOSE, it ends.

    This is state and not a difference: consumers have requested all values below ``upto``.
    """

    task_id: TaskId
    upto: Annotated[int, within(CLOSE, SIZE_MAX)]


@from_processes(LOCAL_SCHEDULER)
class RunningTasks(NamedTuple):
    """worker -> local scheduler, between ``Register`` and ``Ready``. The worker's tasks: rows ``(task row, attempt, begun, stopped)``.

    No other living process may have the same attempt. ``stopped`` is the reason of a request to stop it (``Interrupt``), else empty.
    ``gpus`` are the GPUs that the worker was given. No other worker gets them while it lives.
    """

    rows: Annotated[Rows, layout(TASK_ROW, INT, BOOL, STR)]
    gpus: Annotated[Row, INT] = ()


class TakeBack(NamedTuple):
    """local scheduler -> worker control. Return the tasks among these that have not begun. ``TakenBack`` is the answer."""

    task_ids: TaskIds


@from_processes(LOCAL_SCHEDULER)
class TakenBack(NamedTuple):
    """worker control -> local scheduler. Tasks that this worker returns; none of them has begun.

    ``running`` is the task on top of the worker's stack, or empty.
    """

    task_ids: TaskIds
    running: bytes


@from_processes(LOCAL_SCHEDULER)
class Blocked(NamedTuple):
    """worker -> local scheduler. ``task_id`` waits for the objects ``wanted``; the tasks ``returned`` have not begun and go back.

    ``inline`` says whether tasks may run on top of it meanwhile (plain ``get``, no timeout). ``returned`` includes the tasks that were
    sent to run on top of a task below this one and have not begun: no task runs on top of one that does not wait for it.
    """

    task_id: bytes
    wanted: ObjectIds
    returned: TaskIds
    inline: bool


@from_processes(LOCAL_SCHEDULER)
class WaitDetails(NamedTuple):
    """worker -> local scheduler, behind ``Blocked``. More about a wait for results of actors' calls.

    ``name`` is the name of the call that waits. ``callees`` are rows ``(object, actor that makes it)`` of the objects that are results of
    calls. ``certain`` says that only all of ``wanted`` end the wait: some of them are not enough, and neither the wait nor the calls have a
    timeout. If such waits form a circle, the driver is warned.
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
    """local scheduler -> client. Outcomes of the client's tasks: rows ``(task_id, status, outputs)``, exactly one for every task.

    A large value, or one with refs inside, is None here: the client fetches it when it needs it.
    """

    rows: ResultRows


class InheritTasks(NamedTuple):
    """local scheduler -> driver. Task rows whose submitter has died: the driver retains them until they have an outcome.

    It repeats them to a restarted daemon, as it does its own rows. It holds none of their values. ``functions`` are the functions of the
    rows, as in ``Export``.
    """

    rows: TaskRows
    functions: FunctionRows


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class Cancel(NamedTuple):
    """client -> local scheduler -> home of the objects, or the client that made the call. Cancel what makes these objects.

    ``force`` kills the workers of tasks, ``recursive`` includes children. A client repeats it to a restarted daemon, and a node to a home
    that registers anew, as long as the objects have no outcome there.
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
