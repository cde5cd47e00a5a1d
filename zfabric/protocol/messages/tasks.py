"""Functions and tasks."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.ids import TASK_BYTES, split_ids
from zfabric.protocol.messages.rows import Ids, Row, Rows

# How an attempt ended, in ``Completed`` and ``Results``.
OK = 0
ERROR = 1
"""The user's code raised; the one output is the serialized error."""
RETRY = 2
"""The user's code raised something its options say to retry; the one output is the serialized error."""
INTERRUPTED = 3
"""Stopped on request before it had an outcome of its own; the one output says why: "cancelled", "timeout" or "killed" (an actor)."""
FAILED = 4
"""The fabric could not produce the value. The one output is a packed ``(kind, text, facts)`` (``protocol.failures``)."""


class Export(NamedTuple):
    """client -> local scheduler. Functions this job may run: rows ``(function_id, name, payload, options)``.

    ``options`` is a tuple of (name, value) pairs, see ``protocol.options``. Same id, same content: repeats are harmless.
    """

    functions: Rows


class Functions(NamedTuple):
    """local scheduler -> worker. The functions of the rows that follow, once per worker; rows as in ``Export``."""

    functions: Rows


class Submit(NamedTuple):
    """client -> local scheduler. Task rows, in order. A known id with the same row is a repeat; with another, refused."""

    rows: Rows


class Dispatch(NamedTuple):
    """local scheduler -> worker. Run these task rows, in order.

    ``details`` says what differs from "attempt ``attempt``, nothing to resolve": rows ``(index in rows, attempt, values of the
    dependencies, gpu ids)``. With ``waits`` they are run at once, on top of the task that waits in ``get``: it is how many
    ``Blocked`` and ``Unblocked`` the scheduler had received from the worker. If the worker has sent more, something else is on top of its
    stack, and the rows go back (``TakenBack``). 0: they run when nothing waits.
    """

    rows: Rows
    details: Rows
    waits: int
    attempt: int = 0


class AllowDirect(NamedTuple):
    """local scheduler -> worker. This client may hand tasks to the worker itself."""

    client: bytes


class DirectAllowed(NamedTuple):
    """local scheduler -> client. As long as it waits for each task before it submits the next, it may hand those of these functions to a
    worker itself, for the attempt of this number. No functions: none any more. The client answers with an empty ``SubmittedDirect``,
    after which no more comes.
    """

    worker: bytes
    functions: tuple[bytes, ...]
    attempt: int


class SubmitDirect(NamedTuple):
    """client -> worker. Run these task rows as if they had come from this incarnation of the daemon, and tell the client, too, what plain
    values they have. A worker that has joined another daemon since lets them fall: the client submits them there."""

    daemon: bytes
    rows: Rows
    attempt: int


class SubmittedDirect(NamedTuple):
    """client -> local scheduler. Task rows that the client has handed to a worker."""

    worker: bytes
    rows: Rows


class DirectCounts(NamedTuple):
    """client, worker -> local scheduler. How many values of handed tasks a worker has told a client; ``peer`` is the other one of the two.

    What the client says next it says in the knowledge of so many, and is heard when the worker has told the scheduler of as many.
    """

    peer: bytes
    number: int


class Completed(NamedTuple):
    """worker -> local scheduler. Attempts that ended: by column, since they are many, and small. ``task_ids`` are one behind the other.

    ``extras`` are ``(index, refs contained per output, argument refs kept)`` for those that have them; ``durations`` are
    ``(function_id, count, seconds in all)``; ``times`` is, with ``task_ids`` before it, what the timeline shows (``protocol.trace``).
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
        """Of rows ``(task_id, attempt, status, outputs)``."""
        task_ids, attempts, statuses, outputs = zip(*rows, strict=True) if rows else ((), (), (), ())
        return cls(attempts, statuses, outputs, b"".join(task_ids), extras, durations, times)

    @property
    def rows(self) -> Rows:
        """The same, for what looks at one after the other."""
        return tuple(zip(split_ids(self.task_ids, TASK_BYTES), self.attempts, self.statuses, self.outputs, strict=True))


class Yielded(NamedTuple):
    """worker -> local scheduler. Values of streams, in order: rows ``(task_id, attempt, index, value, contained)``.

    ``value`` is inline bytes or a place in the arena; True where an earlier daemon took over the place; None says that the stream has
    ``index`` values and no more. Said again after a restart of the daemon, and by a later attempt: an index names the same value.
    """

    rows: Rows


CLOSE = -1
"""``AllowYields.upto`` where nobody reads a stream any more: it is to end."""


class AllowYields(NamedTuple):
    """local scheduler -> worker. The stream may have the values below ``upto`` by now; or is to CLOSE.

    State and not a difference: the consumer has asked for all values up to there.
    """

    task_id: bytes
    upto: int


class RunningTasks(NamedTuple):
    """worker -> local scheduler, between ``Register`` and ``Ready``. Rows ``(task row, attempt, begun)`` that I hold.

    ``gpus`` are the GPUs that I was given: nobody else is to have them while I live.
    """

    rows: Rows
    gpus: Row = ()


class TakeBack(NamedTuple):
    """local scheduler -> worker control. Give back those of these tasks that you have not begun."""

    task_ids: Ids


class TakenBack(NamedTuple):
    """worker control -> local scheduler. These I had not begun and will not begin. ``running`` is the attempt on top, or empty."""

    task_ids: Ids
    running: bytes


class Blocked(NamedTuple):
    """worker -> local scheduler. ``task_id`` waits for the objects ``wanted`` and gives back ``returned``, not begun.

    ``inline`` says whether tasks may run on top of it meanwhile (plain ``get``, no timeout). What was given to run on top of a wait below
    it, and was not begun, is among ``returned``: nothing is run on top of what does not wait for it.
    """

    task_id: bytes
    wanted: Ids
    returned: Ids
    inline: bool


class WaitDetails(NamedTuple):
    """worker -> local scheduler, behind ``Blocked``. What waits is a call, called ``name``, or waits for calls: more about it.

    ``callees`` are rows ``(object, actor that is called)`` of those that calls are to give. ``certain`` says that it goes on only once
    all are there that it wants: there is no limit of time, for it or for the calls that it waits for, and some of them are not enough.
    Where such wait for each other in a circle, the driver is warned.
    """

    task_id: bytes
    name: str
    callees: Rows
    certain: bool


class Unblocked(NamedTuple):
    """worker -> local scheduler. ``task_id`` no longer waits."""

    task_id: bytes


class Results(NamedTuple):
    """local scheduler -> client. Outcomes of tasks it submitted: rows ``(task_id, status, outputs)``, one for every task.

    Large values, and those with refs inside, are None here: they are fetched when they are wanted.
    """

    rows: Rows


class InheritTasks(NamedTuple):
    """local scheduler -> driver. Task rows whose submitter is gone: keep them until their outcome, as if they were your own.

    They are said again after a restart of the daemon, and nothing more: the driver holds none of their values. ``functions`` are those
    of the rows, as in ``Export``.
    """

    rows: Rows
    functions: Rows


class Cancel(NamedTuple):
    """client -> local scheduler. Cancel the tasks of these objects; ``force`` kills, ``recursive`` takes their children too."""

    object_ids: Ids
    force: bool
    recursive: bool


class Interrupt(NamedTuple):
    """local scheduler -> worker control. Stop this attempt. ``reason`` is "cancelled" or "timeout"."""

    task_id: bytes
    attempt: int
    reason: str


class StopWorker(NamedTuple):
    """local scheduler -> worker control. Finish nothing more; exit."""
