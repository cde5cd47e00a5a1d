"""What the home of a job needs to take over the tasks of a node that dies: their rows before, what the others have of them after.

The home of a job is the node of its driver. It takes over the tasks of the job that were at home on a dead node.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Rows


class Entrust(NamedTuple):
    """home of tasks -> home of their job. Task rows that it needs if the sender dies, with all rows that these name. ``Entrusted`` with the
    same number is the answer.

    They are rows whose values other nodes refer to, and those of ``unfinished``, which the receiver has by then: tasks without an outcome
    whose parents have ended, so that nobody would submit them again. ``functions`` are those of the rows that the receiver does not have,
    as in ``Export``. ``homes`` is as in ``Delegate``.
    """

    number: int
    job: bytes
    functions: Rows
    rows: Rows
    homes: Rows
    unfinished: Ids = ()


class Entrusted(NamedTuple):
    """home of a job -> home of tasks. The rows of the message with this number are here.

    ``task_ids`` are the rows that the receiver's former daemon had entrusted, while the sender registers.
    """

    number: int
    task_ids: Ids = ()


class Finished(NamedTuple):
    """home of tasks -> home of their job. These tasks, which were sent as unfinished, have outcomes."""

    task_ids: Ids


class Withdraw(NamedTuple):
    """home of tasks -> home of their job. Nobody needs these rows any more."""

    task_ids: Ids


class Remains(NamedTuple):
    """any node -> home of a job, after the death of ``node``. What the sender has of objects and tasks that were at home there.

    ``objects`` are rows ``(object_id, held, named, status, value, refs inside)``: whether the sender is a holder; whether rows that it
    retains name the object (``RetainRows``); status -1 if the value is not there; OK with the size of a value that the sender retains for
    the receiver, which is its home from now on; or the outcome that is not a value. ``attempts`` are rows ``(task_id, attempt)`` of tasks
    that the dead node had delegated to the sender. ``homes`` is as in ``Delegate``. The last of these messages is ``complete``: the sender
    has nothing more of the dead node.
    """

    node: bytes
    objects: Rows
    homes: Rows
    attempts: Rows
    complete: bool


class TookOver(NamedTuple):
    """any node -> any node. The sender has taken over from a dead node, and has registered at all homes what it needs for that.

    Once all have, what the dead node held is released everywhere.
    """

    node: bytes


class RetainRows(NamedTuple):
    """any node -> home of objects. Rows that the sender retains name these objects: their tasks are to be retained, not their values."""

    object_ids: Ids


class ReleaseRows(NamedTuple):
    """any node -> home of objects. No row that the sender retains names these objects any more."""

    object_ids: Ids
