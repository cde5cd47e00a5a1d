"""Functions and tasks."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.ids import TASK_BYTES, split_ids
from zfabric.protocol.messages.rows import Ids, Row, Rows

# How an attempt ended, in ``Completed`` and ``Results``.
OK = 0
ERROR = 1
"""The user's code raised; the one output is the serialized error. Ids of the objects it contains refs to are at its beginning, and
count like the refs inside a value for who has it; those of a large error name an object that is the whole of it."""
RETRY = 2
"""The user's code raised an error that the task's options retry; the one output is the serialized error."""
INTERRUPTED = 3
"""The attempt was stopped on request before it had an outcome; the one output is the reason: "cancelled", "timeout" or "killed"."""
FAILED = 4
"""The fabric could not produce the value. The one output is a packed ``(kind, text, facts)`` (``protocol.failures``), which begins
likewise where what user code raised is among the facts."""


class Export(NamedTuple):
    """client -> local scheduler. Functions this job may run: rows ``(function_id, name, payload, options)``.

    ``options`` is a tuple of (name, value) pairs, see ``protocol.options``. The same id has the same content, so repeats are harmless.
    """

    functions: Rows


class Functions(NamedTuple):
    """local scheduler -> worker. The functions of the task rows that follow, once per worker; rows as in ``Export``."""

    functions: Rows


class Submit(NamedTuple):
    """client -> local scheduler. Task rows, in order. A known id with the same row is ignored; with another row, it is refused."""

    rows: Rows


class Dispatch(NamedTuple):
    """local scheduler -> worker. Task rows to run, in order.

    ``details`` lists the exceptions from "attempt ``attempt``, nothing to resolve": rows ``(index in rows, attempt, values of the
    dependencies, gpu ids)``. If ``waits`` is 0, the tasks run when nothing on the worker's stack waits. Otherwise they run at once, on
    top of the task that waits in ``get``, and ``waits`` is the number of ``Blocked`` and ``Unblocked`` that the scheduler has received
    from this worker. If the worker has sent more, its stack has changed, and it returns the rows (``TakenBack``).
    """

    rows: Rows
    details: Rows
    waits: int
    attempt: int = 0


class AllowDirect(NamedTuple):
    """local scheduler -> worker. This client may submit tasks to the worker directly."""

    client: bytes


class DirectAllowed(NamedTuple):
    """local scheduler -> client. The client may submit tasks of these functions to a worker directly, as attempts of this number.

    It may do so as long as it waits for each task before it submits the next. No functions: the permission ends. The client then answers
    with an empty ``SubmittedDirect``, after which it submits no more directly.
    """

    worker: bytes
    functions: tuple[bytes, ...]
    attempt: int


class SubmitDirect(NamedTuple):
    """client -> worker. Task rows to run as if this incarnation of the daemon had dispatched them.

    The worker sends plain values to the client, and every outcome to the scheduler. A worker that has registered with another daemon
    since drops the rows: the client submits them to that daemon.
    """

    daemon: bytes
    rows: Rows
    attempt: int


class SubmittedDirect(NamedTuple):
    """client -> local scheduler. Task rows that the client has sent to a worker directly."""

    worker: bytes
    rows: Rows


class DirectCounts(NamedTuple):
    """client, worker -> local scheduler. How many values the worker has sent directly to the client. ``peer`` is the other of the two.

    The client sends it ahead of a question. The scheduler processes the question once the worker has reported as many values.
    """

    peer: bytes
    number: int


class Completed(NamedTuple):
    """worker -> local scheduler. Attempts that ended, by column since there are many small ones. ``task_ids`` are concatenated.

    ``extras`` are ``(index, refs contained per output, argument refs retained)`` for outputs that have such refs. ``durations`` are
    ``(function_id, count, total seconds)``. ``times``, behind ``task_ids``, is a trace for the timeline (``protocol.trace``).
    """

    attempts: Row
    statuses: Row
    outputs: Rows
    task_ids: bytes
    extras: Rows
    durations: Rows
    times: bytes

    @classmethod
    def of(cls, rows: Rows, extras: Rows = (), durations: Rows = (), times: bytes = b"") -> Completed:
        """Make one from rows ``(task_id, attempt, status, outputs)``."""
        task_ids, attempts, statuses, outputs = zip(*rows, strict=True) if rows else ((), (), (), ())
        return cls(attempts, statuses, outputs, b"".join(task_ids), extras, durations, times)

    @property
    def rows(self) -> Rows:
        """Rows ``(task_id, attempt, status, outputs)``."""
        return tuple(zip(split_ids(self.task_ids, TASK_BYTES), self.attempts, self.statuses, self.outputs, strict=True))


class Yielded(NamedTuple):
    """worker -> local scheduler. Values of streams, in order: rows ``(task_id, attempt, index, value, contained)``.

    ``value`` is inline bytes or a place in the arena; True where an earlier daemon took over the place; None means that the stream ends
    with ``index`` values. Repeated after a restart of the daemon, and by a later attempt: an index names the same value.
    """

    rows: Rows


CLOSE = -1
"""``AllowYields.upto`` of a stream that nobody reads any more: its generator is closed."""


class AllowYields(NamedTuple):
    """local scheduler -> worker. The stream may yield the values below ``upto``; with CLOSE, it ends.

    This is state and not a difference: consumers have requested all values below ``upto``.
    """

    task_id: bytes
    upto: int


class RunningTasks(NamedTuple):
    """worker -> local scheduler, between ``Register`` and ``Ready``. The worker's tasks: rows ``(task row, attempt, begun, stopped)``.

    ``stopped`` is the reason if the attempt was asked to stop (see ``Interrupt``), else empty: perhaps nobody else that lives remembers.
    ``gpus`` are the GPUs that the worker was given. No other worker gets them while it lives.
    """

    rows: Rows
    gpus: Row = ()


class TakeBack(NamedTuple):
    """local scheduler -> worker control. Return those of these tasks that have not begun."""

    task_ids: Ids


class TakenBack(NamedTuple):
    """worker control -> local scheduler. Tasks that this worker returns; none of them had begun. ``running`` is the task on top, or
    empty.
    """

    task_ids: Ids
    running: bytes


class Blocked(NamedTuple):
    """worker -> local scheduler. ``task_id`` waits for the objects ``wanted``; the tasks ``returned`` have not begun and go back.

    ``inline`` says whether tasks may run on top of it meanwhile (plain ``get``, no timeout). ``returned`` includes the tasks that were
    sent to run on top of a task below this one and have not begun: no task runs on top of one that does not wait for it.
    """

    task_id: bytes
    wanted: Ids
    returned: Ids
    inline: bool


class WaitDetails(NamedTuple):
    """worker -> local scheduler, behind ``Blocked``. More about a wait that calls of actors are part of. ``name`` is the waiting call's.

    ``callees`` are rows ``(object, actor that makes it)`` of the objects that are results of calls. ``certain`` says that the wait ends
    only when all of ``wanted`` exist: neither the wait nor the calls have a timeout, and a part of the objects is not enough. If such
    waits form a circle, the driver is warned.
    """

    task_id: bytes
    name: str
    callees: Rows
    certain: bool


class Unblocked(NamedTuple):
    """worker -> local scheduler. ``task_id`` no longer waits."""

    task_id: bytes


class Results(NamedTuple):
    """local scheduler -> client. Outcomes of tasks that it submitted: rows ``(task_id, status, outputs)``, exactly one for every task.

    Large values, and values with refs inside, are None here: the client fetches them when it needs them.
    """

    rows: Rows


class InheritTasks(NamedTuple):
    """local scheduler -> driver. Task rows whose submitter has died: the driver retains them until they have an outcome.

    It repeats them after a restart of the daemon, as it does its own. It holds none of their values. ``functions`` are those of the rows,
    as in ``Export``.
    """

    rows: Rows
    functions: Rows


class Cancel(NamedTuple):
    """client -> local scheduler. Cancel the tasks of these objects; ``force`` kills their workers, ``recursive`` includes children."""

    object_ids: Ids
    force: bool
    recursive: bool


class Interrupt(NamedTuple):
    """local scheduler -> worker control. Stop this attempt. ``reason`` is "cancelled" or "timeout"."""

    task_id: bytes
    attempt: int
    reason: str


class StopWorker(NamedTuple):
    """local scheduler -> worker control. Exit, and begin no further task. The answer to a worker that this node did not start."""
