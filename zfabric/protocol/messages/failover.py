"""The home of a job takes over the tasks that were at home on a node that dies.

The home of a job is the node of its driver. Before the death it receives rows of tasks from their home. After it, it receives from all
others what they have of those tasks and their values.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.access import from_nodes
from zfabric.protocol.ids import LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import Ids, Rows


@from_nodes(LOCAL_SCHEDULER)
class Entrust(NamedTuple):
    """home of tasks -> home of their job. Task rows that the receiver needs if the sender dies, with all rows that these name.

    ``Entrusted`` with the same number is the answer. The rows are those of tasks whose values other nodes refer to, and of the tasks
    ``unfinished``. These have no outcome, and their parents have ended, so that nobody would submit them again. Rows of ``unfinished`` may
    have been sent before. ``functions`` are functions of the rows that the receiver does not have, as in ``Export``. ``homes`` is as in
    ``Delegate``.
    """

    number: int
    job: bytes
    functions: Rows
    rows: Rows
    homes: Rows
    unfinished: Ids = ()


@from_nodes(LOCAL_SCHEDULER)
class Entrusted(NamedTuple):
    """home of a job -> home of tasks. The sender has the rows of the ``Entrust`` with this number.

    While the sender registers, ``task_ids`` are the tasks whose rows it has: from the receiver's former daemon, or stored by its own.
    Rows that the receiver does not need any more it withdraws.
    """

    number: int
    task_ids: Ids = ()


@from_nodes(LOCAL_SCHEDULER)
class Finished(NamedTuple):
    """home of tasks -> home of their job. These tasks were sent as unfinished, and have outcomes now."""

    task_ids: Ids


@from_nodes(LOCAL_SCHEDULER)
class Withdraw(NamedTuple):
    """home of tasks -> home of their job. Nobody needs these rows any more."""

    task_ids: Ids


@from_nodes(LOCAL_SCHEDULER)
class Remains(NamedTuple):
    """any node -> home of a job, after the death of ``node``. What the sender has of objects and tasks that were at home there.

    ``objects`` are rows ``(object_id, held, named, status, value, refs inside)``:

    - ``held``: the sender is a holder of the object.
    - ``named``: rows that the sender retains name the object (``RetainRows``).
    - ``status`` is -1 if the sender does not have the value. It is OK if the sender retains the value for the receiver, its home from now
      on; then ``value`` is the size. Otherwise the two are an outcome that is not a value.

    ``attempts`` are rows ``(task_id, attempt)`` of tasks that the dead node had delegated to the sender. ``homes`` is as in ``Delegate``.
    The last of these messages is ``complete``: the sender has nothing more of the dead node.
    """

    node: bytes
    objects: Rows
    homes: Rows
    attempts: Rows
    complete: bool


@from_nodes(LOCAL_SCHEDULER)
class TookOver(NamedTuple):
    """any node -> any node. The sender has taken over from the dead ``node``, and is a holder of all objects that it needs for that.

    Once all nodes have sent it, all homes release what the dead node held.
    A daemon that never knew the dead node has nothing to report. It answers the reports of others with this message.
    """

    node: bytes


@from_nodes(LOCAL_SCHEDULER)
class RetainRows(NamedTuple):
    """any node -> home of objects. Rows that the sender retains name these objects: retain the rows of their tasks, not their values."""

    object_ids: Ids


@from_nodes(LOCAL_SCHEDULER)
class ReleaseRows(NamedTuple):
    """any node -> home of objects. No row that the sender retains names these objects any more."""

    object_ids: Ids
